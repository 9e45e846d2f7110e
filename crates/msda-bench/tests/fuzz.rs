//! A fuzzer of the readers of files: valid and hostile files, damaged at random.
//!
//! A damaged file must be read or refused: no panic, and no more memory than its size allows. A
//! file that is read must survive being written and read again. The cases are the same on each run.
//! A failure prints the seed, the number of the case and the file.
//!
//! `MSDA_FUZZ_SECONDS=60` runs each reader for that time, with other seeds.

mod tensor_files;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use msda::Dtype;
use msda::rng::Rng;
use msda_bench::files::{npy, safetensors};

use tensor_files::{SHAPES, all_exact, allowed, exact, npy_bytes, peak_of, safetensors_bytes, tensor, types};

/// Numbers at the limits of integer types.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "2305843009213693951",
    "4611686018427387904",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
];

/// Text that one of the parsers knows.
const TOKENS: [&str; 22] = [
    "'", "\"", "(", ")", "[", "]", "{", "}", ",", ":", "-", "\\", "\n", " ", "True", "'<f8'", "'>i4'",
    "shape", "dtype", "null", "1e9", "\u{e9}",
];

/// Damages `bytes` once; `other` is another file of the same format.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Rng) {
    let at = random.below(bytes.len() + 1);
    let end = (at + 1 + random.below(12)).min(bytes.len());
    match random.below(10) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 if at < bytes.len() => bytes[at] = random.bits() as u8,
        3 => bytes.insert(at, random.bits() as u8),
        4 => drop(bytes.drain(at..end)),
        5 => bytes.truncate(at),
        6 => {
            let token = if random.below(2) == 0 { random.pick(&NUMBERS) } else { random.pick(&TOKENS) };
            bytes.splice(at..end, token.bytes());
        }
        // Another number in the text: shapes and offsets that do not fit the data.
        7 => {
            let digit = |b: &u8| b.is_ascii_digit();
            if let Some(begin) = bytes[at..].iter().position(digit).map(|i| at + i) {
                let len = bytes[begin..].iter().take_while(|b| digit(b)).count();
                bytes.splice(begin..begin + len, random.pick(&NUMBERS).bytes());
            }
        }
        // The lengths at the front of both formats.
        8 => {
            for byte in bytes.iter_mut().skip(random.below(12)).take(1 + random.below(8)) {
                *byte = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            }
        }
        // The front of one file with the rest of another.
        _ => {
            let cut = random.below(other.len() + 1);
            bytes.splice(..at, other[..cut].iter().copied());
        }
    }
}

/// A well-formed `.npy` with any numbers.
fn npy_sentence(random: &mut Rng) -> Vec<u8> {
    let descr = random.pick(&["<f2", "<f4", "<f8", "|u1", "<i4", "<u8", "|b1", ">f4"]);
    let shape: String = (0..random.below(5)).map(|_| format!("{},", random.pick(&NUMBERS))).collect();
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    npy_bytes(1 + random.below(3) as u8, &dict, &vec![random.bits() as u8; random.below(40)])
}

/// A well-formed `.safetensors` with any numbers.
fn safetensors_sentence(random: &mut Rng) -> Vec<u8> {
    let entry = |name: usize, random: &mut Rng| {
        let code = random.pick(&["F64", "F32", "F16", "BF16", "U8", "I32", "U64", "F4", "BOOL"]);
        let shape: Vec<_> = (0..random.below(4)).map(|_| random.pick(&NUMBERS)).collect();
        let (begin, end) = (random.pick(&NUMBERS), random.pick(&NUMBERS));
        format!(
            r#""{name}":{{"dtype":"{code}","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
            shape.join(",")
        )
    };
    let entries: Vec<_> = (0..random.below(4)).map(|_| entry(random.below(3), random)).collect();
    safetensors_bytes(&format!("{{{}}}", entries.join(",")), &vec![random.bits() as u8; random.below(40)])
}

