//! `msda cache`

use anyhow::Result;
use msda_bench::report::{Kind, Table};
use msda_cuda::jit::Cache;
use serde_json::json;

use msda_bench::terminal::{print, screen};

#[derive(clap::Args)]
#[command(after_help = "\
MSDA_CACHE_DIR is the folder; if it is set to nothing, no kernel is kept.
MSDA_JIT=off forbids compiling: only kernels in the folder can run.

Examples:
  msda cache list
  msda cache clear")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
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

pub(crate) fn main(args: Args) -> Result<()> {
    let cache = Cache::global();
    match args.command {
        Command::List { json } => list(cache, json),
        Command::Clear => {
            eprintln!("{} compiled kernels deleted", cache.clear()?);
            Ok(())
        }
        Command::Path => match cache.folder() {
            Some(folder) => print(&folder.display().to_string()),
            None => anyhow::bail!("cache: got no folder, expected one\nhint: set MSDA_CACHE_DIR to a folder"),
        },
    }
}

fn list(cache: &Cache, as_json: bool) -> Result<()> {
    let entries = cache.entries()?;
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
        eprintln!("no compiled kernels");
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
    eprintln!("{} kernels, {:.1} MiB", entries.len(), bytes as f64 / f64::from(1 << 20));
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
