//! The description of a call: sizes, levels, options and types, validated once.

use std::fmt;

use crate::dtype::Dtype;
use crate::error::{Argument, Error, ErrorKind, Result};

/// The largest height or width of a level. All pixel indices up to it are exact in `f32`.
pub const MAX_LEVEL_SIDE: usize = 1 << 24;

/// How a sample is read from its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Sampling {
    /// Four taps, weighted by distance.
    #[default]
    Bilinear,
    /// The nearest pixel; halves round to the even index. Locations receive no gradient.
    Nearest,
}

/// How samples near and beyond the edge of a level are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Padding {
    /// Taps off the map contribute nothing.
    #[default]
    Zeros,
    /// Coordinates are clamped to the map. A clamped coordinate receives no gradient.
    Border,
}

/// The memory layout of `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// `(B, S, H, D)`: the layout that models produce.
    #[default]
    Bshd,
    /// `(B, H, S, D)`: the levels of each head are contiguous.
    Planar,
    /// `(B, H, S', D)` with a ring of one zero pixel around each level: `S'` counts the ring.
    PlanarRing,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 3] = [Self::Bshd, Self::Planar, Self::PlanarRing];

    /// The name in keys and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bshd => "bshd",
            Self::Planar => "planar",
            Self::PlanarRing => "ring",
        }
    }

    /// Pixels of padding on each side of a level.
    pub fn ring(self) -> usize {
        usize::from(self == Self::PlanarRing)
    }
}

/// Element types of the tensors. A gradient has the type of its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Types {
    /// Value and output.
    pub value: Dtype,
    /// Sampling locations; in the fused form, reference points and offsets.
    pub locations: Dtype,
    /// Attention weights; in the fused form, logits.
    pub weights: Dtype,
}

impl Types {
    /// All tensors of one type.
    pub const fn uniform(dtype: Dtype) -> Self {
        Self { value: dtype, locations: dtype, weights: dtype }
    }

    /// Value and output of type `value`; locations and weights in `f32`.
    pub const fn with_value(value: Dtype) -> Self {
        Self { value, locations: Dtype::F32, weights: Dtype::F32 }
    }
}

impl Default for Types {
    fn default() -> Self {
        Self::uniform(Dtype::F32)
    }
}

/// A problem before validation; see [`Problem::new`].
///
/// ```
/// use msda::{Problem, Spec};
///
/// let problem = Problem::new(Spec {
///     batch: 1,
///     queries: 300,
///     heads: 8,
///     channels: 32,
///     levels: vec![(80, 80), (40, 40), (20, 20)],
///     points: vec![4, 4, 4],
///     ..Spec::default()
/// })?;
/// assert_eq!(problem.to_string(), "b1_q300_h8_d32_l80x80.40x40.20x20_p4_bshd_f32");
/// # Ok::<(), msda::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// Number of images.
    pub batch: usize,
    /// Queries per image.
    pub queries: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Channels per head.
    pub channels: usize,
    /// Height and width of each level.
    pub levels: Vec<(usize, usize)>,
    /// Sampling points on each level.
    pub points: Vec<usize>,
    /// First position of each level, or of its ring if the layout has one. Levels may be in any
    /// order and have gaps between them, but must not overlap. `None` packs them in order.
    pub starts: Option<Vec<usize>>,
    /// Positions per image; `None` means that the last level ends the image.
    pub positions: Option<usize>,
    /// How a sample is read.
    pub sampling: Sampling,
    /// How samples near and beyond the edge are read.
    pub padding: Padding,
    /// Whether 0 and 1 are the centres of the corner pixels instead of their outer edges.
    pub align_corners: bool,
    /// The memory layout of `value`.
    pub layout: Layout,
    /// Element types.
    pub types: Types,
}

/// A level and its positions: pixel `(y, x)` is position `origin + y * pitch + x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// Height in pixels, without the ring.
    pub h: usize,
    /// Width in pixels, without the ring.
    pub w: usize,
    /// The position of pixel `(0, 0)`.
    pub origin: usize,
    /// Row pitch in positions.
    pub pitch: usize,
}

impl Level {
    /// The position of pixel `(y, x)`.
    #[inline]
    pub fn position(&self, y: usize, x: usize) -> usize {
        self.origin + y * self.pitch + x
    }
}

/// A validated problem: its sizes are consistent and its tensors fit the address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    spec: Spec,
    levels: Vec<Level>,
    positions: usize,
    samples: usize,
}

