//! The user commands, as a person or a script calls them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use msda::Buffer;
use msda_bench::files::{self, Data, Tensor};

fn msda(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_msda"))
        .args(args)
        .current_dir(folder)
        .env("COLUMNS", "80")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn float(shape: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let n = shape.iter().product();
    Tensor { shape: shape.to_vec(), data: Data::Float(Buffer::from_fn(msda::Dtype::F32, n, f)) }
}

/// Two levels, two heads, three queries.
fn inputs(folder: &Path) {
    let tensors = [
        ("value".into(), float(&[1, 16, 2, 4], |i| (i as f64 * 0.7).sin())),
        ("spatial_shapes".into(), Tensor { shape: vec![2, 2], data: Data::Int(vec![3, 4, 2, 2]) }),
        ("level_start_index".into(), Tensor { shape: vec![2], data: Data::Int(vec![0, 12]) }),
        ("sampling_locations".into(), float(&[1, 3, 2, 2, 2, 2], |i| (i % 7) as f64 / 6.3)),
        ("attention_weights".into(), float(&[1, 3, 2, 2, 2], |i| 0.1 + (i % 3) as f64)),
    ];
    files::write(folder.join("in.safetensors"), &tensors).unwrap();
}

#[test]
fn run_computes_what_the_oracle_does_and_gradients_on_request() {
    let dir = tempfile::tempdir().unwrap();
    inputs(dir.path());
    for (option, engine) in
        [("--device", "cpu"), ("--engine", "cpu-portable"), ("--engine", "plain"), ("--engine", "oracle")]
    {
        let out = format!("{engine}.safetensors");
        let run = msda(dir.path(), &["run", "in.safetensors", "--output", &out, option, engine]);
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    let read = |name: &str| files::read(dir.path().join(name)).unwrap()["output"].clone();
    let exact = read("oracle.safetensors");
    assert_eq!(exact.shape, [1, 3, 8]);
    for name in ["cpu.safetensors", "cpu-portable.safetensors", "plain.safetensors"] {
        let (a, b) = (read(name).float("output").unwrap().to_f64(), exact.float("output").unwrap().to_f64());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
    }
    let mut tensors: Vec<(String, Tensor)> =
        files::read(dir.path().join("in.safetensors")).unwrap().into_iter().collect();
    tensors.push(("grad_output".into(), float(&[1, 3, 8], |_| 1.0)));
    files::write(dir.path().join("grad.safetensors"), &tensors).unwrap();
    let run = msda(dir.path(), &["run", "grad.safetensors", "--output", "g.safetensors"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let results = files::read(dir.path().join("g.safetensors")).unwrap();
    let names: Vec<&str> = results.keys().map(String::as_str).collect();
    assert_eq!(names, ["grad_attention_weights", "grad_sampling_locations", "grad_value", "output"]);
    assert_eq!(results["grad_value"].shape, [1, 16, 2, 4]);
    let refused = msda(dir.path(), &["run", "grad.safetensors", "--output", "g.npy"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("expected a .safetensors file"));
}

#[test]
fn run_takes_npy_files_and_levels_from_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    inputs(dir.path());
    for (name, tensor) in files::read(dir.path().join("in.safetensors")).unwrap() {
        files::write(dir.path().join(format!("{name}.npy")), &[(name, tensor)]).unwrap();
    }
    let args = ["run", "value.npy", "sampling_locations.npy", "attention_weights.npy"];
    let run = msda(dir.path(), &[&args[..], &["--levels", "3x4,2x2", "--output", "out.npy"]].concat());
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(files::read(dir.path().join("out.npy")).unwrap()["out"].shape, [1, 3, 8]);
    let run = msda(dir.path(), &[&args[..], &["--output", "none.npy"]].concat());
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("hint: --levels"), "{}", text(&run.stderr));
    assert!(!dir.path().join("none.npy").exists());
}

#[test]
fn bad_input_is_refused_with_advice_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    inputs(dir.path());
    let whole = std::fs::read(dir.path().join("in.safetensors")).unwrap();
    files::write(dir.path().join("extra.npy"), &[("extra".into(), float(&[2], |_| 0.0))]).unwrap();
    let loose: Vec<(String, Tensor)> = files::read(dir.path().join("in.safetensors"))
        .unwrap()
        .into_iter()
        .filter(|(name, _)| !["spatial_shapes", "level_start_index"].contains(&name.as_str()))
        .collect();
    files::write(dir.path().join("loose.safetensors"), &loose).unwrap();
    std::fs::write(dir.path().join("cut.safetensors"), &whole[..whole.len() - 3]).unwrap();
    for (args, expected) in [
        (vec!["run", "cut.safetensors"], "expected"),
        (vec!["run", "missing.safetensors"], "missing.safetensors"),
        (vec!["run", "in.safetensors", "--levels", "3x4,2x3"], "expected one of them, or the same"),
        (vec!["run", "loose.safetensors", "--levels", "3x4"], "levels of sampling_locations"),
        (vec!["run", "in.safetensors", "--layout", "planar"], "got"),
        (vec!["run", "in.safetensors", "--points", "3,1"], "points"),
        (vec!["run", "in.safetensors", "extra.npy"], "extra.npy"),
        (vec!["run", "loose.safetensors", "--levels", "3x4,1x3"], "expected 15"),
    ] {
        let run = msda(dir.path(), &[&args[..], &["--output", "out.safetensors"]].concat());
        assert_eq!(run.status.code(), Some(1), "{args:?}: {}", text(&run.stderr));
        assert!(text(&run.stderr).contains(expected), "{args:?}: {}", text(&run.stderr));
        assert!(!text(&run.stderr).contains("panicked"), "{args:?}");
        assert!(!dir.path().join("out.safetensors").exists(), "{args:?} wrote something");
    }
    let mut twice: Vec<(String, Tensor)> =
        files::read(dir.path().join("in.safetensors")).unwrap().into_iter().collect();
    twice.push(("locations".into(), float(&[1, 3, 2, 2, 2, 2], |_| 0.5)));
    files::write(dir.path().join("twice.safetensors"), &twice).unwrap();
    let run = msda(dir.path(), &["run", "twice.safetensors", "--output", "out.safetensors"]);
    assert_eq!(run.status.code(), Some(1));
    let said = text(&run.stderr);
    assert!(said.contains("'sampling_locations' and 'locations': got both"), "{said}");
    std::fs::create_dir(dir.path().join("folder.npy")).unwrap();
    let run = msda(dir.path(), &["run", "in.safetensors", "--output", "folder.npy"]);
    assert!(
        text(&run.stderr).contains("got the folder folder.npy, expected a file"),
        "{}",
        text(&run.stderr)
    );
    let same = msda(dir.path(), &["run", "in.safetensors", "--output", "in.safetensors"]);
    assert!(text(&same.stderr).contains("also an input"), "{}", text(&same.stderr));
    assert_eq!(std::fs::read(dir.path().join("in.safetensors")).unwrap(), whole);
    assert_eq!(msda(dir.path(), &["verify", "--seeds", "0"]).status.code(), Some(2));
    assert_eq!(msda(dir.path(), &["run"]).status.code(), Some(2));
    assert_eq!(msda(dir.path(), &["nonsense"]).status.code(), Some(2));
}

#[test]
fn bench_measures_writes_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "--quick", "--workload", "small", "--engine", "cpu", "--engine", "cpu-portable"];
    let run = msda(dir.path(), &args);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(
        said.contains("small forward") && said.contains("over plain") && !said.contains("base "),
        "{said}"
    );
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("forward, f32: ")
            && said.contains(" than a plain loop")
            && said.contains("Report: report/report.html."),
        "{said}"
    );
    // In a pipe: no escape sequences, and no progress bar.
    assert!(!run.stdout.contains(&0x1b) && !run.stderr.contains(&0x1b));
    for name in ["record.json", "report.html", "report.md"] {
        assert!(dir.path().join("report").join(name).exists(), "{name}");
    }
    let again = msda(dir.path(), &["report", "report/record.json", "--markdown"]);
    assert!(again.status.success() && text(&again.stdout).contains("small"), "{}", text(&again.stdout));

    let json = msda(dir.path(), &[&args[..], &["--json", "--out", "other"]].concat());
    let record = msda_bench::record::Record::parse(&text(&json.stdout)).unwrap();
    assert_eq!(record.measurements.len(), 18, "two passes, three types, two engines and the baseline");
    assert!(record.measurements.iter().all(|m| m.check.compared > 0 && m.time.median > 0.0));

    let narrow = msda(dir.path(), &[&args[..], &["--json", "--dtype", "f16"]].concat());
    let record = msda_bench::record::Record::parse(&text(&narrow.stdout)).unwrap();
    assert_eq!(record.measurements.len(), 6, "two passes, one type, two engines and the baseline");
    assert!(record.measurements.iter().all(|m| m.dtype == "f16"));
    // The record of the first run is kept under another name.
    assert!(text(&narrow.stderr).contains("note: the record of the last run is now report/record-20"));
    let kept = std::fs::read_dir(dir.path().join("report")).unwrap();
    let kept = kept.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("record-20"));
    assert_eq!(kept.count(), 1);
    let one = msda(dir.path(), &[&args[..], &["--json", "--dtype", "f16", "--pass", "backward"]].concat());
    let record = msda_bench::record::Record::parse(&text(&one.stdout)).unwrap();
    assert_eq!(record.measurements.len(), 3, "one pass, one type, two engines and the baseline");
    let none = msda(dir.path(), &[&args[..], &["--dtype", "f64"]].concat());
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("not in f64"), "{}", text(&none.stderr));

    std::fs::write(dir.path().join("old.json"), "{\"schema\": 0}").unwrap();
    let old = msda(dir.path(), &["report", "old.json"]);
    assert_eq!(old.status.code(), Some(1));
    assert!(text(&old.stderr).contains("expected 1"), "{}", text(&old.stderr));
    files::write(dir.path().join("value.npy"), &[("value".into(), float(&[2], |_| 0.5))]).unwrap();
    std::fs::write(dir.path().join("text.json"), "hello").unwrap();
    for (name, why) in [("value.npy", "it is not text"), ("text.json", "it is not JSON")] {
        let run = msda(dir.path(), &["report", name]);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(1));
        assert!(
            said.contains(&format!("in {name}: got a file that is no record")) && said.contains(why),
            "{said}"
        );
    }
}

