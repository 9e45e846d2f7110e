//! How the threads of a rung read: enough to follow it without running it.

/// How a rung reads what the queries of a request need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Lanes that share a row, or a part of one.
    pub lanes: usize,
    /// Bytes that each of them reads at once.
    pub vec: usize,
    /// Parts that rows are divided into, each computed for itself.
    pub parts: usize,
    /// Groups of lanes that share the samples of a query.
    pub split: usize,
    /// Queries that a block has at a time.
    pub tile: usize,
    /// Which tiles a block has.
    pub tiles: Tiles,
    /// In which order queries are visited.
    pub visits: Visits,
    /// Whether rows go through the first-level cache.
    pub cached: bool,
    /// What is in shared memory, of each level; empty where nothing is.
    pub kept: Vec<Held>,
    /// Bytes from position to position there.
    pub step: usize,
    /// How lanes learn where rows are.
    pub samples: Samples,
}

/// Which tiles a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tiles {
    /// One.
    One,
    /// So many that follow each other.
    Following(usize),
    /// Every so many-th: there are about so many blocks a multiprocessor.
    Strided(usize),
}

/// In which order queries are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visits {
    /// As the output has them, heads within queries within images.
    Output,
    /// Those of one image and head, as they come.
    Plane,
    /// Those of one image and head, along a curve over the places they look at.
    Listed,
}

/// Positions of a level that are in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The first; beyond all where none is.
    pub from: usize,
    /// How many.
    pub count: usize,
    /// How many lie before them.
    pub at: usize,
}

/// How lanes learn where rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Samples {
    /// Each reads the locations and weights of its query.
    Own {
        /// Of how many samples at a time: of one number by number, of several in pieces of up to 16 bytes.
        together: usize,
    },
    /// Those of a tile are brought to shared memory first: tables of one entry a sample, queries one after another.
    Tabled {
        /// Of each table, bytes of an entry and bytes of it that are read at once.
        tables: Vec<(usize, usize)>,
        /// Whether they are copied as they are, four bytes at a time.
        copied: bool,
    },
    /// Lanes find the taps of some samples of each query at a time, and others read them from shared memory: 16 bytes of
    /// positions and 16 of weights, sample `r` of query `q` at `r * pitch + q`.
    Handed {
        /// How many samples.
        round: usize,
        /// Entries from sample to sample.
        pitch: usize,
    },
}
