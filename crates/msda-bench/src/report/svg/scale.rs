//! A logarithmic axis: values to positions.

/// A range of values mapped to a range of positions.
pub(in crate::report) struct Scale {
    /// The least value.
    lo: f64,
    /// The largest value.
    hi: f64,
    /// The position of the least value.
    pub from: f64,
    /// The position of the largest value.
    pub to: f64,
}

impl Scale {
    /// Between two positive values.
    pub(in crate::report) fn new(lo: f64, hi: f64, from: f64, to: f64) -> Self {
        let good = lo.is_finite() && hi.is_finite() && lo > 0.0 && hi > lo;
        let (lo, hi) = if good { (lo, hi) } else { (1.0, 10.0) };
        Self { lo, hi, from, to }
    }

    /// The position of a value. Values outside the range are put on the edge.
    pub(in crate::report) fn at(&self, value: f64) -> f64 {
        if value.is_nan() {
            return self.from;
        }
        let share = (value.clamp(self.lo, self.hi) / self.lo).ln() / (self.hi / self.lo).ln();
        self.from + share * (self.to - self.from)
    }

    /// Round values within the range, at most six, with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        const MOST: usize = 6;
        let within = |v: &f64| (self.lo * (1.0 - 1e-9)..=self.hi * (1.0 + 1e-9)).contains(v);
        let (first, last) = (self.lo.log10().floor() as i32, self.hi.log10().ceil() as i32);
        let decades = |apart: usize, mantissas: &[f64]| -> Vec<f64> {
            let of = |e: i32| mantissas.iter().map(move |m| m * 10f64.powi(e));
            (first..=last).step_by(apart).flat_map(of).filter(within).collect()
        };
        let steps = |n: u32| (n..10 * n).map(|i| f64::from(i) / f64::from(n)).collect::<Vec<_>>();
        let fine = [10, 2, 1].map(steps);
        let coarse = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0]];
        let near = fine.iter().map(Vec::as_slice).chain(coarse).map(|mantissas| decades(1, mantissas));
        let far = (1..).map(|apart| decades(apart, &[1.0]));
        let values = near.chain(far).find(|values| values.len() <= MOST).unwrap_or_default();
        values.into_iter().map(|v| (v, label(v))).collect()
    }
}

/// A round number without trailing zeros.
fn label(value: f64) -> String {
    let round: f64 = format!("{value:.1e}").parse().unwrap_or(value);
    match round.abs() {
        size if (1e4..1e6).contains(&size) => format!("{}k", round / 1e3),
        size if (1e-4..1e6).contains(&size) => format!("{round}"),
        _ => format!("{round:e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        for (lo, hi, expected) in [
            (0.4, 12.0, &["0.5", "1", "2", "5", "10"][..]),
            (0.01, 1e4, &["0.01", "1", "100", "10k"]),
            (310.0, 420.0, &["350", "400"]),
            (3.1, 3.5, &["3.1", "3.2", "3.3", "3.4", "3.5"]),
        ] {
            let labels: Vec<String> = Scale::new(lo, hi, 0.0, 1.0).ticks().into_iter().map(|t| t.1).collect();
            assert_eq!(labels, expected);
        }
    }

    #[test]
    fn places_stay_on_the_axis() {
        for scale in [Scale::new(f64::NAN, 1.0, 10.0, 20.0), Scale::new(0.0, f64::INFINITY, 10.0, 20.0)] {
            for v in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300] {
                assert!((10.0..=20.0).contains(&scale.at(v)));
            }
        }
    }
}