impl Problem {
    /// Validates `spec`.
    pub fn new(spec: Spec) -> Result<Self> {
        check_types(spec.types)?;
        if spec.channels == 0 {
            return Err(Error::shape("channels", 0, "at least 1").of(Argument::Value));
        }
        if spec.levels.is_empty() {
            return Err(Error::shape("levels", "none", "at least one (h, w)").of(Argument::Levels));
        }
        if spec.points.len() != spec.levels.len() {
            return Err(Error::shape(
                "points",
                format!("{} entries", spec.points.len()),
                format!("one for each of the {} levels", spec.levels.len()),
            ));
        }
        let (levels, positions) = lay_out(&spec)?;
        let samples = checked_sum(&spec.points, "points")?;
        let problem = Self { spec, levels, positions, samples };
        problem.check_sizes()?;
        Ok(problem)
    }

    /// Each tensor must fit the address space. A size of 0 counts as 1, so that no product of the
    /// other sizes overflows.
    fn check_sizes(&self) -> Result<()> {
        let s = &self.spec;
        let tensors: [(Argument, Dtype, [usize; 5]); 4] = [
            (Argument::Value, s.types.value, [s.batch, self.positions, s.heads, s.channels, 1]),
            (Argument::Locations, s.types.locations, [s.batch, s.queries, s.heads, self.samples, 2]),
            (Argument::Output, s.types.value, [s.batch, s.queries, s.heads, s.channels, 1]),
            (Argument::Reference, s.types.locations, [s.batch, s.queries, s.levels.len(), 4, 1]),
        ];
        for (argument, dtype, shape) in tensors {
            let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d.max(1)));
            if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
                let (subject, got) =
                    (format!("size of {}", argument.name()), format!("{shape:?} elements of {dtype}"));
                let error = Error::overflow(subject, got, "a tensor that fits the address space");
                return Err(error.of(argument));
            }
        }
        Ok(())
    }

    /// The description the problem was made from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The same problem with some fields changed, validated again.
    pub fn with(&self, change: impl FnOnce(&mut Spec)) -> Result<Self> {
        let mut spec = self.spec.clone();
        change(&mut spec);
        Self::new(spec)
    }

    /// The levels and their positions.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Sampling points on each level.
    pub fn points(&self) -> &[usize] {
        &self.spec.points
    }

    /// Scale and shift from a normalised to a pixel coordinate on an axis of `side` pixels.
    pub fn pixel_transform(&self, side: usize) -> (f64, f64) {
        if self.spec.align_corners { (side as f64 - 1.0, 0.0) } else { (side as f64, -0.5) }
    }

    /// Elements of `value`.
    pub fn value_len(&self) -> usize {
        self.spec.batch * self.positions * self.spec.heads * self.spec.channels
    }

    /// Elements of the weights; in the fused form, of the logits.
    pub fn weights_len(&self) -> usize {
        self.spec.batch * self.spec.queries * self.spec.heads * self.samples
    }

    /// Elements of the locations; in the fused form, of the offsets.
    pub fn locations_len(&self) -> usize {
        2 * self.weights_len()
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.spec.batch * self.spec.queries * self.spec.heads * self.spec.channels
    }

    /// Elements of the reference points of the fused form, `dim` numbers each (2 or 4).
    pub fn reference_len(&self, dim: usize) -> usize {
        (self.spec.batch * self.spec.queries * self.levels.len()).saturating_mul(dim)
    }
}

