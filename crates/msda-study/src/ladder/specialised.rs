//! `specialised.cu` and `loading_warps.cu`: warps that locate samples, or load their inputs, for
//! the others.

use super::loaders::Loaders;
use super::{Strategy, args, row_bytes, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Specialised {
    /// Warps that locate samples.
    producers: usize,
    /// Warps that load rows.
    consumers: usize,
    buffers: usize,
}

/// One or two warps that only load locations and weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadingWarps {
    loaders: usize,
    /// All warps of a block.
    warps: usize,
}

/// Blocks per SM; two are resident at a time.
const BLOCKS_PER_SM: usize = 4;

/// Static shared memory of a block that every device has.
const SHARED: usize = 48 << 10;

pub(super) const SPECIALISED: Specialised = Specialised { producers: 4, consumers: 12, buffers: 3 };
pub(super) const SPECIALISED1: LoadingWarps = LoadingWarps { loaders: 1, warps: 16 };
pub(super) const SPECIALISED2: LoadingWarps = LoadingWarps { loaders: 2, warps: 16 };

/// Lanes per query.
fn lanes(request: &Request<'_>) -> usize {
    row_bytes(request) / vec(request, 16)
}

/// Why blocks with so many threads for rows do not take a request.
fn refuses(request: &Request<'_>, target: &Target, threads: usize) -> Option<String> {
    if target.arch.major < 8 {
        return Some(format!("{} has no barriers in shared memory", target.arch));
    }
    let lanes = lanes(request);
    (lanes > threads).then(|| format!("{lanes} threads per query: {threads} load rows"))
}

/// A launch of blocks that stride over tiles of so many queries.
fn launch(request: &Request<'_>, target: &Target, queries: usize, warps: usize) -> Launch {
    let p = request.problem;
    let shares = (target.sms as usize * BLOCKS_PER_SM).div_ceil(p.batch() * p.heads());
    let tiles = p.queries().div_ceil(queries);
    let grid = [shares.min(tiles), p.heads(), p.batch()].map(|n| n as u32);
    Launch::new(grid, [warps as u32 * 32, 1, 1])
}

impl Specialised {
    /// Samples per query in a buffer: one per lane, so that buffers have equal size, up to a limit.
    fn samples_per_pass(request: &Request<'_>) -> usize {
        lanes(request).min(request.problem.samples()).min(4)
    }

    /// Queries per tile.
    fn tile(&self, request: &Request<'_>) -> usize {
        self.consumers * 32 / lanes(request)
    }
}

impl Strategy for Specialised {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        refuses(request, target, self.consumers * 32)
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let key = format!("specialised-{}+{}-b{}", self.producers, self.consumers, self.buffers);
        let unit = unit("ladder/specialised.cu", &key, request, target, vec(request, 16))
            .define("PRODUCERS", self.producers)
            .define("CONSUMERS", self.consumers)
            .define("SAMPLES_PER_PASS", Self::samples_per_pass(request))
            .define("BUFFERS", self.buffers);
        let tile = self.tile(request);
        let mut args = args(request);
        args.i32("tiles", request.problem.queries().div_ceil(tile));
        args.align(8);
        let launch = launch(request, target, tile, self.producers + self.consumers);
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }
}

impl LoadingWarps {
    fn loaders(&self, request: &Request<'_>) -> Loaders {
        Loaders::new(request, self.loaders, self.warps * 32, lanes(request), SHARED)
    }
}

impl Strategy for LoadingWarps {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        refuses(request, target, (self.warps - self.loaders) * 32)
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let loaders = self.loaders(request);
        let key = format!("loading_warps-{}of{}", self.loaders, self.warps);
        let unit = unit("ladder/loading_warps.cu", &key, request, target, vec(request, 16))
            .define("THREADS", self.warps * 32);
        let unit = loaders.define(unit, request);
        let launch = launch(request, target, loaders.queries(), self.warps);
        Prepared { unit, entry: "msda_forward", launch, args: args(request) }.into()
    }
}
