//! `msda run`

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use msda::{Layout, Padding, Sampling};
use msda_lab::call::{Call, Options, Tensors};
use msda_lab::{engines, files};

#[derive(clap::Args)]
#[command(after_help = "\
Tensors are found by name: in a .safetensors file by their own, an .npy file by the file's.
  plain form   value, spatial_shapes, sampling_locations, attention_weights
  fused form   value, spatial_shapes, reference_points, sampling_offsets, attention_logits
  optional     level_start_index, grad_output (then gradients are written too)

Examples:
  msda run inputs.safetensors --out output.safetensors
  msda run value.npy sampling_locations.npy attention_weights.npy --levels 92x160,46x80 --out output.npy")]
pub(crate) struct Args {
    /// .safetensors or .npy files with the inputs
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Where the result goes: .safetensors, or .npy for the output alone
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Levels as HxW, separated by commas; instead of a spatial_shapes tensor
    #[arg(long, value_name = "HxW,...", value_delimiter = ',', value_parser = level)]
    levels: Vec<(usize, usize)>,
    /// Points of each level, separated by commas; needed when they differ
    #[arg(long, value_name = "P,...", value_delimiter = ',')]
    points: Vec<usize>,
    /// How value lies in memory
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
    /// Which backend computes: cpu, cpu-NAME or oracle
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
    let backend = engines::backend(&args.engine)?;
    let call = Call::new(&tensors, &options)?;
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
