//! The families of kernels, the problems that each takes, and the kernel that a problem gets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use msda::{Dtype, Layout, Padding, Problem, ReferenceKind, Sampling, Spec, Types};
use msda_cuda::choose;
use msda_cuda::driver::{Arch, Device};
use msda_cuda::jit::{Cache, Unit};
use msda_cuda::kernels::{Action, Kernel};
use msda_cuda::{ARCHITECTURES, Levels, Operands, Request, Scatter, Target, Wanted};
use serde::Serialize;

use serde_json::{Value, json};

use crate::Unknown;
use crate::record::Pass;
use crate::terminal::note;

/// The architecture to describe on a machine without a GPU.
pub const USUAL: Arch = Arch::new(9, 0);

/// The target for an architecture, or for the GPU of this machine; and whether the GPU is in this
/// machine.
pub fn find_target(arch: Option<Arch>) -> (Target, bool) {
    let here = Device::open(0).ok().map(|device| Target::of(&device));
    match (here, arch) {
        (Some(here), None) => (here, true),
        (Some(here), Some(arch)) if here.arch == arch => (here, true),
        (_, arch) => {
            let arch = arch.unwrap_or(USUAL);
            let sms = ARCHITECTURES.iter().find(|(known, _)| *known == arch).map_or(100, |(_, sms)| *sms);
            (Target { arch, sms }, false)
        }
    }
}

/// The target of an architecture, or of the GPU of this machine. Prints a note if there is none.
pub fn target(arch: Option<Arch>) -> Result<Target> {
    if let Some(arch) = arch.filter(|arch| !ARCHITECTURES.iter().any(|(known, _)| known == arch)) {
        let (oldest, _) = ARCHITECTURES[0];
        if arch < oldest {
            let why = anyhow!("architecture: got {arch}, which is not supported: it is older than {oldest}");
            return Err(Unknown::because(&why).into());
        }
        let known = ARCHITECTURES.map(|(arch, _)| arch.to_string());
        return Err(Unknown::new("architecture", &arch.to_string(), &known).into());
    }
    let (target, here) = find_target(arch);
    if arch.is_none() && !here {
        note(format_args!("note: there is no GPU, so this is about {}", target.arch));
    }
    Ok(target)
}

/// A list as JSON, with its target.
pub fn pretty(target: Target, name: &str, list: Vec<Value>) -> Result<String> {
    let all = json!({
        "arch": target.arch.to_string(), "sms": target.sms, name: list,
    });
    Ok(serde_json::to_string_pretty(&all)?)
}

/// A family of kernels and the problems of which it computes a pass.
#[derive(Serialize)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// The pass.
    pub pass: Pass,
    /// One line of description.
    pub about: &'static str,
    /// Its answer for each kind of problem.
    pub takes: Vec<Answer>,
}

/// Whether a family takes a kind of problem.
#[derive(Serialize)]
pub struct Answer {
    /// The kind of problem.
    pub what: &'static str,
    /// Whether it is taken.
    pub takes: bool,
    /// The reason of a refusal.
    pub why_not: Option<String>,
}

/// The pass for the kernels: backward with all gradients that the form has.
pub(super) fn whole_pass(pass: Pass, reference: Option<ReferenceKind>) -> msda_cuda::Pass {
    match pass {
        Pass::Forward => msda_cuda::Pass::Forward,
        Pass::Backward => {
            let reference = reference.is_some();
            msda_cuda::Pass::Backward(Wanted { value: true, locations: true, weights: true, reference })
        }
    }
}

/// Every family with the kinds of problems of which it computes a pass.
pub fn families(target: &Target, pass: Pass) -> Result<Vec<Family>> {
    let questions = questions()?;
    let mut families = Vec::new();
    for (name, about) in Kernel::FAMILIES {
        let mut takes = Vec::new();
        for (what, problem, reference, levels) in &questions {
            let whole = whole_pass(pass, *reference);
            let operands = Operands::for_pass(problem, *reference, whole);
            let request = Request { pass: whole, levels: *levels, ..Request::new(problem, &operands) };
            let asked = Asked::new(&request, target, name);
            let why_not = (asked.takes == 0).then(|| asked.main_reason());
            takes.push(Answer { what, takes: why_not.is_none(), why_not });
        }
        families.push(Family { name, pass, about, takes });
    }
    Ok(families)
}

