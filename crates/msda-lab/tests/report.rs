//! Reports of a realistic run, of runs with bad numbers, and of nothing.

use msda_lab::record::{
    Ceiling, Check, Clocks, Device, Gpu, GpuState, Machine, Measurement, Pass, Record, SCHEMA, Skipped,
    Summary, Work,
};
use msda_lab::report::{html, markdown, terminal, write};

const WORKLOADS: [(&str, &str, f64); 4] = [
    ("detr-encoder", "b2_q13294_h8_d32_l4_p4", 1.0),
    ("detr-decoder", "b2_q300_h8_d32_l4_p4", 0.03),
    ("mask2former-pixel", "b1_q21504_h8_d32_l3_p4", 0.62),
    ("small-tail", "b1_q77_h4_d16_l2_p3", 0.0011),
];

/// Engines with their time relative to the fastest.
const ENGINES: [(&str, f64); 4] =
    [("cpu-avx512", 1.0), ("cpu-avx2", 1.45), ("cpu-portable", 3.9), ("torch", 9.2)];

fn machine() -> Machine {
    Machine {
        cpu: "Example(R) Processor 9000 @ 2.70GHz".into(),
        cores: 2,
        memory_gib: 15.6,
        os: "linux x86_64".into(),
        isas: vec!["avx512".into(), "avx2".into(), "portable".into()],
        torch: Some("2.9.0".into()),
        gpu: None,
    }
}

fn record(measurements: Vec<Measurement>) -> Record {
    let ceilings = [("fma", 98.0), ("stream", 11.0), ("gather-l2", 62.0), ("gather-memory", 14.5)];
    Record {
        schema: SCHEMA,
        created: "2026-11-15T12:34:56Z".into(),
        version: "0.1.0".into(),
        command: "msda bench --threads 1,2 --dtype f32,f16,bf16".into(),
        machine: machine(),
        ceilings: [1, 2]
            .into_iter()
            .flat_map(|threads| {
                ceilings.map(|(name, rate)| Ceiling {
                    name: name.into(),
                    device: Device::Cpu,
                    threads,
                    rate: rate * threads as f64,
                })
            })
            .collect(),
        measurements,
        figures: Vec::new(),
        skipped: vec![
            Skipped { what: "cuda".into(), why: "no device found\nhint: install a driver".into() },
            Skipped {
                what: "torch f16 forward".into(),
                why: "grid_sample on the processor has no half-precision kernel in this version of torch; \
                      measure with f32 or bf16 instead"
                    .into(),
            },
        ],
    }
}

fn measurement(
    workload: &str,
    engine: &str,
    pass: Pass,
    dtype: &str,
    threads: usize,
    median: f64,
) -> Measurement {
    let (_, problem, size) = WORKLOADS.into_iter().find(|w| w.0 == workload).unwrap_or(WORKLOADS[0]);
    let backward = if pass == Pass::Backward { 2.0 } else { 1.0 };
    let width = if dtype == "f32" { 4.0 } else { 2.0 };
    let samples = 2.0 * 13294.0 * 8.0 * 16.0 * size;
    let gathered = samples * 4.0 * 32.0 * width * backward * if pass == Pass::Backward { 1.5 } else { 1.0 };
    Measurement {
        workload: workload.into(),
        problem: problem.into(),
        engine: engine.into(),
        pass,
        dtype: dtype.into(),
        threads,
        device: Device::Cpu,
        cold: false,
        kernel: None,
        host_us: None,
        time: Summary { median, min: median * 0.95, p10: median * 0.97, p90: median * 1.08, runs: 40 },
        work: Work {
            flops: samples * 4.0 * 32.0 * 2.0 * backward,
            gathered_bytes: gathered,
            compulsory_bytes: gathered / 20.0,
            floor_ms: gathered / (62.0 * threads as f64) / 1e6,
            bound: "gather".into(),
        },
        check: Check { max_error: 3.1e-6 * width, tolerance: 2.4e-5, compared: 1 << 20, inexact: false },
    }
}

