//! Knobs for verification: not those that are fast, but those that take a kernel through all of its paths.

use super::Kernel;
use super::rows::{Division, Rows, Walk};
use crate::request::{Request, Target};

/// Kernels with knobs of every kind, whatever the request is: those that take it. The generic kernel, which has no
/// knobs, is not among them.
pub fn sweep(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let division = Division::of(request);
    let mut all = Vec::new();
    for (walk, _) in Walk::ALL {
        for sides in [1, 2] {
            for split in [1, 2, 8] {
                for (heads, round) in [(1, 1), (2, 2), (1, 2), (1, 3), (4, 4), (1, 4)] {
                    let lanes = division.lanes * sides * split;
                    let block = 32.max(heads * lanes);
                    for keep in [0, 1, 3] {
                        let shared = Rows { sides, split, heads, ..Rows::default() };
                        all.push(Kernel::Rows(Rows { block, round, keep, walk, ..shared }));
                    }
                }
            }
        }
    }
    all.retain(|kernel| kernel.refuses(request, target).is_none());
    all
}
