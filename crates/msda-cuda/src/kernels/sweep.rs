//! Knobs for verification: chosen to cover the paths of a kernel, not to be fast.

use super::Kernel;
use super::division::Division;
use super::knobs::{Rows, Walk, each};
use crate::request::Request;
use crate::target::Target;

/// Kernels with knobs of every kind that accept a request. The generic kernel has no knobs and is
/// not among them.
pub fn sweep(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let division = Division::of(request);
    let heads_and_samples = [(1, 1), (2, 2), (1, 2), (1, 3), (4, 4), (1, 4)];
    let all = each(&[Rows::default()], &Walk::ALL, |k, (walk, _)| k.walk = walk);
    let all = each(&all, &[1, 2], |k, n| k.tap_columns = n);
    let all = each(&all, &[1, 2, 8], |k, n| k.sample_groups = n);
    let all = each(&all, &heads_and_samples, |k, (heads, samples)| {
        (k.heads_per_block, k.samples_per_lane) = (heads, samples);
        k.threads = k.group_lanes(division).saturating_mul(heads).max(32);
    });
    let all = each(&all, &[0, 1, 3], |k, n| k.resident_levels = n);
    let kernels = all.into_iter().map(Kernel::Rows);
    kernels.filter(|kernel| kernel.refuses(request, target).is_none()).collect()
}
