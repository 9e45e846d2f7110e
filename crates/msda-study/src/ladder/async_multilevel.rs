//! `async_multilevel.cu`: levels pass through padded, double-buffered shared memory.

use anyhow::{Result, bail, ensure};
use msda::Problem;
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::{Ask, DOCUMENTED, Strategy, one};

/// Knobs, as the kernel declares them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AsyncMultilevel {
    /// Whether products and sums are `f16`, within the shared memory that the documents have.
    half: bool,
    /// Whether the last levels stay in shared memory, as many as fit half of it.
    caches: bool,
}

/// One block per SM: two buffers fill its shared memory.
const THREADS: usize = 1024;

/// Bytes per copy and per load of a lane: a padded row is only aligned to so much.
const VEC: usize = 4;

/// Unused elements after each row.
const PAD: usize = 2;

/// The most queries per thread. Each block copies the whole plane, so there should be few blocks.
const QUERIES: usize = 8;

/// Blocks per SM, one after another, if blocks stride over the queries.
const TURNS: usize = 4;

/// Bytes of a pixel in shared memory.
fn pixel(p: &Problem) -> usize {
    (p.channels() + PAD) * p.types().value.size()
}

/// Queries per thread: as many as leave a block for every SM.
fn queries(ask: &Ask<'_>, lanes: usize) -> usize {
    let items = ask.p.queries() * ask.planes() / (THREADS / lanes);
    let most = (items / ask.sms().max(1)).clamp(1, QUERIES);
    1 << most.ilog2()
}

/// How a block uses its shared memory.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    /// Bytes of one buffer.
    buffer: usize,
    /// Image rows per tile of each level, without the row below them. The level that has no points
    /// has none.
    rows: Vec<usize>,
    /// How many of the last levels are resident, and where each level begins, in bytes.
    resident: usize,
    offsets: Vec<usize>,
    /// All of it.
    shared: usize,
}

impl AsyncMultilevel {
    /// The shape for a request, or why there is none.
    fn shape(&self, ask: &Ask<'_>) -> Result<Shape> {
        let (p, pixel) = (ask.p, pixel(ask.p));
        let room = ask.target.shared() - 1024;
        let room = if self.half { room.min(DOCUMENTED) } else { room };
        let (mut resident, mut bytes) = (0, 0);
        let mut sizes = vec![0; p.levels().len()];
        for (l, level) in p.levels().iter().enumerate().rev().take_while(|_| self.caches) {
            let size = if p.points()[l] > 0 { ((level.h - 1) * level.pitch + level.w) * pixel } else { 0 };
            if bytes + size > room / 2 {
                break;
            }
            (sizes[l], resident, bytes) = (size, resident + 1, bytes + size);
        }
        let buffer = (room - bytes) / 2 / 16 * 16;
        let rows = p.levels().iter().zip(p.points()).zip(&sizes).map(|((level, &points), &size)| {
            let fit = if size > 0 { level.h } else { buffer / (level.pitch * pixel) };
            match (points, fit) {
                (0, _) => Ok(0),
                (_, fit) if fit >= level.h => Ok(level.h),
                (_, 0 | 1) => bail!("two image rows of {} pixels do not fit a buffer", level.w),
                (_, fit) => Ok(fit - 1),
            }
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let offsets = sizes.iter().scan(2 * buffer, |next, size| {
            *next += size;
            Some(*next - size)
        });
        Ok(Shape { buffer, rows, resident, offsets: offsets.collect(), shared: 2 * buffer + bytes })
    }
}

impl Strategy for AsyncMultilevel {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        ask.needs(8, "asynchronous copies")?;
        let aligned = ask.vec(VEC) >= VEC && pixel(ask.p).is_multiple_of(VEC);
        ensure!(aligned, "rows are not at multiples of {VEC} bytes");
        let lanes = ask.row_bytes() / VEC;
        let part = lanes.is_power_of_two() && lanes <= 32;
        ensure!(part, "{lanes} lanes per query: shuffles need a part of a warp");
        ask.may_be_half(self.half)?;
        let (shape, queries) = (self.shape(ask)?, queries(ask, lanes));
        let unit = ask
            .unit("ladder/async_multilevel.cu", VEC)
            .define("THREADS", THREADS)
            .define("QUERIES_PER_THREAD", queries)
            .define("PAD", PAD)
            .define("BUFFER_BYTES", shape.buffer)
            .define("RESIDENT_LEVELS", shape.resident)
            .define("F16_SUMS", if self.half { 2 } else { 0 });
        let mut args = ask.args();
        shape.rows.iter().for_each(|&n| args.i32("rows_per_tile", n));
        shape.offsets.iter().for_each(|&n| args.i32("offset", n));
        let all = ask.p.queries().div_ceil(THREADS / lanes * queries);
        let shares = (ask.sms() * TURNS).div_ceil(ask.planes());
        let blocks = if self.caches { all.min(shares) } else { all };
        Ok(one(unit, ask.per_plane(blocks, THREADS, shape.shared), args))
    }

    fn is_exact(&self) -> bool {
        !self.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::tests::{ask, seed};

    #[test]
    fn fine_levels_are_streamed_in_tiles() {
        let seed = seed();
        let shape = |half, caches| ask(&seed, |ask| AsyncMultilevel { half, caches }.shape(ask)).unwrap();
        let half = shape(true, false);
        // A row of the first level has 162 pixels of 68 bytes.
        assert_eq!(shape(false, false).rows, [9, 19, 23, 12]);
        assert_eq!((half.rows, half.shared), (vec![3, 7, 16, 12], DOCUMENTED));
        let cached = shape(false, true);
        assert_eq!((cached.rows, cached.resident), (vec![5, 12, 23, 12], 2));
        let (level2, level3) = (22 * 42 + 40, 11 * 22 + 20);
        assert_eq!(cached.offsets[3] - cached.offsets[2], level2 * 68);
        assert_eq!(cached.shared - cached.offsets[3], level3 * 68);
        assert_eq!(ask(&seed, |ask| queries(ask, 16)), 8);
        let wide = seed.with(|s| s.levels[0] = (92, 1600)).unwrap();
        let why = ask(&wide, |ask| AsyncMultilevel::default().shape(ask)).unwrap_err().to_string();
        assert!(why.contains("1600 pixels"), "{why}");
    }
}
