use std::path::Path;

use msda_bench::record::sources;

use super::*;
use crate::facts::Facts;

#[test]
fn every_line_with_a_digit_is_claimed_or_left_out() {
    let claims = Claims::built_in().unwrap();
    for document in &claims.documents {
        let own = |claim: &&Claim| claim.document == document.number;
        let claimed: BTreeSet<usize> =
            claims.claims.iter().filter(own).flat_map(|claim| claim.lines.iter().copied()).collect();
        let left: Vec<usize> = document.left_out.iter().flat_map(|l| l.lines.iter().copied()).collect();
        for line in &document.digits {
            assert!(
                claimed.contains(line) != left.contains(line),
                "document {}, line {line}: expected a claim or a reason to leave it out, and not both",
                document.number
            );
        }
        assert!(left.iter().all(|line| document.digits.contains(line)), "document {}", document.number);
        assert!(document.left_out.iter().all(|l| !l.why.is_empty()));
    }
    let numbers: Vec<usize> = claims.documents.iter().map(|d| d.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

/// `MSDA_DOCUMENTS` names the folder of the documents; without it there is nothing to compare with.
#[test]
fn the_lists_of_lines_are_those_of_the_documents() {
    let Some(folder) = std::env::var_os("MSDA_DOCUMENTS") else {
        eprintln!("skipped: MSDA_DOCUMENTS is not set");
        return;
    };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let claims = Claims::built_in().unwrap();
    assert_eq!(files.len(), claims.documents.len());
    for (path, document) in files.iter().zip(&claims.documents) {
        let text = std::fs::read_to_string(path).unwrap();
        let digits = |(_, line): &(usize, &str)| line.contains(|c: char| c.is_ascii_digit());
        let lines: Vec<usize> = text.lines().enumerate().filter(digits).map(|(i, _)| i + 1).collect();
        assert_eq!(lines, document.digits, "document {}", document.number);
        assert_eq!(text.lines().next().unwrap().trim_start_matches("# "), document.title);
        for claim in claims.claims.iter().filter(|claim| claim.document == document.number) {
            let last = text.lines().count();
            assert!(claim.lines.iter().all(|line| (1..=last).contains(line)), "{}", claim.id);
        }
    }
}

#[test]
fn names_of_facts_begin_as_facts_do() {
    let known = ["bench.", "ceiling.", "machine.", "probe.", "analyze.", "seed.", "arch.", "model."];
    let facts = Facts::of(&[]).unwrap();
    for claim in &Claims::built_in().unwrap().claims {
        let in_words = claim.because.iter().filter_map(|words| match words {
            Words::Number(e) => Some(e),
            Words::Plain(_) => None,
        });
        let tested = match &claim.test {
            Test::Measure(e, _) | Test::Check(e) => Some(e),
            Test::Nothing => None,
        };
        for name in in_words.chain(tested).flat_map(|e| e.names()) {
            assert!(known.iter().any(|k| name.starts_with(k)), "{}: {name}", claim.id);
            // Facts that are counted and not measured must exist.
            let counted = ["seed.", "arch.", "model."].iter().any(|k| name.starts_with(k));
            assert!(!counted || facts.get(&name).is_some(), "{}: no fact {name}", claim.id);
        }
    }
}

#[test]
fn without_records_what_follows_from_definitions_is_judged() {
    let claims = Claims::built_in().unwrap();
    let facts = Facts::of(&[]).unwrap();
    let outcomes = judge(&claims, &facts, None);
    let verdict = |id: &str| outcomes.iter().find(|o| o.claim.id == id).unwrap().verdict;
    assert_eq!(verdict("report-positions"), Verdict::Holds);
    assert_eq!(verdict("report-outputs"), Verdict::Holds);
    assert_eq!(verdict("files-level-starts"), Verdict::DoesNotHold);
    assert_eq!(verdict("files-641-kb"), Verdict::Holds);
    assert_eq!(verdict("files-641-kb-is-a-plane"), Verdict::DoesNotHold);
    assert_eq!(verdict("files-other-14-channels"), Verdict::DoesNotHold);
    assert_eq!(verdict("guide-96-kb-a-block"), Verdict::DoesNotHold);
    assert_eq!(verdict("report-padding-avoids-conflicts"), Verdict::DoesNotHold);
    assert_eq!(verdict("tma-cycles-follow"), Verdict::Holds);
    assert_eq!(verdict("tma-rate-follows"), Verdict::DoesNotHold);
    assert_eq!(verdict("report-original-time"), Verdict::NotComparable);
    assert_eq!(verdict("tma-speedup"), Verdict::NotMeasured);
    let speedup = outcomes.iter().find(|o| o.claim.id == "tma-speedup").unwrap();
    assert_eq!(speedup.commands, ["msda study probe"]);
    assert_eq!(speedup.missing.len(), 2);
    assert!(commands(&outcomes).iter().any(|c| c == "msda study bench --workload seed"));
}

#[test]
fn a_measured_ratio_gets_a_verdict_and_a_reason() {
    let claims = Claims::built_in().unwrap();
    let mut facts = Facts::of(&[]).unwrap();
    let prefix = "bench.seed.f16.forward.cuda:ladder:";
    facts.insert(format!("{prefix}original_half.time"), 404.0, "us", "a record");
    facts.insert(format!("{prefix}l2_direct.time"), 374.0, "us", "a record");
    let outcomes = judge(&claims, &facts, Some("NVIDIA H200"));
    let find = |id: &str| outcomes.iter().find(|o| o.claim.id == id).unwrap();
    let speedup = find("report-direct-speedup");
    assert_eq!(speedup.verdict, Verdict::Holds);
    assert!(speedup.why.contains("404 us against 374 us"), "{}", speedup.why);
    assert_eq!(speedup.from, ["a record"]);
    // A time of another GPU is shown and not compared.
    let time = find("files-original-time");
    assert_eq!((time.verdict, time.measured), (Verdict::NotComparable, Some(404.0)));
    assert!(time.why.contains("stated for RTX 5070, this is NVIDIA H200"), "{}", time.why);

    for text in [terminal(&outcomes, false), markdown(&claims, &outcomes)] {
        assert!(text.contains("1.08x") && text.contains(&summary(&outcomes)), "{text}");
        assert!(!text.contains('\x1b'));
    }
    assert!(terminal(&outcomes, true).contains('\x1b'));
    assert!(terminal(&outcomes, false).lines().all(|line| line.chars().count() <= 120));
    assert!(terminal(&outcomes, false).contains("(1:22)"), "source lines");
    let list = json(&claims, &outcomes);
    assert_eq!(list.as_array().unwrap().len(), claims.claims.len());
    assert_eq!(list[6]["id"], "report-direct-speedup");
    assert_eq!(list[6]["verdict"], "holds");
}

#[test]
fn committed_records_give_verdicts() {
    let claims = Claims::built_in().unwrap();
    let sources = sources(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records")]).unwrap();
    let facts = Facts::of(&sources).unwrap();
    let outcomes = judge(&claims, &facts, Some("NVIDIA H200"));
    let bandwidth = outcomes.iter().find(|o| o.claim.id == "guide-bandwidth-is-first").unwrap();
    assert_eq!(bandwidth.verdict, Verdict::DoesNotHold);
    assert!(bandwidth.from[0].contains("h200"), "{:?}", bandwidth.from);
}

#[test]
fn rules_say_what_they_mean() {
    let text = |claim: &str| {
        format!(
            "[[document]]\nnumber = 1\ntitle = 't'\ndigits = []\nleft-out = []\n[[claim]]\nid = 'a'\ndocument = 1\n\
             at = 'x'\nlines = [1]\nsays = 's'\n{claim}"
        )
    };
    let verdict = |claim: &str, x: f64| {
        let claims = Claims::parse(&text(claim)).unwrap();
        let mut facts = Facts::default();
        facts.insert("x", x, "", "");
        judge(&claims, &facts, None)[0].verdict
    };
    for (rule, good, bad) in [
        ("value = 10\nmeasure = '`x`'\nrule = 'within 1.1'", 9.2, 11.2),
        ("value = 10\nmeasure = '`x`'\nrule = 'margin 1'", 11.0, 8.9),
        ("value = 10\nmeasure = '`x`'\nrule = 'at least'", 10.0, 9.9),
        ("value = 10\nmeasure = '`x`'\nrule = 'at most'", 10.0, 10.1),
        ("low = 5\nhigh = 10\nmeasure = '`x`'", 5.0, 10.5),
        ("check = '`x` > 3'", 4.0, 3.0),
    ] {
        assert_eq!(
            (verdict(rule, good), verdict(rule, bad)),
            (Verdict::Holds, Verdict::DoesNotHold),
            "{rule}"
        );
    }
    for wrong in [
        "",
        "measure = '`x`'",
        "value = 1\nmeasure = '`x`'\nrule = 'about'",
        "check = '`x` >'",
        "check = '1'\nmeasure = '1'",
        "comparable = false",
        "check = '1'\nbecause = 'a {1'",
        "check = '1'\nsource = 'x'",
    ] {
        assert!(Claims::parse(&text(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn the_overview_fits_a_screen_and_counts_every_claim_once() {
    let claims = Claims::built_in().unwrap();
    let outcomes = judge(&claims, &Facts::of(&[]).unwrap(), None);
    let text = overview(&outcomes);
    assert!(text.starts_with(&summary(&outcomes)), "{text}");
    assert!(text.lines().count() <= 24 && text.lines().all(|line| line.len() <= 80), "{text}");
    let counts = text.lines().skip(3).map(|line| line.split_whitespace().nth(1).unwrap());
    assert_eq!(counts.map(|n| n.parse::<usize>().unwrap()).sum::<usize>(), outcomes.len());
}

#[test]
fn lines_are_ranges() {
    let claims = Claims::built_in().unwrap();
    let mut claim = claims.claims[0].clone();
    (claim.document, claim.lines) = (4, vec![61, 62, 63, 154]);
    assert_eq!(source(&claim), "4:61-63,154");
}

#[test]
fn a_system_in_the_file_counts() {
    let text = "[[document]]\nnumber = 1\ntitle = 't'\ndigits = []\nleft-out = []\n[[claim]]\nid = 'a'\n\
                document = 1\nat = 'x'\nlines = [1]\nsays = 's'\ncheck = '`seed.planes` > 0'\nsystem = 'other'";
    assert_eq!(Claims::parse(text).unwrap().claims[0].group(), "other");
}
