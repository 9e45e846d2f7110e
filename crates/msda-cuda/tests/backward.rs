//! What plans of the backward pass promise, on a GPU: the same bits on every run, graphs, crowded
//! pixels, sizes past 2^31, gradients alone, a workspace of the size that the plan says, any
//! strides, finite gradients far outside.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead.
#![allow(unsafe_code)]

mod common;
mod counting;

use std::sync::atomic::{AtomicBool, Ordering};

use msda::conformance::{Budget, compare};
use msda::rng::Rng;
use msda::{
    Backend, Buffer, Dtype, ErrorKind, GradientBuffers, Gradients, Inputs, Layout, Problem, ReferenceKind,
    Role, Spec, Types, View, ViewMut,
};
use msda_bench::gpu::measure::Flush;
use msda_cuda::driver::{Device, Graph, Memory, StreamHandle};
use msda_cuda::kernels::Kernel;
use msda_cuda::{Addresses, Cuda, Operands, Pass, Plan, Request, Scatter, Slot, Wanted};

use common::device;

const ALL: Wanted = Wanted { value: true, locations: true, weights: true, reference: false };

fn spec(queries: usize, dtype: Dtype) -> Spec {
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

/// The host tensors of a call.
struct Given {
    problem: Problem,
    value: Buffer,
    locations: Buffer,
    weights: Buffer,
    reference: Option<(ReferenceKind, Buffer)>,
    grad_output: Buffer,
    /// Whether pixel coordinates are exact, so that rounding a location is no excuse.
    exact: bool,
}

impl Given {
    /// Random numbers. Some samples are off the map.
    fn new(spec: Spec) -> Self {
        let problem = Problem::new(spec).unwrap();
        let mut rng = Rng::new(7);
        let (p, t) = (&problem, problem.types());
        let value = Buffer::from_fn(t.value, p.value_len(), |_| rng.unit() * 2.0 - 1.0);
        let locations = Buffer::from_fn(t.locations, p.locations_len(), |_| rng.unit() * 1.1 - 0.05);
        let weights = Buffer::from_fn(t.weights, p.weights_len(), |_| rng.unit() / p.samples() as f64);
        let grad_output = Buffer::from_fn(t.value, p.output_len(), |_| rng.unit() * 2.0 - 1.0);
        Self { value, locations, weights, reference: None, grad_output, problem, exact: false }
    }

    /// The fused form: reference points, offsets of a few pixels, logits.
    fn fused(spec: Spec, kind: ReferenceKind) -> Self {
        let mut given = Self::new(spec);
        let (p, t) = (&given.problem, given.problem.types());
        let mut rng = Rng::new(8);
        let reference = Buffer::from_fn(t.locations, p.reference_len(kind.dim()), |_| 0.1 + 0.8 * rng.unit());
        given.locations = Buffer::from_fn(t.locations, p.locations_len(), |_| rng.unit() * 6.0 - 3.0);
        given.weights = Buffer::from_fn(t.weights, p.weights_len(), |_| rng.unit() * 4.0 - 2.0);
        given.reference = Some((kind, reference));
        given
    }

    fn inputs(&self) -> Inputs<'_> {
        let (value, locations, weights) =
            (self.value.as_slice(), self.locations.as_slice(), self.weights.as_slice());
        match &self.reference {
            None => Inputs::plain(value, locations, weights),
            Some((kind, reference)) => Inputs::fused(value, *kind, reference.as_slice(), locations, weights),
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted { reference: self.reference.is_some(), ..ALL }
    }

    fn kind(&self) -> Option<ReferenceKind> {
        self.reference.as_ref().map(|(kind, _)| *kind)
    }

    fn plan(&self, device: &Device, scatter: Scatter) -> Plan {
        let pass = Pass::Backward(self.wanted());
        let operands = Operands::for_pass(&self.problem, self.kind(), pass);
        let request = Request { pass, scatter, ..Request::new(&self.problem, &operands) };
        Plan::new(device, &request).unwrap()
    }

    /// Compares gradients with the oracle, within the error that the battery allows.
    fn check(&self, name: &str, got: &[Buffer]) {
        let budget =
            Budget::new(&self.problem, &self.inputs(), &View::from(&self.grad_output), !self.exact).unwrap();
        for (i, got) in got.iter().enumerate() {
            let want = &budget.grads[i];
            if let Err(why) = compare(&got.to_f64(), &want.exact, want.tolerance) {
                panic!("{name} on {}, gradient {i}: {why}", self.problem);
            }
        }
    }

    /// The gradients that a backend computes, in the order of the slots.
    fn run(&self, backend: &Cuda) -> Vec<Buffer> {
        let grad_output = View::from(&self.grad_output);
        let all = backend.gradients(&self.problem, &self.inputs(), grad_output);
        let GradientBuffers { value, locations, weights, reference, .. } =
            all.unwrap_or_else(|why| panic!("{} on {}: {why}", backend.name(), self.problem));
        [value, locations, weights].into_iter().chain(reference).collect()
    }
}

/// Checks the gradients of random numbers, with level sizes on the host and on the device.
fn check_both(device: &Device, sizes: Spec) {
    check_on(&[Cuda::new(device), Cuda::device_levels(device)], sizes);
}

/// Runs random data on backends and compares with the oracle.
fn check_on(backends: &[Cuda], sizes: Spec) {
    let given = Given::new(sizes);
    for backend in backends {
        given.check(&backend.name(), &given.run(backend));
    }
}

fn bytes(results: &[Buffer]) -> Vec<Vec<u8>> {
    results.iter().map(Buffer::to_le_bytes).collect()
}

fn on_device(device: &Device, buffer: &Buffer) -> Memory {
    let bytes = buffer.to_le_bytes();
    let mut memory = device.alloc(bytes.len()).unwrap();
    memory.write(0, &bytes).unwrap();
    memory
}

const GRADIENTS: [Slot; 4] = [Slot::GradValue, Slot::GradLocations, Slot::GradWeights, Slot::GradReference];

/// A call on the device, with dense tensors.
struct Held {
    inputs: Vec<(Slot, Memory)>,
    /// With the type of the elements.
    gradients: Vec<(Slot, Dtype, Memory)>,
    workspace: Memory,
}

impl Held {
    fn new(device: &Device, given: &Given, workspace: usize) -> Self {
        let mut tensors = vec![
            (Slot::Value, &given.value),
            (Slot::Locations, &given.locations),
            (Slot::Weights, &given.weights),
            (Slot::GradOutput, &given.grad_output),
        ];
        tensors.extend(given.reference.iter().map(|(_, reference)| (Slot::Reference, reference)));
        let pass = Pass::Backward(given.wanted());
        let sizes = [
            given.value.len(),
            given.locations.len(),
            given.weights.len(),
            given.reference.as_ref().map_or(0, |(_, reference)| reference.len()),
        ];
        let gradients = GRADIENTS.into_iter().zip(sizes).filter(|(slot, _)| pass.uses(*slot));
        let gradients = gradients.map(|(slot, len)| {
            let dtype = slot.dtype(&given.problem).unwrap();
            (slot, dtype, device.alloc(len * dtype.size()).unwrap())
        });
        Self {
            inputs: tensors.into_iter().map(|(slot, buffer)| (slot, on_device(device, buffer))).collect(),
            gradients: gradients.collect(),
            workspace: device.alloc(workspace).unwrap(),
        }
    }

    fn addresses(&self) -> Addresses {
        let mut at = Addresses::from([(Slot::Workspace, self.workspace.address())]);
        self.inputs.iter().for_each(|(slot, memory)| at[*slot] = memory.address());
        self.gradients.iter().for_each(|(slot, _, memory)| at[*slot] = memory.address());
        at
    }

    /// Fills gradients and workspace with NaN.
    fn poison(&mut self) {
        self.gradients.iter_mut().for_each(|(_, _, memory)| memory.fill(0xff).unwrap());
        self.workspace.fill(0xff).unwrap();
    }

    fn results(&self) -> Vec<Buffer> {
        let read = |(_, dtype, memory): &(Slot, Dtype, Memory)| {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes).unwrap();
            Buffer::from_le_bytes(*dtype, &bytes)
        };
        self.gradients.iter().map(read).collect()
    }
}

