//! Probes: limits of the machine, measured, and the experiments of the documents, repeated.
//!
//! Every kernel writes checksums of the data it read. The host knows the data and computes the same
//! sums. A wrong sum is an error, so code that the compiler removed cannot pass as fast.
//!
//! Each result is a figure of the record. Names are `probe.PROBE.WHAT.METRIC`, in lower case:
//!
//! | name | unit | what |
//! |---|---|---|
//! | `probe.cpu.{fma,stream,gather-l2,gather-memory}.rate` | GFLOP/s, GB/s | ceilings of the processor, all threads |
//! | `probe.ceiling.{copy,stream}.rate` | GB/s | device memory: a copy counts reads and writes |
//! | `probe.ceiling.gather-{l1,l2,memory}-{64,128}.rate` | GB/s | random rows of 64 or 128 bytes, 16 bytes per lane |
//! | `probe.ceiling.shared-conflicts-{1,2,4,8}.rate` | GB/s | shared memory, 16 bytes per lane; 1 is without conflicts |
//! | `probe.ceiling.fma-{f32,f16}.rate` | TFLOP/s | multiply-adds, two operations each |
//! | `probe.tma-tile.queries-N.WAY.*` | | squares of 256 bytes loaded to shared memory, eight per query |
//! | `probe.tma-tile.batch-B.WAY.*` | | the same for a batch of B maps with 1000 queries each |
//! | `probe.work-claims.{thread,block}.written` | % | outputs that a persistent kernel writes, if every thread takes work items, or every block |
//! | `probe.copy-styles.STYLE.*` | | 80 KiB of shared memory per block filled, 768 blocks, cold caches |
//! | `probe.clusters.CxB.{remote,local}.*` | | C clusters of B blocks that read the shared memory of their neighbours or their own |
//! | `probe.clusters.CxB.active`, `.slowdown` | , x | clusters in flight; local rate over remote rate |
//! | `probe.clusters.CxB.unguarded.{completed,faulted,hung}` | | 1 or 0: the outcome without the last barrier, in a process of its own; `.wrong`: wrong sums |
//! | `probe.banks.pitch-P.ACCESS.*` | | rows of 32 `f16` in shared memory, with a row pitch of P channels |
//!
//! WAY: `tma`, `tma-64` (64 threads issue), `manual`, `async`, `scalar` (one thread per square, 2
//! bytes at a time) in blocks of 256 threads, `warp-tma`, `warp-manual`, `warp-prefetch`,
//! `warp-async` in blocks of 32. STYLE: `words`, `vectors`, `async`, `bulk`, `tensor`, `channels`,
//! `channels-async`, `halves` (one f16 per thread and step). ACCESS: `half2`, `column`, `vector`.
//!
//! Metrics: `time` (median, us), `time.p10`, `time.p90`, `time.min`, `time.max`, `time.std` (us),
//! `rate` (GB/s), `loads` (M/s), `load-time` (ns), `efficiency` (% of the rate of a copy),
//! `cycles.min`, `cycles.mean`, `cycles.max` (per block), `speedup` (x; for `tma-tile` over the
//! manual way of the same blocks, for `copy-styles` over `words`, or over `channels` for styles
//! that read channels). `banks` has `cycles` (of an SM per load of a warp), `wavefronts` (by the
//! model) and `conflicts` (x, wavefronts over the fewest possible).

mod banks;
mod bench;
mod ceilings;
mod claims;
mod clusters;
mod copies;
mod kernel;
mod tile;
mod unguarded;
mod words;

use std::fmt::{Debug, Display};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::builder::PossibleValuesParser;
use msda::{Error, ErrorKind};
use msda_bench::bench::Progress;
use msda_bench::record::Record;
use msda_bench::{gpu, machine, work};
use msda_cuda::driver::{Arch, Device};

use crate::found::Found;
use crate::sources;
use bench::{Bench, Timed};

pub use clusters::run_unguarded;
pub use kernel::Kernel;

const CPU: &str = "cpu";

/// The names of the probes. All but the first need a GPU.
pub fn names() -> Vec<&'static str> {
    [CPU].into_iter().chain(ON_GPU.map(|(name, ..)| name)).collect()
}

