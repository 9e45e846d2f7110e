//! Developer commands: `cargo xtask` lists them.
#![forbid(unsafe_code)]

mod columns;
mod docs;
mod emulated;
mod files;
mod ort;
mod python;
mod release;
mod sanitize;
mod style;
mod third_party;
mod unwinder;
mod venv;
mod wheel;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// A command: its name, what it does, and the code.
type Task = (&'static str, &'static str, fn() -> Result<()>);

const TASKS: [Task; 19] = [
    (
        "test",
        "set up what the tests need and run all of them: format, lints, unit, battery, Python, examples",
        test,
    ),
    ("check", "format, lints, types of Python and the width of prose only", style::check),
    ("format", "format all Rust, Python and kernels", style::format),
    (
        "setup",
        "make .venv with torch, the kernels' compiler and disassembler, formatters and checkers",
        setup,
    ),
    (
        "python",
        "build the Python package and run its tests; `--torch 2.7` with another version of torch",
        python::command,
    ),
    (
        "libraries",
        "test the models of ultralytics, rfdetr, lightly-train, libreyolo, mmcv",
        python::libraries,
    ),
    ("ort", "test the operators for ONNX Runtime with several of its versions", ort::command),
    (
        "wheel",
        "make the wheels into target/wheels and check them; `--target TRIPLE` makes one of them",
        wheel::command,
    ),
    (
        "publish",
        "publish the crates in their order; `--dry-run` makes and builds the packages only",
        release::publish,
    ),
    (
        "release",
        "`--check`: all that a release needs: versions, crates, wheels, sources, installation",
        release::command,
    ),
    ("kernels", "compile all kernels for every architecture and compare them with the snapshots", kernels),
    ("readme", "the first command of the README in a copy of the project; `test` runs it too", readme_alone),
    ("docs", "make the documentation site in target/site and check its links", docs::build),
    ("gpu-bundle", "gather into target/gpu what scripts/gpu.sh runs on a machine with a GPU", gpu_bundle),
    (
        "freeze",
        "kernels and results that a redesign must not change: write them, or compare with FILE",
        freeze,
    ),
    ("record", "measure this machine with every usual workload into records/", record),
    ("sanitize", "the CPU tests under AddressSanitizer (needs a nightly toolchain)", sanitize::run),
    ("fuzz", "the readers of files against damaged files, for a minute", fuzz),
    ("deny", "licences and advisories of the dependencies (needs cargo-deny)", deny),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, _, task)) = TASKS.iter().find(|(n, _, _)| *n == name) else {
        eprintln!("cargo xtask COMMAND\n");
        for (name, about, _) in TASKS {
            eprintln!("  {name:<10} {about}");
        }
        return if name.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    match task() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// Runs a program in the root and fails with its command line.
fn run(program: impl AsRef<std::ffi::OsStr>, args: &[&str], env: &[(&str, &std::ffi::OsStr)]) -> Result<()> {
    run_in(&root(), program, args, env)
}

/// As [`run`], in another folder.
fn run_in(
    folder: &Path,
    program: impl AsRef<std::ffi::OsStr>,
    args: &[&str],
    env: &[(&str, &std::ffi::OsStr)],
) -> Result<()> {
    let program = program.as_ref();
    let line = command_line(program, args);
    eprintln!("$ {line}");
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().copied()).current_dir(folder);
    let status = if BESIDE.get() { whole(command) } else { command.status() };
    let status = status.with_context(|| format!("starting {}", program.to_string_lossy()))?;
    if !status.success() {
        bail!("{line} ended with {status}");
    }
    let seconds = start.elapsed().as_secs();
    if seconds > 0 {
        eprintln!("{seconds} s: {line}");
    }
    Ok(())
}

thread_local! {
    /// Whether this thread runs beside another one that prints too.
    static BESIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a command and prints what it wrote in one piece, at its end. Until then it is in a file.
fn whole(mut command: Command) -> std::io::Result<ExitStatus> {
    let path = root().join("target/xtask-beside.log");
    let file = std::fs::File::create(&path)?;
    let status = command.stdout(file.try_clone()?).stderr(file).status()?;
    eprint!("{}", String::from_utf8_lossy(&std::fs::read(path)?));
    Ok(status)
}

/// Does two things at the same time. What the first one prints comes in whole pieces.
fn together<A: Send, B>(
    beside: impl FnOnce() -> Result<A> + Send,
    work: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            BESIDE.set(true);
            beside()
        });
        let done = work().inspect_err(|error| eprintln!("error: {error:#}\nwaiting for the rest"));
        let beside = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((beside?, done?))
    })
}

