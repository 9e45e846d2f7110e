//! What a document states, and how facts decide: `1.08x gain: a.time / b.time`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::Verdict;
use crate::facts::Facts;

/// How names of facts begin in the table, and in full. All other names are of rungs on the seed
/// shape, in f16, with samples anywhere.
const SHORT: [(&str, &str); 12] = [
    ("near:", "bench.seed.f16.forward.cuda:ladder:"),
    ("bare:", "bench.seed-bare-uniform.f16.forward.cuda:ladder:"),
    ("counters:", "analyze.seed.f16.ladder:"),
    ("outputs:", "verify.seed-ring-uniform.f16.ladder:"),
    ("tma64.", "probe.tma-tile.queries-1000.tma-64."),
    ("tma64-10k.", "probe.tma-tile.queries-10000.tma-64."),
    ("tile.", "probe.tma-tile.queries-1000."),
    ("copies.", "probe.copy-styles."),
    ("probe.", "probe."),
    ("seed.", "seed."),
    ("arch.", "arch."),
    ("machine.", "machine."),
];
const RUNGS: &str = "bench.seed-ring-uniform.f16.forward.cuda:ladder:";

/// The full name of a fact.
fn full(name: &str) -> String {
    let short = SHORT.iter().find_map(|(short, long)| Some((long, name.strip_prefix(short)?)));
    let (begins, rest) = short.unwrap_or((&RUNGS, name));
    format!("{begins}{rest}")
}

/// A number of a comparison: a fact, times a factor.
#[derive(Debug, Clone, PartialEq)]
struct Side {
    factor: f64,
    /// The fact as the table names it; none for a number alone.
    name: Option<String>,
}

/// A number that varies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    /// The number.
    pub value: f64,
    /// From the tenth to the ninetieth percentile of its times, if it varies.
    pub range: Option<(f64, f64)>,
}

impl Measured {
    fn low(self) -> f64 {
        self.range.map_or(self.value, |(low, _)| low)
    }

    fn high(self) -> f64 {
        self.range.map_or(self.value, |(_, high)| high)
    }

    /// Both ends and the number, changed alike.
    fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self { value: change(self.value), range: self.range.map(|(low, high)| (change(low), change(high))) }
    }
}

impl Side {
    /// `name`, `2 * name` or `2`.
    fn parse(text: &str) -> Result<Self> {
        let (factor, name) = match (text.split_once(" * "), text.parse()) {
            (Some((factor, name)), _) => {
                (factor.parse().with_context(|| format!("factor: got '{factor}'"))?, name)
            }
            (None, Ok(number)) => return Ok(Self { factor: number, name: None }),
            (None, Err(_)) => (1.0, text),
        };
        ensure!(!name.is_empty() && !name.contains(' '), "fact: got '{name}', expected a name");
        Ok(Self { factor, name: Some(name.into()) })
    }

    /// None if the fact is missing.
    fn read(&self, facts: &Facts) -> Option<Measured> {
        let Some(name) = &self.name else { return Some(Measured { value: self.factor, range: None }) };
        let fact = facts.get(&full(name))?;
        Some(Measured { value: fact.value, range: fact.range }.map(|x| x * self.factor))
    }
}

/// When facts agree with a statement.
#[derive(Debug, Clone, PartialEq)]
enum Rule {
    /// Arithmetic over the documents' own numbers decides, or nothing can.
    Given(Verdict),
    /// The larger number is at most this many times the smaller.
    Within(f64),
    /// The number is in the stated range.
    In,
    /// A gain in percent, or a speed-up: both gain or both lose, and they differ by at most a
    /// quarter of the stated gain or 2 points, or it is in the stated range.
    Gain,
    /// Each first number is less than the second.
    Holds,
}

