//! From a claim and facts to a verdict.

use std::collections::BTreeSet;

use msda_bench::report::number;
use serde::Serialize;

use super::{Claim, Claims};
use crate::facts::{Facts, Missing, command};

/// How facts judge a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The facts agree with it.
    Reproduced,
    /// The measured number is better than the stated one.
    BetterHere,
    /// The facts contradict it.
    Refuted,
    /// It is about a GPU that the records are not from.
    OtherGpu,
    /// No measurement can decide it.
    NotMeasurable,
    /// Facts are missing.
    NotMeasuredYet,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Reproduced,
        Self::BetterHere,
        Self::Refuted,
        Self::OtherGpu,
        Self::NotMeasurable,
        Self::NotMeasuredYet,
    ];

    /// Its name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::BetterHere => "better here",
            Self::Refuted => "refuted",
            Self::OtherGpu => "other GPU",
            Self::NotMeasurable => "not measurable",
            Self::NotMeasuredYet => "not measured yet",
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
    /// The reason for the verdict.
    pub why: String,
    /// Missing facts.
    pub missing: Vec<String>,
    /// Commands that measure them.
    pub commands: Vec<String>,
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
    let missing = value.clone().and_then(Result::err).unwrap_or_default();
    let (verdict, why) = verdict(claim, value, gpu);
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
        why,
        commands: missing.iter().map(|name| command(name)).collect::<BTreeSet<_>>().into_iter().collect(),
        from: from.collect::<BTreeSet<_>>().into_iter().collect(),
        missing: missing.into_iter().collect(),
    }
}

fn verdict(claim: &Claim, value: Option<Result<f64, Missing>>, gpu: Option<&str>) -> (Verdict, String) {
    if let Some(reason) = &claim.reason {
        return (Verdict::NotMeasurable, reason.clone());
    }
    let elsewhere =
        |gpu: &&str| !claim.on.is_empty() && !claim.on.iter().any(|name| gpu.contains(name.as_str()));
    if let Some(gpu) = gpu.filter(elsewhere) {
        return (Verdict::OtherGpu, format!("stated for {}, measured on {gpu}", claim.on.join(" or ")));
    }
    let value = match value {
        Some(Ok(value)) if value.is_finite() => value,
        Some(Ok(value)) => return (Verdict::NotMeasuredYet, format!("the facts give {value}")),
        Some(Err(missing)) => {
            return (Verdict::NotMeasuredYet, format!("missing: {}", Vec::from_iter(missing).join(", ")));
        }
        None => return (Verdict::NotMeasuredYet, String::new()),
    };
    match claim.rule().ok().filter(|_| claim.measure.is_some()) {
        Some(rule) => (rule.judge(claim, value), rule.words(claim)),
        None => (if value == 0.0 { Verdict::Refuted } else { Verdict::Reproduced }, String::new()),
    }
}

/// A number as text: whole numbers and numbers from 100 on without decimals, others to three
/// figures.
pub fn shown(value: f64) -> String {
    let whole = value == value.round() || value.abs() >= 100.0;
    if whole && value.abs() < 1e12 { format!("{value:.0}") } else { number::figure(value) }
}

/// A number and its unit: `12 us`, `1.47x`, `5 %`.
pub(super) fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => shown(value),
        "x" => format!("{}x", shown(value)),
        _ => format!("{} {unit}", shown(value)),
    }
}
