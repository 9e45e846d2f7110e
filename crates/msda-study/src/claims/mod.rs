//! Claims: every figure and every statement of the founding documents, judged by facts.
//!
//! `claims.toml` lists the statements of each document, and how each is measured. Facts alone
//! decide, so verdicts of two machines can be compared. A claim that was not measured names the
//! command that measures it.

mod judge;
mod show;
mod system;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::facts::Expression;

pub use judge::{Outcome, Verdict, judge};
pub use show::{commands, json, markdown, measured, overview, source, stated, summary, terminal};
pub use system::{SEVERAL, STATEMENT};

/// The claims of this crate.
const BUILT_IN: &str = include_str!("../../claims.toml");

/// All claims, and the documents that make them.
#[derive(Debug, Clone)]
pub struct Claims {
    /// The documents, by number.
    pub documents: Vec<Document>,
    /// Their claims, in their order.
    pub claims: Vec<Claim>,
}

/// A document.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Document {
    /// Its number, from 1.
    pub number: usize,
    /// Its title.
    pub title: String,
    /// Its lines that have digits. Each belongs to a claim or is left out.
    pub digits: Vec<usize>,
    /// Lines without a statement to judge.
    pub left_out: Vec<LeftOut>,
}

/// Lines without a statement to judge.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Their numbers.
    pub lines: Vec<usize>,
    /// Why.
    pub why: String,
}

/// One statement.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// The number of the document that makes it.
    pub document: usize,
    /// The heading that it stands under.
    pub at: String,
    /// The lines that state it.
    pub lines: Vec<usize>,
    /// The statement, in short.
    pub says: String,
    /// The number that it states.
    pub stated: Stated,
    /// How it is judged.
    pub test: Test,
    /// GPUs that a time or a rate is about; empty if it is about any GPU.
    pub on: Vec<String>,
    /// Why it cannot be compared; none if it can.
    pub incomparable: Option<String>,
    /// The reason for the verdict: words and expressions.
    pub because: Vec<Words>,
    /// The system that it is about, if the file names one; otherwise [`Claim::systems`] finds it.
    pub system: Option<String>,
}

/// A number that a claim states, or a range.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stated {
    /// The number.
    pub value: Option<f64>,
    /// The low end of a range.
    pub low: Option<f64>,
    /// The high end of a range.
    pub high: Option<f64>,
    /// Their unit.
    pub unit: String,
}

/// How a claim is judged.
#[derive(Debug, Clone)]
pub enum Test {
    /// By a number.
    Measure(Expression, Rule),
    /// By a condition.
    Check(Expression),
    /// Not at all.
    Nothing,
}

/// When a measured number agrees with a stated one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The larger is at most this many times the smaller.
    Within(f64),
    /// They differ by at most this.
    Margin(f64),
    /// The measured number is at least the stated one.
    AtLeast,
    /// The measured number is at most the stated one.
    AtMost,
    /// The measured number is in the range.
    Range,
}

/// A piece of an explanation.
#[derive(Debug, Clone)]
pub enum Words {
    /// Text.
    Plain(String),
    /// An expression, shown as a number.
    Number(Expression),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    short: BTreeMap<String, String>,
    document: Vec<Document>,
    claim: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    document: usize,
    at: String,
    lines: Vec<usize>,
    says: String,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    #[serde(default)]
    unit: String,
    measure: Option<String>,
    check: Option<String>,
    rule: Option<String>,
    #[serde(default)]
    on: Vec<String>,
    comparable: Option<bool>,
    reason: Option<String>,
    #[serde(default)]
    because: String,
    system: Option<String>,
}

impl Claims {
    /// The claims of this crate.
    pub fn built_in() -> Result<Self> {
        Self::parse(BUILT_IN).context("claims.toml")
    }

    /// Claims from their text.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let full = |name: &str| {
            let short = file.short.iter().filter(|(short, _)| name.starts_with(*short));
            // The longest match wins: `ladder:base` may be another abbreviation than `ladder:`.
            match short.max_by_key(|(short, _)| short.len()) {
                Some((short, long)) => format!("{long}{}", &name[short.len()..]),
                None => name.to_owned(),
            }
        };
        let mut ids = BTreeSet::new();
        let mut claims = Vec::new();
        for entry in file.claim {
            let id = entry.id.clone();
            ensure!(ids.insert(id.clone()), "claim {id}: got two of that name, expected one");
            ensure!(
                file.document.iter().any(|d| d.number == entry.document),
                "claim {id}: got document {}, expected one that is listed",
                entry.document
            );
            claims.push(entry.read(&full).with_context(|| format!("claim {id}"))?);
        }
        Ok(Self { documents: file.document, claims })
    }

    /// The document that makes a claim.
    pub fn document(&self, claim: &Claim) -> Option<&Document> {
        self.documents.iter().find(|d| d.number == claim.document)
    }
}

impl Entry {
    fn read(self, full: &dyn Fn(&str) -> String) -> Result<Claim> {
        let parse = |text: &str| Expression::parse(text, full);
        let stated = Stated { value: self.value, low: self.low, high: self.high, unit: self.unit };
        let test = match (&self.measure, &self.check) {
            (Some(measure), None) => Test::Measure(parse(measure)?, rule(self.rule.as_deref(), &stated)?),
            (None, Some(check)) => Test::Check(parse(check)?),
            (None, None) => Test::Nothing,
            (Some(_), Some(_)) => bail!("got both 'measure' and 'check', expected one"),
        };
        let incomparable = match (self.comparable, self.reason) {
            (Some(false), Some(reason)) => Some(reason),
            (Some(false), None) => bail!("comparable = false: expected a reason"),
            (_, Some(_)) => bail!("reason: expected comparable = false beside it"),
            (_, None) => None,
        };
        ensure!(
            incomparable.is_some() || !matches!(test, Test::Nothing),
            "got neither 'measure' nor 'check', expected one, or comparable = false"
        );
        Ok(Claim {
            id: self.id,
            document: self.document,
            at: self.at,
            lines: self.lines,
            says: self.says,
            stated,
            test,
            on: self.on,
            incomparable,
            because: words(&self.because, &parse)?,
            system: self.system,
        })
    }
}

/// `within 1.2`, `margin 3`, `at least`, `at most`; a range needs no rule.
fn rule(text: Option<&str>, stated: &Stated) -> Result<Rule> {
    let rule = match text.map(|text| text.split_whitespace().collect::<Vec<_>>()).as_deref() {
        None if stated.low.is_some() && stated.high.is_some() => return Ok(Rule::Range),
        Some(["within", factor]) => Rule::Within(factor.parse()?),
        Some(["margin", margin]) => Rule::Margin(margin.parse()?),
        Some(["at", "least"]) => Rule::AtLeast,
        Some(["at", "most"]) => Rule::AtMost,
        _ => bail!(
            "rule: got {text:?}, expected 'within FACTOR', 'margin NUMBER', 'at least', 'at most', or low and high"
        ),
    };
    ensure!(stated.value.is_some(), "rule {rule:?}: expected a value");
    Ok(rule)
}

fn words(text: &str, parse: &impl Fn(&str) -> Result<Expression>) -> Result<Vec<Words>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inside, after)) = after.split_once('}') else {
            bail!("because: got '{text}', expected a '}}' for every '{{'");
        };
        all.push(Words::Plain(before.into()));
        all.push(Words::Number(parse(inside)?));
        rest = after;
    }
    all.push(Words::Plain(rest.into()));
    Ok(all)
}

#[cfg(test)]
mod tests;
