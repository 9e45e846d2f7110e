//! `specialised.cu` and `loading_warps.cu`: warps that locate samples, or load their inputs, for
//! the others.

use anyhow::{Result, ensure};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::loaders::Loaders;
use super::{Ask, Strategy, one};

/// Knobs, as the kernel declares them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Specialised {
    /// Warps that locate samples.
    producers: usize,
    /// Warps that load rows.
    consumers: usize,
    buffers: usize,
}

/// One or two warps that only load locations and weights.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadingWarps {
    loaders: usize,
    /// All warps of a block.
    warps: usize,
}

/// Blocks per SM; two are resident at a time.
const BLOCKS_PER_SM: usize = 4;

/// Static shared memory of a block that every device has.
const SHARED: usize = 48 << 10;

/// Lanes per query, if blocks with so many threads for rows take a request.
fn lanes(ask: &Ask<'_>, threads: usize) -> Result<usize> {
    ask.needs(8, "barriers in shared memory")?;
    let lanes = ask.row_bytes() / ask.vec(16);
    ensure!(lanes <= threads, "{lanes} threads per query: {threads} load rows");
    Ok(lanes)
}

/// A launch of blocks that stride over tiles of so many queries.
fn launch(ask: &Ask<'_>, queries: usize, warps: usize) -> Launch {
    let shares = (ask.sms() * BLOCKS_PER_SM).div_ceil(ask.planes());
    ask.per_plane(shares.min(ask.p.queries().div_ceil(queries)), warps * 32, 0)
}

impl Strategy for Specialised {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let lanes = lanes(ask, self.consumers * 32)?;
        let unit = ask
            .unit("ladder/specialised.cu", ask.vec(16))
            .define("PRODUCERS", self.producers)
            .define("CONSUMERS", self.consumers)
            // Samples per query in a buffer: one per lane, so that buffers have equal size.
            .define("SAMPLES_PER_PASS", lanes.min(ask.p.samples()).min(4))
            .define("BUFFERS", self.buffers);
        let tile = self.consumers * 32 / lanes;
        let mut args = ask.args();
        args.i32("tiles", ask.p.queries().div_ceil(tile));
        Ok(one(unit, launch(ask, tile, self.producers + self.consumers), args))
    }
}

impl Strategy for LoadingWarps {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let lanes = lanes(ask, (self.warps - self.loaders) * 32)?;
        let loaders = Loaders::new(ask, self.loaders, self.warps * 32, lanes, SHARED);
        let unit = ask.unit("ladder/loading_warps.cu", ask.vec(16)).define("THREADS", self.warps * 32);
        let unit = loaders.define(unit, ask);
        Ok(one(unit, launch(ask, loaders.queries(), self.warps), ask.args()))
    }
}