/// What a document states, and how facts decide.
///
/// `[planned] [FIGURE] RULE [on GPU or GPU]: FACTS`, or `given VERDICT`. A figure is a number or a
/// range with its unit. Rules are `within FACTOR`, `in`, `gain` and `holds`. Facts are one number
/// or a ratio, or for `holds` comparisons: `a < b and 2 * a < c`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Judge {
    /// The figure as text; empty if it states none.
    pub figure: String,
    /// Its ends, which are the same for a single number.
    stated: (f64, f64),
    /// Its unit.
    pub unit: String,
    /// Whether the document plans or tries it, and states no result.
    pub planned: bool,
    /// GPUs that a time or a rate is about; empty if it is about any GPU.
    pub on: Vec<String>,
    rule: Rule,
    /// Pairs: the parts of a ratio, or of comparisons.
    facts: Vec<(Side, Option<Side>)>,
}

impl TryFrom<String> for Judge {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text).with_context(|| format!("got '{text}'"))
    }
}

impl Judge {
    fn parse(text: &str) -> Result<Self> {
        let empty = Self {
            figure: String::new(),
            stated: (f64::NAN, f64::NAN),
            unit: String::new(),
            planned: false,
            on: Vec::new(),
            rule: Rule::Holds,
            facts: Vec::new(),
        };
        if let Some(verdict) = text.strip_prefix("given ") {
            let known = Verdict::ALL.into_iter().find(|v| v.name() == verdict);
            return Ok(Self {
                rule: Rule::Given(known.context("expected a verdict after 'given'")?),
                ..empty
            });
        }
        let (head, facts) = text.split_once(": ").context("expected 'RULE: FACTS'")?;
        let (head, on) = head.split_once(" on ").unwrap_or((head, ""));
        let (planned, head) = head.strip_prefix("planned ").map_or((false, head), |rest| (true, rest));
        let words: Vec<&str> = head.split(' ').collect();
        let at = words.iter().position(|word| ["within", "in", "gain", "holds"].contains(word));
        let (figure, rule) = words.split_at(at.context("expected a rule")?);
        let rule = match rule {
            ["within", factor] => Rule::Within(factor.parse()?),
            ["in"] => Rule::In,
            ["gain"] => Rule::Gain,
            ["holds"] => Rule::Holds,
            other => bail!("rule: got '{}'", other.join(" ")),
        };
        let (low, high, unit) = match figure {
            [] => ("NaN", "NaN", if planned && rule == Rule::Gain { "%" } else { "" }),
            [low, "to", high, unit] => (*low, *high, *unit),
            [number, unit] => (*number, *number, *unit),
            [number] => number.strip_suffix('x').map_or((*number, *number, ""), |n| (n, n, "x")),
            other => bail!("figure: got '{}'", other.join(" ")),
        };
        let separator = if rule == Rule::Holds { " < " } else { " / " };
        let pair = |part: &str| match part.split_once(separator) {
            Some((one, other)) => Ok((Side::parse(one)?, Some(Side::parse(other)?))),
            None => Ok((Side::parse(part)?, None)),
        };
        let facts = facts.split(" and ").map(pair).collect::<Result<Vec<_>>>()?;
        let compares = facts.iter().all(|(_, other)| other.is_some());
        ensure!(rule != Rule::Holds || compares, "expected 'A < B'");
        ensure!(rule != Rule::Gain || compares, "expected 'A / B'");
        ensure!(rule == Rule::Holds || facts.len() == 1, "expected one number or ratio");
        let stated: (f64, f64) = (low.parse()?, high.parse()?);
        let free = rule == Rule::Holds || planned && rule == Rule::Gain;
        ensure!(free || stated.0.is_finite(), "expected a figure");
        let on = on.split(" or ").filter(|gpu| !gpu.is_empty()).map(String::from).collect();
        Ok(Self { figure: figure.join(" "), stated, unit: unit.into(), planned, on, rule, facts })
    }

    /// The names of its facts as the table has them, in full.
    pub fn names(&self) -> impl Iterator<Item = (&str, String)> {
        let sides = self.facts.iter().flat_map(|(one, other)| [Some(one), other.as_ref()]);
        sides.flatten().filter_map(|side| side.name.as_deref()).map(|name| (name, full(name)))
    }

