//! Committed records stay readable, and writing them again loses nothing.

use std::path::{Path, PathBuf};

use msda_bench::record::{Device, Pass, Record};
use msda_bench::report::{html, markdown, terminal};

fn json_files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            json_files(&path, all);
        } else if path.extension().is_some_and(|e| e == "json") {
            all.push(path);
        }
    }
}

#[test]
fn every_record_loads_and_makes_a_report() {
    let mut files = Vec::new();
    json_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records"), &mut files);
    assert!(files.len() >= 6, "{files:?}");
    for path in files {
        let record = Record::load(&path).unwrap_or_else(|why| panic!("{why:#}"));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record, "{}", path.display());
        // Some records have figures only.
        let pass = record.measurements.first().map(|m| match m.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        });
        let records = [record];
        for report in
            [html(&records, &[]).unwrap(), markdown(&records, &[]).unwrap(), terminal(&records, false)]
        {
            assert!(pass.is_none_or(|pass| report.to_lowercase().contains(pass)), "{}", path.display());
        }
    }
}

#[test]
fn a_record_without_devices_was_measured_on_the_cpu() {
    let path = "../../records/xeon-avx512-2core/2026-11-15-cpu.json";
    let record = Record::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    assert_eq!(record.machine.gpu, None);
    for m in &record.measurements {
        assert_eq!((m.device, m.cold, &m.kernel, m.check.inexact), (Device::Cpu, false, &None, false));
    }
}
