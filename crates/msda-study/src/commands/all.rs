//! `msda-study all`

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use msda::Dtype;
use msda_bench::bench;
use msda_bench::record::{Record, Source};
use msda_bench::terminal::{Bar, make_folder, print, typed};
use msda_cuda::driver::Device;
use msda_study::claims::{self, Claims};
use msda_study::facts::Facts;
use msda_study::ladder::RUNGS;
use msda_study::{engines, probes, verify};

use super::bench::WORKLOADS;

/// The documents' size without rings, and rungs to time on it: document 2 names it for the last
/// two.
const BARE: &str = include_str!("../../workloads/seed-bare-uniform.toml");
const BARE_RUNGS: [&str; 3] = ["original_f16", "persistent_full", "persistent_query"];

#[derive(clap::Args)]
#[command(after_help = "Checks and times every rung with both kinds of locations, runs every probe, and \
    writes one record that `msda-study claims --record DIR/record.json` reads. Needs a GPU. \
    What a GPU cannot run is listed with the reason.

Examples:
  msda-study all --out mine
  msda-study all --out mine --quick --group borders")]
pub(crate) struct Args {
    /// Fewer runs of each rung; all outputs are compared for samples anywhere only; and the battery
    /// has nothing but the groups that --group names
    #[arg(long)]
    quick: bool,
    /// A group of the battery, as `msda verify --help` lists them; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// A rung by name, as `msda-study list` shows them; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    rung: Vec<String>,
    /// Folder for record.json, which is written after each part
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn main(args: Args) -> Result<()> {
    Device::open(0).context("nothing was measured: the ladder needs a GPU")?;
    make_folder(&args.out)?;
    let path = args.out.join("record.json");
    let command = typed("msda-study");

    let workloads: Vec<String> = WORKLOADS.map(String::from).into();
    let options = verify::Options {
        // The oracle takes its time.
        workloads: workloads.iter().skip(usize::from(args.quick)).cloned().collect(),
        full: false,
        no_battery: args.quick && args.group.is_empty(),
        groups: args.group,
        rungs: args.rung.clone(),
        command: command.clone(),
    };
    let (mut record, wrong) = verify::run(&options, &mut Bar::default())?;
    record.save(&path)?;
    eprintln!("verified: {} faults", wrong.len());
    // Times of a rung that is wrong mean nothing, and the benchmark stops at it.
    let asked =
        if args.rung.is_empty() { RUNGS.iter().map(|r| r.name.to_owned()).collect() } else { args.rung };
    let is_wrong = |rung: &String| wrong.iter().any(|why| why.contains(&format!("ladder:{rung}:")));
    let right: Vec<String> = asked.into_iter().filter(|rung| !is_wrong(rung)).collect();

    // A workload that is not built in is a file.
    let bare = args.out.join("seed-bare-uniform.toml");
    std::fs::write(&bare, BARE).with_context(|| format!("writing {}", bare.display()))?;
    let few = right.iter().filter(|rung| BARE_RUNGS.contains(&rung.as_str())).cloned().collect();
    // The record is saved after each workload: a run that is stopped leaves what it has.
    let turns = workloads.into_iter().map(|name| (name, right.clone()));
    for (workload, rungs) in turns.chain([(bare.display().to_string(), few)]) {
        if rungs.is_empty() {
            continue;
        }
        let options = super::bench::options(vec![workload], &rungs, vec![Dtype::F16], args.quick)?;
        add(&mut record, bench::run(&options, &engines::registry(), &mut Bar::default())?);
        record.save(&path)?;
    }

    let options = probes::Options { program: Some(std::env::current_exe()?), command, ..Default::default() };
    add(&mut record, probes::run(&options, &mut Bar::default())?);
    record.save(&path)?;

    let all = Claims::built_in()?;
    let gpu = record.machine.gpu.as_ref().map(|gpu| gpu.name.clone());
    let facts = Facts::of(&[Source { label: path.display().to_string(), record }])?;
    print(&claims::overview(&all, &claims::judge(&all, &facts, gpu.as_deref())))?;
    eprintln!("record: {}\nhint: msda-study claims --all --record {0}", path.display());
    ensure!(wrong.is_empty(), "the ladder has {} faults\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Adds the results of a part to a record.
fn add(record: &mut Record, part: Record) {
    record.measurements.extend(part.measurements);
    record.figures.extend(part.figures);
    record.skipped.extend(part.skipped);
    if record.ceilings.is_empty() {
        record.ceilings = part.ceilings;
    }
    record.machine = part.machine;
}
