//! `pack.cu`: copies value from one layout to another.

use msda::{Layout, Problem, Role};

use super::{Args, Prepared, blocks};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Operand, Slot, Target};

/// Levels per launch: their table is part of the argument.
const LEVELS: usize = 32;

/// Prepares the kernels: one per group of levels. [`Slot::Value`] is the source, [`Slot::Output`]
/// the destination.
pub(crate) fn pack(from: (&Problem, Operand), to: (&Problem, Operand), target: &Target) -> Vec<Prepared> {
    let ((a, from), (b, to)) = (from, to);
    let size = b.types().value.size();
    let ([images, positions, heads], inner) = Role::Value.shape(b);
    let launch = Launch::new([blocks(images * positions * heads * inner, target), 1, 1], [256, 1, 1]);
    let levels: Vec<_> = a.levels().iter().zip(b.levels()).collect();
    let groups = levels.chunks(LEVELS).enumerate();
    let prepared = groups.map(|(group, levels)| {
        let mut args = Args::default();
        args.pointer(Slot::Value);
        args.pointer(Slot::Output);
        for stride in from.strides.into_iter().chain(to.strides) {
            args.i64(stride.wrapping_mul(size) as i64);
        }
        for n in [levels.len(), b.batch(), b.heads(), b.channels(), b.positions()] {
            args.i64(n as i64);
        }
        args.i64(i64::from(b.layout() != Layout::Bshd));
        // The first launch writes every position, the others only those of their levels.
        args.i64(i64::from(group == 0));
        for i in 0..LEVELS {
            let numbers =
                levels.get(i).map_or([0; 6], |(x, y)| [x.h, x.w, x.origin, x.pitch, y.origin, y.pitch]);
            numbers.into_iter().for_each(|n| args.i64(n as i64));
        }
        let unit = Unit::new("pack.cu", format!("pack-{size}"), target.arch)
            .define("ELEMENT_BYTES", size)
            .define("LEVELS", LEVELS)
            .define("ARGS_BYTES", args.bytes().len());
        Prepared { unit, entry: "msda_pack", launch, args }
    });
    prepared.collect()
}
