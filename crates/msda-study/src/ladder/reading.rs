//! How the threads of a rung load: enough for a simulation.

/// How a rung loads the rows of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Lanes per row, or per part of a row.
    pub lanes: usize,
    /// Bytes per load of a lane.
    pub vec: usize,
    /// Parts of a row, each computed separately.
    pub parts: usize,
    /// Lane groups that share the samples of a query.
    pub split: usize,
    /// Queries per tile.
    pub tile: usize,
    /// The tiles of a block.
    pub tiles: Tiles,
    /// The order of the queries.
    pub visits: Visits,
    /// Whether rows go through L1.
    pub cached: bool,
    /// The part of each level in shared memory; empty if there is none.
    pub kept: Vec<Held>,
    /// Pixel stride there, in bytes.
    pub step: usize,
    /// How lanes get the positions of rows.
    pub samples: Samples,
}

/// The tiles of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tiles {
    /// One.
    One,
    /// That many consecutive tiles.
    Following(usize),
    /// Tiles at a stride; there are about that many blocks per SM.
    Strided(usize),
}

/// The order of the queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visits {
    /// As in the output: heads within queries within images.
    Output,
    /// Queries of one image and head, in order.
    Plane,
    /// Queries of one image and head, ordered by the place they look at.
    Listed,
}

/// Positions of a level that are in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The first position; larger than all positions if there is none.
    pub from: usize,
    /// Their number.
    pub count: usize,
    /// Their offset in shared memory, in positions.
    pub at: usize,
}

/// How lanes get the positions of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Samples {
    /// Each lane reads the locations and weights of its query.
    Own {
        /// Samples at a time: one is read number by number, several in loads of up to 16 bytes.
        together: usize,
    },
    /// Staged in shared memory per tile: tables of one entry per sample, query after query.
    Tabled {
        /// Per table: bytes per entry and bytes per load.
        tables: Vec<(usize, usize)>,
        /// Whether they are copied unchanged, four bytes at a time.
        copied: bool,
    },
    /// Taps staged in shared memory: lanes locate some samples per query at a time. 16 bytes of
    /// positions and 16 of weights, sample `r` of query `q` at `r * pitch + q`.
    Handed {
        /// Samples at a time.
        round: usize,
        /// Entries between samples.
        pitch: usize,
    },
}
