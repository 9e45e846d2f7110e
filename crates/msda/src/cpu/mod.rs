//! The CPU backend: one generic body for every instruction set, threads by rayon.
//!
//! Both passes turn a query's samples into weighted rows (`taps`) and visit query after query, in an order that
//! keeps the cache warm (`order`): forward sums the rows; backward takes their dot products with the output's
//! gradient, and adds to rows of the value's gradient that one task owns. No sum depends on how the work was divided:
//! the result has the same bits for any number of threads.

#![allow(unsafe_code)]

mod backward;
mod chain;
mod forward;
mod order;
mod place;
pub mod probe;
mod rows;
mod scatter;
mod simd;
mod taps;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use rayon::prelude::*;

pub use self::simd::Isa;

use self::forward::{Forward, Sums};
use self::rows::{Arithmetic, Rows};
use self::simd::{InstructionSet, Lane};
use self::taps::{FAR, Grid, Sampler, TapLists, Taps};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::op::{self, Backend, Gradients, Inputs};
use crate::problem::Problem;
use crate::view::{View, ViewMut};

/// The CPU backend with a chosen instruction set. Runs on the current rayon thread pool.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    isa: Isa,
}

impl Cpu {
    /// The fastest instruction set this machine has.
    pub fn new() -> Self {
        Self { isa: Isa::best() }
    }

    /// A particular instruction set, if this machine has it.
    pub fn with_isa(isa: Isa) -> Result<Self> {
        if isa.is_available() {
            return Ok(Self { isa });
        }
        let have: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        Err(Error::new(
            ErrorKind::Unsupported,
            "instruction set",
            isa,
            format!("one this machine has: {}", have.join(", ")),
        ))
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Cpu {
    fn name(&self) -> String {
        format!("cpu-{}", self.isa)
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        let call = Call { isa: self.isa, rows: Rows { p, args: op::check_inputs(p, inputs)? } };
        let strides = op::check_output(p, &output)?;
        match p.types().value {
            Dtype::F64 => call.forward::<f64>(output, strides),
            Dtype::F32 => call.forward::<f32>(output, strides),
            Dtype::F16 => call.forward::<f16>(output, strides),
            Dtype::Bf16 => call.forward::<bf16>(output, strides),
        }
        Ok(())
    }

    fn backward(
        &self,
        p: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()> {
        let call = Call { isa: self.isa, rows: Rows { p, args: op::check_inputs(p, inputs)? } };
        let (upstream, strides) = op::check_gradients(p, &call.rows.args, &grad_output, &gradients)?;
        match p.types().value {
            Dtype::F64 => call.backward::<f64>(upstream, gradients, strides),
            Dtype::F32 => call.backward::<f32>(upstream, gradients, strides),
            Dtype::F16 => call.backward::<f16>(upstream, gradients, strides),
            Dtype::Bf16 => call.backward::<bf16>(upstream, gradients, strides),
        }
        Ok(())
    }
}

/// A checked call.
struct Call<'a> {
    isa: Isa,
    rows: Rows<'a>,
}

impl Call<'_> {
    fn forward<T: Lane>(&self, output: ViewMut<'_>, output_strides: crate::view::Strides) {
        let p = self.rows.p;
        // With nothing to compute, sizes such as the points are bounded by no tensor: allocate nothing.
        if p.output_len() == 0 {
            return;
        }
        let value = T::slice(&self.rows.args.value.data).expect("checked");
        let output = Shared(T::slice_mut(output.data).expect("checked").as_mut_ptr());
        let sampler = Sampler::new(p, self.value_grids(), p.heads());
        let two = || [Query::new(p, p.heads()), Query::new(p, p.heads())];
        for_each_chunk(&order::queries(&self.rows), two, |memory, pairs| {
            let sums = Sums { rows: self.rows, sampler: &sampler, value, output, output_strides };
            self.isa.run(Forward { sums, pairs, memory });
        });
    }

    /// The levels as the value tensor holds them, offsets relative to an image's and head's first element.
    fn value_grids(&self) -> Vec<Grid> {
        let p = self.rows.p;
        let position = self.rows.args.value.strides[1] as isize;
        let mut first = 0;
        p.levels()
            .iter()
            .zip(p.points())
            .map(|(level, &points)| {
                let samples = first..first + points;
                first += points;
                Grid {
                    w: level.w as i32,
                    h: level.h as i32,
                    origin: level.origin as isize * position,
                    row: level.pitch as isize * position,
                    column: position,
                    rows: 0..level.h as i32,
                    samples,
                    far: level.h * level.pitch * position as usize * self.rows.args.value.data.dtype().size()
                        > FAR,
                }
            })
            .collect()
    }
}

/// Runs `work` over stretches of `order`, on all threads of the pool, with working memory of its own.
fn for_each_chunk<S: Send>(
    order: &[usize],
    scratch: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, &[usize]) + Sync + Send,
) {
    // Enough chunks to even out the threads' speeds, none so small that handing it out shows.
    let chunk = (order.len() / (32 * rayon::current_num_threads())).clamp(2, 64);
    let pool = Pool::new(scratch);
    order.par_chunks(chunk).for_each(|pairs| {
        let mut scratch = pool.take();
        work(&mut scratch, pairs);
        pool.put(scratch);
    });
}

