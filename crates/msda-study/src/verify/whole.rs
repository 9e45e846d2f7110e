//! Every number of a workload's output, compared with the oracle.
//!
//! The oracle is slow. The queries are divided into parts, which threads evaluate in parallel, and
//! all kernels are compared with the same result.

use std::ops::Range;

use anyhow::{Result, bail};
use msda::conformance::Budgeted;
use msda::{Buffer, Inputs, Problem, Role, Slice, View, backend};
use rayon::prelude::*;

use msda_bench::parallel::{cores, in_parallel};
use msda_bench::record::Pass;
use msda_bench::task::Task;
use msda_bench::workload::Data;

use crate::found::Metric;

/// Queries per part. A part has one tolerance.
const QUERIES_PER_PART: usize = 2048;

/// The expected output of a workload, with tolerances.
pub struct Whole {
    problem: Problem,
    parts: Vec<(Part, Budgeted)>,
}

/// Consecutive queries of one image and head.
#[derive(Debug, Clone)]
pub(super) struct Part {
    image: usize,
    head: usize,
    queries: Range<usize>,
}

/// How an output compares with the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Compared {
    /// Numbers of the output; all are compared.
    pub outputs: usize,
    /// The largest difference from the oracle.
    pub max_abs: f64,
    /// The largest relative difference, over numbers larger than the tolerance.
    pub max_rel: f64,
    /// The largest difference over the tolerance.
    pub worst: f64,
    /// Numbers that exceed the tolerance.
    pub over: usize,
    /// Numbers that are not finite, although the oracle's are; they have no difference.
    pub not_finite: usize,
    /// Numbers that were not written.
    pub unwritten: usize,
}

/// The parts of a problem's queries.
pub(super) fn parts(p: &Problem) -> Vec<Part> {
    let mut parts = Vec::new();
    for image in 0..p.batch() {
        for head in 0..p.heads() {
            for first in (0..p.queries()).step_by(QUERIES_PER_PART) {
                let queries = first..p.queries().min(first + QUERIES_PER_PART);
                parts.push(Part { image, head, queries });
            }
        }
    }
    parts
}

impl Part {
    /// These queries as a problem over the same memory.
    fn cut<'a>(&self, data: &'a Data) -> Result<(Problem, Inputs<'a>)> {
        let task = Task::whole(data, Pass::Forward);
        let (plane, mut inputs) = backend::plane(&task.problem, &task.inputs, self.image, self.head)?;
        let problem = plane.with(|s| s.queries = self.queries.len())?;
        let from = |view: View<'a>, role: Role| {
            let strides = view.strides.unwrap_or_else(|| role.dense(&plane));
            View { data: view.data.tail(self.queries.start * strides[1]), strides: Some(strides) }
        };
        inputs.locations = from(inputs.locations, Role::Locations);
        inputs.weights = from(inputs.weights, Role::Weights);
        Ok((problem, inputs))
    }

    /// Offsets of its rows in the output.
    fn rows(&self, p: &Problem) -> impl Iterator<Item = usize> + use<> {
        let (strides, image, head) = (Role::Output.dense(p), self.image, self.head);
        self.queries.clone().map(move |query| backend::offset(strides, [image, query, head]))
    }
}

impl Whole {
    /// Evaluates the oracle with all cores; calls `done` after each of the [`parts`].
    pub(super) fn new(data: &Data, done: impl Fn() + Sync) -> Result<Self> {
        let parts = parts(&data.problem);
        let budgets = in_parallel(cores(), &parts, |part| {
            let (problem, inputs) = part.cut(data)?;
            let budget = Budgeted::output(&problem, &inputs, true)?;
            done();
            Ok(budget)
        });
        let budgets = budgets.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Self { problem: data.problem.clone(), parts: parts.into_iter().zip(budgets).collect() })
    }

    /// Compares an output. All bits of its memory were set before the run.
    pub fn compare(&self, got: &Buffer) -> Result<Compared> {
        if got.len() != self.problem.output_len() {
            bail!("got {} numbers, expected {}", got.len(), self.problem.output_len());
        }
        let got = got.as_slice();
        let all = self.parts.par_iter().map(|(part, budget)| self.compare_part(part, budget, got));
        Ok(all.reduce(Compared::default, Compared::join))
    }

    fn compare_part(&self, part: &Part, budget: &Budgeted, got: Slice<'_>) -> Compared {
        let mut c = Compared::default();
        for (row, exact) in part.rows(&self.problem).zip(budget.exact.chunks(self.problem.channels())) {
            for (i, &want) in (row..).zip(exact) {
                c.outputs += 1;
                c.unwritten += usize::from(is_poison(got, i));
                let off = (got.get(i) - want).abs();
                if !off.is_finite() {
                    c.not_finite += 1;
                    continue;
                }
                c.over += usize::from(off > budget.tolerance);
                c.max_abs = c.max_abs.max(off);
                c.worst = c.worst.max(off / budget.tolerance.max(f64::MIN_POSITIVE));
                if want.abs() > budget.tolerance {
                    c.max_rel = c.max_rel.max(off / want.abs());
                }
            }
        }
        c
    }
}