/// Four workloads, four engines, both passes, three dtypes, one and two threads; torch has no f16.
fn realistic() -> Record {
    let mut all = Vec::new();
    for (at, (workload, _, size)) in WORKLOADS.into_iter().enumerate() {
        for pass in [Pass::Forward, Pass::Backward] {
            for dtype in ["f32", "f16", "bf16"] {
                for threads in [1, 2] {
                    for (engine, slow) in ENGINES {
                        if (engine, dtype) == ("torch", "f16") {
                            continue;
                        }
                        let half = if dtype == "f32" || engine == "torch" { 1.0 } else { 0.68 };
                        let scaling = if threads == 2 { 0.56 } else { 1.0 };
                        let backward = if pass == Pass::Backward { 3.4 } else { 1.0 };
                        let uneven = 1.0 + 0.17 * at as f64 + if engine == "cpu-avx2" { 0.06 } else { 0.0 };
                        // What is small for the engine is dominated by the framework's own costs.
                        let fixed = if engine == "torch" { 0.25 } else { 0.004 };
                        let median =
                            fixed + 39.0 * size * slow.powf(1.0 / uneven) * half * scaling * backward;
                        all.push(measurement(workload, engine, pass, dtype, threads, median));
                    }
                }
            }
        }
    }
    record(all)
}

/// Numbers and names that no run should have, and a report must survive.
fn hostile() -> Record {
    let mut all = Vec::new();
    for (i, bad) in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300, 1.0].into_iter().enumerate() {
        let mut m = measurement("<script>alert(1)</script>", "cpu|x", Pass::Forward, "f32", 1, bad);
        m.engine = format!("engine\"{i}'&");
        m.problem = "a | b\u{1b}[31m".into();
        m.work.flops = bad;
        m.work.floor_ms = 1.0 / bad;
        m.check.tolerance = bad;
        all.push(m);
    }
    let mut r = record(all);
    r.machine.memory_gib = f64::NAN;
    r.machine.cpu = "<img src=x onerror=alert(1)>".into();
    r.command = "msda bench '</code><script>'".into();
    r.skipped.push(Skipped { what: "a|b".into(), why: "</td><script>".into() });
    for (c, rate) in r.ceilings.iter_mut().zip([f64::NAN, 0.0, f64::INFINITY, -3.0]) {
        c.rate = rate;
    }
    r
}

fn cases() -> Vec<Vec<Record>> {
    let mut one = realistic();
    one.measurements.truncate(1);
    vec![
        vec![],
        vec![record(vec![])],
        vec![one],
        vec![realistic()],
        vec![hostile()],
        vec![with_gpu()],
        vec![realistic(), hostile(), record(vec![])],
    ]
}

/// The words of a text: runs of letters.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic())
}

