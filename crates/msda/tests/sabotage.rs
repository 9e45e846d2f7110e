//! The battery finds mistakes that implementations really make.
//!
//! Each sabotaged backend is the CPU backend with one mistake added to its results. The battery
//! must reject it. Without a mistake the same wrapper must pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use msda::backend::{check_gradients, check_inputs, check_output};
use msda::conformance::{self, Case, Group};
use msda::{
    Backend, Cpu, Dtype, Error, ErrorKind, Gradients, Inputs, Layout, Padding, Problem, Result, Role,
    Sampling, SliceMut, View, ViewMut,
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
}

const VALUE: usize = 0;
const LOCATIONS: usize = 1;
const WEIGHTS: usize = 2;
const REFERENCE: usize = 3;

impl Call<'_> {
    fn bilinear(&self) -> bool {
        self.p.sampling() == Sampling::Bilinear
    }

    fn fused(&self) -> bool {
        self.inputs.reference.is_some()
    }

    /// Width and height of the level of a sample.
    fn sides(&self, sample: usize) -> [f64; 2] {
        let mut first = 0;
        let mut sides = [1.0; 2];
        for (level, points) in self.p.levels().iter().zip(self.p.points()) {
            if (first..first + points).contains(&sample) {
                sides = [level.w as f64, level.h as f64];
            }
            first += points;
        }
        sides
    }

    /// The gradients with other options or other inputs.
    fn gradients_of(&self, p: &Problem, inputs: &Inputs<'_>, upstream: View<'_>) -> Vec<Vec<f64>> {
        let g = Cpu::new().gradients(p, inputs, upstream).unwrap();
        let mut all = vec![g.value.to_f64(), g.locations.to_f64(), g.weights.to_f64()];
        all.extend(g.reference.map(|r| r.to_f64()));
        all
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
                let alone = msda::Buffer::from_fn(self.p.types().value, numbers.len(), one);
                self.gradients_of(self.p, self.inputs, View::from(&alone)).swap_remove(VALUE)
            })
            .collect()
    }

    /// The gradient of `dtype` values with each sum rounded after every query.
    fn accumulate(&mut self, dtype: Dtype, round: fn(f64) -> f64) {
        if self.p.types().value == dtype {
            let queries = self.value_gradients_by_query();
            for i in 0..self.results[VALUE].len() {
                self.results[VALUE][i] = queries.iter().fold(0.0, |sum, query| round(sum + query[i]));
            }
        }
    }

    /// Changes the numbers of one `f16` result.
    fn in_f16(&mut self, which: usize, change: fn(f64) -> f64) {
        if self.p.types().value == Dtype::F16 {
            self.results[which].iter_mut().for_each(|x| *x = change(*x));
        }
    }

    /// Multiplies each derivative by a location with a factor of its sample's side and weight.
    fn scale_locations(&mut self, factor: impl Fn(f64, f64) -> f64) {
        let samples = self.p.samples();
        for i in 0..self.results[LOCATIONS].len() {
            let side = self.sides(i / 2 % samples)[i % 2];
            self.results[LOCATIONS][i] *= factor(side, self.weights[i / 2]);
        }
    }

    /// The inputs with other locations.
    fn with_locations<R>(&self, change: impl FnOnce(&mut [f64]), f: impl FnOnce(&Inputs<'_>) -> R) -> R {
        let mut locations = self.locations.clone();
        change(&mut locations);
        let dtype = self.p.types().locations;
        let locations = msda::Buffer::from_fn(dtype, locations.len(), |i| locations[i]);
        f(&Inputs { locations: View::from(&locations), ..*self.inputs })
    }
}

