//! `msda doctor`

use anyhow::Result;
use msda::Isa;
use msda_bench::engines::{self, peers};
use msda_bench::machine;
use msda_bench::record::Gpu;
use msda_cuda::choose::Tuned;
use msda_cuda::driver::{Device, driver_problem, driver_version};
use msda_cuda::jit;
use serde_json::json;

use crate::terminal::print;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Also say which peers of engines.toml can be imported; takes a while
    #[arg(long)]
    peers: bool,
}

/// One finding: what, how it stands, and what to do about it.
struct Finding {
    what: &'static str,
    good: bool,
    says: String,
    hint: Option<String>,
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
    let here = machine::describe(0);
    let best = Isa::best();
    let slow = best == Isa::Portable;
    let mut findings = vec![
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
    ];
    findings.extend(gpu(here.gpu.as_ref()));
    findings
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
            let (says, hint) = split_hint(&text);
            Finding { what: "torch", good: false, says: format!("{says} (only needed for comparison)"), hint }
        }
    }
}

/// The GPU, and what kernels need beside it.
fn gpu(driver: Option<&Gpu>) -> Vec<Finding> {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(why) => return vec![no_gpu(driver, &why.to_string())],
    };
    let count = Device::count().unwrap_or(1);
    let mut says = format!(
        "{}, {}, {} multiprocessors, {:.0} GiB",
        device.name(),
        device.arch(),
        device.multiprocessors(),
        device.total_memory() as f64 / f64::from(1 << 30)
    );
    if let Some(driver) = driver {
        says += &format!(", driver {}", driver.driver);
    }
    if let Ok((major, minor)) = driver_version() {
        says += &format!(", CUDA {major}.{minor}");
    }
    if count > 1 {
        says += &format!("; the first of {count}");
    }
    vec![Finding { what: "gpu", good: true, says, hint: None }, nvrtc(), cache(), tuned()]
}

fn no_gpu(driver: Option<&Gpu>, why: &str) -> Finding {
    let (why, hint) = split_hint(why);
    let says = match driver {
        Some(gpu) => format!("{} is there but cannot be used: {why}", gpu.name),
        None => format!("{why}; the op runs on the CPU"),
    };
    let says = says + &driver_problem().map_or(String::new(), |detail| format!(" ({detail})"));
    Finding { what: "gpu", good: false, says, hint }
}

fn nvrtc() -> Finding {
    match jit::nvrtc() {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            Finding {
                what: "compiler",
                good: true,
                says: format!("NVRTC {major}.{minor} at {}", nvrtc.path()),
                hint: jit::untrusted().first().map(|why| format!("not used: {why}")),
            }
        }
        Err(why) => {
            let why = why.to_string();
            let (says, hint) = split_hint(&why);
            Finding {
                what: "compiler",
                good: false,
                says: format!("{says}; only kernels from the cache can run"),
                hint,
            }
        }
    }
}

fn tuned() -> Finding {
    let file = Tuned::path().filter(|path| path.exists());
    let says = match &file {
        Some(path) => format!("{}, besides what comes with the library", path.display()),
        None => "what comes with the library; `msda tune` adds this machine's".into(),
    };
    let problems = Tuned::global().problems();
    let hint = problems.first().map(|why| format!("{} line(s) count for nothing: {why}", problems.len()));
    Finding { what: "tuned", good: problems.is_empty(), says, hint }
}

fn cache() -> Finding {
    let cache = jit::Cache::global();
    let finding = |good, says, hint| Finding { what: "cache", good, says, hint };
    let Some(folder) = cache.folder() else {
        return finding(
            false,
            "none: kernels are compiled anew by every program".into(),
            Some(
                cache
                    .warning()
                    .unwrap_or("MSDA_CACHE_DIR is empty: set it to a folder, or unset it")
                    .to_owned(),
            ),
        );
    };
    match cache.entries() {
        Ok(entries) => {
            let mib = entries.iter().map(|e| e.bytes).sum::<u64>() as f64 / f64::from(1 << 20);
            let says = format!("{}: {} kernels, {mib:.1} MiB", folder.display(), entries.len());
            finding(cache.warning().is_none(), says, cache.warning().map(str::to_owned))
        }
        Err(why) => {
            let why = why.to_string();
            let (says, hint) = split_hint(&why);
            finding(false, says.to_owned(), hint)
        }
    }
}

/// An error's text without its advice, and the advice.
fn split_hint(text: &str) -> (&str, Option<String>) {
    match text.split_once("\nhint: ") {
        Some((says, hint)) => (says, Some(hint.to_owned())),
        None => (text, None),
    }
}

fn examine_peers() -> Result<Finding> {
    let known = peers::load()?;
    let finding = |good, says, hint| Finding { what: "peers", good, says, hint };
    let missing = match peers::survey(&known) {
        Ok(missing) => missing,
        Err(_) => return Ok(finding(false, "no Python with torch to import them".into(), None)),
    };
    let (mut here, mut gone) = (Vec::new(), Vec::new());
    for (peer, why) in known.iter().zip(missing) {
        match why {
            None => here.push(peer.engine()),
            Some(why) => gone.push(format!("{} ({})", peer.engine(), why.lines().next().unwrap_or_default())),
        }
    }
    let says = if here.is_empty() { "none can be imported".into() } else { here.join(", ") };
    let hint = (!gone.is_empty()).then(|| format!("not here: {}", gone.join(", ")));
    Ok(finding(!here.is_empty(), says, hint))
}
