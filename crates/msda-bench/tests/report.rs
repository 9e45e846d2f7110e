//! Reports on realistic runs, on runs with invalid numbers, and on no run.

mod fixtures;

use fixtures::{ENGINES, WORKLOADS, hostile, measurement, realistic, record, with_gpu};
use msda_bench::record::{Load, Measurement, Pass, Record, Skipped};
use msda_bench::report::page::Section;
use msda_bench::report::{self, Extension, Screen, summary, write};

fn html(records: &[Record]) -> String {
    report::html(records, &[]).unwrap()
}

fn markdown(records: &[Record]) -> String {
    report::markdown(records, &[]).unwrap()
}

fn terminal(records: &[Record]) -> String {
    report::terminal(records, Screen::default())
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
        "Ceilings of the machine",
        "bf16",
        "2026-11-15 12:34:56 UTC",
        "Processor 9000",
        "msda bench --threads",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("no device found<br>hint: install"));
}

#[test]
fn page_is_complete_in_itself() {
    let page = html(&[realistic()]);
    for outside in ["http", "<script", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("name=\"viewport\"") && page.contains("color-scheme: light dark"));
}

#[test]
fn pages_and_texts_are_well_formed() {
    for records in cases() {
        fixtures::check_page(&html(&records));
        let text = markdown(&records);
        fixtures::check_markdown(&text);
        // Indented text is code, which Markdown shows as it is.
        assert!(!text.lines().any(|l| l.contains("<script") && !l.starts_with("    ")));
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
fn every_plot_has_a_title_for_screen_readers() {
    let page = html(&[realistic()]);
    let charts = page.matches("<title>").count() - 1;
    assert!(charts >= 4, "{charts}");
    assert_eq!(page.matches("<svg").count(), charts);
}

#[test]
fn text_keeps_within_the_width() {
    for width in [60, 80, 120] {
        let text = report::terminal(&[realistic()], Screen { width, color: false });
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{line}");
        }
        // The comparison is never dropped, the spread of the runs is.
        assert!(text.contains("over msda") && text.contains("over msda: "), "{text}");
        assert_eq!(text.contains("p10..p90"), width == 120, "{text}");
        assert!(!text.contains("too wide to show: p10"), "{text}");
    }
    for text in cases().iter().map(|records| terminal(records)) {
        assert!(!text.contains('\u{1b}') && !text.contains("NaN"));
    }
    assert!(report::terminal(&[realistic()], Screen { width: 80, color: true }).contains("\u{1b}[1m"));
    let text = terminal(&[realistic()]);
    assert!(text.contains("no device found\n  hint: install a driver"), "{text}");
    assert!(text.contains("detr-encoder forward\n"), "{text}");
}

/// The page, the text and the terminal have the same tables.
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
        time("plain", "f32", 1, 4.0),
    ]);
    record.skipped.clear();
    let all = std::slice::from_ref(&record);
    let (text, long, page) = (terminal(all), markdown(all), html(all));
    for (start, expected) in [
        ("f16 cpu-avx2", "2 1.00 ms 1.00x"),
        ("f16 plain", "2 20.0 ms 20.0x"),
        ("f32 plain", "1 4.00 ms -"), // msda was not measured with one thread
        ("f32 torch", "2 30.0 ms 15.0x"),
    ] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = format!("{start} {expected}");
        assert!(text.lines().any(|line| words(line).starts_with(&shown)), "{shown}: {text}");
        let cells = shown.replace(" ms", "_ms");
        let cells: Vec<String> = cells.split(' ').map(|cell| cell.replace("_ms", " ms")).collect();
        assert!(long.contains(&cells.join(" | ")), "{shown}: {long}");
        assert!(page.contains(&cells[2..].iter().map(|c| format!("<td>{c}</td>")).collect::<String>()));
    }
    assert_eq!(report::advice(&record), None);
    record.skipped.push(Skipped { what: "cuda".into(), why: "no NVIDIA driver was found".into() });
    assert!(report::advice(&record).is_some_and(|text| text.contains("NVRTC") && !text.contains("torch")));
}

