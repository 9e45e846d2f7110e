//! `pad.cu`: copies of tensors whose rows are aligned to 16 bytes, for kernels that load and store
//! whole pieces.

use msda::{Dtype, Problem, Role};

use super::division::{Division, aligned};
use super::options::{BLOCK, blocks};
use super::{Action, Args, Call, Pointer, Prepared, Region};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Operand, Operands, Pass, Request, Slot};
use crate::target::Target;

/// Bytes of a piece.
pub(super) const PIECE: usize = 16;

/// Lanes per row that a copy must save, as a factor, to pay for itself.
const SAVED_LANES: usize = 4;

/// A tensor and its copy: the rows of one, and the bytes of a row of the other.
#[derive(Debug, Clone, Copy)]
struct Rows {
    extents: [usize; 3],
    /// Bytes of an element, of a row, and of a row of the copy.
    size: usize,
    bytes: usize,
    row: usize,
}

impl Rows {
    fn new(p: &Problem, role: Role) -> Self {
        let (extents, channels) = role.shape(p);
        let size = p.types().value.size();
        let bytes = channels * size;
        // Rows of more than 512 bytes are loaded 32 bytes per lane.
        let row = bytes.next_multiple_of(if bytes > 32 * PIECE { 2 * PIECE } else { PIECE });
        Self { extents, size, bytes, row }
    }

    fn pieces(&self) -> usize {
        self.extents.iter().fold(self.row / PIECE, |n, &x| n.saturating_mul(x))
    }

    /// How the copy lies in the workspace.
    fn operand(&self) -> Operand {
        let ([_, rows, heads], row) = (self.extents, self.row / self.size);
        Operand { strides: [rows * heads * row, heads * row, row], align: PIECE }
    }
}

/// Whether a copy is small enough for the kernel.
pub(super) fn fits(p: &Problem, role: Role) -> bool {
    Rows::new(p, role).pieces() < 1 << 31
}

/// A copy: where it is, and how it lies there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Padded {
    pub(super) region: Region,
    pub(super) operand: Operand,
}

/// Adds a stage that copies a tensor.
pub(super) fn add(call: &mut Call, request: &Request<'_>, slot: Slot, role: Role, target: &Target) -> Padded {
    let rows = Rows::new(request.problem, role);
    let region = call.arena.reserve(rows.pieces() * PIECE);
    run(call, request, (slot, role), region, false, target);
    Padded { region, operand: rows.operand() }
}

/// Adds a stage that copies between a tensor and a region of the workspace.
fn run(
    call: &mut Call,
    request: &Request<'_>,
    (slot, role): (Slot, Role),
    region: Region,
    back: bool,
    target: &Target,
) {
    let (p, tensor) = (request.problem, request.operands[slot]);
    let rows = Rows::new(p, role);
    let align = aligned(p, role, tensor, rows.size, rows.bytes);
    let mut args = Args::default();
    args.strided("tensor", slot, tensor, rows.size);
    args.pointer("copy", region);
    args.i32("rows", rows.extents[1]);
    args.i32("heads", rows.extents[2]);
    args.i32("bytes", rows.bytes);
    args.i32("row_pieces", rows.row / PIECE);
    args.i32("pieces", rows.pieces());
    args.align(8);
    let key = format!("pad-{}-a{align}{}", rows.size, if back { "-back" } else { "" });
    let unit = Unit::new("pad.cu", key, target.arch)
        .define("ELEMENT_BYTES", rows.size)
        .define("ROW_ALIGN", align)
        .define("BACK", u8::from(back));
    let launch = Launch::new([blocks(rows.pieces(), target), 1, 1], [BLOCK, 1, 1]);
    let why = if back { "copies the output to its rows" } else { "copies rows to whole 16 bytes" };
    call.run(Prepared { unit, entry: "msda_pad", launch, args }, why);
}

/// A request for kernels of lane groups whose rows are not aligned, as if they were: value and
/// output, or its gradient, are copies with some more channels, which are zero.
pub(crate) struct PaddedRequest {
    problem: Problem,
    operands: Operands,
}

impl PaddedRequest {
    /// None if the rows are aligned well enough, or if copies would take longer than they save.
    pub(crate) fn new(request: &Request<'_>) -> Option<Self> {
        let (p, lanes) = (request.problem, Division::of(request).lanes);
        let rows = Rows::new(p, Role::Value);
        let fewer = rows.row.div_ceil(if rows.row > 32 * PIECE { 2 * PIECE } else { PIECE });
        // No lane group has more than 32 lanes.
        let saves = lanes > 32 || lanes == 32 && lanes >= SAVED_LANES * fewer.next_power_of_two();
        let samples = p.queries().saturating_mul(p.samples());
        let pays = samples.saturating_mul(4) >= p.positions() && p.output_len() > 0;
        let fits = fits(p, Role::Value) && fits(p, Role::Output);
        if p.types().value == Dtype::F64 || fewer > 32 || !saves || !pays || !fits {
            return None;
        }
        let problem = p.with(|spec| spec.channels = rows.row / rows.size).ok()?;
        let mut operands = request.operands.clone();
        operands[Slot::Value] = rows.operand();
        operands[request.output()] = Rows::new(p, Role::Output).operand();
        Some(Self { problem, operands })
    }

    /// The request with copies in place of the tensors.
    pub(crate) fn of<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        Request { problem: &self.problem, operands: &self.operands, ..*request }
    }

    /// Adds the stages of a kernel between those that copy. `add` gets this request.
    pub(super) fn run(
        &self,
        call: &mut Call,
        request: &Request<'_>,
        target: &Target,
        add: impl FnOnce(&mut Call, &Request<'_>),
    ) {
        let output = request.output();
        let mut copies =
            vec![(Slot::Value, self::add(call, request, Slot::Value, Role::Value, target).region)];
        let pieces = Rows::new(request.problem, Role::Output).pieces();
        copies.push((
            output,
            match request.pass {
                Pass::Forward => call.arena.reserve(pieces * PIECE),
                Pass::Backward(_) => self::add(call, request, output, Role::Output, target).region,
            },
        ));
        let first = call.stages.len();
        add(call, &self.of(request));
        for stage in &mut call.stages[first..] {
            if let Action::Run(prepared) = &mut stage.action {
                for &(slot, region) in &copies {
                    prepared.args.redirect(Pointer::Slot(slot), region.into());
                }
            }
        }
        if request.pass == Pass::Forward {
            run(call, request, (output, Role::Output), copies[1].1, true, target);
        }
    }
}
