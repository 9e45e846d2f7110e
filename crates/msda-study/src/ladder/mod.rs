//! The ladder: every strategy of the founding documents, from the simplest on. Each has a kernel in
//! `kernels/ladder/` and a host twin here. Rungs are checked and measured like the product's
//! kernels, but never chosen.

mod async_multilevel;
mod direct;
mod distributed;
mod distributed_best;
mod loaders;
mod persistent;
mod quantised;
mod resident;
mod shared;
mod specialised;
mod tensor_core;
mod texture;
mod tma_windows;
mod window;

use std::fmt;

use anyhow::{Result, ensure};
use msda::{Dtype, Error, ErrorKind, Problem, Role, Sampling};

use msda_cuda::driver::Launch;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Args, Call, Custom, Kernel, Prepared, aligned, grain, strides_fit, with_options};
use msda_cuda::{Levels, Pass, Request, Slot, Target};

use crate::sources::SOURCES;

/// The entry point of the kernel that computes the output.
const FORWARD: &str = "msda_forward";

/// Shared memory per block that levels have in the documents: 96 KB.
const DOCUMENTED: usize = 96 << 10;

/// A strategy with a name.
pub struct Rung {
    /// Its name, after `ladder:`.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    strategy: &'static dyn Strategy,
}

/// Every rung: the documents' kernels, then their suite, which changes one thing at a time on a
/// common base.
pub static RUNGS: &[Rung] = &[
    rung("original", "one thread per output element, numbered through the whole output", &direct::ORIGINAL),
    rung("original_vector", "16 output bytes per thread; 16-byte loads of inputs", &direct::ORIGINAL_VECTOR),
    rung("original_half", "the same with products and sums in f16", &direct::ORIGINAL_HALF),
    rung(
        "original_f16",
        "original with multiply-adds in f16: the start of the documents' suite",
        &direct::ORIGINAL_F16,
    ),
    rung("simple", "one block per tile of queries of one head, one channel per thread", &direct::SIMPLE),
    rung("l2_direct", "the same with 16 bytes per thread; no shared memory, only L1 and L2", &direct::BASE),
    rung("optimized", "16 bytes per thread, inputs staged through shared memory", &direct::OPTIMIZED),
    rung("distributed_fixed", "original_half in tiles of queries", &direct::DISTRIBUTED_FIXED),
    rung("distributed", "clusters of 8 blocks; each holds two channels of a plane", &distributed::CLUSTER),
    rung("tma_multilevel", "the same clusters, filled by cp.async", &distributed::TMA_MULTILEVEL),
    rung("distributed_wide", "one cluster of 8 blocks holds all channels of a plane", &distributed::WIDE),
    rung("distributed16", "the same with 16 blocks", &distributed::WIDE16),
    rung("distributed_local", "the same planes; each block computes its own channels", &distributed::LOCAL),
    rung("distributed_best", "image rows in clusters; 16 bytes per lane", &distributed_best::DistributedBest),
    rung("async_multilevel", "cp.async loads one level ahead", &async_multilevel::STREAMED),
    rung("async_multilevel_half", "the same with sums in f16, in 96 KB", &async_multilevel::HALF),
    rung("cached_streamed", "the last levels stay, the others are streamed", &async_multilevel::CACHED),
    rung("tma_windows", "TMA loads the taps of samples, one group ahead", &tma_windows::Windows),
    rung("tensor_core", "the coarsest level as a matrix product on tensor cores", &tensor_core::TensorCore),
    rung("texture", "the texture unit interpolates, with 8-bit weights", &texture::Texture),
    rung("shared_padded", "coarse levels in shared memory, rows padded by two elements", &shared::PADDED),
    rung("shared_padded_half", "the same with sums in f16, in 96 KB", &shared::PADDED_HALF),
    rung("shared_unpadded", "shared_padded without padding", &shared::UNPADDED),
    rung("shared_wide", "the same with 16 bytes per thread", &shared::WIDE),
    rung("persistent", "one block per SM takes work from a counter; 96 KB", &persistent::PERSISTENT),
    rung("persistent_full", "the same kernel: small levels are resident as a whole", &persistent::FULL),
    rung("persistent_static", "like persistent, items divided in advance", &persistent::STATIC),
    rung("persistent_query", "like persistent, one query per work item", &persistent::QUERY),
    rung("persistent_query_static", "the same, items divided in advance", &persistent::QUERY_STATIC),
    rung("persistent_channelsplit", "like persistent, 8 channels per block", &persistent::CHANNELSPLIT),
    rung("ultra", "persistent, taps located once, unrolled, L2 policy", &persistent::ULTRA),
    rung("persistent_wide", "like persistent, 16 bytes per lane", &persistent::WIDE),
    rung("persistent_full_wide", "the same with all shared memory", &persistent::FULL_WIDE),
    rung("persistent_channelsplit_wide", "wide, 8 channels per block", &persistent::CHANNELSPLIT_WIDE),
    rung("ultra_wide", "like ultra, all shared memory and 16 bytes per lane", &persistent::ULTRA_WIDE),
    rung("persistent+texture", "the texture unit interpolates streamed levels", &persistent::TEXTURE),
    rung("persistent+reordered", "persistent; queries ordered by position", &persistent::REORDERED),
    rung("persistent+int8", "int8 values, f16 weights, f32 sums", &persistent::INT8),
    rung("persistent+prefetch", "rows of the next query are copied meanwhile", &persistent::PREFETCH),
    rung("persistent+specialised1", "one warp only loads locations and weights", &persistent::SPECIALISED1),
    rung("persistent+specialised2", "the same with two warps", &persistent::SPECIALISED2),
    rung("persistent+inputs", "every warp loads inputs 16 bytes at a time", &persistent::WIDE_INPUTS),
    rung("persistent+window", "persistent; an L2 persistence window keeps values", &persistent::WINDOW),
    rung("persistent_full+unroll", "four samples unrolled", &persistent::UNROLL),
    rung("persistent_full+policy", "loads ask L2 to keep values", &persistent::POLICY),
    rung("persistent_full+hints", "loads hint L2 to fetch whole lines", &persistent::HINTS),
    rung("persistent_full+precomputed", "taps located once and staged", &persistent::PRECOMPUTED),
    rung("persistent_full+half", "products and sums in f16", &persistent::HALF),
    rung("reordered", "16 bytes per thread, queries ordered by the place they look at", &direct::REORDERED),
    rung("specialised", "some warps locate taps, the others load rows", &specialised::SPECIALISED),
    rung("specialised1", "one warp of 16 only loads locations and weights", &specialised::SPECIALISED1),
    rung("specialised2", "the same with two warps", &specialised::SPECIALISED2),
    rung("int8", "values as int8, one scale per image and head", &quantised::INT8),
    rung("fp8", "the same in e4m3", &quantised::FP8),
    rung("int8_half", "int8 values, f16 interpolation weights, f32 sums", &quantised::INT8_HALF),
    rung("fewer_points", "samples of small weight are dropped, the others scaled", &direct::FEWER_POINTS),
    rung("base", "the base of the suite: 16 bytes per thread", &direct::BASE),
    rung("base-vector", "one channel per thread", &direct::SIMPLE),
    rung("base-cache", "rows bypass L1", &direct::UNCACHED),
    rung("base+shuffle", "four lane groups share the samples and add up by shuffles", &direct::SHUFFLE),
    rung("base+pipeline", "locations and weights of the next tile are prefetched", &direct::PIPELINE),
    rung("base+blocking", "two queries per thread", &direct::BLOCKING),
    rung("base+hints", "loads hint L2 to fetch whole lines", &direct::HINTS),
    rung("base+metadata", "locations and weights staged through shared memory", &direct::METADATA),
    rung("base+redistribute", "resident blocks only, with a stride over the tiles", &direct::REDISTRIBUTE),
    rung("base+unroll", "four samples unrolled", &direct::UNROLL),
    rung("base+precomputed", "taps and weights computed once and staged", &direct::PRECOMPUTED),
    rung("base+policy", "loads ask L2 to keep values", &direct::POLICY),
    rung("base+half", "products in f16", &direct::HALF),
    rung("base+window", "an L2 persistence window keeps values", &direct::WINDOW),
    rung("original_f16+tiles", "tiles of queries instead of one index", &direct::F16_TILES),
    rung("original_f16+shuffle", "four lane groups share the samples", &direct::F16_SHUFFLE),
    rung("original_f16+pipeline", "in tiles; inputs of the next tile are prefetched", &direct::F16_PIPELINE),
    rung("original_f16+blocking", "four channels per thread, a load each", &direct::F16_BLOCKING),
    rung("original_f16+policy", "loads ask L2 to keep values", &direct::F16_POLICY),
    rung("original_f16+vector", "16 bytes per thread", &direct::F16_VECTOR),
    rung("original_f16+metadata", "the table of levels in shared memory", &direct::F16_METADATA),
    rung("original_f16+redistribute", "resident blocks only, with a stride", &direct::F16_REDISTRIBUTE),
    rung("original_f16+unroll", "four samples unrolled", &direct::F16_UNROLL),
    rung("original_f16+precomputed", "in tiles; taps computed once and staged", &direct::F16_PRECOMPUTED),
    rung("original_f16+hints", "loads hint L2 to fetch whole lines", &direct::F16_HINTS),
    rung("original_f16+mixed", "sums in f32", &direct::F16_MIXED),
];

