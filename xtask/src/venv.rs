//! A virtual environment with torch, the kernels' compiler and disassembler, formatters and
//! checkers, made once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What the comparison and the tests of the Python package need.
const PACKAGES: [&str; 10] = [
    "torch",
    "numpy",
    "transformers",
    "jax",
    "pytest",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxslim",
    "matplotlib",
];

/// Formatters, checkers, the generator of the site, and what runs tests in several processes.
/// Another version formats other lines and finds other faults.
const PINNED: [(&str, &str); 6] = [
    ("ruff", "0.17.5"),
    ("mypy", "2.4.1"),
    ("clang-format", "23.1.3"),
    ("zizmor", "1.32.0"),
    ("mkdocs-material", "9.7.7"),
    ("pytest-xdist", "3.8.0"),
];

/// What the kernels need: a file under `site-packages/nvidia`, and the package that has it. Torch
/// brings an NVRTC of its own where it brings CUDA: that one is taken as it is.
const TOOLS: [(&str, &str); 2] = [
    ("cu13/lib/libnvrtc.so.13", "nvidia-cuda-nvrtc>=13,<14"),
    ("cu13/bin/nvdisasm", "nvidia-cuda-nvdisasm>=13,<14"),
];

/// Where things are.
#[derive(Debug, Clone)]
pub(crate) struct Venv {
    /// The interpreter.
    pub(crate) python: PathBuf,
    /// The disassembler; none where NVIDIA has no packages for this system.
    pub(crate) nvdisasm: Option<PathBuf>,
}

/// `.venv` under `root`, with everything installed; what is missing is added.
pub(crate) fn ensure(root: &Path) -> Result<Venv> {
    let folder = root.join(".venv");
    let python = interpreter(&folder);
    if !has_packages(&python) {
        make(&folder, &python)?;
    }
    let pinned = |(name, version): &(&str, &str)| {
        find(&folder, &format!("{}-{version}.dist-info/METADATA", name.replace('-', "_"))).is_some()
    };
    let missing = PINNED.iter().filter(|package| !pinned(package));
    let missing: Vec<_> = missing.map(|(name, version)| format!("{name}=={version}")).collect();
    add(&folder, &python, &missing)?;
    // NVIDIA has such packages for Linux only. Elsewhere, tests that need them are skipped.
    if !cfg!(target_os = "linux") {
        return Ok(Venv { python, nvdisasm: None });
    }
    let tool = |file: &str| find(&folder, &format!("nvidia/{file}"));
    let missing: Vec<_> = TOOLS.into_iter().filter(|(file, _)| tool(file).is_none()).collect();
    add(&folder, &python, &missing.iter().map(|(_, package)| (*package).to_owned()).collect::<Vec<_>>())?;
    let [nvrtc, nvdisasm] = TOOLS.map(|(file, _)| tool(file));
    if nvrtc.is_none() || nvdisasm.is_none() {
        let files = TOOLS.map(|(file, _)| file).join(" or no nvidia/");
        bail!("{} has no nvidia/{files}\nhint: delete it and run `cargo xtask setup`", folder.display());
    }
    Ok(Venv { python, nvdisasm })
}

/// A new, empty environment; returns its interpreter.
pub(crate) fn new(folder: &Path) -> Result<PathBuf> {
    let base = ["python3", "python"].into_iter().find(|python| can_make(python));
    let hint = "no Python 3.10 or newer with venv was found\nhint: install python3 and python3-venv";
    of(base.context(hint)?, folder)
}

/// Whether a Python can make environments for msda.
pub(crate) fn can_make(python: &str) -> bool {
    works(Command::new(python).args(["-c", "import venv, sys; assert sys.version_info >= (3, 10)"]))
}

/// As [`new`], with the Python of that name.
pub(crate) fn of(python: &str, folder: &Path) -> Result<PathBuf> {
    crate::run(python, &["-m", "venv", &folder.to_string_lossy()], &[])?;
    Ok(interpreter(folder))
}

fn interpreter(folder: &Path) -> PathBuf {
    if cfg!(windows) { folder.join("Scripts/python.exe") } else { folder.join("bin/python") }
}

/// An environment with that version of a package and with others, made once under `target`.
pub(crate) fn with(root: &Path, package: &str, version: &str, others: &[&str]) -> Result<PathBuf> {
    let folder = root.join("target").join(format!("venv-{package}-{version}"));
    let python = interpreter(&folder);
    if !works(Command::new(&python).args(["-c", &format!("import {package}, numpy, pytest")])) {
        eprintln!("making {} with {package} {version} (once; a few minutes)", folder.display());
        new(&folder)?;
        let package = format!("{package}=={version}.*");
        install(&python, &[&[package.as_str(), "pytest"], others].concat())?;
    }
    Ok(python)
}

/// An environment with tools by their names, made once under `target`.
pub(crate) fn tools(root: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = root.join("target").join(format!("venv-{name}"));
    let python = interpreter(&folder);
    if !python.is_file() {
        new(&folder)?;
    }
    install(&python, packages)?;
    Ok(python)
}

fn make(folder: &Path, python: &Path) -> Result<()> {
    if !python.is_file() {
        eprintln!("making {} with {} (once; a few minutes)", folder.display(), PACKAGES.join(", "));
        new(folder)?;
    }
    install(python, &PACKAGES)?;
    if !has_packages(python) {
        bail!("{} was made, but does not have {}", folder.display(), PACKAGES.join(" and "));
    }
    Ok(())
}

/// Installs packages, if there are any.
fn add(folder: &Path, python: &Path, packages: &[String]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("adding {} to {}", packages.join(" and "), folder.display());
    install(python, &packages.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn install(python: &Path, packages: &[&str]) -> Result<()> {
    let mut args = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    args.extend(packages);
    crate::run(python, &args, &[])
}

/// A file under `site-packages`.
pub(crate) fn find(folder: &Path, file: &str) -> Option<PathBuf> {
    if cfg!(windows) {
        return Some(folder.join("Lib/site-packages").join(file)).filter(|path| path.is_file());
    }
    let versions = folder.join("lib").read_dir().ok()?.flatten();
    versions.map(|version| version.path().join("site-packages").join(file)).find(|path| path.is_file())
}

/// Whether all packages are installed. Importing them would take many seconds.
fn has_packages(python: &Path) -> bool {
    let program =
        "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))";
    works(Command::new(python).args(["-c", program]).args(PACKAGES))
}

fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}
