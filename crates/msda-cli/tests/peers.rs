//! Other implementations, described in a file, measured by the command.
//!
//! Most tests need a Python with torch. Without one they are skipped, unless `MSDA_PYTHON` is set.

use std::path::Path;
use std::process::{Command, Output};

use msda_bench::record::{Device, Measurement, Record};

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

const PEERS: &str = r#"
[peer.good]
about = "grid_sample by way of a peer"
import = "attention_of_mine"
call = "attention(value, shapes, starts, locations, weights)"
device = "cpu"
dtypes = ["f32"]
backward = true

[peer.rough]
about = "a per cent off, and says so"
import = "attention_of_mine"
setup = "factor = 1.01"
prepare = "scaled = weights * factor"
call = "attention(value, shapes, starts, locations, scaled)"
device = "cpu"
dtypes = ["f32"]
exact = false

[peer.wrong]
about = "all zeros"
import = "torch"
call = "zeros(locations.shape[0], locations.shape[1], value.shape[2] * value.shape[3])"
device = "cpu"
dtypes = ["f32"]

[peer.crooked]
about = "a shape nobody asked for"
import = "torch"
call = "zeros(3)"
device = "cpu"
dtypes = ["f32"]

[peer.narrow]
about = "16-bit values and coordinates, computed in 32 bits: grid_sample on the processor gives NaN in f16"
import = "attention_of_mine"
call = "attention(value.float(), shapes, starts, locations.float(), weights.float()).to(value.dtype)"
device = "cpu"
dtypes = ["f16"]
backward = true

[peer.softmax]
about = "takes logits, and completes the gradient of the weights"
import = "attention_of_mine"
prepare = "logits = weights.log()"
call = "attention(value, shapes, starts, locations, logits.flatten(-2).softmax(-1).view_as(logits))"
finish = "grad_weights = grad_weights + (output * grad).sum(-1)[..., None, None]"
device = "cpu"
dtypes = ["f32"]
backward = true
exact = false

[peer.unfinished]
about = "takes logits, and does not complete the gradient of the weights"
import = "attention_of_mine"
prepare = "logits = weights.log()"
call = "attention(value, shapes, starts, locations, logits.flatten(-2).softmax(-1).view_as(logits))"
device = "cpu"
dtypes = ["f32"]
backward = true
exact = false

[peer.dies]
about = "ends the process"
import = "os"
call = "_exit(3)"
device = "cpu"
dtypes = ["f32"]

[peer.absent]
about = "not installed"
import = "no_such_module_anywhere"
call = "f()"
device = "cpu"
dtypes = ["f32"]
"#;

