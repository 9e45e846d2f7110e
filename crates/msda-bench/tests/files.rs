//! Tensors in files: they survive writing and reading, and damaged files are refused without harm.

mod tensor_files;

use std::fs;
use std::path::PathBuf;

use msda::{Buffer, Dtype};
use msda_bench::files::{self, Data, Tensor, npy, safetensors};

use tensor_files::{
    SHAPES, all_exact, allowed, exact, hostile, npy_bytes, peak_of, safetensors_bytes, tensor, types,
};

fn message(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

#[test]
fn npy_round_trip() {
    for dtype in types().filter(|d| *d != Some(Dtype::Bf16)) {
        for shape in SHAPES {
            let before = tensor(dtype, shape);
            let bytes = npy::encode(&before).unwrap();
            assert_eq!(exact(&npy::parse(&bytes).unwrap()), exact(&before), "{dtype:?} {shape:?}");
        }
    }
}

#[test]
fn safetensors_round_trip() {
    let mut tensors = Vec::new();
    for dtype in types() {
        for shape in SHAPES {
            tensors.push((format!("{dtype:?} {shape:?} \"\\\u{e9}\n"), tensor(dtype, shape)));
        }
    }
    for some in [&tensors[..], &tensors[..1], &[]] {
        let after = safetensors::parse(&safetensors::encode(some).unwrap()).unwrap();
        assert_eq!(all_exact(&after), all_exact(&some.iter().cloned().collect()));
    }
}

#[test]
fn npy_is_what_numpy_writes() {
    // The output of np.save, NumPy 2.4; its headers are padded to 118 ('v') bytes.
    let cases: [(&str, &[u8], Tensor); 4] = [
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
            b"\x00\x00\x80?\x00\x00\x00@\x00\x00@@",
            Tensor { shape: vec![3], data: Data::Float(Buffer::from_fn(Dtype::F32, 3, |i| i as f64 + 1.0)) },
        ),
        (
            "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 2), }",
            b"\x00>\x00\xc0\x00B\x00D",
            Tensor {
                shape: vec![1, 2, 2],
                data: Data::Float(Buffer::from_fn(Dtype::F16, 4, |i| [1.5, -2.0, 3.0, 4.0][i])),
            },
        ),
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
            b"\x00\x00\x00\x00\x00\x00\x04@",
            Tensor { shape: vec![], data: Data::Float(Buffer::filled(Dtype::F64, 1, 2.5)) },
        ),
        (
            "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 3), }",
            b"",
            Tensor { shape: vec![0, 3], data: Data::Int(vec![]) },
        ),
    ];
    for (dict, data, tensor) in cases {
        let bytes = [b"\x93NUMPY\x01\x00v\x00", format!("{dict:<117}\n").as_bytes(), data].concat();
        assert_eq!(exact(&npy::parse(&bytes).unwrap()), exact(&tensor));
        assert_eq!(npy::encode(&tensor).unwrap(), bytes, "{dict}");
    }
}

#[test]
fn npy_headers_of_other_writers_are_read() {
    let data = 7.0f32.to_le_bytes();
    for dict in [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
        "{'shape':(1,),'fortran_order':False,'descr':'<f4'}",
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (1,)}",
        " { 'descr' : '<f4' ,\n'fortran_order' : False , 'shape' : ( 1 , ) , } ",
    ] {
        for version in [1, 2, 3] {
            let tensor = npy::parse(&npy_bytes(version, dict, &data)).unwrap();
            assert_eq!((tensor.shape.as_slice(), tensor.float("x").unwrap().to_f64()), (&[1][..], vec![7.0]));
        }
    }
}

