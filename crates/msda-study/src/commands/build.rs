//! `msda-study build`

use anyhow::{Result, bail};
use msda::Dtype;
use msda_bench::gpu::kernels::target;
use msda_bench::report::Table;
use msda_bench::terminal::{print, screen};
use msda_bench::workload::Workload;
use msda_cuda::driver::Arch;
use msda_cuda::jit;
use msda_cuda::{Operands, Request};
use msda_study::ladder;

#[derive(clap::Args)]
#[command(after_help = "Compiles the kernels of rungs with NVRTC. No GPU is needed.

Examples:
  msda-study build --rung persistent_full --arch sm_120")]
pub(crate) struct Args {
    /// A rung by name, as `msda-study list` shows them; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    rung: Vec<String>,
    /// An architecture such as sm_120; the GPU's when absent, or sm_90 without a GPU
    #[arg(long)]
    arch: Option<Arch>,
    /// The workload that the kernels are for: a name, or a path to a .toml file
    #[arg(long, value_name = "NAME", default_value = "seed")]
    workload: String,
    /// The value type
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    dtype: Dtype,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let rungs = ladder::named(&args.rung)?;
    let target = target(args.arch)?;
    let problem = Workload::find(&args.workload)?.problem(args.dtype)?;
    let operands = Operands::dense(&problem, None);
    let request = Request::new(&problem, &operands);
    let table = Table::default().words(["rung", "kernel"]);
    let mut table = table.numbers(["registers", "spills", "shared", "bytes"]).words(["refused"]);
    let (mut built, mut refused) = (0, Vec::new());
    for rung in rungs {
        let call = match rung.call(&request, &target) {
            Ok(call) => call,
            Err(why) => {
                refused.push(format!("{}: {why}", rung.name));
                let why = [why.to_string()];
                table.push([rung.name.to_owned()].into_iter().chain(["-"; 5].map(String::from)).chain(why));
                continue;
            }
        };
        for prepared in call.kernels() {
            let compiled = jit::compile(&prepared.unit)?;
            let shared = compiled.shared() + prepared.launch.shared;
            let numbers = [compiled.registers(), compiled.spills(), shared, compiled.cubin.len() as u32];
            let numbers = numbers.map(|n| n.to_string());
            let names = [rung.name.to_owned(), prepared.entry.to_owned()];
            table.push(names.into_iter().chain(numbers).chain(["".to_owned()]));
            built += 1;
        }
    }
    if built == 0 {
        bail!("nothing was built\n{}", refused.join("\n"));
    }
    print(&format!("{problem}, {}\n{}", target.arch, table.text(screen().width, false)))
}
