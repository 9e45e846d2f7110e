//! Records as people read them: a terminal, a Markdown file, a page.

mod columns;
mod escape;
mod group;
mod html;
mod known;
mod markdown;
pub(crate) mod number;
mod page;
mod pivot;
mod sections;
mod svg;
mod table;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::record::{Ceiling, Device, Record};

pub use table::terminal;

const TITLE: &str = "Multi-scale deformable attention: measurements";

/// Whether the claims of the documents are judged in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Judge {
    /// Where a record is of a GPU: they are about GPUs.
    #[default]
    Gpu,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Records as one page, complete in itself.
pub fn html(records: &[Record], claims: Judge) -> Result<String> {
    Ok(html::html(&sections::all(records, claims)?))
}

/// Records as Markdown.
pub fn markdown(records: &[Record], claims: Judge) -> Result<String> {
    Ok(markdown::markdown(&sections::all(records, claims)?))
}

/// Where a report was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The page, complete in itself.
    pub html: PathBuf,
    /// The same as Markdown.
    pub markdown: PathBuf,
}

/// Writes `report.html` and `report.md` into a folder, which is made if it is missing.
pub fn write(records: &[Record], claims: Judge, folder: &Path) -> Result<Written> {
    let sections = sections::all(records, claims)?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let save = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        anyhow::Ok(path)
    };
    Ok(Written {
        html: save("report.html", html::html(&sections))?,
        markdown: save("report.md", markdown::markdown(&sections))?,
    })
}

/// Text on one line, without characters that steer a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Every line of a text on its own, joined again.
fn by_line(text: &str, join: &str, each: impl Fn(&str) -> String) -> String {
    text.lines().map(each).collect::<Vec<_>>().join(join)
}

/// The threads of a ceiling; a GPU's has none.
fn under(ceiling: &Ceiling) -> String {
    match ceiling.device {
        Device::Cpu => ceiling.threads.to_string(),
        Device::Cuda => "GPU".into(),
    }
}

/// The unit of a ceiling's rate.
fn rate_unit(ceiling: &str) -> &'static str {
    if ceiling == "fma" { "GFLOP/s" } else { "GB/s" }
}
