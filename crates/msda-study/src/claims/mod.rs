//! Claims: every figure and every statement of the founding documents, judged by facts.
//!
//! `claims.toml` lists the statements, and how each is measured. Facts alone decide, so verdicts of
//! two machines can be compared. A claim that was not measured names the command that measures it.

mod judge;
mod lines;
mod rule;
mod show;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::facts::Expression;

pub use judge::{Outcome, Verdict, judge, shown, with_range};
pub use lines::{Lines, Places};
pub use rule::Rule;
pub use show::{by_system, commands, counts, json, measured, overview, stated, summary, tally, terminal};
pub use words::{ABSENT, Words};

/// The claims of this crate.
const BUILT_IN: &str = include_str!("../../claims.toml");

/// All claims, and the documents that make them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The documents, by number.
    #[serde(rename = "document")]
    pub documents: Vec<Document>,
    /// The systems that the claims are about, in the order of lists.
    #[serde(rename = "system")]
    pub systems: Vec<System>,
    /// The claims.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
    /// Abbreviations of names of facts.
    #[serde(default)]
    short: BTreeMap<String, String>,
    /// Rules by name.
    #[serde(default)]
    rules: BTreeMap<String, String>,
}

/// A document.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Document {
    /// Its number, from 1.
    pub number: usize,
    /// Its title.
    pub title: String,
    /// What it states, in brief.
    pub brief: String,
    /// Its lines with text: no headings, no empty lines, no marks of code blocks and tables. Each
    /// belongs to a claim or is left out.
    pub lines: Lines,
    /// Lines without a statement to judge.
    pub left_out: Vec<LeftOut>,
}

/// Lines without a statement to judge.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// The lines.
    pub lines: Lines,
    /// The reason.
    pub why: String,
}

/// A kernel, an experiment or a part of the hardware that claims are about.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its name.
    pub name: String,
    /// Where the documents describe it.
    pub at: Places,
}

/// One statement.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// The system that it is about.
    pub system: String,
    /// The lines that state it.
    pub at: Places,
    /// The statement, in short.
    pub says: String,
    /// The number that it states.
    pub value: Option<f64>,
    /// The low end of a range that it states.
    pub low: Option<f64>,
    /// The high end.
    pub high: Option<f64>,
    /// Their unit.
    #[serde(default)]
    pub unit: String,
    /// The measured number; it is compared with the stated one by the rule.
    pub measure: Option<Expression>,
    /// A condition that decides.
    pub check: Option<Expression>,
    /// The rule, or its name among the rules of the file.
    rule: Option<String>,
    /// GPUs that a time or a rate is about; empty if it is about any GPU.
    #[serde(default)]
    pub on: Vec<String>,
    /// Whether the document only plans or expects it.
    #[serde(default)]
    pub planned: bool,
    /// Why it cannot be measured; none if it can.
    pub reason: Option<String>,
    /// The reason for the verdict.
    #[serde(default)]
    pub because: Words,
}

impl Claim {
    /// Whether a document makes it.
    pub fn is_of(&self, document: usize) -> bool {
        self.at.of(document).next().is_some()
    }

    /// The expression that decides.
    pub fn expression(&self) -> Option<&Expression> {
        self.measure.as_ref().or(self.check.as_ref())
    }

    /// Whether arithmetic over definitions and the documents' own numbers decides. No measurement
    /// is needed then.
    pub fn is_arithmetic(&self) -> bool {
        let defined = |name: &String| DEFINED.iter().any(|d| name.starts_with(d));
        self.reason.is_none() && self.expression().is_some_and(|e| e.names().iter().all(defined))
    }

    /// Refuses a claim that cannot be judged.
    fn check(&self) -> Result<()> {
        match (&self.measure, &self.check, &self.reason) {
            (Some(_), None, _) => self.rule().map(drop),
            (None, Some(_), _) | (None, None, Some(_)) => Ok(()),
            (None, None, None) => {
                bail!(
                    "got neither 'measure' nor 'check', expected one, or a reason why it cannot be measured"
                )
            }
            (Some(_), Some(_), _) => bail!("got both 'measure' and 'check', expected one"),
        }
    }
}

/// How the names of facts begin that need no measurement.
const DEFINED: [&str; 2] = ["seed.", "arch."];

impl Claims {
    /// The claims of this crate.
    pub fn built_in() -> Result<Self> {
        Self::parse(BUILT_IN).context("claims.toml")
    }

    /// Claims from their text.
    pub fn parse(text: &str) -> Result<Self> {
        let short = toml::from_str::<toml::Table>(text)?.remove("short");
        let short = short.map_or(Ok(BTreeMap::new()), toml::Value::try_into)?;
        let mut all: Self = toml::from_str(&expand(text, &short))?;
        let mut ids = BTreeSet::new();
        for claim in &mut all.claims {
            let id = &claim.id;
            ensure!(ids.insert(id.clone()), "claim {id}: got two of that name, expected one");
            if let Some(rule) = claim.rule.as_ref().and_then(|name| all.rules.get(name)) {
                claim.rule = Some(rule.clone());
            }
            claim.check().with_context(|| format!("claim {id}"))?;
            for (document, _) in &claim.at.places {
                let listed = all.documents.iter().any(|d| d.number == *document);
                ensure!(listed, "claim {id}: got document {document}, expected one that is listed");
            }
            let (system, listed) = (&claim.system, all.systems.iter().any(|s| s.name == claim.system));
            ensure!(listed, "claim {id}: got system '{system}', expected one that is listed");
        }
        Ok(all)
    }

    /// A text with full names of facts.
    pub(crate) fn expand(&self, text: &str) -> String {
        expand(text, &self.short)
    }
}

/// A text whose names between backticks are written in full. The longest abbreviation that fits
/// counts: `ladder:base` may be another one than `ladder:`.
fn expand(text: &str, short: &BTreeMap<String, String>) -> String {
    let full = |name: &str| {
        let fits = short.iter().filter(|(short, _)| name.starts_with(*short));
        let longest = fits.max_by_key(|(short, _)| short.len());
        longest.map_or(name.to_owned(), |(short, long)| format!("{long}{}", &name[short.len()..]))
    };
    let expand_line = |line: &str| {
        let part = |(i, part): (usize, &str)| if i % 2 == 1 { full(part) } else { part.to_owned() };
        line.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
    };
    text.lines().map(|line| expand_line(line) + "\n").collect()
}

#[cfg(test)]
mod tests;