/// Changes the results of a call.
type Change = fn(&mut Call<'_>);

/// A mistake in the results of the forward or the backward pass.
enum Mistake {
    None,
    Forward(Change),
    Backward(Change),
}

struct Sabotaged(Mistake);

impl Backend for Sabotaged {
    fn name(&self) -> String {
        "sabotaged".into()
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        check_inputs(p, inputs)?;
        check_output(p, &output)?;
        let result = Cpu::new().output(p, inputs)?.to_f64();
        let before = vec![Role::Output.read(p, &output.as_view())?];
        let mut call = call(p, inputs, None, vec![result], before)?;
        if let Mistake::Forward(mistake) = self.0 {
            mistake(&mut call);
        }
        Role::Output.write(p, &call.results[0], &mut output);
        Ok(())
    }

    fn backward(
        &self,
        p: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        mut gradients: Gradients<'_>,
    ) -> Result<()> {
        let args = check_inputs(p, inputs)?;
        check_gradients(p, &args, &grad_output, &gradients)?;
        let g = Cpu::new().gradients(p, inputs, grad_output)?;
        let mut roles = vec![Role::Value, Role::Locations, Role::Weights];
        let mut results = vec![g.value.to_f64(), g.locations.to_f64(), g.weights.to_f64()];
        if let (Some((kind, _)), Some(reference)) = (args.reference, g.reference) {
            roles.push(Role::Reference(kind));
            results.push(reference.to_f64());
        }
        let to = gradients.reborrow();
        let mut views = [to.value, to.locations, to.weights, to.reference];
        let before = roles.iter().zip(&views).map(|(role, view)| match view {
            Some(view) => role.read(p, &view.as_view()),
            None => Ok(Vec::new()),
        });
        let before = before.collect::<Result<Vec<_>>>()?;
        let mut call = call(p, inputs, Some(grad_output), results, before)?;
        if let Mistake::Backward(mistake) = self.0 {
            mistake(&mut call);
        }
        for ((role, numbers), view) in roles.iter().zip(&call.results).zip(&mut views) {
            if let Some(view) = view {
                role.write(p, numbers, view);
            }
        }
        Ok(())
    }
}

fn call<'a>(
    p: &'a Problem,
    inputs: &'a Inputs<'a>,
    upstream: Option<View<'a>>,
    results: Vec<Vec<f64>>,
    before: Vec<Vec<f64>>,
) -> Result<Call<'a>> {
    let locations = Role::Locations.read(p, &inputs.locations)?;
    let weights = Role::Weights.read(p, &inputs.weights)?;
    Ok(Call { p, inputs, upstream, locations, weights, results, before })
}

/// `f16` without subnormal numbers.
fn flush(x: f64) -> f64 {
    if x.abs() < 2f64.powi(-14) { 0.0 } else { x }
}

/// `f16` without infinity.
fn saturate(x: f64) -> f64 {
    if x.is_infinite() { 65504f64.copysign(x) } else { x }
}

/// The output with other locations.
fn move_samples(c: &mut Call<'_>, change: impl FnOnce(&mut [f64])) {
    let output = c.with_locations(change, |inputs| Cpu::new().output(c.p, inputs).unwrap());
    c.results[0] = output.to_f64();
}

/// Mistakes in the forward pass.
fn forward_mistakes() -> Vec<(&'static str, Change)> {
    vec![
        ("x and y exchanged", |c| {
            move_samples(c, |l| l.chunks_exact_mut(2).for_each(|xy| xy.swap(0, 1)));
        }),
        ("coordinates in 16 bits", |c| {
            move_samples(c, |l| l.iter_mut().for_each(|x| *x = msda::f16::from_f64(*x).to_f64()));
        }),
        ("coordinates a tenth of a pixel off", |c| {
            move_samples(c, |l| l.iter_mut().for_each(|x| *x += 0.1 / 9.0));
        }),
        ("NaN locations read as 0", |c| {
            move_samples(c, |l| l.iter_mut().for_each(|x| *x = if x.is_nan() { 0.0 } else { *x }));
        }),
        ("subnormal results flushed to 0", |c| c.in_f16(0, flush)),
        ("results that saturate instead of overflowing to infinity", |c| c.in_f16(0, saturate)),
        ("sums in f16", |c| {
            if c.p.types() == msda::Types::uniform(Dtype::F16) && c.p.samples() > 1 && !c.fused() {
                // The samples one by one: all weights but one are 0.
                let samples = c.p.samples();
                let mut sum = vec![0.0; c.results[0].len()];
                for s in 0..samples {
                    let one = |i: usize| if i % samples == s { c.weights[i] } else { 0.0 };
                    let weights = msda::Buffer::from_fn(Dtype::F16, c.weights.len(), one);
                    let inputs = Inputs { weights: View::from(&weights), ..*c.inputs };
                    let term = Cpu::new().output(c.p, &inputs).unwrap().to_f64();
                    let add = |(sum, x): (&mut f64, f64)| *sum = msda::f16::from_f64(*sum + x).to_f64();
                    sum.iter_mut().zip(term).for_each(add);
                }
                c.results[0] = sum;
            }
        }),
        ("results added to the old output", |c| {
            let before = std::mem::take(&mut c.before[0]);
            c.results[0].iter_mut().zip(before).for_each(|(x, old)| *x += old);
        }),
        ("padding ignored", |c| {
            let p = c.p.with(|s| s.padding = Padding::Zeros).unwrap();
            c.results[0] = Cpu::new().output(&p, c.inputs).unwrap().to_f64();
        }),
    ]
}