/// Calls of every kind: few and many queries, the pixels of the levels, planes, both forms.
fn calls() -> Vec<Given> {
    let encoder = |dtype| Given::new(Spec { queries: 790, ..spec(0, dtype) });
    vec![
        Given::new(spec(300, Dtype::F16)),
        Given::new(spec(6000, Dtype::F32)),
        encoder(Dtype::Bf16),
        Given::new(Spec { layout: Layout::Planar, ..spec(2000, Dtype::F16) }),
        Given::fused(spec(300, Dtype::F16), ReferenceKind::Point),
        Given::fused(spec(2000, Dtype::F32), ReferenceKind::Box),
    ]
}

/// Runs `work` while another stream keeps the GPU and its memory busy.
fn while_busy(device: &Device, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let (started, is_busy) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (flush, stream) = (Flush::new(device).unwrap(), device.stream().unwrap());
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..4 {
                    flush.queue(stream.handle()).unwrap();
                }
                started.send(()).unwrap();
                stream.synchronize().unwrap();
            }
        });
        // The other thread ends if this one panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _guard = Stop(&stop);
        is_busy.recv().expect("the other stream works");
        work();
    });
}

#[test]
fn twenty_runs_have_the_same_bits_on_a_busy_gpu() {
    let Some(device) = device() else { return };
    for given in calls() {
        let plan = given.plan(&device, Scatter::Ordered);
        let mut held = Held::new(&device, &given, plan.workspace());
        let stream = device.stream().unwrap();
        let mut run = || {
            held.poison();
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            held.results()
        };
        let first = run();
        given.check(&plan.choice().kernel.to_string(), &first);
        while_busy(&device, || {
            for turn in 1..20 {
                assert!(bytes(&run()) == bytes(&first), "{}: other bits in run {turn}", given.problem);
            }
        });
    }
}

