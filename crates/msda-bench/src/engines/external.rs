//! External engines: torch and other implementations. One Python process checks and times all of
//! them beside msda's operator for torch: `python -m msda_attn bench`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use msda_trust as trust;
use serde::{Deserialize, Serialize};

use crate::Unknown;
use crate::parallel::wait;
use crate::record::{Check, Device, Pass, Summary};

/// The prefix of engine names of other implementations.
pub const PREFIX: &str = "peer:";

/// msda's operator for torch, which runs beside the others.
pub const OURS: &str = "msda";

/// Seconds without a line from Python after which it is ended, unless `MSDA_PYTHON_TIMEOUT` says
/// otherwise. An implementation may compile kernels in that time.
const TIMEOUT: u64 = 300;

/// The longest line that is read in one piece.
const LONGEST_LINE: u64 = 1 << 16;

/// What Python starts with: no module is imported from the current folder, where a file may be
/// called torch.py.
const START: &str = "import sys; sys.path = [path for path in sys.path if path]\n";

/// The engine of a name in Python on a device.
fn engine(name: &str, device: Device) -> String {
    match (name, device) {
        ("torch", Device::Cuda) => "torch-cuda".into(),
        ("torch" | OURS, _) => name.into(),
        _ => format!("{PREFIX}{name}"),
    }
}

/// The name in Python of an engine that may run on a device; none if it is of this process.
pub fn name_on(engine: &str, device: Device) -> Option<String> {
    match (engine, device) {
        ("torch", Device::Cpu) | ("torch-cuda", Device::Cuda) => Some("torch".into()),
        (OURS, _) => Some(OURS.into()),
        _ => engine.strip_prefix(PREFIX).map(str::to_owned),
    }
}

/// Whether an engine is external.
pub fn is_external(engine: &str) -> bool {
    [Device::Cpu, Device::Cuda].into_iter().any(|device| name_on(engine, device).is_some())
}

/// What is measured.
#[derive(Debug, Default, Serialize)]
pub struct Request {
    /// The texts of the workloads.
    pub workloads: BTreeMap<String, String>,
    /// The runs; without one, all implementations are imported and nothing else is done.
    pub runs: Vec<Run>,
    /// The passes.
    pub passes: Vec<Pass>,
    /// Threads on the CPU.
    pub threads: usize,
    /// Seconds per implementation and pass.
    pub seconds: f64,
    /// Implementations that have ended a process before.
    pub without: Vec<String>,
}

/// A workload with values of one type on a device.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The workload's name.
    pub workload: String,
    /// The type of all its tensors.
    pub dtype: String,
    /// The device.
    pub device: Device,
    /// Names in Python; none for all that are installed.
    pub engines: Option<Vec<String>>,
}

/// What was found about an engine and a pass of a run. Without a check and times there is a reason.
#[derive(Debug, Clone, Deserialize)]
pub struct Outcome {
    /// The index of the run, in the request of its process.
    run: usize,
    /// The name in Python.
    name: String,
    /// The pass.
    pub pass: Pass,
    /// The times in milliseconds.
    pub time: Option<Summary>,
    /// Microseconds of the host per call, where a GPU computes.
    pub host_us: Option<f64>,
    /// The check of the result.
    pub check: Option<Check>,
    /// Why it was not measured.
    #[serde(default)]
    pub missing: String,
    /// Whether it does not take such problems. Otherwise it failed.
    #[serde(default)]
    pub refused: bool,
}

/// What Python found.
#[derive(Debug, Default)]
pub struct Found {
    /// Whether its torch can use a GPU.
    pub cuda: bool,
    /// Implementations that it knows.
    pub known: Vec<String>,
    /// Why some cannot be imported.
    pub absent: BTreeMap<String, String>,
    /// The results: run, engine and outcome.
    pub outcomes: Vec<(Run, String, Outcome)>,
    /// What has ended a process, and how.
    pub failed: Vec<(String, String)>,
}

/// The record that Python writes. It is complete up to what is running.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    cuda: bool,
    known: Vec<String>,
    absent: BTreeMap<String, String>,
    results: Vec<Outcome>,
    running: Option<Running>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Running {
    run: Option<usize>,
    engine: Option<String>,
}

/// A Python that has torch and msda.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    program: PathBuf,
    /// The version of torch.
    pub torch: String,
}

/// The first words of the error if no Python has torch.
pub(crate) const NO_TORCH: &str = "no Python with torch";