#[test]
fn integers_of_every_width() {
    // The same bytes, read as signed or unsigned: all ones but the lowest bit, then a 5.
    let bytes = |size: usize| {
        let mut bytes = vec![0xff; 2 * size];
        bytes[0] = 0xfe;
        bytes[size..].fill(0);
        bytes[size] = 5;
        bytes
    };
    let cases = [
        ("|i1", "I8", 1, -2),
        ("<i1", "I8", 1, -2),
        ("<i2", "I16", 2, -2),
        ("<i4", "I32", 4, -2),
        ("<i8", "I64", 8, -2),
        ("|u1", "U8", 1, 0xfe),
        ("<u1", "U8", 1, 0xfe),
        ("<u2", "U16", 2, 0xfffe),
        ("<u4", "U32", 4, 0xffff_fffe),
    ];
    for (descr, code, size, first) in cases {
        let data = bytes(size);
        let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}");
        let tensor = npy::parse(&npy_bytes(1, &dict, &data)).unwrap();
        assert_eq!(tensor.ints("x").unwrap(), [first, 5], "{descr}");
        let header = format!(r#"{{"x":{{"dtype":"{code}","shape":[2],"data_offsets":[0,{}]}}}}"#, data.len());
        let tensors = safetensors::parse(&safetensors_bytes(&header, &data)).unwrap();
        assert_eq!(tensors["x"].ints("x").unwrap(), [first, 5], "{code}");
    }
    // The largest that fits. A hostile file has one more.
    let dict = "{'descr': '<u8', 'fortran_order': False, 'shape': (), }";
    let tensor = npy::parse(&npy_bytes(1, dict, &i64::MAX.to_le_bytes())).unwrap();
    assert_eq!(tensor.ints("x").unwrap(), [i64::MAX]);
}

#[test]
fn accessors_refuse_other_types_with_a_reason() {
    let floats = tensor(Some(Dtype::Bf16), &[2]);
    let ints = tensor(None, &[2]);
    assert_eq!(floats.float("value").unwrap().dtype(), Dtype::Bf16);
    assert_eq!(ints.ints("levels").unwrap().len(), 2);
    let text = message(floats.ints("levels").unwrap_err());
    assert!(text.starts_with("levels: got bf16, expected integers\nhint: "), "{text}");
    let text = message(ints.float("value").unwrap_err());
    assert!(text.starts_with("value: got integers, expected f64, f32, f16 or bf16\nhint: "), "{text}");
}

#[test]
fn tensors_that_cannot_be_read_back_are_not_written() {
    let good = tensor(None, &[2]);
    let bad = Tensor { shape: vec![3], data: Data::Int(vec![1, 2]) };
    let huge = Tensor { shape: vec![usize::MAX, 2], data: Data::Int(vec![1, 2]) };
    let named = |name: &str| (name.to_string(), good.clone());
    for (error, expected) in [
        (npy::encode(&bad), "got 2 elements, expected 3 for the shape [3]"),
        (npy::encode(&huge), "got the shape [18446744073709551615, 2]"),
        (npy::encode(&tensor(Some(Dtype::Bf16), &[2])), "write a .safetensors file"),
        (safetensors::encode(&[("bad".to_string(), bad)]), "tensor 'bad': got 2 elements"),
        (safetensors::encode(&[named("a"), named("a")]), "got 'a' twice"),
        (safetensors::encode(&[named("__metadata__")]), "reserves this name for notes"),
    ] {
        let text = message(error.unwrap_err());
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn files_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let a = ("a".to_string(), tensor(Some(Dtype::F16), &[2, 3]));
    let b = ("b".to_string(), tensor(None, &[4]));
    let names = |path: PathBuf| files::read(path).unwrap().into_keys().collect::<Vec<_>>();

    files::write(at("both.safetensors"), &[b.clone(), a.clone()]).unwrap();
    assert_eq!(names(at("both.safetensors")), ["a", "b"]);
    files::write(at("levels.v2.NPY"), std::slice::from_ref(&b)).unwrap();
    assert_eq!(names(at("levels.v2.NPY")), ["levels.v2"]);
    // Over an existing file.
    files::write(at("both.safetensors"), std::slice::from_ref(&a)).unwrap();
    assert_eq!(names(at("both.safetensors")), ["a"]);

    // A refusal leaves the old file and no other.
    for (path, tensors, expected) in [
        (at("both.npy"), vec![a.clone(), b.clone()], "got 2 tensors, expected exactly one"),
        (at("none.npy"), vec![], "got 0 tensors, expected exactly one"),
        (at("both.safetensors"), vec![a.clone(), a.clone()], "got 'a' twice"),
        (at("a.npz"), vec![a.clone()], "got .npz, expected .npy or .safetensors"),
        (at("a"), vec![a.clone()], "got none, expected .npy or .safetensors"),
        (at("missing/a.npy"), vec![a.clone()], "cannot write"),
    ] {
        let text = message(files::write(&path, &tensors).unwrap_err());
        assert!(text.contains(expected) && text.contains(path.to_str().unwrap()), "{text}");
    }
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["both.safetensors", "levels.v2.NPY"]);
    assert_eq!(names(at("both.safetensors")), ["a"]);

    fs::create_dir(at("folder.npy")).unwrap();
    for (path, expected) in [
        (at("folder.npy"), "expected a regular file"),
        (at("missing.npy"), "cannot read"),
        (at("a.pt"), "hint: save with safetensors.torch.save_file instead"),
    ] {
        let text = message(files::read(&path).unwrap_err());
        assert!(text.contains(expected) && text.contains(path.to_str().unwrap()), "{text}");
    }
}

