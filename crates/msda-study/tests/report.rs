//! The sections of the study in reports.

mod fixtures;

use fixtures::product::realistic;
use fixtures::{analysis, everything, ladder, probes};
use msda_bench::record::Record;
use msda_bench::report;
use msda_study::report::{Judge, Sections};

fn html(records: &[Record]) -> String {
    judged(records, Judge::default())
}

fn judged(records: &[Record], claims: Judge) -> String {
    report::html(records, &[Box::new(Sections { claims })]).unwrap()
}

fn markdown(records: &[Record]) -> String {
    report::markdown(records, &[Box::new(Sections::default())]).unwrap()
}

fn cases() -> Vec<Vec<Record>> {
    vec![vec![], vec![ladder()], vec![probes()], vec![analysis()], everything()]
}

/// The sections of a page, in order.
fn titles(page: &str) -> Vec<&str> {
    page.split("<h2>").skip(1).filter_map(|rest| rest.split("</h2>").next()).collect()
}

#[test]
fn pages_have_numbers_only_and_balanced_tags() {
    for records in cases() {
        let page = html(&records);
        let mut words = page.split(|c: char| !c.is_ascii_alphabetic());
        let found = words.find(|w| ["nan", "inf", "infinity"].contains(&w.to_lowercase().as_str()));
        assert_eq!(found, None);
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1) {
            let inside = tag.split('>').next().unwrap();
            let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap();
            if inside.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !inside.ends_with('/') && !["!doctype", "meta", "br"].contains(&name) {
                open.push(name);
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }
}

#[test]
fn markdown_tables_are_rectangular() {
    for records in cases() {
        let text = markdown(&records);
        let mut columns = None;
        for line in text.lines() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            let count = line.replace("\\|", "").matches('|').count();
            assert_eq!(*columns.get_or_insert(count), count, "{line}");
        }
        assert!(!text.contains("NaN"));
    }
}

#[test]
fn a_section_is_there_where_its_data_is() {
    assert_eq!(titles(&html(&[])), ["Summary"]);
    assert_eq!(titles(&html(&[realistic()])), ["Summary", "Workloads", "Roofline", "Left out"]);
    assert_eq!(titles(&html(&[probes()])), ["Summary", "Sweeps", "Probes", "Claims", "Left out"]);
    assert_eq!(titles(&html(&[analysis()])), ["Summary", "Wavefronts", "Sweeps", "Claims", "Left out"]);
    let all = [
        "Summary",
        "Workloads",
        "Roofline",
        "Latency ladder",
        "Wavefronts",
        "Sweeps",
        "Probes",
        "Claims",
        "Left out",
    ];
    assert_eq!(titles(&html(&everything())), all);
    let text = markdown(&everything());
    let of_text: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    assert_eq!(of_text, all);
    assert!(!titles(&judged(&everything(), Judge::Never)).contains(&"Claims"));
    assert!(titles(&judged(&[realistic()], Judge::Always)).contains(&"Claims"));
}

#[test]
fn what_is_absent_is_said_with_the_command_that_measures_it() {
    let text = markdown(&[realistic()]);
    for expected in ["`msda study bench`", "`msda study probe --out probes`", "`msda study analyze --sweep"] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(!markdown(&everything()).contains("`msda study probe --out"));
    let text = markdown(&[analysis()]);
    assert!(text.contains(
        "counters of generic on seed f16. `msda study analyze --workload seed --kernel generic --ncu`"
    ));
}

#[test]
fn the_ladder_is_compared_with_its_first_rung_and_the_one_before() {
    let text = markdown(&[ladder()]);
    let line =
        |begins: &str| text.lines().find(|l| l.starts_with(begins)).unwrap_or_else(|| panic!("{text}"));
    assert!(text.find("seed f16 forward").unwrap() < text.find("seed f32 forward").unwrap(), "f16 first");
    // 2.4 ms, 2.4 / 1.17, 2.4 / 1.34 and 2.4 / 1.51; the chosen kernel has no rung before it.
    assert!(line("| original |").starts_with("| original | 2400 | 2330..2590 | - | - | 7.9% |"));
    assert!(line("| simple |").starts_with("| simple | 1590 | 1540..1720 | 1.51x | 1.13x |"));
    assert!(line("| chosen |").starts_with("| chosen | 310 | 301..335 | 7.74x | - | 61% |"));
    assert!(line("| int8 |").contains("| ~40 |"), "inexact by design");
    // Against the base: positive is faster.
    assert!(line("| base |").starts_with("| base | 500 | - |"));
    assert!(line("| base+hints |").starts_with("| base+hints | 400 | +25.0 |"));
    assert!(line("| base-vector |").starts_with("| base-vector | 1000 | -50.0 |"));
    assert!(text.contains("Not measured: ultra. `msda bench --workload seed --engine cuda:ladder:ultra`"));
    assert!(!text.contains("--engine cuda:ladder:distributed16"), "it is said to be left out");
    let page = html(&[ladder()]);
    assert!(!titles(&page).contains(&"Workloads") || !page.contains(">cuda:ladder:simple<"));
}

#[test]
fn reasons_are_said_once() {
    let text = markdown(&[analysis(), analysis()]);
    assert_eq!(text.matches("no ncu<br>hint:").count(), 1, "{text}");
}

#[test]
fn no_plot_is_empty_and_no_coordinate_is_outside() {
    for records in cases() {
        let page = html(&records);
        for plot in page.split("role=\"img\">").skip(1).map(|rest| rest.split("</svg>").next().unwrap()) {
            let marks = ["<rect", "<path", "<line"].iter().map(|m| plot.matches(m).count()).sum::<usize>();
            assert!(marks > 0 && !plot.contains("=\"-"), "{plot}");
        }
    }
}
