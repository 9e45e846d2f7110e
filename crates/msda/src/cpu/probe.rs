//! The speed limits of the machine, which times are compared with.
//!
//! All probes run on every thread of the current rayon pool and return the rate of all of them
//! together.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::parts::Part;
use super::query::{QueryMemory, Step, Stretch, Visitor, visit_all};
use super::rows::CallInputs;
use super::simd::{Detected, InstructionSet, Isa, Kernel, MAX_LANES, Reg, prefetch_row};
use super::taps::{Body, Map, Prefetch, Sampler, Walk};
use super::{Call, order};
use crate::buffer::Aligned;
use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::op::{self, Inputs};
use crate::problem::Problem;
use crate::rng::Rng;

/// Elements of a row: 32 channels of `f32`, two cache lines.
const ROW: usize = 32;

/// Rates of all threads of the current rayon pool together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ceilings {
    /// Operations per second of fused multiply-adds on `f32`.
    pub multiply_add: f64,
    /// Bytes per second of rows read from first to last, of a pyramid per thread.
    pub stream: f64,
    /// Bytes per second of random rows, from a buffer per thread that fits into L2.
    pub gather_l2: f64,
    /// Bytes per second of random rows, from one pyramid.
    pub gather_memory: f64,
}

/// Bytes of a buffer that fits into L2 and not into L1, and of a value pyramid.
const IN_L2: usize = 512 << 10;
const PYRAMID: usize = 20 << 20;

/// The longest time for all ceilings.
const LONGEST: Duration = Duration::from_secs(10);

/// Measures the ceilings in turn, until none has risen by a hundredth for the time `settle`. The
/// best rate counts, so other programs and a slow clock do not show, unless they last as long. An
/// error where this machine lacks `isa`.
pub fn ceilings(isa: Isa, settle: Duration) -> Result<Ceilings> {
    let isa = Detected::new(isa)?;
    let threads = rayon::current_num_threads();
    let pyramids = buffer(threads * PYRAMID);
    let mut best = Ceilings::default();
    let begin = Instant::now();
    let mut risen = begin;
    loop {
        // Pages of a new buffer lie elsewhere, and fewer of them may share sets of L2.
        let in_l2 = buffer(threads * IN_L2);
        let of_thread = |thread: usize, bytes: usize| thread * rows(bytes)..(thread + 1) * rows(bytes);
        let rates = [
            (&mut best.multiply_add, multiply_add(isa)),
            (&mut best.stream, read(isa, &pyramids, |t| of_thread(t, PYRAMID).collect())),
            (&mut best.gather_l2, read(isa, &in_l2, |t| random(of_thread(t, IN_L2), t))),
            (&mut best.gather_memory, read(isa, &pyramids, |t| random(of_thread(0, PYRAMID), t))),
        ];
        for (best, rate) in rates {
            if rate > 1.01 * *best {
                risen = Instant::now();
            }
            *best = best.max(rate);
        }
        if risen.elapsed() >= settle || begin.elapsed() >= LONGEST {
            return Ok(best);
        }
    }
}

/// Rounds of a probe. The best one counts.
const ROUNDS: usize = 3;

/// Rows read per thread and round, at least: more than a millisecond.
const READ: usize = 400_000;

fn buffer(bytes: usize) -> Aligned<f32> {
    Aligned::filled(bytes / size_of::<f32>(), 1.0)
}

fn rows(bytes: usize) -> usize {
    bytes / (ROW * size_of::<f32>())
}

/// Random rows of some, twice as many: the list takes an eighth of the bytes of the rows.
fn random(rows: Range<usize>, seed: usize) -> Vec<usize> {
    let mut r = Rng::new(seed as u64);
    (0..2 * rows.len()).map(|_| rows.start + r.below(rows.len())).collect()
}

/// Bytes per second at which every thread reads the rows that `list` gives it, again and again. It
/// does nothing else: no kernel that reads rows from there is faster.
fn read(isa: Detected, data: &[f32], list: impl Fn(usize) -> Vec<usize> + Sync) -> f64 {
    best_rate(|thread| {
        let starts: Vec<usize> = list(thread).into_iter().map(|row| row * ROW).collect();
        let times = READ.div_ceil(starts.len());
        move || {
            let mut sum = 0.0;
            for _ in 0..times {
                isa.run(Gather { data, starts: &starts, sum: &mut sum });
                black_box(sum);
            }
            (times * starts.len() * ROW * 4) as f64
        }
    })
}