#[test]
fn page_names_everything() {
    let page = html(&[realistic()]);
    for (workload, problem, _) in WORKLOADS {
        assert!(page.contains(workload) && page.contains(problem));
    }
    for (engine, _) in ENGINES {
        assert!(page.contains(engine));
    }
    for text in [
        "Roofline",
        "bf16",
        "2026-11-15T12:34:56Z",
        "Processor 9000",
        "msda bench --threads",
        "hint: install",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn page_is_complete_in_itself() {
    let page = html(&[realistic()]);
    for outside in ["http", "<script", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("name=\"viewport\"") && page.contains("prefers-color-scheme: dark"));
}

#[test]
fn page_has_numbers_only() {
    for records in cases() {
        let page = html(&records);
        let found = words(&page).find(|w| ["nan", "inf", "infinity"].contains(&w.to_lowercase().as_str()));
        assert_eq!(found, None);
    }
}

#[test]
fn page_escapes_what_records_say() {
    let page = html(&[hostile()]);
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains("engine&quot;0&#39;&amp;"));
    assert!(!page.contains('\u{1b}'));
}

#[test]
fn page_tags_are_balanced() {
    for records in cases() {
        let page = html(&records);
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1) {
            let inside = tag.split('>').next().unwrap();
            let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap();
            if inside.starts_with('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !inside.ends_with('/') && !["!doctype", "meta", "br"].contains(&name) {
                open.push(name);
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }
}

#[test]
fn plots_say_what_they_show() {
    let page = html(&[realistic()]);
    let plots = page.matches("role=\"img\" aria-label=\"").count();
    // Bars for each workload and pass; speed-up, roofline and floor for each pass.
    assert_eq!(plots, WORKLOADS.len() * 2 + 3 * 2);
    assert_eq!(page.matches("<svg").count() - page.matches("class=\"swatch\"").count(), plots);
}

#[test]
fn markdown_tables_are_rectangular() {
    for records in cases() {
        let text = markdown(&records);
        let mut columns = None;
        for line in text.lines() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            let count = line.replace("\\|", "").matches('|').count();
            assert_eq!(*columns.get_or_insert(count), count, "{line}");
        }
        // Indented text is code, which Markdown shows as it is.
        assert!(!text.lines().any(|l| l.contains("<script") && !l.starts_with("    ")));
        assert!(!text.contains("NaN"));
    }
}

#[test]
fn terminal_keeps_within_100_columns() {
    let text = terminal(&[realistic()], false);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    for text in cases().iter().map(|records| terminal(records, false)) {
        assert!(!text.contains('\u{1b}') && !text.contains("NaN"));
    }
    assert!(terminal(&[realistic()], true).contains("\u{1b}[1m"));
    assert!(text.contains("no device found") && text.contains("detr-encoder forward"));
}

#[test]
fn torch_of_the_same_dtype_is_the_baseline() {
    let slow = |engine, dtype, ms| measurement("detr-encoder", engine, Pass::Forward, dtype, 2, ms);
    let text = markdown(&[record(vec![
        slow("cpu-avx2", "f32", 2.0),
        slow("cpu-avx2", "bf16", 1.0),
        slow("cpu-avx2", "f16", 5.0),
        slow("torch", "f32", 8.0),
        slow("torch", "bf16", 10.0),
    ])]);
    assert!(text.contains("| f32 | 2 | cpu-avx2 | 2.00 | 1.94..2.16 | 4.00x | torch f32 |"), "{text}");
    assert!(text.contains("| bf16 | 2 | cpu-avx2 | 1.00 | 0.970..1.08 | 10.0x | torch bf16 |"));
    assert!(text.contains("| f16 | 2 | cpu-avx2 | 5.00 | 4.85..5.40 | 1.60x | torch f32 |"));
    assert!(text.contains("Speed-up over torch of the same dtype (f32, bf16); torch f32 (f16)"));
    assert!(text.contains("**Forward: up to 10.0x the speed of torch**"));
    assert!(text.contains("**Nothing slower than torch**: of 3 comparisons"));
}

#[test]
fn the_slowest_engine_stands_in_for_torch() {
    let time = |engine, ms| measurement("detr-encoder", engine, Pass::Forward, "f32", 2, ms);
    let text = markdown(&[record(vec![time("cpu-avx2", 2.0), time("cpu-portable", 5.0)])]);
    assert!(text.contains("| 2.50x | cpu-portable f32, the slowest |"), "{text}");
    assert!(text.contains("| f32 | 2 | cpu-portable | 5.00 | 4.85..5.40 | base |"));
    assert!(text.contains("torch was not measured"));
}

#[test]
fn losses_and_errors_are_reported() {
    let time = |engine, ms| measurement("detr-encoder", engine, Pass::Forward, "f32", 1, ms);
    let mut wrong = time("cpu-avx512", 1.0);
    wrong.check.max_error = 1.0;
    let text = markdown(&[record(vec![time("cpu-portable", 10.0), wrong, time("torch", 5.0)])]);
    assert!(text.contains("**Slower than torch in 1 of 2 comparisons**"), "{text}");
    assert!(text.contains("**1 of 3 results outside the tolerance**"));
    assert!(text.contains("up to 0.500x the speed of torch"), "a wrong result wins nothing");
}

#[test]
fn both_files_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let written = write(&[realistic()], &folder.path().join("deep/report")).unwrap();
    assert!(written.html.ends_with("deep/report/report.html") && written.markdown.ends_with("report.md"));
    assert!(std::fs::read_to_string(written.html).unwrap().starts_with("<!doctype html>"));
    assert!(std::fs::read_to_string(written.markdown).unwrap().starts_with("# "));
}

