//! The kernels' host twins: for each file in `kernels/`, what it accepts, how it is compiled, and how it is launched.

mod generic;
pub mod ladder;
mod order;
mod pack;
pub mod rows;
mod sweep;

use std::fmt;
use std::str::FromStr;

use msda::{Dtype, Error, ErrorKind, Padding, Problem, Result, Sampling};

use crate::driver::{Device, Launch, TensorMap, Texels, Tiled};
use crate::jit::Unit;
use crate::request::{Operand, Request, Sizes, Sums, Target};

pub use self::ladder::Rung;
pub(crate) use self::pack::pack;
pub use self::rows::Rows;
pub use self::sweep::sweep;

/// A kernel that computes the op, with its knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// One thread an element: anything.
    Generic,
    /// Lanes that share rows.
    Rows(Rows),
    /// A strategy that is kept to be measured.
    Ladder(&'static Rung),
}

/// All that a call queues.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// What is queued, in order.
    pub stages: Vec<Stage>,
    /// Bytes of device memory that it needs for itself.
    pub workspace: usize,
    /// What a plan of it owns.
    pub own: Own,
}

/// Device memory that a plan owns, because textures of it must be made before a launch. It begins with zeros.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// Its size.
    pub bytes: usize,
    /// The textures.
    pub textures: Vec<Texels>,
}

/// One thing that a call queues.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Zeros in a part of the workspace.
    Clear {
        /// Where it begins, in bytes.
        at: usize,
        /// How long it is.
        bytes: usize,
    },
    /// A kernel.
    Run(Prepared),
}

impl Call {
    /// The kernel that writes the output: the last.
    pub fn last(&self) -> Option<&Prepared> {
        self.kernels().last()
    }

    /// Its kernels, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &Prepared> {
        self.stages.iter().filter_map(|stage| match stage {
            Stage::Run(prepared) => Some(prepared),
            Stage::Clear { .. } => None,
        })
    }
}

impl From<Prepared> for Call {
    fn from(prepared: Prepared) -> Self {
        Self { stages: vec![Stage::Run(prepared)], ..Self::default() }
    }
}

/// A kernel ready to be compiled and launched.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// What is compiled.
    pub unit: Unit,
    /// Its entry.
    pub entry: &'static str,
    /// Blocks and threads.
    pub launch: Launch,
    /// Its one argument, with holes for addresses.
    pub args: Block,
}

impl Kernel {
    /// The families that kernels are chosen from.
    pub const FAMILIES: [(&'static str, &'static str); 2] = [
        ("generic", "one thread per element of the output; any problem, any strides, levels on the device"),
        ("rows", "a lane group computes a query and head, 16 bytes per lane; for almost every problem"),
    ];

    /// Why the kernel does not take a request, if it does not.
    pub fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        match self {
            Self::Generic => None,
            Self::Rows(knobs) => knobs.refuses(request, target),
            Self::Ladder(rung) => rung.refuses(request, target),
        }
    }

    /// Prepares a call with the kernel, for a request that it takes.
    pub fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        match self {
            Self::Generic => generic::prepare(request, target).into(),
            Self::Rows(knobs) if knobs.walk == rows::Walk::Ordered => {
                order::before(request, target, knobs.prepare(request, target))
            }
            Self::Rows(knobs) => knobs.prepare(request, target).into(),
            Self::Ladder(rung) => rung.prepare(request, target),
        }
    }

    /// What its sums are kept in.
    pub fn sums(&self) -> Sums {
        match self {
            Self::Rows(Rows { f16_sums: true, .. }) => Sums::F16,
            _ => Sums::F32,
        }
    }

    /// Which sizes it is compiled for.
    pub fn sizes(&self) -> Sizes {
        match self {
            Self::Rows(Rows { fixed_sizes: true, .. }) => Sizes::Fixed,
            _ => Sizes::Any,
        }
    }

    /// Whether results are as exact as sums in `f32` of exact products are.
    pub fn is_exact(&self) -> bool {
        match self {
            Self::Ladder(rung) => rung.is_exact(),
            _ => self.sums() == Sums::F32,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generic => f.write_str("generic"),
            Self::Rows(knobs) => write!(f, "rows:{knobs}"),
            Self::Ladder(rung) => write!(f, "ladder:{}", rung.name),
        }
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s.split_once(':') {
            None if s == "generic" => Ok(Self::Generic),
            Some(("rows", knobs)) => Ok(Self::Rows(knobs.parse()?)),
            Some(("ladder", name)) => Ok(Self::Ladder(ladder::find(name)?)),
            _ => {
                let names = Self::FAMILIES.map(|(name, _)| name).join(", ");
                Err(Error::new(ErrorKind::Format, "kernel", format!("'{s}'"), names + ", ladder:NAME")
                    .hint("`msda kernels` lists kernels with their knobs"))
            }
        }
    }
}

