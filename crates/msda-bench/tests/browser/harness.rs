//! Inspects a page with a real browser and lists its faults.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The widths of a phone and of a desktop screen.
pub(crate) const WIDTHS: [u32; 2] = [360, 1280];

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
pub(crate) struct Seen {
    pub(crate) looked: Vec<String>,
    pub(crate) faults: Vec<String>,
}

/// Inspects a page in all widths and both colour schemes. None if there is no browser.
pub(crate) fn look(name: &str, page: &str) -> Option<Seen> {
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
    let script = include_str!("inspect.js");
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
pub(crate) fn is_fine(name: &str, page: &str, plots: usize) {
    let Some(seen) = look(name, page) else { return };
    let count = page.matches("role=\"img\"").count();
    assert!(count >= plots, "{count}");
    let expected = WIDTHS
        .into_iter()
        .flat_map(|w| ["light", "dark"].map(|scheme| format!("{w} {scheme}: {count} plots, {w} px")));
    assert_eq!(seen.looked, expected.collect::<Vec<_>>());
    assert!(seen.faults.is_empty(), "{:#?}", seen.faults);
}
