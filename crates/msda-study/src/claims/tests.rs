use std::collections::BTreeMap;

use msda_bench::report::number::figure;

use super::show::measured;
use super::*;
use crate::facts::Facts;
use crate::facts::tests::committed;

#[test]
fn every_line_of_the_documents_is_claimed_or_left_out() {
    let claims = Claims::built_in().unwrap();
    for document in &claims.documents {
        let claimed: BTreeSet<usize> = claims.iter().flat_map(|(_, c)| c.at.of(document.number)).collect();
        let left: Vec<usize> = document.left_out.iter().flat_map(|(lines, _)| lines.0.clone()).collect();
        for line in &document.lines.0 {
            assert!(
                claimed.contains(line) != left.contains(line),
                "document {}, line {line}: expected a claim or a reason to leave it out, and not both",
                document.number
            );
        }
        assert!(left.iter().all(|line| document.lines.0.contains(line)), "document {}", document.number);
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
        for at in claims.iter().flat_map(|(system, claim)| [&system.at, &claim.at]) {
            assert!(at.of(document.number).all(|line| (1..=last).contains(&line)), "{at}");
        }
    }
}

/// A misspelt name would look like a missing measurement.
#[test]
fn names_of_facts_exist_and_no_statement_is_judged_twice() {
    let (facts, claims) = (Facts::of(&committed()).unwrap(), Claims::built_in().unwrap());
    let mut seen = BTreeMap::new();
    for (_, claim) in claims.iter() {
        let missing = claim.judge.missing(&facts);
        assert!(missing.is_empty(), "{}: {missing:?}", claim.id);
        if claim.judge.given().is_none() {
            let other = seen.insert(format!("{:?}", claim.judge), &claim.id);
            assert!(other.is_none(), "{} and {other:?} have the same test", claim.id);
        }
    }
}

/// Verdicts that the table gives are about numbers of the documents alone.
#[test]
fn arithmetic_of_the_documents_is_right_and_wrong_where_the_table_says_so() {
    let close = |x: f64, y: f64, margin: f64| (x - y).abs() < margin;
    let (values, bytes): (f64, f64) = (48.0 * 20522.0 * 64.0, 8000.0 * 256.0);
    let known = [
        ("level-starts", 14720 + 3680 + 920 == 20320),
        ("bilinear-operations", (4 + 4, 3 + 1) == (8, 4)),
        ("operations-512", (4 + 8 + 4, 16 / 8, 4 * 8 * 16) == (16, 2, 512)),
        ("padded-stride", (32 + 2, 34 * 2 / 4) == (34, 17)),
        (
            "report-ratios-follow",
            close(724. / 671., 1.08, 0.005)
                && close(724. / 971., 0.75, 0.005)
                && close(724. / 928., 0.78, 0.005),
        ),
        (
            "guide-speedups-follow",
            [(0.8, 1.6), (1.2, 2.4), (1.8, 3.6), (2.2, 4.4)].iter().all(|(x, y)| close(x / 0.5, *y, 0.05)),
        ),
        ("rate-and-flops", close(2200.0 / 72.4, 2.0, 1.0)),
        ("cluster-channels", (2 + 14, 2 * 16) == (8 * 2, 32)),
        ("cluster-768-blocks", (96 * 8, 48 * 32 / 16) == (768, 96)),
        // sm_90 is not older than sm_75.
        ("cluster-most-compatible", 90 <= 75),
        (
            "copy-times-and-rates",
            close(values / 1.125e6, 56.05, 0.2)
                && close(values / 0.766e6, 82.26, 0.2)
                && close(values / 1.5e6, 40., 4.),
        ),
        ("tensor-cores-lose-sparsity", 4 * 8 < 12 * 20 / 2),
        ("tma-architecture", 120 == 90),
        ("tma-loads", 1000 * 8 == 8000),
        ("tma-bytes-per-load", 2 * 2 * 32 * 2 == 256),
        ("tma-total-bytes", close(bytes / 1024.0 / 1024.0, 1.95, 0.005)),
        ("tma-strides", (32 * 2, 160 * 64) == (64, 10240)),
        ("tma-issuing-threads", 256 / 4 == 64),
        ("tma-deviation", 0.9 * 0.9 <= (13.2 - 12.6) * (12.6 - 12.3)),
        ("tma-rate-follows", close(bytes / (8000.0 / 632.43) / 1e3, 150.78, 1.0)),
        ("tma-time-per-load", close(1e3 / 632.43, 1.58, 0.005)),
        (
            "tma-cycles-follow",
            close(2758. / 2510., 1.10, 0.006)
                && close(1951. / 2510., 0.78, 0.006)
                && close(5285. / 2510., 2.10, 0.01),
        ),
        ("tma-efficiency-follows", close(100.0 * 150.78 / 672.05, 22.44, 0.01)),
        ("tma-speedup-follows", close(0.0175 / 0.0131, 1.33, 0.01) && close(145.48 / 109.29, 1.33, 0.01)),
        ("tma-8000-at-once", 48 * 1536 / 256 * 8 >= 8000),
    ];
    let claims = Claims::built_in().unwrap();
    let mut given = claims.iter().filter_map(|(_, c)| Some((c.id.as_str(), c.judge.given()?)));
    let all: BTreeMap<&str, Verdict> =
        given.by_ref().filter(|(_, v)| *v != Verdict::CannotBeMeasured).collect();
    let verdict = |right| if right { Verdict::Reproduced } else { Verdict::Opposite };
    assert_eq!(all, known.map(|(id, right)| (id, verdict(right))).into());
}

