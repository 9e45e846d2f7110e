//! Tensors in files: they survive writing and reading, and damaged files are refused without harm.

mod tensor_files;

use std::fs;
use std::path::{Path, PathBuf};

use msda::{Buffer, Dtype};
use msda_bench::files::{self, Data, Tensor, npy, safetensors};

use tensor_files::{SHAPES, all_exact, allowed, exact, memory, npy_bytes, safetensors_bytes, tensor, types};

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
    assert!(Tensor::new(vec![2, 2], ints.data).is_err());
    assert!(Tensor::new(vec![usize::MAX, 2], floats.data).is_err());
}

#[test]
fn tensors_that_cannot_be_read_back_are_not_written() {
    let good = tensor(None, &[2]);
    let bad = Tensor { shape: vec![3], data: Data::Int(vec![1, 2]) };
    let named = |name: &str| (name.to_string(), good.clone());
    for (error, expected) in [
        (npy::encode(&bad), "got 2 elements, expected 3 for the shape [3]"),
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

/// Every file of `tests/hostile`, and a part of the message that refuses it.
#[rustfmt::skip]
const HOSTILE: &[(&str, &str)] = &[
    ("cut_after_magic.npy", "expected a version"),
    ("cut_in_header_length.npy", "expected the length of the header"),
    ("cut_in_header_length.safetensors", "got 4 bytes in all"),
    ("cut_in_magic.npy", "first bytes '\\x93NUM'"),
    ("data_missing.npy", "got 0 bytes after the header, expected 16"),
    ("data_truncated.npy", "got 15 bytes after the header, expected 16"),
    ("data_truncated.safetensors", "got 15 bytes after the header, expected 16"),
    ("data_with_tail.npy", "hint: the file has extra bytes at its end"),
    ("data_with_tail.safetensors", "got 17 bytes after the header, expected 16"),
    ("data_without_tensors.safetensors", "got 16 bytes after the header, expected 0"),
    ("empty.npy", "first bytes ''"),
    ("empty.safetensors", "got 0 bytes in all"),
    ("field_missing.safetensors", "missing field `data_offsets`"),
    ("field_nested_900_deep.safetensors", "safetensors header: got EOF while parsing a list"),
    ("field_twice.safetensors", "duplicate field `dtype`"),
    ("header_an_array.safetensors", "safetensors header: got invalid type: sequence"),
    ("header_empty.npy", "got the end of the header, expected '{'"),
    ("header_empty.safetensors", "safetensors header: got EOF"),
    ("header_longer_than_file.npy", "a length of 200"),
    ("header_longer_than_file.safetensors", "a length of 200"),
    ("header_nested_900_deep.safetensors", "safetensors header: got"),
    ("header_not_a_dict.npy", "expected '{'"),
    ("header_not_ascii.npy", "expected a closing quote"),
    ("header_not_json.safetensors", "safetensors header: got expected value"),
    ("header_not_utf8.safetensors", "safetensors header: got invalid unicode"),
    ("header_of_16_exabytes.safetensors", "a length of 18446744073709551615"),
    ("header_of_4_gb.npy", "a length of 4294967295"),
    ("header_of_nul_bytes.npy", "expected '{'"),
    ("header_unclosed.npy", "expected '}'"),
    ("header_with_code_after_dict.npy", "a newline after the dict"),
    ("header_with_second_value.safetensors", "safetensors header: got trailing"),
    ("header_without_newline.npy", "a newline after the dict"),
    ("key_missing.npy", "expected the key shape"),
    ("key_twice.npy", "got 'shape' twice"),
    ("key_unknown.npy", "got 'order'"),
    ("key_without_quotes.npy", "expected a key in quotes"),
    ("name_of_800_letters.safetensors", "n..': got BOOL"),
    ("name_twice.safetensors", "the name 'a' twice"),
    ("name_with_terminal_codes.safetensors", "tensor '\\u{1b}[2J'"),
    ("notes_not_strings.safetensors", "safetensors header: got invalid type: integer"),
    ("offsets_backwards.safetensors", "tensor 'a': got bytes 16 to 0"),
    ("offsets_end_at_u64_max.safetensors", "got 16 bytes after the header, expected 18446744073709551615"),
    ("offsets_negative.safetensors", "invalid value: integer `-16`"),
    ("offsets_overlapping.safetensors", "invalid offset for tensor `b`"),
    ("offsets_past_the_end.safetensors", "got 16 bytes after the header, expected 4398046511104"),
    ("offsets_shared.safetensors", "invalid offset for tensor"),
    ("offsets_with_gap.safetensors", "invalid offset for tensor `b`"),
    ("order_a_number.npy", "expected True or False"),
    ("order_fortran.npy", "hint: save np.ascontiguousarray(a)"),
    ("quote_unclosed.npy", "expected a closing quote"),
    ("shape_a_list.npy", "expected '('"),
    ("shape_a_number.npy", "expected a comma after the only length"),
    ("shape_bytes_wrap_to_16.npy", "npy data: got the shape [2305843009213693954]"),
    ("shape_empty_but_overflowing.npy", "npy data: got the shape [9223372036854775807"),
    ("shape_empty_but_overflowing.safetensors", "tensor 'a': got the shape [0, 9223372036854775807"),
    ("shape_larger_than_place.safetensors", "tensor 'a': got bytes 0 to 16, expected 4398046511104"),
    ("shape_negative.npy", "expected a length in decimal digits"),
    ("shape_negative.safetensors", "invalid value: integer `-2`"),
    ("shape_of_100_dimensions.npy", "got 100 dimensions, expected at most 64"),
    ("shape_of_100_dimensions.safetensors", "tensor 'a': got 100 dimensions"),
    ("shape_of_4_tb.npy", "got 16 bytes after the header, expected 4398046511104"),
    ("shape_of_floats.npy", "npy header: got '.0, 2.0"),
    ("shape_of_floats.safetensors", "invalid type: floating point"),
    ("shape_over_64_bits.npy", "npy shape: got '99999999999999999999'"),
    ("shape_over_64_bits.safetensors", "invalid type: floating point"),
    ("shape_product_wraps_to_4.npy", "npy data: got the shape [4294967296"),
    ("shape_product_wraps_to_4.safetensors", "tensor 'a': got the shape [4294967296"),
    ("shape_python_2.npy", "npy header: got 'L, 2L"),
    ("shape_with_leading_zero.npy", "expected a length in decimal digits"),
    ("text.npy", "first bytes 'hello,'"),
    ("type_a_number.npy", "expected an element type in quotes"),
    ("type_bf16_as_void.npy", "use a .safetensors file"),
    ("type_big_endian.npy", "hint: save a.astype(a.dtype.newbyteorder('<'))"),
    ("type_bool.npy", "npy element type: got '|b1'"),
    ("type_bool.safetensors", "tensor 'mask': got BOOL"),
    ("type_complex.npy", "npy element type: got '<c8'"),
    ("type_complex.safetensors", "tensor 'a': got C64"),
    ("type_f4_in_half_a_byte.safetensors", "tensor 'a': got F4"),
    ("type_f8.safetensors", "tensor 'a': got F8_E4M3"),
    ("type_object.npy", "npy element type: got '|O'"),
    ("type_of_800_letters.npy", "f..', expected f2"),
    ("type_record.npy", "got a record with fields"),
    ("type_unknown.safetensors", "unknown variant `F31`"),
    ("u64_above_i64.npy", "got 9223372036854775808 at position 1"),
    ("u64_above_i64.safetensors", "got 9223372036854775808 at position 1"),
    ("version_1_7.npy", "got 1.7, expected 1.0"),
    ("version_4.npy", "got 4.0, expected 1.0"),
    ("zip_renamed.npy", "hint: this is a zip archive"),
];

fn hostile_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile")
}

#[test]
fn hostile_files_are_refused_for_the_right_reason() {
    let mut present: Vec<_> = fs::read_dir(hostile_folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    present.sort();
    assert_eq!(present, HOSTILE.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, expected) in HOSTILE {
        let path = hostile_folder().join(name);
        let size = fs::metadata(&path).unwrap().len() as usize;
        let (result, peak) = memory::peak_of(|| files::read(&path));
        let text = message(result.expect_err(name));
        assert!(text.contains(expected), "{name}: {text}");
        assert!(text.contains(name) && text.len() < 1000, "{name}: {text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{name}: {text:?}");
        assert!(peak <= allowed(size) + 2 * size, "{name}: {peak} bytes allocated for {size}");
    }
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
            memory::peak_of(|| npy::parse(&bytes).is_ok())
        } else {
            memory::peak_of(|| safetensors::parse(&bytes).is_ok())
        };
        assert!(peak <= allowed(bytes.len()), "{name}: {peak} bytes allocated for {}", bytes.len());
    }
}
