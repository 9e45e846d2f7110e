//! `clusters.cu`: blocks of a cluster read each other's shared memory.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use msda::{Error, ErrorKind, Result};

use super::kernel::Ready;
use super::words::{self, mix, some};
use super::{Bench, Kernel, Timed, agree};
use msda_cuda::driver::{Arch, Device, Launch, Memory};

/// Bytes of shared memory per block.
const BYTES: u32 = 80 << 10;
const WORDS: u32 = BYTES / 4;
const THREADS: u32 = 512;

/// A number of clusters and of blocks per cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Clusters.
    pub clusters: u32,
    /// Blocks per cluster.
    pub blocks: u32,
}

impl Shape {
    /// One cluster and many, of 8 blocks (every GPU with clusters supports that) and of 16.
    pub const ALL: [Self; 4] = [Self::new(1, 8), Self::new(96, 8), Self::new(1, 16), Self::new(48, 16)];

    const fn new(clusters: u32, blocks: u32) -> Self {
        Self { clusters, blocks }
    }

    fn threads(self) -> u32 {
        self.clusters * self.blocks * THREADS
    }
}

impl FromStr for Shape {
    type Err = Error;

    /// One of [`Shape::ALL`], as it is displayed.
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|shape| shape.to_string() == text).ok_or_else(|| {
            let all = Self::ALL.map(|shape| shape.to_string()).join(", ");
            Error::new(ErrorKind::Format, "clusters", format!("'{text}'"), format!("one of {all}"))
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.clusters, self.blocks)
    }
}

/// The measured times.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Clusters of that shape that run at once.
    pub active: u32,
    /// Reading the neighbours' memory.
    pub remote: Timed,
    /// Reading the block's own memory as often.
    pub local: Timed,
}

/// The argument of `clusters.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Args {
    sums: u64,
    turns: u32,
}

/// Which memory a block reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// That of the others.
    Remote,
    /// Its own.
    Local,
    /// That of the others, without the barrier before the exit.
    Unguarded,
}

impl Reads {
    const ALL: [Self; 3] = [Self::Remote, Self::Local, Self::Unguarded];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

fn kernel(arch: Arch, blocks: u32, from: Reads) -> Kernel {
    Kernel::new::<Args>("probes/clusters.cu", format!("clusters-{blocks}-{}", from.name()), arch, THREADS)
        .since(9, 0)
        .define("CLUSTER", blocks)
        .define("REMOTE", u32::from(from != Reads::Local))
        .define("LAST_BARRIER", u32::from(from != Reads::Unguarded))
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    [8, 16].into_iter().flat_map(|blocks| Reads::ALL.map(|from| kernel(arch, blocks, from))).collect()
}

/// Times a shape. A shape that does not fit the device is refused.
pub fn run(bench: &Bench, shape: Shape) -> Result<Measured> {
    let time = |from| {
        let clusters = Clusters::new(bench.device(), shape, from)?;
        let work = f64::from(shape.threads() / THREADS) * f64::from(clusters.turns) * f64::from(BYTES);
        let timed = bench.time(work, false, |stream| clusters.ready.queue(stream))?;
        let wrong = clusters.wrong()?;
        if let Some((thread, got, want)) = wrong.first() {
            agree(&from.name(), format!("thread {thread}"), *got, *want)?;
        }
        Ok::<_, Error>((clusters.active, timed))
    };
    let (active, remote) = time(Reads::Remote)?;
    let (_, local) = time(Reads::Local)?;
    Ok(Measured { active, remote, local })
}

/// Runs a shape a few times without the barrier before the exit. Returns how many of the sums that
/// were compared are wrong. A block that has exited is no longer there to be read, so this may
/// fault or hang: the process should have nothing else to do.
pub fn run_unguarded(device: &Device, shape: Shape) -> Result<usize> {
    const RUNS: usize = 20;
    let clusters = Clusters::new(device, shape, Reads::Unguarded)?;
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
        let ready = unsafe { Ready::new(device, &kernel, at, args)? };
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
}