/// A command for people; a long list of files is cut.
fn command_line(program: &std::ffi::OsStr, args: &[&str]) -> String {
    const MOST: usize = 16;
    let shown = args[..args.len().min(MOST)].join(" ");
    let more = args.len().saturating_sub(MOST);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} {shown}{rest}", program.to_string_lossy())
}

fn cargo(args: &[&str], env: &[(&str, &std::ffi::OsStr)]) -> Result<()> {
    run(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args, env)
}

/// With these set, tests that need torch, NVRTC or nvdisasm fail instead of skipping when those do
/// not work.
fn env_of(venv: &venv::Venv) -> Vec<(&'static str, &std::ffi::OsStr)> {
    let nvdisasm = venv.nvdisasm.as_ref().map(|path| ("MSDA_NVDISASM", path.as_os_str()));
    [("MSDA_PYTHON", venv.python.as_os_str())].into_iter().chain(nvdisasm).collect()
}

fn setup() -> Result<()> {
    let venv = venv::ensure(&root())?;
    eprintln!("ready: {}", venv.python.display());
    Ok(())
}

fn test() -> Result<()> {
    // While pip waits for the network, cargo compiles: the tests, and the programs and libraries
    // that other tests take. One profile for all, so that nothing is compiled twice.
    let compile = || cargo(&["build", "--workspace", "--all-targets", "--quiet"], &[]);
    let (_, (venv, others)) = together(compile, || {
        let (venv, others) = (venv::ensure(&root())?, ort::others());
        style::quick()?;
        docs::build()?;
        Ok((venv, others))
    })?;
    let env = env_of(&venv);
    let python = || {
        python::test(&venv)?;
        ort::test(&venv, &others)
    };
    together(python, || {
        let all = ["test", "--workspace", "--no-fail-fast", "--quiet"];
        cargo(&all, &[&env[..], &[python::shared()]].concat())?;
        style::clippy()?;
        let strict = [("RUSTDOCFLAGS", "-D warnings".as_ref())];
        cargo(&["doc", "--workspace", "--no-deps", "--quiet"], &strict)
    })?;
    readme(&env)?;
    run(built(DEV, "msda"), &["verify", "--seeds", "1"], &env)
}

fn readme_alone() -> Result<()> {
    let venv = venv::ensure(&root())?;
    cargo(&["build", "--quiet"], &[])?;
    readme(&env_of(&venv))
}

/// The folders of what cargo builds: for tests, and with `--release`.
const DEV: &str = "debug";
const RELEASE: &str = "release";

/// What cargo built last.
fn built(profile: &str, name: &str) -> PathBuf {
    root().join("target").join(profile).join(name)
}

/// The commands of the README in their order, in a copy of the project: `bench`, in its quick form,
/// writes a report, and what `test` looks at first must not mind.
fn readme(env: &[(&str, &std::ffi::OsStr)]) -> Result<()> {
    let copy = root().join("target/xtask-readme");
    let _ = std::fs::remove_dir_all(&copy);
    files::copy(&root(), &copy)?;
    run_in(&copy, built(DEV, "msda"), &["bench", "--quick"], env)?;
    let report = copy.join("report/report.md");
    if !report.is_file() {
        bail!("`bench --quick` wrote no {}", report.display());
    }
    columns::check(&copy)?;
    std::fs::remove_dir_all(&copy).with_context(|| format!("removing {}", copy.display()))
}

/// `test` compiles for three architectures. This compiles for all of them.
fn kernels() -> Result<()> {
    let venv = venv::ensure(&root())?;
    let packages = ["-p", "msda-cuda", "-p", "msda-study", "--test", "kernels"];
    let all = ["--", "--include-ignored", "--nocapture"];
    cargo(&[&["test"], &packages[..], &all].concat(), &env_of(&venv))
}

fn record() -> Result<()> {
    let venv = venv::ensure(&root())?;
    let env = env_of(&venv);
    cargo(&["run", "--release", "--quiet", "--", "bench", "--out", "target/xtask-record"], &env)?;
    eprintln!("now copy target/xtask-record/record.json to records/<machine>/<date>-<what>.json");
    Ok(())
}

