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

/// Bytes a second at which random 128-byte rows can be read from a buffer of `bytes`, one for each thread when
/// `shared` is false. Nothing but reading: what any kernel that gathers rows from there can reach.
pub fn gather(isa: Isa, bytes: usize, shared: bool) -> f64 {
    assert!(isa.is_available(), "{isa} is not available");
    let rows = (bytes / (4 * ROW)).max(1);
    let common = shared.then(|| Aligned::filled(rows * ROW, 1.0f32));
    let count = 400_000;
    let times = rayon::broadcast(|ctx| {
        let mut r = Rng::new(ctx.index() as u64);
        let own = if shared { None } else { Some(Aligned::filled(rows * ROW, 1.0f32)) };
        let data: &[f32] = own.as_deref().or(common.as_deref()).unwrap_or(&[]);
        let order: Vec<u32> = (0..count).map(|_| r.below(rows) as u32).collect();
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let start = Instant::now();
            let mut sum = 0.0;
            isa.run(Gather { data, order: &order, sum: &mut sum });
            black_box(sum);
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    });
    times.iter().map(|t| (count * ROW * 4) as f64 / t).sum()
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
        let last = self.order.len() - 1;
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