/// A reader, and the files that the fuzzer starts from.
struct Target {
    seed: u64,
    files: Vec<Vec<u8>>,
    sentence: fn(&mut Rng) -> Vec<u8>,
    /// Reads a file; false if it was refused.
    read: fn(&[u8]) -> bool,
}

/// Cases per seed.
const CASES: usize = 100_000;

impl Target {
    /// Runs the cases of one seed, and those of further seeds while there is time.
    fn fuzz(&self) {
        let seconds = std::env::var("MSDA_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
        let end = Instant::now() + Duration::from_secs(seconds);
        for seed in self.seed.. {
            let accepted = self.cases(seed, end, seed == self.seed);
            // Both sides of the parser were reached.
            let both = (CASES / 20..CASES * 19 / 20).contains(&accepted);
            assert!(both || seed > self.seed, "seed {seed:#x}: {accepted} of {CASES} files were accepted");
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// The number of files that were accepted.
    fn cases(&self, seed: u64, end: Instant, all: bool) -> usize {
        let mut random = Rng::new(seed);
        let mut accepted = 0;
        for case in 0..CASES {
            if !all && Instant::now() >= end {
                break;
            }
            let one = random.below(self.files.len());
            let mut bytes =
                if case % 4 == 0 { (self.sentence)(&mut random) } else { self.files[one].clone() };
            for _ in 0..random.below(4) {
                let other = random.below(self.files.len());
                mutate(&mut bytes, &self.files[other], &mut random);
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.read)(&bytes)));
            accepted += usize::from(outcome.unwrap_or_else(|_| {
                panic!("case {case} of seed {seed:#x}: {}", bytes.escape_ascii());
            }));
        }
        accepted
    }
}

/// The hostile files of the repository with this extension.
fn hostile(extension: &str) -> impl Iterator<Item = Vec<u8>> {
    let files = tensor_files::hostile().into_iter();
    let files = files.filter(move |path| path.extension().is_some_and(|e| e == extension));
    files.map(|path| std::fs::read(path).unwrap())
}

#[test]
fn damaged_npy_files_are_read_or_refused() {
    let valid = types()
        .filter(|dtype| *dtype != Some(Dtype::Bf16))
        .flat_map(|dtype| SHAPES.map(|shape| npy::encode(&tensor(dtype, shape)).unwrap()));
    let read = |bytes: &[u8]| {
        let (result, peak) = peak_of(|| npy::parse(bytes));
        assert!(peak <= allowed(bytes.len()), "{peak} bytes allocated for {}", bytes.len());
        let Ok(tensor) = result else { return false };
        let again = npy::parse(&npy::encode(&tensor).unwrap()).unwrap();
        assert_eq!(exact(&again), exact(&tensor));
        true
    };
    let files = valid.chain(hostile("npy")).collect();
    Target { seed: 0x6e70_7931, files, sentence: npy_sentence, read }.fuzz();
}

#[test]
fn damaged_safetensors_files_are_read_or_refused() {
    let named = |dtype: Option<Dtype>, i: usize| (format!("t{i}"), tensor(dtype, SHAPES[i]));
    let valid = types().flat_map(|dtype| {
        [&[][..], &[0], &[1, 2], &[3, 4, 5, 6]].map(|some| {
            let tensors: Vec<_> = some.iter().map(|i| named(dtype, *i)).collect();
            safetensors::encode(&tensors).unwrap()
        })
    });
    let read = |bytes: &[u8]| {
        let (result, peak) = peak_of(|| safetensors::parse(bytes));
        assert!(peak <= allowed(bytes.len()), "{peak} bytes allocated for {}", bytes.len());
        let Ok(tensors) = result else { return false };
        let list: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        let again = safetensors::parse(&safetensors::encode(&list).unwrap()).unwrap();
        assert_eq!(all_exact(&again), all_exact(&tensors));
        true
    };
    let files = valid.chain(hostile("safetensors")).collect();
    Target { seed: 0x7361_6665, files, sentence: safetensors_sentence, read }.fuzz();
}
