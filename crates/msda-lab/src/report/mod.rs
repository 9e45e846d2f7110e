//! Records as people read them: a terminal, a Markdown file, a page.

mod columns;
mod escape;
mod figures;
mod group;
pub mod html;
pub mod markdown;
pub(crate) mod number;
mod pivot;
mod svg;
pub mod table;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::record::{Ceiling, Device, Record};

pub use html::html;
pub use markdown::markdown;
pub use table::terminal;

/// Where a report was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The page, complete in itself.
    pub html: PathBuf,
    /// The same as Markdown.
    pub markdown: PathBuf,
}

/// Writes `report.html` and `report.md` into a folder, which is made if it is missing.
pub fn write(records: &[Record], folder: &Path) -> Result<Written> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let save = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        anyhow::Ok(path)
    };
    Ok(Written { html: save("report.html", html(records))?, markdown: save("report.md", markdown(records))? })
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
