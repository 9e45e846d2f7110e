//! The user commands, as a person or a script calls them.

mod shell;

use std::path::Path;
use std::process::Stdio;

use msda::Buffer;
use msda_bench::files::{self, Data, Tensor};

use shell::{Shell, text};

fn msda() -> Shell {
    Shell::new(env!("CARGO_BIN_EXE_msda"))
}

fn float(shape: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let n = shape.iter().product();
    Tensor { shape: shape.to_vec(), data: Data::Float(Buffer::from_fn(msda::Dtype::F32, n, f)) }
}

/// A shell with `in.safetensors`: two levels, two heads, three queries.
fn with_inputs() -> Shell {
    let tensors = [
        ("value".into(), float(&[1, 16, 2, 4], |i| (i as f64 * 0.7).sin())),
        ("spatial_shapes".into(), Tensor { shape: vec![2, 2], data: Data::Int(vec![3, 4, 2, 2]) }),
        ("level_start_index".into(), Tensor { shape: vec![2], data: Data::Int(vec![0, 12]) }),
        ("sampling_locations".into(), float(&[1, 3, 2, 2, 2, 2], |i| (i % 7) as f64 / 6.3)),
        ("attention_weights".into(), float(&[1, 3, 2, 2, 2], |i| 0.1 + (i % 3) as f64)),
    ];
    let msda = msda();
    files::write(msda.at("in.safetensors"), &tensors).unwrap();
    msda
}

/// Writes a file with the inputs that pass the filter and one more.
fn changed(msda: &Shell, name: &str, keep: impl Fn(&str) -> bool, more: Option<(&str, Tensor)>) {
    let tensors = files::read(msda.at("in.safetensors")).unwrap().into_iter().filter(|(name, _)| keep(name));
    let all: Vec<_> = tensors.chain(more.map(|(name, tensor)| (name.to_owned(), tensor))).collect();
    files::write(msda.at(name), &all).unwrap();
}

#[test]
fn run_computes_what_the_oracle_does_and_gradients_on_request() {
    let msda = with_inputs();
    let outputs =
        [("--engine", "oracle"), ("--device", "cpu"), ("--engine", "cpu-portable"), ("--engine", "cpu")].map(
            |(option, engine)| {
                msda.ok(&["run", "in.safetensors", "--output", "out.safetensors", option, engine]);
                let output = files::read(msda.at("out.safetensors")).unwrap()["output"].clone();
                assert_eq!(output.shape, [1, 3, 8]);
                output.float("output").unwrap().to_f64()
            },
        );
    for other in &outputs[1..] {
        assert!(other.iter().zip(&outputs[0]).all(|(a, b)| (a - b).abs() < 1e-5));
    }
    changed(&msda, "grad.safetensors", |_| true, Some(("grad_output", float(&[1, 3, 8], |_| 1.0))));
    msda.ok(&["run", "grad.safetensors", "--output", "g.safetensors"]);
    let results = files::read(msda.at("g.safetensors")).unwrap();
    let names: Vec<&str> = results.keys().map(String::as_str).collect();
    assert_eq!(names, ["grad_attention_weights", "grad_sampling_locations", "grad_value", "output"]);
    assert_eq!(results["grad_value"].shape, [1, 16, 2, 4]);
    msda.fails(1, &["run", "grad.safetensors", "--output", "g.npy"], &["expected a .safetensors file"]);
}

#[test]
fn run_takes_npy_files_and_levels_from_the_command_line() {
    let msda = with_inputs();
    for (name, tensor) in files::read(msda.at("in.safetensors")).unwrap() {
        files::write(msda.at(&format!("{name}.npy")), &[(name, tensor)]).unwrap();
    }
    let args = ["run", "value.npy", "sampling_locations.npy", "attention_weights.npy", "--output", "out.npy"];
    msda.fails(1, &args, &["hint: --levels"]);
    assert!(!msda.at("out.npy").exists());
    msda.ok(&[&args[..], &["--levels", "3x4,2x2"]].concat());
    assert_eq!(files::read(msda.at("out.npy")).unwrap()["out"].shape, [1, 3, 8]);
}

