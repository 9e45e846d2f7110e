//! The commands about the GPU, run with all GPUs hidden.

use std::path::Path;
use std::process::{Command, Output};

use msda_cuda::jit;
use serde_json::Value;

fn msda(folder: &Path, args: &[&str]) -> Output {
    Command::new(program())
        .args(args)
        .current_dir(folder)
        .env("CUDA_VISIBLE_DEVICES", "-1")
        .env("MSDA_CACHE_DIR", folder.join("cache"))
        .env("MSDA_TUNED", folder.join("tuned.txt"))
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
fn kernels_are_listed_and_explained_without_a_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let run = msda(dir.path(), &["kernels"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("there is no GPU, so this is about sm_90"), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(
        said.contains("generic, forward: ")
            && said.contains("rows, forward: ")
            && said.contains("no   f64 values"),
        "{said}"
    );

    let args = ["kernels", "--workload", "small", "--dtype", "f16", "--arch", "sm_80"];
    let run = msda(dir.path(), &args);
    assert!(run.stderr.is_empty(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("class   sm_80 f16 d"), "{}", text(&run.stdout));
    let all = json(&msda(dir.path(), &[&args[..], &["--json"]].concat()));
    assert_eq!((all["arch"].as_str(), all["problems"].as_array().map(Vec::len)), (Some("sm_80"), Some(1)));
    let problem = &all["problems"][0];
    assert_ne!(problem["kernel"], "generic");
    for family in problem["families"].as_array().unwrap() {
        let refused: u64 =
            family["refusals"].as_array().unwrap().iter().map(|r| r["count"].as_u64().unwrap()).sum();
        assert_eq!(family["takes"].as_u64().unwrap() + refused, family["candidates"].as_u64().unwrap());
    }
    // The stages of a launch, forward and backward; the last one of each writes a result.
    let both = json(&msda(dir.path(), &[&args[..], &["--pass", "both", "--json"]].concat()));
    let passes: Vec<&str> =
        both["problems"].as_array().unwrap().iter().map(|p| p["pass"].as_str().unwrap()).collect();
    assert_eq!(passes, ["forward", "backward"]);
    for problem in both["problems"].as_array().unwrap() {
        let stages = problem["stages"].as_array().unwrap();
        assert!(
            !stages.is_empty() && stages.iter().all(|s| !s["why"].as_str().unwrap().is_empty()),
            "{problem}"
        );
        assert!(
            stages.iter().any(|s| s["kernel"].is_string() && s["blocks"].as_u64() > Some(0)),
            "{problem}"
        );
        assert!(problem["workspace"].is_u64());
    }
    let backward = [&args[..], &["--pass", "backward"]].concat();
    let said = text(&msda(dir.path(), &backward).stdout);
    assert!(
        said.contains(" backward\n") && said.contains("stage 2") && said.contains("bytes of workspace"),
        "{said}"
    );
    // Atomic additions need less memory or other kernels.
    let atomic = text(&msda(dir.path(), &[&backward[..], &["--atomic"]].concat()).stdout);
    assert_ne!(atomic, said);

    // A tuned kernel is used, and the reason says so.
    let class = problem["class"].as_str().unwrap();
    std::fs::write(dir.path().join("tuned.txt"), format!("{class} = generic  # 1.0 us, small f16\n"))
        .unwrap();
    let tuned = json(&msda(dir.path(), &[&args[..], &["--json"]].concat()));
    assert_eq!(tuned["problems"][0]["kernel"], "generic");
    assert!(tuned["problems"][0]["why"].as_str().unwrap().contains("this machine"), "{tuned}");

    for (args, code) in [
        (vec!["kernels", "--arch", "hopper"], 2),
        (vec!["kernels", "--dtype", "f16"], 2),
        (vec!["kernels", "--workload", "small", "--dtype", "f8"], 2),
        (vec!["kernels", "--workload", "nope"], 2),
        (vec!["kernels", "--pass", "sideways"], 2),
        (vec!["kernels", "--atomic"], 2),
        (vec!["kernels", "--arch", "sm_999"], 2),
    ] {
        assert_eq!(msda(dir.path(), &args).status.code(), Some(code), "{args:?}");
    }
    let old = msda(dir.path(), &["kernels", "--arch", "sm_60"]);
    let said = text(&old.stderr);
    assert_eq!(old.status.code(), Some(2));
    assert!(said.contains("sm_60, which is not supported: it is older than sm_75"), "{said}");
    assert!(!said.contains("did you mean"), "{said}");
    let run = msda(dir.path(), &["kernels", "--arch", "sm_999"]);
    assert!(
        text(&run.stderr).contains("got 'sm_999', expected one of sm_75, sm_80"),
        "{}",
        text(&run.stderr)
    );
}

#[test]
fn the_cache_is_listed_and_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache");
    assert_eq!(text(&msda(dir.path(), &["cache", "path"]).stdout).trim(), folder.display().to_string());
    assert_eq!(json(&msda(dir.path(), &["cache", "list", "--json"])), Value::Array(Vec::new()));
    // An entry of the cache, and a file that is none.
    let entry = folder.join("rows-f16-d32-sm_90a-0123456789abcdef");
    std::fs::create_dir_all(&entry).unwrap();
    std::fs::write(entry.join("kernel.cubin"), [0; 2048]).unwrap();
    std::fs::write(folder.join("tuned.txt"), "").unwrap();
    let list = json(&msda(dir.path(), &["cache", "list", "--json"]));
    assert_eq!((list[0]["key"].as_str(), list[0]["arch"].as_str()), (Some("rows-f16-d32"), Some("sm_90a")));
    assert_eq!(list[0]["bytes"].as_u64(), Some(2048));
    assert!(text(&msda(dir.path(), &["cache", "list"]).stdout).contains("rows-f16-d32"));
    let clear = msda(dir.path(), &["cache", "clear"]);
    assert!(clear.status.success() && text(&clear.stderr).contains("1 compiled"), "{}", text(&clear.stderr));
    assert!(!entry.exists() && folder.join("tuned.txt").exists());

    let none = Command::new(program()).args(["cache", "path"]).env("MSDA_CACHE_DIR", "").output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("MSDA_CACHE_DIR"), "{}", text(&none.stderr));
    assert_eq!(msda(dir.path(), &["cache"]).status.code(), Some(2));
}

#[test]
fn a_missing_gpu_is_noted_once_and_refused_where_it_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let base = ["bench", "--quick", "--workload", "small", "--threads", "1", "--json"];
    let run = msda(dir.path(), &base);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let record = msda_bench::record::Record::parse(&text(&run.stdout)).unwrap();
    let missed: Vec<_> = record.skipped.iter().filter(|s| s.what == "cuda").collect();
    assert_eq!(missed.len(), 1, "{:?}", record.skipped);
    assert_eq!(missed[0].why.lines().count(), 1, "{missed:?}");
    let driver = msda_cuda::driver::driver_problem().is_none();
    assert_eq!(missed[0].why == "no NVIDIA driver was found", !driver, "{missed:?}");
    let cpu = msda(dir.path(), &[&base[..], &["--device", "cpu"]].concat());
    let record = msda_bench::record::Record::parse(&text(&cpu.stdout)).unwrap();
    assert!(record.skipped.iter().all(|s| !s.what.contains("cuda")), "{:?}", record.skipped);

    for args in [
        vec!["bench", "--quick", "--engine", "cuda"],
        vec!["bench", "--quick", "--engine", "cpu", "--engine", "cuda@1:generic"],
        vec!["verify", "--device", "cuda"],
        vec!["verify", "--device", "cuda", "--outputs", "all"],
        vec!["verify", "--engine", "cuda:generic"],
        vec!["tune", "--workload", "small"],
        vec!["tune", "--all", "--dtype", "f16"],
    ] {
        let run = msda(dir.path(), &args);
        assert_eq!(run.status.code(), Some(1), "{args:?}: {}", text(&run.stdout));
        let said = text(&run.stderr);
        assert!(said.contains("hint: ") && !said.contains("panicked"), "{args:?}: {said}");
    }
    for (args, code, word) in [
        (vec!["bench", "--quick", "--device", "cuda"], 1, "nothing was measured"),
        (vec!["bench", "--quick", "--engine", "cuda:nothing"], 2, "generic"),
        (vec!["bench", "--quick", "--engine", "cuda@x"], 2, "cuda@N"),
        (vec!["bench", "--device", "tpu"], 2, "cuda"),
        (vec!["verify", "--device", "cuda", "--engine", "cpu"], 2, "cannot be used"),
        (vec!["tune"], 2, "<--workload <NAME>|--all>"),
        (vec!["tune", "--all", "--workload", "small"], 2, "cannot be used with"),
        (vec!["tune", "--workload", "small", "--limit", "0"], 2, "--limit"),
    ] {
        let run = msda(dir.path(), &args);
        assert_eq!(run.status.code(), Some(code), "{args:?}");
        assert!(text(&run.stderr).contains(word), "{args:?}: {}", text(&run.stderr));
    }
    assert!(!dir.path().join("tuned.txt").exists());
}