/// Mistakes in the backward pass.
fn backward_mistakes() -> Vec<(&'static str, Change)> {
    vec![
        ("gradient of locations with the wrong sign", |c| {
            c.results[LOCATIONS].iter_mut().for_each(|x| *x = -*x);
        }),
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
            for i in 0..c.results[VALUE].len() {
                let last = queries.iter().rev().map(|q| q[i]).find(|x| *x != 0.0);
                c.results[VALUE][i] = last.unwrap_or(c.results[VALUE][i]);
            }
        }),
        ("one query in a block counted twice", |c| {
            let queries = c.value_gradients_by_query();
            if let Some(last) = queries.last() {
                c.results[VALUE].iter_mut().zip(last).for_each(|(x, twice)| *x += twice);
            }
        }),
        ("gradient of value accumulated in f16", |c| {
            c.accumulate(Dtype::F32, |x| msda::f16::from_f64(x).to_f64());
        }),
        ("gradient of value accumulated in bf16", |c| {
            c.accumulate(Dtype::Bf16, |x| msda::bf16::from_f64(x).to_f64());
        }),
        ("clamped coordinates with a gradient", |c| {
            if c.p.padding() == Padding::Border && c.bilinear() && !c.fused() {
                // Just inside the border instead of on it.
                let samples = c.p.samples();
                let inside = |locations: &mut [f64]| {
                    for (i, x) in locations.iter_mut().enumerate().filter(|(_, x)| x.is_finite()) {
                        let side = c.sides(i / 2 % samples)[i % 2];
                        let (scale, shift) = c.p.pixel_transform(side as usize);
                        let pixel = (*x * scale + shift).clamp(0.01, (side - 1.01).max(0.01));
                        *x = if scale > 0.0 { (pixel - shift) / scale } else { *x };
                    }
                };
                let all = c.with_locations(inside, |i| c.gradients_of(c.p, i, c.upstream.unwrap()));
                let wrong = all.into_iter().nth(LOCATIONS).unwrap();
                let right = &mut c.results[LOCATIONS];
                right.iter_mut().zip(wrong).filter(|(x, _)| **x == 0.0).for_each(|(x, w)| *x = w);
            }
        }),
        ("samples off the map read the border", |c| {
            if c.p.padding() == Padding::Zeros {
                let p = c.p.with(|s| s.padding = Padding::Border).unwrap();
                let all = c.gradients_of(&p, c.inputs, c.upstream.unwrap());
                c.results[VALUE].clone_from(&all[VALUE]);
            }
        }),
        ("gradients of samples off the map not written", |c| {
            for (results, before) in c.results.iter_mut().zip(&c.before) {
                results.iter_mut().zip(before).filter(|(x, _)| **x == 0.0).for_each(|(x, old)| *x = *old);
            }
        }),
        ("gradients added to the old contents", |c| {
            for (results, before) in c.results.iter_mut().zip(&c.before) {
                results.iter_mut().zip(before).for_each(|(x, old)| *x += old);
            }
        }),
        ("NaN locations with a NaN gradient", |c| {
            for i in 0..c.locations.len() {
                if c.locations[i].is_nan() {
                    c.results[LOCATIONS][i] = f64::NAN;
                }
            }
        }),
        ("0 multiplied by a weight that is not finite", |c| {
            if !c.fused() {
                for i in 0..c.results[LOCATIONS].len() {
                    c.results[LOCATIONS][i] += 0.0 * c.weights[i / 2];
                }
            }
        }),
        ("nearest samples with a gradient of locations", |c| {
            if c.p.sampling() == Sampling::Nearest {
                let p = c.p.with(|s| s.sampling = Sampling::Bilinear).unwrap();
                let all = c.gradients_of(&p, c.inputs, c.upstream.unwrap());
                c.results[LOCATIONS].clone_from(&all[LOCATIONS]);
            }
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
            if c.fused() {
                let heads = c.p.heads() as f64;
                c.results[REFERENCE].iter_mut().for_each(|x| *x /= heads);
            }
        }),
        ("subnormal gradients flushed to 0", |c| c.in_f16(VALUE, flush)),
        ("gradients of value that saturate instead of overflowing to infinity", |c| {
            c.in_f16(VALUE, saturate);
        }),
        ("gradient of rings and gaps not written", |c| {
            if c.p.layout() == Layout::PlanarRing {
                let mut pixels = vec![false; c.p.positions()];
                for level in c.p.levels() {
                    (0..level.h * level.w)
                        .for_each(|i| pixels[level.position(i / level.w, i % level.w)] = true);
                }
                let (d, positions) = (c.p.channels(), c.p.positions());
                for (i, x) in c.results[VALUE].iter_mut().enumerate() {
                    if !pixels[i / d % positions] {
                        *x = c.before[VALUE].get(i).copied().unwrap_or(*x);
                    }
                }
            }
        }),
    ]
}

