//! The battery that every backend must pass.
//!
//! Each [`Group`] is a family of cases: problems with data, laid out in memory in some legal way. A case runs forward
//! and backward, plain or fused, into poisoned outputs, and every number is compared with the oracle. How far a
//! number may be off is derived from the case itself: from the error of a plain evaluation in the accumulation type,
//! and from what one rounding of a location does to the exact result.
//!
//! ```
//! mod battery {
//!     msda::conformance!(msda::Cpu::new());
//! }
//! ```

mod cases;
mod data;
mod judge;

use std::fmt;

pub use self::cases::Group;
pub use self::data::{Case, Held};
pub use self::judge::{Budget, Budgeted, compare};

use crate::op::Backend;

/// How a backend did.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases the backend does not take, with its reason.
    pub skipped: Vec<String>,
    /// Cases that failed, with what was wrong.
    pub failed: Vec<Failure>,
    /// Numbers compared with the oracle.
    pub compared: usize,
    /// The largest error, as a share of what was allowed.
    pub worst: f64,
}

/// A case that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The case: group, number and problem.
    pub case: String,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.what)
    }
}

impl Summary {
    /// Adds another's counts to these.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.compared += other.compared;
        self.worst = self.worst.max(other.worst);
        self.skipped.extend(other.skipped);
        self.failed.extend(other.failed);
    }
}

/// Runs one group of the battery. Other seeds give other random cases.
pub fn run(backend: &dyn Backend, group: Group, seed: u64) -> Summary {
    let mut summary = Summary::default();
    for (number, case) in group.cases(seed).into_iter().enumerate() {
        summary.add(run_case(backend, &format!("{}/{number}", group.name()), &case));
    }
    summary
}

/// Runs one case; `name` says which, to people.
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
            Err(what) => summary.failed.push(Failure { case: name, what }),
        }
    }
    summary
}

/// Runs one group and panics with every failure. What the tests of [`conformance!`](crate::conformance) call.
#[doc(hidden)]
pub fn assert_conforms(backend: &dyn Backend, group: Group) {
    let summary = run(backend, group, 1);
    let failures: Vec<String> = summary.failed.iter().map(ToString::to_string).collect();
    assert!(
        failures.is_empty(),
        "{} failed {} of {} cases:\n{}",
        backend.name(),
        failures.len(),
        failures.len() + summary.passed,
        failures.join("\n")
    );
    assert!(
        summary.passed > 0 || !summary.skipped.is_empty(),
        "group {} has no cases: it could not fail",
        group.name()
    );
}

/// Instantiates the battery: one test a group for the backend that the expression makes.
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance!(@each $backend;
            Random Inside Outside Borders NotFinite OnePixel Empty Channels Levels Points
            Strides Unaligned Layouts Options Types Fused Untouched Cancelling Weights Partial Refusals
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