#[test]
fn doctor_says_why_there_is_no_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let findings = json(&msda(dir.path(), &["doctor", "--json"]));
    let gpu = findings.as_array().unwrap().iter().find(|f| f["what"] == "gpu").unwrap();
    assert_eq!(gpu["ok"], Value::Bool(false));
    assert!(gpu["hint"].is_string() && gpu["says"].as_str().is_some_and(|s| !s.contains("hint")), "{gpu}");
}

/// The program: `MSDA_BIN` on a machine without cargo, otherwise the one that cargo built.
fn program() -> std::ffi::OsString {
    std::env::var_os("MSDA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_msda").into())
}

/// With a GPU, `doctor` names compiler and cache. Skipped without a GPU, unless `MSDA_GPU` is set.
#[test]
fn doctor_names_the_gpu_where_there_is_one() {
    if let Err(why) = msda_cuda::driver::Device::open(0) {
        assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
        eprintln!("skipped: {why}");
        return;
    }
    let doctor = Command::new(program()).args(["doctor", "--json"]).output().unwrap();
    let findings = json(&doctor);
    let of = |what: &str| findings.as_array().unwrap().iter().find(|f| f["what"] == what).unwrap().clone();
    assert_eq!(of("gpu")["ok"], Value::Bool(true));
    assert_eq!(of("compiler")["ok"].as_bool(), Some(jit::nvrtc().is_ok()));
    assert!(of("cache")["says"].is_string());
}
