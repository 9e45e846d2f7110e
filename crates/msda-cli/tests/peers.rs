//! Torch and other implementations, measured by the command through Python.
//!
//! Most tests need a Python with torch and the package of this repository: `MSDA_PYTHON`, or that
//! of `.venv`. Without it they are skipped, unless `MSDA_PYTHON` is set.

mod shell;

use std::path::{Path, PathBuf};

use msda_bench::record::{Device, Measurement, Record};

use shell::{Shell, text};

const MODULE: &str = r#"
print("a module that talks")

def attention(value, locations, weights, levels, points):
    from msda_attn._torch.grid import sample
    return sample(value, levels, locations, weights, points)
"#;

/// Name, module, call and type of peers on the CPU.
const PEERS: [[&str; 4]; 5] = [
    ["good", "attention_of_mine", "attention(value, locations, weights, levels, points)", "f32"],
    [
        "wrong",
        "torch",
        "zeros(locations.shape[0], locations.shape[1], value.shape[2] * value.shape[3])",
        "f32",
    ],
    // 16-bit coordinates, computed in 32 bits: on the CPU, grid_sample gives NaN in f16.
    [
        "narrow",
        "attention_of_mine",
        "attention(value.float(), locations.float(), weights.float(), levels, points).to(value.dtype)",
        "f16",
    ],
    ["dies", "os", "_exit(3)", "f32"],
    ["absent", "no_such_module_anywhere", "f()", "f32"],
];

fn described() -> String {
    let entry = |[name, module, call, dtype]: [&str; 4]| {
        format!(
            "[peer.{name}]\nabout = \"-\"\nimport = \"{module}\"\ncall = \"{call}\"\ndevice = \"cpu\"\n\
             dtypes = [\"{dtype}\"]\nbackward = {}\n",
            name != "wrong"
        )
    };
    PEERS.map(entry).concat()
}

/// A shell with the peers of a file `mine.toml`; none without Python.
fn msda(peers: &str) -> Option<Shell> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let msda = Shell::new(env!("CARGO_BIN_EXE_msda"));
    let (engines, modules) = (msda.at("mine.toml"), msda.at("modules"));
    std::fs::create_dir(&modules).unwrap();
    msda.write("mine.toml", peers);
    msda.write("modules/attention_of_mine.py", MODULE);
    // Nothing is imported from the current folder.
    msda.write("torch.py", "raise SystemExit('torch.py of the current folder ran')");
    let paths = std::env::join_paths([modules, root.join("bindings/python/python")]).unwrap();
    let msda = msda.with("MSDA_ENGINES", engines).with("PYTHONPATH", paths);
    let wanted = std::env::var_os("MSDA_PYTHON").map(PathBuf::from);
    let python = wanted.clone().unwrap_or_else(|| root.join(".venv/bin/python"));
    let msda = if python.exists() { msda.with("MSDA_PYTHON", python) } else { msda };
    let found = msda.finding("torch", &[]);
    if found["ok"] == true {
        return Some(msda);
    }
    assert!(wanted.is_none(), "{found}");
    eprintln!("skipped: {}", found["says"]);
    None
}