/// A Python with torch and msda: `MSDA_PYTHON`, or the first of `VIRTUAL_ENV`, `CONDA_PREFIX`,
/// `.venv` in the current folder, and `python3` on `PATH`. A Python that another user could replace
/// is not run.
pub fn find_python() -> Result<Python> {
    let (limit, mut tried, mut without_msda) = (timeout()?, Vec::new(), None);
    for python in candidates() {
        match examine(&python, limit) {
            Ok(Ok(python)) => return Ok(python),
            Ok(Err(torch)) => {
                without_msda.get_or_insert((python, torch));
            }
            Err(why) => tried.push(format!("{}: {why}", python.display())),
        }
    }
    if let Some((python, torch)) = without_msda {
        let python = python.display();
        bail!(
            "{python}: got torch {torch} without msda_attn, expected both\nhint: run `{python} -m pip install \
             ./bindings/python` in the project's folder"
        );
    }
    bail!(
        "{NO_TORCH}: got {}, expected a Python that imports torch and msda_attn\nhint: run `cargo xtask setup` \
         in the project's folder, or set MSDA_PYTHON",
        if tried.is_empty() { "none".into() } else { tried.join("; ") }
    )
}

/// Asks a Python for torch and msda. With torch alone, its version.
fn examine(python: &Path, limit: Duration) -> Result<Result<Python, String>, String> {
    let program = trust::find_program(python.as_os_str()).ok_or("not found on PATH")?;
    let program = trust::check_program(&program)?;
    let said = |error: std::io::Error| error.to_string();
    let mut child = Command::new(&program)
        .args(["-c", &format!("{START}import torch; print(torch.__version__, flush=True); import msda_attn")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(said)?;
    let Some(status) = wait(&mut child, limit).map_err(said)? else {
        end(&mut child);
        return Err(format!("does not import torch within {} s", limit.as_secs()));
    };
    let mut text = String::new();
    child.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut text)).map_err(said)?;
    match text.lines().last() {
        None => Err("cannot import torch".into()),
        Some(torch) if status.success() => Ok(Ok(Python { program, torch: torch.into() })),
        Some(torch) => Ok(Err(torch.into())),
    }
}

fn candidates() -> Vec<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(python) = path("MSDA_PYTHON") {
        return vec![python];
    }
    let inside = |root: PathBuf| {
        if cfg!(windows) { root.join("Scripts/python.exe") } else { root.join("bin/python") }
    };
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).map(inside);
    let local = Some(inside(".venv".into())).filter(|python| python.exists());
    active.chain(local).chain(["python3".into()]).collect()
}

fn timeout() -> Result<Duration> {
    let Some(text) = std::env::var_os("MSDA_PYTHON_TIMEOUT").filter(|text| !text.is_empty()) else {
        return Ok(Duration::from_secs(TIMEOUT));
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok()).filter(|&seconds| seconds > 0);
    let seconds = seconds.with_context(|| {
        format!("MSDA_PYTHON_TIMEOUT: got '{}', expected seconds, at least 1", text.display())
    })?;
    Ok(Duration::from_secs(seconds))
}

impl Python {
    /// Has a request measured. `note` gets a line per result. If an implementation ends the process
    /// or gives no answer, another process measures the rest without it.
    pub fn measure(&self, mut request: Request, note: &mut dyn FnMut(&str)) -> Result<Found> {
        let mut found = Found::default();
        loop {
            let (written, ended) = self.ask(&request, note)?;
            if let Some(why) = written.error {
                let known: Vec<String> = written.known.iter().map(|name| engine(name, Device::Cpu)).collect();
                let asked = request.runs.iter().flat_map(|run| run.engines.iter().flatten());
                let unknown = asked.map(|name| engine(name, Device::Cpu)).find(|name| !known.contains(name));
                let others = ", or a peer of the file that MSDA_ENGINES names";
                match unknown {
                    Some(name) => return Err(Unknown::or("engine", &name, &known, others).into()),
                    None => bail!(why),
                }
            }
            for outcome in written.results {
                let run = request.runs.get(outcome.run).context("a result of a run that was asked for")?;
                found.outcomes.push((run.clone(), engine(&outcome.name, run.device), outcome));
            }
            (found.cuda, found.known) = (written.cuda, written.known);
            found.absent.extend(written.absent);
            let Err(why) = ended else { return Ok(found) };
            let survey = request.runs.is_empty();
            let (at, engine_name) = written.running.map_or((None, None), |now| (now.run, now.engine));
            let blamed = engine_name.filter(|name| name != OURS);
            let run = at.and_then(|at| request.runs.get(at)).cloned();
            let device = run.as_ref().map_or(Device::Cpu, |run| run.device);
            let done = at.map_or(0, |at| at + usize::from(blamed.is_none()));
            request.runs.drain(..done.min(request.runs.len()));
            let blamed_engine = blamed.as_ref().map(|name| engine(name, device));
            let [workload, dtype] = run.map_or([None, None], |run| [Some(run.workload), Some(run.dtype)]);
            let what: Vec<String> = [workload, blamed_engine.clone(), dtype].into_iter().flatten().collect();
            if what.is_empty() {
                found.failed.push(("torch and other implementations".into(), why));
                return Ok(found);
            }
            let left_out = blamed_engine.map(|name| format!("\n{name} is left out of the rest of this run"));
            found.failed.push((what.join(" "), why + &left_out.unwrap_or_default()));
            request.without.extend(blamed);
            if request.runs.is_empty() && !survey {
                return Ok(found);
            }
        }
    }