/// `cargo xtask freeze [FILE]`: the lines of the example `freeze`, compared with those of a file.
fn freeze() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let example = ["run", "--release", "--quiet", "-p", "msda-bench", "--example", "freeze"];
    let done = Command::new(cargo).args(example).current_dir(root()).stderr(Stdio::inherit()).output()?;
    if !done.status.success() {
        bail!("the example freeze ended with {}", done.status);
    }
    let now = String::from_utf8(done.stdout)?;
    let Some(file) = std::env::args().nth(2) else {
        let path = root().join("target/freeze.txt");
        std::fs::write(&path, &now)?;
        eprintln!("wrote {} lines to {}", now.lines().count(), path.display());
        return Ok(());
    };
    let then = std::fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    let differ = then.lines().zip(now.lines()).filter(|(then, now)| then != now);
    let differ = differ.inspect(|(then, now)| println!("- {then}\n+ {now}")).count();
    let (then, now) = (then.lines().count(), now.lines().count());
    if differ > 0 || then != now {
        bail!("{differ} lines differ; {file} has {then} lines, this program writes {now}");
    }
    eprintln!("all {now} lines are as in {file}");
    Ok(())
}

/// The programs that need a GPU, without their debugging tables where `strip` is there.
fn gpu_bundle() -> Result<()> {
    cargo(&["build", "--release", "-p", "msda-cli", "-p", "msda-study", "--bins"], &[])?;
    python::build()?;
    ort::build()?;
    // One command, so that the crates are built once, with the features of all tests.
    let mut args = vec!["test", "--release", "--no-run", "--message-format=json"];
    for package in ["msda-cuda", "msda-bench", "msda-study", "msda-cli"] {
        args.extend(["-p", package]);
    }
    args.extend(["--lib", "--example", "plan"]);
    for test in ["gpu", "conformance", "ladder", "probes", "cuda"] {
        args.extend(["--test", test]);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo)
        .args(&args)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("building the tests")?;
    if !done.status.success() {
        bail!("cargo {} ended with {}", args.join(" "), done.status);
    }
    let messages = String::from_utf8_lossy(&done.stdout);
    let mut programs: Vec<(&str, PathBuf)> =
        ["msda", "msda-study"].map(|name| (name, built(RELEASE, name))).into();
    programs.push((python::EXTENSION, python::extension()));
    programs.push((ort::LIBRARY, built(RELEASE, ort::LIBRARY)));
    for (name, package, target) in [
        ("plan", "msda-cuda", "plan"),
        ("driver", "msda-cuda", "msda_cuda"),
        ("gpu", "msda-cuda", "gpu"),
        ("conformance", "msda-cuda", "conformance"),
        ("ladder", "msda-study", "ladder"),
        ("probes", "msda-study", "probes"),
        ("bench", "msda-bench", "cuda"),
        ("study", "msda-study", "cuda"),
        ("cli", "msda-cli", "gpu"),
    ] {
        let program = executable(&messages, package, target);
        programs.push((name, program.with_context(|| format!("{target} of {package} was not built"))?));
    }
    let folder = root().join("target/gpu");
    std::fs::create_dir_all(&folder)?;
    for (name, from) in programs {
        let to = folder.join(name);
        std::fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
        let _ = Command::new("strip").arg(&to).status();
    }
    eprintln!("gathered in {}", folder.display());
    Ok(())
}

/// The program of a target among cargo's messages, one JSON object per line.
fn executable(messages: &str, package: &str, target: &str) -> Option<PathBuf> {
    let (package, target) = (format!("/crates/{package}#"), format!("\"name\":\"{target}\""));
    let line = messages.lines().find(|line| {
        line.contains(&package) && line.contains(&target) && line.contains("\"executable\":\"")
    })?;
    let (_, rest) = line.split_once("\"executable\":\"")?;
    Some(PathBuf::from(rest.split('"').next()?))
}

fn fuzz() -> Result<()> {
    let seconds = ("MSDA_FUZZ_SECONDS", "30".as_ref());
    cargo(&["test", "--package", "msda-bench", "--test", "fuzz", "--", "--nocapture"], &[seconds])
}

fn deny() -> Result<()> {
    cargo(&["deny", "check"], &[]).context("hint: cargo install cargo-deny")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_things_are_done_and_an_error_of_either_is_returned() {
        let good = |name: &'static str| move || Ok(name);
        let bad = |name: &'static str| move || -> Result<()> { bail!(name) };
        assert_eq!(together(good("a"), good("b")).unwrap(), ("a", "b"));
        assert_eq!(together(bad("a"), good("b")).unwrap_err().to_string(), "a");
        assert_eq!(together(good("a"), bad("b")).unwrap_err().to_string(), "b");
        assert!(!BESIDE.get(), "what this thread prints is not held back");
    }
}
