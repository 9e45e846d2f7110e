//! Which requests the kernels of lane groups accept.

use msda::{Dtype, Layout, Sampling};

use super::division::{Division, element_size, strides_fit};
use super::knobs::{Rows, Walk};
use super::lane_groups::has_thin_levels;
use super::tiling::SORT_QUERIES_PER_THREAD;
use crate::request::{Levels, Pass, Request, Slot, Sums};
use crate::target::Target;

/// The most levels: their table is part of the argument.
const MAX_LEVELS: usize = 64;

/// The most levels on the device: a lane of a warp reads each.
const MAX_DEVICE_LEVELS: usize = 32;

/// The most gradients of weights that a lane keeps in registers, in the fused backward pass.
const MAX_KEPT: usize = 16;

/// The most samples per lane if sample groups share them: there are no registers for more.
const MAX_SHARED_SAMPLES: usize = 4;

/// Blocks of a grid along y and z.
const MAX_GRID: usize = 65535;

/// Counts in the argument are smaller.
const MAX_COUNT: usize = 1 << 31;

/// Tiles of two images, and the tiles past the last, are counted in 31 bits.
const MAX_TILES: usize = 1 << 29;

/// The last tile may reach past the last query by so many, and so may the kernel that orders them.
const PAST_QUERIES: usize = 1024;

/// A request, and the knobs that are asked whether they accept it.
struct Asked<'a> {
    knobs: Rows,
    request: &'a Request<'a>,
    target: &'a Target,
    division: Division,
}

/// A reason if the condition holds.
fn reason<T: Into<String>>(holds: bool, why: impl FnOnce() -> T) -> Option<String> {
    holds.then(|| why().into())
}

impl Rows {
    /// Why the kernel does not take a request. The reasons come in three groups. A group is asked
    /// if those before it had no reason, because it computes with what they checked; within a
    /// group all reasons are listed, and their order does not matter.
    pub(super) fn reasons(&self, request: &Request<'_>, target: &Target) -> Vec<String> {
        let asked = Asked { knobs: *self, request, target, division: Division::of(request) };
        let knobs: Vec<String> = asked.wrong_knobs().into_iter().flatten().collect();
        if !knobs.is_empty() {
            return knobs;
        }
        let request = asked.types().into_iter().chain(asked.levels()).chain(asked.samples());
        let request: Vec<String> = request.chain(asked.walk()).chain(asked.numbers()).flatten().collect();
        if !request.is_empty() {
            return request;
        }
        asked.room().into_iter().flatten().collect()
    }
}

