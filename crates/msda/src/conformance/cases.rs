//! The cases of each group.

use super::data::{Case, Kind, Spread, StoredTensor, Wrong};
use crate::dtype::{Dtype, Element};
use crate::op::{ReferenceKind, offset};
use crate::problem::{Layout, Padding, Problem, Sampling, Spec, Types};
use crate::rng::Rng;
use crate::view::Role;

/// Nested loops: each combination of the numbers of some lists.
macro_rules! each {
    ($x:pat in $list:expr => $body:block) => { for $x in $list $body };
    ($x:pat in $list:expr, $($rest:tt)+) => { for $x in $list { each!($($rest)+) } };
}

const SAMPLINGS: [Sampling; 2] = [Sampling::Bilinear, Sampling::Nearest];
const PADDINGS: [Padding; 2] = [Padding::Zeros, Padding::Border];
const FORMS: [Option<ReferenceKind>; 3] = [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)];

/// Where the samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Places {
    Inside,
    Outside,
    /// Inside, at the edges and off the map.
    Mixed,
    /// Exactly on pixel centres and borders; the sizes must make the arithmetic exact.
    Borders,
    /// Mixed with NaN and infinity.
    NotFinite,
}

/// The memory layout of a case.
#[derive(Debug, Clone, Copy, Default)]
struct Spreads {
    inputs: Spread,
    outputs: Spread,
}

const NUMBERS_OF_CHANNELS: [usize; 20] =
    [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 128];

pub(super) struct Maker {
    rng: Rng,
    cases: Vec<Case>,
}

/// A small problem with several images, heads, levels and points.
fn small() -> Spec {
    Spec {
        batch: 2,
        queries: 5,
        heads: 3,
        channels: 8,
        levels: vec![(7, 9), (4, 5)],
        points: vec![3, 3],
        ..Spec::default()
    }
}

