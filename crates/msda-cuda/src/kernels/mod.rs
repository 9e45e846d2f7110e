//! The kernels' host twins: for each file in `kernels/`, which requests it takes, how it is
//! compiled, and how it is launched.

mod args;
mod backward;
mod call;
mod generic;
mod order;
mod pack;
pub mod rows;
mod scatter;
mod sweep;
mod table;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use msda::{Dtype, Error, ErrorKind, Padding, Problem, Result, Sampling};

use crate::jit::Unit;
use crate::request::{Pass, Request, Sizes, Sums, Target};

pub use self::args::{Args, Pointer};
pub use self::call::{Action, Arena, Call, Hook, Owned, Prepared, Region, Resource, Stage};
pub use self::order::order_first;
pub(crate) use self::pack::pack;
pub use self::rows::Rows;
pub use self::sweep::sweep;
use self::table::Table;

/// A kernel that computes the operator, with its knobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// One thread per output element: takes every problem.
    Generic,
    /// Lane groups that share a query and head.
    Rows(Rows),
    /// A kernel of another crate. It is never chosen, only asked for.
    Custom(&'static dyn Custom),
}

/// A kernel of another crate: it is planned, checked and measured like our own.
pub trait Custom: Sync + fmt::Debug {
    /// Its name, unlike that of any other kernel.
    fn name(&self) -> String;

    /// Why it does not take a request, if it does not.
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String>;

    /// Prepares a call for a request that it takes.
    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call;

    /// Whether its results are as exact as `f32` sums of exact products.
    fn is_exact(&self) -> bool {
        true
    }
}

impl PartialEq for dyn Custom {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Custom {}

impl Hash for dyn Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
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
            Self::Custom(_) if request.pass != Pass::Forward => {
                Some("it computes the forward pass only".into())
            }
            Self::Custom(kernel) => kernel.refuses(request, target),
            _ if request.wanted().value && scatter::refuses(request).is_some() => scatter::refuses(request),
            Self::Generic => None,
            Self::Rows(knobs) => knobs.refuses(request, target),
        }
    }

    /// Prepares a call with the kernel, for a request that it takes.
    pub fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        match self {
            Self::Generic => generic::prepare(request, target),
            Self::Rows(knobs) => knobs.prepare(request, target),
            Self::Custom(kernel) => kernel.prepare(request, target),
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
            Self::Custom(kernel) => kernel.is_exact(),
            _ => self.sums() == Sums::F32,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generic => f.write_str("generic"),
            Self::Rows(knobs) => write!(f, "rows:{knobs}"),
            Self::Custom(kernel) => f.write_str(&kernel.name()),
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

/// The name of a type in the kernels.
pub fn macro_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "F64",
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
    }
}

/// Adds the macros and the part of the key that every kernel has: types and options.
pub fn with_options(mut unit: Unit, problem: &Problem, reference_numbers: usize) -> Unit {
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

/// Enough blocks of 256 threads for `total` elements, but no more than the device can use at once.
fn blocks(total: usize, target: &Target) -> u32 {
    let most = u64::from(target.sms) * 64;
    (total.div_ceil(256) as u64).clamp(1, most.max(1)) as u32
}
