//! `founding.toml`.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::claims::{Claims, Place, Words};

/// The content of this crate.
const BUILT_IN: &str = include_str!("../../founding.toml");

/// The content, without numbers.
#[derive(Debug)]
pub(super) struct Data {
    pub answer: Vec<Words>,
    pub findings: Vec<Words>,
    pub row: Vec<Row>,
    pub contradiction: Vec<Contradiction>,
    pub future: Vec<Future>,
}

/// A kernel, an experiment or a figure.
#[derive(Debug)]
pub(super) struct Row {
    pub at: Vec<Place>,
    pub system: String,
    pub theirs: String,
    pub ours: String,
    pub rungs: Vec<String>,
    pub claims: Vec<String>,
    pub figure: Option<String>,
    pub result: Option<Words>,
    command: Option<String>,
}

/// Statements that contradict each other.
#[derive(Debug)]
pub(super) struct Contradiction {
    pub at: Vec<Place>,
    pub says: String,
    pub fact: Words,
}

/// Work that the documents leave for the future.
#[derive(Debug)]
pub(super) struct Future {
    pub at: Vec<Place>,
    pub idea: String,
    pub status: String,
    pub result: Words,
    rungs: Vec<String>,
    command: Option<String>,
}

impl Row {
    /// The command that measures it.
    pub(super) fn command(&self) -> String {
        command(self.command.as_deref(), &self.rungs)
    }
}

impl Future {
    /// The command that measures it.
    pub(super) fn command(&self) -> String {
        command(self.command.as_deref(), &self.rungs)
    }
}

/// A command from the file, or the one that times rungs in one run.
fn command(command: Option<&str>, rungs: &[String]) -> String {
    let options = || rungs.iter().map(|rung| format!(" --rung {rung}")).collect::<String>();
    command.map_or_else(|| format!("msda-study bench --workload seed{}", options()), str::to_owned)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    answer: Vec<String>,
    findings: Vec<String>,
    row: Vec<RowEntry>,
    contradiction: Vec<ContradictionEntry>,
    future: Vec<FutureEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowEntry {
    at: String,
    system: String,
    theirs: String,
    ours: String,
    #[serde(default)]
    rungs: Vec<String>,
    command: Option<String>,
    claims: Vec<String>,
    figure: Option<String>,
    result: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContradictionEntry {
    at: String,
    says: String,
    fact: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FutureEntry {
    at: String,
    idea: String,
    status: String,
    result: String,
    #[serde(default)]
    rungs: Vec<String>,
    command: Option<String>,
}

impl Data {
    /// The content of this crate. Names of facts are abbreviated as in the claims.
    pub(super) fn built_in(claims: &Claims) -> Result<Self> {
        Self::parse(BUILT_IN, &|name| claims.full(name)).context("founding.toml")
    }

    fn parse(text: &str, full: &dyn Fn(&str) -> String) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let words = |text: &String| Words::parse(text, full).with_context(|| text.clone());
        let row = |entry: RowEntry| {
            ensure!(
                entry.command.is_some() == entry.rungs.is_empty(),
                "row {}: expected rungs or a command, and not both",
                entry.system
            );
            Ok(Row {
                at: Place::parse(&entry.at)?,
                result: entry.result.as_ref().map(words).transpose()?,
                system: entry.system,
                theirs: entry.theirs,
                ours: entry.ours,
                rungs: entry.rungs,
                claims: entry.claims,
                figure: entry.figure,
                command: entry.command,
            })
        };
        let contradiction = |entry: ContradictionEntry| {
            Ok(Contradiction { at: Place::parse(&entry.at)?, fact: words(&entry.fact)?, says: entry.says })
        };
        let future = |entry: FutureEntry| {
            ensure!(
                entry.command.is_some() == entry.rungs.is_empty(),
                "future work {}: expected rungs or a command, and not both",
                entry.idea
            );
            Ok(Future {
                at: Place::parse(&entry.at)?,
                result: words(&entry.result)?,
                idea: entry.idea,
                status: entry.status,
                rungs: entry.rungs,
                command: entry.command,
            })
        };
        Ok(Self {
            answer: file.answer.iter().map(words).collect::<Result<_>>()?,
            findings: file.findings.iter().map(words).collect::<Result<_>>()?,
            row: file.row.into_iter().map(row).collect::<Result<_>>()?,
            contradiction: file.contradiction.into_iter().map(contradiction).collect::<Result<_>>()?,
            future: file.future.into_iter().map(future).collect::<Result<_>>()?,
        })
    }
}
