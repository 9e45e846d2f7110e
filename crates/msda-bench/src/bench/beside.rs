//! External engines in the benchmark: what is asked of Python, and what its results become.

use anyhow::Result;
use msda::{Dtype, Layout, Types};

use super::Bench;
use crate::engines::external::{self, Found, Outcome, Request, Run, find_python, name_on};
use crate::record::{Device, Measurement};
use crate::workload::Workload;
use crate::{gpu, work};

impl Bench<'_> {
    /// Threads of external engines on the CPU.
    pub(super) fn external_threads(&self) -> usize {
        self.options.threads.first().copied().unwrap_or_else(rayon::current_num_threads)
    }

    /// The external engines that were asked for by name.
    fn external_named(&self) -> Vec<String> {
        self.options.engines.iter().filter(|e| external::is_external(e)).cloned().collect()
    }

    /// Has torch and other implementations measured. Without Python this is an error if one of them
    /// was asked for by name.
    pub(super) fn measure_external(&mut self, workloads: &[Workload]) -> Result<()> {
        let (named, gpu) = (self.external_named(), gpu::count() > 0);
        if named.is_empty() && !self.options.engines.is_empty() {
            return Ok(());
        }
        let mut request = Request {
            passes: self.passes(),
            threads: self.external_threads(),
            seconds: self.whole_effort().budget.as_secs_f64(),
            ..Request::default()
        };
        for workload in workloads {
            request.workloads.insert(workload.name.clone(), workload.text.clone());
            for &dtype in &workload.dtypes {
                for device in [Device::Cpu, Device::Cuda] {
                    let chosen: Vec<String> = named.iter().filter_map(|e| name_on(e, device)).collect();
                    // On the CPU, grid_sample in 16 bits computes coordinates in 16 bits.
                    let usual = if device == Device::Cuda { gpu } else { dtype == Dtype::F32 };
                    if self.measures(device) && (!chosen.is_empty() || named.is_empty() && usual) {
                        request.runs.push(Run {
                            workload: workload.name.clone(),
                            dtype: dtype.name().into(),
                            device,
                            engines: (!chosen.is_empty()).then_some(chosen),
                        });
                    }
                }
            }
        }
        if request.runs.is_empty() {
            return Ok(());
        }
        let python = match find_python() {
            Ok(python) => python,
            Err(why) if named.is_empty() => {
                let why = format!("{why:#}");
                // Where torch was looked for is for `msda doctor` to say.
                let missing = why.starts_with(external::NO_TORCH);
                self.record.skip("torch", if missing { external::NO_TORCH } else { &why });
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        self.progress.note(&format!("torch {} and other implementations:", python.torch));
        let on_gpu = request.runs.iter().any(|run| run.device == Device::Cuda);
        let Found { cuda, absent, outcomes, failed, .. } =
            python.measure(request, &mut |line| self.progress.note(line))?;
        for (what, why) in failed {
            self.fail(what, why);
        }
        let no_cuda = format!("torch {} finds no CUDA device", python.torch);
        if named.is_empty() && on_gpu && !cuda {
            self.record.skip("torch-cuda", &no_cuda);
        }
        for (name, why) in absent {
            let engine = format!("{}{name}", external::PREFIX);
            self.record.skip(engine, why);
        }
        for engine in named {
            let known = self.record.skipped.iter().any(|s| s.what.split(' ').any(|word| word == engine));
            if !known && !outcomes.iter().any(|(_, other, _)| *other == engine) {
                let why = if cuda { "it does not run on this device" } else { &no_cuda };
                self.record.skip(engine, why);
            }
        }
        self.record.machine.torch = Some(python.torch);
        self.outcomes = outcomes;
        Ok(())
    }

    /// What external engines have found about a workload.
    pub(super) fn outcomes_of(&self, workload: &str, dtype: Dtype) -> Vec<(Run, String, Outcome)> {
        let here =
            |(run, ..): &&(Run, String, Outcome)| run.workload == workload && run.dtype == dtype.name();
        self.outcomes.iter().filter(here).cloned().collect()
    }

    /// Adds what external engines have found about a workload to the record.
    pub(super) fn add_external(
        &mut self,
        workload: &Workload,
        dtype: Dtype,
        reads: work::Reads,
        outcomes: Vec<(Run, String, Outcome)>,
    ) -> Result<()> {
        let named = !self.external_named().is_empty();
        // All their tensors have one type, and levels follow each other.
        let problem = workload.problem(dtype)?.with(|s| {
            (s.types, s.layout, s.starts, s.positions) = (Types::uniform(dtype), Layout::Bshd, None, None);
        })?;
        for (run, engine, found) in outcomes {
            let Outcome { pass, time, host_us, check, missing, refused, .. } = found;
            let (Some(time), Some(check)) = (time, check) else {
                let what = format!("{} {engine} {dtype} {pass}", workload.name);
                match refused {
                    true if !named => {}
                    true if !self.options.brief => self.record.skip(what, missing),
                    _ => self.fail(what, missing),
                }
                continue;
            };
            let cold = run.device == Device::Cuda;
            let threads = if cold { 1 } else { self.external_threads() };
            self.record.measurements.push(Measurement {
                workload: workload.name.clone(),
                problem: problem.to_string(),
                engine,
                pass,
                dtype: dtype.name().into(),
                threads,
                device: run.device,
                cold,
                kernel: None,
                host_us,
                replay: None,
                time,
                work: work::work(&problem, reads, pass, &self.record.ceilings, run.device, threads),
                check,
            });
        }
        Ok(())
    }
}
