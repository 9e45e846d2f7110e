//! The order in which queries are visited.
//!
//! Queries that sample the same part of the pyramid should follow each other: then the rows one has brought into the
//! cache serve the next. They are sorted along a Z-shaped curve over the places they look at. No result depends on it.

use super::rows::Rows;
use crate::op::Args;
use crate::problem::Problem;

/// (image, query) pairs as `image * queries + query`, image after image.
pub(super) fn queries(rows: &Rows<'_>) -> Vec<usize> {
    let p = rows.p;
    let (batch, queries) = (p.batch(), p.queries());
    if p.heads() == 0 || p.samples() == 0 || queries < 3 {
        return (0..batch * queries).collect();
    }
    let sample = finest_sample(p);
    let mut order = Vec::with_capacity(batch * queries);
    let mut keyed = Vec::with_capacity(queries);
    for image in 0..batch {
        keyed.clear();
        keyed.extend((0..queries).map(|query| {
            let place = place(&rows.args, [image, query, 0], sample);
            (curve(place), image * queries + query)
        }));
        keyed.sort_unstable();
        order.extend(keyed.iter().map(|&(_, pair)| pair));
    }
    order
}

/// The first sample of the level with the most pixels: it moves least around its query, in parts of the image.
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

/// Where a query looks, in parts of the image: its reference point, or one of its samples.
fn place(args: &Args<'_>, at: [usize; 3], sample: usize) -> [f64; 2] {
    let (data, start) = match &args.reference {
        Some((_, t)) => (&t.data, t.at([at[0], at[1], 0])),
        None => (&args.locations.data, args.locations.at(at) + 2 * sample),
    };
    [data.get(start), data.get(start + 1)]
}

/// The position along the curve, on a grid of 1024 x 1024.
fn curve(place: [f64; 2]) -> u32 {
    // The cast takes NaN to 0 and everything beyond an end to that end.
    let [x, y] = place.map(|t| ((t * 1024.0) as i32).clamp(0, 1023) as u32);
    spread(x) | spread(y) << 1
}

/// Puts a zero between the ten low bits.
fn spread(mut x: u32) -> u32 {
    x = (x | x << 8) & 0x00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333;
    (x | x << 1) & 0x5555_5555
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_visits_quarters_in_turn() {
        assert_eq!(spread(0b11_1111_1111), 0b0101_0101_0101_0101_0101);
        let quarter = |x, y| curve([x, y]) >> 18;
        assert_eq!(
            [quarter(0.1, 0.1), quarter(0.9, 0.1), quarter(0.1, 0.9), quarter(0.9, 0.9)],
            [0, 1, 2, 3]
        );
        assert_eq!(curve([f64::NAN, -5.0]), 0);
        assert_eq!(curve([f64::INFINITY, 2.0]), (1 << 20) - 1);
    }
}
