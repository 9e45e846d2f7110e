//! `claims.cu`: the share of outputs that a persistent kernel writes, by the way it takes work.
#![allow(unsafe_code)]

use msda::Result;
use msda_cuda::driver::Arch;

use super::bench::Bench;
use super::kernel::{Kernel, Ready, arguments};
use super::{Prober, agree, lower, words};
use crate::listed::listed;

pub(super) const NAME: &str = "work-claims";

/// Work items, queries of all images of the documents, and outputs of each.
const ITEMS: usize = 48 * 15422;
const CHANNELS: usize = 32;
const THREADS: u32 = 256;

listed! {
    /// Who takes an item from the counter.
    pub(super) enum Taker {
        /// Every thread takes one, as the documents' program does.
        Thread,
        /// One thread takes one for its block.
        Block,
    }
}

arguments! {
    /// The argument of `claims.cu`.
    Args { next: u64, output: u64, items: i32 }
}

fn kernel(arch: Arch, taker: Taker) -> Kernel {
    Kernel::new::<Args>("probes/claims.cu", format!("claims-{}", lower(taker)), arch, THREADS)
        .define("PER_THREAD", u8::from(taker == Taker::Thread))
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    Taker::ALL.map(|taker| kernel(arch, taker)).into()
}

/// `probe.work-claims.TAKER.written`
pub(super) fn probe(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    for taker in Taker::ALL {
        let name = format!("{NAME}.{}", lower(taker));
        prober.progress.step(&format!("{NAME}: every {}", lower(taker)));
        if let Some(share) = prober.found.got(&name, run(&prober.bench, taker))? {
            prober.found.push(&name, [("written", share * 100.0, "%")]);
        }
    }
    Ok(())
}

/// The share of outputs that is written, by one block per SM.
fn run(bench: &Bench, taker: Taker) -> Result<f64> {
    let device = bench.device();
    let kernel = kernel(device.arch(), taker);
    let output = words::poisoned(device, ITEMS * CHANNELS)?;
    let mut next = device.alloc(4)?;
    next.fill(0)?;
    let args = Args { next: next.address(), output: output.address(), items: ITEMS as i32 };
    // SAFETY: the kernel takes such a structure; every item below `items` has room for its outputs;
    // the memory lives to the end.
    let ready = unsafe { Ready::new(device, &kernel, kernel.grid(device.sms().max(1)), None, args)? };
    bench.run(|stream| ready.queue(stream))?;
    let written = words::read(&output)?.iter().filter(|word| **word == 1).count();
    if taker == Taker::Block {
        agree(&kernel.unit.key, "the end", written as u32, (ITEMS * CHANNELS) as u32)?;
    }
    Ok(written as f64 / (ITEMS * CHANNELS) as f64)
}
