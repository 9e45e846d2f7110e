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

const ABOUT: [&str; 7] = [
    "This page is for the author of the five documents that msda began with. `2:60` is line 60 of document 2. \
     `msda-study founding --docs docs` makes it from the committed records; `msda-study claims` shows every statement \
     with its verdict. [STUDY.md](STUDY.md) describes the study.",
    "**Locations.** Samples lie anywhere on the map, unless a text says \"near their query\"; STUDY.md has both kinds. \
     Your programs draw others: `deform_attn.cu` from -1 to 1 on a map from 0 to 1, so three of four samples are off \
     the map; `optimized` and `persistent` in the middle 80 % of each axis, `persistent_full`, channel split and the \
     first suite in 90 %, the second suite in 60 %.",
    "**Shape.** Your shape with rings, f16, cold caches; all times of the kernels come from one run. In the rows 2:30, \
     2:32, 2:109, 4:90 and 4:91 `persistent_full` has no rings, as in your program. Your programs of document 2 run \
     with warm caches. `simple`, `optimized`, `persistent` and the suites run smaller shapes: the second suite has 8 \
     planes of 2,825 positions, with 2,048 queries each.",
    "**Operations.** Rates are in your units: 10 operations per sample and channel, 320 per output, and the bytes of \
     every tensor once.",
    "**Numbers.** The median; p10 to p90 are in parentheses. Numbers are rounded to half of that variation. A gain that \
     is smaller than the variation is noise. A gain or a speed-up is reproduced if it agrees within a quarter of the \
     stated gain or 2 points, a rate within a factor of 1.25.",
    "**Rungs.** A rung is a kernel of the study. `original_f16` is the baseline of your suites. `base` is ours: 16 bytes \
     per thread, sums in f32.",
    "**Commands.** `cargo build --release -p msda-study` builds the program. `msda-study bench --rung NAME` times a rung, \
     `msda-study build --rung NAME --arch sm_120` compiles it without a GPU, and `msda-study all --out DIR` verifies \
     and measures everything on any NVIDIA GPU. Its record, put into `records/`, gives this page a column for that \
     GPU.",
];

/// Why figures of an H100 are judged on an H200.
const ON_H200: &str = " Document 2 states its rates for an H100. They are judged on the H200, the same chip with \
     faster memory: 4.8 instead of 3.35 TB/s. Document 4 names no GPU; its 2.2 TFLOP/s are document 2's.";

/// The width of lines of text.
const WIDTH: usize = 100;

/// `FOUNDING.md`.
pub fn page(founding: &Founding, form: Form) -> String {
    let mut out = String::from("# The founding documents, answered\n");
    let mut paragraph = |text: &str| out += &format!("\n{}", wrap(text, WIDTH, 0));
    paragraph(ABOUT[0]);
    let gpus = match founding.gpus.as_slice() {
        [] => "**GPU.** There is no record of the study.".to_owned(),
        all => format!(
            "**GPU.** {}.{} The ladder's record is `{}`; probes and counters may have records of their own.",
            all.join(", "),
            if all.iter().any(|gpu| gpu.contains("H200")) { ON_H200 } else { "" },
            founding.record()
        ),
    };
    paragraph(&gpus);
    ABOUT[1..].iter().for_each(|text| paragraph(text));
    let verdicts = Verdict::ALL.map(Verdict::name).join("; ");
    paragraph(&format!("**Verdicts.** {verdicts}."));
    out += "\n## The answer\n";
    for text in &founding.answers {
        out += &format!("\n{}", wrap(text, WIDTH, 0));
    }
    for (title, cells) in [
        ("Your figures", &founding.figures),
        ("Your files and commands", &founding.files),
        ("Contradictions", &founding.contradictions),
        ("Future work", &founding.future),
    ] {
        out += &format!("\n## {title}\n\n{}", cells.text(form));
    }
    out += "\n## 8-bit values\n";
    for text in &founding.eight_bit {
        out += &format!("\n{}", wrap(text, WIDTH, 0));
    }
    out
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
            Form::Markdown => table(&self.titles, self.rows.iter().cloned()),
            Form::Terminal => self.rows.iter().map(|row| self.block(row)).collect(),
        }
    }

    /// A row as a paragraph beside its first cell.
    fn block(&self, row: &[String]) -> String {
        const INDENT: usize = 12;
        let mut out = beside(&format!("{:<INDENT$}", row[0]), &row[1], WIDTH);
        for (title, cell) in self.titles.iter().zip(row).skip(2).filter(|(_, cell)| !cell.is_empty()) {
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
