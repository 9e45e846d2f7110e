use super::*;
use crate::facts::Facts;

#[test]
fn every_line_of_the_documents_is_claimed_or_left_out() {
    let claims = Claims::built_in().unwrap();
    for document in &claims.documents {
        let claimed: BTreeSet<usize> =
            claims.claims.iter().flat_map(|claim| claim.at.of(document.number)).collect();
        let left: Vec<usize> = document.left_out.iter().flat_map(|l| l.lines.0.iter().copied()).collect();
        for line in &document.lines.0 {
            assert!(
                claimed.contains(line) != left.contains(line),
                "document {}, line {line}: expected a claim or a reason to leave it out, and not both",
                document.number
            );
        }
        assert!(left.iter().all(|line| document.lines.0.contains(line)), "document {}", document.number);
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
        let heading = |line: &str| line.trim_start_matches('#').starts_with(' ') && line.starts_with('#');
        let mark = |line: &str| line.starts_with("```") || line.chars().all(|c| "|-: ".contains(c));
        let has_text = |line: &str| !heading(line) && !mark(line.trim());
        let lines = text.lines().enumerate().filter(|(_, line)| has_text(line)).map(|(i, _)| i + 1);
        assert_eq!(lines.collect::<Vec<_>>(), document.lines.0, "document {}", document.number);
        assert_eq!(text.lines().next().unwrap().trim_start_matches("# "), document.title);
        let last = text.lines().count();
        for at in claims.claims.iter().map(|c| &c.at).chain(claims.systems.iter().map(|s| &s.at)) {
            assert!(at.of(document.number).all(|line| (1..=last).contains(&line)), "{at}");
        }
    }
}

#[test]
fn no_statement_is_judged_twice() {
    let mut seen = BTreeMap::new();
    for claim in &Claims::built_in().unwrap().claims {
        let Some(expression) = claim.expression() else { continue };
        let statement = format!("{} {:?}", expression.text(), (claim.value, claim.low, claim.high));
        let other = seen.insert(statement, claim.id.clone());
        assert!(other.is_none(), "{} and {other:?} have the same test", claim.id);
    }
}

/// A misspelt name would look like a missing measurement.
#[test]
fn names_of_facts_and_systems_exist() {
    let known =
        ["bench.", "ratio.", "ceiling.", "machine.", "probe.", "analyze.", "verify.", "seed.", "arch."];
    let (facts, claims) = (Facts::of(&[]).unwrap(), Claims::built_in().unwrap());
    for claim in &claims.claims {
        let tested = claim.expression().map(|e| e.names()).unwrap_or_default();
        for name in tested.into_iter().chain(claim.because.names()) {
            assert!(known.iter().any(|k| name.starts_with(k)), "{}: {name}", claim.id);
            // Facts that are counted and not measured must exist.
            let counted = DEFINED.iter().any(|k| name.starts_with(k));
            assert!(!counted || facts.get(&name).is_some(), "{}: no fact {name}", claim.id);
            let rung = name.split_once("ladder:").and_then(|(_, rest)| rest.split('.').next());
            let exists = |rung| crate::ladder::find(rung).is_ok() || crate::facts::CHOSEN.ends_with(rung);
            assert!(rung.is_none_or(exists), "{}: no rung {rung:?}", claim.id);
        }
    }
    for system in &claims.systems {
        assert!(claims.claims.iter().any(|claim| claim.system == system.name), "{}", system.name);
    }
}

