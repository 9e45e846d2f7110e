//! The header is what cbindgen makes of the sources, and the examples compile and run.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_up_to_date() {
    let made = cbindgen::generate(folder()).expect("cbindgen reads the crate");
    let mut text = Vec::new();
    made.write(&mut text);
    let (made, path) = (String::from_utf8(text).unwrap(), folder().join("include/msda.h"));
    if std::env::var_os("MSDA_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == committed,
        "{} differs from the sources\nhint: MSDA_UPDATE_SNAPSHOTS=1 writes it",
        path.display()
    );
}

/// The library: cargo builds it before this test, beside the test's program.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let name = format!("{}msda_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = program.with_file_name(name);
    assert!(library.is_file(), "got no {}, expected the library there", library.display());
    library
}

/// Compiles an example without warnings and runs it. Returns what it printed.
fn run(compiler: &str, standard: &str, example: &str) -> Option<String> {
    if cfg!(windows) || Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("skipped {example}: no {compiler}");
        return None;
    }
    let library = library();
    let folder_of_library = library.parent().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(example.replace('.', "-"));
    let compiled = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-o"])
        .arg(&program)
        .arg(folder().join("examples").join(example))
        .arg(format!("-I{}", folder().join("include").display()))
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", folder_of_library.display()))
        .arg("-lm")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    Some(said)
}

#[test]
fn the_example_in_c_runs() {
    if let Some(said) = run("cc", "-std=c99", "forward.c") {
        assert!(said.contains("output 5 50"), "{said}");
    }
}

#[test]
fn the_example_in_cpp_runs() {
    if let Some(said) = run("c++", "-std=c++11", "threads.cpp") {
        assert!(said.contains("4 threads computed the same bits"), "{said}");
    }
}

/// What a program in C can get wrong is a code and a message, and never a panic.
#[test]
fn null_and_wrong_numbers_are_refused() {
    use msda_c::*;
    use std::ffi::CStr;
    use std::ptr::null;
    // SAFETY: the message lives until the next error.
    let said = || unsafe { CStr::from_ptr(msda_last_error()) }.to_string_lossy().into_owned();
    let sizes = [1i64, 1, 3, 1, 1, 2];
    let mut data = [0f32; 6];
    let tensor = |rank, dtype, data: *mut f32| msda_tensor {
        data: data.cast(),
        dtype,
        rank,
        sizes: sizes.as_ptr(),
        strides: null(),
    };
    let data = data.as_mut_ptr();
    let shapes = [1i64, 1];
    let right = msda_inputs {
        value: tensor(4, MSDA_F32, data),
        levels: 1,
        spatial_shapes: shapes.as_ptr(),
        level_start_index: null(),
        reference_points: null(),
        sampling_locations: tensor(6, MSDA_F32, data),
        attention_weights: tensor(5, MSDA_F32, data),
        options: 0,
        points: null(),
    };
    let output = tensor(3, MSDA_F32, data);
    type Change = fn(&mut msda_inputs);
    static NEGATIVE: [i64; 6] = [1, 1, 3, 1, -2, 2];
    static FAR: [i64; 4] = [1, 1, i64::MAX, 1];
    let cases: [(&str, Change, i32, &str); 11] = [
        ("null data", |c| c.value.data = std::ptr::null_mut(), MSDA_ERROR_VALUE, "value: got NULL"),
        ("null sizes", |c| c.value.sizes = null(), MSDA_ERROR_VALUE, "value: got NULL, expected a list"),
        ("type", |c| c.value.dtype = 9, MSDA_ERROR_TYPE, "value: got dtype 9, expected MSDA_F64"),
        ("rank", |c| c.value.rank = -1, MSDA_ERROR_VALUE, "value: got rank -1, expected 0 to 8"),
        ("large rank", |c| c.value.rank = 99, MSDA_ERROR_VALUE, "value: got rank 99"),
        ("null tables", |c| c.spatial_shapes = null(), MSDA_ERROR_VALUE, "spatial_shapes: got NULL"),
        ("levels", |c| c.levels = -1, MSDA_ERROR_VALUE, "levels: got -1"),
        ("options", |c| c.options = 8, MSDA_ERROR_VALUE, "options: got 8"),
        ("strides", |c| c.value.strides = FAR.as_ptr(), MSDA_ERROR_VALUE, "expected a span that fits memory"),
        (
            "points",
            |c| {
                c.sampling_locations.sizes = NEGATIVE.as_ptr();
                c.attention_weights.sizes = NEGATIVE.as_ptr();
            },
            MSDA_ERROR_VALUE,
            "expected sizes of at least 0",
        ),
        (
            "coordinates",
            |c| c.sampling_locations.rank = 5,
            MSDA_ERROR_VALUE,
            "expected a last dimension of 2",
        ),
    ];
    for (what, change, code, message) in cases {
        let mut call = right;
        change(&mut call);
        // SAFETY: pointers are null or valid.
        let got = unsafe { msda_forward(&call, &output, 1) };
        assert_eq!(got, code, "{what}: {}", said());
        assert!(said().contains(message), "{what}: {}", said());
    }
    // SAFETY: null is refused.
    unsafe {
        assert_eq!(msda_forward(null(), &output, 1), MSDA_ERROR_VALUE);
        assert_eq!(msda_forward(&right, null(), 1), MSDA_ERROR_VALUE);
        assert_eq!(msda_backward(&right, &output, null(), 1), MSDA_ERROR_VALUE);
        assert_eq!(msda_cuda_forward_workspace(null(), null(), 0, std::ptr::null_mut()), MSDA_ERROR_VALUE);
    }
}
