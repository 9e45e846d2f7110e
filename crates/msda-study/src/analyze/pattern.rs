//! How a kernel reads: which lanes of a warp read which bytes of which rows, and how they get the
//! positions of rows.
//!
//! [`super::simulate`] follows a pattern warp by warp. The kernel itself does not run.

use crate::ladder::{self, Held, Reading, Samples, Tiles, Visits};
use msda_cuda::kernels::Kernel;
use msda_cuda::kernels::{Division, Rows, Walk};
use msda_cuda::{Request, Target};

/// How the lanes of a lane group share the rows of a query and head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Lanes that share a row, or a part of a row.
    pub lanes: usize,
    /// Bytes per lane of one load.
    pub lane_bytes: usize,
    /// Parts of a row; each part has its own lane group.
    pub channel_parts: usize,
    /// Tap columns: with 2, different lanes read left and right taps.
    pub tap_columns: usize,
    /// Sample groups: lanes of one group sum every so many-th sample.
    pub sample_groups: usize,
    /// Threads of a block that gather.
    pub block: usize,
    /// The part of each level that is resident in shared memory; empty if none is.
    pub resident: Vec<Held>,
    /// Pixel stride there, in bytes.
    pub pixel_stride: usize,
    /// Whether taps outside the map are skipped. Otherwise all four are moved onto the map.
    pub masked: bool,
    /// Whether rows are cached in L1.
    pub cached: bool,
    /// How lanes get the positions of rows.
    pub staging: Staging,
    /// The queries and heads of a block.
    pub assignment: Assignment,
    /// The tiles of a block, one after another.
    pub tiles: Tiles,
}

/// How lanes get the positions of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staging {
    /// A rung's way: each lane by itself, from tables, or from lanes that locate samples.
    Rung(Samples),
    /// Each lane of a lane group locates samples and stages them in shared memory for the others.
    Shared {
        /// Samples per lane and pass.
        samples_per_lane: usize,
        /// Whether positions are stored in the order of samples and read 16 bytes at a time.
        /// Otherwise the positions of one lane are stored together.
        ordered: bool,
    },
    /// Each lane of a lane group locates samples, and the others get them by shuffles.
    Shuffled {
        /// Samples per lane and pass.
        samples_per_lane: usize,
        /// Shuffles per sample.
        words: usize,
    },
}

/// The queries and heads of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// Consecutive ones: heads within queries within images.
    Linear,
    /// Queries of some heads. The dimensions of the grid are tiles of queries, heads and images.
    Grid {
        /// Heads per block.
        heads: usize,
        /// The order of queries.
        walk: Walk,
    },
}

impl Pattern {
    /// The pattern of a kernel for a request that it takes, or why there is none.
    pub fn of(kernel: &Kernel, request: &Request<'_>, target: &Target) -> Result<Self, String> {
        let pattern = match kernel {
            Kernel::Rows(knobs) => Self::rows(knobs, request, target),
            Kernel::Generic => Self::generic(request),
            Kernel::Custom(_) => {
                let rung = ladder::of(kernel).ok_or("it is not a rung of the ladder")?;
                Self::rung(rung.reading(request, target)?)
            }
        };
        match pattern.group_lanes() {
            1..=32 if 32 % pattern.group_lanes() == 0 => Ok(pattern),
            lanes => Err(format!(
                "the model has lane groups that divide a warp only, and this one has {lanes} lanes"
            )),
        }
    }

    fn rows(knobs: &Rows, request: &Request<'_>, target: &Target) -> Self {
        let (p, division) = (request.problem, Division::of(request));
        let none = Held { from: usize::MAX, count: 0, at: 0 };
        // Resident levels have the layout of device memory.
        let all = Held { from: 0, count: p.positions(), at: 0 };
        let first = p.levels().len() - knobs.resident_levels;
        let resident = (0..p.levels().len()).map(|level| if level < first { none } else { all });
        Self {
            lanes: division.lanes,
            lane_bytes: division.vec,
            channel_parts: 1,
            tap_columns: knobs.tap_columns,
            sample_groups: knobs.sample_groups,
            block: knobs.threads,
            resident: resident.collect(),
            pixel_stride: p.channels() * p.types().value.size(),
            masked: false,
            cached: true,
            staging: Staging::Shared {
                samples_per_lane: knobs.samples_per_lane,
                ordered: knobs.static_residency(p, division),
            },
            assignment: Assignment::Grid { heads: knobs.heads_per_block, walk: knobs.walk },
            tiles: if knobs.resident_levels > 0 {
                Tiles::Following(knobs.tiling(p, target, division).tiles_per_block)
            } else {
                Tiles::One
            },
        }
    }

    /// One thread per element.
    fn generic(request: &Request<'_>) -> Self {
        let p = request.problem;
        Self {
            lanes: p.channels(),
            lane_bytes: p.types().value.size(),
            channel_parts: 1,
            tap_columns: 1,
            sample_groups: 1,
            block: 256,
            resident: Vec::new(),
            pixel_stride: 0,
            masked: false,
            cached: true,
            staging: Staging::Rung(Samples::Own { together: 1 }),
            assignment: Assignment::Linear,
            tiles: Tiles::One,
        }
    }

    fn rung(reading: Reading) -> Self {
        let grid = |walk| Assignment::Grid { heads: 1, walk };
        Self {
            lanes: reading.lanes,
            lane_bytes: reading.vec,
            channel_parts: reading.parts,
            tap_columns: 1,
            sample_groups: reading.split,
            block: reading.tile * reading.lanes * reading.split,
            resident: reading.kept,
            pixel_stride: reading.step,
            masked: true,
            cached: reading.cached,
            staging: Staging::Rung(reading.samples),
            assignment: match reading.visits {
                Visits::Output => Assignment::Linear,
                Visits::Plane => grid(Walk::Straight),
                Visits::Listed => grid(Walk::Ordered),
            },
            tiles: reading.tiles,
        }
    }

