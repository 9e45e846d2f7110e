//! What the machine can do at best: the ceilings that times are held against.
//!
//! Both probes run on every thread of the current rayon pool and return a rate for all of them together.

use std::hint::black_box;
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
    /// One buffer for all threads, each reading its part from front to back.
    InOrder,
}

/// Bytes a second at which 128-byte rows can be read, again and again, from a buffer of `bytes`. Nothing but reading:
/// what any kernel that takes rows from there can reach.
pub fn read(isa: Isa, bytes: usize, reading: Reading) -> f64 {
    assert!(isa.is_available(), "{isa} is not available");
    let rows = (bytes / (4 * ROW)).max(1);
    let shared = Aligned::filled(if reading == Reading::Own { 0 } else { rows * ROW }, 1.0f32);
    let rates = rayon::broadcast(|ctx| {
        let mut r = Rng::new(ctx.index() as u64);
        let own = Aligned::filled(if reading == Reading::Own { rows * ROW } else { 0 }, 1.0f32);
        let data: &[f32] = if reading == Reading::Own { &own } else { &shared };
        let order: Vec<u32> = match reading {
            Reading::InOrder => {
                let part = |k: usize| (rows * k / ctx.num_threads()) as u32;
                (part(ctx.index())..part(ctx.index() + 1)).collect()
            }
            _ => (0..400_000).map(|_| r.below(rows) as u32).collect(),
        };
        let mut best = f64::INFINITY;
        for _ in 0..7 {
            let start = Instant::now();
            let mut sum = 0.0;
            isa.run(Gather { data, order: &order, sum: &mut sum });
            black_box(sum);
            best = best.min(start.elapsed().as_secs_f64());
        }
        (order.len() * ROW * 4) as f64 / best
    });
    rates.iter().sum()
}

/// Floating-point operations a second of fused multiply-adds on `f32`.
pub fn multiply_add(isa: Isa) -> f64 {
    assert!(isa.is_available(), "{isa} is not available");
    let rates = rayon::broadcast(|_| {
        let mut best = 0.0f64;
        for _ in 0..5 {
            let (start, mut flops, mut sum) = (Instant::now(), 0.0, 0.0);
            isa.run(MultiplyAdd { flops: &mut flops, sum: &mut sum });
            black_box(sum);
            best = best.max(flops / start.elapsed().as_secs_f64());
        }
        best
    });
    rates.iter().sum()
}

struct Gather<'a> {
    data: &'a [f32],
    order: &'a [u32],
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
                let row = |i: usize| self.data.as_ptr().add(self.order[i] as usize * ROW);
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
        const ROUNDS: usize = 400_000;
        // SAFETY: the machine has `I`.
        unsafe {
            let (a, b) = (I::F32::splat(black_box(0.999)), I::F32::splat(black_box(0.001)));
            let mut sums = [b; CHAINS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = sum.mul_add(a, b);
                }
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total = total.add(*sum);
            }
            *self.sum = I::F32::sum4([total; 4])[0];
            *self.flops = (ROUNDS * CHAINS * I::F32::LANES * 2) as f64;
        }
    }
}
