//! The command `msda-study` without a GPU: on any machine, with the GPUs it has hidden.

#[path = "../../msda-cli/tests/shell/mod.rs"]
mod shell;

use std::path::Path;

use msda_bench::record::Record;
use serde_json::Value;

use shell::Shell;

fn study() -> Shell {
    Shell::new(env!("CARGO_BIN_EXE_msda-study")).without_gpu()
}

#[test]
fn rungs_are_listed() {
    let study = study();
    let said = study.ok(&["list", "--arch", "sm_80"]);
    for words in ["b48_q15422", "refused: sm_80 has no clusters", "original ", "base+half", "MiB"] {
        assert!(said.contains(words), "{said}");
    }
    let list = study.json(&["list", "--dtype", "f16", "--arch", "sm_90", "--json"]);
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
    let study = study();
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200");
    let records = records.to_str().unwrap();
    study.ok(&["report", records, "--out", "out"]);
    for name in ["out/report.html", "out/report.md"] {
        assert!(study.read(name).contains("<summary>Ladder</summary>"), "{name}");
    }
    assert!(study.ok(&["report", records, "--markdown"]).contains("## Measurements"));
}

#[test]
fn without_a_gpu_the_cpu_is_probed_and_other_probes_are_skipped() {
    let study = study();
    let said = study.ok(&["probe", "--quick", "--out", "probed"]);
    for words in ["probe.cpu", "gather-memory", "GB/s", "Left out", "probe.tma-tile", "hint: "] {
        assert!(said.contains(words), "{said}");
    }
    let record = Record::load(&study.at("probed/record.json")).unwrap();
    let names: Vec<&str> = record.figures.iter().map(|f| f.name.as_str()).collect();
    let cpu = ["fma", "stream", "gather-l2", "gather-memory"].map(|name| format!("probe.cpu.{name}.rate"));
    assert_eq!(names, cpu);
    assert!(record.figures.iter().all(|f| f.value > 0.0), "{:?}", record.figures);
    let skipped: Vec<&str> = record.skipped.iter().map(|s| s.what.as_str()).collect();
    let gpu = ["ceiling", "tma-tile", "copy-styles", "work-claims", "clusters", "banks"]
        .map(|name| format!("probe.{name}"));
    assert_eq!(skipped, gpu);
    assert_eq!(record.command, "msda-study probe --quick");
    study.fails(2, &["probe", "--only", "tma"], &["tma-tile"]);
}

/// A script must notice that nothing was done.
#[test]
fn a_command_that_can_do_nothing_without_a_gpu_fails_and_writes_nothing() {
    let study = study();
    for (args, said) in [
        (vec!["bench"], "nothing was measured"),
        (vec!["all", "--out", "out"], "nothing was measured"),
        (vec!["bench", "--json"], "nothing was measured"),
        (vec!["verify", "--full"], "nothing was verified"),
        (vec!["verify", "--workload", "small", "--json"], "nothing was verified"),
        (vec!["probe", "--only", "clusters", "--out", "out"], "nothing was measured"),
        (vec!["probe", "--only", "clusters", "--only", "banks", "--json"], "nothing was measured"),
        (vec!["analyze", "--workload", "small", "--ncu", "--out", "out.json"], "nothing was analyzed"),
        (vec!["analyze", "--workload", "small", "--sweep"], "nothing was analyzed"),
    ] {
        study.fails(1, &args, &[said, "hint: "]);
    }
    assert!(["out/record.json", "out.json", "report"].iter().all(|name| !study.at(name).exists()));
    for args in
        [["verify", "--engine", "cpu"], ["verify", "--workload", "nope"], ["bench", "--workload", "nope"]]
    {
        study.fails(2, &args, &[]);
    }
}

#[test]
fn claims_begin_with_totals_and_fit_a_screen() {
    let study = study();
    let (said, noted) = study.both(&["claims"]);
    assert!(said.starts_with("measured: ") && said.contains("\narithmetic: "), "{said}");
    let lines = said.lines().count() + noted.lines().count();
    assert!(lines <= 40 && said.lines().all(|line| line.chars().count() <= 100), "{said}");
    assert!(said.contains("\npersistent ") && said.contains(" 2:23-27 "), "{said}");
    assert!(noted.contains("hint: --system NAME"), "{noted}");
    let all = study.ok(&["claims", "--all"]);
    assert!(all.starts_with("measured: ") && all.lines().count() > 300, "{all}");
    assert!(all.contains("(1:8 3:19,54)"), "source lines");
}

