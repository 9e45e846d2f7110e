//! `msda run`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use msda::{Layout, Padding, Sampling, Spec};
use msda_bench::evaluation::{Evaluation, Tensors};
use msda_bench::files;
use msda_bench::workload::layout;

use super::whole;
use msda_bench::engines::Registry;
use msda_bench::terminal::note;

#[derive(clap::Args)]
#[command(after_help = "\
Tensors are found by name. The name of an .npy file is the name of its tensor.
  value                    (B, S, H, D); (B, H, S, D) with --layout planar, ring
  spatial_shapes           (L, 2) as (height, width); or give --levels
  level_start_index        (L); optional if the levels follow each other
Plain form:
  sampling_locations       (B, Q, H, L, P, 2) as (x, y), 0 to 1 across the map;
                           or (B, Q, H, sum of P, 2) with --points
  attention_weights        (B, Q, H, L, P)
Fused form:
  reference_points         (B, Q, L, 2) points or (B, Q, L, 4) boxes
  sampling_offsets         shaped as the locations
  attention_logits         shaped as the weights, before the softmax
For gradients, in either form:
  grad_output              (B, Q, H * D)
Other names: value_spatial_shapes, locations, weights, reference, offsets,
  logits

Results: output (B, Q, H * D); with grad_output also grad_NAME for each input.

Examples:
  msda run inputs.safetensors --output out.safetensors
  msda run inputs.safetensors --output out.safetensors --device cuda
  msda run value.npy locations.npy weights.npy --levels 92x160,46x80 \\
    --output output.npy")]
pub(crate) struct Args {
    /// Files with the inputs: .safetensors or .npy
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The file for the results: .safetensors, or .npy for the output alone
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// The levels as HxW, instead of the tensor spatial_shapes
    #[arg(long, value_name = "HxW,...", value_delimiter = ',', value_parser = level,
        allow_hyphen_values = true)]
    levels: Vec<(usize, usize)>,
    /// The points of each level, where they differ
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = whole::<usize>,
        allow_hyphen_values = true)]
    points: Vec<usize>,
    /// The memory layout of value. In `ring` each level has a ring of zero pixels around it, which
    /// count as positions
    #[arg(long, default_value = "bshd", value_parser = layouts())]
    layout: Layout,
    /// Read the nearest pixel instead of interpolating
    #[arg(long)]
    nearest: bool,
    /// Clamp samples to the map instead of reading zeros outside it
    #[arg(long)]
    border: bool,
    /// Let 0 and 1 be the centres of the corner pixels, as in torch
    #[arg(long)]
    align_corners: bool,
    /// The engine: cpu, cpu-ISA, plain, cuda, cuda:KERNEL, cuda@GPU or oracle
    #[arg(long, value_name = "NAME", default_value = "cpu", conflicts_with = "device")]
    engine: String,
    /// The device: cpu, cuda or cuda:N. The CPU when absent
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    device: Option<String>,
}

/// The name of the engine that computes on a device.
fn device(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        None if ["cpu", "cuda"].contains(&text) => Ok(text.into()),
        Some(("cuda", number)) if number.parse::<u16>().is_ok() => Ok(format!("cuda@{number}")),
        _ => Err("expected cpu, cuda, or cuda:N with the number of a GPU".into()),
    }
}

/// Reads the name of a layout.
fn layouts() -> impl TypedValueParser<Value = Layout> {
    PossibleValuesParser::new(Layout::ALL.map(Layout::name)).try_map(|name| layout(&name))
}

fn level(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('x').and_then(|(h, w)| Some((h.parse().ok()?, w.parse().ok()?)));
    parsed.ok_or_else(|| "expected HEIGHTxWIDTH such as 92x160".into())
}

pub(crate) fn main(args: Args) -> Result<()> {
    let registry = Registry::default();
    let engine = args.device.unwrap_or(args.engine);
    registry.check_backend(&engine)?;
    check_output(&args.output, &args.inputs)?;
    let mut tensors = Tensors::new();
    for path in &args.inputs {
        for (name, tensor) in files::read(path)? {
            let again = tensors.insert(name.clone(), tensor).is_some();
            ensure!(!again, "tensor '{name}': got it twice, the second time from {}", path.display());
        }
    }
    let options = Spec {
        levels: args.levels,
        points: args.points,
        layout: args.layout,
        sampling: if args.nearest { Sampling::Nearest } else { Sampling::Bilinear },
        padding: if args.border { Padding::Border } else { Padding::Zeros },
        align_corners: args.align_corners,
        ..Spec::default()
    };
    let backend = registry.backend(&engine)?;
    let evaluation = Evaluation::new(&tensors, &options)?;
    let unused = evaluation.unused(&tensors);
    // The user named each .npy file, so ignoring one would be a surprise.
    if let Some(path) = args.inputs.iter().find(|path| is_unused_npy(path, &unused)) {
        bail!(
            "tensor from {}: got a name that is not used, expected one that `msda run --help` lists",
            path.display()
        );
    }
    if !unused.is_empty() {
        note(format_args!("note: not used: {}", unused.join(", ")));
    }
    let one_file = args.output.extension().is_some_and(|e| e == "npy");
    ensure!(
        !(one_file && evaluation.wants_backward()),
        "output file: got {}, expected a .safetensors file: with grad_output there are several results",
        args.output.display()
    );
    let results = evaluation.run(&*backend)?;
    files::write(&args.output, &results)?;
    note(format_args!("{}: {}", backend.name(), evaluation.problem));
    for (name, tensor) in &results {
        note(format_args!("{name} {:?} -> {}", tensor.shape, args.output.display()));
    }
    Ok(())
}

fn is_unused_npy(path: &Path, unused: &[&str]) -> bool {
    let stem = path.file_stem().unwrap_or_default();
    path.extension().is_some_and(|e| e == "npy") && unused.iter().any(|name| stem == *name)
}

/// Refuses an output file that cannot be written, or that is an input, before the work begins.
fn check_output(out: &Path, inputs: &[PathBuf]) -> Result<()> {
    let kind = out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ensure!(
        ["npy", "safetensors"].contains(&kind),
        "output file: got {}, expected .safetensors or .npy",
        out.display()
    );
    ensure!(!out.is_dir(), "output file: got the folder {}, expected a file", out.display());
    let folder = out.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "output file: the folder {} does not exist", folder.display());
    let place = |path: &Path| std::fs::canonicalize(path).ok();
    let same = inputs.iter().any(|input| place(input).is_some() && place(input) == place(out));
    ensure!(!same, "output file: got {}, which is also an input, expected another file", out.display());
    Ok(())
}
