//! The page in a real browser: nothing is cut, covered, empty, illegible or wider than the screen.

mod fixtures;
#[path = "browser/harness.rs"]
mod harness;

use harness::{WIDTHS, is_fine, look};
use msda_bench::record::Record;
use msda_bench::report;

fn page(records: &[Record]) -> String {
    report::html(records, &[]).unwrap()
}

#[test]
fn a_page_of_measurements_is_fine() {
    is_fine("measurements", &page(&[fixtures::realistic(), fixtures::with_gpu()]), 8);
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
