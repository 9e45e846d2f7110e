//! Wavefronts of L1 per kernel: predicted by the model, counted by the hardware.

use crate::facts::command;
use msda_bench::record::{Figure, Record};
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::number::{NONE, figure};
use msda_bench::report::page::{Key, Kind, Line, Part, Plot, Plots, Section, Table};
use msda_bench::report::svg::{Shape, dots};

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

const PREDICTED: &str = "k k0 hollow";
const MEASURED: &str = "k k0";

/// A kernel on a workload.
struct Kernel<'a> {
    known: &'a Known,
    /// `WORKLOAD.DTYPE`.
    place: String,
    name: String,
}

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let known = with_predictions(known(records, "analyze."), records);
    let mut all = Vec::new();
    for machine in &known {
        let kernels = kernels(machine);
        if !kernels.is_empty() {
            all.push((machine.machine.clone(), parts(&kernels)));
        }
    }
    (!all.is_empty()).then(|| Section {
        title: "Wavefronts",
        about: "A load of a warp passes the data path of L1 in one or more wavefronts of at most 128 bytes. The model \
                predicts how many a kernel needs; the hardware counts them."
            .into(),
        parts: folded(all),
    })
}

/// A prediction needs no GPU. If all counters come from one GPU, the newest predictions of all
/// records are shown beside them.
fn with_predictions(mut all: Vec<Known>, records: &[Record]) -> Vec<Known> {
    let counted = |k: &Known| k.figures.iter().any(|f| f.name.ends_with("wavefronts.measured"));
    if all.iter().filter(|k| counted(k)).count() != 1 {
        return all;
    }
    let mut newest_first: Vec<&Record> = records.iter().collect();
    newest_first.sort_by(|a, b| b.created.cmp(&a.created));
    if let Some(gpu) = all.iter_mut().find(|k| counted(k)) {
        for figure in &mut gpu.figures {
            let predicted = figure.name.starts_with("analyze.") && figure.name.ends_with(".predicted");
            let same = |f: &&Figure| f.name == figure.name && f.value.is_finite();
            let newest = newest_first.iter().find_map(|record| record.figures.iter().find(same));
            if let Some(newest) = newest.filter(|_| predicted) {
                figure.value = newest.value;
            }
        }
    }
    // Predictions without counters have nothing to be compared with.
    all.retain(|k| counted(k));
    all
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

/// The workload with its dtype and the kernel of a wavefront figure. Names of kernels contain no
/// dot.
fn split(figure: &Figure) -> Option<(String, String)> {
    match figure.name.split('.').collect::<Vec<_>>().as_slice() {
        ["analyze", workload, dtype, kernel, "wavefronts", _] => {
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
    let mut parts = vec![
        Part::Plots(Plots {
            legend: vec![
                Key::new(PREDICTED, Shape::Circle, "predicted by the model"),
                Key::new(MEASURED, Shape::Circle, "counted by the hardware"),
            ],
            note: "The number is the count, or the prediction if there is no count.".into(),
            plots: [
                plot(kernels, "wavefronts", 1e6, "wavefronts, millions", "Wavefronts"),
                plot(kernels, "hit-rate", 1.0, "hits in L1, %", "Hit rate"),
            ]
            .into_iter()
            .flatten()
            .collect(),
        }),
        Part::closed("Numbers", vec![Part::Table(counts(kernels))]),
    ];
    if let Some(table) = instructions(kernels) {
        parts.push(Part::closed("Instructions of the compiled kernels by kind", vec![Part::Table(table)]));
    }
    let missing: Vec<(String, String)> = kernels
        .iter()
        .filter(|k| k.get("wavefronts.measured").is_none())
        .map(|k| {
            let name = format!("analyze.{}.{}.wavefronts.measured", k.place, k.name);
            (format!("counters of {} on {}", k.name, k.place.replace('.', " ")), command(&name))
        })
        .collect();
    if !missing.is_empty() {
        parts.push(Part::Missing(missing));
    }
    parts
}

fn plot(kernels: &[Kernel<'_>], metric: &str, scale: f64, axis: &str, title: &str) -> Option<Plot> {
    let row = |k: &Kernel<'_>| {
        let dot = |kind: &str, class: &str| {
            let value = k.get(&format!("{metric}.{kind}"))? / scale;
            Some(dots::Dot { class: class.into(), value })
        };
        let (predicted, measured) = (dot("predicted", PREDICTED), dot("measured", MEASURED));
        let note = measured.as_ref().or(predicted.as_ref()).map_or(String::new(), |d| figure(d.value));
        dots::Row { label: k.name.clone(), dots: predicted.into_iter().chain(measured).collect(), note }
    };
    let blocks: Vec<dots::Block> = kernels
        .chunk_by(|a, b| a.place == b.place)
        .map(|same| dots::Block {
            heading: same[0].place.replace('.', " "),
            rows: same.iter().map(row).filter(|r| !r.dots.is_empty()).collect(),
        })
        .filter(|b| !b.rows.is_empty())
        .collect();
    if blocks.is_empty() {
        return None;
    }
    Some(Plot::new(title, "", dots::dots(&blocks, axis, &format!("{title} by kernel"))))
}

fn counts(kernels: &[Kernel<'_>]) -> Table {
    use Kind::{Number, Word};
    let mut table = Table::new(
        "Wavefronts, predicted and counted",
        &[
            ("kernel", Word),
            ("wavefronts M, predicted", Number),
            ("counted", Number),
            ("predicted / counted", Number),
            ("hit rate %, predicted", Number),
            ("counted", Number),
            ("shared memory M, predicted", Number),
            ("counted", Number),
            ("bank conflicts M", Number),
            ("data path busy %", Number),
            ("instructions M", Number),
            ("occupancy %, predicted", Number),
            ("counted", Number),
            ("registers", Number),
            ("spills B", Number),
            ("shared B per block", Number),
        ],
    );
    for (i, k) in kernels.iter().enumerate() {
        if i == 0 || kernels[i - 1].place != k.place {
            table.lines.push(Line::Group(k.place.replace('.', " ")));
        }
        let pair = k.get("wavefronts.predicted").zip(k.get("wavefronts.measured"));
        let ratio = pair.map(|(p, m)| p / m).filter(|r| r.is_finite());
        table.push([
            k.name.clone(),
            k.text("wavefronts.predicted", 1e6),
            k.text("wavefronts.measured", 1e6),
            ratio.map_or(NONE.into(), figure),
            k.text("hit-rate.predicted", 1.0),
            k.text("hit-rate.measured", 1.0),
            k.text("wavefronts-shared.predicted", 1e6),
            k.text("wavefronts-shared.measured", 1e6),
            k.text("bank-conflicts.measured", 1e6),
            k.text("data-path.measured", 1.0),
            k.text("instructions.measured", 1e6),
            k.text("occupancy.predicted", 1.0),
            k.text("occupancy.measured", 1.0),
            k.text("registers", 1.0),
            k.text("spills", 1.0),
            k.text("shared", 1.0),
        ]);
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
