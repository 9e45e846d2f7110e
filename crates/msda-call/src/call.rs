//! A call as frameworks make it: tensors with sizes and strides, turned into a [`Problem`].

use std::ffi::c_void;

use msda::{Dtype, Layout, Padding, Problem, ReferenceKind, Sampling, Spec, Strides, Types};

use crate::error::{Kind, Refused, Result};

/// A tensor of the caller. The memory is as large as sizes and strides say.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// The argument's name, for messages.
    pub name: &'static str,
    /// The address of the first element.
    pub data: *mut c_void,
    /// The type of the elements.
    pub dtype: Dtype,
    /// One number per dimension.
    pub sizes: &'a [i64],
    /// One number per dimension, in elements. A dense tensor needs none.
    pub strides: Option<&'a [i64]>,
}

/// More dimensions than any tensor of the operator has.
pub const MOST_DIMENSIONS: usize = 8;

/// The stride of a dimension of a dense tensor.
pub fn dense_stride(sizes: &[i64], dim: usize) -> i64 {
    sizes.iter().skip(dim + 1).fold(1, |stride, &size| stride.saturating_mul(size.max(1)))
}

impl Tensor<'_> {
    /// The stride of a dimension.
    fn stride(&self, dim: usize) -> i64 {
        self.strides.map_or_else(|| dense_stride(self.sizes, dim), |strides| strides[dim])
    }

    /// The strides of all dimensions, for messages.
    fn all_strides(&self) -> Vec<i64> {
        (0..self.sizes.len()).map(|dim| self.stride(dim)).collect()
    }

    /// Whether the dimensions from `first` on are contiguous.
    pub fn dense_from(&self, first: usize) -> bool {
        let Some(strides) = self.strides else { return true };
        let inner = self.sizes.iter().zip(strides).skip(first).rev();
        let mut next = 1;
        inner.into_iter().all(|(&size, &stride)| {
            let fits = size == 1 || stride == next;
            next *= size;
            fits
        }) || self.sizes.contains(&0)
    }

    /// The strides of the three outer dimensions; 0 for those that are never used.
    fn outer(&self) -> Result<Strides> {
        let mut strides = [0; 3];
        for (dim, (to, &size)) in strides.iter_mut().zip(self.sizes).enumerate() {
            if size > 1 {
                let stride = self.stride(dim);
                *to = usize::try_from(stride).map_err(|_| {
                    Refused::value(self.name, format!("stride {stride}"), "strides of at least 0")
                })?;
            }
        }
        Ok(strides)
    }

    /// The strides of the three outer dimensions of a dense tensor.
    pub(crate) fn dense_outer(&self) -> Strides {
        let inner = |from: usize| self.sizes.iter().skip(from).map(|&n| n as usize).product();
        [inner(1), inner(2), inner(3)]
    }

    /// Elements from the first to behind the last.
    pub(crate) fn span(&self) -> usize {
        if self.sizes.contains(&0) {
            return 0;
        }
        let last: i64 = self.sizes.iter().enumerate().map(|(dim, &n)| (n - 1) * self.stride(dim)).sum();
        usize::try_from(last).map_or(0, |last| last + 1)
    }

    /// A dimension of a tensor with that rank.
    fn size(&self, dim: usize) -> Result<usize> {
        let size = self.sizes[dim];
        usize::try_from(size).map_err(|_| Refused::value(self.name, self.shape(), "sizes of at least 0"))
    }

    /// The sizes, for messages.
    pub fn shape(&self) -> String {
        format!("shape {:?}", self.sizes)
    }

    /// Refuses a destination that is not dense, or of another shape or type.
    fn check_dense(&self, sizes: &[i64], dtype: Dtype) -> Result<()> {
        if self.sizes != sizes || !self.dense_from(0) {
            let got = format!("shape {:?} with strides {:?}", self.sizes, self.all_strides());
            return Err(Refused::value(self.name, got, format!("a contiguous tensor of shape {sizes:?}")));
        }
        if self.dtype != dtype {
            return Err(Refused::wrong_type(self.name, self.dtype, dtype));
        }
        Ok(())
    }

    fn expect_shape(&self, expected: &[i64], words: &str) -> Result<()> {
        if self.sizes == expected {
            return Ok(());
        }
        Err(Refused::value(self.name, self.shape(), format!("{expected:?} {words}")))
    }
}

/// Options of the operator, as one number in the operator's schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) sampling: Sampling,
    pub(crate) padding: Padding,
    pub(crate) align_corners: bool,
}

