//! A Python with torch in a process of its own: finding it, starting it, asking it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::record::Device;

const SCRIPT: &str = include_str!("torch.py");

/// A Python with torch in it: `MSDA_PYTHON`, the project's `.venv`, the active virtual environment, or `python3`.
pub fn find_python() -> Result<PathBuf> {
    let mut tried = Vec::new();
    for python in candidates() {
        let works = Command::new(&python)
            .args(["-c", "import torch"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success());
        if works {
            return Ok(python);
        }
        tried.push(python.display().to_string());
    }
    bail!(
        "no Python with torch: tried {}\nhint: run `cargo xtask setup`, or set MSDA_PYTHON to a Python that imports torch",
        tried.join(", ")
    )
}

fn candidates() -> Vec<PathBuf> {
    if let Some(python) = std::env::var_os("MSDA_PYTHON") {
        return vec![python.into()];
    }
    let inside = |root: PathBuf| {
        if cfg!(windows) { root.join("Scripts/python.exe") } else { root.join("bin/python") }
    };
    let mut all = Vec::new();
    let here = std::env::current_dir().unwrap_or_default();
    all.extend(here.ancestors().map(|dir| inside(dir.join(".venv"))).filter(|p| p.exists()));
    all.extend(std::env::var_os("VIRTUAL_ENV").map(|root| inside(root.into())));
    all.push("python3".into());
    all
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

/// What it answers: different fields to different requests.
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
    /// Starts Python with that many threads for torch and a device to compute on.
    pub(super) fn start(threads: usize, device: Device) -> Result<Self> {
        // Trying one takes seconds: it is enough to find it once.
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

    /// A file through which tensors travel.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Reply> {
        writeln!(self.to, "{request}").context("writing to Python")?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.from.read_line(&mut line).context("reading from Python")? == 0 {
            bail!("Python ended without an answer\nhint: the machine may be short of memory");
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
        // It reads until its input ends; this makes sure that it does not outlive us.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
