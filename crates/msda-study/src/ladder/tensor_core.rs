//! `tensor_core.cu`: the coarsest level as a matrix product.

use anyhow::{Context, Result, ensure};
use msda::{Dtype, Problem};
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::{Ask, Strategy, one};

/// It has no knobs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorCore {}

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

/// The smallest level that is sampled.
fn coarse(p: &Problem) -> Option<Coarse> {
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
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let (p, dtype, channels) = (ask.p, ask.p.types().value, ask.p.channels());
        ask.needs(8, "such products")?;
        let short = [Dtype::F16, Dtype::Bf16].contains(&dtype);
        ensure!(short, "values are {dtype}: products are of 16-bit numbers");
        let fits = channels.is_multiple_of(8) && channels <= 256;
        ensure!(fits, "{channels} channels: products take them by 8, up to 256");
        let coarse = coarse(p).filter(|coarse| coarse.shared <= ask.target.shared());
        let Coarse { level, positions, stride, shared } =
            coarse.context("the smallest level does not fit shared memory with its weights")?;
        // Blocks per SM that registers must allow; shared memory seldom allows more.
        let blocks_per_sm = if channels <= 64 { 4 } else { 2 };
        let unit = ask
            .unit("ladder/tensor_core.cu", ask.vec(16))
            .define("THREADS", BLOCK)
            .define("BLOCKS_PER_SM", blocks_per_sm)
            .define("WEIGHT_TERMS", if dtype == Dtype::F16 { 2 } else { 3 });
        let tiles = p.queries().div_ceil(QUERIES);
        let mut args = ask.args();
        args.i32("tiles", tiles);
        args.i32("coarse", level);
        args.i32("points", p.points()[level]);
        args.i32("positions", positions);
        args.i32("stride", stride);
        // As many blocks as are resident at once, each with a share of one plane.
        let resident = (ask.target.shared() / (shared + 1024)).clamp(1, blocks_per_sm) * ask.sms();
        Ok(one(unit, ask.per_plane((resident / ask.planes()).clamp(1, tiles), BLOCK, shared), args))
    }
}