#[test]
fn bad_input_is_refused_with_advice_and_nothing_is_written() {
    let msda = with_inputs();
    let whole = std::fs::read(msda.at("in.safetensors")).unwrap();
    files::write(msda.at("extra.npy"), &[("extra".into(), float(&[2], |_| 0.0))]).unwrap();
    let no_levels = |name: &str| !["spatial_shapes", "level_start_index"].contains(&name);
    changed(&msda, "loose.safetensors", no_levels, None);
    changed(&msda, "twice.safetensors", |_| true, Some(("locations", float(&[1, 3, 2, 2, 2, 2], |_| 0.5))));
    msda.write("cut.safetensors", &whole[..whole.len() - 3]);
    for (args, expected) in [
        (vec!["cut.safetensors"], "expected"),
        (vec!["in.safetensors", "--levels", "3x4,2x3"], "expected one of them, or the same"),
        (vec!["loose.safetensors", "--levels", "3x4"], "expected (B, Q, H, L, P, 2) with L = 1"),
        (vec!["in.safetensors", "--layout", "planar"], "with H = 16\nhint: H comes from value; --layout"),
        (vec!["extra.npy"], "hint: an .npy file has the name of its tensor: value.npy"),
        (vec!["in.safetensors", "--points", "3,1"], "points"),
        (vec!["in.safetensors", "extra.npy"], "extra.npy"),
        (vec!["loose.safetensors", "--levels", "3x4,1x3"], "expected 15"),
        (vec!["twice.safetensors"], "'sampling_locations' and 'locations': got both"),
    ] {
        msda.fails(1, &[&["run", "--output", "out.safetensors"], &args[..]].concat(), &[expected]);
        assert!(!msda.at("out.safetensors").exists(), "{args:?} wrote something");
    }
    std::fs::create_dir(msda.at("folder.npy")).unwrap();
    for (output, expected) in
        [("folder.npy", "got the folder folder.npy, expected a file"), ("in.safetensors", "also an input")]
    {
        msda.fails(1, &["run", "in.safetensors", "--output", output], &[expected]);
    }
    assert_eq!(std::fs::read(msda.at("in.safetensors")).unwrap(), whole);
    for args in [&["verify", "--seeds", "0"][..], &["run"], &["nonsense"]] {
        msda.fails(2, args, &[]);
    }
}

#[test]
fn bench_measures_writes_and_reports() {
    let msda = msda();
    let args = ["bench", "--quick", "--workload", "small", "--engine", "cpu", "--engine", "cpu-portable"];
    let (said, noted) = msda.both(&args);
    assert!(said.contains("small forward") && !said.contains("base "), "{said}");
    // In a pipe: no escape sequences, and no progress bar.
    assert!(!said.contains('\x1b') && !noted.contains('\x1b'));
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    // Without vector instructions there is nothing to compare with.
    if msda::Isa::best() != msda::Isa::Portable {
        assert!(said.contains("forward, f32: ") && said.contains(" than portable code"), "{said}");
    }
    assert!(said.contains("Report: report/report.html."), "{said}");
    for name in ["record.json", "report.html", "report.md"] {
        assert!(msda.at("report").join(name).exists(), "{name}");
    }
    assert!(msda.ok(&["report", "report/record.json", "--markdown"]).contains("small"));

    for (more, expected) in [
        (&["--out", "other"][..], "two passes, three types, two engines: 12"),
        (&["--out", "other", "--dtype", "f16"], "two passes, one type, two engines: 4"),
        (&["--dtype", "f16", "--pass", "backward"], "one pass, one type, two engines: 2"),
    ] {
        let record = msda.record(&[&args[..], &["--json"], more].concat());
        assert!(expected.ends_with(&format!(": {}", record.measurements.len())), "{expected}");
        assert!(record.measurements.iter().all(|m| m.check.compared > 0 && m.time.median > 0.0));
        assert!(more.len() < 4 || record.measurements.iter().all(|m| m.dtype == "f16"));
    }
    // The record of the first run is kept under another name.
    let kept = std::fs::read_dir(msda.at("report")).unwrap();
    let kept = kept.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("record-20"));
    assert_eq!(kept.count(), 1);
    msda.fails(1, &[&args[..], &["--dtype", "f64"]].concat(), &["not in f64"]);

    msda.write("old.json", "{\"schema\": 0}");
    msda.write("text.json", "hello");
    files::write(msda.at("value.npy"), &[("value".into(), float(&[2], |_| 0.5))]).unwrap();
    msda.fails(1, &["report", "old.json"], &["expected 1"]);
    for (name, why) in [("value.npy", "it is not text"), ("text.json", "it is not JSON")] {
        let expected = [&format!("in {name}: got a file that is no record"), why, "hint: records are .json"];
        msda.fails(1, &["report", name], &expected);
    }
}

