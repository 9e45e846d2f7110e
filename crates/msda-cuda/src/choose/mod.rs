//! The choice of a kernel for a request, with its reason.

mod tuned;

pub use self::tuned::{Tuned, class};

use msda::{Dtype, Layout, Sampling};

use crate::kernels::Kernel;
use crate::kernels::rows::{Division, Rows, Walk};
use crate::request::{Levels, Pass, Request, Sizes, Sums, Target};

/// A kernel, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The kernel.
    pub kernel: Kernel,
    /// The reason, a sentence for people.
    pub why: String,
}

/// The kernel for a request: the tuned one of its class, else the first of the table that accepts
/// it.
pub fn choose(request: &Request<'_>, target: &Target) -> Choice {
    choices(request, target).swap_remove(0)
}

/// All kernels that accept a request, the best first. The last one is the generic kernel, which
/// accepts everything.
pub fn choices(request: &Request<'_>, target: &Target) -> Vec<Choice> {
    let mut choices = Vec::new();
    if let Some((kernel, source)) = Tuned::global().kernel(request, target) {
        let kernel = with_asked(kernel, request);
        if kernel.refuses(request, target).is_none() {
            let why =
                format!("Tuning measured it as the fastest kernel for this class of problems ({source}).");
            choices.push(Choice { kernel, why });
        }
    }
    let mut refused = Vec::new();
    for (kernel, why) in table(request, target) {
        let kernel = with_asked(kernel, request);
        match kernel.refuses(request, target) {
            None => choices.push(Choice { kernel, why: why.into() }),
            Some(reason) => refused.push(reason),
        }
    }
    refused.dedup();
    let why = format!("No faster kernel accepts the request: {}.", refused.join("; "));
    choices.push(Choice { kernel: Kernel::Generic, why });
    choices
}

/// A kernel with the sums and sizes that the request asks for, if they can be faster.
fn with_asked(kernel: Kernel, request: &Request<'_>) -> Kernel {
    let Kernel::Rows(knobs) = kernel else { return kernel };
    let (p, division) = (request.problem, Division::of(request));
    // f16 sums exist for bilinear sampling, two channels per lane. They pay for their two
    // conversions if four samples are summed, or if queries are few and sample groups share them.
    // With resident levels they are no faster, and much slower if locations are random.
    let exist = p.types().value == Dtype::F16 && p.sampling() == Sampling::Bilinear && division.vec >= 4;
    let f16_sums = request.sums == Sums::F16
        && exist
        && knobs.resident_levels == 0
        && (knobs.samples_per_lane >= 4 || knobs.sample_groups > 1);
    // Fixed sizes help only if the compiler knows the level of each load: the same points on all
    // levels, no sample groups, few passes. With one sample per lane they gain nothing.
    let level_known = p.points().iter().all(|&n| n == p.points()[0])
        && knobs.sample_groups == 1
        && (knobs.passes(p, division) <= 2 || knobs.static_residency(p, division));
    let fixed_sizes = request.sizes == Sizes::Fixed
        && request.levels == Levels::Host
        && level_known
        && knobs.samples_per_lane > 1;
    Kernel::Rows(Rows { f16_sums, fixed_sizes, ..knobs })
}

/// Bytes of a cache line.
const LINE: usize = 128;

/// From so many queries per image on, ordering them or resident levels can pay.
const MANY: usize = 4096;

/// Threads per SM that leave each 40 registers, and 48.
const THREADS_OF_40: usize = 1536;
const THREADS_OF_48: usize = 1280;

