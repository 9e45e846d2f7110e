//! `persistent.cu`: one block per SM that takes work from a counter.

use super::direct::Load;
use super::resident::{Kept, keep, room};
use super::{Reading, Samples, Strategy, Tiles, Visits, args, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Persistent {
    /// The most shared memory for levels. Without a bound, a part of the first level that does not fit is resident.
    budget: Option<usize>,
    /// Channels per pass, if not all.
    channels: Option<usize>,
    locate: bool,
    load: Load,
    unroll: usize,
    /// Threads per block.
    block: usize,
}

/// Work items per block, about: few, because each one loads the resident levels, but enough for an even end.
const TURNS: usize = 8;

/// The documents' shared memory for levels: 96 KB.
const SOME: Option<usize> = Some(96 << 10);

pub(super) const PERSISTENT: Persistent =
    Persistent { budget: SOME, channels: None, locate: false, load: Load::Cached, unroll: 1, block: 1024 };
pub(super) const FULL: Persistent = Persistent { budget: None, ..PERSISTENT };
pub(super) const CHANNELSPLIT: Persistent = Persistent { channels: Some(8), ..PERSISTENT };
pub(super) const ULTRA: Persistent =
    Persistent { locate: true, load: Load::Kept, unroll: 4, block: 768, ..FULL };

/// The division of a request.
struct Division {
    vec: usize,
    groups: usize,
    /// Lanes per query.
    item: usize,
    /// Queries of a block at a time.
    items: usize,
}

/// Work items of a call, work items per plane and pass, queries per work item.
struct Items {
    all: usize,
    tiles: usize,
    each: usize,
}

impl Persistent {
    fn division(&self, request: &Request<'_>) -> Division {
        let p = request.problem;
        let groups = self.channels.map_or(1, |some| p.channels() / some).max(1);
        let row = p.channels() * p.types().value.size();
        let vec = vec(request, 16);
        let item = row / groups / vec;
        let items = if self.locate { self.block / 32 * (32 / item) } else { self.block / item };
        Division { vec, groups, item, items }
    }

    /// The work items; none if there are more than the counter can count.
    fn items(&self, request: &Request<'_>, target: &Target) -> Option<Items> {
        let (p, division) = (request.problem, self.division(request));
        let parts = (p.batch() * p.heads()).checked_mul(division.groups)?;
        let shares = (target.sms as usize * TURNS).div_ceil(parts);
        let each = p.queries().div_ceil(shares).next_multiple_of(division.items);
        let tiles = p.queries().div_ceil(each);
        let all = parts.checked_mul(tiles)?;
        (all < 1 << 30).then_some(Items { all, tiles, each })
    }

    /// How taps are staged: samples per query that a warp locates at a time, and the pitch between samples. Eight lanes write
    /// together, 16 bytes each; if the numbers divide evenly, each writes to banks of its own.
    fn rounds(&self, request: &Request<'_>) -> (usize, usize) {
        let queries = 32 / self.division(request).item.min(32);
        let round = 32 / queries;
        let apart = match round {
            2 | 4 | 8 => 8 / round,
            16 => 1,
            _ => 0,
        };
        (round, queries + apart)
    }

    /// Bytes of shared memory for staged taps: 16 of positions and 16 of weights per sample.
    fn handed(&self, request: &Request<'_>) -> usize {
        let (round, pitch) = self.rounds(request);
        if self.locate { self.block / 32 * round * pitch * 32 } else { 0 }
    }

    /// Whether a part of the first level that does not fit is resident.
    fn partial(&self) -> bool {
        self.budget.is_none()
    }

    /// Pixel stride in shared memory, in bytes.
    fn step(&self, request: &Request<'_>) -> usize {
        let division = self.division(request);
        division.item * division.vec
    }

    fn kept(&self, request: &Request<'_>, target: &Target) -> Kept {
        let room = room(target) - self.handed(request);
        let room = self.budget.map_or(room, |most| most.min(room));
        keep(request.problem, self.step(request), room, self.partial())
    }
}

impl Strategy for Persistent {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let channels = request.problem.channels();
        if let Some(some) = self.channels.filter(|&some| !channels.is_multiple_of(some)) {
            return Some(format!("{channels} channels are no groups of {some}"));
        }
        let item = self.division(request).item;
        let most = if self.locate { 32 } else { self.block };
        if item > most {
            return Some(format!("{item} threads for a query: {most} at most"));
        }
        if self.load == Load::Kept && target.arch.major < 8 {
            return Some(format!("{} has no such hints", target.arch));
        }
        if self.items(request, target).is_none() {
            return Some("more items than the counter counts to".into());
        }
        None
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let division = self.division(request);
        let partial = self.partial();
        let key = format!(
            "persistent-b{}-{:?}-g{}-u{}{}{}",
            self.block,
            self.load,
            division.groups,
            self.unroll,
            if partial { "-partial" } else { "" },
            if self.locate { "-locate" } else { "" },
        );
        let unit = unit("ladder/persistent.cu", &key, request, target, division.vec)
            .define("THREADS", self.block)
            .define("PAD", 0)
            .define("CHANNEL_GROUPS", division.groups)
            .define("PARTIAL", u8::from(partial))
            .define("LOCATE", u8::from(self.locate))
            .define("PITCH", self.rounds(request).1)
            .define("LOAD", self.load as u8)
            .define("UNROLL", self.unroll);
        let kept = self.kept(request, target);
        // Only requests that were not refused are prepared.
        let Items { all, tiles, each } =
            self.items(request, target).unwrap_or(Items { all: 0, tiles: 1, each: 1 });
        let mut args = args(request);
        let mut call = Call::default();
        let counter = call.arena.reserve(4);
        args.pointer(counter);
        for n in [all, tiles, each] {
            args.i32(n);
        }
        kept.put(&mut args);
        args.align(8);
        let blocks = all.min(target.sms as usize).max(1) as u32;
        let shared = (kept.bytes + self.handed(request)) as u32;
        let launch = Launch { shared, ..Launch::new([blocks, 1, 1], [self.block as u32, 1, 1]) };
        call.clear(counter, "sets the work counter to zero");
        call.run(Prepared { unit, entry: "msda_forward", launch, args }, "computes the output");
        call
    }

    fn reading(&self, request: &Request<'_>, target: &Target) -> Result<Reading, &'static str> {
        let Division { vec, groups, item, items } = self.division(request);
        let (round, pitch) = self.rounds(request);
        let handed = Samples::Handed { round, pitch };
        Ok(Reading {
            lanes: item,
            vec,
            parts: groups,
            split: 1,
            tile: items,
            tiles: Tiles::Following(TURNS),
            visits: Visits::Plane,
            cached: true,
            kept: self.kept(request, target).held(),
            step: self.step(request),
            samples: if self.locate { handed } else { Samples::Own { together: 1 } },
        })
    }
}