#[test]
fn peers_are_measured_beside_ours_and_their_failures_are_noted() {
    let Some(msda) = msda(&described()) else { return };
    let names = PEERS.map(|[name, ..]| format!("peer:{name}"));
    let mut args =
        vec!["bench", "--quick", "--workload", "small", "--engine", "cpu", "--threads", "1", "--json"];
    args.extend(names.iter().flat_map(|n| ["--engine", n]).chain(["--engine", "torch"]));
    let record = msda.record(&args);

    let of = |engine: &str| -> Vec<&Measurement> {
        record.measurements.iter().filter(|m| m.engine == engine).collect()
    };
    let why = |what: &str| {
        let found = record.skipped.iter().find(|s| s.what == what);
        found.map_or_else(|| panic!("{what} in {:?}", record.skipped), |s| s.why.clone())
    };
    let (good, narrow) = (of("peer:good"), of("peer:narrow"));
    assert_eq!((good.len(), narrow.len()), (2, 2), "both passes: {:?}", record.skipped);
    assert!(good.iter().all(|m| m.device == Device::Cpu && !m.cold && !m.check.inexact && m.within()));
    assert!(good.iter().all(|m| m.check.compared > 0 && m.work.floor_ms > 0.0 && m.time.median > 0.0));
    // Its coordinates are 16 bits wide.
    assert!(narrow.iter().all(|m| m.check.inexact && m.problem == of("msda")[2].problem));
    assert!(of("msda").len() >= 4 && of("torch").len() >= 2, "{:?}", record.measurements);
    assert!(why("small peer:good f16 forward").contains("has no float16"));
    assert!(why("small peer:wrong f32 forward").contains("wrong: the error is"));
    assert!(why("small peer:wrong f32 backward").contains("has no backward pass"));
    let died = why("small peer:dies f32");
    assert!(died.contains("Python ended without an answer (exit status: 3)"), "{died}");
    assert!(died.contains("peer:dies is left out of the rest of this run"), "{died}");
    assert!(why("peer:absent").contains("no_such_module_anywhere"));
    assert_eq!(record.skipped.iter().filter(|s| s.what.contains("absent")).count(), 1);

    let peers = msda.finding("peers", &["--peers"]);
    let says = peers["says"].as_str().unwrap();
    assert!(says.contains("peer:good") && !says.contains("peer:absent"), "{peers}");
}

/// A random problem with a wrong result has a line of its own, and the command fails.
#[test]
fn a_random_problem_that_fails_is_named() {
    let Some(msda) = msda(&described()) else { return };
    let args = "bench --random 3 --seed 4 --engine cpu --engine peer:wrong --pass forward";
    let run = msda.run(&args.split(' ').collect::<Vec<_>>());
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("\nfailed: random-4-").count() + usize::from(said.starts_with("failed: ")), 3);
    assert!(said.contains(" peer:wrong ") && said.contains("error: 3 measurements failed"), "{said}");
    let record = Record::load(&msda.at("report/record.json")).unwrap();
    let ours = record.measurements.iter().filter(|m| m.engine.starts_with("cpu")).count();
    assert_eq!((ours, record.skipped.len()), (3, 3), "{:?}", record.skipped);
}

#[test]
fn bad_files_and_names_are_refused() {
    let args = ["bench", "--quick", "--workload", "small", "--device", "cpu", "--engine", "peer:wrong"];
    let Some(misspelt) = msda(&described().replacen("about", "abuot", 1)) else { return };
    misspelt.fails(1, &args, &["mine.toml: peer.good: got 'abuot'"]);
    let unknown = ["bench", "--quick", "--engine", "peer:god"];
    let right = msda(&described()).unwrap();
    right.fails(2, &unknown, &["got 'peer:god'", "peer:mmcv", "did you mean peer:good?"]);
    right.with("MSDA_ENGINES", "gone.toml").fails(1, &args, &["gone.toml, which cannot be read"]);
}

/// A Python that fails as `FAILS` and the names of peers say.
#[cfg(unix)]
const FAILING: &str = r#"#!/usr/bin/env python3
import json, os, sys, time

fails = os.environ.get("FAILS")
if "bench" not in sys.argv:  # the question for torch and msda
    if fails == "no torch":
        sys.exit(1)
    print("0.0", flush=True)
    sys.exit(fails == "no msda")
if fails == "hangs at the start":
    time.sleep(1000)
if fails == "dies at the start":
    sys.exit("no memory left")
request, path, results = json.load(open(sys.argv[-3])), sys.argv[-1], []

def write(**found):
    text = json.dumps({"known": ["good", "hangs", "dies"], "cuda": False, "results": results, **found})
    open(path, "w").write("garbage" if fails == "writes garbage" else text)