#[test]
fn without_records_arithmetic_is_judged() {
    let claims = Claims::built_in().unwrap();
    let facts = Facts::of(&[]).unwrap();
    let outcomes = judge(&claims, &facts, None);
    let verdict = |id: &str| outcomes.iter().find(|o| o.claim.id == id).unwrap().verdict;
    for (id, expected) in [
        ("positions", Verdict::Reproduced),
        ("outputs", Verdict::Reproduced),
        ("level-starts", Verdict::Opposite),
        ("cluster-641-kb", Verdict::Reproduced),
        ("cluster-holds-a-plane", Verdict::OtherSize),
        ("cluster-channels", Verdict::Reproduced),
        ("tensor-cores-lose-sparsity", Verdict::Reproduced),
        ("shared-96-kb", Verdict::OtherSize),
        ("shared-99-kb", Verdict::Reproduced),
        ("tma-deviation", Verdict::Opposite),
        ("tma-architecture", Verdict::Opposite),
        ("tma-rate-follows", Verdict::Opposite),
        ("tma-cycles-follow", Verdict::Reproduced),
        ("padding-and-warps", Verdict::CannotBeMeasured),
        ("tma-speedup", Verdict::NotMeasuredYet),
    ] {
        assert_eq!(verdict(id), expected, "{id}");
    }
    for o in &outcomes {
        let decided = matches!(o.verdict, Verdict::Reproduced | Verdict::OtherSize | Verdict::Opposite);
        assert_eq!(decided, o.claim.is_arithmetic(), "{}", o.claim.id);
    }
    let speedup = outcomes.iter().find(|o| o.claim.id == "tma-speedup").unwrap();
    assert_eq!(commands(std::slice::from_ref(speedup)).into_iter().collect::<Vec<_>>(), ["msda-study probe"]);
    assert_eq!(speedup.missing.len(), 2);
    assert!(commands(&outcomes).contains("msda-study bench"));
}

#[test]
fn a_measured_ratio_gets_a_verdict_and_a_reason() {
    let claims = Claims::built_in().unwrap();
    let mut facts = Facts::of(&[]).unwrap();
    let prefix = "bench.seed-ring-uniform.f16.forward.cuda:ladder:";
    facts.insert(format!("{prefix}original_half.time"), 404.0, "us", "a record");
    facts.insert(format!("{prefix}distributed_fixed.time"), 374.0, "us", "a record");
    let outcomes = judge(&claims, &facts, Some("NVIDIA H200"));
    let find = |id: &str| outcomes.iter().find(|o| o.claim.id == id).unwrap();
    let speedup = find("fixed-speedup");
    assert_eq!(speedup.verdict, Verdict::Reproduced);
    assert_eq!(speedup.why, "must agree within 0.0200x; 374 us against 404 us");
    assert_eq!(speedup.from, ["a record"]);
    // A time of another GPU is shown and not compared.
    let time = find("original-724-us");
    assert_eq!((time.verdict, time.measured), (Verdict::YourGpu, Some(404.0)));
    assert!(time.why.contains("stated for document 1's GPU, measured on NVIDIA H200"), "{}", time.why);

    let text = terminal(&claims, &outcomes);
    assert!(text.contains("1.08x") && text.contains("arithmetic: "), "{text}");
    assert!(text.starts_with("measured: "), "totals first: {text}");
    let long = text.lines().find(|line| line.chars().count() > 100 && line.trim().contains(' '));
    assert_eq!(long, None);
    assert!(text.contains("(1:22)"), "source lines");
    let list = json(&outcomes);
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), claims.claims.len());
    let speedup = list.iter().find(|o| o["id"] == "fixed-speedup").unwrap();
    assert_eq!((&speedup["verdict"], &speedup["at"][0]["document"]), (&"reproduced".into(), &1.into()));
}

#[test]
fn committed_records_give_verdicts_from_one_run() {
    let claims = Claims::built_in().unwrap();
    let facts = Facts::of(&crate::facts::tests::committed()).unwrap();
    let outcomes = judge(&claims, &facts, Some("NVIDIA H200"));
    let slower = outcomes.iter().find(|o| o.claim.id == "tma-more-queries").unwrap();
    assert_eq!(slower.verdict, Verdict::Reproduced);
    let hang = outcomes.iter().find(|o| o.claim.id == "many-clusters-hang").unwrap();
    assert_eq!(hang.verdict, Verdict::YourGpu);
    for claim in &claims.claims {
        let names = claim.expression().map(|e| e.names()).unwrap_or_default();
        let times = names.iter().filter(|name| name.starts_with("bench."));
        assert!(times.clone().all(|name| name.contains("cuda:ladder:")), "{}", claim.id);
        let from: BTreeSet<_> = times.filter_map(|name| facts.get(name)).map(|f| &f.from).collect();
        assert!(from.len() <= 1, "{}: {from:?}", claim.id);
    }
}

