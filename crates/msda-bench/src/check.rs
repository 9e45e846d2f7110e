//! Checks an engine on a workload before it is timed.
//!
//! The checked call is the timed call: the engine runs the whole workload, into poisoned memory.
//! The oracle is too slow for that, so it evaluates some queries of one image and head, different
//! ones for each workload, and their results are compared. The gradient of value is a sum over all
//! queries. To check it, the engine also runs the sampled queries alone, and the gradient of the
//! whole workload must satisfy an identity with the gradient of the weights, for every image and
//! head.

use anyhow::{Context, Result, anyhow, bail};
use msda::conformance::{Budget, Budgeted, compare};
use msda::rng::Rng;
use msda::{Buffer, Problem, Role, Slice, backend};
use rayon::prelude::*;

use crate::engines::Engine;
use crate::record::{Check, Pass};
use crate::task::{Results, Task};
use crate::workload::Data;

/// Number of queries that the oracle evaluates.
const QUERIES: usize = 96;

/// Numbers per comparison.
const CHUNK: usize = 1 << 16;

const GRADIENT_OF_VALUE: &str = "gradient of value";

/// A result: its name, its role, the numbers, and those that are expected.
type Item<'a> = (&'static str, Role, &'a Buffer, &'a Budgeted);

/// The oracle's results for some queries of a workload.
pub struct Expected {
    image: usize,
    head: usize,
    step: usize,
    budget: Budget,
}

