//! The order in which queries are visited.
//!
//! Queries that sample the same part of the pyramid should follow each other, because they then
//! share rows in the cache. They are sorted along a Z-curve over the places they look at. Only the
//! rounding of the value gradient depends on the order.

use super::rows::CallInputs;
use super::simd::prefetch;
use crate::buffer::{try_reserved, try_zeros};
use crate::dtype::{Element, Slice, typed};
use crate::error::Result;
use crate::op::Args;
use crate::problem::Problem;
use crate::threads;

/// Queries per task, and how many queries ahead a place is prefetched: each is in another page.
const CHUNK: usize = 1024;
const AHEAD: usize = 16;

/// (image, query) pairs as `image * queries + query`, image after image. An error if there is no
/// memory for them.
pub(super) fn queries(rows: &CallInputs<'_>) -> Result<Vec<usize>> {
    let p = rows.p;
    let (batch, queries) = (p.batch(), p.queries());
    if p.heads() == 0 || p.samples() == 0 || queries < 3 {
        let mut order = try_reserved(batch * queries)?;
        order.extend(0..batch * queries);
        return Ok(order);
    }
    let sample = finest_sample(p);
    let mut cells = try_zeros(batch * queries)?;
    threads::for_each_chunk(&mut cells, queries, |image, cells| {
        threads::for_each_chunk(cells, CHUNK, |chunk, cells| {
            look_up(&rows.args, [image, chunk * CHUNK], sample, cells);
        });
    });
    let mut order = try_zeros(batch * queries)?;
    threads::for_each_chunk(&mut order, queries, |image, order| {
        let first = image * queries;
        sort(&cells[first..first + queries], first, order);
    });
    Ok(order)
}

/// Numbers from `first` on, in the order of their cells: a counting sort.
fn sort(cells: &[u16], first: usize, order: &mut [usize]) {
    // Larger cells order few queries as well, and there are fewer of them to count.
    let shift = if cells.len() < CELLS / 4 { 2 } else { 0 };
    let cells = cells.iter().map(|&cell| usize::from(cell >> shift));
    // Where each cell begins, then the next free place of each cell.
    let mut next = vec![0; (CELLS >> shift) + 1];
    for cell in cells.clone() {
        next[cell + 1] += 1;
    }
    for cell in 1..next.len() {
        next[cell] += next[cell - 1];
    }
    for (i, cell) in cells.enumerate() {
        order[next[cell]] = first + i;
        next[cell] += 1;
    }
}

/// The cells of queries from `first` on: of their reference points, or of one of their samples.
fn look_up(args: &Args<'_>, [image, first]: [usize; 2], sample: usize, cells: &mut [u16]) {
    let (t, skip) = match &args.reference {
        Some((_, t)) => (t, 0),
        None => (&args.locations, 2 * sample),
    };
    let last = first + cells.len() - 1;
    let start = |query: usize| t.at([image, query, 0]) + skip;
    typed!(Slice, t.data, data => {
        for (query, cell) in (first..).zip(cells) {
            prefetch(&raw const data[start(last.min(query + AHEAD))]);
            let start = start(query);
            *cell = curve([data[start].to_f64(), data[start + 1].to_f64()]);
        }
    });
}

/// The first sample of the level with the most pixels. It lies closest to its query.
fn finest_sample(p: &Problem) -> usize {
    let mut best = (0, 0);
    let mut first = 0;
    for (level, &points) in p.levels().iter().zip(p.points()) {
        let pixels = level.h * level.w;
        if points > 0 && pixels > best.0 {
            best = (pixels, first);
        }
        first += points;
    }
    best.1
}

/// The curve runs over a grid of 64 x 64 cells.
const SIDE: usize = 64;
const CELLS: usize = SIDE * SIDE;

/// The cell along the curve of a normalised location.
fn curve(place: [f64; 2]) -> u16 {
    // The cast takes NaN to 0 and everything beyond an end to that end.
    let [x, y] = place.map(|t| ((t * SIDE as f64) as usize).min(SIDE - 1));
    (spread(x) | spread(y) << 1) as u16
}

/// Puts a zero between the six low bits.
fn spread(mut x: usize) -> usize {
    x = (x | x << 4) & 0x0f0f;
    x = (x | x << 2) & 0x3333;
    (x | x << 1) & 0x5555
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_visits_quarters_in_turn() {
        assert_eq!(spread(0b11_1111), 0b0101_0101_0101);
        let quarter = |x, y| usize::from(curve([x, y])) / (CELLS / 4);
        assert_eq!(
            [quarter(0.1, 0.1), quarter(0.9, 0.1), quarter(0.1, 0.9), quarter(0.9, 0.9)],
            [0, 1, 2, 3]
        );
        assert_eq!(curve([f64::NAN, -5.0]), 0);
        assert_eq!(usize::from(curve([f64::INFINITY, 2.0])), CELLS - 1);
    }
}
