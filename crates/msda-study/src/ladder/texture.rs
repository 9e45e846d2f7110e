//! `texture.cu`: the texture unit interpolates.

use std::sync::Arc;

use anyhow::{Result, ensure};
use msda::{Dtype, Sampling};
use msda_cuda::driver::Launch;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Args, Call, Pointer, Prepared};
use serde::Deserialize;

use super::{Ask, FORWARD, Strategy};
use crate::texture::{Texels, Textures};

/// It has no knobs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Texture {}

/// Threads per block.
const THREADS: usize = 128;

/// Channels per texel, at most.
const CHANNELS: usize = 4;

/// The most maps of four channels per thread.
const SHARE: usize = 8;

/// The texture of a level with so many channels per texel, and the number of planes side by side
/// in it.
fn texels(ask: &Ask<'_>, level: usize, channels: usize) -> (Texels, usize) {
    let (p, dtype, planes) = (ask.p, ask.p.types().value, ask.planes());
    let (h, w) = (p.levels()[level].h + 1, p.levels()[level].w + 1);
    // About square, so that coordinates keep most bits for their fraction.
    let row = w * (p.channels() / channels);
    let beside = (planes as f64 * h as f64 / row as f64).sqrt().ceil() as usize;
    let beside = beside.clamp(1, planes.max(1));
    let (width, height) = (beside * row + 1, planes.div_ceil(beside) * h + 1);
    let pitch = (width * channels * dtype.size()).next_multiple_of(128);
    (Texels { at: 0, dtype, channels, width, height, pitch }, beside)
}

/// Refuses what textures with so many channels per texel cannot do.
pub(super) fn check(ask: &Ask<'_>, channels: usize) -> Result<()> {
    let (p, dtype) = (ask.p, ask.p.types().value);
    let known = [Dtype::F16, Dtype::F32].contains(&dtype);
    ensure!(known, "values are {dtype}: textures are of f16 or f32");
    let bilinear = p.sampling() == Sampling::Bilinear;
    ensure!(bilinear, "samples are not bilinear: there is nothing to interpolate");
    let divides = p.channels().is_multiple_of(channels);
    ensure!(divides, "{} channels: a texel has {channels}", p.channels());
    let (w, h) = Texels::MOST;
    for level in 0..p.levels().len() {
        let (Texels { width, height, .. }, _) = texels(ask, level, channels);
        let fits = width <= w && height <= h;
        ensure!(fits, "the maps of level {level} take {width} x {height} texels: at most {w} x {h}");
    }
    Ok(())
}

/// Adds the textures of all levels to an argument: `Texture` of the kernels.
pub(super) fn put(textures: &mut Textures, args: &mut Args, ask: &Ask<'_>, channels: usize) {
    for level in 0..ask.p.levels().len() {
        let (texels, beside) = texels(ask, level, channels);
        let index = textures.push(texels);
        args.pointer("texture[0].handle", Pointer::Owned(2 * index));
        args.pointer("texture[0].texels", Pointer::Owned(2 * index + 1));
        args.i32("texture[0].pitch", texels.pitch);
        args.i32("texture[0].planes_per_row", beside);
    }
}

/// Adds the stage that copies the first levels.
pub(super) fn copy_first(
    call: &mut Call,
    ask: &Ask<'_>,
    unit: &Unit,
    args: &Args,
    levels: usize,
    threads: usize,
) {
    let pixels = ask.p.levels().iter().map(|level| level.h * level.w).max().unwrap_or(1);
    let most = ask.sms() * (ask.target.threads() as usize / threads).max(1);
    let blocks = (pixels * ask.planes()).div_ceil(threads).clamp(1, most);
    let launch = Launch::new([blocks as u32, levels as u32, 1], [threads as u32, 1, 1]);
    let (unit, args) = (unit.clone(), args.clone());
    call.run(Prepared { unit, entry: "msda_texels", launch, args }, "copies values to textures");
}

impl Strategy for Texture {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        check(ask, CHANNELS)?;
        let p = ask.p;
        let maps = p.channels() / CHANNELS;
        let share = (1..=SHARE).rev().find(|&n| maps.is_multiple_of(n)).unwrap_or(1);
        let unit = ask
            .unit("ladder/texture.cu", ask.vec(16 | (share * CHANNELS * p.types().value.size())))
            .define("SHARE", share)
            .define("CHANNELS_PER_TEXEL", CHANNELS)
            .define("THREADS", THREADS);
        let (mut textures, mut args, mut call) = (Textures::default(), ask.args(), Call::default());
        put(&mut textures, &mut args, ask, CHANNELS);
        call.resource = Some(Arc::new(textures));
        copy_first(&mut call, ask, &unit, &args, p.levels().len(), THREADS);
        let launch = ask.per_plane((p.queries() * (maps / share)).div_ceil(THREADS), THREADS, 0);
        call.run(Prepared { unit, entry: FORWARD, launch, args }, "computes the output");
        Ok(call)
    }

    fn is_exact(&self) -> bool {
        false
    }
}