#[test]
fn without_records_arithmetic_is_judged() {
    let claims = Claims::built_in().unwrap();
    let outcomes = judge(&claims, &Facts::of(&[]).unwrap(), None);
    let verdict = |id: &str| outcomes.iter().find(|o| o.claim.id == id).unwrap().verdict;
    for (id, expected) in [
        ("positions", Verdict::Reproduced),
        ("outputs", Verdict::Reproduced),
        ("cluster-641-kb", Verdict::Reproduced),
        ("cluster-holds-a-plane", Verdict::OtherSize),
        ("intensity-under-one", Verdict::Opposite),
        ("shared-96-kb", Verdict::OtherSize),
        ("shared-99-kb", Verdict::Reproduced),
        ("padding-and-warps", Verdict::CannotBeMeasured),
        ("tma-speedup", Verdict::NotMeasuredYet),
    ] {
        assert_eq!(verdict(id), expected, "{id}");
    }
    for o in &outcomes {
        let decided = matches!(o.verdict, Verdict::Reproduced | Verdict::OtherSize | Verdict::Opposite);
        assert_eq!(decided, o.claim.judge.is_arithmetic(), "{}", o.claim.id);
    }
    let speedup = outcomes.iter().find(|o| o.claim.id == "tma-speedup").unwrap();
    assert_eq!(commands(std::slice::from_ref(speedup)).into_iter().collect::<Vec<_>>(), ["msda-study probe"]);
    assert_eq!(speedup.missing.len(), 2);
}

#[test]
fn a_measured_ratio_gets_a_verdict_and_its_facts() {
    let claims = Claims::built_in().unwrap();
    let mut facts = Facts::default();
    let prefix = "bench.seed-ring-uniform.f16.forward.cuda:ladder:";
    facts.insert(format!("{prefix}original_half.time"), 404.0, "us", "a record");
    facts.insert(format!("{prefix}distributed_fixed.time"), 374.0, "us", "a record");
    let outcomes = judge(&claims, &facts, Some("NVIDIA H200"));
    let find = |id: &str| outcomes.iter().find(|o| o.claim.id == id).unwrap();
    let speedup = find("fixed-speedup");
    assert_eq!((speedup.verdict, measured(speedup)), (Verdict::Reproduced, "1.08x".into()));
    assert_eq!(speedup.facts, ["original_half.time 404 us", "distributed_fixed.time 374 us"]);
    assert_eq!(speedup.from.iter().collect::<Vec<_>>(), ["a record"]);
    // A time of another GPU is shown and not compared.
    let time = find("original-724-us");
    assert_eq!((time.verdict, time.measured), (Verdict::YourGpu, Some(404.0)));

    let text = terminal(&claims, &outcomes);
    assert!(text.contains("fixed-speedup: 1.08x") && text.contains("(1:22)"), "{text}");
    let long = text.lines().find(|line| line.chars().count() > 100 && line.trim().contains(' '));
    assert_eq!(long, None);
    assert_eq!(json(&outcomes).as_array().unwrap().len(), claims.iter().count());
}