    /// The verdict that needs no measurement.
    pub(super) fn given(&self) -> Option<Verdict> {
        if let Rule::Given(verdict) = self.rule { Some(verdict) } else { None }
    }

    /// Whether it compares numbers without a figure: the answer is yes or no.
    pub(super) fn is_yes_or_no(&self) -> bool {
        self.rule == Rule::Holds
    }

    /// Whether arithmetic over definitions and the documents' own numbers decides.
    pub fn is_arithmetic(&self) -> bool {
        match self.given() {
            Some(verdict) => verdict != Verdict::CannotBeMeasured,
            None => self.names().all(|(name, _)| name.starts_with("seed.") || name.starts_with("arch.")),
        }
    }

    /// The measured number, in the unit of the figure.
    pub(super) fn measured(&self, facts: &Facts) -> Option<Measured> {
        let [(one, other)] = self.facts.as_slice() else { return None };
        let one = one.read(facts)?;
        let Some(other) = other.as_ref().filter(|_| !self.is_yes_or_no()) else {
            return Some(one).filter(|_| !self.is_yes_or_no());
        };
        let other = other.read(facts)?;
        let noisy = one.range.or(other.range).is_some();
        let range = (one.low() / other.high(), one.high() / other.low());
        let ratio = Measured { value: one.value / other.value, range: noisy.then_some(range) };
        Some(match (self.unit.as_str(), &self.rule) {
            ("%", Rule::Gain) => ratio.map(|x| (x - 1.0) * 100.0),
            ("%", _) => ratio.map(|x| x * 100.0),
            _ => ratio,
        })
        .filter(|m| m.value.is_finite())
    }

    /// The verdict on facts that are all known.
    pub(super) fn verdict(&self, facts: &Facts) -> Verdict {
        if let Some(given) = self.given() {
            return given;
        }
        if self.planned {
            return Verdict::NoResultThere;
        }
        match self.measured(facts) {
            Some(measured) => self.number(measured),
            None => self.comparisons(facts),
        }
    }

    fn comparisons(&self, facts: &Facts) -> Verdict {
        let mut all = Verdict::Reproduced;
        for (one, other) in &self.facts {
            let Some((one, other)) = one.read(facts).zip(other.as_ref().and_then(|side| side.read(facts)))
            else {
                return Verdict::NotMeasuredYet;
            };
            if one.low() >= other.high() {
                return Verdict::Opposite;
            }
            if one.high() >= other.low() {
                all = Verdict::WithinNoise;
            }
        }
        all
    }

    fn number(&self, measured: Measured) -> Verdict {
        let (low, high) = self.stated;
        let x = measured.value;
        // 1.47x is a gain of 47 %.
        let gain = |x: f64| if self.unit == "x" { (x - 1.0) * 100.0 } else { x };
        let inside = low <= x && x <= high;
        let agrees = match self.rule {
            Rule::Within(factor) => x == low || x / low <= factor && low / x <= factor,
            Rule::Gain if low == high => {
                let (x, stated) = (gain(x), gain(low));
                x * stated > 0.0 && (x - stated).abs() <= 2f64.max(stated.abs() / 4.0)
            }
            _ => inside,
        };
        let is_gain = self.rule == Rule::Gain;
        let noise = measured.range.is_some_and(|(low, high)| gain(low) * gain(high) <= 0.0);
        match () {
            () if is_gain && noise => Verdict::WithinNoise,
            () if agrees => Verdict::Reproduced,
            // Some instead of none, or a loss instead of a gain.
            () if low == 0.0 && low == high || is_gain && gain(low) * gain(x) <= 0.0 => Verdict::Opposite,
            () => Verdict::OtherSize,
        }
    }

    /// Facts that are missing, in full.
    pub(super) fn missing(&self, facts: &Facts) -> BTreeSet<String> {
        self.names().map(|(_, name)| name).filter(|name| facts.get(name).is_none()).collect()
    }
}