#[test]
fn additions_in_any_order_are_right() {
    let Some(device) = device() else { return };
    for given in calls() {
        let plan = given.plan(&device, Scatter::Atomic);
        let mut held = Held::new(&device, &given, plan.workspace());
        let stream = device.stream().unwrap();
        for _ in 0..3 {
            held.poison();
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            given.check("atomic additions", &held.results());
        }
    }
}

/// Also a plan that was made inside the capture and is gone at the replay.
#[test]
fn a_backward_launch_can_be_captured_and_replayed() {
    let Some(device) = device() else { return };
    for given in calls() {
        let plan = given.plan(&device, Scatter::Ordered);
        let mut held = Held::new(&device, &given, plan.workspace());
        let stream = device.stream().unwrap();
        held.poison();
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        let launch = |plan: &Plan, s: StreamHandle<'_>| unsafe { plan.launch(&held.addresses(), s) };
        launch(&plan, stream.handle()).unwrap();
        stream.synchronize().unwrap();
        let want = bytes(&held.results());
        let graphs = [
            Graph::capture(&stream, |s| launch(&plan, s)).unwrap(),
            Graph::capture(&stream, |s| launch(&given.plan(&device, Scatter::Ordered), s)).unwrap(),
        ];
        drop(plan);
        for graph in graphs {
            for _ in 0..3 {
                held.poison();
                // SAFETY: as above.
                unsafe { graph.launch(stream.handle()).unwrap() };
                stream.synchronize().unwrap();
                assert!(bytes(&held.results()) == want, "{}: a replay gave other bits", given.problem);
            }
        }
    }
}

/// The host does not know the sizes, so it expects fewer cells than these levels have.
#[test]
fn levels_on_the_device_may_have_more_cells_than_expected() {
    let Some(device) = device() else { return };
    let backend = Cuda::device_levels(&device);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64] {
        // With 600 queries and 16-bit or 32-bit values, nothing is sorted.
        for queries in [600, 1100] {
            // Thin levels have so many cells that cells share bins.
            let levels = vec![(1, 400), (400, 1), (3, 5), (200, 2)];
            let thin = Spec { levels, points: vec![4, 2, 4, 3], ..spec(queries, dtype) };
            // The last cell of each row has one pixel, and so have the last tiles.
            let levels = vec![(97, 129), (49, 65)];
            let odd = Spec { batch: 1, channels: 8, levels, points: vec![4, 4], ..spec(queries, dtype) };
            for sizes in [thin, odd] {
                let given = Given::new(sizes);
                given.check(&backend.name(), &given.run(&backend));
            }
        }
    }
}

/// Large levels: a block sorts its samples in several batches, and the bins of the last one need
/// more than 16 bits.
#[test]
fn levels_may_be_large() {
    let Some(device) = device() else { return };
    for (level, dtype) in [((307, 160), Dtype::F16), ((307, 160), Dtype::F64), ((1100, 240), Dtype::F32)] {
        let sizes = Spec {
            batch: 1,
            heads: 2,
            channels: 8,
            levels: vec![level],
            points: vec![4],
            ..spec(6000, dtype)
        };
        check_both(&device, sizes);
    }
}

