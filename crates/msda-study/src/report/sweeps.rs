//! How times and rates grow with the size of the problem.

use msda_bench::record::Record;
use msda_bench::report::folded;
use msda_bench::report::known::{Known, known};
use msda_bench::report::number::{NONE, figure};
use msda_bench::report::page::{Kind, Line, Part, Plot, Section, Table};
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
            "msda study analyze --sweep",
        ),
        (
            tiled.is_empty(),
            "tiles loaded to shared memory against queries",
            "msda study probe --only tma-tile",
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
        about: "Time against one size of the problem, with the other sizes fixed".into(),
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
        let point = |&(x, us, _): &(f64, f64, Option<f64>)| {
            (x, us, format!("{axis} {}: {} us", number(x), figure(us)))
        };
        let points: Vec<_> = points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).map(point).collect();
        let series = lines::Series { class: "k k0".into(), shape: Shape::Circle, points };
        let (x, y) = (lines::Axis { title: axis, log: true }, lines::Axis { title: "time, us", log: true });
        let svg = lines::lines(&[series], x, y, &format!("Time in us against {axis}"));
        Plot { title: (*axis).into(), detail: String::new(), svg }
    };
    let plots = axes.iter().filter(|(_, points)| points.len() > 1).map(plot).collect();
    let columns = [("value", Kind::Number), ("time us", Kind::Number), ("gathered GB/s", Kind::Number)];
    let mut table = Table::new("Sweeps", &columns);
    for (axis, points) in &axes {
        table.lines.push(Line::Group((*axis).into(), String::new(), String::new()));
        for (value, us, rate) in points {
            table.push([number(*value), figure(*us), rate.map_or(NONE.into(), figure)]);
        }
    }
    vec![
        Part::Heading("Time against the problem".into(), "seed-encoder, forward".into()),
        Part::Plots(plots),
        Part::Fold("Numbers".into(), false, vec![Part::Table(table)]),
    ]
}

/// A size as text.
fn number(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { figure(value) }
}

/// Efficiency over queries, one line per way, for blocks of 256 and of 32 threads.
fn tiles(known: &Known) -> Vec<Part> {
    let mut ways: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for f in &known.figures {
        let rest = f.name.strip_prefix(TILES).and_then(|r| r.strip_suffix(".efficiency"));
        let Some((queries, way)) =
            rest.and_then(|r| r.strip_prefix("queries-")).and_then(|r| r.split_once('.'))
        else {
            continue;
        };
        let Ok(queries) = queries.parse::<f64>() else { continue };
        match ways.iter_mut().find(|(name, _)| *name == way) {
            Some((_, points)) => points.push((queries, f.value)),
            None => ways.push((way, vec![(queries, f.value)])),
        }
    }
    let (warps, blocks): (Vec<_>, Vec<_>) = ways.into_iter().partition(|(way, _)| way.starts_with(WARP));
    let mut styles: Vec<&str> = Vec::new();
    let mut plots = Vec::new();
    for (title, ways) in [("Blocks of 256 threads", blocks), ("Blocks of one warp", warps)] {
        let mut all = Vec::new();
        for (way, mut points) in ways.into_iter().filter(|(_, points)| points.len() > 1) {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let style = way.strip_prefix(WARP).unwrap_or(way);
            let i = styles.iter().position(|s| *s == style).unwrap_or_else(|| {
                styles.push(style);
                styles.len() - 1
            });
            let say = |(x, y): (f64, f64)| (x, y, format!("{way}, {} queries: {} %", number(x), figure(y)));
            let (class, shape) = look(i);
            all.push(lines::Series { class, shape, points: points.into_iter().map(say).collect() });
        }
        if all.is_empty() {
            continue;
        }
        let (x, y) = (
            lines::Axis { title: "queries", log: true },
            lines::Axis { title: "% of the rate of a copy", log: false },
        );
        let svg = lines::lines(&all, x, y, &format!("Efficiency in % against queries: {title}"));
        plots.push(Plot { title: title.into(), detail: String::new(), svg });
    }
    let key = |(i, style): (usize, &&str)| (look(i).0, look(i).1, (*style).to_owned());
    vec![
        Part::Heading("Squares of pixels loaded to shared memory".into(), String::new()),
        Part::Note(
            "Percent of the rate of a copy against queries, with eight squares of 256 bytes per query. The probes have \
             the numbers"
                .into(),
        ),
        Part::Legend(styles.iter().enumerate().map(key).collect()),
        Part::Plots(plots),
    ]
}

/// The colour and the shape of a way.
fn look(i: usize) -> (String, Shape) {
    (format!("k k{}", i % 6), Shape::ALL[i % Shape::ALL.len()])
}
