//! `msda run`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use msda::{Layout, Padding, Sampling};
use msda_bench::call::{Call, Options, Tensors};
use msda_bench::files;

use crate::extensions::registry;

#[derive(clap::Args)]
#[command(after_help = "\
Tensors are found by name: in a .safetensors file by their own, an .npy file by the file's.
  value                                (B, S, H, D); (B, H, S, D) with --layout planar or ring
  spatial_shapes, value_spatial_shapes (L, 2) as (height, width); or --levels
  level_start_index                    (L), optional; without it levels follow each other
 plain form
  sampling_locations, locations        (B, Q, H, L, P, 2) as (x, y), 0 to 1 across the map;
                                       or (B, Q, H, sum of P, 2) with --points
  attention_weights, weights           (B, Q, H, L, P)
 fused form
  reference_points, reference          (B, Q, L, 2) points or (B, Q, L, 4) boxes
  sampling_offsets, offsets            as the locations, raw
  attention_logits, logits             as the weights, before the softmax
 backward, in either form
  grad_output                          (B, Q, H * D)

Results: output (B, Q, H * D); with grad_output also grad_value and grad_NAME of each input.

Examples:
  msda run inputs.safetensors --out output.safetensors
  msda run value.npy sampling_locations.npy attention_weights.npy --levels 92x160,46x80 --out output.npy")]
pub(crate) struct Args {
    /// .safetensors or .npy files with the inputs
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The result: .safetensors, or .npy for the output alone
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Levels as HxW, separated by commas; instead of a spatial_shapes tensor
    #[arg(long, value_name = "HxW,...", value_delimiter = ',', value_parser = level)]
    levels: Vec<(usize, usize)>,
    /// Points of each level, separated by commas; needed when they differ
    #[arg(long, value_name = "P,...", value_delimiter = ',')]
    points: Vec<usize>,
    /// The memory layout of value
    #[arg(long, value_enum, default_value = "bshd")]
    layout: LayoutArg,
    /// Read the nearest pixel instead of interpolating
    #[arg(long)]
    nearest: bool,
    /// Clamp samples to the map instead of reading zeros outside
    #[arg(long)]
    border: bool,
    /// 0 and 1 are the centres of the corner pixels
    #[arg(long)]
    align_corners: bool,
    /// The backend: cpu, cpu-NAME, cuda or oracle
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    engine: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LayoutArg {
    Bshd,
    Planar,
    Ring,
}

fn level(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('x').and_then(|(h, w)| Some((h.parse().ok()?, w.parse().ok()?)));
    parsed.ok_or_else(|| format!("got '{text}', expected HEIGHTxWIDTH such as 92x160"))
}

pub(crate) fn main(args: Args) -> Result<()> {
    check_output(&args.out, &args.inputs)?;
    let mut tensors = Tensors::new();
    for path in &args.inputs {
        for (name, tensor) in files::read(path)? {
            let again = tensors.insert(name.clone(), tensor).is_some();
            ensure!(!again, "tensor '{name}': got it twice, the second time from {}", path.display());
        }
    }
    let options = Options {
        levels: args.levels,
        points: args.points,
        layout: match args.layout {
            LayoutArg::Bshd => Layout::Bshd,
            LayoutArg::Planar => Layout::Planar,
            LayoutArg::Ring => Layout::PlanarRing,
        },
        sampling: if args.nearest { Sampling::Nearest } else { Sampling::Bilinear },
        padding: if args.border { Padding::Border } else { Padding::Zeros },
        align_corners: args.align_corners,
    };
    let backend = registry().backend(&args.engine)?;
    let call = Call::new(&tensors, &options)?;
    let unused = call.unused(&tensors);
    // A person named each .npy file, so an unused one is a mistake.
    if let Some(path) = args.inputs.iter().find(|path| is_unused_npy(path, &unused)) {
        bail!(
            "tensor from {}: got an unknown name, expected one that `msda run --help` lists",
            path.display()
        );
    }
    if !unused.is_empty() {
        eprintln!("note: not used: {}", unused.join(", "));
    }
    let one_file = args.out.extension().is_some_and(|e| e == "npy");
    ensure!(
        !(one_file && call.wants_backward()),
        "output file: got {}, expected a .safetensors file: with grad_output there are several results",
        args.out.display()
    );
    let results = call.run(&*backend)?;
    files::write(&args.out, &results).context("writing the result")?;
    eprintln!("{}: {}", backend.name(), call.problem);
    for (name, tensor) in &results {
        eprintln!("{name} {:?} -> {}", tensor.shape, args.out.display());
    }
    Ok(())
}

fn is_unused_npy(path: &Path, unused: &[&str]) -> bool {
    let stem = path.file_stem().unwrap_or_default();
    path.extension().is_some_and(|e| e == "npy") && unused.iter().any(|name| stem == *name)
}

/// Refuses an output that cannot be written or that overwrites an input, before the work begins.
fn check_output(out: &Path, inputs: &[PathBuf]) -> Result<()> {
    let kind = out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ensure!(
        ["npy", "safetensors"].contains(&kind),
        "output file: got {}, expected .safetensors or .npy",
        out.display()
    );
    let folder = out.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "folder of the output file: got {}, expected one that exists", folder.display());
    let place = |path: &Path| std::fs::canonicalize(path).ok();
    let same = inputs.iter().any(|input| place(input).is_some() && place(input) == place(out));
    ensure!(!same, "output file: got {}, which is also an input, expected another", out.display());
    Ok(())
}
