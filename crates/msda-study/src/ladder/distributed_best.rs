//! `distributed_best.cu`: the image rows of one plane in the shared memory of a cluster.

use msda::{Problem, Sampling};

use super::{Strategy, args, per_plane, row_bytes, unit, vec};
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// It has no knobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct DistributedBest;

/// Blocks per cluster: the most that every GPU with clusters supports.
const PARTS: usize = 8;

/// Threads per block. There is one block per SM: rows fill its shared memory.
const THREADS: usize = 1024;

/// The least clusters per plane. With one, 48 planes would need four waves of the 15 clusters that
/// an H200 holds, the last with three.
const SHARES: usize = 4;

/// Where a level lies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Division {
    /// Image rows per block; 0 if the level is not resident.
    rows: usize,
    /// Pixels before it.
    slot: usize,
    /// Whether every block has all rows.
    in_all: bool,
}

/// Bytes that a block stages samples in.
fn stage(request: &Request<'_>) -> usize {
    let taps = if request.problem.sampling() == Sampling::Nearest { 1 } else { 4 };
    THREADS * 8 * taps
}

/// Divides levels, the coarsest first, until `pixels` per block are taken; then gives as many as
/// fit to every block. Also returns the pixels that are taken.
fn divide(p: &Problem, pixels: usize) -> (Vec<Division>, usize) {
    let mut division = vec![Division::default(); p.levels().len()];
    let sampled: Vec<usize> = (0..p.levels().len()).rev().filter(|&l| p.points()[l] > 0).collect();
    let mut room = pixels;
    for &l in &sampled {
        let level = &p.levels()[l];
        let rows = level.h.div_ceil(PARTS);
        if rows * level.pitch > room {
            break;
        }
        division[l].rows = rows;
        room -= rows * level.pitch;
    }
    for &l in &sampled {
        let level = &p.levels()[l];
        let more = (level.h - division[l].rows) * level.pitch;
        if division[l].rows == 0 || more > room {
            break;
        }
        division[l] = Division { rows: level.h, in_all: true, slot: 0 };
        room -= more;
    }
    let mut slot = 0;
    for (division, level) in division.iter_mut().zip(p.levels()) {
        division.slot = slot;
        slot += division.rows * level.pitch;
    }
    (division, slot)
}

impl Strategy for DistributedBest {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if target.arch.major < 9 {
            return Some(format!("{} has no clusters", target.arch));
        }
        if vec(request, 16) < 16 {
            return Some("rows are not at multiples of 16 bytes".into());
        }
        let lanes = row_bytes(request) / 16;
        if !lanes.is_power_of_two() || lanes > 32 {
            return Some(format!("{lanes} lanes per query: a lane group is a part of a warp"));
        }
        if request.problem.positions() >= 1 << 27 {
            return Some(format!("{} positions: they need more than 27 bits", request.problem.positions()));
        }
        None
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let (row, stage) = (row_bytes(request), stage(request));
        // Before the rows there is one of zeros.
        let (division, pixels) = divide(p, (target.shared() - 1024 - stage) / row - 1);
        let resident = division.iter().zip(p.points()).all(|(d, &points)| d.rows > 0 || points == 0);
        let key = format!("distributed_best{}", if resident { "" } else { "-some" });
        let unit = unit("ladder/distributed_best.cu", &key, request, target, 16)
            .define("PARTS", PARTS)
            .define("THREADS", THREADS)
            .define("ALL_RESIDENT", u8::from(resident));
        // As many clusters as are resident at once, but enough for an even end.
        let per_block = p.queries().div_ceil(PARTS);
        let tiles = per_block.div_ceil(THREADS / (row / 16));
        let shares = (target.sms as usize / PARTS / (p.batch() * p.heads())).max(SHARES).min(tiles).max(1);
        let mut args = args(request);
        args.i32("queries_per_block", per_block);
        args.i32("tiles", tiles.div_ceil(shares));
        for d in &division {
            args.i32("division[0].rows", d.rows);
            args.f32("division[0].inverse", if d.rows == 0 { 0.0 } else { 1.0 / d.rows as f32 });
            args.i32("division[0].slot", d.slot);
            args.i32("division[0].in_all", usize::from(d.in_all));
        }
        args.align(8);
        let mut launch = per_plane(p, shares * PARTS, THREADS);
        launch.shared = (stage + (1 + pixels) * row) as u32;
        launch.cluster = [PARTS as u32, 1, 1];
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_divided_by_rows_and_the_coarsest_are_in_every_block() {
        let (p, _) = crate::ladder::tests::seed();
        let of = |rows, slot, in_all| Division { rows, slot, in_all };
        let divided = [of(12, 0, false), of(6, 1944, false), of(3, 2436, false), of(2, 2562, false)];
        assert_eq!(divide(&p, 2606), (divided.to_vec(), 2606));
        let (most, pixels) = divide(&p, 3000);
        assert_eq!((most[2], most[3], pixels), (divided[2], of(12, 2562, true), 2826));
        // The first level does not fit.
        assert_eq!(divide(&p, 2605).0[0], of(0, 0, false));
    }
}
