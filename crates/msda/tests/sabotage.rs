//! The battery finds mistakes that implementations really make.
//!
//! Each sabotaged backend is the CPU backend with one mistake added to its results. The battery
//! must reject it. Without a mistake the same wrapper must pass.

use msda::backend::{check_gradients, check_inputs, check_output, offset};
use msda::conformance::{self, Group};
use msda::{
    Backend, Cpu, Dtype, Error, ErrorKind, Gradients, Inputs, Layout, Padding, Problem, Result, Role,
    Sampling, View, ViewMut,
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
        write(p, Role::Output, &call.results[0], &mut output);
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
                write(p, *role, numbers, view);
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

/// Writes dense numbers to a checked destination.
fn write(p: &Problem, role: Role, numbers: &[f64], to: &mut ViewMut<'_>) {
    let (_, inner) = role.shape(p);
    let dense = role.dense(p);
    let strides = to.strides.unwrap_or(dense);
    role.for_each_row(p, |index| {
        for c in 0..inner {
            to.data.set(offset(strides, index) + c, numbers[offset(dense, index) + c]);
        }
    });
}

/// `f16` without subnormal numbers.
fn flush(x: &mut f64) {
    if x.abs() < 2f64.powi(-14) {
        *x = 0.0;
    }
}

/// The output with other locations.
fn with_locations(call: &mut Call<'_>, change: impl Fn(&mut [f64])) {
    let mut locations = call.locations.clone();
    change(&mut locations);
    let dtype = call.p.types().locations;
    let locations = msda::Buffer::from_fn(dtype, locations.len(), |i| locations[i]);
    let inputs = Inputs { locations: View::from(&locations), ..*call.inputs };
    call.results[0] = Cpu::new().output(call.p, &inputs).unwrap().to_f64();
}

/// Mistakes in the forward pass.
fn forward_mistakes() -> Vec<(&'static str, Change)> {
    vec![
        ("x and y exchanged", |c| {
            with_locations(c, |l| l.chunks_exact_mut(2).for_each(|xy| xy.swap(0, 1)));
        }),
        ("coordinates in 16 bits", |c| {
            with_locations(c, |l| l.iter_mut().for_each(|x| *x = msda::f16::from_f64(*x).to_f64()));
        }),
        ("coordinates a tenth of a pixel off", |c| {
            with_locations(c, |l| l.iter_mut().for_each(|x| *x += 0.1 / 9.0));
        }),
        ("NaN locations read as 0", |c| {
            with_locations(c, |l| l.iter_mut().for_each(|x| *x = if x.is_nan() { 0.0 } else { *x }));
        }),
        ("subnormal results flushed to 0", |c| {
            if c.p.types().value == Dtype::F16 {
                c.results[0].iter_mut().for_each(flush);
            }
        }),
        ("results that saturate instead of overflowing to infinity", |c| {
            if c.p.types().value == Dtype::F16 {
                c.results[0].iter_mut().filter(|x| x.is_infinite()).for_each(|x| *x = 65504f64.copysign(*x));
            }
        }),
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
            let samples = c.p.samples();
            for i in 0..c.results[LOCATIONS].len() {
                c.results[LOCATIONS][i] /= c.sides(i / 2 % samples)[i % 2];
            }
        }),
        ("gradient of locations with W instead of W - 1 and aligned corners", |c| {
            let samples = c.p.samples();
            if c.p.spec().align_corners {
                for i in 0..c.results[LOCATIONS].len() {
                    let side = c.sides(i / 2 % samples)[i % 2];
                    c.results[LOCATIONS][i] *= side / (side - 1.0).max(1.0);
                }
            }
        }),
        ("gradient of locations without the attention weight", |c| {
            if !c.fused() {
                for i in 0..c.results[LOCATIONS].len() {
                    let weight = c.weights[i / 2];
                    c.results[LOCATIONS][i] /= if weight == 0.0 { 1.0 } else { weight };
                }
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
            if c.p.types().value == Dtype::F32 {
                let queries = c.value_gradients_by_query();
                for i in 0..c.results[VALUE].len() {
                    let add = |sum: f64, q: &Vec<f64>| msda::f16::from_f64(sum + q[i]).to_f64();
                    c.results[VALUE][i] = queries.iter().fold(0.0, add);
                }
            }
        }),
        ("gradient of value accumulated in bf16", |c| {
            if c.p.types().value == Dtype::Bf16 {
                let queries = c.value_gradients_by_query();
                for i in 0..c.results[VALUE].len() {
                    let add = |sum: f64, q: &Vec<f64>| msda::bf16::from_f64(sum + q[i]).to_f64();
                    c.results[VALUE][i] = queries.iter().fold(0.0, add);
                }
            }
        }),
        ("clamped coordinates with a gradient", |c| {
            if c.p.padding() == Padding::Border && c.bilinear() && !c.fused() {
                // Just inside the border instead of on it.
                let mut locations = c.locations.clone();
                let samples = c.p.samples();
                for (i, x) in locations.iter_mut().enumerate().filter(|(_, x)| x.is_finite()) {
                    let side = c.sides(i / 2 % samples)[i % 2];
                    let (scale, shift) = c.p.pixel_transform(side as usize);
                    let pixel = (*x * scale + shift).clamp(0.01, (side - 1.01).max(0.01));
                    *x = if scale > 0.0 { (pixel - shift) / scale } else { *x };
                }
                let dtype = c.p.types().locations;
                let locations = msda::Buffer::from_fn(dtype, locations.len(), |i| locations[i]);
                let inputs = Inputs { locations: View::from(&locations), ..*c.inputs };
                let wrong = c.gradients_of(c.p, &inputs, c.upstream.unwrap()).swap_remove(LOCATIONS);
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
        ("subnormal gradients flushed to 0", |c| {
            if c.p.types().value == Dtype::F16 {
                c.results[VALUE].iter_mut().for_each(flush);
            }
        }),
        ("gradients of value that saturate instead of overflowing to infinity", |c| {
            if c.p.types().value == Dtype::F16 {
                let over = c.results[VALUE].iter_mut().filter(|x| x.is_infinite());
                over.for_each(|x| *x = 65504f64.copysign(*x));
            }
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

/// The first failure of the battery, group after group.
fn first_failure(backend: &dyn Backend) -> Option<String> {
    let failed = |group: &Group| conformance::run(backend, *group, 1).failed.into_iter().next();
    Group::ALL.iter().find_map(failed).map(|failure| failure.to_string())
}

#[test]
fn the_wrapper_passes_without_a_mistake() {
    assert_eq!(first_failure(&Sabotaged(Mistake::None)), None);
}

#[test]
fn the_battery_finds_mistakes_in_the_forward_pass() {
    for (what, mistake) in forward_mistakes() {
        let failure = first_failure(&Sabotaged(Mistake::Forward(mistake)));
        assert!(failure.is_some(), "the battery accepts a backend with {what}");
        eprintln!("{what}: {}", failure.unwrap_or_default());
    }
}

#[test]
fn the_battery_finds_mistakes_in_the_backward_pass() {
    let mistakes = backward_mistakes();
    assert!(mistakes.len() >= 8);
    for (what, mistake) in mistakes {
        let failure = first_failure(&Sabotaged(Mistake::Backward(mistake)));
        assert!(failure.is_some(), "the battery accepts a backend with: {what}");
        eprintln!("{what}: {}", failure.unwrap_or_default());
    }
}

/// A backend that ignores the strides of its destination.
struct IgnoresStrides;

impl Backend for IgnoresStrides {
    fn name(&self) -> String {
        "ignores strides".into()
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        check_output(p, &output)?;
        let result = Cpu::new().output(p, inputs)?;
        for (i, x) in result.to_f64().into_iter().enumerate() {
            output.data.set(i, x);
        }
        Ok(())
    }

    fn backward(&self, p: &Problem, inputs: &Inputs<'_>, g: View<'_>, to: Gradients<'_>) -> Result<()> {
        Cpu::new().backward(p, inputs, g, to)
    }
}

/// A backend whose results depend on how often it was called.
#[derive(Default)]
struct Unsteady(std::sync::atomic::AtomicUsize);

impl Backend for Unsteady {
    fn name(&self) -> String {
        "unsteady".into()
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        Cpu::new().forward(p, inputs, output.reborrow())?;
        let calls = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let (true, msda::SliceMut::F32([first, ..])) = (calls % 2 == 1, output.data) {
            *first = f32::from_bits(first.to_bits() ^ 1);
        }
        Ok(())
    }

    fn backward(&self, p: &Problem, inputs: &Inputs<'_>, g: View<'_>, to: Gradients<'_>) -> Result<()> {
        Cpu::new().backward(p, inputs, g, to)
    }
}

/// A backend that changes the last bit of a gradient, or the first element of it, in every second
/// call.
struct UnsteadyGradient {
    calls: std::sync::atomic::AtomicUsize,
    /// Whether it says that the gradient of value differs from run to run.
    admits: bool,
    /// The gradient: of value, or of weights.
    of_value: bool,
    /// Whether the difference is more than rounding explains.
    far: bool,
}

impl UnsteadyGradient {
    fn new(admits: bool, of_value: bool, far: bool) -> Self {
        Self { calls: Default::default(), admits, of_value, far }
    }
}

impl Backend for UnsteadyGradient {
    fn name(&self) -> String {
        format!(
            "has an unsteady gradient (of value: {}, admits it: {}, far off: {})",
            self.of_value, self.admits, self.far
        )
    }

    fn is_reproducible(&self) -> bool {
        !self.admits
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        Cpu::new().forward(p, inputs, output)
    }

    fn backward(&self, p: &Problem, inputs: &Inputs<'_>, g: View<'_>, mut to: Gradients<'_>) -> Result<()> {
        Cpu::new().backward(p, inputs, g, to.reborrow())?;
        let calls = self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let data = if self.of_value { to.value } else { to.weights }.map(|view| view.data);
        if let (true, Some(msda::SliceMut::F32([first, ..]))) = (calls % 2 == 1, data) {
            *first = if self.far { *first + 100.0 } else { f32::from_bits(first.to_bits() ^ 1) };
        }
        Ok(())
    }
}

#[test]
fn a_gradient_that_differs_from_run_to_run_must_be_admitted_and_right() {
    assert_eq!(first_failure(&UnsteadyGradient::new(true, true, false)), None);
    for (admits, of_value, far) in [(false, true, false), (true, false, false), (true, true, true)] {
        let backend = UnsteadyGradient::new(admits, of_value, far);
        let failure = first_failure(&backend);
        assert!(failure.is_some(), "the battery accepts a backend that {}", backend.name());
    }
    // Also where each gradient is computed alone.
    let alone = |backend: UnsteadyGradient| conformance::run(&backend, Group::Partial, 1).failed.len();
    assert_eq!(alone(UnsteadyGradient::new(true, true, false)), 0);
    assert!(alone(UnsteadyGradient::new(true, true, true)) > 0);
    assert!(alone(UnsteadyGradient::new(false, true, false)) > 0);
}

/// A backend without gradients that accepts a value that is too short.
struct AcceptsAnyLength;

impl Backend for AcceptsAnyLength {
    fn name(&self) -> String {
        "accepts any length".into()
    }

    fn computes_gradients(&self) -> bool {
        false
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        let len = |view: &View<'_>| view.data.len();
        if inputs.value.strides.is_none() && len(&inputs.value) < p.value_len() {
            return Ok(());
        }
        Cpu::new().forward(p, inputs, output)
    }

    fn backward(&self, p: &Problem, _: &Inputs<'_>, _: View<'_>, _: Gradients<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "backward", p, "forward"))
    }
}

#[test]
fn the_battery_finds_wrong_memory_unsteady_results_and_missing_checks() {
    for backend in [&IgnoresStrides as &dyn Backend, &Unsteady::default(), &AcceptsAnyLength] {
        let failure = first_failure(backend);
        assert!(failure.is_some(), "the battery accepts a backend that {}", backend.name());
    }
}

/// A backend that accepts no problem, and one that fails each call.
struct Refuses {
    at_once: bool,
}

impl Backend for Refuses {
    fn name(&self) -> String {
        "refuses".into()
    }

    fn supports(&self, p: &Problem) -> Result<()> {
        if self.at_once { refusal(p) } else { Ok(()) }
    }

    fn forward(&self, p: &Problem, _: &Inputs<'_>, _: ViewMut<'_>) -> Result<()> {
        refusal(p)
    }

    fn backward(&self, p: &Problem, _: &Inputs<'_>, _: View<'_>, _: Gradients<'_>) -> Result<()> {
        refusal(p)
    }
}

fn refusal(p: &Problem) -> Result<()> {
    Err(Error::new(ErrorKind::Unsupported, "problem", p, "none"))
}

#[test]
fn a_backend_that_refuses_everything_does_not_conform() {
    for at_once in [false, true] {
        for group in Group::ALL {
            // A backend that fails each call does refuse the calls that it must refuse.
            if !at_once && group == Group::Refusals {
                continue;
            }
            let checked = std::panic::catch_unwind(|| {
                conformance::assert_conforms(&Refuses { at_once }, group);
            });
            assert!(checked.is_err(), "the group {} accepts a backend that refuses it", group.name());
        }
    }
}
