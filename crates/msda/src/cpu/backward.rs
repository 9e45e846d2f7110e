//! The backward pass.
//!
//! Gradients of locations and weights belong to a query ([`chain`](super::chain)). The gradient of
//! value belongs to a place ([`scatter`](super::scatter)): each task owns some rows of one image
//! and a few heads, and adds to them in the order of the queries. Where a task owns all rows that
//! its samples read, one pass over the queries computes both. Neither needs atomics, and no bit
//! depends on the number of threads.

use std::ops::Range;

use super::bounds::Bounds;
use super::chain::{ChainRule, CoordinateWriters, Derivatives};
use super::parts::{self, Part};
use super::place::{Fixed, Place, Slots};
use super::pool::Pool;
use super::query::{QueryMemory, Step, Stretch, Visitor, visit_all};
use super::reach::Reach;
use super::rows::{Arithmetic, widen};
use super::scatter::{Add, MoveAll, MoveTouched, map_in_place, map_packed, zero};
use super::simd::{InstructionSet, Kernel, Lane, MAX_LANES, prefetch_row};
use super::taps::Sampler;
use super::writer::{NumberWriter, Writer};
use super::{Call, for_each_stretch, order};
use crate::buffer::Aligned;
use crate::dtype::Float;
use crate::error::Result;
use crate::op::{GradientStrides, Gradients, Tensor};
use crate::problem::Problem;
use crate::threads;

impl Call<'_> {
    pub(super) fn backward<T: Lane>(
        &self,
        upstream: Tensor<'_>,
        gradients: Gradients<'_>,
        strides: GradientStrides,
    ) -> Result<()> {
        self.expect_memory()?;
        let writer = |view: Option<crate::ViewMut<'_>>, strides| {
            Option::zip(view, strides).map(|(view, strides)| NumberWriter::new(view.data, strides))
        };
        let to = CoordinateWriters::<T> {
            locations: writer(gradients.locations, strides.locations),
            weights: writer(gradients.weights, strides.weights),
            reference: writer(gradients.reference, strides.reference),
        };
        let value = gradients.value.zip(strides.value).map(|(view, strides)| super::writer(view, strides));
        let p = self.rows.p;
        let order = if p.output_len() == 0 { Vec::new() } else { order::queries(&self.rows)? };
        let pass = Pass { call: self, order: &order, upstream, to };
        let done = value.map(|value| pass.value(value)).transpose()?;
        if to.any() && done != Some(true) {
            pass.coordinates();
        }
        Ok(())
    }
}

/// A backward pass.
struct Pass<'a, T> {
    call: &'a Call<'a>,
    order: &'a [usize],
    upstream: Tensor<'a>,
    to: CoordinateWriters<T>,
}

