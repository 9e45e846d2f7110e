//! Which kernel a request gets, and why.

mod tuned;

pub use self::tuned::{Tuned, class};

use msda::{Dtype, Layout, Sampling};

use crate::kernels::Kernel;
use crate::kernels::rows::{Division, Rows, Walk};
use crate::request::{Request, Sizes, Sums, Target};

/// A kernel, and why it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The kernel.
    pub kernel: Kernel,
    /// Why.
    pub why: String,
}

/// The kernel for a request: what tuning found for its class, else the first of the table that takes it.
pub fn choose(request: &Request<'_>, target: &Target) -> Choice {
    choices(request, target).swap_remove(0)
}

/// All kernels for a request, the one to take first. The generic kernel, which takes everything, is the last.
pub fn choices(request: &Request<'_>, target: &Target) -> Vec<Choice> {
    let mut choices = Vec::new();
    if let Some((kernel, source)) = Tuned::global().find(&class(request, target)) {
        let kernel = asked(kernel, request);
        if kernel.refuses(request, target).is_none() {
            choices.push(Choice { kernel, why: format!("tuned for such problems ({source})") });
        }
    }
    let mut refused = Vec::new();
    for (kernel, why) in table(request, target) {
        let kernel = asked(kernel, request);
        match kernel.refuses(request, target) {
            None => choices.push(Choice { kernel, why: why.into() }),
            Some(reason) => refused.push(reason),
        }
    }
    refused.dedup();
    let why = format!("no faster kernel takes it: {}", refused.join("; "));
    choices.push(Choice { kernel: Kernel::Generic, why });
    choices
}

/// A kernel with the sums and sizes that the request asks for, where they may pay.
fn asked(kernel: Kernel, request: &Request<'_>) -> Kernel {
    let Kernel::Rows(knobs) = kernel else { return kernel };
    let (p, division) = (request.problem, Division::of(request));
    // Of bilinear samples, two channels at a time. A sum is worth its two conversions where it is of four samples, or where there are few queries and lanes
    // share the samples of one. Kernels that keep levels are no faster with them, and far slower where locations are anywhere.
    let there = p.types().value == Dtype::F16 && p.sampling() == Sampling::Bilinear && division.vec >= 4;
    let half = request.sums == Sums::F16 && there && knobs.keep == 0 && (knobs.round >= 4 || knobs.split > 1);
    // Where points differ from level to level, lanes share samples, or rounds are many, it is not known beforehand which level's rows are read; and few samples
    // gain nothing.
    let known = p.points().iter().all(|&n| n == p.points()[0])
        && knobs.split == 1
        && (knobs.rounds(p, division) <= 2 || knobs.parted(p, division));
    let fixed = request.sizes == Sizes::Fixed && known && knobs.round > 1;
    Kernel::Rows(Rows { half, fixed, ..knobs })
}

/// Bytes of a line of the first-level cache.
const LINE: usize = 128;

/// Queries of an image that are worth putting in order, or keeping levels for.
const MANY: usize = 4096;

/// Threads of a multiprocessor that have 40 registers each, and 48.
const THREADS_OF_40: usize = 1536;
const THREADS_OF_48: usize = 1280;

