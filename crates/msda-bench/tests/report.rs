//! Reports of a realistic run, of runs with bad numbers, and of nothing.

mod fixtures;

use fixtures::{ENGINES, WORKLOADS, hostile, measurement, realistic, record, with_gpu};
use msda_bench::record::{Ceiling, Device, Pass, Record, Skipped};
use msda_bench::report::page::{Finding, Section};
use msda_bench::report::{self, Added, Extension, Screen, terminal, write};

fn html(records: &[Record]) -> String {
    report::html(records, &[]).unwrap()
}

fn markdown(records: &[Record]) -> String {
    report::markdown(records, &[]).unwrap()
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
    let plots = page.matches("role=\"img\">\n<title>").count();
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
fn tables_keep_within_the_width() {
    let text = terminal(&[realistic()], false);
    for width in [60, 80, 120] {
        let text = Screen { width, color: false }.tables(&[realistic()]);
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{line}");
        }
        // The comparison is never dropped, the spread of the runs is.
        assert!(text.contains("over torch"), "{text}");
        assert_eq!(text.contains("p10..p90"), width == 120, "{text}");
    }
    for text in cases().iter().map(|records| terminal(records, false)) {
        assert!(!text.contains('\u{1b}') && !text.contains("NaN"));
    }
    assert!(terminal(&[realistic()], true).contains("\u{1b}[1m"));
    assert!(text.contains("no device found") && text.contains("detr-encoder forward"));
}

#[test]
fn tables_compare_the_same_dtype_and_threads() {
    let time =
        |engine, dtype, threads, ms| measurement("detr-encoder", engine, Pass::Forward, dtype, threads, ms);
    let mut record = record(vec![
        time("cpu-avx2", "f32", 2, 2.0),
        time("plain", "f32", 2, 12.0),
        time("torch", "f32", 2, 30.0),
        time("cpu-avx2", "f16", 2, 1.0),
        time("plain", "f16", 2, 20.0),
        time("cpu-avx2", "f32", 1, 4.0),
    ]);
    record.skipped.clear();
    let text = terminal(std::slice::from_ref(&record), false);
    let line =
        |start: &str| text.lines().find(|l| l.starts_with(start)).map(str::to_owned).unwrap_or_default();
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let of = |start: &str| words(line(start))[2..7].join(" ");
    assert_eq!(of("f16    cpu-avx2"), "2 1.00 ms 20.0x -", "{text}");
    assert_eq!(of("f32    plain"), "2 12.0 ms 1.00x 2.50x", "{text}");
    assert_eq!(of("f32    cpu-avx2        1"), "1 4.00 ms - -", "no baseline has one thread: {text}");
    assert_eq!(
        report::verdict(&record),
        [
            "cpu-avx2 is 6.00x as fast forward as the plain loop (f32, 2 threads). It is 15.0x as fast forward as torch."
        ]
    );
    assert_eq!(report::advice(&record), None);
    record.skipped.push(Skipped { what: "cuda".into(), why: "no NVIDIA driver was found".into() });
    assert!(report::advice(&record).is_some_and(|text| text.contains("NVRTC") && !text.contains("torch")));
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
    let written = write(&[realistic()], &[], &folder.path().join("deep/report")).unwrap();
    assert!(written.html.ends_with("deep/report/report.html") && written.markdown.ends_with("report.md"));
    assert!(std::fs::read_to_string(written.html).unwrap().starts_with("<!doctype html>"));
    assert!(std::fs::read_to_string(written.markdown).unwrap().starts_with("# "));
}

#[test]
fn the_gpu_is_described_and_compared_with_itself() {
    let records = [with_gpu()];
    let text = markdown(&records);
    let line = "Example GPU 200, 141 GiB, 132 multiprocessors, driver 580.10, CUDA 13.0, \
                before: 345 MHz memory 3201 MHz 31 C 76 W, after: 1980 MHz memory 3201 MHz 31 C 313 W";
    for expected in [
        line,
        "#### detr-encoder forward\n",
        "#### detr-encoder forward on the GPU, cold caches\n",
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
    assert!(shown.contains("Example GPU 200") && shown.lines().all(|l| l.chars().count() <= 80), "{shown}");
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
    assert!(!html(&[record]).contains("Measurements with"), "no roofline of the processor");
}

/// The sections of a page, in order.
fn titles(page: &str) -> Vec<&str> {
    page.split("<h2>").skip(1).filter_map(|rest| rest.split("</h2>").next()).collect()
}

#[test]
fn a_section_is_there_where_its_data_is() {
    assert_eq!(titles(&html(&[])), ["Summary"]);
    assert_eq!(titles(&html(&[realistic()])), ["Summary", "Workloads", "Roofline", "Left out"]);
    let text = markdown(&[realistic()]);
    assert!(text.contains("`msda bench --device cuda`"), "{text}");
}

/// Adds a section, a finding, a ceiling and a hint, and shows one engine itself.
struct More;

impl Extension for More {
    fn shows(&self, engine: &str) -> bool {
        engine == "peer:mmcv"
    }
    fn ceilings(&self, _records: &[Record], machine: &str) -> Vec<Ceiling> {
        assert_eq!(machine, "Example GPU 200");
        vec![Ceiling { name: "fma-x".into(), device: Device::Cuda, threads: 1, rate: 5e4 }]
    }
    fn add(&self, _records: &[Record]) -> anyhow::Result<Added> {
        Ok(Added {
            findings: vec![Finding { lead: "A finding of more".into(), text: "and why".into() }],
            sections: vec![Section { title: "More", about: "more".into(), parts: Vec::new() }],
            missing: vec![("something".into(), "msda something".into())],
        })
    }
}

#[test]
fn an_extension_adds_sections_and_shows_its_engines_itself() {
    let page = report::html(&[with_gpu()], &[Box::new(More)]).unwrap();
    assert_eq!(titles(&page), ["Summary", "Workloads", "Roofline", "More", "Left out"]);
    assert!(page.contains("fma-x") && page.contains("<code>msda something</code>"));
    let text = report::markdown(&[with_gpu()], &[Box::new(More)]).unwrap();
    assert!(text.contains("**A finding of more**: and why"), "{text}");
    assert!(!text.contains("| peer:mmcv |") && text.contains("| peer:original |"), "{text}");
}

#[test]
fn a_kernel_pinned_by_name_is_shown_and_wins_nothing() {
    let mut run = with_gpu();
    let mut pinned = run.measurements.iter().find(|m| m.engine == "cuda").unwrap().clone();
    pinned.engine = "cuda:some:kernel".into();
    pinned.time.median = 0.001;
    run.measurements.push(pinned);
    let text = markdown(&[run]);
    assert!(text.contains("| cuda:some:kernel |"), "{text}");
    assert!(text.contains("**Forward on the GPU, cold caches: up to 30.0x the speed of torch**"), "{text}");
}

#[test]
fn no_plot_is_empty_and_no_coordinate_is_outside() {
    for records in cases() {
        let page = html(&records);
        for plot in page.split("role=\"img\">").skip(1).map(|rest| rest.split("</svg>").next().unwrap()) {
            let marks = ["<rect", "<path", "<line"].iter().map(|m| plot.matches(m).count()).sum::<usize>();
            assert!(marks > 0 && !plot.contains("=\"-"), "{plot}");
        }
    }
}