/// A run on the processor and on the GPU, with peers and an inexact one.
fn with_gpu() -> Record {
    let on_gpu = |engine: &str, dtype: &str, pass, ms| {
        let m = measurement("detr-encoder", engine, pass, dtype, 1, ms);
        let work = Work { floor_ms: 0.0, bound: "none".into(), ..m.work };
        Measurement { device: Device::Cuda, cold: true, work, ..m }
    };
    let mut all = vec![
        measurement("detr-encoder", "cpu-avx512", Pass::Forward, "f32", 2, 8.0),
        measurement("detr-encoder", "torch", Pass::Forward, "f32", 2, 80.0),
    ];
    for pass in [Pass::Forward, Pass::Backward] {
        all.push(Measurement { kernel: Some("rows_d32".into()), ..on_gpu("cuda", "f32", pass, 0.02) });
        all.push(on_gpu("peer:original", "f32", pass, 0.05));
        all.push(on_gpu("peer:mmcv", "f32", pass, 0.04));
        all.push(on_gpu("torch-cuda", "f32", pass, 0.6));
        let mut narrow = on_gpu("torch-cuda", "f16", pass, 0.5);
        narrow.check = Check { max_error: 12.0 * 2.4e-5, inexact: true, ..narrow.check };
        all.push(narrow);
    }
    let mut record = record(all);
    let state = |sm, watts| GpuState {
        clocks_mhz: Clocks { sm: Some(sm), memory: Some(3201) },
        temperature_c: Some(31),
        power_w: Some(watts),
    };
    record.machine.gpu = Some(Gpu {
        name: "Example GPU 200".into(),
        driver: "580.10".into(),
        cuda: "13.0".into(),
        memory_bytes: 141 << 30,
        sms: Some(132),
        shared_per_block: Some(232_448),
        l2_bytes: Some(60 << 20),
        before: Some(state(345, 76.4)),
        after: Some(state(1980, 312.6)),
    });
    record
}

#[test]
fn the_gpu_is_described_and_compared_with_itself() {
    let records = [with_gpu()];
    let text = markdown(&records);
    let line = "Example GPU 200, 141 GiB, 132 multiprocessors, driver 580.10, CUDA 13.0, \
                before: 345 MHz memory 3201 MHz 31 C 76 W, after: 1980 MHz memory 3201 MHz 31 C 313 W";
    for expected in [
        line,
        "### detr-encoder forward\n",
        "### detr-encoder forward on the GPU, cold caches\n",
        "Speed-up over torch-cuda of the same dtype\n",
        "| f32 | 2 | cpu-avx512 | 8.00 | 7.76..8.64 | 10.0x | torch f32 |",
        "| f32 | - | cuda | 0.0200 | 0.0194..0.0216 | 30.0x | torch-cuda f32 |",
        "| f32 | - | peer:mmcv | 0.0400 | 0.0388..0.0432 | 15.0x | torch-cuda f32 |",
        "| rows_d32 |",
        "| ~12 |",
        "**Forward: up to 10.0x the speed of torch**",
        "**Forward on the GPU, cold caches: up to 30.0x the speed of torch**",
        "**Faster than the fastest peer in 2 of 2 comparisons on the GPU, cold caches**",
        "2.00x (detr-encoder forward, cuda f32 and peer:mmcv f32)",
        "**All 10 results within the tolerance**",
        "**2 results not held to the tolerance**",
    ] {
        assert!(text.contains(expected), "{expected}\n\n{text}");
    }
    let shown = terminal(&records, false);
    assert!(shown.contains("Example GPU 200") && shown.lines().all(|l| l.chars().count() <= 100), "{shown}");
    let page = html(&records);
    assert!(
        page.contains("Example GPU 200") && page.contains("rows_d32") && !page.contains("class=\"wrong\"")
    );
    let back = Record::parse(&serde_json::to_string(&records[0]).unwrap()).unwrap();
    assert_eq!(back, records[0]);
}

#[test]
fn without_torch_the_gpu_has_no_baseline() {
    let mut record = with_gpu();
    record.measurements.retain(|m| m.engine != "torch-cuda");
    let text = markdown(std::slice::from_ref(&record));
    assert!(text.contains("Speed-up over nothing: torch-cuda was not measured"), "{text}");
    assert!(text.contains("| f32 | - | cuda | 0.0200 | 0.0194..0.0216 | - | - |"), "{text}");
    record.measurements.retain(|m| m.device == Device::Cuda);
    assert!(html(&[record]).contains("No measurement on the processor"));
}
