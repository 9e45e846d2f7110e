//! The choice of a kernel for a request, with its reason.
//!
//! `tuned` has measured lines, `table` chooses for all other problems, and `candidates` lists what
//! tuning tries.

mod candidates;
mod table;
#[cfg(test)]
mod tests;
mod tuned;

pub use self::candidates::candidates;
pub use self::tuned::{Header, Tuned, class};

use msda::{Dtype, Error, ErrorKind, Result, Sampling};

use crate::kernels::{Division, Kernel, PaddedRequest, Rows};
use crate::request::{Levels, Request, Sizes, Sums};
use crate::target::Target;

/// A kernel, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The kernel.
    pub kernel: Kernel,
    /// The reason, a sentence for people.
    pub why: String,
}

/// The kernel for a request: the tuned one of its class, else the first of the table that accepts
/// it. An error if no kernel does.
pub fn choose(request: &Request<'_>, target: &Target) -> Result<Choice> {
    Ok(choices(request, target)?.swap_remove(0))
}

/// All kernels that accept a request, the best first, at least one. The generic kernel is the last.
/// An error with all reasons if no kernel accepts it.
pub fn choices(request: &Request<'_>, target: &Target) -> Result<Vec<Choice>> {
    let mut choices = Vec::new();
    let padded = PaddedRequest::new(request);
    let shaped = padded.as_ref().map_or(*request, |padded| padded.of(request));
    let tuned = Tuned::global();
    if let Some((kernel, source)) = tuned.kernel(request, target) {
        let kernel = with_asked(kernel, &shaped);
        if kernel.refuses(request, target).is_none() {
            let why =
                format!("Tuning measured it as the fastest kernel for this class of problems ({source}).");
            choices.push(Choice { kernel, why });
        }
    }
    let (accepted, not_accepted) = ask_table(&shaped, request, target);
    choices.extend(accepted);
    let mut refusals: Vec<String> = not_accepted.into_iter().map(|(_, reason)| reason).collect();
    let reasons = Kernel::Generic.reasons(request, target);
    if reasons.is_empty() {
        let why = format!("No faster kernel accepts the request: {}.", refusals.join("; "));
        choices.push(Choice { kernel: Kernel::Generic, why });
    }
    if choices.is_empty() {
        refusals.retain(|reason| !reasons.contains(reason));
        return Err(refused(&format!("kernels for {}", request.problem), &[reasons, refusals].concat()));
    }
    if tuned.is_stale(request, target) {
        choices[0].why += " The line of the tuned file is stale: `msda doctor` says why.";
    }
    Ok(choices)
}

/// The candidates of the table that do not take a request, each with its first reason. Of several
/// with the same reason only the first is there.
pub fn refusals(request: &Request<'_>, target: &Target) -> Vec<(Kernel, String)> {
    let padded = PaddedRequest::new(request);
    let shaped = padded.as_ref().map_or(*request, |padded| padded.of(request));
    ask_table(&shaped, request, target).1
}

/// Asks the candidates for the shaped request: those that accept the request, and the refusals.
fn ask_table(
    shaped: &Request<'_>,
    request: &Request<'_>,
    target: &Target,
) -> (Vec<Choice>, Vec<(Kernel, String)>) {
    let (mut accepted, mut refused) = (Vec::new(), Vec::<(Kernel, String)>::new());
    for (kernel, why) in table::table(shaped, target) {
        let kernel = with_asked(kernel, shaped);
        match kernel.refuses(request, target) {
            None => accepted.push(Choice { kernel, why: why.into() }),
            Some(reason) if refused.iter().any(|(_, known)| *known == reason) => {}
            Some(reason) => refused.push((kernel, reason)),
        }
    }
    (accepted, refused)
}

/// The error of a request that is refused, with all reasons.
pub(crate) fn refused(subject: &str, reasons: &[String]) -> Error {
    let expected = "a kernel that accepts the request";
    Error::new(ErrorKind::Unsupported, subject, reasons.join("; "), expected)
        .hint("`msda kernels` lists the kernels that take a problem, and why others do not")
}

/// A kernel with the sums and sizes that the request asks for, if they can be faster.
fn with_asked(kernel: Kernel, request: &Request<'_>) -> Kernel {
    let Kernel::Rows(knobs) = kernel else { return kernel };
    let (p, division) = (request.problem, Division::of(request));
    // f16 sums exist for bilinear sampling, two channels per lane. They pay for their two
    // conversions if four samples are summed, or if queries are few and sample groups share them.
    // With resident levels they are no faster, and much slower if locations are random.
    let exist = p.types().value == Dtype::F16 && p.sampling() == Sampling::Bilinear && division.vec >= 4;
    let f16_sums = request.sums == Sums::F16
        && exist
        && knobs.resident_levels == 0
        && (knobs.samples_per_lane >= 4 || knobs.sample_groups > 1);
    // Fixed sizes help only if the compiler knows the level of each load: the same points on all
    // levels, no sample groups, few passes. With one sample per lane they gain nothing.
    let level_known = p.points().iter().all(|&n| n == p.points()[0])
        && knobs.sample_groups == 1
        && (knobs.passes(p, division) <= 2 || knobs.static_residency(p, division));
    let fixed_sizes = request.sizes == Sizes::Fixed
        && request.levels == Levels::Host
        && level_known
        && knobs.samples_per_lane > 1;
    Kernel::Rows(Rows { f16_sums, fixed_sizes, ..knobs })
}
