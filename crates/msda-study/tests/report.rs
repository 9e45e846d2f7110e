//! The sections of the study in reports.

mod fixtures;

use fixtures::product::realistic;
use fixtures::{analysis, everything, ladder, probes};
use msda_bench::record::{Record, Source, sources};
use msda_bench::report;
use msda_study::report::Sections;

fn html(records: &[Record]) -> String {
    report::html(records, &[Box::new(Sections)]).unwrap()
}

fn markdown(records: &[Record]) -> String {
    report::markdown(records, &[Box::new(Sections)]).unwrap()
}

fn cases() -> Vec<Vec<Record>> {
    vec![vec![], vec![ladder()], vec![probes()], vec![analysis()], everything()]
}

#[test]
fn pages_and_texts_are_well_formed() {
    for records in cases() {
        fixtures::product::check_page(&html(&records));
        fixtures::product::check_markdown(&markdown(&records));
    }
}

/// The sections of a page, in order.
fn titles(page: &str) -> Vec<&str> {
    page.split("<h2>").skip(1).filter_map(|rest| rest.split("</h2>").next()).collect()
}

/// The sections of the study in a page, in order.
fn study(page: &str) -> Vec<&str> {
    let Some((_, study)) = page.split_once("<h2>The study</h2>") else { return Vec::new() };
    let names = ["Ladder", "Probes", "Analysis"];
    let all = study.split("<summary>").skip(1).filter_map(|rest| rest.split("</summary>").next());
    all.filter(|title| names.contains(title)).collect()
}

#[test]
fn the_study_comes_last_under_one_heading() {
    assert_eq!(titles(&html(&[])), Vec::<&str>::new());
    assert_eq!(titles(&html(&[realistic()])), ["Measurements", "Workloads"]);
    let all = ["Measurements", "Workloads", "The study"];
    assert_eq!(titles(&html(&everything())), all);
    assert_eq!(study(&html(&everything())), ["Ladder", "Probes", "Analysis"]);
    assert_eq!(study(&html(&[probes()])), ["Probes"]);
    assert_eq!(study(&html(&[analysis()])), ["Analysis"]);
    let text = markdown(&everything());
    let of_text: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    assert_eq!(of_text, all);
}

/// A page takes less than its record, and 30 KB for its frame.
#[test]
fn each_committed_record_makes_a_small_page() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    for Source { label, record } in sources(&[folder]).unwrap() {
        let most = 30_000 + serde_json::to_string_pretty(&record).unwrap().len();
        let page = html(&[record]);
        assert!(page.len() < most.min(400_000), "{label}: {} bytes", page.len());
    }
}

#[test]
fn a_missing_measurement_has_its_command() {
    let text = markdown(&[analysis()]);
    for expected in ["`msda-study bench`", "`msda-study probe --out probes`"] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(markdown(&[probes()]).contains("`msda-study analyze --sweep"));
    assert!(!markdown(&everything()).contains("`msda-study probe --out"));
}

#[test]
fn the_ladder_is_compared_with_its_first_rung_and_variants_with_their_base() {
    let text = markdown(&[ladder()]);
    let line =
        |begins: &str| text.lines().find(|l| l.starts_with(begins)).unwrap_or_else(|| panic!("{text}"));
    assert!(text.find("seed f16 forward").unwrap() < text.find("seed f32 forward").unwrap(), "f16 first");
    // 2.4 ms, and 2.4 / 1.51; these are no variants of a base.
    assert!(line("| original |").starts_with("| original | 2400 | 2330..2590 | - | - | 7.9% |"));
    assert!(line("| simple |").starts_with("| simple | 1590 | 1540..1720 | 1.51x | - |"));
    assert!(line("| chosen |").starts_with("| chosen | 310 | 301..335 | 7.74x | - | 61% |"));
    assert!(line("| int8 |").contains("| ~40 |"), "inexact by design");
    // Against the base: positive is faster.
    assert!(line("| base |").contains(" | 4.80x | - |"));
    assert!(line("| base+hints |").contains(" | 6.00x | +25.0 |"));
    assert!(line("| base-vector |").contains(" | 2.40x | -50.0 |"));
    assert!(text.contains("Not measured: ultra. `msda-study bench --workload seed --rung ultra`"));
    assert!(!text.contains("--rung distributed16"), "it is said to be left out");
    let page = html(&[ladder()]);
    assert!(!page.split_once("<h2>The study</h2>").unwrap().0.contains("cuda:ladder:simple"));
}

#[test]
fn reasons_are_said_once() {
    let text = markdown(&[analysis()]);
    assert_eq!(text.matches("no ncu<br>hint:").count(), 1, "{text}");
}
