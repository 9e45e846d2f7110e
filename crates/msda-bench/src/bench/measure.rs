//! Checks and times the engines of one workload.

use anyhow::{Context, Result};

use super::{Bench, Cell, Options};
use crate::check::Expected;
use crate::engines::{Engine, Launching};
use crate::record::{Device, Measurement, Pass};
use crate::report::number::{count, figure};
use crate::task::Task;
use crate::timing::{Effort, summarize};
use crate::workload::{Data, Workload};
use crate::{gpu, work};

/// The engines and value types of a workload are timed on the processor in this many rounds, so
/// that a disturbance of the machine affects all of them alike.
pub(super) const ROUNDS: u32 = 6;

/// Runs longer than this many milliseconds need no warm-up after their first round.
const LONG: f64 = 50.0;

/// One value type of a workload.
struct TypedWorkload<'a> {
    workload: &'a Workload,
    data: Data,
    expected: Expected,
    reads: work::Reads,
}

/// The timings of an engine on a task.
struct Timed {
    /// The index of the measurement.
    measurement: usize,
    /// The name and threads of the engine.
    engine: (String, usize),
    pass: Pass,
    /// Milliseconds of all runs so far.
    times: Vec<f64>,
}

/// The measurement of one engine on one task so far, and its times in milliseconds; or why it
/// refuses the task.
type Outcome = Result<(Measurement, Vec<f64>), String>;

