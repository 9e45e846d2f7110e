//! The documents that are made from records: `FOUNDING.md`, and parts of `STUDY.md`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use msda_bench::record::GpuState;
use msda_bench::report::{beside, wrap};

use super::{COLUMNS, Founding};
use crate::claims::Verdict;
use crate::report::ladder;

const HEAD: &str = "# The founding documents, answered

This page is for the author of the five documents that msda began with. It puts each of their
kernels, experiments and figures beside ours. `2:60` is line 60 of document 2. The command
`msda-study founding --docs docs` makes this page from the committed records; `msda-study claims`
shows every statement with its verdict. [STUDY.md](STUDY.md) describes the study.
";

/// The width of lines.
const WIDTH: usize = 100;

/// `FOUNDING.md`.
pub fn page(founding: &Founding) -> String {
    let mut out = HEAD.to_owned();
    if let (Some(gpu), Some(record)) = (&founding.gpu, &founding.record) {
        let text = format!(
            "Measured on an {gpu}. All times of the ladder's kernels come from one run, `{record}`: seed shape, \
             f16, cold caches. Probes and counters have records of their own."
        );
        out += &format!("\n{}", wrap(&text, WIDTH, 0));
    }
    out += "\n## The answer\n\n";
    for (i, sentence) in founding.answer.iter().enumerate() {
        out += &beside(&format!("{}. ", i + 1), sentence, WIDTH);
    }
    let verdicts = Verdict::ALL.map(|v| format!("`{}`", v.name())).join(", ");
    out += "\n## Their kernels, experiments and figures\n\n";
    let text = format!(
        "Verdicts are {verdicts}. A gain or a speed-up must agree within a quarter of the stated gain or 2 points, and \
         a rate within a factor of 1.25. Where a row has several figures, the verdicts are in the same order. \"a \
         gain\" stands for an optimisation without a figure."
    );
    out += &format!("{}\n", wrap(&text, WIDTH, 0));
    out += &table(&COLUMNS, founding.rows.iter().map(|row| with_code(row, 2)));
    out += "\n## Contradictions\n\n";
    let contradictions = founding.contradictions.iter().map(|c| c.to_vec());
    out += &table(&["lines", "the documents say", "fact"], contradictions);
    out += "\n## Future work of the documents\n\n";
    let columns = ["lines", "idea", "status", "result", "command"];
    out += &table(&columns, founding.future.iter().map(|row| with_code(row, 4)));
    out
}

/// The cells with one of them as code.
fn with_code(row: &[String], code: usize) -> Vec<String> {
    let cell = |(i, text): (usize, &String)| if i == code { format!("`{text}`") } else { text.clone() };
    row.iter().enumerate().map(cell).collect()
}

/// A table of cells that are Markdown themselves.
fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
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
    Ok(vec![(folder.join("FOUNDING.md"), page(founding)), (path, study)])
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
    let Some(record) = &founding.ladder else { return String::new() };
    let mut text = format!(
        "Times at the seed shape, f16, cold caches, on an {}. Record `{}`.",
        founding.gpu.as_deref().unwrap_or_default(),
        founding.record.as_deref().unwrap_or_default()
    );
    let clock = |state: Option<GpuState>| state.and_then(|s| s.clocks_mhz.sm);
    let gpu = record.machine.gpu.as_ref();
    if let (Some(before), Some(after)) = (gpu.and_then(|g| clock(g.before)), gpu.and_then(|g| clock(g.after)))
    {
        text += &format!(" The SM clock was {before} MHz before the run and {after} MHz after it.");
    }
    let table = ladder::table(record).map(|table| table.markdown());
    format!("{}\n{}", wrap(&text, WIDTH, 0), table.unwrap_or_default())
}