/// A probe that needs a GPU: its name, how many steps it has, and what runs it.
type Probe = (&'static str, fn(&Options) -> usize, fn(&mut Prober<'_>) -> Result<()>);

const ON_GPU: [Probe; 6] = [
    (ceilings::NAME, |_| ceilings::Ceiling::all().len(), ceilings::probe),
    (tile::NAME, tile::steps, tile::probe),
    (copies::NAME, |_| copies::Style::ALL.len(), copies::probe),
    (claims::NAME, |_| claims::Taker::ALL.len(), claims::probe),
    (clusters::NAME, clusters::steps, clusters::probe),
    (banks::NAME, |_| banks::Access::ALL.len() * banks::PITCHES.len(), banks::probe),
];

/// Every kernel of the probes that an architecture supports.
pub fn kernels(arch: Arch) -> Vec<Kernel> {
    let all = [
        ceilings::kernels(arch),
        tile::kernels(arch),
        copies::kernels(arch),
        clusters::kernels(arch),
        claims::kernels(arch),
    ];
    all.into_iter().flatten().filter(|kernel| arch >= kernel.since).collect()
}

/// What to probe.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A probe by name; may be repeated
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(names()))]
    pub only: Vec<String>,
    /// Fewer runs and sizes
    #[arg(long)]
    pub quick: bool,
    /// The command line, for the record.
    #[arg(skip)]
    pub command: String,
    /// The program that runs `probe --unguarded SHAPE`; none: clusters without their last
    /// barrier are not tried.
    #[arg(skip)]
    pub program: Option<PathBuf>,
}

/// Probes the machine. A probe that this machine cannot run is skipped with a reason; a wrong
/// result is an error, and so is a run in which every probe was skipped.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Record> {
    if let Some(name) = options.only.iter().find(|name| !names().contains(&name.as_str())) {
        bail!("probe: got '{name}', expected one of {}", names().join(", "));
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut on_gpu: Vec<Probe> = ON_GPU.into_iter().filter(|(name, ..)| wanted(name)).collect();
    // First, so that it has the clocks before the load.
    let mut machine = machine::describe(0);
    let mut found = Found::default();
    let device = Device::open(0);
    if let Err(why) = &device {
        on_gpu.drain(..).for_each(|(name, ..)| found.skip(format!("probe.{name}"), why));
    }
    let steps: usize = on_gpu.iter().map(|(_, steps, _)| steps(options)).sum();
    let first = usize::from(wanted(CPU)) + if on_gpu.is_empty() { 0 } else { 2 };
    progress.begin(first + steps);
    let mut ceilings = Vec::new();
    if wanted(CPU) {
        progress.step("ceilings of the CPU");
        ceilings = work::ceilings(machine.cores, false)?;
        for ceiling in &ceilings {
            let unit = if ceiling.name == work::FMA { "GFLOP/s" } else { "GB/s" };
            found.push(format!("{CPU}.{}", ceiling.name), [("rate", ceiling.rate, unit)]);
        }
    }
    if let Some(device) = device.ok().filter(|_| !on_gpu.is_empty()) {
        progress.step("compiling");
        sources::compile(&kernels(device.arch()).iter().map(|kernel| &kernel.unit).collect::<Vec<_>>());
        let bench = Bench::new(&device, options.quick)?;
        progress.step("ceiling: copy");
        let copy = gpu::measure::copy(&device)?;
        let mut prober = Prober { bench, copy, options, found: &mut found, progress };
        on_gpu.iter().try_for_each(|(.., run)| run(&mut prober))?;
        // Last: a kernel that hangs disturbs the others.
        if on_gpu.iter().any(|(name, ..)| *name == clusters::NAME) {
            clusters::unguarded(&mut prober)?;
        }
        if let Some(gpu) = &mut machine.gpu {
            gpu.after = gpu::state(0);
        }
    }
    if found.figures.is_empty() {
        let reasons = found.skipped.chunk_by(|a, b| a.why == b.why).map(|alike| {
            let names: Vec<&str> = alike.iter().map(|s| s.what.as_str()).collect();
            format!("{}: {}", names.join(", "), alike[0].why)
        });
        bail!("nothing was measured\n{}", reasons.collect::<Vec<_>>().join("\n"));
    }
    Ok(Record { ceilings, ..found.record(&options.command, machine) })
}

