//! Tensors of more than 2^31 elements, in both passes.

use msda::conformance::compare;
use msda::rng::Rng;
use msda::{Backend, Buffer, Dtype, Layout, Problem, Spec, Types};
use msda_cuda::driver::{Device, Memory};
use msda_cuda::kernels::Kernel;
use msda_cuda::{Addresses, Cuda, Packing, Pass, Slot};

use crate::calls::{Given, Held, on_device, read, spec};
use crate::common::device;

/// Whether the device has so many bytes free. If not, the test says that it skipped.
fn has_room(device: &Device, need: usize) -> bool {
    let has = device.free_memory().unwrap() >= need;
    if !has {
        eprintln!("skipped: the device has no {need} bytes free");
    }
    has
}

#[test]
fn value_may_have_more_than_2_to_the_31_elements() {
    let Some(device) = device() else { return };
    let (levels, points) = (vec![(2900, 2900), (28, 28)], vec![4, 4]);
    let types = Types::with_value(Dtype::F16);
    let one = Spec { batch: 1, heads: 8, levels, points, types, ..spec(40, Dtype::F16) };
    let positions = 2900 * 2900 + 28 * 28;
    assert!(positions * 256 > 1 << 31);
    // Twice: as it is, and as planes.
    if !has_room(&device, 2 * 2 * 256 * positions + (1 << 30)) {
        return;
    }
    let mut rng = Rng::new(5);
    // A pattern of a prime period: an index that lost its upper bits reads something else.
    let pattern: Vec<f64> = (0..10_007).map(|_| rng.unit() * 2.0 - 1.0).collect();
    let mut value = Buffer::from_fn(Dtype::F16, positions * 256, |i| pattern[i % 10_007]);
    // So many queries that blocks keep the coarse level; half of them look at the last rows of the
    // first level.
    for queries in [40, 20_000] {
        let problem = Problem::new(Spec { queries, ..one.clone() }).unwrap();
        let len = problem.locations_len();
        let locations = Buffer::from_fn(Dtype::F32, len, |i| {
            if i >= len / 2 { 0.995 + 0.005 * rng.unit() } else { rng.unit() }
        });
        let weights = Buffer::from_fn(Dtype::F32, problem.weights_len(), |_| rng.unit() / 8.0);
        let given = Given::of(problem, [value, locations, weights, Buffer::filled(Dtype::F16, 0, 0.0)]);
        // Coordinates of up to 2900 pixels are rounded, and so is the output. Neighbouring pixels
        // differ by 2 at most, and the weights of a query add up to 1 at most.
        let tolerance = 2.0 * 2.0 * 2900.0 * Dtype::F32.rounding() + Dtype::F16.rounding();
        let want = msda::oracle::forward::<f64>(&given.problem, &given.inputs()).unwrap();
        let check = |name: &str, got: &Buffer| {
            compare(&got.to_f64(), &want, tolerance).unwrap_or_else(|why| panic!("{name}: {why}"));
        };
        if queries == 40 {
            for backend in [Cuda::new(&device), Cuda::named(&device, "generic").unwrap()] {
                let output = backend.output(&given.problem, &given.inputs()).unwrap();
                check(&backend.name(), &output);
            }
        }
        // The same as planes, packed on the device.
        let planar = given.problem.with(|s| s.layout = Layout::Planar).unwrap();
        let source = on_device(&device, &given.value.to_le_bytes());
        let mut packed = device.alloc(source.len()).unwrap();
        packed.fill(0xff).unwrap();
        let stream = device.stream().unwrap();
        let packing = Packing::new(&device, &given.problem, &planar).unwrap();
        // SAFETY: both are dense tensors of the problems, and live until the stream is done.
        unsafe { packing.launch(source.address(), packed.address(), stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        drop(source);
        let empty =
            [Dtype::F16, Dtype::F32, Dtype::F32, Dtype::F16].map(|dtype| Buffer::filled(dtype, 0, 0.0));
        let plan = Given::of(planar, empty).plan(&device, Pass::Forward);
        let keeps = matches!(plan.choice().kernel, Kernel::Rows(knobs) if knobs.resident_levels > 0);
        // Before sm_80 there is not enough shared memory.
        assert_eq!(keeps, queries > 40 && device.arch().major >= 8, "{}", plan.choice().kernel);
        let held = Held::with_value(&device, &given, packed, plan.workspace());
        held.launch(&plan, stream.handle()).unwrap();
        stream.synchronize().unwrap();
        check("planes", &held.results()[0]);
        value = given.value;
    }
}

#[test]
fn value_and_its_gradient_may_have_more_than_2_to_the_31_elements() {
    let Some(device) = device() else { return };
    // A mebi-element per image.
    let images = 2100;
    let types = Types::with_value(Dtype::F16);
    let one =
        Spec { batch: 1, heads: 8, levels: vec![(64, 64)], points: vec![4], types, ..spec(20, Dtype::F16) };
    let base = Given::new(one.clone());
    let whole = base.problem.with(|s| s.batch = images).unwrap();
    assert!(whole.value_len() > 1 << 31);
    let pass = base.backward();
    let empty = [Dtype::F16, Dtype::F32, Dtype::F32, Dtype::F16].map(|dtype| Buffer::filled(dtype, 0, 0.0));
    let need = 4 * whole.value_len();
    let plan = Given::of(whole, empty).plan(&device, pass);
    if !has_room(&device, need + plan.workspace() + (1 << 30)) {
        return;
    }
    // The data of one image, turned by a number of elements that depends on the image.
    let of_image = |image: usize| {
        let turned = |buffer: &Buffer| {
            let (from, len) = (buffer.as_slice(), buffer.len());
            Buffer::from_fn(buffer.dtype(), len, |i| from.get((i + 1 + image * 31) % len))
        };
        let tensors = [&base.value, &base.locations, &base.weights, &base.grad_output].map(turned);
        Given::of(base.problem.clone(), tensors)
    };
    let slots = [Slot::Value, Slot::Locations, Slot::Weights, Slot::GradOutput];
    let gradients = [Slot::GradValue, Slot::GradLocations, Slot::GradWeights];
    let inputs = |given: &Given| {
        [&given.value, &given.locations, &given.weights, &given.grad_output].map(Buffer::to_le_bytes)
    };
    let usual = inputs(&base);
    let sizes = [0, 1, 2, 3, 0, 1, 2].map(|i| usual[i].len());
    let mut memory: Vec<(Slot, Memory)> = slots
        .into_iter()
        .chain(gradients)
        .zip(sizes)
        .map(|(slot, bytes)| {
            let mut tensor = device.alloc(images * bytes).unwrap();
            tensor.fill(0xff).unwrap();
            (slot, tensor)
        })
        .collect();
    // The first and the last, and those around element 2^31 and byte 2^31. All others have the same
    // data.
    let checked = [0, 1023, 1024, 2047, 2048, images - 1];
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
        let like = [&given.value, &given.locations, &given.weights];
        let results = like.into_iter().zip(&memory[slots.len()..]).map(|(like, (_, tensor))| {
            read(tensor, image * like.len() * like.dtype().size(), like.dtype(), like.len())
        });
        let results: Vec<_> = results.collect();
        given.check(&format!("image {image}, {}", plan.choice().kernel), pass, &results);
    }
}
