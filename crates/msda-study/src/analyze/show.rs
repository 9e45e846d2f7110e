//! An analysis as text: figures under headings, then the conclusions.

use std::collections::BTreeMap;

use msda_bench::record::{Figure, Record};
use msda_bench::report::number;

use super::conclude;

/// Headings, each with the first words of the figures under it. A figure is under the first heading
/// that has its word.
const HEADINGS: [(&str, &[&str]); 7] = [
    ("work of the workload", &["taps", "rows", "reuse", "gathered", "compulsory", "operations", "intensity"]),
    ("shortest possible time", &["roof"]),
    ("execution", &["duration", "occupancy", "issue", "stall-memory", "difference"]),
    ("registers and shared memory", &["registers", "spills", "shared", "resident-blocks", "cache"]),
    (
        "L1 and shared memory traffic",
        &["wavefronts", "data-path", "hit-rate", "bank-conflicts", "tags", "collisions"],
    ),
    ("L2 and device memory traffic", &["l2-sectors", "dram"]),
    // Kinds of instructions, and what no other heading has.
    ("instructions", &[]),
];

/// Words that belong to the workload and not to a kernel on it.
const OF_WORKLOAD: usize = 2;

/// Figures under headings, then what was left out and why, then a conclusion for each kernel.
pub fn terminal(record: &Record) -> String {
    let mut groups: Vec<(String, Vec<(String, &Figure)>)> = Vec::new();
    for figure in &record.figures {
        let (group, metric) = split(&figure.name);
        match groups.iter_mut().find(|(g, _)| *g == group) {
            Some((_, rows)) => rows.push((metric, figure)),
            None => groups.push((group, vec![(metric, figure)])),
        }
    }
    let mut out = String::new();
    for (group, rows) in &groups {
        out += &format!("{group}\n{}\n", if group.starts_with("sweep ") { sweep(rows) } else { under(rows) });
    }
    if !record.skipped.is_empty() {
        out += "left out\n";
        for s in &record.skipped {
            out += &format!("  {}: {}\n", s.what, s.why.replace('\n', "\n    "));
        }
        out.push('\n');
    }
    let conclusions = conclude::conclusions(&record.figures);
    if !conclusions.is_empty() {
        out += "conclusion\n";
        for (kernel, sentence) in conclusions {
            out += &format!("  {kernel}: {sentence}\n");
        }
    }
    out
}

/// A number and its unit, in millions or billions where it is that large.
pub(super) fn value(value: f64, unit: &str) -> String {
    let (scaled, letter) = match value.abs() {
        x if x >= 1e9 => (value / 1e9, "G"),
        x if x >= 1e6 => (value / 1e6, "M"),
        _ => (value, ""),
    };
    let text = if scaled == scaled.round() { format!("{scaled}") } else { number::figure(scaled) };
    format!("{text} {letter}{unit}").trim_end().to_owned()
}

/// The group of a figure, and its metric. The name of a kernel has no dot.
pub(super) fn split(name: &str) -> (String, String) {
    let own = |word: &str| HEADINGS[..OF_WORKLOAD].iter().any(|(_, words)| words.contains(&word));
    let words: Vec<&str> = name.split('.').collect();
    let head = match words.as_slice() {
        [_, "sweep", ..] => 3,
        [_, _, _, word, ..] if !own(word) => 4,
        _ => 3,
    }
    .min(words.len().saturating_sub(1));
    let skip = usize::from(words.first() == Some(&"analyze"));
    (words[skip.min(head)..head].join(" "), words[head..].join("."))
}

/// The heading of a metric.
fn heading(metric: &str) -> usize {
    let begins = |word: &&str| {
        metric.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    };
    let is_kind = metric.starts_with("shared-");
    let found = HEADINGS.iter().position(|(_, words)| !is_kind && words.iter().any(begins));
    found.unwrap_or(HEADINGS.len() - 1)
}