/// The table: what is tried, in order, with the reason. Each entry says what its knobs are for.
fn table(request: &Request<'_>, target: &Target) -> Vec<(Kernel, &'static str)> {
    let p = request.problem;
    let division = Division::of(request);
    if division.lanes > 32 {
        // None takes it, and one is enough to say why.
        return vec![(Kernel::Rows(Rows::default()), "")];
    }
    let row = division.lanes * division.vec;
    let samples = p.samples().max(1);
    let items = p.batch() * p.queries() * p.heads();
    let threads = items.saturating_mul(division.lanes);
    let multiprocessors = target.multiprocessors.max(1) as usize;
    let capacity = multiprocessors * target.threads() as usize;
    let planar = p.layout() != Layout::Bshd;
    // The rows of two heads, or four, lie side by side in a line.
    let beside = |heads: &usize| !planar && heads * row <= LINE && p.heads().is_multiple_of(*heads);
    let heads = [4, 2].into_iter().find(beside).unwrap_or(1);
    // Left and right taps of planar rows of 64 bytes make a line.
    let bilinear = p.sampling() == Sampling::Bilinear;
    let sides = if planar && row == 64 && bilinear && division.lanes <= 16 { 2 } else { 1 };
    let lanes = division.lanes * sides;
    // Samples that a lane locates at a time: all of them, up to four, but so many that no lane is idle in the last round.
    let most = samples.div_ceil(lanes).clamp(1, 4);
    let round = (1..=most).rev().find(|r| samples.is_multiple_of(lanes * r)).unwrap_or(most);
    let rows = |knobs: Rows| Kernel::Rows(knobs.fitting(p, target, division));

    let mut table = Vec::new();
    // Pixels are many before long, for neighbours share rows; others where they can be put in order.
    let few = match request.queries_are_pixels() {
        true => threads <= capacity * 3 / 16,
        false => p.queries() < MANY || threads < capacity,
    };
    if few {
        // What counts is how many reads are on their way: those of many threads, or of threads that have the registers for several.
        let split = [4 / sides, 2, 1].into_iter().find(|s| lanes * s <= 32 && samples >= 2 * s).unwrap_or(1);
        let block = if split > 1 { 128 } else { 256 };
        let each = items.saturating_mul(lanes * split).div_ceil(multiprocessors);
        // To widen 16 bits takes some; not where all that there is runs at once anyway.
        let wide = split > 1 && p.types().value.size() == 2 && each > THREADS_OF_40;
        let resident = if wide { THREADS_OF_48 } else { THREADS_OF_40 }.min(target.threads() as usize);
        let heads = heads.min(block / (lanes * split)).max(1);
        let shared = Rows { sides, split, heads, block, blocks: resident / block, ..Rows::default() };
        let why = if split > 1 { "few queries: lanes share the samples of one" } else { "few queries" };
        table.push((rows(shared), why));
        table.push((rows(Rows { block, ..Rows::default() }), "few queries"));
    }
    // A tile of 64 queries, or about as many; half as many where there would not be two for every multiprocessor.
    let tile = (64 * heads * lanes).clamp(64, 512);
    let scarce = threads.saturating_mul(sides) < 2 * tile * multiprocessors;
    let block = if scarce { tile.div_ceil(2).next_multiple_of(64) } else { tile };
    // Registers: three quarters of the threads where a query has few samples, or a lane has several but takes one at a time; half where it has
    // many.
    let resident = (target.threads() as usize / block).max(1);
    let light = samples <= 16 || (round == 1 && samples > lanes);
    let blocks = if light { resident * 3 / 4 } else { resident / 2 }.max(1);
    // Planes that are read often: the coarse levels, as many as leave half of the cache, stay in shared memory. Of rows that fill
    // a line the cache holds half as many: there it pays to sort a block's queries.
    if planar && (row == 64 || row == LINE) && p.queries() >= MANY && threads >= capacity {
        let sorted = row == LINE;
        // Fewer samples at a time leave more of the cache; those of a lane on one level, in few rounds.
        let points = p.points()[0];
        let brief = |r: &usize| points.is_multiple_of(*r) && samples.div_ceil(lanes * r) <= 4;
        let round = [2, 1, 3, 4].into_iter().find(brief).unwrap_or(round.min(2));
        let walk = if sorted { Walk::Sorted } else { Walk::Straight };
        let block = if sorted { 768 } else { 1024 };
        let kept = |keep| Rows { sides, block, round, keep, walk, ..Rows::default() };
        let most = (1..=p.levels().len().min(3)).rev().find(|&keep| kept(keep).kept_bytes(p) <= 96 << 10);
        if let Some(keep) = most {
            let why = "planes with many queries: coarse levels in shared memory";
            table.push((rows(kept(keep)), why));
            if sorted {
                table.push((rows(Rows { walk: Walk::Straight, ..kept(keep) }), why));
            }
        }
    }
    let many = Rows { sides, heads, block, blocks, round, ..Rows::default() };
    let tiles = Rows { walk: Walk::Tiles, ..many };
    table.push((rows(tiles), "queries are pixels: neighbours share rows"));
    if p.queries() >= MANY && p.batch() >= 4 {
        table.push((
            rows(Rows { walk: Walk::Ordered, ..many }),
            "many queries in any order: ordered by place first",
        ));
    }
    table.push((rows(many), "many queries"));
    // Smaller blocks and rounds, for rows of many lanes and small machines.
    for block in [256, 128, 64] {
        table.push((rows(Rows { block, ..Rows::default() }), "a block that fits"));
    }
    table
}

