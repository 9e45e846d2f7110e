//! When a measured number agrees with a stated one.

use anyhow::{Result, bail, ensure};

use super::Claim;
use super::judge::{Verdict, shown, with_unit};

/// When a measured number agrees with a stated one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The larger is at most this many times the smaller.
    Within(f64),
    /// They differ by at most this.
    Margin(f64),
    /// A gain in percent, or a speed-up: both gain or both lose, and they differ by at most a
    /// quarter of the stated gain or this many points.
    Gain(f64),
    /// The measured number is at least the stated one.
    AtLeast,
    /// The measured number is at most the stated one.
    AtMost,
    /// The measured number is in the range.
    Range,
}

impl Claim {
    /// `within 1.2`, `margin 3`, `gain 2`, `at least`, `at most`; a range needs no rule.
    pub fn rule(&self) -> Result<Rule> {
        let text = &self.rule;
        let words: Option<Vec<&str>> = text.as_ref().map(|text| text.split_whitespace().collect());
        let rule = match words.as_deref() {
            None if self.low.is_some() && self.high.is_some() => return Ok(Rule::Range),
            Some(["within", factor]) => Rule::Within(factor.parse()?),
            Some(["margin", margin]) => Rule::Margin(margin.parse()?),
            Some(["gain", points]) => Rule::Gain(points.parse()?),
            Some(["at", "least"]) => Rule::AtLeast,
            Some(["at", "most"]) => Rule::AtMost,
            _ => bail!(
                "rule: got {text:?}, expected a name of [rules], 'within FACTOR', 'margin NUMBER', 'gain POINTS', \
                 'at least', 'at most', or low and high"
            ),
        };
        ensure!(self.value.is_some(), "rule {rule:?}: expected a value");
        Ok(rule)
    }
}

impl Rule {
    /// The verdict on a measured number, which varies within a range.
    pub fn judge(self, stated: &Claim, measured: f64, range: Option<(f64, f64)>) -> Verdict {
        let noise = range.map(|(low, high)| gain(low, stated) * gain(high, stated));
        if self.is_gain(stated) && noise.is_some_and(|signs| signs <= 0.0) {
            return Verdict::WithinNoise;
        }
        if self.agrees(stated, measured) {
            return Verdict::Reproduced;
        }
        match self {
            Self::AtLeast | Self::AtMost => Verdict::Opposite,
            // Some instead of none.
            Self::Margin(_) if stated.value == Some(0.0) => Verdict::Opposite,
            _ if self.crosses(stated, measured) => Verdict::Opposite,
            _ => Verdict::OtherSize,
        }
    }

    /// Whether the numbers are gains or losses: percents by the rule for gains, a range of
    /// percents, or speed-ups.
    fn is_gain(self, stated: &Claim) -> bool {
        matches!(self, Self::Gain(_)) || self == Self::Range && matches!(stated.unit.as_str(), "%" | "x")
    }

    /// Whether one of stated and measured gains and the other loses.
    fn crosses(self, stated: &Claim, measured: f64) -> bool {
        let value = stated.value.or(stated.low).unwrap_or(f64::NAN);
        self.is_gain(stated) && gain(value, stated) * gain(measured, stated) <= 0.0
    }

    fn agrees(self, stated: &Claim, measured: f64) -> bool {
        let value = stated.value.unwrap_or(f64::NAN);
        // Numbers that print alike are equal.
        let slack = 1e-9 * value.abs();
        match self {
            Self::Within(factor) => {
                let ratio = measured / value;
                ratio <= factor && ratio >= 1.0 / factor
            }
            Self::Margin(margin) => (measured - value).abs() <= margin + slack,
            Self::Gain(points) => {
                let difference = (gain(measured, stated) - gain(value, stated)).abs();
                !self.crosses(stated, measured) && difference <= tolerance(points, stated)
            }
            Self::AtLeast => measured >= value - slack,
            Self::AtMost => measured <= value + slack,
            Self::Range => {
                stated.low.is_some_and(|low| measured >= low)
                    && stated.high.is_some_and(|high| measured <= high)
            }
        }
    }

    /// The rule in words.
    pub fn words(self, stated: &Claim) -> String {
        let unit = &stated.unit;
        match self {
            Self::Within(factor) => format!("must agree within a factor of {factor}"),
            Self::Margin(0.0) => "must agree exactly".into(),
            Self::Margin(margin) => format!("must agree within {}", with_unit(shown(margin), unit)),
            Self::Gain(points) if unit == "x" => {
                format!("must agree within {}", with_unit(shown(tolerance(points, stated) / 100.0), unit))
            }
            Self::Gain(points) => {
                format!("must agree within {} points", shown(tolerance(points, stated)))
            }
            Self::AtLeast => "must be at least the stated number".into(),
            Self::AtMost => "must be at most the stated number".into(),
            Self::Range => "must be in the stated range".into(),
        }
    }
}

/// A gain in percent, or a speed-up as one: 1.47x is 47 %.
fn gain(number: f64, stated: &Claim) -> f64 {
    if stated.unit == "x" { (number - 1.0) * 100.0 } else { number }
}

/// How far a gain may be from the stated one, in points.
fn tolerance(points: f64, stated: &Claim) -> f64 {
    points.max(gain(stated.value.unwrap_or(f64::NAN), stated).abs() / 4.0)
}
