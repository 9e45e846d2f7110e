//! Probes: limits of the machine, and the experiments of the documents.

use crate::probe::NAMES;
use msda_bench::record::{Figure, Record};
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::number::figure;
use msda_bench::report::page::{Column, Key, Kind, Line, Part, Plot, Plots, Section, Table};
use msda_bench::report::pivot::{Family, families};
use msda_bench::report::svg::{Shape, bars, dots};

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let known = known(records, "probe.");
    if known.is_empty() {
        return None;
    }
    let mut parts = folded(known.iter().map(|k| (k.machine.clone(), of_machine(k))).collect());
    let there = |name: &str| {
        let prefix = format!("probe.{name}.");
        known.iter().flat_map(|k| &k.figures).any(|f| f.name.starts_with(&prefix))
    };
    let missing: Vec<&str> = NAMES.into_iter().filter(|name| !there(name)).collect();
    if !missing.is_empty() {
        let only: Vec<String> = missing.iter().map(|name| format!("--only {name}")).collect();
        let command = format!("msda-study probe {}", only.join(" "));
        parts.push(Part::Missing(vec![(missing.join(", "), command)]));
    }
    Some(Section {
        title: "Probes",
        about: "Limits of the machine, each measured alone, and the experiments of the documents.".into(),
        parts,
    })
}

fn of_machine(known: &Known) -> Vec<Part> {
    let mut parts = Vec::new();
    let plots: Vec<Plot> = [
        rates(known, "probe.ceiling.", "GB/s", "Bandwidths of the GPU"),
        rates(known, "probe.copy-styles.", "GB/s", "Ways to fill shared memory"),
        rates(known, "probe.ceiling.", "TFLOP/s", "Arithmetic of the GPU"),
        rates(known, "probe.cpu.", "GFLOP/s", "Arithmetic of the CPU"),
        rates(known, "probe.cpu.", "GB/s", "Bandwidths of the CPU"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !plots.is_empty() {
        parts.push(Part::Heading("Ceilings and copies".into(), "longer is better".into()));
        parts.push(Part::plots(plots));
    }
    if let Some(plot) = clusters(known) {
        parts.push(Part::Heading("Clusters".into(), String::new()));
        let keys = [("k k1", "shared memory of another block"), ("k k0", "shared memory of the same block")];
        parts.push(pair_of_dots(keys, plot));
    }
    if let Some(plot) = banks(known) {
        parts.push(Part::Heading("Bank conflicts".into(), "a warp reads padded rows".into()));
        let keys = [("k k0 hollow", "predicted wavefronts"), ("k k0", "measured cycles")];
        parts.push(pair_of_dots(keys, plot));
    }
    let tables =
        families(&known.figures).iter().map(|f| Part::closed(f.name.clone(), vec![table(f)])).collect();
    parts.push(Part::closed("Numbers", tables));
    parts
}

fn pair_of_dots(keys: [(&str, &str); 2], plot: Plot) -> Part {
    let legend = keys.map(|(class, name)| Key::new(class, Shape::Circle, name)).into();
    Part::Plots(Plots { legend, plots: vec![plot], ..Plots::default() })
}

/// The figures with a prefix and a metric, and the words between these.
fn ending<'a>(known: &'a Known, prefix: &str, metric: &str) -> Vec<(&'a str, &'a Figure)> {
    let name = |f: &'a Figure| f.name.strip_prefix(prefix)?.strip_suffix(metric)?.strip_suffix('.');
    known.figures.iter().filter_map(|f| Some((name(f)?, f))).collect()
}

fn rates(known: &Known, prefix: &str, unit: &'static str, title: &str) -> Option<Plot> {
    let bar = |(name, f): (&str, &Figure)| {
        let speedup = known.get(&format!("{prefix}{name}.speedup"));
        let text = speedup.map_or(figure(f.value), |x| format!("{}, {}x", figure(f.value), figure(x)));
        bars::Bar {
            label: name.into(),
            class: "k k0".into(),
            value: Some(f.value),
            text,
            spread: None,
            floor: None,
        }
    };
    let own = ending(known, prefix, "rate").into_iter().filter(|(_, f)| f.unit == unit && f.value > 0.0);
    let bars: Vec<bars::Bar> = own.map(bar).collect();
    if bars.is_empty() {
        return None;
    }
    let detail = if prefix.contains("copy") { "and speed-up over the plain loop" } else { "" };
    let block = bars::Block { heading: String::new(), bars };
    let svg = bars::bars(&[block], unit, &format!("{title} in {unit}"));
    Some(Plot::new(title, detail, svg))
}

fn clusters(known: &Known) -> Option<Plot> {
    let row = |(name, f): (&str, &Figure)| {
        let get = |metric: &str| known.get(&format!("probe.clusters.{name}.{metric}"));
        let dot = |kind: &str, class: &str| {
            let value = get(&format!("{kind}.rate"))?;
            Some(dots::Dot { class: class.into(), value })
        };
        let note = format!("{}x slower", figure(f.value));
        let dots = dot("remote", "k k1").into_iter().chain(dot("local", "k k0")).collect();
        dots::Row { label: name.replace('x', " of "), dots, note }
    };
    let rows: Vec<_> = ending(known, "probe.clusters.", "slowdown").into_iter().map(row).collect();
    pairs(rows, "clusters of blocks", "GB/s", "Bandwidth of shared memory in clusters")
}

fn banks(known: &Known) -> Option<Plot> {
    let row = |(name, f): (&str, &Figure)| {
        let wavefronts = known.get(&format!("probe.banks.{name}.wavefronts"));
        let dot = |value: f64, class: &str| dots::Dot { class: class.into(), value };
        let predicted = wavefronts.map(|w| dot(w, "k k0 hollow"));
        dots::Row {
            label: name.replace('.', " "),
            dots: predicted.into_iter().chain([dot(f.value, "k k0")]).collect(),
            note: figure(f.value),
        }
    };
    let rows: Vec<_> = ending(known, "probe.banks.", "cycles").into_iter().map(row).collect();
    pairs(rows, "", "wavefronts, cycles", "Predicted wavefronts and measured cycles, by row pitch and access")
}

fn pairs(rows: Vec<dots::Row>, heading: &str, axis: &str, label: &str) -> Option<Plot> {
    if rows.iter().all(|r| r.dots.is_empty()) {
        return None;
    }
    let block = dots::Block { heading: heading.into(), rows };
    Some(Plot::new(label, "", dots::dots(&[block], axis, label)))
}

fn table(family: &Family) -> Part {
    let number = |title: &String| Column { title: title.clone(), kind: Kind::Number };
    let columns = std::iter::once(Column { title: "subject".into(), kind: Kind::Word });
    let line = |(subject, cells): &(String, Vec<String>)| {
        Line::Cells(std::iter::once(subject).chain(cells).cloned().collect())
    };
    Part::Table(Table {
        title: family.name.clone(),
        columns: columns.chain(family.columns.iter().map(number)).collect(),
        lines: family.rows.iter().map(line).collect(),
    })
}
