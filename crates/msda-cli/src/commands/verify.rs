//! `msda verify`

use anyhow::{Result, bail};
use msda::conformance::{self, Group, Summary};
use msda::{Backend, Isa};
use msda_lab::bench::Progress;
use msda_lab::engines;
use serde_json::json;

use crate::terminal::{Bar, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A backend: cpu, cpu-avx512, cpu-avx2, cpu-neon, cpu-portable or oracle; may be repeated. Every
    /// instruction set of this machine when absent
    #[arg(long, value_name = "NAME")]
    engine: Vec<String>,
    /// One group of cases (random, inside, outside, borders, not-finite, one-pixel, empty, channels, levels, points,
    /// strides, unaligned, layouts, options, types, fused, untouched, partial, refusals); may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// The first seed of the random cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let backends = backends(&args.engine)?;
    let groups = groups(&args.group)?;
    let mut bar = Bar::new();
    bar.begin(backends.len() * groups.len());
    let mut rows = Vec::new();
    for backend in &backends {
        let mut total = Summary::default();
        for &group in &groups {
            bar.step(&format!("{} {}", backend.name(), group.name()));
            for seed in args.seed..args.seed.saturating_add(args.seeds) {
                total.add(conformance::run(&**backend, group, seed));
            }
        }
        rows.push((backend.name(), total));
    }
    drop(bar);
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
        let mut text = format!(
            "{:<14} {:>7} {:>7} {:>8} {:>12} {:>16}\n",
            "engine", "passed", "failed", "skipped", "compared", "worst/tolerance"
        );
        for (name, s) in &rows {
            text += &format!(
                "{name:<14} {:>7} {:>7} {:>8} {:>12} {:>16.3}\n",
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

fn backends(names: &[String]) -> Result<Vec<Box<dyn Backend + Send>>> {
    if names.is_empty() {
        return Isa::available().into_iter().map(|isa| engines::backend(&format!("cpu-{isa}"))).collect();
    }
    names.iter().map(|name| engines::backend(name)).collect()
}

fn groups(names: &[String]) -> Result<Vec<Group>> {
    if names.is_empty() {
        return Ok(Group::ALL.to_vec());
    }
    names
        .iter()
        .map(|name| match Group::ALL.into_iter().find(|g| g.name() == name) {
            Some(group) => Ok(group),
            None => {
                let all: Vec<&str> = Group::ALL.into_iter().map(Group::name).collect();
                bail!("group: got '{name}', expected one of {}", all.join(", "))
            }
        })
        .collect()
}
