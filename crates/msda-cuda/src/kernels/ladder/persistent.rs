//! `persistent.cu`: one block a multiprocessor that takes work from a counter.

use super::direct::Load;
use super::kept::{Kept, keep, room};
use super::{Reading, Samples, Strategy, Tiles, Visits, args, unit, vec};
use crate::driver::Launch;
use crate::kernels::{Call, Hole, Prepared, Stage};
use crate::request::{Request, Target};

/// Knobs, as in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Persistent {
    /// Shared memory for levels, at most; of the level that does not fit a part is kept where there is no such bound.
    budget: Option<usize>,
    /// Channels of a group, if not all.
    channels: Option<usize>,
    locate: bool,
    load: Load,
    unroll: usize,
    /// Threads of a block.
    block: usize,
}

/// Items that a block takes, about: few, since what is kept is brought for each, and enough to be even at the end.
const TURNS: usize = 8;

/// What the documents give levels: 96 KB.
const SOME: Option<usize> = Some(96 << 10);

pub(super) const PERSISTENT: Persistent =
    Persistent { budget: SOME, channels: None, locate: false, load: Load::Cached, unroll: 1, block: 1024 };
pub(super) const FULL: Persistent = Persistent { budget: None, ..PERSISTENT };
pub(super) const CHANNELSPLIT: Persistent = Persistent { channels: Some(8), ..PERSISTENT };
pub(super) const ULTRA: Persistent =
    Persistent { locate: true, load: Load::Kept, unroll: 4, block: 768, ..FULL };

/// How a request is divided.
struct Division {
    vec: usize,
    groups: usize,
    /// Lanes of a query.
    item: usize,
    /// Queries side by side in a block.
    items: usize,
}

/// Items of a call, and of a plane and group; queries of an item.
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

    /// The items; none if they are more than the counter counts to.
    fn items(&self, request: &Request<'_>, target: &Target) -> Option<Items> {
        let (p, division) = (request.problem, self.division(request));
        let parts = (p.batch() * p.heads()).checked_mul(division.groups)?;
        let shares = (target.multiprocessors as usize * TURNS).div_ceil(parts);
        let each = p.queries().div_ceil(shares).next_multiple_of(division.items);
        let tiles = p.queries().div_ceil(each);
        let all = parts.checked_mul(tiles)?;
        (all < 1 << 30).then_some(Items { all, tiles, each })
    }

    /// How taps are handed on: samples of a query that a warp finds at a time, and places from sample to sample. Eight
    /// lanes write together, 16 bytes each: where they divide evenly, each to banks of its own.
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

    /// Bytes of shared memory through which taps are handed on: 16 of positions and 16 of weights a sample.
    fn handed(&self, request: &Request<'_>) -> usize {
        let (round, pitch) = self.rounds(request);
        if self.locate { self.block / 32 * round * pitch * 32 } else { 0 }
    }

    /// Whether of the level that does not fit a part is kept.
    fn partial(&self) -> bool {
        self.budget.is_none()
    }

    /// Bytes from position to position in shared memory.
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
        // A request is only prepared when it is taken.
        let Items { all, tiles, each } =
            self.items(request, target).unwrap_or(Items { all: 0, tiles: 1, each: 1 });
        let mut args = args(request);
        args.hole(Hole::Workspace(0));
        for n in [all, tiles, each] {
            args.i32(n);
        }
        kept.put(&mut args);
        args.align(8);
        let blocks = all.min(target.multiprocessors as usize).max(1) as u32;
        let shared = (kept.bytes + self.handed(request)) as u32;
        let launch = Launch { shared, ..Launch::new([blocks, 1, 1], [self.block as u32, 1, 1]) };
        let run = Stage::Run(Prepared { unit, entry: "msda_forward", launch, args });
        Call { stages: vec![Stage::Clear { at: 0, bytes: 4 }, run], workspace: 16, ..Call::default() }
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
