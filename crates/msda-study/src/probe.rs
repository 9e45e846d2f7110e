//! Probes: limits of the machine, measured, and the experiments of the documents, repeated.
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

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::found::Found;
use crate::probes::banks::{self, Access, PITCHES, Pattern};
use crate::probes::ceilings::Ceiling;
use crate::probes::claims::{self, Taker};
use crate::probes::clusters::{self, Shape};
use crate::probes::copies::{self, Copies};
use crate::probes::tile::{MAP_QUERIES, Measured, Style, Tiles, Way};
use crate::probes::unguarded::{self, Outcome};
use crate::probes::{self, Bench, Timed};
use anyhow::{Context as _, Result, bail};
use msda::ErrorKind;
use msda_bench::bench::Progress;
use msda_bench::parallel::in_parallel;
use msda_bench::record::{Ceiling as Recorded, Record};
use msda_bench::{gpu, machine, work};
use msda_cuda::driver::Device;
use msda_cuda::jit::Cache;

/// The names of the probes. All but the first need a GPU.
pub const NAMES: [&str; 7] = [CPU, CEILING, TMA_TILE, COPY_STYLES, WORK_CLAIMS, CLUSTERS, BANKS];

const CPU: &str = "cpu";
const CEILING: &str = "ceiling";
const TMA_TILE: &str = "tma-tile";
const COPY_STYLES: &str = "copy-styles";
const WORK_CLAIMS: &str = "work-claims";
const CLUSTERS: &str = "clusters";
const BANKS: &str = "banks";

/// Numbers of queries of `tma-tile`. The documents measure the first only.
const QUERIES: &[u32] = &[1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000];
const FEW_QUERIES: &[u32] = &[1000, 10_000];

/// Batches of `tma-tile`, in maps.
const BATCHES: [u32; 3] = [4, 16, 48];

/// Timed runs per probe.
const RUNS: usize = 30;
const FEW_RUNS: usize = 5;

/// What to probe.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Names of probes; empty for all.
    pub only: Vec<String>,
    /// Fewer runs and sizes.
    pub quick: bool,
    /// The command line, for the record.
    pub command: String,
    /// The program that runs `probe --unguarded SHAPE`; none: clusters without their last
    /// barrier are not tried.
    pub program: Option<PathBuf>,
}

