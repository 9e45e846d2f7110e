//! From a claim and facts to a verdict.

use std::collections::BTreeSet;
use std::fmt::Display;

use msda_bench::report::number;
use serde::Serialize;

use super::{Claim, Claims, System};
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
        /// The measured difference is smaller than the variation of its times.
        WithinNoise,
        /// It is about a GPU that the records are not from.
        YourGpu,
        /// The document plans, expects or tries it, and states no result.
        NoResultThere,
        /// No measurement can decide it.
        CannotBeMeasured,
        /// Facts are missing.
        NotMeasuredYet,
    }
}

impl Verdict {
    /// Its name in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::OtherSize => "other size",
            Self::Opposite => "opposite",
            Self::WithinNoise => "within noise",
            Self::YourGpu => "your GPU",
            Self::NoResultThere => "no result there",
            Self::CannotBeMeasured => "cannot be measured",
            Self::NotMeasuredYet => "not measured yet",
        }
    }
}

/// A judged claim.
#[derive(Debug, Clone)]
pub struct Outcome<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The system that it is about.
    pub system: &'a System,
    /// The verdict.
    pub verdict: Verdict,
    /// The measured number, in the unit of the claim.
    pub measured: Option<f64>,
    /// How far it varies: by the tenth and the ninetieth percentile of its times.
    pub range: Option<(f64, f64)>,
    /// The facts that decide: `base.time 580 us (579 to 581)`.
    pub facts: Vec<String>,
    /// Missing facts.
    pub missing: BTreeSet<String>,
    /// The records of the facts.
    pub from: BTreeSet<String>,
}

/// Judges every claim by facts of a GPU.
pub fn judge<'a>(claims: &'a Claims, facts: &Facts, gpu: Option<&str>) -> Vec<Outcome<'a>> {
    claims.iter().map(|(system, claim)| one(system, claim, facts, gpu)).collect()
}

fn one<'a>(system: &'a System, claim: &'a Claim, facts: &Facts, gpu: Option<&str>) -> Outcome<'a> {
    let judge = &claim.judge;
    let measured = judge.measured(facts);
    let missing = judge.missing(facts);
    let is_elsewhere = |gpu: &str| !judge.on.is_empty() && !judge.on.iter().any(|own| gpu.contains(own));
    let verdict = match () {
        () if gpu.is_some_and(is_elsewhere) => Verdict::YourGpu,
        () if !missing.is_empty() => Verdict::NotMeasuredYet,
        () => judge.verdict(facts),
    };
    let known = |(short, name): (&str, String)| {
        let fact = facts.get(&name)?;
        Some((format!("{short} {}", with_range(fact.value, fact.range, &fact.unit)), fact.from.clone()))
    };
    let (facts, from) = judge.names().filter_map(known).unzip();
    let (measured, range) = measured.map_or((None, None), |m| (Some(m.value), m.range));
    Outcome { claim, system, verdict, measured, range, facts, missing, from }
}

/// A number as text: whole numbers and numbers from 100 on without decimals, others to three
/// figures.
fn shown(value: f64) -> String {
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

/// A measured number, rounded to its noise, and its range if its ends look unlike the number:
/// `1.47x (1.45 to 1.49)`.
pub(super) fn with_range(value: f64, range: Option<(f64, f64)>, unit: &str) -> String {
    let Some((low, high)) = range else { return with_unit(shown(value), unit) };
    let text = with_decimals(value, decimals(value, (low, high)));
    let number = with_unit(&text, unit);
    let [low, high] = [low, high].map(|end| with_decimals(end, decimals(value, (low, high))));
    if low == text && high == text { number } else { format!("{number} ({low} to {high})") }
}

/// A number and its unit: `12 us`, `1.47x`, `5 %`.
fn with_unit(number: impl Display, unit: &str) -> String {
    match unit {
        "" | "x" => format!("{number}{unit}"),
        _ => format!("{number} {unit}"),
    }
}
