//! `distributed.cu`: the channels of one plane in the shared memory of several blocks.

use msda::Sampling;

use super::{Strategy, args, per_plane, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distributed {
    /// The most blocks per cluster.
    most: usize,
    /// Channels per block; 0: one cluster has the whole row.
    channels: usize,
    local: bool,
    /// Whether rows are copied to shared memory by `cp.async`.
    copies: bool,
    /// Whether a sample is located once per query and staged.
    staged: bool,
}

/// Threads per SM: as many as registers allow.
const THREADS: usize = 1024;

/// As the document has it: two channels per block, and nothing else in shared memory.
pub(super) const CLUSTER: Distributed =
    Distributed { most: 8, channels: 2, local: false, copies: false, staged: false };
/// The same, filled by asynchronous copies.
pub(super) const TMA_MULTILEVEL: Distributed = Distributed { copies: true, ..CLUSTER };
pub(super) const WIDE: Distributed = Distributed { channels: 0, staged: true, ..CLUSTER };
pub(super) const WIDE16: Distributed = Distributed { most: 16, ..WIDE };
pub(super) const LOCAL: Distributed = Distributed { local: true, ..WIDE };

/// The launch of a request.
struct Shape {
    /// Blocks per cluster.
    parts: usize,
    /// Clusters that share the rows of a plane.
    clusters: usize,
    vec: usize,
    /// Lanes per query.
    lanes: usize,
    threads: usize,
    blocks_per_sm: usize,
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
        let each = self.channels.max(1);
        let divides = |&n: &usize| n <= most && p.channels().is_multiple_of(n * each);
        let parts = [16, 8, 4, 2].into_iter().find(divides).ok_or_else(|| match self.channels {
            0 => format!("{} channels: no two blocks can share them", p.channels()),
            each => format!("{} channels: no two blocks can have {each} each", p.channels()),
        })?;
        let clusters = if self.channels == 0 { 1 } else { p.channels() / (parts * each) };
        let part = row / (parts * clusters);
        let vec = vec(request, 16 | part);
        if self.copies && vec < 4 {
            return Err(format!("rows are aligned to {vec} bytes: copies have at least 4"));
        }
        let lanes = if self.local { part } else { part * parts } / vec;
        let taps = if p.sampling() == Sampling::Nearest { 8 } else { 32 };
        let staged = if self.staged && lanes > 1 && 32usize.is_multiple_of(lanes) { taps } else { 0 };
        // One block per SM, or two if they fit.
        let fits = |blocks: usize, first: usize| {
            let bytes = (p.positions() - first) * part + THREADS / blocks * staged;
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
        let blocks_per_sm = if two.is_some() { 2 } else { 1 };
        let threads = THREADS / blocks_per_sm;
        let shared = two.or(fits(1, first)).unwrap_or(0);
        if lanes > threads {
            return Err(format!("{lanes} threads for a query: a block has {threads}"));
        }
        Ok(Shape { parts, clusters, vec, lanes, threads, blocks_per_sm, first, shared })
    }
}

impl Strategy for Distributed {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if !self.local && target.arch.major < 9 {
            return Some(format!("{} has no clusters", target.arch));
        }
        self.shape(request, target).err()
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let Ok(shape) = self.shape(request, target) else { return Call::default() };
        let Shape { parts, clusters, vec, lanes, threads, blocks_per_sm, first, shared } = shape;
        let key = format!(
            "distributed-{parts}x{clusters}{}{}{}-b{threads}",
            if self.local { "-local" } else { "" },
            if self.copies { "-async" } else { "" },
            if self.staged { "" } else { "-own" }
        );
        let unit = unit("ladder/distributed.cu", &key, request, target, vec)
            .define("PARTS", parts)
            .define("ROW_CLUSTERS", clusters)
            .define("LOCAL", u8::from(self.local))
            .define("ASYNC", u8::from(self.copies))
            .define("STAGE", u8::from(self.staged))
            .define("THREADS", threads)
            .define("BLOCKS_PER_SM", blocks_per_sm);
        let tiles = p.queries().div_ceil(threads / lanes);
        let mut args = args(request);
        args.i32("first_resident", first);
        args.i32("resident", p.positions() - first);
        args.i32("tiles", tiles);
        args.align(8);
        // As many groups of blocks as are resident at once, and at least one per plane.
        let resident = target.sms as usize * blocks_per_sm / (parts * clusters);
        let useful = if self.local { tiles } else { tiles.div_ceil(parts) };
        let groups = (resident / (p.batch() * p.heads())).clamp(1, useful.max(1));
        let mut launch = Launch { shared: shared as u32, ..per_plane(p, groups * parts * clusters, threads) };
        if !self.local {
            launch.cluster = [parts as u32, 1, 1];
        }
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msda_cuda::Operands;

    #[test]
    fn at_the_seed_shape_the_division_is_the_documents() {
        let (seed, target) = crate::ladder::tests::seed();
        let operands = Operands::dense(&seed, None);
        let request = Request::new(&seed, &operands);
        let clusters = |rung: &Distributed| {
            let call = rung.prepare(&request, &target);
            let launch = call.kernels().next().unwrap().launch;
            let blocks: u32 = launch.grid.iter().product();
            (blocks / launch.cluster[0], launch.cluster[0], launch.shared)
        };
        // 96 clusters of 8 blocks, and 80.2 KB per block: 20,522 positions of two channels.
        assert_eq!(clusters(&CLUSTER), (96, 8, 20522 * 4));
        assert_eq!(clusters(&TMA_MULTILEVEL), clusters(&CLUSTER));
        assert_eq!(clusters(&WIDE).0, 48);
    }
}
