//! The claims of the documents and their verdicts.

use anyhow::Result;

use super::Judge;
use crate::claims::{Claims, Outcome, Verdict, commands, judge, measured, stated, summary};
use crate::facts::{Facts, gpus, of_gpu};
use msda_bench::record::{Record, Source};
use msda_bench::report::page::{Finding, Key, Kind, Part, Plot, Plots, Section, Table};
use msda_bench::report::svg::{Shape, stack};

/// The section and its main finding. None if claims are not judged.
pub(super) fn section(records: &[Record], when: Judge) -> Result<Option<(Section, Finding)>> {
    let source = |record: &Record| Source { label: record.created.clone(), record: record.clone() };
    let sources: Vec<Source> = records.iter().map(source).collect();
    let gpu = gpus(&sources).into_iter().next();
    if when == Judge::Never || (when == Judge::Gpu && gpu.is_none()) {
        return Ok(None);
    }
    let facts = Facts::of(&of_gpu(sources, gpu.as_deref()))?;
    let claims = Claims::built_in()?;
    let outcomes = judge(&claims, &facts, gpu.as_deref());
    let agree = count(&outcomes, Verdict::Reproduced) + count(&outcomes, Verdict::BetterHere);
    let judged = agree + count(&outcomes, Verdict::Refuted);
    let finding = Finding {
        lead: format!("{agree} of {judged} claims that could be judged are reproduced or better here"),
        text: summary(&outcomes).replace('\n', "; "),
    };
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

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "k k2",
        Verdict::BetterHere => "k k0",
        Verdict::Refuted => "k k4",
        Verdict::OtherGpu => "k kt",
        Verdict::NotMeasurable => "k k3",
        Verdict::NotMeasuredYet => "k kt hollow",
    }
}

fn count(outcomes: &[Outcome<'_>], verdict: Verdict) -> usize {
    outcomes.iter().filter(|o| o.verdict == verdict).count()
}

/// One bar of verdicts.
fn bar(title: &str, outcomes: &[Outcome<'_>]) -> Plot {
    let piece = |v: Verdict| (class(v).into(), count(outcomes, v));
    Plot::new(title, "", stack::stack(&Verdict::ALL.map(piece), &format!("Verdicts: {title}")))
}

fn parts(claims: &Claims, outcomes: &[Outcome<'_>]) -> Vec<Part> {
    let key = |v: Verdict| Key::new(class(v), Shape::Square, format!("{}: {}", v.name(), count(outcomes, v)));
    let all = Plots {
        legend: Verdict::ALL.map(key).into(),
        plots: vec![bar("All claims", outcomes)],
        ..Plots::default()
    };
    let mut parts = vec![Part::Plots(all)];
    for system in &claims.systems {
        let own: Vec<Outcome<'_>> =
            outcomes.iter().filter(|o| o.claim.system == system.name).cloned().collect();
        if own.is_empty() {
            continue;
        }
        let title = format!("{} ({}): {}", system.name, system.at, counts(&own));
        parts.push(Part::closed(title, vec![Part::Table(table(&system.name, &own))]));
    }
    let missing = commands(outcomes);
    if !missing.is_empty() {
        let lines = missing.into_iter().map(Part::Command).collect();
        parts.push(Part::closed("Commands for the missing measurements", lines));
    }
    parts
}

/// How many claims have which verdict.
fn counts(outcomes: &[Outcome<'_>]) -> String {
    let all = Verdict::ALL.map(|v| (count(outcomes, v), v.name())).into_iter().filter(|(n, _)| *n > 0);
    all.map(|(n, name)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
}

/// The claims about a system. The verdict comes first, because readers look for it.
fn table(title: &str, outcomes: &[Outcome<'_>]) -> Table {
    use Kind::{Text, Word};
    let columns = [
        ("verdict", Word),
        ("lines", Word),
        ("claim", Text),
        ("stated", Word),
        ("measured", Word),
        ("reason", Text),
    ];
    let mut table = Table::new(title, &columns);
    for o in outcomes {
        table.push([
            o.verdict.name().into(),
            o.claim.at.to_string(),
            o.claim.says.clone(),
            stated(&o.claim.stated),
            measured(o),
            o.why.clone(),
        ]);
    }
    table
}
