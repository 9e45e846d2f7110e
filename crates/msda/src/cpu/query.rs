//! Query after query: the working memory of a query, and the loop that visits queries and heads.

use std::ops::Range;

use super::parts::Part;
use super::rows::{Arithmetic, Rows};
use super::simd::{InstructionSet, Lane};
use super::taps::{Sampler, TapLists, Taps};
use crate::problem::Problem;

/// The working memory of a batch of queries: a few numbers for each sample of some heads.
#[derive(Debug)]
pub(super) struct Query<F> {
    /// Locations in pairs.
    pub(super) xy: Vec<F>,
    /// Attention weights.
    pub(super) att: Vec<F>,
    /// The logits of a head, in the fused form.
    logits: Vec<F>,
    pub(super) taps: TapLists<F>,
}

impl<F: Arithmetic> Query<F> {
    /// For any part of some heads of as many queries as are prepared together.
    pub(super) fn new(p: &Problem, heads: usize) -> Self {
        let n = (heads * p.samples()).max(SAMPLES);
        Self {
            xy: vec![F::ZERO; 2 * n],
            att: vec![F::ZERO; n],
            logits: vec![F::ZERO; p.samples()],
            taps: TapLists::new(n),
        }
    }

    /// Computes the taps of some queries.
    ///
    /// # Safety
    /// The machine must have `I`.
    #[inline(always)]
    pub(super) unsafe fn prepare<I: InstructionSet, T: Lane<Acc = F>>(
        &mut self,
        stretch: &Stretch<'_, F>,
        pairs: &[usize],
        split: &mut Split,
    ) {
        let Stretch { rows, sampler, part, heads, .. } = stretch;
        let Self { xy, att, logits, taps } = self;
        let n = heads.len() * sampler.samples;
        for (i, &pair) in pairs.iter().enumerate() {
            let at = split.at(pair);
            let (xy, att) = (&mut xy[2 * i * n..2 * (i + 1) * n], &mut att[i * n..(i + 1) * n]);
            // SAFETY: the caller's.
            unsafe { rows.fill::<I, T>(at, heads.clone(), part, xy, att, logits) };
        }
        taps.locate(sampler, xy, att);
    }
}

/// Samples that are worth preparing together: they fill registers, and the inputs of the next batch
/// are prefetched early enough.
const SAMPLES: usize = 64;

/// The number of queries that are prepared together.
pub(super) fn batch(heads: usize, samples: usize) -> usize {
    (SAMPLES / (heads * samples).max(1)).max(1)
}

/// A stretch of queries, and the heads and part of the value that are visited for each.
#[derive(Debug, Clone)]
pub(super) struct Stretch<'a, F> {
    pub(super) rows: Rows<'a>,
    pub(super) sampler: &'a Sampler<F>,
    pub(super) part: &'a Part,
    pub(super) heads: Range<usize>,
    /// (image, query) pairs as `image * queries + query`.
    pub(super) pairs: &'a [usize],
}

/// One head of a query, and the head that is visited after it. After the last head comes the last
/// head again: its rows are prefetched once more, which costs less than a condition.
pub(super) struct Step<'a, F> {
    /// (image, query, head).
    pub(super) at: [usize; 3],
    /// The head's number among the visited ones.
    pub(super) k: usize,
    pub(super) taps: Taps<'a, F>,
    pub(super) next: [usize; 3],
    pub(super) next_taps: Taps<'a, F>,
}

/// The work of a pass on each (image, query, head). A trait, because a closure is not compiled for
/// the instruction set of its caller.
pub(super) trait Visitor<T: Lane> {
    /// # Safety
    /// The machine must have `I`. Implementations are `#[inline(always)]`.
    unsafe fn visit<I: InstructionSet>(&mut self, step: Step<'_, T::Acc>);

    /// Prefetches further inputs of a query that is visited soon.
    #[inline(always)]
    fn prefetch(&self, at: [usize; 2]) {
        let _ = at;
    }

    /// Called after the last head of a query, whose samples begin at `first` in `query`.
    ///
    /// # Safety
    /// As for [`Visitor::visit`].
    #[inline(always)]
    unsafe fn end_query<I: InstructionSet>(&mut self, at: [usize; 2], query: &Query<T::Acc>, first: usize) {
        let _ = (at, query, first);
    }
}

/// Visits the heads of query after query. The taps of the next head are always known, so that its
/// rows can be prefetched: `memory` holds two batches of queries.
///
/// # Safety
/// The machine must have `I`.
#[inline(always)]
pub(super) unsafe fn visit_all<I: InstructionSet, T: Lane>(
    stretch: &Stretch<'_, T::Acc>,
    memory: &mut [Query<T::Acc>; 2],
    visitor: &mut impl Visitor<T>,
) {
    let Stretch { rows, sampler, part, heads, pairs } = stretch;
    let (samples, batch) = (sampler.samples, batch(heads.len(), sampler.samples));
    let per_query = heads.len() * samples;
    let mut batches = pairs.chunks(batch);
    let mut split = Split::new(rows.p);
    let Some(mut this) = batches.next() else { return };
    let mut following = batches.next();
    let [mut current, mut next] = memory.each_mut();
    // SAFETY: the caller's.
    unsafe {
        for &pair in this.iter().chain(following.unwrap_or_default()) {
            let at = split.at(pair);
            rows.prefetch(at, heads.clone(), part);
            visitor.prefetch(at);
        }
        current.prepare::<I, T>(stretch, this, &mut split);
        loop {
            let later = batches.next();
            for &pair in later.unwrap_or_default() {
                let at = split.at(pair);
                rows.prefetch(at, heads.clone(), part);
                visitor.prefetch(at);
            }
            if let Some(following) = following {
                next.prepare::<I, T>(stretch, following, &mut split);
            }
            for (i, &pair) in this.iter().enumerate() {
                let [image, query] = split.at(pair);
                let first = i * per_query;
                let mut taps = current.taps.starting_at(first);
                for (k, head) in heads.clone().enumerate() {
                    let at = [image, query, head];
                    let (next, next_taps) = if head + 1 < heads.end {
                        ([image, query, head + 1], current.taps.starting_at(first + (k + 1) * samples))
                    } else if let Some(&pair) = this.get(i + 1) {
                        let [image, query] = split.at(pair);
                        ([image, query, heads.start], current.taps.starting_at(first + per_query))
                    } else if let Some(&pair) = following.and_then(|pairs| pairs.first()) {
                        let [image, query] = split.at(pair);
                        ([image, query, heads.start], next.taps.starting_at(0))
                    } else {
                        (at, taps)
                    };
                    visitor.visit::<I>(Step { at, k, taps, next, next_taps });
                    taps = next_taps;
                }
                visitor.end_query::<I>([image, query], current, first);
            }
            let Some(batch) = following else { return };
            (this, following) = (batch, later);
            std::mem::swap(&mut current, &mut next);
        }
    }
}

/// Splits pairs into (image, query). Pairs of one image follow each other: divisions are rare.
pub(super) struct Split {
    queries: usize,
    image: usize,
}

impl Split {
    pub(super) fn new(p: &Problem) -> Self {
        Self { queries: p.queries(), image: 0 }
    }

    #[inline(always)]
    fn at(&mut self, pair: usize) -> [usize; 2] {
        if pair.wrapping_sub(self.image * self.queries) >= self.queries {
            self.image = pair / self.queries;
        }
        [self.image, pair - self.image * self.queries]
    }
}
