//! Which queries reach which bands of rows, so that a task that owns a band skips the others.

use super::Call;
use super::parts::Part;
use super::pool::Pool;
use super::query::{PairIndex, QueryMemory, Stretch};
use super::simd::{InstructionSet, Kernel, Lane};
use super::taps::Sampler;
use crate::buffer::try_zeros;
use crate::error::Result;
use crate::problem::Problem;
use crate::threads;

/// Queries that share an entry. They follow each other in the order of the queries and look at
/// nearby places.
const CHUNK: usize = 16;

/// For each chunk of queries and each head, the parts that its samples fall on.
#[derive(Debug)]
pub(super) struct Reach {
    /// Bit `i % 64` is set when part `i` is reached.
    bits: Vec<u64>,
    /// Chunks of one image.
    chunks: usize,
    heads: usize,
    queries: usize,
}

impl Reach {
    pub(super) fn new<T: Lane>(call: &Call<'_>, order: &[usize], parts: &[Part]) -> Result<Self> {
        let p = call.rows.p;
        let (heads, queries) = (p.heads(), p.queries());
        let chunks = queries.div_ceil(CHUNK);
        let mut bits = try_zeros(p.batch() * chunks * heads)?;
        let (part, owners) = (&Part::all(p), &owners(p, parts));
        let sampler = &Sampler::<T::Acc>::new(p, part, heads, None, None);
        let pool = Pool::new(|| QueryMemory::new(p, heads));
        threads::for_each_chunk(&mut bits, heads, |i, bits| {
            let mut query = pool.take();
            let (image, chunk) = (i / chunks, i % chunks);
            let first = chunk * CHUNK;
            let pairs = &order[image * queries + first..image * queries + queries.min(first + CHUNK)];
            let stretch = Stretch { rows: call.rows, sampler, part, heads: 0..heads, pairs };
            call.isa.run(Mark::<T> { stretch, query: &mut query, owners, bits });
            pool.put(query);
        });
        Ok(Self { bits, chunks, heads, queries })
    }

    /// The pairs of an image that reach a part on some of its heads, in the order of the queries.
    pub(super) fn select(
        &self,
        order: &[usize],
        image: usize,
        heads: std::ops::Range<usize>,
        part: usize,
        pairs: &mut Vec<usize>,
    ) {
        pairs.clear();
        let order = &order[image * self.queries..(image + 1) * self.queries];
        for (chunk, of_chunk) in order.chunks(CHUNK).enumerate() {
            let first = (image * self.chunks + chunk) * self.heads;
            let bits = &self.bits[first + heads.start..first + heads.end];
            if bits.iter().any(|bits| bits >> (part % 64) & 1 != 0) {
                pairs.extend_from_slice(of_chunk);
            }
        }
    }
}

/// For each level and row, the bit of the part that owns it.
fn owners(p: &Problem, parts: &[Part]) -> Vec<Vec<u64>> {
    let mut owners: Vec<Vec<u64>> = p.levels().iter().map(|level| vec![0; level.h]).collect();
    for (i, part) in parts.iter().enumerate() {
        for (l, rows) in part.levels.clone().zip(&part.rows) {
            owners[l][rows.clone()].fill(1 << (i % 64));
        }
    }
    owners
}

/// Marks the parts that some queries reach.
struct Mark<'a, T: Lane> {
    stretch: Stretch<'a, T::Acc>,
    query: &'a mut QueryMemory<T::Acc>,
    owners: &'a [Vec<u64>],
    /// For each head.
    bits: &'a mut [u64],
}

impl<T: Lane> Kernel for Mark<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let Stretch { rows, sampler, part, pairs, .. } = &self.stretch;
        let mut split = PairIndex::new(rows.p);
        for &pair in *pairs {
            // SAFETY: the machine has `I`.
            unsafe { self.query.prepare::<I, T>(&self.stretch, &[pair], &mut split) };
            let taps = &self.query.taps;
            for (k, bits) in self.bits.iter_mut().enumerate() {
                for (l, owners) in self.owners.iter().enumerate() {
                    for s in part.samples_of(rows.p, l) {
                        let s = k * sampler.samples + s;
                        if taps.mask[s] != 0 {
                            let y = taps.y[s];
                            let lower = ((y + 1) as usize).min(owners.len() - 1);
                            *bits |= owners[y.max(0) as usize] | owners[lower];
                        }
                    }
                }
            }
        }
    }
}
