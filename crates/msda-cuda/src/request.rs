//! What is asked of a kernel: a problem, how its tensors lie in device memory, and the device.

use msda::{Problem, ReferenceKind, Role, Strides};

use crate::driver::{Arch, Device};

/// How a tensor lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Elements from one index to the next in the three outer dimensions.
    pub strides: Strides,
    /// A power of two that its address is a multiple of, in bytes.
    pub align: usize,
}

impl Operand {
    /// Dense, at an address that any allocator gives.
    pub fn dense(problem: &Problem, role: Role) -> Self {
        Self { strides: role.dense(problem), align: 256 }
    }
}

/// How the tensors of a call lie in device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operands {
    /// The value pyramid.
    pub value: Operand,
    /// Locations, or the offsets of the fused form.
    pub locations: Operand,
    /// Weights, or the logits of the fused form.
    pub weights: Operand,
    /// Reference points; they make the form fused.
    pub reference: Option<(ReferenceKind, Operand)>,
    /// The output.
    pub output: Operand,
}

impl Operands {
    /// Dense tensors; the form is fused where a kind of reference points is given.
    pub fn dense(problem: &Problem, reference: Option<ReferenceKind>) -> Self {
        let dense = |role| Operand::dense(problem, role);
        Self {
            value: dense(Role::Value),
            locations: dense(Role::Locations),
            weights: dense(Role::Weights),
            reference: reference.map(|kind| (kind, dense(Role::Reference(kind)))),
            output: dense(Role::Output),
        }
    }

    /// Numbers of a reference point; 0 in the plain form.
    pub fn reference_numbers(&self) -> usize {
        self.reference.map_or(0, |(kind, _)| kind.dim())
    }
}

/// Where the sizes and starts of the levels are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Levels {
    /// The problem has them.
    #[default]
    Host,
    /// Device memory has them, and the problem's are placeholders: only their number and the positions count.
    Device,
}

/// What sums are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sums {
    /// `f32` (`f64` for `f64` values).
    #[default]
    F32,
    /// Where values are `f16`, a few samples at a time may be summed in `f16`, where that is faster: two to four times the error.
    F16,
}

/// Which sizes a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sizes {
    /// Any: images of another size need no other kernel.
    #[default]
    Any,
    /// Those of the problem, where that may be faster: how far apart rows and positions are is known when compiled. Every size costs a compilation.
    Fixed,
}

/// What a kernel is chosen for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What to compute.
    pub problem: &'a Problem,
    /// On tensors that lie how.
    pub operands: &'a Operands,
    /// Where level sizes are known.
    pub levels: Levels,
    /// What sums are kept in.
    pub sums: Sums,
    /// Which sizes it is compiled for.
    pub sizes: Sizes,
}

impl<'a> Request<'a> {
    /// The usual: level sizes known on the host, sums in `f32`, a kernel for any size.
    pub fn new(problem: &'a Problem, operands: &'a Operands) -> Self {
        Self { problem, operands, levels: Levels::Host, sums: Sums::F32, sizes: Sizes::Any }
    }
}

impl Request<'_> {
    /// The queries are the pixels of the levels, in order: what an encoder asks.
    pub fn queries_are_pixels(&self) -> bool {
        let levels = self.problem.levels();
        self.levels == Levels::Host
            && self.problem.queries() == levels.iter().map(|l| l.h * l.w).sum::<usize>()
    }
}

/// What a kernel is compiled and laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The architecture.
    pub arch: Arch,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

impl Target {
    /// That of a device.
    pub fn of(device: &Device) -> Self {
        Self { arch: device.arch(), multiprocessors: device.multiprocessors() }
    }

    /// Shared memory that a block can have, in bytes.
    pub fn shared(&self) -> usize {
        let kilobytes = match (self.arch.major, self.arch.minor) {
            (7, 5) => 64,
            (8, 0 | 7) => 163,
            (9 | 10, _) => 227,
            // What every other architecture has at least.
            _ => 96,
        };
        kilobytes << 10
    }

    /// Threads that a multiprocessor holds.
    pub fn threads(&self) -> u32 {
        match (self.arch.major, self.arch.minor) {
            (7, 5) => 1024,
            (8, 6 | 7 | 9) | (12, _) => 1536,
            _ => 2048,
        }
    }
}
