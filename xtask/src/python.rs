//! The Python package: its extension, its tests, its wheels.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::venv::{self, Venv};
use crate::{cargo, ort, root, run, unwinder};

/// The package's folder.
const PACKAGE: &str = "bindings/python";

/// The compiled part's file.
pub(crate) const EXTENSION: &str = if cfg!(windows) { "_native.pyd" } else { "_native.abi3.so" };

/// The compiled part, where Python finds it.
pub(crate) fn extension() -> PathBuf {
    root().join(PACKAGE).join("python/msda_attn").join(EXTENSION)
}

/// Builds the compiled part and puts it into the package's sources.
pub(crate) fn build() -> Result<()> {
    cargo(&["build", "--release", "--quiet", "--package", "msda-python"], &[])?;
    place()
}

/// Puts the compiled part that was built last into the package's sources.
fn place() -> Result<()> {
    let name = match std::env::consts::OS {
        "windows" => "_native.dll",
        "macos" => "lib_native.dylib",
        _ => "lib_native.so",
    };
    let (built, to) = (root().join("target/release").join(name), extension());
    // A new file: a running Python may have mapped the old one.
    let _ = std::fs::remove_file(&to);
    std::fs::copy(&built, &to).with_context(|| format!("copying {}", built.display()))?;
    Ok(())
}

/// Runs tests of the package in a folder with an interpreter.
fn pytest(python: &Path, package: &Path, tests: &[&str], more: &[String]) -> Result<()> {
    let folder = root().join(PACKAGE).join("tests");
    let tests: Vec<_> = tests.iter().map(|name| folder.join(name).display().to_string()).collect();
    let mut args = vec!["-m", "pytest", "--quiet", "-p", "no:cacheprovider"];
    args.extend(tests.iter().chain(more).map(String::as_str));
    run(python, &args, &[("PYTHONPATH", package.as_os_str()), ("PYTHONDONTWRITEBYTECODE", OsStr::new("1"))])
}

/// The package's sources, with the compiled part that `build` put there.
fn sources() -> PathBuf {
    root().join(PACKAGE).join("python")
}

/// The tests with the usual environment, of the compiled part that was built last.
pub(crate) fn test(venv: &Venv) -> Result<()> {
    place()?;
    let processes = ["--numprocesses=auto", "--maxprocesses=4"].map(str::to_owned);
    pytest(&venv.python, &sources(), &[""], &processes)
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
    pytest(&venv, &sources(), &[""], &args)
}

/// Wheels for the usual systems, each checked in an environment that has nothing else.
pub(crate) fn wheels() -> Result<()> {
    let venv = venv::ensure(&root())?;
    venv::install(&venv.python, &["maturin>=1.9,<2", "ziglang"])?;
    // What `build` placed must not get into the wheel. Its compiled part is new.
    let _ = std::fs::remove_file(extension());
    let dist = root().join("target/wheels");
    let manifest = root().join(PACKAGE).join("Cargo.toml").display().to_string();
    let out = dist.display().to_string();
    let mut made = Vec::new();
    for arch in ["x86_64", "aarch64"] {
        let target = format!("{arch}-unknown-linux-gnu");
        run("rustup", &["target", "add", &target], &[]).context("hint: install https://rustup.rs")?;
        let unwinder = unwinder::make(&venv.python, &root().join("target"), arch)?;
        let folder = format!("-Lnative={}", unwinder.display());
        let library = format!("-ldylib={}", unwinder::NAME);
        let args = ["-m", "maturin", "build", "--release", "--zig", "--compatibility", "manylinux2014"];
        let rest =
            ["--target", &target, "--manifest-path", &manifest, "--out", &out, "--", &folder, &library];
        let path = venv.python.parent().context("an interpreter in a folder")?.to_owned();
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::env::join_paths(std::iter::once(path).chain(std::env::split_paths(&others)))?;
        run(&venv.python, &[&args[..], &rest[..]].concat(), &[("PATH", all.as_os_str())])?;
        made.push(target);
    }
    let here = format!("{}.whl", std::env::consts::ARCH);
    let wheel = std::fs::read_dir(&dist)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(&here))
        .max()
        .with_context(|| format!("no wheel for {} in {out}", std::env::consts::ARCH))?;
    check(&wheel)?;
    check_with_torch(&wheel, &venv)?;
    eprintln!("wheels for {} are in {out}; the one for this machine was tested", made.join(" and "));
    Ok(())
}

/// Installs a wheel into a new environment with NumPy alone, computes something there, and runs the
/// package's own checks.
fn check(wheel: &Path) -> Result<()> {
    const PROGRAM: &str = "
import importlib.metadata, numpy, msda_attn as msda
assert {'LICENSE-MIT', 'LICENSE-APACHE'} <= {f.name for f in importlib.metadata.files('msda-attn')}
value = numpy.arange(4, dtype=numpy.float32).reshape(1, 4, 1, 1)
where = numpy.full((1, 1, 1, 1, 1, 2), 0.5, dtype=numpy.float32)
weights = numpy.ones((1, 1, 1, 1, 1), dtype=numpy.float32)
assert msda.ms_deform_attn(value, [(2, 2)], None, where, weights).item() == 1.5
print('msda', msda.__version__, 'computes without torch')
";
    let folder = root().join("target/wheel-check");
    let _ = std::fs::remove_dir_all(&folder);
    let python = venv::new(&folder)?;
    venv::install(&python, &["numpy", &wheel.display().to_string()])?;
    run(&python, &["-I", "-c", PROGRAM], &[])?;
    run(&python, &["-I", "-m", "msda_attn", "doctor"], &[])
}

/// Tests a wheel with torch. Errors and the ends of threads matter most: zig links the compiled
/// part in another way than `cargo build` does.
fn check_with_torch(wheel: &Path, venv: &Venv) -> Result<()> {
    let package = root().join("target/wheel-check/package");
    let (to, wheel) = (package.display().to_string(), wheel.display().to_string());
    venv::install(&venv.python, &["--no-deps", "--upgrade", "--target", &to, &wheel])?;
    let tests = ["test_abi.py", "test_arrays.py", "test_errors.py", "test_operator.py", "test_torch.py"];
    pytest(&venv.python, &package, &tests, &[])?;
    ort::pytest(&venv.python, &package.join("msda_attn").join(EXTENSION))
}
