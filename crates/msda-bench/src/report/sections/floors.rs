//! Our times beside the least time that the ceilings of the machine allow.

use crate::record::{Device, Measurement, Pass, Record};
use crate::report::Extensions;
use crate::report::chart::{Chart, Mark, Plots, Row};
use crate::report::compare::is_default;
use crate::report::group::{Group, dtype_order, unit, workloads};
use crate::report::number::{count, figure, percent, times};
use crate::report::page::Part;
use crate::report::svg::Shape;

const NOTE: &str = "msda's time divided by the least time that the measured ceilings of the machine allow. The \
    vertical line is this limit; further right is slower. The time of the bold number is below the workload.";

/// A chart per device and pass, the GPU before the processor; none without ceilings.
pub(super) fn part(run: &Record, extensions: &Extensions) -> Option<Part> {
    let groups = workloads(run, extensions);
    let mut charts = Vec::new();
    for device in [Device::Cuda, Device::Cpu] {
        let on = |g: &&Group<'_>| g.setting.device == device;
        let threads = groups.iter().filter(on).flat_map(|g| &g.rows).map(|m| m.threads).max();
        let detail = match device {
            Device::Cuda => "on the GPU".into(),
            Device::Cpu => format!("on the CPU, {}", count(threads.unwrap_or(1), "thread")),
        };
        for pass in [Pass::Forward, Pass::Backward] {
            let own = groups.iter().filter(on).filter(|g| g.pass == pass);
            let rows: Vec<Row> = own.filter_map(|g| row(run, g, threads?)).collect();
            if !rows.is_empty() {
                charts.push(Chart {
                    title: pass.to_string(),
                    detail: detail.clone(),
                    about: "Our time over the least time that the ceilings allow",
                    axis: "time over the limit (log scale)",
                    unit: "x",
                    line: "limit",
                    rows,
                    ..Chart::default()
                });
            }
        }
    }
    (!charts.is_empty()).then(|| Part::Plots(Plots { note: NOTE.into(), ..Chart::plots(charts, "") }))
}

/// A mark per dtype, on one number of threads: ceilings depend on it.
fn row(run: &Record, group: &Group<'_>, threads: usize) -> Option<Row> {
    let ours = |m: &&&Measurement| is_default(run, &m.engine) && m.threads == threads;
    let marks = group.rows.iter().filter(ours).filter_map(|m| {
        let (share, dtype) = (m.reached()?, &m.dtype);
        let (scale, unit) = unit(m.device);
        let mark = Mark {
            name: dtype.clone(),
            order: (dtype_order(dtype).0, 0),
            class: "k k0",
            shape: Shape::of(dtype),
            value: 1.0 / share,
            text: times(Some(1.0 / share)),
            title: format!("{dtype}: {} of the limit", percent(Some(share))),
            ..Mark::default()
        };
        Some((mark, format!("{dtype} {} {unit}", figure(m.time.median * scale))))
    });
    let mut marks: Vec<(Mark, String)> = marks.collect();
    // The time of the nearest is below the name of the workload.
    let (nearest, time) = marks.iter_mut().min_by(|a, b| a.0.value.total_cmp(&b.0.value))?;
    nearest.bold = true;
    let own = (time.clone(), String::new());
    Some(Row { name: group.workload.into(), own, marks: marks.into_iter().map(|(mark, _)| mark).collect() })
}