/// Bytes of rows that the forward pass reads, and bytes per second when the same rows are only
/// loaded, in the same order. This is the time of a forward pass in which locating samples and
/// summing rows cost nothing. For `f32` values of 32 channels.
pub fn replay(isa: Isa, p: &Problem, inputs: &Inputs<'_>) -> Result<(f64, f64)> {
    let isa = Detected::new(isa)?;
    let call = Call { isa, rows: CallInputs { p, args: op::check_inputs(p, inputs)? } };
    let Some(value) = f32::slice(&call.rows.args.value.data).filter(|_| p.channels() == ROW) else {
        let got = format!("{} {}", p.channels(), p.types().value);
        return Err(Error::new(ErrorKind::Unsupported, "channels to replay", got, format!("{ROW} f32")));
    };
    let part = &Part::all(p);
    let map = call.value_map(part, p.heads());
    let sampler = &Sampler::new(p, part, p.heads(), Some(map), None);
    let pairs = &order::queries(&call.rows)?;
    let mut starts = Vec::new();
    let stretch = Stretch { rows: call.rows, sampler, part, heads: 0..p.heads(), pairs };
    isa.run(ListRows { stretch, starts: &mut starts });
    let threads = rayon::current_num_threads();
    let rate = best_rate(|thread| {
        let part = |i: usize| i * starts.len() / threads;
        let order = &starts[part(thread)..part(thread + 1)];
        move || {
            let mut sum = 0.0;
            isa.run(Gather { data: value, starts: order, sum: &mut sum });
            black_box(sum);
            (order.len() * ROW * 4) as f64
        }
    });
    Ok(((starts.len() * ROW * 4) as f64, rate))
}

/// Lists the first elements of the rows that the forward pass reads, in its order.
struct ListRows<'a> {
    stretch: Stretch<'a, f32>,
    starts: &'a mut Vec<usize>,
}

impl Kernel for ListRows<'_> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let rows = self.stretch.rows;
        let (p, Some(map)) = (rows.p, &self.stretch.sampler.value) else { return };
        let mut memory = [QueryMemory::new(p, p.heads()), QueryMemory::new(p, p.heads())];
        let mut list = Starts { rows, map, plane: 0, starts: self.starts };
        // SAFETY: the machine has `I`.
        unsafe { visit_all::<I, f32>(&self.stretch, &mut memory, &mut list) };
    }
}

struct Starts<'a> {
    rows: CallInputs<'a>,
    map: &'a Map,
    plane: usize,
    starts: &'a mut Vec<usize>,
}

impl Visitor<f32> for Starts<'_> {
    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(&mut self, step: Step<'_, f32>) {
        self.plane = self.rows.plane(step.at);
        // SAFETY: the taps were located on the map; they are only listed.
        unsafe { Walk::value(self.map, step.taps, step.next_taps).run(self) };
    }
}

impl Body<f32> for Starts<'_> {
    const PREFETCH: Prefetch = Prefetch::Never;

    unsafe fn prefetch(&self, _: isize) {}

    #[inline(always)]
    unsafe fn tap(&mut self, _: usize, at: isize, _: f32) {
        self.starts.push(self.plane.wrapping_add_signed(at));
    }
}

/// Floating-point operations per second of fused multiply-adds on `f32`.
fn multiply_add(isa: Detected) -> f64 {
    best_rate(|_| {
        move || {
            let (mut flops, mut sum) = (0.0, 0.0);
            isa.run(MultiplyAdd { flops: &mut flops, sum: &mut sum });
            black_box(sum);
            flops
        }
    })
}

/// Runs several rounds of work on every thread of the pool at once, and returns the work per second
/// of the best round.
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
    /// The first element of each row.
    starts: &'a [usize],
    sum: &'a mut f32,
}

impl Kernel for Gather<'_> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        const AHEAD: usize = 32;
        let lanes = I::F32::LANES;
        let Some(last) = self.starts.len().checked_sub(1) else { return };
        // SAFETY: the machine has `I`; every entry of `starts` begins a row of `data`.
        unsafe {
            let mut sums = [I::F32::splat(0.0); 8];
            for i in 0..self.starts.len() {
                let row = |i: usize| self.data.as_ptr().add(self.starts[i]);
                prefetch_row(row((i + AHEAD).min(last)), ROW);
                let from = row(i);
                let mut c = 0;
                while c * lanes < ROW {
                    sums[c] = sums[c].add(I::F32::load(from.add(c * lanes)));
                    c += 1;
                }
            }
            let mut quad = [0.0; MAX_LANES];
            I::F32::store_quad([sums[0], sums[1], sums[2], sums[3]], quad.as_mut_ptr(), false);
            *self.sum = quad.iter().sum();
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
            let mut lanes = [0.0; MAX_LANES];
            total.store(lanes.as_mut_ptr());
            *self.sum = lanes.iter().sum();
            *self.flops = (STEPS * CHAINS * I::F32::LANES * 2) as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Spec;

    #[test]
    fn rows_on_the_map_are_replayed() {
        let spec = Spec { batch: 1, queries: 1, heads: 2, channels: ROW, ..Spec::default() };
        let p = Problem::new(Spec { levels: vec![(3, 4)], points: vec![2], ..spec }).unwrap();
        let value = vec![0.0f32; p.value_len()];
        // Of each head one sample with four corners on the map, then one with two, and one far
        // away.
        let locations = vec![0.5f32, 0.5, 0.0, 0.5, 0.5, 0.5, 9.0, 9.0];
        let weights = vec![1.0f32; 4];
        let inputs = Inputs::plain(&value, &locations, &weights);
        let (bytes, rate) = replay(Isa::best(), &p, &inputs).unwrap();
        assert_eq!(bytes, (4 + 2 + 4) as f64 * 128.0);
        assert!(rate > 0.0);
        let narrow = p.with(|s| s.channels = 8).unwrap();
        let value = vec![0.0f32; narrow.value_len()];
        assert!(replay(Isa::best(), &narrow, &Inputs::plain(&value, &locations, &weights)).is_err());
    }
}