fn parsed(claim: &str) -> anyhow::Result<Claims> {
    Claims::parse(&format!(
        "[rules]\nratio = 'within 1.1'\n[[document]]\nnumber = 1\ntitle = 't'\nbrief = 'b'\nlines = '1'\nleft-out = []\n\
         [[system]]\nname = 'x'\nat = '1:1'\n[[claim]]\nid = 'a'\nsystem = 'x'\nat = '1:1'\nsays = 's'\n{claim}"
    ))
}

#[test]
fn rules_say_what_they_mean() {
    use Verdict::{Opposite as No, OtherSize as Size, Reproduced as Yes};
    let outcome = |claim: &str, x: f64| {
        let claims = parsed(claim).unwrap();
        let mut facts = Facts::default();
        facts.insert("x", x, "", "");
        let outcome = judge(&claims, &facts, None).remove(0);
        (outcome.verdict, outcome.why)
    };
    // The claim, what it says that agreement is, and the verdicts on numbers.
    for (claim, words, cases) in [
        ("value = 10\nrule = 'ratio'", "within a factor of 1.1", &[(9.2, Yes), (11.2, Size)][..]),
        ("value = 10\nunit = 'us'\nrule = 'margin 1'", "within 1 us", &[(11.0, Yes), (8.9, Size)]),
        ("value = 10\nrule = 'margin 0'", "exactly", &[(10.0, Yes), (11.0, Size)]),
        ("value = 0\nrule = 'margin 0'", "exactly", &[(0.0, Yes), (1.0, No)]),
        // 0.8 % and -0.3 % differ by less than 2 points, but one is a gain and the other a loss.
        (
            "value = 0.8\nunit = '%'\nrule = 'gain 2'",
            "within 2 points",
            &[(0.1, Yes), (-0.3, No), (2.9, Size)],
        ),
        (
            "value = -2.1\nunit = '%'\nrule = 'gain 2'",
            "within 2 points",
            &[(-3.0, Yes), (6.5, No), (-9.0, Size)],
        ),
        ("value = 3.6\nunit = 'x'\nrule = 'gain 2'", "within 0.650x", &[(3.0, Yes), (2.9, Size), (0.9, No)]),
        ("value = 10\nrule = 'at least'", "must be at least the stated number", &[(10.0, Yes), (9.9, No)]),
        ("value = 10\nrule = 'at most'", "must be at most the stated number", &[(10.0, Yes), (10.1, No)]),
        (
            "low = 5\nhigh = 10\nunit = '%'",
            "must be in the stated range",
            &[(5.0, Yes), (10.5, Size), (-4.9, No)],
        ),
        ("check = '`x` > 3'", "", &[(4.0, Yes), (3.0, No)]),
    ] {
        let measure = if claim.starts_with("check") { "" } else { "measure = '`x`'\n" };
        let agree = words.starts_with("within") || words == "exactly";
        let words = if agree { format!("must agree {words}") } else { words.into() };
        for &(x, expected) in cases {
            assert_eq!(outcome(&format!("{measure}{claim}"), x), (expected, words.clone()), "{claim} of {x}");
        }
    }
    for wrong in [
        "",
        "measure = '`x`'",
        "value = 1\nmeasure = '`x`'\nrule = 'about'",
        "check = '`x` >'",
        "check = '1'\nmeasure = '1'",
        "check = '1'\nbecause = 'a {1'",
        "check = '1'\nsource = 'x'",
    ] {
        assert!(parsed(wrong).is_err(), "{wrong}");
    }
}

