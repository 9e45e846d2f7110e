//! `pack.cu`: copies value from one layout to another.

use msda::{Layout, Problem, Role};

use super::{Block, Hole, Prepared, blocks};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Operand, Target};

/// Prepares the kernel and its table of levels. [`Hole::Value`] is the source, [`Hole::Output`] the
/// destination and [`Hole::Shapes`] the table.
pub(crate) fn pack(
    from: (&Problem, Operand),
    to: (&Problem, Operand),
    target: &Target,
) -> (Prepared, Vec<u8>) {
    let ((a, from), (b, to)) = (from, to);
    let size = b.types().value.size();
    let mut args = Block::default();
    args.hole(Hole::Value);
    args.hole(Hole::Output);
    for stride in from.strides.into_iter().chain(to.strides) {
        args.i64(stride.wrapping_mul(size) as i64);
    }
    args.hole(Hole::Shapes);
    for n in [b.levels().len(), b.batch(), b.heads(), b.channels(), b.positions()] {
        args.i64(n as i64);
    }
    args.i64(i64::from(b.layout() != Layout::Bshd));
    let unit = Unit::new("pack.cu", format!("pack-{size}"), target.arch)
        .define("ELEMENT_BYTES", size)
        .define("ARGS_BYTES", args.bytes().len());
    let mut table = Block::default();
    for (x, y) in a.levels().iter().zip(b.levels()) {
        for n in [x.h, x.w, x.origin, x.pitch, y.origin, y.pitch] {
            table.i64(n as i64);
        }
    }
    let ([images, positions, heads], inner) = Role::Value.shape(b);
    let launch = Launch::new([blocks(images * positions * heads * inner, target), 1, 1], [256, 1, 1]);
    (Prepared { unit, entry: "msda_pack", launch, args }, table.bytes().to_vec())
}
