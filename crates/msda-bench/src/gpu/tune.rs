//! Tuning: checks and times the kernels that take a problem and a pass, and keeps the fastest for
//! problems of its class.
//!
//! Kernels of the backward pass differ in how they compute the gradients of locations and weights.
//! The gradient of value is timed with them, and is the same.

use std::path::Path;

use super::measure::{Resident, Setup};
use anyhow::{Context, Result, bail};
use msda::Dtype;
use msda::rng::Rng;
use msda_cuda::choose::{Header, candidates, choose, class};
use msda_cuda::driver::Device;
use msda_cuda::jit::Cache;
use msda_cuda::kernels::Kernel;
use msda_cuda::{Operands, Request, Target};

use crate::bench::Progress;
use crate::check::Expected;
use crate::files::{self, cannot};
use crate::gpu::kernels::whole_pass;
use crate::parallel::{cores, in_parallel};
use crate::record::Pass;
use crate::task::{Results, Task};
use crate::timing::summarize;
use crate::workload::{Data, Workload};

/// Runs per candidate in the first round, and per finalist in the second, with cold caches.
const BRIEF: usize = 5;
const LONG: usize = 40;
/// Warm-up runs.
const WARM_UP: usize = 2;
/// Number of kernels in the second round.
const FINALISTS: usize = 12;

/// A workload in a type, a pass, and the kernels to try.
pub struct Job {
    /// The workload.
    pub workload: Workload,
    /// The value type.
    pub dtype: Dtype,
    /// The pass.
    pub pass: Pass,
    /// The class of the problem.
    pub class: String,
    /// Its kernel before tuning.
    pub now: Kernel,
    /// Number of kernels that take it.
    pub takes: usize,
    /// Kernels to try.
    pub tried: Vec<Kernel>,
}

/// The result of a job.
pub struct Tuned<'a> {
    /// The job.
    pub job: &'a Job,
    /// The median of the kernel before tuning, in microseconds; none if it failed.
    pub before: Option<f64>,
    /// The best kernels with their medians in microseconds, fastest first.
    pub best: Vec<(Kernel, f64)>,
    /// Number of timed kernels.
    pub timed: usize,
    /// Kernels that were not timed, and why.
    pub rejected: Vec<(Kernel, String)>,
}

impl Job {
    /// The job of a workload: at most `limit` kernels of all that take it.
    pub fn new(device: &Device, workload: &Workload, dtype: Dtype, pass: Pass, limit: usize) -> Result<Self> {
        let target = Target::of(device);
        let problem = workload.problem(dtype)?;
        let whole = whole_pass(pass, None);
        let operands = Operands::for_pass(&problem, None, whole);
        let request = Request { pass: whole, ..Request::new(&problem, &operands) };
        let mut all = candidates(&request, &target);
        all.retain(|kernel| kernel.refuses(&request, &target).is_none());
        let now = choose(&request, &target)?.kernel;
        Ok(Self {
            workload: workload.clone(),
            dtype,
            pass,
            class: class(&request, &target),
            now,
            takes: all.len(),
            tried: some(all, limit, now),
        })
    }

    /// The workload, the type and the pass.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.workload.name, self.dtype, self.pass)
    }

    /// Steps of its progress.
    pub fn steps(&self) -> usize {
        2 + self.tried.len() + self.tried.len().min(FINALISTS + 1)
    }

    /// Compiles, checks and times.
    pub fn run(&self, device: &Device, progress: &mut dyn Progress) -> Result<Tuned<'_>> {
        let name = self.name();
        progress.step(&format!("{name}: data and oracle"));
        let data = self.workload.data(self.dtype)?;
        let mut bench = Bench::new(device, &data, self.pass, &self.workload.name)?;
        progress.step(&format!("{name}: compiling {} kernels", self.tried.len()));
        let mut rejected = bench.compile(&self.tried);
        let mut times: Vec<(Kernel, f64)> = Vec::new();
        for &kernel in &self.tried {
            progress.step(&format!("{name}: {kernel}"));
            if rejected.iter().any(|(other, _)| *other == kernel) {
                continue;
            }
            match bench.check_and_time(kernel, BRIEF) {
                Ok(time) => times.push((kernel, time)),
                Err(why) => {
                    bench.still_works().with_context(|| format!("after {kernel} failed with: {why:#}"))?;
                    rejected.push((kernel, format!("{why:#}")));
                }
            }
        }
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut best = Vec::new();
        for (place, &(kernel, _)) in times.iter().enumerate() {
            // The present kernel is timed as long as the best.
            if place < FINALISTS || kernel == self.now {
                progress.step(&format!("{name}, second round: {kernel}"));
                best.push((kernel, bench.check_and_time(kernel, LONG)?));
            }
        }
        best.sort_by(|a, b| a.1.total_cmp(&b.1));
        if best.is_empty() {
            let why = rejected.first().map_or("none takes the problem", |(_, why)| why.as_str());
            bail!("{name}: no kernel could be timed: {why}");
        }
        let before = best.iter().find(|(kernel, _)| *kernel == self.now).map(|(_, time)| *time);
        Ok(Tuned { job: self, before, best, timed: times.len(), rejected })
    }
}