/// The first failure of the battery, case after case.
fn first_failure(backend: &dyn Backend) -> Option<String> {
    let failed = |case: &Case| conformance::run_case(backend, "", case).failed.into_iter().next();
    let of_group = |group: &Group| group.cases(1).iter().find_map(failed);
    Group::ALL.iter().find_map(of_group).map(|failure| failure.to_string())
}

#[test]
fn the_wrapper_passes_without_a_mistake() {
    assert_eq!(first_failure(&Sabotaged(Mistake::None)), None);
}

fn finds(mistakes: Vec<(&'static str, Change)>, pass: fn(Change) -> Mistake) {
    assert!(mistakes.len() >= 8);
    for (what, mistake) in mistakes {
        let failure = first_failure(&Sabotaged(pass(mistake)));
        assert!(failure.is_some(), "the battery accepts a backend with: {what}");
        eprintln!("{what}: {}", failure.unwrap_or_default());
    }
}

#[test]
fn the_battery_finds_mistakes_in_the_forward_pass() {
    finds(forward_mistakes(), Mistake::Forward);
}

#[test]
fn the_battery_finds_mistakes_in_the_backward_pass() {
    finds(backward_mistakes(), Mistake::Backward);
}

type Backward = fn(usize, &Problem, &Inputs<'_>, View<'_>, Gradients<'_>) -> Result<()>;

/// The CPU backend with other functions in its place.
struct Other {
    name: &'static str,
    is_reproducible: bool,
    computes_gradients: bool,
    supports: fn(&Problem) -> Result<()>,
    forward: fn(usize, &Problem, &Inputs<'_>, ViewMut<'_>) -> Result<()>,
    backward: Backward,
    /// Calls of each pass. The functions get the number of those before.
    calls: [AtomicUsize; 2],
}

impl Other {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            is_reproducible: true,
            computes_gradients: true,
            supports: |_| Ok(()),
            forward: |_, p, inputs, output| Cpu::new().forward(p, inputs, output),
            backward: |_, p, inputs, upstream, to| Cpu::new().backward(p, inputs, upstream, to),
            calls: Default::default(),
        }
    }

    fn count(&self, pass: usize) -> usize {
        self.calls[pass].fetch_add(1, Ordering::Relaxed)
    }
}