/// Very many samples on few pixels: a block sorts its samples in several batches. In the last cases
/// their number in a chunk does not fit 16 bits.
#[test]
fn queries_may_be_very_many() {
    let Some(device) = device() else { return };
    for (queries, dtype) in [
        (40_000, Dtype::F16),
        (70_000, Dtype::F32),
        (35_000, Dtype::F64),
        (550_000, Dtype::F16),
        (530_000, Dtype::F64),
    ] {
        let sizes = Spec {
            batch: 1,
            heads: 1,
            channels: 8,
            levels: vec![(13, 21), (4, 3)],
            points: vec![4, 1],
            ..spec(queries, dtype)
        };
        check_both(&device, sizes);
    }
}

/// Several batches per block, and cells that share bins because the host expects fewer cells.
#[test]
fn thin_levels_on_the_device_may_have_very_many_queries() {
    let Some(device) = device() else { return };
    let levels = vec![(1, 400), (400, 1), (200, 2)];
    for dtype in [Dtype::F16, Dtype::F64] {
        let levels = levels.clone();
        let sizes =
            Spec { batch: 1, heads: 1, channels: 8, levels, points: vec![4; 3], ..spec(35_000, dtype) };
        check_on(&[Cuda::device_levels(&device)], sizes);
    }
}

/// Samples are sorted by counting if bins have few of them, else by digits: spread out, half of
/// them on one pixel, and in groups of some that share a bin.
#[test]
fn bins_may_have_few_or_many_samples() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64] {
        let sizes = Spec {
            batch: 1,
            heads: 2,
            channels: 8,
            levels: vec![(64, 100), (31, 57)],
            points: vec![4, 3],
            ..spec(1500, dtype)
        };
        for group in [1, 2, 40] {
            let mut given = Given::new(sizes.clone());
            let places = given.locations.to_f64();
            let crowded = |i: usize| {
                if group == 2 && (i / 2).is_multiple_of(2) {
                    i % 2
                } else {
                    i / 2 / group * group * 2 + i % 2
                }
            };
            given.locations = Buffer::from_fn(dtype, places.len(), |i| places[crowded(i)]);
            for backend in [Cuda::new(&device), Cuda::device_levels(&device)] {
                let first = given.run(&backend);
                given.check(&backend.name(), &first);
                assert_eq!(bytes(&first), bytes(&given.run(&backend)), "{}: other bits", backend.name());
            }
        }
    }
}

/// More levels than fit the argument.
#[test]
fn levels_may_be_many() {
    let Some(device) = device() else { return };
    for (count, dtype) in [(70, Dtype::F16), (70, Dtype::F32), (300, Dtype::F64)] {
        let levels = (0..count).map(|l| (1 + l % 3, 2 + l % 5)).collect();
        let sizes = Spec { heads: 2, channels: 8, levels, points: vec![1; count], ..spec(5000, dtype) };
        check_on(&[Cuda::new(&device)], sizes);
    }
}

/// The table of many levels is in device memory.
#[test]
fn a_call_with_many_levels_may_have_no_queries() {
    let Some(device) = device() else { return };
    let sizes = Spec { levels: vec![(2, 1); 70], points: vec![1; 70], ..spec(0, Dtype::F32) };
    let (given, backend) = (Given::new(sizes), Cuda::new(&device));
    let results = given.run(&backend);
    assert!(
        results[0].to_f64().iter().all(|&x| x == 0.0),
        "no samples, and a gradient of value that is not 0"
    );
}

/// Every sum of the gradient of value that is not zero has thousands of terms.
#[test]
fn all_samples_may_be_on_one_pixel() {
    let Some(device) = device() else { return };
    let backends = [
        Cuda::new(&device),
        Cuda::atomic(&device),
        Cuda::device_levels(&device),
        Cuda::with_pick(&device, "generic", |_| Some(Kernel::Generic)),
    ];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        // Exactly on a pixel of every level, between four pixels, and in a corner of the map.
        for (place, exact) in [(0.5 + 1.0 / 32.0, true), (0.5, true), (0.999, false)] {
            let sizes =
                Spec { heads: 2, levels: vec![(16, 16), (16, 16)], points: vec![4, 4], ..spec(2000, dtype) };
            let mut given = Given::new(sizes);
            given.locations = Buffer::filled(dtype, given.locations.len(), place);
            given.exact = exact;
            for backend in &backends {
                let results = given.run(backend);
                given.check(&backend.name(), &results);
                let touched =
                    results[0].to_f64().chunks(32).filter(|row| row.iter().any(|x| *x != 0.0)).count();
                // Images, heads, levels, and at most four pixels.
                assert!((8..=32).contains(&touched), "{}: {touched} rows", backend.name());
            }
        }
    }
}

