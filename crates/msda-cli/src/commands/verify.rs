//! `msda verify`

use anyhow::{Result, bail};
use msda::Isa;
use msda::conformance::Summary;
use msda_bench::record::Device;
use msda_bench::verify::{self, Checked, Outcome, Subject};
use serde_json::json;

use super::{DeviceArg, groups};
use crate::extensions::registry;
use crate::terminal::{Bar, print};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda verify
  msda verify --device cuda --seeds 1")]
pub(crate) struct Args {
    /// On the CPU every instruction set; on a GPU the chosen kernels, also with sums in f16 and for
    /// fixed sizes, the generic kernel, and kernels with other parameters
    #[arg(long, value_enum, default_value = "cpu")]
    device: DeviceArg,
    /// One backend: cpu, cpu-avx512, cpu-avx2, cpu-neon, cpu-portable, cuda, cuda:half, cuda:fixed,
    /// cuda:KERNEL, cuda@N or oracle; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "device")]
    engine: Vec<String>,
    /// Check the output of every built-in workload in f32, f16 and bf16, instead of the battery
    #[arg(long, conflicts_with_all = ["group", "seed", "seeds"])]
    workloads: bool,
    /// One group of cases (random, inside, outside, borders, not-finite, not-finite-data, one-pixel, empty, channels,
    /// levels, points, strides, unaligned, layouts, options, types, fused, untouched, cancelling, crowded, extremes,
    /// partial, refusals); may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// The first seed of the random cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if args.workloads { check_workloads(&args) } else { run_battery(&args) }
}

fn run_battery(args: &Args) -> Result<()> {
    let seeds: Vec<u64> = (args.seed..args.seed.saturating_add(args.seeds)).collect();
    let subjects = subjects(args, &seeds)?;
    let groups = groups(&args.group)?;
    let totals = verify::battery(&subjects, &groups, &seeds, &mut Bar::new());
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
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(14);
        let mut text = format!(
            "{:<width$} {:>7} {:>7} {:>8} {:>12} {:>16}\n",
            "engine", "passed", "failed", "skipped", "compared", "worst/tolerance"
        );
        for (name, s) in &rows {
            text += &format!(
                "{name:<width$} {:>7} {:>7} {:>8} {:>12} {:>16.3}\n",
                s.passed,
                s.failed.len(),
                s.skipped.len(),
                s.compared,
                s.worst
            );
        }
        print(&text)?;
    }
    if let Some((name, _)) = rows.iter().find(|(_, s)| s.passed + s.failed.len() == 0) {
        bail!("{name}: got no case to run, expected some");
    }
    if !failures.is_empty() {
        bail!("{} cases failed\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}

fn subjects(args: &Args, seeds: &[u64]) -> Result<Vec<Subject>> {
    if !args.engine.is_empty() {
        return args.engine.iter().map(|name| Subject::named(name, &registry())).collect();
    }
    let mut all = Vec::new();
    for device in [Device::Cpu, Device::Cuda] {
        if args.device.includes(device) {
            all.extend(Subject::all(device, seeds)?);
        }
    }
    Ok(all)
}

fn check_workloads(args: &Args) -> Result<()> {
    let mut engines = args.engine.clone();
    if engines.is_empty() {
        let all = [(Device::Cpu, format!("cpu-{}", Isa::best())), (Device::Cuda, "cuda".to_owned())];
        engines.extend(
            all.into_iter().filter(|(device, _)| args.device.includes(*device)).map(|(_, name)| name),
        );
    }
    let checked = verify::workloads(&engines, &registry(), &mut Bar::new())?;
    if args.json {
        let rows: Vec<_> = checked.iter().map(checked_json).collect();
        print(&serde_json::to_string_pretty(&rows)?)?;
    } else {
        let mut text = format!(
            "{:<20} {:<5} {:<12} {:>9} {:>9}  kernel\n",
            "workload", "dtype", "engine", "compared", "err/tol"
        );
        for c in &checked {
            let (compared, error) = match &c.outcome {
                Outcome::Right(check) => {
                    (check.compared.to_string(), format!("{:.3}", check.max_error / check.tolerance))
                }
                Outcome::Wrong(_) => ("-".into(), "wrong".into()),
                Outcome::Skipped(_) => ("-".into(), "skipped".into()),
            };
            let kernel = c.kernel.as_deref().unwrap_or("-");
            text += &format!(
                "{:<20} {:<5} {:<12} {compared:>9} {error:>9}  {kernel}\n",
                c.workload,
                c.dtype.name(),
                c.engine
            );
        }
        print(&text)?;
    }
    let said = |c: &Checked, why: &str| format!("{} {} {}: {why}", c.workload, c.dtype, c.engine);
    for c in &checked {
        if let Outcome::Skipped(why) = &c.outcome {
            eprintln!("skipped: {}", said(c, why));
        }
    }
    let wrong = |c: &Checked| match &c.outcome {
        Outcome::Wrong(why) => Some(said(c, why)),
        _ => None,
    };
    let failures: Vec<String> = checked.iter().filter_map(wrong).collect();
    if !failures.is_empty() {
        bail!("{} workloads failed\n{}", failures.len(), failures.join("\n"));
    }
    if !checked.iter().any(|c| matches!(c.outcome, Outcome::Right(_))) {
        bail!("got no workload to check, expected some");
    }
    Ok(())
}

fn checked_json(c: &Checked) -> serde_json::Value {
    let (outcome, why, check) = match &c.outcome {
        Outcome::Right(check) => ("right", None, Some(check)),
        Outcome::Wrong(why) => ("wrong", Some(why), None),
        Outcome::Skipped(why) => ("skipped", Some(why), None),
    };
    json!({
        "workload": c.workload, "dtype": c.dtype.name(), "engine": c.engine, "kernel": c.kernel,
        "outcome": outcome, "why": why, "check": check,
    })
}
