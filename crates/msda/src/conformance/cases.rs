//! The families of cases.

use super::data::{Case, Held, Kind, Spread, Wrong};
use crate::dtype::{Dtype, Element};
use crate::op::{ReferenceKind, offset};
use crate::problem::{Layout, Padding, Problem, Sampling, Spec, Types};
use crate::rng::Rng;
use crate::view::Role;

/// A family of cases. Every backend passes all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Random sizes, options, types and forms.
    Random,
    /// Every sample well inside its level.
    Inside,
    /// Every sample outside: the output and all gradients are zero.
    Outside,
    /// Samples exactly on every border and corner.
    Borders,
    /// NaN and infinite locations, among them in every pattern.
    NotFinite,
    /// Levels of one pixel, one row or one column.
    OnePixel,
    /// No images, no queries, no heads, no points.
    Empty,
    /// Every number of channels around the vector widths.
    Channels,
    /// One level and many.
    Levels,
    /// Different numbers of points on each level.
    Points,
    /// Inputs and outputs with gaps and unusual orders.
    Strides,
    /// Tensors that begin one element off.
    Unaligned,
    /// Every layout of value, with gaps between levels.
    Layouts,
    /// Every combination of sampling, padding and corner alignment.
    Options,
    /// Every supported combination of types.
    Types,
    /// Reference points and boxes, raw offsets and logits.
    Fused,
    /// NaN wherever no sample looks: it must not leak.
    Untouched,
    /// Terms that cancel: whatever is lost of them is all there is to see.
    Cancelling,
    /// Weights that are NaN or infinite, of samples anywhere.
    Weights,
    /// Each gradient alone.
    Partial,
    /// Calls that must be refused with nothing written.
    Refusals,
}

impl Group {
    /// Every group.
    pub const ALL: [Self; 21] = [
        Self::Random,
        Self::Inside,
        Self::Outside,
        Self::Borders,
        Self::NotFinite,
        Self::OnePixel,
        Self::Empty,
        Self::Channels,
        Self::Levels,
        Self::Points,
        Self::Strides,
        Self::Unaligned,
        Self::Layouts,
        Self::Options,
        Self::Types,
        Self::Fused,
        Self::Untouched,
        Self::Cancelling,
        Self::Weights,
        Self::Partial,
        Self::Refusals,
    ];

    /// The group's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Inside => "inside",
            Self::Outside => "outside",
            Self::Borders => "borders",
            Self::NotFinite => "not-finite",
            Self::OnePixel => "one-pixel",
            Self::Empty => "empty",
            Self::Channels => "channels",
            Self::Levels => "levels",
            Self::Points => "points",
            Self::Strides => "strides",
            Self::Unaligned => "unaligned",
            Self::Layouts => "layouts",
            Self::Options => "options",
            Self::Types => "types",
            Self::Fused => "fused",
            Self::Untouched => "untouched",
            Self::Cancelling => "cancelling",
            Self::Weights => "weights",
            Self::Partial => "partial",
            Self::Refusals => "refusals",
        }
    }

    /// A case with some weights that are not finite.
    fn weigh(make: &mut Maker, spec: Spec) {
        make.add(spec, Places::Mixed);
        let case = make.cases.last_mut().expect("just added");
        case.kind = Kind::Forward;
        let mut weights = case.weights.buffer.as_mut();
        for i in 0..case.problem.weights_len() {
            // Some rows of samples stay finite.
            if (i / case.problem.samples()).is_multiple_of(3) && make.rng.below(4) == 0 {
                weights.set(i, make.rng.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]));
            }
        }
    }

    /// The cases of this group.
    pub fn cases(self, seed: u64) -> Vec<Case> {
        let mut make = Maker { rng: Rng::new(seed ^ (self as u64) << 32), cases: Vec::new() };
        match self {
            Self::Random => (0..60).for_each(|_| make.random()),
            Self::Inside => make.for_types(|m, s| m.add(s, Places::Inside)),
            Self::Outside => make.for_types(|m, s| m.add(s, Places::Outside)),
            Self::Borders => make.borders(),
            Self::NotFinite => make.for_options(|m, s| m.add(s, Places::NotFinite)),
            Self::OnePixel => make.one_pixel(),
            Self::Empty => make.empty(),
            Self::Channels => make.channels(),
            Self::Levels => make.levels(),
            Self::Points => make.points(),
            Self::Strides => make.strides(),
            Self::Unaligned => make.unaligned(),
            Self::Layouts => make.layouts(),
            Self::Options => make.for_options(|m, s| m.add(s, Places::Mixed)),
            Self::Types => make.types(),
            Self::Fused => make.fused(),
            Self::Untouched => make.untouched(),
            Self::Cancelling => make.cancelling(),
            Self::Weights => make.for_options(Self::weigh),
            Self::Partial => make.partial(),
            Self::Refusals => make.refusals(),
        }
        make.cases
    }
}

