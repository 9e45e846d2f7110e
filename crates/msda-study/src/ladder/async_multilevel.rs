//! `async_multilevel.cu`: all levels pass through padded, double-buffered shared memory.

use super::{Strategy, args, per_plane, row_bytes, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// It has no knobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct AsyncMultilevel;

/// One block per SM: two buffers fill its shared memory.
const THREADS: usize = 1024;

/// Bytes per copy and per load of a lane: a padded row is only aligned to so much.
const VEC: usize = 4;

/// Unused elements after each row.
const PAD: usize = 2;

/// The most queries per thread. Each block copies the whole plane, so there should be few blocks.
const QUERIES: usize = 8;

fn lanes(request: &Request<'_>) -> usize {
    row_bytes(request) / VEC
}

/// Bytes of a pixel in shared memory.
fn pixel(request: &Request<'_>) -> usize {
    (request.problem.channels() + PAD) * request.problem.types().value.size()
}

/// Bytes of one buffer.
fn buffer(target: &Target) -> usize {
    (target.shared() - 1024) / 2 / 16 * 16
}

/// Image rows per tile of each level, without the row below them. The level that has no points has
/// none.
fn rows(request: &Request<'_>, target: &Target) -> Result<Vec<usize>, String> {
    let p = request.problem;
    let rows = p.levels().iter().zip(p.points()).map(|(level, &points)| {
        let fit = buffer(target) / (level.pitch * pixel(request));
        match (points, fit) {
            (0, _) => Ok(0),
            (_, fit) if fit >= level.h => Ok(level.h),
            (_, 0 | 1) => {
                Err(format!("two image rows of {} pixels do not fit half of the shared memory", level.w))
            }
            (_, fit) => Ok(fit - 1),
        }
    });
    rows.collect()
}

/// Queries per thread: as many as leave a block for every SM.
fn queries(request: &Request<'_>, target: &Target) -> usize {
    let p = request.problem;
    let items = p.queries() * p.batch() * p.heads() / (THREADS / lanes(request));
    let most = (items / target.sms.max(1) as usize).clamp(1, QUERIES);
    1 << most.ilog2()
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
        rows(request, target).err()
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let Ok(rows) = rows(request, target) else { return Call::default() };
        let (queries, buffer) = (queries(request, target), buffer(target));
        let key = format!("async_multilevel-q{queries}");
        let unit = unit("ladder/async_multilevel.cu", &key, request, target, VEC)
            .define("THREADS", THREADS)
            .define("QUERIES_PER_THREAD", queries)
            .define("PAD", PAD)
            .define("BUFFER_BYTES", buffer);
        let mut args = args(request);
        rows.iter().for_each(|&n| args.i32("rows_per_tile", n));
        args.align(8);
        let blocks = p.queries().div_ceil(THREADS / lanes(request) * queries);
        let launch = Launch { shared: 2 * buffer as u32, ..per_plane(p, blocks, THREADS) };
        Prepared { unit, entry: "msda_forward", launch, args }.into()
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
        // A row of the first level has 162 pixels of 68 bytes.
        assert_eq!(rows(&request, &target).unwrap(), [9, 19, 23, 12]);
        assert_eq!(queries(&request, &target), 8);
        let wide = seed.with(|s| s.levels[0] = (92, 1600)).unwrap();
        let operands = Operands::dense(&wide, None);
        let why = rows(&Request::new(&wide, &operands), &target).unwrap_err();
        assert!(why.contains("1600 pixels"), "{why}");
    }
}