/// Where Python measured `msda` beside torch and peers, these are compared with `msda` alone.
#[test]
fn engines_are_compared_with_ours_of_the_same_rounds() {
    let times = [("cpu-avx512", 2.0), ("plain", 20.0), ("msda", 4.0), ("torch", 8.0)];
    let with = headlines(&[record(timed("detr-encoder", "f32", &times))]).concat();
    assert!(with.contains("2.0 times faster than torch") && !with.contains("plain"), "{with}");
    let text = terminal(&[record(timed("detr-encoder", "f32", &times))]);
    let over = |engine: &str, ratio: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("f32    {engine} ")));
        line.is_some_and(|line| line.contains(ratio))
    };
    assert!(over("torch", "2.00x") && over("plain", "10.0x") && over("msda", "1.00x"), "{text}");
    let without = headlines(&[record(timed("detr-encoder", "f32", &[times[0], times[3]]))]).concat();
    assert!(without.contains("4.0 times faster than torch"), "{without}");
}

/// A record with forward times of engines on a workload.
fn timed(workload: &str, dtype: &str, times: &[(&str, f64)]) -> Vec<Measurement> {
    let one = |&(engine, ms): &(&str, f64)| measurement(workload, engine, Pass::Forward, dtype, 2, ms);
    times.iter().map(one).collect()
}

/// The lines of the summary that state a result.
fn headlines(records: &[Record]) -> Vec<String> {
    summary(records).split_off(1)
}

