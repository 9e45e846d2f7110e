//! The packages for PyPI: wheels and the package of sources. maturin makes them, zig links for all
//! systems, and each wheel is checked by name and run where that is possible.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{cargo, emulated, files, ort, python, root, run, third_party, unwinder, venv};

/// The targets, and the oldest systems of those for Linux. zig needs nothing but itself for them.
const TARGETS: [(&str, Option<&str>); 6] = [
    ("x86_64-unknown-linux-gnu", Some("manylinux2014")),
    ("aarch64-unknown-linux-gnu", Some("manylinux2014")),
    ("x86_64-unknown-linux-musl", Some("musllinux_1_2")),
    ("x86_64-pc-windows-gnu", None),
    ("x86_64-apple-darwin", None),
    ("aarch64-apple-darwin", None),
];

/// maturin 1.13 to 1.16 export a wrong name from modules inside packages on Windows.
const TOOLS: [&str; 4] = ["maturin==1.12.6", "ziglang==0.17.0", "lief==1.0.0", "abi3audit==0.0.26"];

/// Python without the global lock has a wheel of its own until 3.15, whose stable ABI serves both.
const FREE_THREADED: &str = "python3.14t";

/// A wheel and how far it was tested.
pub(crate) struct Wheel {
    file: PathBuf,
    tested: String,
}

/// `cargo xtask wheel [--target TARGET]...`.
pub(crate) fn command() -> Result<()> {
    let wheels = make_all(&std::env::args().skip(2).collect::<Vec<_>>())?;
    print!("{}", table(&wheels)?);
    Ok(())
}

/// Wheels for the targets of a command line, or for all.
pub(crate) fn make_all(args: &[String]) -> Result<Vec<Wheel>> {
    let mut targets = Vec::new();
    for pair in args.chunks(2) {
        match pair {
            [option, target] if option == "--target" => targets.push(target.as_str()),
            other => bail!("got {}, expected --target TARGET", other.join(" ")),
        }
    }
    if targets.is_empty() {
        targets = TARGETS.map(|(target, _)| target).into();
    }
    let mut wheels = Vec::new();
    for target in targets {
        wheels.push(make(target, None)?);
        // A module for Windows names the library of the Python that loads it.
        if !target.contains("windows") {
            wheels.push(make(target, Some(FREE_THREADED))?);
        }
    }
    Ok(wheels)
}

/// The wheels with their sizes, for people.
pub(crate) fn table(wheels: &[Wheel]) -> Result<String> {
    let mut text = String::new();
    for Wheel { file, tested } in wheels {
        let size = file.metadata()?.len() as f64 / 1e6;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{name:<66} {size:4.1} MB  {tested}\n");
    }
    Ok(text)
}

/// The folder of the packages.
pub(crate) fn folder() -> PathBuf {
    root().join("target/wheels")
}

fn tools() -> Result<PathBuf> {
    venv::tools(&root(), "wheel", &TOOLS)
}

/// The path with the tools before all others.
fn path_with(tools: &Path) -> Result<OsString> {
    let others = std::env::var_os("PATH").unwrap_or_default();
    let own = tools.parent().context("an interpreter in a folder")?.to_owned();
    Ok(std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&others)))?)
}

/// Runs maturin for the package, with the tools on the path: it looks for zig there.
fn maturin(tools: &Path, args: &[&str], rustc: &[&str]) -> Result<()> {
    let manifest = root().join(python::PACKAGE).join("Cargo.toml").display().to_string();
    let out = folder().display().to_string();
    let rest = ["--manifest-path", &manifest, "--out", &out, "--"];
    let rest = if rustc.is_empty() { &rest[..4] } else { &rest[..] };
    let path = path_with(tools)?;
    // The first version of macOS on Apple's processors.
    let env = [("PATH", path.as_os_str()), ("MACOSX_DEPLOYMENT_TARGET", OsStr::new("11.0"))];
    run(tools, &[&["-m", "maturin"], args, rest, rustc].concat(), &env)
}

