//! Other implementations, described in a file, measured by the command.
//!
//! Most tests need a Python with torch. Without one they are skipped, unless `MSDA_PYTHON` is set.

mod shell;

use msda_bench::record::{Device, Measurement, Record};

use shell::{Shell, text};

const MODULE: &str = r#"
from torch.nn.functional import grid_sample

print("a module that talks")

def attention(value, shapes, starts, locations, weights):
    b, _, h, d = value.shape
    q = locations.shape[1]
    total = 0
    for level, ((rows, columns), start) in enumerate(zip(shapes.tolist(), starts.tolist())):
        plane = value[:, start : start + rows * columns].permute(0, 2, 3, 1).reshape(b * h, d, rows, columns)
        grid = locations[:, :, :, level].transpose(1, 2).flatten(0, 1) * 2 - 1
        part = grid_sample(plane, grid, align_corners=False)
        total = total + (part * weights[:, :, :, level].transpose(1, 2).reshape(b * h, 1, q, -1)).sum(-1)
    return total.view(b, h, d, q).permute(0, 3, 1, 2).flatten(2)
"#;

const PEERS: &str = include_str!("peers/mine.toml");

/// A shell with the peers of a file `mine.toml`.
fn msda(peers: &str) -> Shell {
    let msda = Shell::new(env!("CARGO_BIN_EXE_msda"));
    msda.write("mine.toml", peers);
    let (engines, folder) = (msda.at("mine.toml"), msda.at(""));
    let msda = msda.with("MSDA_ENGINES", engines).with("PYTHONPATH", folder);
    // From that folder the project's own Python would not be found.
    match msda_bench::engines::find_python() {
        Ok(python) => msda.with("MSDA_PYTHON", python),
        Err(_) => msda,
    }
}

fn has_torch() -> bool {
    match msda_bench::engines::find_python() {
        Ok(_) => true,
        Err(why) if std::env::var_os("MSDA_PYTHON").is_some() => panic!("{why:#}"),
        Err(why) => {
            eprintln!("skipped: {why:#}");
            false
        }
    }
}

#[test]
fn peers_are_measured_beside_ours_and_their_failures_are_noted() {
    if !has_torch() {
        return;
    }
    let msda = msda(PEERS);
    msda.write("attention_of_mine.py", MODULE);
    let names = ["good", "rough", "wrong", "crooked", "narrow", "softmax", "unfinished", "dies", "absent"];
    let names = names.map(|n| format!("peer:{n}"));
    let mut args =
        vec!["bench", "--quick", "--workload", "small", "--engine", "cpu", "--threads", "1", "--json"];
    args.extend(names.iter().flat_map(|n| ["--engine", n]));
    let record = msda.record(&args);

    let of = |engine: &str| -> Vec<&Measurement> {
        record.measurements.iter().filter(|m| m.engine == engine).collect()
    };
    let why = |what: &str| {
        let found = record.skipped.iter().find(|s| s.what == what);
        found.map_or_else(|| panic!("{what} in {:?}", record.skipped), |s| s.why.clone())
    };
    let good = of("peer:good");
    assert_eq!(good.len(), 2, "both passes: {:?}", record.skipped);
    assert!(good.iter().all(|m| m.device == Device::Cpu && !m.cold && !m.check.inexact));
    // Its coordinates are 16 bits wide.
    let narrow = of("peer:narrow");
    assert_eq!(narrow.len(), 2, "{:?}", record.skipped);
    assert!(narrow.iter().all(|m| m.check.inexact && m.check.max_error > m.check.tolerance));
    let rough = of("peer:rough");
    assert_eq!(rough.len(), 1, "{:?}", record.skipped);
    assert!(rough[0].check.inexact && rough[0].check.max_error > 10.0 * rough[0].check.tolerance);
    // Gradients through a softmax can be completed, or else they differ.
    let errors =
        |engine| of(engine).iter().map(|m| m.check.max_error / m.check.tolerance).collect::<Vec<_>>();
    let (softmax, unfinished) = (errors("peer:softmax"), errors("peer:unfinished"));
    assert!(softmax.len() == 2 && softmax.iter().all(|&error| error < 3.0), "{softmax:?}");
    assert!(unfinished[0] < 3.0 && unfinished[1] > 100.0, "{unfinished:?}");
    assert!(why("small peer:rough f32").contains("the backward pass"));
    assert!(why("small peer:good f16").contains("values of type f16"));
    assert!(why("small peer:wrong f32 forward").contains("peer:wrong is wrong"));
    assert!(why("small peer:crooked f32 forward").contains("the call returned (3,)"));
    assert!(why("small peer:dies f32 forward").contains("Python ended without an answer (exit status: 3)"));
    assert!(why("peer:absent").contains("no_such_module_anywhere"));
    assert_eq!(record.skipped.iter().filter(|s| s.what.contains("absent")).count(), 1);

    let peers = msda.finding("peers", &["--peers"]);
    let says = peers["says"].as_str().unwrap();
    assert!(says.contains("peer:good") && !says.contains("peer:absent"), "{peers}");
}