    /// Starts Python with a request. Returns what it has written, and how it failed.
    fn ask(&self, request: &Request, note: &mut dyn FnMut(&str)) -> Result<(Written, Result<(), String>)> {
        let limit = timeout()?;
        let folder = tempfile::Builder::new().prefix("msda-bench").tempdir()?;
        let [asked, record] = ["request.json", "record.json"].map(|name| folder.path().join(name));
        std::fs::write(&asked, serde_json::to_string(request)?)?;
        let main = "from msda_attn.__main__ import main; sys.exit(main(sys.argv[1:]))";
        let mut child = Command::new(&self.program)
            .args(["-c", &format!("{START}{main}"), "bench", "--request"])
            .arg(&asked)
            .arg("--json")
            .arg(&record)
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let lines = lines(child.stderr.take().context("no pipe from Python")?);
        let mut last = String::new();
        let timed_out = loop {
            match lines.recv_timeout(limit) {
                Ok(line) => match line.strip_prefix("bench: ") {
                    Some(result) => note(result),
                    None if line.trim().is_empty() => {}
                    None => last = line.chars().take(200).collect(),
                },
                Err(why) => break why == RecvTimeoutError::Timeout,
            }
        };
        let status = wait(&mut child, Duration::from_secs(u64::from(!timed_out)))?;
        let ended = match status {
            Some(status) if status.success() => Ok(()),
            None if timed_out => Err(format!(
                "no answer within {} s; the process was ended\nhint: MSDA_PYTHON_TIMEOUT sets the seconds to wait",
                limit.as_secs()
            )),
            _ => {
                let status = status.map_or("unknown status".into(), |status| status.to_string());
                Err(format!("Python ended without an answer ({status}): {last}"))
            }
        };
        end(&mut child);
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        Ok(match (serde_json::from_str(&text), ended) {
            (Ok(written), ended) => (written, ended),
            (Err(why), Ok(())) => (Written::default(), Err(format!("Python wrote no record: {why}"))),
            (Err(_), ended) => (Written::default(), ended),
        })
    }
}

/// Ends a process. One that hangs inside a driver cannot be ended; it is left behind.
fn end(child: &mut Child) -> Option<ExitStatus> {
    let _ = child.kill();
    wait(child, Duration::from_secs(5)).ok().flatten()
}

/// Reads lines in a thread of its own, so that the receiver can stop waiting.
fn lines(from: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_python_without_torch_or_that_others_can_replace_is_refused() {
        assert_eq!(examine(Path::new("no-such-python"), LIMIT), Err("not found on PATH".into()));
        let root = tempfile::tempdir().unwrap();
        let (bin, ran) = (root.path().join("bin"), root.path().join("ran"));
        let python = bin.join("python");
        fs::create_dir(&bin).unwrap();
        // It has no torch when it runs for the first time, and msda from the third time on.
        let script = format!(
            "#!/bin/sh\necho >>{0}\ncase $(wc -l <{0}) in 1) exit 1;; 2) echo 2.9; exit 1;; *) echo 2.9;; esac\n",
            ran.display()
        );
        fs::write(&python, script).unwrap();
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chmod(&python, 0o755);
        chmod(&bin, 0o777);
        let why = examine(&python, LIMIT).unwrap_err();
        assert!(why.contains("bin is writable by everybody (mode 777)") && !ran.exists(), "{why}");
        chmod(&bin, 0o755);
        assert_eq!(examine(&python, LIMIT), Err("cannot import torch".into()));
        assert_eq!(examine(&python, LIMIT), Ok(Err("2.9".into())));
        assert_eq!(examine(&python, LIMIT), Ok(Ok(Python { program: python.clone(), torch: "2.9".into() })));
    }

    #[test]
    fn names_of_engines_say_the_device() {
        for (name, on_cpu, on_gpu) in [
            ("torch", Some("torch"), None),
            ("torch-cuda", None, Some("torch")),
            ("peer:mmcv", Some("mmcv"), Some("mmcv")),
            ("msda", Some("msda"), Some("msda")),
            ("cpu-avx2", None, None),
            ("cuda", None, None),
        ] {
            assert_eq!(name_on(name, Device::Cpu).as_deref(), on_cpu, "{name}");
            assert_eq!(name_on(name, Device::Cuda).as_deref(), on_gpu, "{name}");
            for device in [Device::Cpu, Device::Cuda] {
                assert!(name_on(name, device).is_none_or(|python| engine(&python, device) == name), "{name}");
            }
        }
    }
}