#[test]
fn claims_are_selected_exactly() {
    let study = study();
    let list =
        |args: &[&str]| study.json(&[&["claims", "--json"], args].concat()).as_array().unwrap().clone();
    let every = list(&[]);
    let of_second = |c: &Value| c["at"].as_array().unwrap().iter().any(|place| place["document"] == 2);
    let of_system = |c: &Value| c["system"] == "persistent";
    for (args, expected) in [
        (&["--document", "2"][..], &of_second as &dyn Fn(&Value) -> bool),
        (&["--document", "2", "--system", "persistent"], &|c| of_second(c) && of_system(c)),
        (&["--only", "reproduced"], &|c| c["verdict"] == "reproduced"),
        (&["--only", "level-starts"], &|c| c["id"] == "level-starts" && c["arithmetic"] == true),
    ] {
        let expected: Vec<Value> = every.iter().filter(|c| expected(c)).cloned().collect();
        assert!(!expected.is_empty() && expected.len() < every.len());
        assert_eq!(list(args), expected, "{args:?}");
    }
    for (args, word) in [
        (["--document", "6"], "expected one of 1, 2, 3, 4, 5"),
        (["--system", "nonsense"], "persistent"),
        (["--only", "files"], "verdicts are reproduced, other size"),
    ] {
        study.fails(1, &[&["claims"], &args[..]].concat(), &[word]);
    }
}

#[test]
fn claims_are_judged_with_and_without_records() {
    let study = study();
    assert!(study.both(&["claims", "--document", "5"]).1.contains("hint: msda-study probe"));
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records/h200/2026-11-18-study.json");
    let measured = study.ok(&["claims", "--record", record, "--only", "fixed-speedup"]);
    assert!(measured.contains("fixed-speedup: 1.02x"), "{measured}");
    let facts = study.ok(&["claims", "--record", record, "--facts"]);
    assert!(
        facts.contains("seed.positions = 20522") && facts.contains("ladder:persistent_wide.time"),
        "{facts}"
    );
}

#[test]
fn the_page_is_written_and_a_page_without_parts_is_refused() {
    let study = study();
    study.write("page.md", "no parts");
    study.fails(1, &["claims", "--page", "page.md"], &["got no part 'document 1'"]);
    assert_eq!(study.read("page.md"), "no parts");
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/STUDY.md");
    std::fs::copy(original, study.at("page.md")).unwrap();
    study.ok(&["claims", "--page", "page.md"]);
    assert!(study.read("page.md").contains("| lines | you say | without records | why |"));
}

/// A rung is compiled without a GPU, or refused with the reason.
#[test]
fn rungs_are_built_for_an_architecture() {
    let study = study();
    study.fails(1, &["build", "--rung", "nonsense"], &["persistent_full"]);
    study.fails(
        1,
        &["build", "--rung", "distributed", "--arch", "sm_80"],
        &["nothing was built", "no clusters"],
    );
    if std::env::var_os("MSDA_PYTHON").or(std::env::var_os("MSDA_NVRTC")).is_none() {
        eprintln!("skipped: no NVRTC is named");
        return;
    }
    let said = study.ok(&["build", "--rung", "original_f16", "--rung", "distributed16", "--arch", "sm_120"]);
    assert!(said.contains("msda_forward") && said.contains("sm_120"), "{said}");
}

#[test]
fn an_analysis_has_tables_and_says_what_was_left_out() {
    let study = study();
    let args = ["analyze", "--workload", "small", "--dtype", "f16", "--out", "a.json", "--json"];
    let record = study.record(&args);
    let figure = |name: &str| record.figures.iter().find(|f| f.name == name).map(|f| f.value);
    assert!((figure("analyze.small.f16.intensity.gathered").unwrap() - 1.0).abs() < 1e-9);
    assert_eq!(Record::load(&study.at("a.json")).unwrap(), record);
    assert_eq!(record.command, "msda-study analyze --workload small --dtype f16 --json");
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records/h200/2026-11-18-study.json");
    let said = study.ok(&["analyze", "--workload", "small", "--record", records]);
    assert!(said.contains("analyze.small") && said.contains("roof"), "{said}");
    // Without counters there is no conclusion.
    assert!(said.contains("Left out") && !said.contains("bounds it"), "{said}");
    study.fails(1, &["analyze", "--kernel", "nonsense"], &["hint: `msda kernels`"]);
}
