//! Records as people read them: a terminal, a Markdown file, a page.

mod columns;
mod ending;
mod escape;
mod extend;
mod group;
mod html;
pub mod known;
mod markdown;
pub mod number;
pub mod page;
pub mod pivot;
mod screen;
mod sections;
pub mod svg;
mod table;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::record::{Ceiling, Device, Record};

pub use ending::{advice, verdict};
pub use extend::{Added, Extension};
pub use group::{Row, Setting, dtype_order, positive};
pub use screen::{Screen, terminal};
pub use sections::folded;
pub use table::{Cell, Color, Table, USUAL_WIDTH, beside, wrap};

const TITLE: &str = "Multi-scale deformable attention: measurements";

/// Records as one page, complete in itself.
pub fn html(records: &[Record], extensions: &[Box<dyn Extension>]) -> Result<String> {
    Ok(html::html(&sections::all(records, extensions)?))
}

/// Records as Markdown.
pub fn markdown(records: &[Record], extensions: &[Box<dyn Extension>]) -> Result<String> {
    Ok(markdown::markdown(&sections::all(records, extensions)?))
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
pub fn write(records: &[Record], extensions: &[Box<dyn Extension>], folder: &Path) -> Result<Written> {
    let sections = sections::all(records, extensions)?;
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
