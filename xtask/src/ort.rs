//! The operators for ONNX Runtime, tested with several of its versions.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::venv::{self, Venv};
use crate::{DEV, RELEASE, built, cargo, root, run};

/// The library's file.
pub(crate) const LIBRARY: &str = if cfg!(windows) {
    "msda_ort.dll"
} else if cfg!(target_os = "macos") {
    "libmsda_ort.dylib"
} else {
    "libmsda_ort.so"
};

/// Versions besides that of `.venv`: one that is too old, the oldest that works, and one between.
/// They are the last ones with packages for the NumPy beside them and for Python 3.10 to 3.12.
const VERSIONS: [(&str, &str); 3] = [("1.16", "numpy<2"), ("1.17", "numpy<2"), ("1.22", "numpy")];

/// Builds the library.
pub(crate) fn build() -> Result<()> {
    cargo(&["build", "--release", "--quiet", "--package", "msda-ort"], &[])
}

/// Builds the library and tests it.
pub(crate) fn command() -> Result<()> {
    build()?;
    test_all(RELEASE, &venv::ensure(&root())?, &others())
}

/// Interpreters with the other versions. A version that cannot be installed is skipped.
pub(crate) fn others() -> Vec<PathBuf> {
    let with = |(version, numpy)| {
        let python = venv::with(&root(), "onnxruntime", version, &[numpy, "onnx"]);
        python.inspect_err(|error| eprintln!("skipped ONNX Runtime {version}: {error:#}")).ok()
    };
    VERSIONS.into_iter().filter_map(with).collect()
}

/// Tests the library that was built with the tests, with the version of `.venv` and with others.
pub(crate) fn test(venv: &Venv, others: &[PathBuf]) -> Result<()> {
    test_all(DEV, venv, others)
}

fn test_all(profile: &str, venv: &Venv, others: &[PathBuf]) -> Result<()> {
    let library = built(profile, LIBRARY);
    [&venv.python].into_iter().chain(others).try_for_each(|python| pytest(python, &library))
}

/// Tests a library with the ONNX Runtime of an interpreter.
pub(crate) fn pytest(python: &Path, library: &Path) -> Result<()> {
    let tests = root().join("crates/msda-ort/tests").display().to_string();
    run(
        python,
        &["-m", "pytest", "--quiet", "-p", "no:cacheprovider", &tests],
        &[("MSDA_ORT", library.as_os_str()), ("PYTHONDONTWRITEBYTECODE", OsStr::new("1"))],
    )
}
