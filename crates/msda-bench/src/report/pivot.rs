//! Figures as tables: one per family, with a line per subject and a column per metric.

use super::number::figure;
use crate::record::Figure;

/// Last words of a figure's name: the metric. The words before it name the subject.
const METRICS: [&str; 16] = [
    "time",
    "min",
    "mean",
    "max",
    "std",
    "rate",
    "loads",
    "load-time",
    "efficiency",
    "cycles",
    "speedup",
    "active",
    "slowdown",
    "wavefronts",
    "conflicts",
    "share",
];

/// The figures of a family.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The first two words of their names: `probe.tma-tile`.
    pub name: String,
    /// The metrics with their units, in the order in which they come.
    pub columns: Vec<String>,
    /// The subject, and a number as text per column; empty if there is none.
    pub rows: Vec<(String, Vec<String>)>,
}

impl Family {
    /// Whether a column is a minimum, a maximum or a standard deviation.
    pub fn is_spread(&self, column: usize) -> bool {
        self.columns[column].split(' ').any(|word| ["min", "max", "std"].contains(&word))
    }

    /// The width of a table of these columns, with one word per line in titles and two spaces
    /// between columns.
    pub fn width(&self, columns: &[usize]) -> usize {
        let length = |text: &str| text.chars().count();
        let things = self.rows.iter().map(|(thing, _)| length(thing)).max().unwrap_or(0);
        let column = |i: usize| {
            let words = self.columns[i].split(' ').map(length);
            words.chain(self.rows.iter().map(|(_, cells)| length(&cells[i]))).max().unwrap_or(0)
        };
        things + columns.iter().map(|&i| 2 + column(i)).sum::<usize>()
    }
}

/// All figures, family by family.
pub fn families(figures: &[Figure]) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for f in figures {
        let (name, thing, metric) = split(&f.name);
        let at = families.iter().position(|family| family.name == name).unwrap_or_else(|| {
            families.push(Family { name, columns: Vec::new(), rows: Vec::new() });
            families.len() - 1
        });
        let family = &mut families[at];
        let title = if f.unit.is_empty() { metric } else { format!("{metric} {}", f.unit) };
        let column = family.columns.iter().position(|c| *c == title).unwrap_or_else(|| {
            family.columns.push(title);
            family.columns.len() - 1
        });
        let row = family.rows.iter().position(|(row, _)| *row == thing).unwrap_or_else(|| {
            family.rows.push((thing, Vec::new()));
            family.rows.len() - 1
        });
        let cells = &mut family.rows[row].1;
        if cells.len() <= column {
            cells.resize(column + 1, String::new());
        }
        cells[column] = figure(f.value);
    }
    for family in &mut families {
        let columns = family.columns.len();
        family.rows.iter_mut().for_each(|(_, cells)| cells.resize(columns, String::new()));
    }
    families
}

/// The family, the subject and the metric of a name.
fn split(name: &str) -> (String, String, String) {
    let words: Vec<&str> = name.split('.').collect();
    let family = words.len().min(2);
    let mut metric = words.len();
    while metric > family && METRICS.contains(&words[metric - 1]) {
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
        let names: Vec<&str> = all.iter().map(|family| family.name.as_str()).collect();
        assert_eq!(names, ["probe.tile", "probe.ceiling", "odd"]);
        assert_eq!(all[0].columns, ["time us", "time min us"]);
        assert_eq!(all[0].rows[0], ("q-1 tma".into(), vec!["12.3".into(), "11.0".into()]));
        assert_eq!(all[0].rows[1], ("q-1 manual".into(), vec!["17.5".into(), String::new()]));
        assert_eq!((all[0].is_spread(0), all[0].is_spread(1)), (false, true));
        assert_eq!((all[0].width(&[0]), all[0].width(&[0, 1])), (10 + 6, 10 + 6 + 6));
        assert_eq!(all[2].rows, [(String::new(), vec!["1.00".into()])]);
    }
}