#[test]
fn times_of_a_comparison_come_from_one_run() {
    let claims = Claims::built_in().unwrap();
    let facts = Facts::of(&committed()).unwrap();
    for (_, claim) in claims.iter() {
        let times = claim.judge.names().filter(|(_, name)| name.starts_with("bench."));
        let from: BTreeSet<_> = times.filter_map(|(_, name)| Some(&facts.get(&name)?.from)).collect();
        assert!(from.len() <= 1, "{}: {from:?}", claim.id);
    }
}

/// The verdict on a number that varies within a range.
fn verdict(judge: &str, x: f64, range: Option<(f64, f64)>) -> (Verdict, String) {
    let text = format!(
        "[[document]]\nnumber = 1\ntitle = 't'\nlines = '1'\nleft-out = []\n\
         [[system]]\nname = 'x'\nat = '1:1'\nlist = [['a', '1:1', 's', '{judge}', 'w']]"
    );
    let claims = Claims::parse(&text).unwrap();
    let mut facts = Facts::default();
    facts.insert("probe.x", x, "us", "");
    facts.insert("probe.one", 1.0, "us", "");
    if let Some((low, high)) = range {
        facts.vary("probe.x", low, high);
    }
    let outcome = super::judge(&claims, &facts, Some("H200")).remove(0);
    (outcome.verdict, measured(&outcome))
}

#[test]
fn rules_say_what_they_mean() {
    use Verdict::{NoResultThere, Opposite as No, OtherSize as Size, Reproduced as Yes, YourGpu};
    for (judge, cases) in [
        ("10 us within 1.1: probe.x", &[(9.2, Yes), (11.2, Size)][..]),
        ("10 within 1: probe.x", &[(10.0, Yes), (11.0, Size)]),
        ("0 within 1: probe.x", &[(0.0, Yes), (1.0, No)]),
        ("10 us within 1.1 on H200 or H100: probe.x", &[(9.2, Yes)]),
        ("10 us within 1.1 on RTX 5070: probe.x", &[(9.2, YourGpu)]),
        // 0.8 % and -0.3 % differ by less than 2 points, but one is a gain and the other a loss.
        ("0.8 % gain: probe.x / probe.one", &[(1.001, Yes), (0.997, No), (1.029, Size)]),
        ("-2.1 % gain: probe.x / probe.one", &[(0.97, Yes), (1.065, No), (0.91, Size)]),
        ("3.6x gain: probe.x / probe.one", &[(3.0, Yes), (2.9, Size), (0.9, No)]),
        ("5 to 10 % gain: probe.x / probe.one", &[(1.05, Yes), (1.105, Size), (0.951, No)]),
        ("5 to 10 % in: probe.x / probe.one", &[(0.05, Yes), (0.105, Size)]),
        ("5 to 10 us in: probe.x", &[(5.0, Yes), (10.5, Size)]),
        ("holds: 3 < probe.x", &[(4.0, Yes), (3.0, No)]),
        ("holds: 2 * probe.one < probe.x and probe.x < 3", &[(2.5, Yes), (3.0, No), (2.0, No)]),
        ("planned 5 to 10 % in: probe.x / probe.one", &[(0.05, NoResultThere)]),
        ("planned gain: probe.x / probe.one", &[(0.05, NoResultThere)]),
        ("given opposite", &[(1.0, No)]),
    ] {
        for &(x, expected) in cases {
            assert_eq!(verdict(judge, x, None).0, expected, "{judge} of {x}");
        }
    }
    for wrong in [
        "",
        "holds: a",
        "holds: a > b",
        "1 within: a",
        "1 within two: a",
        "within 2: a",
        "1 % gain: a",
        "1 % in: a / b and c",
        "1 2 3 in: a",
        "about 3: a",
        "holds: a b < c",
        "given nonsense",
    ] {
        assert!(Judge::try_from(wrong.to_owned()).is_err(), "{wrong}");
    }
}

