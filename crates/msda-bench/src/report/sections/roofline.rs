//! Rooflines of a run: arithmetic rate against arithmetic intensity, with the measured ceilings.

use crate::record::{Ceiling, Device, Pass, Record};
use crate::report::Extension;
use crate::report::chart::{Plot, Plots};
use crate::report::group::{Group, Row, is_pinned, positive, workloads};
use crate::report::known::machine;
use crate::report::names::{engine, mark, order};
use crate::report::number::{count, figure, maybe, percent};
use crate::report::page::Part;
use crate::report::svg::{Shape, roofline};

const ABOUT: &str = "GFLOP/s against FLOP per byte of gathered rows. Slopes are bandwidths, the level line is the rate \
    of multiply-adds.";

/// A chart per pass, the GPU before the processor. Ceilings of the same GPU may come from other
/// records.
pub(super) fn parts(run: &Record, records: &[Record], extensions: &[Box<dyn Extension>]) -> Vec<Part> {
    let groups = workloads(run, extensions);
    let mut parts = Vec::new();
    for device in [Device::Cuda, Device::Cpu] {
        let on =
            |r: &Row<'_>| r.measured.device == device && r.intensity().is_some() && r.flop_rate().is_some();
        let rows = groups.iter().flat_map(|g| &g.rows).filter(|r| on(r));
        let Some(most) = rows.map(|r| r.measured.threads).max() else { continue };
        // Ceilings depend on the number of threads, so only one number is drawn.
        let drawn = |r: &Row<'_>| on(r) && r.measured.threads == most;
        let (roofs, note) = match device {
            Device::Cpu => of_processor(run, most),
            Device::Cuda => (of_gpu(run, records, extensions), String::new()),
        };
        parts.push(Part::Plots(plots(&groups, &roofs, format!("{ABOUT} {note}"), drawn)));
    }
    parts
}

fn plots(
    groups: &[Group<'_>],
    roofs: &[roofline::Roof],
    note: String,
    drawn: impl Fn(&Row<'_>) -> bool,
) -> Plots {
    let placed: Vec<(&Group<'_>, &Row<'_>)> =
        groups.iter().flat_map(|g| g.rows.iter().map(move |r| (g, r))).filter(|(_, r)| drawn(r)).collect();
    let mut plots = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        let rows: Vec<_> = placed.iter().copied().filter(|(g, _)| g.pass == pass).collect();
        if !rows.is_empty() {
            let label = format!("Roofline of {} times, {pass}: GFLOP/s against FLOP per byte", rows.len());
            let svg = roofline::roofline(roofs, &points(&rows), &label);
            plots.push(Plot { title: pass.to_string(), detail: String::new(), svg, table: None });
        }
    }
    Plots { legend: legend(&placed), note, plots }
}

fn legend(rows: &[(&Group<'_>, &Row<'_>)]) -> Vec<(String, Shape, String)> {
    let (mut engines, mut dtypes): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for m in rows.iter().map(|(_, r)| r.measured) {
        let name = m.engine.as_str();
        if !engines.iter().any(|e| *e == name || (is_pinned(e) && is_pinned(name))) {
            engines.push(name);
        }
        if !dtypes.contains(&m.dtype.as_str()) {
            dtypes.push(&m.dtype);
        }
    }
    engines.sort_by_key(|e| order(e));
    let name = |e: &str| if is_pinned(e) { "kernels selected by name".into() } else { engine(e) };
    let keys = engines.iter().map(|e| (mark(e).0.to_owned(), Shape::Circle, name(e)));
    keys.chain(dtypes.iter().map(|d| ("k plain open".into(), Shape::of(d), (*d).to_owned()))).collect()
}

fn of_processor(run: &Record, used: usize) -> (Vec<roofline::Roof>, String) {
    let ceilings = || run.ceilings.iter().filter(|c| c.device == Device::Cpu);
    let limit = if ceilings().any(|c| c.threads == used) {
        used
    } else {
        ceilings().map(|c| c.threads).max().unwrap_or(used)
    };
    let roofs: Vec<roofline::Roof> = ceilings()
        .filter(|c| c.threads == limit && positive(c.rate).is_some())
        .map(|c| roofline::Roof { name: c.name.clone(), rate: c.rate, flat: c.name == crate::work::FMA })
        .collect();
    let threads = |n| count(n, "thread");
    let note = match roofs.is_empty() {
        true => format!("Times with {}; no ceiling was measured.", threads(used)),
        false => format!("Times with {}, ceilings with {}.", threads(used), threads(limit)),
    };
    (roofs, note)
}

/// The L1 bandwidth of the run, and the ceilings that extensions know for the same GPU.
fn of_gpu(run: &Record, records: &[Record], extensions: &[Box<dyn Extension>]) -> Vec<roofline::Roof> {
    let l1 = |c: &&Ceiling| c.device == Device::Cuda && c.name == crate::work::GATHER_L1;
    let machine = machine(run);
    let more = extensions.iter().flat_map(|e| e.ceilings(records, &machine));
    let roof = |c: Ceiling| roofline::Roof {
        flat: c.name.starts_with(crate::work::FMA),
        name: c.name,
        rate: c.rate,
    };
    let all = run.ceilings.iter().filter(l1).cloned().chain(more);
    all.filter(|c| positive(c.rate).is_some()).map(roof).collect()
}

fn points(rows: &[(&Group<'_>, &Row<'_>)]) -> Vec<roofline::Point> {
    let point = |&(group, row): &(&Group<'_>, &Row<'_>)| {
        let m = row.measured;
        let rate = row.flop_rate()?;
        Some(roofline::Point {
            intensity: row.intensity()?,
            rate,
            class: mark(&m.engine).0.to_owned() + " open",
            shape: Shape::of(&m.dtype),
            title: format!(
                "{} {} {}: {} GFLOP/s, {} GB/s, {} of the floor",
                engine(&m.engine),
                m.dtype,
                group.workload,
                figure(rate),
                maybe(row.gathered_rate()),
                percent(row.reached())
            ),
        })
    };
    // Kernels selected by name are drawn first, below the others.
    let (pinned, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, r)| is_pinned(&r.measured.engine));
    pinned.into_iter().chain(others).filter_map(point).collect()
}