impl<T: Lane> Pass<'_, T> {
    /// Computes the gradients of locations, weights and reference points alone.
    fn coordinates(&self) {
        let (call, p) = (self.call, self.call.rows.p);
        if p.output_len() == 0 {
            self.zero_reference();
            return;
        }
        let part = &Part::all(p);
        let map = call.value_map(part, p.heads());
        let sampler = &Sampler::new(p, part, p.heads(), Some(map), None);
        for_each_stretch(
            self.order,
            || Scratch::new(p, p.heads(), true),
            |scratch, pairs| {
                let stretch = Stretch { rows: call.rows, sampler, part, heads: 0..p.heads(), pairs };
                self.run::<Fixed<T::Acc>>(stretch, scratch, None);
            },
        );
    }

    /// Without heads no task visits the queries, yet reference points have a gradient: zero.
    fn zero_reference(&self) {
        let rows = &self.call.rows;
        let (Some(to), Some((kind, _))) = (self.to.reference, rows.args.reference) else { return };
        let queries = rows.p.queries();
        for pair in 0..rows.p.batch() * queries {
            for l in 0..rows.p.levels().len() {
                let zeros = &[T::Acc::ZERO; 4][..kind.dim()];
                let index = [pair / queries, pair % queries, l];
                self.call.isa.run(Write { to, index, zeros });
            }
        }
    }

    /// Computes the gradient of value, and the other gradients too where one pass can: returns
    /// whether it did.
    fn value(&self, value: Writer<T>) -> Result<bool> {
        let (call, p) = (self.call, self.call.rows.p);
        let nothing = p.weights_len() == 0;
        let keep = Keep::choose::<T>(p);
        // All sums are moved to the gradient, but there are none between the levels.
        let pixels = p.levels().iter().map(|level| level.h * level.w).sum::<usize>();
        let zeroes = nothing || keep != Keep::All || pixels < p.positions();
        let zero = |image| {
            if zeroes {
                zero(p, value.starting_at([image, 0, 0]));
            }
        };
        if nothing {
            // Without elements there may be any number of images.
            threads::for_each(if p.value_len() > 0 { p.batch() } else { 0 }, zero);
            return Ok(false);
        }
        let division = Division::new::<T>(p, keep);
        let Division { parts, group, largest } = &division;
        let group = *group;
        let groups = p.heads().div_ceil(group);
        let both = self.to.any() && self.one_pass(&division);
        let banded = parts.iter().any(|part| !part.has_whole_levels(p));
        let reach = banded.then(|| Reach::new::<T>(call, self.order, parts)).transpose()?;
        let pool = Pool::new(|| {
            let rows = |wanted| if keep == wanted { group * largest } else { 0 };
            let heads = if keep == Keep::Touched { group } else { 0 };
            let sums = Sums {
                packed: Aligned::filled(rows(Keep::All) * p.channels(), T::Acc::ZERO),
                slots: Slots::new(p, heads, rows(Keep::Touched), value.strides),
            };
            (Scratch::new(p, group, both), sums, Vec::new())
        });
        // Image after image: a thread that zeroes an image and adds to all its heads finds it in
        // its caches. Threads without an image take heads and parts of the others.
        threads::for_each_outer(p.batch(), |image| {
            zero(image);
            threads::for_each_in_order(groups * parts.len(), |task| {
                let mut memory = pool.take();
                let (scratch, sums, pairs) = &mut memory;
                let (i, first) = (task / groups, task % groups * group);
                let part = &parts[i];
                let heads = first..(first + group).min(p.heads());
                let all = &self.order[image * p.queries()..(image + 1) * p.queries()];
                let pairs = match &reach {
                    Some(reach) if !part.has_whole_levels(p) => {
                        reach.select(self.order, image, heads.clone(), i, pairs);
                        pairs
                    }
                    _ => all,
                };
                let to = value.starting_at([image, 0, first]);
                self.add(ValueTask { keep, part, heads, pairs, both, to }, scratch, sums);
                pool.put(memory);
            });
        });
        Ok(both)
    }

    /// Whether one pass computes all gradients: it is faster for small images, and every task of
    /// the division must read only rows that it owns. A softmax needs all samples of a head, and a
    /// reference point all heads of a query.
    fn one_pass(&self, division: &Division) -> bool {
        let p = self.call.rows.p;
        let fused = self.call.rows.args.reference.is_some();
        let image = p.positions() * p.heads() * p.channels() * p.types().value.size();
        image <= SMALL_IMAGE
            && division.parts.iter().all(|part| part.has_whole_levels(p))
            && (!fused || division.parts.len() == 1)
            && (self.to.reference.is_none() || division.group == p.heads())
    }

    /// Adds queries to the sums of a task, and moves these to the gradient.
    fn add(&self, task: ValueTask<'_, T>, scratch: &mut Scratch<T::Acc>, sums: &mut Sums<T::Acc>) {
        let (call, p) = (self.call, self.call.rows.p);
        let ValueTask { keep, part, heads, pairs, both, to } = task;
        let map = match keep {
            Keep::InPlace => map_in_place(p, part, heads.len(), to.strides[1]),
            Keep::Touched => map_in_place(p, part, heads.len(), 1),
            Keep::All => map_packed(p, part, heads.len()),
        };
        let value = both.then(|| call.value_map(part, heads.len()));
        let sampler = &Sampler::new(p, part, heads.len(), value, Some(map));
        let stretch = Stretch { rows: call.rows, sampler, part, heads: heads.clone(), pairs };
        match keep {
            Keep::InPlace => {
                let place = Fixed { sums: to.element(0).cast(), apart: to.strides[2], bounds: to.bounds };
                self.run(stretch, scratch, Some(place));
            }
            // For other types the code is not even compiled: it is large.
            Keep::Touched if const { size_of::<T>() < size_of::<T::Acc>() } => {
                self.run(stretch, scratch, Some(&mut sums.slots));
                call.isa.run(MoveTouched { slots: &mut sums.slots, channels: p.channels(), to });
            }
            Keep::Touched => unreachable!("sums have the gradient's type"),
            Keep::All => {
                let apart = part.pixels(p) * p.channels();
                let bounds = Bounds::of(&sums.packed);
                let place = Fixed { sums: sums.packed.as_mut_ptr(), apart, bounds };
                self.run(stretch, scratch, Some(place));
                call.isa.run(MoveAll { p, part, sums: &mut sums.packed, to, heads });
            }
        }
    }

    fn run<P: Place<T::Acc>>(
        &self,
        stretch: Stretch<'_, T::Acc>,
        scratch: &mut Scratch<T::Acc>,
        place: Option<P>,
    ) {
        let value = T::slice(&self.call.rows.args.value.data).expect("checked");
        let (upstream, to) = (self.upstream, self.to);
        self.call.isa.run(Backward { stretch, scratch, upstream, value, to, place });
    }
}

