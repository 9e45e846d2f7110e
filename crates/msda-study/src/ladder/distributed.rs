//! `distributed.cu`: the channels of one plane in the shared memory of several blocks.

use anyhow::{Context, Result, ensure};
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::{Ask, Strategy, one};

/// Knobs, as the kernel declares them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
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

impl Strategy for Distributed {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let (p, target) = (ask.p, ask.target);
        if !self.local {
            ask.needs(9, "clusters")?;
        }
        // Blocks per cluster. Not every architecture with clusters supports 16 blocks.
        let most = if target.arch.major == 12 { self.most.min(8) } else { self.most };
        let each = self.channels.max(1);
        let divides = |&n: &usize| n <= most && p.channels().is_multiple_of(n * each);
        let parts = [16, 8, 4, 2].into_iter().find(divides).with_context(|| match self.channels {
            0 => format!("{} channels: no two blocks can share them", p.channels()),
            each => format!("{} channels: no two blocks can have {each} each", p.channels()),
        })?;
        // Clusters that share the rows of a plane.
        let clusters = if self.channels == 0 { 1 } else { p.channels() / (parts * each) };
        let part = ask.row_bytes() / (parts * clusters);
        let vec = ask.vec(16 | part);
        ensure!(!self.copies || vec >= 4, "rows are aligned to {vec} bytes: copies have at least 4");
        // Lanes per query.
        let lanes = if self.local { part } else { part * parts } / vec;
        let stages = self.staged && lanes > 1 && 32usize.is_multiple_of(lanes);
        let staged = if stages { 8 * ask.taps() } else { 0 };
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
        // The first position in shared memory, and bytes of shared memory per block.
        let found = starts.into_iter().find_map(|first| Some((first, fits(1, first)?)));
        let (first, alone) =
            found.context("no level fits the shared memory of the blocks that share a plane")?;
        let (blocks_per_sm, shared) = fits(2, first).map_or((1, alone), |bytes| (2, bytes));
        let threads = THREADS / blocks_per_sm;
        ensure!(lanes <= threads, "{lanes} threads for a query: a block has {threads}");

        let unit = ask
            .unit("ladder/distributed.cu", vec)
            .define("PARTS", parts)
            .define("ROW_CLUSTERS", clusters)
            .define("LOCAL", u8::from(self.local))
            .define("ASYNC", u8::from(self.copies))
            .define("STAGE", u8::from(self.staged))
            .define("THREADS", threads)
            .define("BLOCKS_PER_SM", blocks_per_sm);
        let tiles = p.queries().div_ceil(threads / lanes);
        let mut args = ask.args();
        args.i32("first_resident", first);
        args.i32("resident", p.positions() - first);
        args.i32("tiles", tiles);
        // As many groups of blocks as are resident at once, and at least one per plane.
        let resident = ask.sms() * blocks_per_sm / (parts * clusters);
        let useful = if self.local { tiles } else { tiles.div_ceil(parts) };
        let groups = (resident / ask.planes()).clamp(1, useful.max(1));
        let mut launch = ask.per_plane(groups * parts * clusters, threads, shared);
        if !self.local {
            launch.cluster = [parts as u32, 1, 1];
        }
        Ok(one(unit, launch, args))
    }
}

#[cfg(test)]
mod tests {
    use crate::ladder::find;
    use crate::ladder::tests::{ask, seed};

    #[test]
    fn at_the_seed_shape_the_division_is_the_documents() {
        let clusters = |rung: &str| {
            let call = ask(&seed(), |ask| find(rung).unwrap().call(ask.request, ask.target)).unwrap();
            let launch = call.last().unwrap().launch;
            let blocks: u32 = launch.grid.iter().product();
            (blocks / launch.cluster[0], launch.cluster[0], launch.shared)
        };
        // 96 clusters of 8 blocks, and 80.2 KB per block: 20,522 positions of two channels.
        assert_eq!(clusters("distributed"), (96, 8, 20522 * 4));
        assert_eq!(clusters("tma_multilevel"), clusters("distributed"));
        assert_eq!(clusters("distributed_wide").0, 48);
    }
}
