//! Query after query: the working memory of a query, and the loop that visits queries and heads.

use std::ops::Range;

use super::parts::Part;
use super::rows::{Arithmetic, CallInputs};
use super::simd::{InstructionSet, Lane};
use super::taps::{Sampler, TapLists, Taps};
use crate::problem::Problem;

/// The working memory of a batch of queries: a few numbers for each sample of some heads.
#[derive(Debug)]
pub(super) struct QueryMemory<F> {
    /// Locations in pairs.
    pub(super) xy: Vec<F>,
    /// Attention weights.
    pub(super) att: Vec<F>,
    /// The logits of a head, in the fused form.
    logits: Vec<F>,
    pub(super) taps: TapLists<F>,
}

impl<F: Arithmetic> QueryMemory<F> {
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
        split: &mut PairIndex,
    ) {
        let Stretch { rows, sampler, part, heads, .. } = stretch;
        let Self { xy, att, logits, taps } = self;
        let n = heads.len() * sampler.samples;
        debug_assert!(pairs.len() * n <= att.len());
        for (i, &pair) in pairs.iter().enumerate() {
            let at = split.at(pair);
            let (xy, att) = (&mut xy[2 * i * n..2 * (i + 1) * n], &mut att[i * n..(i + 1) * n]);
            // SAFETY: the machine has `I`.
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
    pub(super) rows: CallInputs<'a>,
    pub(super) sampler: &'a Sampler<F>,
    pub(super) part: &'a Part,
    pub(super) heads: Range<usize>,
    /// (image, query) pairs as `image * queries + query`.
    pub(super) pairs: &'a [usize],
}

/// One head of a query, and a later head whose rows are prefetched.
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
    unsafe fn end_query<I: InstructionSet>(
        &mut self,
        at: [usize; 2],
        query: &QueryMemory<T::Acc>,
        first: usize,
    ) {
        let _ = (at, query, first);
    }
}

/// Samples whose rows are in flight at a time. Heads with fewer samples are prefetched several
/// heads ahead.
const AHEAD: usize = 16;

/// The number of heads from the visited one to the one whose rows are prefetched.
fn distance(samples: usize) -> usize {
    (AHEAD / samples.max(1)).max(1)
}

/// Visits the heads of query after query. The taps of later heads are always known, so that their
/// rows can be prefetched: `memory` holds two batches of queries.
///
/// # Safety
/// The machine must have `I`.
#[inline(always)]
pub(super) unsafe fn visit_all<I: InstructionSet, T: Lane>(
    stretch: &Stretch<'_, T::Acc>,
    memory: &mut [QueryMemory<T::Acc>; 2],
    visitor: &mut impl Visitor<T>,
) {
    let Stretch { rows, sampler, part, heads, pairs } = stretch;
    let (samples, batch) = (sampler.samples, batch(heads.len(), sampler.samples));
    let mut batches = pairs.chunks(batch);
    let mut split = PairIndex::new(rows.p);
    let Some(mut this) = batches.next() else { return };
    let mut following = batches.next().unwrap_or_default();
    let [mut current, mut next] = memory.each_mut();
    let mut ahead = Ahead::new(rows.p, this, heads.len(), samples);
    for _ in 0..distance(samples) {
        ahead.advance(this, following);
    }
    // SAFETY: the machine has `I`.
    unsafe {
        for &pair in this.iter().chain(following) {
            let at = split.at(pair);
            rows.prefetch(at, heads.clone(), part);
            visitor.prefetch(at);
        }
        current.prepare::<I, T>(stretch, this, &mut split);
        loop {
            let later = batches.next().unwrap_or_default();
            for &pair in later {
                let at = split.at(pair);
                rows.prefetch(at, heads.clone(), part);
                visitor.prefetch(at);
            }
            if !following.is_empty() {
                next.prepare::<I, T>(stretch, following, &mut split);
            }
            let mut first = 0;
            for &pair in this {
                let ([image, query], start) = (split.at(pair), first);
                for (k, head) in heads.clone().enumerate() {
                    let lists = if ahead.in_following { &next.taps } else { &current.taps };
                    visitor.visit::<I>(Step {
                        at: [image, query, head],
                        k,
                        taps: current.taps.starting_at(first),
                        next: [ahead.at[0], ahead.at[1], heads.start + ahead.k],
                        next_taps: lists.starting_at(ahead.first),
                    });
                    first += samples;
                    ahead.advance(this, following);
                }
                visitor.end_query::<I>([image, query], current, start);
            }
            if following.is_empty() {
                return;
            }
            (this, following) = (following, later);
            ahead.in_following = false;
            std::mem::swap(&mut current, &mut next);
        }
    }
}

/// The head whose rows are prefetched, in this batch of queries or in the following one.
struct Ahead {
    in_following: bool,
    /// Its query's number in the batch.
    i: usize,
    /// Its number among the visited heads.
    k: usize,
    /// Its first sample in the batch.
    first: usize,
    /// Its (image, query).
    at: [usize; 2],
    heads: usize,
    samples: usize,
    split: PairIndex,
}

impl Ahead {
    /// At the first head of a batch.
    fn new(p: &Problem, batch: &[usize], heads: usize, samples: usize) -> Self {
        let mut split = PairIndex::new(p);
        let at = split.at(batch[0]);
        Self { in_following: false, i: 0, k: 0, first: 0, at, heads, samples, split }
    }

    /// Moves to the next head. After the last head comes the last head again: its rows are
    /// prefetched once more, which costs less than a condition.
    #[inline(always)]
    fn advance(&mut self, this: &[usize], following: &[usize]) {
        if self.k + 1 < self.heads {
            self.k += 1;
            self.first += self.samples;
            return;
        }
        let batch = if self.in_following { following } else { this };
        if let Some(&pair) = batch.get(self.i + 1) {
            self.i += 1;
            self.first += self.samples;
            self.at = self.split.at(pair);
        } else if !self.in_following
            && let Some(&pair) = following.first()
        {
            (self.in_following, self.i, self.first) = (true, 0, 0);
            self.at = self.split.at(pair);
        } else {
            return;
        }
        self.k = 0;
    }
}

/// Splits pairs into (image, query). Pairs of one image follow each other: divisions are rare.
pub(super) struct PairIndex {
    queries: usize,
    image: usize,
}

impl PairIndex {
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
