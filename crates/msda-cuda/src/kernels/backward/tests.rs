//! Stages of the backward pass wait for what they need. Nothing here needs a GPU.

use msda::{Dtype, Layout, Problem, ReferenceKind, Spec, Types};

use crate::driver::Arch;
use crate::kernels::{Action, Call, Kernel, Pointer, Rows};
use crate::request::{Operands, Pass, Request, Scatter, Wanted};
use crate::target::Target;

const ALL: Wanted = Wanted { value: true, locations: true, weights: true, reference: true };

fn problem(queries: usize, dtype: Dtype, layout: Layout) -> Problem {
    let spec = Spec {
        batch: 2,
        queries,
        heads: 4,
        channels: 32,
        levels: vec![(20, 30), (10, 15)],
        points: vec![4; 2],
        layout,
        types: Types::uniform(dtype),
        ..Spec::default()
    };
    Problem::new(spec).unwrap()
}

fn prepared(
    p: &Problem,
    kind: Option<ReferenceKind>,
    wanted: Wanted,
    scatter: Scatter,
    kernel: Kernel,
) -> Call {
    let wanted = Wanted { reference: wanted.reference && kind.is_some(), ..wanted };
    let pass = Pass::Backward(wanted);
    let operands = Operands::for_pass(p, kind, pass);
    let request = Request { pass, scatter, ..Request::new(p, &operands) };
    let target = Target { arch: Arch::new(9, 0), sms: 132 };
    assert_eq!(kernel.refuses(&request, &target), None, "{p}");
    kernel.prepare(&request, &target)
}

/// The regions of the workspace that a stage may use, by their offsets, and whether it writes them.
fn regions(action: &Action) -> (Vec<usize>, bool) {
    let kernel = match action {
        Action::Clear(region) => return (vec![region.offset], true),
        // It uses none, though its argument has their addresses.
        Action::Run(kernel) if kernel.entry == "msda_backward_gaps" => return (Vec::new(), false),
        Action::Run(kernel) => kernel,
    };
    let offset = |pointer| if let Pointer::Workspace(offset) = pointer { Some(offset) } else { None };
    let writes = ["samples", "sort", "pad", "value_atomic"].iter().any(|name| kernel.entry.contains(name));
    (kernel.args.pointers().iter().filter_map(|(pointer, _)| offset(*pointer)).collect(), writes)
}

/// Stages that must be done before a stage, directly or not.
fn all_before(call: &Call, stage: usize) -> Vec<usize> {
    let mut all = call.stages[stage].after.clone();
    let mut next = 0;
    while next < all.len() {
        all.extend_from_slice(&call.stages[all[next]].after);
        next += 1;
    }
    all
}

fn short(call: &Call) -> String {
    let name = |action: &Action| match action {
        Action::Clear(_) => "clear",
        Action::Run(kernel) => kernel.entry.trim_start_matches("msda_").trim_start_matches("backward_"),
    };
    let stages = call.stages.iter().map(|stage| format!("{}{:?}", name(&stage.action), stage.after));
    stages.collect::<Vec<_>>().join(" ")
}

/// Each path of the backward pass: its stages, and the stages that each of them waits for.
#[test]
fn stages_wait_for_the_stages_that_they_need() {
    use ReferenceKind::{Box, Point};
    use Scatter::{Atomic, Ordered, Sorted};
    let none = Wanted::default();
    let value = Wanted { value: true, ..none };
    let rows = Kernel::Rows(Rows::default());
    let (f16, f64, bshd, ring) = (Dtype::F16, Dtype::F64, Layout::Bshd, Layout::PlanarRing);
    for (queries, dtype, layout, kind, wanted, scatter, kernel, expected) in [
        // Few queries: the gradient of value needs no other stage.
        (30, f16, bshd, None, ALL, Ordered, rows, "value_few[] samples[]"),
        (30, f16, bshd, None, value, Ordered, rows, "value_few[]"),
        (30, f16, ring, None, ALL, Ordered, rows, "value_few[] samples[] gaps[]"),
        (30, f16, bshd, Some(Box), ALL, Ordered, rows, "value_few[] samples[] reference[1]"),
        (30, f16, ring, Some(Point), value, Ordered, rows, "value_few[] gaps[]"),
        // The gradient of value comes after sorting. In the fused form it needs the softmax too.
        (30, f16, bshd, None, ALL, Sorted, rows, "sort[] value[0] samples[]"),
        (30, f16, ring, None, ALL, Sorted, rows, "sort[] value[0] samples[] gaps[]"),
        (9000, f16, bshd, None, value, Ordered, rows, "sort[] value[0]"),
        (9000, f16, bshd, Some(Box), ALL, Ordered, rows, "samples[] reference[0] sort[] value[0, 2]"),
        (9000, f64, bshd, None, ALL, Ordered, Kernel::Generic, "sort[] value_plain[0] samples_generic[]"),
        (
            30,
            f64,
            ring,
            Some(Point),
            ALL,
            Ordered,
            Kernel::Generic,
            "samples_generic[] reference[0] sort[] value_plain[0, 2] gaps[]",
        ),
        (30, f16, bshd, None, ALL, Atomic, rows, "samples[] clear[0] value_atomic[1] value_round[2]"),
        // Without queries the gradient of value is zero.
        (0, f16, bshd, None, value, Ordered, Kernel::Generic, "gaps[]"),
    ] {
        let p = problem(queries, dtype, layout);
        let call = prepared(&p, kind, wanted, scatter, kernel);
        assert_eq!(short(&call), expected, "{p} {kind:?} {wanted:?} {scatter:?}");
        let chain = call.stages.iter().enumerate().all(|(i, s)| i == 0 || s.after == [i - 1]);
        assert_eq!(call.branches(), !chain, "{expected}");
    }
}

