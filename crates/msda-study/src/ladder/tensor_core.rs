//! `tensor_core.cu`: the coarsest level as a matrix product.

use msda::Dtype;

use super::{Strategy, args, per_plane, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// It has no knobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorCore;

const BLOCK: usize = 256;
const QUERIES: usize = BLOCK / 4;

/// The level that is multiplied, and its size in shared memory.
struct Coarse {
    level: usize,
    /// Its positions, rounded up to a step of the matrix product.
    positions: usize,
    /// Row pitch of the weight matrix, in elements.
    stride: usize,
    /// Shared memory per block.
    shared: usize,
}

/// Blocks per SM that registers must allow; shared memory seldom allows more.
fn blocks(request: &Request<'_>) -> usize {
    if request.problem.channels() <= 64 { 4 } else { 2 }
}

/// The smallest level that is sampled.
fn coarse(request: &Request<'_>) -> Option<Coarse> {
    let p = request.problem;
    let pixels = |l: &usize| p.levels()[*l].h * p.levels()[*l].w;
    let level = (0..p.levels().len()).filter(|&l| p.points()[l] > 0).min_by_key(pixels)?;
    let positions = pixels(&level).next_multiple_of(16);
    // The sums reuse the memory of the weights. Rows that begin 8 banks apart do not conflict.
    let stride = positions.max(p.channels()).next_multiple_of(32) + 8;
    let rows = positions.checked_mul(p.channels() * p.types().value.size() + 16)?;
    let shared = rows.checked_add((stride + 2).checked_mul(QUERIES * size_of::<f32>())?)?;
    Some(Coarse { level, positions, stride, shared })
}

impl Strategy for TensorCore {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let (p, dtype) = (request.problem, request.problem.types().value);
        if target.arch.major < 8 {
            return Some(format!("{} has no such products", target.arch));
        }
        if ![Dtype::F16, Dtype::Bf16].contains(&dtype) {
            return Some(format!("values are {dtype}: products are of 16-bit numbers"));
        }
        if !p.channels().is_multiple_of(8) || p.channels() > 256 {
            return Some(format!("{} channels: products take them by 8, up to 256", p.channels()));
        }
        match coarse(request) {
            Some(coarse) if coarse.shared <= target.shared() => None,
            _ => Some("the smallest level does not fit shared memory with its weights".into()),
        }
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let Some(Coarse { level, positions, stride, shared }) = coarse(request) else {
            return Call::default();
        };
        let parts = if p.types().value == Dtype::F16 { 2 } else { 3 };
        let unit = unit("ladder/tensor_core.cu", "tensor_core", request, target, vec(request, 16))
            .define("THREADS", BLOCK)
            .define("BLOCKS_PER_SM", blocks(request))
            .define("WEIGHT_TERMS", parts);
        let tiles = p.queries().div_ceil(QUERIES);
        let mut args = args(request);
        args.i32("tiles", tiles);
        args.i32("coarse", level);
        args.i32("points", p.points()[level]);
        args.i32("positions", positions);
        args.i32("stride", stride);
        args.align(8);
        // As many blocks as are resident at once, each with a share of one plane.
        let resident = (target.shared() / (shared + 1024)).clamp(1, blocks(request)) * target.sms as usize;
        let blocks = (resident / (p.batch() * p.heads())).clamp(1, tiles);
        let launch = Launch { shared: shared as u32, ..per_plane(p, blocks, BLOCK) };
        Prepared { unit, entry: "msda_forward", launch, args }.into()
    }
}
