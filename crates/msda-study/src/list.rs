//! The rungs of the ladder, and the call that each makes of a problem.

use crate::ladder::{RUNGS, Rung};
use msda::Problem;
use msda_cuda::{Operands, Request, Target};

/// A rung, and its call for a problem.
pub struct Step {
    /// Its name, without `ladder:`.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    /// Whether its results are held to the tolerance.
    pub exact: bool,
    /// Its call, or why it refuses the problem.
    pub call: Result<Queued, String>,
}

/// Kernels and memory of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Number of kernels.
    pub kernels: usize,
    /// Bytes of workspace from the caller.
    pub workspace: usize,
    /// Bytes that the plan owns.
    pub owned: usize,
}

/// Every rung with its call on dense tensors.
pub fn rungs(problem: &Problem, target: &Target) -> Vec<Step> {
    let operands = Operands::dense(problem, None);
    let request = Request::new(problem, &operands);
    let step = |rung: &'static Rung| {
        let kernel = rung.kernel();
        let queued = || {
            let call = kernel.prepare(&request, target);
            Queued {
                kernels: call.kernels().count(),
                workspace: call.arena.bytes(),
                owned: call.owned_bytes(),
            }
        };
        let call = kernel.refuses(&request, target).map_or_else(|| Ok(queued()), Err);
        Step { name: rung.name, about: rung.about, exact: kernel.is_exact(), call }
    };
    RUNGS.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use msda::Dtype;
    use msda_bench::gpu::kernels::{USUAL, find_target};
    use msda_bench::workload::Workload;
    use msda_cuda::driver::Arch;

    use super::*;

    #[test]
    fn rungs_have_a_call_or_a_reason() {
        let seed = Workload::find("seed").unwrap().problem(Dtype::F16).unwrap();
        let of = |arch| rungs(&seed, &find_target(Some(arch)).0);
        let (hopper, turing) = (of(USUAL), of(Arch::new(7, 5)));
        assert_eq!((hopper.len(), turing.len()), (RUNGS.len(), RUNGS.len()));
        let call = |steps: &[Step], name: &str| steps.iter().find(|s| s.name == name).unwrap().call.clone();
        let plain = Queued { kernels: 1, workspace: 0, owned: 0 };
        assert_eq!(call(&hopper, "base"), Ok(plain));
        assert!(call(&turing, "distributed").is_err_and(|why| why.contains("sm_75")));
        let int8 = call(&hopper, "int8").unwrap();
        assert!(int8.kernels == 3 && int8.workspace > seed.positions() * 32 * 48, "{int8:?}");
        assert!(call(&hopper, "texture").unwrap().owned > 0);
        assert!(hopper.iter().any(|s| !s.exact) && hopper.iter().all(|s| !s.about.is_empty()));
    }
}