impl Options {
    pub(crate) const NEAREST: i64 = 1;
    pub(crate) const BORDER: i64 = 2;
    pub(crate) const CORNERS: i64 = 4;

    pub(crate) fn from_bits(bits: i64) -> Result<Self> {
        if bits & !(Self::NEAREST | Self::BORDER | Self::CORNERS) != 0 {
            return Err(Refused::value(
                "options",
                bits,
                "a sum of 1 (nearest), 2 (border) and 4 (align_corners)",
            ));
        }
        Ok(Self {
            sampling: if bits & Self::NEAREST != 0 { Sampling::Nearest } else { Sampling::Bilinear },
            padding: if bits & Self::BORDER != 0 { Padding::Border } else { Padding::Zeros },
            align_corners: bits & Self::CORNERS != 0,
        })
    }
}

/// Names of the arguments with the level sizes.
pub const SHAPES: &str = "spatial_shapes";
/// As [`SHAPES`], for the first positions.
pub const STARTS: &str = "level_start_index";

/// The names of the floating-point inputs. The fused form has reference points behind value.
pub const fn names(fused: bool) -> &'static [&'static str] {
    match fused {
        false => &["value", "sampling_locations", "attention_weights"],
        true => &["value", "reference_points", "sampling_offsets", "attention_logits"],
    }
}

/// Where the sizes of the levels are.
#[derive(Debug, Clone)]
pub enum LevelSizes {
    /// In memory of the host: heights and widths, and first positions if the caller gave them.
    Host(Vec<(usize, usize)>, Option<Vec<usize>>),
    /// In device memory: the addresses of both tables, and the number of levels.
    Device {
        /// The address of heights and widths.
        shapes: u64,
        /// The address of the first positions.
        starts: u64,
        /// The number of levels.
        levels: usize,
    },
}

impl LevelSizes {
    /// Sizes in memory of the host. Starts of levels that follow each other say nothing new: then
    /// the sizes must add up to the positions.
    pub fn new(shapes: Vec<(usize, usize)>, starts: Option<Vec<usize>>) -> Self {
        let mut next = Some(0usize);
        let packed = |starts: &Vec<usize>| {
            starts.len() == shapes.len()
                && starts.iter().zip(&shapes).all(|(&start, &(h, w))| {
                    let fits = next == Some(start);
                    next = next.and_then(|next| next.checked_add(h.checked_mul(w)?));
                    fits
                })
        };
        let starts = match starts {
            Some(starts) if { packed }(&starts) => None,
            starts => starts,
        };
        Self::Host(shapes, starts)
    }

    /// The number of levels, given the shapes of both tables.
    pub fn count(shapes: &[i64], starts: &[i64]) -> Result<usize> {
        let [count, 2] = *shapes else {
            let got = format!("shape {shapes:?}");
            return Err(Refused::value(SHAPES, got, "(levels, 2): height and width"));
        };
        if starts != [count] {
            let got = format!("shape {starts:?}");
            return Err(Refused::value(STARTS, got, format!("[{count}], one per level")));
        }
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The sizes in tables of the host, given their elements. Without starts, levels follow each
    /// other.
    pub fn read(
        levels: usize,
        shapes: impl Fn(usize) -> i64,
        starts: Option<impl Fn(usize) -> i64>,
    ) -> Result<Self> {
        let size =
            |name, n: i64| usize::try_from(n).map_err(|_| Refused::value(name, n, "numbers of at least 0"));
        let pair = |i| Ok((size(SHAPES, shapes(2 * i))?, size(SHAPES, shapes(2 * i + 1))?));
        let pairs = (0..levels).map(pair).collect::<Result<_>>()?;
        let first = starts.map(|starts| (0..levels).map(|i| size(STARTS, starts(i))).collect());
        Ok(Self::new(pairs, first.transpose()?))
    }

    /// The sizes, and options and points, in one list: options, points, then height, width and
    /// first position of each level. `name` is that of the list.
    pub fn read_setup(name: &str, numbers: &[i64]) -> Result<(Self, [i64; 2])> {
        let Some((&[options, points], (levels, []))) =
            numbers.split_first_chunk().map(|(two, levels)| (two, levels.as_chunks::<3>()))
        else {
            let got = format!("{} numbers", numbers.len());
            return Err(Refused::value(name, got, "2 numbers, and 3 per level"));
        };
        if let Some((i, n)) = levels.as_flattened().iter().enumerate().find(|&(_, &n)| n < 0) {
            let name = if i % 3 == 2 { STARTS } else { SHAPES };
            return Err(Refused::value(name, n, "numbers of at least 0"));
        }
        let pairs = levels.iter().map(|&[height, width, _]| (height as usize, width as usize)).collect();
        let starts = levels.iter().map(|&[_, _, start]| start as usize).collect();
        Ok((Self::new(pairs, Some(starts)), [options, points]))
    }

    /// The number of levels.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(shapes, _) => shapes.len(),
            Self::Device { levels, .. } => *levels,
        }
    }
}