/// Working memory that tasks take and give back: no more is made than there are threads.
struct Pool<S, F> {
    make: F,
    idle: Mutex<Vec<S>>,
}

impl<S, F: Fn() -> S> Pool<S, F> {
    fn new(make: F) -> Self {
        Self { make, idle: Mutex::new(Vec::new()) }
    }

    fn take(&self) -> S {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| (self.make)())
    }

    fn put(&self, scratch: S) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}

/// The working memory of one query: a few numbers for each sample of some heads.
struct Query<F> {
    /// Samples of one head.
    samples: usize,
    /// Locations in pairs.
    xy: Vec<F>,
    /// Attention weights.
    att: Vec<F>,
    taps: TapLists<F>,
}

/// What a query's head reads.
#[derive(Clone, Copy)]
struct Item<'a, F> {
    xy: &'a [F],
    att: &'a [F],
    taps: Taps<'a, F>,
}

impl<F: Arithmetic> Query<F> {
    fn new(p: &Problem, heads: usize) -> Self {
        let n = heads * p.samples();
        Self { samples: p.samples(), xy: vec![F::ZERO; 2 * n], att: vec![F::ZERO; n], taps: TapLists::new(n) }
    }

    /// Works out the taps of some heads of a query.
    ///
    /// # Safety
    /// The machine must have `I`.
    #[inline(always)]
    unsafe fn prepare<I: InstructionSet, T: Lane<Acc = F>>(
        &mut self,
        rows: &Rows<'_>,
        sampler: &Sampler<F>,
        [image, query]: [usize; 2],
        heads: Range<usize>,
    ) {
        // SAFETY: the caller's.
        unsafe { rows.fill::<I, T>([image, query], heads, &mut self.xy, &mut self.att) };
        self.taps.locate(sampler, &self.xy, &self.att);
    }

    /// What the k-th of the heads reads.
    #[inline(always)]
    fn item(&self, k: usize) -> Item<'_, F> {
        let of = k * self.samples..(k + 1) * self.samples;
        Item { xy: &self.xy[2 * of.start..2 * of.end], att: &self.att[of.clone()], taps: self.taps.of(of) }
    }
}

/// What comes next: where it is, and its taps.
type Next<'a, F> = Option<([usize; 3], Taps<'a, F>)>;

/// What a pass does with each (image, query, head). A trait and not a closure: closures are not compiled for the
/// instruction set they are called under.
trait Visitor<T: Lane> {
    /// # Safety
    /// The machine must have `I`. Implementations are `#[inline(always)]`.
    unsafe fn visit<I: InstructionSet>(
        &mut self,
        at: [usize; 3],
        item: Item<'_, T::Acc>,
        next: Next<'_, T::Acc>,
    );
}

/// Visits some heads of query after query, with the working memory of two: when a head is visited, the next one's taps
/// are known, and its rows can be asked for.
///
/// # Safety
/// The machine must have `I`.
#[inline(always)]
unsafe fn pipeline<I: InstructionSet, T: Lane>(
    rows: &Rows<'_>,
    sampler: &Sampler<T::Acc>,
    pairs: &[usize],
    heads: Range<usize>,
    memory: &mut [Query<T::Acc>; 2],
    visitor: &mut impl Visitor<T>,
) {
    let queries = rows.p.queries();
    let place = |pair: usize| [pair / queries, pair % queries];
    let [mut next, mut current] = memory.each_mut();
    // SAFETY: the caller's.
    unsafe {
        for i in 0..=pairs.len() {
            if let Some(&pair) = pairs.get(i) {
                if let Some(&later) = pairs.get(i + 1) {
                    rows.prefetch(place(later), heads.clone());
                }
                next.prepare::<I, T>(rows, sampler, place(pair), heads.clone());
            }
            if i > 0 {
                let [image, query] = place(pairs[i - 1]);
                for (k, head) in heads.clone().enumerate() {
                    let following = match pairs.get(i) {
                        _ if head + 1 < heads.end => {
                            Some(([image, query, head + 1], current.item(k + 1).taps))
                        }
                        Some(&pair) => {
                            let [image, query] = place(pair);
                            Some(([image, query, heads.start], next.item(0).taps))
                        }
                        None => None,
                    };
                    visitor.visit::<I>([image, query, head], current.item(k), following);
                }
            }
            std::mem::swap(&mut next, &mut current);
        }
    }
}

/// A destination that threads share, each writing elements that are its own.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: every use writes elements that no other thread touches: the checked strides keep outer indices apart.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address of an element.
    #[inline(always)]
    fn at(self, element: usize) -> *mut T {
        self.0.wrapping_add(element)
    }
}