#[test]
fn random_problems_are_measured_and_are_workloads() {
    let msda = msda();
    let args = ["bench", "--random", "3", "--seed", "4", "--engine", "cpu"];
    let record = msda.record(&[&args[..], &["--json"]].concat());
    assert_eq!((record.measurements.len(), record.skipped.len()), (6, 0));
    let names: Vec<&str> = record.measurements.iter().map(|m| m.workload.as_str()).collect();
    assert_eq!(names[..2], ["random-4-0"; 2]);
    assert!(record.measurements.iter().all(|m| m.check.compared > 0 && m.work.gathered_bytes > 0.0));
    let said = msda.ok(&[&args[..], &["--pass", "forward"]].concat());
    assert!(said.starts_with("ps/byte  over near") && said.contains(&record.measurements[0].problem));
    assert!(said.lines().last().unwrap().contains(" of 3 more than 2 times as slow"), "{said}");
    assert!(msda.at("report/record.json").exists());
    for wrong in
        [&["bench", "--random", "0"][..], &["bench", "--seed", "1"], &["bench", "--random", "1", "--quick"]]
    {
        msda.fails(2, wrong, &[]);
    }
}

#[test]
fn verify_and_doctor_speak_to_people_and_programs() {
    let msda = msda();
    let rows = msda.json(&["verify", "--engine", "cpu", "--group", "borders", "--group", "fused", "--json"]);
    assert!(rows[0]["passed"].as_u64().unwrap() > 30, "{rows}");
    let args = ["verify", "--outputs", "small", "--engine", "cpu", "--engine", "oracle"];
    assert_eq!(msda.ok(&args).matches("\nsmall ").count(), 12, "two passes, three types, two engines");
    let backward = msda.ok(&[&args[..], &["--pass", "backward"]].concat());
    assert_eq!(backward.matches("\nsmall     backward").count(), 6, "{backward}");
    assert!(msda.finding("vectors", &[])["says"].is_string());
    assert!(msda.ok(&["doctor"]).contains("processor"));
    // The version names the commit. A copy without git has no commit.
    let version = msda.ok(&["--version"]);
    let commit = version
        .strip_prefix(concat!("msda ", env!("CARGO_PKG_VERSION"), " (commit "))
        .and_then(|text| text.trim().strip_suffix(')'))
        .unwrap_or_else(|| panic!("{version}"));
    assert!(commit == "unknown" || commit.bytes().all(|b| b.is_ascii_hexdigit()), "{version}");
}

/// Names that are not known: exit code 2, the list of known names, and a hint if one is similar.
#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let msda = with_inputs();
    let run = ["run", "in.safetensors", "--output", "o.npy"];
    for (args, words) in [
        (vec!["bench", "--workload", "sead-encoder"], ["rt-detr-decoder", "did you mean seed-encoder?"]),
        (
            vec!["bench", "--workload", "detr"],
            [
                "seed-encoder",
                "did you mean detr-encoder, detr-decoder, rt-detr-decoder, rf-detr-decoder or rf-detr-training?",
            ],
        ),
        ([&run[..], &["--device", "tpu"]].concat(), ["'tpu'", "cuda:N"]),
        ([&run[..], &["--device", "cuda:x"]].concat(), ["'cuda:x'", "cuda:N"]),
        (vec!["bench", "--engine", "oracel"], ["cpu", "did you mean oracle?"]),
        (vec!["bench", "--dtype", "fp16"], ["bf16", "f16"]),
        (vec!["verify", "--engine", "gpu"], ["cpu", "cuda"]),
        (vec!["verify", "--group", "border"], ["fused", "did you mean borders?"]),
        (vec!["verify", "--outputs", "smal"], ["seed", "did you mean small?"]),
        ([&run[..], &["--engine", "cpu-avx"]].concat(), ["oracle", "cpu-"]),
        // Torch and peers run in processes of their own, which only `bench` starts.
        (
            [&run[..], &["--engine", "torch"]].concat(),
            ["got 'torch', expected one of cpu, oracle", "cpu-portable\n"],
        ),
        (vec!["verify", "--workloads"], ["unexpected argument", "Usage: msda verify"]),
        (vec!["run", "in.safetensors", "--out", "o.npy"], ["unexpected argument", "--output"]),
    ] {
        msda.fails(2, &args, &words);
    }
    let left: Vec<_> = std::fs::read_dir(msda.at("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["in.safetensors"], "nothing was written");
}

/// Numbers out of range, negative ones too: the message says what is expected.
#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    let msda = with_inputs();
    let run = ["run", "in.safetensors", "--output", "o.npy"];
    for (args, expected) in [
        (vec!["bench", "--threads", "-1"], "-1 is not in 1..=4096"),
        (vec!["bench", "--threads", "5000"], "5000 is not in 1..=4096"),
        (vec!["bench", "--random", "-5"], "-5 is not in 1..="),
        (vec!["bench", "--random", "1", "--seed", "-5"], "expected a whole number, 0 or more"),
        (vec!["verify", "--seeds", "-1"], "-1 is not in 1..="),
        ([&run[..], &["--levels", "-4x4,2x2"]].concat(), "expected HEIGHTxWIDTH"),
        ([&run[..], &["--points", "-4,2"]].concat(), "expected a whole number, 0 or more"),
    ] {
        msda.fails(2, &args, &[expected]);
    }
}

