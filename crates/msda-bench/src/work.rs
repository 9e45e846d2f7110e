//! The work of a pass, and the least time that it can take on this machine.

use std::time::Duration;

use msda::backend::Args;
use msda::cpu::probe;
use msda::{Isa, Problem};
use rayon::prelude::*;

use crate::record::{Ceiling, Device, Pass, Work};
use crate::task::Task;
use crate::workload::Data;

/// Names of ceilings: fused multiply-adds.
pub const FMA: &str = "fma";
/// Sequential reads of a buffer as large as a value pyramid, one per thread.
pub const STREAM: &str = "stream";
/// Random rows from L2.
pub const GATHER_L2: &str = "gather-l2";
/// Random rows from a buffer as large as a value pyramid.
pub const GATHER_MEMORY: &str = "gather-memory";

/// On a GPU: copying within its memory.
pub const COPY: &str = "copy";
/// On a GPU: rows from the L1 caches of its SMs.
pub const GATHER_L1: &str = "gather-l1";

/// Measures the ceilings of this machine with this many threads, for some seconds; in a brief
/// benchmark once.
pub fn ceilings(threads: usize, brief: bool) -> anyhow::Result<Vec<Ceiling>> {
    let settle = if brief { Duration::ZERO } else { Duration::from_secs(1) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let found = pool.install(|| probe::ceilings(Isa::best(), settle))?;
    let rates = [
        (FMA, found.multiply_add),
        (STREAM, found.stream),
        (GATHER_L2, found.gather_l2),
        (GATHER_MEMORY, found.gather_memory),
    ];
    let ceiling = |(name, rate): (&str, f64)| Ceiling {
        name: name.into(),
        device: Device::Cpu,
        threads,
        rate: rate / 1e9,
    };
    Ok(rates.map(ceiling).into())
}

/// The rows that the samples of a workload read.
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    /// Rows read: one per tap on the map.
    pub taps: f64,
    /// Different rows among them.
    pub rows: f64,
}

