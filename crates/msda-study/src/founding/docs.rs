//! The documents that are made from records: `FOUNDING.md`, and parts of `STUDY.md`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use msda_bench::record::{GpuState, Source};
use msda_bench::report::{beside, wrap};

use super::{Cells, Founding};
use crate::claims::Verdict;
use crate::report::ladder;

/// How a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As Markdown, with tables.
    Markdown,
    /// For a terminal: each row of a table is a paragraph.
    Terminal,
}

/// The width of lines of text.
const WIDTH: usize = 100;

/// `FOUNDING.md`.
pub fn page(founding: &Founding, form: Form) -> String {
    let gpus = match founding.gpus.as_slice() {
        [] => "**GPU.** There is no record of the study.".to_owned(),
        all => format!(
            "**GPU.** {}. {} The ladder's record is `{}`; probes and counters may have records of their own.",
            all.join(", "),
            if all.iter().any(|gpu| gpu.contains("H200")) { &founding.on_h200 } else { "" },
            founding.record()
        ),
    };
    let verdicts = format!("**Verdicts.** {}.", Verdict::ALL.map(Verdict::name).join("; "));
    let (first, others) = founding.about.split_at(1);
    let mut out = String::from("# The founding documents, answered\n");
    out += &paragraphs(first.iter().chain([&gpus]).chain(others).chain([&verdicts]));
    out += &format!("\n## The answer\n{}", paragraphs(&founding.answers));
    for cells in [&founding.figures].into_iter().chain(&founding.tables) {
        out += &format!("\n## {}\n\n{}", cells.title, cells.text(form));
    }
    out + "\n## 8-bit values\n" + &paragraphs(&founding.eight_bit)
}

fn paragraphs<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    texts.into_iter().map(|text| format!("\n{}", wrap(text, WIDTH, 0))).collect()
}

impl Founding {
    /// The path of the ladder's record, from the folder of records on.
    fn record(&self) -> &str {
        let label = self.ladder.as_ref().map_or("", |source| &source.label);
        label.rfind("records/").map_or(label, |at| &label[at..])
    }
}

impl Cells {
    fn text(&self, form: Form) -> String {
        match form {
            Form::Markdown => table(&self.columns, self.rows.iter().cloned()),
            Form::Terminal => self.rows.iter().map(|row| self.block(row)).collect(),
        }
    }

    /// A row as a paragraph beside its first cell.
    fn block(&self, row: &[String]) -> String {
        const INDENT: usize = 12;
        let mut out = beside(&format!("{:<INDENT$}", row[0]), &row[1], WIDTH);
        for (title, cell) in self.columns.iter().zip(row).skip(2).filter(|(_, cell)| !cell.is_empty()) {
            out += &beside(&" ".repeat(INDENT), &format!("{title}: {cell}"), WIDTH);
        }
        out
    }
}

/// A table of cells that are Markdown themselves.
fn table(titles: &[impl AsRef<str>], rows: impl Iterator<Item = Vec<String>>) -> String {
    let titles: Vec<&str> = titles.iter().map(AsRef::as_ref).collect();
    let mut out = format!("| {} |\n|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|text| text.replace('|', "\\|")).collect();
        out += &format!("| {} |\n", cells.join(" | "));
    }
    out
}

/// The paths and texts of the documents of a folder, with the numbers of the records. Nothing is
/// written.
pub fn documents(founding: &Founding, folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let path = folder.join("STUDY.md");
    let mut study = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let titles =
        founding.documents.iter().map(|d| vec![d.number.to_string(), d.title.clone(), d.brief.clone()]);
    for (name, text) in [
        ("documents", table(&["number", "title", "statements, in brief"], titles)),
        ("ladder", rungs(founding)),
        ("findings", founding.findings.iter().map(|text| beside("- ", text, WIDTH)).collect()),
        ("claims", founding.totals.markdown()),
    ] {
        study = filled(&study, name, &text).with_context(|| path.display().to_string())?;
    }
    Ok(vec![(folder.join("FOUNDING.md"), page(founding, Form::Markdown)), (path, study)])
}

/// The text with the part between two marks replaced.
fn filled(text: &str, name: &str, part: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let found = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    ensure!(found.is_some(), "got no part '{name}', expected lines '{}' and '{}'", begin.trim(), end.trim());
    let (before, after) = found.unwrap_or_default();
    Ok(format!("{before}{begin}{part}{end}{after}"))
}

/// The ladder with the record that it comes from.
fn rungs(founding: &Founding) -> String {
    let Some(Source { record, .. }) = &founding.ladder else { return String::new() };
    let Some(gpu) = &record.machine.gpu else { return String::new() };
    let mut text = format!(
        "Times at the seed shape, f16, cold caches, on an {}. Record `{}`.",
        gpu.name,
        founding.record()
    );
    let clock = |state: Option<GpuState>| state.and_then(|s| s.clocks_mhz.sm);
    if let (Some(before), Some(after)) = (clock(gpu.before), clock(gpu.after)) {
        text += &format!(" The SM clock was {before} MHz before the run and {after} MHz after it.");
    }
    let table = ladder::table(record).map(|table| table.markdown());
    format!("{}\n{}", wrap(&text, WIDTH, 0), table.unwrap_or_default())
}
