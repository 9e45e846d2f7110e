//! The division of the value's gradient into parts that different tasks own.

use std::ops::Range;

use crate::problem::Problem;

/// Some levels of a plane, and some rows of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) levels: Range<usize>,
    /// The samples of a head that read these levels.
    pub(super) samples: Range<usize>,
    /// Rows of each of the levels.
    pub(super) rows: Vec<Range<usize>>,
}

impl Part {
    /// All rows of all levels.
    pub(super) fn all(p: &Problem) -> Self {
        Self::whole(p, 0..p.levels().len())
    }

    /// All rows of some levels.
    fn whole(p: &Problem, levels: Range<usize>) -> Self {
        let first: usize = p.points()[..levels.start].iter().sum();
        let samples = first..first + p.points()[levels.clone()].iter().sum::<usize>();
        let rows = p.levels()[levels.clone()].iter().map(|l| 0..l.h).collect();
        Self { levels, samples, rows }
    }

    /// The samples of level `l`, counted from the part's first sample.
    pub(super) fn samples_of(&self, p: &Problem, l: usize) -> Range<usize> {
        let first: usize = p.points()[self.levels.start..l].iter().sum();
        first..first + p.points()[l]
    }

    pub(super) fn pixels(&self, p: &Problem) -> usize {
        self.levels.clone().zip(&self.rows).map(|(l, rows)| rows.len() * p.levels()[l].w).sum()
    }

    /// Whether the part has all rows of its levels.
    pub(super) fn has_whole_levels(&self, p: &Problem) -> bool {
        self.levels.clone().zip(&self.rows).all(|(l, rows)| rows.len() == p.levels()[l].h)
    }

    /// An estimate of the part's work: samples that fall on it.
    fn work(&self, p: &Problem) -> usize {
        let share =
            |(l, rows): (usize, &Range<usize>)| p.points()[l] * rows.len() * 64 / p.levels()[l].h.max(1);
        self.levels.clone().zip(&self.rows).map(share).sum()
    }
}

/// The fewest rows of a band. A query's samples spread over a few rows: lower bands would look at
/// most queries several times.
const BAND: usize = 8;

/// Divides a plane into about `wanted` parts of at most `pixels` pixels each, the one with the most
/// work first.
///
/// Parts of whole levels come first: every sample then belongs to one part. Levels are cut into
/// bands of rows only where there are too few levels, or where a level is too large.
pub(super) fn divide(p: &Problem, wanted: usize, pixels: usize) -> Vec<Part> {
    let all = Part::all(p);
    if wanted <= 1 && all.pixels(p) <= pixels {
        return vec![all];
    }
    let bands = bands(p, wanted, pixels);
    let share = p.samples().div_ceil(wanted.max(1));
    let mut parts: Vec<Part> = Vec::new();
    for (l, level) in p.levels().iter().enumerate() {
        if let Some(last) = parts.last_mut()
            && bands[l] == 1
            && last.has_whole_levels(p)
        {
            let joined = Part::whole(p, last.levels.start..l + 1);
            if joined.samples.len() <= share && joined.pixels(p) <= pixels {
                *last = joined;
                continue;
            }
        }
        for k in 0..bands[l] {
            let mut part = Part::whole(p, l..l + 1);
            part.rows[0] = level.h * k / bands[l]..level.h * (k + 1) / bands[l];
            parts.push(part);
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.work(p)));
    parts
}

/// The number of bands of each level: as many as memory requires, and more of the levels with the
/// most samples per band until there are `wanted` in all.
fn bands(p: &Problem, wanted: usize, pixels: usize) -> Vec<usize> {
    let levels = p.levels();
    let mut bands: Vec<usize> =
        levels.iter().map(|l| l.h.div_ceil((pixels / l.w.max(1)).max(1)).max(1)).collect();
    while bands.iter().sum::<usize>() < wanted {
        let can_divide = |&l: &usize| p.points()[l] > 0 && levels[l].h / (bands[l] + 1) >= BAND;
        let work = |&l: &usize| (p.points()[l] * 64 / bands[l], levels[l].h);
        let Some(l) = (0..levels.len()).filter(can_divide).max_by_key(work) else { break };
        bands[l] += 1;
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Spec;

    fn pyramid() -> Problem {
        Problem::new(Spec {
            batch: 1,
            queries: 10,
            heads: 8,
            channels: 32,
            levels: vec![(92, 160), (46, 80), (23, 40), (12, 20)],
            points: vec![4; 4],
            ..Spec::default()
        })
        .unwrap()
    }

    #[test]
    fn levels_are_divided_before_rows() {
        let p = pyramid();
        let levels = |wanted| -> Vec<Range<usize>> {
            divide(&p, wanted, usize::MAX).into_iter().map(|part| part.levels).collect()
        };
        assert_eq!(levels(1), vec![Part::all(&p).levels]);
        assert_eq!(levels(2), [0..2, 2..4]);
        assert_eq!(levels(4), [0..1, 1..2, 2..3, 3..4]);
        assert!(divide(&p, 4, usize::MAX).iter().all(|part| part.has_whole_levels(&p)));
        // The finest level is divided first.
        let five = divide(&p, 5, usize::MAX);
        let finest = five.iter().filter(|part| part.levels == (0..1));
        assert_eq!(finest.map(|part| part.rows[0].clone()).collect::<Vec<_>>(), [0..46, 46..92]);
    }

    #[test]
    fn every_row_belongs_to_one_part() {
        let p = pyramid();
        for wanted in [1, 2, 3, 4, 5, 8, 32, 1000] {
            for pixels in [1, 500, 5000, usize::MAX] {
                let parts = divide(&p, wanted, pixels);
                for (l, level) in p.levels().iter().enumerate() {
                    let mut owners = vec![0; level.h];
                    for part in parts.iter().filter(|part| part.levels.contains(&l)) {
                        part.rows[l - part.levels.start].clone().for_each(|y| owners[y] += 1);
                    }
                    assert!(owners.iter().all(|&n| n == 1), "{wanted} parts of {pixels} pixels: {owners:?}");
                }
                let smallest = |part: &Part| part.rows.iter().all(|rows| rows.len() == 1);
                assert!(parts.iter().all(|part| part.pixels(&p) <= pixels || smallest(part)));
            }
        }
    }
}
