//! An analysis as text.

use std::collections::BTreeMap;

use msda_bench::record::Record;
use msda_bench::report::number;

/// Figures in groups, one a workload, kernel or axis, then what was left out.
pub fn terminal(record: &Record) -> String {
    let mut groups: Vec<(String, Vec<(String, String)>)> = Vec::new();
    for figure in &record.figures {
        let (group, name) = split(&figure.name);
        let value = value(figure.value, &figure.unit);
        match groups.iter_mut().find(|(g, _)| *g == group) {
            Some((_, rows)) => rows.push((name, value)),
            None => groups.push((group, vec![(name, value)])),
        }
    }
    let mut out = String::new();
    for (group, rows) in groups {
        out += &format!("{group}\n");
        out += &beside(rows);
        out.push('\n');
    }
    if !record.skipped.is_empty() {
        out += "left out\n";
    }
    for s in &record.skipped {
        out += &format!("  {}: {}\n", s.what, s.why.replace('\n', "\n    "));
    }
    out
}

/// A number and its unit, millions and more as such.
fn value(value: f64, unit: &str) -> String {
    let (scaled, letter) = match value.abs() {
        x if x >= 1e9 => (value / 1e9, "G"),
        x if x >= 1e6 => (value / 1e6, "M"),
        _ => (value, ""),
    };
    let text = if scaled == scaled.round() { format!("{scaled}") } else { number::figure(scaled) };
    format!("{text} {letter}{unit}").trim_end().to_owned()
}

/// The group of a figure and what is left of its name. No kernel's name has a dot in it.
fn split(name: &str) -> (String, String) {
    const OWN: [&str; 9] =
        ["taps", "rows", "reuse", "gathered", "compulsory", "operations", "intensity", "roof", "sweep"];
    let words: Vec<&str> = name.split('.').collect();
    let head = match words.as_slice() {
        [_, "sweep", ..] => 3,
        [_, _, _, word, ..] if !OWN.contains(word) => 4,
        _ => 3,
    }
    .min(words.len().saturating_sub(1));
    let skip = usize::from(words.first() == Some(&"analyze"));
    (words[skip.min(head)..head].join(" "), words[head..].join("."))
}

/// Predictions and measurements of one thing on one line.
fn beside(rows: Vec<(String, String)>) -> String {
    let mut lines: Vec<(String, BTreeMap<&str, String>)> = Vec::new();
    for (name, value) in rows {
        let (stem, kind) = match name.rsplit_once('.') {
            Some((stem, "predicted")) => (stem.to_owned(), "predicted"),
            Some((stem, "measured")) => (stem.to_owned(), "measured"),
            _ => (name, ""),
        };
        match lines.iter_mut().find(|(s, _)| *s == stem) {
            Some((_, values)) => drop(values.insert(kind, value)),
            None => lines.push((stem, BTreeMap::from([(kind, value)]))),
        }
    }
    let mut out = String::new();
    for (stem, values) in lines {
        let cells: Vec<String> = values
            .into_iter()
            .map(|(kind, value)| if kind.is_empty() { value } else { format!("{kind} {value}") })
            .collect();
        out += &format!("  {stem:<24} {}\n", cells.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_groups() {
        let parts = |name: &str| {
            let (group, rest) = split(name);
            format!("{group} | {rest}")
        };
        assert_eq!(parts("analyze.seed.f16.taps"), "seed f16 | taps");
        assert_eq!(parts("analyze.seed.f16.roof.copy.time"), "seed f16 | roof.copy.time");
        assert_eq!(
            parts("analyze.seed.f16.rows:sides=2.wavefronts.predicted"),
            "seed f16 rows:sides=2 | wavefronts.predicted"
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
    fn what_is_predicted_stands_beside_what_is_measured() {
        let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let text = beside(vec![
            row("hit-rate.predicted", "80 %"),
            row("shared", "0 B"),
            row("hit-rate.measured", "78 %"),
        ]);
        assert!(text.contains("measured 78 %, predicted 80 %"), "{text}");
    }
}
