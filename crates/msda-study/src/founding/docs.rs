//! The documents that are made from records: `FOUNDING.md`, and parts of `STUDY.md`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use msda_bench::record::{Measurement, Record};
use msda_bench::report::number::times;

use super::Founding;
use super::page::{WIDTH, page, table};
use crate::claims::{Verdict, shown};
use crate::engines::RUNG;
use crate::ladder::RUNGS;
use msda_bench::report::{beside, wrap};

const FOUNDING: &str = "FOUNDING.md";
const STUDY: &str = "STUDY.md";

/// The paths and texts of the documents of a folder, with the numbers of the records. Nothing is
/// written.
pub fn documents(founding: &Founding, folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let path = folder.join(STUDY);
    let old = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut study = old;
    for (name, text) in parts(founding) {
        study = filled(&study, name, &text).with_context(|| path.display().to_string())?;
    }
    Ok(vec![(folder.join(FOUNDING), page(founding)), (path, study)])
}

/// The text with the part between two marks replaced.
fn filled(text: &str, name: &str, part: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let found = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    ensure!(found.is_some(), "got no part '{name}', expected lines '{}' and '{}'", begin.trim(), end.trim());
    let (before, after) = found.unwrap_or_default();
    Ok(format!("{before}{begin}{part}{end}{after}"))
}

/// The generated parts of `STUDY.md` by name.
fn parts(founding: &Founding) -> Vec<(&'static str, String)> {
    let findings = founding.findings.iter().map(|text| beside("- ", text, WIDTH));
    vec![
        ("documents", titles(founding)),
        ("ladder", founding.ladder.as_ref().map(|record| ladder(founding, record)).unwrap_or_default()),
        ("findings", findings.collect()),
        ("claims", totals(founding)),
    ]
}

fn titles(founding: &Founding) -> String {
    let row = |d: &crate::claims::Document| vec![d.number.to_string(), d.title.clone(), d.brief.clone()];
    table(&["number", "title", "statements, in brief"], founding.documents.iter().map(row))
}

fn totals(founding: &Founding) -> String {
    let names = Verdict::ALL.map(Verdict::name);
    let columns: Vec<&str> = ["document", "claims"].into_iter().chain(names).chain(["arithmetic"]).collect();
    let row = |(name, counts): &(String, [usize; 8])| {
        std::iter::once(name.clone()).chain(counts.iter().map(usize::to_string)).collect()
    };
    table(&columns, founding.totals.iter().map(row))
}

/// The rungs, and the rungs that change one thing.
fn ladder(founding: &Founding, record: &Record) -> String {
    let all: Vec<(&str, &Measurement)> =
        RUNGS.iter().filter_map(|rung| Some((rung.about, of(record, rung.name)?))).collect();
    let name = |m: &Measurement| m.engine.strip_prefix(RUNG).unwrap_or(&m.engine).to_owned();
    let us = |m: &Measurement| m.time.median * 1e3;
    let marked = |m: &Measurement| if m.check.inexact { " (not exact)" } else { "" };
    let mut text = format!(
        "Times at the seed shape, f16, cold caches, on an {}. Record `{}`.",
        founding.gpu.as_deref().unwrap_or_default(),
        founding.record.as_deref().unwrap_or_default()
    );
    let seed = |m: &&Measurement| m.engine == "cuda" && m.workload == SEED && m.dtype == DTYPE;
    if let Some(chosen) = record.measurements.iter().find(seed) {
        text += &format!(" The kernel that msda chooses took {} us in this run.", shown(us(chosen)));
    }
    let clock = |state: Option<msda_bench::record::GpuState>| state.and_then(|s| s.clocks_mhz.sm);
    let gpu = record.machine.gpu.as_ref();
    if let (Some(before), Some(after)) = (gpu.and_then(|g| clock(g.before)), gpu.and_then(|g| clock(g.after)))
    {
        text += &format!(" The SM clock was {before} MHz before the run and {after} MHz after it.");
    }
    let mut out = format!("{}\n", wrap(&text, WIDTH, 0));
    let original = of(record, "original").map(us);
    let rungs = all.iter().filter(|(_, m)| !name(m).contains(['+', '-']) && name(m) != "base");
    let rungs = rungs.map(|(about, m)| {
        let relative = times(original.map(|original| original / us(m)));
        vec![format!("`{}`{}", name(m), marked(m)), (*about).into(), shown(us(m)), relative]
    });
    out += &table(&["rung", "strategy", "us", "speed relative to `original`"], rungs);
    for base in ["base", "persistent"] {
        let Some(time) = of(record, base).map(us) else { continue };
        let variant = |m: &Measurement| {
            name(m).starts_with(&format!("{base}+")) || name(m).starts_with(&format!("{base}-"))
        };
        let mut own: Vec<_> = all.iter().filter(|(_, m)| variant(m)).collect();
        if own.is_empty() {
            continue;
        }
        own.sort_by(|a, b| us(a.1).total_cmp(&us(b.1)));
        out += &format!("\nOne change at a time on `{base}`, {} us:\n\n", shown(time));
        let rows = own.into_iter().map(|(about, m)| {
            let gain = (time / us(m) - 1.0) * 100.0;
            vec![
                format!("`{}`{}", name(m), marked(m)),
                (*about).into(),
                shown(us(m)),
                format!("{gain:+.1} %"),
            ]
        });
        out += &table(&["rung", "change", "us", "gain"], rows);
    }
    out
}

const SEED: &str = "seed";
const DTYPE: &str = "f16";

/// The time of a rung at the seed shape in f16.
fn of<'a>(record: &'a Record, rung: &str) -> Option<&'a Measurement> {
    let engine = format!("{RUNG}{rung}");
    record.measurements.iter().find(|m| m.engine == engine && m.workload == SEED && m.dtype == DTYPE)
}
