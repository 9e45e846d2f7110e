//! The measurements, grouped by machine. The newest run is open, older ones are closed, and runs of
//! the same command are shown as one.

use super::{floors, ratios, times};
use crate::record::{Device, Record};
use crate::report::compare::{comparisons, is_model, panels};
use crate::report::group::workloads;
use crate::report::known::machine;
use crate::report::names::date;
use crate::report::number::{count, figure};
use crate::report::page::{Part, Section, fold};
use crate::report::{Extensions, Kind, Table, by_key, words};

/// The records are sorted, newest first.
pub(super) fn section(records: &[Record], extensions: &Extensions) -> Option<Section> {
    let mut machines: Vec<(String, Vec<&Record>)> = by_key(records, |record| machine(record));
    machines.sort_by_key(|(_, runs)| !runs.iter().any(|r| r.machine.gpu.is_some()));
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

fn of_machine(name: &str, runs: &[&Record], records: &[Record], extensions: &Extensions) -> Vec<Part> {
    let (timed, other): (Vec<&Record>, Vec<&Record>) =
        runs.iter().partition(|r| !workloads(r, extensions).is_empty());
    let mut parts = vec![Part::heading(3, name), Part::note(&words::machine_note(&runs[0].machine))];
    for (i, (_, repeats)) in by_key(timed, |r| &r.command).into_iter().enumerate() {
        let (run, newest) = (repeats[0], i == 0);
        let mut inside = of_run(run, extensions);
        if repeats.len() > 1 {
            let title = format!("{} of the same command", count(repeats.len() - 1, "earlier run"));
            inside.extend(fold(&title, "", false, times::repeats(&repeats, extensions)));
        }
        if newest {
            inside.extend(more(run, records, extensions));
        }
        parts.extend(fold(&date(run), &words::engines(run, extensions), newest, inside));
    }
    if !other.is_empty() {
        let title = format!("{} without times of workloads", count(other.len(), "run"));
        parts.extend(fold(&title, "", false, vec![without_times(&other).into()]));
    }
    parts
}

fn of_run(run: &Record, extensions: &Extensions) -> Vec<Part> {
    let mut parts = vec![
        Part::command(&run.command),
        Part::note(&words::about(run)),
        Part::findings(&words::findings(run, extensions)),
    ];
    parts.extend(times::parts(run, extensions));
    parts
}

/// What only the newest run of a machine shows: charts that the top of the report does not have,
/// and the ceilings. Ceilings of the same GPU may come from other records.
fn more(run: &Record, records: &[Record], extensions: &Extensions) -> Vec<Part> {
    let mut parts = Vec::new();
    // The charts of models are at the top. If there are none, the others are.
    let (models, others): (Vec<_>, Vec<_>) = comparisons(run)
        .into_iter()
        .filter(|c| c.fastest().is_some())
        .partition(|c| is_model(&c.ours.workload));
    let panels = panels(others.into_iter());
    if !models.is_empty() && !panels.is_empty() {
        let charts = Part::Plots(ratios::plots(&panels.iter().collect::<Vec<_>>()));
        parts.extend(fold("Charts of workloads that are not taken from models", "", false, vec![charts]));
    }
    let machine = machine(run);
    let more = extensions.iter().flat_map(|e| e.ceilings(records, &machine));
    let mut table = Table::default().words(["ceiling"]).numbers(["threads", "rate"]).words(["unit"]);
    for c in run.ceilings.iter().cloned().chain(more) {
        let threads = if c.device == Device::Cuda { "GPU".into() } else { c.threads.to_string() };
        let unit = if c.name.starts_with(crate::work::FMA) { "GFLOP/s" } else { "GB/s" };
        table.push([c.name, threads, figure(c.rate), unit.into()]);
    }
    let mut inside: Vec<Part> = floors::part(run, extensions).into_iter().collect();
    if !table.is_empty() {
        inside.push(table.into());
    }
    if !inside.is_empty() {
        parts.extend(fold("Ceilings of the machine, and how near msda is", "", false, inside));
    }
    parts
}

fn without_times(runs: &[&Record]) -> Table {
    let mut table = Table::default().words(["run"]).numbers(["figures", "times"]);
    table = table.columns(Kind::Text, ["command"]);
    for r in runs {
        let number = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let times = number(r.measurements.len());
        table.push([date(r), number(r.figures.len()), times, r.command.clone()]);
    }
    table.without_empty()
}
