//! torch's grid_sample path, in a Python of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use msda::{Buffer, Dtype, Padding, Problem, Role, Sampling, Strides, View, op};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;

use super::Engine;
use crate::record::Pass;
use crate::task::{Results, Task};
use crate::timing::Effort;

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

/// A running Python that answers tasks.
pub struct Torch {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    folder: TempDir,
    version: String,
    /// The tensors that already lie in the folder: writing them once is enough.
    written: Option<Written>,
}

/// Which task's tensors lie in the folder.
#[derive(PartialEq)]
struct Written {
    problem: String,
    addresses: [usize; 4],
}

#[derive(Deserialize, Default)]
struct Reply {
    #[serde(default)]
    torch: String,
    #[serde(default)]
    times: Vec<f64>,
    error: Option<String>,
}

impl Torch {
    /// Starts Python with that many threads for torch.
    pub fn start(threads: usize) -> Result<Self> {
        let python = find_python()?;
        let folder = tempfile::Builder::new().prefix("msda-torch").tempdir()?;
        let script = folder.path().join("torch_engine.py");
        std::fs::write(&script, SCRIPT)?;
        let mut child = Command::new(&python)
            .arg(&script)
            .arg(threads.to_string())
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", python.display()))?;
        let to = child.stdin.take().context("no pipe to Python")?;
        let from = BufReader::new(child.stdout.take().context("no pipe from Python")?);
        let mut torch = Self { child, to, from, folder, version: String::new(), written: None };
        torch.version = torch.reply().context("starting torch")?.torch;
        Ok(torch)
    }

    /// The version of torch.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        if self.from.read_line(&mut line).context("reading from Python")? == 0 {
            bail!("Python ended without an answer\nhint: the machine may be short of memory");
        }
        let reply: Reply =
            serde_json::from_str(&line).with_context(|| format!("Python said: {}", line.trim()))?;
        match reply.error {
            Some(error) => bail!("torch: {error}"),
            None => Ok(reply),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Asks for a task: to be timed, or to be run once with its results left in files.
    fn ask(&mut self, task: &Task<'_>, effort: Option<Effort>) -> Result<Reply> {
        let p = &task.problem;
        self.write_tensors(task)?;
        let files = ["value", "locations", "weights", "grad"].map(|n| (n.to_owned(), json!(self.path(n))));
        let request = json!({
            "batch": p.batch(), "queries": p.queries(), "heads": p.heads(), "channels": p.channels(),
            "positions": p.levels().iter().map(|l| l.h * l.w).sum::<usize>(),
            "levels": p.levels().iter().map(|l| (l.h, l.w)).collect::<Vec<_>>(),
            "points": p.points(),
            "sampling": if p.sampling() == Sampling::Nearest { "nearest" } else { "bilinear" },
            "padding": if p.padding() == Padding::Border { "border" } else { "zeros" },
            "align_corners": p.spec().align_corners,
            "dtype": p.types().value.name(),
            "pass": task.pass,
            "files": files.into_iter().collect::<serde_json::Map<_, _>>(),
            "results": (0..3).map(|i| self.path(&format!("result{i}"))).collect::<Vec<_>>(),
            "effort": effort.map(|e| json!({
                "budget": e.budget.as_secs_f64(), "at_least": e.at_least, "at_most": e.at_most
            })),
        });
        writeln!(self.to, "{request}").context("writing to Python")?;
        self.reply()
    }

    /// Writes the tensors as torch's formulation takes them: everything dense, levels packed, no ring.
    fn write_tensors(&mut self, task: &Task<'_>) -> Result<()> {
        let p = &task.problem;
        let views = [
            ("value", Role::Value, task.inputs.value),
            ("locations", Role::Locations, task.inputs.locations),
            ("weights", Role::Weights, task.inputs.weights),
            ("grad", Role::Output, task.grad_output),
        ];
        let key = Written { problem: p.to_string(), addresses: views.map(|(_, _, v)| address(&v)) };
        if self.written.as_ref() == Some(&key) {
            return Ok(());
        }
        self.written = None;
        for (name, role, view) in views {
            let numbers = match role {
                Role::Value => packed_value(task),
                _ => role.read(p, &view),
            };
            // One type for all tensors: grid_sample takes no mixture. f32 locations are exact in f64.
            let bytes = Buffer::from_fn(p.types().value, numbers.len(), |i| numbers[i]).to_le_bytes();
            write_file(&self.path(name), &bytes)?;
        }
        self.written = Some(key);
        Ok(())
    }
}

