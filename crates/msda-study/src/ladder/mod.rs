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

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use anyhow::{Result, ensure};
use msda::{Dtype, Error, ErrorKind, Problem, Role, Sampling};

use msda_cuda::driver::Launch;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Args, Call, Custom, Kernel, Prepared, aligned, grain, strides_fit, with_options};
use msda_cuda::{Levels, Pass, Request, Slot, Target};
use serde::Deserialize;

use self::async_multilevel::AsyncMultilevel;
use self::direct::Direct;
use self::distributed::Distributed;
use self::distributed_best::DistributedBest;
use self::persistent::Persistent;
use self::quantised::Quantised;
use self::shared::Shared;
use self::specialised::{LoadingWarps, Specialised};
use self::tensor_core::TensorCore;
use self::texture::Texture;
use self::tma_windows::TmaWindows;
use crate::sources::SOURCES;

/// The entry point of the kernel that computes the output.
const FORWARD: &str = "msda_forward";

/// Shared memory per block that levels have in the documents: 96 KB.
const DOCUMENTED: usize = 96 << 10;

/// A strategy with a name.
#[derive(Deserialize)]
pub struct Rung {
    /// Its name, after `ladder:`.
    pub name: String,
    /// One line of description.
    pub about: String,
    #[serde(flatten)]
    twin: Twin,
}

/// Every rung: the documents' kernels, then their suites, which change one thing at a time on a
/// common base.
pub static RUNGS: LazyLock<Vec<Rung>> = LazyLock::new(|| {
    let file: Result<BTreeMap<String, _>, _> = toml::from_str(include_str!("../../ladder.toml"));
    file.unwrap_or_else(|why| panic!("ladder.toml: {why}")).remove("rung").unwrap_or_default()
});

/// The host twins, by their names in `ladder.toml`.
macro_rules! twins {
    ($($twin:ident)*) => {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        enum Twin { $($twin($twin)),* }

        impl Twin {
            fn strategy(&self) -> &dyn Strategy {
                match self { $(Self::$twin(twin) => twin),* }
            }
        }
    };
}

twins! {
    Direct Distributed DistributedBest AsyncMultilevel TmaWindows TensorCore Texture Shared Persistent
    Specialised LoadingWarps Quantised
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
        let ask = Ask { rung: &self.name, request, p: request.problem, target };
        ask.check()?;
        self.twin.strategy().call(&ask)
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
        self.twin.strategy().is_exact()
    }
}

impl fmt::Debug for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A rung by name.
pub fn find(name: &str) -> msda::Result<&'static Rung> {
    RUNGS.iter().find(|rung| rung.name == name).ok_or_else(|| {
        let names: Vec<_> = RUNGS.iter().map(|rung| rung.name.as_str()).collect();
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
    rung: &'a str,
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

/// The call of one kernel. Its argument is aligned to 8 bytes.
fn one(unit: Unit, launch: Launch, mut args: Args) -> Call {
    args.align(8);
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
