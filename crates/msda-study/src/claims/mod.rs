//! Claims: every figure and every statement of the founding documents, judged by facts.
//!
//! `claims.toml` lists the statements, and how each is measured. Facts alone decide, so verdicts of
//! two machines can be compared. `docs/STUDY.md` has those that readers ask for ([`page()`]).

mod judge;
mod lines;
mod page;
mod rule;
mod show;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

pub use judge::{Outcome, Verdict, judge};
pub use lines::{Lines, Places};
pub use page::page;
pub use rule::Judge;
pub use show::{commands, json, overview, terminal};

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
}

/// A document.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Document {
    /// Its number, from 1.
    pub number: usize,
    /// Its title.
    pub title: String,
    /// Its lines with text: no headings, no empty lines, no marks of code blocks and tables. Each
    /// belongs to a claim or is left out.
    pub lines: Lines,
    /// Lines without a statement to judge, and the reason.
    pub left_out: Vec<(Lines, String)>,
}

/// A kernel, an experiment or a part of the hardware that claims are about.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its name.
    pub name: String,
    /// Where the documents describe it.
    pub at: Places,
    /// Claims of the page.
    #[serde(default)]
    pub page: Vec<Claim>,
    /// All others.
    #[serde(default)]
    pub list: Vec<Claim>,
}

/// One statement: a row of the table.
#[derive(Debug, Clone, Deserialize)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// The lines that state it.
    pub at: Places,
    /// The statement, in short.
    pub says: String,
    /// The number that it states, and how facts decide.
    pub judge: Judge,
    /// A reason for the verdict.
    pub why: String,
}

impl Claim {
    /// Whether a document makes it.
    pub fn is_of(&self, document: usize) -> bool {
        self.at.of(document).next().is_some()
    }
}

impl Claims {
    /// The claims of this crate.
    pub fn built_in() -> Result<Self> {
        Self::parse(BUILT_IN).context("claims.toml")
    }

    /// Claims from their text.
    pub fn parse(text: &str) -> Result<Self> {
        let all: Self = toml::from_str(text)?;
        let mut ids = BTreeSet::new();
        for (_, Claim { id, at, .. }) in all.iter() {
            ensure!(ids.insert(id), "claim {id}: got two of that name, expected one");
            let listed = |document| all.documents.iter().any(|d| d.number == document);
            let wrong = at.places.iter().find(|(document, _)| !listed(*document));
            ensure!(wrong.is_none(), "claim {id}: got document {wrong:?}, expected one that is listed");
        }
        Ok(all)
    }

    /// Every claim with its system, in the order of lists.
    pub fn iter(&self) -> impl Iterator<Item = (&System, &Claim)> {
        self.systems.iter().flat_map(|s| s.page.iter().chain(&s.list).map(move |claim| (s, claim)))
    }
}

#[cfg(test)]
mod tests;
