//! The battery finds mistakes that implementations really make.
//!
//! Each broken backend is the CPU backend with one mistake. The battery must reject it. Without a
//! mistake the same wrapper must pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use msda::backend::{check_gradients, check_inputs, check_output};
use msda::conformance::{self, Case, Group};
use msda::{
    Backend, Buffer, Cpu, Dtype, Error, ErrorKind, Gradients, Inputs, Layout, Padding, Problem, Result, Role,
    Sampling, Spec, View, ViewMut,
};

/// A call, with all its numbers as dense `f64`.
struct Call<'a> {
    p: &'a Problem,
    inputs: &'a Inputs<'a>,
    upstream: Option<View<'a>>,
    locations: Vec<f64>,
    weights: Vec<f64>,
    /// Results: the output, or the gradients of value, locations, weights and reference.
    results: Vec<Vec<f64>>,
    /// What the destinations held before the call.
    before: Vec<Vec<f64>>,
    /// Whether this is the second call of the backend, the fourth, and so on.
    is_second: bool,
}

const OUTPUT: usize = 0;
const VALUE: usize = 0;
const LOCATIONS: usize = 1;
const WEIGHTS: usize = 2;
const REFERENCE: usize = 3;

impl Call<'_> {
    fn fused(&self) -> bool {
        self.inputs.reference.is_some()
    }

    /// Width or height of the level of a location's number.
    fn side(&self, i: usize) -> f64 {
        let mut sample = i / 2 % self.p.samples();
        for (level, &points) in self.p.levels().iter().zip(self.p.points()) {
            if sample < points {
                return [level.w, level.h][i % 2] as f64;
            }
            sample -= points;
        }
        unreachable!("each sample has a level")
    }

    /// The gradients with other options or other inputs.
    fn gradients_of(&self, p: &Problem, inputs: &Inputs<'_>, upstream: View<'_>) -> Vec<Vec<f64>> {
        let g = Cpu::new().gradients(p, inputs, upstream).unwrap();
        [g.value, g.locations, g.weights].into_iter().chain(g.reference).map(|g| g.to_f64()).collect()
    }

    /// The gradient of value from each query alone.
    fn value_gradients_by_query(&self) -> Vec<Vec<f64>> {
        let Some(upstream) = self.upstream else { return Vec::new() };
        let numbers = Role::Output.read(self.p, &upstream).unwrap();
        let row = self.p.heads() * self.p.channels();
        (0..self.p.queries())
            .map(|query| {
                let own = |i: usize| i / row % self.p.queries() == query;
                let one = |i: usize| if own(i) { numbers[i] } else { 0.0 };
                let alone = Buffer::from_fn(self.p.types().value, numbers.len(), one);
                self.gradients_of(self.p, self.inputs, View::from(&alone)).swap_remove(VALUE)
            })
            .collect()
    }

    /// The gradient of `dtype` values with each sum rounded after every query.
    fn accumulate(&mut self, dtype: Dtype, round: fn(f64) -> f64) {
        if self.p.types().value == dtype {
            let queries = self.value_gradients_by_query();
            for (i, sum) in self.results[VALUE].iter_mut().enumerate() {
                *sum = queries.iter().fold(0.0, |sum, query| round(sum + query[i]));
            }
        }
    }

    /// Changes each number of one result.
    fn change(&mut self, which: usize, change: impl Fn(f64) -> f64) {
        self.results[which].iter_mut().for_each(|x| *x = change(*x));
    }

    /// Changes each number of one result, if values are `f16`.
    fn change_f16(&mut self, which: usize, change: fn(f64) -> f64) {
        if self.p.types().value == Dtype::F16 {
            self.change(which, change);
        }
    }

    /// Changes the numbers of all results, given what their destinations held.
    fn mix_with_old(&mut self, change: fn(f64, f64) -> f64) {
        for (results, before) in self.results.iter_mut().zip(&self.before) {
            results.iter_mut().zip(before).for_each(|(x, old)| *x = change(*x, *old));
        }
    }

    /// One gradient of a problem with other options.
    fn with_options(&mut self, which: usize, change: impl FnOnce(&mut Spec)) {
        let p = self.p.with(change).unwrap();
        self.results[which] = self.gradients_of(&p, self.inputs, self.upstream.unwrap()).swap_remove(which);
    }

    /// Multiplies each derivative by a location with a factor of its sample's side and weight.
    fn scale_locations(&mut self, factor: impl Fn(f64, f64) -> f64) {
        for i in 0..self.results[LOCATIONS].len() {
            self.results[LOCATIONS][i] *= factor(self.side(i), self.weights[i / 2]);
        }
    }

    /// The inputs with other locations.
    fn with_locations<R>(&self, change: impl FnOnce(&mut [f64]), f: impl FnOnce(&Inputs<'_>) -> R) -> R {
        let mut locations = self.locations.clone();
        change(&mut locations);
        let dtype = self.p.types().locations;
        let locations = Buffer::from_fn(dtype, locations.len(), |i| locations[i]);
        f(&Inputs { locations: View::from(&locations), ..*self.inputs })
    }

    /// The output with other locations.
    fn move_samples(&mut self, change: impl FnOnce(&mut [f64])) {
        let output = self.with_locations(change, |inputs| Cpu::new().output(self.p, inputs).unwrap());
        self.results[OUTPUT] = output.to_f64();
    }
}

