//! Reports on records: as text for a terminal, as Markdown, and as an HTML page.

pub mod chart;
mod compare;
mod escape;
mod group;
pub mod known;
mod names;
pub mod number;
pub mod page;
pub mod pivot;
mod sections;
mod table;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::files::cannot;
use crate::record::Record;

pub use group::{Setting, dtype_order, positive};
pub use page::Screen;
pub use table::{Kind, Table, USUAL_WIDTH, beside, wrap};

/// A crate that adds to the report.
pub trait Extension {
    /// Whether its sections show the measurements of this engine, so that other tables leave them
    /// out.
    fn shows(&self, engine: &str) -> bool;

    /// Its sections, which come last. The records are sorted, newest first.
    fn sections(&self, records: &[Record]) -> Result<Vec<page::Section>>;
}

/// The crates that add to a report.
pub type Extensions = [Box<dyn Extension>];

const TITLE: &str = "msda: multi-scale deformable attention, measured";

/// The report as one HTML file.
pub fn html(records: &[Record], extensions: &Extensions) -> Result<String> {
    Ok(sections::page(records, extensions)?.html())
}

/// The report as Markdown.
pub fn markdown(records: &[Record], extensions: &Extensions) -> Result<String> {
    Ok(sections::page(records, extensions)?.markdown())
}

/// Records as text of this width.
pub fn terminal(records: &[Record], screen: Screen) -> String {
    if records.is_empty() {
        return "no records\n".into();
    }
    records.iter().map(|record| screen.text(&sections::alone(record))).collect::<Vec<_>>().join("\n")
}

/// A picture of the headline's comparisons as an SVG file; an error if there is none.
pub fn picture(records: &[Record]) -> Result<String> {
    let mut charts = sections::charts(records);
    ensure!(!charts.is_empty(), "picture: got no workload beside another implementation in one run");
    let machines = distinct(records.iter().map(known::machine)).join("; ");
    let title = format!("{machines}: median times; 2.00x is twice the time of msda");
    let row = [title.as_str(), ""].map(|title| chart::Chart { title: title.into(), bars: Vec::new() });
    charts.splice(..0, row);
    let svg = chart::svg(&charts, 2, "Times of msda and of other implementations");
    let file = "<svg xmlns=\"http://www.w3.org/2000/svg\" color=\"#1b1f24\" style=\"background: #ffffff\" ";
    Ok(svg.replacen("<svg ", file, 1))
}

/// The headlines of the report, one per line, after a line that counts runs and machines.
pub fn summary(records: &[Record]) -> Vec<String> {
    let mut machines: Vec<String> = records.iter().map(known::machine).collect();
    machines.sort();
    machines.dedup();
    let runs = number::count(records.len(), "run");
    let mut lines = vec![format!("{runs} on {}", number::count(machines.len(), "machine"))];
    lines.extend(sections::headlines(records));
    lines
}

/// How to measure what a run left out for want of torch or a GPU.
pub fn advice(record: &Record) -> Option<String> {
    let advice = [
        (
            "torch",
            "To compare with torch, run `cargo xtask setup` in the project's folder, or set MSDA_PYTHON to a \
             Python that has torch. The package msda_attn must be installed there.",
        ),
        ("cuda", "To measure a GPU, install NVIDIA's driver and NVRTC; `msda doctor` shows what is missing."),
    ];
    let missing = advice.iter().filter(|(what, _)| record.skipped.iter().any(|s| s.what == *what));
    let all: Vec<&str> = missing.map(|(_, text)| *text).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Writes `report.html` and `report.md` into a folder, and creates the folder if necessary. Returns
/// the paths of the two.
pub fn write(records: &[Record], extensions: &Extensions, folder: &Path) -> Result<[PathBuf; 2]> {
    let page = sections::page(records, extensions)?;
    std::fs::create_dir_all(folder).map_err(|why| cannot("write", folder, why))?;
    let paths = ["report.html", "report.md"].map(|name| folder.join(name));
    for (path, text) in paths.iter().zip([page.html(), page.markdown()]) {
        std::fs::write(path, text).map_err(|why| cannot("write", path, why))?;
    }
    Ok(paths)
}

/// Each item once, in the order in which they come.
pub fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in all {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

/// Items with the same key together. Keys have the order in which they come.
pub fn by_key<T, K: PartialEq>(all: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for item in all {
        let key = key(&item);
        match groups.iter_mut().find(|(own, _)| *own == key) {
            Some((_, items)) => items.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}