/// Where the samples fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Places {
    Inside,
    Outside,
    /// Inside, at the edges and outside.
    Mixed,
    /// Exactly on pixel centres and borders; the sizes must be powers of two.
    Borders,
    /// Mixed with NaN and infinity.
    NotFinite,
}

/// How a case lies in memory.
#[derive(Debug, Clone, Copy, Default)]
struct Spreads {
    inputs: Spread,
    outputs: Spread,
}

const NUMBERS_OF_CHANNELS: [usize; 20] =
    [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 128];

struct Maker {
    rng: Rng,
    cases: Vec<Case>,
}

/// A small problem with everything in it.
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
    fn random(&mut self) {
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
        };
        let spreads = Spreads { inputs: spread(r), outputs: spread(r) };
        let form = r.pick(&[None, None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)]);
        self.build(spec, Places::Mixed, form, spreads);
    }

    fn for_types(&mut self, f: impl Fn(&mut Self, Spec)) {
        for dtype in Dtype::ALL {
            for types in [Types::uniform(dtype), Types::with_f32_coordinates(dtype)] {
                f(self, Spec { types, ..small() });
            }
        }
    }

    fn for_options(&mut self, f: impl Fn(&mut Self, Spec)) {
        for sampling in [Sampling::Bilinear, Sampling::Nearest] {
            for padding in [Padding::Zeros, Padding::Border] {
                for align_corners in [false, true] {
                    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64] {
                        let types = Types::with_f32_coordinates(dtype);
                        f(self, Spec { sampling, padding, align_corners, types, ..small() });
                    }
                }
            }
        }
    }

    fn borders(&mut self) {
        for sampling in [Sampling::Bilinear, Sampling::Nearest] {
            for padding in [Padding::Zeros, Padding::Border] {
                for (align_corners, levels) in [(false, vec![(4, 8), (2, 1)]), (true, vec![(5, 9), (3, 2)])] {
                    let spec = Spec {
                        levels,
                        points: vec![8, 4],
                        sampling,
                        padding,
                        align_corners,
                        queries: 12,
                        ..small()
                    };
                    self.build(spec, Places::Borders, None, Spreads::default());
                }
            }
        }
    }

    fn one_pixel(&mut self) {
        for levels in [vec![(1, 1)], vec![(1, 1), (1, 1)], vec![(1, 6)], vec![(6, 1), (1, 2)]] {
            for padding in [Padding::Zeros, Padding::Border] {
                for align_corners in [false, true] {
                    for layout in Layout::ALL {
                        let points = vec![3; levels.len()];
                        let levels = levels.clone();
                        let spec = Spec { levels, points, padding, align_corners, layout, ..small() };
                        self.add(spec, Places::Mixed);
                    }
                }
            }
        }
    }

    fn empty(&mut self) {
        for form in [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)] {
            for change in [
                |s: &mut Spec| s.batch = 0,
                |s: &mut Spec| s.queries = 0,
                |s: &mut Spec| s.heads = 0,
                |s: &mut Spec| s.points = vec![0, 0],
                |s: &mut Spec| s.points = vec![0, 2],
                |s: &mut Spec| (s.batch, s.queries, s.layout) = (1, 0, Layout::PlanarRing),
            ] {
                let mut spec = small();
                change(&mut spec);
                self.build(spec, Places::Mixed, form, Spreads::default());
            }
        }
    }

    fn channels(&mut self) {
        for channels in NUMBERS_OF_CHANNELS {
            for dtype in Dtype::ALL {
                let types = Types::uniform(dtype);
                self.add(Spec { channels, types, batch: 1, heads: 2, ..small() }, Places::Mixed);
            }
        }
    }

    fn levels(&mut self) {
        for count in [1, 2, 5, 9, 17] {
            let levels = (0..count).map(|l| (1 + (l * 5) % 7, 1 + (l * 3) % 8)).collect();
            self.add(Spec { levels, points: vec![2; count], ..small() }, Places::Mixed);
        }
    }

    fn points(&mut self) {
        for points in [vec![1, 4], vec![4, 1], vec![0, 3], vec![3, 0], vec![16, 2], vec![33, 1]] {
            for form in [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)] {
                self.build(
                    Spec { points: points.clone(), ..small() },
                    Places::Mixed,
                    form,
                    Spreads::default(),
                );
            }
        }
    }

    fn strides(&mut self) {
        for gap in [Some(0), Some(1), Some(16)] {
            for reversed in [false, true] {
                for layout in Layout::ALL {
                    for form in [None, Some(ReferenceKind::Box)] {
                        let spread = Spread { start: 0, gap, reversed };
                        let spreads = Spreads { inputs: spread, outputs: spread };
                        self.build(Spec { layout, ..small() }, Places::Mixed, form, spreads);
                    }
                }
            }
        }
    }

    fn unaligned(&mut self) {
        for dtype in Dtype::ALL {
            for start in [1, 3] {
                let spread = Spread { start, ..Spread::default() };
                let spec = Spec { types: Types::uniform(dtype), channels: 32, ..small() };
                self.build(spec, Places::Mixed, None, Spreads { inputs: spread, outputs: spread });
            }
        }
    }

    fn layouts(&mut self) {
        for layout in Layout::ALL {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let spec = Spec { layout, types: Types::uniform(dtype), ..small() };
                self.add(spec.clone(), Places::Mixed);
                // Levels in the other order, with gaps before, between and after.
                let spec = Spec { starts: Some(vec![60, 3]), positions: Some(170), ..spec };
                self.add(spec, Places::Mixed);
            }
        }
    }

    fn types(&mut self) {
        for value in Dtype::ALL {
            for locations in [value, Dtype::F32] {
                for weights in [value, Dtype::F32] {
                    for form in [None, Some(ReferenceKind::Point)] {
                        let types = Types { value, locations, weights };
                        self.build(
                            Spec { types, channels: 20, ..small() },
                            Places::Mixed,
                            form,
                            Spreads::default(),
                        );
                    }
                }
            }
        }
    }

    fn fused(&mut self) {
        for kind in [ReferenceKind::Point, ReferenceKind::Box] {
            for sampling in [Sampling::Bilinear, Sampling::Nearest] {
                for padding in [Padding::Zeros, Padding::Border] {
                    for dtype in Dtype::ALL {
                        let spec = Spec { sampling, padding, types: Types::uniform(dtype), ..small() };
                        self.build(spec.clone(), Places::Mixed, Some(kind), Spreads::default());
                        self.build(spec, Places::NotFinite, Some(kind), Spreads::default());
                    }
                }
            }
        }
    }

    /// All samples on the left half of each level; the right half, gaps and rings hold NaN.
    fn untouched(&mut self) {
        for layout in Layout::ALL {
            for dtype in Dtype::ALL {
                let spec = Spec { layout, types: Types::with_f32_coordinates(dtype), ..small() };
                self.add(spec, Places::Inside);
                let case = self.cases.last_mut().expect("just added");
                let p = &case.problem;
                let mut clean = vec![false; p.positions()];
                for level in p.levels() {
                    for y in 0..level.h {
                        for x in 0..level.w.div_ceil(2) {
                            clean[level.position(y, x)] = true;
                        }
                    }
                }
                let strides = Role::Value.dense(p);
                let mut data = case.value.buffer.as_mut();
                for b in 0..p.batch() {
                    for (s, _) in clean.iter().enumerate().filter(|(_, clean)| !**clean) {
                        for h in 0..p.heads() {
                            for c in 0..p.channels() {
                                data.set(offset(strides, [b, s, h]) + c, f64::NAN);
                            }
                        }
                    }
                }
                // Halve every x: with both pixels of a pair at most w/2, nothing reads the right half.
                let mut locations = case.locations.buffer.as_mut();
                for i in (0..p.locations_len()).step_by(2) {
                    let x = locations.as_slice().get(i);
                    locations.set(i, x * 0.4);
                }
            }
        }
    }

    /// Every other sample takes away what the one before it brought.
    fn cancelling(&mut self) {
        for layout in Layout::ALL {
            for dtype in Dtype::ALL {
                for (channels, points) in [(32, vec![4, 4]), (8, vec![2, 6])] {
                    let types = Types::with_f32_coordinates(dtype);
                    self.add(Spec { layout, types, channels, points, ..small() }, Places::Mixed);
                    let case = self.cases.last_mut().expect("just added");
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
                }
            }
        }
    }

    fn partial(&mut self) {
        for form in [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)] {
            for dtype in [Dtype::F32, Dtype::F16] {
                let spec = Spec { types: Types::uniform(dtype), ..small() };
                self.build(spec, Places::Mixed, form, Spreads::default());
                self.cases.last_mut().expect("just added").kind = Kind::Partial;
            }
        }
    }

    fn refusals(&mut self) {
        for wrong in [
            Wrong::ValueLength,
            Wrong::LocationsLength,
            Wrong::WeightsLength,
            Wrong::OutputLength,
            Wrong::ValueType,
            Wrong::LocationsType,
            Wrong::OutputType,
            Wrong::StridesOverrun,
            Wrong::StridesOverflow,
            Wrong::OutputOverlaps,
            Wrong::GradientLength,
            Wrong::ReferenceInPlainForm,
            Wrong::ReferenceLength,
        ] {
            for dtype in [Dtype::F32, Dtype::F16] {
                self.add(Spec { types: Types::uniform(dtype), ..small() }, Places::Mixed);
                self.cases.last_mut().expect("just added").kind = Kind::Refuse(wrong);
            }
        }
    }

    fn add(&mut self, spec: Spec, places: Places) {
        self.build(spec, places, None, Spreads::default());
    }

    fn build(&mut self, spec: Spec, places: Places, form: Option<ReferenceKind>, spreads: Spreads) {
        let p = Problem::new(spec).expect("the battery's problems are legal");
        let (t, r) = (p.types(), &mut self.rng);
        let level_of: Vec<usize> =
            p.points().iter().enumerate().flat_map(|(l, &n)| std::iter::repeat_n(l, n)).collect();

        // Reference points first: offsets are chosen so that the samples fall where they should.
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
            // Outside on one axis is enough, and the harder case.
            if places == Places::Outside && r.below(2) == 0 {
                let axis = r.below(2);
                let side = side(&p, level, axis);
                pair[axis] = choose(r, &p, Places::Inside, side, t.locations, 0.0, 1.0);
            }
        }
        let held = |role, dtype, f: &mut dyn FnMut(usize) -> f64| {
            Held::new(&p, role, dtype, spreads.inputs, f64::NAN, f)
        };
        let mut numbers = r.clone();
        r.bits();
        let mut noise = |_: usize| numbers.normal();
        let zero_ring = ring(&p);
        let value = held(Role::Value, t.value, &mut |i| if zero_ring(i) { 0.0 } else { noise(i) });
        let grad_output = held(Role::Output, t.value, &mut noise);
        // Weights are positive, as after a softmax; logits are not.
        let weights = held(Role::Weights, t.weights, &mut |i| {
            let x = noise(i);
            if form.is_some() { x } else { x.abs() * 0.5 }
        });
        let locations = held(Role::Locations, t.locations, &mut |i| locations[i]);
        let reference =
            form.map(|kind| (kind, held(Role::Reference { dim }, t.locations, &mut |i| reference[i])));
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
    }
}