/// The kernels to try, in order, each with its reason.
fn table(request: &Request<'_>, target: &Target) -> Vec<(Kernel, &'static str)> {
    let p = request.problem;
    let division = Division::of(request);
    if division.lanes > 32 {
        // None accepts it. One entry is enough to say why.
        return vec![(Kernel::Rows(Rows::default()), "")];
    }
    let row = division.lanes * division.vec;
    let samples = p.samples().max(1);
    let groups = p.batch() * p.queries() * p.heads();
    let lanes_needed = groups.saturating_mul(division.lanes);
    let sms = target.sms.max(1) as usize;
    let capacity = sms * target.threads() as usize;
    let planar = p.layout() != Layout::Bshd;
    // In (B, S, H, D) the rows of two or four heads share a line: one block computes those heads.
    let share_line = |heads: &usize| !planar && heads * row <= LINE && p.heads().is_multiple_of(*heads);
    let heads_per_block = [4, 2].into_iter().find(share_line).unwrap_or(1);
    // In planar layouts the left and the right tap of 64-byte rows make a line.
    let bilinear = p.sampling() == Sampling::Bilinear;
    let tap_columns = if planar && row == 64 && bilinear && division.lanes <= 16 { 2 } else { 1 };
    let lanes = division.lanes * tap_columns;
    // Samples per lane: all in one pass, up to four; fewer if that leaves no lane idle in the last
    // pass.
    let most = samples.div_ceil(lanes).clamp(1, 4);
    let samples_per_lane = (1..=most).rev().find(|n| samples.is_multiple_of(lanes * n)).unwrap_or(most);
    // The backward pass is faster with two, if that leaves no lane idle either: less staging memory
    // leaves more L1.
    let backward = request.pass != Pass::Forward;
    let two = backward && samples_per_lane > 2 && samples.is_multiple_of(2 * lanes);
    let samples_per_lane = if two { 2 } else { samples_per_lane };
    let rows = |knobs: Rows| Kernel::Rows(knobs.fitting(p, target, division));

    let mut table = Vec::new();
    // Few queries: less work than the GPU holds. Pixels count as many sooner, because neighbours
    // share rows.
    let few = match request.queries_are_pixels() {
        true => lanes_needed <= capacity * 3 / 16,
        false => p.queries() < MANY || lanes_needed < capacity,
    };
    if few {
        // Nothing is read twice, so loads in flight count: many threads, or registers for several
        // loads per thread.
        let fits = |n: &usize| lanes * n <= 32 && samples >= 2 * n;
        let sample_groups = [4 / tap_columns, 2, 1].into_iter().find(fits).unwrap_or(1);
        let threads = if sample_groups > 1 { 128 } else { 256 };
        let per_sm = groups.saturating_mul(lanes * sample_groups).div_ceil(sms);
        // Widening 16 bits needs registers. If all work runs at the same time anyway, more threads
        // are better.
        let needs_48 = sample_groups > 1 && p.types().value.size() == 2 && per_sm > THREADS_OF_40;
        let resident = if needs_48 { THREADS_OF_48 } else { THREADS_OF_40 }.min(target.threads() as usize);
        let heads_per_block = heads_per_block.min(threads / (lanes * sample_groups)).max(1);
        let group = Rows { tap_columns, sample_groups, heads_per_block, ..Rows::default() };
        let shared = Rows { threads, blocks_per_sm: resident / threads, ..group };
        let why = match sample_groups {
            1 => "There are few queries, so every one gets its own lanes.",
            _ => "There are few queries, so sample groups share the samples of each.",
        };
        table.push((rows(shared), why));
        let plain = Rows { threads, ..Rows::default() };
        table.push((rows(plain), "There are few queries, so every one gets its own lanes."));
    }
    // A tile has about 64 queries; half as many if there would be fewer than two tiles per SM.
    let tile = (64 * heads_per_block * lanes).clamp(64, 512);
    let scarce = lanes_needed.saturating_mul(tap_columns) < 2 * tile * sms;
    let threads = if scarce { tile.div_ceil(2).next_multiple_of(64) } else { tile };
    // Three quarters of the threads of an SM if a query has few samples, or a lane has several
    // passes of one sample; half of them if a query has many samples, because each thread then
    // needs more registers.
    let resident = (target.threads() as usize / threads).max(1);
    let light = samples <= 16 || (samples_per_lane == 1 && samples > lanes);
    // The backward pass keeps the gradient of the output and the located samples in registers too.
    let light = light && !backward;
    let blocks_per_sm = if light { resident * 3 / 4 } else { resident / 2 }.max(1);
    // Planes with many queries: the coarse levels become resident, as many as leave half of L1. If
    // a row fills a line, L1 holds half as many rows, and sorting a block's queries pays.
    if planar && (row == 64 || row == LINE) && p.queries() >= MANY && lanes_needed >= capacity {
        let sorted = row == LINE;
        // Fewer samples per pass need less staging memory and leave more L1. All samples of a lane
        // lie on one level, in at most four passes.
        let points = p.points()[0];
        let short = |n: &usize| points.is_multiple_of(*n) && samples.div_ceil(lanes * n) <= 4;
        let samples_per_lane = [2, 1, 3, 4].into_iter().find(short).unwrap_or(samples_per_lane.min(2));
        let walk = if sorted { Walk::Sorted } else { Walk::Straight };
        let threads = if sorted { 768 } else { 1024 };
        let with = |resident_levels| Rows {
            tap_columns,
            threads,
            samples_per_lane,
            resident_levels,
            walk,
            ..Rows::default()
        };
        let levels = p.levels().len().min(3);
        let most = (1..=levels).rev().find(|&levels| with(levels).resident_bytes(p) <= 96 << 10);
        if let Some(levels) = most {
            let why = "Each plane has many queries, so its coarse levels are resident in shared memory.";
            table.push((rows(with(levels)), why));
            if sorted {
                table.push((rows(Rows { walk: Walk::Straight, ..with(levels) }), why));
            }
        }
    }
    let many =
        Rows { tap_columns, heads_per_block, threads, blocks_per_sm, samples_per_lane, ..Rows::default() };
    let tiles = Rows { walk: Walk::Tiles, ..many };
    table.push((
        rows(tiles),
        "The queries are pixels, so they are visited in tiles whose queries share rows.",
    ));
    if p.queries() >= MANY && p.batch() >= 4 {
        let ordered = Rows { walk: Walk::Ordered, ..many };
        let why = "There are many queries in no known order, so they are ordered by location first.";
        table.push((rows(ordered), why));
    }
    table.push((rows(many), "There are many queries, and they are visited in input order."));
    // Smaller blocks and passes, for rows of many lanes and small GPUs.
    for threads in [256, 128, 64] {
        let small = Rows { threads, ..Rows::default() };
        table.push((rows(small), "Larger blocks do not fit this GPU."));
    }
    table
}

