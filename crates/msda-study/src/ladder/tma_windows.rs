//! `tma_windows.cu`: one TMA copy loads the taps of a sample.

use std::sync::Arc;

use msda::{Role, Sampling};

use super::{Strategy, args, row_bytes, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Slot, Target};

use crate::tensor_map::{Tiled, TmaWindows};

/// It has no knobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows;

const WARPS: usize = 4;

/// The most samples per query in flight.
const GROUP: usize = 4;

/// The most levels whose tensor maps fit the argument.
const LEVELS: usize = 24;

/// The longest row: 16 bytes per lane of a warp.
const ROW: usize = 512;

/// The side of a window in pixels.
fn side(request: &Request<'_>) -> usize {
    if request.problem.sampling() == Sampling::Nearest { 1 } else { 2 }
}

/// Queries per warp.
fn items(request: &Request<'_>) -> usize {
    32 / (row_bytes(request) / 16)
}

fn group(request: &Request<'_>) -> usize {
    // If a level has fewer points, a group is a level.
    let p = request.problem;
    let uniform = p.points().iter().all(|&n| n == p.points()[0]);
    if uniform { p.points()[0].min(GROUP) } else { p.samples().min(GROUP) }
}

/// Shared memory per block, as the kernel lays it out.
fn shared(request: &Request<'_>) -> usize {
    let (windows, taps) = (items(request) * group(request), side(request).pow(2));
    let stage = windows * (taps * row_bytes(request)).next_multiple_of(128);
    let weights = (windows * taps * size_of::<f32>()).next_multiple_of(128);
    WARPS * (2 * (stage + weights) + 128)
}

/// The strides of value in bytes. The stride of a dimension of size 1 does not matter.
fn strides(request: &Request<'_>) -> [u64; 3] {
    let (p, o) = (request.problem, request.operands);
    let ([images, positions, heads], _) = Role::Value.shape(p);
    let size = p.types().value.size();
    let [image, position, head] = o[Slot::Value].strides.map(|stride| stride.wrapping_mul(size) as u64);
    let of = |extent: usize, stride: u64| if extent > 1 { stride } else { row_bytes(request) as u64 };
    [of(images, image), of(positions, position), of(heads, head)]
}

impl Strategy for Windows {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let p = request.problem;
        if target.arch.major < 9 {
            return Some(format!("{} has no copy engine for tensors", target.arch));
        }
        if vec(request, 16) < 16 {
            return Some("rows are not at multiples of 16 bytes".into());
        }
        if row_bytes(request) > ROW || p.channels() > 256 {
            return Some(format!("rows of {} bytes: a warp reads at most {ROW}", row_bytes(request)));
        }
        if p.levels().len() > LEVELS {
            return Some(format!("{} levels: {LEVELS} descriptions fit the argument", p.levels().len()));
        }
        let pitch = p.levels().iter().map(|level| level.pitch as u64).max().unwrap_or(1);
        let [image, position, head] = strides(request);
        let long = |stride: Option<u64>| stride.is_none_or(|stride| stride == 0 || stride >= 1 << 40);
        if [Some(image), Some(head), position.checked_mul(pitch)].into_iter().any(long) {
            return Some("a stride of value is 0 or too long to be described".into());
        }
        None
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let (group, shared) = (group(request), shared(request));
        let key = format!("tma_windows-g{group}");
        let unit = unit("ladder/tma_windows.cu", &key, request, target, 16)
            .define("GROUP", group)
            .define("WARPS", WARPS)
            .define("SHARED", shared);
        let tiles = p.queries().div_ceil(items(request));
        let mut args = args(request);
        args.i32("tiles", tiles);
        let [image, position, head] = strides(request);
        let (channels, side) = (p.channels() as u64, side(request) as u32);
        let mut windows = TmaWindows::default();
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
        let resident = (target.shared() / (shared + 1024)).clamp(1, 8) * target.sms as usize;
        let blocks = (resident / (p.batch() * p.heads())).clamp(1, tiles.div_ceil(WARPS));
        let grid = [blocks, p.heads(), p.batch()].map(|n| n as u32);
        let mut launch = Launch::new(grid, [32 * WARPS as u32, 1, 1]);
        launch.shared = shared as u32;
        let mut call = Call::from(Prepared { unit, entry: "msda_forward", launch, args });
        call.resource = Some(Arc::new(windows));
        call
    }
}
