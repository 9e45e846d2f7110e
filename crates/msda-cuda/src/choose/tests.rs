//! Tests of the choice.

use msda::{Dtype, Layout, Problem, ReferenceKind, Sampling, Spec, Types};

use super::*;
use crate::driver::Arch;
use crate::kernels::{Division, Walk};
use crate::request::{Levels, Operands, Pass, Scatter, Slot, Wanted};

fn problem(change: impl FnOnce(&mut Spec)) -> Problem {
    let mut spec = Spec {
        batch: 4,
        queries: 22223,
        heads: 8,
        channels: 32,
        levels: vec![(100, 167), (50, 84), (25, 42), (13, 21)],
        points: vec![4; 4],
        types: Types::uniform(Dtype::F16),
        ..Spec::default()
    };
    change(&mut spec);
    Problem::new(spec).unwrap()
}

/// One GPU of each generation.
fn targets() -> impl Iterator<Item = Target> {
    let of = |(major, minor, sms)| Target { arch: Arch::new(major, minor), sms };
    [(7, 5, 40), (8, 0, 108), (8, 6, 84), (8, 9, 58), (9, 0, 132), (10, 0, 148), (12, 0, 170)]
        .into_iter()
        .map(of)
}

fn with_choice<T>(p: &Problem, f: impl FnOnce(&Request<'_>, &Target, Choice) -> T) -> T {
    let operands = Operands::dense(p, None);
    let request = Request::new(p, &operands);
    let target = Target { arch: Arch::new(9, 0), sms: 132 };
    f(&request, &target, choose(&request, &target).unwrap())
}

#[test]
fn images_of_another_size_use_the_same_kernel() {
    let unit =
        |p: &Problem| with_choice(p, |r, t, choice| choice.kernel.prepare(r, t).last().unwrap().unit.clone());
    let encoder = unit(&problem(|_| ()));
    let other = unit(&problem(|s| {
        (s.batch, s.levels) = (5, vec![(96, 160), (48, 80), (24, 40), (12, 20)]);
        s.queries = 96 * 160 + 48 * 80 + 24 * 40 + 12 * 20;
    }));
    assert_eq!(encoder, other);
    let decoder = |batch, heads| problem(|s| (s.batch, s.queries, s.heads) = (batch, 300, heads));
    assert_eq!(unit(&decoder(1, 8)), unit(&decoder(4, 4)));
}

/// The kernel changes only with: positions that fit 16 bits, levels that fit shared memory, few
/// queries, two tiles per SM.
#[test]
fn images_of_all_sizes_need_few_kernels() {
    let kernels = |queries: Option<usize>, layout, batch| {
        let mut keys = std::collections::BTreeSet::new();
        for (h, w) in (256..=1536).step_by(64).flat_map(|h| (256..=1536).step_by(64).map(move |w| (h, w))) {
            let levels: Vec<(usize, usize)> = [8, 16, 32, 64].map(|s| (h / s, w / s)).into();
            let pixels = levels.iter().map(|(h, w)| h * w).sum();
            let p = problem(|s| {
                (s.batch, s.queries, s.layout) = (batch, queries.unwrap_or(pixels), layout);
                s.levels = levels;
            });
            with_choice(&p, |r, t, choice| {
                let call = choice.kernel.prepare(r, t);
                keys.extend(
                    call.kernels().map(|p| format!("{} {:?}", p.unit.assemble().unwrap().name, p.entry)),
                );
            });
        }
        keys
    };
    for (what, keys, most) in [
        ("encoder", kernels(None, Layout::Bshd, 4), 1),
        ("encoder of two images", kernels(None, Layout::Bshd, 2), 2),
        ("encoder of one image", kernels(None, Layout::Bshd, 1), 3),
        ("decoder", kernels(Some(300), Layout::Bshd, 4), 1),
        ("planes", kernels(Some(10000), Layout::PlanarRing, 4), 3),
    ] {
        assert!(keys.len() <= most, "{what}: {keys:#?}");
    }
}

#[test]
fn kernels_with_resident_levels_know_the_level_of_each_lane() {
    for points in [1, 2, 3, 4, 6, 8, 9, 12, 16, 32] {
        let p = problem(|s| (s.layout, s.queries, s.points) = (Layout::Planar, 6000, vec![points; 4]));
        with_choice(&p, |r, t, choice| {
            let Kernel::Rows(knobs) = choice.kernel else { panic!("{}", choice.kernel) };
            assert!(
                knobs.resident_levels > 0 && knobs.static_residency(&p, Division::of(r)),
                "{points} points: {knobs}"
            );
            // Sums in f16 do not pay with resident levels.
            let asked = Request { sums: Sums::F16, ..*r };
            assert_eq!(choose(&asked, t).unwrap().kernel.sums(), Sums::F32);
        });
    }
}

#[test]
fn a_request_for_f16_sums_keeps_its_kernel_if_they_do_not_apply() {
    let odd = problem(|s| s.channels = 1);
    let nearest = problem(|s| s.sampling = Sampling::Nearest);
    for p in [odd, nearest] {
        with_choice(&p, |r, t, choice| {
            assert_eq!(choose(&Request { sums: Sums::F16, ..*r }, t).unwrap().kernel, choice.kernel);
        });
    }
}

fn chosen(change: impl FnOnce(&mut Spec)) -> Rows {
    with_choice(&problem(change), |_, _, choice| match choice.kernel {
        Kernel::Rows(knobs) => knobs,
        other => panic!("{other}"),
    })
}

#[test]
fn decoders_use_four_parts_per_query_for_any_batch_size() {
    for batch in [1, 4, 16, 64, 256] {
        for (dtype, layout) in
            [(Dtype::F16, Layout::Bshd), (Dtype::F32, Layout::Bshd), (Dtype::F16, Layout::Planar)]
        {
            let knobs = chosen(|s| {
                (s.batch, s.queries, s.layout, s.types) = (batch, 300, layout, Types::uniform(dtype));
                (s.levels, s.points) = (vec![(80, 80), (40, 40), (20, 20)], vec![4; 3]);
            });
            assert_eq!(
                knobs.tap_columns * knobs.sample_groups,
                4,
                "batch {batch} {dtype} {layout:?}: {knobs}"
            );
        }
    }
    // Nearest sampling has one tap.
    let nearest = chosen(|s| {
        (s.queries, s.layout, s.sampling) = (300, Layout::Planar, Sampling::Nearest);
    });
    assert_eq!((nearest.tap_columns, nearest.sample_groups), (1, 4), "{nearest}");
}

#[test]
fn heads_whose_rows_share_a_line_share_a_block() {
    for (heads, channels, beside) in [(8, 32, 2), (16, 16, 4), (16, 8, 4), (8, 64, 1), (3, 32, 1), (6, 16, 2)]
    {
        let knobs = chosen(|s| (s.heads, s.channels) = (heads, channels));
        assert_eq!(knobs.heads_per_block, beside, "{heads} heads of {channels} channels: {knobs}");
    }
}

#[test]
fn small_encoders_have_tiles_for_every_sm() {
    let encoder = |side: usize| {
        chosen(|s| {
            s.levels = [1, 2, 4].map(|d| (side / d, side / d)).into();
            (s.batch, s.points) = (1, vec![4; 3]);
            s.queries = s.levels.iter().map(|(h, w)| h * w).sum();
        })
    };
    let (tiny, small, large) = (encoder(32), encoder(48), encoder(80));
    assert_eq!((tiny.walk, tiny.sample_groups), (Walk::Straight, 4), "{tiny}");
    assert_eq!((small.walk, small.threads), (Walk::Tiles, 256), "{small}");
    assert_eq!((large.walk, large.threads), (Walk::Tiles, 512), "{large}");
}

#[test]
fn no_lane_is_idle_in_the_last_pass() {
    let five = problem(|s| {
        s.levels.insert(0, (200, 334));
        (s.points, s.queries) = (vec![4; 5], 89023);
    });
    with_choice(&five, |_, _, choice| {
        let knobs = "rows:tap_columns=1,sample_groups=1,heads_per_block=2,threads=512,blocks_per_sm=3,\
                     samples_per_lane=1,resident_levels=0,walk=tiles";
        assert_eq!(choice.kernel.to_string(), knobs);
    });
}

#[test]
fn the_chosen_kernel_accepts_the_request() {
    for layout in Layout::ALL {
        for dtype in Dtype::ALL {
            for (queries, channels) in [(1, 1), (300, 32), (9664, 32), (22223, 64), (300, 17), (5, 1000)] {
                let p = problem(|s| {
                    (s.layout, s.queries, s.channels) = (layout, queries, channels);
                    s.types = Types::uniform(dtype);
                });
                with_choice(&p, |r, t, choice| assert_eq!(choice.kernel.refuses(r, t), None, "{p}"));
            }
        }
    }
}

#[test]
fn tuning_tries_the_choices_of_the_table_for_common_problems() {
    for change in [|_: &mut Spec| (), |s: &mut Spec| s.queries = 300, |s: &mut Spec| s.queries = 9664] {
        let p = problem(change);
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        for target in targets() {
            let chosen = choose(&request, &target).unwrap().kernel;
            assert!(candidates(&request, &target).contains(&chosen), "{p} on {}: {chosen}", target.arch);
        }
    }
}

#[test]
fn pixels_are_visited_in_tiles_on_every_gpu() {
    for (side, heads, channels, layout) in [
        (24, 8, 32, Layout::Bshd),
        (48, 8, 32, Layout::Bshd),
        (80, 3, 32, Layout::Bshd),
        (80, 16, 16, Layout::Bshd),
        (48, 8, 17, Layout::Planar),
        (48, 8, 32, Layout::Planar),
    ] {
        let p = problem(|s| {
            s.levels = [1, 2, 4].map(|d| (side / d, side / d)).into();
            (s.batch, s.heads, s.channels, s.layout) = (1, heads, channels, layout);
            (s.points, s.queries) = (vec![4; 3], s.levels.iter().map(|(h, w)| h * w).sum());
        });
        let operands = Operands::dense(&p, None);
        for target in targets() {
            let Choice { kernel, why } = choose(&Request::new(&p, &operands), &target).unwrap();
            let Kernel::Rows(knobs) = kernel else { panic!("{p} on {}: {kernel}", target.arch) };
            let few = why.contains("few queries") && knobs.threads >= 128;
            assert!(few || knobs.walk == Walk::Tiles, "{p} on {}: {knobs}, {why}", target.arch);
        }
    }
}

#[test]
fn absurd_sizes_do_not_panic() {
    for (batch, channels) in [(1 << 57, 3), (1, (1 << 58) + 1), (1, 1000)] {
        let p = problem(|s| {
            (s.batch, s.queries, s.heads, s.channels) = (batch, 4, 1, channels);
            (s.levels, s.points) = (vec![(2, 2)], vec![1]);
        });
        with_choice(&p, |_, _, choice| assert_eq!(choice.kernel, Kernel::Generic, "{}", choice.why));
    }
}

/// Asks for the choices of a pass, with level sizes on the host and on the device.
fn asked(p: &Problem, pass: Pass, scatter: Scatter) -> [Result<Vec<Choice>>; 2] {
    let target = Target { arch: Arch::new(9, 0), sms: 132 };
    let hidden = Levels::hidden(p).unwrap();
    [(p, Levels::Host), (&hidden, Levels::Device)].map(|(problem, levels)| {
        let operands = Operands::for_pass(problem, None, pass);
        choices(&Request { pass, levels, scatter, ..Request::new(problem, &operands) }, &target)
    })
}

/// Numbers that the kernels of the gradient of value cannot hold. The generic kernels have 64-bit
/// indices, so they take all other passes.
#[test]
fn a_request_that_no_kernel_accepts_is_an_error_with_all_reasons() {
    let wanted = Wanted { value: true, locations: true, weights: true, reference: false };
    let samples = Wanted { value: false, ..wanted };
    let small = |s: &mut Spec| {
        (s.batch, s.queries, s.heads, s.channels) = (1, 4, 1, 1);
        (s.levels, s.points) = (vec![(2, 2)], vec![1]);
    };
    let long = |h, w| move |s: &mut Spec| s.levels = vec![(h, w)];
    type Case<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Spec));
    let cases: [Case<'_>; 6] = [
        ("2147483648 positions", "fewer than 1073741824", &long(1 << 8, 1 << 23)),
        ("8589934592 samples per query and head", "fewer than 1073741824", &|s| s.points = vec![1 << 33]),
        ("1100 levels", "fewer than 1025", &|s| {
            (s.levels, s.points) = (vec![(2, 2); 1100], vec![1; 1100]);
        }),
        ("1073741824 queries", "fewer than 1073676288", &|s| s.queries = 1 << 30),
        ("1073741824 images", "fewer than 1073741824", &|s| s.batch = 1 << 30),
        ("4294967296 samples per image and head", "fewer than 4294901760", &|s| {
            (s.queries, s.points) = (1 << 26, vec![64]);
        }),
    ];
    for (got, expected, change) in cases {
        let p = problem(|s| {
            small(s);
            change(s);
        });
        for scatter in [Scatter::Ordered, Scatter::Sorted, Scatter::Atomic] {
            for refused in asked(&p, Pass::Backward(wanted), scatter) {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                let text = error.to_string();
                for part in [got, expected, ": got ", "expected a kernel that accepts"] {
                    assert!(text.contains(part), "'{part}' is not in '{text}'");
                }
            }
        }
        for pass in [Pass::Forward, Pass::Backward(samples)] {
            for accepted in asked(&p, pass, Scatter::Ordered) {
                let all = accepted.unwrap();
                assert_eq!(all.last().unwrap().kernel, Kernel::Generic, "{p}");
            }
        }
    }
    // Several numbers: the error lists them all.
    let p = problem(|s| {
        small(s);
        (s.queries, s.points, s.levels) = (1 << 30, vec![4], vec![(1 << 7, 1 << 23)]);
    });
    let text = asked(&p, Pass::Backward(wanted), Scatter::Ordered)[0].as_ref().unwrap_err().to_string();
    for part in ["1073741824 queries", "1073741824 positions", "4294967296 samples"] {
        assert!(text.contains(part), "'{part}' is not in '{text}'");
    }
}

/// No kernel has a field for such a stride, forward or backward.
#[test]
fn strides_that_no_kernel_can_hold_are_an_error() {
    let p = problem(|s| s.batch = 2);
    let wanted = Wanted { value: true, locations: true, weights: true, reference: true };
    for pass in [Pass::Forward, Pass::Backward(wanted)] {
        for slot in [Slot::Value, Slot::Locations, Slot::Weights, Slot::Reference] {
            let mut operands = Operands::for_pass(&p, Some(ReferenceKind::Box), pass);
            operands[slot].strides[0] = 1 << 62;
            let request = Request { pass, ..Request::new(&p, &operands) };
            let text = choose(&request, &targets().next().unwrap()).unwrap_err().to_string();
            assert!(text.contains(slot.name()) && text.contains("63 bits"), "{text}");
        }
    }
}