/// The inputs of a call. With reference points the form is fused: `locations` are offsets, and
/// `weights` are logits.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// `(B, S, H, D)`.
    pub value: Tensor<'a>,
    /// The sizes of the levels.
    pub levels: LevelSizes,
    /// `(B, Q, L, 2 or 4)`.
    pub reference: Option<Tensor<'a>>,
    /// `(B, Q, H, L, P, 2)`, or `(B, Q, H, samples, 2)`.
    pub locations: Tensor<'a>,
    /// As the locations, without the last dimension.
    pub weights: Tensor<'a>,
    /// A sum of 1 (nearest), 2 (border) and 4 (align_corners).
    pub options: i64,
    /// Points per level as bytes of a number, the first level in the lowest; 0 if all levels have
    /// the same number.
    pub points: i64,
}

/// Points per level as the number that [`Call`] takes; `None` for more than 8 levels, or if all
/// are 0.
pub fn pack_points(points: &[u8]) -> Option<i64> {
    let mut bytes = [0; 8];
    bytes.get_mut(..points.len())?.copy_from_slice(points);
    Some(i64::from_le_bytes(bytes)).filter(|&packed| packed != 0)
}

/// The outer strides of the inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputStrides {
    pub(crate) value: Strides,
    pub(crate) locations: Strides,
    pub(crate) weights: Strides,
    pub(crate) reference: Option<Strides>,
}

