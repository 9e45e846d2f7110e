//! The operator on several devices: images, or heads of an image, are divided among them.
#![allow(unsafe_code)]

use std::ops::Range;

use msda::backend::{Tensor, check_inputs, check_output, offset};
use msda::{
    Backend, Buffer, Error, ErrorKind, Gradients, Inputs, Problem, Reference, Result, Role, Slice, SliceMut,
    Strides, View, ViewMut,
};

use crate::driver::{Device, Memory, Stream};
use crate::plan::Plan;
use crate::request::{Request, Slot};
use crate::tensors::Tensors;

/// Several devices as one backend, for tensors in host memory.
///
/// The images of a call are divided among the devices; with fewer images than devices, the heads of
/// each image are too. Every device gets a copy of its own part only. A device may be given more
/// than once.
///
/// ```no_run
/// use msda::{Buffer, Dtype, Inputs, Problem, Spec};
/// use msda_cuda::{Split, driver::Device};
///
/// let devices = (0..Device::count()?).map(Device::open).collect::<msda::Result<Vec<_>>>()?;
/// let split = Split::new(&devices)?;
/// let problem = Problem::new(Spec {
///     batch: 8,
///     queries: 300,
///     heads: 8,
///     channels: 32,
///     levels: vec![(80, 80), (40, 40), (20, 20)],
///     points: vec![4, 4, 4],
///     ..Spec::default()
/// })?;
/// let value = Buffer::filled(Dtype::F32, problem.value_len(), 2.0);
/// let locations = Buffer::filled(Dtype::F32, problem.locations_len(), 0.5);
/// let weights = Buffer::filled(Dtype::F32, problem.weights_len(), 1.0 / 12.0);
/// let mut output = Buffer::filled(Dtype::F32, problem.output_len(), 0.0);
/// let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
/// split.run(&problem, &inputs, output.as_mut().into())?;
/// # Ok::<(), msda::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Split {
    devices: Vec<Device>,
}

/// The part of a call that one device computes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// Its images.
    images: Range<usize>,
    /// Its heads of these images.
    heads: Range<usize>,
}

impl Split {
    /// The devices, at least one.
    pub fn new(devices: &[Device]) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::new(ErrorKind::Device, "devices", "none", "at least one"));
        }
        Ok(Self { devices: devices.to_vec() })
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Computes the output. Every device has its work before the first is waited for.
    pub fn run(&self, problem: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        check_inputs(problem, inputs)?;
        let strides = check_output(problem, &output)?;
        if problem.output_len() == 0 {
            return Ok(());
        }
        let parts = parts(problem.batch(), problem.heads(), self.devices.len());
        // Copying and compiling take the host's time, so the devices are prepared side by side.
        let prepared: Vec<Prepared> = std::thread::scope(|scope| {
            let threads: Vec<_> = parts
                .into_iter()
                .zip(&self.devices)
                .map(|(part, device)| scope.spawn(|| Prepared::new(device, problem, inputs, part)))
                .collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Result<_>>()
        })?;
        for part in &prepared {
            part.launch()?;
        }
        // Nothing is written before every device has succeeded.
        let results = prepared.iter().map(Prepared::fetch).collect::<Result<Vec<Buffer>>>()?;
        for (part, result) in prepared.iter().zip(&results) {
            part.store(result, &mut output, strides);
        }
        Ok(())
    }
}

/// Divides images and heads among devices. Images are divided first. With fewer images than
/// devices, each image gets some of the devices, and they share its heads.
fn parts(images: usize, heads: usize, devices: usize) -> Vec<Part> {
    if images >= devices {
        let ranges = ranges(images, devices);
        return ranges.map(|images| Part { images, heads: 0..heads }).collect();
    }
    let image = |(image, devices): (usize, Range<usize>)| {
        let ranges = ranges(heads, devices.len().min(heads));
        ranges.map(move |heads| Part { images: image..image + 1, heads })
    };
    ranges(devices, images).enumerate().flat_map(image).collect()
}

