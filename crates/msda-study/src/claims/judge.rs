//! From a claim and facts to a verdict.

use std::collections::BTreeSet;
use std::fmt::Display;

use msda_bench::report::number;
use serde::Serialize;

use super::{Claim, Claims};
use crate::facts::Facts;
use crate::listed::listed;

listed! {
    /// How facts judge a claim.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Verdict {
        /// The facts agree with it.
        Reproduced,
        /// A gain is a gain and a loss is a loss, or a number is another one.
        OtherSize,
        /// The facts contradict it.
        Opposite,
        /// The measured gain is smaller than the variation of its times.
        WithinNoise,
        /// It is about a GPU that the records are not from.
        YourGpu,
        /// The document plans or expects it, and states no result.
        OnlyPlanned,
        /// No measurement can decide it.
        CannotBeMeasured,
        /// Facts are missing.
        NotMeasuredYet,
    }
}

impl Verdict {
    /// Its name in words, and as the title of a narrow column.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Reproduced => ("reproduced", "reproduced"),
            Self::OtherSize => ("same direction, other size", "other\nsize"),
            Self::Opposite => ("opposite", "opposite"),
            Self::WithinNoise => ("within noise", "within\nnoise"),
            Self::YourGpu => ("your GPU", "your\nGPU"),
            Self::OnlyPlanned => ("only planned there", "only\nplan"),
            Self::CannotBeMeasured => ("cannot be measured", "cannot\nbe"),
            Self::NotMeasuredYet => ("not measured yet", "not\nyet"),
        }
    }

    /// Its name in words.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Its name as the title of a narrow column.
    pub fn title(self) -> &'static str {
        self.names().1
    }
}

/// A judged claim.
#[derive(Debug, Clone)]
pub struct Outcome<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The verdict.
    pub verdict: Verdict,
    /// The measured number, in the unit of the claim.
    pub measured: Option<f64>,
    /// How far it varies: by the tenth and the ninetieth percentile of its times.
    pub range: Option<(f64, f64)>,
    /// The reason for the verdict.
    pub why: String,
    /// Missing facts.
    pub missing: Vec<String>,
    /// The records of the facts.
    pub from: Vec<String>,
}

/// Judges every claim by facts of a GPU.
pub fn judge<'a>(claims: &'a Claims, facts: &Facts, gpu: Option<&str>) -> Vec<Outcome<'a>> {
    claims.claims.iter().map(|claim| one(claim, facts, gpu)).collect()
}

fn one<'a>(claim: &'a Claim, facts: &Facts, gpu: Option<&str>) -> Outcome<'a> {
    let measured = claim.measure.as_ref().and_then(|e| e.value(facts).ok());
    let range = claim.expression().and_then(|e| e.range(facts));
    let missing = claim.expression().and_then(|e| e.value(facts).err()).unwrap_or_default();
    let (verdict, why) = verdict(claim, facts, gpu);
    let because = match verdict {
        Verdict::NotMeasuredYet => String::new(),
        _ => claim.because.text(facts),
    };
    let why = [why, because].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    let from = claim.expression().map(|e| e.names()).unwrap_or_default();
    let from = from.iter().filter_map(|name| facts.get(name)).map(|fact| fact.from.clone());
    Outcome {
        claim,
        verdict,
        measured,
        range: range.filter(|_| measured.is_some()),
        why,
        from: from.collect::<BTreeSet<_>>().into_iter().collect(),
        missing: missing.into_iter().collect(),
    }
}

fn verdict(claim: &Claim, facts: &Facts, gpu: Option<&str>) -> (Verdict, String) {
    if let Some(reason) = &claim.reason {
        return (Verdict::CannotBeMeasured, reason.clone());
    }
    let elsewhere =
        |gpu: &&str| !claim.on.is_empty() && !claim.on.iter().any(|name| gpu.contains(name.as_str()));
    if let Some(gpu) = gpu.filter(elsewhere) {
        return (Verdict::YourGpu, format!("stated for {}, measured on {gpu}", claim.on.join(" or ")));
    }
    let Some(expression) = claim.expression() else { return (Verdict::NotMeasuredYet, String::new()) };
    let value = match expression.value(facts) {
        Ok(value) if value.is_finite() => value,
        Ok(value) => return (Verdict::NotMeasuredYet, format!("the facts give {value}")),
        Err(missing) => {
            return (Verdict::NotMeasuredYet, format!("missing: {}", Vec::from_iter(missing).join(", ")));
        }
    };
    let range = expression.range(facts);
    if claim.planned {
        return (Verdict::OnlyPlanned, String::new());
    }
    match claim.rule().ok().filter(|_| claim.measure.is_some()) {
        Some(rule) => (rule.judge(claim, value, range), rule.words(claim)),
        None if range.is_some_and(|(low, high)| low != high) => (Verdict::WithinNoise, String::new()),
        None => (if value == 0.0 { Verdict::Opposite } else { Verdict::Reproduced }, String::new()),
    }
}

/// A number as text: whole numbers and numbers from 100 on without decimals, others to three
/// figures.
pub fn shown(value: f64) -> String {
    let whole = value == value.round() || value.abs() >= 100.0;
    if whole && value.abs() < 1e12 { format!("{value:.0}") } else { number::figure(value) }
}

/// Decimals for a number that varies within a range. Its noise is half the width of the range, and
/// the first figure of the noise is the last one of the number: -1 rounds to tens. Decimals end
/// after three figures.
fn decimals(value: f64, (low, high): (f64, f64)) -> i32 {
    let noise = (high - low).abs() / 2.0;
    let place = |x: f64| if x > 0.0 { x.log10().floor() as i32 } else { -9 };
    // 9.998 has the figures of 10.0.
    let first = place(value.abs().max(noise) * 1.0005);
    (-place(noise)).min((2 - first).max(0))
}

/// A number with so many decimals; none is negative zero.
fn with_decimals(value: f64, decimals: i32) -> String {
    let unit = 10f64.powi(-decimals.min(0));
    let value = if decimals < 0 { (value / unit).round() * unit } else { value };
    let text = format!("{value:.0$}", decimals.max(0) as usize);
    let zero = text.chars().all(|c| "-0.".contains(c));
    if zero { text.trim_start_matches('-').into() } else { text }
}

/// A number as text, rounded to its noise if it has some.
pub(super) fn rounded(value: f64, range: Option<(f64, f64)>) -> String {
    range.map_or_else(|| shown(value), |range| with_decimals(value, decimals(value, range)))
}

/// A measured number, rounded to its noise, and its range if its ends look unlike the number:
/// `1.47x (1.45 to 1.49)`.
pub fn with_range(value: f64, range: Option<(f64, f64)>, unit: &str) -> String {
    let text = rounded(value, range);
    let number = with_unit(&text, unit);
    let Some((low, high)) = range else { return number };
    let [low, high] = [low, high].map(|end| with_decimals(end, decimals(value, (low, high))));
    if low == text && high == text { number } else { format!("{number} ({low} to {high})") }
}

/// A number and its unit: `12 us`, `1.47x`, `5 %`.
pub(super) fn with_unit(number: impl Display, unit: &str) -> String {
    match unit {
        "" => number.to_string(),
        "x" => format!("{number}x"),
        _ => format!("{number} {unit}"),
    }
}
