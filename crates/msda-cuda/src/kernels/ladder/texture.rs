//! `texture.cu`: taps weighted by the texture unit.

use msda::{Dtype, Sampling};

use super::{Reading, Strategy, args, unit, vec};
use crate::driver::{Launch, Texels};
use crate::kernels::{Call, Hole, Own, Prepared, Stage};
use crate::request::{Request, Target};

/// It has no knobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Texture;

const BLOCK: usize = 128;

/// Maps of four channels that a thread reads, at most.
const SHARE: usize = 8;

/// Texels of a level and how many planes are in a row of them.
fn texels(request: &Request<'_>, level: usize) -> (Texels, usize) {
    let (p, dtype) = (request.problem, request.problem.types().value);
    let (h, w) = (p.levels()[level].h + 1, p.levels()[level].w + 1);
    let planes = p.batch() * p.heads();
    // About as wide as high: coordinates keep most digits for their fraction.
    let row = w * (p.channels() / 4);
    let beside = (planes as f64 * h as f64 / row as f64).sqrt().ceil() as usize;
    let beside = beside.clamp(1, planes.max(1));
    let (width, height) = (beside * row + 1, planes.div_ceil(beside) * h + 1);
    let pitch = (width * 4 * dtype.size()).next_multiple_of(128);
    (Texels { at: 0, dtype, width, height, pitch }, beside)
}

impl Strategy for Texture {
    fn refuses(&self, request: &Request<'_>, _target: &Target) -> Option<String> {
        let (p, dtype) = (request.problem, request.problem.types().value);
        if ![Dtype::F16, Dtype::F32].contains(&dtype) {
            return Some(format!("values are {dtype}: textures are of f16 or f32"));
        }
        if p.sampling() != Sampling::Bilinear {
            return Some("samples are not bilinear: there is nothing to interpolate".into());
        }
        if !p.channels().is_multiple_of(4) {
            return Some(format!("{} channels: a texel has four", p.channels()));
        }
        let (w, h) = Texels::MOST;
        let large = |level: &usize| {
            let texels = texels(request, *level).0;
            texels.width > w || texels.height > h
        };
        (0..p.levels().len()).find(large).map(|level| {
            let (texels, _) = texels(request, level);
            format!(
                "the maps of level {level} take {} x {} texels: at most {w} x {h}",
                texels.width, texels.height
            )
        })
    }

    fn reading(&self, _request: &Request<'_>, _target: &Target) -> Result<Reading, &'static str> {
        Err("the texture unit reads, not the lanes")
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let maps = p.channels() / 4;
        let share = (1..=SHARE).rev().find(|&n| maps.is_multiple_of(n)).unwrap_or(1);
        let vec = vec(request, 16 | (share * 4 * p.types().value.size()));
        let unit = unit("ladder/texture.cu", &format!("texture-{share}"), request, target, vec)
            .define("SHARE", share)
            .define("THREADS", BLOCK);
        let mut own = Own::default();
        let mut args = args(request);
        for level in 0..p.levels().len() {
            let (texels, beside) = texels(request, level);
            let at = own.bytes.next_multiple_of(Texels::ALIGN);
            own.bytes = at + texels.pitch * texels.height;
            args.hole(Hole::Texture(own.textures.len()));
            args.hole(Hole::Own(at));
            args.i32(texels.pitch);
            args.i32(beside);
            own.textures.push(Texels { at, ..texels });
        }
        let planes = p.batch() * p.heads();
        let pixels = p.levels().iter().map(|level| level.h * level.w).max().unwrap_or(1);
        let most = target.multiprocessors as usize * (target.threads() as usize / BLOCK);
        let blocks = (pixels * planes).div_ceil(BLOCK).clamp(1, most);
        let copy = Launch::new([blocks as u32, p.levels().len() as u32, 1], [BLOCK as u32, 1, 1]);
        let blocks = (p.queries() * (maps / share)).div_ceil(BLOCK);
        let grid = [blocks, p.heads(), p.batch()].map(|n| n as u32);
        let read = Launch::new(grid, [BLOCK as u32, 1, 1]);
        let stages = [("msda_texels", copy), ("msda_forward", read)].map(|(entry, launch)| {
            Stage::Run(Prepared { unit: unit.clone(), entry, launch, args: args.clone() })
        });
        Call { stages: stages.into(), workspace: 0, own }
    }

    fn is_exact(&self) -> bool {
        false
    }
}
