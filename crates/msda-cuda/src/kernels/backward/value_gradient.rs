//! The gradient of value: which kernels compute it, and which of them wait for each other.

use msda::{Layout, Role};

use super::matrix::Chunks;
use super::sort::{self, SortSizes};
use super::tiles::{TileJob, TileSizes};
use super::value_few::Few;
use super::{gaps, value, value_atomic, value_plain};
use crate::kernels::{Call, Region, pad};
use crate::request::{Levels, Request, Scatter, Slot};
use crate::target::Target;

/// The gradient of value, while its stages are added.
pub(super) struct ValueGradient<'a> {
    job: TileJob<'a>,
    sort: SortSizes,
    /// There are no samples.
    empty: bool,
    /// How `value_few.cu` computes it, if it does.
    few: Option<Few>,
}

impl<'a> ValueGradient<'a> {
    /// None if there is nothing to compute.
    pub(super) fn new(request: &'a Request<'a>, target: &'a Target) -> Option<Self> {
        let p = request.problem;
        if !request.wanted().value || p.batch() == 0 || p.heads() == 0 {
            return None;
        }
        let sizes = TileSizes::new(request);
        let sort = SortSizes::new(request, target, &sizes);
        let empty = p.queries() == 0 || p.samples() == 0;
        let few = if empty { None } else { Few::new(request, target, &sizes) };
        let batch_samples = sort.batch_samples;
        let (records, ends, padded) = (None, None, None);
        let job = TileJob { request, target, sizes, batch_samples, records, ends, softmax: None, padded };
        Some(Self { job, sort, empty, few })
    }

    /// Whether it needs the weights of all samples from the kernel of their gradients: in the fused
    /// form, unless its own kernel computes the softmax of the few queries.
    pub(super) fn needs_softmax(&self) -> bool {
        self.job.request.operands.reference_kind().is_some() && !self.empty && self.few.is_none()
    }

    /// Whether it comes before the gradients of locations and weights: if both run at the same
    /// time, and it does not need the softmax. The longer one starts first.
    pub(super) fn comes_first(&self) -> bool {
        let atomic = self.job.request.scatter == Scatter::Atomic;
        let beside = self.few.is_some() || self.sort.early;
        beside && !self.needs_softmax() && !self.empty && !atomic
    }

    /// Adds the stage that clears positions which are no pixels, if there may be some. No other
    /// stage writes there, so none waits for it. It comes last, so that the others start first.
    pub(super) fn add_gaps(&self, call: &mut Call) {
        let request = self.job.request;
        let p = request.problem;
        let pixels: usize = p.levels().iter().map(|l| l.h * l.w).sum();
        let may =
            request.levels == Levels::Device || p.layout() == Layout::PlanarRing || pixels != p.positions();
        if self.empty || (may && request.scatter != Scatter::Atomic) {
            call.branch();
            gaps::add(&self.job, call, self.empty);
        }
    }

    /// Adds the stages, except for gaps. `samples`: the stage that stores the softmax.
    pub(super) fn add(&mut self, call: &mut Call, softmax: Option<Region>, samples: Option<usize>) {
        let request = self.job.request;
        if self.empty {
            return;
        }
        if request.scatter == Scatter::Atomic {
            self.job.softmax = softmax;
            return value_atomic::add(&mut self.job, call);
        }
        let before = call.stages.len().checked_sub(1);
        let needed = softmax.and(samples);
        let chunks = Chunks::new(request, self.job.target);
        call.branch();
        let padded = chunks.filter(|chunks| chunks.pads);
        let padded = padded.map(|_| pad::add(call, request, Slot::GradOutput, Role::Output, self.job.target));
        let pad = padded.map(|_| call.stages.len() - 1);
        call.branch();
        if let Some(few) = &self.few {
            // It runs at the same time as `samples.cu`.
            pad.into_iter().for_each(|stage| call.join(stage));
            self.job.padded = padded;
            return few.add(&self.job, call);
        }
        let sorting_waits_for = before.filter(|_| !self.sort.early);
        sorting_waits_for.into_iter().for_each(|stage| call.join(stage));
        sort::add(&mut self.job, &self.sort, call);
        let needed = needed.filter(|_| self.sort.early);
        needed.into_iter().chain(pad).for_each(|stage| call.join(stage));
        (self.job.softmax, self.job.padded) = (softmax, padded);
        match chunks {
            Some(chunks) => value::add(&self.job, call, chunks),
            None => value_plain::add(&self.job, call),
        }
    }
}
