//! Times and rates against the size of the problem.

use msda_bench::record::Record;
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::number::{NONE, figure};
use msda_bench::report::page::{Key, Kind, Line, Part, Plot, Plots, Section, Table};
use msda_bench::report::svg::{Shape, lines};

const SWEEP: &str = "analyze.sweep.";
const TILES: &str = "probe.tma-tile.";
const WARP: &str = "warp-";

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let (swept, tiled) = (known(records, SWEEP), known(records, TILES));
    let mut all: Vec<(String, Vec<Part>)> = Vec::new();
    for (known, parts) in swept.iter().map(|k| (k, sweep(k))).chain(tiled.iter().map(|k| (k, tiles(k)))) {
        match all.iter_mut().find(|(machine, _)| *machine == known.machine) {
            Some((_, there)) => there.extend(parts),
            None => all.push((known.machine.clone(), parts)),
        }
    }
    let mut parts = folded(all);
    if parts.is_empty() {
        return None;
    }
    let missing: Vec<(String, String)> = [
        (
            swept.is_empty(),
            "time against batch, queries, points, channels and distance",
            "msda-study analyze --sweep",
        ),
        (
            tiled.is_empty(),
            "copies of tiles to shared memory against queries",
            "msda-study probe --only tma-tile",
        ),
    ]
    .into_iter()
    .filter(|(absent, ..)| *absent)
    .map(|(_, what, command)| (what.into(), command.into()))
    .collect();
    if !missing.is_empty() {
        parts.push(Part::Missing(missing));
    }
    Some(Section {
        title: "Sweeps",
        about: "One size of the problem varies, the others are fixed.".into(),
        parts,
    })
}

/// Points of an axis: value, time in us, rate in GB/s.
type Points = Vec<(f64, f64, Option<f64>)>;

fn sweep(known: &Known) -> Vec<Part> {
    let mut axes: Vec<(&str, Points)> = Vec::new();
    for f in &known.figures {
        let rest = f.name.strip_prefix(SWEEP).unwrap_or_default();
        let Some((axis, Ok(value))) =
            rest.strip_suffix(".time").and_then(|r| r.split_once('.')).map(|(a, v)| (a, v.parse::<f64>()))
        else {
            continue;
        };
        let rate = known.get(&f.name.replace(".time", ".rate"));
        match axes.iter_mut().find(|(name, _)| *name == axis) {
            Some((_, points)) => points.push((value, f.value, rate)),
            None => axes.push((axis, vec![(value, f.value, rate)])),
        }
    }
    for (_, points) in &mut axes {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let plot = |(axis, points): &(&str, Points)| {
        let points = points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).map(|p| (p.0, p.1)).collect();
        let series = lines::Series { class: "k k0".into(), shape: Shape::Circle, points };
        let (x, y) = (lines::Axis { title: axis, log: true }, lines::Axis { title: "time, µs", log: true });
        Plot::new(*axis, "", lines::lines(&[series], x, y, &format!("Time in µs against {axis}")))
    };
    let plots = axes.iter().filter(|(_, points)| points.len() > 1).map(plot).collect();
    let columns = [("value", Kind::Number), ("time µs", Kind::Number), ("gathered GB/s", Kind::Number)];
    let mut table = Table::new("Sweeps", &columns);
    for (axis, points) in &axes {
        table.lines.push(Line::Group((*axis).into()));
        for (value, us, rate) in points {
            table.push([number(*value), figure(*us), rate.map_or(NONE.into(), figure)]);
        }
    }
    vec![
        Part::Heading("Time against the problem".into(), "seed-encoder, forward".into()),
        Part::plots(plots),
        Part::closed("Numbers", vec![Part::Table(table)]),
    ]
}

/// A size; whole numbers have no decimals.
fn number(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { figure(value) }
}

/// Efficiency against queries, one line per method: blocks of 256 threads, and blocks of 32.
fn tiles(known: &Known) -> Vec<Part> {
    let mut methods: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for f in &known.figures {
        let rest = f.name.strip_prefix(TILES).and_then(|r| r.strip_suffix(".efficiency"));
        let Some((queries, method)) =
            rest.and_then(|r| r.strip_prefix("queries-")).and_then(|r| r.split_once('.'))
        else {
            continue;
        };
        let Ok(queries) = queries.parse::<f64>() else { continue };
        match methods.iter_mut().find(|(name, _)| *name == method) {
            Some((_, points)) => points.push((queries, f.value)),
            None => methods.push((method, vec![(queries, f.value)])),
        }
    }
    let (warps, blocks): (Vec<_>, Vec<_>) =
        methods.into_iter().partition(|(method, _)| method.starts_with(WARP));
    let mut styles: Vec<&str> = Vec::new();
    let mut plots = Vec::new();
    for (title, methods) in [("Blocks of 256 threads", blocks), ("Blocks of one warp", warps)] {
        let mut all = Vec::new();
        for (method, mut points) in methods.into_iter().filter(|(_, points)| points.len() > 1) {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let style = method.strip_prefix(WARP).unwrap_or(method);
            let i = styles.iter().position(|s| *s == style).unwrap_or_else(|| {
                styles.push(style);
                styles.len() - 1
            });
            let (class, shape) = look(i);
            all.push(lines::Series { class, shape, points });
        }
        if all.is_empty() {
            continue;
        }
        let (x, y) = (
            lines::Axis { title: "queries", log: true },
            lines::Axis { title: "% of the copy bandwidth", log: false },
        );
        let svg = lines::lines(&all, x, y, &format!("Efficiency in % against queries: {title}"));
        plots.push(Plot::new(title, "", svg));
    }
    let key = |(i, style): (usize, &&str)| Key::new(look(i).0, look(i).1, *style);
    vec![
        Part::Heading("Tiles copied to shared memory".into(), String::new()),
        Part::Plots(Plots {
            legend: styles.iter().enumerate().map(key).collect(),
            note: "Eight tiles of 256 bytes per query. The numbers are among the probes.".into(),
            plots,
        }),
    ]
}

/// The colour and the shape of a method.
fn look(i: usize) -> (String, Shape) {
    (format!("k k{}", i % 6), Shape::ALL[i % Shape::ALL.len()])
}