/// A device that is probed.
struct Prober<'a> {
    bench: Bench,
    /// The rate of a copy. Efficiencies of probes are relative to it.
    copy: f64,
    options: &'a Options,
    found: &'a mut Found,
    progress: &'a mut dyn Progress,
}

/// What probes have found. Names begin with `probe.`.
impl Found {
    /// A result. If this machine cannot run the probe, none, and the reason is kept.
    fn got<T>(&mut self, what: impl Display, result: msda::Result<T>) -> Result<Option<T>> {
        match result {
            Ok(result) => Ok(Some(result)),
            Err(why) if matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::Memory) => {
                self.skip(format!("probe.{what}"), &why);
                Ok(None)
            }
            Err(why) => Err(why.into()),
        }
    }

    fn push<const N: usize>(&mut self, name: impl Display, all: [(&str, f64, &str); N]) {
        self.add(format!("probe.{name}"), &all);
    }

    fn time(&mut self, name: &str, timed: &Timed) {
        let [p10, p90] = [0.1, 0.9].map(|part| timed.quantile(part));
        let all = [("time", timed.median(), "us"), ("time.p10", p10, "us"), ("time.p90", p90, "us")];
        self.push(name, all);
    }

    fn time_and_rate(&mut self, name: &str, timed: &Timed) {
        self.time(name, timed);
        self.push(name, [("rate", timed.rate() / 1e9, "GB/s")]);
    }
}

/// A variant's name in lower case, with a dash before each further word.
fn lower(variant: impl Debug) -> String {
    let dashed = |c: char| if c.is_uppercase() { format!("-{}", c.to_lowercase()) } else { c.to_string() };
    format!("{variant:?}").chars().map(dashed).collect::<String>().trim_start_matches('-').to_owned()
}

/// Refuses a kernel that the device is too old for.
fn needs(device: &Device, kernel: &Kernel) -> msda::Result<()> {
    if device.arch() >= kernel.since {
        return Ok(());
    }
    let expected = format!("{} or newer", kernel.since);
    Err(Error::new(ErrorKind::Unsupported, format!("probe {}", kernel.unit.key), device.arch(), expected))
}

/// Refuses a checksum that differs from the host's.
fn agree(what: &str, at: impl Display, got: u32, want: u32) -> msda::Result<()> {
    if got == want {
        return Ok(());
    }
    let (subject, got) = (format!("probe {what}"), format!("the sum {got:#010x} at {at}"));
    Err(Error::new(ErrorKind::Device, subject, got, format!("{want:#010x}, which the host computed"))
        .hint("the kernel or the device is wrong: its time would mean nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_or_too_new_is_refused() {
        agree("x", 3, 7, 7).unwrap();
        let error = agree("gather", "thread 3", 7, 8).unwrap_err().to_string();
        assert!(error.contains("thread 3") && error.contains("0x00000008"), "{error}");
        // TMA and clusters came with Hopper, cp.async with Ampere.
        let count = |major, minor| kernels(Arch::new(major, minor)).len();
        assert!(count(7, 5) < count(8, 0) && count(8, 0) == count(8, 9) && count(8, 9) < count(9, 0));
        assert_eq!(count(9, 0), count(12, 0));
    }

    #[test]
    fn unsupported_probes_are_skipped_and_wrong_results_are_errors() {
        let mut found = Found::default();
        let error = |kind| Error::new(kind, "probe", "this", "that").hint("do so");
        let skipped: Option<()> = found.got("a.b", Err(error(ErrorKind::Unsupported))).unwrap();
        assert!(skipped.is_none() && found.skipped[0].what == "probe.a.b");
        assert!(found.skipped[0].why.contains("hint: "), "{:?}", found.skipped);
        assert!(found.got::<()>("a.c", Err(error(ErrorKind::Device))).is_err());
        assert_eq!((found.got("a.d", Ok(3)).unwrap(), found.skipped.len()), (Some(3), 1));
    }

    #[test]
    fn unknown_probes_are_refused() {
        let options = Options { only: vec!["tma".into()], ..Options::default() };
        let error = run(&options, &mut msda_bench::bench::Silent).unwrap_err().to_string();
        assert!(error.contains("tma-tile"), "{error}");
    }
}
