use super::*;
use crate::facts::tests::committed as records;

fn committed() -> Founding {
    Founding::of(records()).unwrap()
}

#[test]
fn the_documents_agree_with_the_committed_records() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (path, text) in super::documents(&committed(), &docs).unwrap() {
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
fn rows_are_complete_and_lines_are_short() {
    let founding = committed();
    assert_eq!(founding.answers.len(), 5);
    for number in 1..=5 {
        let own = |row: &&Vec<String>| row[0].starts_with(&format!("{number}:"));
        assert!(founding.figures.rows.iter().filter(own).count() >= 5, "document {number}");
    }
    let mut columns = None;
    for line in page(&founding, Form::Markdown).lines() {
        if line.starts_with('|') {
            let n = line.matches('|').count() - line.matches("\\|").count();
            assert_eq!(*columns.get_or_insert(n), n, "{line}");
            // A further GPU is a further column.
            let most = 150 + 50 * founding.gpus.len();
            assert!(line.chars().count() <= most, "{} columns: {line}", line.chars().count());
        } else {
            assert!(line.chars().count() <= 100, "{line}");
            columns = None;
        }
    }
    let long = |line: &&str| line.chars().count() > 100 && line.trim().contains(' ');
    assert_eq!(page(&founding, Form::Terminal).lines().find(long), None);
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (path, text) in super::documents(&founding, &docs).unwrap() {
        let long = text.lines().find(|line| line.chars().count() > 200);
        assert_eq!(long, None, "{}", path.display());
    }
}

/// What sentences say in words, and no expression computes.
#[test]
fn words_about_the_records_are_true() {
    let facts = Facts::of(&records()).unwrap();
    let range = |name: &str| facts.get(name).unwrap_or_else(|| panic!("{name}")).range.unwrap();
    let (ladder, tile) = ("bench.seed-ring-uniform.f16.forward.cuda:ladder:", "probe.tma-tile.queries-1000.");
    // "No difference beyond the noise".
    for (prefix, one, other) in [
        (ladder, "tma_multilevel", "distributed"),
        (tile, "tma-64", "manual"),
        (tile, "warp-tma", "warp-prefetch"),
        ("probe.copy-styles.", "channels-async", "channels"),
    ] {
        let [one, other] = [one, other].map(|name| range(&format!("{prefix}{name}.time")));
        assert!(one.0 <= other.1 && other.0 <= one.1, "{prefix}: {one:?} {other:?}");
    }
    // "Counters of 12 rungs and of the kernel that msda chooses".
    let counted = |(name, _): (&str, _)| {
        name.starts_with("analyze.seed.f16.") && name.ends_with(".wavefronts.measured")
    };
    assert_eq!(facts.iter().filter(|fact| counted(*fact)).count(), 13);
}

#[test]
fn every_gpu_with_a_ladder_has_a_column() {
    let mut all = records();
    let ladder = all.iter().rfind(|s| crate::facts::holds_ladder(&today(&s.record))).unwrap().clone();
    let mut other = ladder.clone();
    other.record.machine.gpu.as_mut().unwrap().name = "NVIDIA GeForce RTX 5070".into();
    other.record.created = "2999-01-01T00:00:00Z".into();
    all.push(other);
    let founding = Founding::of(all).unwrap();
    assert_eq!(founding.gpus, ["NVIDIA GeForce RTX 5070", "NVIDIA H200"]);
    assert!(founding.figures.rows.iter().all(|row| row.len() == founding.figures.columns.len()));
    assert_eq!(founding.figures.columns[3..5], founding.gpus);
}

#[test]
fn without_records_the_page_says_so() {
    let founding = Founding::of(Vec::new()).unwrap();
    assert!(founding.gpus.is_empty() && founding.ladder.is_none());
    let text = page(&founding, Form::Markdown);
    assert!(text.contains("(not measured yet)") && text.contains("**not measured yet**"), "{text}");
    assert!(text.contains("20522") && !text.contains("NaN"), "{text}");
}

#[test]
fn every_claim_of_a_row_has_its_lines() {
    let claims = Claims::built_in().unwrap();
    let data: Data = toml::from_str(&claims.expand(BUILT_IN)).unwrap();
    for row in data.row {
        let Some(id) = row.claim else { continue };
        let claim = claims.claims.iter().find(|c| c.id == id).unwrap_or_else(|| panic!("no claim {id}"));
        let shared = row.at.places.iter().any(|(document, _)| claim.is_of(*document));
        assert!(shared, "{}: {id} is not of its documents", row.what);
    }
}

/// The words after each option of that name, or in backticks after "rung" or "rungs".
#[test]
fn names_of_rungs_and_probes_exist() {
    let founding = committed();
    let of_ladder = |name: &str| name.ends_with("...") || crate::ladder::find(name).is_ok();
    for row in &founding.tables[0].rows {
        let ours = &row[1];
        let after = |option: &str| ours.split(option).nth(1).and_then(|rest| rest.split([' ', '`']).next());
        assert!(after("--rung ").is_none_or(of_ladder), "{ours}");
        assert!(after("--only ").is_none_or(|name| crate::probes::names().contains(&name)), "{ours}");
        if ours.starts_with("rung") {
            assert!(ours.split('`').skip(1).step_by(2).all(of_ladder), "{ours}");
        }
    }
}
