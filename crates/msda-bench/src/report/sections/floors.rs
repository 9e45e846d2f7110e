//! Our times beside the least time that the ceilings of the machine allow.

use crate::record::{Device, Pass, Record};
use crate::report::Extension;
use crate::report::chart::{Chart, Mark, Plots, Row};
use crate::report::compare::is_default;
use crate::report::group::{Group, dtype_order, workloads};
use crate::report::number::{count, percent, times};
use crate::report::page::Part;
use crate::report::svg::Shape;

const NOTE: &str = "msda's time divided by the least time that the measured ceilings of the machine allow. The \
    vertical line is this limit; further right is slower.";

/// A chart per device and pass, the GPU before the processor; none without ceilings.
pub(super) fn part(run: &Record, extensions: &[Box<dyn Extension>]) -> Option<Part> {
    let groups = workloads(run, extensions);
    let mut charts = Vec::new();
    for device in [Device::Cuda, Device::Cpu] {
        let on = |g: &&Group<'_>| g.setting.device == device;
        let threads = groups.iter().filter(on).flat_map(|g| &g.rows).map(|r| r.measured.threads).max();
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
    let plots = Plots { note: NOTE.into(), ..Chart::plots(&charts, "") };
    (!charts.is_empty()).then_some(Part::Plots(plots))
}

/// A mark per dtype, on one number of threads: ceilings depend on it.
fn row(run: &Record, group: &Group<'_>, threads: usize) -> Option<Row> {
    let ours = |m: &crate::record::Measurement| is_default(run, &m.engine) && m.threads == threads;
    let all = group.rows.iter().filter(|r| ours(r.measured));
    let mut marks: Vec<Mark> = all
        .filter_map(|r| {
            let (share, dtype) = (r.reached()?, &r.measured.dtype);
            Some(Mark {
                name: dtype.clone(),
                order: (dtype_order(dtype).0, 0),
                class: "k k0",
                shape: Shape::of(dtype),
                value: 1.0 / share,
                text: times(Some(1.0 / share)),
                title: format!("{dtype}: {} of the limit", percent(Some(share))),
                ..Mark::default()
            })
        })
        .collect();
    let nearest = marks.iter_mut().min_by(|a, b| a.value.total_cmp(&b.value))?;
    nearest.bold = true;
    Some(Row { name: group.workload.into(), marks, ..Row::default() })
}