type Question = (&'static str, Problem, Option<ReferenceKind>, Levels);

fn questions() -> Result<Vec<Question>> {
    let plain = Problem::new(Spec {
        batch: 1,
        queries: 300,
        heads: 8,
        channels: 32,
        levels: vec![(64, 64), (32, 32), (16, 16), (8, 8)],
        points: vec![4; 4],
        ..Spec::default()
    })?;
    type Change = fn(&mut Spec);
    let changes: [(&'static str, Change); 16] = [
        ("f32 values", |_| {}),
        ("f16 values", |s| s.types = Types::uniform(Dtype::F16)),
        ("bf16 values", |s| s.types = Types::uniform(Dtype::Bf16)),
        ("f64 values", |s| s.types = Types::uniform(Dtype::F64)),
        ("f16 values, f32 locations", |s| s.types = Types::with_value(Dtype::F16)),
        ("planar layout", |s| s.layout = Layout::Planar),
        ("planar layout with rings", |s| s.layout = Layout::PlanarRing),
        ("nearest sampling", |s| s.sampling = Sampling::Nearest),
        ("border padding", |s| s.padding = Padding::Border),
        ("aligned corners", |s| s.align_corners = true),
        ("other points on each level", |s| s.points = vec![3, 6, 3, 1]),
        ("5 channels", |s| s.channels = 5),
        ("256 channels", |s| s.channels = 256),
        ("1000 channels", |s| s.channels = 1000),
        ("levels of one row", |s| s.levels[3] = (1, 8)),
        ("65 levels", |s| (s.levels, s.points) = (vec![(4, 4); 65], vec![1; 65])),
    ];
    let mut all = Vec::new();
    for (what, change) in changes {
        all.push((what, plain.with(change)?, None, Levels::Host));
    }
    all.push(("fused, reference points", plain.clone(), Some(ReferenceKind::Point), Levels::Host));
    all.push(("fused, reference boxes", plain.clone(), Some(ReferenceKind::Box), Levels::Host));
    all.push(("level sizes on the device", plain, None, Levels::Device));
    Ok(all)
}

/// The kernel of a problem, and why others refuse it.
#[derive(Serialize)]
pub struct Explained {
    /// The problem's readable key.
    pub problem: String,
    /// The pass.
    pub pass: Pass,
    /// Its class. Problems of one class share tuned kernels.
    pub class: String,
    /// The kernel.
    pub kernel: String,
    /// The reason of this choice.
    pub why: String,
    /// The stages of a launch, in order.
    pub stages: Vec<Described>,
    /// The workspace that a launch needs, in bytes.
    pub workspace: usize,
    /// The candidates of each family.
    pub families: Vec<Asked>,
}

/// A stage of a launch.
#[derive(Serialize)]
pub struct Described {
    /// The key of its kernel; none for a memory clear.
    pub kernel: Option<String>,
    /// Blocks of the grid.
    pub blocks: Option<u64>,
    /// Threads per block.
    pub threads: Option<u64>,
    /// Why it is there.
    pub why: String,
    /// The folder that its compiled kernel is in; none if it is not compiled yet.
    pub folder: Option<PathBuf>,
}

/// The candidates of a family for a request.
#[derive(Serialize)]
pub struct Asked {
    /// The family.
    pub name: &'static str,
    /// Number of candidates.
    pub candidates: usize,
    /// Number of candidates that take it.
    pub takes: usize,
    /// Reasons of the others with their counts, the most frequent first. Reasons that differ only
    /// in numbers are one.
    pub refusals: Vec<Refusal>,
}

/// A reason of refusals.
#[derive(Serialize)]
pub struct Refusal {
    /// The reason.
    pub why: String,
    /// How many candidates have it.
    pub count: usize,
}

impl Asked {
    fn new(request: &Request<'_>, target: &Target, name: &'static str) -> Self {
        let mut asked = Self { name, candidates: 0, takes: 0, refusals: Vec::new() };
        let of_family = |k: &Kernel| k.to_string().split(':').next() == Some(name);
        for kernel in choose::candidates(request, target).into_iter().filter(of_family) {
            asked.candidates += 1;
            match kernel.refuses(request, target) {
                None => asked.takes += 1,
                Some(why) => match asked.refusals.iter_mut().find(|r| alike(&r.why) == alike(&why)) {
                    Some(refusal) => refusal.count += 1,
                    None => asked.refusals.push(Refusal { why, count: 1 }),
                },
            }
        }
        asked.refusals.sort_by_key(|r| std::cmp::Reverse(r.count));
        asked
    }

    fn main_reason(&self) -> String {
        let none = "no candidate has a fitting number of lanes";
        self.refusals.first().map_or(none, |r| &r.why).to_owned()
    }
}

/// A reason without its numbers.
fn alike(why: &str) -> String {
    why.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Explains the kernels of a call on dense tensors; an error if no kernel computes it.
pub fn explain(problem: &Problem, target: &Target, pass: Pass, scatter: Scatter) -> Result<Explained> {
    let whole = whole_pass(pass, None);
    let operands = Operands::for_pass(problem, None, whole);
    let request = Request { pass: whole, scatter, ..Request::new(problem, &operands) };
    let choice = choose::choose(&request, target)?;
    let call = choice.kernel.prepare(&request, target);
    let product = |n: [u32; 3]| n.into_iter().map(u64::from).product::<u64>();
    let stages = call.stages.iter().map(|stage| {
        let why = stage.why.to_string();
        match &stage.action {
            Action::Run(run) => {
                let (blocks, threads) = (product(run.launch.grid), product(run.launch.block));
                let (blocks, threads) = (Some(blocks), Some(threads));
                let folder = Cache::global().folder_of(&run.unit).ok().flatten().map(Path::to_owned);
                Described { kernel: Some(run.unit.key.clone()), blocks, threads, why, folder }
            }
            _ => Described { kernel: None, blocks: None, threads: None, why, folder: None },
        }
    });
    Ok(Explained {
        problem: problem.to_string(),
        class: choose::class(&request, target),
        pass,
        stages: stages.collect(),
        workspace: call.arena.bytes(),
        kernel: choice.kernel.to_string(),
        why: choice.why.to_string(),
        families: Kernel::FAMILIES.iter().map(|(name, _)| Asked::new(&request, target, name)).collect(),
    })
}

/// The kernels of calls on contiguous tensors of a problem: with level sizes on the host or on the
/// device, in the plain and the fused forms, with all gradients or all but that of the reference
/// points. Each kernel once.
pub fn units(problem: &Problem, target: &Target, pass: Pass) -> Result<Vec<Unit>> {
    let mut units: BTreeMap<[u8; 32], Unit> = BTreeMap::new();
    let hidden = Levels::hidden(problem)?;
    let forms = [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)];
    for (form, (levels, problem)) in forms
        .into_iter()
        .flat_map(|form| [(form, (Levels::Host, problem)), (form, (Levels::Device, &hidden))])
    {
        // Models often detach the reference points.
        for pass in [whole_pass(pass, form), whole_pass(pass, None)] {
            let operands = Operands::for_pass(problem, form, pass);
            let request = Request { pass, levels, ..Request::new(problem, &operands) };
            let call = choose::choose(&request, target)?.kernel.prepare(&request, target);
            for kernel in call.kernels() {
                units.insert(kernel.unit.assemble()?.hash, kernel.unit.clone());
            }
        }
    }
    Ok(units.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generic_kernel_takes_everything_and_reasons_are_counted() {
        let (target, _) = find_target(Some(USUAL));
        let families = families(&target, Pass::Forward).unwrap();
        let generic = families.iter().find(|f| f.name == "generic").unwrap();
        assert!(generic.takes.iter().all(|answer| answer.takes));
        let rows = families.iter().find(|f| f.name == "rows").unwrap();
        let why = |what: &str| rows.takes.iter().find(|a| a.what == what).unwrap().why_not.clone();
        assert_eq!(why("f16 values"), None);
        assert!(why("f64 values").is_some_and(|why| why.contains("f64")));

        let problem = &questions().unwrap()[0].1;
        let explained = explain(problem, &target, Pass::Forward, Scatter::Ordered).unwrap();
        assert!(explained.class.starts_with("sm_90 f32 d32"), "{}", explained.class);
        for asked in &explained.families {
            let refused: usize = asked.refusals.iter().map(|r| r.count).sum();
            assert_eq!(asked.takes + refused, asked.candidates, "{}", asked.name);
        }
        // The last stage writes the output, and a workspace is there for the stages before it.
        assert!(explained.stages.last().is_some_and(|stage| stage.kernel.is_some()));
        assert!(explained.workspace == 0 || explained.stages.len() > 1, "{}", explained.workspace);
    }
}
