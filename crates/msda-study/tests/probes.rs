//! The probes on a GPU. Each checks the data that it read; what they find must be possible. How
//! fast they are is not checked: others may use the device.

#[path = "../../msda-cuda/tests/common/mod.rs"]
mod common;

use msda_bench::bench::Silent;
use msda_study::probes::{self, Options};

#[test]
fn every_probe_is_right_and_finds_what_can_be() {
    let Some(_) = common::device() else { return };
    let options = Options { quick: true, ..Options::default() };
    let record = probes::run(&options, &mut Silent).unwrap();
    let value =
        |name: &str| record.figures.iter().find(|f| f.name == format!("probe.{name}")).map(|f| f.value);
    for figure in &record.figures {
        eprintln!("{} = {:.2} {}", figure.name, figure.value, figure.unit);
        let least = if figure.name.ends_with(".std") { 0.0 } else { f64::MIN_POSITIVE };
        assert!(figure.value.is_finite() && figure.value >= least, "{figure:?}");
    }
    for name in probes::names().into_iter().map(|name| format!("probe.{name}")) {
        let found = record.figures.iter().any(|f| f.name.starts_with(&name));
        assert!(found || record.skipped.iter().any(|s| s.what.starts_with(&name)), "{name}");
    }
    let cycles = ["min", "mean", "max"].map(|of| value(&format!("tma-tile.queries-1000.manual.cycles.{of}")));
    assert!(cycles[0].is_some() && cycles.is_sorted(), "{cycles:?}");
    // More conflicts cost more.
    let rates = [8, 4, 2, 1].map(|n| value(&format!("ceiling.shared-conflicts-{n}.rate")));
    assert!(rates[0].is_some() && rates.is_sorted(), "{rates:?}");
}