impl Bench<'_> {
    /// Measures the plan of a workload. Every engine is reported when its first round is over.
    pub(super) fn measure(&mut self, workload: &Workload, plan: &[Cell]) -> Result<()> {
        let mut rounds = Vec::new();
        for &dtype in &workload.dtypes {
            let cells: Vec<&Cell> = plan.iter().filter(|c| c.dtype == dtype).collect();
            let outcomes = self.outcomes_of(&workload.name, dtype);
            if cells.is_empty() && outcomes.is_empty() {
                continue;
            }
            let data = workload.data(dtype)?;
            let reads = work::count_reads(&data);
            self.add_external(workload, dtype, reads, outcomes)?;
            if cells.is_empty() {
                continue;
            }
            let expected = Expected::new(&data, &workload.name)?;
            let typed = TypedWorkload { workload, data, expected, reads };
            let mut timed = Vec::new();
            for cell in cells {
                let what = format!("{} {} {} {}", workload.name, cell.pass, dtype, cell.engine);
                self.progress.step(&what);
                timed.extend(self.first_round(&typed, cell)?);
            }
            if !timed.is_empty() {
                rounds.push((typed.data, timed));
            }
        }
        for round in 1..ROUNDS {
            if !rounds.is_empty() {
                self.progress.step(&format!("{}, round {} of {ROUNDS}", workload.name, round + 1));
            }
            for (data, timed) in &mut rounds {
                self.next_round(round, data, timed)?;
            }
        }
        Ok(())
    }

    /// Checks an engine and times it: fully on a GPU, for the first round on the processor. Returns
    /// what is to be timed again.
    fn first_round(&mut self, typed: &TypedWorkload<'_>, cell: &Cell) -> Result<Option<Timed>> {
        let key = (cell.engine.clone(), cell.threads);
        let what = format!("{} {} {}", typed.workload.name, cell.engine, cell.dtype);
        let open = || self.registry.open(&cell.engine, cell.threads);
        let mut engine = self.open.remove(&key).map_or_else(open, Ok)?;
        let mut timed = None;
        match self.measure_cell(typed, cell, &mut *engine) {
            Ok(Ok((measurement, times))) => {
                let again = engine.device() == Device::Cpu && !self.options.brief;
                let round = if again { format!(", round 1 of {ROUNDS}") } else { String::new() };
                self.progress.note(&(line(&measurement) + &round));
                if again {
                    let (measurement, engine) = (self.record.measurements.len(), key.clone());
                    timed = Some(Timed { measurement, engine, pass: cell.pass, times });
                }
                self.record.measurements.push(measurement);
            }
            Ok(Err(why)) if self.options.brief => self.fail(what, why),
            Ok(Err(why)) => self.record.skip(what, why),
            Err(why) if engine.may_fail() || self.options.brief => {
                self.fail(format!("{what} {}", cell.pass), format!("{why:#}"));
            }
            Err(why) => return Err(why),
        }
        if let Some(gpu) = self.record.machine.gpu.as_mut().filter(|_| engine.device() == Device::Cuda) {
            gpu.after = gpu::state(self.ordinal);
        }
        self.open.insert(key, engine);
        Ok(timed)
    }

    /// Notes a failure at once, and in the record.
    pub(super) fn fail(&mut self, what: String, why: String) {
        self.progress.note(&format!("failed: {what}: {why}"));
        self.record.skip(what, why);
    }

    /// One more round, after `rounds`, for each that has not yet used its share of the time.
    fn next_round(&mut self, rounds: u32, data: &Data, timed: &mut [Timed]) -> Result<()> {
        let (whole, part) = (self.whole_effort(), self.effort(Device::Cpu));
        for Timed { measurement, engine, pass, times } in timed {
            let Some(open) = self.open.get_mut(engine).filter(|_| !whole.is_spent(times, rounds + 1, ROUNDS))
            else {
                continue;
            };
            let effort = Effort { warm_up: summarize(times).median < LONG, ..part };
            match open.time(&Task::whole(data, *pass), effort) {
                Ok(more) => times.extend(more),
                // Its earlier times stay.
                Err(_) if open.may_fail() => continue,
                Err(why) => return Err(why).with_context(|| format!("timing {}", engine.0)),
            }
            self.record.measurements[*measurement].time = summarize(times);
        }
        Ok(())
    }

    /// The effort of one round. On a GPU, which has no other user, all of it is spent at once.
    fn effort(&self, device: Device) -> Effort {
        let whole = device == Device::Cuda || self.options.brief;
        if whole { self.whole_effort() } else { self.whole_effort().part(ROUNDS) }
    }

    pub(super) fn whole_effort(&self) -> Effort {
        match self.options {
            Options { brief: true, .. } => Effort::BRIEF,
            Options { quick: true, .. } => Effort::QUICK,
            _ => Effort::FULL,
        }
    }

    /// Checks an engine on a task, then times it.
    fn measure_cell(
        &self,
        typed: &TypedWorkload<'_>,
        cell: &Cell,
        engine: &mut dyn Engine,
    ) -> Result<Outcome> {
        let TypedWorkload { workload, data, expected, reads } = typed;
        let task = Task::whole(data, cell.pass);
        if let Some(why) = engine.refuses(&task) {
            return Ok(Err(why));
        }
        // A run on a few queries may need kernels of its own.
        let check = expected.check(engine, data, cell.pass, !self.options.brief)?;
        let mut work = work::work(
            &data.problem,
            *reads,
            cell.pass,
            &self.record.ceilings,
            engine.device(),
            cell.threads,
        );
        if engine.device() == Device::Cpu && !self.options.brief {
            work.rows_ms = work::rows_ms(&task, *reads, cell.threads);
        }
        let times = engine
            .time(&task, self.effort(engine.device()))
            .with_context(|| format!("timing {}", engine.name()))?;
        let Launching { kernel, host_us, replay } = engine.launching(&task);
        let measurement = Measurement {
            workload: workload.name.clone(),
            problem: task.problem.to_string(),
            engine: engine.name(),
            pass: task.pass,
            dtype: cell.dtype.name().into(),
            threads: cell.threads,
            device: engine.device(),
            cold: engine.is_cold(),
            kernel,
            host_us,
            replay,
            time: summarize(&times),
            work,
            check,
        };
        Ok(Ok((measurement, times)))
    }
}

/// The line of a measurement that is printed while the benchmark runs.
fn line(m: &Measurement) -> String {
    let threads = match m.device {
        Device::Cpu => format!(" on {}", count(m.threads, "thread")),
        Device::Cuda => String::new(),
    };
    let time = figure(m.time.median);
    format!("{} {} {} {}{threads}: {time} ms", m.workload, m.pass, m.dtype, m.engine)
}
