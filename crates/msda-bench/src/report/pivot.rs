//! Figures as tables: one per family, with a line per subject and a column per metric.

use super::escape::plain;
use super::number::figure;
use super::table::{Kind, Table};
use super::{by_key, distinct};
use crate::record::Figure;

/// Last words of a figure's name: the metric. The words before it name the subject.
const METRICS: &str = "time min mean max std rate loads load-time efficiency cycles speedup active slowdown wavefronts \
    conflicts share taken refused failed compared worst outputs max-abs max-rel over not-finite unwritten \
    bitwise-equal";

/// The rank of columns that nobody misses where they do not fit.
pub(super) const SPREAD: u8 = 255;

/// Whether a column has a minimum, a maximum or a standard deviation.
fn is_spread(title: &str) -> bool {
    title.split_whitespace().any(|word| ["min", "max", "std"].contains(&word))
}

/// All figures, family by family: the first two words of their names, such as `probe.tma-tile`, and
/// a table.
pub fn families(figures: &[Figure]) -> Vec<(String, Table)> {
    // Figures without a metric differ in their units alone: they share a column.
    let title = |metric: &str, unit: &str| match metric {
        "" => String::new(),
        _ => plain(format!("{metric} {unit}").trim()).replace(' ', "\n"),
    };
    let cells = figures.iter().map(|f| {
        let (family, subject, metric) = split(&f.name);
        (family, subject, title(&metric, &f.unit), f)
    });
    let table = |(family, own): (String, Vec<(String, String, String, &Figure)>)| {
        let columns = distinct(own.iter().map(|(_, _, column, _)| column));
        let mut table = Table::default().words([""]);
        for (i, column) in columns.iter().enumerate() {
            let rank = if is_spread(column) { SPREAD } else { u8::try_from(i + 1).unwrap_or(254) };
            table = match column.as_str() {
                "" => table.words([""]),
                _ => table.column(column.as_str(), Kind::Number, rank),
            };
        }
        for (subject, cells) in by_key(&own, |(_, subject, ..)| subject) {
            let value = |column: &&String| {
                let found = cells.iter().rev().find(|(_, _, own, _)| own == *column);
                let unit =
                    |f: &Figure| if column.is_empty() { format!(" {}", f.unit) } else { String::new() };
                found.map_or(String::new(), |(.., f)| figure(f.value) + unit(f).trim_end())
            };
            table.push(std::iter::once(plain(subject)).chain(columns.iter().map(value)));
        }
        (family, table)
    };
    by_key(cells, |(family, ..)| family.clone()).into_iter().map(table).collect()
}

/// The family, the subject and the metric of a name.
fn split(name: &str) -> (String, String, String) {
    let words: Vec<&str> = name.split('.').collect();
    let family = words.len().min(2);
    let mut metric = words.len();
    let is_metric = |word: &str| METRICS.split(' ').any(|metric| metric == word);
    while metric > family && is_metric(words[metric - 1]) {
        metric -= 1;
    }
    (words[..family].join("."), words[family..metric].join(" "), words[metric..].join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_lines_and_columns() {
        let f = |name: &str, value, unit: &str| Figure { name: name.into(), value, unit: unit.into() };
        let all = families(&[
            f("probe.tile.q-1.tma.time", 12.345, "us"),
            f("probe.tile.q-1.tma.time.min", 11.0, "us"),
            f("probe.tile.q-1.manual.time", 17.5, "us"),
            f("probe.ceiling.copy.rate", 3950.0, "GB/s"),
            f("odd", 1.0, ""),
        ]);
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["probe.tile", "probe.ceiling", "odd"]);
        let text = "                  time\n            time   min\n              us    us\n\
                    ----------  ----  ----\nq-1 tma     12.3  11.0\nq-1 manual  17.5\n";
        assert_eq!(all[0].1.text(80, false), text);
        assert_eq!(all[0].1.dropped(20), [("time min us".to_owned(), SPREAD)]);
        assert!(all[2].1.text(80, false).ends_with("1.00\n"));
    }
}
