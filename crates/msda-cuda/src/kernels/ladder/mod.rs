//! The ladder: strategies from the plainest on, each a file in `kernels/ladder/`, checked and measured like the kernels
//! that are chosen, and never chosen itself.

mod direct;
mod distributed;
mod kept;
mod persistent;
mod quantised;
mod reading;
mod shared;
mod specialised;
mod tensor_core;
mod texture;
mod tma_multilevel;

use std::fmt;
use std::hash::{Hash, Hasher};

use msda::{Dtype, Error, ErrorKind, Result, Role};

pub use self::reading::{Held, Reading, Samples, Tiles, Visits};
use super::rows::{grain, strides_fit};
use super::{Block, Call, Hole, with_options};
use crate::jit::Unit;
use crate::request::{Levels, Request, Target};

/// A strategy with a name.
pub struct Rung {
    /// Its name: after `ladder:`.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    strategy: &'static dyn Strategy,
}

/// Every rung: the documents' kernels, then their suite, one thing at a time switched on or off on a common base.
pub static RUNGS: &[Rung] = &[
    rung("original", "a thread an element of the output, counted through all of it", &direct::ORIGINAL),
    rung(
        "original_vector",
        "a thread 16 bytes of the output; locations and weights 16 bytes at a time",
        &direct::ORIGINAL_VECTOR,
    ),
    rung("original_half", "the same with products and sums in f16", &direct::ORIGINAL_HALF),
    rung("simple", "a block a tile of queries of one head, a thread a channel", &direct::SIMPLE),
    rung("l2_direct", "the same with 16 bytes a thread: no shared memory, caches do the rest", &direct::BASE),
    rung("optimized", "16 bytes a thread, locations and weights through shared memory", &direct::OPTIMIZED),
    rung(
        "distributed",
        "a plane in the shared memory of a cluster of 8 blocks, which read from each other",
        &distributed::CLUSTER,
    ),
    rung("distributed16", "the same of 16 blocks", &distributed::CLUSTER16),
    rung(
        "distributed_local",
        "the same planes, but each block computes its own channels",
        &distributed::LOCAL,
    ),
    rung(
        "tma_multilevel",
        "the copy engine brings each sample's taps, one group while another is summed",
        &tma_multilevel::TmaMultilevel,
    ),
    rung("tensor_core", "the coarsest level as a product of matrices", &tensor_core::TensorCore),
    rung("texture", "the texture unit weights the taps, to 8 bits", &texture::Texture),
    rung("shared_padded", "coarse levels in shared memory, two elements behind each row", &shared::PADDED),
    rung("shared_unpadded", "the same without them", &shared::UNPADDED),
    rung("shared_wide", "the same with 16 bytes a thread", &shared::WIDE),
    rung(
        "persistent",
        "a block an SM takes work from a counter; coarse levels in 96 KB",
        &persistent::PERSISTENT,
    ),
    rung("persistent_full", "the same with all of the shared memory", &persistent::FULL),
    rung("persistent_channelsplit", "the same as the first, 8 channels at a time", &persistent::CHANNELSPLIT),
    rung("ultra", "all of it: persistent, taps found once, unrolled, values kept in L2", &persistent::ULTRA),
    rung(
        "reordered",
        "16 bytes a thread, queries in the order of the places they look at",
        &direct::REORDERED,
    ),
    rung("specialised", "some warps find taps, the others gather", &specialised::SPECIALISED),
    rung("int8", "values as bytes, with a scale for each image and head", &quantised::INT8),
    rung("fp8", "the same in e4m3", &quantised::FP8),
    rung("base", "what the suite begins with: 16 bytes a thread", &direct::BASE),
    rung("base-vector", "one channel a thread", &direct::SIMPLE),
    rung("base-cache", "rows past the first-level cache", &direct::UNCACHED),
    rung("base+shuffle", "four groups of lanes share the samples, and add up by shuffles", &direct::SHUFFLE),
    rung("base+pipeline", "locations and weights of the next tile are copied meanwhile", &direct::PIPELINE),
    rung("base+blocking", "two queries a thread", &direct::BLOCKING),
    rung("base+hints", "the second-level cache is told to read whole lines", &direct::HINTS),
    rung("base+metadata", "locations and weights through shared memory", &direct::METADATA),
    rung("base+redistribute", "as many blocks as the device holds walk the tiles", &direct::REDISTRIBUTE),
    rung("base+unroll", "four samples unrolled", &direct::UNROLL),
    rung("base+precomputed", "taps and their weights computed once, in shared memory", &direct::PRECOMPUTED),
    rung("base+policy", "the second-level cache is told to keep values", &direct::POLICY),
    rung("base+half", "products in f16", &direct::HALF),
];

const fn rung(name: &'static str, about: &'static str, strategy: &'static dyn Strategy) -> Rung {
    Rung { name, about, strategy }
}

