//! `msda doctor`

mod gpu;

use anyhow::Result;
use msda::Isa;
use msda_bench::engines::external::{self, Request};
use msda_bench::machine;
use msda_bench::report::beside;
use serde_json::json;

use msda_bench::terminal::{print, screen};

#[derive(clap::Args)]
#[command(after_help = "\
Marks: `ok` is there and works, `--` is missing or slows msda down.

Examples:
  msda doctor
  msda doctor --peers")]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Also try to import the other implementations; takes a while
    #[arg(long)]
    peers: bool,
}

/// One finding, and advice if something is missing.
struct Finding {
    what: &'static str,
    good: bool,
    says: String,
    hint: Option<String>,
}

fn finding(what: &'static str, good: bool, says: impl Into<String>, hint: Option<String>) -> Finding {
    Finding { what, good, says: says.into(), hint }
}

pub(crate) fn main(args: Args) -> Result<()> {
    let mut findings = examine();
    if args.peers {
        findings.push(examine_peers()?);
    }
    if args.json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| json!({ "what": f.what, "ok": f.good, "says": f.says, "hint": f.hint }))
            .collect();
        return print(&serde_json::to_string_pretty(&list)?);
    }
    let width = screen().width;
    let mut text = String::new();
    for f in &findings {
        let mark = if f.good { "ok" } else { "--" };
        text += &beside(&format!("{mark}  {:<11}", f.what), &f.says, width);
        if let Some(hint) = &f.hint {
            text += &beside(&" ".repeat(15), &format!("hint: {hint}"), width);
        }
    }
    print(&text)
}

fn examine() -> Vec<Finding> {
    let here = machine::describe(0);
    let best = Isa::best();
    let slow = best == Isa::Portable;
    let processor = format!("{}, {} cores, {} GiB, {}", here.cpu, here.cores, here.memory_gib, here.os);
    let vectors = format!("{best}; available: {}", here.isas.join(", "));
    let no_vectors = "no vector instructions were found, so the CPU engine is slower";
    let mut findings = vec![
        finding("msda", true, crate::VERSION, None),
        finding("processor", true, processor, None),
        finding("vectors", !slow, vectors, slow.then(|| no_vectors.into())),
        threads(here.cores),
        torch(),
    ];
    findings.extend(gpu::examine(here.gpu.as_ref()));
    findings
}

fn threads(cores: usize) -> Finding {
    let threads = rayon::current_num_threads();
    let hint = "MSDA_NUM_THREADS, OMP_NUM_THREADS or RAYON_NUM_THREADS limits the threads; unset it to \
                use every core";
    let few = threads < cores;
    finding("threads", !few, format!("{threads} of {cores} cores"), few.then(|| hint.into()))
}

fn torch() -> Finding {
    match external::find_python() {
        Ok(python) => {
            finding("torch", true, format!("{}; `msda bench` compares with it", python.torch), None)
        }
        Err(error) => failed("torch", format!("{error:#}"), " (only needed for comparison)"),
    }
}

/// A failure: its text, more words about it, and its hint.
fn failed(what: &'static str, why: impl ToString, more: &str) -> Finding {
    let why = why.to_string();
    let (says, hint) = split_hint(&why);
    finding(what, false, format!("{says}{more}"), hint)
}

/// The text of an error without its hint, and the hint.
fn split_hint(text: &str) -> (&str, Option<String>) {
    match text.split_once("\nhint: ") {
        Some((says, hint)) => (says, Some(hint.to_owned())),
        None => (text, None),
    }
}

fn examine_peers() -> Result<Finding> {
    let Ok(python) = external::find_python() else {
        return Ok(finding("peers", false, "no Python with torch and msda_attn was found", None));
    };
    let found = python.measure(Request { threads: 1, ..Request::default() }, &mut |_| ())?;
    let engine = |name: &str| format!("{}{name}", external::PREFIX);
    let absent = found.absent.iter().map(|(name, why)| (engine(name), why));
    let gone: Vec<(String, &String)> =
        absent.chain(found.failed.iter().map(|(n, why)| (n.clone(), why))).collect();
    let known =
        found.known.iter().filter(|name| !["msda", "torch"].contains(&name.as_str())).map(|n| engine(n));
    let here: Vec<String> = known.filter(|name| !gone.iter().any(|(other, _)| other == name)).collect();
    let says = if here.is_empty() { "none can be imported".into() } else { here.join(", ") };
    let gone = gone.iter().map(|(name, why)| format!("{name} ({})", why.lines().next().unwrap_or_default()));
    let gone: Vec<String> = gone.collect();
    let hint = (!gone.is_empty()).then(|| format!("not here: {}", gone.join(", ")));
    Ok(finding("peers", !here.is_empty(), says, hint))
}
