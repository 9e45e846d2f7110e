//! The answer to the founding documents: each of their kernels, experiments and figures beside
//! ours, their contradictions, and their future work. `docs/FOUNDING.md` is made from it.

mod data;
mod docs;
mod page;

use anyhow::{Context, Result, bail};
use msda_bench::record::{Record, Source};

use crate::claims::{self, Claims, Outcome, Verdict};
use crate::facts::{Facts, gpus, newest_ladder, of_gpu, today};

use data::{Data, Future, Row, command};

pub use docs::documents;
pub use page::page;

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
    totals: Vec<(String, [usize; 8])>,
    documents: Vec<claims::Document>,
    ladder: Option<Record>,
}

impl Founding {
    /// Made from records of the GPU that the newest record is from.
    pub fn of(sources: Vec<Source>) -> Result<Self> {
        let gpu = gpus(&sources).into_iter().next();
        let sources = of_gpu(sources, gpu.as_deref());
        let claims = Claims::built_in()?;
        let mut facts = Facts::of(&sources)?;
        let outcomes = claims::judge(&claims, &facts, gpu.as_deref());
        count(&mut facts, &outcomes);
        let data = Data::built_in(&claims)?;
        let records: Vec<Source> =
            sources.into_iter().map(|s| Source { record: today(&s.record), ..s }).collect();
        let ladder = newest_ladder(records.iter().map(|s| &s.record)).cloned();
        let record = records.iter().find(|s| Some(&s.record) == ladder.as_ref());
        Ok(Self {
            gpu,
            record: record.map(|s| within_records(&s.label)),
            answer: data.answer.iter().map(|words| words.text(&facts)).collect(),
            findings: data.findings.iter().map(|words| words.text(&facts)).collect(),
            rows: data.row.iter().map(|r| row(r, &facts, &outcomes)).collect::<Result<_>>()?,
            contradictions: data
                .contradiction
                .iter()
                .map(|c| [c.at.to_string(), c.says.clone(), c.fact.text(&facts)])
                .collect(),
            future: data.future.iter().map(|f| future(f, &facts)).collect(),
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

/// Adds counts of verdicts as facts.
fn count(facts: &mut Facts, outcomes: &[Outcome<'_>]) {
    let mut add = |name: &str, arithmetic: bool, verdict: Option<Verdict>| {
        let counted = |o: &&Outcome<'_>| {
            o.claim.is_arithmetic() == arithmetic && verdict.is_none_or(|verdict| o.verdict == verdict)
        };
        let n = outcomes.iter().filter(counted).count();
        facts.insert(format!("claims.{name}"), n as f64, "", "the verdicts");
    };
    add("measured", false, None);
    add("reproduced", false, Some(Verdict::Reproduced));
    add("better", false, Some(Verdict::BetterHere));
    add("refuted", false, Some(Verdict::Refuted));
    add("other-gpu", false, Some(Verdict::OtherGpu));
    add("unmeasurable", false, Some(Verdict::NotMeasurable));
    add("missing", false, Some(Verdict::NotMeasuredYet));
    add("arithmetic", true, None);
    add("arithmetic-right", true, Some(Verdict::Reproduced));
}

/// Per document: claims, the six verdicts of those that need a measurement, and those that
/// arithmetic decides. A claim of two documents counts in both; the last line counts it once.
fn totals(claims: &Claims, outcomes: &[Outcome<'_>]) -> Vec<(String, [usize; 8])> {
    let line = |own: Vec<&Outcome<'_>>| {
        let of = |v: Verdict| own.iter().filter(|o| o.verdict == v && !o.claim.is_arithmetic()).count();
        let [a, b, c, d, e, f] = Verdict::ALL.map(of);
        [own.len(), a, b, c, d, e, f, own.iter().filter(|o| o.claim.is_arithmetic()).count()]
    };
    let of = |n: usize| (n.to_string(), line(outcomes.iter().filter(|o| o.claim.is_of(n)).collect()));
    let documents = claims.documents.iter().map(|d| of(d.number));
    documents.chain([("all".into(), line(outcomes.iter().collect()))]).collect()
}

fn row(row: &Row, facts: &Facts, outcomes: &[Outcome<'_>]) -> Result<[String; 8]> {
    let find = |id: &String| {
        outcomes.iter().find(|o| o.claim.id == *id).with_context(|| format!("founding.toml: no claim {id}"))
    };
    let own: Vec<&Outcome<'_>> = row.claims.iter().map(find).collect::<Result<_>>()?;
    if own.is_empty() {
        bail!("founding.toml: row {}: got no claim, expected at least one", row.system);
    }
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
        command(row.command.as_deref(), &row.rungs),
        row.theirs.clone(),
        row.ours.clone(),
        row.figure.clone().unwrap_or_else(|| join(&|o| figure(o))),
        time.into_iter().chain([measured]).collect::<Vec<_>>().join("; "),
        if alike { verdicts[0].into() } else { verdicts.join("; ") },
    ])
}

/// The stated number; "a gain" for a claim that says no more.
fn figure(outcome: &Outcome<'_>) -> String {
    match outcome.claim.stated.value {
        Some(0.0) => "a gain".into(),
        _ => claims::stated(&outcome.claim.stated),
    }
}

fn future(future: &Future, facts: &Facts) -> [String; 5] {
    [
        future.at.to_string(),
        future.idea.clone(),
        future.status.clone(),
        future.result.text(facts),
        command(future.command.as_deref(), &future.rungs),
    ]
}

#[cfg(test)]
mod tests;