const fn rung(name: &'static str, about: &'static str, strategy: &'static dyn Strategy) -> Rung {
    Rung { name, about, strategy }
}

/// How a rung computes the operator.
trait Strategy: Sync {
    /// The call for a request, or why there is none, beyond the reasons of [`Ask::check`].
    fn call(&self, ask: &Ask<'_>) -> Result<Call>;

    /// Whether its results are as exact as `f32` sums of exact products.
    fn is_exact(&self) -> bool {
        true
    }
}

impl Rung {
    /// The rung as a kernel that plans take.
    pub fn kernel(&'static self) -> Kernel {
        Kernel::Custom(self)
    }

    /// The call for a request, or why there is none.
    pub fn call(&self, request: &Request<'_>, target: &Target) -> Result<Call> {
        let ask = Ask { rung: self.name, request, p: request.problem, target };
        ask.check()?;
        self.strategy.call(&ask)
    }
}

impl Custom for Rung {
    fn name(&self) -> String {
        format!("ladder:{}", self.name)
    }

    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        self.call(request, target).err().map(|why| why.to_string())
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        // Only requests that were not refused are prepared.
        self.call(request, target).unwrap_or_default()
    }

    fn is_exact(&self) -> bool {
        self.strategy.is_exact()
    }
}

impl fmt::Debug for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A rung by name.
pub fn find(name: &str) -> msda::Result<&'static Rung> {
    RUNGS.iter().find(|rung| rung.name == name).ok_or_else(|| {
        let names: Vec<_> = RUNGS.iter().map(|rung| rung.name).collect();
        Error::new(ErrorKind::Format, "rung of the ladder", format!("'{name}'"), names.join(", "))
    })
}

