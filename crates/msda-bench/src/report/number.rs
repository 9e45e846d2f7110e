//! Numbers as text: three significant figures, and a dash for missing numbers.

/// The text of a value that is missing or not finite.
pub const NONE: &str = "-";

/// In place of the time of a wrong result.
pub(super) const FAILED: &str = "failed check";

/// A number rounded to `digits` significant figures, without an exponent in the range people read.
fn rounded(value: f64, digits: i32, range: std::ops::RangeInclusive<i32>) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    if value == 0.0 {
        return "0".into();
    }
    // Rounding comes first, so that 9.999 becomes `10.0`, not `10.00`.
    let text = format!("{value:.*e}", digits as usize - 1);
    let size: f64 = text.parse().unwrap_or(value);
    let exponent = size.abs().log10().floor() as i32;
    if !range.contains(&exponent) {
        return text;
    }
    format!("{size:.*}", (digits - 1 - exponent).max(0) as usize)
}

/// Three significant figures: `0.0123`, `1.23`, `12.3`, `1230`.
pub fn figure(value: f64) -> String {
    rounded(value, 3, -4..=9)
}

/// [`figure`], or a dash.
pub fn maybe(value: Option<f64>) -> String {
    value.map_or(NONE.into(), figure)
}

/// A ratio: `1.23x`.
pub fn times(value: Option<f64>) -> String {
    value.map_or(NONE.into(), |v| format!("{}x", figure(v)))
}

/// A share in percent: `71%`, `0.42%`.
pub fn percent(value: Option<f64>) -> String {
    match value.map(|v| v * 100.0) {
        Some(v) if v >= 9.95 => format!("{v:.0}%"),
        Some(v) if v >= 0.995 => format!("{v:.1}%"),
        Some(v) => format!("{}%", short(v)),
        None => NONE.into(),
    }
}

/// Two significant figures: `0.42`, `12`, `1e-5`.
pub fn short(value: f64) -> String {
    rounded(value, 2, -3..=18).replace(".0e", "e")
}

/// A count and its noun: `1 thread`, `2 threads`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_figures() {
        let cases = [
            (0.0, "0"),
            (0.012345, "0.0123"),
            (9.999, "10.0"),
            (99.96, "100"),
            (1234.5, "1230"),
            (0.000_012_3, "1.23e-5"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn shares_and_sizes() {
        assert_eq!(percent(Some(0.714)), "71%");
        assert_eq!(percent(Some(0.0996)), "10%");
        assert_eq!(percent(Some(0.042)), "4.2%");
        assert_eq!(percent(None), "-");
        assert_eq!(short(0.4249), "0.42");
        assert_eq!(short(0.00001), "1e-5");
        assert_eq!(short(12.4), "12");
    }
}
