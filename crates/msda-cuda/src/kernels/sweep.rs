//! Knobs for verification: chosen to cover the paths of a kernel, not to be fast.

use super::Kernel;
use super::rows::{Division, Rows, Walk};
use crate::request::{Request, Target};

/// Kernels with knobs of every kind that accept a request. The generic kernel has no knobs and is
/// not among them.
pub fn sweep(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let division = Division::of(request);
    let mut all = Vec::new();
    for (walk, _) in Walk::ALL {
        for tap_columns in [1, 2] {
            for sample_groups in [1, 2, 8] {
                for (heads_per_block, samples_per_lane) in [(1, 1), (2, 2), (1, 2), (1, 3), (4, 4), (1, 4)] {
                    let lanes = division.lanes * tap_columns * sample_groups;
                    let threads = 32.max(heads_per_block * lanes);
                    for resident_levels in [0, 1, 3] {
                        let group = Rows { tap_columns, sample_groups, heads_per_block, ..Rows::default() };
                        let knobs = Rows { threads, samples_per_lane, resident_levels, walk, ..group };
                        all.push(Kernel::Rows(knobs));
                    }
                }
            }
        }
    }
    all.retain(|kernel| kernel.refuses(request, target).is_none());
    all
}
