//! `msda tune`

use std::path::PathBuf;

use anyhow::{Context, Result};
use msda::Dtype;
use msda_bench::bench::Progress;
use msda_bench::gpu::tune::{self, Job, Tuned};
use msda_bench::workload::{BUILT_IN, Workload};
use msda_cuda::choose;
use msda_cuda::driver::Device;

use super::{PassArg, dtype, whole};
use msda_bench::terminal::{Bar, note, print};

/// Kernels to print per problem.
const TOP: usize = 10;

#[derive(clap::Args)]
#[command(after_help = "\
Needs a GPU. Every kernel is checked before it is timed, with cold caches. The
fastest one is then used for all problems of the same class, as shown by
`msda kernels --workload NAME`. In the backward pass, kernels differ in how they
compute the gradients of locations and weights. Until the backward pass of a
class is tuned, it uses the kernel that was tuned for the forward pass.

The file can be shipped: it has the name of the GPU, and counts on GPUs with as
many SMs. Lines that were measured with other kernels are not used, and
`msda doctor` names them; `msda tune` replaces those of its GPU.

Examples:
  msda tune --workload detr-encoder --dtype f16
  msda tune --all --pass backward")]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct Args {
    /// A workload, or a path to a .toml file; may be repeated
    #[arg(long, value_name = "NAME", group = "what")]
    workload: Vec<String>,
    /// Every built-in workload
    #[arg(long, group = "what")]
    all: bool,
    /// A value type; may be repeated. All types of the workload when absent
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    dtype: Vec<Dtype>,
    /// The pass to tune
    #[arg(long, value_enum, default_value = "both")]
    pass: PassArg,
    /// The largest number of kernels to try per problem
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<usize>)]
    gpu: usize,
    /// The file for the results; MSDA_TUNED, or tuned.txt in the folder of the cache, when absent
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let device = Device::open(args.gpu)?;
    let path = args.file.clone().or_else(choose::Tuned::path).context(
        "file of tuned kernels: got none, expected one\nhint: give --file FILE, or set MSDA_TUNED or MSDA_CACHE_DIR",
    )?;
    let jobs = jobs(&args, &device)?;
    let mut bar = Bar::default();
    bar.begin(jobs.iter().map(Job::steps).sum());
    let mut found = Vec::new();
    for job in &jobs {
        let tuned = job.run(&device, &mut bar)?;
        // Saved at once, so that an interruption loses nothing.
        tune::save(&path, &choose::Header::of(&device), std::slice::from_ref(&tuned))?;
        found.push(tuned);
    }
    drop(bar);
    print(&found.iter().map(to_text).collect::<Vec<_>>().join("\n"))?;
    note(format_args!("tuned: {}", path.display()));
    Ok(())
}

/// The problems to tune: the first one of each class.
fn jobs(args: &Args, device: &Device) -> Result<Vec<Job>> {
    let names: Vec<String> = if args.all {
        BUILT_IN.iter().map(|(n, _)| (*n).to_owned()).collect()
    } else {
        args.workload.clone()
    };
    let mut jobs: Vec<Job> = Vec::new();
    for name in &names {
        let workload = Workload::find(name)?;
        let dtypes = if args.dtype.is_empty() { workload.dtypes.clone() } else { args.dtype.clone() };
        let passes = args.pass.all();
        for (dtype, pass) in dtypes.iter().flat_map(|&dtype| passes.iter().map(move |&pass| (dtype, pass))) {
            let job = Job::new(device, &workload, dtype, pass, args.limit as usize)?;
            match jobs.iter().find(|other| other.class == job.class) {
                Some(other) => note(format_args!(
                    "note: {name} {dtype} {pass} has the same class as {}",
                    other.workload.name
                )),
                None => jobs.push(job),
            }
        }
    }
    Ok(jobs)
}

fn to_text(tuned: &Tuned<'_>) -> String {
    let Tuned { job, before, best, timed, rejected } = tuned;
    let mut text = format!("{}: {}\n", job.name(), job.class);
    text +=
        &format!("{timed} of {} possible kernels were timed, {} were rejected\n", job.takes, rejected.len());
    text += &format!("{:>10} {:>8}  kernel\n", "us", "speed-up");
    for (kernel, time) in best.iter().take(TOP) {
        let ratio = before.map_or("-".into(), |before| format!("{:.2}x", before / time));
        let mark = if *kernel == job.now { "  (chosen before)" } else { "" };
        text += &format!("{time:>10.2} {ratio:>8}  {kernel}{mark}\n");
    }
    for (kernel, why) in rejected.iter().take(3) {
        text += &format!("rejected: {kernel}: {}\n", why.lines().next().unwrap_or_default());
    }
    text
}
