//! The Python package: its extension and its tests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::venv::{self, Venv};
use crate::{DEV, RELEASE, built, cargo, root, run};

/// The package's folder.
pub(crate) const PACKAGE: &str = "bindings/python";

/// The compiled part's file.
pub(crate) const EXTENSION: &str = if cfg!(windows) { "_native.pyd" } else { "_native.abi3.so" };

/// Libraries whose models msda patches, and what runs their tests. They take gigabytes.
const LIBRARIES: [&str; 6] = ["pytest", "ultralytics", "rfdetr", "lightly-train", "libreyolo", "mmcv-lite"];

/// Threads of torch that wait do not spin: other processes use the cores at the same time.
pub(crate) fn shared() -> (&'static str, &'static OsStr) {
    ("OMP_WAIT_POLICY", OsStr::new("PASSIVE"))
}

/// The compiled part, where Python finds it.
pub(crate) fn extension() -> PathBuf {
    root().join(PACKAGE).join("python/msda_attn").join(EXTENSION)
}

/// Builds the compiled part and puts it into the package's sources.
pub(crate) fn build() -> Result<()> {
    cargo(&["build", "--release", "--quiet", "--package", "msda-python"], &[])?;
    place(RELEASE)
}

/// Puts the compiled part that was built last into the package's sources.
fn place(profile: &str) -> Result<()> {
    let name = match std::env::consts::OS {
        "windows" => "_native.dll",
        "macos" => "lib_native.dylib",
        _ => "lib_native.so",
    };
    let (built, to) = (built(profile, name), extension());
    // A new file: a running Python may have mapped the old one.
    let _ = std::fs::remove_file(&to);
    std::fs::copy(&built, &to).with_context(|| format!("copying {}", built.display()))?;
    Ok(())
}

/// Runs tests of the package in a folder with an interpreter.
pub(crate) fn pytest(python: &Path, package: &Path, tests: &[&str], more: &[String]) -> Result<()> {
    let folder = root().join(PACKAGE).join("tests");
    let tests: Vec<_> = tests.iter().map(|name| folder.join(name).display().to_string()).collect();
    let mut args = vec!["-m", "pytest", "--quiet", "-p", "no:cacheprovider"];
    args.extend(tests.iter().chain(more).map(String::as_str));
    let env = [("PYTHONPATH", package.as_os_str()), ("PYTHONDONTWRITEBYTECODE", OsStr::new("1")), shared()];
    run(python, &args, &env)
}

/// The package's sources, with the compiled part that `build` put there.
fn folder() -> PathBuf {
    root().join(PACKAGE).join("python")
}

/// The tests with the usual environment, of the compiled part that was built last.
pub(crate) fn test(venv: &Venv) -> Result<()> {
    place(DEV)?;
    // Tests of a file stay together, so that what they share is made once; a process that is done
    // takes tests from others.
    let processes = ["--numprocesses=auto", "--maxprocesses=4", "--dist=worksteal"].map(str::to_owned);
    pytest(&venv.python, &folder(), &[""], &processes)
}

/// `cargo xtask libraries`: the models of other libraries, in an environment of their own.
pub(crate) fn libraries() -> Result<()> {
    let python = venv::tools(&root(), "libraries", &LIBRARIES)?;
    build()?;
    pytest(&python, &folder(), &["test_libraries.py"], &[])
}

/// `cargo xtask python [--torch VERSION] [PYTEST ARGUMENTS]`.
pub(crate) fn command() -> Result<()> {
    let mut args: Vec<String> = std::env::args().skip(2).collect();
    let mut version = None;
    if args.first().is_some_and(|arg| arg == "--torch") {
        let given = args.get(1).context("--torch needs a version, such as 2.7")?;
        if !given.split('.').all(|part| part.parse::<u32>().is_ok()) {
            bail!("--torch: got {given}, expected a version, such as 2.7");
        }
        version = Some(given.clone());
        args.drain(..2);
    }
    let venv = match version {
        None => venv::ensure(&root())?.python,
        Some(version) => venv::with(&root(), "torch", &version, &["numpy"])?,
    };
    build()?;
    pytest(&venv, &folder(), &[""], &args)
}
