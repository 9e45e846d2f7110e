//! The backward pass, in two parts that share nothing but their inputs.
//!
//! Gradients of locations and weights belong to a query ([`chain`](super::chain)); the gradient of value belongs to a place
//! ([`scatter`](super::scatter)). Neither needs atomics, and no bit depends on the number of threads.

use super::chain::CoordinateOut;
use super::rows::RowsOut;
use super::simd::{Lane, MAX_LANES};
use super::{Call, Shared, order};
use crate::op::{GradientStrides, Gradients, Tensor};
use crate::problem::Problem;
use crate::view::Strides;

impl Call<'_> {
    pub(super) fn backward<T: Lane>(
        &self,
        upstream: Tensor<'_>,
        gradients: Gradients<'_>,
        strides: GradientStrides,
    ) {
        let Gradients { value, locations, weights, reference } = gradients;
        let order = if self.rows.p.output_len() == 0 { Vec::new() } else { order::queries(&self.rows) };
        if let (Some(to), Some(strides)) = (value, strides.value) {
            let to = Shared(T::slice_mut(to.data).expect("checked").as_mut_ptr());
            self.value_gradient::<T>(&order, upstream, to, strides);
        }
        let rows_out = |view: Option<crate::ViewMut<'_>>, strides: Option<Strides>| {
            view.zip(strides).map(|(view, strides)| (RowsOut::<T>::new(view.data), strides))
        };
        let to = CoordinateOut {
            locations: rows_out(locations, strides.locations),
            weights: rows_out(weights, strides.weights),
            reference: rows_out(reference, strides.reference),
        };
        if to.locations.is_some() || to.weights.is_some() || to.reference.is_some() {
            self.coordinate_gradients::<T>(&order, upstream, to);
        }
    }
}

/// Channels of the output's gradient in working memory: whole registers of any instruction set.
pub(super) fn padded(p: &Problem) -> usize {
    p.channels().next_multiple_of(MAX_LANES)
}