impl Call<'_> {
    /// The problem that the sizes of the tensors describe.
    pub fn problem(&self) -> Result<Problem> {
        let Self { value, locations, weights, .. } = self;
        if value.sizes.len() != 4 {
            let expected = "4 dimensions: batch, positions, heads, channels";
            return Err(Refused::value(value.name, value.shape(), expected));
        }
        let rank = locations.sizes.len();
        if rank != 5 && rank != 6 {
            let expected = "6 dimensions (batch, queries, heads, levels, points, 2), \
                            or 5 if levels and points are one dimension";
            return Err(Refused::value(locations.name, locations.shape(), expected));
        }
        let [b, s, h, d] = [value.size(0)?, value.size(1)?, value.size(2)?, value.size(3)?];
        let queries = locations.size(1)?;
        let levels = self.levels.len();
        self.check_ranks(levels)?;
        self.check_common_sizes()?;
        let [bi, qi, hi] = [b, queries, h].map(|n| n as i64);
        let points = self.points(levels)?;
        let samples: usize = points.iter().sum();
        let mut expected = vec![bi, qi, hi];
        match rank {
            6 => expected.extend([levels as i64, locations.sizes[4]]),
            _ => expected.push(samples as i64),
        }
        let names = match rank {
            6 => "batch, queries, heads, levels, points",
            _ => "batch, queries, heads, samples",
        };
        weights.expect_shape(&expected, &format!("({names})"))?;
        expected.push(2);
        locations.expect_shape(&expected, &format!("({names}, 2)"))?;
        if let Some(reference) = &self.reference {
            let dim = reference.sizes.last().copied().unwrap_or(0);
            let expected = [bi, qi, levels as i64, if dim == 4 { 4 } else { 2 }];
            reference.expect_shape(&expected, "(batch, queries, levels, 2 or 4)")?;
            if reference.dtype != locations.dtype {
                return Err(Refused::wrong_type(reference.name, reference.dtype, locations.dtype));
            }
        }
        let (sizes, starts) = match &self.levels {
            LevelSizes::Host(shapes, starts) => (shapes.clone(), starts.clone()),
            // Placeholders: only their number counts.
            LevelSizes::Device { .. } => (vec![(1, 1); levels], None),
        };
        let options = Options::from_bits(self.options)?;
        if levels > s && matches!(self.levels, LevelSizes::Device { .. }) {
            return Err(Refused::value(
                value.name,
                format!("{s} positions"),
                format!("at least {levels}, one per level"),
            ));
        }
        let spec = Spec {
            batch: b,
            queries,
            heads: h,
            channels: d,
            levels: sizes,
            points,
            starts,
            positions: Some(s),
            sampling: options.sampling,
            padding: options.padding,
            align_corners: options.align_corners,
            layout: Layout::Bshd,
            types: Types { value: value.dtype, locations: locations.dtype, weights: weights.dtype },
        };
        self.check_positions(&spec)?;
        Problem::new(spec).map_err(|error| named(error, self))
    }

    /// The shape of the output, `(B, Q, H * D)`. Only the ranks are checked.
    pub fn output_shape(&self) -> Result<[i64; 3]> {
        let (&[batch, _, heads, channels], &[_, queries, _, ..]) = (self.value.sizes, self.locations.sizes)
        else {
            self.problem()?;
            return Err(Refused::new(Kind::Runtime, "internal error: ranks"));
        };
        let row = heads
            .checked_mul(channels)
            .ok_or_else(|| Refused::value(self.value.name, self.value.shape(), "sizes that fit"))?;
        Ok([batch, queries, row])
    }

    /// Refuses a destination of the output that is not dense, or of another shape or type.
    pub fn check_output(&self, output: &Tensor<'_>) -> Result<()> {
        output.check_dense(&self.output_shape()?, self.value.dtype)
    }

    /// The same for gradients of value, locations, weights and reference points.
    pub fn check_gradients(&self, grads: &[Option<Tensor<'_>>; 4]) -> Result<()> {
        let likes = [Some(&self.value), Some(&self.locations), Some(&self.weights), self.reference.as_ref()];
        for (grad, like) in grads.iter().zip(likes) {
            match (grad, like) {
                (Some(grad), Some(like)) => grad.check_dense(like.sizes, like.dtype)?,
                (Some(grad), None) => {
                    return Err(Refused::value(grad.name, "a tensor", "none without reference points"));
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Refuses what makes all other sizes misleading: coordinates that are no pairs, and another
    /// number of levels.
    fn check_ranks(&self, levels: usize) -> Result<()> {
        let Self { locations, weights, .. } = self;
        let rank = locations.sizes.len();
        if locations.sizes[rank - 1] != 2 {
            let swapped = weights.sizes.len() == rank + 1 && weights.sizes[rank] == 2;
            let hint = format!("\nhint: {} and {} are swapped", locations.name, weights.name);
            let expected = format!("a last dimension of 2: x and y{}", if swapped { &hint } else { "" });
            return Err(Refused::value(locations.name, locations.shape(), expected));
        }
        if levels == 0 || rank == 6 && locations.sizes[3] != levels as i64 {
            let expected = match rank {
                6 if levels > 0 || locations.sizes[3] > 0 => {
                    format!("{}, as in {} of {}", locations.sizes[3], locations.name, locations.shape())
                }
                _ => "at least 1".to_owned(),
            };
            return Err(Refused::value(SHAPES, format!("{levels} levels"), expected));
        }
        Ok(())
    }

    /// Batch and heads, which value, locations and weights share: if two of them agree, the third
    /// is wrong.
    fn check_common_sizes(&self) -> Result<()> {
        let Self { value, locations, weights, .. } = self;
        for (dim, what) in [(0, "batch"), (2, "heads")] {
            let size = |tensor: &Tensor<'_>| tensor.sizes.get(dim).copied().unwrap_or(-1);
            let [v, l, w] = [value, locations, weights].map(size);
            let (wrong, first, second) = if v != l && l == w {
                (value, locations, weights)
            } else if v != l && v == w {
                (locations, value, weights)
            } else {
                continue;
            };
            let turned = dim == 2 && value.sizes[1] == l;
            let hint = if turned { "\nhint: value is (batch, positions, heads, channels)" } else { "" };
            let got = format!("{} with {what} {}", wrong.shape(), size(wrong));
            let expected = format!("{}, as in {} and {}{hint}", size(first), first.name, second.name);
            return Err(Refused::value(wrong.name, got, expected));
        }
        Ok(())
    }

    /// Frameworks count every position: a sum of sizes that differs is a mistake of the caller.
    fn check_positions(&self, spec: &Spec) -> Result<()> {
        let (LevelSizes::Host(shapes, None), Some(positions)) = (&self.levels, spec.positions) else {
            return Ok(());
        };
        let sum = shapes.iter().try_fold(0usize, |sum, &(h, w)| sum.checked_add(h.checked_mul(w)?));
        if sum == Some(positions) {
            return Ok(());
        }
        let sum =
            sum.map_or("a sum below 2**64 of".to_owned(), |sum| format!("{sum} positions, the sum over"));
        let expected = format!("{sum} spatial_shapes {shapes:?}");
        Err(Refused::value(self.value.name, format!("{positions} positions"), expected))
    }

    fn points(&self, levels: usize) -> Result<Vec<usize>> {
        let locations = &self.locations;
        let rank6 = locations.sizes.len() == 6;
        if self.points == 0 {
            let all = locations.size(if rank6 { 4 } else { 3 })?;
            if rank6 || levels == 1 {
                return Ok(vec![all; levels]);
            }
            let expected = format!(
                "6 dimensions (batch, queries, heads, levels, points, 2), or the argument `points` \
                 with the number of each of the {levels} levels"
            );
            return Err(Refused::value(locations.name, locations.shape(), expected));
        }
        if rank6 {
            let expected = "5 dimensions (batch, queries, heads, samples, 2) when `points` is given";
            return Err(Refused::value(locations.name, locations.shape(), expected));
        }
        if levels > 8 {
            return Err(Refused::value("points", format!("{levels} levels"), "at most 8 levels"));
        }
        let bytes = self.points.to_le_bytes();
        if bytes[levels..].iter().any(|&n| n > 0) {
            return Err(Refused::value("points", "more numbers", format!("{levels}, one per level")));
        }
        Ok(bytes[..levels].iter().map(|&n| usize::from(n)).collect())
    }

    /// The kind of the reference points of the fused form.
    pub(crate) fn reference_kind(&self) -> Option<ReferenceKind> {
        self.reference.as_ref().map(|reference| match reference.sizes.last() {
            Some(4) => ReferenceKind::Box,
            _ => ReferenceKind::Point,
        })
    }

    /// Refuses a gradient of the output that does not belong to the problem.
    pub(crate) fn check_grad(&self, problem: &Problem, grad: &Tensor<'_>) -> Result<()> {
        let row = problem.heads() * problem.channels();
        let expected = [problem.batch(), problem.queries(), row].map(|n| n as i64);
        grad.expect_shape(&expected, "(batch, queries, heads * channels)")?;
        if grad.dtype != self.value.dtype {
            return Err(Refused::wrong_type(grad.name, grad.dtype, self.value.dtype));
        }
        Ok(())
    }

    /// The outer strides of a gradient of the output, as `(B, Q, H, D)`.
    pub(crate) fn grad_strides(&self, grad: &Tensor<'_>) -> Result<Strides> {
        if !grad.dense_from(2) {
            // A wrong shape is the better reason.
            self.check_grad(&self.problem()?, grad)?;
            let got = format!("strides {:?}", grad.all_strides());
            return Err(Refused::value(grad.name, got, "a contiguous last dimension"));
        }
        let [batch, query, _] = grad.outer()?;
        Ok([batch, query, self.value.sizes.last().map_or(0, |&n| n as usize)])
    }

    /// The outer strides of the inputs. Inner dimensions must be contiguous.
    pub(crate) fn strides(&self) -> Result<InputStrides> {
        for tensor in [Some(&self.value), Some(&self.locations), Some(&self.weights), self.reference.as_ref()]
            .into_iter()
            .flatten()
        {
            if !tensor.dense_from(3) {
                // A wrong shape is the better reason.
                self.problem()?;
                let got = format!("strides {:?} of shape {:?}", tensor.all_strides(), tensor.sizes);
                return Err(Refused::value(tensor.name, got, "contiguous inner dimensions"));
            }
        }
        Ok(InputStrides {
            value: self.value.outer()?,
            locations: self.locations.outer()?,
            weights: self.weights.outer()?,
            reference: self.reference.as_ref().map(Tensor::outer).transpose()?,
        })
    }
}

/// An error of a problem, with the argument in front that its subject belongs to.
fn named(error: msda::Error, call: &Call<'_>) -> Refused {
    let subject = error.subject();
    let argument = match subject {
        "channels" | "positions" | "size of value" => call.value.name,
        "size of locations" | "type of locations" => call.locations.name,
        "type of weights" => call.weights.name,
        "size of reference" => "reference_points",
        _ if subject.contains("start") || subject.starts_with("end of level") => STARTS,
        _ if subject.contains("level") => SHAPES,
        _ => return error.into(),
    };
    let refused = Refused::from(error);
    Refused::new(refused.kind, format!("{argument}: {}", refused.message))
}

/// The gradients that a backward pass computes: a sum of 1 (value), 2 (locations), 4 (weights) and
/// 8 (reference points).
#[derive(Debug, Clone, Copy)]
pub struct Wanted(pub i64);

impl Wanted {
    pub(crate) const VALUE: i64 = 1;
    pub(crate) const LOCATIONS: i64 = 2;
    pub(crate) const WEIGHTS: i64 = 4;
    pub(crate) const REFERENCE: i64 = 8;

    /// Whether a bit is set.
    pub fn has(self, bit: i64) -> bool {
        self.0 & bit != 0
    }
}
