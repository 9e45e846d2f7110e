//! The work of an engine: a problem with its tensors, and a pass.

use anyhow::Result;
use msda::{Buffer, Gradients, Inputs, Problem, View, ViewMut, backend};

use crate::record::Pass;
use crate::workload::Data;

/// A problem, its inputs, and a pass.
#[derive(Debug, Clone)]
pub struct Task<'a> {
    /// The data that it uses: [`Data::id`].
    pub data: u64,
    /// The problem.
    pub problem: Problem,
    /// Its inputs.
    pub inputs: Inputs<'a>,
    /// The gradient of the output, for the backward pass.
    pub grad_output: View<'a>,
    /// The pass.
    pub pass: Pass,
    /// The image, the head and the step between queries, if it is a part of the data.
    pub part: Option<[usize; 3]>,
}

/// The results of a task: the output, or the gradients of value, locations and weights. Dense.
#[derive(Debug, Clone)]
pub struct Results(pub Vec<Buffer>);

/// Identifies the tensors of a task: the data, and a part of it.
pub type Key = (u64, Option<[usize; 3]>);

impl<'a> Task<'a> {
    /// All of a workload's data.
    pub fn whole(data: &'a Data, pass: Pass) -> Self {
        Self {
            data: data.id,
            problem: data.problem.clone(),
            inputs: Inputs::plain(data.value.as_slice(), data.locations.as_slice(), data.weights.as_slice()),
            grad_output: data.grad_output.as_slice().into(),
            pass,
            part: None,
        }
    }

    /// Every `step`-th query of one image and head, over the same memory.
    pub fn sampled(&self, image: usize, head: usize, step: usize) -> Result<Self> {
        let p = &self.problem;
        let (plane, mut inputs) = backend::plane(p, &self.inputs, image, head)?;
        let problem = plane.with(|s| s.queries = s.queries.div_ceil(step))?;
        let every = |mut view: View<'a>| {
            if let Some(strides) = &mut view.strides {
                strides[1] *= step;
            }
            view
        };
        inputs.locations = every(inputs.locations);
        inputs.weights = every(inputs.weights);
        let dense = msda::Role::Output.dense(p);
        let strides = self.grad_output.strides.unwrap_or(dense);
        let first = backend::offset(strides, [image, 0, head]);
        let grad_output = every(View { data: self.grad_output.data.tail(first), strides: Some(strides) });
        Ok(Self { problem, inputs, grad_output, part: Some([image, head, step]), ..*self })
    }

    /// The key of the task.
    pub fn key(&self) -> Key {
        (self.data, self.part)
    }

    /// Memory for the results, filled with NaN, so that unwritten elements are noticed.
    pub fn poisoned(&self) -> Results {
        let (p, t) = (&self.problem, self.problem.types());
        Results(match self.pass {
            Pass::Forward => vec![Buffer::filled(t.value, p.output_len(), f64::NAN)],
            Pass::Backward => vec![
                Buffer::filled(t.value, p.value_len(), f64::NAN),
                Buffer::filled(t.locations, p.locations_len(), f64::NAN),
                Buffer::filled(t.weights, p.weights_len(), f64::NAN),
            ],
        })
    }

    /// Runs the task on a backend.
    pub fn run(&self, backend: &dyn msda::Backend, results: &mut Results) -> msda::Result<()> {
        match self.pass {
            Pass::Forward => backend.forward(&self.problem, &self.inputs, results.0[0].as_mut().into()),
            Pass::Backward => {
                let [value, locations, weights] = results.0.as_mut_slice() else {
                    unreachable!("a backward task has three results")
                };
                let to = Gradients {
                    value: Some(ViewMut::from(value.as_mut())),
                    locations: Some(ViewMut::from(locations.as_mut())),
                    weights: Some(ViewMut::from(weights.as_mut())),
                    reference: None,
                };
                backend.backward(&self.problem, &self.inputs, self.grad_output, to)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use msda::Dtype;

    use super::*;
    use crate::workload::Workload;

    /// Freed memory is reused at the same address, perhaps for a problem of the same name.
    #[test]
    fn new_data_has_a_new_key() {
        let small = Workload::find("small").unwrap();
        let key = || Task::whole(&small.data(Dtype::F32).unwrap(), Pass::Forward).key();
        assert_ne!(key(), key());
        let data = small.data(Dtype::F32).unwrap();
        let [forward, backward] = [Pass::Forward, Pass::Backward].map(|pass| Task::whole(&data, pass).key());
        assert_eq!(forward, backward);
    }
}