/// `count` ranges of about the same length that cover `0..total`.
fn ranges(total: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).map(move |i| total * i / count..total * (i + 1) / count)
}

/// A part on its device: its tensors, and the call that computes it.
#[derive(Debug)]
struct Prepared {
    part: Part,
    problem: Problem,
    // In this order: the stream is done before the memory is freed.
    stream: Stream,
    plan: Plan,
    tensors: Tensors,
    workspace: Memory,
}

impl Prepared {
    fn new(device: &Device, whole: &Problem, inputs: &Inputs<'_>, part: Part) -> Result<Self> {
        let problem = whole.with(|spec| {
            (spec.batch, spec.heads) = (part.images.len(), part.heads.len());
            spec.positions = Some(whole.positions());
        })?;
        let mut tensors = Tensors::new(device, &problem, &cut_inputs(whole, &problem, inputs, &part)?)?;
        tensors.allocate(device, &problem, Slot::Output)?;
        let plan = Plan::new(device, &Request::new(&problem, &tensors.operands()))?;
        let workspace = device.alloc(plan.workspace())?;
        Ok(Self { part, problem, stream: device.stream()?, plan, tensors, workspace })
    }

    fn launch(&self) -> Result<()> {
        // SAFETY: the tensors are on the plan's device, checked against the problem and ours; they
        // live until `fetch` or `drop` has waited for the stream.
        unsafe { self.plan.launch(&self.tensors.addresses(&self.workspace), self.stream.handle()) }
    }

    /// Waits for the device and copies its output, which is dense.
    fn fetch(&self) -> Result<Buffer> {
        self.stream.synchronize()?;
        let mut result = self.tensors.zeros(&self.problem, Slot::Output)?;
        self.tensors.fetch(Slot::Output, &mut result.as_mut().into())?;
        Ok(result)
    }

    /// Stores the rows of its output where they belong.
    fn store(&self, result: &Buffer, output: &mut ViewMut<'_>, strides: Strides) {
        let dense = Role::Output.dense(&self.problem);
        let channels = self.problem.channels();
        Role::Output.for_each_row(&self.problem, |[image, query, head]| {
            let from = offset(dense, [image, query, head]);
            let to = offset(strides, [self.part.images.start + image, query, self.part.heads.start + head]);
            copy(&mut output.data, to, &result.as_slice(), from, channels);
        });
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // After an error of another device this one may still compute. An error of its own was
        // returned by `fetch`, or does not matter any more.
        let _ = self.stream.synchronize();
    }
}

/// The inputs of a part, as views of the whole tensors.
fn cut_inputs<'a>(whole: &Problem, part: &Problem, inputs: &Inputs<'a>, at: &Part) -> Result<Inputs<'a>> {
    let args = check_inputs(whole, inputs)?;
    let (image, head) = (at.images.start, at.heads.start);
    let cut = |role: Role, tensor: Tensor<'a>, head| {
        let (extents, inner) = role.shape(part);
        let last = extents.map(|extent| extent.saturating_sub(1));
        let span = if extents.contains(&0) { 0 } else { offset(tensor.strides, last) + inner };
        let data = slice(tensor.data.tail(offset(tensor.strides, [image, 0, head])), span);
        View { data, strides: Some(tensor.strides) }
    };
    Ok(Inputs {
        value: cut(Role::Value, args.value, head),
        locations: cut(Role::Locations, args.locations, head),
        weights: cut(Role::Weights, args.weights, head),
        reference: args
            .reference
            // Heads share the reference points.
            .map(|(kind, tensor)| Reference { kind, view: cut(Role::Reference(kind), tensor, 0) }),
    })
}

