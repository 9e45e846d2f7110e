//! The host side of `resident.cuh`: which levels are resident in shared memory.

use msda::Problem;

use msda_cuda::Target;
use msda_cuda::kernels::Args;

/// The most static shared memory of a kernel.
const STATIC: usize = 1 << 10;

/// Shared memory per block that levels can use.
pub(super) fn room(target: &Target) -> usize {
    target.shared() - STATIC
}

/// Levels in shared memory: the first position of each, their number, and their offset in
/// positions.
#[derive(Debug)]
pub(super) struct ResidentLevels {
    levels: Vec<[usize; 3]>,
    /// Their size in bytes.
    pub(super) bytes: usize,
}

/// As many of the last levels as fit into `bytes` at `step` bytes per position. With `partial`,
/// also the end of the first level that does not fit.
pub(super) fn resident_levels(p: &Problem, step: usize, bytes: usize, partial: bool) -> ResidentLevels {
    let ring = p.layout().ring();
    let room = bytes / step;
    let mut levels = vec![[i32::MAX as usize, 0, 0]; p.levels().len()];
    let mut taken = 0;
    for (i, level) in p.levels().iter().enumerate().rev().filter(|(i, _)| p.points()[*i] > 0) {
        let start = level.origin - ring * (level.pitch + 1);
        let all = (level.h + 2 * ring) * level.pitch;
        let count = if all <= room - taken || partial { all.min(room - taken) } else { 0 };
        if count > 0 {
            levels[i] = [start + all - count, count, taken];
        }
        taken += count;
        if count < all {
            break;
        }
    }
    ResidentLevels { levels, bytes: (taken * step).next_multiple_of(16) }
}

impl ResidentLevels {
    /// Levels before the first that is resident.
    pub(super) fn streamed_levels(&self, p: &Problem) -> usize {
        let resident = |&level: &usize| self.levels[level][1] > 0;
        (0..p.levels().len()).find(resident).unwrap_or(p.levels().len())
    }

    /// Samples on those levels.
    pub(super) fn streamed(&self, p: &Problem) -> usize {
        p.points()[..self.streamed_levels(p)].iter().sum()
    }

    /// Adds the table to an argument.
    pub(super) fn put(&self, args: &mut Args) {
        for &[first, count, offset] in &self.levels {
            args.i32("residency[0].first", first);
            args.i32("residency[0].count", count);
            args.i32("residency[0].offset", offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::tests::seed;
    use msda::Layout;

    fn problem(layout: Layout) -> Problem {
        let levels = vec![(8, 8), (4, 4), (2, 3)];
        seed().with(|s| (s.levels, s.points, s.layout) = (levels.clone(), vec![1; 3], layout)).unwrap()
    }

    #[test]
    fn the_last_levels_that_fit_are_resident() {
        const NO: [usize; 3] = [i32::MAX as usize, 0, 0];
        let planar = problem(Layout::Planar);
        assert_eq!(resident_levels(&planar, 10, 219, false).levels, [NO, NO, [80, 6, 0]]);
        let kept = resident_levels(&planar, 10, 220, false);
        assert_eq!((&kept.levels[..], kept.bytes), (&[NO, [64, 16, 6], [80, 6, 0]][..], 224));
        assert_eq!(resident_levels(&planar, 10, 259, true).levels, [[61, 3, 22], [64, 16, 6], [80, 6, 0]]);
        assert_eq!((kept.streamed_levels(&planar), kept.streamed(&planar)), (1, 1));
        let none = resident_levels(&planar, 10, 59, false);
        assert_eq!((&none.levels[..], none.streamed_levels(&planar)), (&[NO; 3][..], 3));
        let ring = problem(Layout::PlanarRing);
        assert_eq!(resident_levels(&ring, 1, 56, false).levels, [NO, [100, 36, 20], [136, 20, 0]]);
    }
}