/// Changes the results of a call.
type Change = fn(&mut Call<'_>);

/// `f16` without subnormal numbers.
fn flush(x: f64) -> f64 {
    if x.abs() < 2f64.powi(-14) { 0.0 } else { x }
}

/// `f16` without infinity.
fn saturate(x: f64) -> f64 {
    if x.is_infinite() { 65504f64.copysign(x) } else { x }
}

fn to_f16(x: f64) -> f64 {
    msda::f16::from_f64(x).to_f64()
}

/// Mistakes in the forward pass.
const FORWARD_MISTAKES: [(&str, Change); 9] = [
    ("x and y exchanged", |c| c.move_samples(|l| l.chunks_exact_mut(2).for_each(|xy| xy.swap(0, 1)))),
    ("coordinates in 16 bits", |c| c.move_samples(|l| l.iter_mut().for_each(|x| *x = to_f16(*x)))),
    ("coordinates a tenth of a pixel off", |c| {
        c.move_samples(|l| l.iter_mut().for_each(|x| *x += 0.1 / 9.0));
    }),
    ("NaN locations read as 0", |c| {
        c.move_samples(|l| l.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0));
    }),
    ("subnormal results flushed to 0", |c| c.change_f16(OUTPUT, flush)),
    ("results that saturate instead of overflowing to infinity", |c| c.change_f16(OUTPUT, saturate)),
    ("sums in f16", |c| {
        if c.p.types() == msda::Types::uniform(Dtype::F16) && c.p.samples() > 1 && !c.fused() {
            // The samples one by one: all weights but one are 0.
            let samples = c.p.samples();
            let mut sum = vec![0.0; c.results[OUTPUT].len()];
            for s in 0..samples {
                let one = |i: usize| if i % samples == s { c.weights[i] } else { 0.0 };
                let weights = Buffer::from_fn(Dtype::F16, c.weights.len(), one);
                let inputs = Inputs { weights: View::from(&weights), ..*c.inputs };
                let term = Cpu::new().output(c.p, &inputs).unwrap().to_f64();
                sum.iter_mut().zip(term).for_each(|(sum, x)| *sum = to_f16(*sum + x));
            }
            c.results[OUTPUT] = sum;
        }
    }),
    ("results added to the old output", |c| c.mix_with_old(|x, old| x + old)),
    ("padding ignored", |c| {
        let p = c.p.with(|s| s.padding = Padding::Zeros).unwrap();
        c.results[OUTPUT] = Cpu::new().output(&p, c.inputs).unwrap().to_f64();
    }),
];