impl Compared {
    /// Its numbers as figures, and whether a second run gave the same bits.
    pub(super) fn figures(&self, same_bits: bool) -> [Metric<'static>; 8] {
        [
            ("outputs", self.outputs as f64, ""),
            ("max-abs", self.max_abs, ""),
            ("max-rel", self.max_rel, ""),
            ("worst", self.worst, ""),
            ("over", self.over as f64, ""),
            ("not-finite", self.not_finite as f64, ""),
            ("unwritten", self.unwritten as f64, ""),
            ("bitwise-equal", f64::from(u8::from(same_bits)), ""),
        ]
    }

    fn join(self, other: Self) -> Self {
        Self {
            outputs: self.outputs + other.outputs,
            max_abs: self.max_abs.max(other.max_abs),
            max_rel: self.max_rel.max(other.max_rel),
            worst: self.worst.max(other.worst),
            over: self.over + other.over,
            not_finite: self.not_finite + other.not_finite,
            unwritten: self.unwritten + other.unwritten,
        }
    }
}

/// Whether all bits of an element are set: a NaN that no arithmetic produces.
fn is_poison(data: Slice<'_>, i: usize) -> bool {
    match data {
        Slice::F64(s) => s[i].to_bits() == u64::MAX,
        Slice::F32(s) => s[i].to_bits() == u32::MAX,
        Slice::F16(s) => s[i].to_bits() == u16::MAX,
        Slice::Bf16(s) => s[i].to_bits() == u16::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use msda::{Cpu, Dtype};

    use super::*;
    use msda_bench::workload::Workload;

    #[test]
    fn every_number_counts() {
        let workload = Workload::find("small").unwrap();
        for dtype in [Dtype::F32, Dtype::F16] {
            let data = workload.data(dtype).unwrap();
            let steps = AtomicUsize::new(0);
            let count = || {
                steps.fetch_add(1, Ordering::Relaxed);
            };
            let whole = Whole::new(&data, count).unwrap();
            assert_eq!(steps.into_inner(), parts(&data.problem).len());
            let task = Task::whole(&data, Pass::Forward);
            let mut results = task.poisoned();
            task.run(&Cpu::new(), &mut results).unwrap();
            let right = results.0.remove(0);
            let c = whole.compare(&right).unwrap();
            assert_eq!((c.outputs, c.over, c.not_finite, c.unwritten), (right.len(), 0, 0, 0), "{c:?}");
            assert!(c.worst > 0.0 && c.worst <= 1.0 && c.max_abs > 0.0 && c.max_rel > 0.0, "{c:?}");
            // A fault anywhere is found.
            for place in [0, right.len() / 3, right.len() - 1] {
                let mut broken = right.clone();
                broken.as_mut().set(place, right.as_slice().get(place) + 0.05);
                let c = whole.compare(&broken).unwrap();
                assert_eq!((c.over, c.not_finite), (1, 0), "{c:?}");
                assert!(c.worst > 1.0 && c.max_abs > 0.04);
                let mut broken = right.clone();
                broken.as_mut().set(place, f64::NAN);
                let c = whole.compare(&broken).unwrap();
                assert_eq!((c.over, c.not_finite, c.unwritten), (0, 1, 0), "{c:?}");
            }
            let poison = Buffer::from_le_bytes(dtype, &vec![0xff; right.len() * dtype.size()]);
            let c = whole.compare(&poison).unwrap();
            assert_eq!((c.unwritten, c.not_finite), (right.len(), right.len()));
            assert!(whole.compare(&Buffer::filled(dtype, 3, 0.0)).is_err());
        }
    }

    /// With several parts per plane, and heads between the queries of the output.
    #[test]
    fn parts_cover_every_query_once() {
        let p = Workload::find("detr-encoder").unwrap().problem(Dtype::F32).unwrap();
        let p = p.with(|s| (s.batch, s.heads) = (2, 3)).unwrap();
        assert!(p.queries() > 2 * QUERIES_PER_PART);
        let mut rows: Vec<usize> = parts(&p).iter().flat_map(|part| part.rows(&p)).collect();
        rows.sort_unstable();
        let all: Vec<usize> = (0..2 * 3 * p.queries()).map(|row| row * p.channels()).collect();
        assert_eq!(rows, all);
    }
}