#[test]
fn value_and_its_gradient_may_have_more_than_2_to_the_31_elements() {
    let Some(device) = device() else { return };
    // A mebi-element per image.
    let images = 2100;
    let one = Spec {
        batch: 1,
        queries: 20,
        heads: 8,
        channels: 32,
        levels: vec![(64, 64)],
        points: vec![4],
        types: Types::with_value(Dtype::F16),
        ..Spec::default()
    };
    let whole = Problem::new(Spec { batch: images, ..one.clone() }).unwrap();
    assert!(whole.value_len() > 1 << 31);
    let pass = Pass::Backward(ALL);
    let operands = Operands::for_pass(&whole, None, pass);
    let plan = Plan::new(&device, &Request { pass, ..Request::new(&whole, &operands) }).unwrap();
    let need = 4 * whole.value_len() + plan.workspace() + (1 << 30);
    if device.free_memory().unwrap() < need {
        eprintln!("skipped: the device has no {need} bytes free");
        return;
    }
    // The data of one image, turned by a number of elements that depends on the image.
    let base = Given::new(one);
    let of_image = |image: usize| {
        let turned = |buffer: &Buffer| {
            let (from, len) = (buffer.as_slice(), buffer.len());
            Buffer::from_fn(buffer.dtype(), len, |i| from.get((i + 1 + image * 31) % len))
        };
        let [value, locations, weights, grad_output] =
            [&base.value, &base.locations, &base.weights, &base.grad_output].map(turned);
        let (problem, reference) = (base.problem.clone(), None);
        Given { problem, value, locations, weights, reference, grad_output, exact: false }
    };
    let mut memory: Vec<(Slot, Memory)> = Vec::new();
    for (slot, buffer) in [
        (Slot::Value, &base.value),
        (Slot::Locations, &base.locations),
        (Slot::Weights, &base.weights),
        (Slot::GradOutput, &base.grad_output),
        (Slot::GradValue, &base.value),
        (Slot::GradLocations, &base.locations),
        (Slot::GradWeights, &base.weights),
    ] {
        let bytes = images * buffer.len() * buffer.dtype().size();
        let mut tensor = device.alloc(bytes).unwrap();
        tensor.fill(0xff).unwrap();
        memory.push((slot, tensor));
    }
    // The first and the last, and those around element 2^31 and byte 2^31. All others have the same
    // data.
    let checked = [0, 1023, 1024, 2047, 2048, images - 1];
    let inputs = |given: &Given| {
        [&given.value, &given.locations, &given.weights, &given.grad_output].map(Buffer::to_le_bytes)
    };
    let usual = inputs(&base);
    for image in 0..images {
        let own = checked.contains(&image).then(|| inputs(&of_image(image)));
        for ((_, tensor), bytes) in memory.iter_mut().zip(own.as_ref().unwrap_or(&usual)) {
            tensor.write(image * bytes.len(), bytes).unwrap();
        }
    }
    let workspace = device.alloc(plan.workspace()).unwrap();
    let mut at = Addresses::from([(Slot::Workspace, workspace.address())]);
    memory.iter().for_each(|(slot, tensor)| at[*slot] = tensor.address());
    let stream = device.stream().unwrap();
    // SAFETY: the tensors are of the problem, and live until the stream is done.
    unsafe { plan.launch(&at, stream.handle()).unwrap() };
    stream.synchronize().unwrap();
    for image in checked {
        let given = of_image(image);
        let read = |slot: Slot, like: &Buffer| {
            let (_, tensor) = memory.iter().find(|(other, _)| *other == slot).unwrap();
            let mut bytes = vec![0; like.len() * like.dtype().size()];
            tensor.read(image * bytes.len(), &mut bytes).unwrap();
            Buffer::from_le_bytes(like.dtype(), &bytes)
        };
        let results = [
            read(Slot::GradValue, &given.value),
            read(Slot::GradLocations, &given.locations),
            read(Slot::GradWeights, &given.weights),
        ];
        given.check(&format!("image {image}, {}", plan.choice().kernel), &results);
    }
}

