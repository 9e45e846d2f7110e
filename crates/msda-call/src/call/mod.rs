//! A call as frameworks make it: tensors with sizes and strides, turned into a [`Problem`].

mod checks;
mod levels;
mod tensor;

use msda::{Layout, Padding, Problem, ReferenceKind, Sampling, Spec, Types};

pub use self::levels::{LevelSizes, SHAPES, STARTS};
pub use self::tensor::{MOST_DIMENSIONS, Tensor, dense_stride};
use crate::error::{Kind, Refused, Result};

/// An option: the nearest pixel instead of a bilinear sample.
pub const NEAREST: i64 = 1;
/// An option: locations are moved onto the level instead of reading zeros off it.
pub const BORDER: i64 = 2;
/// An option: 0 and 1 are the centres of the corner pixels instead of the edges of the level.
pub const ALIGN_CORNERS: i64 = 4;

/// The names of the floating-point inputs. The fused form has reference points behind value.
pub const fn names(fused: bool) -> &'static [&'static str] {
    match fused {
        false => &["value", "sampling_locations", "attention_weights"],
        true => &["value", "reference_points", "sampling_offsets", "attention_logits"],
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
    /// A sum of [`NEAREST`], [`BORDER`] and [`ALIGN_CORNERS`].
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

impl Call<'_> {
    /// The problem that the sizes of the tensors describe.
    pub fn problem(&self) -> Result<Problem> {
        self.check_ranks()?;
        self.check_common_sizes()?;
        let points = self.points_per_level()?;
        self.check_shapes(&points)?;
        if self.options & !(NEAREST | BORDER | ALIGN_CORNERS) != 0 {
            let expected = "a sum of 1 (nearest), 2 (border) and 4 (align_corners)";
            return Err(Refused::value("options", self.options, expected));
        }
        let has = |option| self.options & option != 0;
        let Self { value, locations, weights, .. } = self;
        let positions = value.size(1)?;
        self.check_positions(positions)?;
        let (levels, starts) = match &self.levels {
            LevelSizes::Host(shapes, starts) => (shapes.clone(), starts.clone()),
            // Placeholders: only their number counts.
            LevelSizes::Device { levels, .. } => (vec![(1, 1); *levels], None),
        };
        let problem = Problem::new(Spec {
            batch: value.size(0)?,
            queries: locations.size(1)?,
            heads: value.size(2)?,
            channels: value.size(3)?,
            levels,
            points,
            starts,
            positions: Some(positions),
            sampling: if has(NEAREST) { Sampling::Nearest } else { Sampling::Bilinear },
            padding: if has(BORDER) { Padding::Border } else { Padding::Zeros },
            align_corners: has(ALIGN_CORNERS),
            layout: Layout::Bshd,
            types: Types { value: value.dtype, locations: locations.dtype, weights: weights.dtype },
        });
        problem.map_err(|error| self.named(error))
    }

    /// The kind of the reference points of the fused form.
    pub(crate) fn reference_kind(&self) -> Option<ReferenceKind> {
        self.reference.as_ref().map(|reference| match reference.sizes.last() {
            Some(4) => ReferenceKind::Box,
            _ => ReferenceKind::Point,
        })
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
}
