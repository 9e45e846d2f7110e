//! `shared.cu`: coarse levels in shared memory.

use super::resident::{ResidentLevels, resident_levels, room};
use super::{DOCUMENTED, Strategy, args, half_refuses, per_plane, row_bytes, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
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

pub(super) const PADDED: Shared = Shared { vec: 4, pad: 2, half: false };
pub(super) const PADDED_HALF: Shared = Shared { half: true, ..PADDED };
pub(super) const UNPADDED: Shared = Shared { pad: 0, ..PADDED };
pub(super) const WIDE: Shared = Shared { vec: 16, ..UNPADDED };

impl Shared {
    fn item(&self, request: &Request<'_>) -> usize {
        row_bytes(request) / vec(request, self.vec)
    }

    /// Pixel stride in shared memory, in bytes.
    fn step(&self, request: &Request<'_>) -> usize {
        (request.problem.channels() + self.pad) * request.problem.types().value.size()
    }

    fn kept(&self, request: &Request<'_>, target: &Target) -> ResidentLevels {
        let room = if self.half { room(target).min(DOCUMENTED) } else { room(target) };
        resident_levels(request.problem, self.step(request), room, false)
    }
}

impl Strategy for Shared {
    fn refuses(&self, request: &Request<'_>, _target: &Target) -> Option<String> {
        if let Some(why) = half_refuses(request).filter(|_| self.half) {
            return Some(why);
        }
        let item = self.item(request);
        (item > BLOCK).then(|| format!("{item} threads for a query: a block has {BLOCK}"))
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let key = format!("shared-pad{}{}", self.pad, if self.half { "-halves" } else { "" });
        let unit = unit("ladder/shared.cu", &key, request, target, vec(request, self.vec))
            .define("THREADS", BLOCK)
            .define("PAD", self.pad)
            .define("CHANNEL_GROUPS", 1)
            .define("PARTIAL", 0)
            .define("F16_SUMS", if self.half { 2 } else { 0 })
            .define("UNROLL", 1);
        let items = BLOCK / self.item(request);
        let planes = p.batch() * p.heads();
        let shares = (target.sms as usize * TURNS).div_ceil(planes);
        let each = p.queries().div_ceil(shares).next_multiple_of(items);
        let kept = self.kept(request, target);
        let mut args = args(request);
        args.i32("queries_per_block", each);
        kept.put(&mut args);
        args.align(8);
        let launch = Launch { shared: kept.bytes as u32, ..per_plane(p, p.queries().div_ceil(each), BLOCK) };
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }

    fn is_exact(&self) -> bool {
        !self.half
    }
}
