//! Records as tables for a terminal.

use super::group::{Group, Row, groups, is_plain, is_torch};
use super::known::machine;
use super::number::{NONE, count, figure, maybe, percent, times};
use super::pivot::{Family, families};
use super::table::{Cell, Color, TextTable, USUAL_WIDTH, beside, wrap};
use super::{plain, words};
use crate::record::{Device, Measurement, Record};

/// Where text is shown: how wide it is, and whether it has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Characters per line.
    pub width: usize,
    /// Whether headings are bold, gains green and wrong results red.
    pub color: bool,
}

impl Default for Screen {
    fn default() -> Self {
        Self { width: USUAL_WIDTH, color: false }
    }
}

/// Records as tables of 80 columns.
pub fn terminal(records: &[Record], color: bool) -> String {
    Screen { color, ..Screen::default() }.tables(records)
}

impl Screen {
    /// Records as tables: one for each workload and pass, then figures, then what was left out.
    pub fn tables(self, records: &[Record]) -> String {
        if records.is_empty() {
            return "no records\n".into();
        }
        let run = |record: &Record| self.run(record);
        records.iter().map(run).collect::<Vec<_>>().join("\n")
    }

    fn run(self, record: &Record) -> String {
        let mut out = self.bold(&format!("msda {}, {}", record.version, record.created));
        out += &self.paragraph(&format!("{}, {}", machine(record), words::machine_note(&record.machine)));
        out += &self.paragraph(&words::about(record));
        if let Some(busy) = words::busy(record) {
            out += &self.bold(&busy);
        }
        out += &self.measurements(record);
        for family in &families(&record.figures) {
            out += &format!("\n{}{}", self.bold(&family.name), self.family(family));
        }
        out + &self.left_out(record)
    }

    fn measurements(self, record: &Record) -> String {
        let groups = groups(record);
        if groups.is_empty() {
            return if record.figures.is_empty() { "\nnothing was measured\n".into() } else { String::new() };
        }
        let shown = Column::of(&groups);
        let mut tables: Vec<TextTable> = groups.iter().map(|group| group_table(group, &shown)).collect();
        // The tables of a run line up.
        let widths: Vec<Vec<usize>> = tables.iter().map(TextTable::widths).collect();
        for table in &mut tables {
            widths.iter().for_each(|widths| table.widen(widths));
        }
        let mut out = String::new();
        for (group, table) in groups.iter().zip(&tables) {
            let threads = common_threads(&groups).filter(|_| group.setting.device == Device::Cpu);
            let threads = threads.map_or(String::new(), |n| format!(", {}", count(n, "thread")));
            out += &format!("\n{}", self.bold(&(group.title() + &threads)));
            out += &self.paragraph(&group.problems());
            out += &table.render(self.width, self.color);
        }
        let dropped = tables[0].dropped(self.width);
        let title = |c: &&Column| !dropped.iter().any(|title| title == c.title());
        let legend: Vec<&str> = shown.iter().filter(title).filter_map(|c| c.legend()).collect();
        out + "\n" + &self.paragraph(&legend.join(" "))
    }

    /// A table of figures. Columns that do not fit are named below it.
    fn family(self, family: &Family) -> String {
        // Figures without a metric differ in their units alone: they share one column.
        let (bare, named): (Vec<usize>, Vec<usize>) =
            (0..family.columns.len()).partition(|&i| is_bare_unit(&family.columns[i]));
        let mut table = TextTable::default().text("", 0);
        if !bare.is_empty() {
            table = table.text("", 0);
        }
        for &i in &named {
            // The spread of runs is dropped first, then the last columns.
            let rank = if family.is_spread(i) { 255 } else { u8::try_from(i + 1).unwrap_or(254) };
            table = table.number(&plain(&family.columns[i]).replace(' ', "\n"), rank);
        }
        for (thing, numbers) in &family.rows {
            let first = bare.iter().find(|&&i| !numbers[i].is_empty());
            let value =
                first.map_or(String::new(), |&i| format!("{} {}", numbers[i], family.columns[i].trim()));
            let bare = (!bare.is_empty()).then_some(value);
            let named = named.iter().map(|&i| numbers[i].clone());
            table.push(std::iter::once(plain(thing)).chain(bare).chain(named));
        }
        let spread = |title: &String| title.split(' ').any(|word| ["min", "max", "std"].contains(&word));
        let dropped: Vec<String> = table.dropped(self.width).into_iter().filter(|t| !spread(t)).collect();
        let mut out = table.render(self.width, self.color);
        if !dropped.is_empty() {
            out += &self.paragraph(&format!("too wide to show: {}", dropped.join(", ")));
        }
        out
    }

    /// What was not measured, and why. What has one reason is listed once.
    fn left_out(self, record: &Record) -> String {
        if record.skipped.is_empty() {
            return String::new();
        }
        let mut out = format!("\n{}", self.bold("skipped"));
        for same in record.skipped.chunk_by(|a, b| a.why == b.why) {
            let what: Vec<String> = same.iter().map(|s| plain(&s.what)).collect();
            let mut why = same[0].why.lines();
            let first = format!("{}: {}", what.join(", "), why.next().unwrap_or_default());
            out += &wrap(&plain(&first), self.width, 2);
            for line in why {
                out += &beside("  ", &plain(line), self.width);
            }
        }
        out
    }