struct Write<'a, T: Lane> {
    to: NumberWriter<T>,
    index: [usize; 3],
    zeros: &'a [T::Acc],
}

impl<T: Lane> Kernel for Write<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        // SAFETY: the machine has `I`; a checked row, and no other thread writes.
        unsafe { self.to.write::<I>(self.index, 0, 1, self.zeros) };
    }
}

/// Bytes of an image's value up to which one backward pass is faster than two. One pass visits the
/// queries once per few heads: a larger image exceeds L2 and the TLB each time.
const SMALL_IMAGE: usize = 2 << 20;

/// The most working memory of a task for sums.
const SUMS_BYTES: usize = 4 << 20;

/// Where sums are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// In the gradient: few rows are touched, and sums have the gradient's type.
    InPlace,
    /// In a slot per touched row: few rows are touched, and sums are wider than the gradient.
    Touched,
    /// In a packed copy of all rows: nearly all rows are touched, many times.
    All,
}

impl Keep {
    fn choose<T: Lane>(p: &Problem) -> Self {
        // Few queries leave most of a plane untouched; many touch nearly all of it.
        let few = p.queries().saturating_mul(p.samples()) < p.positions();
        match few {
            true if T::DTYPE == T::Acc::DTYPE => Self::InPlace,
            // Every position of a head has a slot number, whatever the part: the numbers take at
            // most a quarter of the memory for sums.
            true if p.positions() <= SUMS_BYTES / 4 / size_of::<u32>() => Self::Touched,
            _ => Self::All,
        }
    }

    /// Bytes of working memory per position of one head.
    fn bytes<F: Arithmetic>(self, p: &Problem) -> usize {
        match self {
            Self::InPlace => 0,
            Self::Touched => Slots::<F>::bytes(p),
            Self::All => p.channels() * size_of::<F>(),
        }
    }
}

/// The division of the value's gradient among tasks.
struct Division {
    parts: Vec<Part>,
    /// Heads per task.
    group: usize,
    /// Pixels of the largest part.
    largest: usize,
}

impl Division {
    fn new<T: Lane>(p: &Problem, keep: Keep) -> Self {
        let bytes = keep.bytes::<T::Acc>(p);
        let planes = (p.batch() * p.heads()).max(1);
        let wanted = (2 * threads::count()).div_ceil(planes);
        // One thread has nobody to share with.
        let wanted = if threads::count() == 1 { 1 } else { wanted };
        let parts = parts::divide(p, wanted, SUMS_BYTES.checked_div(bytes).unwrap_or(usize::MAX));
        let largest = parts.iter().map(|part| part.pixels(p)).max().unwrap_or(0);
        // With few points, enough heads to fill vector registers with samples. All threads must
        // have work, and the sums must stay small.
        let fill = MAX_LANES / p.samples().max(1);
        let share = planes * parts.len() / (2 * threads::count());
        let fit = SUMS_BYTES / (largest * bytes).max(1);
        let group = fill.min(share).min(fit).clamp(1, p.heads().max(1));
        Self { parts, group, largest }
    }
}

