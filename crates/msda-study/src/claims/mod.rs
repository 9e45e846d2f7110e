//! Claims: every figure and every yes or no of the documents that the project started from, held against facts.
//!
//! `claims.toml` says what each document states, and how it is measured. A claim is judged by facts alone, so that the
//! verdicts of two machines can be compared, and one that was not measured says what would measure it.

mod judge;
mod show;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::facts::Expression;

pub use judge::{Outcome, Verdict, judge};
pub use show::{commands, json, markdown, measured, stated, summary, terminal};

/// The claims that come with the lab.
const BUILT_IN: &str = include_str!("../../claims.toml");

/// All claims, and the documents that make them.
#[derive(Debug, Clone)]
pub struct Claims {
    /// The documents, by number.
    pub documents: Vec<Document>,
    /// What they claim, in their order.
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
    /// Its lines with digits in them: each belongs to a claim or is left out.
    pub digits: Vec<usize>,
    /// Lines that state nothing to be judged.
    pub left_out: Vec<LeftOut>,
}

/// Lines that state nothing to be judged.
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
    /// Under which heading.
    pub at: String,
    /// In which lines.
    pub lines: Vec<usize>,
    /// What it says, in short.
    pub says: String,
    /// What it states.
    pub stated: Stated,
    /// How it is judged.
    pub test: Test,
    /// GPUs that a figure in units of time or rate is about; empty for what holds anywhere.
    pub on: Vec<String>,
    /// Why it cannot be compared with anything, where it cannot.
    pub incomparable: Option<String>,
    /// Why the verdict is what it is: words, with expressions between braces.
    pub because: Vec<Words>,
}

/// A number that a claim states, or a range.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stated {
    /// The number.
    pub value: Option<f64>,
    /// Where a range begins.
    pub low: Option<f64>,
    /// Where it ends.
    pub high: Option<f64>,
    /// Their unit.
    pub unit: String,
}

/// How a claim is judged.
#[derive(Debug, Clone)]
pub enum Test {
    /// By a number.
    Measure(Expression, Rule),
    /// By a statement that is true or not.
    Check(Expression),
    /// Not at all.
    Nothing,
}

/// When a measured number agrees with a stated one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Neither is more than this many times the other.
    Within(f64),
    /// They differ by no more than this.
    Margin(f64),
    /// It is no less.
    AtLeast,
    /// It is no more.
    AtMost,
    /// It is in the range.
    Range,
}

/// A piece of an explanation.
#[derive(Debug, Clone)]
pub enum Words {
    /// As it stands.
    Plain(String),
    /// A number.
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
}

impl Claims {
    /// The claims that come with the lab.
    pub fn built_in() -> Result<Self> {
        Self::parse(BUILT_IN).context("claims.toml")
    }

    /// Claims from their text.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let full = |name: &str| {
            let short = file.short.iter().filter(|(short, _)| name.starts_with(*short));
            // The longest: `ladder:base` may mean something else than `ladder:`.
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
