//! Calls with a mistake: each must be refused, with nothing written.

use super::data::{Case, POISON, Wrong};
use super::judge::{Outputs, Verdict};
use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::op::{Backend, Inputs, Reference, ReferenceKind};
use crate::view::{Role, View, ViewMut};

/// Runs the call of a case with one mistake, forward and backward as far as both are affected.
pub(super) fn must_refuse(backend: &dyn Backend, case: &Case, wrong: Wrong) -> Verdict<()> {
    let p = &case.problem;
    let t = p.types();
    // A type that the problem does not have.
    let other = if t.value == Dtype::F64 { Dtype::F16 } else { Dtype::F64 };
    let filled = |dtype, len| Buffer::filled(dtype, len, 0.25);
    let short_value = filled(t.value, p.value_len() - 1);
    let long_locations = filled(t.locations, p.locations_len() + 2);
    let short_weights = filled(t.weights, p.weights_len() - 1);
    let short_reference = filled(t.locations, 1);
    let short_upstream = filled(t.value, p.output_len() - 1);
    let other_value = filled(other, p.value_len());
    let other_locations = filled(other, p.locations_len());
    let other_upstream = filled(other, p.output_len());
    let mut other_output = Buffer::filled(other, p.output_len(), POISON);
    let other_len = match wrong {
        Wrong::GradientType(k) => [p.value_len(), p.locations_len(), p.weights_len()][k],
        _ => 0,
    };
    let mut other_grad = Buffer::filled(other, other_len, POISON);
    let mut stray = Buffer::filled(t.locations, p.reference_len(2), POISON);
    let mut out = Outputs::new(case);
    let mut inputs = case.inputs();
    let mut upstream = case.grad_output.view();

    // Mistakes in the inputs concern both passes.
    let mut forward = true;
    let mut backward = true;
    {
        let Inputs { value, locations, weights, reference, .. } = &mut inputs;
        let [a, b, c] = Role::Value.dense(p);
        match wrong {
            Wrong::ValueLength => *value = View::from(&short_value),
            Wrong::LocationsLength => *locations = View::from(&long_locations),
            Wrong::WeightsLength => *weights = View::from(&short_weights),
            Wrong::ValueType => *value = View::from(&other_value),
            Wrong::LocationsType => *locations = View::from(&other_locations),
            Wrong::StridesOverrun => *value = value.strided([a, b + 1, c]),
            Wrong::StridesOverflow => *value = value.strided([usize::MAX / 2, usize::MAX / 2, 1]),
            Wrong::ReferenceLength => {
                let view = View::from(&short_reference);
                *reference = Some(Reference { kind: ReferenceKind::Point, view });
            }
            Wrong::OutputLength | Wrong::OutputType | Wrong::OutputOverlaps => backward = false,
            _ => forward = false,
        }
    }
    match wrong {
        Wrong::UpstreamLength => upstream = View::from(&short_upstream),
        Wrong::UpstreamType => upstream = View::from(&other_upstream),
        _ => {}
    }
    if forward {
        let [a, b, _] = Role::Output.dense(p);
        let output = match wrong {
            Wrong::OutputLength => shorter(out.views().0),
            Wrong::OutputType => ViewMut::from(&mut other_output),
            Wrong::OutputOverlaps => out.views().0.strided([a, b, 1]),
            _ => out.views().0,
        };
        refused("forward", wrong, backend.forward(p, &inputs, output))?;
    }
    if backward {
        let (_, mut gradients) = out.views();
        let slots = [&mut gradients.value, &mut gradients.locations, &mut gradients.weights];
        let roles = [Role::Value, Role::Locations, Role::Weights];
        let mut other_view = Some(ViewMut::from(&mut other_grad));
        for (i, slot) in slots.into_iter().enumerate() {
            let [a, b, _] = roles[i].dense(p);
            *slot = match wrong {
                Wrong::GradientLength(k) if k == i => slot.take().map(shorter),
                Wrong::GradientType(k) if k == i => other_view.take(),
                Wrong::GradientOverlaps(k) if k == i => slot.take().map(|v| v.strided([a, b, 1])),
                _ => slot.take(),
            };
        }
        if wrong == Wrong::ReferenceInPlainForm {
            gradients.reference = Some(ViewMut::from(&mut stray));
        }
        refused("backward", wrong, backend.backward(p, &inputs, upstream, gradients))?;
    }

    let held = out.0.iter().flatten().map(|(_, held)| &held.buffer);
    let clean = |buffer: &Buffer| buffer.to_f64().iter().all(|&x| x == POISON);
    if !held.chain([&other_output, &other_grad, &stray]).all(clean) {
        return Err(format!("{wrong:?} was refused, but something was written"));
    }
    Ok(())
}

/// The tensor without its first element.
fn shorter(mut view: ViewMut<'_>) -> ViewMut<'_> {
    view.data = view.data.tail(1);
    view
}

/// The call must have failed, with a message that names what it got and what it expected.
fn refused(pass: &str, wrong: Wrong, result: crate::Result<()>) -> Verdict<()> {
    let Err(error) = result else { return Err(format!("{pass} accepted {wrong:?}")) };
    let message = error.to_string();
    if message.contains("got") && message.contains("expected") {
        return Ok(());
    }
    Err(format!("the error of {pass} does not say what it got and expected: {message}"))
}
