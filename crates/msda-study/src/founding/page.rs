//! `docs/FOUNDING.md`.

use super::{COLUMNS, Founding};
use crate::claims::Verdict;
use msda_bench::report::{beside, wrap};

const HEAD: &str = "# The founding documents, answered

This page is for the author of the five documents that msda began with. It puts each of their
kernels, experiments and figures beside ours. `2:60` is line 60 of document 2. The command
`msda-study founding --docs docs` makes this page from the committed records; `msda-study claims`
shows every statement with its verdict. [STUDY.md](STUDY.md) describes the study.
";

/// The width of lines.
pub(super) const WIDTH: usize = 100;

/// The page as Markdown.
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
    out +=
        &table(&["lines", "the documents say", "fact"], founding.contradictions.iter().map(|c| c.to_vec()));
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

/// A table in Markdown.
pub(super) fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|text| text.replace('|', "\\|")).collect();
        out += &format!("| {} |\n", cells.join(" | "));
    }
    out
}
