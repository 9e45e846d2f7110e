//! How a kernel reads: which lanes of a warp read which bytes of which rows, and how they learn where rows are.
//!
//! A kernel is described, not run: whatever has a pattern can be simulated, one warp after another.

use msda_cuda::kernels::Kernel;
use msda_cuda::kernels::ladder::{Held, Reading, Samples, Tiles, Visits};
use msda_cuda::kernels::rows::{Division, Rows, Walk};
use msda_cuda::{Request, Target};

/// How lanes share the rows of a query and head, an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Lanes that share a row, or a part of one.
    pub lanes: usize,
    /// Bytes that each of them reads at once.
    pub vec: usize,
    /// Parts that rows are divided into, each an item of its own.
    pub parts: usize,
    /// 2: left and right taps are read by lanes of their own.
    pub sides: usize,
    /// Groups of lanes that share the samples of an item.
    pub split: usize,
    /// Threads of a block that gather.
    pub block: usize,
    /// What is in shared memory, of each level; empty where nothing is.
    pub kept: Vec<Held>,
    /// Bytes from position to position there.
    pub step: usize,
    /// Whether only taps that count are read; otherwise the square of taps is moved onto the map.
    pub masked: bool,
    /// Whether rows go through the cache.
    pub cached: bool,
    /// How lanes learn where rows are.
    pub staging: Staging,
    /// Which items a block has at a time.
    pub items: Items,
    /// What it has one after another.
    pub tiles: Tiles,
}

/// How lanes learn where rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staging {
    /// As rungs of the ladder do: every lane for itself, through tables, or from lanes that find taps.
    Rung(Samples),
    /// Each lane of an item locates some samples at a time, and the others read them from shared memory.
    Shared {
        /// How many.
        round: usize,
        /// Whether positions lie in the order of an item's samples, as many as 16 bytes hold read at a time; else those of a lane together.
        ordered: bool,
    },
    /// Each lane of an item locates some samples at a time, and the others get them by shuffles.
    Shuffled {
        /// How many.
        round: usize,
        /// Shuffles a sample.
        words: usize,
    },
}

/// Which items a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Items {
    /// Items that follow each other, heads within queries within images.
    Linear,
    /// Queries of some heads; columns, heads and images are the grid's dimensions.
    Grid {
        /// Heads of a block.
        heads: usize,
        /// In which order queries are visited.
        walk: Walk,
    },
}

impl Pattern {
    /// A kernel's pattern for a request that it takes; or why it has none.
    pub fn of(kernel: &Kernel, request: &Request<'_>, target: &Target) -> Result<Self, String> {
        let pattern = match kernel {
            Kernel::Rows(knobs) => Self::rows(knobs, request, target),
            Kernel::Generic => Self::generic(request),
            Kernel::Ladder(rung) => Self::rung(rung.reading(request, target)?),
        };
        match pattern.item() {
            1..=32 if 32 % pattern.item() == 0 => Ok(pattern),
            lanes => Err(format!(
                "{lanes} lanes for a query are no part of a warp: how they read is not described"
            )),
        }
    }

    fn rows(knobs: &Rows, request: &Request<'_>, target: &Target) -> Self {
        let (p, division) = (request.problem, Division::of(request));
        let none = Held { from: usize::MAX, count: 0, at: 0 };
        // Kept levels lie as they do in device memory.
        let all = Held { from: 0, count: p.positions(), at: 0 };
        let first = p.levels().len() - knobs.resident_levels;
        let kept = (0..p.levels().len()).map(|level| if level < first { none } else { all });
        Self {
            lanes: division.lanes,
            vec: division.vec,
            parts: 1,
            sides: knobs.tap_columns,
            split: knobs.sample_groups,
            block: knobs.threads,
            kept: kept.collect(),
            step: p.channels() * p.types().value.size(),
            masked: false,
            cached: true,
            staging: Staging::Shared {
                round: knobs.samples_per_lane,
                ordered: knobs.static_residency(p, division),
            },
            items: Items::Grid { heads: knobs.heads_per_block, walk: knobs.walk },
            tiles: if knobs.resident_levels > 0 {
                Tiles::Following(knobs.tiling(p, target, division).tiles_per_block)
            } else {
                Tiles::One
            },
        }
    }

    /// One thread an element; described where whole rows fit a warp.
    fn generic(request: &Request<'_>) -> Self {
        let p = request.problem;
        Self {
            lanes: p.channels(),
            vec: p.types().value.size(),
            parts: 1,
            sides: 1,
            split: 1,
            block: 256,
            kept: Vec::new(),
            step: 0,
            masked: false,
            cached: true,
            staging: Staging::Rung(Samples::Own { together: 1 }),
            items: Items::Linear,
            tiles: Tiles::One,
        }
    }

