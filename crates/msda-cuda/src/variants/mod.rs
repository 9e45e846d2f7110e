//! The kernels' host twins: for each file in `kernels/`, what it accepts, how it is compiled, and how it is launched.

mod generic;
mod order;
mod pack;
pub mod rows;
mod sweep;

use std::fmt;
use std::str::FromStr;

use msda::{Dtype, Error, ErrorKind, Padding, Problem, Result, Sampling};

use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Request, Sums, Target};

pub use self::rows::Rows;
pub use self::sweep::sweep;
pub(crate) use self::{order::order, order::workspace as order_workspace, pack::pack};

/// A kernel that computes the op, with its knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// One thread an element: anything.
    Generic,
    /// Lanes that share rows.
    Rows(Rows),
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
    /// One of each family, for lists.
    pub const FAMILIES: [(&'static str, &'static str); 2] = [
        ("generic", "one thread an element of the output; any problem, any strides, levels on the device"),
        ("rows", "lanes share a query and head, 16 bytes each; tiles, order and splits are knobs"),
    ];

    /// Why the kernel does not take a request, if it does not.
    pub fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        match self {
            Self::Generic => None,
            Self::Rows(knobs) => knobs.refuses(request, target),
        }
    }

    /// Prepares the kernel for a request that it takes.
    pub fn prepare(&self, request: &Request<'_>, target: &Target) -> Prepared {
        match self {
            Self::Generic => generic::prepare(request, target),
            Self::Rows(knobs) => knobs.prepare(request, target),
        }
    }

    /// What its sums are kept in.
    pub fn sums(&self) -> Sums {
        match self {
            Self::Rows(Rows { half: true, .. }) => Sums::F16,
            _ => Sums::F32,
        }
    }

    /// Whether queries are visited in an order that another kernel makes first.
    pub fn needs_order(&self) -> bool {
        matches!(self, Self::Rows(Rows { walk: rows::Walk::Ordered, .. }))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generic => f.write_str("generic"),
            Self::Rows(knobs) => write!(f, "rows:{knobs}"),
        }
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s.split_once(':') {
            None if s == "generic" => Ok(Self::Generic),
            Some(("rows", knobs)) => Ok(Self::Rows(knobs.parse()?)),
            _ => {
                let names = Self::FAMILIES.map(|(name, _)| name).join(", ");
                Err(Error::new(ErrorKind::Format, "kernel", format!("'{s}'"), names)
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
    /// The order of the queries.
    Order,
    /// Sizes of the levels.
    Shapes,
    /// First positions of the levels.
    Starts,
    /// First samples of the levels.
    Samples,
}

/// A kernel's argument: its bytes, and where addresses go.
#[derive(Debug, Clone, Default)]
pub struct Block {
    bytes: Vec<u8>,
    holes: Vec<(Hole, usize)>,
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