impl Backend for Other {
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
        (self.forward)(self.count(0), p, inputs, output)
    }

    fn backward(&self, p: &Problem, inputs: &Inputs<'_>, g: View<'_>, to: Gradients<'_>) -> Result<()> {
        (self.backward)(self.count(1), p, inputs, g, to)
    }
}

/// Changes the last bit of the first element.
fn flip(data: Option<SliceMut<'_>>) {
    if let Some(SliceMut::F32([first, ..])) = data {
        *first = f32::from_bits(first.to_bits() ^ 1);
    }
}

#[test]
fn the_battery_finds_wrong_memory_unsteady_results_and_missing_checks() {
    let ignores_strides = Other {
        forward: |_, p, inputs, mut output| {
            check_output(p, &output)?;
            let result = Cpu::new().output(p, inputs)?.to_f64();
            result.into_iter().enumerate().for_each(|(i, x)| output.data.set(i, x));
            Ok(())
        },
        ..Other::new("ignores the strides of its destination")
    };
    let unsteady = Other {
        forward: |calls, p, inputs, mut output| {
            Cpu::new().forward(p, inputs, output.reborrow())?;
            flip(Some(output.data).filter(|_| calls % 2 == 1));
            Ok(())
        },
        ..Other::new("gives other bits in every second call")
    };
    let accepts_any_length = Other {
        computes_gradients: false,
        forward: |_, p, inputs, output| {
            let short = inputs.value.strides.is_none() && inputs.value.data.len() < p.value_len();
            if short { Ok(()) } else { Cpu::new().forward(p, inputs, output) }
        },
        backward: |_, p, _, _, _| refusal(p),
        ..Other::new("accepts a value that is too short")
    };
    for backend in [ignores_strides, unsteady, accepts_any_length] {
        let failure = first_failure(&backend);
        assert!(failure.is_some(), "the battery accepts a backend that {}", backend.name());
    }
}

#[test]
fn a_gradient_that_differs_from_run_to_run_must_be_admitted_and_right() {
    fn rerun(p: &Problem, inputs: &Inputs<'_>, g: View<'_>, to: &mut Gradients<'_>) -> Result<()> {
        Cpu::new().backward(p, inputs, g, to.reborrow())
    }
    const VALUE: Backward = |calls, p, inputs, g, mut to| {
        rerun(p, inputs, g, &mut to)?;
        flip(to.value.map(|view| view.data).filter(|_| calls % 2 == 1));
        Ok(())
    };
    const WEIGHTS: Backward = |calls, p, inputs, g, mut to| {
        rerun(p, inputs, g, &mut to)?;
        flip(to.weights.map(|view| view.data).filter(|_| calls % 2 == 1));
        Ok(())
    };
    // More than rounding explains.
    const FAR: Backward = |calls, p, inputs, g, mut to| {
        rerun(p, inputs, g, &mut to)?;
        if let (1, Some(SliceMut::F32([first, ..]))) = (calls % 2, to.value.map(|view| view.data)) {
            *first += 100.0;
        }
        Ok(())
    };
    let unsteady = |is_reproducible, backward| Other { is_reproducible, backward, ..Other::new("unsteady") };
    assert_eq!(first_failure(&unsteady(false, VALUE)), None);
    for (is_reproducible, backward) in [(true, VALUE), (false, WEIGHTS), (false, FAR)] {
        let failure = first_failure(&unsteady(is_reproducible, backward));
        assert!(failure.is_some(), "the battery accepts an unsteady gradient");
    }
    // Also where each gradient is computed alone.
    let alone = |backend: Other| conformance::run(&backend, Group::Partial, 1).failed.len();
    assert_eq!(alone(unsteady(false, VALUE)), 0);
    assert!(alone(unsteady(false, FAR)) > 0);
    assert!(alone(unsteady(true, VALUE)) > 0);
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
                let refuses = Other {
                    supports: if at_once { refusal } else { |_| Ok(()) },
                    forward: |_, p, _, _| refusal(p),
                    backward: |_, p, _, _, _| refusal(p),
                    ..Other::new("refuses")
                };
                conformance::assert_conforms(&refuses, group);
            });
            assert!(checked.is_err(), "the group {} accepts a backend that refuses it", group.name());
        }
    }
}