/// A random problem with a wrong result has a line of its own, and the command fails.
#[test]
fn a_random_problem_that_fails_is_named() {
    if !has_torch() {
        return;
    }
    let msda = msda(PEERS);
    msda.write("attention_of_mine.py", MODULE);
    let args = "bench --random 3 --seed 4 --engine cpu --engine peer:wrong --pass forward";
    let run = msda.run(&args.split(' ').collect::<Vec<_>>());
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("\nfailed: random-4-").count() + usize::from(said.starts_with("failed: ")), 3);
    assert!(said.contains(" peer:wrong ") && said.contains("error: 3 measurements failed"), "{said}");
    let record = Record::load(&msda.at("report/record.json")).unwrap();
    assert_eq!((record.measurements.len(), record.skipped.len()), (3, 3), "{:?}", record.skipped);
}

#[test]
fn bad_files_and_names_are_refused() {
    let args = ["bench", "--quick", "--workload", "small", "--engine", "peer:wrong"];
    let misspelt = msda(&PEERS.replace("about = \"all zeros\"", "abuot = \"all zeros\""));
    misspelt.fails(1, &args, &["mine.toml", "line 20", "abuot"]);
    let unknown = ["bench", "--quick", "--engine", "peer:nobody"];
    msda(PEERS).fails(2, &unknown, &["peer:nobody", "peer:good", "peer:mmcv"]);
    msda(PEERS).with("MSDA_ENGINES", "gone.toml").fails(1, &args, &["gone.toml"]);
}

/// A Python that speaks the protocol of the benchmark and fails as the name of a peer says.
#[cfg(unix)]
const FAILING: &str = r#"#!/usr/bin/env python3
import json, os, sys, time

if sys.argv[1] == "-c":  # the question whether torch is installed
    sys.exit(1 if os.environ.get("FAILS") == "no torch" else 0)
start, peer = os.environ.get("FAILS"), ""
if start == "hangs at the start":
    time.sleep(1000)
if start == "dies at the start":
    sys.exit("no memory left")
