//! `pack.cu`: copies value from one layout to another.

use msda::{Layout, Problem, Role};

use super::options::{BLOCK, blocks};
use super::{Args, Prepared};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Operand, Slot};
use crate::target::Target;

/// Levels per launch: their table is part of the argument.
const LEVELS: usize = 32;

/// The numbers of a level, in both layouts.
const FIELDS: [&str; 6] = [
    "level[0].height",
    "level[0].width",
    "level[0].from_origin",
    "level[0].from_pitch",
    "level[0].to_origin",
    "level[0].to_pitch",
];

/// Prepares the kernels: one per group of levels. [`Slot::Value`] is the source, [`Slot::Output`]
/// the destination.
pub fn pack(from: (&Problem, Operand), to: (&Problem, Operand), target: &Target) -> Vec<Prepared> {
    let ((a, from), (b, to)) = (from, to);
    let size = b.types().value.size();
    let ([images, positions, heads], inner) = Role::Value.shape(b);
    let launch = Launch::new([blocks(images * positions * heads * inner, target), 1, 1], [BLOCK, 1, 1]);
    let levels: Vec<_> = a.levels().iter().zip(b.levels()).collect();
    let groups = levels.chunks(LEVELS).enumerate();
    let prepared = groups.map(|(group, levels)| {
        let mut args = Args::default();
        args.pointer("from", Slot::Value);
        args.pointer("to", Slot::Output);
        args.strides("from_stride", from, size);
        args.strides("to_stride", to, size);
        args.i64("levels", levels.len());
        args.i64("batch", b.batch());
        args.i64("heads", b.heads());
        args.i64("channels", b.channels());
        args.i64("positions", b.positions());
        args.i64("planar", usize::from(b.layout() != Layout::Bshd));
        // The first launch writes every position, the others only those of their levels.
        args.i64("all", usize::from(group == 0));
        for i in 0..LEVELS {
            let numbers =
                levels.get(i).map_or([0; 6], |(x, y)| [x.h, x.w, x.origin, x.pitch, y.origin, y.pitch]);
            FIELDS.into_iter().zip(numbers).for_each(|(name, n)| args.i64(name, n));
        }
        let unit = Unit::new("pack.cu", format!("pack-{size}"), target.arch)
            .define("ELEMENT_BYTES", size)
            .define("LEVELS", LEVELS);
        Prepared { unit: args.compared(unit), entry: "msda_pack", launch, args }
    });
    prepared.collect()
}