/// `always`, and a random choice of the others: at most `limit` in all, the same in each run.
fn some(mut all: Vec<Kernel>, limit: usize, always: Kernel) -> Vec<Kernel> {
    all.retain(|kernel| *kernel != always);
    let mut rng = Rng::new(1);
    for i in 0..all.len().min(limit) {
        let other = i + rng.below(all.len() - i);
        all.swap(i, other);
    }
    all.insert(0, always);
    all.truncate(limit);
    all
}

/// A workload on the device, and its expected results.
struct Bench<'a> {
    data: &'a Data,
    pass: Pass,
    expected: Expected,
    /// The results of the generic kernel, checked against the oracle.
    results: Results,
    resident: Resident,
}

impl<'a> Bench<'a> {
    fn new(device: &Device, data: &'a Data, pass: Pass, name: &str) -> Result<Self> {
        let expected = Expected::new(data, name)?;
        let task = Task::whole(data, pass);
        let mut resident = Resident::new(device, &Setup::of(&task), Some(Kernel::Generic))?;
        let results = run_poisoned(&mut resident)?;
        expected.are_right(data, pass, &results).context("the generic kernel is wrong")?;
        Ok(Self { data, pass, expected, results, resident })
    }

    /// Compiles kernels with all cores. Returns those that fail, with reasons.
    fn compile(&self, kernels: &[Kernel]) -> Vec<(Kernel, String)> {
        let request = self.resident.request();
        let target = Target::of(self.resident.plan().device());
        let failed = in_parallel(cores(), kernels, |kernel| {
            let why = match kernel.refuses(&request, &target) {
                Some(why) => why,
                None => {
                    let call = kernel.prepare(&request, &target);
                    let failed = call.kernels().find_map(|kernel| Cache::global().get(&kernel.unit).err());
                    failed?.to_string()
                }
            };
            Some((*kernel, why))
        });
        failed.into_iter().flatten().collect()
    }

    /// The median in microseconds; an error if a result is wrong.
    fn check_and_time(&mut self, kernel: Kernel, runs: usize) -> Result<f64> {
        self.resident.replan(Some(kernel))?;
        let results = run_poisoned(&mut self.resident)?;
        self.expected.agree(self.data, self.pass, &results, &self.results)?;
        self.resident.time(WARM_UP, true)?;
        Ok(summarize(&self.resident.time(runs, true)?).median * 1e3)
    }

    /// Checks that the device still computes, because a faulty kernel can break the context.
    fn still_works(&mut self) -> Result<()> {
        self.resident.replan(Some(Kernel::Generic))?;
        Ok(self.resident.run()?)
    }
}

/// Runs into poisoned memory.
fn run_poisoned(resident: &mut Resident) -> Result<Results> {
    resident.poison()?;
    resident.run()?;
    Ok(Results(resident.results()?))
}

/// Writes results to a file of tuned kernels, in place of lines of the same classes. Other lines of
/// the same GPU stay if they were measured with the same kernels.
pub fn save(path: &Path, header: &Header, found: &[Tuned<'_>]) -> Result<()> {
    let old = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(cannot("read", path, error)),
    };
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    msda_cuda::jit::cache::create_folder(folder).map_err(|why| cannot("write", folder, why))?;
    // Renamed into place, because programs may read it.
    files::replace(path, merged(&old, header, found).as_bytes()).map_err(|why| cannot("write", path, why))
}

