//! `msda-study verify`

use std::path::PathBuf;

use anyhow::{Result, ensure};
use msda::Dtype;
use msda_study::verify;

use super::finish;
use msda_bench::terminal::{Bar, groups, make_folder, typed};

#[derive(clap::Args)]
#[command(
    after_help = "Every rung that is held to the tolerance runs the battery. Of every rung, each number of the \
    output of the seed shape is compared with the oracle.

Examples:
  msda-study verify
  msda-study verify --full --out verified
  msda-study verify --workload detr-encoder --group borders"
)]
pub(crate) struct Args {
    /// Compare outputs in f32 too, besides f16
    #[arg(long)]
    full: bool,
    /// A workload whose output is compared, by name or as a path to a .toml file; may be repeated
    #[arg(long, value_name = "NAME", default_value = "seed")]
    workload: Vec<String>,
    /// A group of the battery, as `msda verify --help` lists them; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// A rung by name, as `msda-study list` shows them; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    rung: Vec<String>,
    /// Folder for record.json; without it nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the record as JSON instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if let Some(out) = &args.out {
        make_folder(out)?;
    }
    let options = verify::Options {
        workloads: args.workload,
        groups: groups(&args.group)?,
        rungs: args.rung,
        dtypes: if args.full { vec![Dtype::F16, Dtype::F32] } else { vec![Dtype::F16] },
        command: typed("msda-study"),
    };
    let (record, wrong) = verify::run(&options, &mut Bar::default())?;
    finish(record, args.out.map(|out| out.join("record.json")), args.json, "")?;
    ensure!(wrong.is_empty(), "the ladder has {} faults\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
