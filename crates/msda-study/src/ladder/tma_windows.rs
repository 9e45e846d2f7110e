//! `tma_windows.cu`: one TMA copy loads the taps of a sample.

use std::sync::Arc;

use anyhow::{Result, ensure};
use msda::Role;
use msda_cuda::Slot;
use msda_cuda::kernels::Call;
use serde::Deserialize;

use super::{Ask, Strategy, one};
use crate::tensor_map::{Tiled, Windows};

/// It has no knobs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TmaWindows {}

const WARPS: usize = 4;

/// The most samples per query in flight.
const GROUP: usize = 4;

/// The most levels whose tensor maps fit the argument.
const LEVELS: usize = 24;

/// The longest row: 16 bytes per lane of a warp.
const ROW: usize = 512;

/// The strides of value in bytes. The stride of a dimension of size 1 does not matter.
fn strides(ask: &Ask<'_>) -> [u64; 3] {
    let ([images, positions, heads], _) = Role::Value.shape(ask.p);
    let size = ask.p.types().value.size();
    let strides = ask.request.operands[Slot::Value].strides;
    let [image, position, head] = strides.map(|stride| stride.wrapping_mul(size) as u64);
    let of = |extent: usize, stride: u64| if extent > 1 { stride } else { ask.row_bytes() as u64 };
    [of(images, image), of(positions, position), of(heads, head)]
}

impl Strategy for TmaWindows {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let (p, row) = (ask.p, ask.row_bytes());
        ask.needs(9, "copy engine for tensors")?;
        ensure!(ask.vec(16) >= 16, "rows are not at multiples of 16 bytes");
        ensure!(row <= ROW && p.channels() <= 256, "rows of {row} bytes: a warp reads at most {ROW}");
        let levels = p.levels().len();
        ensure!(levels <= LEVELS, "{levels} levels: {LEVELS} descriptions fit the argument");
        let pitch = p.levels().iter().map(|level| level.pitch as u64).max().unwrap_or(1);
        let [image, position, head] = strides(ask);
        let short = |stride: Option<u64>| stride.is_some_and(|stride| (1..1 << 40).contains(&stride));
        let described = [Some(image), Some(head), position.checked_mul(pitch)].into_iter().all(short);
        ensure!(described, "a stride of value is 0 or too long to be described");

        // If a level has fewer points, a group is a level.
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let group = if uniform { p.points()[0] } else { p.samples() }.min(GROUP);
        // Queries per warp.
        let items = 32 / (row / 16);
        // Shared memory per block, as the kernel lays it out.
        let (windows, taps) = (items * group, ask.taps());
        let stage = windows * (taps * row).next_multiple_of(128);
        let weights = (windows * taps * size_of::<f32>()).next_multiple_of(128);
        let shared = WARPS * (2 * (stage + weights) + 128);
        let unit = ask
            .unit("ladder/tma_windows.cu", 16)
            .define("GROUP", group)
            .define("WARPS", WARPS)
            .define("SHARED", shared);
        let tiles = p.queries().div_ceil(items);
        let mut args = ask.args();
        args.i32("tiles", tiles);
        // The side of a window in pixels.
        let (channels, side) = (p.channels() as u64, taps.isqrt() as u32);
        let mut windows = Windows::default();
        for level in p.levels() {
            let window = Tiled {
                address: level.origin as u64 * position,
                dtype: p.types().value,
                sizes: vec![channels, p.heads() as u64, level.w as u64, level.h as u64, p.batch() as u64],
                strides: vec![head, position, position * level.pitch as u64, image],
                window: vec![channels as u32, 1, side, side, 1],
            };
            windows.0.push((args.room(128, 128), window));
        }
        // As many blocks as are resident at once, each with a share of one plane.
        let resident = (ask.target.shared() / (shared + 1024)).clamp(1, 8) * ask.sms();
        let blocks = (resident / ask.planes()).clamp(1, tiles.div_ceil(WARPS));
        let mut call = one(unit, ask.per_plane(blocks, 32 * WARPS, shared), args);
        call.resource = Some(Arc::new(windows));
        Ok(call)
    }
}
