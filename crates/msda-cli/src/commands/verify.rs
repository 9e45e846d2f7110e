//! `msda verify`

use anyhow::{Result, bail};
use msda::Isa;
use msda::conformance::Summary;
use msda_bench::record::Device;
use msda_bench::report::{Kind, Table};
use msda_bench::verify::{self, Checked, Outcome, Subject};
use msda_bench::workload::{BUILT_IN, Workload};
use serde_json::json;

use super::{DeviceArg, PassArg, whole};
use msda_bench::terminal::{Bar, groups, note, print, screen};

#[derive(clap::Args)]
#[command(after_help = "\
Groups: random, inside, outside, borders, not-finite, not-finite-data,
  one-pixel, empty, channels, levels, points, strides, unaligned, layouts,
  options, types, fused, untouched, cancelling, crowded, extremes, partial,
  refusals

Examples:
  msda verify
  msda verify --engine cpu --group borders
  msda verify --device cuda --outputs all --pass backward")]
pub(crate) struct Args {
    /// The device. On the CPU every instruction set is checked, on a GPU several choices of kernels
    #[arg(long, value_enum, default_value = "cpu")]
    device: DeviceArg,
    /// One engine instead: cpu, cpu-ISA, plain, cuda, cuda:KERNEL, cuda@GPU or oracle; may be
    /// repeated
    #[arg(long, value_name = "NAME", conflicts_with = "device")]
    engine: Vec<String>,
    /// Check outputs and gradients of these workloads instead of the test cases; 'all' for every
    /// built-in one
    #[arg(long, value_name = "WORKLOAD", num_args = 1.., conflicts_with_all = ["group", "seed", "seeds"])]
    outputs: Vec<String>,
    /// The pass of --outputs. Test cases always check both passes
    #[arg(long, value_enum, default_value = "both", requires = "outputs")]
    pass: PassArg,
    /// A group of test cases, listed below; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// The first seed of the random cases
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>)]
    seed: u64,
    /// The number of seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if args.outputs.is_empty() { run_battery(&args) } else { check_outputs(&args) }
}

fn run_battery(args: &Args) -> Result<()> {
    let seeds: Vec<u64> = (args.seed..args.seed.saturating_add(args.seeds.into())).collect();
    let groups = groups(&args.group)?;
    let subjects = subjects(args, &seeds)?;
    let totals = verify::battery(&subjects, &groups, &seeds, &mut Bar::default());
    let rows: Vec<(&str, Summary)> = subjects.iter().map(|s| s.name.as_str()).zip(totals).collect();
    let failures: Vec<String> =
        rows.iter().flat_map(|(name, s)| s.failed.iter().map(move |f| format!("{name} {f}"))).collect();
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, s)| {
                json!({
                    "engine": name, "passed": s.passed, "failed": s.failed.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "skipped": s.skipped, "compared": s.compared, "worst_share_of_tolerance": s.worst,
                })
            })
            .collect();
        print(&serde_json::to_string_pretty(&rows)?)?;
    } else {
        let mut table = Table::default().words(["engine"]).numbers(["passed", "failed"]);
        for (title, rank) in [("skipped", 1), ("compared", 3), ("error/tolerance", 2)] {
            table = table.column(title, Kind::Number, rank);
        }
        for (name, s) in &rows {
            let counts = [s.passed, s.failed.len(), s.skipped.len(), s.compared].map(|n| n.to_string());
            let cells = [(*name).to_owned()].into_iter().chain(counts).chain([format!("{:.3}", s.worst)]);
            table.push(cells);
        }
        print(&table.text(screen().width, false))?;
    }
    if let Some((name, _)) = rows.iter().find(|(_, s)| s.passed + s.failed.len() == 0) {
        bail!("{name}: no test case was run, expected some");
    }
    if !failures.is_empty() {
        bail!("{} cases failed\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}

fn subjects(args: &Args, seeds: &[u64]) -> Result<Vec<Subject>> {
    if !args.engine.is_empty() {
        return args.engine.iter().map(|name| Subject::named(name)).collect();
    }
    let mut all = Vec::new();
    for device in [Device::Cpu, Device::Cuda] {
        if args.device.includes(device) {
            all.extend(Subject::all(device, seeds)?);
        }
    }
    Ok(all)
}

fn check_outputs(args: &Args) -> Result<()> {
    let mut engines = args.engine.clone();
    if engines.is_empty() {
        let all = [(Device::Cpu, format!("cpu-{}", Isa::best())), (Device::Cuda, "cuda".to_owned())];
        let wanted = all.into_iter().filter(|(device, _)| args.device.includes(*device));
        engines.extend(wanted.map(|(_, name)| name));
    }
    let names: Vec<&str> = match args.outputs.as_slice() {
        [all] if all == "all" => BUILT_IN.iter().map(|(name, _)| *name).collect(),
        some => some.iter().map(String::as_str).collect(),
    };
    let workloads = names.into_iter().map(Workload::find).collect::<Result<Vec<_>>>()?;
    let checked = verify::outputs(&workloads, &args.pass.all(), &engines, &mut Bar::default())?;
    if args.json {
        let rows: Vec<_> = checked.iter().map(checked_json).collect();
        print(&serde_json::to_string_pretty(&rows)?)?;
    } else {
        print(&checked_table(&checked).text(screen().width, false))?;
    }
    let describe =
        |c: &Checked, why: &str| format!("{} {} {} {}: {why}", c.workload, c.pass, c.dtype, c.engine);
    for c in &checked {
        if let Outcome::Skipped(why) = &c.outcome {
            note(format_args!("skipped: {}", describe(c, why)));
        }
    }
    let wrong = |c: &Checked| match &c.outcome {
        Outcome::Wrong(why) => Some(describe(c, why)),
        _ => None,
    };
    let failures: Vec<String> = checked.iter().filter_map(wrong).collect();
    if !failures.is_empty() {
        bail!("{} results are wrong\n{}", failures.len(), failures.join("\n"));
    }
    if !checked.iter().any(|c| matches!(c.outcome, Outcome::Right(_))) {
        bail!("nothing was checked: every workload was skipped");
    }
    Ok(())
}

fn checked_table(checked: &[Checked]) -> Table {
    let table = Table::default().words(["workload", "pass", "dtype", "engine"]);
    let table = table.column("compared", Kind::Number, 1).numbers(["error/tolerance"]);
    let mut table = table.column("kernel", Kind::Word, 2);
    for c in checked {
        let (compared, error) = match &c.outcome {
            Outcome::Right(check) => {
                (check.compared.to_string(), format!("{:.3}", check.max_error / check.tolerance))
            }
            Outcome::Wrong(_) => ("-".into(), "wrong".into()),
            Outcome::Skipped(_) => ("-".into(), "skipped".into()),
        };
        let kernel = c.kernel.as_deref().unwrap_or_default();
        let pass = c.pass.to_string();
        table.push([&c.workload, &pass, c.dtype.name(), &c.engine, &compared, &error, kernel]);
    }
    table
}

fn checked_json(c: &Checked) -> serde_json::Value {
    let (outcome, why, check) = match &c.outcome {
        Outcome::Right(check) => ("right", None, Some(check)),
        Outcome::Wrong(why) => ("wrong", Some(why), None),
        Outcome::Skipped(why) => ("skipped", Some(why), None),
    };
    json!({
        "workload": c.workload, "pass": c.pass, "dtype": c.dtype.name(), "engine": c.engine, "kernel": c.kernel,
        "outcome": outcome, "why": why, "check": check,
    })
}
