//! `shared.cu`: coarse levels in shared memory.

use anyhow::{Result, ensure};
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::resident::{resident_levels, room};
use super::{Ask, DOCUMENTED, Strategy, one};

/// Knobs, as the kernel declares them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Shared {
    /// The most bytes per load of a lane.
    vec: usize,
    /// Padding elements per row.
    pad: usize,
    /// Whether products and sums are `f16`, within the shared memory that the documents have.
    half: bool,
}

/// Threads per block: the most, because the levels fill the shared memory of an SM.
const BLOCK: usize = 1024;

/// Blocks per SM, one after another, for an even end.
const TURNS: usize = 4;

impl Strategy for Shared {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let p = ask.p;
        ask.may_be_half(self.half)?;
        let item = ask.row_bytes() / ask.vec(self.vec);
        ensure!(item <= BLOCK, "{item} threads for a query: a block has {BLOCK}");
        let unit = ask
            .unit("ladder/shared.cu", ask.vec(self.vec))
            .define("THREADS", BLOCK)
            .define("PAD", self.pad)
            .define("CHANNEL_GROUPS", 1)
            .define("PARTIAL", 0)
            .define("F16_SUMS", if self.half { 2 } else { 0 })
            .define("UNROLL", 1);
        let shares = (ask.sms() * TURNS).div_ceil(ask.planes());
        let each = p.queries().div_ceil(shares).next_multiple_of(BLOCK / item);
        let room = if self.half { room(ask.target).min(DOCUMENTED) } else { room(ask.target) };
        // Pixel stride in shared memory, in bytes.
        let step = (p.channels() + self.pad) * p.types().value.size();
        let levels = resident_levels(p, step, room, false);
        let mut args = ask.args();
        args.i32("queries_per_block", each);
        levels.put(&mut args);
        Ok(one(unit, ask.per_plane(p.queries().div_ceil(each), BLOCK, levels.bytes), args))
    }

    fn is_exact(&self) -> bool {
        !self.half
    }
}
