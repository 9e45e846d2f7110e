//! The sections of a report, one per file. A section without data is left out.

mod answer;
mod run;

use anyhow::Result;

use super::group::workloads;
use super::known::machine;
use super::names::date;
use super::number::count;
use super::page::{Page, Part, Section, fold};
use super::{Extensions, Kind, Table, by_key, words};
use crate::record::Record;
use crate::workload::{BUILT_IN, Workload};

pub(super) use answer::{charts, headlines};

/// The whole report.
pub(super) fn page(records: &[Record], extensions: &Extensions) -> Result<Page> {
    let mut records = records.to_vec();
    records.sort_by(|a, b| b.created.cmp(&a.created));
    let own = [measurements(&records, extensions), problems(&records, extensions)];
    let mut sections: Vec<_> = own.into_iter().flatten().collect();
    for extension in extensions {
        sections.extend(extension.sections(&records)?);
    }
    Ok(Page { answer: answer::parts(&records), sections })
}

/// A run with its machine.
pub(super) fn alone(run: &Record) -> Vec<Part> {
    let title = format!("msda {}, {}, {}", run.version, date(run), machine(run));
    let mut parts = vec![Part::Heading(title), Part::Note(words::machine_note(&run.machine))];
    parts.push(Part::command(&run.command));
    parts.extend(words::busy(std::slice::from_ref(run)).map(Part::Heading));
    parts.extend(run::parts(run, &[]));
    parts
}

/// The runs by machine, newest first. The newest run of each machine is open.
fn measurements(records: &[Record], extensions: &Extensions) -> Option<Section> {
    let mut machines: Vec<(String, Vec<&Record>)> = by_key(records, |record| machine(record));
    machines.sort_by_key(|(_, runs)| !runs.iter().any(|r| r.machine.gpu.is_some()));
    let runs = count(records.len(), "run");
    let about =
        format!("{runs} on {}; the newest run of each machine is open.", count(machines.len(), "machine"));
    let mut parts = Vec::new();
    for (name, runs) in machines {
        parts.extend([Part::Heading(name), Part::Note(words::machine_note(&runs[0].machine))]);
        for (i, run) in runs.into_iter().enumerate() {
            parts.extend(fold(&date(run), &run.command, i == 0, run::parts(run, extensions)));
        }
    }
    (!parts.is_empty()).then_some(Section { title: "Measurements", about, parts })
}

/// The workloads of the report, each once.
fn problems(records: &[Record], extensions: &Extensions) -> Option<Section> {
    let groups = records.iter().flat_map(|r| workloads(r, extensions));
    let mut all = by_key(groups, |group| group.workload);
    all.sort_by_key(|(name, _)| *name);
    let table = Table::default().words(["workload"]).columns(Kind::Text, ["description"]);
    let mut table = table.words(["problem"]);
    for (name, groups) in all {
        let built_in = BUILT_IN.iter().find(|(n, _)| *n == name);
        let about = built_in.and_then(|(n, text)| Workload::parse(n, text).ok()).map(|w| w.about);
        table.push([name.into(), about.unwrap_or_default(), groups[0].problems()]);
    }
    let about = "b: images, q: queries, h: heads, d: channels per head, l: levels, p: points per level.";
    let (title, about) = ("Workloads", about.into());
    (!table.is_empty()).then(|| Section { title, about, parts: vec![table.into()] })
}
