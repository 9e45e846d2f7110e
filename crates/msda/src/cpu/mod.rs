//! The CPU backend: one generic body for every instruction set, on the threads of the current rayon
//! pool.
//!
//! Both passes turn a query's samples into weighted rows (`taps`) and visit query after query, in
//! an order that reuses the cache (`order`). Forward sums the rows. Backward takes their dot
//! products with the output's gradient, and adds to rows of the value's gradient that one task
//! owns. No sum depends on the division of the work: the result has the same bits for any number of
//! threads.

#![allow(unsafe_code)]

mod backward;
mod bounds;
mod chain;
mod forward;
mod order;
mod parts;
mod place;
mod pool;
#[cfg(feature = "measure")]
pub mod probe;
mod query;
mod reach;
mod rows;
mod scatter;
mod simd;
mod taps;
mod writer;

#[cfg(not(test))]
use half::{bf16, f16};

pub use self::simd::Isa;

use self::parts::Part;
use self::pool::Pool;
use self::rows::CallInputs;
use self::simd::{Detected, Lane};
use self::taps::{FAR, Grid, Map};
use self::writer::Writer;
use crate::buffer::try_reserved;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::op::{self, Backend, Gradients, Inputs};
use crate::problem::Problem;
use crate::threads;
use crate::view::{View, ViewMut};

/// The most multiplications and additions of a call that other threads would not make faster. They
/// take about as long as two threads need to wake.
const SMALL: usize = 1 << 16;

/// The CPU backend with one instruction set. Runs on the current rayon thread pool, or on threads
/// of the caller ([`with_threads`](crate::with_threads)); small calls, and without these all calls,
/// run on the calling thread.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    isa: Detected,
    alone: bool,
}

impl Cpu {
    /// The fastest instruction set this machine has.
    pub fn new() -> Self {
        Self { isa: Detected::best(), alone: false }
    }

    /// A particular instruction set, if this machine has it.
    pub fn with_isa(isa: Isa) -> Result<Self> {
        Ok(Self { isa: Detected::new(isa)?, alone: false })
    }

    /// The same on the calling thread alone.
    pub fn on_calling_thread(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Whether a call runs on the calling thread alone.
    pub fn runs_alone(&self, p: &Problem) -> bool {
        // A sample is a weighted sum of four rows. The backward pass also clears the value's
        // gradient.
        let sizes = [p.batch(), p.queries(), p.heads(), p.channels(), p.samples(), 4];
        let sums = sizes.into_iter().try_fold(1usize, usize::checked_mul);
        self.alone || sums.is_some_and(|sums| sums.max(p.value_len()) <= SMALL)
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa.isa()
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

/// Evaluates `$body` with `$t` as the element type that `$dtype` names.
///
/// The unit tests of this crate call no backend. They are built with `f32` alone: with all types
/// they would take as long to compile as the library. The tests in `tests/` use the library.
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            Dtype::F32 => with_type!(@ f32, $t => $body),
            #[cfg(not(test))]
            Dtype::F64 => with_type!(@ f64, $t => $body),
            #[cfg(not(test))]
            Dtype::F16 => with_type!(@ f16, $t => $body),
            #[cfg(not(test))]
            Dtype::Bf16 => with_type!(@ bf16, $t => $body),
            #[cfg(test)]
            other => unreachable!("unit tests compute in f32, got {other}"),
        }
    };
    (@ $element:ty, $t:ident => $body:expr) => {{
        type $t = $element;
        $body
    }};
}

impl Backend for Cpu {
    fn name(&self) -> String {
        format!("cpu-{}", self.isa())
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        let call = Call { isa: self.isa, rows: CallInputs { p, args: op::check_inputs(p, inputs)? } };
        let strides = op::check_output(p, &output)?;
        threads::run(
            self.runs_alone(p),
            || with_type!(p.types().value, T => call.forward(writer::<T>(output, strides))),
        )
    }

    fn backward(
        &self,
        p: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()> {
        let call = Call { isa: self.isa, rows: CallInputs { p, args: op::check_inputs(p, inputs)? } };
        let (upstream, strides) = op::check_gradients(p, &call.rows.args, &grad_output, &gradients)?;
        threads::run(
            self.runs_alone(p),
            || with_type!(p.types().value, T => call.backward::<T>(upstream, gradients, strides)),
        )
    }
}

/// A writer of a checked tensor of the value's type.
fn writer<T: Lane>(view: ViewMut<'_>, strides: crate::Strides) -> Writer<T> {
    Writer::new(T::slice_mut(view.data).expect("checked"), strides)
}

/// A checked call.
struct Call<'a> {
    isa: Detected,
    rows: CallInputs<'a>,
}

/// Heads x samples of a query from which the working memory of a call is large.
const MANY_SAMPLES: usize = 1 << 16;

impl Call<'_> {
    /// Refuses a call whose working memory cannot be allocated. Threads allocate it later, where a
    /// failure would end the process.
    fn expect_memory(&self) -> Result<()> {
        let p = self.rows.p;
        let samples = p.heads() * p.samples();
        if samples > MANY_SAMPLES && p.output_len() > 0 {
            // Nearly 256 bytes per sample and thread.
            try_reserved::<[u8; 256]>(samples.saturating_mul(threads::count()))?;
        }
        Ok(())
    }

    /// The addresses of the levels in the value, relative to the first element of an image and
    /// head.
    fn value_map(&self, part: &Part, heads: usize) -> Map {
        let (p, value) = (self.rows.p, &self.rows.args.value);
        let position = value.strides[1];
        Map::new(p, part, heads, |l| {
            let level = &p.levels()[l];
            Grid {
                origin: (level.origin * position) as isize,
                row: (level.pitch * position) as isize,
                column: position as isize,
                far: level.h * level.pitch * position * value.data.dtype().size() > FAR,
            }
        })
    }
}

/// Calls `work` with stretches of `order` and working memory.
fn for_each_stretch<S: Send>(
    order: &[usize],
    scratch: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, &[usize]) + Sync + Send,
) {
    // Enough stretches to balance the threads, none so short that starting it shows.
    let len = (order.len() / (32 * threads::count())).clamp(2, 256);
    let pool = Pool::new(scratch);
    threads::for_each(order.len().div_ceil(len), |i| {
        let mut scratch = pool.take();
        work(&mut scratch, &order[i * len..order.len().min((i + 1) * len)]);
        pool.put(scratch);
    });
}
