//! Figures of probes and analyses as tables, one per family of names.

use msda_bench::record::Record;
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::page::{Column, Kind, Line, Part, Section, Table};
use msda_bench::report::pivot::{Family, families};

/// Probes, machine by machine. None if there are none.
pub(super) fn probes(records: &[Record]) -> Option<Section> {
    let about = "Limits of the machine, each measured alone, and the experiments of the documents.";
    section(&known(records, "probe."), "Probes", about)
}

/// Counters and sweeps, machine by machine. None if there are none.
pub(super) fn analysis(records: &[Record]) -> Option<Section> {
    let mut known = known(records, "analyze.");
    let shown = |name: &str| name.ends_with(".measured") || name.starts_with("analyze.sweep.");
    known.iter_mut().for_each(|k| k.figures.retain(|f| shown(&f.name)));
    known.retain(|k| !k.figures.is_empty());
    section(&known, "Analysis", "What the hardware counted, and how time grows with the problem.")
}

fn section(known: &[Known], title: &'static str, about: &str) -> Option<Section> {
    let of_machine = |k: &Known| (k.machine.clone(), families(&k.figures).iter().map(table).collect());
    (!known.is_empty()).then(|| Section {
        title,
        about: about.into(),
        parts: folded(known.iter().map(of_machine).collect()),
    })
}

fn table(family: &Family) -> Part {
    let number = |title: &String| Column { title: title.clone(), kind: Kind::Number };
    let columns = std::iter::once(Column { title: "subject".into(), kind: Kind::Word });
    let line = |(subject, cells): &(String, Vec<String>)| {
        Line::Cells(std::iter::once(subject).chain(cells).cloned().collect())
    };
    let table = Table {
        title: family.name.clone(),
        columns: columns.chain(family.columns.iter().map(number)).collect(),
        lines: family.rows.iter().map(line).collect(),
    };
    Part::closed(family.name.clone(), vec![Part::Table(table)])
}