/// The sections of other GPUs, and then that of this GPU.
fn merged(old: &str, header: &Header, found: &[Tuned<'_>]) -> String {
    let (mut others, mut own) = (String::new(), format!("{header}\n"));
    let mut section: Option<Header> = None;
    for line in old.lines() {
        if line.starts_with('[') {
            section = line.parse().ok();
        }
        let class = line.split('#').next().and_then(|l| l.split_once(" = ")).map(|(class, _)| class.trim());
        let replaced = class.is_some_and(|class| found.iter().any(|tuned| tuned.job.class == class));
        match &section {
            Some(this) if this == header && class.is_some() && !replaced => own += &format!("{line}\n"),
            Some(this) if (&this.gpu, this.sms) == (&header.gpu, header.sms) => {}
            _ => others += &format!("{line}\n"),
        }
    }
    for tuned in found {
        if let Some((kernel, time)) = tuned.best.first() {
            own += &format!("{} = {kernel}  # {time:.1} us, {}\n", tuned.job.class, tuned.job.name());
        }
    }
    others + &own
}

#[cfg(test)]
mod tests {
    use msda_cuda::jit::KERNELS;

    use super::*;

    fn kernels(n: usize) -> Vec<Kernel> {
        (1..=n).map(|i| format!("rows:blocks_per_sm={i}").parse().unwrap()).collect()
    }

    #[test]
    fn a_limit_keeps_the_choice_and_tries_each_kernel_once() {
        let all = kernels(1000);
        for (of, limit) in [(1000, 50), (3, 100), (0, 2)] {
            let some = some(all[..of].to_vec(), limit, all[7]);
            assert_eq!((some.len(), some[0]), (limit.min(of + usize::from(of < 8)), all[7]));
            let distinct = some.iter().enumerate().all(|(i, kernel)| !some[..i].contains(kernel));
            assert!(distinct, "{of}");
        }
    }

    #[test]
    fn lines_of_the_same_class_are_replaced() {
        let jobs = ["a b", "d", "a"].map(|class| Job {
            workload: Workload::find("small").unwrap(),
            dtype: Dtype::F16,
            pass: Pass::Forward,
            class: class.into(),
            now: Kernel::Generic,
            takes: 2,
            tried: Vec::new(),
        });
        let tuned = |job: usize, kernel: &str| Tuned {
            job: &jobs[job],
            before: None,
            best: vec![(kernel.parse().unwrap(), 12.34), (Kernel::Generic, 50.0)],
            timed: 2,
            rejected: Vec::new(),
        };
        let header = Header { gpu: "NVIDIA A".into(), sms: 7, kernels: KERNELS.version() };
        let other = Header { gpu: "NVIDIA B".into(), ..header.clone() };
        let stale = Header { kernels: "0".into(), ..header.clone() };
        let old = format!(
            "# ours\n{header}\na b = generic  # 3 us\na b c = generic\n{other}\na b = generic\n\
             {stale}\nx = generic\n"
        );
        let text = merged(&old, &header, &[tuned(0, "rows:sample_groups=2"), tuned(1, "generic")]);
        let lines: Vec<&str> = text.lines().collect();
        let (header_line, other_line) = (header.to_string(), other.to_string());
        let first = ["# ours", &other_line, "a b = generic", &header_line, "a b c = generic"];
        assert_eq!(lines[..5], first, "{text}");
        assert!(
            lines[5].starts_with("a b = rows:") && lines[5].ends_with("  # 12.3 us, small f16 forward"),
            "{text}"
        );
        assert_eq!(lines.len(), 7, "{text}");
        let read = msda_cuda::choose::Tuned::parse_file(&text, Path::new("tuned.txt"));
        assert!(["a b", "a b c", "d"].iter().all(|class| read.find(class, 7).is_some()));
        assert!(read.problems().is_empty(), "{:?}", read.problems());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/tuned.txt");
        save(&path, &header, &[tuned(2, "generic")]).unwrap();
        save(&path, &header, &[tuned(2, "rows:sample_groups=2")]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() == 2 && text.contains("sample_groups=2"), "{text}");
    }
}