/// The first `len` elements.
fn slice(data: Slice<'_>, len: usize) -> Slice<'_> {
    match data {
        Slice::F64(s) => Slice::F64(&s[..len]),
        Slice::F32(s) => Slice::F32(&s[..len]),
        Slice::F16(s) => Slice::F16(&s[..len]),
        Slice::Bf16(s) => Slice::Bf16(&s[..len]),
    }
}

/// Copies `len` elements of the same type.
fn copy(to: &mut SliceMut<'_>, at: usize, from: &Slice<'_>, start: usize, len: usize) {
    match (to, from) {
        (SliceMut::F64(to), Slice::F64(from)) => to[at..at + len].copy_from_slice(&from[start..start + len]),
        (SliceMut::F32(to), Slice::F32(from)) => to[at..at + len].copy_from_slice(&from[start..start + len]),
        (SliceMut::F16(to), Slice::F16(from)) => to[at..at + len].copy_from_slice(&from[start..start + len]),
        (SliceMut::Bf16(to), Slice::Bf16(from)) => {
            to[at..at + len].copy_from_slice(&from[start..start + len])
        }
        _ => unreachable!("the output was checked against the problem"),
    }
}

impl Backend for Split {
    fn name(&self) -> String {
        let devices: Vec<String> = self.devices.iter().map(|d| d.ordinal().to_string()).collect();
        format!("cuda on devices {}", devices.join(", "))
    }

    fn computes_gradients(&self) -> bool {
        false
    }

    fn forward(&self, problem: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        self.run(problem, inputs, output)
    }

    fn backward(
        &self,
        problem: &Problem,
        _inputs: &Inputs<'_>,
        _grad_output: View<'_>,
        _gradients: Gradients<'_>,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "backward on CUDA", problem, "the forward pass")
            .hint("the CPU backend computes gradients"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msda::Spec;

    #[test]
    fn parts_cover_every_image_and_head_once() {
        for images in 1..6 {
            for heads in 1..6 {
                for devices in 1..9 {
                    let parts = parts(images, heads, devices);
                    let mut covered = vec![0; images * heads];
                    for part in &parts {
                        assert!(!part.images.is_empty() && !part.heads.is_empty(), "{part:?}");
                        for image in part.images.clone() {
                            part.heads.clone().for_each(|head| covered[image * heads + head] += 1);
                        }
                    }
                    let what = format!("{images} images, {heads} heads, {devices} devices: {parts:?}");
                    assert!(covered.iter().all(|&n| n == 1), "{what}");
                    assert!(parts.len() <= devices, "{what}");
                    assert!(parts.len() == devices || images * heads < devices || heads < devices, "{what}");
                }
            }
        }
        let heads = |part: &Part| part.heads.clone();
        assert_eq!(parts(2, 8, 5).iter().map(heads).collect::<Vec<_>>(), [0..4, 4..8, 0..2, 2..5, 5..8]);
    }

    #[test]
    fn a_part_has_its_own_elements_and_no_more() {
        let spec = |batch, heads| Spec {
            batch,
            queries: 3,
            heads,
            channels: 2,
            levels: vec![(2, 2)],
            points: vec![1],
            ..Spec::default()
        };
        let (whole, part) = (Problem::new(spec(3, 4)).unwrap(), Problem::new(spec(1, 2)).unwrap());
        let numbers = |len: usize| (0..len).map(|i| i as f32).collect::<Vec<f32>>();
        let (value, locations, weights) =
            (numbers(whole.value_len()), numbers(whole.locations_len()), numbers(whole.weights_len()));
        let inputs = Inputs::plain(&value[..], &locations[..], &weights[..]);
        let at = Part { images: 1..2, heads: 2..4 };
        let cut = cut_inputs(&whole, &part, &inputs, &at).unwrap();
        let args = check_inputs(&part, &cut).unwrap();
        // Position 3, head 1 of the part is position 3, head 3 of image 1.
        let last = args.value.at([0, 3, 1]);
        assert_eq!(args.value.data.get(last), ((7 * 4 + 3) * 2) as f64);
        assert_eq!(args.value.data.len(), last + 2);
        assert_eq!(args.weights.data.get(args.weights.at([0, 2, 0])), ((3 + 2) * 4 + 2) as f64);
    }
}
