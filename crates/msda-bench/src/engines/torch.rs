//! torch in a Python process: its grid_sample formulation, or a peer's call.

use std::path::Path;

use anyhow::{Context, Result};
use msda::{Buffer, Dtype, Layout, Padding, Problem, Role, Sampling};
use serde_json::json;

use super::peers::Peer;
use super::python::{Python, Reply};
use super::{Engine, Launching};
use crate::record::{Device, Pass};
use crate::task::{Key, Results, Task};
use crate::timing::Effort;

/// A Python process that runs tasks.
pub struct Torch {
    python: Python,
    device: Device,
    /// The peer that is called; without one, torch's grid_sample formulation.
    peer: Option<Peer>,
    /// The tensors that are in files already.
    written: Option<Key>,
    /// Host time of the call that was timed last, in microseconds.
    host_us: Option<f64>,
}

impl Torch {
    /// torch's grid_sample on the processor, or on the first CUDA device. The number of threads
    /// counts on the processor only.
    pub fn start(threads: usize, device: Device) -> Result<Self> {
        Ok(Self { python: Python::start(threads, device)?, device, peer: None, written: None, host_us: None })
    }

    /// A peer on its device.
    pub fn peer(peer: Peer, threads: usize) -> Result<Self> {
        let mut torch = Self::start(threads, peer.device)?;
        torch.python.ask(&peer.request()).with_context(|| peer.engine())?;
        Ok(Self { peer: Some(peer), ..torch })
    }

    /// The version of torch.
    pub fn version(&self) -> &str {
        &self.python.hello.torch
    }

    /// Whether this torch can use a CUDA device.
    pub fn finds_cuda(&self) -> bool {
        self.python.hello.cuda
    }

    /// Times a task, or without an effort runs it once and leaves its results in files.
    fn ask(&mut self, task: &Task<'_>, effort: Option<Effort>) -> Result<Reply> {
        let p = &task.problem;
        self.write_tensors(task)?;
        let path = |name: &str| self.python.path(name);
        let files = ["value", "locations", "weights", "grad"].map(|n| (n.to_owned(), json!(path(n))));
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
            "results": (0..3).map(|i| path(&format!("result{i}"))).collect::<Vec<_>>(),
            "effort": effort.map(|e| json!({
                "budget": e.budget.as_secs_f64(), "at_least": e.at_least, "at_most": e.at_most,
                "warm_up": e.warm_up,
            })),
        });
        self.python.ask(&request).with_context(|| self.name())
    }

    /// Writes the tensors as torch's formulation takes them: dense, with packed levels and no ring.
    fn write_tensors(&mut self, task: &Task<'_>) -> Result<()> {
        let p = &task.problem;
        let key = task.key();
        if self.written.as_ref() == Some(&key) {
            return Ok(());
        }
        self.written = None;
        let to = packed(p)?;
        let mut value = Buffer::filled(p.types().value, to.value_len(), 0.0);
        msda::pack(p, task.inputs.value, &to, value.as_mut())?;
        write_file(&self.python.path("value"), &value.to_le_bytes())?;
        let views = [
            ("locations", Role::Locations, task.inputs.locations),
            ("weights", Role::Weights, task.inputs.weights),
            ("grad", Role::Output, task.grad_output),
        ];
        for (name, role, view) in views {
            let numbers = role.read(p, &view)?;
            // grid_sample takes tensors of one type. f32 locations are exact in f64.
            let bytes = Buffer::from_fn(p.types().value, numbers.len(), |i| numbers[i]).to_le_bytes();
            write_file(&self.python.path(name), &bytes)?;
        }
        self.written = Some(key);
        Ok(())
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes)
        .with_context(|| format!("writing {}\nhint: is the disk full?", path.display()))
}

/// The problem as torch sees it: `(B, S, H, D)` with levels that follow each other and no ring.
fn packed(p: &Problem) -> msda::Result<Problem> {
    p.with(|s| (s.layout, s.starts, s.positions) = (Layout::Bshd, None, None))
}

impl Engine for Torch {
    fn name(&self) -> String {
        match (&self.peer, self.device) {
            (Some(peer), _) => peer.engine(),
            (None, Device::Cpu) => "torch".into(),
            (None, Device::Cuda) => "torch-cuda".into(),
        }
    }

    fn refuses(&self, task: &Task<'_>) -> Option<String> {
        if task.inputs.reference.is_some() {
            return Some(format!("{} has no fused form", self.name()));
        }
        if let Some(peer) = &self.peer {
            return peer.refuses(&task.problem, task.pass);
        }
        let dtype = task.problem.types().value;
        // In 16 bits torch computes coordinates in 16 bits as well. Models do this on the GPU:
        // there it is measured and marked.
        (self.device == Device::Cpu && is_narrow(dtype))
            .then(|| format!("grid_sample in {dtype} computes coordinates in {dtype}"))
    }

    fn exact(&self, task: &Task<'_>) -> bool {
        let dtype = task.problem.types().value;
        // All tensors have the value's type, so 16-bit values mean 16-bit coordinates.
        self.peer.as_ref().and_then(|peer| peer.exact).unwrap_or(!is_narrow(dtype))
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn is_alive(&self) -> bool {
        self.python.alive
    }

    fn device(&self) -> Device {
        self.device
    }

    fn is_cold(&self) -> bool {
        self.device == Device::Cuda
    }

    fn launching(&self, _task: &Task<'_>) -> Launching {
        Launching { host_us: self.host_us, ..Launching::default() }
    }

    fn run(&mut self, task: &Task<'_>) -> Result<Results> {
        self.ask(task, None)?;
        let t = task.problem.types();
        let read = |i: usize| -> Result<Buffer> {
            let path = self.python.path(&format!("result{i}"));
            let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            Ok(Buffer::from_le_bytes(t.value, &bytes))
        };
        let cast = |b: Buffer, dtype| Buffer::from_fn(dtype, b.len(), |i| b.as_slice().get(i));
        Ok(Results(match task.pass {
            Pass::Forward => vec![read(0)?],
            Pass::Backward => {
                let p = &task.problem;
                let mut value = Buffer::filled(t.value, p.value_len(), 0.0);
                msda::pack(&packed(p)?, read(0)?.as_slice(), p, value.as_mut())?;
                vec![value, cast(read(1)?, t.locations), cast(read(2)?, t.weights)]
            }
        }))
    }

    fn time(&mut self, task: &Task<'_>, effort: Effort) -> Result<Vec<f64>> {
        self.host_us = None;
        let reply = self.ask(task, Some(effort))?;
        self.host_us = reply.host_us;
        Ok(reply.times)
    }
}

fn is_narrow(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::Bf16)
}
