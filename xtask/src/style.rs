//! Formatters and checkers: cargo for Rust, ruff and mypy for Python, clang-format for kernels,
//! zizmor for workflows.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{cargo, columns, files, root, run, run_in, venv};

/// The Python package: its `pyproject.toml` has the settings for all Python files.
const PACKAGE: &str = "bindings/python";

/// Refuses what `format` would change, and what a lint or the types of Python refuse.
pub(crate) fn check() -> Result<()> {
    quick()?;
    clippy()
}

/// The lints of Rust, for which all crates are compiled.
pub(crate) fn clippy() -> Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], &[])
}

/// All but the lints of Rust.
pub(crate) fn quick() -> Result<()> {
    columns::check(&root())?;
    cargo(&["fmt", "--all", "--check"], &[])?;
    let python = venv::ensure(&root())?.python;
    let settings = settings();
    let python_files = tracked(&["py", "pyi"])?;
    run(&python, &with(&["-m", "ruff", "format", "--check", "--quiet", &settings], &python_files), &[])?;
    run(&python, &with(&["-m", "ruff", "check", "--quiet", &settings], &python_files), &[])?;
    run_in(&root().join(PACKAGE), &python, &["-m", "mypy", "--no-error-summary"], &[])?;
    let kernels = tracked(&["cu", "cuh"])?;
    run(beside(&python, "clang-format"), &with(&["--dry-run", "--Werror"], &kernels), &[])?;
    run(beside(&python, "zizmor"), &["--offline", "--quiet", "--strict-collection", ".github"], &[])
}

/// Formats Rust, Python and kernels.
pub(crate) fn format() -> Result<()> {
    cargo(&["fmt", "--all"], &[])?;
    let python = venv::ensure(&root())?.python;
    let settings = settings();
    let python_files = tracked(&["py", "pyi"])?;
    // The order of imports and needless exceptions are lints of ruff.
    let fix = ["-m", "ruff", "check", "--quiet", "--fix-only", &settings];
    run(&python, &with(&fix, &python_files), &[])?;
    run(&python, &with(&["-m", "ruff", "format", "--quiet", &settings], &python_files), &[])?;
    run(beside(&python, "clang-format"), &with(&["-i"], &tracked(&["cu", "cuh"])?), &[])
}

fn settings() -> String {
    format!("--config={PACKAGE}/pyproject.toml")
}

/// A program beside the interpreter.
fn beside(python: &Path, name: &str) -> PathBuf {
    python.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Tracked files with one of these endings.
fn tracked(endings: &[&str]) -> Result<Vec<String>> {
    let ends = |path: &Path| path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending));
    let paths = files::tracked(&root())?.into_iter().filter(|path| ends(path));
    Ok(paths.map(|path| path.display().to_string()).collect())
}

fn with<'a>(args: &[&'a str], files: &'a [String]) -> Vec<&'a str> {
    args.iter().copied().chain(files.iter().map(String::as_str)).collect()
}
