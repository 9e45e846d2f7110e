//! The forward pass: for each query and head, a weighted sum of rows.

use super::bounds::Bounds;
use super::parts::Part;
use super::query::{QueryMemory, Step, Stretch, Visitor, visit_all};
use super::rows::CallInputs;
use super::simd::{
    Block, InstructionSet, Kernel, Lane, Reg, for_each_block, load_block, prefetch_row, store_block,
};
use super::taps::{Body, Map, Prefetch, Sampler, Walk};
use super::writer::Writer;
use super::{Call, for_each_stretch, order};
use crate::dtype::Float;
use crate::error::Result;

impl Call<'_> {
    pub(super) fn forward<T: Lane>(&self, output: Writer<T>) -> Result<()> {
        let p = self.rows.p;
        // With nothing to compute, no tensor bounds sizes such as the points: allocate nothing.
        if p.output_len() == 0 {
            return Ok(());
        }
        self.expect_memory()?;
        let value = T::slice(&self.rows.args.value.data).expect("checked");
        let part = &Part::all(p);
        let map = self.value_map(part, p.heads());
        let sampler = &Sampler::new(p, part, p.heads(), Some(map), None);
        let memory = || [QueryMemory::new(p, p.heads()), QueryMemory::new(p, p.heads())];
        for_each_stretch(&order::queries(&self.rows)?, memory, |memory, pairs| {
            let stretch = Stretch { rows: self.rows, sampler, part, heads: 0..p.heads(), pairs };
            self.isa.run(Forward { stretch, memory, value, output });
        });
        Ok(())
    }
}

/// The forward pass over a stretch of queries.
struct Forward<'a, T: Lane> {
    stretch: Stretch<'a, T::Acc>,
    memory: &'a mut [QueryMemory<T::Acc>; 2],
    value: &'a [T],
    output: Writer<T>,
}

impl<T: Lane> Kernel for Forward<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let Some(map) = &self.stretch.sampler.value else { return };
        let rows = self.stretch.rows;
        let mut sums = SumVisitor { rows, map, value: self.value, output: self.output };
        // SAFETY: the machine has `I`.
        unsafe { visit_all::<I, T>(&self.stretch, self.memory, &mut sums) };
    }
}

struct SumVisitor<'a, T> {
    rows: CallInputs<'a>,
    map: &'a Map,
    value: &'a [T],
    output: Writer<T>,
}

impl<T: Lane> Visitor<T> for SumVisitor<'_, T> {
    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(&mut self, step: Step<'_, T::Acc>) {
        let channels = self.rows.p.channels();
        // Queries are not visited in the order of their rows: without this a store waits for
        // memory.
        prefetch_row(self.output.row(step.next), channels);
        let mut sum = Sum {
            bounds: Bounds::of(self.value),
            walk: Walk::value(self.map, step.taps, step.next_taps),
            plane: self.value.as_ptr().wrapping_add(self.rows.plane(step.at)),
            next: self.value.as_ptr().wrapping_add(self.rows.plane(step.next)),
            out: self.output.row_part(step.at, 0, channels),
        };
        // SAFETY: the machine has `I`. Taps lie within the levels, which lie within the checked
        // value; the output row belongs to this step alone.
        unsafe { for_each_block::<I, T>(channels, &mut sum) };
    }
}

/// `out[c]` = the sum over all taps of `weight * row[c]`.
struct Sum<'a, T: Lane> {
    walk: Walk<'a, T::Acc>,
    plane: *const T,
    next: *const T,
    out: *mut T,
    /// Of the value.
    bounds: Bounds,
}

impl<T: Lane> Block<T> for Sum<'_, T> {
    #[inline(always)]
    unsafe fn block<I: InstructionSet, const R: usize, const WHOLE: bool>(&mut self, c: usize, n: usize) {
        // SAFETY: the machine has `I`, and the output row has `n` channels from `c` on.
        unsafe {
            let mut body = SumBody::<I, T, R, WHOLE> {
                plane: self.plane.wrapping_add(c),
                next: self.next.wrapping_add(c),
                n,
                bounds: self.bounds,
                sums: [[T::R::<I>::splat(T::Acc::ZERO); R]; 4],
            };
            self.walk.run(&mut body);
            let mut sum = body.sums[0];
            for k in 1..chains(R) {
                for r in 0..R {
                    sum[r] = sum[r].add(body.sums[k][r]);
                }
            }
            store_block::<I, T, R, WHOLE>(sum, self.out.wrapping_add(c), n);
        }
    }
}

/// Sums per register of channels, so that additions do not wait for each other: together at most
/// half of the 16 registers of AVX2.
const fn chains(registers: usize) -> usize {
    if registers > 2 { 2 } else { 4 }
}

struct SumBody<I: InstructionSet, T: Lane, const R: usize, const WHOLE: bool> {
    plane: *const T,
    next: *const T,
    n: usize,
    bounds: Bounds,
    sums: [[T::R<I>; R]; 4],
}

impl<I: InstructionSet, T: Lane, const R: usize, const WHOLE: bool> Body<T::Acc> for SumBody<I, T, R, WHOLE> {
    const PREFETCH: Prefetch = Prefetch::Always;

    #[inline(always)]
    unsafe fn prefetch(&self, at: isize) {
        prefetch_row(self.next.wrapping_offset(at), R * T::R::<I>::LANES);
    }

    #[inline(always)]
    unsafe fn tap(&mut self, k: usize, at: isize, weight: T::Acc) {
        let row = self.plane.wrapping_offset(at);
        self.bounds.debug_assert(row, self.n);
        // SAFETY: the machine has `I`, and the row of a tap on the map has `n` channels from here
        // on.
        unsafe {
            let row = load_block::<I, T, R, WHOLE>(row, self.n);
            let weight = T::R::<I>::splat(weight);
            let sum = &mut self.sums[k % chains(R)];
            for r in 0..R {
                sum[r] = row[r].mul_add(weight, sum[r]);
            }
        }
    }
}