/// A gain must be larger than the variation of its times.
#[test]
fn a_gain_within_the_noise_is_no_gain() {
    let gain = "3 % gain: probe.x / probe.one";
    assert_eq!(verdict(gain, 1.03, Some((1.02, 1.04))), (Verdict::Reproduced, "3 % (2 to 4)".into()));
    assert_eq!(verdict(gain, 1.03, Some((0.99, 1.05))), (Verdict::WithinNoise, "3 % (-1 to 5)".into()));
    assert_eq!(verdict("holds: 1 < probe.x", 1.03, Some((0.99, 1.05))).0, Verdict::WithinNoise);
    assert_eq!(verdict("holds: 1 < probe.x", 1.03, Some((1.02, 1.04))).0, Verdict::Reproduced);
    assert_eq!(verdict("holds: probe.x < 1", 1.03, Some((1.02, 1.04))).0, Verdict::Opposite);
    assert_eq!(verdict("planned holds: 1 < probe.x", 1.0, Some((0.9, 1.1))).0, Verdict::NoResultThere);
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
        assert_eq!(super::judge::with_range(value, Some((low, high)), "us"), expected);
    }
    assert_eq!(super::judge::with_range(16391408.0, None, ""), "16391408");
}

/// `docs/STUDY.md`.
fn study() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/STUDY.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_page_agrees_with_the_committed_records() {
    let (text, made) = (study(), page(&study(), &committed()).unwrap());
    let differs = text.lines().zip(made.lines()).find(|(old, new)| old != new);
    assert!(text == made, "{differs:?}\nhint: cargo run -p msda-study -- claims --page docs/STUDY.md");
    let prose = |line: &&str| !line.starts_with('|');
    assert_eq!(text.lines().filter(prose).find(|line| line.chars().count() > 100), None);
    let rows = text.lines().filter(|line| line.starts_with('|'));
    assert_eq!(rows.clone().find(|line| line.chars().count() > 250), None);
    assert!(rows.count() > 150);
}

