//! The battery: tests that every backend must pass. Needs the feature `conformance`.
//!
//! Each [`Group`] is a family of cases: problems with data in some legal memory layout. A case runs
//! forward and backward, plain or fused, into memory filled with a known number, and each result is
//! compared with the oracle. The error allowed comes from the case: from the error of an
//! evaluation in the arithmetic type, and from the effect of one rounding of each location.
//!
//! ```
//! mod battery {
//!     msda::conformance!(msda::Cpu::new());
//! }
//! ```

mod cases;
mod data;
mod group;
mod judge;
mod refuse;

pub use self::data::Case;
pub use self::group::Group;
pub use self::judge::{Budget, Budgeted, compare};

use crate::op::Backend;

/// The result of some cases.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that the backend does not accept, with its reason.
    pub skipped: Vec<String>,
    /// Cases that failed: group, number and problem, and the first difference found.
    pub failed: Vec<String>,
    /// Numbers compared with the oracle.
    pub compared: usize,
    /// The largest error relative to the error allowed.
    pub worst: f64,
}

impl Summary {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.compared += other.compared;
        self.worst = self.worst.max(other.worst);
        self.skipped.extend(other.skipped);
        self.failed.extend(other.failed);
    }
}

/// Runs one group of the battery. Another seed gives other random cases.
pub fn run(backend: &dyn Backend, group: Group, seed: u64) -> Summary {
    let mut summary = Summary::default();
    for (number, case) in group.cases(seed).into_iter().enumerate() {
        summary.add(run_case(backend, &format!("{}/{number}", group.name()), &case));
    }
    summary
}

/// Runs one case; `name` is its name in the summary.
pub fn run_case(backend: &dyn Backend, name: &str, case: &Case) -> Summary {
    let mut summary = Summary::default();
    let name = format!("{name} {}", case.describe());
    if let Err(why) = backend.supports(&case.problem) {
        summary.skipped.push(format!("{name}: {why}"));
    } else if matches!(case.kind, data::Kind::Partial) && !backend.computes_gradients() {
        summary.skipped.push(format!("{name}: no backward pass"));
    } else {
        match judge::run(backend, case) {
            Ok(outcome) => {
                summary.passed = 1;
                (summary.compared, summary.worst) = (outcome.compared, outcome.worst);
            }
            Err(what) => summary.failed.push(format!("{name}: {what}")),
        }
    }
    summary
}

/// Runs one group. Panics with all failures, or if the backend accepted no case of it: the tests of
/// [`conformance!`](crate::conformance) call this.
#[doc(hidden)]
pub fn assert_conforms(backend: &dyn Backend, group: Group) {
    let summary = run(backend, group, 1);
    let failed = summary.failed.len();
    assert!(
        failed == 0,
        "{} failed {failed} of {} cases:\n{}",
        backend.name(),
        failed + summary.passed,
        summary.failed.join("\n")
    );
    // Only a backend without a backward pass may skip a whole group, the one about gradients.
    assert!(
        summary.passed > 0 || group == Group::Partial && !backend.computes_gradients(),
        "{} accepted no case of the group {}:\n{}",
        backend.name(),
        group.name(),
        summary.skipped.join("\n")
    );
}

/// Makes one test per group of the battery for the backend of the expression.
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance!(@each $backend;
            Random Inside Outside Borders NotFinite NotFiniteData OnePixel Empty Channels Levels
            Points Strides Unaligned Layouts Options Types Fused Untouched Cancelling Crowded
            Extremes Partial Refusals
        );
    };
    (@each $backend:expr; $($group:ident)*) => {
        $(
            #[test]
            #[allow(non_snake_case)]
            fn $group() {
                $crate::conformance::assert_conforms(&$backend, $crate::conformance::Group::$group);
            }
        )*
    };
}
