//! Figures of probes and analyses as tables, one per family of names.

use msda_bench::record::Record;
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::page::{Column, Kind, Line, Part, Section, Table};
use msda_bench::report::pivot::{Family, families};

/// The figures whose names begin with a prefix, machine by machine. None if there are none.
pub(super) fn section(records: &[Record], prefix: &str, title: &'static str, about: &str) -> Option<Section> {
    let mut known = known(records, prefix);
    // Older records have predictions of a model that is gone.
    known.iter_mut().for_each(|k| k.figures.retain(|f| !f.name.ends_with(".predicted")));
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