#[test]
fn each_gradient_alone_has_the_same_bits() {
    let Some(device) = device() else { return };
    let backends = [
        Cuda::new(&device),
        Cuda::device_levels(&device),
        Cuda::with_pick(&device, "generic", |_| Some(Kernel::Generic)),
    ];
    for given in calls() {
        for backend in &backends {
            let together = given.run(backend);
            for (i, want) in together.iter().enumerate() {
                let mut alone = Buffer::filled(want.dtype(), want.len(), f64::NAN);
                let view = Some(ViewMut::from(&mut alone));
                let mut wanted = Gradients::default();
                match i {
                    0 => wanted.value = view,
                    1 => wanted.locations = view,
                    2 => wanted.weights = view,
                    _ => wanted.reference = view,
                }
                let grad_output = View::from(&given.grad_output);
                backend.backward(&given.problem, &given.inputs(), grad_output, wanted).unwrap();
                let same = alone.to_le_bytes() == want.to_le_bytes();
                assert!(same, "{} on {}: gradient {i} alone has other bits", backend.name(), given.problem);
            }
        }
    }
}

/// The workspace lies between two guards. It holds NaN before the launch, and the guards are as
/// before after it.
#[test]
fn the_workspace_has_the_size_that_the_plan_says() {
    const GUARD: usize = 4096;
    let Some(device) = device() else { return };
    for scatter in [Scatter::Ordered, Scatter::Atomic] {
        for given in calls() {
            let plan = given.plan(&device, scatter);
            let size = plan.workspace();
            let mut held = Held::new(&device, &given, size + 2 * GUARD);
            held.poison();
            let at = held.addresses().with(Slot::Workspace, held.workspace.address() + GUARD as u64);
            let stream = device.stream().unwrap();
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&at, stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            let mut all = vec![0; size + 2 * GUARD];
            held.workspace.read(0, &mut all).unwrap();
            let clean = |guard: &[u8]| guard.iter().all(|&byte| byte == 0xff);
            assert!(clean(&all[..GUARD]) && clean(&all[GUARD + size..]), "{}: {scatter:?}", given.problem);
            given.check("a guarded workspace", &held.results());
            if size > 0 {
                // SAFETY: a plan that needs a workspace refuses a launch without one.
                let missing = unsafe { plan.launch(&at.with(Slot::Workspace, 0), stream.handle()) };
                assert_eq!(missing.unwrap_err().kind(), ErrorKind::Shape);
            }
        }
    }
}

/// A destination of a gradient that begins one element after an aligned address and has gaps
/// between its rows.
struct Spread {
    buffer: Buffer,
    strides: [usize; 3],
    role: Role,
}

impl Spread {
    const BETWEEN: f64 = -77.0;

    fn new(p: &Problem, role: Role, dtype: Dtype, gap: usize) -> Self {
        let ([a, b, c], inner) = role.shape(p);
        let row = inner + gap;
        let buffer = Buffer::filled(dtype, 1 + a * b * c * row, Self::BETWEEN);
        Self { buffer, strides: [b * c * row, c * row, row], role }
    }

    fn view(&mut self) -> ViewMut<'_> {
        ViewMut { data: self.buffer.as_mut().tail(1), strides: Some(self.strides) }
    }

    /// The gradient without its gaps, which must be as before.
    fn dense(&self, p: &Problem) -> Buffer {
        let inner = self.role.shape(p).1;
        let all = self.buffer.as_slice();
        let mut own = vec![false; all.len()];
        let mut numbers = Vec::new();
        self.role.for_each_row(p, |index| {
            let row = 1 + (0..3).map(|i| index[i] * self.strides[i]).sum::<usize>();
            numbers.extend((row..row + inner).map(|i| all.get(i)));
            own[row..row + inner].fill(true);
        });
        let touched = (0..all.len()).filter(|&i| !own[i] && all.get(i) != Self::BETWEEN).count();
        assert_eq!(touched, 0, "{p}: elements between the rows of {:?} were written", self.role);
        Buffer::from_fn(all.dtype(), numbers.len(), |i| numbers[i])
    }
}

