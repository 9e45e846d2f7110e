//! `msda cache`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use msda::Dtype;
use msda_bench::gpu::kernels::{target, units};
use msda_bench::gpu::measure::Flush;
use msda_bench::parallel::{cores, in_parallel};
use msda_bench::report::{Kind, Table};
use msda_bench::workload::Workload;
use msda_cuda::Target;
use msda_cuda::driver::Arch;
use msda_cuda::jit::cache::create_folder;
use msda_cuda::jit::{Cache, Entry, Jit};
use serde_json::json;

use super::{PassArg, dtype};
use msda_bench::terminal::{make_folder, note, print, screen};

#[derive(clap::Args)]
#[command(after_help = "\
MSDA_CACHE_DIR is the folder; if it is set to nothing, no kernel is kept.
MSDA_KERNELS lists folders that `msda cache build` filled; they are searched
first. MSDA_JIT=off forbids compiling: only kernels in these folders can run.

Examples:
  msda cache list
  msda cache build --workload detr-decoder --arch sm_90 --out kernels
  msda cache clear")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Compile the kernels of workloads ahead, for machines that do not compile; needs no GPU
    Build(Build),
    /// List the compiled kernels
    List {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete the compiled kernels
    Clear,
    /// Print the folder
    Path,
}

#[derive(clap::Args)]
struct Build {
    /// A workload, or a path to a .toml file; may be repeated
    #[arg(long, value_name = "NAME", required = true)]
    workload: Vec<String>,
    /// A value type; may be repeated. All types of the workload when absent
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    dtype: Vec<Dtype>,
    /// The pass
    #[arg(long, value_enum, default_value = "both")]
    pass: PassArg,
    /// An architecture, such as sm_90; may be repeated
    #[arg(long, required = true)]
    arch: Vec<Arch>,
    /// SMs of the GPU, if it is not the largest of its architecture; may be repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sms: Vec<u32>,
    /// The folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let cache = Cache::global();
    match args.command {
        Command::Build(build) => build.run(),
        Command::List { json } => list(cache, json),
        Command::Clear => {
            folder(cache)?;
            note(format_args!("{} compiled kernels deleted", cache.clear()?));
            Ok(())
        }
        Command::Path => print(&folder(cache)?.display().to_string()),
    }
}

fn folder(cache: &Cache) -> Result<&Path> {
    cache.folder().context("cache: got no folder, expected one\nhint: set MSDA_CACHE_DIR to a folder")
}

impl Build {
    fn run(self) -> Result<()> {
        let mut all = BTreeMap::new();
        for &arch in &self.arch {
            let unit = Flush::unit(arch); // for `msda bench`
            all.insert(unit.assemble()?.hash, unit);
        }
        for name in &self.workload {
            let workload = Workload::find(name)?;
            let dtypes = if self.dtype.is_empty() { &workload.dtypes } else { &self.dtype };
            for &dtype in dtypes {
                let problem = workload.problem(dtype)?;
                for (target, pass) in
                    self.targets()?.iter().flat_map(|t| self.pass.all().into_iter().map(move |p| (t, p)))
                {
                    for unit in units(&problem, target, pass)? {
                        all.insert(unit.assemble()?.hash, unit);
                    }
                }
            }
        }
        // For this user alone. Whether that worked is checked next.
        let _ = create_folder(&self.out);
        make_folder(&self.out)?;
        let cache = Cache::at(Some(self.out.clone()), Jit::On);
        if let Some(why) = cache.warning() {
            bail!("--out: {why}\nhint: choose a folder that only you can write to");
        }
        cache.check_publishable()?;
        let all: Vec<_> = all.into_values().collect();
        note(format_args!("compiling {} kernels", all.len()));
        let failed: Vec<String> = in_parallel(cores(), &all, |unit| cache.get(unit).err())
            .into_iter()
            .flatten()
            .map(|why| why.to_string())
            .collect();
        if let Some(why) = failed.first() {
            bail!("{} of {} kernels failed: {why}", failed.len(), all.len());
        }
        if let Some(why) = cache.warning() {
            bail!("--out: {why}");
        }
        cache.publish()?;
        list(&cache, false)
    }

    fn targets(&self) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        for &arch in &self.arch {
            let usual = target(Some(arch))?;
            let sms = if self.sms.is_empty() { vec![usual.sms] } else { self.sms.clone() };
            targets.extend(sms.into_iter().map(|sms| Target { arch, sms }));
        }
        Ok(targets)
    }
}

/// The entries of the folder and of those that were filled ahead.
fn entries(cache: &Cache) -> Result<Vec<Entry>> {
    let mut entries = cache.entries()?;
    for folder in cache.ahead() {
        entries.extend(Cache::at(Some(folder.clone()), Jit::Off).entries()?);
    }
    Ok(entries)
}

fn list(cache: &Cache, as_json: bool) -> Result<()> {
    let entries = entries(cache)?;
    if as_json {
        let rows: Vec<_> = entries
            .iter()
            .map(|e| {
                let age = e.age.as_secs();
                json!({ "key": e.key, "arch": e.arch, "path": e.path, "bytes": e.bytes, "age_s": age })
            })
            .collect();
        return print(&serde_json::to_string_pretty(&rows)?);
    }
    if entries.is_empty() {
        note("no compiled kernels");
        return Ok(());
    }
    let table = Table::default().words(["arch"]).column("KiB", Kind::Number, 1);
    let mut table = table.column("age", Kind::Number, 2).words(["key"]);
    for e in &entries {
        table.push([
            e.arch.clone(),
            format!("{:.1}", e.bytes as f64 / 1024.0),
            age(e.age.as_secs()),
            e.key.clone(),
        ]);
    }
    print(&table.text(screen().width, false))?;
    let bytes: u64 = entries.iter().map(|e| e.bytes).sum();
    note(format_args!("{} kernels, {:.1} MiB", entries.len(), bytes as f64 / f64::from(1 << 20)));
    Ok(())
}

/// `42 s`, `7 min`, `3 h`, `12 d`.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
