//! The probes on a GPU: each is right, which they check themselves, and what they find can be.

#[path = "../../msda-cuda/tests/common/mod.rs"]
mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use msda::ErrorKind;
use msda_cuda::driver::Device;
use msda_study::probes::Bench;
use msda_study::probes::banks::{self, Access, PITCHES, Pattern};
use msda_study::probes::ceilings::Ceiling;
use msda_study::probes::clusters::{self, Shape};
use msda_study::probes::copies::{Copies, Style};
use msda_study::probes::tile::{Tiles, Way};

use common::device;

/// Half of a gigabyte each, and times that others would disturb: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn bench(device: &Device) -> (Bench, MutexGuard<'static, ()>) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Bench::new(device, 3).unwrap(), alone)
}

/// A result; none, said, where the device cannot.
fn able<T>(what: &str, result: msda::Result<T>) -> Option<T> {
    match result {
        Ok(result) => Some(result),
        Err(why) if why.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped {what}: {why}");
            None
        }
        Err(why) => panic!("{what}: {why}"),
    }
}

/// What they read is checked as they run. How fast is not: others may use the device.
#[test]
fn ceilings_are_measured() {
    let Some(device) = device() else { return };
    let (bench, _alone) = bench(&device);
    let copy = msda_bench::gpu::measure::copy(&device).unwrap();
    eprintln!("copy: {:.0} GB/s", copy / 1e9);
    for ceiling in Ceiling::ALL {
        let rate = ceiling.run(&bench).unwrap().rate();
        eprintln!("{ceiling}: {:.0} G/s", rate / 1e9);
        assert!(rate.is_finite() && rate > 0.0, "{ceiling}: {rate}");
    }
}

#[test]
fn squares_arrive_in_every_way() {
    let Some(device) = device() else { return };
    let (bench, _alone) = bench(&device);
    let tiles = Tiles::new(&bench, 3000).unwrap();
    for way in Way::ALL {
        for queries in [1, 33, 3000] {
            let Some(found) = able(&way.name(), tiles.run(way, queries)) else { continue };
            let [fewest, mean, most] = found.cycles;
            assert!(0.0 < fewest && fewest <= mean && mean <= most, "{found:?}");
            assert_eq!(found.loads, f64::from(queries) * 8.0);
        }
    }
}

#[test]
fn shared_memory_is_filled_in_every_style() {
    let Some(device) = device() else { return };
    let (bench, _alone) = bench(&device);
    let copies = Copies::new(&bench).unwrap();
    for style in Style::ALL {
        let Some(timed) = able(style.name(), copies.run(style)) else { continue };
        eprintln!("{}: {:.0} GB/s", style.name(), timed.rate() / 1e9);
    }
}

#[test]
fn one_cluster_and_many_read_their_neighbours() {
    let Some(device) = device() else { return };
    let (bench, _alone) = bench(&device);
    for shape in Shape::ALL {
        let Some(found) = able(&shape.to_string(), clusters::run(&bench, shape)) else { continue };
        eprintln!("{shape}: {} at once, {:.1} us", found.active, found.remote.median());
        assert!(found.active > 0 && found.remote.median() > 0.0);
    }
}

/// Whether cycles are the model's wavefronts is for a person to see; that more conflicts cost more
/// must hold.
#[test]
fn conflicts_cost_cycles() {
    let Some(device) = device() else { return };
    let (bench, _alone) = bench(&device);
    let rows = Access::ALL.into_iter().flat_map(|a| PITCHES.map(|p| Pattern::rows(a, p))).flatten();
    for pattern in rows {
        let found = banks::run(&bench, &pattern).unwrap();
        eprintln!("{:.2} cycles, {:.2} wavefronts", found.cycles, found.wavefronts);
    }
    let cycles = [1, 2, 4, 8].map(|degree| banks::run(&bench, &Pattern::conflicts(degree)).unwrap().cycles);
    assert!(cycles.windows(2).all(|pair| pair[0] < pair[1]), "{cycles:?}");
}
