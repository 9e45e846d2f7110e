//! The measurements, grouped by machine. The newest run is open, older ones are closed, and runs of
//! the same command are shown as one.

use super::{ratios, roofline, times};
use crate::record::Record;
use crate::report::compare::{comparisons, is_model, panels};
use crate::report::group::workloads;
use crate::report::known::machine;
use crate::report::names::date;
use crate::report::number::{count, figure};
use crate::report::page::{Fold, Kind, Part, Section, Table};
use crate::report::{Extension, rate_unit, under, words};

/// The records are sorted, newest first.
pub(super) fn section(records: &[Record], extensions: &[Box<dyn Extension>]) -> Option<Section> {
    let mut machines: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records {
        let name = machine(record);
        match machines.iter_mut().find(|(there, _)| *there == name) {
            Some((_, runs)) => runs.push(record),
            None => machines.push((name, vec![record])),
        }
    }
    let gpu = |runs: &[&Record]| runs.iter().any(|r| r.machine.gpu.is_some());
    machines.sort_by_key(|(_, runs)| !gpu(runs));
    let parts: Vec<Part> =
        machines.iter().flat_map(|(name, runs)| of_machine(name, runs, records, extensions)).collect();
    (!parts.is_empty()).then(|| Section {
        title: "Measurements",
        about: format!(
            "{} on {}; the newest run of each machine is open. {}",
            count(records.len(), "run"),
            count(machines.len(), "machine"),
            times::LEGEND
        ),
        parts,
    })
}

fn of_machine(
    name: &str,
    runs: &[&Record],
    records: &[Record],
    extensions: &[Box<dyn Extension>],
) -> Vec<Part> {
    let (timed, other): (Vec<&Record>, Vec<&Record>) =
        runs.iter().partition(|r| !workloads(r, extensions).is_empty());
    let mut parts = vec![Part::Heading(name.into(), words::machine_note(&runs[0].machine))];
    for (i, run) in timed.iter().enumerate() {
        let newest = i == 0;
        let same = |r: &&&Record| r.command == run.command;
        if timed[..i].iter().any(|r| same(&r)) {
            continue;
        }
        let mut inside = of_run(run, extensions);
        let repeats: Vec<&Record> = timed[i..].iter().filter(same).copied().collect();
        if repeats.len() > 1 {
            let title = format!("{} of the same command", count(repeats.len() - 1, "earlier run"));
            inside.push(Part::closed(title, times::repeats(&repeats, extensions)));
        }
        if newest {
            inside.extend(more(run, records, extensions));
        }
        let detail = words::engines(run, extensions);
        let fold = Fold { title: date(run), detail, open: newest, parts: inside };
        parts.push(Part::Fold(fold));
    }
    if !other.is_empty() {
        let title = format!("{} without times of workloads", count(other.len(), "run"));
        parts.push(Part::closed(title, vec![Part::Table(without_times(&other))]));
    }
    parts
}

fn of_run(run: &Record, extensions: &[Box<dyn Extension>]) -> Vec<Part> {
    let mut parts = vec![
        Part::Command(run.command.clone()),
        Part::Note(words::about(run)),
        Part::Findings(words::findings(run, extensions)),
    ];
    parts.extend(times::parts(run, extensions));
    parts
}

/// What only the newest run of a machine shows: charts that the top of the report does not have,
/// ceilings, rooflines.
fn more(run: &Record, records: &[Record], extensions: &[Box<dyn Extension>]) -> Vec<Part> {
    let mut parts = Vec::new();
    // The charts of models are at the top. If there are none, the others are.
    let (models, others): (Vec<_>, Vec<_>) = comparisons(run)
        .into_iter()
        .filter(|c| c.fastest().is_some())
        .partition(|c| is_model(&c.ours.workload));
    let panels = panels(others.into_iter());
    if !models.is_empty() && !panels.is_empty() {
        let charts = Part::Plots(ratios::plots(&panels.iter().collect::<Vec<_>>()));
        parts.push(Part::closed("Charts of workloads that are not taken from models", vec![charts]));
    }
    let roofs = roofline::parts(run, records, extensions);
    if !roofs.is_empty() || !run.ceilings.is_empty() {
        let mut inside = roofs;
        if !run.ceilings.is_empty() {
            inside.push(Part::Table(ceilings(run)));
        }
        parts.push(Part::closed("Ceilings of the machine, and rooflines", inside));
    }
    parts
}

fn ceilings(run: &Record) -> Table {
    use Kind::{Number, Word};
    let columns = [("ceiling", Word), ("threads", Number), ("rate", Number), ("unit", Word)];
    let mut table = Table::new("Ceilings", &columns);
    for c in &run.ceilings {
        table.push([c.name.clone(), under(c), figure(c.rate), rate_unit(&c.name).into()]);
    }
    table
}

fn without_times(runs: &[&Record]) -> Table {
    use Kind::{Number, Text, Word};
    let columns = [("run", Word), ("figures", Number), ("times", Number), ("command", Text)];
    let mut table = Table::new("Runs without times of workloads", &columns);
    for r in runs {
        let number = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let times = number(r.measurements.len());
        table.push([date(r), number(r.figures.len()), times, r.command.clone()]);
    }
    table.without_empty()
}
