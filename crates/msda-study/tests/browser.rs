//! The page with the study in a real browser.

mod fixtures;
#[path = "../../msda-bench/tests/browser/harness.rs"]
#[allow(dead_code, reason = "other tests look for faults by themselves")]
mod harness;

use std::path::Path;

use harness::is_fine;
use msda_bench::record::{Record, sources};
use msda_bench::report;
use msda_study::report::Sections;

fn page(records: &[Record]) -> String {
    report::html(records, &[Box::new(Sections)]).unwrap()
}

#[test]
fn a_page_of_everything_is_fine() {
    is_fine("everything", &page(&fixtures::everything()), 10);
}

#[test]
fn a_page_of_the_committed_records_is_fine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let records: Vec<Record> = sources(&[folder]).unwrap().into_iter().map(|s| s.record).collect();
    is_fine("committed", &page(&records), 10);
}
