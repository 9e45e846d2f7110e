//! Calls: their tensors on the host and on the device, their plans, and what the oracle allows.

use std::sync::OnceLock;

use msda::conformance::{Budget, Budgeted, compare};
use msda::rng::Rng;
use msda::{
    Backend, Buffer, Dtype, GradientBuffers, Inputs, Layout, Problem, ReferenceKind, Spec, Types, View,
};
use msda_cuda::driver::{Device, Memory, Stream, StreamHandle};
use msda_cuda::{Addresses, Cuda, Operands, Pass, Plan, Request, Slot, Wanted};

/// A level with 1,664 bins: `sort.cu` sorts its samples by counting if bins have few of them.
pub(crate) const MANY_BINS: (usize, usize) = (64, 100);

pub(crate) fn spec(queries: usize, dtype: Dtype) -> Spec {
    Spec {
        batch: 2,
        queries,
        heads: 4,
        channels: 32,
        levels: vec![(20, 30), (10, 15), (5, 8)],
        points: vec![4, 4, 4],
        types: Types::uniform(dtype),
        ..Spec::default()
    }
}

/// Calls of every kind: few and many queries, the pixels of the levels, planes, a level with many
/// bins, both forms.
pub(crate) fn calls() -> Vec<Given> {
    let many_bins = vec![MANY_BINS, (10, 15), (5, 8)];
    vec![
        Given::new(spec(300, Dtype::F16)),
        Given::new(spec(6000, Dtype::F32)),
        Given::new(spec(790, Dtype::Bf16)),
        Given::new(Spec { layout: Layout::Planar, ..spec(2000, Dtype::F16) }),
        Given::new(Spec { levels: many_bins.clone(), ..spec(1500, Dtype::F32) }),
        Given::new(Spec { levels: many_bins, ..spec(1500, Dtype::F64) }),
        Given::fused(spec(300, Dtype::F16), ReferenceKind::Point),
        Given::fused(spec(2000, Dtype::F32), ReferenceKind::Box),
    ]
}

/// The host tensors of a call.
pub(crate) struct Given {
    pub(crate) problem: Problem,
    pub(crate) value: Buffer,
    pub(crate) locations: Buffer,
    pub(crate) weights: Buffer,
    pub(crate) reference: Option<(ReferenceKind, Buffer)>,
    pub(crate) grad_output: Buffer,
    /// Whether pixel coordinates are exact, so that rounding a location is no excuse.
    pub(crate) exact: bool,
    /// What the oracle allows. It is computed at the first check: change tensors before.
    output: OnceLock<Budgeted>,
    gradients: OnceLock<[Budgeted; 4]>,
}

impl Given {
    /// Random numbers. Some samples are off the map.
    pub(crate) fn new(spec: Spec) -> Self {
        let problem = Problem::new(spec).unwrap();
        let mut rng = Rng::new(7);
        let (p, t) = (&problem, problem.types());
        let value = Buffer::from_fn(t.value, p.value_len(), |_| rng.unit() * 2.0 - 1.0);
        let locations = Buffer::from_fn(t.locations, p.locations_len(), |_| rng.unit() * 1.1 - 0.05);
        let weights = Buffer::from_fn(t.weights, p.weights_len(), |_| rng.unit() / p.samples() as f64);
        let grad_output = Buffer::from_fn(t.value, p.output_len(), |_| rng.unit() * 2.0 - 1.0);
        Self::of(problem, [value, locations, weights, grad_output])
    }

    /// These tensors: value, locations, weights, gradient of the output.
    pub(crate) fn of(problem: Problem, [value, locations, weights, grad_output]: [Buffer; 4]) -> Self {
        let (reference, exact) = (None, false);
        let (output, gradients) = Default::default();
        Self { problem, value, locations, weights, reference, grad_output, exact, output, gradients }
    }

