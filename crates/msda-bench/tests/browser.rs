//! The page in a real browser: nothing is cut, covered, empty, illegible or wider than the screen.

mod fixtures;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use msda_bench::record::{Record, sources};
use msda_bench::report;

/// The widths of a phone and of a desktop screen.
const WIDTHS: [u32; 2] = [360, 1280];

/// A Chromium: `MSDA_CHROMIUM`, or one on the path.
fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("MSDA_CHROMIUM").map(PathBuf::from);
    let usual = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
    named.into_iter().chain(usual).find(|program| {
        let mut version = Command::new(program);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    })
}

/// What the browser inspected, and the faults that it found.
struct Seen {
    looked: Vec<String>,
    faults: Vec<String>,
}

/// Inspects a page in all widths and both colour schemes. None if there is no browser.
fn look(name: &str, page: &str) -> Option<Seen> {
    let Some(program) = browser() else {
        println!("skipped: no Chromium\nhint: MSDA_CHROMIUM names one");
        return None;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&folder).unwrap();
    // Kept for people.
    std::fs::write(folder.join(format!("{name}.html")), page).unwrap();
    let mut frames = String::new();
    for (width, scheme) in WIDTHS.into_iter().flat_map(|w| ["light", "dark"].map(|s| (w, s))) {
        let inside = page.replace('&', "&amp;").replace('"', "&quot;");
        frames += &format!(
            "<iframe data-name=\"{width} {scheme}\" data-scheme=\"{scheme}\" width=\"{width}\" height=\"800\" \
             style=\"color-scheme: {scheme}; border: 0\" srcdoc=\"{inside}\"></iframe>\n"
        );
    }
    let harness = folder.join(format!("{name}-harness.html"));
    let script = include_str!("browser/inspect.js");
    let text = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<body>\n{frames}<script>\n{script}</script>\n</body>\n"
    );
    std::fs::write(&harness, text).unwrap();
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .args(["--virtual-time-budget=20000", "--window-size=1400,900"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", harness.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let lines = |id: &str| -> Vec<String> {
        let (_, rest) = dom
            .split_once(&format!("<pre id=\"{id}\">"))
            .unwrap_or_else(|| panic!("{dom}\n{}", String::from_utf8_lossy(&output.stderr)));
        let text = rest.split("</pre>").next().unwrap_or_default();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    Some(Seen { looked: lines("looked"), faults: lines("faults") })
}

/// Inspects a page. It must have at least this many plots and no fault.
fn is_fine(name: &str, page: &str, plots: usize) {
    let Some(seen) = look(name, page) else { return };
    let count = page.matches("role=\"img\"").count();
    assert!(count >= plots, "{count}");
    let expected = WIDTHS
        .into_iter()
        .flat_map(|w| ["light", "dark"].map(|scheme| format!("{w} {scheme}: {count} plots, {w} px")));
    assert_eq!(seen.looked, expected.collect::<Vec<_>>());
    assert!(seen.faults.is_empty(), "{:#?}", seen.faults);
}
fn page(records: &[Record]) -> String {
    report::html(records, &[]).unwrap()
}

#[test]
fn a_page_of_measurements_is_fine() {
    is_fine("measurements", &page(&[fixtures::realistic(), fixtures::with_gpu()]), 8);
}

#[test]
fn a_page_of_the_committed_records_is_fine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let records: Vec<Record> = sources(&[folder]).unwrap().into_iter().map(|s| s.record).collect();
    is_fine("committed", &page(&records), 10);
}

#[test]
fn a_page_of_bad_numbers_and_a_page_of_nothing_are_fine() {
    is_fine("hostile", &page(&[fixtures::hostile()]), 1);
    is_fine("nothing", &page(&[]), 0);
}

#[test]
fn a_broken_page_is_noticed() {
    let plot = |inside: &str| {
        format!(
            "<svg viewBox=\"0 0 100 50\" role=\"img\" style=\"display: block; width: 300px; font-size: 11px\">\
             <title>t</title>{inside}</svg>"
        )
    };
    let rect = "<rect x=\"0\" y=\"0\" width=\"9\" height=\"9\"/>";
    for (kind, body) in [
        ("wide", "<div style=\"width: 2000px; height: 9px\"></div>".to_owned()),
        ("text", "<p>it takes NaN ms</p>".to_owned()),
        ("text", "<p>it takes inf ms</p>".to_owned()),
        ("text", "<p>a bad \u{fffd} letter</p>".to_owned()),
        ("contrast", "<p style=\"color: #888888; background: #999999\">hard to read</p>".to_owned()),
        (
            "column",
            "<div class=\"box\" style=\"overflow-x: auto; width: 50px\"><table><tr><td>a</td>\
             <td><div style=\"width: 300px\">b</div></td></tr></table></div>"
                .to_owned(),
        ),
        ("empty", plot("<text x=\"9\" y=\"20\">no mark</text>")),
        ("outside", plot("<rect x=\"90\" y=\"0\" width=\"90\" height=\"9\"/>")),
        ("title", plot(rect).replace("<title>t</title>", "")),
        ("size", plot(rect).replace("300px", "20px")),
        ("small", plot(&format!("{rect}<text x=\"9\" y=\"30\">tiny</text>")).replace("11px", "1px")),
        ("cut", plot(&format!("{rect}<text x=\"90\" y=\"30\">cut off</text>"))),
        (
            "overlap",
            plot(&format!("{rect}<text x=\"9\" y=\"30\">one</text><text x=\"12\" y=\"31\">two</text>")),
        ),
    ] {
        let page = format!("<!doctype html><title>broken</title><body style=\"margin: 0\">{body}</body>");
        let Some(seen) = look("broken", &page) else { return };
        assert_eq!(seen.looked.len(), WIDTHS.len() * 2);
        assert!(seen.faults.iter().any(|fault| fault.starts_with(kind)), "{kind}: {:#?}", seen.faults);
        // Nothing else is wrong with it, so that each check is known to work by itself.
        let others: Vec<_> = seen.faults.iter().filter(|fault| !fault.starts_with(kind)).collect();
        assert!(others.iter().all(|fault| fault.starts_with("contrast")), "{kind}: {others:#?}");
    }
}
