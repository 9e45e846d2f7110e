//! The command `msda-study` without a GPU: on any machine, with the GPUs it has hidden.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn study(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_msda-study"))
        .args(args)
        .current_dir(folder)
        .env("CUDA_VISIBLE_DEVICES", "-1")
        .env("MSDA_CACHE_DIR", folder.join("cache"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {}", text(&output.stderr)))
}

#[test]
fn rungs_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let ladder = study(dir.path(), &["list", "--arch", "sm_80"]);
    let said = text(&ladder.stdout);
    assert!(said.contains("b48_q15422") && said.contains("refused: sm_80 has no clusters"), "{said}");
    assert!(said.contains("original ") && said.contains("base+half") && said.contains("MiB"), "{said}");
    let list = json(&study(dir.path(), &["list", "--dtype", "f16", "--arch", "sm_90", "--json"]));
    let rungs = list["problems"][0]["rungs"].as_array().unwrap();
    assert_eq!(rungs.len(), msda_study::ladder::RUNGS.len());
    for (name, exact, kernels, workspace, owned) in [
        ("base", true, 1, false, false),
        ("reordered", true, 2, true, false),
        ("int8", false, 3, true, false),
        ("texture", false, 2, false, true),
    ] {
        let rung = rungs.iter().find(|r| r["name"] == name).unwrap();
        assert_eq!((rung["takes"].as_bool(), rung["exact"].as_bool()), (Some(true), Some(exact)), "{rung}");
        assert_eq!(rung["kernels"], kernels, "{rung}");
        assert_eq!((rung["workspace"] != 0, rung["owned"] != 0), (workspace, owned), "{rung}");
    }
}