    /// The fused form: reference points, offsets of a few pixels, logits.
    pub(crate) fn fused(spec: Spec, kind: ReferenceKind) -> Self {
        let mut given = Self::new(spec);
        let (p, t) = (&given.problem, given.problem.types());
        let mut rng = Rng::new(8);
        let reference = Buffer::from_fn(t.locations, p.reference_len(kind.dim()), |_| 0.1 + 0.8 * rng.unit());
        given.locations = Buffer::from_fn(t.locations, p.locations_len(), |_| rng.unit() * 6.0 - 3.0);
        given.weights = Buffer::from_fn(t.weights, p.weights_len(), |_| rng.unit() * 4.0 - 2.0);
        given.reference = Some((kind, reference));
        given
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        let (value, locations, weights) =
            (self.value.as_slice(), self.locations.as_slice(), self.weights.as_slice());
        match &self.reference {
            None => Inputs::plain(value, locations, weights),
            Some((kind, reference)) => Inputs::fused(value, *kind, reference.as_slice(), locations, weights),
        }
    }

    /// The backward pass with all gradients.
    pub(crate) fn backward(&self) -> Pass {
        let reference = self.reference.is_some();
        Pass::Backward(Wanted { value: true, locations: true, weights: true, reference })
    }

    pub(crate) fn passes(&self) -> [Pass; 2] {
        [Pass::Forward, self.backward()]
    }