    fn rung(reading: Reading) -> Self {
        let grid = |walk| Items::Grid { heads: 1, walk };
        Self {
            lanes: reading.lanes,
            vec: reading.vec,
            parts: reading.parts,
            sides: 1,
            split: reading.split,
            block: reading.tile * reading.lanes * reading.split,
            kept: reading.kept,
            step: reading.step,
            masked: true,
            cached: reading.cached,
            staging: Staging::Rung(reading.samples),
            items: match reading.visits {
                Visits::Output => Items::Linear,
                Visits::Plane => grid(Walk::Straight),
                Visits::Listed => grid(Walk::Ordered),
            },
            tiles: reading.tiles,
        }
    }

    /// Lanes of an item.
    pub fn item(&self) -> usize {
        self.lanes * self.sides * self.split
    }

    /// Samples that are located at a time by one lane.
    pub fn round(&self) -> usize {
        match self.staging {
            Staging::Rung(Samples::Own { together }) => together,
            Staging::Rung(_) => 1,
            Staging::Shared { round, .. } | Staging::Shuffled { round, .. } => round,
        }
    }

    /// Samples of an item that are located together.
    pub(super) fn together(&self) -> usize {
        match &self.staging {
            Staging::Rung(Samples::Own { together }) => self.split * together,
            Staging::Rung(Samples::Tabled { .. }) => self.split,
            Staging::Rung(Samples::Handed { round, .. }) => *round,
            Staging::Shared { round, .. } | Staging::Shuffled { round, .. } => self.item() * round,
        }
    }

    /// What is kept of the position of a level: its place in shared memory, in bytes.
    pub(super) fn place(&self, level: usize, position: usize) -> Option<usize> {
        let held = self.kept.get(level)?;
        let inside = position >= held.from && position - held.from < held.count;
        inside.then(|| (position - held.from + held.at) * self.step)
    }
}

#[cfg(test)]
mod tests {
    use msda::Dtype;
    use msda_cuda::Operands;
    use msda_cuda::driver::Arch;
    use msda_cuda::kernels::ladder::RUNGS;

    use super::*;
    use crate::workload::Workload;

    /// Which rungs can be followed at the seed shape; the others say why not.
    #[test]
    fn rungs_are_described_or_say_why_not() {
        let p = Workload::find("seed").unwrap().problem(Dtype::F16).unwrap();
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        let target = Target { arch: Arch::new(9, 0), multiprocessors: 132 };
        let of = |name: &str| Pattern::of(&format!("ladder:{name}").parse().unwrap(), &request, &target);
        let left_out = RUNGS.iter().filter(|r| of(r.name).is_err()).map(|r| r.name).collect::<Vec<_>>();
        let expected = [
            "distributed",
            "distributed16",
            "distributed_local",
            "tma_multilevel",
            "tensor_core",
            "texture",
            "int8",
            "fp8",
        ];
        assert_eq!(left_out, expected);
        assert!(of("texture").unwrap_err().contains("texture unit"));

        let shape = |name: &str| {
            let p = of(name).unwrap();
            (p.lanes, p.vec, p.split, p.block, p.step)
        };
        assert_eq!(shape("original"), (32, 2, 1, 256, 0));
        assert_eq!(shape("base"), (4, 16, 1, 256, 0));
        assert_eq!(shape("original_half"), (4, 16, 1, 256, 0));
        assert_eq!(shape("base+shuffle"), (4, 16, 4, 256, 0));
        assert_eq!(shape("base+blocking"), (4, 16, 1, 512, 0));
        assert_eq!(shape("shared_padded"), (16, 4, 1, 1024, 68));
        assert_eq!(shape("shared_unpadded"), (16, 4, 1, 1024, 64));
        assert_eq!(shape("shared_wide"), (4, 16, 1, 1024, 64));
        assert_eq!(shape("persistent_channelsplit"), (1, 16, 1, 1024, 16));
        assert_eq!(shape("ultra"), (4, 16, 1, 768, 64));
        assert_eq!(shape("specialised"), (4, 16, 1, 384, 0));
        assert!(!of("base-cache").unwrap().cached);
        assert_eq!((of("original_vector").unwrap().round(), of("base").unwrap().round()), (8, 1));
        // The last two levels fit 227 KB, of the second a part.
        let kept = |name: &str, level: usize| of(name).unwrap().kept[level];
        assert_eq!((kept("shared_wide", 1).count, kept("shared_wide", 2).count), (0, 25 * 42));
        assert!((1..48 * 82).contains(&kept("persistent_full", 1).count));
        assert_eq!(of("shared_wide").unwrap().place(3, kept("shared_wide", 3).from + 2), Some(128));
        assert_eq!(of("shared_wide").unwrap().place(0, 5), None);
    }
}
