//! `texture.cu`: the texture unit interpolates.

use std::sync::Arc;

use msda::{Dtype, Sampling};

use super::{Strategy, args, per_plane, unit, vec};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Args, Call, Pointer, Prepared};
use msda_cuda::{Request, Target};

use crate::texture::{Texels, Textures};

/// It has no knobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Texture;

/// Threads per block.
const THREADS: usize = 128;

/// Channels per texel, at most.
const CHANNELS: usize = 4;

/// The most maps of four channels per thread.
const SHARE: usize = 8;

/// The texture of a level with so many channels per texel, and the number of planes side by side
/// in it.
fn texels(request: &Request<'_>, level: usize, channels: usize) -> (Texels, usize) {
    let (p, dtype) = (request.problem, request.problem.types().value);
    let (h, w) = (p.levels()[level].h + 1, p.levels()[level].w + 1);
    let planes = p.batch() * p.heads();
    // About square, so that coordinates keep most bits for their fraction.
    let row = w * (p.channels() / channels);
    let beside = (planes as f64 * h as f64 / row as f64).sqrt().ceil() as usize;
    let beside = beside.clamp(1, planes.max(1));
    let (width, height) = (beside * row + 1, planes.div_ceil(beside) * h + 1);
    let pitch = (width * channels * dtype.size()).next_multiple_of(128);
    (Texels { at: 0, dtype, channels, width, height, pitch }, beside)
}

/// Why textures with so many channels per texel do not take a request.
pub(super) fn refuses(request: &Request<'_>, channels: usize) -> Option<String> {
    let (p, dtype) = (request.problem, request.problem.types().value);
    if ![Dtype::F16, Dtype::F32].contains(&dtype) {
        return Some(format!("values are {dtype}: textures are of f16 or f32"));
    }
    if p.sampling() != Sampling::Bilinear {
        return Some("samples are not bilinear: there is nothing to interpolate".into());
    }
    if !p.channels().is_multiple_of(channels) {
        return Some(format!("{} channels: a texel has {channels}", p.channels()));
    }
    let (w, h) = Texels::MOST;
    (0..p.levels().len()).find_map(|level| {
        let (texels, _) = texels(request, level, channels);
        let large = texels.width > w || texels.height > h;
        let got = || format!("{} x {} texels: at most {w} x {h}", texels.width, texels.height);
        large.then(|| format!("the maps of level {level} take {}", got()))
    })
}

/// Adds the textures of all levels to an argument: `Texture` of the kernels.
pub(super) fn put(textures: &mut Textures, args: &mut Args, request: &Request<'_>, channels: usize) {
    for level in 0..request.problem.levels().len() {
        let (texels, beside) = texels(request, level, channels);
        let index = textures.push(texels);
        args.pointer("texture[0].handle", Pointer::Owned(2 * index));
        args.pointer("texture[0].texels", Pointer::Owned(2 * index + 1));
        args.i32("texture[0].pitch", texels.pitch);
        args.i32("texture[0].planes_per_row", beside);
    }
}

/// The launch that copies the first levels.
pub(super) fn copy_launch(request: &Request<'_>, target: &Target, levels: usize, threads: usize) -> Launch {
    let p = request.problem;
    let pixels = p.levels().iter().map(|level| level.h * level.w).max().unwrap_or(1);
    let most = target.sms as usize * (target.threads() as usize / threads).max(1);
    let blocks = (pixels * p.batch() * p.heads()).div_ceil(threads).clamp(1, most);
    Launch::new([blocks as u32, levels as u32, 1], [threads as u32, 1, 1])
}

impl Strategy for Texture {
    fn refuses(&self, request: &Request<'_>, _target: &Target) -> Option<String> {
        refuses(request, CHANNELS)
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let maps = p.channels() / CHANNELS;
        let share = (1..=SHARE).rev().find(|&n| maps.is_multiple_of(n)).unwrap_or(1);
        let vec = vec(request, 16 | (share * CHANNELS * p.types().value.size()));
        let unit = unit("ladder/texture.cu", &format!("texture-{share}"), request, target, vec)
            .define("SHARE", share)
            .define("CHANNELS_PER_TEXEL", CHANNELS)
            .define("THREADS", THREADS);
        let mut textures = Textures::default();
        let mut args = args(request);
        put(&mut textures, &mut args, request, CHANNELS);
        let copy = copy_launch(request, target, p.levels().len(), THREADS);
        let blocks = (p.queries() * (maps / share)).div_ceil(THREADS);
        let read = per_plane(p, blocks, THREADS);
        let mut call = Call::default();
        call.resource = Some(Arc::new(textures));
        for (entry, launch, why) in [
            ("msda_texels", copy, "copies values to textures"),
            ("msda_forward", read, "computes the output"),
        ] {
            call.run(Prepared { unit: unit.clone(), entry, launch, args: args.clone() }, why);
        }
        call
    }

    fn is_exact(&self) -> bool {
        false
    }
}
