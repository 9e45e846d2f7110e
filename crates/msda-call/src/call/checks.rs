//! The checks of a call: each names the argument, what was got and what was expected.

use msda::{Argument, Problem, Strides};

use super::{Call, LevelSizes, SHAPES, STARTS, Tensor, names};
use crate::error::{Refused, Result};

impl Call<'_> {
    /// Refuses what makes all other sizes misleading: other ranks, coordinates that are no pairs,
    /// and another number of levels.
    pub(super) fn check_ranks(&self) -> Result<()> {
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
        if locations.sizes[rank - 1] != 2 {
            let swapped = weights.sizes.len() == rank + 1 && weights.sizes[rank] == 2;
            let hint = format!("\nhint: {} and {} are swapped", locations.name, weights.name);
            let expected = format!("a last dimension of 2: x and y{}", if swapped { &hint } else { "" });
            return Err(Refused::value(locations.name, locations.shape(), expected));
        }
        let (levels, dimension) = (self.levels.len(), (rank == 6).then_some(locations.sizes[3]));
        if levels > 0 && dimension.is_none_or(|dimension| dimension == levels as i64) {
            return Ok(());
        }
        let expected = match dimension {
            Some(dimension) if levels > 0 || dimension > 0 => {
                format!("{dimension}, as in {} of {}", locations.name, locations.shape())
            }
            _ => "at least 1".to_owned(),
        };
        Err(Refused::value(SHAPES, format!("{levels} levels"), expected))
    }

    /// Batch and heads, which value, locations and weights share: if two of them agree, the third
    /// is wrong.
    pub(super) fn check_common_sizes(&self) -> Result<()> {
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

    /// Points on each level, of which the call has at least one.
    pub(super) fn points_per_level(&self) -> Result<Vec<usize>> {
        let (locations, levels) = (&self.locations, self.levels.len());
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

    /// The shapes of weights, locations and reference points.
    pub(super) fn check_shapes(&self, points: &[usize]) -> Result<()> {
        let Self { value, locations, weights, .. } = self;
        let (batch, queries, heads) = (value.sizes[0], locations.sizes[1], value.sizes[2]);
        let levels = self.levels.len() as i64;
        let (mut expected, words) = match *locations.sizes {
            [_, _, _, _, points, _] => {
                (vec![batch, queries, heads, levels, points], "batch, queries, heads, levels, points")
            }
            _ => {
                // At most 8 bytes, or the points of one level: the sum fits.
                let samples = points.iter().sum::<usize>() as i64;
                (vec![batch, queries, heads, samples], "batch, queries, heads, samples")
            }
        };
        weights.check_shape(&expected, words)?;
        expected.push(2);
        locations.check_shape(&expected, format_args!("{words}, 2"))?;
        if let Some(reference) = &self.reference {
            let numbers = if reference.sizes.last() == Some(&4) { 4 } else { 2 };
            reference.check_shape(&[batch, queries, levels, numbers], "batch, queries, levels, 2 or 4")?;
            reference.check_type(locations.dtype)?;
        }
        Ok(())
    }

    /// Frameworks count every position: a sum of sizes that differs is a mistake of the caller.
    pub(super) fn check_positions(&self, positions: usize) -> Result<()> {
        let expected = match &self.levels {
            LevelSizes::Host(shapes, None) => {
                let sum = shapes.iter().try_fold(0usize, |sum, &(h, w)| sum.checked_add(h.checked_mul(w)?));
                match sum {
                    Some(sum) if sum == positions => return Ok(()),
                    Some(sum) => format!("{sum} positions, the sum over spatial_shapes {shapes:?}"),
                    None => format!("a sum below 2**64 of spatial_shapes {shapes:?}"),
                }
            }
            LevelSizes::Device { levels, .. } if *levels > positions => {
                format!("at least {levels}, one per level")
            }
            _ => return Ok(()),
        };
        Err(Refused::value(self.value.name, format!("{positions} positions"), expected))
    }

    /// An error of the problem, with the name of the argument in front.
    pub(super) fn named(&self, error: msda::Error) -> Refused {
        let name = match error.argument() {
            Some(Argument::Value) => self.value.name,
            Some(Argument::Locations) => self.locations.name,
            Some(Argument::Weights) => self.weights.name,
            Some(Argument::Reference) => names(true)[1],
            Some(Argument::Levels) => SHAPES,
            Some(Argument::Starts) => STARTS,
            _ => return error.into(),
        };
        let refused = Refused::from(error);
        Refused::new(refused.kind, format!("{name}: {}", refused.message))
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

    /// Refuses a gradient of the output that does not belong to the problem.
    pub(crate) fn check_grad(&self, problem: &Problem, grad: &Tensor<'_>) -> Result<()> {
        let row = problem.heads() * problem.channels();
        let expected = [problem.batch(), problem.queries(), row].map(|n| n as i64);
        grad.check_shape(&expected, "batch, queries, heads * channels")?;
        grad.check_type(self.value.dtype)
    }

    /// The outer strides of an input. Inner dimensions must be contiguous.
    pub(crate) fn strides(&self, input: &Tensor<'_>) -> Result<Strides> {
        input.outer(3).or_else(|refused| {
            // A wrong shape is the better reason.
            self.problem()?;
            Err(refused)
        })
    }

    /// The outer strides of a gradient of the output, as `(B, Q, H, D)`.
    pub(crate) fn grad_strides(&self, grad: &Tensor<'_>) -> Result<Strides> {
        let outer = grad.outer(2).or_else(|refused| {
            // A wrong shape is the better reason.
            self.check_grad(&self.problem()?, grad)?;
            Err(refused)
        });
        let [batch, query, _] = outer?;
        Ok([batch, query, self.value.sizes.last().map_or(0, |&n| n as usize)])
    }
}