/// One task of the value's gradient.
struct ValueTask<'a, T> {
    keep: Keep,
    part: &'a Part,
    heads: Range<usize>,
    pairs: &'a [usize],
    /// Whether the gradients of locations and weights are computed too.
    both: bool,
    /// The gradient from the first of the heads on.
    to: Writer<T>,
}

/// Working memory for sums. They are zero between tasks.
struct Sums<F> {
    packed: Aligned<F>,
    slots: Slots<F>,
}

/// Working memory of a task for its queries.
struct Scratch<F> {
    memory: [QueryMemory<F>; 2],
    /// The output's gradient, padded with zeros to whole registers.
    gradient: Vec<F>,
    derivatives: Option<Derivatives<F>>,
}

impl<F: Arithmetic> Scratch<F> {
    fn new(p: &Problem, heads: usize, derivatives: bool) -> Self {
        Self {
            memory: [QueryMemory::new(p, heads), QueryMemory::new(p, heads)],
            gradient: vec![F::ZERO; p.channels().next_multiple_of(MAX_LANES)],
            derivatives: derivatives.then(|| Derivatives::new(p, heads)),
        }
    }
}

/// The backward pass over a stretch of queries: the chain rule where there is memory for
/// derivatives, and the gradient of value where there is a place for its sums.
struct Backward<'a, T: Lane, P> {
    stretch: Stretch<'a, T::Acc>,
    scratch: &'a mut Scratch<T::Acc>,
    upstream: Tensor<'a>,
    value: &'a [T],
    to: CoordinateWriters<T>,
    place: Option<P>,
}

impl<T: Lane, P: Place<T::Acc>> Kernel for Backward<'_, T, P> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let Self { stretch, scratch, upstream, value, to, place } = self;
        let Scratch { memory, gradient, derivatives } = scratch;
        let Stretch { rows, sampler, part, heads, .. } = &stretch;
        let (rows, sampler, part) = (*rows, *sampler, *part);
        let chain = derivatives.as_mut().zip(sampler.value.as_ref()).map(|(derivatives, map)| {
            let heads = heads.clone();
            ChainRule { rows, sampler, map, part, heads, value, to, derivatives }
        });
        let add = place.zip(sampler.sums.as_ref()).map(|(place, map)| Add {
            map,
            first: heads.start,
            channels: rows.p.channels(),
            place,
        });
        let channels = rows.p.channels();
        let mut visitor = GradientVisitor { upstream, gradient, heads: heads.clone(), channels, chain, add };
        // SAFETY: the machine has `I`.
        unsafe { visit_all::<I, T>(&stretch, memory, &mut visitor) };
    }
}

struct GradientVisitor<'a, T: Lane, P> {
    upstream: Tensor<'a>,
    gradient: &'a mut [T::Acc],
    heads: Range<usize>,
    channels: usize,
    chain: Option<ChainRule<'a, T>>,
    add: Option<Add<'a, P>>,
}

impl<T: Lane, P: Place<T::Acc>> Visitor<T> for GradientVisitor<'_, T, P> {
    #[inline(always)]
    fn prefetch(&self, at: [usize; 2]) {
        let Some(upstream) = T::slice(&self.upstream.data) else { return };
        for head in self.heads.clone() {
            let row = self.upstream.at([at[0], at[1], head]);
            prefetch_row(upstream.as_ptr().wrapping_add(row), self.channels);
        }
    }

    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(&mut self, step: Step<'_, T::Acc>) {
        // SAFETY: the machine has `I`. Taps on the maps lie within the checked value and within the
        // sums of this task.
        unsafe {
            let row = &mut self.gradient[..self.channels];
            widen::<I, T>(&self.upstream.data, self.upstream.at(step.at), row);
            if let Some(chain) = &mut self.chain {
                chain.visit::<I>(&step, self.gradient);
            }
            if let Some(add) = &mut self.add {
                add.visit::<I, T>(&step, self.gradient);
            }
        }
    }

    #[inline(always)]
    unsafe fn end_query<I: InstructionSet>(
        &mut self,
        at: [usize; 2],
        query: &QueryMemory<T::Acc>,
        first: usize,
    ) {
        if let Some(chain) = &mut self.chain {
            // SAFETY: the machine has `I`; a query's heads on a part belong to one task.
            unsafe { chain.end_query::<I>(at, query, first) };
        }
    }
}