#[test]
fn gradients_may_be_strided_and_unaligned() {
    let Some(device) = device() else { return };
    for (dtype, channels) in [(Dtype::F32, 32), (Dtype::F16, 32), (Dtype::Bf16, 24), (Dtype::F64, 8)] {
        for backend in [Cuda::new(&device), Cuda::atomic(&device), Cuda::device_levels(&device)] {
            for gap in [1, 8] {
                let given = Given::fused(Spec { channels, ..spec(900, dtype) }, ReferenceKind::Point);
                let (p, t) = (&given.problem, given.problem.types());
                let spread = |role, dtype| Spread::new(p, role, dtype, gap);
                let mut value = spread(Role::Value, t.value);
                let mut locations = spread(Role::Locations, t.locations);
                let mut weights = spread(Role::Weights, t.weights);
                let mut reference = spread(Role::Reference(ReferenceKind::Point), t.locations);
                let gradients = Gradients {
                    value: Some(value.view()),
                    locations: Some(locations.view()),
                    weights: Some(weights.view()),
                    reference: Some(reference.view()),
                };
                backend.backward(p, &given.inputs(), View::from(&given.grad_output), gradients).unwrap();
                given.check(&backend.name(), &[value, locations, weights, reference].map(|s| s.dense(p)));
            }
        }
    }
}

/// Offsets and reference points as large as their type allows, and not finite ones: no sample is on
/// the map, and no gradient is infinite or NaN.
#[test]
fn fused_samples_far_outside_have_finite_gradients() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for kind in [ReferenceKind::Point, ReferenceKind::Box] {
            let far = if dtype == Dtype::F16 { 6e4 } else { 3e38 };
            for (reference, offset) in
                [(far, 1.0), (-far, -1.0), (0.5, far), (far, far), (far, f64::INFINITY)]
            {
                let mut given = Given::fused(spec(300, dtype), kind);
                let len = given.problem.reference_len(kind.dim());
                given.reference = Some((kind, Buffer::filled(dtype, len, reference)));
                // Every second query stays on the map.
                let row = given.problem.locations_len() / given.problem.queries() / given.problem.batch();
                let near = given.locations.as_slice();
                let locations = Buffer::from_fn(dtype, near.len(), |i| {
                    if offset.abs() > 1.0 && (i / row).is_multiple_of(2) { near.get(i) } else { offset }
                });
                given.locations = locations;
                for backend in [Cuda::new(&device), Cuda::atomic(&device), Cuda::device_levels(&device)] {
                    let results = given.run(&backend);
                    let what = format!("{} with {reference} and {offset}", backend.name());
                    for (i, gradient) in results.iter().enumerate() {
                        let bad = gradient.to_f64().iter().filter(|x| !x.is_finite()).count();
                        assert_eq!(bad, 0, "{what}: gradient {i} of {}", given.problem);
                    }
                    // The gradients of logits, which every sample of a query shares.
                    given.check(&what, &results);
                }
            }
        }
    }
}

#[test]
fn planned_backward_calls_allocate_nothing() {
    let Some(device) = device() else { return };
    for given in calls() {
        let plan = given.plan(&device, Scatter::Ordered);
        let [mut one, mut other] = [(); 2].map(|()| Held::new(&device, &given, plan.workspace()));
        one.poison();
        other.poison();
        let stream = device.stream().unwrap();
        let launch = |held: &Held| {
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
        };
        launch(&one);
        let before = counting::allocations();
        for _ in 0..10 {
            launch(&other);
            launch(&one);
        }
        assert_eq!(counting::allocations(), before);
        stream.synchronize().unwrap();
        assert!(bytes(&one.results()) == bytes(&other.results()), "{}", given.problem);
        given.check("launches in a row", &one.results());
    }
}

/// Each thread has its own stream, tensors and workspace.
#[test]
fn a_backward_plan_serves_many_threads() {
    let Some(device) = device() else { return };
    let given = Given::new(spec(900, Dtype::F16));
    let plan = given.plan(&device, Scatter::Ordered);
    let results: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut held = Held::new(&device, &given, plan.workspace());
                    held.poison();
                    let stream = device.stream().unwrap();
                    for _ in 0..10 {
                        // SAFETY: the tensors are of the problem, and live until the stream is
                        // done.
                        unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
                    }
                    stream.synchronize().unwrap();
                    bytes(&held.results())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "threads got other bits");
    given.check("a plan in many threads", &given.run(&Cuda::new(&device)));
}