/// What an address in a kernel's argument stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hole {
    /// The value pyramid.
    Value,
    /// Locations or offsets.
    Locations,
    /// Weights or logits.
    Weights,
    /// Reference points.
    Reference,
    /// The output.
    Output,
    /// The workspace, from so many bytes on.
    Workspace(usize),
    /// The plan's own memory, from so many bytes on.
    Own(usize),
    /// A texture of it, by its number: its handle.
    Texture(usize),
    /// Sizes of the levels.
    Shapes,
    /// First positions of the levels.
    Starts,
    /// First samples of the levels.
    Samples,
}

/// A kernel's argument: its bytes, where addresses go, and where descriptions of tensors go.
#[derive(Debug, Clone, Default)]
pub struct Block {
    bytes: Vec<u8>,
    holes: Vec<(Hole, usize)>,
    maps: Vec<(Map, usize)>,
}

/// A tensor that is described when its address is known: see [`Tiled`].
#[derive(Debug, Clone)]
pub struct Map {
    /// Where it is.
    pub hole: Hole,
    /// Bytes from there to its beginning.
    pub offset: u64,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Sizes, from the dimension whose elements are neighbours.
    pub sizes: Vec<u64>,
    /// Strides in bytes, of all but that one.
    pub strides: Vec<u64>,
    /// What a copy brings.
    pub window: Vec<u32>,
}

impl Map {
    /// The driver's description of it.
    pub(crate) fn encode(&self, device: &Device, address: u64) -> Result<TensorMap> {
        let (sizes, strides, window) = (&self.sizes[..], &self.strides[..], &self.window[..]);
        let address = address + self.offset;
        TensorMap::tiled(
            device,
            &Tiled { dtype: self.dtype, address, sizes, strides, window, ..Tiled::default() },
        )
    }
}

impl Block {
    /// The bytes, addresses being 0.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where addresses go.
    pub fn holes(&self) -> &[(Hole, usize)] {
        &self.holes
    }

    /// Where descriptions of tensors go.
    pub(crate) fn maps(&self) -> &[(Map, usize)] {
        &self.maps
    }

    /// Room for the description of a tensor, at a multiple of its 128 bytes.
    fn map(&mut self, map: Map) {
        self.align(128);
        self.maps.push((map, self.bytes.len()));
        self.bytes.extend([0; 128]);
    }

    /// Zeros up to a multiple of so many bytes.
    fn align(&mut self, bytes: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(bytes), 0);
    }

    /// A tensor as kernels know it: address, then bytes from image to image, row to row, head to head.
    fn tensor(&mut self, hole: Hole, operand: Option<Operand>, size: usize) {
        let strides = operand.map_or([0; 3], |o| o.strides);
        self.hole(hole);
        self.i64((strides[0] * size) as i64);
        self.i32(strides[1] * size);
        self.i32(strides[2] * size);
    }

    fn hole(&mut self, hole: Hole) {
        self.holes.push((hole, self.bytes.len()));
        self.i64(0);
    }

    fn i64(&mut self, x: i64) {
        self.bytes.extend(x.to_le_bytes());
    }

    fn i32(&mut self, x: usize) {
        // What is prepared was accepted, and what is accepted fits.
        self.bytes.extend((x as i32).to_le_bytes());
    }

    fn f32(&mut self, x: f32) {
        self.bytes.extend(x.to_le_bytes());
    }
}

/// How a type is called in the kernels.
fn macro_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "F64",
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
    }
}

/// The macros and the part of the key that every kernel has: types and options.
fn with_options(mut unit: Unit, problem: &Problem, reference_numbers: usize) -> Unit {
    let t = problem.types();
    unit.key += &format!("-{}", t.value);
    for (name, dtype) in [("loc", t.locations), ("w", t.weights)] {
        if dtype != t.value {
            unit.key += &format!("-{name}{dtype}");
        }
    }
    let options = [
        ("RING", "ring", problem.layout().ring() > 0),
        ("NEAREST", "nearest", problem.sampling() == Sampling::Nearest),
        ("BORDER", "border", problem.padding() == Padding::Border),
        ("CORNERS", "corners", problem.spec().align_corners),
    ];
    for (_, name, on) in options {
        if on {
            unit.key += &format!("-{name}");
        }
    }
    if reference_numbers > 0 {
        unit.key += &format!("-fused{reference_numbers}");
    }
    for (name, _, on) in options {
        unit = unit.define(name, u8::from(on));
    }
    unit.define("VALUE", macro_name(t.value))
        .define("LOCATION", macro_name(t.locations))
        .define("WEIGHT", macro_name(t.weights))
        .define("FUSED", reference_numbers)
}

/// Enough blocks of 256 threads for `total` elements, but not more than the machine can use at a time.
fn blocks(total: usize, target: &Target) -> u32 {
    let most = u64::from(target.multiprocessors) * 64;
    (total.div_ceil(256) as u64).clamp(1, most.max(1)) as u32
}
