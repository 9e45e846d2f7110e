//! `distributed.cu`: one plane in the shared memory of several blocks.

use msda::Sampling;

use super::{Reading, Strategy, args, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distributed {
    /// The most blocks that share a plane.
    most: usize,
    local: bool,
}

/// Threads per SM: as many as registers allow.
const THREADS: usize = 1024;

pub(super) const CLUSTER: Distributed = Distributed { most: 8, local: false };
pub(super) const CLUSTER16: Distributed = Distributed { most: 16, local: false };
pub(super) const LOCAL: Distributed = Distributed { most: 8, local: true };

/// The launch of a request.
struct Shape {
    /// Blocks that share a plane.
    parts: usize,
    vec: usize,
    /// Lanes per query.
    item: usize,
    block: usize,
    blocks: usize,
    /// The first position in shared memory.
    first: usize,
    /// Bytes of shared memory per block.
    shared: usize,
}

impl Distributed {
    /// Divides a request, or says why that is impossible.
    fn shape(&self, request: &Request<'_>, target: &Target) -> Result<Shape, String> {
        let p = request.problem;
        let row = p.channels() * p.types().value.size();
        // Not every architecture with clusters supports 16 blocks.
        let most = if target.arch.major == 12 { self.most.min(8) } else { self.most };
        let parts = [16, 8, 4, 2].into_iter().find(|&n| n <= most && p.channels().is_multiple_of(n));
        let parts =
            parts.ok_or_else(|| format!("{} channels: no two blocks can share them", p.channels()))?;
        let part = row / parts;
        let vec = vec(request, 16 | part);
        let item = if self.local { part } else { row } / vec;
        let taps = if p.sampling() == Sampling::Nearest { 8 } else { 32 };
        let handed = if item > 1 && 32usize.is_multiple_of(item) { taps } else { 0 };
        // One block per SM, or two if they fit.
        let fits = |blocks: usize, first: usize| {
            let bytes = (p.positions() - first) * part + THREADS / blocks * handed;
            // Each block reserves a little for itself.
            ((bytes + 1024) * blocks <= target.shared()).then_some(bytes)
        };
        let ring = p.layout().ring();
        let mut starts: Vec<_> = p.levels().iter().map(|l| l.origin - ring * (l.pitch + 1)).collect();
        starts.push(0);
        starts.sort_unstable();
        let first = starts.iter().find(|&&first| fits(1, first).is_some());
        let first = *first.ok_or("no level fits the shared memory of the blocks that share a plane")?;
        let two = fits(2, first);
        let blocks = if two.is_some() { 2 } else { 1 };
        let block = THREADS / blocks;
        let shared = two.or(fits(1, first)).unwrap_or(0);
        if item > block {
            return Err(format!("{item} threads for a query: a block has {block}"));
        }
        Ok(Shape { parts, vec, item, block, blocks, first, shared })
    }
}

impl Strategy for Distributed {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if !self.local && target.arch.major < 9 {
            return Some(format!("{} has no clusters", target.arch));
        }
        self.shape(request, target).err()
    }

    fn reading(&self, _request: &Request<'_>, _target: &Target) -> Result<Reading, &'static str> {
        Err("blocks read from each other's shared memory")
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let Ok(shape) = self.shape(request, target) else { return Call::default() };
        let Shape { parts, vec, item, block, blocks, first, shared } = shape;
        let key = format!("distributed-{parts}{}-b{block}", if self.local { "-local" } else { "" });
        let unit = unit("ladder/distributed.cu", &key, request, target, vec)
            .define("PARTS", parts)
            .define("LOCAL", u8::from(self.local))
            .define("THREADS", block)
            .define("BLOCKS_PER_SM", blocks);
        let tiles = p.queries().div_ceil(block / item);
        let mut args = args(request);
        args.i32(first);
        args.i32(p.positions() - first);
        args.i32(tiles);
        args.align(8);
        // As many groups of blocks as are resident at once, and at least one per plane.
        let resident = target.sms as usize * blocks / parts;
        let useful = if self.local { tiles } else { tiles.div_ceil(parts) };
        let groups = (resident / (p.batch() * p.heads())).clamp(1, useful.max(1));
        let grid = [groups * parts, p.heads(), p.batch()].map(|n| n as u32);
        let mut launch = Launch::new(grid, [block as u32, 1, 1]);
        launch.shared = shared as u32;
        if !self.local {
            launch.cluster = [parts as u32, 1, 1];
        }
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }
}