/// Probes the machine. A probe that this machine cannot run is skipped with a reason; a wrong
/// result is an error, and so is a run in which every probe was skipped.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Record> {
    if let Some(name) = options.only.iter().find(|name| !NAMES.contains(&name.as_str())) {
        bail!("probe: got '{name}', expected one of {}", NAMES.join(", "));
    }
    let wanted: Vec<&str> = NAMES
        .into_iter()
        .filter(|name| options.only.is_empty() || options.only.iter().any(|only| only == name))
        .collect();
    // First, so that it has the clocks before the load.
    let mut machine = machine::describe(0);
    let mut found = Found::default();
    let queries = if options.quick { FEW_QUERIES } else { QUERIES };
    let device = match Device::open(0) {
        Ok(device) => Some(device),
        Err(why) => {
            for name in wanted.iter().filter(|name| **name != CPU) {
                found.skip(format!("probe.{name}"), &why);
            }
            None
        }
    };
    let on_gpu = |name: &str| device.is_some() && wanted.contains(&name);
    let steps = [
        (wanted.contains(&CPU), 1),
        (NAMES[1..].iter().any(|name| on_gpu(name)), 2),
        (on_gpu(CEILING), Ceiling::ALL.len()),
        (on_gpu(TMA_TILE), Way::ALL.len() * queries.len() + Way::DOCUMENTED.len() * BATCHES.len()),
        (on_gpu(WORK_CLAIMS), Taker::ALL.len()),
        (on_gpu(COPY_STYLES), copies::Style::ALL.len()),
        (on_gpu(CLUSTERS), Shape::ALL.len()),
        (on_gpu(CLUSTERS) && options.program.is_some(), Shape::ALL.len()),
        (on_gpu(BANKS), Access::ALL.len() * PITCHES.len()),
    ];
    progress.begin(steps.iter().filter(|(does, _)| *does).map(|(_, n)| n).sum());
    let mut ceilings = Vec::new();
    if wanted.contains(&CPU) {
        progress.step("ceilings of the CPU");
        ceilings = work::ceilings(machine.cores)?;
        found.cpu(&ceilings);
    }
    if let Some(device) = device.as_ref().filter(|_| NAMES[1..].iter().any(|name| on_gpu(name))) {
        progress.step("compiling");
        compile(device);
        let bench = Bench::new(device, if options.quick { FEW_RUNS } else { RUNS })?;
        progress.step("ceiling: copy");
        // Efficiencies of other probes are relative to it.
        let copy = msda_bench::gpu::measure::copy(device)?;
        for &name in &wanted {
            match name {
                CEILING => found.ceilings(&bench, copy, progress)?,
                TMA_TILE => {
                    found.tiles(&bench, queries, copy, progress)?;
                    found.batches(&bench, copy, progress)?;
                }
                WORK_CLAIMS => found.work_claims(&bench, progress)?,
                COPY_STYLES => found.copies(&bench, progress)?,
                CLUSTERS => found.clusters(&bench, progress)?,
                BANKS => found.banks(&bench, progress)?,
                _ => {}
            }
        }
        // Last: a kernel that hangs disturbs the others.
        if let Some(program) = options.program.as_ref().filter(|_| on_gpu(CLUSTERS)) {
            found.unguarded(program, progress)?;
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

/// Runs clusters without their last barrier and returns how many sums are wrong. It may fault or
/// hang: [`run`] starts it in a process of its own.
pub fn run_unguarded(shape: &str) -> Result<usize> {
    let shape = shape.parse()?;
    Ok(clusters::run_unguarded(&Device::open(0)?, shape)?)
}

/// Compiles every kernel with all cores. A failure is reported when the kernel is used.
fn compile(device: &Device) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    in_parallel(workers, &probes::kernels(device.arch()), |kernel| {
        let _ = Cache::global().get(&kernel.unit);
    });
}

/// Probes, and what they have found so far. Names begin with `probe.`.
impl Found {
    /// A result. If this machine cannot run the probe, none, and the reason is kept.
    fn got<T>(&mut self, what: impl std::fmt::Display, result: msda::Result<T>) -> Result<Option<T>> {
        match result {
            Ok(result) => Ok(Some(result)),
            Err(why) if matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::Memory) => {
                self.skip(format!("probe.{what}"), &why);
                Ok(None)
            }
            Err(why) => Err(why.into()),
        }
    }

    fn push<const N: usize>(&mut self, name: impl std::fmt::Display, all: [(&str, f64, &str); N]) {
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

    fn cpu(&mut self, ceilings: &[Recorded]) {
        for ceiling in ceilings {
            let unit = if ceiling.name == work::FMA { "GFLOP/s" } else { "GB/s" };
            self.push(format!("{CPU}.{}", ceiling.name), [("rate", ceiling.rate, unit)]);
        }
    }

    fn ceilings(&mut self, bench: &Bench, copy: f64, progress: &mut dyn Progress) -> Result<()> {
        self.push(format!("{CEILING}.copy"), [("rate", copy / 1e9, "GB/s")]);
        for ceiling in Ceiling::ALL {
            let name = format!("{CEILING}.{ceiling}");
            progress.step(&format!("{CEILING}: {ceiling}"));
            let Some(timed) = self.got(&name, ceiling.run(bench))? else { continue };
            let (scale, unit) = if ceiling.is_arithmetic() { (1e12, "TFLOP/s") } else { (1e9, "GB/s") };
            self.push(&name, [("time", timed.median(), "us"), ("rate", timed.rate() / scale, unit)]);
        }
        Ok(())
    }

    fn tiles(
        &mut self,
        bench: &Bench,
        queries: &[u32],
        copy: f64,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let most = queries.iter().copied().max().unwrap_or(0);
        let Some(tiles) = self.got(TMA_TILE, Tiles::new(bench, most, 1))? else { return Ok(()) };
        let mut ways = Way::ALL.to_vec();
        for &n in queries {
            let mut manual: Vec<(u32, f64)> = Vec::new();
            let mut times: Vec<(Way, f64)> = Vec::new();
            for way in ways.clone() {
                progress.step(&format!("{TMA_TILE}: {n} queries, {}", way.name()));
                let Some(found) = self.got(format!("{TMA_TILE}.{}", way.name()), tiles.run(way, n))? else {
                    // The reason holds for any number of queries.
                    ways.retain(|other| *other != way);
                    continue;
                };
                self.tile(&format!("{TMA_TILE}.queries-{n}.{}", way.name()), &found, copy);
                times.push((way, found.timed.median()));
                if way.style == Style::Manual {
                    manual.push((way.threads, found.timed.median()));
                }
            }
            for (way, time) in times {
                if let Some((_, plain)) = manual.iter().find(|(threads, _)| *threads == way.threads) {
                    let name = format!("{TMA_TILE}.queries-{n}.{}", way.name());
                    self.push(name, [("speedup", plain / time, "x")]);
                }
            }
        }
        Ok(())
    }

    fn tile(&mut self, name: &str, found: &Measured, copy: f64) {
        let (timed, [least, mean, most]) = (&found.timed, found.cycles);
        self.time(name, timed);
        let all = [
            ("time.min", timed.min(), "us"),
            ("time.max", timed.max(), "us"),
            ("time.std", timed.deviation(), "us"),
            ("rate", timed.rate() / 1e9, "GB/s"),
            ("loads", found.loads / timed.median(), "M/s"),
            ("load-time", timed.median() * 1e3 / found.loads, "ns"),
            ("efficiency", timed.rate() / copy * 100.0, "%"),
            ("cycles.min", least, "cycles"),
            ("cycles.mean", mean, "cycles"),
            ("cycles.max", most, "cycles"),
        ];
        self.push(name, all);
    }

    /// Batches of maps, in the documents' ways.
    fn batches(&mut self, bench: &Bench, copy: f64, progress: &mut dyn Progress) -> Result<()> {
        for batch in BATCHES {
            let tiles = Tiles::new(bench, batch * MAP_QUERIES, batch);
            let Some(tiles) = self.got(TMA_TILE, tiles)? else { return Ok(()) };
            for way in Way::DOCUMENTED {
                let name = format!("{TMA_TILE}.batch-{batch}.{}", way.name());
                progress.step(&format!("{TMA_TILE}: {batch} maps, {}", way.name()));
                let found = self.got(&name, tiles.run(way, batch * MAP_QUERIES))?;
                if let Some(found) = found {
                    self.tile(&name, &found, copy);
                }
            }
        }
        Ok(())
    }

    fn work_claims(&mut self, bench: &Bench, progress: &mut dyn Progress) -> Result<()> {
        for taker in Taker::ALL {
            let name = format!("{WORK_CLAIMS}.{}", taker.name());
            progress.step(&format!("{WORK_CLAIMS}: every {}", taker.name()));
            if let Some(share) = self.got(&name, claims::run(bench, taker))? {
                self.push(&name, [("written", share * 100.0, "%")]);
            }
        }
        Ok(())
    }

    fn copies(&mut self, bench: &Bench, progress: &mut dyn Progress) -> Result<()> {
        let Some(copies) = self.got(COPY_STYLES, Copies::new(bench))? else { return Ok(()) };
        let mut times = Vec::new();
        for style in copies::Style::ALL {
            let name = format!("{COPY_STYLES}.{}", style.name());
            progress.step(&format!("{COPY_STYLES}: {}", style.name()));
            let Some(timed) = self.got(&name, copies.run(style))? else { continue };
            self.time_and_rate(&name, &timed);
            times.push((style, timed.median()));
            // Baselines come before the styles that are compared with them.
            if let Some((_, plain)) = times.iter().find(|(other, _)| *other == style.baseline()) {
                self.push(&name, [("speedup", plain / timed.median(), "x")]);
            }
        }
        Ok(())
    }

    fn clusters(&mut self, bench: &Bench, progress: &mut dyn Progress) -> Result<()> {
        for shape in Shape::ALL {
            let name = format!("{CLUSTERS}.{shape}");
            progress.step(&format!("{CLUSTERS}: {shape}"));
            let Some(found) = self.got(&name, clusters::run(bench, shape))? else { continue };
            let slowdown = found.local.rate() / found.remote.rate();
            self.push(&name, [("active", f64::from(found.active), ""), ("slowdown", slowdown, "x")]);
            self.time_and_rate(&format!("{name}.remote"), &found.remote);
            self.time_and_rate(&format!("{name}.local"), &found.local);
        }
        Ok(())
    }

    /// Clusters without their last barrier. A shape that the device does not support was skipped
    /// before.
    fn unguarded(&mut self, program: &Path, progress: &mut dyn Progress) -> Result<()> {
        for shape in Shape::ALL {
            let name = format!("{CLUSTERS}.{shape}");
            progress.step(&format!("{CLUSTERS}: {shape} without the last barrier"));
            if self.skipped.iter().any(|skipped| skipped.what == format!("probe.{name}")) {
                continue;
            }
            let mut command = Command::new(program);
            command.args(["probe", "--unguarded", &shape.to_string()]);
            let outcome = unguarded::watch(&mut command, unguarded::LIMIT)
                .with_context(|| format!("starting {}", program.display()))?;
            self.outcome(&format!("{name}.unguarded"), &outcome);
        }
        Ok(())
    }

    fn outcome(&mut self, name: &str, outcome: &Outcome) {
        let is = |yes: bool| f64::from(u8::from(yes));
        let all = [
            ("completed", is(matches!(outcome, Outcome::Completed(_))), ""),
            ("faulted", is(matches!(outcome, Outcome::Faulted(_))), ""),
            ("hung", is(*outcome == Outcome::Hung), ""),
        ];
        self.push(name, all);
        match outcome {
            Outcome::Completed(wrong) => {
                if let Ok(wrong) = wrong.parse() {
                    self.push(name, [("wrong", wrong, "")]);
                }
            }
            other => self.skip(format!("probe.{name}"), other),
        }
    }

    fn banks(&mut self, bench: &Bench, progress: &mut dyn Progress) -> Result<()> {
        for pitch in PITCHES {
            for access in Access::ALL {
                let name = format!("{BANKS}.pitch-{pitch}.{}", access.name());
                progress.step(&format!("{BANKS}: {} with a row pitch of {pitch}", access.name()));
                // Some pitches do not align 16-byte accesses.
                let Some(pattern) = Pattern::rows(access, pitch) else { continue };
                let Some(found) = self.got(&name, banks::run(bench, &pattern))? else { continue };
                let conflicts = found.wavefronts / f64::from(pattern.fewest());
                let counted = [("wavefronts", found.wavefronts, ""), ("conflicts", conflicts, "x")];
                self.push(&name, [("cycles", found.cycles, "cycles")]);
                self.push(&name, counted);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_probes_are_skipped_and_wrong_results_are_errors() {
        let mut found = Found::default();
        let error = |kind| msda::Error::new(kind, "probe", "this", "that").hint("do so");
        let skipped: Option<()> = found.got("a.b", Err(error(ErrorKind::Unsupported))).unwrap();
        assert!(skipped.is_none() && found.skipped[0].what == "probe.a.b");
        assert!(found.skipped[0].why.contains("hint: "), "{:?}", found.skipped);
        assert!(found.got::<()>("a.c", Err(error(ErrorKind::Device))).is_err());
        assert_eq!((found.got("a.d", Ok(3)).unwrap(), found.skipped.len()), (Some(3), 1));
    }

    #[test]
    fn the_outcome_of_a_process_is_recorded() {
        let mut found = Found::default();
        found.outcome("clusters.1x8.unguarded", &Outcome::Completed("3".into()));
        found.outcome("clusters.96x8.unguarded", &Outcome::Faulted("illegal address".into()));
        let value = |name: &str| found.figures.iter().find(|f| f.name == name).map(|f| f.value);
        assert_eq!(value("probe.clusters.1x8.unguarded.completed"), Some(1.0));
        assert_eq!(value("probe.clusters.1x8.unguarded.wrong"), Some(3.0));
        assert_eq!(value("probe.clusters.96x8.unguarded.faulted"), Some(1.0));
        assert_eq!(value("probe.clusters.96x8.unguarded.completed"), Some(0.0));
        assert_eq!(found.skipped.len(), 1);
        assert_eq!(found.skipped[0].why, "faulted: illegal address");
        assert!(run_unguarded("2x2").unwrap_err().to_string().contains("96x8"));
    }

    #[test]
    fn unknown_probes_are_refused() {
        let options = Options { only: vec!["tma".into()], ..Options::default() };
        let error = run(&options, &mut msda_bench::bench::Silent).unwrap_err().to_string();
        assert!(error.contains("tma-tile"), "{error}");
    }
}
