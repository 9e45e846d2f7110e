//! `specialised.cu`: warps that locate taps, and warps that load rows.

use super::{Reading, Samples, Strategy, Tiles, Visits, args, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Specialised {
    /// Warps that locate taps.
    producers: usize,
    /// Warps that load rows.
    consumers: usize,
    buffers: usize,
}

/// Blocks per SM; two are resident at a time.
const TURNS: usize = 4;

pub(super) const SPECIALISED: Specialised = Specialised { producers: 4, consumers: 12, buffers: 3 };

impl Specialised {
    fn lanes(request: &Request<'_>) -> usize {
        request.problem.channels() * request.problem.types().value.size() / vec(request, 16)
    }

    /// Samples per query in a buffer: one per lane, so that buffers have equal size, up to a limit.
    fn round(request: &Request<'_>) -> usize {
        Self::lanes(request).min(request.problem.samples()).min(4)
    }

    /// Queries per tile.
    fn tile(&self, request: &Request<'_>) -> usize {
        self.consumers * 32 / Self::lanes(request)
    }
}

impl Strategy for Specialised {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if target.arch.major < 8 {
            return Some(format!("{} has no barriers in shared memory", target.arch));
        }
        let (lanes, threads) = (Self::lanes(request), self.consumers * 32);
        (lanes > threads).then(|| format!("{lanes} threads for a query: {threads} gather"))
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let key = format!("specialised-{}+{}-b{}", self.producers, self.consumers, self.buffers);
        let unit = unit("ladder/specialised.cu", &key, request, target, vec(request, 16))
            .define("PRODUCERS", self.producers)
            .define("CONSUMERS", self.consumers)
            .define("SAMPLES_PER_PASS", Self::round(request))
            .define("BUFFERS", self.buffers);
        let tiles = p.queries().div_ceil(self.tile(request));
        let mut args = args(request);
        args.i32(tiles);
        args.align(8);
        let shares = (target.sms as usize * TURNS).div_ceil(p.batch() * p.heads());
        let grid = [shares.min(tiles), p.heads(), p.batch()].map(|n| n as u32);
        let threads = (self.producers + self.consumers) * 32;
        let launch = Launch::new(grid, [threads as u32, 1, 1]);
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }

    fn reading(&self, request: &Request<'_>, _target: &Target) -> Result<Reading, &'static str> {
        let tile = self.tile(request);
        Ok(Reading {
            lanes: Self::lanes(request),
            vec: vec(request, 16),
            parts: 1,
            split: 1,
            tile,
            tiles: Tiles::Strided(TURNS),
            visits: Visits::Plane,
            cached: true,
            kept: Vec::new(),
            step: 0,
            // The layout of the buffers in the kernel.
            samples: Samples::Handed { round: Self::round(request), pitch: tile + 2 },
        })
    }
}