/// With more than three waves of blocks, sorting comes after the stages before it.
#[test]
fn long_sorting_waits() {
    let p = problem(9000, Dtype::F16, Layout::Bshd).with(|spec| spec.heads = 32).unwrap();
    let rows = Kernel::Rows(Rows::default());
    for (kind, expected) in [
        (None, "samples[] sort[0] value[1]"),
        (Some(ReferenceKind::Box), "samples[] reference[0] sort[1] value[2]"),
    ] {
        assert_eq!(short(&prepared(&p, kind, ALL, Scatter::Ordered, rows)), expected);
    }
}

/// RF-DETR in training: with 10 rows (f16) or 14 (f32) per warp, all blocks run in one wave.
#[test]
fn warps_take_other_rows_if_there_is_one_level() {
    for (dtype, levels, rows) in [
        (Dtype::F16, vec![(40, 40)], "-r10"),
        (Dtype::F32, vec![(40, 40)], "-r14"),
        (Dtype::F16, vec![(40, 40), (20, 20)], "-r8"),
    ] {
        let p = problem(3900, dtype, Layout::Bshd).with(|spec| {
            (spec.batch, spec.heads, spec.channels) = (8, 16, 16);
            (spec.points, spec.levels) = (vec![2; levels.len()], levels.clone());
        });
        let call = prepared(&p.unwrap(), None, ALL, Scatter::Ordered, Kernel::Rows(Rows::default()));
        let value = call.kernels().find(|kernel| kernel.entry == "msda_backward_value").unwrap();
        assert!(value.unit.key.ends_with(rows), "{} does not end with {rows}", value.unit.key);
    }
}

/// Rows that do not begin at multiples of 16 bytes are copied first. Rows of 24 numbers do, though
/// they are no whole chunk of 32. For rows of 33 numbers `samples.cu` needs copies too.
#[test]
fn rows_that_are_not_aligned_are_copied_first() {
    let rows = Kernel::Rows(Rows::default());
    for (channels, queries, kind, expected) in [
        (20, 30, None, "pad[] value_few[0] samples[]"),
        (20, 30, Some(ReferenceKind::Box), "pad[] value_few[0] samples[] reference[2]"),
        (20, 9000, None, "pad[] sort[] value[0, 1] samples[]"),
        (24, 9000, None, "sort[] value[0] samples[]"),
        (33, 9000, None, "pad[] sort[] value[0, 1] pad[] pad[3] samples[4]"),
    ] {
        let p = problem(queries, Dtype::F16, Layout::Bshd).with(|spec| spec.channels = channels).unwrap();
        let call = prepared(&p, kind, ALL, Scatter::Ordered, rows);
        assert_eq!(short(&call), expected, "{p} {kind:?}");
    }
}

/// Two stages that use the same region of the workspace never run at the same time if one of them
/// writes it.
#[test]
fn stages_that_share_memory_run_one_after_the_other() {
    let mut pairs = 0;
    for (queries, dtype, channels, kernel) in [
        (30, Dtype::F16, 32, Kernel::Rows(Rows::default())),
        (30, Dtype::F16, 20, Kernel::Rows(Rows::default())),
        (9000, Dtype::F16, 32, Kernel::Rows(Rows::default())),
        (9000, Dtype::F16, 20, Kernel::Rows(Rows::default())),
        (9000, Dtype::F32, 33, Kernel::Rows(Rows::default())),
        (9000, Dtype::F64, 32, Kernel::Generic),
    ] {
        for layout in Layout::ALL {
            for kind in [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)] {
                for scatter in [Scatter::Ordered, Scatter::Sorted, Scatter::Atomic] {
                    let p = problem(queries, dtype, layout);
                    let p = p.with(|spec| spec.channels = channels).unwrap();
                    let call = prepared(&p, kind, ALL, scatter, kernel);
                    for (i, stage) in call.stages.iter().enumerate() {
                        assert!(stage.after.iter().all(|&before| before < i), "{}", short(&call));
                        let before = all_before(&call, i);
                        for (j, other) in call.stages[..i].iter().enumerate() {
                            let (own, writes) = regions(&stage.action);
                            let (theirs, they_write) = regions(&other.action);
                            if (writes || they_write) && own.iter().any(|region| theirs.contains(region)) {
                                assert!(before.contains(&j), "{i} and {j} of {}", short(&call));
                                pairs += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(pairs > 50, "{pairs}");
}