/// Times in sentences are those of the tables, and commands and rungs exist.
#[test]
fn sentences_of_the_page_are_true() {
    let text = study();
    let (prose, tables): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.starts_with('|'));
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let known: BTreeSet<&str> = tables.iter().flat_map(|line| line.split(|c| !is_number(c))).collect();
    let words: Vec<&str> = prose.iter().flat_map(|line| line.split_whitespace()).collect();
    for pair in words.windows(2).filter(|pair| pair[1].trim_end_matches(['.', ',', ';', ':', ')']) == "us") {
        let number = pair[0].trim_start_matches('(');
        assert!(known.contains(number), "{number} us is in no table");
    }
    let after = |option: &str| {
        let rest = text.split(option).skip(1).map(|rest| rest.split([' ', '`', '\n']).next().unwrap());
        rest.filter(|name| *name != "opposite").collect::<Vec<_>>()
    };
    assert!(after("--rung ").into_iter().all(|name| crate::ladder::find(name).is_ok()));
    assert!(after("--only ").into_iter().all(|name| crate::probes::names().contains(&name)));
    let facts = Facts::of(&committed()).unwrap();
    let fact = |name: &str| facts.get(name).unwrap_or_else(|| panic!("{name}")).value;
    let rung = |name: &str| fact(&format!("bench.seed-ring-uniform.f16.forward.cuda:ladder:{name}"));
    let gain =
        |from: &str, to: &str| (rung(&format!("{from}.time")) / rung(&format!("{to}.time")) - 1.0) * 100.0;
    let slowdown = |shape: &str| figure(fact(&format!("probe.clusters.{shape}.slowdown")));
    let prose = words.join(" ");
    for said in [
        format!("{} times as fast", figure(rung("persistent_full.time") / rung("chosen.time"))),
        format!("{} to {} times slower", slowdown("1x8"), slowdown("48x16")),
        format!("writes {} % of", figure(fact("probe.work-claims.thread.written"))),
        format!("uses {} % of", figure(rung("persistent_full.copy-share"))),
        format!("over `persistent` {:.1} % on an H200", gain("persistent", "persistent+specialised1")),
        format!("they end after {} us", figure(fact("probe.clusters.96x8.remote.time"))),
        format!("gives {:.1} %", gain("base", "fewer_points")),
        format!("errors up to {}", figure(fact("verify.seed-ring-uniform.f16.ladder:fewer_points.max-abs"))),
        format!(
            "{} times as long",
            figure(fact("analyze.sweep.batch.16.time") / fact("analyze.sweep.batch.1.time"))
        ),
    ] {
        assert!(text.contains(&said) || prose.contains(&said), "{said}");
    }
    let claims = Claims::built_in().unwrap();
    let outcomes = judge(&claims, &facts, Some("NVIDIA H200"));
    for (recommended, right) in [
        ("fixed-is-fastest", Verdict::Reproduced),
        ("direct-beats-shared", Verdict::Reproduced),
        ("persistent-full-is-best", Verdict::Opposite),
        ("split-loses", Verdict::Reproduced),
        ("tma-multilevel-is-fastest", Verdict::Opposite),
        ("near-optimal", Verdict::Opposite),
        ("tensor-cores-do-not-help", Verdict::Reproduced),
        ("tma-speedup", Verdict::OtherSize),
    ] {
        assert_eq!(
            outcomes.iter().find(|o| o.claim.id == recommended).unwrap().verdict,
            right,
            "{recommended}"
        );
    }
    // "No difference beyond the noise", on an H200.
    let range = |name: &str| facts.get(name).unwrap_or_else(|| panic!("{name}")).range.unwrap();
    for (prefix, one, other) in [
        ("bench.seed-ring-uniform.f16.forward.cuda:ladder:", "tma_multilevel", "distributed"),
        ("probe.tma-tile.queries-1000.", "tma-64", "manual"),
        ("probe.tma-tile.queries-1000.", "warp-tma", "warp-prefetch"),
        ("probe.copy-styles.", "channels-async", "channels"),
    ] {
        let [one, other] = [one, other].map(|name| range(&format!("{prefix}{name}.time")));
        assert!(one.0 <= other.1 && other.0 <= one.1, "{prefix}: {one:?} {other:?}");
    }
}

#[test]
fn every_gpu_with_a_ladder_has_a_column() {
    let mut all = committed();
    let ladder = crate::facts::newest_ladder(&all).unwrap().clone();
    let mut other = ladder.clone();
    other.record.machine.gpu.as_mut().unwrap().name = "NVIDIA GeForce RTX 5070".into();
    other.record.created = "2999-01-01T00:00:00Z".into();
    all.push(other);
    let text = page(&study(), &all).unwrap();
    assert!(text.contains("| lines | you say | NVIDIA GeForce RTX 5070 | NVIDIA H200 | why |"), "{text}");
    assert!(text.matches("| rung |").count() == 2 && text.contains("NVIDIA GeForce RTX 5070, measured: "));
    // A time that the document states for this GPU is judged there and not on the other.
    let line = text.lines().find(|line| line.contains("ultra reaches 1.86 TFLOP/s")).unwrap();
    assert!(line.contains("other size | ") && line.contains(": your GPU |"), "{line}");
}

#[test]
fn without_records_the_page_says_so() {
    let text = page(&study(), &[]).unwrap();
    assert!(text.contains("without records, measured: ") && text.contains("| not measured yet |"), "{text}");
    assert!(!text.contains("NaN"));
    assert!(page("no parts", &[]).unwrap_err().to_string().contains("got no part 'document 1'"));
}