    /// Lanes of a lane group, which computes a query and head.
    pub fn group_lanes(&self) -> usize {
        self.lanes * self.tap_columns * self.sample_groups
    }

    /// Samples that a lane locates per pass.
    pub fn samples_per_lane(&self) -> usize {
        match self.staging {
            Staging::Rung(Samples::Own { together }) => together,
            Staging::Rung(_) => 1,
            Staging::Shared { samples_per_lane, .. } | Staging::Shuffled { samples_per_lane, .. } => {
                samples_per_lane
            }
        }
    }

    /// Samples that a lane group locates per pass.
    pub(super) fn samples_per_pass(&self) -> usize {
        match &self.staging {
            Staging::Rung(Samples::Own { together }) => self.sample_groups * together,
            Staging::Rung(Samples::Tabled { .. }) => self.sample_groups,
            Staging::Rung(Samples::Handed { round, .. }) => *round,
            Staging::Shared { samples_per_lane, .. } | Staging::Shuffled { samples_per_lane, .. } => {
                self.group_lanes() * samples_per_lane
            }
        }
    }

    /// The offset of a position in shared memory in bytes, if it is resident.
    pub(super) fn shared_offset(&self, level: usize, position: usize) -> Option<usize> {
        let held = self.resident.get(level)?;
        let inside = position >= held.from && position - held.from < held.count;
        inside.then(|| (position - held.from + held.at) * self.pixel_stride)
    }
}

#[cfg(test)]
mod tests {
    use crate::ladder::RUNGS;
    use msda::Dtype;
    use msda_cuda::Operands;
    use msda_cuda::driver::Arch;

    use super::*;
    use msda_bench::workload::Workload;

    /// On the seed shape.
    #[test]
    fn rungs_have_a_pattern_or_a_reason() {
        let p = Workload::find("seed").unwrap().problem(Dtype::F16).unwrap();
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        let target = Target { arch: Arch::new(9, 0), sms: 132 };
        let of =
            |name: &str| Pattern::of(&crate::kernel(&format!("ladder:{name}")).unwrap(), &request, &target);
        let left_out = RUNGS.iter().filter(|r| of(r.name).is_err()).map(|r| r.name).collect::<Vec<_>>();
        let expected = [
            "distributed",
            "distributed_wide",
            "distributed16",
            "distributed_local",
            "distributed_best",
            "async_multilevel",
            "tma_multilevel",
            "tensor_core",
            "texture",
            "persistent+texture",
            "persistent+int8",
            "persistent+prefetch",
            "persistent+specialised1",
            "persistent+specialised2",
            "specialised1",
            "specialised2",
            "int8",
            "fp8",
            "int8_half",
            "fewer_points",
        ];
        assert_eq!(left_out, expected);
        assert!(of("texture").unwrap_err().contains("texture unit"));

        let shape = |name: &str| {
            let p = of(name).unwrap();
            (p.lanes, p.lane_bytes, p.sample_groups, p.block, p.pixel_stride)
        };
        assert_eq!(shape("original"), (32, 2, 1, 256, 0));
        assert_eq!(shape("base"), (4, 16, 1, 256, 0));
        assert_eq!(shape("original_half"), (4, 16, 1, 256, 0));
        assert_eq!(shape("distributed_fixed"), (4, 16, 1, 256, 0));
        assert_eq!(shape("base+shuffle"), (4, 16, 4, 256, 0));
        assert_eq!(shape("base+blocking"), (4, 16, 1, 512, 0));
        assert_eq!(shape("shared_padded"), (16, 4, 1, 1024, 68));
        assert_eq!(shape("shared_unpadded"), (16, 4, 1, 1024, 64));
        assert_eq!(shape("shared_wide"), (4, 16, 1, 1024, 64));
        assert_eq!(shape("persistent"), (32, 2, 1, 1024, 64));
        assert_eq!(shape("persistent_channelsplit"), (8, 2, 1, 1024, 16));
        assert_eq!(shape("persistent_channelsplit_wide"), (1, 16, 1, 1024, 16));
        assert_eq!(shape("ultra"), (32, 2, 1, 1024, 64));
        assert_eq!(shape("ultra_wide"), (4, 16, 1, 768, 64));
        assert_eq!(shape("specialised"), (4, 16, 1, 384, 0));
        assert!(!of("base-cache").unwrap().cached);
        assert_eq!(
            (of("original_vector").unwrap().samples_per_lane(), of("base").unwrap().samples_per_lane()),
            (8, 1)
        );
        // The last two levels fit 227 KB, and a part of the second level.
        let kept = |name: &str, level: usize| of(name).unwrap().resident[level];
        assert_eq!((kept("shared_wide", 1).count, kept("shared_wide", 2).count), (0, 25 * 42));
        assert!((1..48 * 82).contains(&kept("persistent_full_wide", 1).count));
        // In 96 KB: the last two levels, also beside staged taps; three levels of 8 channels.
        for name in ["persistent", "ultra", "persistent+reordered"] {
            assert_eq!((kept(name, 1).count, kept(name, 2).count), (0, 25 * 42), "{name}");
        }
        assert_eq!(kept("persistent_channelsplit", 1).count, 48 * 82);
        assert_eq!(of("shared_wide").unwrap().shared_offset(3, kept("shared_wide", 3).from + 2), Some(128));
        assert_eq!(of("shared_wide").unwrap().shared_offset(0, 5), None);
    }
}