impl Expected {
    /// Evaluates the oracle on some queries of one image and head.
    pub fn new(data: &Data, name: &str) -> Result<Self> {
        let p = &data.problem;
        if p.batch() == 0 || p.heads() == 0 || p.queries() == 0 {
            bail!("workload {name}: got no output to compute ({p}), expected some");
        }
        let mut r = Rng::new(name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b))));
        let (image, head) = (r.below(p.batch()), r.below(p.heads()));
        let step = p.queries().div_ceil(QUERIES);
        let task = Task::whole(data, Pass::Forward).sampled(image, head, step)?;
        let budget = Budget::new(&task.problem, &task.inputs, &task.grad_output, true)?;
        Ok(Self { image, head, step, budget })
    }

    /// Runs the engine on the workload and compares the sampled queries; for a backward pass, with
    /// `also_few`, also on these queries alone, if the engine takes them. Otherwise the identity
    /// alone checks the gradient of value. For an inexact engine the error is recorded, and only
    /// results that are not finite are refused.
    pub fn check(&self, engine: &mut dyn Engine, data: &Data, pass: Pass, also_few: bool) -> Result<Check> {
        let whole = Task::whole(data, pass);
        let inexact = !engine.exact(&whole);
        let mut check = Check { max_error: 0.0, tolerance: 0.0, compared: 0, inexact };
        let name = engine.name();
        let wrong = |what: &str| format!("{name} is wrong on {} ({what})", data.problem);

        let few = whole.sampled(self.image, self.head, self.step)?;
        // A kernel that was selected by name may take the whole workload and not a few queries of
        // it.
        if also_few && pass == Pass::Backward && engine.refuses(&few).is_none() {
            let few = engine.run(&few)?;
            for (what, _, tensor, expected) in self.items(&few, pass) {
                note(&mut check, &tensor.to_f64(), &expected.exact, expected.tolerance)
                    .with_context(|| wrong(&format!("{what} of sampled queries")))?;
            }
        }
        let all = engine.run(&whole)?;
        for (what, role, tensor, expected) in self.items(&all, pass) {
            if role != Role::Value {
                let got = self.look_up(&whole, role, tensor.as_slice());
                note(&mut check, &got, &expected.exact, expected.tolerance).with_context(|| wrong(what))?;
            }
            if pass == Pass::Forward || inexact {
                all_finite(tensor).with_context(|| wrong(what))?;
            }
        }
        if pass == Pass::Backward && !inexact {
            check.compared += identity(data, &all).with_context(|| wrong(GRADIENT_OF_VALUE))?;
        }
        Ok(check)
    }

    /// Compares results with the oracle at the sampled queries, and everywhere with the results of
    /// another kernel that [`are_right`](Self::are_right). Returns the largest error over the
    /// tolerance. The gradient of value does not depend on the kernel, so it must have the same
    /// bits.
    pub fn agree(&self, data: &Data, pass: Pass, got: &Results, other: &Results) -> Result<f64> {
        let mut worst = 0.0f64;
        for (item, other) in self.items(got, pass).into_iter().zip(&other.0) {
            let (what, role, tensor, _) = item;
            let share = match role == Role::Value {
                true if tensor.to_le_bytes() == other.to_le_bytes() => Ok(0.0),
                true => Err(anyhow!("got other bits than with another kernel, expected the same")),
                false => self.agrees(data, item, other),
            };
            worst = worst.max(share.context(what)?);
        }
        Ok(worst)
    }

    /// Compares results with the oracle at the sampled queries. The gradient of value must satisfy
    /// the identity with the gradient of the weights.
    pub fn are_right(&self, data: &Data, pass: Pass, got: &Results) -> Result<()> {
        self.agree(data, pass, got, got)?;
        if pass == Pass::Backward {
            identity(data, got).context(GRADIENT_OF_VALUE)?;
        }
        Ok(())
    }

    /// Compares a tensor with the oracle at the sampled queries, and everywhere with another tensor
    /// that was compared so.
    ///
    /// Each of the two may differ by the tolerance, which grows with the numbers, and other queries
    /// may have larger numbers than the sampled ones.
    fn agrees(&self, data: &Data, (_, role, got, expected): Item<'_>, other: &Buffer) -> Result<f64> {
        let Budgeted { exact, tolerance, .. } = expected;
        let sampled = self.look_up(&Task::whole(data, Pass::Forward), role, got.as_slice());
        let share = compare(&sampled, exact, *tolerance).map_err(anyhow::Error::msg)?;
        if got.len() != other.len() {
            bail!("got {} numbers, expected {}", got.len(), other.len());
        }
        let (got, other) = (got.as_slice(), other.as_slice());
        let largest = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(f64::abs).fold(0.0, f64::max);
        let (off, size) = (0..got.len().div_ceil(CHUNK))
            .into_par_iter()
            .map(|chunk| {
                let range = chunk * CHUNK..got.len().min((chunk + 1) * CHUNK);
                let off = range.clone().map(|i| match (got.get(i) - other.get(i)).abs() {
                    off if off.is_nan() => f64::INFINITY,
                    off => off,
                });
                (off.fold(0.0, f64::max), largest(&mut range.map(|i| other.get(i))))
            })
            .reduce(|| (0.0, 0.0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let allowed =
            2.0 * tolerance * (size / largest(&mut exact.iter().copied()).max(f64::MIN_POSITIVE)).max(1.0);
        if off > allowed {
            bail!("results of two kernels: got a difference of {off:e}, expected at most {allowed:e}");
        }
        Ok(share.max(off / allowed.max(f64::MIN_POSITIVE)))
    }

    /// The results of a pass.
    fn items<'a>(&'a self, results: &'a Results, pass: Pass) -> Vec<Item<'a>> {
        if pass == Pass::Forward {
            return vec![("output", Role::Output, &results.0[0], &self.budget.output)];
        }
        let names = [
            (GRADIENT_OF_VALUE, Role::Value),
            ("gradient of locations", Role::Locations),
            ("gradient of weights", Role::Weights),
        ];
        let all = names.into_iter().zip(results.0.iter().zip(&self.budget.grads));
        all.map(|((name, role), (got, expected))| (name, role, got, expected)).collect()
    }

    /// The numbers of the sampled queries in a whole result.
    fn look_up(&self, whole: &Task<'_>, role: Role, all: Slice<'_>) -> Vec<f64> {
        let (extents, inner) = role.shape(&whole.problem);
        let strides = role.dense(&whole.problem);
        let mut numbers = Vec::new();
        for query in (0..extents[1]).step_by(self.step) {
            let row = backend::offset(strides, [self.image, query, self.head]);
            numbers.extend((row..row + inner).map(|c| all.get(c)));
        }
        numbers
    }
}

/// Compares, and keeps the largest error over its tolerance.
fn note(check: &mut Check, got: &[f64], exact: &[f64], tolerance: f64) -> Result<()> {
    // Of an inexact engine any finite error is recorded.
    let allowed = if check.inexact { 1e12 } else { 1.0 };
    let share = allowed * compare(got, exact, allowed * tolerance).map_err(anyhow::Error::msg)?;
    check.compared += got.len();
    if check.tolerance == 0.0 || share * check.tolerance > check.max_error {
        (check.max_error, check.tolerance) = (share * tolerance, tolerance);
    }
    Ok(())
}

fn all_finite(output: &Buffer) -> Result<()> {
    let bad = output.to_f64().iter().filter(|x| !x.is_finite()).count();
    if bad > 0 {
        bail!("{bad} of {} numbers are not finite: not written, or wrong", output.len());
    }
    Ok(())
}

/// For each image and head the sums of `value * gradient of value` and of `weight * gradient of
/// weight` are equal: both are the sum of `output * gradient of output`. A lost or doubled
/// contribution breaks the identity.
fn identity(data: &Data, results: &Results) -> Result<usize> {
    let p = &data.problem;
    let rounding = p.types().value.rounding().max(1e-6);
    (0..p.batch() * p.heads()).into_par_iter().try_for_each(|plane| {
        let [image, head] = [plane / p.heads(), plane % p.heads()];
        let left = inner_product(p, Role::Value, &data.value, &results.0[0], [image, head]);
        let right = inner_product(p, Role::Weights, &data.weights, &results.0[2], [image, head]);
        let allowed = rounding * (left.1 + right.1);
        let off = (left.0 - right.0).abs();
        if off.is_nan() || off > allowed {
            bail!(
                "image {image}, head {head}: got sums that differ by {off:e}, expected at most {allowed:e}"
            );
        }
        Ok(())
    })?;
    Ok(p.value_len())
}

/// The sum of products over one image and head, and the sum of their absolute values.
fn inner_product(p: &Problem, role: Role, a: &Buffer, b: &Buffer, [image, head]: [usize; 2]) -> (f64, f64) {
    let (extents, inner) = role.shape(p);
    let strides = role.dense(p);
    let (a, b) = (a.as_slice(), b.as_slice());
    let (mut sum, mut size) = (0.0, 0.0);
    for j in 0..extents[1] {
        let row = backend::offset(strides, [image, j, head]);
        for i in row..row + inner {
            let product = a.get(i) * b.get(i);
            sum += product;
            size += product.abs();
        }
    }
    (sum, size)
}

#[cfg(test)]
mod tests {
    use msda::{Cpu, Dtype, Isa};

    use super::*;
    use crate::workload::Workload;

    /// Results of two instruction sets. The gradient of value is that of the first: kernels of one
    /// GPU give the same bits there.
    fn results(data: &Data, pass: Pass) -> [Results; 2] {
        let task = Task::whole(data, pass);
        let mut both = [Isa::best(), Isa::Portable].map(|isa| {
            let mut results = task.poisoned();
            task.run(&Cpu::with_isa(isa).unwrap(), &mut results).unwrap();
            results
        });
        if pass == Pass::Backward {
            both[1].0[0] = both[0].0[0].clone();
        }
        both
    }

    #[test]
    fn results_agree_unless_one_number_is_wrong() {
        for (dtype, pass) in [
            (Dtype::F32, Pass::Forward),
            (Dtype::F16, Pass::Forward),
            (Dtype::F32, Pass::Backward),
            (Dtype::F16, Pass::Backward),
        ] {
            let data = Workload::find("small").unwrap().data(dtype).unwrap();
            let expected = Expected::new(&data, "small").unwrap();
            let [one, other] = results(&data, pass);
            expected.are_right(&data, pass, &other).unwrap();
            let share = expected.agree(&data, pass, &one, &other).unwrap();
            assert!(share <= 1.0, "{pass} {share}");
            // Also outside the sampled queries.
            for (i, tensor) in one.0.iter().enumerate() {
                let largest = tensor.to_f64().into_iter().map(f64::abs).fold(0.0, f64::max);
                for place in [0, tensor.len() / 2, tensor.len() - 1] {
                    for wrong in [f64::NAN, 100.0 * largest, tensor.as_slice().get(place) + 0.05 * largest] {
                        let mut broken = one.clone();
                        broken.0[i].as_mut().set(place, wrong);
                        let what = format!("{pass} {i}: {wrong} at {place}");
                        assert!(expected.agree(&data, pass, &broken, &other).is_err(), "{what}");
                    }
                }
            }
            let poisoned = Task::whole(&data, pass).poisoned();
            assert!(expected.agree(&data, pass, &poisoned, &other).is_err());
            assert!(expected.are_right(&data, pass, &poisoned).is_err());
        }
    }

    #[test]
    fn a_lost_part_of_the_gradient_of_value_is_noticed() {
        let data = Workload::find("small").unwrap().data(Dtype::F32).unwrap();
        let expected = Expected::new(&data, "small").unwrap();
        let [mut results, _] = results(&data, Pass::Backward);
        let half = results.0[0].len() / 2;
        (0..half).for_each(|i| results.0[0].as_mut().set(i, 0.0));
        let why = expected.are_right(&data, Pass::Backward, &results).unwrap_err();
        assert!(format!("{why:#}").contains("gradient of value"), "{why:#}");
    }
}