macro_rules! fields {
    ($($(#[$doc:meta])+ $name:ident: $type:ty = $($field:ident).+;)*) => {
        impl Problem {
            $($(#[$doc])+ pub fn $name(&self) -> $type { self.$($field).+ })*
        }
    };
}

fields! {
    /// Number of images.
    batch: usize = spec.batch;
    /// Queries per image.
    queries: usize = spec.queries;
    /// Number of attention heads.
    heads: usize = spec.heads;
    /// Channels per head.
    channels: usize = spec.channels;
    /// Sampling points per query and head, over all levels.
    samples: usize = samples;
    /// Positions per image with rings and gaps: the `S` of `value`.
    positions: usize = positions;
    /// How a sample is read.
    sampling: Sampling = spec.sampling;
    /// How samples near and beyond the edge are read.
    padding: Padding = spec.padding;
    /// The memory layout of `value`.
    layout: Layout = spec.layout;
    /// Element types.
    types: Types = spec.types;
}

/// Locations and weights have the type of the value, or `f32`.
fn check_types(types: Types) -> Result<()> {
    for (argument, got) in [(Argument::Locations, types.locations), (Argument::Weights, types.weights)] {
        if got != types.value && got != Dtype::F32 {
            let name = argument.name();
            return Err(Error::new(
                ErrorKind::Type,
                format!("type of {name}"),
                format!("{got} with {} values", types.value),
                if types.value == Dtype::F32 { "f32".into() } else { format!("f32 or {}", types.value) },
            )
            .of(argument)
            .hint(format!("convert {name} to f32")));
        }
    }
    Ok(())
}

fn checked_sum(sizes: &[usize], what: &str) -> Result<usize> {
    let sum = sizes.iter().try_fold(0usize, |n, &x| n.checked_add(x));
    let error = || Error::overflow(format!("sum of {what}"), format!("{sizes:?}"), "a sum that fits usize");
    sum.ok_or_else(error)
}

/// The levels with their positions, and the number of positions.
fn lay_out(spec: &Spec) -> Result<(Vec<Level>, usize)> {
    let ring = spec.layout.ring();
    let mut sizes = Vec::with_capacity(spec.levels.len());
    for (l, &(h, w)) in spec.levels.iter().enumerate() {
        let legal = 1..=MAX_LEVEL_SIDE;
        if !legal.contains(&h) || !legal.contains(&w) {
            return Err(Error::shape(
                format!("size of level {l}"),
                format!("{h}x{w}"),
                format!("height and width from 1 to {MAX_LEVEL_SIDE}"),
            )
            .of(Argument::Levels)
            .hint("levels are (height, width) in pixels"));
        }
        // At most (2^24 + 2)^2, which fits 64 bits; the check is for 32-bit machines.
        let size = (h + 2 * ring).checked_mul(w + 2 * ring);
        let error = || Error::overflow(format!("size of level {l}"), format!("{h}x{w}"), "a smaller level");
        sizes.push(size.ok_or_else(|| error().of(Argument::Levels))?);
    }
    let starts = match &spec.starts {
        None => {
            checked_sum(&sizes, "level sizes").map_err(|error| error.of(Argument::Levels))?;
            (0..sizes.len()).map(|l| sizes[..l].iter().sum()).collect()
        }
        Some(starts) if starts.len() == sizes.len() => starts.clone(),
        Some(starts) => {
            return Err(Error::shape(
                "level starts",
                format!("{} entries", starts.len()),
                format!("one for each of the {} levels", sizes.len()),
            )
            .of(Argument::Starts));
        }
    };
    let end = check_starts(spec, &starts, &sizes)?;
    let levels = spec.levels.iter().zip(&starts).map(|(&(h, w), &start)| {
        let pitch = w + 2 * ring;
        Level { h, w, origin: start + ring * (pitch + 1), pitch }
    });
    Ok((levels.collect(), spec.positions.unwrap_or(end)))
}

/// Levels must not overlap and must end within the positions. Returns the end of the last one.
fn check_starts(spec: &Spec, starts: &[usize], sizes: &[usize]) -> Result<usize> {
    let mut order: Vec<usize> = (0..starts.len()).collect();
    order.sort_by_key(|&l| starts[l]);
    let mut end = 0usize;
    for (i, &l) in order.iter().enumerate() {
        if starts[l] < end {
            let before = order[i - 1];
            return Err(Error::shape(
                format!("start of level {l}"),
                starts[l],
                format!("at least {end}, where level {before} ends"),
            )
            .of(Argument::Starts)
            .hint(match spec.layout {
                Layout::PlanarRing => "with a ring, a level takes (h+2)*(w+2) positions",
                _ => "a level takes h*w positions",
            }));
        }
        let error = || Error::overflow(format!("end of level {l}"), starts[l], "a smaller start");
        end = starts[l].checked_add(sizes[l]).ok_or_else(|| error().of(Argument::Starts))?;
    }
    match spec.positions {
        Some(positions) if positions < end => {
            Err(Error::shape("positions", positions, format!("at least {end}, where the last level ends"))
                .of(Argument::Value)
                .hint(format!("the levels are {:?} from {starts:?}", spec.levels)))
        }
        _ => Ok(end),
    }
}

/// The readable key of the problem in logs, tables and files.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.spec;
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(".");
        let levels = s.levels.iter().map(|(h, w)| format!("{h}x{w}")).collect::<Vec<_>>().join(".");
        let equal = s.points.iter().all(|&p| p == s.points[0]);
        let points = list(if equal { &s.points[..1] } else { &s.points });
        write!(f, "b{}_q{}_h{}_d{}", s.batch, s.queries, s.heads, s.channels)?;
        write!(f, "_l{levels}_p{points}_{}_{}", s.layout.name(), s.types.value)?;
        if s.types.locations != s.types.value {
            write!(f, "_loc{}", s.types.locations)?;
        }
        if s.types.weights != s.types.value {
            write!(f, "_w{}", s.types.weights)?;
        }
        for (is_set, name) in [
            (s.sampling == Sampling::Nearest, "_nearest"),
            (s.padding == Padding::Border, "_border"),
            (s.align_corners, "_corners"),
        ] {
            f.write_str(if is_set { name } else { "" })?;
        }
        if let Some(starts) = &s.starts {
            write!(f, "_at{}", list(starts))?;
        }
        match s.positions {
            Some(positions) => write!(f, "_s{positions}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            batch: 1,
            queries: 2,
            heads: 2,
            channels: 3,
            levels: vec![(4, 6), (2, 3)],
            points: vec![2, 1],
            ..Spec::default()
        }
    }

    #[test]
    fn levels_are_packed_or_start_where_the_spec_says() {
        let p = Problem::new(spec()).unwrap();
        assert_eq!((p.positions(), p.levels()[1].origin), (30, 24));
        let p = p.with(|s| s.layout = Layout::PlanarRing).unwrap();
        assert_eq!(p.positions(), 6 * 8 + 4 * 5);
        assert_eq!(p.levels()[1], Level { h: 2, w: 3, origin: 48 + 5 + 1, pitch: 5 });
        let p = Problem::new(Spec { starts: Some(vec![6, 0]), positions: Some(40), ..spec() }).unwrap();
        assert_eq!((p.levels()[0].origin, p.positions()), (6, 40));
    }

    #[test]
    fn the_seed_pyramid_has_its_known_sizes() {
        let levels = vec![(92, 160), (46, 80), (23, 40), (12, 20)];
        let seed =
            |layout| Problem::new(Spec { levels: levels.clone(), points: vec![8; 4], layout, ..spec() });
        assert_eq!(seed(Layout::Planar).unwrap().positions(), 19_560);
        assert_eq!(seed(Layout::PlanarRing).unwrap().positions(), 20_522);
    }

    #[test]
    fn errors_of_bad_specs_name_the_mistake() {
        type Change = fn(&mut Spec);
        let changes: [(Change, &str); 13] = [
            (|s| s.starts = Some(vec![0, 23]), "at least 24, where level 0 ends"),
            (|s| s.positions = Some(29), "at least 30"),
            (|s| s.levels[0] = (0, 6), "0x6"),
            (|s| s.levels[1] = (1 << 25, 6), "level 1"),
            (|s| s.points = vec![1], "1 entries"),
            (|s| s.channels = 0, "channels"),
            (|s| s.levels.clear(), "at least one"),
            (|s| s.starts = Some(vec![0]), "one for each"),
            (|s| s.batch = usize::MAX, "fits the address space"),
            (|s| s.points = vec![usize::MAX, 1], "sum of points"),
            (|s| s.starts = Some(vec![0, usize::MAX - 2]), "smaller start"),
            (|s| s.types.locations = Dtype::F16, "hint: convert locations to f32"),
            (
                |s| s.types = Types { locations: Dtype::Bf16, ..Types::uniform(Dtype::F16) },
                "bf16 with f16 values",
            ),
        ];
        let whole = Problem::new(spec()).unwrap();
        for (change, words) in changes {
            let message = whole.with(change).expect_err(words).to_string();
            assert!(message.contains(words), "{words}: {message}");
        }
    }

    #[test]
    fn empty_sizes_are_legal() {
        for change in [|s: &mut Spec| s.batch = 0, |s: &mut Spec| s.queries = 0, |s: &mut Spec| s.heads = 0] {
            assert_eq!(Problem::new(spec()).unwrap().with(change).unwrap().output_len(), 0);
        }
    }

    #[test]
    fn the_key_contains_every_option() {
        let p = Problem::new(Spec {
            sampling: Sampling::Nearest,
            padding: Padding::Border,
            align_corners: true,
            layout: Layout::Planar,
            types: Types::with_value(Dtype::F16),
            ..spec()
        });
        assert_eq!(
            p.unwrap().to_string(),
            "b1_q2_h2_d3_l4x6.2x3_p2.1_planar_f16_locf32_wf32_nearest_border_corners"
        );
    }
}