/// Makes the wheel of a target, checks it by name, and runs it if this machine can. Without the
/// name of a Python it is for all usual ones.
fn make(target: &str, only: Option<&str>) -> Result<Wheel> {
    let tools = tools()?;
    // What `cargo xtask python` placed must not get into the wheel. Its compiled part is new.
    let _ = std::fs::remove_file(python::extension());
    run("rustup", &["target", "add", target], &[]).context("hint: install https://rustup.rs")?;
    let mut args = vec!["build", "--release", "--locked", "--target", target];
    let oldest = TARGETS.iter().find(|(name, _)| *name == target).and_then(|(_, oldest)| *oldest);
    args.extend(oldest.iter().flat_map(|oldest| ["--compatibility", oldest]));
    // Apple's and Microsoft's own linkers, where they are.
    let own = cfg!(target_os = "macos") && target.contains("darwin") || target.ends_with("msvc");
    args.extend((!own).then_some("--zig"));
    let arch = target.split('-').next().unwrap_or_default();
    let mut rustc = Vec::new();
    if target.ends_with("linux-gnu") {
        let unwinder = unwinder::make(&tools, &root().join("target"), arch)?;
        rustc = vec![format!("-Lnative={}", unwinder.display()), format!("-ldylib={}", unwinder::NAME)];
    }
    let interpreter = tools.display().to_string();
    args.extend(only.iter().flat_map(|python| ["--interpreter", python]));
    if target.ends_with("windows-gnu") {
        // maturin asks for some Python, although the module takes nothing from it. The linker takes
        // the names to export from a file.
        args.extend(["--interpreter", &interpreter]);
        let names = root().join("target/exports.def");
        std::fs::write(&names, "EXPORTS\n    PyInit__native\n    RegisterCustomOps\n")?;
        rustc = vec![format!("-Clink-arg={}", names.display())];
    }
    third_party::write(target)?;
    let started = std::time::SystemTime::now();
    maturin(&tools, &args, &rustc.iter().map(String::as_str).collect::<Vec<_>>())?;
    let file = newest(started, "whl")?;
    let path = file.display().to_string();
    run(&tools, &["xtask/src/wheel.py", &path], &[])?;
    if only.is_none() {
        run(&tools, &["-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", &path], &[])?;
    }
    let tested = test(target, arch, &file, only)?;
    Ok(Wheel { file, tested })
}

/// The package that was just made.
fn newest(started: std::time::SystemTime, ending: &str) -> Result<PathBuf> {
    let made = std::fs::read_dir(folder())?.flatten().map(|entry| entry.path()).find(|path| {
        let new = path.metadata().and_then(|data| data.modified()).is_ok_and(|at| at >= started);
        new && path.extension().is_some_and(|e| e == ending)
    });
    made.with_context(|| format!("maturin made no .{ending} in {}", folder().display()))
}

fn test(target: &str, arch: &str, wheel: &Path, only: Option<&str>) -> Result<String> {
    let system = match std::env::consts::OS {
        "macos" => "apple-darwin",
        "linux" => "linux-gnu",
        other => other,
    };
    if target.contains(system) && arch == std::env::consts::ARCH {
        match only {
            Some(python) if !venv::can_make(python) => {
                return Ok(format!("linked, not run: this machine has no {python}"));
            }
            Some(python) => alone(&venv::of(python, &empty("wheel-check"))?, wheel)?,
            None => {
                alone(&venv::new(&empty("wheel-check"))?, wheel)?;
                with_torch(wheel)?;
            }
        }
        return Ok("run on this machine".to_owned());
    }
    if target == "aarch64-unknown-linux-gnu" && only.is_none() {
        return match emulated::Python::new() {
            Ok(python) => emulate(&python, wheel).map(|()| "run under emulation".to_owned()),
            Err(why) => Ok(format!("linked, not run: {why:#}")),
        };
    }
    Ok("linked, not run: this machine cannot run it".to_owned())
}

const PROGRAM: &str = "
import numpy, msda_attn as msda
value = numpy.arange(4, dtype=numpy.float32).reshape(1, 4, 1, 1)
where = numpy.full((1, 1, 1, 1, 1, 2), 0.5, dtype=numpy.float32)
weights = numpy.ones((1, 1, 1, 1, 1), dtype=numpy.float32)
assert msda.ms_deform_attn(value, [(2, 2)], None, where, weights).item() == 1.5
print('msda', msda.__version__, 'computes without torch')
";

/// Installs a wheel with NumPy into a new, empty environment, computes something there, and runs
/// the package's own checks.
fn alone(python: &Path, wheel: &Path) -> Result<()> {
    venv::install(python, &["numpy", &wheel.display().to_string()])?;
    run(python, &["-I", "-c", PROGRAM], &[])?;
    run(python, &["-I", "-m", "msda_attn", "doctor"], &[])
}