fn msda(folder: &Path, engines: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_msda"));
    command.args(args).current_dir(folder).env("MSDA_ENGINES", engines).env("PYTHONPATH", folder);
    // From that folder the project's own Python would not be found.
    if let Ok(python) = msda_bench::engines::find_python() {
        command.env("MSDA_PYTHON", python);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
    let dir = tempfile::tempdir().unwrap();
    let engines = dir.path().join("mine.toml");
    std::fs::write(&engines, PEERS).unwrap();
    std::fs::write(dir.path().join("attention_of_mine.py"), MODULE).unwrap();
    let names = ["good", "rough", "wrong", "crooked", "narrow", "softmax", "unfinished", "dies", "absent"];
    let names = names.map(|n| format!("peer:{n}"));
    let mut args =
        vec!["bench", "--quick", "--workload", "small", "--engine", "cpu", "--threads", "1", "--json"];
    args.extend(names.iter().flat_map(|n| ["--engine", n]));
    let run = msda(dir.path(), &engines, &args);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let record = Record::parse(&text(&run.stdout)).unwrap();

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

    let doctor = msda(dir.path(), &engines, &["doctor", "--peers", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let peers = findings.as_array().unwrap().iter().find(|f| f["what"] == "peers").unwrap();
    let says = peers["says"].as_str().unwrap();
    assert!(says.contains("peer:good") && !says.contains("peer:absent"), "{peers}");
}

#[test]
fn bad_files_and_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engines = dir.path().join("mine.toml");
    std::fs::write(&engines, PEERS.replace("about = \"all zeros\"", "abuot = \"all zeros\"")).unwrap();
    let args = ["bench", "--quick", "--workload", "small", "--engine", "peer:wrong"];
    let run = msda(dir.path(), &engines, &args);
    assert_eq!(run.status.code(), Some(1));
    let said = text(&run.stderr);
    assert!(said.contains("mine.toml") && said.contains("line 21") && said.contains("abuot"), "{said}");

    std::fs::write(&engines, PEERS).unwrap();
    let run = msda(dir.path(), &engines, &["bench", "--quick", "--engine", "peer:nobody"]);
    assert_eq!(run.status.code(), Some(2));
    let said = text(&run.stderr);
    assert!(
        said.contains("peer:nobody") && said.contains("peer:good") && said.contains("peer:mmcv"),
        "{said}"
    );

    let run = msda(dir.path(), &dir.path().join("gone.toml"), &args);
    assert!(text(&run.stderr).contains("gone.toml"), "{}", text(&run.stderr));
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
fn failing_python(folder: &Path) -> Command {
    // In folders that only this user can write to. Another process writes the file: one that this
    // process holds open for writing, in whatever thread, cannot be started.
    let (text, bin) = (folder.join("failing.py"), folder.join("env/bin"));
    let python = bin.join("python");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::write(&text, FAILING).unwrap();
    let copied = Command::new("install").args(["-m", "755"]).args([&text, &python]).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_msda"));
    command.current_dir(folder).env("MSDA_PYTHON", python).env("MSDA_PYTHON_TIMEOUT", "10");
    command.args(["bench", "--quick", "--workload", "small", "--dtype", "f32", "--threads", "1"]);
    command.args(["--pass", "forward", "--json"]);
    command
}

/// Each failure ends with a reason, within the timeout, and the other engines are measured. Lines
/// of results appear while the benchmark runs.
#[cfg(unix)]
#[test]
fn a_peer_that_hangs_or_dies_ends_in_a_message_and_the_run_goes_on() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let dir = tempfile::tempdir().unwrap();
    let names = ["never_ready", "dies_at_import", "hangs", "dies", "garbage", "flood"];
    let entry = |name: &&str| {
        format!(
            "[peer.{name}]\nabout = \"-\"\nimport = \"{name}\"\ncall = \"-\"\ndevice = \"cpu\"\ndtypes = [\"f32\"]\n"
        )
    };
    let file = dir.path().join("engines.toml");
    std::fs::write(&file, names.iter().map(entry).collect::<String>()).unwrap();
    let mut command = failing_python(dir.path());
    command.env("MSDA_ENGINES", &file).args(["--engine", "cpu"]);
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
    let dir = tempfile::tempdir().unwrap();
    for (fails, seconds, why) in [
        ("no torch", "10", "no Python with torch"),
        ("hangs at the start", "10", "no answer within 10 s"),
        ("dies at the start", "10", "Python ended without an answer (exit status: 1): no memory left"),
        ("garbage at the start", "10", "got 'garbage' from Python"),
        ("", "soon", "MSDA_PYTHON_TIMEOUT: got 'soon', expected seconds"),
    ] {
        let mut command = failing_python(dir.path());
        command.env("FAILS", fails).env("MSDA_PYTHON_TIMEOUT", seconds);
        let run = command.args(["--engine", "cpu", "--engine", "torch"]).output().unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        let record = Record::parse(&text(&run.stdout)).unwrap();
        assert_eq!(record.measurements.len(), 2, "cpu and plain");
        let found = record.skipped.iter().any(|s| s.what == "torch" && s.why.contains(why));
        assert!(found, "{fails}: {:?}", record.skipped);
    }
}