    /// Calls `f` with the request of a pass.
    pub(crate) fn request<R>(&self, pass: Pass, f: impl FnOnce(Request<'_>) -> R) -> R {
        let kind = self.reference.as_ref().map(|(kind, _)| *kind);
        let operands = Operands::for_pass(&self.problem, kind, pass);
        f(Request { pass, ..Request::new(&self.problem, &operands) })
    }

    pub(crate) fn plan(&self, device: &Device, pass: Pass) -> Plan {
        self.request(pass, |request| Plan::new(device, &request)).unwrap()
    }

    /// The plan of a forward pass with this kernel.
    pub(crate) fn plan_of(&self, device: &Device, kernel: &str) -> Plan {
        let kernel = kernel.parse().unwrap();
        self.request(Pass::Forward, |request| Plan::with_kernel(device, &request, kernel)).unwrap()
    }

    /// What the oracle says about the output.
    pub(crate) fn output(&self) -> &Budgeted {
        self.output.get_or_init(|| Budgeted::output(&self.problem, &self.inputs(), !self.exact).unwrap())
    }

    /// What the oracle says about gradients, in the order of the slots.
    pub(crate) fn gradients(&self) -> &[Budgeted; 4] {
        let budget =
            || Budget::new(&self.problem, &self.inputs(), &View::from(&self.grad_output), !self.exact);
        self.gradients.get_or_init(|| budget().unwrap().grads)
    }

    /// Compares the results of a pass with the oracle, within the error that the battery allows.
    pub(crate) fn check(&self, name: &str, pass: Pass, got: &[Buffer]) {
        let wanted = match pass {
            Pass::Forward => std::slice::from_ref(self.output()),
            Pass::Backward(_) => self.gradients(),
        };
        for (i, (got, want)) in got.iter().zip(wanted).enumerate() {
            if let Err(why) = compare(&got.to_f64(), &want.exact, want.tolerance) {
                panic!("{name} on {}, {pass:?}, result {i}: {why}", self.problem);
            }
        }
    }

    /// The gradients that a backend computes, in the order of the slots.
    pub(crate) fn run(&self, backend: &Cuda) -> Vec<Buffer> {
        let all = backend.gradients(&self.problem, &self.inputs(), View::from(&self.grad_output));
        let GradientBuffers { value, locations, weights, reference, .. } =
            all.unwrap_or_else(|why| panic!("{} on {}: {why}", backend.name(), self.problem));
        [value, locations, weights].into_iter().chain(reference).collect()
    }

    /// Checks the gradients that backends compute.
    pub(crate) fn check_on(&self, backends: &[Cuda]) {
        for backend in backends {
            self.check(&backend.name(), self.backward(), &self.run(backend));
        }
    }

    /// Makes the tensors of a pass, runs a plan once, and checks the results.
    pub(crate) fn check_plan(&self, device: &Device, pass: Pass, plan: &Plan) {
        let stream = device.stream().unwrap();
        let results = Held::new(device, self, pass, plan.workspace()).run(plan, &stream);
        self.check(&plan.choice().kernel.to_string(), pass, &results);
    }
}

pub(crate) fn bytes(results: &[Buffer]) -> Vec<Vec<u8>> {
    results.iter().map(Buffer::to_le_bytes).collect()
}

pub(crate) fn on_device(device: &Device, bytes: &[u8]) -> Memory {
    let mut memory = device.alloc(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

/// Reads a tensor, or a part of it that begins at byte `offset`.
pub(crate) fn read(memory: &Memory, offset: usize, dtype: Dtype, len: usize) -> Buffer {
    let mut bytes = vec![0; len * dtype.size()];
    memory.read(offset, &mut bytes).unwrap();
    Buffer::from_le_bytes(dtype, &bytes)
}

/// A call on the device, with dense tensors.
pub(crate) struct Held {
    inputs: Vec<(Slot, Memory)>,
    /// With the type of the elements.
    results: Vec<(Slot, Dtype, Memory)>,
    pub(crate) workspace: Memory,
}

impl Held {
    pub(crate) fn new(device: &Device, given: &Given, pass: Pass, workspace: usize) -> Self {
        let reference = given.reference.as_ref();
        let tensors = [
            (Slot::Value, Some(&given.value)),
            (Slot::Locations, Some(&given.locations)),
            (Slot::Weights, Some(&given.weights)),
            (Slot::Reference, reference.map(|(_, tensor)| tensor)),
            (Slot::GradOutput, Some(&given.grad_output)),
        ];
        let inputs = tensors.into_iter().filter(|(slot, _)| pass.uses(*slot));
        let inputs =
            inputs.filter_map(|(slot, tensor)| Some((slot, on_device(device, &tensor?.to_le_bytes()))));
        let results =
            [Slot::Output, Slot::GradValue, Slot::GradLocations, Slot::GradWeights, Slot::GradReference];
        let results = results.into_iter().filter(|slot| pass.uses(*slot)).map(|slot| {
            let ([a, b, c], inner) =
                slot.role(reference.map(|(kind, _)| *kind)).unwrap().shape(&given.problem);
            let dtype = slot.dtype(&given.problem).unwrap();
            (slot, dtype, device.alloc(a * b * c * inner * dtype.size()).unwrap())
        });
        let mut held = Self {
            inputs: inputs.collect(),
            results: results.collect(),
            workspace: device.alloc(workspace).unwrap(),
        };
        held.poison();
        held
    }

    /// A forward pass whose value is on the device already.
    pub(crate) fn with_value(device: &Device, given: &Given, value: Memory, workspace: usize) -> Self {
        let p = &given.problem;
        let mut output = device.alloc(p.output_len() * p.types().value.size()).unwrap();
        output.fill(0xff).unwrap();
        let [locations, weights] =
            [&given.locations, &given.weights].map(|tensor| on_device(device, &tensor.to_le_bytes()));
        Self {
            inputs: vec![(Slot::Value, value), (Slot::Locations, locations), (Slot::Weights, weights)],
            results: vec![(Slot::Output, p.types().value, output)],
            workspace: device.alloc(workspace).unwrap(),
        }
    }

    pub(crate) fn addresses(&self) -> Addresses {
        let mut at = Addresses::from([(Slot::Workspace, self.workspace.address())]);
        self.inputs.iter().for_each(|(slot, memory)| at[*slot] = memory.address());
        self.results.iter().for_each(|(slot, _, memory)| at[*slot] = memory.address());
        at
    }

    /// Fills results and workspace with NaN.
    pub(crate) fn poison(&mut self) {
        self.results.iter_mut().for_each(|(_, _, memory)| memory.fill(0xff).unwrap());
        self.workspace.fill(0xff).unwrap();
    }

    pub(crate) fn results(&self) -> Vec<Buffer> {
        let read =
            |(_, dtype, memory): &(Slot, Dtype, Memory)| read(memory, 0, *dtype, memory.len() / dtype.size());
        self.results.iter().map(read).collect()
    }

    /// Queues a plan of this call. The tensors must live until the stream is done.
    pub(crate) fn launch(&self, plan: &Plan, stream: StreamHandle<'_>) -> msda::Result<()> {
        // SAFETY: the tensors are of the problem, and the tests keep them until the stream is done.
        unsafe { plan.launch(&self.addresses(), stream) }
    }

    pub(crate) fn run(&mut self, plan: &Plan, stream: &Stream) -> Vec<Buffer> {
        self.poison();
        self.launch(plan, stream.handle()).unwrap();
        stream.synchronize().unwrap();
        self.results()
    }
}