/// Counts the rows that the bilinear samples of a workload read.
pub fn count_reads(data: &Data) -> Reads {
    let (p, task) = (&data.problem, Task::whole(data, Pass::Forward));
    let args = msda::backend::check_inputs(p, &task.inputs).expect("workloads make legal inputs");
    let counts = (0..p.batch() * p.heads()).into_par_iter().map(|plane| {
        let mut seen = vec![false; p.positions()];
        let mut taps = 0usize;
        for query in 0..p.queries() {
            for_each_tap(p, &args, [plane / p.heads(), query, plane % p.heads()], |position| {
                taps += 1;
                seen[position] = true;
            });
        }
        (taps as f64, seen.iter().filter(|s| **s).count() as f64)
    });
    let (taps, rows) = counts.reduce(|| (0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    Reads { taps, rows }
}

/// Calls `f` with the position of every pixel on the map that the bilinear samples of one image,
/// query and head read.
fn for_each_tap(p: &Problem, args: &Args<'_>, at: [usize; 3], mut f: impl FnMut(usize)) {
    let first = args.locations.at(at);
    let samples = p.levels().iter().zip(p.points()).flat_map(|(level, &n)| std::iter::repeat_n(level, n));
    for (s, level) in samples.enumerate() {
        let pixels = |axis: usize, side: usize| {
            let (scale, shift) = p.pixel_transform(side);
            let low = (args.locations.data.get(first + 2 * s + axis) * scale + shift).floor();
            let both = [low, low + 1.0].into_iter().filter(move |i| (0.0..side as f64).contains(i));
            both.map(|i| i as usize)
        };
        for y in pixels(1, level.h) {
            pixels(0, level.w).for_each(|x| f(level.position(y, x)));
        }
    }
}

/// The work of a pass, and its floor from the ceilings of the device for `threads` threads.
pub fn work(
    p: &Problem,
    reads: Reads,
    pass: Pass,
    ceilings: &[Ceiling],
    device: Device,
    threads: usize,
) -> Work {
    let t = p.types();
    let bytes = |dtype: msda::Dtype, n: usize| (dtype.size() * n) as f64;
    let coordinates = bytes(t.locations, p.locations_len()) + bytes(t.weights, p.weights_len());
    let (value, output) = (bytes(t.value, p.value_len()), bytes(t.value, p.output_len()));
    let row = (p.channels() * t.value.size()) as f64;
    let sum_row = (p.channels() * t.value.accumulator().size()) as f64;
    let Reads { taps, rows } = reads;
    let multiply_adds = 2.0 * taps * p.channels() as f64;
    // Rows without a sample need not be read.
    let inputs = rows * row + coordinates;
    // Besides the row of value, a tap needs a row for the gradient of value. On the CPU a sum is
    // read and written. A GPU may gather rows of the gradient of output instead and sum in
    // registers, so one row is the least.
    let scattered = match device {
        Device::Cpu => 2.0 * sum_row,
        Device::Cuda => row,
    };
    let (flops, gathered_bytes, compulsory_bytes) = match pass {
        Pass::Forward => (multiply_adds, taps * row, inputs + output),
        Pass::Backward => {
            (2.0 * multiply_adds, taps * (row + scattered), inputs + output + value + coordinates)
        }
    };
    let rate = |name: &str| {
        let wanted = |c: &&Ceiling| c.name == name && c.device == device && c.threads == threads;
        let found = ceilings.iter().find(wanted);
        found.map_or(f64::INFINITY, |c| c.rate * 1e9)
    };
    let bounds = match device {
        Device::Cpu => vec![
            (FMA, flops / rate(FMA)),
            ("gather", gathered_bytes / rate(GATHER_L2)),
            (STREAM, compulsory_bytes / rate(STREAM)),
        ],
        Device::Cuda => {
            vec![("gather", gathered_bytes / rate(GATHER_L1)), (COPY, compulsory_bytes / rate(COPY))]
        }
    };
    let (bound, seconds) =
        bounds.into_iter().filter(|b| b.1 > 0.0).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none", 0.0));
    let floor_ms = seconds * 1e3;
    Work { flops, gathered_bytes, compulsory_bytes, floor_ms, bound: bound.into(), rows_ms: None }
}

/// The milliseconds in which this many threads load the rows of a forward pass in its order; none
/// for rows that the probe does not load, or too many to list.
pub fn rows_ms(task: &Task<'_>, reads: Reads, threads: usize) -> Option<f64> {
    const MOST: f64 = 2e7;
    if task.pass != Pass::Forward || reads.taps > MOST {
        return None;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok()?;
    let (bytes, rate) = pool.install(|| probe::replay(Isa::best(), &task.problem, &task.inputs)).ok()?;
    Some(bytes / rate * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_those_of_the_samples_on_the_map() {
        let spec = |kind: &str| {
            format!(
                "about = \"\"\nbatch = 1\nqueries = 3\nheads = 2\nchannels = 1\nlevels = [[4, 4], [2, 2]]\n\
                 points = 2\ndtypes = [\"f32\"]\nlocations = {kind}\n"
            )
        };
        let reads = |kind| {
            let workload = crate::workload::Workload::parse("x", &spec(kind)).unwrap();
            count_reads(&workload.data(msda::Dtype::F32).unwrap())
        };
        // Four pixels of each level, for each of 3 queries, 2 heads and 2 points.
        let Reads { taps, rows } = reads("{ kind = \"point\", seed = 1 }");
        assert_eq!((taps, rows), (2.0 * 4.0 * 12.0, 2.0 * 8.0));
        let Reads { taps, rows } = reads("{ kind = \"point\", outside = 1.0, seed = 1 }");
        assert_eq!((taps, rows), (0.0, 0.0));
    }

    #[test]
    fn floors_come_from_the_ceilings_of_the_device() {
        let p = Problem::new(msda::Spec {
            batch: 1,
            queries: 100,
            heads: 1,
            channels: 32,
            levels: vec![(8, 8)],
            points: vec![4],
            ..msda::Spec::default()
        })
        .unwrap();
        let ceiling = |name: &str, device, rate| Ceiling { name: name.into(), device, threads: 1, rate };
        let ceilings = [
            ceiling(STREAM, Device::Cpu, 1.0),
            ceiling(COPY, Device::Cuda, 100.0),
            ceiling(GATHER_L1, Device::Cuda, 1000.0),
        ];
        let reads = Reads { taps: 1600.0, rows: 64.0 };
        let on = |device, ceilings: &[Ceiling]| work(&p, reads, Pass::Forward, ceilings, device, 1);
        let (cpu, gpu) = (on(Device::Cpu, &ceilings), on(Device::Cuda, &ceilings));
        assert_eq!((cpu.bound.as_str(), gpu.bound.as_str()), (STREAM, COPY));
        assert!((cpu.floor_ms / gpu.floor_ms - 100.0).abs() < 1e-9);
        assert_eq!(gpu.gathered_bytes, 1600.0 * 128.0);
        // Backward: every row of value's gradient is written, and every tap needs two rows.
        let backward = |device| work(&p, reads, Pass::Backward, &ceilings, device, 1);
        let back = backward(Device::Cuda);
        assert_eq!(back.gathered_bytes, 2.0 * gpu.gathered_bytes);
        let (value, coordinates) = (64.0 * 128.0, 100.0 * 4.0 * 12.0);
        assert_eq!(back.compulsory_bytes, gpu.compulsory_bytes + value + coordinates);
        assert_eq!(backward(Device::Cpu).gathered_bytes, 3.0 * cpu.gathered_bytes);
        assert_eq!(back.flops, 2.0 * gpu.flops);
        // Bound by gathers if memory is fast enough. Without ceilings there is no floor.
        assert_eq!(on(Device::Cuda, &ceilings[2..]).bound, "gather");
        assert_eq!((on(Device::Cuda, &[]).floor_ms, on(Device::Cuda, &[]).bound.as_str()), (0.0, "none"));
    }
}