impl Asked<'_> {
    fn backward(&self) -> bool {
        self.request.pass != Pass::Forward
    }

    fn bilinear(&self) -> bool {
        self.request.problem.sampling() == Sampling::Bilinear
    }

    /// Knobs out of range, or that do not divide into lanes and warps. The other groups may compute
    /// with the knobs if there are none of these.
    fn wrong_knobs(&self) -> [Option<String>; 5] {
        let Rows { tap_columns, sample_groups, heads_per_block, threads, .. } = self.knobs;
        let powers = [tap_columns, sample_groups, heads_per_block].iter().all(|n| n.is_power_of_two());
        let in_range = tap_columns <= 2
            && sample_groups <= 32
            && heads_per_block <= 1024
            && threads <= 1024
            && (1..=32).contains(&self.knobs.blocks_per_sm)
            && (1..=16).contains(&self.knobs.samples_per_lane);
        if !powers || !in_range {
            let why = "tap_columns, sample_groups, heads_per_block, threads, blocks_per_sm or samples_per_lane is \
                       out of range";
            return [Some(why.into()), None, None, None, None];
        }
        let (levels, resident) = (self.request.problem.levels().len(), self.knobs.resident_levels);
        let lanes = self.knobs.group_lanes(self.division);
        let divides = threads > 0
            && threads.is_multiple_of(32)
            && threads.is_multiple_of(lanes.saturating_mul(heads_per_block));
        [
            // The reason that people ask for first, and true for any knobs.
            reason(
                self.request.problem.types().value == Dtype::F64,
                || "values are f64, and it computes in f32",
            ),
            reason(tap_columns == 2 && !self.bilinear(), || "nearest sampling has no left and right taps"),
            reason(lanes > 32, || format!("{lanes} lanes per query and head; a warp has 32")),
            reason(lanes <= 32 && !divides, || {
                format!(
                    "{threads} threads do not divide into warps, and into {heads_per_block} heads of {lanes} lanes"
                )
            }),
            reason(resident > levels, || format!("{resident} resident levels; there are {levels}")),
        ]
    }

    /// Types of values and sums.
    fn types(&self) -> [Option<String>; 2] {
        let value = self.request.problem.types().value;
        let asked = self.request.sums == Sums::F16 && value == Dtype::F16;
        let sums = self.knobs.f16_sums;
        [
            reason(sums && !asked, || "sums in f16 need f16 values and a request that allows them"),
            reason(
                sums && (!self.bilinear() || self.division.vec < 4),
                || "sums in f16 need bilinear sampling and two channels per lane",
            ),
        ]
    }

    /// Levels: their number, where their sizes are, and resident ones.
    fn levels(&self) -> [Option<String>; 8] {
        let Self { knobs, request, division, .. } = self;
        let p = request.problem;
        let (levels, thin) = (p.levels().len(), has_thin_levels(request));
        let (resident, on_device) = (knobs.resident_levels > 0, request.levels == Levels::Device);
        let whole_rows = p.layout() != Layout::Bshd
            && request.operands[Slot::Value].strides[1] == p.channels()
            && division.vec == 16;
        [
            reason(
                self.backward() && (resident || knobs.f16_sums),
                || "resident levels and sums in f16 belong to the forward pass",
            ),
            reason(on_device && (resident || knobs.fixed_sizes), || "the level sizes are on the device"),
            reason(on_device && levels > MAX_DEVICE_LEVELS, || {
                format!(
                    "{levels} levels, whose sizes are on the device; a warp has {MAX_DEVICE_LEVELS} lanes"
                )
            }),
            reason(levels > MAX_LEVELS, || format!("{levels} levels; at most {MAX_LEVELS} fit the argument")),
            reason(resident && thin, || "a level is one pixel wide or high, so it has no 2x2 square of taps"),
            reason(thin && p.positions() < 2, || "value has one position, and a lane loads two"),
            reason(
                resident && !whole_rows,
                || "resident levels need planar values with rows of whole 16 bytes",
            ),
            reason(
                resident && (knobs.heads_per_block != 1 || !self.bilinear()),
                || "resident levels need one head per block and bilinear sampling",
            ),
        ]
    }

    /// Samples: there are some, and lanes have registers for theirs.
    fn samples(&self) -> [Option<String>; 3] {
        let Self { knobs, request, division, .. } = self;
        let p = request.problem;
        let kept = knobs.passes(p, *division) * knobs.samples_per_lane;
        let keeps = self.backward() && request.operands.reference_kind().is_some();
        [
            reason(p.samples() == 0 || p.output_len() == 0, || "there are no samples or no outputs"),
            reason(keeps && kept > MAX_KEPT, || {
                format!("a lane keeps the gradients of {kept} weights; at most {MAX_KEPT}")
            }),
            reason(
                knobs.sample_groups > 1 && knobs.samples_per_lane > MAX_SHARED_SAMPLES,
                || "more samples per pass than there are registers for",
            ),
        ]
    }

    /// The order in which queries are visited.
    fn walk(&self) -> [Option<String>; 3] {
        let Self { knobs, request, .. } = self;
        [
            reason(
                knobs.walk == Walk::Sorted && knobs.resident_levels == 0,
                || "without resident levels a block has too few queries to sort",
            ),
            reason(
                knobs.walk == Walk::Tiles && !request.queries_are_pixels(),
                || "the queries are not the pixels of the levels",
            ),
            reason(
                knobs.walk == Walk::Ordered && request.problem.points()[0] == 0,
                || "the first level has no points to order queries by",
            ),
        ]
    }

    /// Shared memory and threads of an SM, and the queries that a block sorts.
    fn room(&self) -> [Option<String>; 3] {
        let Self { knobs, request, target, division } = self;
        let sorted = knobs.sorted_queries(request.problem, target, *division);
        let bytes = knobs.shared_bytes(request, target, *division);
        let most = target.shared() / knobs.blocks_per_sm;
        let (threads, held) = (knobs.threads * knobs.blocks_per_sm, target.threads() as usize);
        [
            reason(
                sorted > SORT_QUERIES_PER_THREAD * knobs.threads,
                || "a block has more queries than its threads can sort",
            ),
            reason(bytes > most, || {
                let blocks = knobs.blocks_per_sm;
                format!(
                    "{bytes} bytes of shared memory per block; with {blocks} blocks per SM there are {most}"
                )
            }),
            reason(threads > held, || format!("{threads} threads per SM; an SM holds {held}")),
        ]
    }

    /// Numbers that the argument or the grid cannot hold.
    fn numbers(&self) -> [Option<String>; 7] {
        let Self { knobs, request, .. } = self;
        let (p, o) = (request.problem, request.operands);
        let longest = match request.levels {
            Levels::Host => p.levels().iter().map(|l| l.pitch).max().unwrap_or(0),
            // A row of a level has at most all positions.
            Levels::Device => p.positions(),
        };
        let pixel = o[Slot::Value].strides[1].saturating_mul(p.types().value.size());
        // Other kernels write these two.
        let read = |slot: &&Slot| !matches!(slot, Slot::GradValue | Slot::GradReference);
        let fit = |&slot: &Slot| strides_fit(o[slot], element_size(slot, p));
        let strides = Slot::ALL.iter().filter(read).all(fit);
        let pitch = pixel.saturating_mul(longest.max(1)) < MAX_COUNT;
        let blocks = p.heads().div_ceil(knobs.heads_per_block);
        let tiles = p.queries().div_ceil(knobs.queries_per_tile(self.division));
        let tiles = if knobs.resident_levels > 0 { tiles } else { 0 };
        let count = |what: &str, n: usize, limit: usize| {
            reason(n >= limit, || format!("{n} {what}; expected fewer than {limit}"))
        };
        [
            reason(!strides || !pitch, || "a stride in bytes does not fit 31 bits (63 bits between images)"),
            count("queries", p.queries(), MAX_COUNT - PAST_QUERIES),
            count("positions", p.positions(), MAX_COUNT),
            count("samples per query and head", p.samples(), MAX_COUNT / 8),
            count("images", p.batch(), MAX_GRID + 1),
            count("blocks of heads", blocks, MAX_GRID + 1),
            count("tiles of resident levels", tiles, MAX_TILES),
        ]
    }
}

#[cfg(test)]
mod tests {
    use msda::{Problem, Spec};

    use super::*;
    use crate::driver::Arch;
    use crate::request::Operands;

    #[test]
    fn strides_that_overflow_are_refused() {
        let target = Target { arch: Arch::new(9, 0), sms: 132 };
        let (levels, points) = (vec![(9, 16)], vec![8]);
        let p = Spec { batch: 1, queries: 15, heads: 1, channels: 32, levels, points, ..Spec::default() };
        let p = Problem::new(p).unwrap();
        let mut operands = Operands::dense(&p, None);
        for stride in [usize::MAX, usize::MAX / 2, 1 << 62] {
            operands[Slot::Value].strides[0] = stride;
            let reasons = Rows::default().reasons(&Request::new(&p, &operands), &target);
            assert!(reasons.len() == 1 && reasons[0].contains("63 bits"), "{stride}: {reasons:?}");
        }
        operands[Slot::Value].strides[0] = 1 << 60;
        assert_eq!(Rows::default().reasons(&Request::new(&p, &operands), &target), [""; 0]);
    }
}
