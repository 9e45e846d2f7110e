//! `msda doctor`

use anyhow::Result;
use msda::Isa;
use msda_lab::{engines, machine};
use serde_json::json;

use crate::terminal::print;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// One finding: what, how it stands, and what to do about it.
struct Finding {
    what: &'static str,
    good: bool,
    says: String,
    hint: Option<String>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let findings = examine();
    if args.json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| json!({ "what": f.what, "ok": f.good, "says": f.says, "hint": f.hint }))
            .collect();
        return print(&serde_json::to_string_pretty(&list)?);
    }
    let mut text = String::new();
    for f in &findings {
        let mark = if f.good { "ok" } else { "--" };
        text += &format!("{mark}  {:<12} {}\n", f.what, f.says);
        if let Some(hint) = &f.hint {
            text += &format!("    hint: {hint}\n");
        }
    }
    print(&text)
}

fn examine() -> Vec<Finding> {
    let here = machine::describe(None);
    let best = Isa::best();
    let slow = best == Isa::Portable;
    vec![
        Finding {
            what: "processor",
            good: true,
            says: format!("{}, {} cores, {} GiB, {}", here.cpu, here.cores, here.memory_gib, here.os),
            hint: None,
        },
        Finding {
            what: "vectors",
            good: !slow,
            says: format!("{best}; available: {}", here.isas.join(", ")),
            hint: slow
                .then(|| "no vector instructions beyond the baseline were found: expect a slower op".into()),
        },
        threads(here.cores),
        torch(),
        gpu(),
    ]
}

fn threads(cores: usize) -> Finding {
    let threads = rayon::current_num_threads();
    Finding {
        what: "threads",
        good: threads >= cores,
        says: format!("{threads} of {cores} cores"),
        hint: (threads < cores)
            .then(|| "RAYON_NUM_THREADS limits the threads: unset it to use every core".into()),
    }
}

fn torch() -> Finding {
    match engines::Torch::start(1) {
        Ok(torch) => Finding {
            what: "torch",
            good: true,
            says: format!("{}, measured beside by `msda bench`", torch.version()),
            hint: None,
        },
        Err(error) => {
            let text = format!("{error:#}");
            let (says, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
            Finding {
                what: "torch",
                good: false,
                says: format!("{says} (only needed for comparison)"),
                hint: Some(hint.to_owned()).filter(|h| !h.is_empty()),
            }
        }
    }
}

fn gpu() -> Finding {
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    match driver.as_deref().and_then(|t| t.lines().next()) {
        Some(line) => Finding {
            what: "gpu",
            good: false,
            says: format!("an NVIDIA driver is here ({})", line.trim()),
            hint: Some("this version computes on the CPU only".into()),
        },
        None => Finding {
            what: "gpu",
            good: false,
            says: "no NVIDIA driver was found; the op runs on the CPU".into(),
            hint: None,
        },
    }
}
