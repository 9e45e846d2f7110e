//! The claims of the documents and their verdicts.

use anyhow::Result;

use super::Judge;
use crate::claims::{Claims, Outcome, Verdict, by_system, commands, counts, judge, measured, summary};
use crate::facts::{Facts, gpus, of_gpu};
use msda_bench::record::{Record, Source};
use msda_bench::report::page::{Part, Section, fold};
use msda_bench::report::{Kind, Table};

/// The section and its main finding. None if claims are not judged.
pub(super) fn section(records: &[Record], when: Judge) -> Result<Option<(Section, (String, String))>> {
    let source = |record: &Record| Source { label: record.created.clone(), record: record.clone() };
    let sources: Vec<Source> = records.iter().map(source).collect();
    let gpu = gpus(&sources).into_iter().next();
    if when == Judge::Never || (when == Judge::Auto && gpu.is_none()) {
        return Ok(None);
    }
    let facts = Facts::of(&of_gpu(&sources, gpu.as_deref()))?;
    let claims = Claims::built_in()?;
    let outcomes = judge(&claims, &facts, gpu.as_deref());
    let of = |v: Verdict| outcomes.iter().filter(|o| o.verdict == v).count();
    let agree = of(Verdict::Reproduced);
    let judged = agree + of(Verdict::OtherSize) + of(Verdict::Opposite) + of(Verdict::WithinNoise);
    let finding = (
        format!("{agree} of {judged} claims that could be judged are reproduced"),
        summary(&outcomes).join("; "),
    );
    let by = gpu.map_or("definitions alone, because no record is from a GPU".into(), |gpu| {
        format!("records of {gpu}")
    });
    let section = Section {
        title: "Claims",
        about: format!("Every figure and every yes-or-no statement of the documents, judged by {by}."),
        parts: parts(&claims, &outcomes),
    };
    Ok(Some((section, finding)))
}

fn parts(claims: &Claims, outcomes: &[Outcome<'_>]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (system, own) in by_system(claims, outcomes) {
        let title = format!("{} ({}): {}", system.name, system.at, counts(own.iter().copied()));
        parts.extend(fold(&title, "", false, vec![table(&own).into()]));
    }
    let missing: Vec<Part> = commands(outcomes).into_iter().map(Part::command).collect();
    if !missing.is_empty() {
        parts.extend(fold("Commands for the missing measurements", "", false, missing));
    }
    parts
}

/// The claims about a system. The verdict comes first, because readers look for it.
fn table(outcomes: &[&Outcome<'_>]) -> Table {
    let table = Table::default().words(["verdict", "lines"]).columns(Kind::Text, ["claim"]);
    let mut table = table.words(["stated", "measured"]).columns(Kind::Text, ["reason"]);
    for o in outcomes {
        table.push([
            o.verdict.name().into(),
            o.claim.at.to_string(),
            o.claim.says.clone(),
            o.claim.judge.figure.clone(),
            measured(o),
            o.claim.why.clone(),
        ]);
    }
    table
}