#[test]
fn the_headline_compares_ours_with_the_fastest_other_of_one_run_and_dtype() {
    type Times<'a> = &'a [(&'a str, f64)];
    let run = |day: u32, all: &[(&str, &str, Times<'_>)]| Record {
        created: format!("2026-11-{day}T00:00:00Z"),
        ..record(all.iter().flat_map(|(workload, dtype, times)| timed(workload, dtype, times)).collect())
    };
    let detr = "detr-encoder";
    let (ours, torch, mmcv) = (("cpu-avx512", 2.0), ("torch", 8.0), ("peer:mmcv", 60.0));
    let synthetic = ("seed-uniform", "f32", &[("cpu-avx512", 1.0), ("torch", 900.0)][..]);
    let model = (detr, "f32", &[ours, torch][..]);
    for (runs, expected) in [
        // f16 has no other implementation.
        (vec![run(15, &[model, (detr, "f16", &[ours])])], "forward, f32: 4.0 times faster than torch."),
        // Workloads of models count if there are any.
        (
            vec![run(15, &[model, ("rf-detr-decoder", "f32", &[ours, ("torch", 5.0)]), synthetic])],
            ": 2.5 to 4.0 times faster than torch.",
        ),
        (vec![run(15, &[synthetic])], "forward, f32: 900 times faster than torch."),
        // Times of two runs are never divided.
        (vec![run(15, &[(detr, "f32", &[ours])]), run(15, &[(detr, "f32", &[torch])])], ""),
        // The run with most implementations counts, then the newest.
        (
            vec![
                run(17, &[(detr, "f32", &[ours, ("torch", 99.0)])]),
                run(16, &[(detr, "f32", &[ours, ("torch", 80.0), mmcv])]),
                run(15, &[(detr, "f32", &[ours, ("torch", 99.0), mmcv])]),
            ],
            "30 times faster than the fastest of mmcv, torch, 40 times faster than torch.",
        ),
    ] {
        let lines = headlines(&runs);
        assert_eq!(lines.len(), usize::from(!expected.is_empty()), "{lines:?}");
        assert!(lines.iter().all(|line| line.ends_with(expected)), "{lines:?}");
    }
    // Without a model's workload the others have charts.
    let page = html(&[run(15, &[synthetic])]);
    assert!(page.contains("None of these workloads is taken from a model"));
    assert!(page.contains("seed-uniform forward, f32</text>"));
}

#[test]
fn a_wrong_result_is_no_speed_up() {
    let mut all = timed("detr-encoder", "f32", &[("cpu-avx512", 2.0), ("torch", 8.0), ("peer:mmcv", 3.0)]);
    all[2].check.max_error = 1.0;
    // Not held to the tolerance, but f32 has nothing to round.
    all[2].check.inexact = true;
    let run = record(all);
    let lines = headlines(std::slice::from_ref(&run));
    assert!(lines[0].ends_with("forward, f32: 4.0 times faster than torch."), "{lines:?}");
    let text = markdown(std::slice::from_ref(&run));
    assert!(text.contains("| peer:mmcv | failed check | - |"), "{text}");
    assert!(text.contains("**1 of 3 results failed their check**: mmcv forward"), "{text}");
    assert!(!text.contains("divided by ours"), "Markdown has no charts: {text}");
    assert!(
        html(std::slice::from_ref(&run)).contains(">mmcv</text>")
            && html(&[run]).contains(">wrong result</text>")
    );
}

#[test]
fn rounding_to_16_bits_is_not_wrong_unless_f32_is_wrong_too() {
    let mut all = timed("detr-encoder", "f16", &[("cpu-avx512", 1.0), ("peer:mmcv", 3.0)]);
    all[1].check.max_error = 40.0 * all[1].check.tolerance;
    all[1].check.inexact = true;
    let rounded = record(all.clone());
    assert!(headlines(&[rounded])[0].contains("3.0 times faster than mmcv"));
    let mut wide = timed("detr-encoder", "f32", &[("peer:mmcv", 5.0)]);
    wide[0].check = all[1].check;
    all.extend(wide);
    assert_eq!(headlines(&[record(all.clone())]), Vec::<String>::new());
    // Far too large an error for rounding.
    all.truncate(2);
    all[1].check.max_error *= 10.0;
    assert_eq!(headlines(&[record(all)]), Vec::<String>::new());
}

#[test]
fn losses_are_reported() {
    let run = record(timed("detr-encoder", "f32", &[("cpu-avx512", 10.0), ("torch", 5.0)]));
    let lines = headlines(std::slice::from_ref(&run));
    assert!(lines[0].ends_with(": 2.0 times slower than torch."), "{lines:?}");
    let text = markdown(&[run]);
    assert!(text.contains("**Slower in 1 of 1 comparison**"), "{text}");
    assert!(text.contains("torch takes 0.500x our time"), "{text}");
}

#[test]
fn a_busy_machine_is_a_warning() {
    let mut run = record(timed("detr-encoder", "f32", &[("cpu-avx512", 2.0), ("torch", 8.0)]));
    let warned = |run: &Record| html(std::slice::from_ref(run)).contains("busy machine");
    assert!(!warned(&run));
    run.machine.load = Some(Load { per_core: 0.2, busy: false });
    assert!(!warned(&run));
    run.machine.load = Some(Load { per_core: 1.75, busy: true });
    let runs = [run];
    let page = html(&runs);
    let (top, rest) = page.split_once("<h2>").unwrap();
    assert!(top.contains("1 run made on a busy machine") && rest.contains("load 1.75 per core"));
    assert_eq!(page.matches("busy").count(), 1, "the warning stands once");
    assert!(markdown(&runs).contains("**Warning**: 1 run made on a busy machine"));
    assert!(terminal(&runs).contains("made on a busy machine"));
    let back = Record::parse(&serde_json::to_string(&runs[0]).unwrap()).unwrap();
    assert_eq!(back, runs[0]);
}

#[test]
fn both_files_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let [page, text] = write(&[realistic()], &[], &folder.path().join("deep/report")).unwrap();
    assert!(page.ends_with("deep/report/report.html") && text.ends_with("report.md"));
    assert!(std::fs::read_to_string(page).unwrap().starts_with("<!doctype html>"));
    assert!(std::fs::read_to_string(text).unwrap().starts_with("# "));
}

#[test]
fn the_gpu_is_described_and_compared_with_itself() {
    let records = [with_gpu()];
    let text = markdown(&records);
    for expected in [
        "**Example GPU 200, forward, f32**: 2.0 times faster than the fastest of mmcv, original, torch, 30 times \
         faster than torch.",
        "**Example GPU 200, backward, f32**: 2.0 times faster than the fastest of mmcv, original, torch, 30 times \
         faster than torch.",
        "forward, f32**: 10 times faster than torch.",
        "### Example GPU 200\n\n> 132 SMs, 141 GiB, driver 580.10,",
        "before: 345 MHz memory 3201 MHz 31 C 76 W, after: 1980 MHz memory 3201 MHz 31 C 313 W",
        "**detr-encoder backward on the GPU, cold caches**",
        // Microseconds on the GPU, milliseconds on the CPU.
        "| f32 | cuda | 20.0 µs | 1.00x | 19.4..21.6 |",
        "| f32 | peer:mmcv | 40.0 µs | 2.00x |",
        "| f32 | torch-cuda | 600 µs | 30.0x |",
        "| f16 | torch-cuda | 500 µs | - |",
        "| f32 | torch | 80.0 ms | 10.0x |",
        "**None of 12 results failed its check**: 2 outside the tolerance because of 16-bit rounding",
    ] {
        assert!(text.contains(expected), "{expected}\n\n{text}");
    }
    assert!(html(&records).contains("detr-encoder backward, f32</text>"));
    let shown = terminal(&records);
    assert!(shown.contains("detr-encoder backward on the GPU, cold caches"), "{shown}");
    assert!(shown.contains("Example GPU 200") && shown.lines().all(|l| l.chars().count() <= 80), "{shown}");
    let back = Record::parse(&serde_json::to_string(&records[0]).unwrap()).unwrap();
    assert_eq!(back, records[0]);
}

#[test]
fn without_others_there_is_no_comparison() {
    let mut record = with_gpu();
    record.measurements.retain(|m| m.engine == "cuda");
    let text = markdown(&[record]);
    assert!(text.contains("| f32 | cuda | 20.0 µs | 1.00x | 19.4..21.6 |"), "{text}");
    assert!(text.contains("`msda bench --workload detr-encoder` measures it"), "{text}");
}

#[test]
fn the_newest_run_is_open_and_older_ones_are_closed() {
    let mut old = realistic();
    old.command = "msda bench --old".into();
    old.created = "2026-10-01T00:00:00Z".into();
    let page = html(&[old, realistic()]);
    let (_, runs) = page.split_once("<h2>Measurements</h2>").unwrap();
    let open: Vec<&str> = runs.split("<details open>\n<summary>").skip(1).map(|r| &r[..19]).collect();
    assert_eq!(open, ["2026-11-15 12:34:56"]);
    assert!(page.contains("<details>\n<summary>2026-10-01 00:00:00 UTC"));
}

/// The sections of a page, in order.
fn titles(page: &str) -> Vec<&str> {
    page.split("<h2>").skip(1).filter_map(|rest| rest.split("</h2>").next()).collect()
}

#[test]
fn sections_without_data_are_left_out() {
    assert_eq!(titles(&html(&[])), Vec::<&str>::new());
    assert_eq!(titles(&html(&[realistic()])), ["Measurements", "Workloads"]);
    let top = html(&[]);
    assert!(top.contains("msda computes multi-scale deformable attention"), "{top}");
}

/// Adds a section, and shows one engine itself.
struct More;

impl Extension for More {
    fn shows(&self, engine: &str) -> bool {
        engine == "peer:mmcv"
    }
    fn sections(&self, _records: &[Record]) -> anyhow::Result<Vec<Section>> {
        Ok(vec![Section { title: "More", about: "more".into(), parts: Vec::new() }])
    }
}

#[test]
fn an_extension_adds_sections_at_the_end_and_shows_its_engines_itself() {
    let page = report::html(&[with_gpu()], &[Box::new(More)]).unwrap();
    assert_eq!(titles(&page), ["Measurements", "Workloads", "More"]);
    assert!(page.contains("peer:original") && !page.contains("peer:mmcv"));
}

#[test]
fn a_kernel_selected_by_name_is_shown_and_not_in_the_headline() {
    let mut run = with_gpu();
    let mut pinned = run.measurements.iter().find(|m| m.engine == "cuda").unwrap().clone();
    pinned.engine = "cuda:some:kernel".into();
    pinned.time.median = 0.001;
    run.measurements.push(pinned);
    assert!(headlines(std::slice::from_ref(&run))[0].contains(": 2.0 times faster than the fastest of mmcv"));
    assert!(markdown(&[run]).contains("| cuda:some:kernel |"));
}

/// The picture of the README is what the records say.
#[test]
fn the_picture_of_the_readme_is_drawn_from_records() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let load = |name: &str| Record::load(&root.join("records/h200").join(name)).unwrap();
    let records = ["2026-11-18-peers-detr-encoder.json", "2026-11-18-peers-rt-detr-decoder.json"].map(load);
    let picture = report::picture(&records).unwrap();
    let committed = std::fs::read_to_string(root.join("docs/speed.svg")).unwrap();
    assert!(picture == committed, "hint: cargo run -- report RECORD RECORD --picture docs/speed.svg");
    assert!(report::picture(&[record(Vec::new())]).is_err());
}
