//! A Python process with torch: finding it, starting it, sending requests.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use msda_trust as trust;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::record::Device;

const SCRIPT: &str = include_str!("torch.py");

/// A Python with torch: `MSDA_PYTHON`, or the first of `VIRTUAL_ENV`, `CONDA_PREFIX`, `.venv` in
/// the current folder, and `python3` on `PATH`. A Python that another user could replace is not
/// run.
pub fn find_python() -> Result<PathBuf> {
    let mut tried = Vec::new();
    for python in candidates() {
        match imports_torch(&python) {
            Ok(python) => return Ok(python),
            Err(why) => tried.push(format!("{}: {why}", python.display())),
        }
    }
    bail!(
        "no Python with torch: got {}, expected a Python that imports torch\nhint: run `cargo xtask setup` in the \
         project's folder, or set MSDA_PYTHON",
        if tried.is_empty() { "none".into() } else { tried.join("; ") }
    )
}

/// The path to run, if torch can be imported there.
fn imports_torch(python: &Path) -> Result<PathBuf, String> {
    // Without the current folder, where a file may be called torch.py.
    const IMPORT: &str = "import sys; sys.path = [path for path in sys.path if path]; import torch";
    let program = trust::find_program(python.as_os_str()).ok_or("not found on PATH")?;
    let program = trust::check_program(&program)?;
    let status = Command::new(&program)
        .args(["-c", IMPORT])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() { Ok(program) } else { Err("cannot import torch".into()) }
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
    from: BufReader<ChildStdout>,
    folder: TempDir,
    /// The version of torch.
    pub(super) torch: String,
    /// Whether torch can use a CUDA device.
    pub(super) cuda: bool,
}

/// A reply. Different requests have different fields.
#[derive(Deserialize, Default)]
pub(super) struct Reply {
    #[serde(default)]
    torch: String,
    #[serde(default)]
    cuda: bool,
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
        let mut child = Command::new(python)
            .arg(&script)
            .args([threads.to_string(), device.to_string()])
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", python.display()))?;
        let to = child.stdin.take().context("no pipe to Python")?;
        let from = BufReader::new(child.stdout.take().context("no pipe from Python")?);
        let mut python = Self { child, to, from, folder, torch: String::new(), cuda: false };
        let hello = python.reply().context("starting torch")?;
        (python.torch, python.cuda) = (hello.torch, hello.cuda);
        Ok(python)
    }

    /// The path of a file for tensors.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends a request and waits for the reply.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Reply> {
        writeln!(self.to, "{request}").context("writing to Python")?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.from.read_line(&mut line).context("reading from Python")? == 0 {
            bail!("Python ended without a reply\nhint: the machine may be short of memory");
        }
        let reply: Reply =
            serde_json::from_str(&line).with_context(|| format!("Python said: {}", line.trim()))?;
        match reply.error {
            Some(error) => bail!(error),
            None => Ok(reply),
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It must not outlive this process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_python_that_others_can_replace_is_not_run() {
        let root = tempfile::tempdir().unwrap();
        let (bin, ran) = (root.path().join("bin"), root.path().join("ran"));
        let python = bin.join("python");
        fs::create_dir(&bin).unwrap();
        fs::write(&python, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chmod(&python, 0o755);
        chmod(&bin, 0o777);
        let why = imports_torch(&python).unwrap_err();
        assert!(why.contains("bin is writable by everybody (mode 777)") && !ran.exists(), "{why}");
        chmod(&bin, 0o755);
        assert_eq!(imports_torch(&python), Ok(python));
        assert!(ran.exists());
    }

    #[test]
    fn a_python_without_torch_or_that_is_missing_is_refused() {
        assert_eq!(imports_torch(Path::new("no-such-python")), Err("not found on PATH".into()));
        assert_eq!(imports_torch(Path::new("/bin/false")), Err("cannot import torch".into()));
    }
}