/// A gain must be larger than the variation of its times, and numbers are rounded to it.
#[test]
fn a_gain_within_the_noise_is_no_gain() {
    let outcome = |claim: &str, range: (f64, f64)| {
        let claims = parsed(claim).unwrap();
        let mut facts = Facts::default();
        facts.insert("a", 103.0, "us", "");
        facts.insert("b", 100.0, "us", "");
        facts.vary("b", range.0, range.1);
        let outcome = judge(&claims, &facts, None).remove(0);
        (outcome.verdict, measured(&outcome))
    };
    let gain = "value = 3\nunit = '%'\nrule = 'gain 2'\nmeasure = '(`a` / `b` - 1) * 100'";
    assert_eq!(outcome(gain, (99.0, 101.0)), (Verdict::Reproduced, "3 % (2 to 4)".into()));
    assert_eq!(outcome(gain, (98.0, 104.0)), (Verdict::WithinNoise, "3 % (-1 to 5)".into()));
    assert_eq!(outcome("check = '`b` < `a`'", (98.0, 104.0)).0, Verdict::WithinNoise);
    assert_eq!(outcome("check = '`b` < `a`'", (98.0, 101.0)).0, Verdict::Reproduced);
    let planned = "planned = true\ncheck = '`b` < `a`'";
    assert_eq!(outcome(planned, (98.0, 104.0)).0, Verdict::OnlyPlanned);
    assert_eq!(with_range(1.4712, Some((1.452, 1.489)), "x"), "1.47x (1.45 to 1.49)");
}

/// The noise is half of p10 to p90.
#[test]
fn numbers_are_rounded_to_their_noise() {
    for (value, low, high, expected) in [
        (3264.0, 3255.0, 3271.0, "3264 us (3255 to 3271)"),
        (68811.0, 68774.0, 68817.0, "68810 us (68770 to 68820)"),
        (20166.0, 20105.0, 21400.0, "20200 us (20100 to 21400)"),
        (4.64, 4.576, 5.664, "4.6 us (4.6 to 5.7)"),
        // Ends that look alike, a number that gains a figure, and zero without a sign.
        (2.8776, 2.8765, 2.8784, "2.88 us"),
        (9.998, 9.95, 10.05, "10.0 us (9.9 to 10.1)"),
        (-0.02, -0.3, 0.2, "0.0 us (-0.3 to 0.2)"),
        (-0.02, -0.03, 0.01, "-0.02 us (-0.03 to 0.01)"),
    ] {
        assert_eq!(with_range(value, Some((low, high)), "us"), expected);
    }
    assert_eq!(with_range(16391408.0, None, ""), "16391408");
}

#[test]
fn one_kind_of_comparison_has_one_rule() {
    let text = BUILT_IN.split_once("[[claim]]").unwrap().1;
    let own = |line: &&str| line.starts_with("rule = \"within") || line.starts_with("rule = \"gain ");
    assert_eq!(text.lines().find(own), None, "expected a name of [rules]");
}

#[test]
fn the_overview_fits_a_screen_and_counts_every_claim_once() {
    let claims = Claims::built_in().unwrap();
    let outcomes = judge(&claims, &Facts::of(&[]).unwrap(), None);
    let text = overview(&claims, &outcomes);
    let totals = text.split("\n\n").next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(totals, summary(&outcomes).join(" "));
    assert!(text.lines().count() <= 38 && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let count = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let counts = words[words.len() - Verdict::ALL.len()..].iter();
        counts.map(|n| n.parse::<usize>().unwrap_or(0)).sum::<usize>()
    };
    let systems = text.lines().skip_while(|line| !line.starts_with("system ")).skip(1);
    assert_eq!(systems.map(count).sum::<usize>(), outcomes.len(), "{text}");
}