/// Metrics under their headings. Predictions and measurements of one metric are one line.
fn under(rows: &[(String, &Figure)]) -> String {
    let mut lines: Vec<(usize, String, BTreeMap<&str, String>)> = Vec::new();
    for (metric, figure) in rows {
        let (stem, kind) = match metric.rsplit_once('.') {
            Some((stem, kind @ ("predicted" | "measured"))) => (stem, kind),
            _ => (metric.as_str(), ""),
        };
        let text = value(figure.value, &figure.unit);
        match lines.iter_mut().find(|(_, other, _)| other == stem) {
            Some((_, _, values)) => drop(values.insert(kind, text)),
            None => lines.push((heading(metric), stem.to_owned(), BTreeMap::from([(kind, text)]))),
        }
    }
    let mut out = String::new();
    for (i, (title, _)) in HEADINGS.iter().enumerate() {
        let own: Vec<_> = lines.iter().filter(|(heading, ..)| *heading == i).collect();
        if own.is_empty() {
            continue;
        }
        let compared = own.iter().any(|(_, _, values)| values.contains_key("measured"));
        let columns =
            if compared { format!("{:>12} {:>12}", "predicted", "measured") } else { String::new() };
        out += format!("  {title:<26}{columns}").trim_end();
        out.push('\n');
        for (_, stem, values) in own {
            let cell = |kind: &str| values.get(kind).map_or("", String::as_str);
            let plain = if values.contains_key("") { cell("") } else { cell("predicted") };
            out += format!("    {stem:<24}{plain:>12} {:>12}", cell("measured")).trim_end();
            out.push('\n');
        }
    }
    out
}

/// One line per value of the axis.
fn sweep(rows: &[(String, &Figure)]) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for (metric, figure) in rows {
        let (place, what) = metric.rsplit_once('.').unwrap_or((metric, ""));
        let text = format!(" {what} {:>10}", value(figure.value, &figure.unit));
        match lines.iter_mut().find(|(other, _)| *other == place) {
            Some((_, line)) => *line += &text,
            None => lines.push((place, text)),
        }
    }
    lines.iter().map(|(place, line)| format!("  {place:>8} {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, value: f64, unit: &str) -> Figure {
        Figure { name: name.into(), value, unit: unit.into() }
    }

    #[test]
    fn names_are_split_into_groups() {
        let parts = |name: &str| {
            let (group, rest) = split(name);
            format!("{group} | {rest}")
        };
        assert_eq!(parts("analyze.seed.f16.taps"), "seed f16 | taps");
        assert_eq!(parts("analyze.seed.f16.roof.copy.time"), "seed f16 | roof.copy.time");
        assert_eq!(
            parts("analyze.seed.f16.rows:tap_columns=2.wavefronts.predicted"),
            "seed f16 rows:tap_columns=2 | wavefronts.predicted"
        );
        assert_eq!(parts("analyze.sweep.batch.4.time"), "sweep batch | 4.time");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(value(39_708_793.0, ""), "39.7 M");
        assert_eq!(value(2.5413e9, "B"), "2.54 GB");
        assert_eq!(value(40.0, ""), "40");
        assert_eq!(value(0.0, "B"), "0 B");
    }

    #[test]
    fn metrics_are_under_headings_and_predictions_beside_measurements() {
        let all = [
            figure("a.predicted", 80.0, "%"),
            figure("shared", 0.0, "B"),
            figure("b.measured", 78.0, "%"),
            figure("shared-loads", 9.0, ""),
        ];
        let names = ["hit-rate.predicted", "shared", "hit-rate.measured", "shared-loads"];
        let rows: Vec<(String, &Figure)> = names.iter().map(ToString::to_string).zip(&all).collect();
        let text = under(&rows);
        let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
        assert!(text.contains("80 %         78 %"), "{text}");
        assert!(place("registers and shared memory") < place("    shared "), "{text}");
        assert!(place("    hit-rate") < place("  instructions\n    shared-loads"), "{text}");
    }
}
