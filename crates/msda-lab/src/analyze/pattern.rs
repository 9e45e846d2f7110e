//! How a kernel reads: which lanes of a warp read which bytes of which rows, and how they learn where rows are.
//!
//! A kernel is described, not run: whatever has a pattern can be simulated, one warp after another.

use msda_cuda::Request;
use msda_cuda::variants::Kernel;
use msda_cuda::variants::rows::{Division, Rows, Walk};

/// How lanes share the rows of a query and head, an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// Lanes that share a row.
    pub lanes: usize,
    /// Bytes that each of them reads at once.
    pub vec: usize,
    /// 2: left and right taps are read by lanes of their own.
    pub sides: usize,
    /// Groups of lanes that share the samples of an item.
    pub split: usize,
    /// Threads of a block.
    pub block: usize,
    /// How many of the last levels are in shared memory.
    pub keep: usize,
    /// How lanes learn where rows are.
    pub staging: Staging,
    /// Which items a block has.
    pub items: Items,
}

/// How lanes learn where rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// Every lane reads every location and weight of its item.
    Own,
    /// Each lane of an item locates some samples at a time, and the others read them from shared memory.
    Shared {
        /// How many.
        round: usize,
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
    /// A kernel's pattern, if it is one that is described.
    pub fn of(kernel: &Kernel, request: &Request<'_>) -> Option<Self> {
        if let Kernel::Rows(knobs) = kernel {
            return Some(Self::rows(knobs, Division::of(request)));
        }
        if *kernel == Kernel::Generic { Self::generic(request) } else { None }
    }

    fn rows(knobs: &Rows, division: Division) -> Self {
        Self {
            lanes: division.lanes,
            vec: division.vec,
            sides: knobs.sides,
            split: knobs.split,
            block: knobs.block,
            keep: knobs.keep,
            staging: Staging::Shared { round: knobs.round },
            items: Items::Grid { heads: knobs.heads, walk: knobs.walk },
        }
    }

    /// One thread an element; described where whole rows fit a warp.
    fn generic(request: &Request<'_>) -> Option<Self> {
        let p = request.problem;
        let lanes = p.channels();
        (lanes > 0 && 32 % lanes == 0).then_some(Self {
            lanes,
            vec: p.types().value.size(),
            sides: 1,
            split: 1,
            block: 256,
            keep: 0,
            staging: Staging::Own,
            items: Items::Linear,
        })
    }

    /// Lanes of an item.
    pub fn item(&self) -> usize {
        self.lanes * self.sides * self.split
    }

    /// Samples that are located at a time by one lane.
    pub fn round(&self) -> usize {
        match self.staging {
            Staging::Own => 1,
            Staging::Shared { round } | Staging::Shuffled { round, .. } => round,
        }
    }
}