/// All kernels that tuning tries. Some of them may refuse the request.
pub fn candidates(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let division = Division::of(request);
    let samples = request.problem.samples().max(1);
    let mut all = vec![Kernel::Generic];
    // Only planar values can have resident levels.
    let levels = request.problem.levels().len();
    let resident = if request.problem.layout() == Layout::Bshd { 1 } else { 4.min(levels + 1) };
    for (walk, _) in Walk::ALL {
        for tap_columns in [1, 2] {
            for sample_groups in [1, 2, 4, 8] {
                for heads_per_block in [1, 2, 4, 8] {
                    for threads in [64, 128, 256, 512, 768, 1024] {
                        for samples_per_lane in [1, 2, 3, 4, 8] {
                            let lanes = division.lanes * tap_columns * sample_groups;
                            // More lanes than there is work for, or a last pass with mostly idle
                            // lanes.
                            let idle =
                                lanes * samples_per_lane > samples.next_multiple_of(lanes.max(1)).max(lanes);
                            if lanes > 32 || idle {
                                continue;
                            }
                            for blocks_per_sm in blocks_per_sm(target, threads) {
                                for resident_levels in 0..resident {
                                    let group = Rows {
                                        tap_columns,
                                        sample_groups,
                                        heads_per_block,
                                        ..Rows::default()
                                    };
                                    all.push(Kernel::Rows(Rows {
                                        threads,
                                        blocks_per_sm,
                                        samples_per_lane,
                                        resident_levels,
                                        walk,
                                        ..group
                                    }));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// Numbers of blocks per SM to try.
fn blocks_per_sm(target: &Target, threads: usize) -> Vec<usize> {
    let most = target.threads() as usize / threads;
    let mut blocks = vec![1, most / 2, most * 5 / 8, most * 3 / 4, most];
    blocks.extend([THREADS_OF_40, THREADS_OF_48].map(|resident| most.min(resident / threads)));
    blocks.retain(|&n| n > 0);
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests {
    use msda::{Dtype, Problem, Spec, Types};

    use super::*;
    use crate::driver::Arch;
    use crate::request::Operands;

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
        f(&request, &target, choose(&request, &target))
    }

    #[test]
    fn images_of_another_size_use_the_same_kernel() {
        let unit = |p: &Problem| {
            with_choice(p, |r, t, choice| choice.kernel.prepare(r, t).last().unwrap().unit.clone())
        };
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
            for (h, w) in (256..=1536).step_by(64).flat_map(|h| (256..=1536).step_by(64).map(move |w| (h, w)))
            {
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
                assert_eq!(choose(&asked, t).kernel.sums(), Sums::F32);
            });
        }
    }

    #[test]
    fn a_request_for_f16_sums_keeps_its_kernel_if_they_do_not_apply() {
        let odd = problem(|s| s.channels = 17);
        let nearest = problem(|s| s.sampling = Sampling::Nearest);
        for p in [odd, nearest] {
            with_choice(&p, |r, t, choice| {
                assert_eq!(choose(&Request { sums: Sums::F16, ..*r }, t).kernel, choice.kernel);
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
        for (heads, channels, beside) in
            [(8, 32, 2), (16, 16, 4), (16, 8, 4), (8, 64, 1), (3, 32, 1), (6, 16, 2)]
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
                for (queries, channels) in [(1, 1), (300, 32), (9664, 32), (22223, 64), (300, 17), (5, 1000)]
                {
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
                let chosen = choose(&request, &target).kernel;
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
                let Choice { kernel, why } = choose(&Request::new(&p, &operands), &target);
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
}