fn side(p: &Problem, level: usize, axis: usize) -> usize {
    if axis == 0 { p.levels()[level].w } else { p.levels()[level].h }
}

/// Which dense elements of value belong to a ring and must be zero.
fn ring(p: &Problem) -> impl Fn(usize) -> bool + use<> {
    let mut in_ring = vec![p.layout() == Layout::PlanarRing; p.positions()];
    for level in p.levels() {
        for y in 0..level.h {
            let row = level.position(y, 0);
            in_ring[row..row + level.w].fill(false);
        }
    }
    // Rings exist in planar layouts only, where the position is the innermost outer index.
    let (d, positions) = (p.channels(), p.positions());
    move |i| in_ring[(i / d) % positions]
}

fn round(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F64 => x,
        Dtype::F32 => f64::from(x as f32),
        Dtype::F16 => half::f16::from_f64(x).to_f64(),
        Dtype::Bf16 => Element::to_f64(half::bf16::from_f64(x)),
    }
}

/// A raw coordinate for one axis: `start + raw * scale` is the normalised location.
///
/// Away from pixel centres and midpoints, where the result or its derivative jumps and one rounding decides; but for
/// [`Places::Borders`], where everything is exact and the points sit right there.
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
        // How far from the nearest half pixel: 0 on centres and midpoints, 0.25 at most.
        let margin = (2.0 * pixel - (2.0 * pixel).round()).abs() / 2.0;
        let outside_enough = places != Places::Outside || pixel < -1.05 || pixel > n + 0.05;
        if (margin > 0.02 || to_pixel == 0.0) && outside_enough && raw.abs() < 3.0e4 {
            return raw;
        }
    }
    // No number of this type will do: look nowhere.
    f64::NAN
}
