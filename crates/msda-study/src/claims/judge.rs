//! From a claim and facts to a verdict.

use std::collections::BTreeSet;
use std::fmt::Display;

use msda_bench::report::number;
use serde::Serialize;

use super::{Claim, Claims};
use crate::facts::{Facts, Missing};

/// How facts judge a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Reproduced,
        Self::OtherSize,
        Self::Opposite,
        Self::WithinNoise,
        Self::YourGpu,
        Self::OnlyPlanned,
        Self::CannotBeMeasured,
        Self::NotMeasuredYet,
    ];

    /// Its name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::OtherSize => "same direction, other size",
            Self::Opposite => "opposite",
            Self::WithinNoise => "within noise",
            Self::YourGpu => "your GPU",
            Self::OnlyPlanned => "only planned there",
            Self::CannotBeMeasured => "cannot be measured",
            Self::NotMeasuredYet => "not measured yet",
        }
    }

    /// Its name as the title of a narrow column.
    pub fn title(self) -> String {
        match self {
            Self::OtherSize => "other\nsize".into(),
            Self::OnlyPlanned => "only\nplan".into(),
            Self::CannotBeMeasured => "cannot\nbe".into(),
            Self::NotMeasuredYet => "not\nyet".into(),
            other => other.name().replacen(' ', "\n", 1),
        }
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
    let value = claim.expression().map(|e| e.value(facts));
    let measured = claim.measure.as_ref().and_then(|e| e.value(facts).ok());
    let range = claim.expression().and_then(|e| e.range(facts));
    let missing = value.clone().and_then(Result::err).unwrap_or_default();
    let (verdict, why) = verdict(claim, value, range, gpu);
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

fn verdict(
    claim: &Claim,
    value: Option<Result<f64, Missing>>,
    range: Option<(f64, f64)>,
    gpu: Option<&str>,
) -> (Verdict, String) {
    if let Some(reason) = &claim.reason {
        return (Verdict::CannotBeMeasured, reason.clone());
    }
    let elsewhere =
        |gpu: &&str| !claim.on.is_empty() && !claim.on.iter().any(|name| gpu.contains(name.as_str()));
    if let Some(gpu) = gpu.filter(elsewhere) {
        return (Verdict::YourGpu, format!("stated for {}, measured on {gpu}", claim.on.join(" or ")));
    }
    let value = match value {
        Some(Ok(value)) if value.is_finite() => value,
        Some(Ok(value)) => return (Verdict::NotMeasuredYet, format!("the facts give {value}")),
        Some(Err(missing)) => {
            return (Verdict::NotMeasuredYet, format!("missing: {}", Vec::from_iter(missing).join(", ")));
        }
        None => return (Verdict::NotMeasuredYet, String::new()),
    };
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

/// Decimals for a number that varies within a range: one figure of the width of the range, and no
/// more than three of the number.
fn decimals(value: f64, (low, high): (f64, f64)) -> usize {
    let width = (high - low).abs();
    let digit = |x: f64| if x > 0.0 { x.log10().floor() as i32 } else { -9 };
    (-digit(width)).min(2 - digit(value.abs().max(width))).max(0) as usize
}

/// A number as text, rounded to its variation if it has one.
pub(super) fn rounded(value: f64, range: Option<(f64, f64)>) -> String {
    range.map_or_else(|| shown(value), |range| format!("{value:.0$}", decimals(value, range)))
}

/// A measured number, rounded to its variation, and its range: `1.47x (1.45 to 1.49)`.
pub fn with_range(value: f64, range: Option<(f64, f64)>, unit: &str) -> String {
    let number = with_unit(rounded(value, range), unit);
    let Some((low, high)) = range else { return number };
    format!("{number} ({low:.0$} to {high:.0$})", decimals(value, (low, high)))
}

/// A number and its unit: `12 us`, `1.47x`, `5 %`.
pub(super) fn with_unit(number: impl Display, unit: &str) -> String {
    match unit {
        "" => number.to_string(),
        "x" => format!("{number}x"),
        _ => format!("{number} {unit}"),
    }
}
