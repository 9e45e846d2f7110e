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

/// The sections of the study in a page, in order.
fn study(page: &str) -> Vec<&str> {
    let Some((_, study)) = page.split_once("<h2>The study</h2>") else { return Vec::new() };
    let names = ["Founding documents", "Ladder", "Claims", "Probes", "Analysis"];
    let all = study.split("<summary>").skip(1).filter_map(|rest| rest.split("</summary>").next());
    all.filter(|title| names.contains(title)).collect()
}

#[test]
fn the_study_comes_last_under_one_heading() {
    assert_eq!(titles(&html(&[])), Vec::<&str>::new());
    assert_eq!(titles(&html(&[realistic()])), ["Measurements", "Workloads", "Left out"]);
    let all = ["Error of the gradients", "Measurements", "Workloads", "Left out", "The study"];
    assert_eq!(titles(&html(&everything())), all);
    let sections = ["Founding documents", "Ladder", "Claims", "Probes", "Analysis"];
    assert_eq!(study(&html(&everything())), sections);
    assert_eq!(study(&html(&[probes()])), ["Founding documents", "Claims", "Probes"]);
    assert_eq!(study(&html(&[analysis()])), ["Founding documents", "Claims", "Analysis"]);
    let text = markdown(&everything());
    let of_text: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    assert_eq!(of_text, all);
    assert!(!study(&judged(&everything(), Judge::Never)).contains(&"Claims"));
    assert!(study(&judged(&[realistic()], Judge::Always)).contains(&"Claims"));
}

#[test]
fn markdown_has_no_empty_section() {
    for records in cases() {
        let text = markdown(&records);
        let level = |line: &str| line.bytes().take_while(|b| *b == b'#').count();
        let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
        for (i, line) in lines.iter().enumerate().filter(|(_, l)| l.starts_with('#')) {
            let next = lines.get(i + 1).copied().unwrap_or("#");
            assert!(level(next) == 0 || level(next) > level(line), "{line} is empty\n\n{text}");
        }
    }
}

#[test]
fn the_committed_records_make_a_small_page() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let records = msda_bench::record::sources(&[folder]).unwrap();
    let page = html(&records.into_iter().map(|s| s.record).collect::<Vec<_>>());
    assert!(page.len() < 400_000, "{} bytes", page.len());
    assert!(page.contains("Error of the gradients"));
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
    assert!(text.contains("Not measured: ultra. `msda-study bench --workload seed --rung ultra`"));
    assert!(!text.contains("--rung distributed16"), "it is said to be left out");
    let page = html(&[ladder()]);
    assert!(!page.split_once("<h2>The study</h2>").unwrap().0.contains("cuda:ladder:simple"));
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
            let marks = ["<rect", "<path", "<circle"].iter().map(|m| plot.matches(m).count()).sum::<usize>();
            assert!(marks > 0 && !plot.contains("=\"-"), "{plot}");
        }
    }
}
