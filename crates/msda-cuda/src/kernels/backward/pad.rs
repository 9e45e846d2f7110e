//! `backward/pad.cu`: a copy of the gradient of the output whose rows are aligned to 16 bytes.

use msda::Role;

use super::matrix::Chunks;
use crate::driver::Launch;
use crate::jit::Unit;
use crate::kernels::division::aligned;
use crate::kernels::options::{BLOCK, blocks};
use crate::kernels::{Args, Call, Prepared, Region};
use crate::request::{Operand, Request, Slot};
use crate::target::Target;

/// Bytes of a piece: what kernels on tensor cores copy at once.
pub(super) const PIECE: usize = 16;

/// The copy: where it is, and how it lies there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Padded {
    pub(super) region: Region,
    pub(super) operand: Operand,
}

/// Pieces of the copy.
pub(super) fn pieces(request: &Request<'_>) -> usize {
    let ([images, queries, heads], channels) = Role::Output.shape(request.problem);
    let row = (channels * request.problem.types().value.size()).div_ceil(PIECE);
    [images, queries, heads].iter().fold(row, |n, &x| n.saturating_mul(x))
}

/// Adds the stage, if the kernels need the copy.
pub(super) fn add(call: &mut Call, request: &Request<'_>, target: &Target, chunks: Chunks) -> Option<Padded> {
    if !chunks.pads {
        return None;
    }
    let p = request.problem;
    let (size, from) = (p.types().value.size(), request.operands[Slot::GradOutput]);
    let (bytes, pieces) = (p.channels() * size, pieces(request));
    let row = bytes.div_ceil(PIECE);
    let align = aligned(p, Role::Output, from, size, bytes);
    let region = call.arena.reserve(pieces * PIECE);
    let mut args = Args::default();
    args.strided("from", Slot::GradOutput, from, size);
    args.pointer("to", region);
    args.i32("queries", p.queries());
    args.i32("heads", p.heads());
    args.i32("bytes", bytes);
    args.i32("row_pieces", row);
    args.i32("pieces", pieces);
    args.align(8);
    let unit = Unit::new("backward/pad.cu", format!("pad-{size}-a{align}"), target.arch)
        .define("ELEMENT_BYTES", size)
        .define("ROW_ALIGN", align);
    let launch = Launch::new([blocks(pieces, target), 1, 1], [BLOCK, 1, 1]);
    let prepared = Prepared { unit, entry: "msda_backward_pad", launch, args };
    call.run(prepared, "copies the gradient of the output to rows of whole 16 bytes");
    let row = row * PIECE / size;
    let strides = [p.queries() * p.heads() * row, p.heads() * row, row];
    Some(Padded { region, operand: Operand { strides, align: PIECE } })
}