/// Every kernel that tuning tries, those that do not take the request included.
pub fn candidates(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let division = Division::of(request);
    let samples = request.problem.samples().max(1);
    let mut all = vec![Kernel::Generic];
    // Levels are kept of planar values only.
    let keep =
        if request.problem.layout() == Layout::Bshd { 1 } else { 4.min(request.problem.levels().len() + 1) };
    for (walk, _) in Walk::ALL {
        for sides in [1, 2] {
            for split in [1, 2, 4, 8] {
                for heads in [1, 2, 4, 8] {
                    for block in [64, 128, 256, 512, 768, 1024] {
                        for round in [1, 2, 3, 4, 8] {
                            let lanes = division.lanes * sides * split;
                            // More lanes than there is work for, or a last round that is mostly idle.
                            let idle = lanes * round > samples.next_multiple_of(lanes.max(1)).max(lanes);
                            if lanes > 32 || idle {
                                continue;
                            }
                            let most = target.threads() as usize / block;
                            let mut blocks = vec![1, most / 2, most * 5 / 8, most * 3 / 4, most];
                            blocks.extend(
                                [THREADS_OF_40, THREADS_OF_48].map(|threads| most.min(threads / block)),
                            );
                            blocks.retain(|&b| b > 0);
                            blocks.sort_unstable();
                            blocks.dedup();
                            for blocks in blocks {
                                for keep in 0..keep {
                                    let shared = Rows { sides, split, heads, ..Rows::default() };
                                    all.push(Kernel::Rows(Rows {
                                        block,
                                        blocks,
                                        round,
                                        keep,
                                        walk,
                                        ..shared
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

    /// GPUs of every kind.
    fn targets() -> impl Iterator<Item = Target> {
        let of = |(major, minor, multiprocessors)| Target { arch: Arch::new(major, minor), multiprocessors };
        [(7, 5, 40), (8, 0, 108), (8, 6, 84), (8, 9, 58), (9, 0, 132), (10, 0, 148), (12, 0, 170)]
            .into_iter()
            .map(of)
    }

    fn with_choice<T>(p: &Problem, f: impl FnOnce(&Request<'_>, &Target, Choice) -> T) -> T {
        let operands = Operands::dense(p, None);
        let request = Request::new(p, &operands);
        let target = Target { arch: Arch::new(9, 0), multiprocessors: 132 };
        f(&request, &target, choose(&request, &target))
    }

    #[test]
    fn images_of_another_size_need_no_other_kernel() {
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

    /// Positions that fit 16 bits or do not, levels that fit shared memory, few queries, tiles for every multiprocessor: such bounds there are, and no
    /// others.
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
    fn kernels_that_keep_levels_know_the_level_of_a_lane() {
        for points in [1, 2, 3, 4, 6, 8, 9, 12, 16, 32] {
            let p = problem(|s| (s.layout, s.queries, s.points) = (Layout::Planar, 6000, vec![points; 4]));
            with_choice(&p, |r, t, choice| {
                let Kernel::Rows(knobs) = choice.kernel else { panic!("{}", choice.kernel) };
                assert!(knobs.keep > 0 && knobs.parted(&p, Division::of(r)), "{points} points: {knobs}");
                // Where it may be: sums of f16 are not for these.
                let asked = Request { sums: Sums::F16, ..*r };
                assert_eq!(choose(&asked, t).kernel.sums(), Sums::F32);
            });
        }
    }

    #[test]
    fn sums_of_f16_cost_no_kernel() {
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
    fn lanes_share_the_samples_of_decoders_whatever_the_batch() {
        for batch in [1, 4, 16, 64, 256] {
            for (dtype, layout) in
                [(Dtype::F16, Layout::Bshd), (Dtype::F32, Layout::Bshd), (Dtype::F16, Layout::Planar)]
            {
                let knobs = chosen(|s| {
                    (s.batch, s.queries, s.layout, s.types) = (batch, 300, layout, Types::uniform(dtype));
                    (s.levels, s.points) = (vec![(80, 80), (40, 40), (20, 20)], vec![4; 3]);
                });
                assert_eq!(knobs.sides * knobs.split, 4, "batch {batch} {dtype} {layout:?}: {knobs}");
            }
        }
        // Nearest samples have no sides.
        let nearest = chosen(|s| {
            (s.queries, s.layout, s.sampling) = (300, Layout::Planar, Sampling::Nearest);
        });
        assert_eq!((nearest.sides, nearest.split), (1, 4), "{nearest}");
    }

    #[test]
    fn heads_whose_rows_share_a_line_share_a_block() {
        for (heads, channels, beside) in
            [(8, 32, 2), (16, 16, 4), (16, 8, 4), (8, 64, 1), (3, 32, 1), (6, 16, 2)]
        {
            let knobs = chosen(|s| (s.heads, s.channels) = (heads, channels));
            assert_eq!(knobs.heads, beside, "{heads} heads of {channels} channels: {knobs}");
        }
    }

    #[test]
    fn small_encoders_have_a_tile_for_everybody() {
        let encoder = |side: usize| {
            chosen(|s| {
                s.levels = [1, 2, 4].map(|d| (side / d, side / d)).into();
                (s.batch, s.points) = (1, vec![4; 3]);
                s.queries = s.levels.iter().map(|(h, w)| h * w).sum();
            })
        };
        let (tiny, small, large) = (encoder(32), encoder(48), encoder(80));
        assert_eq!((tiny.walk, tiny.split), (Walk::Straight, 4), "{tiny}");
        assert_eq!((small.walk, small.block), (Walk::Tiles, 256), "{small}");
        assert_eq!((large.walk, large.block), (Walk::Tiles, 512), "{large}");
    }

    #[test]
    fn no_lane_is_idle_in_the_last_round() {
        let five = problem(|s| {
            s.levels.insert(0, (200, 334));
            (s.points, s.queries) = (vec![4; 5], 89023);
        });
        with_choice(&five, |_, _, choice| {
            let knobs = "rows:sides=1,split=1,heads=2,block=512,blocks=3,round=1,keep=0,walk=tiles";
            assert_eq!(choice.kernel.to_string(), knobs);
        });
    }

    #[test]
    fn what_is_chosen_takes_the_request() {
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
    fn the_table_is_among_the_candidates_for_common_problems() {
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
                let few = why.starts_with("few queries") && knobs.block >= 128;
                assert!(few || knobs.walk == Walk::Tiles, "{p} on {}: {knobs}, {why}", target.arch);
            }
        }
    }

    #[test]
    fn absurd_numbers_are_no_panic() {
        for (batch, channels) in [(1 << 57, 3), (1, (1 << 58) + 1), (1, 1000)] {
            let p = problem(|s| {
                (s.batch, s.queries, s.heads, s.channels) = (batch, 4, 1, channels);
                (s.levels, s.points) = (vec![(2, 2)], vec![1]);
            });
            with_choice(&p, |_, _, choice| assert_eq!(choice.kernel, Kernel::Generic, "{}", choice.why));
        }
    }
}