#[test]
fn verify_and_doctor_speak_to_people_and_programs() {
    let dir = tempfile::tempdir().unwrap();
    let run =
        msda(dir.path(), &["verify", "--engine", "cpu", "--group", "borders", "--group", "fused", "--json"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(rows[0]["passed"].as_u64().unwrap() > 30, "{rows}");
    let args = ["verify", "--outputs", "small", "--engine", "cpu", "--engine", "plain"];
    let run = msda(dir.path(), &args);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(text(&run.stdout).matches("\nsmall ").count(), 12, "two passes, three types, two engines");
    let run = msda(dir.path(), &[&args[..], &["--pass", "backward"]].concat());
    assert_eq!(text(&run.stdout).matches("\nsmall     backward").count(), 6, "{}", text(&run.stdout));
    let doctor = msda(dir.path(), &["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert!(findings.as_array().unwrap().iter().any(|f| f["what"] == "vectors"));
    assert!(text(&msda(dir.path(), &["doctor"]).stdout).contains("processor"));
}

/// Names that are not known: exit code 2, the list of known names, and a hint if one is similar.
#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    inputs(dir.path());
    for (args, words) in [
        (vec!["bench", "--workload", "sead-encoder"], ["rt-detr-decoder", "did you mean seed-encoder?"]),
        (
            vec!["bench", "--workload", "detr"],
            ["seed-encoder", "did you mean detr-encoder, detr-decoder, rt-detr-decoder or rf-detr-decoder?"],
        ),
        (vec!["run", "in.safetensors", "--output", "o.npy", "--device", "tpu"], ["'tpu'", "cuda:N"]),
        (vec!["run", "in.safetensors", "--output", "o.npy", "--device", "cuda:x"], ["'cuda:x'", "cuda:N"]),
        (vec!["bench", "--engine", "plian"], ["cpu", "did you mean plain?"]),
        (vec!["bench", "--dtype", "fp16"], ["bf16", "f16"]),
        (vec!["verify", "--engine", "gpu"], ["cpu", "cuda"]),
        (vec!["verify", "--group", "border"], ["fused", "did you mean borders?"]),
        (vec!["verify", "--outputs", "smal"], ["seed", "did you mean small?"]),
        (vec!["run", "in.safetensors", "--output", "o.npy", "--engine", "cpu-avx"], ["plain", "cpu-"]),
        (vec!["verify", "--workloads"], ["unexpected argument", "Usage: msda verify"]),
        (vec!["run", "in.safetensors", "--out", "o.npy"], ["unexpected argument", "--output"]),
    ] {
        let run = msda(dir.path(), &args);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{args:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["in.safetensors"], "nothing was written");
}

/// `msda ... | head -1` is no error.
#[test]
fn a_reader_that_ends_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_msda"))
        .arg("doctor")
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("panicked"));
}

#[test]
fn report_takes_folders_and_writes_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/h200");
    let records = records.to_str().unwrap();
    let run = msda(dir.path(), &["report", records, "--out", "out"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let said = text(&run.stdout);
    assert!(said.contains("On an NVIDIA H200, forward, f16: ") && said.contains("report.html"), "{said}");
    assert!((3..=6).contains(&said.lines().count()), "{said}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    assert!(read("report.html").contains("<h2>Measurements</h2>"));
    assert!(read("report.md").contains("\n## Measurements\n"));
    let none = msda(dir.path(), &["report", "."]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("got no JSON file"), "{}", text(&none.stderr));
}

/// In every build a missing GPU is refused with a hint.
#[test]
fn a_gpu_that_is_missing_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    inputs(dir.path());
    for wanted in [["--engine", "cuda@99"], ["--device", "cuda:99"]] {
        let run = msda(dir.path(), &[&["run", "in.safetensors", "--output", "o.npy"], &wanted[..]].concat());
        assert_eq!(run.status.code(), Some(1));
        let said = text(&run.stderr);
        assert!(said.contains("engine cuda@99") && said.contains("hint: "), "{said}");
        assert_eq!(said.contains("this build has no CUDA support"), !cfg!(feature = "cuda"), "{said}");
    }
}