fn address(view: &View<'_>) -> usize {
    match view.data {
        msda::Slice::F64(s) => s.as_ptr() as usize,
        msda::Slice::F32(s) => s.as_ptr() as usize,
        msda::Slice::F16(s) => s.as_ptr() as usize,
        msda::Slice::Bf16(s) => s.as_ptr() as usize,
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes)
        .with_context(|| format!("writing {}\nhint: is the disk full?", path.display()))
}

/// Calls `f` with the first element of every row of value, in the order of `(B, S, H, D)` with the levels packed.
fn for_each_value_row(p: &Problem, strides: Strides, mut f: impl FnMut(usize)) {
    for b in 0..p.batch() {
        for level in p.levels() {
            for pixel in 0..level.h * level.w {
                let position = level.position(pixel / level.w, pixel % level.w);
                for h in 0..p.heads() {
                    f(op::offset(strides, [b, position, h]));
                }
            }
        }
    }
}

fn packed_value(task: &Task<'_>) -> Vec<f64> {
    let (p, view) = (&task.problem, &task.inputs.value);
    let mut numbers = Vec::new();
    for_each_value_row(p, view.strides.unwrap_or_else(|| Role::Value.dense(p)), |row| {
        numbers.extend((row..row + p.channels()).map(|c| view.data.get(c)));
    });
    numbers
}

/// The inverse of [`packed_value`]: a packed gradient in the problem's dense layout, zero elsewhere.
fn unpacked_value(task: &Task<'_>, packed: &Buffer) -> Buffer {
    let p = &task.problem;
    let mut value = Buffer::filled(packed.dtype(), p.value_len(), 0.0);
    let (mut to, from) = (value.as_mut(), packed.as_slice());
    let mut i = 0;
    for_each_value_row(p, Role::Value.dense(p), |row| {
        for c in 0..p.channels() {
            to.set(row + c, from.get(i));
            i += 1;
        }
    });
    value
}

impl Engine for Torch {
    fn name(&self) -> String {
        "torch".into()
    }

    fn refuses(&self, task: &Task<'_>) -> Option<String> {
        let dtype = task.problem.types().value;
        // In 16 bits torch's coordinates would be 16 bits wide too: another computation.
        let wide = matches!(dtype, Dtype::F32 | Dtype::F64);
        let fused = task.inputs.reference.is_some();
        match (wide, fused) {
            (false, _) => Some(format!("grid_sample in {dtype} computes coordinates in {dtype}")),
            (_, true) => Some("grid_sample has no fused form".into()),
            _ => None,
        }
    }

    fn run(&mut self, task: &Task<'_>) -> Result<Results> {
        self.ask(task, None)?;
        let t = task.problem.types();
        let read = |i: usize| -> Result<Buffer> {
            let path = self.path(&format!("result{i}"));
            let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            Ok(Buffer::from_le_bytes(t.value, &bytes))
        };
        let cast = |b: Buffer, dtype| Buffer::from_fn(dtype, b.len(), |i| b.as_slice().get(i));
        Ok(Results(match task.pass {
            Pass::Forward => vec![read(0)?],
            Pass::Backward => {
                vec![unpacked_value(task, &read(0)?), cast(read(1)?, t.locations), cast(read(2)?, t.weights)]
            }
        }))
    }

    fn time(&mut self, task: &Task<'_>, effort: Effort) -> Result<Vec<f64>> {
        Ok(self.ask(task, Some(effort))?.times)
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // It reads until its input ends; this makes sure that it does not outlive us.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
