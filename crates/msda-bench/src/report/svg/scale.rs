//! Axes: values to positions.

/// An axis: a range of values mapped to a range of positions.
pub(super) struct Scale {
    lo: f64,
    hi: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// From zero to `hi`.
    pub(super) fn linear(hi: f64, from: f64, to: f64) -> Self {
        let hi = if hi.is_finite() && hi > 0.0 { hi } else { 1.0 };
        Self { lo: 0.0, hi, log: false, from, to }
    }

    /// Logarithmic, between two positive values.
    pub(super) fn log(lo: f64, hi: f64, from: f64, to: f64) -> Self {
        let good = lo.is_finite() && hi.is_finite() && lo > 0.0 && hi > lo;
        let (lo, hi) = if good { (lo, hi) } else { (1.0, 10.0) };
        Self { lo, hi, log: true, from, to }
    }

    /// The position of a value. Values outside the range are put on the edge.
    pub(super) fn at(&self, value: f64) -> f64 {
        if value.is_nan() {
            return self.from;
        }
        let value = value.clamp(self.lo, self.hi);
        let share = if self.log {
            (value.ln() - self.lo.ln()) / (self.hi.ln() - self.lo.ln())
        } else {
            (value - self.lo) / (self.hi - self.lo)
        };
        self.from + share * (self.to - self.from)
    }

    /// The positions of both ends.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.from, self.to)
    }

    /// Round values within the range, about `most` of them, with their labels.
    pub(super) fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let linear = || linear_ticks(self.lo, self.hi, most);
        let values = if self.log { log_ticks(self.lo, self.hi, most) } else { linear() };
        // A short range may contain only one round value of a logarithmic axis.
        let values = if values.len() < 2 { linear() } else { values };
        values.into_iter().map(|v| (v, label(v))).collect()
    }
}

fn linear_ticks(lo: f64, hi: f64, most: usize) -> Vec<f64> {
    let raw = (hi - lo) / most as f64;
    let unit = 10f64.powf(raw.log10().floor());
    let Some(step) = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|&s| s >= raw) else {
        return vec![0.0];
    };
    let (first, slack) = ((lo / step - 1e-9).ceil(), (hi - lo) * 1e-9);
    (0..=most).map(|i| (first + i as f64) * step).filter(|&v| v <= hi + slack).collect()
}

fn log_ticks(lo: f64, hi: f64, most: usize) -> Vec<f64> {
    let within = |v: &f64| (lo * (1.0 - 1e-9)..=hi * (1.0 + 1e-9)).contains(v);
    let (first, last) = (lo.log10().floor() as i32, hi.log10().ceil() as i32);
    for mantissas in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
        let values: Vec<f64> = (first..=last)
            .flat_map(|e| mantissas.iter().map(move |m| m * 10f64.powi(e)))
            .filter(within)
            .collect();
        if values.len() <= most && !values.is_empty() {
            return values;
        }
    }
    let stride = (last - first) as usize / most + 1;
    (first..=last).step_by(stride).map(|e| 10f64.powi(e)).filter(within).collect()
}

/// A round number without trailing zeros.
fn label(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if (1e4..1e6).contains(&value.abs()) {
        return label(value / 1e3) + "k";
    }
    let exponent = value.abs().log10();
    if !(-3.5..6.0).contains(&exponent) {
        return format!("{:e}", format!("{value:.1e}").parse().unwrap_or(value));
    }
    let text = format!("{value:.*}", (1.0 - (exponent + 1e-9).floor()).max(0.0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale, most: usize) -> Vec<String> {
        scale.ticks(most).into_iter().map(|t| t.1).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(&Scale::linear(9.3, 0.0, 1.0), 5), ["0", "2", "4", "6", "8"]);
        assert_eq!(labels(&Scale::linear(0.31, 0.0, 1.0), 4), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&Scale::log(0.4, 12.0, 0.0, 1.0), 6), ["0.5", "1", "2", "5", "10"]);
        assert_eq!(labels(&Scale::log(0.01, 1e4, 0.0, 1.0), 5), ["0.01", "1", "100", "10k"]);
    }

    #[test]
    fn places_stay_on_the_axis() {
        for scale in [Scale::linear(f64::NAN, 10.0, 20.0), Scale::log(0.0, f64::INFINITY, 10.0, 20.0)] {
            for v in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300] {
                assert!((10.0..=20.0).contains(&scale.at(v)));
            }
        }
    }
}
