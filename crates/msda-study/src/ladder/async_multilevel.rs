//! `async_multilevel.cu`: levels pass through padded, double-buffered shared memory.

use super::{DOCUMENTED, Strategy, args, half_refuses, per_plane, row_bytes, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct AsyncMultilevel {
    /// Whether products and sums are `f16`, within the shared memory that the documents have.
    half: bool,
    /// Whether the last levels stay in shared memory, as many as fit half of it.
    caches: bool,
}

pub(super) const STREAMED: AsyncMultilevel = AsyncMultilevel { half: false, caches: false };
pub(super) const HALF: AsyncMultilevel = AsyncMultilevel { half: true, caches: false };
pub(super) const CACHED: AsyncMultilevel = AsyncMultilevel { half: false, caches: true };

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

fn lanes(request: &Request<'_>) -> usize {
    row_bytes(request) / VEC
}

/// Bytes of a pixel in shared memory.
fn pixel(request: &Request<'_>) -> usize {
    (request.problem.channels() + PAD) * request.problem.types().value.size()
}

/// Queries per thread: as many as leave a block for every SM.
fn queries(request: &Request<'_>, target: &Target) -> usize {
    let p = request.problem;
    let items = p.queries() * p.batch() * p.heads() / (THREADS / lanes(request));
    let most = (items / target.sms.max(1) as usize).clamp(1, QUERIES);
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
    fn shape(&self, request: &Request<'_>, target: &Target) -> Result<Shape, String> {
        let (p, pixel) = (request.problem, pixel(request));
        let room = target.shared() - 1024;
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
                (_, 0 | 1) => Err(format!("two image rows of {} pixels do not fit a buffer", level.w)),
                (_, fit) => Ok(fit - 1),
            }
        });
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let offsets = sizes.iter().scan(2 * buffer, |next, size| {
            *next += size;
            Some(*next - size)
        });
        Ok(Shape { buffer, rows, resident, offsets: offsets.collect(), shared: 2 * buffer + bytes })
    }
}

impl Strategy for AsyncMultilevel {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if target.arch.major < 8 {
            return Some(format!("{} has no asynchronous copies", target.arch));
        }
        if vec(request, VEC) < VEC || !pixel(request).is_multiple_of(VEC) {
            return Some(format!("rows are not at multiples of {VEC} bytes"));
        }
        let lanes = lanes(request);
        if !lanes.is_power_of_two() || lanes > 32 {
            return Some(format!("{lanes} lanes per query: shuffles need a part of a warp"));
        }
        half_refuses(request).filter(|_| self.half).or_else(|| self.shape(request, target).err())
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let Ok(shape) = self.shape(request, target) else { return Call::default() };
        let queries = queries(request, target);
        let key = format!(
            "async_multilevel-q{queries}-r{}{}",
            shape.resident,
            if self.half { "-halves" } else { "" }
        );
        let unit = unit("ladder/async_multilevel.cu", &key, request, target, VEC)
            .define("THREADS", THREADS)
            .define("QUERIES_PER_THREAD", queries)
            .define("PAD", PAD)
            .define("BUFFER_BYTES", shape.buffer)
            .define("RESIDENT_LEVELS", shape.resident)
            .define("F16_SUMS", if self.half { 2 } else { 0 });
        let mut args = args(request);
        shape.rows.iter().for_each(|&n| args.i32("rows_per_tile", n));
        shape.offsets.iter().for_each(|&n| args.i32("offset", n));
        args.align(8);
        let all = p.queries().div_ceil(THREADS / lanes(request) * queries);
        let shares = (target.sms as usize * TURNS).div_ceil(p.batch() * p.heads());
        let blocks = if self.caches { all.min(shares) } else { all };
        let launch = Launch { shared: shape.shared as u32, ..per_plane(p, blocks, THREADS) };
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }

    fn is_exact(&self) -> bool {
        !self.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msda_cuda::Operands;

    #[test]
    fn fine_levels_are_streamed_in_tiles() {
        let (seed, target) = crate::ladder::tests::seed();
        let operands = Operands::dense(&seed, None);
        let request = Request::new(&seed, &operands);
        let shape = |rung: AsyncMultilevel| rung.shape(&request, &target).unwrap();
        // A row of the first level has 162 pixels of 68 bytes.
        assert_eq!(shape(STREAMED).rows, [9, 19, 23, 12]);
        assert_eq!((shape(HALF).rows, shape(HALF).shared), (vec![3, 7, 16, 12], DOCUMENTED));
        let cached = shape(CACHED);
        assert_eq!((cached.rows, cached.resident), (vec![5, 12, 23, 12], 2));
        let (level2, level3) = (22 * 42 + 40, 11 * 22 + 20);
        assert_eq!(cached.offsets[3] - cached.offsets[2], level2 * 68);
        assert_eq!(cached.shared - cached.offsets[3], level3 * 68);
        assert_eq!(queries(&request, &target), 8);
        let wide = seed.with(|s| s.levels[0] = (92, 1600)).unwrap();
        let operands = Operands::dense(&wide, None);
        let why = STREAMED.shape(&Request::new(&wide, &operands), &target).unwrap_err();
        assert!(why.contains("1600 pixels"), "{why}");
    }
}
