//! Records as text for a terminal with 100 columns.

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, LineStyle, Table, Width,
};

use super::columns::{COLUMNS, Column, LEGEND};
use super::group::{Group, Row, groups};
use super::pivot::{Family, families};
use super::{by_line, plain, words};
use crate::record::Record;

/// The largest width of a line.
const WIDTH: u16 = 100;

/// All measurements as tables, one per workload and pass; then figures; then skipped measurements.
///
/// With `color`, headings are bold, speed-ups above 1 are green and results outside the tolerance
/// are red.
pub fn terminal(records: &[Record], color: bool) -> String {
    if records.is_empty() {
        return "no records\n".into();
    }
    let mut out = String::new();
    for record in records {
        run(&mut out, record, color);
    }
    out
}

fn run(out: &mut String, record: &Record, color: bool) {
    if !out.is_empty() {
        out.push('\n');
    }
    paragraph(out, &format!("msda {}, {}", record.version, record.created), color);
    paragraph(out, &words::machine(&record.machine), false);
    if let Some(gpu) = &record.machine.gpu {
        paragraph(out, &words::gpu(gpu), false);
    }
    if let Some(busy) = words::busy(record) {
        paragraph(out, &busy, color);
    }

    let groups = groups(record);
    let widths = widths(&groups);
    for group in &groups {
        out.push('\n');
        paragraph(out, &group.title(), color);
        let problems = group.problems();
        if !problems.is_empty() {
            paragraph(out, &problems, false);
        }
        paragraph(out, &format!("speed-up over {}", group.baseline_note()), false);
        push_table(out, &group_table(group, &widths, color));
    }
    if !groups.is_empty() {
        out.push('\n');
        paragraph(out, LEGEND, false);
    } else if record.figures.is_empty() {
        out.push_str("\nnothing measured\n");
    }
    for family in &families(&record.figures) {
        out.push('\n');
        paragraph(out, &family.name, color);
        push_table(out, &family_table(family, color));
    }

    if !record.skipped.is_empty() {
        out.push('\n');
        paragraph(out, "skipped", color);
        let mut table = empty(color);
        // Measurements with the same reason share a line.
        for same in record.skipped.chunk_by(|a, b| a.why == b.why) {
            let what: Vec<String> = same.iter().map(|s| plain(&s.what)).collect();
            table.add_row([what.join("\n"), by_line(&same[0].why, "\n", plain)]);
        }
        unpad(&mut table);
        push_table(out, &table);
    }
}

/// The widest cell of each column over all groups, so that all tables have the same columns.
fn widths(groups: &[Group<'_>]) -> [usize; COLUMNS.len()] {
    COLUMNS.map(|column| {
        let cells = groups.iter().flat_map(|g| &g.rows).map(|r| plain(&column.cell(r)).chars().count());
        cells.max().unwrap_or(0).max(column.title().len())
    })
}

fn group_table(group: &Group<'_>, widths: &[usize], color: bool) -> Table {
    let mut table = empty(color);
    table.style_mut().header_separator = LineStyle::none().fill('-');
    table.set_header(COLUMNS.map(|c| {
        let cell = Cell::new(c.title()).set_alignment(alignment(c));
        if color { cell.add_attribute(Attribute::Bold) } else { cell }
    }));
    for row in &group.rows {
        table.add_row(COLUMNS.map(|c| cell(c, row, color)));
    }
    unpad(&mut table);
    for (column, &width) in table.column_iter_mut().zip(widths) {
        let width = u16::try_from(width).unwrap_or(WIDTH) + column.padding_width();
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
    }
    table
}

/// A table of figures. If it is too wide, it leaves out minima, maxima and standard deviations.
fn family_table(family: &Family, color: bool) -> Table {
    let all: Vec<usize> = (0..family.columns.len()).collect();
    let centres = all.iter().copied().filter(|&i| !family.is_spread(i)).collect();
    let columns = if family.width(&all) <= usize::from(WIDTH) { all } else { centres };
    let mut table = empty(color);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.style_mut().header_separator = LineStyle::none().fill('-');
    let titles = columns.iter().map(|&i| plain(&family.columns[i]).replace(' ', "\n"));
    table.set_header(std::iter::once(String::new()).chain(titles).map(|title| {
        let cell = Cell::new(title).set_alignment(CellAlignment::Right);
        if color { cell.add_attribute(Attribute::Bold) } else { cell }
    }));
    for (thing, numbers) in &family.rows {
        let numbers = columns.iter().map(|&i| Cell::new(&numbers[i]).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(plain(thing))).chain(numbers));
    }
    unpad(&mut table);
    table
}

fn cell(column: Column, row: &Row<'_>, color: bool) -> Cell {
    let cell = Cell::new(plain(&column.cell(row))).set_alignment(alignment(column));
    if !color {
        return cell;
    }
    match column {
        Column::Speedup if row.speedup() > Some(1.0) => cell.fg(Color::Green).add_attribute(Attribute::Bold),
        Column::Error if row.is_wrong() => cell.fg(Color::Red).add_attribute(Attribute::Bold),
        _ => cell,
    }
}

fn alignment(column: Column) -> CellAlignment {
    if column.is_number() { CellAlignment::Right } else { CellAlignment::Left }
}

/// A table without rules. Its text does not depend on the terminal.
fn empty(color: bool) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH).force_no_tty();
    if color {
        table.enforce_styling();
    }
    table
}

/// Two spaces between columns and none before the first.
fn unpad(table: &mut Table) {
    let last = table.column_count().saturating_sub(1);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if i == last { 0 } else { 2 }));
    }
}

fn push_table(out: &mut String, table: &Table) {
    for line in table.lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// Writes text, wrapped at the width.
fn paragraph(out: &mut String, text: &str, bold: bool) {
    let text = plain(text);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("starts with one line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= usize::from(WIDTH) {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    for line in lines {
        out.push_str(&if bold { format!("\x1b[1m{line}\x1b[0m\n") } else { line + "\n" });
    }
}
