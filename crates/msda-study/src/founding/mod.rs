//! The answer to the founding documents: each of their figures beside ours, their contradictions,
//! and their future work (`founding.toml`). `docs/FOUNDING.md` is made from it.

mod docs;

use anyhow::{Context, Result, bail, ensure};
use msda_bench::record::Source;
use msda_bench::report::Table;
use serde::Deserialize;

use crate::claims::{self, Claims, Outcome, Places, Verdict, Words, tally};
use crate::facts::{Facts, gpus, newest_ladder, of_gpu, today};

pub use docs::{Form, documents, page};

/// The content, without numbers.
const BUILT_IN: &str = include_str!("../../founding.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Data {
    about: Vec<String>,
    on_h200: String,
    eight_bit: Vec<Words>,
    findings: Vec<Words>,
    answer: Vec<Answer>,
    row: Vec<Row>,
    table: Vec<Cells>,
}

/// What a document recommends, whether that is right, and what to use.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    document: usize,
    /// Each with the claim that decides whether it is right.
    recommends: Vec<(String, String)>,
    text: Words,
}

/// One figure: a claim, or their result and ours.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    at: Places,
    what: String,
    claim: Option<String>,
    theirs: Option<String>,
    ours: Option<Words>,
    #[serde(default)]
    why: Words,
}

/// A table. Cells are Markdown.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cells {
    title: String,
    columns: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Cells {
    /// The table with numbers for expressions. A column of lines has [`Places`].
    fn with(mut self, facts: &Facts) -> Result<Self> {
        for (column, cell) in self.rows.iter_mut().flat_map(|row| self.columns.iter().zip(row)) {
            *cell = match column.as_str() {
                "lines" => Places::try_from(cell.clone())?.to_string(),
                _ => Words::try_from(cell.clone())?.complete(facts),
            };
        }
        Ok(self)
    }
}

/// Everything with its numbers.
#[derive(Debug, Clone)]
pub struct Founding {
    /// The GPUs that have a record of the study, that of the newest record first.
    pub gpus: Vec<String>,
    about: Vec<String>,
    on_h200: String,
    /// A paragraph per document.
    pub answers: Vec<String>,
    /// One row per figure, with a column per GPU.
    pub figures: Cells,
    /// Their files and commands, and ours; contradictions; future work.
    pub tables: Vec<Cells>,
    eight_bit: Vec<String>,
    findings: Vec<String>,
    totals: Table,
    documents: Vec<claims::Document>,
    /// The ladder of the first GPU.
    ladder: Option<Source>,
}

/// The facts of a GPU, and the claims judged by them.
struct Measured<'a> {
    gpu: Option<String>,
    facts: Facts,
    outcomes: Vec<Outcome<'a>>,
}

impl Founding {
    /// Made from records. Sentences have the numbers of the GPU that the newest record is from.
    pub fn of(sources: Vec<Source>) -> Result<Self> {
        let claims = Claims::built_in()?;
        let data: Data = toml::from_str(&claims.expand(BUILT_IN)).context("founding.toml")?;
        let sources: Vec<Source> =
            sources.into_iter().map(|s| Source { record: today(&s.record), ..s }).collect();
        let of_study = |gpu: &String| newest_ladder(&of_gpu(&sources, Some(gpu))).is_some();
        let gpus: Vec<String> = gpus(&sources).into_iter().filter(of_study).collect();
        // Without a record of the study there is a column without a GPU.
        let columns = if gpus.is_empty() { vec![None] } else { gpus.iter().cloned().map(Some).collect() };
        let measured = |gpu: Option<String>| {
            let facts = Facts::of(&of_gpu(&sources, gpu.as_deref()))?;
            Ok(Measured { outcomes: claims::judge(&claims, &facts, gpu.as_deref()), facts, gpu })
        };
        let all = columns.into_iter().map(measured).collect::<Result<Vec<_>>>()?;
        let Measured { facts, outcomes, .. } = &all[0];
        let text = |words: &Words| words.text(facts);

        let ladder = newest_ladder(&of_gpu(&sources, gpus.first().map(String::as_str)));
        let columns = all.iter().map(|m| m.gpu.clone().unwrap_or_else(|| "ours".into()));
        let columns = ["lines", "figure", "yours"].map(String::from).into_iter().chain(columns);
        Ok(Self {
            about: data.about,
            on_h200: data.on_h200,
            answers: data.answer.iter().map(|a| answer(a, facts, outcomes)).collect::<Result<_>>()?,
            figures: Cells {
                title: "Your figures".into(),
                columns: columns.chain(["why".into()]).collect(),
                rows: data.row.iter().map(|r| row(r, &all)).collect::<Result<_>>()?,
            },
            tables: data.table.into_iter().map(|cells| cells.with(facts)).collect::<Result<_>>()?,
            eight_bit: data.eight_bit.iter().map(text).collect(),
            findings: data.findings.iter().map(text).collect(),
            totals: totals(&claims, outcomes),
            documents: claims.documents.clone(),
            gpus,
            ladder,
        })
    }
}

