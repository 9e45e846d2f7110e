use std::path::Path;

use msda_bench::record::sources;

use super::*;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn committed() -> Founding {
    Founding::of(sources(&[root().join("records")]).unwrap()).unwrap()
}

#[test]
fn the_documents_agree_with_the_committed_records() {
    for (path, text) in super::documents(&committed(), &root().join("docs")).unwrap() {
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = committed.lines().zip(text.lines()).find(|(old, new)| old != new);
        assert!(
            committed == text,
            "{} does not agree with the records: {differs:?}\nhint: cargo run -p msda-study -- founding --docs docs",
            path.display()
        );
    }
}

#[test]
fn rows_are_complete_and_have_verdicts() {
    let founding = committed();
    assert_eq!(founding.answer.len(), 5);
    assert!((35..=60).contains(&founding.rows.len()), "{}", founding.rows.len());
    for row in &founding.rows {
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
    for number in 1..=5 {
        let own = |row: &&[String; 8]| row[0].starts_with(&format!("{number}:"));
        assert!(founding.rows.iter().filter(own).count() >= 5, "document {number}");
    }
    let text = page(&founding);
    let mut columns = None;
    for line in text.lines() {
        if line.starts_with('|') {
            let n = line.matches('|').count() - line.matches("\\|").count();
            assert_eq!(*columns.get_or_insert(n), n, "{line}");
        } else {
            assert!(line.chars().count() <= 100, "{line}");
            columns = None;
        }
    }
}

#[test]
fn without_records_the_page_says_so() {
    let founding = Founding::of(Vec::new()).unwrap();
    assert!(founding.gpu.is_none() && founding.ladder.is_none());
    let text = page(&founding);
    assert!(text.contains("(not measured yet)") && text.contains("not measured yet |"), "{text}");
    assert!(text.contains("20522") && !text.contains("NaN"), "{text}");
}

#[test]
fn every_claim_of_a_row_has_its_lines() {
    let claims = Claims::built_in().unwrap();
    let data: Data = toml::from_str(&claims.expand(BUILT_IN)).unwrap();
    for row in data.row {
        for id in &row.claims {
            let claim = claims.claims.iter().find(|c| c.id == *id).unwrap_or_else(|| panic!("no claim {id}"));
            let shared = row.at.places.iter().any(|(document, _)| claim.is_of(*document));
            assert!(shared, "{}: {id} is not of its documents", row.system);
        }
    }
}

/// The value after each option of that name.
fn values<'a>(command: &'a str, option: &'a str) -> impl Iterator<Item = &'a str> {
    command.split(option).skip(1).filter_map(|rest| rest.split_whitespace().next())
}

#[test]
fn commands_name_what_exists() {
    let founding = committed();
    for command in founding.rows.iter().map(|row| &row[2]).chain(founding.future.iter().map(|row| &row[4])) {
        for rung in values(command, "--rung ") {
            assert!(crate::ladder::find(rung).is_ok(), "{command}: no rung {rung}");
        }
        for workload in values(command, "--workload ") {
            assert!(msda_bench::workload::Workload::find(workload).is_ok(), "{command}");
        }
        for probe in values(command, "--only ") {
            assert!(crate::probe::NAMES.contains(&probe), "{command}");
        }
        for example in values(command, "--example ") {
            assert!(root().join(format!("crates/msda-cuda/examples/{example}.rs")).exists(), "{command}");
        }
    }
}