impl Maker {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), cases: Vec::new() }
    }

    pub(super) fn into_cases(self) -> Vec<Case> {
        self.cases
    }

    pub(super) fn random(&mut self) {
        for _ in 0..60 {
            self.random_case();
        }
    }

    pub(super) fn inside(&mut self) {
        self.for_types(|m, s| _ = m.add(s, Places::Inside));
    }

    pub(super) fn outside(&mut self) {
        self.for_types(|m, s| _ = m.add(s, Places::Outside));
    }

    pub(super) fn not_finite(&mut self) {
        self.for_options(|m, s| _ = m.add(s, Places::NotFinite));
    }

    pub(super) fn options(&mut self) {
        self.for_options(|m, s| _ = m.add(s, Places::Mixed));
    }

    fn random_case(&mut self) {
        let r = &mut self.rng;
        let levels: Vec<(usize, usize)> =
            (0..1 + r.below(4)).map(|_| (1 + r.below(12), 1 + r.below(12))).collect();
        let value = r.pick(&Dtype::ALL);
        let spec = Spec {
            batch: 1 + r.below(3),
            queries: 1 + r.below(9),
            heads: 1 + r.below(4),
            channels: r.pick(&NUMBERS_OF_CHANNELS),
            points: levels.iter().map(|_| r.below(6)).collect(),
            levels,
            sampling: r.pick(&[Sampling::Bilinear, Sampling::Bilinear, Sampling::Nearest]),
            padding: r.pick(&[Padding::Zeros, Padding::Zeros, Padding::Border]),
            align_corners: r.below(4) == 0,
            layout: r.pick(&Layout::ALL),
            types: Types {
                value,
                locations: r.pick(&[value, Dtype::F32]),
                weights: r.pick(&[value, Dtype::F32]),
            },
            ..Spec::default()
        };
        let spread = |r: &mut Rng| Spread {
            start: r.below(3),
            gap: r.pick(&[None, Some(0), Some(3)]),
            reversed: r.below(2) == 0,
            repeated: None,
        };
        let spreads = Spreads { inputs: spread(r), outputs: spread(r) };
        let form = r.pick(&[None, None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)]);
        self.build(spec, Places::Mixed, form, spreads);
    }

    fn for_types(&mut self, f: impl Fn(&mut Self, Spec)) {
        each!(dtype in Dtype::ALL, types in [Types::uniform(dtype), Types::with_value(dtype)] => {
            f(self, Spec { types, ..small() });
        });
    }

    fn for_options(&mut self, f: impl Fn(&mut Self, Spec)) {
        let dtypes = [Dtype::F32, Dtype::F16, Dtype::F64];
        each!(sampling in SAMPLINGS, padding in PADDINGS, align_corners in [false, true], dtype in dtypes => {
            let types = Types::with_value(dtype);
            f(self, Spec { sampling, padding, align_corners, types, ..small() });
        });
    }

    pub(super) fn borders(&mut self) {
        let grids = [(false, [(4, 8), (2, 1)]), (true, [(5, 9), (3, 2)])];
        each!(sampling in SAMPLINGS, padding in PADDINGS, (align_corners, levels) in grids => {
            let options = Spec { sampling, padding, align_corners, ..small() };
            let spec = Spec { levels: levels.to_vec(), points: vec![8, 4], queries: 12, ..options };
            self.add(spec, Places::Borders);
        });
    }

    pub(super) fn one_pixel(&mut self) {
        let pyramids = [&[(1, 1)][..], &[(1, 1), (1, 1)], &[(1, 6)], &[(6, 1), (1, 2)]];
        each!(levels in pyramids, padding in PADDINGS, align_corners in [false, true], layout in Layout::ALL => {
            let (levels, points) = (levels.to_vec(), vec![3; levels.len()]);
            self.add(Spec { levels, points, padding, align_corners, layout, ..small() }, Places::Mixed);
        });
    }

    pub(super) fn empty(&mut self) {
        let changes = [
            |s: &mut Spec| s.batch = 0,
            |s: &mut Spec| s.queries = 0,
            |s: &mut Spec| s.heads = 0,
            |s: &mut Spec| s.points = vec![0, 0],
            |s: &mut Spec| s.points = vec![0, 2],
            |s: &mut Spec| (s.batch, s.queries, s.layout) = (1, 0, Layout::PlanarRing),
        ];
        each!(form in FORMS, change in changes => {
            let mut spec = small();
            change(&mut spec);
            self.add_form(spec, form);
        });
    }

    pub(super) fn channels(&mut self) {
        each!(channels in NUMBERS_OF_CHANNELS, dtype in Dtype::ALL => {
            let types = Types::uniform(dtype);
            self.add(Spec { channels, types, batch: 1, heads: 2, ..small() }, Places::Mixed);
        });
    }

    pub(super) fn levels(&mut self) {
        for count in [1, 2, 5, 9, 17] {
            let levels = (0..count).map(|l| (1 + (l * 5) % 7, 1 + (l * 3) % 8)).collect();
            self.add(Spec { levels, points: vec![2; count], ..small() }, Places::Mixed);
        }
    }

    pub(super) fn points(&mut self) {
        each!(points in [[1, 4], [4, 1], [0, 3], [3, 0], [16, 2], [33, 1]], form in FORMS => {
            self.add_form(Spec { points: points.to_vec(), ..small() }, form);
        });
    }

    pub(super) fn strides(&mut self) {
        let forms = [None, Some(ReferenceKind::Box)];
        each!(gap in [0, 1, 16], reversed in [false, true], layout in Layout::ALL, form in forms => {
            let spread = Spread { gap: Some(gap), reversed, ..Spread::default() };
            let spreads = Spreads { inputs: spread, outputs: spread };
            self.build(Spec { layout, ..small() }, Places::Mixed, form, spreads);
        });
        each!(dim in 0..3, layout in Layout::ALL, form in forms => {
            let inputs = Spread { gap: Some(0), repeated: Some(dim), ..Spread::default() };
            let spreads = Spreads { inputs, outputs: Spread::default() };
            self.build(Spec { layout, ..small() }, Places::Mixed, form, spreads);
        });
    }

    pub(super) fn unaligned(&mut self) {
        each!(dtype in Dtype::ALL, start in [1, 3] => {
            let spread = Spread { start, ..Spread::default() };
            let spec = Spec { types: Types::uniform(dtype), channels: 32, ..small() };
            self.build(spec, Places::Mixed, None, Spreads { inputs: spread, outputs: spread });
        });
    }

    pub(super) fn layouts(&mut self) {
        each!(layout in Layout::ALL, dtype in [Dtype::F32, Dtype::Bf16] => {
            let spec = Spec { layout, types: Types::uniform(dtype), ..small() };
            self.add(spec.clone(), Places::Mixed);
            // Levels in the other order, with gaps before, between and after.
            self.add(Spec { starts: Some(vec![60, 3]), positions: Some(170), ..spec }, Places::Mixed);
        });
    }

    pub(super) fn types(&mut self) {
        let forms = [None, Some(ReferenceKind::Point)];
        each!(value in Dtype::ALL, locations in [value, Dtype::F32], weights in [value, Dtype::F32], form in forms => {
            let types = Types { value, locations, weights };
            self.add_form(Spec { types, channels: 20, ..small() }, form);
        });
    }

    pub(super) fn fused(&mut self) {
        let forms = [Some(ReferenceKind::Point), Some(ReferenceKind::Box)];
        each!(form in forms, sampling in SAMPLINGS, padding in PADDINGS, dtype in Dtype::ALL => {
            let spec = Spec { sampling, padding, types: Types::uniform(dtype), ..small() };
            self.add_form(spec.clone(), form);
            self.build(spec, Places::NotFinite, form, Spreads::default());
        });
        // Small values, and logits whose exponentials are small too.
        each!(form in forms, dtype in [Dtype::F32, Dtype::Bf16] => {
            let case = self.add_form(Spec { types: Types::uniform(dtype), ..small() }, form);
            case.value.change(|x| 1e-30 * x);
            case.weights.change(|x| x - 30.0);
        });
        // Logits whose exponentials are infinite or zero, in two of three queries and heads.
        each!(form in forms, dtype in Dtype::ALL, points in [4, 20] => {
            let spec = Spec { points: vec![points; 2], types: Types::uniform(dtype), ..small() };
            let case = self.add_form(spec, form);
            let samples = case.problem.samples();
            let mut k = 0;
            case.weights.change(|x| {
                k += 1;
                match (k - 1) / samples % 3 {
                    0 => x,
                    1 => 4.0 * x + 200.0,
                    _ => 4.0 * x - 300.0,
                }
            });
        });
    }

    /// All samples are on the left half of each level. The right half, gaps and rings hold NaN.
    pub(super) fn untouched(&mut self) {
        each!(layout in Layout::ALL, dtype in Dtype::ALL => {
            let spec = Spec { layout, types: Types::with_value(dtype), ..small() };
            let case = self.add(spec, Places::Inside);
            let p = &case.problem;
            let mut clean = vec![false; p.positions()];
            for level in p.levels() {
                for i in 0..level.h {
                    let row = level.position(i, 0);
                    clean[row..row + level.w.div_ceil(2)].fill(true);
                }
            }
            let (strides, d) = (Role::Value.dense(p), p.channels());
            let mut data = case.value.buffer.as_mut();
            Role::Value.for_each_row(p, |index| {
                let first = offset(strides, index);
                (0..d).filter(|_| !clean[index[1]]).for_each(|c| data.set(first + c, f64::NAN));
            });
            // With smaller x both pixels of a pair are at most w/2: the right half is not read.
            let mut i = 0;
            case.locations.change(|x| {
                i += 1;
                if i % 2 == 1 { x * 0.4 } else { x }
            });
        });
    }

    /// Each second sample subtracts what the sample before it added.
    pub(super) fn cancelling(&mut self) {
        let sizes = [(32, [4, 4]), (8, [2, 6])];
        each!(layout in Layout::ALL, dtype in Dtype::ALL, (channels, points) in sizes => {
            let (types, points) = (Types::with_value(dtype), points.to_vec());
            let case = self.add(Spec { layout, types, channels, points, ..small() }, Places::Mixed);
            let mut weights = case.weights.buffer.as_mut();
            let mut locations = case.locations.buffer.as_mut();
            for i in (0..case.problem.weights_len()).step_by(2) {
                let weight = weights.as_slice().get(i);
                weights.set(i + 1, -weight);
                for axis in 0..2 {
                    let at = locations.as_slice().get(2 * i + axis);
                    locations.set(2 * i + 2 + axis, at);
                }
            }
        });
    }

    /// Each tensor in turn, and all of them, with some numbers that are not finite. Locations are
    /// inside, at the edges and off the map, so that many results stay finite.
    pub(super) fn not_finite_data(&mut self) {
        const NUMBERS: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for which in [[true, false, false], [false, true, false], [false, false, true], [true; 3]] {
            self.for_options(|m, spec| {
                m.add(spec, Places::Mixed);
                m.damage(which, &NUMBERS);
            });
        }
        let forms = [Some(ReferenceKind::Point), Some(ReferenceKind::Box)];
        each!(form in forms, padding in PADDINGS, dtype in [Dtype::F32, Dtype::F16] => {
            let spec = Spec { padding, types: Types::uniform(dtype), ..small() };
            self.add_form(spec.clone(), form);
            self.damage([true, false, true], &NUMBERS);
            // A logit of minus infinity masks its sample.
            self.add_form(spec, form);
            self.damage([false, true, false], &[f64::NEG_INFINITY]);
        });
    }

    /// Replaces a few numbers of value, weights and upstream gradient of the last case.
    fn damage<const N: usize>(&mut self, which: [bool; 3], numbers: &[f64; N]) {
        let Self { rng, cases } = self;
        let case = cases.last_mut().expect("just added");
        let samples = case.problem.samples();
        let tensors = [&mut case.value, &mut case.weights, &mut case.grad_output];
        for (i, held) in tensors.into_iter().enumerate().filter(|(i, _)| which[*i]) {
            let mut data = held.buffer.as_mut();
            let len = data.as_slice().len();
            // One value reaches many results. Of the weights, two rows of three stay finite.
            let one_in = [24, 4, 12][i];
            for k in 0..len {
                let may = i != 1 || (k / samples).is_multiple_of(3) && k % samples > 0;
                if may && rng.below(one_in) == 0 {
                    data.set(k, rng.pick(numbers));
                }
            }
        }
    }

    /// Positive terms only: in 16 bits a sum stops growing once a term is below half its last
    /// digit. Not in `f64`: the oracle itself rounds such sums.
    pub(super) fn crowded(&mut self) {
        let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16];
        each!(dtype in dtypes, (queries, points) in [(600, 4), (3, 400)] => {
            let spec = Spec { batch: 1, queries, heads: 2, channels: 4, ..small() };
            let (levels, points, types) = (vec![(2, 3)], vec![points], Types::uniform(dtype));
            let case = self.add(Spec { levels, points, types, ..spec }, Places::Inside);
            case.value.change(f64::abs);
            case.grad_output.change(f64::abs);
        });
    }

    pub(super) fn extremes(&mut self) {
        // Subnormal values, then subnormal upstream gradients.
        let f16 = [Types::uniform(Dtype::F16), Types::with_value(Dtype::F16)];
        each!(types in f16, sampling in SAMPLINGS, channels in [8, 32, 5], of_value in [true, false] => {
            let case = self.add(Spec { types, sampling, channels, ..small() }, Places::Mixed);
            let held = if of_value { &mut case.value } else { &mut case.grad_output };
            held.change(|x| x * 2f64.powi(-17));
        });
        // Outputs, then gradients of value: some overflow to infinity, the others stay far below.
        each!(channels in [8, 32, 5], overflowing_output in [true, false] => {
            let types = Types::with_value(Dtype::F16);
            let case = self.add(Spec { types, channels, ..small() }, Places::Inside);
            let samples = case.problem.samples();
            let held = if overflowing_output { &mut case.value } else { &mut case.grad_output };
            held.change(|x| 1.5e4 * (1.0 + x.abs().min(1.0)));
            let mut i = 0;
            case.weights.change(|x| {
                i += 1;
                if ((i - 1) / samples).is_multiple_of(2) { 10.0 + x } else { 0.02 * x.min(1.0) }
            });
        });
    }

    pub(super) fn partial(&mut self) {
        each!(form in FORMS, dtype in [Dtype::F32, Dtype::F16] => {
            self.add_form(Spec { types: Types::uniform(dtype), ..small() }, form).kind = Kind::Partial;
        });
    }

    pub(super) fn refusals(&mut self) {
        each!(wrong in Wrong::all(), dtype in [Dtype::F32, Dtype::F16] => {
            let spec = Spec { types: Types::uniform(dtype), ..small() };
            self.add(spec, Places::Mixed).kind = Kind::Refuse(wrong);
        });
    }

    fn add(&mut self, spec: Spec, places: Places) -> &mut Case {
        self.build(spec, places, None, Spreads::default())
    }

    fn add_form(&mut self, spec: Spec, form: Option<ReferenceKind>) -> &mut Case {
        self.build(spec, Places::Mixed, form, Spreads::default())
    }

    fn build(
        &mut self,
        spec: Spec,
        places: Places,
        form: Option<ReferenceKind>,
        spreads: Spreads,
    ) -> &mut Case {
        let p = Problem::new(spec).expect("problems of the battery are legal");
        let (t, r) = (p.types(), &mut self.rng);
        let level_of: Vec<usize> =
            p.points().iter().enumerate().flat_map(|(l, &n)| std::iter::repeat_n(l, n)).collect();

        // Reference points come first: the offsets place the samples relative to them.
        let dim = form.map_or(0, ReferenceKind::dim);
        let reference: Vec<f64> = (0..p.reference_len(dim))
            .map(|i| {
                let x = if i % dim < 2 { r.between(0.2, 0.8) } else { r.between(0.25, 0.75) };
                round(t.locations, x)
            })
            .collect();
        let mut locations = vec![0.0; p.locations_len()];
        let (queries, heads) = (p.queries(), p.heads());
        for (i, pair) in locations.chunks_exact_mut(2).enumerate() {
            let s = i % p.samples();
            let query = i / p.samples() / heads;
            let (image, query) = (query / queries, query % queries);
            let level = level_of[s];
            let at = ((image * queries + query) * p.levels().len() + level) * dim;
            for (axis, x) in pair.iter_mut().enumerate() {
                let (start, scale) = match form {
                    None => (0.0, 1.0),
                    Some(ReferenceKind::Point) => (reference[at + axis], 1.0 / side(&p, level, axis) as f64),
                    Some(ReferenceKind::Box) => {
                        (reference[at + axis], reference[at + 2 + axis] * 0.5 / p.points()[level] as f64)
                    }
                };
                *x = choose(r, &p, places, side(&p, level, axis), t.locations, start, scale);
            }
            // Off the map on one axis is enough, and the harder case.
            if places == Places::Outside && r.below(2) == 0 {
                let axis = r.below(2);
                let side = side(&p, level, axis);
                pair[axis] = choose(r, &p, Places::Inside, side, t.locations, 0.0, 1.0);
            }
        }
        let held = |role, dtype, f: &mut dyn FnMut(usize) -> f64| {
            StoredTensor::new(&p, role, dtype, spreads.inputs, f64::NAN, f)
        };
        let mut numbers = r.clone();
        r.bits();
        let mut noise = |_: usize| numbers.normal();
        let zero_ring = ring(&p);
        let value = held(Role::Value, t.value, &mut |i| if zero_ring(i) { 0.0 } else { noise(i) });
        let grad_output = held(Role::Output, t.value, &mut noise);
        // Weights are positive, like the result of a softmax. Logits have any sign.
        let weights = held(Role::Weights, t.weights, &mut |i| {
            let x = noise(i);
            if form.is_some() { x } else { x.abs() * 0.5 }
        });
        let locations = held(Role::Locations, t.locations, &mut |i| locations[i]);
        let reference =
            form.map(|kind| (kind, held(Role::Reference(kind), t.locations, &mut |i| reference[i])));
        self.cases.push(Case {
            value,
            locations,
            weights,
            reference,
            grad_output,
            out: spreads.outputs,
            exact: places == Places::Borders,
            kind: Kind::Compare,
            problem: p,
        });
        self.cases.last_mut().expect("just added")
    }
}

