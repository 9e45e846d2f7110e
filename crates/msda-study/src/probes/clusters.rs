//! `clusters.cu`: blocks of a cluster read each other's shared memory.
#![allow(unsafe_code)]

use std::fmt;
use std::process::Command;

use anyhow::Context;
use msda::{Error, ErrorKind, Result};
use msda_cuda::driver::{Arch, Device, Launch, Memory};

use super::bench::{Bench, Timed};
use super::kernel::{Kernel, Ready, arguments};
use super::unguarded::{LIMIT, Outcome, watch};
use super::words::{self, mix, some};
use super::{Options, Prober, agree, lower};
use crate::found::Found;
use crate::listed::listed;

pub(super) const NAME: &str = "clusters";

/// Bytes of shared memory per block.
const BYTES: u32 = 80 << 10;
const WORDS: u32 = BYTES / 4;
const THREADS: u32 = 512;

/// A number of clusters and of blocks per cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    clusters: u32,
    /// Blocks per cluster.
    blocks: u32,
}

impl Shape {
    /// One cluster and many, of 8 blocks (every GPU with clusters supports that) and of 16.
    const ALL: [Self; 4] = [Self::new(1, 8), Self::new(96, 8), Self::new(1, 16), Self::new(48, 16)];

    const fn new(clusters: u32, blocks: u32) -> Self {
        Self { clusters, blocks }
    }

    fn threads(self) -> u32 {
        self.clusters * self.blocks * THREADS
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.clusters, self.blocks)
    }
}

arguments! {
    /// The argument of `clusters.cu`.
    Args { sums: u64, turns: u32 }
}

listed! {
    /// Which memory a block reads.
    enum Reads {
        /// That of the others.
        Remote,
        /// Its own.
        Local,
        /// That of the others, without the barrier before the exit.
        Unguarded,
    }
}

fn kernel(arch: Arch, blocks: u32, from: Reads) -> Kernel {
    Kernel::new::<Args>("probes/clusters.cu", format!("clusters-{blocks}-{}", lower(from)), arch, THREADS)
        .since(9, 0)
        .define("CLUSTER", blocks)
        .define("REMOTE", u32::from(from != Reads::Local))
        .define("LAST_BARRIER", u32::from(from != Reads::Unguarded))
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    [8, 16].into_iter().flat_map(|blocks| Reads::ALL.map(|from| kernel(arch, blocks, from))).collect()
}

pub(super) fn steps(options: &Options) -> usize {
    Shape::ALL.len() * (1 + usize::from(options.program.is_some()))
}

/// `probe.clusters.CxB.*`, with the last barrier.
pub(super) fn probe(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    for shape in Shape::ALL {
        let name = format!("{NAME}.{shape}");
        prober.progress.step(&format!("{NAME}: {shape}"));
        let both = time(&prober.bench, shape, Reads::Remote)
            .and_then(|remote| Ok((remote, time(&prober.bench, shape, Reads::Local)?)));
        let Some(((active, remote), (_, local))) = prober.found.got(&name, both)? else { continue };
        let slowdown = local.rate() / remote.rate();
        prober.found.push(&name, [("active", f64::from(active), ""), ("slowdown", slowdown, "x")]);
        prober.found.time_and_rate(&format!("{name}.remote"), &remote);
        prober.found.time_and_rate(&format!("{name}.local"), &local);
    }
    Ok(())
}

/// `probe.clusters.CxB.unguarded.*`: without the last barrier, each shape in a process of its own.
/// A shape that the device does not support was skipped before.
pub(super) fn unguarded(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    let Some(program) = &prober.options.program else { return Ok(()) };
    for shape in Shape::ALL {
        let name = format!("{NAME}.{shape}");
        prober.progress.step(&format!("{NAME}: {shape} without the last barrier"));
        if prober.found.skipped.iter().any(|skipped| skipped.what == format!("probe.{name}")) {
            continue;
        }
        let mut command = Command::new(program);
        command.args(["probe", "--unguarded", &shape.to_string()]);
        let outcome = watch(&mut command, LIMIT);
        let outcome = outcome.with_context(|| format!("starting {}", program.display()))?;
        prober.found.outcome(&format!("{name}.unguarded"), &outcome);
    }
    Ok(())
}

impl Found {
    fn outcome(&mut self, name: &str, outcome: &Outcome) {
        let is = |yes: bool| f64::from(u8::from(yes));
        let all = [
            ("completed", is(matches!(outcome, Outcome::Completed(_))), ""),
            ("faulted", is(matches!(outcome, Outcome::Faulted(_))), ""),
            ("hung", is(*outcome == Outcome::Hung), ""),
        ];
        self.push(name, all);
        match outcome {
            Outcome::Completed(wrong) => {
                if let Ok(wrong) = wrong.parse() {
                    self.push(name, [("wrong", wrong, "")]);
                }
            }
            other => self.skip(format!("probe.{name}"), other),
        }
    }
}

/// Clusters that run at once, and times of a shape. A shape that does not fit the device is
/// refused.
fn time(bench: &Bench, shape: Shape, from: Reads) -> Result<(u32, Timed)> {
    let clusters = Clusters::new(bench.device(), shape, from)?;
    let work = f64::from(shape.threads() / THREADS) * f64::from(clusters.turns) * f64::from(BYTES);
    let timed = bench.time(work, false, |stream| clusters.ready.queue(stream))?;
    if let Some((thread, got, want)) = clusters.wrong()?.first() {
        agree(&lower(from), format!("thread {thread}"), *got, *want)?;
    }
    Ok((clusters.active, timed))
}

