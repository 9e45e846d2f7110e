//! `msda bench`

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use msda::Dtype;
use msda_bench::engines::{BASELINE, Registry};
use msda_bench::record::{Device, Measurement};
use msda_bench::report::number::{figure, times};
use msda_bench::report::{Kind, Table};
use msda_bench::terminal::{Bar, finish, make_folder, note, print, save, screen, typed};
use msda_bench::workload::Workload;
use msda_bench::{bench, gpu, random};

use super::{DeviceArg, PassArg, dtype, whole};

#[derive(clap::Args)]
#[command(after_help = "\
Every engine is checked against an exact implementation before it is timed.
The engine `cpu-portable`, without vector instructions of its own, is measured
beside the others. The GPU is measured where there is one; torch and others
(peer:NAME) where a Python has torch and msda_attn, beside `msda`, our operator
for torch, in the same rounds. MSDA_ENGINES names a file with more of them. One
that gives no answer for 300 s is left out; MSDA_PYTHON_TIMEOUT sets this time.

With --random, each problem is also compared with those most like it: `over
near` is its time per gathered byte over the median of five others. Such a
problem is a workload: `msda kernels --workload random-SEED-NUMBER`.

Examples:
  msda bench --quick
  msda bench --random 200 --seed 1 --device cuda
  msda bench --workload detr-encoder --dtype f16 --device cuda")]
pub(crate) struct Args {
    /// Two small workloads and fewer runs; takes a few seconds
    #[arg(long)]
    quick: bool,
    /// Number of random problems to measure instead; prints time per gathered byte, worst first
    #[arg(long, value_name = "N", conflicts_with_all = ["quick", "workload", "dtype", "threads"],
        value_parser = clap::value_parser!(u32).range(1..))]
    random: Option<u32>,
    /// The seed of the random problems
    #[arg(long, default_value_t = 1, requires = "random", value_parser = whole::<u64>)]
    seed: u64,
    /// A workload, a path to a .toml file, or 'all'; may be repeated
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// A value type; may be repeated. All types of the workload when absent
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    dtype: Vec<Dtype>,
    /// An engine: cpu, cpu-ISA, cuda, cuda:KERNEL, cuda@GPU, torch, torch-cuda, msda, oracle
    /// or peer:NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    engine: Vec<String>,
    /// The device to measure on
    #[arg(long, value_enum, default_value = "all")]
    device: DeviceArg,
    /// The pass to measure
    #[arg(long, value_enum, default_value = "both")]
    pass: PassArg,
    /// Number of threads; may be repeated. MSDA_NUM_THREADS, or one per core, when absent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=msda::MOST_THREADS as i64))]
    threads: Vec<u16>,
    /// Print the record as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// The folder for record.json, report.html and report.md
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let registry = Registry::default();
    for name in &args.engine {
        registry.check(name)?;
    }
    for name in args.workload.iter().filter(|name| *name != "all") {
        Workload::find(name)?;
    }
    let (device, brief) = (args.device, args.random.is_some());
    let options = bench::Options {
        workloads: args.random.map_or(args.workload, |count| random::names(args.seed, count as usize)),
        engines: if brief { of_random(args.engine, device) } else { with_baseline(args.engine, device) },
        dtypes: args.dtype,
        device: device.only(),
        pass: args.pass.only(),
        threads: args.threads.into_iter().map(usize::from).collect(),
        quick: args.quick,
        brief,
        command: typed("msda"),
    };
    make_folder(&args.out)?;
    let record = bench::run(&options, &registry, &mut Bar::default())?;
    if !brief {
        return finish(record, &[], &args.out, args.json);
    }
    let path = save(&record, &args.out)?;
    if args.json {
        print(&serde_json::to_string_pretty(&record)?)?;
    } else {
        let problem = |m: &Measurement| Workload::find(&m.workload)?.problem(m.dtype.parse()?);
        print(&random_table(&random::entries(&record, problem)?))?;
    }
    note(format_args!("record: {}", path.display()));
    let failed = record.skipped.len();
    ensure!(failed == 0, "{failed} measurements failed: the lines above and the record say why");
    Ok(())
}

/// The engines for random problems: those that were named, or the usual ones of the devices.
fn of_random(engines: Vec<String>, device: DeviceArg) -> Vec<String> {
    if !engines.is_empty() {
        return engines;
    }
    let gpu = device.includes(Device::Cuda) && (device.only().is_some() || gpu::count() > 0);
    let all = [(device.includes(Device::Cpu), "cpu"), (gpu, "cuda")];
    all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name.to_owned()).collect()
}

fn random_table(entries: &[random::Entry<'_>]) -> String {
    let table = Table::default().numbers(["ps/byte", "over near"]).column("us", Kind::Number, 1);
    let table = table.words(["pass", "engine"]).words(["workload"]).column("problem", Kind::Word, 2);
    let mut table = table.column("nearest", Kind::Word, 3);
    for entry in entries {
        let m = entry.measurement;
        table.push([
            figure(entry.per_byte),
            times(entry.ratio),
            figure(m.time.median * 1e3),
            m.pass.to_string(),
            m.engine.clone(),
            m.workload.clone(),
            m.problem.clone(),
            entry.nearest.map_or("-".into(), |m| m.workload.clone()),
        ]);
    }
    // In a file no column is too wide.
    let width = if std::io::stdout().is_terminal() { screen().width } else { 200 };
    let slow = entries.iter().filter(|entry| entry.ratio.is_some_and(|ratio| ratio > random::SLOW));
    let slow = slow.map(|entry| format!("{} {}", entry.measurement.workload, entry.measurement.pass));
    let slow: Vec<String> = slow.collect();
    let more = format!("more than {} times as slow as those most like them", random::SLOW);
    format!("{}\n{} of {} {more}: {}\n", table.text(width, false), slow.len(), entries.len(), slow.join(", "))
}

/// The engines by the names that records have, with the baseline beside engines of the CPU.
fn with_baseline(engines: Vec<String>, device: DeviceArg) -> Vec<String> {
    let best = format!("cpu-{}", msda::Isa::best());
    let mut names: Vec<String> =
        engines.into_iter().map(|name| if name == "cpu" { best.clone() } else { name }).collect();
    let on_cpu = |name: &String| name.starts_with("cpu-") || name == "torch";
    if device.includes(Device::Cpu) && names.iter().any(on_cpu) && !names.iter().any(|name| name == BASELINE)
    {
        names.push(BASELINE.into());
    }
    names
}
