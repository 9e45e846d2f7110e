//! Colours of engines: the same on the whole page, told apart by the colour-blind, fit for light and dark.

use crate::record::Record;
use crate::report::group::{is_pinned, is_torch};

/// Engines whose colours stay the same from page to page.
const KNOWN: [&str; 3] = ["cpu-avx512", "cpu-avx2", "cpu-portable"];

/// Colours in the stylesheet; engines beyond them start over, hollow.
const COLORS: usize = 6;

/// Which engine has which colour.
pub(in crate::report) struct Palette {
    engines: Vec<String>,
}

impl Palette {
    /// The palette for all engines of the records.
    pub(in crate::report) fn new(records: &[Record]) -> Self {
        let mut engines: Vec<String> = KNOWN.map(String::from).into();
        for m in records.iter().flat_map(|r| &r.measurements) {
            if !is_torch(&m.engine) && !is_pinned(&m.engine) && !engines.contains(&m.engine) {
                engines.push(m.engine.clone());
            }
        }
        Self { engines }
    }

    /// The classes of an engine's marks.
    pub(in crate::report) fn class(&self, engine: &str) -> String {
        match self.engines.iter().position(|e| e == engine) {
            None => "k kt".into(),
            Some(i) if i < COLORS => format!("k k{i}"),
            Some(i) => format!("k k{} hollow", i % COLORS),
        }
    }

    /// Where an engine stands in a legend: torch last.
    pub(in crate::report) fn order(&self, engine: &str) -> usize {
        self.engines.iter().position(|e| e == engine).unwrap_or(self.engines.len())
    }
}
