//! The kernels to compile: every rung that accepts one of these requests.

use msda::{Dtype, Layout, Padding, Problem, Sampling, Spec, Types};
use msda_cuda::driver::Arch;
use msda_cuda::{Operands, Request, Target};
use msda_study::ladder::{RUNGS, Rung};

use super::harness::{Case, FULL, SMS, Weight};

/// All cases for an architecture.
pub(crate) fn cases(arch: Arch) -> Vec<Case> {
    let target = Target { arch, sms: SMS };
    let mut all = Vec::new();
    for (name, weight, spec) in requests() {
        if weight != Weight::Once || arch == FULL {
            all.extend(rungs(name, weight, spec, &target));
        }
    }
    all
}

/// A case by name.
pub(crate) fn case(name: &str, arch: Arch) -> Case {
    cases(arch).into_iter().find(|case| case.name == name).unwrap()
}

/// All kernels of all rungs that accept a request.
fn rungs(name: &str, weight: Weight, spec: Spec, target: &Target) -> Vec<Case> {
    let problem = Problem::new(spec).unwrap();
    let operands = Operands::dense(&problem, None);
    let request = Request::new(&problem, &operands);
    let mut cases = Vec::new();
    for kernel in RUNGS.iter().map(Rung::kernel) {
        if kernel.refuses(&request, target).is_some() {
            continue;
        }
        let call = kernel.prepare(&request, target);
        let last = call.kernels().count() - 1;
        for (i, prepared) in call.kernels().enumerate() {
            let part = if i == last { String::new() } else { format!("-{}", prepared.entry) };
            cases.push(Case::new(format!("{kernel}-{name}{part}"), weight, prepared));
        }
    }
    cases
}

/// The seed shape, and others that reach the options of the rungs.
fn requests() -> Vec<(&'static str, Weight, Spec)> {
    let bf16 = Spec { types: Types::uniform(Dtype::Bf16), ..decoder() };
    vec![
        ("seed", Weight::Everywhere, Spec { types: Types::uniform(Dtype::F16), ..seed() }),
        ("encoder-f32", Weight::Once, encoder()),
        (
            "nearest-border",
            Weight::Once,
            Spec { sampling: Sampling::Nearest, padding: Padding::Border, ..bf16 },
        ),
        ("d5-points-3.6.3", Weight::Once, Spec { points: vec![3, 6, 3], channels: 5, ..decoder() }),
    ]
}

fn spec(batch: usize, queries: usize, heads: usize, levels: &[(usize, usize)], points: usize) -> Spec {
    let points = vec![points; levels.len()];
    Spec { batch, queries, heads, channels: 32, levels: levels.to_vec(), points, ..Spec::default() }
}

fn encoder() -> Spec {
    let levels = [(100, 167), (50, 84), (25, 42), (13, 21)];
    spec(4, levels.iter().map(|(h, w)| h * w).sum(), 8, &levels, 4)
}

fn decoder() -> Spec {
    spec(16, 300, 8, &[(80, 80), (40, 40), (20, 20)], 4)
}

fn seed() -> Spec {
    let levels = [(92, 160), (46, 80), (23, 40), (12, 20)];
    Spec { layout: Layout::PlanarRing, ..spec(48, 15422, 1, &levels, 8) }
}