/// How a rung computes the op.
trait Strategy: Sync {
    /// Why it does not take a request that [`refuses`] has nothing against.
    fn refuses(&self, _request: &Request<'_>, _target: &Target) -> Option<String> {
        None
    }

    /// The call for a request that it takes.
    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call;

    /// How it reads, for a request that it takes; or why that is not described.
    fn reading(&self, request: &Request<'_>, target: &Target) -> std::result::Result<Reading, &'static str>;

    /// Whether results are as exact as sums in `f32` of exact products are.
    fn is_exact(&self) -> bool {
        true
    }
}

impl Rung {
    pub(super) fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        refuses(request).or_else(|| self.strategy.refuses(request, target))
    }

    pub(super) fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        self.strategy.prepare(request, target)
    }

    pub(super) fn is_exact(&self) -> bool {
        self.strategy.is_exact()
    }

    /// How its last kernel reads, for a request that it takes; or why that is not described.
    pub fn reading(
        &self,
        request: &Request<'_>,
        target: &Target,
    ) -> std::result::Result<Reading, &'static str> {
        self.strategy.reading(request, target)
    }
}

impl fmt::Debug for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Rung {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Rung {}

impl Hash for Rung {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A rung by name.
pub fn find(name: &str) -> Result<&'static Rung> {
    RUNGS.iter().find(|rung| rung.name == name).ok_or_else(|| {
        let names: Vec<_> = RUNGS.iter().map(|rung| rung.name).collect();
        Error::new(ErrorKind::Format, "rung of the ladder", format!("'{name}'"), names.join(", "))
    })
}

/// What no rung takes.
fn refuses(request: &Request<'_>) -> Option<String> {
    let (p, o, t) = (request.problem, request.operands, request.problem.types());
    if t.value == Dtype::F64 {
        return Some("values are f64: arithmetic is f32 here".into());
    }
    if request.levels == Levels::Device {
        return Some("level sizes are on the device".into());
    }
    if o.reference.is_some() {
        return Some("the call is fused: rungs take locations and weights".into());
    }
    if p.samples() == 0 || p.output_len() == 0 {
        return Some("nothing is sampled".into());
    }
    // Their table is part of the argument.
    if p.levels().len() > 64 {
        return Some(format!("{} levels: at most 64 fit the argument", p.levels().len()));
    }
    let small = |n: usize| n < 1 << 31;
    let operands =
        [(o.value, t.value), (o.output, t.value), (o.locations, t.locations), (o.weights, t.weights)];
    let strides = operands.iter().all(|(operand, dtype)| strides_fit(*operand, dtype.size()));
    let counts = [p.queries() * p.channels(), p.positions(), p.samples() * 8].into_iter().all(small);
    if !strides || !counts {
        return Some("a stride or count does not fit 31 bits".into());
    }
    if p.batch() > 65535 || p.heads() > 65535 {
        return Some("more images or heads than a grid has blocks".into());
    }
    None
}

/// The most bytes, but not more than `most`, that a lane can read of a row at once.
fn vec(request: &Request<'_>, most: usize) -> usize {
    let (p, o) = (request.problem, request.operands);
    let size = p.types().value.size();
    let grain = most
        | (p.channels() * size)
        | grain(p, Role::Value, o.value, size)
        | grain(p, Role::Output, o.output, size);
    (grain & grain.wrapping_neg()).max(size)
}

/// A rung's file with the macros of `ladder.cuh`.
fn unit(file: &'static str, name: &str, request: &Request<'_>, target: &Target, vec: usize) -> Unit {
    let p = request.problem;
    let uniform = p.points().iter().all(|&n| n == p.points()[0]);
    let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
    let key = format!("{name}-d{}-p{}-v{vec}", p.channels(), points.join("."));
    with_options(Unit::new(file, key, target.arch), p, 0)
        .define("D", p.channels())
        .define("LEVELS", p.levels().len())
        .define("SAMPLES", p.samples())
        .define("UNIFORM_POINTS", if uniform { p.points()[0] } else { 0 })
        .define("VEC", vec)
}

/// The argument as far as it is `Call` of `ladder.cuh`.
fn args(request: &Request<'_>) -> Block {
    let (p, o, t) = (request.problem, request.operands, request.problem.types());
    let mut args = Block::default();
    args.tensor(Hole::Value, Some(o.value), t.value.size());
    args.tensor(Hole::Locations, Some(o.locations), t.locations.size());
    args.tensor(Hole::Weights, Some(o.weights), t.weights.size());
    args.tensor(Hole::Output, Some(o.output), t.value.size());
    for n in [p.batch(), p.queries(), p.heads()] {
        args.i32(n);
    }
    let mut sample = 0;
    for (level, points) in p.levels().iter().zip(p.points()) {
        for n in [level.h, level.w, level.origin, level.pitch, sample] {
            args.i32(n);
        }
        sample += points;
    }
    // As the structure ends, which begins with an address.
    args.align(8);
    args
}