fn side(p: &Problem, level: usize, axis: usize) -> usize {
    if axis == 0 { p.levels()[level].w } else { p.levels()[level].h }
}

/// Whether a dense element of value belongs to a ring and must be zero.
fn ring(p: &Problem) -> impl Fn(usize) -> bool + use<> {
    let mut in_ring = vec![p.layout() == Layout::PlanarRing; p.positions()];
    for level in p.levels() {
        for y in 0..level.h {
            let row = level.position(y, 0);
            in_ring[row..row + level.w].fill(false);
        }
    }
    // Only planar layouts have rings. There the position is the innermost of the outer dimensions.
    let (d, positions) = (p.channels(), p.positions());
    move |i| in_ring[(i / d) % positions]
}

fn round(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F64 => x,
        Dtype::F32 => f64::from(x as f32),
        Dtype::F16 => <half::f16 as Element>::from_f64(x).to_f64(),
        Dtype::Bf16 => <half::bf16 as Element>::from_f64(x).to_f64(),
    }
}

/// A raw coordinate for one axis: `start + raw * scale` is the normalised location.
///
/// At pixel centres and midpoints the result or its derivative jumps, so one rounding decides. Only
/// [`Places::Borders`], where all arithmetic is exact, puts samples there.
fn choose(
    r: &mut Rng,
    p: &Problem,
    places: Places,
    side: usize,
    dtype: Dtype,
    start: f64,
    scale: f64,
) -> f64 {
    let (to_pixel, shift) = p.pixel_transform(side);
    let n = side as f64;
    if places == Places::Borders {
        let pixel =
            r.pick(&[-1.5, -1.0, -0.5, 0.0, 0.25, 0.5, n - 1.5, n - 1.0, n - 0.75, n - 0.5, n, n + 0.5]);
        return if to_pixel == 0.0 { pixel } else { (pixel - shift) / to_pixel };
    }
    if places == Places::NotFinite && r.below(3) == 0 {
        return r.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    }
    for _ in 0..100 {
        let pixel = match places {
            Places::Inside => r.between(0.0, (n - 1.0).max(0.0)),
            Places::Outside => {
                let far = r.pick(&[1.2, 3.0, 1000.0]);
                if r.below(2) == 0 { -far - r.unit() } else { n + far + r.unit() }
            }
            _ => match r.below(8) {
                0 => r.between(-1.0, 0.0),
                1 => r.between(n - 1.0, n),
                2 => r.between(-3.0, n + 2.0),
                3 => r.pick(&[-1.0e3, 1.0e3]),
                _ => r.between(0.0, (n - 1.0).max(0.5)),
            },
        };
        let location = if to_pixel == 0.0 { pixel } else { (pixel - shift) / to_pixel };
        let raw = round(dtype, (location - start) / scale);
        let pixel = (start + raw * scale) * to_pixel + shift;
        // Distance to the nearest centre or midpoint, 0.25 at most.
        let margin = (2.0 * pixel - (2.0 * pixel).round()).abs() / 2.0;
        let outside_enough = places != Places::Outside || pixel < -1.05 || pixel > n + 0.05;
        if (margin > 0.02 || to_pixel == 0.0) && outside_enough && raw.abs() < 3.0e4 {
            return raw;
        }
    }
    // No number of this type fits. NaN reads nothing.
    f64::NAN
}