/// Verdicts per document. A claim of two documents counts in both; the last line counts it once.
fn totals(claims: &Claims, outcomes: &[Outcome<'_>]) -> Table {
    let of = |n: usize| outcomes.iter().filter(|o| o.claim.is_of(n)).collect();
    let documents = claims.documents.iter().map(|d| ([d.number.to_string()], of(d.number)));
    tally(["document"], documents.chain([(["all".into()], outcomes.iter().collect())]))
}

fn find<'o, 'a>(outcomes: &'o [Outcome<'a>], id: &str) -> Result<&'o Outcome<'a>> {
    outcomes.iter().find(|o| o.claim.id == id).with_context(|| format!("founding.toml: no claim {id}"))
}

fn answer(answer: &Answer, facts: &Facts, outcomes: &[Outcome<'_>]) -> Result<String> {
    let judged = |(what, claim): &(String, String)| {
        let right = match find(outcomes, claim)?.verdict {
            Verdict::Reproduced => "right",
            Verdict::OtherSize => "right, by another factor",
            Verdict::Opposite => "wrong",
            Verdict::WithinNoise => "no difference beyond the noise",
            other => other.name(),
        };
        Ok(format!("{what}: **{right}**"))
    };
    let recommends = answer.recommends.iter().map(judged).collect::<Result<Vec<_>>>()?.join("; ");
    let Answer { document, text, .. } = answer;
    Ok(format!("**Document {document}.** You recommend {recommends}. {}", text.text(facts)))
}

/// Lines, the figure, theirs, ours on each GPU with the verdict, and why.
fn row(row: &Row, all: &[Measured<'_>]) -> Result<Vec<String>> {
    let (theirs, ours): (String, Vec<String>) = match (&row.claim, &row.theirs, &row.ours) {
        (Some(id), None, None) => {
            let own: Vec<_> = all.iter().map(|m| find(&m.outcomes, id)).collect::<Result<_>>()?;
            (claims::stated(own[0].claim), own.iter().map(|o| cell(o)).collect())
        }
        (None, Some(theirs), Some(ours)) => {
            (theirs.clone(), all.iter().map(|m| ours.complete(&m.facts)).collect())
        }
        _ => bail!("founding.toml: row {}: expected a claim, or theirs and ours", row.what),
    };
    ensure!(!row.what.is_empty(), "founding.toml: row {}: expected a name", row.at);
    let why = row.why.known(&all[0].facts);
    Ok([row.at.to_string(), row.what.clone(), theirs].into_iter().chain(ours).chain([why]).collect())
}

/// A measured number and the verdict.
fn cell(outcome: &Outcome<'_>) -> String {
    let measured = match outcome.measured {
        // Counts of the outputs, or of events on the GPU.
        Some(count) if outcome.range.is_none() && count >= 1e6 => format!("{:.1} million", count / 1e6),
        _ => claims::measured(outcome),
    };
    match (measured.as_str(), outcome.verdict) {
        (_, Verdict::NotMeasuredYet) | ("-", _) => outcome.verdict.name().into(),
        (measured, verdict) => format!("{measured}: {}", verdict.name()),
    }
}

#[cfg(test)]
mod tests;