/// A folder under `target` without the files of an earlier run.
fn empty(name: &str) -> PathBuf {
    let folder = root().join("target").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Tests a wheel with torch. Errors and the ends of threads matter most: zig links the compiled
/// part in another way than `cargo build` does.
fn with_torch(wheel: &Path) -> Result<()> {
    let venv = venv::ensure(&root())?;
    let package = root().join("target/wheel-check/package");
    let (to, wheel) = (package.display().to_string(), wheel.display().to_string());
    venv::install(&venv.python, &["--no-deps", "--upgrade", "--target", &to, &wheel])?;
    let tests = [
        "test_abi.py",
        "test_arrays.py",
        "test_errors.py",
        "test_operator_results.py",
        "test_torch_features.py",
    ];
    python::pytest(&venv.python, &package, &tests, &[])?;
    ort::pytest(&venv.python, &package.join("msda_attn").join(python::EXTENSION))
}

/// As [`alone`], under an emulator. Then the battery, which is not in the wheel.
fn emulate(python: &emulated::Python, wheel: &Path) -> Result<()> {
    let packages = root().join("target/emulated/packages");
    let _ = std::fs::remove_dir_all(&packages);
    let (to, version) = (packages.display().to_string(), python.version()?);
    let mut args = vec!["--target", &to, "--only-binary=:all:", "--python-version", &version];
    for platform in ["manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"] {
        args.extend(["--platform", platform]);
    }
    let wheel = wheel.display().to_string();
    venv::install(&tools()?, &[&args[..], &["numpy", &wheel]].concat())?;
    python.run(packages.as_os_str(), &["-c", PROGRAM])?;
    python.run(packages.as_os_str(), &["-m", "msda_attn", "doctor"])?;
    emulated::battery()
}

/// Makes the package of sources, and installs it with pip and without a network.
pub(crate) fn sources() -> Result<PathBuf> {
    let tools = tools()?;
    // A package of sources has no repository: `build.rs` reads the commit here.
    let commit = root().join(python::PACKAGE).join("vcs_info.json");
    let hash = files::git(&root(), &["rev-parse", "HEAD"])?;
    std::fs::write(&commit, format!("{{\"sha1\": \"{}\"}}\n", hash.trim()))?;
    let started = std::time::SystemTime::now();
    let made = maturin(&tools, &["sdist"], &[]);
    std::fs::remove_file(&commit)?;
    made?;
    let file = newest(started, "gz")?;
    cargo(&["fetch", "--locked"], &[])?;
    let folder = root().join("target/wheel-check/sources");
    let _ = std::fs::remove_dir_all(&folder);
    let (to, path) = (folder.display().to_string(), file.display().to_string());
    let args = ["-m", "pip", "install", "--no-cache-dir", "--no-build-isolation", "--no-index", "--target"];
    let (offline, target) = (OsStr::new("true"), root().join("target"));
    let programs = path_with(&tools)?;
    let env = [("CARGO_NET_OFFLINE", offline), ("CARGO_TARGET_DIR", target.as_os_str()), ("PATH", &programs)];
    run(&tools, &[&args[..], &[&to, &path]].concat(), &env)?;
    let packages = [("PYTHONPATH", folder.as_os_str())];
    run(&tools, &["-m", "msda_attn", "--version"], &packages)?;
    run(&tools, &["-m", "msda_attn", "doctor"], &packages)?;
    says_what_is_missing(&tools)?;
    Ok(file)
}

/// Without Rust, the build of the sources must end with a hint.
fn says_what_is_missing(tools: &Path) -> Result<()> {
    let ask = "import needs_rust; needs_rust.get_requires_for_build_wheel()";
    let backend = root().join(python::PACKAGE).join("backend");
    let done = Command::new(tools).args(["-c", ask]).env("PYTHONPATH", backend).env("PATH", "").output()?;
    let says = String::from_utf8_lossy(&done.stderr);
    if done.status.success() || !says.contains("hint: install Rust from https://rustup.rs") {
        bail!("a build without cargo: got {}, expected a hint: {says}", done.status);
    }
    Ok(())
}

/// Installs the wheel as users do: into a new environment, by name, without Rust, without a
/// network. Then runs the Python of the README, with torch of `.venv`. Returns the seconds of pip.
pub(crate) fn install() -> Result<f64> {
    const README: &str = "
import pathlib, re, site, sys
site.addsitedir(sys.argv[1])
for code in re.findall(r'```python\\n(.*?)```', pathlib.Path('README.md').read_text('utf-8'), re.S):
    exec(code, {})
    print('ran', len(code.splitlines()), 'lines of README.md')
";
    let python = venv::new(&empty("install-check"))?;
    let wheels = folder().display().to_string();
    let started = Instant::now();
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--only-binary=:all:",
    ];
    let no_rust = [("PATH", python.parent().context("an interpreter in a folder")?.as_os_str())];
    run(&python, &[&pip[..], &["--find-links", &wheels, "msda-attn"]].concat(), &no_rust)?;
    let seconds = started.elapsed().as_secs_f64();
    venv::ensure(&root())?;
    let torch = venv::find(&root().join(".venv"), "torch/__init__.py").context("torch in .venv")?;
    let packages = torch.ancestors().nth(2).context("torch in a folder")?.display().to_string();
    run(&python, &["-I", "-c", README, &packages], &no_rust)?;
    Ok(seconds)
}
