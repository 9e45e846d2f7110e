//! The kernels that tuning tries.

use msda::Layout;

use super::table::{THREADS_OF_40, THREADS_OF_48};
use crate::kernels::{Division, Kernel, PaddedRequest, Rows, Walk, each};
use crate::request::Request;
use crate::target::Target;

/// All kernels that tuning tries. Some of them may refuse the request.
pub fn candidates(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let p = request.problem;
    let division = match PaddedRequest::new(request) {
        Some(padded) => Division::of(&padded.of(request)),
        None => Division::of(request),
    };
    let samples = p.samples().max(1);
    let all = each(&[Rows::default()], &Walk::ALL, |k, (walk, _)| k.walk = walk);
    let all = each(&all, &[1, 2], |k, n| k.tap_columns = n);
    let all = each(&all, &[1, 2, 4, 8], |k, n| k.sample_groups = n);
    let all = each(&all, &[1, 2, 4, 8], |k, n| k.heads_per_block = n);
    let all = each(&all, &[64, 128, 256, 512, 768, 1024], |k, n| k.threads = n);
    let mut all = each(&all, &[1, 2, 3, 4, 8], |k, n| k.samples_per_lane = n);
    // Not more lanes than there is work for, nor a last pass with mostly idle lanes.
    all.retain(|k| {
        let lanes = k.group_lanes(division);
        lanes <= 32 && lanes * k.samples_per_lane <= samples.next_multiple_of(lanes).max(lanes)
    });
    let all: Vec<Rows> = all
        .iter()
        .flat_map(|k| each(&[*k], &blocks_per_sm(target, k.threads), |k, n| k.blocks_per_sm = n))
        .collect();
    // Only planar values can have resident levels.
    let most = if p.layout() == Layout::Bshd { 0 } else { p.levels().len().min(3) };
    let resident: Vec<usize> = (0..=most).collect();
    let all = each(&all, &resident, |k, n| k.resident_levels = n);
    std::iter::once(Kernel::Generic).chain(all.into_iter().map(Kernel::Rows)).collect()
}

/// Numbers of blocks per SM to try.
fn blocks_per_sm(target: &Target, threads: usize) -> Vec<usize> {
    let most = target.threads() as usize / threads;
    let mut blocks = vec![1, most / 2, most * 5 / 8, most * 3 / 4, most];
    blocks.extend([THREADS_OF_40, THREADS_OF_48].map(|resident| most.min(resident / threads)));
    blocks.retain(|&n| n > 0);
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}
