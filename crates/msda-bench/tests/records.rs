//! Committed records stay readable, and writing them again loses nothing.

use std::path::{Path, PathBuf};

use msda_bench::record::{Device, Pass, Record, Source, sources};
use msda_bench::report::{Screen, html, markdown, terminal};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records")
}

#[test]
fn every_record_loads_and_makes_a_small_report() {
    let all = sources(&[folder()]).unwrap_or_else(|why| panic!("{why:#}"));
    assert!(all.len() >= 6, "{}", all.len());
    for Source { label, record } in all {
        let text = serde_json::to_string_pretty(&record).unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record, "{label}");
        // Some records have figures only.
        let pass = record.measurements.first().map(|m| match m.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        });
        let records = [record];
        let page = html(&records, &[]).unwrap();
        assert!(page.len() < 16_000 + text.len(), "{label}: {} bytes", page.len());
        for report in [page, markdown(&records, &[]).unwrap(), terminal(&records, Screen::default())] {
            assert!(pass.is_none_or(|pass| report.to_lowercase().contains(pass)), "{label}");
        }
    }
}

#[test]
fn a_record_without_devices_was_measured_on_the_cpu() {
    let record = Record::load(&folder().join("xeon-avx512-2core/2026-11-15-cpu.json")).unwrap();
    assert_eq!(record.machine.gpu, None);
    for m in &record.measurements {
        assert_eq!((m.device, m.cold, &m.kernel, m.check.inexact), (Device::Cpu, false, &None, false));
    }
}