/// Runs clusters of a shape (`CxB`) a few times without the barrier before the exit. Returns how
/// many of the sums that were compared are wrong. A block that has exited is no longer there to be
/// read, so this may fault or hang: [`super::run`] starts it in a process of its own.
pub fn run_unguarded(shape: &str) -> Result<usize> {
    const RUNS: usize = 20;
    let shape = Shape::ALL.into_iter().find(|known| known.to_string() == shape).ok_or_else(|| {
        let all = Shape::ALL.map(|shape| shape.to_string()).join(", ");
        Error::new(ErrorKind::Format, "clusters", format!("'{shape}'"), format!("one of {all}"))
    })?;
    let device = Device::open(0)?;
    let clusters = Clusters::new(&device, shape, Reads::Unguarded)?;
    let stream = device.stream()?;
    for _ in 0..RUNS {
        clusters.ready.queue(stream.handle())?;
        stream.synchronize()?;
    }
    Ok(clusters.wrong()?.len())
}

/// A kernel for a shape, with its memory.
struct Clusters {
    shape: Shape,
    from: Reads,
    /// Passes over the memory of a block.
    turns: u32,
    /// Clusters that run at once.
    active: u32,
    sums: Memory,
    ready: Ready<Args>,
}

impl Clusters {
    fn new(device: &Device, shape: Shape, from: Reads) -> Result<Self> {
        /// Passes over each neighbour.
        const ROUNDS: u32 = 8;
        let kernel = kernel(device.arch(), shape.blocks, from);
        super::needs(device, &kernel)?;
        let what = format!("probe clusters {shape}");
        let turns = ROUNDS * (shape.blocks - 1);
        let sums = words::poisoned(device, shape.threads() as usize)?;
        let grid = kernel.grid(shape.clusters * shape.blocks);
        let at = Launch { shared: BYTES, cluster: [shape.blocks, 1, 1], ..grid };
        let args = Args { sums: sums.address(), turns };
        // SAFETY: the kernel takes such a structure and is launched in clusters of as many blocks
        // as it was compiled for; every thread writes one sum; the memory lives as long as the
        // kernel.
        let ready = unsafe { Ready::new(device, &kernel, at, None, args)? };
        // A launch of clusters that do not fit would hang or fail without a reason.
        let active = ready.function.max_clusters(&at).map_err(|why| {
            Error::new(ErrorKind::Unsupported, what.clone(), why, "a cluster that the driver can place")
        })?;
        if active == 0 {
            let got = format!(
                "no room for {} blocks of {BYTES} bytes of shared memory that run at once",
                shape.blocks
            );
            return Err(Error::new(ErrorKind::Unsupported, what, got, "room for at least one cluster"));
        }
        Ok(Self { shape, from, turns, active, sums, ready })
    }

    /// Wrong sums among some threads: the thread, its sum, and the right one.
    fn wrong(&self) -> Result<Vec<(usize, u32, u32)>> {
        let sums = words::read(&self.sums)?;
        let compared = some(sums.len()).map(|thread| {
            let remote = self.from != Reads::Local;
            (thread, sums[thread], expected(self.shape.blocks, thread as u32, self.turns, remote))
        });
        Ok(compared.filter(|(_, got, want)| got != want).collect())
    }
}

/// The sum of the words that a thread reads.
fn expected(cluster: u32, thread: u32, turns: u32, remote: bool) -> u32 {
    let (block, thread) = (thread / THREADS, thread % THREADS);
    let first = block / cluster * cluster;
    let mut sum = 0u32;
    for turn in 0..turns {
        let from = if remote { first + (block + 1 + turn % (cluster - 1)) % cluster } else { block };
        for k in 0..BYTES / 16 / THREADS {
            let word = from * WORDS + ((thread + turn * 32) % THREADS + k * THREADS) * 4;
            sum = (word..word + 4).fold(sum, |sum, word| sum.wrapping_add(mix(word)));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_all_others_of_the_cluster() {
        // All threads of a block together read every neighbour once per pass.
        let block = |block: u32, remote| {
            let threads = block * THREADS..(block + 1) * THREADS;
            threads.fold(0, |sum: u32, thread| sum.wrapping_add(expected(8, thread, 7, remote)))
        };
        let held =
            |block: u32| (block * WORDS..(block + 1) * WORDS).fold(0, |sum: u32, i| sum.wrapping_add(mix(i)));
        let others = (8..16).filter(|b| *b != 11).fold(0, |sum: u32, b| sum.wrapping_add(held(b)));
        assert_eq!((block(11, true), block(11, false)), (others, held(11).wrapping_mul(7)));
    }

    #[test]
    fn the_outcome_of_a_process_is_recorded() {
        let mut found = Found::default();
        found.outcome("clusters.1x8.unguarded", &Outcome::Completed("3".into()));
        found.outcome("clusters.96x8.unguarded", &Outcome::Faulted("illegal address".into()));
        let value = |name: &str| found.figures.iter().find(|f| f.name == name).map(|f| f.value);
        assert_eq!(value("probe.clusters.1x8.unguarded.completed"), Some(1.0));
        assert_eq!(value("probe.clusters.1x8.unguarded.wrong"), Some(3.0));
        assert_eq!(value("probe.clusters.96x8.unguarded.faulted"), Some(1.0));
        assert_eq!(value("probe.clusters.96x8.unguarded.completed"), Some(0.0));
        assert_eq!(found.skipped.len(), 1);
        assert_eq!(found.skipped[0].why, "faulted: illegal address");
        assert!(run_unguarded("2x2").unwrap_err().to_string().contains("96x8"));
    }
}