/// Mistakes in the backward pass.
const BACKWARD_MISTAKES: [(&str, Change); 22] = [
    ("gradient of locations with the wrong sign", |c| c.change(LOCATIONS, |x| -x)),
    ("x and y of the gradient of locations exchanged", |c| {
        c.results[LOCATIONS].chunks_exact_mut(2).for_each(|xy| xy.swap(0, 1));
    }),
    ("gradient of locations per pixel: the factor W, H is missing", |c| {
        c.scale_locations(|side, _| 1.0 / side);
    }),
    ("gradient of locations with W instead of W - 1 and aligned corners", |c| {
        if c.p.spec().align_corners {
            c.scale_locations(|side, _| side / (side - 1.0).max(1.0));
        }
    }),
    ("gradient of locations without the attention weight", |c| {
        if !c.fused() {
            c.scale_locations(|_, weight| if weight == 0.0 { 1.0 } else { 1.0 / weight });
        }
    }),
    ("gradient of weights multiplied by the weight", |c| {
        if !c.fused() {
            c.results[WEIGHTS].iter_mut().zip(&c.weights).for_each(|(x, w)| *x *= w);
        }
    }),
    ("a lost update: of two queries that add to one pixel the last wins", |c| {
        let queries = c.value_gradients_by_query();
        for (i, x) in c.results[VALUE].iter_mut().enumerate() {
            *x = queries.iter().rev().map(|q| q[i]).find(|x| *x != 0.0).unwrap_or(*x);
        }
    }),
    ("one query in a block counted twice", |c| {
        let last = c.value_gradients_by_query().pop().unwrap_or_default();
        c.results[VALUE].iter_mut().zip(last).for_each(|(x, twice)| *x += twice);
    }),
    ("gradient of value accumulated in f16", |c| c.accumulate(Dtype::F32, to_f16)),
    ("gradient of value accumulated in bf16", |c| {
        c.accumulate(Dtype::Bf16, |x| msda::bf16::from_f64(x).to_f64());
    }),
    ("clamped coordinates with a gradient", |c| {
        if c.p.padding() == Padding::Border && c.p.sampling() == Sampling::Bilinear && !c.fused() {
            // Just inside the border instead of on it.
            let inside = |locations: &mut [f64]| {
                for (i, x) in locations.iter_mut().enumerate().filter(|(_, x)| x.is_finite()) {
                    let side = c.side(i);
                    let (scale, shift) = c.p.pixel_transform(side as usize);
                    let pixel = (*x * scale + shift).clamp(0.01, (side - 1.01).max(0.01));
                    *x = if scale > 0.0 { (pixel - shift) / scale } else { *x };
                }
            };
            let all = c.with_locations(inside, |i| c.gradients_of(c.p, i, c.upstream.unwrap()));
            let right = c.results[LOCATIONS].iter_mut();
            right.zip(&all[LOCATIONS]).filter(|(x, _)| **x == 0.0).for_each(|(x, wrong)| *x = *wrong);
        }
    }),
    ("samples off the map read the border", |c| c.with_options(VALUE, |s| s.padding = Padding::Border)),
    ("gradients of samples off the map not written", |c| {
        c.mix_with_old(|x, old| if x == 0.0 { old } else { x });
    }),
    ("gradients added to the old contents", |c| c.mix_with_old(|x, old| x + old)),
    ("NaN locations with a NaN gradient", |c| {
        let at = c.results[LOCATIONS].iter_mut().zip(&c.locations);
        at.filter(|(_, location)| location.is_nan()).for_each(|(x, _)| *x = f64::NAN);
    }),
    ("0 multiplied by a weight that is not finite", |c| {
        if !c.fused() {
            let xy = c.results[LOCATIONS].chunks_exact_mut(2).zip(&c.weights);
            xy.for_each(|(xy, weight)| xy.iter_mut().for_each(|x| *x += 0.0 * weight));
        }
    }),
    ("nearest samples with a gradient of locations", |c| {
        c.with_options(LOCATIONS, |s| s.sampling = Sampling::Bilinear);
    }),
    ("gradient of logits without the weight of the softmax", |c| {
        if c.fused() {
            let samples = c.p.samples().max(1);
            for (row, logits) in c.results[WEIGHTS].chunks_mut(samples).zip(c.weights.chunks(samples)) {
                let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = logits.iter().map(|x| (x - top).exp()).sum();
                row.iter_mut().zip(logits).for_each(|(x, logit)| *x *= sum / (logit - top).exp());
            }
        }
    }),
    ("gradient of reference points averaged over the heads", |c| {
        let heads = c.p.heads() as f64;
        if c.fused() {
            c.change(REFERENCE, |x| x / heads);
        }
    }),
    ("subnormal gradients flushed to 0", |c| c.change_f16(VALUE, flush)),
    ("gradients of value that saturate instead of overflowing to infinity", |c| {
        c.change_f16(VALUE, saturate);
    }),
    ("gradient of rings and gaps not written", |c| {
        if c.p.layout() == Layout::PlanarRing {
            let mut pixels = vec![false; c.p.positions()];
            for level in c.p.levels() {
                (0..level.h * level.w).for_each(|i| pixels[level.position(i / level.w, i % level.w)] = true);
            }
            let (d, positions) = (c.p.channels(), c.p.positions());
            for (i, x) in c.results[VALUE].iter_mut().enumerate() {
                if !pixels[i / d % positions] {
                    *x = c.before[VALUE].get(i).copied().unwrap_or(*x);
                }
            }
        }
    }),
];