#[test]
fn hostile_files_are_refused_for_the_right_reason() {
    let paths = hostile();
    let present: Vec<_> = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    // A part of the message that refuses each of them.
    let lines = include_str!("hostile.txt").lines().filter(|line| !line.starts_with('#'));
    let reasons: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    assert_eq!(present, reasons.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (path, (name, expected)) in paths.iter().zip(reasons) {
        let size = fs::metadata(path).unwrap().len() as usize;
        let (result, peak) = peak_of(|| files::read(path));
        let text = message(result.expect_err(name));
        if !text.contains(expected) {
            wrong.push(text.clone());
        }
        assert!(text.contains(name) && text.len() < 1000, "{name}: {text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{name}: {text:?}");
        assert!(peak <= allowed(size) + 2 * size, "{name}: {peak} bytes allocated for {size}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn large_files_that_grow_in_memory_stay_within_bounds() {
    let many = 20_000;
    let tiny = |i: usize| format!(r#""{i:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    let list = |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(",");
    let lengths = list(many, &|_| "1".to_string());
    let cases = [
        (
            "bytes",
            npy_bytes(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (20000,)}", &vec![1; many]),
        ),
        ("npy dimensions", npy_bytes(2, &format!("{{'shape': ({lengths}), 'descr': '<f4'}}"), &[])),
        ("npy name", npy_bytes(2, &format!("{{'{}': 1}}", "x".repeat(many)), &[])),
        ("tiny tensors", safetensors_bytes(&format!("{{{}}}", list(many, &tiny)), &[])),
        (
            "dimensions",
            safetensors_bytes(
                &format!(r#"{{"a":{{"dtype":"U8","shape":[{lengths}],"data_offsets":[0,1]}}}}"#),
                &[0],
            ),
        ),
        (
            "notes",
            safetensors_bytes(
                &format!(r#"{{"__metadata__":{{{}}}}}"#, list(many, &|i| format!(r#""{i}":"""#))),
                &[],
            ),
        ),
        ("type name", safetensors_bytes(&format!(r#"{{"a":{{"dtype":"{}"}}}}"#, "\\n".repeat(many)), &[])),
    ];
    for (name, bytes) in cases {
        let (_, peak) = if bytes.starts_with(b"\x93NUMPY") {
            peak_of(|| npy::parse(&bytes).is_ok())
        } else {
            peak_of(|| safetensors::parse(&bytes).is_ok())
        };
        assert!(peak <= allowed(bytes.len()), "{name}: {peak} bytes allocated for {}", bytes.len());
    }
}
