//! The knobs of the kernels of lane groups.
//!
//! `common/args.cuh` explains the words: lane group, pass, tile, resident level.

use std::fmt;
use std::str::FromStr;

use msda::{Error, ErrorKind, Problem, Result};

use super::division::Division;

/// The order in which queries are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Walk {
    /// Input order.
    Straight,
    /// Queries are the pixels of the levels: strips of [`super::STRIP_HEIGHT`] rows, so that a tile
    /// is nearly a square.
    Tiles,
    /// Along a Z-curve over the sampled locations. Another kernel, `order.cu`, sorts the queries
    /// first.
    Ordered,
    /// By sampled location within a block, which sorts its queries itself. Needs resident levels,
    /// because only then a block has many queries.
    Sorted,
}

impl Walk {
    /// All of them, with their names in text.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Straight, "straight"),
        (Self::Tiles, "tiles"),
        (Self::Ordered, "ordered"),
        (Self::Sorted, "sorted"),
    ];
}

/// Knobs of the kernels. Bytes per lane and lanes per row are not among them: they follow from the
/// request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// 2: different lanes load the left and the right taps. 1: a lane loads both.
    pub tap_columns: usize,
    /// Parts of a lane group that share out the samples.
    pub sample_groups: usize,
    /// Heads per block.
    pub heads_per_block: usize,
    /// Threads per block.
    pub threads: usize,
    /// Blocks that an SM should hold.
    pub blocks_per_sm: usize,
    /// Samples that a lane locates per pass.
    pub samples_per_lane: usize,
    /// How many of the last levels are resident in shared memory. Needs planar values.
    pub resident_levels: usize,
    /// Whether the samples of a lane are summed in `f16` before they are added in `f32`.
    pub f16_sums: bool,
    /// Whether the kernel is compiled for the sizes of one problem.
    pub fixed_sizes: bool,
    /// The order in which queries are visited.
    pub walk: Walk,
}

impl Default for Rows {
    /// One lane per 16 bytes, one sample at a time, nothing resident.
    fn default() -> Self {
        Self {
            tap_columns: 1,
            sample_groups: 1,
            heads_per_block: 1,
            threads: 128,
            blocks_per_sm: 1,
            samples_per_lane: 1,
            resident_levels: 0,
            f16_sums: false,
            fixed_sizes: false,
            walk: Walk::Straight,
        }
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let walk = Walk::ALL.iter().find(|(walk, _)| *walk == self.walk).map_or("", |(_, name)| name);
        write!(f, "tap_columns={},sample_groups={}", self.tap_columns, self.sample_groups)?;
        write!(f, ",heads_per_block={},threads={}", self.heads_per_block, self.threads)?;
        write!(f, ",blocks_per_sm={},samples_per_lane={}", self.blocks_per_sm, self.samples_per_lane)?;
        write!(f, ",resident_levels={},walk={walk}", self.resident_levels)?;
        for (name, on) in [("f16_sums", self.f16_sums), ("fixed_sizes", self.fixed_sizes)] {
            if on {
                write!(f, ",{name}=1")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Rows {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let wrong = |knob: &str| {
            let (got, expected) = (format!("'{knob}'"), "name=value, separated by commas");
            Error::new(ErrorKind::Format, "knobs of rows", got, expected)
                .hint("for example rows:heads_per_block=2,threads=512,samples_per_lane=4,walk=tiles")
        };
        let mut knobs = Self::default();
        for knob in s.split(',').filter(|knob| !knob.is_empty()) {
            let (name, value) = knob.split_once('=').ok_or_else(|| wrong(knob))?;
            if name == "walk" {
                let walk = Walk::ALL.iter().find(|(_, name)| *name == value);
                knobs.walk = walk.ok_or_else(|| wrong(knob))?.0;
                continue;
            }
            let number = value.parse().map_err(|_| wrong(knob))?;
            match name {
                "tap_columns" => knobs.tap_columns = number,
                "sample_groups" => knobs.sample_groups = number,
                "heads_per_block" => knobs.heads_per_block = number,
                "threads" => knobs.threads = number,
                "blocks_per_sm" => knobs.blocks_per_sm = number,
                "samples_per_lane" => knobs.samples_per_lane = number,
                "resident_levels" => knobs.resident_levels = number,
                "f16_sums" => knobs.f16_sums = number != 0,
                "fixed_sizes" => knobs.fixed_sizes = number != 0,
                _ => return Err(wrong(knob)),
            }
        }
        Ok(knobs)
    }
}

impl Rows {
    /// Lanes per lane group: `GROUP_LANES` in the kernels.
    pub(crate) fn group_lanes(&self, division: Division) -> usize {
        division.lanes.saturating_mul(self.tap_columns * self.sample_groups)
    }

    /// Queries per tile.
    pub(super) fn queries_per_tile(&self, division: Division) -> usize {
        self.threads / self.group_lanes(division) / self.heads_per_block
    }

    /// Passes over the samples of a query and head.
    pub fn passes(&self, p: &Problem, division: Division) -> usize {
        p.samples().div_ceil((self.group_lanes(division) * self.samples_per_lane).max(1))
    }

    /// The number of passes if in each of them all samples of a lane lie on one level; else 0.
    /// `LANE_LEVEL` in the kernels.
    pub(super) fn lane_level_passes(&self, p: &Problem, division: Division) -> usize {
        let (points, passes) = (p.points()[0], self.passes(p, division));
        let one_level = self.samples_per_lane > 0
            && p.points().iter().all(|&n| n == points)
            && points.is_multiple_of(self.samples_per_lane);
        let most = if self.resident_levels > 0 && self.sample_groups == 1 { 4 } else { 1 };
        if one_level && passes <= most { passes } else { 0 }
    }

    /// Whether the compiler knows which samples lie on resident levels. `STATIC_RESIDENCY` in the
    /// kernels.
    pub fn static_residency(&self, p: &Problem, division: Division) -> bool {
        self.resident_levels > 0 && self.sample_groups == 1 && self.lane_level_passes(p, division) > 0
    }
}

/// Every list of knobs with each value of one more knob, in order.
pub(crate) fn each<T: Copy>(all: &[Rows], values: &[T], set: impl Fn(&mut Rows, T)) -> Vec<Rows> {
    let with = |knobs: &Rows, value: &T| {
        let mut knobs = *knobs;
        set(&mut knobs, *value);
        knobs
    };
    all.iter()
        .flat_map(|knobs| values.iter().map(move |value| (knobs, value)))
        .map(|(k, v)| with(k, v))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_read_as_they_are_written() {
        let text = "tap_columns=2,sample_groups=4,heads_per_block=8,threads=256,blocks_per_sm=3,samples_per_lane=5,\
                    resident_levels=1,walk=tiles,f16_sums=1,fixed_sizes=1";
        assert_eq!(text.parse::<Rows>().unwrap().to_string(), text);
        for wrong in ["threads", "threads=x", "walk=away", "sides=2"] {
            let error = wrong.parse::<Rows>().unwrap_err().to_string();
            assert!(error.contains(&format!("got '{wrong}', expected name=value")), "{error}");
        }
    }
}