type Forward = fn(&Broken, &Problem, &Inputs<'_>, ViewMut<'_>) -> Result<()>;
type Backward = fn(&Broken, &Problem, &Inputs<'_>, View<'_>, Gradients<'_>) -> Result<()>;

/// The CPU backend with other functions in its place.
struct Broken {
    name: &'static str,
    /// The mistake in the results of `spoiled_output` and `spoiled_gradients`.
    mistake: Change,
    is_reproducible: bool,
    computes_gradients: bool,
    supports: fn(&Problem) -> Result<()>,
    forward: Forward,
    backward: Backward,
    calls: AtomicUsize,
}

impl Broken {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            mistake: |_| (),
            is_reproducible: true,
            computes_gradients: true,
            supports: |_| Ok(()),
            forward: |_, p, inputs, output| Cpu::new().forward(p, inputs, output),
            backward: |_, p, inputs, upstream, to| Cpu::new().backward(p, inputs, upstream, to),
            calls: AtomicUsize::new(0),
        }
    }

    /// Spoils the right results of a call, and writes them.
    fn write(
        &self,
        p: &Problem,
        inputs: &Inputs<'_>,
        upstream: Option<View<'_>>,
        results: Vec<(Role, Buffer)>,
        to: &mut [Option<ViewMut<'_>>],
    ) -> Result<()> {
        let before = results.iter().zip(&*to).map(|((role, _), to)| match to {
            Some(to) => role.read(p, &to.as_view()),
            None => Ok(Vec::new()),
        });
        let mut call = Call {
            p,
            inputs,
            upstream,
            locations: Role::Locations.read(p, &inputs.locations)?,
            weights: Role::Weights.read(p, &inputs.weights)?,
            before: before.collect::<Result<_>>()?,
            is_second: self.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1,
            results: results.iter().map(|(_, result)| result.to_f64()).collect(),
        };
        (self.mistake)(&mut call);
        for (((role, _), numbers), to) in results.iter().zip(&call.results).zip(to) {
            if let Some(to) = to {
                role.write(p, numbers, to);
            }
        }
        Ok(())
    }
}

fn spoiled_output(broken: &Broken, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
    check_output(p, &output)?;
    let results = vec![(Role::Output, Cpu::new().output(p, inputs)?)];
    broken.write(p, inputs, None, results, &mut [Some(output)])
}

fn spoiled_gradients(
    broken: &Broken,
    p: &Problem,
    inputs: &Inputs<'_>,
    upstream: View<'_>,
    to: Gradients<'_>,
) -> Result<()> {
    let args = check_inputs(p, inputs)?;
    check_gradients(p, &args, &upstream, &to)?;
    let g = Cpu::new().gradients(p, inputs, upstream)?;
    let mut results =
        vec![(Role::Value, g.value), (Role::Locations, g.locations), (Role::Weights, g.weights)];
    if let (Some((kind, _)), Some(reference)) = (args.reference, g.reference) {
        results.push((Role::Reference(kind), reference));
    }
    let mut to = [to.value, to.locations, to.weights, to.reference];
    broken.write(p, inputs, Some(upstream), results, &mut to)
}

impl Backend for Broken {
    fn name(&self) -> String {
        self.name.into()
    }

    fn is_reproducible(&self) -> bool {
        self.is_reproducible
    }

    fn computes_gradients(&self) -> bool {
        self.computes_gradients
    }

    fn supports(&self, p: &Problem) -> Result<()> {
        (self.supports)(p)
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        (self.forward)(self, p, inputs, output)
    }

    fn backward(&self, p: &Problem, inputs: &Inputs<'_>, g: View<'_>, to: Gradients<'_>) -> Result<()> {
        (self.backward)(self, p, inputs, g, to)
    }
}

/// The first failure of the battery, case after case.
fn first_failure(backend: &dyn Backend) -> Option<String> {
    let failed = |case: &Case| conformance::run_case(backend, "", case).failed.into_iter().next();
    let of_group = |group: &Group| group.cases(1).iter().find_map(failed);
    Group::ALL.iter().find_map(of_group)
}

fn assert_found(backend: &Broken) {
    let failure = first_failure(backend);
    assert!(failure.is_some(), "the battery accepts a backend that has: {}", backend.name);
    eprintln!("{}: {}", backend.name, failure.unwrap_or_default());
}

