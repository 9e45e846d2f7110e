//! Figures of probes and analyses as tables, one per family of names.

use msda_bench::record::Record;
use msda_bench::report::Table;
use msda_bench::report::known::{Known, known};
use msda_bench::report::page::{Section, fold, folds};
use msda_bench::report::pivot::families;

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
    let family = |(name, table): (String, Table)| fold(&name, "", false, vec![table.into()]);
    let of_machine =
        |k: &Known| (k.machine.clone(), families(&k.figures).into_iter().flat_map(family).collect());
    let parts = folds(known.iter().map(of_machine).collect());
    (!known.is_empty()).then(|| Section { title, about: about.into(), parts })
}
