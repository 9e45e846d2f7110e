//! From a claim and facts to a verdict.

use std::collections::BTreeSet;

use msda_bench::report::number;
use serde::Serialize;

use super::{Claim, Claims, Rule, Stated, Test, Words};
use crate::facts::{Expression, Facts, Missing, command};

/// How facts judge a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The facts agree with it.
    Holds,
    /// The facts contradict it.
    DoesNotHold,
    /// It is about another GPU, or about something that cannot be measured.
    NotComparable,
    /// Facts are missing.
    NotMeasured,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Holds, Self::DoesNotHold, Self::NotComparable, Self::NotMeasured];

    /// Its name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NotComparable => "not comparable",
            Self::NotMeasured => "not measured",
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
    let value = match &claim.test {
        Test::Measure(e, _) | Test::Check(e) => Some(e.value(facts)),
        Test::Nothing => None,
    };
    let measured = match (&claim.test, &value) {
        (Test::Measure(..), Some(Ok(x))) => Some(*x),
        _ => None,
    };
    let missing = value.clone().and_then(Result::err).unwrap_or_default();
    let (verdict, why) = verdict(claim, value, gpu);
    let explained = matches!(verdict, Verdict::Holds | Verdict::DoesNotHold);
    let because = if explained { because(claim, facts) } else { String::new() };
    let why = [why, because].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    Outcome {
        claim,
        verdict,
        measured,
        why,
        commands: missing.iter().map(|name| command(name)).collect::<BTreeSet<_>>().into_iter().collect(),
        missing: missing.into_iter().collect(),
        from: sources(claim, facts),
    }
}

fn verdict(claim: &Claim, value: Option<Result<f64, Missing>>, gpu: Option<&str>) -> (Verdict, String) {
    if let Some(reason) = &claim.incomparable {
        return (Verdict::NotComparable, reason.clone());
    }
    let elsewhere =
        |gpu: &&str| !claim.on.is_empty() && !claim.on.iter().any(|name| gpu.contains(name.as_str()));
    if let Some(gpu) = gpu.filter(elsewhere) {
        return (Verdict::NotComparable, format!("stated for {}, this is {gpu}", claim.on.join(" or ")));
    }
    let value = match value {
        Some(Ok(value)) if value.is_finite() => value,
        Some(Ok(value)) => return (Verdict::NotMeasured, format!("the facts give {value}")),
        Some(Err(missing)) => {
            return (Verdict::NotMeasured, format!("missing: {}", Vec::from_iter(missing).join(", ")));
        }
        None => return (Verdict::NotMeasured, String::new()),
    };
    let (holds, why) = match &claim.test {
        Test::Measure(_, rule) => (rule.agrees(&claim.stated, value), rule.words(&claim.stated)),
        _ => (value != 0.0, String::new()),
    };
    (if holds { Verdict::Holds } else { Verdict::DoesNotHold }, why)
}

impl Rule {
    fn agrees(self, stated: &Stated, measured: f64) -> bool {
        let value = stated.value.unwrap_or(f64::NAN);
        // Numbers that print alike are equal.
        let slack = 1e-9 * value.abs();
        match self {
            Self::Within(factor) => {
                let ratio = measured / value;
                ratio <= factor && ratio >= 1.0 / factor
            }
            Self::Margin(margin) => (measured - value).abs() <= margin + slack,
            Self::AtLeast => measured >= value - slack,
            Self::AtMost => measured <= value + slack,
            Self::Range => {
                stated.low.is_some_and(|low| measured >= low)
                    && stated.high.is_some_and(|high| measured <= high)
            }
        }
    }

    fn words(self, stated: &Stated) -> String {
        let unit = &stated.unit;
        match self {
            Self::Within(factor) => format!("allowed: a factor of {}", shown(factor)),
            Self::Margin(0.0) => "allowed: no difference".into(),
            Self::Margin(margin) => format!("allowed: a difference of {}", with_unit(margin, unit)),
            Self::AtLeast => "allowed: at least the stated number".into(),
            Self::AtMost => "allowed: at most the stated number".into(),
            Self::Range => "allowed: the stated range".into(),
        }
    }
}

/// The reason with its numbers.
fn because(claim: &Claim, facts: &Facts) -> String {
    let piece = |words: &Words| match words {
        Words::Plain(text) => text.clone(),
        Words::Number(e) => e.value(facts).map_or_else(|_| "(not measured)".into(), shown),
    };
    claim.because.iter().map(piece).collect()
}

fn sources(claim: &Claim, facts: &Facts) -> Vec<String> {
    let of = |e: &Expression| {
        e.names().iter().filter_map(|name| facts.get(name)).map(|fact| fact.from.clone()).collect::<Vec<_>>()
    };
    let found = match &claim.test {
        Test::Measure(e, _) | Test::Check(e) => of(e),
        Test::Nothing => Vec::new(),
    };
    found.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// A number as text: whole numbers in full, others to three figures.
pub(super) fn shown(value: f64) -> String {
    if value == value.round() && value.abs() < 1e12 { format!("{value}") } else { number::figure(value) }
}

/// A number and its unit: `12 us`, `1.47x`, `5 %`.
pub(super) fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => shown(value),
        "x" => format!("{}x", shown(value)),
        _ => format!("{} {unit}", shown(value)),
    }
}