/// Files and folders that cannot be used: one form in all commands, with a hint.
#[test]
fn files_that_cannot_be_used_are_named_with_a_hint() {
    let msda = with_inputs();
    let looked = format!("hint: it was looked for in {}", msda.at("").canonicalize().unwrap().display());
    for args in [
        &["bench", "--workload", "missing.toml"][..],
        &["report", "missing.toml"],
        &["run", "missing.safetensors", "--output", "o.npy"],
    ] {
        msda.fails(1, args, &["error: cannot read 'missing.", looked.trim_end_matches('/')]);
    }
    msda.fails(1, &["report", "\u{1b}[31m.json"], &["cannot read '?[31m.json'"]);
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200");
    for command in [&["bench", "--quick"][..], &["report", records.to_str().unwrap()]] {
        let args = [command, &["--out", "in.safetensors/report"]].concat();
        msda.fails(1, &args, &["error: cannot write 'in.safetensors/report': ", "hint: choose a folder"]);
    }
}

/// As in the Python package. `--threads` is stronger.
#[test]
fn variables_set_the_number_of_threads() {
    let with = |value: &str| msda().with("MSDA_NUM_THREADS", value);
    assert!(with("3").finding("threads", &[])["says"].as_str().unwrap().starts_with("3 of "));
    let openmp = msda().with("OMP_NUM_THREADS", "3").with("MSDA_NUM_THREADS", "");
    assert!(openmp.finding("threads", &[])["says"].as_str().unwrap().starts_with("3 of "));
    let args =
        ["bench", "--workload", "small", "--dtype", "f16", "--pass", "forward", "--engine", "cpu", "--json"];
    for (more, expected) in [(&[][..], 3), (&["--threads", "2"], 2)] {
        let record = with("3").record(&[&args[..], more].concat());
        assert!(record.measurements.iter().all(|m| m.threads == expected), "{expected}");
    }
    for wrong in ["abc", "0", "-1", "4097"] {
        let said = format!("MSDA_NUM_THREADS: got {wrong:?}, expected a number from 1 to 4096\nhint: ");
        with(wrong).fails(1, &["doctor"], &[&said]);
    }
}

/// `msda ... | head -1` and `msda ... 2>&1 >/dev/null | true` are no errors.
#[test]
fn a_reader_that_ends_is_no_error() {
    let msda = with_inputs();
    let mut command = msda.command(&["doctor"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));

    for (input, code) in [("in.safetensors", 0), ("missing.safetensors", 1)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = msda.command(&["run", input, "--output", "o.npy"]);
        assert_eq!(command.stderr(writer).status().unwrap().code(), Some(code), "{input}");
    }
}

#[test]
fn report_takes_folders_and_writes_a_page() {
    let msda = msda();
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200");
    let said = msda.ok(&["report", records.to_str().unwrap(), "--out", "out"]);
    assert!(said.contains("NVIDIA H200, forward, f16: ") && said.contains("report.html"), "{said}");
    assert!((3..=6).contains(&said.lines().count()), "{said}");
    assert!(msda.read("out/report.html").contains("<h2>Measurements</h2>"));
    let record = records.join("2026-11-18-peers-detr-encoder.json");
    msda.ok(&["report", record.to_str().unwrap(), "--picture", "times.svg"]);
    assert!(msda.read("times.svg").starts_with("<svg xmlns="));
    msda.fails(2, &["report", "x.json", "--picture", "a.svg", "--markdown"], &["cannot be used"]);
    assert!(msda.read("out/report.md").contains("\n## Measurements\n"));
    std::fs::create_dir(msda.at("empty")).unwrap();
    msda.fails(1, &["report", "empty"], &["got no JSON file"]);
}

/// A missing GPU is refused with a hint.
#[test]
fn a_gpu_that_is_missing_is_refused_by_name() {
    let msda = with_inputs();
    for wanted in [["--engine", "cuda@99"], ["--device", "cuda:99"]] {
        let args = [&["run", "in.safetensors", "--output", "o.npy"], &wanted[..]].concat();
        msda.fails(1, &args, &["engine cuda@99", "hint: "]);
    }
}
