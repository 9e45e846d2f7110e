//! The sizes of the levels, from tables of the caller.

use crate::error::{Refused, Result};

/// The name of the argument with the level sizes.
pub const SHAPES: &str = "spatial_shapes";
/// The name of the argument with the first positions.
pub const STARTS: &str = "level_start_index";

/// Where the sizes of the levels are.
#[derive(Debug, Clone)]
pub enum LevelSizes {
    /// In memory of the host: heights and widths, and first positions if the caller gave them.
    Host(Vec<(usize, usize)>, Option<Vec<usize>>),
    /// In device memory: the addresses of both tables, and the number of levels.
    Device {
        /// The address of heights and widths.
        shapes: u64,
        /// The address of the first positions.
        starts: u64,
        /// The number of levels.
        levels: usize,
    },
}

impl LevelSizes {
    /// Sizes in memory of the host. Starts of levels that follow each other say nothing new: then
    /// the sizes must add up to the positions.
    pub fn new(shapes: Vec<(usize, usize)>, starts: Option<Vec<usize>>) -> Self {
        let starts = starts.filter(|starts| !follow_each_other(&shapes, starts));
        Self::Host(shapes, starts)
    }

    /// The number of levels, given the shapes of both tables.
    pub fn count(shapes: &[i64], starts: &[i64]) -> Result<usize> {
        let [count, 2] = *shapes else {
            let got = format!("shape {shapes:?}");
            return Err(Refused::value(SHAPES, got, "(levels, 2): height and width"));
        };
        if starts != [count] {
            let got = format!("shape {starts:?}");
            return Err(Refused::value(STARTS, got, format!("[{count}], one per level")));
        }
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The sizes in tables of the host, given their elements. Without starts, levels follow each
    /// other.
    pub fn read(
        levels: usize,
        shapes: impl Fn(usize) -> i64,
        starts: Option<impl Fn(usize) -> i64>,
    ) -> Result<Self> {
        let pair = |i| Ok((size(SHAPES, shapes(2 * i))?, size(SHAPES, shapes(2 * i + 1))?));
        let pairs = (0..levels).map(pair).collect::<Result<_>>()?;
        let first = starts.map(|starts| (0..levels).map(|i| size(STARTS, starts(i))).collect());
        Ok(Self::new(pairs, first.transpose()?))
    }

    /// The sizes, and options and points, in one list: options, points, then height, width and
    /// first position of each level. `name` is that of the list.
    pub fn read_setup(name: &str, numbers: &[i64]) -> Result<(Self, [i64; 2])> {
        let Some((&[options, points], (levels, []))) =
            numbers.split_first_chunk().map(|(two, levels)| (two, levels.as_chunks::<3>()))
        else {
            let got = format!("{} numbers", numbers.len());
            return Err(Refused::value(name, got, "2 numbers, and 3 per level"));
        };
        let sizes = Self::read(levels.len(), |i| levels[i / 2][i % 2], Some(|i: usize| levels[i][2]))?;
        Ok((sizes, [options, points]))
    }

    /// The number of levels.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(shapes, _) => shapes.len(),
            Self::Device { levels, .. } => *levels,
        }
    }
}

/// A number of a table.
fn size(name: &str, n: i64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Refused::value(name, n, "numbers of at least 0"))
}

/// Whether each level starts where the one before ends.
fn follow_each_other(shapes: &[(usize, usize)], starts: &[usize]) -> bool {
    let mut next = Some(0);
    for (&(height, width), &start) in shapes.iter().zip(starts) {
        if next != Some(start) {
            return false;
        }
        next = height.checked_mul(width).and_then(|size| start.checked_add(size));
    }
    shapes.len() == starts.len()
}