#[test]
fn the_wrapper_passes_without_a_mistake() {
    let wrapper =
        Broken { forward: spoiled_output, backward: spoiled_gradients, ..Broken::new("no mistake") };
    assert_eq!(first_failure(&wrapper), None);
}

#[test]
fn the_battery_finds_mistakes_in_the_forward_pass() {
    for (name, mistake) in FORWARD_MISTAKES {
        assert_found(&Broken { mistake, forward: spoiled_output, ..Broken::new(name) });
    }
}

#[test]
fn the_battery_finds_mistakes_in_the_backward_pass() {
    for (name, mistake) in BACKWARD_MISTAKES {
        assert_found(&Broken { mistake, backward: spoiled_gradients, ..Broken::new(name) });
    }
}

/// Changes the last bit of the first number of a result, in every second call with `f32`.
fn flip(c: &mut Call<'_>, which: usize) {
    let changes = c.is_second && c.p.types() == msda::Types::uniform(Dtype::F32);
    if let Some(first) = c.results[which].first_mut().filter(|_| changes) {
        *first = f64::from(f32::from_bits((*first as f32).to_bits() ^ 1));
    }
}

#[test]
fn the_battery_finds_wrong_memory_unsteady_results_and_missing_checks() {
    assert_found(&Broken {
        forward: |_, p, inputs, mut output| {
            check_output(p, &output)?;
            let result = Cpu::new().output(p, inputs)?.to_f64();
            result.into_iter().enumerate().for_each(|(i, x)| output.data.set(i, x));
            Ok(())
        },
        ..Broken::new("ignored strides of its destination")
    });
    assert_found(&Broken {
        mistake: |c| flip(c, OUTPUT),
        forward: spoiled_output,
        ..Broken::new("other bits in every second call")
    });
    assert_found(&Broken {
        computes_gradients: false,
        forward: |_, p, inputs, output| {
            let short = inputs.value.strides.is_none() && inputs.value.data.len() < p.value_len();
            if short { Ok(()) } else { Cpu::new().forward(p, inputs, output) }
        },
        backward: |_, p, _, _, _| refusal(p),
        ..Broken::new("no check of a value that is too short")
    });
}

#[test]
fn a_gradient_that_differs_from_run_to_run_must_be_admitted_and_right() {
    fn of_value(c: &mut Call<'_>) {
        flip(c, VALUE);
    }
    fn of_weights(c: &mut Call<'_>) {
        flip(c, WEIGHTS);
    }
    // More than rounding explains.
    fn far(c: &mut Call<'_>) {
        if let Some(first) = c.results[VALUE].first_mut().filter(|_| c.is_second) {
            *first += 100.0;
        }
    }
    let unsteady = |is_reproducible, mistake: Change| Broken {
        is_reproducible,
        mistake,
        backward: spoiled_gradients,
        ..Broken::new("unsteady")
    };
    assert_eq!(first_failure(&unsteady(false, of_value)), None);
    for (is_reproducible, mistake) in [(true, of_value as Change), (false, of_weights), (false, far)] {
        assert_found(&unsteady(is_reproducible, mistake));
    }
    // Also where each gradient is computed alone.
    let alone = |backend: Broken| conformance::run(&backend, Group::Partial, 1).failed.len();
    assert_eq!(alone(unsteady(false, of_value)), 0);
    assert!(alone(unsteady(false, far)) > 0);
    assert!(alone(unsteady(true, of_value)) > 0);
}

fn refusal(p: &Problem) -> Result<()> {
    Err(Error::new(ErrorKind::Unsupported, "problem", p, "none"))
}

/// A backend that accepts no problem, and one that fails each call.
#[test]
fn a_backend_that_refuses_everything_does_not_conform() {
    for at_once in [false, true] {
        for group in Group::ALL {
            // A backend that fails each call does refuse the calls that it must refuse.
            if !at_once && group == Group::Refusals {
                continue;
            }
            let checked = std::panic::catch_unwind(|| {
                let refuses = Broken {
                    supports: if at_once { refusal } else { |_| Ok(()) },
                    forward: |_, p, _, _| refusal(p),
                    backward: |_, p, _, _, _| refusal(p),
                    ..Broken::new("refuses")
                };
                conformance::assert_conforms(&refuses, group);
            });
            assert!(checked.is_err(), "the group {} accepts a backend that refuses it", group.name());
        }
    }
}
