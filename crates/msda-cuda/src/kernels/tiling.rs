//! How the queries of lane groups are divided among blocks: tiles, resident levels, sorting.

use msda::{Level, Problem};

use super::division::Division;
use super::knobs::{Rows, Walk};
use crate::target::Target;

/// Image rows of a strip of [`Walk::Tiles`].
pub const STRIP_HEIGHT: usize = 8;

/// Cells by which a block of `resident.cu` sorts its queries: strips of the image, and columns of a
/// strip.
pub const SORT_CELLS: [usize; 2] = [8, 64];

/// Bytes of the counters of these cells. They use the memory in which samples are staged later.
pub(super) const SORT_BYTES: usize = SORT_CELLS[0] * SORT_CELLS[1] * 4;

/// The most queries per thread of a block that sorts them.
pub(super) const SORT_QUERIES_PER_THREAD: usize = 4;

/// The part of L2 that the planes read at the same time may take.
const L2_BYTES: usize = 32 << 20;

/// How tiles of queries are divided among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Images per block.
    pub images_per_block: usize,
    /// Tiles per block, over all of its images.
    pub tiles_per_block: usize,
    /// Tiles per image.
    pub tiles_per_image: usize,
}

impl Rows {
    /// How tiles are divided among blocks. Blocks with resident levels get so many that the last
    /// blocks end together and levels are copied seldom; and two images, if the planes read at the
    /// same time still fit L2.
    pub fn tiling(&self, p: &Problem, target: &Target, division: Division) -> Tiling {
        let tiles = p.queries().div_ceil(self.queries_per_tile(division).max(1));
        let plain = Tiling { images_per_block: 1, tiles_per_block: 1, tiles_per_image: tiles };
        if self.resident_levels == 0 || tiles == 0 {
            return plain;
        }
        let at_once = (target.sms as usize * self.blocks_per_sm).max(1);
        let most = match self.walk {
            Walk::Sorted => SORT_QUERIES_PER_THREAD * self.group_lanes(division),
            _ => usize::MAX,
        };
        let plane = p.positions().saturating_mul(p.channels() * p.types().value.size());
        let mut best = (usize::MAX, plain);
        for images in 1..=p.batch().min(2) {
            for blocks in 1..=(images * tiles).min(8 * at_once) {
                let tiles_per_block = (images * tiles).div_ceil(blocks);
                let blocks = (images * tiles).div_ceil(tiles_per_block);
                let all = p.batch().div_ceil(images).saturating_mul(p.heads()).saturating_mul(blocks);
                let planes = (all.min(at_once) * images).div_ceil(blocks);
                if tiles_per_block > most || (images > 1 && planes.saturating_mul(plane) > L2_BYTES) {
                    continue;
                }
                // The beginning and the end of a block take about as long as two thirds of a tile.
                let cost = all.div_ceil(at_once).saturating_mul(3 * tiles_per_block + 2);
                if cost < best.0 {
                    let tiling = Tiling { images_per_block: images, tiles_per_block, tiles_per_image: tiles };
                    best = (cost, tiling);
                }
            }
        }
        best.1
    }

    /// Queries that a block sorts; 0 if it does not.
    pub(super) fn sorted_queries(&self, p: &Problem, target: &Target, division: Division) -> usize {
        match self.walk {
            Walk::Sorted => {
                self.tiling(p, target, division).tiles_per_block * self.queries_per_tile(division)
            }
            _ => 0,
        }
    }

    /// The positions of the resident levels: the first, and how many.
    pub(super) fn resident_positions(&self, p: &Problem) -> (usize, usize) {
        let ring = p.layout().ring();
        let levels = &p.levels()[p.levels().len() - self.resident_levels..];
        let start = |l: &Level| l.origin - ring * (l.pitch + 1);
        let first = levels.iter().map(start).min().unwrap_or(0);
        let end = levels.iter().map(|l| start(l) + (l.h + 2 * ring) * l.pitch).max().unwrap_or(0);
        (first, end.saturating_sub(first))
    }

    /// Bytes of the resident levels.
    pub(crate) fn resident_bytes(&self, p: &Problem) -> usize {
        self.resident_positions(p).1.saturating_mul(p.channels() * p.types().value.size())
    }
}

#[cfg(test)]
mod tests {
    use msda::{Dtype, Layout, Spec, Types};

    use super::*;
    use crate::driver::Arch;
    use crate::kernels::Kernel;
    use crate::request::{Operands, Request};

    const TARGET: Target = Target { arch: Arch::new(9, 0), sms: 132 };

    /// Planes of the seed shape, changed; the tiling, and the number of blocks.
    fn tiled(change: impl FnOnce(&mut Spec), knobs: &str) -> (Tiling, usize) {
        let mut spec = Spec {
            batch: 48,
            queries: 15422,
            heads: 1,
            channels: 32,
            levels: vec![(92, 160), (46, 80), (23, 40), (12, 20)],
            points: vec![8; 4],
            layout: Layout::PlanarRing,
            types: Types::uniform(Dtype::F16),
            ..Spec::default()
        };
        change(&mut spec);
        let p = Problem::new(spec).unwrap();
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        let knobs: Rows = knobs.parse().unwrap();
        assert_eq!(Kernel::Rows(knobs).refuses(&request, &TARGET), None);
        let call = Kernel::Rows(knobs).prepare(&request, &TARGET);
        let tiling = knobs.tiling(&p, &TARGET, Division::of(&request));
        // Every tile of every image belongs to a block, and every block has a tile.
        let Tiling { images_per_block: images, tiles_per_block, tiles_per_image } = tiling;
        let [x, y, z] = call.last().unwrap().launch.grid.map(|n| n as usize);
        let tiles = images * tiles_per_image;
        assert!(x * tiles_per_block >= tiles && (x - 1) * tiles_per_block < tiles);
        assert!(y == p.heads() && z * images >= p.batch() && (z - 1) * images < p.batch());
        (tiling, x * y * z)
    }

    #[test]
    fn blocks_with_resident_levels_end_together() {
        let tiling = |images_per_block, tiles_per_block, tiles_per_image| Tiling {
            images_per_block,
            tiles_per_block,
            tiles_per_image,
        };
        let resident = "tap_columns=2,threads=1024,samples_per_lane=4,resident_levels=2";
        assert_eq!(tiled(|_| (), resident), (tiling(2, 22, 121), 2 * 132));
        // Planes twice as large do not fit L2 two images at a time.
        let wide = |s: &mut Spec| s.types = Types::uniform(Dtype::F32);
        let sorted = "threads=1024,samples_per_lane=4,resident_levels=1,walk=sorted";
        assert_eq!(tiled(wide, sorted), (tiling(1, 11, 121), 4 * 132));
        // A GPU test uses this shape: the second of three blocks has a tile of each image.
        let small = |s: &mut Spec| {
            (s.batch, s.queries, s.layout) = (301, 300, Layout::Planar);
            (s.levels, s.points) = (vec![(20, 30), (10, 15), (5, 8)], vec![4; 3]);
        };
        let (two, _) = tiled(small, "tap_columns=2,threads=1024,samples_per_lane=2,resident_levels=1");
        assert_eq!(two, tiling(2, 2, 3));
        // A block that sorts has no more queries than its threads can sort.
        let many = |s: &mut Spec| (s.batch, s.queries) = (300, 40_000);
        let (sorted, _) =
            tiled(many, "tap_columns=2,threads=1024,samples_per_lane=4,resident_levels=2,walk=sorted");
        assert!(sorted.tiles_per_block <= SORT_QUERIES_PER_THREAD * 8, "{sorted:?}");
    }
}