print("garbage" if start == "garbage at the start" else json.dumps({"torch": "0.0", "cuda": False}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    peer = request.get("import", peer)
    if peer == "never_ready" or ("import" not in request and peer == "hangs"):
        time.sleep(1000)
    elif peer == "dies_at_import" or ("import" not in request and peer == "dies"):
        sys.exit("a fault of the module")
    elif "import" not in request:
        print({"garbage": "no answer", "flood": "x" * (1 << 25)}[peer], flush=True)
    else:
        print("{}", flush=True)
"#;

#[cfg(unix)]
const FAILING_BENCH: &str = "bench --quick --workload small --dtype f32 --threads 1 --pass forward --json";

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

/// Each failure ends with a reason, within the timeout, and the other engines are measured. Lines
/// of results appear while the benchmark runs.
#[cfg(unix)]
#[test]
fn a_peer_that_hangs_or_dies_ends_in_a_message_and_the_run_goes_on() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let msda = failing_python();
    let engines = msda.at("mine.toml");
    let msda = msda.with("MSDA_ENGINES", engines);
    let names = ["never_ready", "dies_at_import", "hangs", "dies", "garbage", "flood"];
    let entry = |name: &&str| {
        format!(
            "[peer.{name}]\nabout = \"-\"\nimport = \"{name}\"\ncall = \"-\"\ndevice = \"cpu\"\ndtypes = [\"f32\"]\n"
        )
    };
    // A file in the current folder is not read: it could be another user's.
    msda.write("engines.toml", "no TOML");
    msda.write("mine.toml", names.iter().map(entry).collect::<String>());
    let mut command = msda.command(&FAILING_BENCH.split(' ').collect::<Vec<_>>());
    command.args(["--engine", "cpu"]);
    command.args(names.iter().flat_map(|name| ["--engine".into(), format!("peer:{name}")]));
    let mut child =
        command.args(["--engine", "oracle"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("small forward f32 cpu-") {
            assert!(
                child.try_wait().unwrap().is_none(),
                "the line of the first engine comes while others run"
            );
        }
        said += &format!("{line}\n");
    }
    let run = child.wait_with_output().unwrap();
    assert!(run.status.success(), "{said}");
    let record = Record::parse(&text(&run.stdout)).unwrap();
    let engines: Vec<&str> =
        record.measurements.iter().map(|m| m.engine.split('-').next().unwrap()).collect();
    assert_eq!(engines, ["cpu", "oracle", "plain"]);
    for (what, why) in [
        ("peer:never_ready", "no answer within 10 s; the process was ended"),
        ("peer:dies_at_import", "Python ended without an answer (exit status: 1): a fault of the module"),
        ("small peer:hangs f32 forward", "no answer within 10 s; the process was ended"),
        (
            "small peer:dies f32 forward",
            "Python ended without an answer (exit status: 1): a fault of the module",
        ),
        ("small peer:garbage f32 forward", "got 'no answer' from Python, expected an answer in JSON"),
        ("small peer:flood f32 forward", "got 'xxx"),
    ] {
        let found = record.skipped.iter().find(|s| s.what == what);
        let found = found.unwrap_or_else(|| panic!("{what} in {:?}", record.skipped));
        assert!(found.why.contains(why), "{found:?}");
        let measured = what.starts_with("small");
        assert_eq!(said.contains(&format!("failed: {what}: ")), measured, "{said}");
        assert_eq!(found.why.contains("is left out of the rest of this run"), measured, "{found:?}");
    }
}

/// A Python that never starts is left out, and a GPU or CPU engine is measured all the same.
#[cfg(unix)]
#[test]
fn a_python_that_does_not_start_is_left_out() {
    for (fails, seconds, why) in [
        ("no torch", "10", "no Python with torch"),
        ("hangs at the start", "10", "no answer within 10 s"),
        ("dies at the start", "10", "Python ended without an answer (exit status: 1): no memory left"),
        ("garbage at the start", "10", "got 'garbage' from Python"),
        ("", "soon", "MSDA_PYTHON_TIMEOUT: got 'soon', expected seconds"),
    ] {
        let msda = failing_python().with("FAILS", fails).with("MSDA_PYTHON_TIMEOUT", seconds);
        let args = format!("{FAILING_BENCH} --engine cpu --engine torch");
        let record = msda.record(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(record.measurements.len(), 2, "cpu and plain");
        let found = record.skipped.iter().any(|s| s.what == "torch" && s.why.contains(why));
        assert!(found, "{fails}: {:?}", record.skipped);
    }
}
