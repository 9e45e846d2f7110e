//! A Python process with torch: finding it, starting it, sending requests.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use msda_trust as trust;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::parallel::wait;
use crate::record::Device;

const SCRIPT: &str = include_str!("torch.py");

/// Seconds to wait for one answer of a Python process, unless `MSDA_PYTHON_TIMEOUT` says otherwise.
/// A peer may compile kernels before it answers.
const TIMEOUT: u64 = 300;

/// A longer line is no answer.
const LONGEST_LINE: u64 = 1 << 24;

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

/// The first words of the error if no Python has torch.
pub(crate) const NO_TORCH: &str = "no Python with torch";

/// Ends a process. One that hangs inside a driver cannot be ended; it is left behind.
fn end(child: &mut Child) -> Option<ExitStatus> {
    let _ = child.kill();
    wait(child, Duration::from_secs(5)).ok().flatten()
}

/// A Python with torch: `MSDA_PYTHON`, or the first of `VIRTUAL_ENV`, `CONDA_PREFIX`, `.venv` in
/// the current folder, and `python3` on `PATH`. A Python that another user could replace is not
/// run.
pub fn find_python() -> Result<PathBuf> {
    let (limit, mut tried) = (timeout()?, Vec::new());
    for python in candidates() {
        match imports_torch(&python, limit) {
            Ok(python) => return Ok(python),
            Err(why) => tried.push(format!("{}: {why}", python.display())),
        }
    }
    bail!(
        "{NO_TORCH}: got {}, expected a Python that imports torch\nhint: run `cargo xtask setup` in the \
         project's folder, or set MSDA_PYTHON",
        if tried.is_empty() { "none".into() } else { tried.join("; ") }
    )
}