for at, run in enumerate(request["runs"]):
    rows = []
    for name in run["engines"] or ["good"]:
        if name not in request["without"]:
            write(running={"run": at, "engine": name})
            if name == "hangs":
                time.sleep(1000)
            if name == "dies":
                sys.exit("a fault of the module")
            time_of = {"median": 1.0, "min": 1.0, "p10": 1.0, "p90": 1.0, "runs": 3}
            check = {"max_error": 0.0, "tolerance": 1.0, "compared": 1, "inexact": False}
            row = {"run": at, "name": name, "pass": "forward", "time": time_of, "check": check}
            rows.append({**row, "host_us": None})
    results += rows
write(running=None)
"#;

#[cfg(unix)]
const FAILING_BENCH: &str =
    "bench --quick --workload small --dtype f32 --threads 1 --pass forward --device cpu --json";

#[cfg(unix)]
fn failing_python() -> Shell {
    // In folders that only this user can write to. Another process writes the file: one that this
    // process holds open for writing, in whatever thread, cannot be started.
    let msda = Shell::new(env!("CARGO_BIN_EXE_msda"));
    let (bin, python) = (msda.at("env/bin"), msda.at("env/bin/python"));
    std::fs::create_dir_all(&bin).unwrap();
    msda.write("failing.py", FAILING);
    let mut install = std::process::Command::new("install");
    assert!(install.args(["-m", "755"]).args([&msda.at("failing.py"), &python]).status().unwrap().success());
    msda.with("MSDA_PYTHON", python).with("MSDA_PYTHON_TIMEOUT", "10")
}

/// Each failure ends with a reason, within the timeout, and the other engines are measured.
#[cfg(unix)]
#[test]
fn a_peer_that_hangs_or_dies_ends_in_a_message_and_the_run_goes_on() {
    let msda = failing_python();
    let engines = ["hangs", "good", "dies"].map(|name| format!(" --engine peer:{name}")).concat();
    let args = format!("{FAILING_BENCH} --engine cpu{engines}");
    let (out, said) = msda.both(&args.split(' ').collect::<Vec<_>>());
    let record = Record::parse(&out).unwrap();
    let engines: Vec<&str> =
        record.measurements.iter().map(|m| m.engine.split('-').next().unwrap()).collect();
    assert!(engines[0] == "peer:good" && engines[1..].iter().all(|name| *name == "cpu"), "{engines:?}");
    for (name, why) in [
        ("peer:hangs", "no answer within 10 s; the process was ended"),
        ("peer:dies", "Python ended without an answer (exit status: 1): a fault of the module"),
    ] {
        let what = format!("small {name} f32");
        let found = record.skipped.iter().find(|s| s.what == what);
        let found = found.unwrap_or_else(|| panic!("{what} in {:?}", record.skipped));
        assert!(found.why.contains(why), "{found:?}");
        assert!(found.why.ends_with(&format!("{name} is left out of the rest of this run")), "{found:?}");
        assert!(said.contains(&format!("failed: {what}: ")), "{said}");
    }
}

/// Without Python the engines of this process are measured, unless torch was asked for by name.
#[cfg(unix)]
#[test]
fn a_python_that_does_not_start_is_left_out() {
    let usual: Vec<&str> = FAILING_BENCH.split(' ').collect();
    let named = [&usual[..], &["--engine", "torch"]].concat();
    for (fails, seconds, why, starts) in [
        ("no torch", "10", "no Python with torch", false),
        ("no msda", "10", "got torch 0.0 without msda_attn, expected both\nhint: run `", false),
        ("", "soon", "MSDA_PYTHON_TIMEOUT: got 'soon', expected seconds", false),
        ("hangs at the start", "10", "no answer within 10 s", true),
        ("dies at the start", "10", "(exit status: 1): no memory left", true),
        ("writes garbage", "10", "Python wrote no record", true),
    ] {
        let msda = failing_python().with("FAILS", fails).with("MSDA_PYTHON_TIMEOUT", seconds);
        let record = msda.record(&usual);
        assert!(record.measurements.iter().all(|m| m.engine.starts_with("cpu-")), "{fails}");
        let found = record.skipped.iter().any(|s| s.what.starts_with("torch") && s.why.contains(why));
        assert!(found, "{fails}: {:?}", record.skipped);
        if !starts {
            msda.fails(1, &named, &[why]);
        }
    }
}
