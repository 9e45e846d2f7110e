//! What the machine can do at best: the ceilings that times are held against.
//!
//! Both probes run on every thread of the current rayon pool and return a rate for all of them together.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::simd::{InstructionSet, Isa, Kernel, Reg, prefetch_row};
use crate::buffer::Aligned;
use crate::rng::Rng;

/// Elements of a row: 32 channels of `f32`, two cache lines.
const ROW: usize = 32;

/// How rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Random rows of a buffer that every thread has for itself.
    Own,
    /// Random rows of one buffer for all threads.
    Shared,
    /// A buffer for each thread, read from front to back.
    InOrder,
}

/// Rounds of a probe; the best one counts.
const ROUNDS: usize = 7;

/// Bytes a second at which 128-byte rows can be read, again and again, from a buffer of `bytes`. Nothing but reading:
/// what any kernel that takes rows from there can reach. Read in order, each thread has its own part of that size.
pub fn read(isa: Isa, bytes: usize, reading: Reading) -> f64 {
    assert!(isa.is_available(), "{isa} is not available");
    let rows = (bytes / (4 * ROW)).max(1);
    let copies = if reading == Reading::Shared { 1 } else { rayon::current_num_threads() };
    let data = Aligned::filled(copies * rows * ROW, 1.0f32);
    best_rate(|thread| {
        let mut r = Rng::new(thread as u64);
        let first = if reading == Reading::Shared { 0 } else { thread * rows };
        let order: Vec<usize> = match reading {
            Reading::InOrder => (first..first + rows).collect(),
            _ => (0..400_000).map(|_| first + r.below(rows)).collect(),
        };
        let data = &data;
        move || {
            let mut sum = 0.0;
            isa.run(Gather { data, order: &order, sum: &mut sum });
            black_box(sum);
            (order.len() * ROW * 4) as f64
        }
    })
}

/// Floating-point operations a second of fused multiply-adds on `f32`.
pub fn multiply_add(isa: Isa) -> f64 {
    assert!(isa.is_available(), "{isa} is not available");
    best_rate(|_| {
        move || {
            let (mut flops, mut sum) = (0.0, 0.0);
            isa.run(MultiplyAdd { flops: &mut flops, sum: &mut sum });
            black_box(sum);
            flops
        }
    })
}

/// Lets every thread of the pool do a round of work at the same time, several times; work a second of the best round.
///
/// A round lasts until its last thread is done: threads that share a core do not count twice.
fn best_rate<W: FnMut() -> f64>(make: impl Fn(usize) -> W + Sync) -> f64 {
    let start_line = Barrier::new(rayon::current_num_threads());
    let threads = rayon::broadcast(|ctx| {
        let mut work = make(ctx.index());
        [(); ROUNDS].map(|()| {
            start_line.wait();
            let start = Instant::now();
            let done = work();
            (done, start.elapsed().as_secs_f64())
        })
    });
    let round = |i: usize| {
        let done: f64 = threads.iter().map(|t| t[i].0).sum();
        done / threads.iter().map(|t| t[i].1).fold(0.0, f64::max)
    };
    (0..ROUNDS).map(round).fold(0.0, f64::max)
}

struct Gather<'a> {
    data: &'a [f32],
    order: &'a [usize],
    sum: &'a mut f32,
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        const AHEAD: usize = 32;
        let lanes = I::F32::LANES;
        let Some(last) = self.order.len().checked_sub(1) else { return };
        // SAFETY: the machine has `I`; every entry of `order` is a row of `data`.
        unsafe {
            let mut sums = [I::F32::splat(0.0); 8];
            for i in 0..self.order.len() {
                let row = |i: usize| self.data.as_ptr().add(self.order[i] * ROW);
                prefetch_row(row((i + AHEAD).min(last)), ROW);
                let from = row(i);
                let mut c = 0;
                while c * lanes < ROW {
                    sums[c] = sums[c].add(I::F32::load(from.add(c * lanes)));
                    c += 1;
                }
            }
            *self.sum = I::F32::sum4([sums[0], sums[1], sums[2], sums[3]]).iter().sum();
        }
    }
}

struct MultiplyAdd<'a> {
    flops: &'a mut f64,
    sum: &'a mut f32,
}

impl Kernel for MultiplyAdd<'_> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        const CHAINS: usize = 10;
        const STEPS: usize = 400_000;
        // SAFETY: the machine has `I`.
        unsafe {
            let (a, b) = (I::F32::splat(black_box(0.999)), I::F32::splat(black_box(0.001)));
            let mut sums = [b; CHAINS];
            for _ in 0..STEPS {
                for sum in &mut sums {
                    *sum = sum.mul_add(a, b);
                }
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total = total.add(*sum);
            }
            *self.sum = I::F32::sum4([total; 4])[0];
            *self.flops = (STEPS * CHAINS * I::F32::LANES * 2) as f64;
        }
    }
}
