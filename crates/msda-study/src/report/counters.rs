//! Hardware counters per kernel: wavefronts of L1, hit rates, instructions.

use msda_bench::record::{Figure, Record};
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::number::{NONE, figure};
use msda_bench::report::page::{Kind, Line, Part, Plot, Plots, Section, Table};
use msda_bench::report::svg::dots;

/// Kinds of instructions, as figures name them.
const KINDS: [&str; 19] = [
    "loads.128",
    "loads.64",
    "loads.32",
    "loads.16",
    "stores",
    "shared-loads",
    "shared-stores",
    "local",
    "constants",
    "shuffles",
    "conversions",
    "half",
    "float",
    "integer",
    "matrix",
    "texture",
    "branches",
    "waiting",
    "instructions.static",
];

/// A kernel on a workload.
struct Kernel<'a> {
    known: &'a Known,
    /// `WORKLOAD.DTYPE`.
    place: String,
    name: String,
}

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let known = known(records, "analyze.");
    let machines = known.iter().map(|machine| (machine.machine.clone(), kernels(machine)));
    let all: Vec<_> =
        machines.filter(|(_, kernels)| !kernels.is_empty()).map(|(name, k)| (name, parts(&k))).collect();
    (!all.is_empty()).then(|| Section {
        title: "Wavefronts",
        about:
            "A load of a warp passes the data path of L1 in one or more wavefronts of at most 128 bytes. The \
                hardware counts them."
                .into(),
        parts: folded(all),
    })
}

fn kernels(known: &Known) -> Vec<Kernel<'_>> {
    let mut all: Vec<Kernel<'_>> = Vec::new();
    for figure in &known.figures {
        if let Some((place, name)) = split(figure)
            && !all.iter().any(|k| k.place == place && k.name == name)
        {
            all.push(Kernel { known, place, name });
        }
    }
    all.sort_by(|a, b| a.place.cmp(&b.place));
    all
}

/// The workload with its dtype and the kernel of a count of wavefronts. Names of kernels contain no
/// dot.
fn split(figure: &Figure) -> Option<(String, String)> {
    match figure.name.split('.').collect::<Vec<_>>().as_slice() {
        ["analyze", workload, dtype, kernel, "wavefronts", "measured"] => {
            Some((format!("{workload}.{dtype}"), (*kernel).to_owned()))
        }
        _ => None,
    }
}

impl Kernel<'_> {
    fn get(&self, metric: &str) -> Option<f64> {
        self.known.get(&format!("analyze.{}.{}.{metric}", self.place, self.name))
    }

    /// The value divided by a scale, as text.
    fn text(&self, metric: &str, scale: f64) -> String {
        self.get(metric).map_or(NONE.into(), |value| figure(value / scale))
    }
}

fn parts(kernels: &[Kernel<'_>]) -> Vec<Part> {
    let plots = [
        plot(kernels, "wavefronts.measured", 1e6, "wavefronts, millions", "Wavefronts"),
        plot(kernels, "hit-rate.measured", 1.0, "hits in L1, %", "Hit rate"),
    ];
    let mut parts = vec![
        Part::Plots(Plots { plots: plots.into_iter().flatten().collect(), ..Plots::default() }),
        Part::closed("Numbers", vec![Part::Table(counts(kernels))]),
    ];
    if let Some(table) = instructions(kernels) {
        parts.push(Part::closed("Instructions of the compiled kernels by kind", vec![Part::Table(table)]));
    }
    parts
}

fn plot(kernels: &[Kernel<'_>], metric: &str, scale: f64, axis: &str, title: &str) -> Option<Plot> {
    let row = |k: &Kernel<'_>| {
        let value = k.get(metric)? / scale;
        let dots = vec![dots::Dot { class: "k k0".into(), value }];
        Some(dots::Row { label: k.name.clone(), dots, note: figure(value) })
    };
    let block = |same: &[Kernel<'_>]| dots::Block {
        heading: same[0].place.replace('.', " "),
        rows: same.iter().filter_map(row).collect(),
    };
    let blocks: Vec<dots::Block> = kernels
        .chunk_by(|a, b| a.place == b.place)
        .map(block)
        .filter(|block: &dots::Block| !block.rows.is_empty())
        .collect();
    let any = !blocks.is_empty();
    any.then(|| Plot::new(title, "", dots::dots(&blocks, axis, &format!("{title} by kernel"))))
}

/// Columns: title, metric, and what the metric is divided by.
const COUNTS: [(&str, &str, f64); 10] = [
    ("wavefronts M", "wavefronts.measured", 1e6),
    ("hit rate %", "hit-rate.measured", 1.0),
    ("shared memory M", "wavefronts-shared.measured", 1e6),
    ("bank conflicts M", "bank-conflicts.measured", 1e6),
    ("data path busy %", "data-path.measured", 1.0),
    ("instructions M", "instructions.measured", 1e6),
    ("occupancy %", "occupancy.measured", 1.0),
    ("registers", "registers", 1.0),
    ("spills B", "spills", 1.0),
    ("shared B per block", "shared", 1.0),
];

fn counts(kernels: &[Kernel<'_>]) -> Table {
    let mut columns = vec![("kernel", Kind::Word)];
    columns.extend(COUNTS.map(|(title, ..)| (title, Kind::Number)));
    let mut table = Table::new("Counters by kernel", &columns);
    for same in kernels.chunk_by(|a, b| a.place == b.place) {
        table.lines.push(Line::Group(same[0].place.replace('.', " ")));
        for k in same {
            let cells = COUNTS.map(|(_, metric, scale)| k.text(metric, scale));
            table.lines.push(Line::Cells(std::iter::once(k.name.clone()).chain(cells).collect()));
        }
    }
    table.without_empty()
}

fn instructions(kernels: &[Kernel<'_>]) -> Option<Table> {
    let mut columns = vec![("kernel", Kind::Word)];
    columns
        .extend(KINDS.map(|kind| (if kind == "instructions.static" { "all" } else { kind }, Kind::Number)));
    let mut table = Table::new("Instructions by kind", &columns);
    let known: Vec<&Kernel<'_>> =
        kernels.iter().filter(|k| KINDS.iter().any(|kind| k.get(kind).is_some())).collect();
    for same in known.chunk_by(|a, b| a.place == b.place) {
        table.lines.push(Line::Group(same[0].place.replace('.', " ")));
        for k in same {
            let counts = KINDS.map(|kind| k.get(kind).map_or(NONE.into(), |n| format!("{n:.0}")));
            table.lines.push(Line::Cells(std::iter::once(k.name.clone()).chain(counts).collect()));
        }
    }
    (!table.lines.is_empty()).then(|| table.without_empty())
}
