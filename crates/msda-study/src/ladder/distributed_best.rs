//! `distributed_best.cu`: the image rows of one plane in the shared memory of a cluster.

use anyhow::{Result, ensure};
use msda::Problem;
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::{Ask, Strategy, one};

/// It has no knobs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DistributedBest {}

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
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let (p, row) = (ask.p, ask.row_bytes());
        ask.needs(9, "clusters")?;
        ensure!(ask.vec(16) >= 16, "rows are not at multiples of 16 bytes");
        let lanes = row / 16;
        let part = lanes.is_power_of_two() && lanes <= 32;
        ensure!(part, "{lanes} lanes per query: a lane group is a part of a warp");
        ensure!(p.positions() < 1 << 27, "{} positions: they need more than 27 bits", p.positions());
        // Bytes that a block stages samples in, then a row of zeros, then the rows.
        let stage = THREADS * 8 * ask.taps();
        let (division, pixels) = divide(p, (ask.target.shared() - 1024 - stage) / row - 1);
        let resident = division.iter().zip(p.points()).all(|(d, &points)| d.rows > 0 || points == 0);
        let unit = ask
            .unit("ladder/distributed_best.cu", 16)
            .define("PARTS", PARTS)
            .define("THREADS", THREADS)
            .define("ALL_RESIDENT", u8::from(resident));
        // As many clusters as are resident at once, but enough for an even end.
        let per_block = p.queries().div_ceil(PARTS);
        let tiles = per_block.div_ceil(THREADS / lanes);
        let shares = (ask.sms() / PARTS / ask.planes()).max(SHARES).min(tiles).max(1);
        let mut args = ask.args();
        args.i32("queries_per_block", per_block);
        args.i32("tiles", tiles.div_ceil(shares));
        for d in &division {
            args.i32("division[0].rows", d.rows);
            args.f32("division[0].inverse", if d.rows == 0 { 0.0 } else { 1.0 / d.rows as f32 });
            args.i32("division[0].slot", d.slot);
            args.i32("division[0].in_all", usize::from(d.in_all));
        }
        let mut launch = ask.per_plane(shares * PARTS, THREADS, stage + (1 + pixels) * row);
        launch.cluster = [PARTS as u32, 1, 1];
        Ok(one(unit, launch, args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_divided_by_rows_and_the_coarsest_are_in_every_block() {
        let p = crate::ladder::tests::seed();
        let of = |rows, slot, in_all| Division { rows, slot, in_all };
        let divided = [of(12, 0, false), of(6, 1944, false), of(3, 2436, false), of(2, 2562, false)];
        assert_eq!(divide(&p, 2606), (divided.to_vec(), 2606));
        let (most, pixels) = divide(&p, 3000);
        assert_eq!((most[2], most[3], pixels), (divided[2], of(12, 2562, true), 2826));
        // The first level does not fit.
        assert_eq!(divide(&p, 2605).0[0], of(0, 0, false));
    }
}