/// The rungs of these names, or all if there is none.
pub fn named(names: &[String]) -> msda::Result<Vec<&'static Rung>> {
    match names {
        [] => Ok(RUNGS.iter().collect()),
        some => some.iter().map(|name| find(name)).collect(),
    }
}

/// What a rung is asked for.
struct Ask<'a> {
    /// The name of the rung.
    rung: &'static str,
    request: &'a Request<'a>,
    /// The problem of the request.
    p: &'a Problem,
    target: &'a Target,
}

impl Ask<'_> {
    /// Refuses requests that no rung takes.
    fn check(&self) -> Result<()> {
        let (p, o, t) = (self.p, self.request.operands, self.p.types());
        ensure!(t.value != Dtype::F64, "values are f64: arithmetic is f32 here");
        ensure!(self.request.pass == Pass::Forward, "rungs compute the forward pass");
        ensure!(self.request.levels != Levels::Device, "level sizes are on the device");
        ensure!(o.reference_kind().is_none(), "the call is fused: rungs take locations and weights");
        ensure!(p.samples() > 0 && p.output_len() > 0, "nothing is sampled");
        // The table of levels is part of the argument.
        ensure!(p.levels().len() <= 64, "{} levels: at most 64 fit the argument", p.levels().len());
        let small = |n: usize| n < 1 << 31;
        let operands = [
            (o[Slot::Value], t.value),
            (o[Slot::Output], t.value),
            (o[Slot::Locations], t.locations),
            (o[Slot::Weights], t.weights),
        ];
        let strides = operands.iter().all(|(operand, dtype)| strides_fit(*operand, dtype.size()));
        let counts = [p.queries() * p.channels(), p.positions(), p.samples() * 8].into_iter().all(small);
        ensure!(strides && counts, "a stride or count does not fit 31 bits");
        ensure!(p.batch() <= 65535 && p.heads() <= 65535, "more images or heads than a grid has blocks");
        Ok(())
    }

    /// Refuses an architecture before `major`.
    fn needs(&self, major: u32, what: &str) -> Result<()> {
        ensure!(self.target.arch.major >= major, "{} has no {what}", self.target.arch);
        Ok(())
    }

    /// If products and sums shall be `f16`, refuses a problem where they cannot.
    fn may_be_half(&self, half: bool) -> Result<()> {
        let fits = self.p.types().value == Dtype::F16 && self.p.sampling() == Sampling::Bilinear;
        ensure!(!half || fits, "products in f16 are of f16 values, bilinear");
        Ok(())
    }

    /// The most bytes, up to `most`, that one load can read of a row.
    fn vec(&self, most: usize) -> usize {
        let (p, o) = (self.p, self.request.operands);
        let size = p.types().value.size();
        let grain = most
            | self.row_bytes()
            | grain(p, Role::Value, o[Slot::Value], size)
            | grain(p, Role::Output, o[Slot::Output], size);
        lowest_bit(grain).max(size)
    }

    /// Bytes of a row of value: the channels of a pixel and head.
    fn row_bytes(&self) -> usize {
        self.p.channels() * self.p.types().value.size()
    }

    /// Images times heads.
    fn planes(&self) -> usize {
        self.p.batch() * self.p.heads()
    }

    /// Taps of a sample.
    fn taps(&self) -> usize {
        if self.p.sampling() == Sampling::Nearest { 1 } else { 4 }
    }

    fn sms(&self) -> usize {
        self.target.sms as usize
    }

    /// A launch of so many blocks for each image and head.
    fn per_plane(&self, blocks: usize, threads: usize, shared: usize) -> Launch {
        let grid = [blocks, self.p.heads(), self.p.batch()].map(|n| n as u32);
        Launch { shared: shared as u32, ..Launch::new(grid, [threads as u32, 1, 1]) }
    }

    /// The unit of the rung, with the macros of `ladder.cuh`.
    fn unit(&self, file: &'static str, vec: usize) -> Unit {
        let p = self.p;
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
        let key = format!("{}-d{}-p{}-v{vec}", self.rung, p.channels(), points.join("."));
        with_options(Unit::of(&SOURCES, file, key, self.target.arch), p, 0)
            .define("D", p.channels())
            .define("LEVELS", p.levels().len())
            .define("SAMPLES", p.samples())
            .define("UNIFORM_POINTS", if uniform { p.points()[0] } else { 0 })
            .define("VEC", vec)
    }

    /// A unit with the known alignments of the locations and weights that a thread loads together,
    /// in bytes. One sample is loaded number by number.
    fn input_alignment(&self, unit: Unit, samples: usize) -> Unit {
        let t = self.p.types();
        let align = |slot, role, size: usize, numbers: usize| match samples {
            1 => size,
            _ => aligned(self.p, role, self.request.operands[slot], size, numbers * samples * size),
        };
        unit.define("LOCATION_ALIGN", align(Slot::Locations, Role::Locations, t.locations.size(), 2))
            .define("WEIGHT_ALIGN", align(Slot::Weights, Role::Weights, t.weights.size(), 1))
    }

    /// The part of the argument that is `Call` of `ladder.cuh`.
    fn args(&self) -> Args {
        let (p, o, t) = (self.p, self.request.operands, self.p.types());
        let mut args = Args::default();
        args.tensor("call.value", Slot::Value, o[Slot::Value], t.value.size());
        args.tensor("call.locations", Slot::Locations, o[Slot::Locations], t.locations.size());
        args.tensor("call.weights", Slot::Weights, o[Slot::Weights], t.weights.size());
        args.tensor("call.output", Slot::Output, o[Slot::Output], t.value.size());
        args.i32("call.images", p.batch());
        args.i32("call.queries", p.queries());
        args.i32("call.heads", p.heads());
        let mut sample = 0;
        for (level, points) in p.levels().iter().zip(p.points()) {
            args.i32("call.level[0].height", level.h);
            args.i32("call.level[0].width", level.w);
            args.i32("call.level[0].origin", level.origin);
            args.i32("call.level[0].pitch", level.pitch);
            args.i32("call.level[0].first_sample", sample);
            sample += points;
        }
        // The structure is aligned to 8 bytes.
        args.align(8);
        args
    }
}

/// The largest power of two that divides a number.
fn lowest_bit(n: usize) -> usize {
    n & n.wrapping_neg()
}

/// The call of one kernel.
fn one(unit: Unit, launch: Launch, args: Args) -> Call {
    Prepared { unit, entry: FORWARD, launch, args }.into()
}

#[cfg(test)]
mod tests {
    use msda_bench::workload::Workload;
    use msda_cuda::Operands;
    use msda_cuda::driver::Arch;

    use super::*;

    /// The problem of the documents.
    pub(super) fn seed() -> Problem {
        Workload::find("seed").unwrap().problem(Dtype::F16).unwrap()
    }

    /// Asks an H200 for a problem with dense tensors.
    pub(super) fn ask<T>(p: &Problem, test: impl FnOnce(&Ask<'_>) -> T) -> T {
        let (operands, target) = (Operands::dense(p, None), Target { arch: Arch::new(9, 0), sms: 132 });
        test(&Ask { rung: "test", request: &Request::new(p, &operands), p, target: &target })
    }
}