/// The path to run, if torch can be imported there.
fn imports_torch(python: &Path, limit: Duration) -> Result<PathBuf, String> {
    // Without the current folder, where a file may be called torch.py.
    const IMPORT: &str = "import sys; sys.path = [path for path in sys.path if path]; import torch";
    let program = trust::find_program(python.as_os_str()).ok_or("not found on PATH")?;
    let program = trust::check_program(&program)?;
    let said = |error: std::io::Error| error.to_string();
    let mut child = Command::new(&program)
        .args(["-c", IMPORT])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(said)?;
    match wait(&mut child, limit).map_err(said)? {
        Some(status) if status.success() => Ok(program),
        Some(_) => Err("cannot import torch".into()),
        None => {
            end(&mut child);
            Err(format!("does not import torch within {} s", limit.as_secs()))
        }
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

/// A running Python. It reads requests until its input ends.
pub(super) struct Python {
    child: Child,
    to: ChildStdin,
    /// Lines of its standard output.
    from: Receiver<std::io::Result<String>>,
    /// How long it may take for one answer.
    limit: Duration,
    folder: TempDir,
    /// Whether it still answers. It does not after its end, a missing or a wrong answer.
    pub(super) alive: bool,
    /// Its first reply.
    pub(super) hello: Reply,
}

/// A reply. Different requests have different fields.
#[derive(Deserialize, Default)]
pub(super) struct Reply {
    /// The version of torch.
    #[serde(default)]
    pub(super) torch: String,
    /// Whether torch can use a CUDA device.
    #[serde(default)]
    pub(super) cuda: bool,
    /// Milliseconds of each run.
    #[serde(default)]
    pub(super) times: Vec<f64>,
    /// Median host time of a timed call in microseconds, where a GPU computes.
    pub(super) host_us: Option<f64>,
    error: Option<String>,
}

impl Python {
    /// Starts Python with a number of threads for torch and a device.
    pub(super) fn start(threads: usize, device: Device) -> Result<Self> {
        // A search takes seconds, so it is made once.
        static FOUND: OnceLock<PathBuf> = OnceLock::new();
        let python = match FOUND.get() {
            Some(python) => python,
            None => {
                let python = find_python()?;
                FOUND.get_or_init(|| python)
            }
        };
        let folder = tempfile::Builder::new().prefix("msda-torch").tempdir()?;
        let script = folder.path().join("torch_engine.py");
        std::fs::write(&script, SCRIPT)?;
        let errors = File::create(folder.path().join(ERRORS))?;
        let mut child = Command::new(python)
            .arg(&script)
            .args([threads.to_string(), device.to_string()])
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {}", python.display()))?;
        let to = child.stdin.take().context("no pipe to Python")?;
        let from = lines(child.stdout.take().context("no pipe from Python")?);
        let limit = timeout()?;
        let mut python = Self { child, to, from, limit, folder, alive: true, hello: Reply::default() };
        python.hello = python.reply().context("starting torch")?;
        Ok(python)
    }

    /// The path of a file for tensors.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends a request and waits for the reply.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Reply> {
        // If Python has ended, the missing reply says more than the failed write.
        let _ = writeln!(self.to, "{request}");
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let reply = self.read();
        self.alive = reply.is_ok();
        let reply = reply?;
        match reply.error {
            Some(error) => bail!(error),
            None => Ok(reply),
        }
    }

    /// Reads one reply. After an error there is no way to know what the next line answers.
    fn read(&mut self) -> Result<Reply> {
        match self.from.recv_timeout(self.limit) {
            Ok(line) => {
                let line = line.context("reading from Python")?;
                let start: String = line.trim().chars().take(200).collect();
                serde_json::from_str(&line)
                    .map_err(|_| anyhow!("got '{start}' from Python, expected an answer in JSON"))
            }
            Err(RecvTimeoutError::Timeout) => {
                end(&mut self.child);
                bail!(
                    "no answer within {} s; the process was ended\n\
                     hint: MSDA_PYTHON_TIMEOUT sets the seconds to wait",
                    self.limit.as_secs()
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                // Its output has ended. It may need a moment to end itself.
                let status = wait(&mut self.child, Duration::from_secs(1))?.or_else(|| end(&mut self.child));
                let status = status.map_or("unknown status".into(), |status| status.to_string());
                let errors = std::fs::read(self.path(ERRORS)).unwrap_or_default();
                let errors = String::from_utf8_lossy(&errors);
                let last = errors.lines().rfind(|line| !line.trim().is_empty());
                let last = last.map_or(String::new(), |line| format!(": {}", line.trim()));
                bail!("Python ended without an answer ({status}){last}")
            }
        }
    }
}

/// The file with the standard error of Python.
const ERRORS: &str = "errors.txt";

/// Reads lines in a thread of its own, so that the receiver can stop waiting.
fn lines(from: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let mut line = Vec::new();
            match from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) => return,
                read => {
                    let line = read.map(|_| String::from_utf8_lossy(&line).into_owned());
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            }
        }
    });
    receiver
}

impl Drop for Python {
    fn drop(&mut self) {
        // It must not outlive this process.
        end(&mut self.child);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_python_without_torch_or_that_others_can_replace_is_refused() {
        assert_eq!(imports_torch(Path::new("no-such-python"), LIMIT), Err("not found on PATH".into()));
        let root = tempfile::tempdir().unwrap();
        let (bin, ran) = (root.path().join("bin"), root.path().join("ran"));
        let python = bin.join("python");
        fs::create_dir(&bin).unwrap();
        // It has no torch when it runs for the first time.
        let script = format!("#!/bin/sh\ntest -e {0} && exit\ntouch {0}\nexit 1\n", ran.display());
        fs::write(&python, script).unwrap();
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chmod(&python, 0o755);
        chmod(&bin, 0o777);
        let why = imports_torch(&python, LIMIT).unwrap_err();
        assert!(why.contains("bin is writable by everybody (mode 777)") && !ran.exists(), "{why}");
        chmod(&bin, 0o755);
        assert_eq!(imports_torch(&python, LIMIT), Err("cannot import torch".into()));
        assert_eq!(imports_torch(&python, LIMIT), Ok(python));
    }
}
