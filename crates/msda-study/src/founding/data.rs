//! `founding.toml`.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::claims::{Claims, Places, Words};

/// The content of this crate.
const BUILT_IN: &str = include_str!("../../founding.toml");

/// The content, without numbers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Data {
    pub answer: Vec<Words>,
    pub findings: Vec<Words>,
    pub row: Vec<Row>,
    pub contradiction: Vec<Contradiction>,
    pub future: Vec<Future>,
}

/// A kernel, an experiment or a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub at: Places,
    pub system: String,
    pub theirs: String,
    pub ours: String,
    #[serde(default)]
    pub rungs: Vec<String>,
    pub command: Option<String>,
    pub claims: Vec<String>,
    pub figure: Option<String>,
    pub result: Option<Words>,
}

/// Statements that contradict each other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contradiction {
    pub at: Places,
    pub says: String,
    pub fact: Words,
}

/// Work that the documents leave for the future.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Future {
    pub at: Places,
    pub idea: String,
    pub status: String,
    pub result: Words,
    #[serde(default)]
    pub rungs: Vec<String>,
    pub command: Option<String>,
}

impl Data {
    /// The content of this crate. Names of facts are abbreviated as in the claims.
    pub(super) fn built_in(claims: &Claims) -> Result<Self> {
        let data: Self = toml::from_str(&claims.expand(BUILT_IN)).context("founding.toml")?;
        let rows = data.row.iter().map(|row| (&row.system, &row.command, &row.rungs));
        let future = data.future.iter().map(|future| (&future.idea, &future.command, &future.rungs));
        for (name, command, rungs) in rows.chain(future) {
            let one = command.is_some() == rungs.is_empty();
            ensure!(one, "founding.toml: {name}: expected rungs or a command, and not both");
        }
        Ok(data)
    }
}

/// A command from the file, or the one that times rungs in one run.
pub(super) fn command(command: Option<&str>, rungs: &[String]) -> String {
    let options = || rungs.iter().map(|rung| format!(" --rung {rung}")).collect::<String>();
    command.map_or_else(|| format!("msda-study bench --workload seed{}", options()), str::to_owned)
}
