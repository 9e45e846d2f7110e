//! The commands about the GPU, run with all GPUs hidden.

mod shell;

use msda_cuda::choose::Header;
use msda_cuda::jit;
use serde_json::Value;

use shell::Shell;

/// The program: `MSDA_BIN` on a machine without cargo, otherwise the one that cargo built.
fn program() -> std::ffi::OsString {
    std::env::var_os("MSDA_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_msda").into())
}

fn msda() -> Shell {
    let msda = Shell::new(program()).without_gpu();
    let tuned = msda.at("tuned.txt");
    msda.with("MSDA_TUNED", tuned)
}

#[test]
fn kernels_are_listed_and_explained_without_a_gpu() {
    let msda = msda();
    let (said, noted) = msda.both(&["kernels"]);
    assert!(noted.contains("there is no GPU, so this is about sm_90"), "{noted}");
    for words in ["generic, forward: ", "rows, forward: ", "no   f64 values"] {
        assert!(said.contains(words), "{said}");
    }
    let args = ["kernels", "--workload", "small", "--dtype", "f16", "--arch", "sm_80"];
    let with = |more: &[&'static str]| [&args[..], more].concat();
    let (said, noted) = msda.both(&args);
    assert!(noted.is_empty() && said.contains("class   sm_80 f16 d"), "{noted}{said}");
    let all = msda.json(&with(&["--json"]));
    assert_eq!((all["arch"].as_str(), all["problems"].as_array().map(Vec::len)), (Some("sm_80"), Some(1)));
    let problem = &all["problems"][0];
    assert_ne!(problem["kernel"], "generic");
    for family in problem["families"].as_array().unwrap() {
        let refused: u64 =
            family["refusals"].as_array().unwrap().iter().map(|r| r["count"].as_u64().unwrap()).sum();
        assert_eq!(family["takes"].as_u64().unwrap() + refused, family["candidates"].as_u64().unwrap());
    }
    // The stages of a launch, forward and backward; the last one of each writes a result.
    let both = msda.json(&with(&["--pass", "both", "--json"]));
    let both = both["problems"].as_array().unwrap();
    assert_eq!(both.iter().map(|p| p["pass"].as_str().unwrap()).collect::<Vec<_>>(), ["forward", "backward"]);
    for problem in both {
        let stages = problem["stages"].as_array().unwrap();
        let said = stages.iter().all(|s| !s["why"].as_str().unwrap().is_empty());
        let runs = stages.iter().any(|s| s["kernel"].is_string() && s["blocks"].as_u64() > Some(0));
        assert!(said && runs && problem["workspace"].is_u64(), "{problem}");
    }
    let said = msda.ok(&with(&["--pass", "backward"]));
    for words in [" backward\n", "stage 2", "bytes of workspace"] {
        assert!(said.contains(words), "{said}");
    }
    // Atomic additions need less memory or other kernels.
    assert_ne!(msda.ok(&with(&["--pass", "backward", "--atomic"])), said);

    // A tuned kernel is used, and the reason says so.
    let class = problem["class"].as_str().unwrap();
    let sms = all["sms"].as_u64().unwrap() as u32;
    let header = Header { gpu: "NVIDIA A100".into(), sms, kernels: jit::KERNELS.version() };
    let choice = |header: &Header| {
        msda.write("tuned.txt", format!("{header}\n{class} = generic  # 1.0 us, small f16\n"));
        let said = msda.json(&with(&["--json"]));
        ["kernel", "why"].map(|word| said["problems"][0][word].as_str().unwrap().to_owned())
    };
    let [kernel, why] = choice(&header);
    assert!(kernel == "generic" && why.contains("tuned file"), "{kernel}: {why}");
    // One of another GPU is not used. One of other kernels is not used either, and is named.
    let [kernel, why] = choice(&Header { sms: sms + 1, ..header.clone() });
    assert!(kernel != "generic" && !why.contains("tuned file"), "{kernel}: {why}");
    let [kernel, why] = choice(&Header { kernels: "0123456789abcdef".into(), ..header });
    assert!(kernel != "generic" && why.contains("tuned file is stale"), "{kernel}: {why}");
    let tuned = msda.finding("tuned", &[]);
    let hint = tuned["hint"].as_str().unwrap();
    assert!(hint.contains("tuned.txt: line 1") && hint.contains("0123456789abcdef"), "{tuned}");

    for (args, words) in [
        (vec!["--arch", "hopper"], ""),
        (vec!["--dtype", "f16"], ""),
        (vec!["--workload", "small", "--dtype", "f8"], ""),
        (vec!["--workload", "nope"], ""),
        (vec!["--pass", "sideways"], ""),
        (vec!["--atomic"], ""),
        (vec!["--arch", "sm_999"], "got 'sm_999', expected one of sm_75, sm_80"),
        (vec!["--arch", "sm_60"], "sm_60, which is not supported: it is older than sm_75"),
    ] {
        let said = msda.fails(2, &[&["kernels"], &args[..]].concat(), &[words]);
        assert!(!said.contains("did you mean"), "{said}");
    }
}

#[test]
fn the_cache_is_listed_and_cleared() {
    let msda = msda();
    let folder = msda.at("cache");
    assert_eq!(msda.ok(&["cache", "path"]).trim(), folder.display().to_string());
    assert_eq!(msda.json(&["cache", "list", "--json"]), Value::Array(Vec::new()));
    // An entry of the cache, and a file that is none.
    let entry = folder.join("rows-f16-d32-sm_90a-0123456789abcdef");
    std::fs::create_dir_all(&entry).unwrap();
    std::fs::write(entry.join("kernel.cubin"), [0; 2048]).unwrap();
    std::fs::write(folder.join("tuned.txt"), "").unwrap();
    let list = msda.json(&["cache", "list", "--json"]);
    assert_eq!((list[0]["key"].as_str(), list[0]["arch"].as_str()), (Some("rows-f16-d32"), Some("sm_90a")));
    assert_eq!(list[0]["bytes"].as_u64(), Some(2048));
    assert!(msda.ok(&["cache", "list"]).contains("rows-f16-d32"));
    assert!(msda.both(&["cache", "clear"]).1.contains("1 compiled"));
    assert!(!entry.exists() && folder.join("tuned.txt").exists());
    msda.fails(2, &["cache"], &[]);
    msda.with("MSDA_CACHE_DIR", "").fails(1, &["cache", "path"], &["MSDA_CACHE_DIR"]);
}

/// The folder is checked before anything is compiled.
#[test]
fn a_folder_that_cannot_be_filled_is_refused_at_once() {
    let msda = msda();
    msda.write("file", "");
    let mut refused = vec![("file/kernels", "cannot write 'file/kernels'")];
    #[cfg(unix)]
    {
        std::fs::create_dir(msda.at("open")).unwrap();
        std::fs::set_permissions(msda.at("open"), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
        refused.push(("open", "is writable by everybody"));
    }
    for (out, expected) in refused {
        let args = ["cache", "build", "--workload", "small", "--arch", "sm_80", "--out", out];
        let said = msda.fails(1, &args, &[expected, "hint: choose a folder"]);
        assert!(!said.contains("compiling"), "{said}");
    }
}

/// Needs NVRTC; skipped without it, unless `MSDA_NVRTC` or `MSDA_PYTHON` is set.
#[test]
fn kernels_are_compiled_ahead_for_other_machines() {
    if let Err(why) = jit::nvrtc() {
        let wanted = ["MSDA_NVRTC", "MSDA_PYTHON"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!wanted, "{why}");
        return eprintln!("skipped: {why}");
    }
    let msda = msda();
    let build = ["cache", "build", "--workload", "small", "--dtype", "f16", "--pass", "forward"];
    let said = msda.ok(&[&build[..], &["--arch", "sm_80", "--arch", "sm_90", "--out", "ahead"]].concat());
    assert!(said.contains("sm_80") && said.contains("sm_90a"), "{said}");
    let ahead = msda.at("ahead");
    let msda = msda.with("MSDA_KERNELS", &ahead).with("MSDA_JIT", "off");
    let entries = msda.json(&["cache", "list", "--json"]);
    let entries = entries.as_array().unwrap();
    let of = |arch: &str| entries.iter().filter(|entry| entry["arch"] == arch).count();
    assert!(of("sm_80") > 1 && of("sm_90a") > 1 && of("sm_80") + of("sm_90a") == entries.len());
    for (arch, found) in [("sm_80", true), ("sm_90", true), ("sm_86", false)] {
        let all = msda.json(&["kernels", "--workload", "small", "--dtype", "f16", "--arch", arch, "--json"]);
        let stages = all["problems"][0]["stages"].as_array().unwrap();
        let from = |stage: &Value| stage["folder"].as_str() == ahead.to_str();
        assert!(!stages.is_empty() && stages.iter().all(|stage| from(stage) == found), "{arch}: {all}");
    }
    let kernels = msda.finding("kernels", &[]);
    assert!(kernels["ok"] == Value::Bool(true), "{kernels}");
    assert!(kernels["says"].as_str().unwrap().ends_with("compiled ahead for sm_80, sm_90a"), "{kernels}");
    msda.fails(2, &["cache", "build", "--workload", "small", "--out", "x"], &["--arch"]);
}

#[test]
fn a_missing_gpu_is_noted_once_and_refused_where_it_was_asked_for() {
    let msda = msda();
    let base = ["bench", "--quick", "--workload", "small", "--threads", "1", "--json"];
    let record = msda.record(&base);
    let missed: Vec<_> = record.skipped.iter().filter(|s| s.what == "cuda").collect();
    assert_eq!(missed.len(), 1, "{:?}", record.skipped);
    assert_eq!(missed[0].why.lines().count(), 1, "{missed:?}");
    let driver = msda_cuda::driver::driver_problem().is_none();
    assert_eq!(missed[0].why == "no NVIDIA driver was found", !driver, "{missed:?}");
    let record = msda.record(&[&base[..], &["--device", "cpu"]].concat());
    assert!(record.skipped.iter().all(|s| !s.what.contains("cuda")), "{:?}", record.skipped);

    for (args, code, word) in [
        (vec!["bench", "--quick", "--engine", "cuda"], 1, "hint: "),
        (vec!["bench", "--quick", "--engine", "cpu", "--engine", "cuda@1:generic"], 1, "hint: "),
        (vec!["verify", "--device", "cuda"], 1, "hint: "),
        (vec!["verify", "--device", "cuda", "--outputs", "all"], 1, "hint: "),
        (vec!["verify", "--engine", "cuda:generic"], 1, "hint: "),
        (vec!["tune", "--workload", "small"], 1, "hint: "),
        (vec!["tune", "--all", "--dtype", "f16"], 1, "hint: "),
        (vec!["bench", "--quick", "--device", "cuda"], 1, "nothing was measured"),
        (vec!["bench", "--quick", "--engine", "cuda:nothing"], 2, "generic"),
        (vec!["bench", "--quick", "--engine", "cuda@x"], 2, "cuda@N"),
        (vec!["bench", "--device", "tpu"], 2, "cuda"),
        (vec!["verify", "--device", "cuda", "--engine", "cpu"], 2, "cannot be used"),
        (vec!["tune"], 2, "<--workload <NAME>|--all>"),
        (vec!["tune", "--all", "--workload", "small"], 2, "cannot be used with"),
        (vec!["tune", "--workload", "small", "--limit", "0"], 2, "--limit"),
    ] {
        msda.fails(code, &args, &[word]);
    }
    assert!(!msda.at("tuned.txt").exists());
}

#[test]
fn doctor_says_why_there_is_no_gpu() {
    let gpu = msda().finding("gpu", &[]);
    assert_eq!(gpu["ok"], Value::Bool(false));
    assert!(gpu["hint"].is_string() && gpu["says"].as_str().is_some_and(|s| !s.contains("hint")), "{gpu}");
}

/// The first GPU. Without one a test says that it skipped, or fails if `MSDA_GPU` is set.
fn gpu() -> Option<msda_cuda::driver::Device> {
    msda_cuda::driver::Device::open(0)
        .inspect_err(|why| {
            assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
            eprintln!("skipped: {why}");
        })
        .ok()
}

#[test]
fn doctor_names_the_gpu_where_there_is_one() {
    let Some(_) = gpu() else { return };
    let msda = Shell::new(program());
    let of = |what| msda.finding(what, &[]);
    assert_eq!(of("gpu")["ok"], Value::Bool(true));
    assert_eq!(of("compiler")["ok"].as_bool(), Some(jit::nvrtc().is_ok()));
    assert!(of("cache")["says"].is_string());
}

/// With nothing but the kernels of `cache build`, both passes run.
#[test]
fn kernels_that_were_compiled_ahead_are_enough() {
    let Some(gpu) = gpu() else { return };
    let msda = Shell::new(program());
    let (arch, sms) = (gpu.arch().to_string(), gpu.sms().to_string());
    let what = ["--workload", "small", "--dtype", "f16"];
    msda.ok(&[&["cache", "build"], &what[..], &["--arch", &arch, "--sms", &sms, "--out", "ahead"]].concat());
    let ahead = msda.at("ahead");
    let msda = msda.with("MSDA_KERNELS", ahead).with("MSDA_JIT", "off").with("MSDA_CACHE_DIR", "");
    let record = msda.record(&[&["bench", "--quick", "--json", "--engine", "cuda"], &what[..]].concat());
    assert_eq!(record.measurements.iter().filter(|m| m.engine == "cuda").count(), 2);
}