#[test]
fn the_report_has_the_sections_of_the_study() {
    let dir = tempfile::tempdir().unwrap();
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200");
    let records = records.to_str().unwrap();
    let run = study(dir.path(), &["report", records, "--out", "out"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    assert!(read("report.html").contains("<summary>Claims</summary>"), "a record is from a GPU");
    assert!(read("report.md").contains("<summary>Claims</summary>"));
    let run = study(dir.path(), &["report", records, "--markdown", "--claims", "never"]);
    assert!(text(&run.stdout).contains("## Measurements") && !text(&run.stdout).contains("<summary>Claims"));
}

#[test]
fn without_a_gpu_the_cpu_is_probed_and_other_probes_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let run = study(dir.path(), &["probe", "--quick", "--out", "probed"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(said.contains("probe.cpu") && said.contains("gather-memory") && said.contains("GB/s"), "{said}");
    assert!(said.contains("skipped") && said.contains("probe.tma-tile") && said.contains("hint: "), "{said}");
    let record = msda_bench::record::Record::load(&dir.path().join("probed/record.json")).unwrap();
    let names: Vec<&str> = record.figures.iter().map(|f| f.name.as_str()).collect();
    let cpu = ["fma", "stream", "gather-l2", "gather-memory"].map(|name| format!("probe.cpu.{name}.rate"));
    assert_eq!(names, cpu);
    assert!(record.figures.iter().all(|f| f.value > 0.0), "{:?}", record.figures);
    let skipped: Vec<&str> = record.skipped.iter().map(|s| s.what.as_str()).collect();
    let gpu = ["ceiling", "tma-tile", "copy-styles", "clusters", "banks"].map(|name| format!("probe.{name}"));
    assert_eq!(skipped, gpu);
    assert_eq!(record.command, "msda-study probe --quick");
    let unknown = study(dir.path(), &["probe", "--only", "tma"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("tma-tile"), "{}", text(&unknown.stderr));
}

/// A script must notice that nothing was done.
#[test]
fn a_command_that_can_do_nothing_without_a_gpu_fails_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (args, said) in [
        (vec!["bench"], "nothing was measured"),
        (vec!["bench", "--json"], "nothing was measured"),
        (vec!["verify", "--full"], "nothing was verified"),
        (vec!["verify", "--workload", "small", "--json"], "nothing was verified"),
        (vec!["probe", "--only", "clusters", "--out", "out"], "nothing was measured"),
        (vec!["probe", "--only", "clusters", "--only", "banks", "--json"], "nothing was measured"),
        (vec!["analyze", "--workload", "small", "--ncu", "--out", "out.json"], "nothing was analyzed"),
        (vec!["analyze", "--workload", "small", "--sweep"], "nothing was analyzed"),
    ] {
        let run = study(dir.path(), &args);
        assert_eq!(run.status.code(), Some(1), "{args:?}: {}", text(&run.stdout));
        let error = text(&run.stderr);
        assert!(error.contains(said) && error.contains("hint: "), "{args:?}: {error}");
        assert!(run.stdout.is_empty(), "{args:?}: {}", text(&run.stdout));
    }
    assert!(!dir.path().join("out/record.json").exists() && !dir.path().join("out.json").exists());
    assert!(!dir.path().join("report").exists());
    for (args, code) in [
        (vec!["verify", "--engine", "cpu"], 2),
        (vec!["verify", "--workload", "nope"], 2),
        (vec!["bench", "--workload", "nope"], 2),
    ] {
        assert_eq!(study(dir.path(), &args).status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn claims_begin_with_totals_and_fit_a_screen() {
    let dir = tempfile::tempdir().unwrap();
    let run = study(dir.path(), &["claims"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(said.starts_with("measured: ") && said.contains("\narithmetic: "), "{said}");
    let lines = said.lines().count() + text(&run.stderr).lines().count();
    assert!(lines <= 40 && said.lines().all(|line| line.chars().count() <= 100), "{said}");
    assert!(said.contains("\npersistent ") && said.contains(" 2:23-27 "), "{said}");
    assert!(text(&run.stderr).contains("hint: --system NAME"), "{}", text(&run.stderr));

    let all = text(&study(dir.path(), &["claims", "--all"]).stdout);
    assert!(all.starts_with("measured: ") && all.lines().count() > 300, "{all}");
    assert!(all.contains("(1:8 3:19,54)"), "source lines");
}

#[test]
fn claims_are_selected_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let list = |args: &[&str]| {
        let list = json(&study(dir.path(), &[&["claims", "--json"], args].concat()));
        list.as_array().unwrap().clone()
    };
    let every = list(&[]);
    let of_second = |c: &Value| c["at"].as_array().unwrap().iter().any(|place| place["document"] == 2);
    let second = list(&["--document", "2"]);
    assert_eq!(second.len(), every.iter().filter(|c| of_second(c)).count());
    assert!(!second.is_empty() && second.iter().all(of_second));
    let persistent = list(&["--system", "persistent"]);
    let of = |c: &Value| c["system"] == "persistent";
    assert_eq!(persistent.len(), every.iter().filter(|c| of(c)).count());
    assert!(!persistent.is_empty() && persistent.len() < every.len());
    let both = list(&["--document", "2", "--system", "persistent"]);
    assert!(both.iter().all(|c| of_second(c) && of(c)), "{both:?}");
    let reproduced = list(&["--only", "reproduced"]);
    assert!(!reproduced.is_empty() && reproduced.iter().all(|c| c["verdict"] == "reproduced"));
    for (args, word) in [
        (["--document", "6"], "expected one of 1, 2, 3, 4, 5"),
        (["--system", "nonsense"], "persistent"),
        (["--only", "files"], "verdicts are reproduced, better here"),
    ] {
        let run = study(dir.path(), &[&["claims"], &args[..]].concat());
        assert_eq!(run.status.code(), Some(1), "{args:?}");
        assert!(text(&run.stderr).contains(word), "{args:?}: {}", text(&run.stderr));
    }
}

#[test]
fn claims_are_judged_with_and_without_records() {
    let dir = tempfile::tempdir().unwrap();
    let run = study(dir.path(), &["claims", "--document", "5"]);
    assert!(text(&run.stderr).contains("hint: msda-study probe"), "{}", text(&run.stderr));
    let json = study(dir.path(), &["claims", "--json", "--only", "level-starts"]);
    let list: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&list[0]["verdict"], &list[0]["arithmetic"]), (&"refuted".into(), &true.into()), "{list}");
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records/h200/2026-11-15-ladder.json");
    let measured = study(dir.path(), &["claims", "--record", record, "--only", "suite-vector"]);
    assert!(text(&measured.stdout).contains("must be at least"), "{}", text(&measured.stdout));
    let facts = study(dir.path(), &["claims", "--record", record, "--facts"]);
    let facts = text(&facts.stdout);
    assert!(facts.contains("seed.positions = 20522"), "{facts}");
    // This record has the name from before the rung got its document's parameters.
    assert!(
        facts.contains("ladder:persistent_wide.time") && !facts.contains("ladder:persistent.time"),
        "{facts}"
    );
}

#[test]
fn the_answer_to_the_documents_is_printed_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let printed = study(dir.path(), &["founding"]);
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    assert!(text(&printed.stdout).contains("\n## Contradictions\n"), "{}", text(&printed.stdout));
    // Nothing is written when a part of STUDY.md is missing.
    std::fs::write(dir.path().join("STUDY.md"), "no parts").unwrap();
    let run = study(dir.path(), &["founding", "--docs", "."]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("got no part 'documents'"), "{}", text(&run.stderr));
    assert!(!dir.path().join("FOUNDING.md").exists());
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/STUDY.md");
    std::fs::copy(original, dir.path().join("STUDY.md")).unwrap();
    let run = study(dir.path(), &["founding", "--docs", "."]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let page = std::fs::read_to_string(dir.path().join("FOUNDING.md")).unwrap();
    assert_eq!(page, text(&printed.stdout));
}

#[test]
fn commands_of_the_answer_are_real() {
    let dir = tempfile::tempdir().unwrap();
    let founding = msda_study::founding::Founding::of(Vec::new()).unwrap();
    let all = founding.rows.iter().map(|row| &row[2]).chain(founding.future.iter().map(|row| &row[4]));
    // Names of rungs are checked elsewhere; here the commands and their options are.
    let commands: std::collections::BTreeSet<&str> =
        all.filter_map(|command| command.strip_prefix("msda-study ")).collect();
    assert!(commands.len() > 5, "{commands:?}");
    for words in commands {
        let args: Vec<&str> = words.split_whitespace().chain(["--help"]).collect();
        let run = study(dir.path(), &args);
        assert!(run.status.success(), "{words:?}: {}", text(&run.stderr));
    }
}

#[test]
fn an_analysis_has_tables_and_says_what_was_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["analyze", "--workload", "small", "--dtype", "f16", "--out", "a.json", "--json"];
    let run = study(dir.path(), &args);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let record = msda_bench::record::Record::parse(&text(&run.stdout)).unwrap();
    let figure = |name: &str| record.figures.iter().find(|f| f.name == name).map(|f| f.value);
    assert!((figure("analyze.small.f16.intensity.gathered").unwrap() - 1.0).abs() < 1e-9);
    assert_eq!(msda_bench::record::Record::load(&dir.path().join("a.json")).unwrap(), record);
    assert_eq!(record.command, "msda-study analyze --workload small --dtype f16 --json");
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records/h200/2026-11-16-forward.json");
    let said = text(&study(dir.path(), &["analyze", "--workload", "small", "--record", records]).stdout);
    assert!(said.contains("analyze.small") && said.contains("roof"), "{said}");
    // Without counters there is no conclusion.
    assert!(said.contains("skipped") && !said.contains("bounds it"), "{said}");
    let wrong = study(dir.path(), &["analyze", "--kernel", "nonsense"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("hint: `msda kernels`"), "{}", text(&wrong.stderr));
}
