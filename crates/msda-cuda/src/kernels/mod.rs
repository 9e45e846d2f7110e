//! The kernels' host twins: how each file of `kernels/` is compiled and launched. The twin of
//! `kernels/backward/sort.cu` is `backward/sort.rs`, and so on.
//!
//! - [`Kernel`] names a kernel with its knobs, says why it refuses a request, and prepares a
//!   [`Call`]: stages with their [`Args`], and a workspace.
//! - `knobs`, `division`, `tiling`, `lane_groups` and `accepts` serve the kernels of lane groups:
//!   `streaming.cu`, `resident.cu` and `samples.cu`.
//! - `any_problem` serves `generic.cu` and `samples_generic.cu`.
//! - `backward/tiles` and `backward/matrix` serve the kernels of the gradient of value.

mod accepts;
mod any_problem;
mod args;
mod backward;
mod call;
mod division;
mod forward;
mod knobs;
mod lane_groups;
mod level_table;
mod options;
mod order;
mod pack;
mod pad;
mod sweep;
mod tiling;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use msda::{Error, ErrorKind, Result};

use crate::request::{Pass, Request, Sizes, Sums};
use crate::target::Target;

pub use self::args::{Args, Pointer};
pub use self::call::{Action, Arena, Call, Hook, Owned, Prepared, Region, Resource, Stage};
pub use self::division::{Division, aligned, grain, strides_fit};
pub(crate) use self::knobs::each;
pub use self::knobs::{Rows, Walk};
pub use self::options::with_options;
pub use self::order::order_first;
pub use self::pack::pack;
pub(crate) use self::pad::PaddedRequest;
pub use self::sweep::sweep;
pub use self::tiling::{SORT_CELLS, STRIP_HEIGHT, Tiling};

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

    /// Why the kernel does not take a request, if it does not: the first reason.
    pub fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        self.reasons(request, target).into_iter().next()
    }

    /// Why the kernel does not take a request: all reasons.
    pub fn reasons(&self, request: &Request<'_>, target: &Target) -> Vec<String> {
        let own = match self {
            Self::Custom(_) if request.pass != Pass::Forward => {
                return vec!["it computes the forward pass only".into()];
            }
            Self::Custom(kernel) => kernel.refuses(request, target).into_iter().collect(),
            Self::Generic => any_problem::refuses(request),
            Self::Rows(knobs) => match PaddedRequest::new(request) {
                Some(padded) => knobs.reasons(&padded.of(request), target),
                None => knobs.reasons(request, target),
            },
        };
        let value = if request.wanted().value { backward::tiles::refuses(request) } else { Vec::new() };
        [value, own].concat()
    }

    /// Prepares a call with the kernel, for a request that it takes.
    pub fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let mut call = Call::default();
        match (self, request.pass) {
            (Self::Custom(kernel), _) => return kernel.prepare(request, target),
            (Self::Generic, Pass::Forward) => forward::generic::add(&mut call, request, target),
            (Self::Rows(knobs), Pass::Forward) => {
                with_aligned_rows(&mut call, request, target, |call, request| {
                    if knobs.resident_levels > 0 {
                        forward::resident::add(*knobs, call, request, target);
                    } else {
                        forward::streaming::add(*knobs, call, request, target);
                    }
                });
            }
            (Self::Generic, Pass::Backward(_)) => {
                backward::add(&mut call, request, target, |call, scratch| {
                    backward::samples_generic::add(call, request, target, scratch);
                });
            }
            (Self::Rows(knobs), Pass::Backward(_)) => {
                backward::add(&mut call, request, target, |call, scratch| {
                    with_aligned_rows(call, request, target, |call, request| {
                        backward::samples::add(*knobs, call, request, target, scratch);
                    });
                });
            }
        }
        call
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

/// Adds a kernel of lane groups, and copies of tensors whose rows are not aligned.
fn with_aligned_rows(
    call: &mut Call,
    request: &Request<'_>,
    target: &Target,
    add: impl FnOnce(&mut Call, &Request<'_>),
) {
    match PaddedRequest::new(request) {
        Some(padded) => padded.run(call, request, target, add),
        None => add(call, request),
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