    fn paragraph(self, text: &str) -> String {
        if text.is_empty() { String::new() } else { wrap(&plain(text), self.width, 0) }
    }

    fn bold(self, text: &str) -> String {
        let lines = self.paragraph(text);
        if !self.color {
            return lines;
        }
        lines.lines().map(|line| format!("\x1b[1m{line}\x1b[0m\n")).collect()
    }
}

/// Whether the title of a column of figures is a unit without a metric.
fn is_bare_unit(title: &str) -> bool {
    title.is_empty() || title.starts_with(' ')
}

/// The threads of all measurements on the processor, if they are the same.
fn common_threads(groups: &[Group<'_>]) -> Option<usize> {
    let rows = || groups.iter().flat_map(|g| &g.rows).filter(|r| r.measured.device == Device::Cpu);
    let first = rows().next()?.measured.threads;
    rows().all(|r| r.measured.threads == first).then_some(first)
}

/// The columns of a table of measurements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Dtype,
    Engine,
    Threads,
    Median,
    Spread,
    OverPlain,
    OverTorch,
    Reached,
    Error,
    Gathered,
}

use Column::*;

const ALL: [Column; 10] =
    [Dtype, Engine, Threads, Median, Spread, OverPlain, OverTorch, Reached, Error, Gathered];

impl Column {
    /// The columns that say something about these measurements.
    fn of(groups: &[Group<'_>]) -> Vec<Self> {
        let says = |column: &Self| match column {
            Threads => common_threads(groups).is_none(),
            _ => groups.iter().any(|g| g.rows.iter().any(|row| column.cell(g, row) != NONE)),
        };
        ALL.into_iter().filter(says).collect()
    }

    fn title(self) -> &'static str {
        match self {
            Dtype => "dtype",
            Engine => "engine",
            Threads => "threads",
            Median => "median",
            Spread => "p10..p90",
            OverPlain => "over plain",
            OverTorch => "over torch",
            Reached => "of limit",
            Error => "err/tol",
            Gathered => "GB/s",
        }
    }

    /// Which columns are dropped first where they do not fit: the highest.
    fn rank(self) -> u8 {
        match self {
            Dtype | Engine | Median | OverPlain | OverTorch => 0,
            Threads => 1,
            Error => 2,
            Reached => 3,
            Spread => 4,
            Gathered => 5,
        }
    }

    fn legend(self) -> Option<&'static str> {
        match self {
            Spread => Some("p10..p90: 8 of 10 runs are in this range."),
            OverPlain => Some("over plain: speed over a plain scalar loop of the same dtype and threads."),
            OverTorch => Some("over torch: speed over torch's grid_sample, likewise."),
            Reached => Some("of limit: share of the speed that the measured limits of the machine allow."),
            Error => Some("err/tol: largest error over the tolerance; with ~ it may be above 1."),
            Gathered => Some("GB/s: rows read through the caches."),
            Dtype | Engine | Threads | Median => None,
        }
    }

    fn cell(self, group: &Group<'_>, row: &Row<'_>) -> String {
        let m = row.measured;
        // GPU times are short.
        let (scale, unit) = if m.device == Device::Cuda { (1e3, "us") } else { (1.0, "ms") };
        match self {
            Dtype => m.dtype.clone(),
            Engine => m.engine.clone(),
            Threads if m.device == Device::Cuda => NONE.into(),
            Threads => m.threads.to_string(),
            Median if !m.time.median.is_finite() => NONE.into(),
            Median => format!("{} {unit}", figure(m.time.median * scale)),
            Spread if !m.time.p10.is_finite() && !m.time.p90.is_finite() => NONE.into(),
            Spread => format!("{}..{}", figure(m.time.p10 * scale), figure(m.time.p90 * scale)),
            OverPlain => times(over(group, row, is_plain)),
            OverTorch => times(over(group, row, is_torch)),
            Reached => percent(row.reached()),
            Error => row.error_text(),
            Gathered => maybe(row.gathered_rate()),
        }
    }

    fn color(self, group: &Group<'_>, row: &Row<'_>) -> Option<Color> {
        let gain = match self {
            OverPlain => over(group, row, is_plain),
            OverTorch => over(group, row, is_torch),
            Error => return row.is_wrong().then_some(Color::Bad),
            _ => None,
        };
        gain.filter(|&gain| gain > 1.0).map(|_| Color::Good)
    }
}

/// How many times as fast a row is as a baseline with the same dtype and threads.
fn over(group: &Group<'_>, row: &Row<'_>, is_baseline: impl Fn(&str) -> bool) -> Option<f64> {
    let same = |m: &Measurement| m.dtype == row.measured.dtype && m.threads == row.measured.threads;
    let base = group.rows.iter().find(|r| is_baseline(&r.measured.engine) && same(r.measured))?;
    Some(base.median()? / row.median()?)
}

fn group_table(group: &Group<'_>, columns: &[Column]) -> TextTable {
    let mut table = TextTable::default();
    for column in columns {
        table = match column {
            Dtype | Engine => table.text(column.title(), column.rank()),
            _ => table.number(column.title(), column.rank()),
        };
    }
    for row in &group.rows {
        let cell =
            |column: &Column| Cell::from(plain(&column.cell(group, row))).colored(column.color(group, row));
        table.push(columns.iter().map(cell));
    }
    table
}
