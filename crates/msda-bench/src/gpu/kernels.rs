//! The families of kernels, the problems that each takes, and the kernel that a problem gets.

use anyhow::Result;
use msda::{Dtype, Layout, Padding, Problem, ReferenceKind, Sampling, Spec, Types};
use msda_cuda::choose::{self, Choice};
use msda_cuda::driver::{Arch, Device};
use msda_cuda::kernels::{Action, Kernel};
use msda_cuda::{Levels, Operands, Request, Scatter, Target, Wanted};

use crate::record::Pass;

/// The architecture to describe on a machine without a GPU.
pub const USUAL: Arch = Arch::new(9, 0);

/// The target for an architecture, or for the GPU of this machine; and whether the GPU is in this
/// machine.
pub fn target(arch: Option<Arch>) -> (Target, bool) {
    let here = Device::open(0).ok().map(|device| Target::of(&device));
    match (here, arch) {
        (Some(here), None) => (here, true),
        (Some(here), Some(arch)) if here.arch == arch => (here, true),
        (_, arch) => {
            let arch = arch.unwrap_or(USUAL);
            (Target { arch, sms: usual_sms(arch) }, false)
        }
    }
}

/// SMs of the largest common GPU of an architecture.
fn usual_sms(arch: Arch) -> u32 {
    match (arch.major, arch.minor) {
        (7, 0) => 80,
        (7, _) => 40,
        (8, 0) => 108,
        (8, 6) => 84,
        (8, _) => 142,
        (9, _) => 132,
        (10, _) => 148,
        (12, _) => 188,
        _ => 100,
    }
}

/// A family of kernels and the problems that it takes.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    /// Kinds of problems, each with the reason why it is refused; none if it is taken.
    pub takes: Vec<(&'static str, Option<String>)>,
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
            let pass = whole_pass(pass, *reference);
            let operands = Operands::for_pass(problem, *reference, pass);
            let request = Request { pass, levels: *levels, ..Request::new(problem, &operands) };
            let asked = Asked::new(&request, target, name);
            takes.push((*what, if asked.takes > 0 { None } else { asked.main_reason() }));
        }
        families.push(Family { name, about, takes });
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
pub struct Explained {
    /// The problem's readable key.
    pub problem: String,
    /// Its class. Problems of one class share tuned kernels.
    pub class: String,
    /// The pass.
    pub pass: Pass,
    /// The kernel and the reason.
    pub choice: Choice,
    /// The stages of a launch, in order.
    pub stages: Vec<Described>,
    /// The workspace that a launch needs, in bytes.
    pub workspace: usize,
    /// The candidates of each family.
    pub families: Vec<Asked>,
}

/// A stage of a launch.
pub struct Described {
    /// The key of its kernel; none for a memory clear.
    pub kernel: Option<String>,
    /// Blocks of the grid, and threads per block.
    pub size: Option<(u64, u64)>,
    /// Why it is there.
    pub why: String,
}

/// The candidates of a family for a request.
pub struct Asked {
    /// The family.
    pub name: &'static str,
    /// Number of candidates.
    pub candidates: usize,
    /// Number of candidates that take it.
    pub takes: usize,
    /// Reasons of the others with their counts, the most frequent first. Reasons that differ only
    /// in numbers are one.
    pub refusals: Vec<(String, usize)>,
}

impl Asked {
    fn new(request: &Request<'_>, target: &Target, name: &'static str) -> Self {
        let mut asked = Self { name, candidates: 0, takes: 0, refusals: Vec::new() };
        let of_family = |k: &Kernel| k.to_string().split(':').next() == Some(name);
        for kernel in choose::candidates(request, target).into_iter().filter(of_family) {
            asked.candidates += 1;
            match kernel.refuses(request, target) {
                None => asked.takes += 1,
                Some(why) => match asked.refusals.iter_mut().find(|(other, _)| alike(other) == alike(&why)) {
                    Some((_, count)) => *count += 1,
                    None => asked.refusals.push((why, 1)),
                },
            }
        }
        asked.refusals.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        asked
    }

    fn main_reason(&self) -> Option<String> {
        let none = || "no candidate has a fitting number of lanes".to_owned();
        Some(self.refusals.first().map_or_else(none, |(why, _)| why.clone()))
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
                let size = (product(run.launch.grid), product(run.launch.block));
                Described { kernel: Some(run.unit.key.clone()), size: Some(size), why }
            }
            _ => Described { kernel: None, size: None, why },
        }
    });
    Ok(Explained {
        problem: problem.to_string(),
        class: choose::class(&request, target),
        pass,
        stages: stages.collect(),
        workspace: call.arena.bytes(),
        choice,
        families: Kernel::FAMILIES.iter().map(|(name, _)| Asked::new(&request, target, name)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generic_kernel_takes_everything_and_reasons_are_counted() {
        let (target, _) = target(Some(USUAL));
        let families = families(&target, Pass::Forward).unwrap();
        let generic = families.iter().find(|f| f.name == "generic").unwrap();
        assert!(generic.takes.iter().all(|(_, refused)| refused.is_none()));
        let rows = families.iter().find(|f| f.name == "rows").unwrap();
        let why = |what: &str| rows.takes.iter().find(|(w, _)| *w == what).unwrap().1.clone();
        assert_eq!(why("f16 values"), None);
        assert!(why("f64 values").is_some_and(|why| why.contains("f64")));

        let problem = &questions().unwrap()[0].1;
        let explained = explain(problem, &target, Pass::Forward, Scatter::Ordered).unwrap();
        assert!(explained.class.starts_with("sm_90 f32 d32"), "{}", explained.class);
        for asked in &explained.families {
            let refused: usize = asked.refusals.iter().map(|(_, count)| count).sum();
            assert_eq!(asked.takes + refused, asked.candidates, "{}", asked.name);
        }
        // The last stage writes the output, and a workspace is there for the stages before it.
        assert!(explained.stages.last().is_some_and(|stage| stage.kernel.is_some()));
        assert!(explained.workspace == 0 || explained.stages.len() > 1, "{}", explained.workspace);
    }
}
