//! `clusters.cu`: blocks of a cluster read each other's shared memory.
#![allow(unsafe_code)]

use std::fmt;

use msda::{Error, ErrorKind, Result};

use super::kernel::Ready;
use super::words::{self, mix, some};
use super::{Bench, Kernel, Timed, agree};
use msda_cuda::driver::{Arch, Launch};

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

fn kernel(arch: Arch, blocks: u32, remote: bool) -> Kernel {
    let key = format!("clusters-{blocks}-{}", if remote { "remote" } else { "local" });
    Kernel::new::<Args>("probes/clusters.cu", key, arch, THREADS)
        .since(9, 0)
        .define("CLUSTER", blocks)
        .define("REMOTE", u32::from(remote))
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    [8, 16].into_iter().flat_map(|blocks| [true, false].map(|remote| kernel(arch, blocks, remote))).collect()
}

/// Times a shape. A shape that does not fit the device is refused.
pub fn run(bench: &Bench, shape: Shape) -> Result<Measured> {
    let (active, remote) = time(bench, shape, true)?;
    let (_, local) = time(bench, shape, false)?;
    Ok(Measured { active, remote, local })
}

fn time(bench: &Bench, shape: Shape, remote: bool) -> Result<(u32, Timed)> {
    /// Passes over each neighbour.
    const ROUNDS: u32 = 8;
    let device = bench.device();
    let kernel = kernel(device.arch(), shape.blocks, remote);
    super::needs(device, &kernel)?;
    let what = format!("probe clusters {shape}");
    let blocks = shape.clusters * shape.blocks;
    let turns = ROUNDS * (shape.blocks - 1);
    let threads = (blocks * THREADS) as usize;
    let sums = words::poisoned(device, threads)?;
    let at = Launch { shared: BYTES, cluster: [shape.blocks, 1, 1], ..kernel.grid(blocks) };
    let args = Args { sums: sums.address(), turns };
    // SAFETY: the kernel takes such a structure and is launched in clusters of as many blocks as it was compiled for;
    // every thread writes one sum; the memory lives to the end.
    let ready = unsafe { Ready::new(device, &kernel, at, args)? };
    // A launch of clusters that do not fit would hang or fail without a reason.
    let active = ready.function.max_clusters(&at).map_err(|why| {
        Error::new(ErrorKind::Unsupported, what.clone(), why, "a cluster that the driver can place")
    })?;
    if active == 0 {
        let got =
            format!("no room for {} blocks of {BYTES} bytes of shared memory that run at once", shape.blocks);
        return Err(Error::new(ErrorKind::Unsupported, what, got, "room for at least one cluster"));
    }
    let work = f64::from(blocks) * f64::from(turns) * f64::from(BYTES);
    let timed = bench.time(work, false, |stream| ready.queue(stream))?;
    let sums = words::read(&sums)?;
    for thread in some(threads) {
        let want = expected(shape.blocks, thread as u32, turns, remote);
        agree(&kernel.unit.key, format!("thread {thread}"), sums[thread], want)?;
    }
    Ok((active, timed))
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
