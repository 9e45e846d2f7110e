//! The answer to the founding documents: each of their kernels, experiments and figures beside
//! ours, their contradictions, and their future work (`founding.toml`). `docs/FOUNDING.md` is made
//! from it.

mod docs;

use anyhow::{Context, Result, ensure};
use msda_bench::record::{Record, Source};
use msda_bench::report::Table;
use serde::Deserialize;

use crate::claims::{self, Claims, Outcome, Places, Words, tally};
use crate::facts::{Facts, gpus, newest_ladder, of_gpu, today};

pub use docs::{documents, page};

/// The content, without numbers.
const BUILT_IN: &str = include_str!("../../founding.toml");

/// The columns of the rows.
pub const COLUMNS: [&str; 8] = [
    "document and line",
    "system",
    "command",
    "their parameters",
    "ours",
    "their figure",
    "ours, same run",
    "verdict",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    answer: Vec<Words>,
    findings: Vec<Words>,
    row: Vec<Row>,
    contradiction: Vec<Contradiction>,
    future: Vec<Future>,
}

/// A kernel, an experiment or a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    at: Places,
    system: String,
    theirs: String,
    ours: String,
    #[serde(default)]
    rungs: Vec<String>,
    command: Option<String>,
    claims: Vec<String>,
    figure: Option<String>,
    result: Option<Words>,
}

/// Statements that contradict each other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contradiction {
    at: Places,
    says: String,
    fact: Words,
}

/// Work that the documents leave for the future.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Future {
    at: Places,
    idea: String,
    status: String,
    result: Words,
    #[serde(default)]
    rungs: Vec<String>,
    command: Option<String>,
}

/// Everything with its numbers.
#[derive(Debug, Clone)]
pub struct Founding {
    /// The GPU of the records; none without one.
    pub gpu: Option<String>,
    /// The record of the ladder.
    pub record: Option<String>,
    /// The answer, in sentences.
    pub answer: Vec<String>,
    /// One row per kernel, experiment and figure; see [`COLUMNS`].
    pub rows: Vec<[String; 8]>,
    /// Lines, what they say, and the facts.
    pub contradictions: Vec<[String; 3]>,
    /// Lines, idea, status, result, command.
    pub future: Vec<[String; 5]>,
    findings: Vec<String>,
    totals: Table,
    documents: Vec<claims::Document>,
    ladder: Option<Record>,
}

impl Founding {
    /// Made from records of the GPU that the newest record is from.
    pub fn of(sources: Vec<Source>) -> Result<Self> {
        let gpu = gpus(&sources).into_iter().next();
        let sources = of_gpu(sources, gpu.as_deref());
        let claims = Claims::built_in()?;
        let facts = Facts::of(&sources)?;
        let outcomes = claims::judge(&claims, &facts, gpu.as_deref());
        let data: Data = toml::from_str(&claims.expand(BUILT_IN)).context("founding.toml")?;
        let records: Vec<Source> =
            sources.into_iter().map(|s| Source { record: today(&s.record), ..s }).collect();
        let ladder = newest_ladder(records.iter().map(|s| &s.record)).cloned();
        let record = records.iter().find(|s| Some(&s.record) == ladder.as_ref());
        let contradiction = |c: &Contradiction| [c.at.to_string(), c.says.clone(), c.fact.text(&facts)];
        let verdicts = claims::summary(&outcomes).join("; ");
        let answer = data.answer.iter().map(|words| words.text(&facts));
        Ok(Self {
            gpu,
            record: record.map(|s| within_records(&s.label)),
            answer: std::iter::once(format!("Verdicts on all statements: {verdicts}."))
                .chain(answer)
                .collect(),
            findings: data.findings.iter().map(|words| words.text(&facts)).collect(),
            rows: data.row.iter().map(|r| row(r, &facts, &outcomes)).collect::<Result<_>>()?,
            contradictions: data.contradiction.iter().map(contradiction).collect(),
            future: data.future.iter().map(|f| future(f, &facts)).collect::<Result<_>>()?,
            totals: totals(&claims, &outcomes),
            documents: claims.documents,
            ladder,
        })
    }
}

/// The path of a record from the folder of records on.
fn within_records(label: &str) -> String {
    label.rfind("records/").map_or(label, |at| &label[at..]).to_owned()
}

/// Verdicts per document. A claim of two documents counts in both; the last line counts it once.
fn totals(claims: &Claims, outcomes: &[Outcome<'_>]) -> Table {
    let of = |n: usize| outcomes.iter().filter(|o| o.claim.is_of(n)).collect();
    let documents = claims.documents.iter().map(|d| ([d.number.to_string()], of(d.number)));
    tally(["document"], documents.chain([(["all".into()], outcomes.iter().collect())]))
}

fn row(row: &Row, facts: &Facts, outcomes: &[Outcome<'_>]) -> Result<[String; 8]> {
    let find = |id: &String| {
        outcomes.iter().find(|o| o.claim.id == *id).with_context(|| format!("founding.toml: no claim {id}"))
    };
    let own: Vec<&Outcome<'_>> = row.claims.iter().map(find).collect::<Result<_>>()?;
    ensure!(!own.is_empty(), "founding.toml: row {}: got no claim, expected at least one", row.system);
    let join = |of: &dyn Fn(&Outcome<'_>) -> String| own.iter().map(|o| of(o)).collect::<Vec<_>>().join("; ");
    let time = row.rungs.last().and_then(|rung| {
        let time = facts.get(&format!("bench.seed.f16.forward.cuda:ladder:{rung}.time"))?;
        Some(format!("{} us", claims::shown(time.value)))
    });
    let measured = match &row.result {
        Some(result) => result.text(facts),
        None => join(&|o| claims::measured(o)),
    };
    // A time that a claim states is not repeated.
    let time = time.filter(|time| !measured.contains(time.as_str()));
    let verdicts: Vec<&str> = own.iter().map(|o| o.verdict.name()).collect();
    let alike = verdicts.iter().all(|v| *v == verdicts[0]);
    Ok([
        row.at.to_string(),
        row.system.clone(),
        command(&row.system, &row.command, &row.rungs)?,
        row.theirs.clone(),
        row.ours.clone(),
        row.figure.clone().unwrap_or_else(|| join(&|o| figure(o))),
        time.into_iter().chain([measured]).collect::<Vec<_>>().join("; "),
        if alike { verdicts[0].into() } else { verdicts.join("; ") },
    ])
}

/// The stated number; "a gain" for a claim that says no more.
fn figure(outcome: &Outcome<'_>) -> String {
    match outcome.claim.value {
        Some(0.0) => "a gain".into(),
        _ => claims::stated(outcome.claim),
    }
}

fn future(future: &Future, facts: &Facts) -> Result<[String; 5]> {
    let Future { at, idea, status, result, rungs, command: given } = future;
    let command = command(idea, given, rungs)?;
    Ok([at.to_string(), idea.clone(), status.clone(), result.text(facts), command])
}

/// A command from the file, or the one that times rungs in one run.
fn command(name: &str, command: &Option<String>, rungs: &[String]) -> Result<String> {
    let one = command.is_some() == rungs.is_empty();
    ensure!(one, "founding.toml: {name}: expected rungs or a command, and not both");
    let options = || rungs.iter().map(|rung| format!(" --rung {rung}")).collect::<String>();
    Ok(command.clone().unwrap_or_else(|| format!("msda-study bench --workload seed{}", options())))
}

#[cfg(test)]
mod tests;
