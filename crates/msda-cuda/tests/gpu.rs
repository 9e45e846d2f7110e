//! What plans promise, on a GPU: graphs, threads, devices, no allocations, levels on the device,
//! packing, sizes past 2^31, clear errors.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead.
#![allow(unsafe_code)]

mod common;
mod counting;

use msda::rng::Rng;
use msda::{
    Backend, Buffer, Cpu, Dtype, ErrorKind, Inputs, Layout, Problem, ReferenceKind, Spec, Types, pack,
};
use msda_cuda::driver::{Device, Graph, Memory, StreamHandle};
use msda_cuda::kernels::Kernel;
use msda_cuda::{Addresses, Cuda, Levels, Operands, Packing, Plan, Request, Sizes, Slot, Sums};

use common::device;

fn problem(queries: usize, dtype: Dtype) -> Problem {
    Problem::new(Spec {
        batch: 2,
        queries,
        heads: 8,
        channels: 32,
        levels: vec![(20, 30), (10, 15), (5, 8)],
        points: vec![4, 4, 4],
        types: Types::uniform(dtype),
        ..Spec::default()
    })
    .unwrap()
}

/// Host tensors of a problem: value, locations, weights.
fn tensors(p: &Problem) -> [Buffer; 3] {
    let mut rng = Rng::new(7);
    let t = p.types();
    let value = Buffer::from_fn(t.value, p.value_len(), |_| rng.unit() * 2.0 - 1.0);
    let locations = Buffer::from_fn(t.locations, p.locations_len(), |_| rng.unit() * 1.1 - 0.05);
    let weights = Buffer::from_fn(t.weights, p.weights_len(), |_| rng.unit() / p.samples() as f64);
    [value, locations, weights]
}

fn on_device(device: &Device, buffer: &Buffer) -> Memory {
    let bytes = buffer.to_le_bytes();
    let mut memory = device.alloc(bytes.len()).unwrap();
    memory.write(0, &bytes).unwrap();
    memory
}

/// Tensors on the device, with a poisoned output.
struct Held {
    value: Memory,
    locations: Memory,
    weights: Memory,
    output: Memory,
    workspace: Memory,
}

impl Held {
    fn new(device: &Device, p: &Problem, workspace: usize) -> Self {
        let [value, locations, weights] = tensors(p).map(|buffer| on_device(device, &buffer));
        let mut output = device.alloc(p.output_len() * p.types().value.size()).unwrap();
        output.fill(0xff).unwrap();
        Self { value, locations, weights, output, workspace: device.alloc(workspace).unwrap() }
    }

    fn addresses(&self) -> Addresses {
        Addresses::from([
            (Slot::Value, self.value.address()),
            (Slot::Locations, self.locations.address()),
            (Slot::Weights, self.weights.address()),
            (Slot::Output, self.output.address()),
            (Slot::Workspace, self.workspace.address()),
        ])
    }

    fn output(&self, p: &Problem) -> Vec<f64> {
        let mut bytes = vec![0; self.output.len()];
        self.output.read(0, &mut bytes).unwrap();
        Buffer::from_le_bytes(p.types().value, &bytes).to_f64()
    }
}

fn expected(p: &Problem) -> Vec<f64> {
    let [value, locations, weights] = tensors(p);
    let mut output = Buffer::filled(p.types().value, p.output_len(), f64::NAN);
    let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    Cpu::new().forward(p, &inputs, output.as_mut().into()).unwrap();
    output.to_f64()
}

fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= tolerance, "element {i}: got {a}, expected {b}");
    }
}

#[test]
fn a_launch_can_be_captured_and_replayed() {
    let Some(device) = device() else { return };
    for queries in [300, 6000] {
        let p = problem(queries, Dtype::F16);
        let plan = Plan::new(&device, &Request::new(&p, &Operands::dense(&p, None))).unwrap();
        let mut held = Held::new(&device, &p, plan.workspace());
        let stream = device.stream().unwrap();
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        let graph = Graph::capture(&stream, |s| unsafe { plan.launch(&held.addresses(), s) }).unwrap();
        for _ in 0..3 {
            held.output.fill(0xff).unwrap();
            // SAFETY: as above.
            unsafe { graph.launch(stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            close(&held.output(&p), &expected(&p), 2e-3);
        }
    }
}

/// Plans are made during a capture and dropped before the replay: chosen kernels, the generic
/// kernel with a table of levels in its argument, and one whose table is too long for that.
#[test]
fn plans_are_made_inside_a_capture_and_replayed_after_they_are_gone() {
    let Some(device) = device() else { return };
    let many =
        problem(50, Dtype::F32).with(|s| (s.levels, s.points) = (vec![(3, 4); 70], vec![1; 70])).unwrap();
    let cases = [
        (problem(300, Dtype::F16), None),
        (problem(6000, Dtype::F16), None),
        (problem(300, Dtype::F32), Some(Kernel::Generic)),
        (many, Some(Kernel::Generic)),
    ];
    for (p, kernel) in cases {
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        let mut held = Held::new(&device, &p, 1 << 20);
        let stream = device.stream().unwrap();
        let graph = Graph::capture(&stream, |s| {
            let plan = match kernel {
                Some(kernel) => Plan::with_kernel(&device, &request, kernel)?,
                None => Plan::new(&device, &request)?,
            };
            assert!(plan.workspace() <= 1 << 20 && plan.owned() == 0);
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&held.addresses(), s) }
        })
        .unwrap();
        // The memory of the dropped plans, if they had any, is used again.
        let mut others: Vec<Memory> = (0..64).map(|_| device.alloc(4096).unwrap()).collect();
        others.iter_mut().for_each(|memory| memory.fill(0xff).unwrap());
        for _ in 0..2 {
            held.output.fill(0xff).unwrap();
            // SAFETY: as above.
            unsafe { graph.launch(stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            close(&held.output(&p), &expected(&p), 2e-3);
        }
    }
}

/// A plan of two kernels, which are queued together on the first stream that it is launched on.
fn ordered(device: &Device, p: &Problem) -> Plan {
    let operands = Operands::dense(p, None);
    let kernel = "rows:heads=2,block=128,walk=ordered".parse().unwrap();
    let plan = Plan::with_kernel(device, &Request::new(p, &operands), kernel).unwrap();
    assert_eq!(plan.functions().count(), 2);
    plan
}

#[test]
fn kernels_that_are_queued_together_take_other_tensors_and_streams() {
    let Some(device) = device() else { return };
    let p = problem(6000, Dtype::F16);
    let want = expected(&p);
    let plan = ordered(&device, &p);
    let mut held = [(); 2].map(|()| Held::new(&device, &p, plan.workspace()));
    let streams = [(); 2].map(|()| device.stream().unwrap());
    // One of its own that has only the default stream.
    let other = ordered(&device, &p);
    for _ in 0..2 {
        held[0].output.fill(0xff).unwrap();
        // SAFETY: the tensors are of the problem, and live until the device is done.
        unsafe { other.launch(&held[0].addresses(), StreamHandle::DEFAULT).unwrap() };
        device.synchronize().unwrap();
        close(&held[0].output(&p), &want, 2e-3);
    }
    // Tensors and streams of one launch after the other; the last one is recorded, and then run,
    // while others make plans and drop them.
    for (tensors, on, recorded) in [
        (0, 0, false),
        (0, 0, false),
        (1, 0, false),
        (0, 1, false),
        (1, 1, false),
        (0, 1, false),
        (1, 1, true),
    ] {
        let (held, stream) = (&mut held[tensors], &streams[on]);
        held.output.fill(0xff).unwrap();
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        let launch = |s: StreamHandle<'_>| unsafe { plan.launch(&held.addresses(), s) };
        if recorded {
            let graph = Graph::capture(stream, |s| {
                drop(ordered(&device, &p));
                launch(s)
            })
            .unwrap();
            // SAFETY: as above.
            unsafe { graph.launch(stream.handle()).unwrap() };
        } else {
            launch(stream.handle()).unwrap();
        }
        stream.synchronize().unwrap();
        close(&held.output(&p), &want, 2e-3);
    }
    // One behind the other, each with its own tensors: those of a launch are as they were when it
    // was queued.
    for held in &mut held {
        held.output.fill(0xff).unwrap();
    }
    for _ in 0..50 {
        for held in &held {
            // SAFETY: as above.
            unsafe { plan.launch(&held.addresses(), streams[0].handle()).unwrap() };
        }
    }
    streams[0].synchronize().unwrap();
    for held in &held {
        close(&held.output(&p), &want, 2e-3);
    }
}

#[test]
fn a_plan_serves_many_threads() {
    let Some(device) = device() else { return };
    let p = problem(500, Dtype::F32);
    let chosen = Plan::new(&device, &Request::new(&p, &Operands::dense(&p, None))).unwrap();
    let plans = [chosen, ordered(&device, &p)];
    let want = expected(&p);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (plan, device, p, want) = (&plans[thread % 2], &device, &p, &want);
            scope.spawn(move || {
                let held = Held::new(device, p, plan.workspace());
                let stream = device.stream().unwrap();
                for _ in 0..20 {
                    // SAFETY: the tensors are of the problem, and live until the stream is done.
                    unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
                }
                stream.synchronize().unwrap();
                close(&held.output(p), want, 1e-5);
            });
        }
    });
}

#[test]
fn levels_may_stay_on_the_device() {
    let Some(device) = device() else { return };
    let p = problem(77, Dtype::F32);
    // What is known on the host: the number of levels and of positions.
    let blind = p
        .with(|s| {
            s.positions = Some(p.positions());
            s.levels = vec![(1, 1); 3];
            s.starts = None;
        })
        .unwrap();
    let plan = Plan::new(
        &device,
        &Request { levels: Levels::Device, ..Request::new(&blind, &Operands::dense(&blind, None)) },
    )
    .unwrap();
    assert!(matches!(plan.choice().kernel, Kernel::Rows(_)), "{}", plan.choice().why);
    let mut held = Held::new(&device, &p, plan.workspace());
    let words = |words: &[i64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut memory = device.alloc(bytes.len()).unwrap();
        memory.write(0, &bytes).unwrap();
        memory
    };
    let stream = device.stream().unwrap();
    let mut run = |shapes: &[i64], starts: &[i64]| {
        let (shapes, starts) = (words(shapes), words(starts));
        held.output.fill(0xff).unwrap();
        let at = held.addresses().with(Slot::Shapes, shapes.address()).with(Slot::Starts, starts.address());
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        unsafe { plan.launch(&at, stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        held.output(&p)
    };
    close(&run(&[20, 30, 10, 15, 5, 8], &[0, 600, 750]), &expected(&p), 1e-5);
    // Levels that do not lie within the value are left out, and nothing is read there.
    let wrong = run(&[1 << 40, 30, -1, 15, 5, 8], &[0, 600, i64::MAX]);
    assert!(wrong.iter().all(|x| *x == 0.0));
    // SAFETY: nothing is launched without the levels' addresses.
    let missing = unsafe { plan.launch(&held.addresses(), stream.handle()) };
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Shape);
}

#[test]
fn packing_is_the_hosts_packing() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    for dtype in Dtype::ALL {
        for from in Layout::ALL {
            for to in Layout::ALL {
                let a = problem(1, Dtype::F32)
                    .with(|s| (s.types, s.layout) = (Types::uniform(dtype), from))
                    .unwrap();
                let b = a.with(|s| s.layout = to).unwrap();
                let mut rng = Rng::new(3);
                let value = Buffer::from_fn(dtype, a.value_len(), |_| rng.unit());
                let mut want = Buffer::filled(dtype, b.value_len(), f64::NAN);
                pack(&a, value.as_slice(), &b, want.as_mut()).unwrap();

                let source = on_device(&device, &value);
                let mut packed = device.alloc(b.value_len() * dtype.size()).unwrap();
                packed.fill(0xff).unwrap();
                let packing = Packing::new(&device, &a, &b).unwrap();
                // SAFETY: both are dense tensors of the problems, and live until the stream is
                // done.
                unsafe { packing.launch(source.address(), packed.address(), stream.handle()).unwrap() };
                stream.synchronize().unwrap();
                let mut bytes = vec![0; packed.len()];
                packed.read(0, &mut bytes).unwrap();
                assert!(bytes == want.to_le_bytes(), "{dtype} {from:?} to {to:?}");
            }
        }
    }
}

/// Locations and weights of which half look at the last rows of the first level.
fn looks(p: &Problem, rng: &mut Rng) -> [Buffer; 2] {
    let locations = Buffer::from_fn(Dtype::F32, p.locations_len(), |i| {
        let late = i / (p.locations_len() / 2) == 1;
        if late { 0.995 + 0.005 * rng.unit() } else { rng.unit() }
    });
    [locations, Buffer::from_fn(Dtype::F32, p.weights_len(), |_| rng.unit() / 8.0)]
}

#[test]
fn value_may_have_more_than_2_to_the_31_elements() {
    let Some(device) = device() else { return };
    let p = Problem::new(Spec {
        batch: 1,
        queries: 40,
        heads: 8,
        channels: 32,
        levels: vec![(2900, 2900), (28, 28)],
        points: vec![4, 4],
        types: Types::with_value(Dtype::F16),
        ..Spec::default()
    })
    .unwrap();
    assert!(p.value_len() > 1 << 31);
    // Twice: as it is, and as planes.
    let need = 2 * p.value_len() * 2 + (1 << 30);
    if device.free_memory().unwrap() < need {
        eprintln!("skipped: the device has no {need} bytes free");
        return;
    }
    let mut rng = Rng::new(5);
    let [locations, weights] = looks(&p, &mut rng);
    // A pattern of a prime period: an index that lost its upper bits reads something else.
    let pattern: Vec<f64> = (0..10_007).map(|_| rng.unit() * 2.0 - 1.0).collect();
    let value = Buffer::from_fn(Dtype::F16, p.value_len(), |i| pattern[i % 10_007]);
    let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    let want = msda::oracle::forward::<f64>(&p, &inputs).unwrap();
    let chosen = Cuda::new(&device);
    let generic = Cuda::with_pick(&device, "generic", |_| Some(Kernel::Generic));
    for backend in [chosen, generic] {
        let mut output = Buffer::filled(Dtype::F16, p.output_len(), f64::NAN);
        backend.forward(&p, &inputs, output.as_mut().into()).unwrap();
        close(&output.to_f64(), &want, 1e-3);
    }

    // The same as planes, packed on the device; and so many queries that blocks keep the coarse
    // level.
    for queries in [40, 20_000] {
        let p = p.with(|s| s.queries = queries).unwrap();
        let planar = p.with(|s| s.layout = Layout::Planar).unwrap();
        let [locations, weights] = looks(&p, &mut rng);
        let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
        let want = msda::oracle::forward::<f64>(&p, &inputs).unwrap();
        let source = on_device(&device, &value);
        let mut packed = device.alloc(source.len()).unwrap();
        packed.fill(0xff).unwrap();
        let stream = device.stream().unwrap();
        let packing = Packing::new(&device, &p, &planar).unwrap();
        // SAFETY: both are dense tensors of the problems, and live until the stream is done.
        unsafe { packing.launch(source.address(), packed.address(), stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        let plan = Plan::new(&device, &Request::new(&planar, &Operands::dense(&planar, None))).unwrap();
        let keeps = matches!(plan.choice().kernel, Kernel::Rows(knobs) if knobs.resident_levels > 0);
        // Before sm_80 there is not enough shared memory.
        assert_eq!(keeps, queries > 40 && device.arch().major >= 8, "{}", plan.choice().kernel);
        let mut output = device.alloc(p.output_len() * 2).unwrap();
        output.fill(0xff).unwrap();
        let held = Held {
            value: packed,
            locations: on_device(&device, &locations),
            weights: on_device(&device, &weights),
            output,
            workspace: device.alloc(plan.workspace()).unwrap(),
        };
        // SAFETY: as above.
        unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        close(&held.output(&planar), &want, 1e-3);
    }
}

#[test]
fn planned_calls_allocate_nothing() {
    let Some(device) = device() else { return };
    // One kernel by itself, and two that are queued together.
    for queries in [300, 6000] {
        let p = problem(queries, Dtype::F16);
        let plan = match queries {
            300 => Plan::new(&device, &Request::new(&p, &Operands::dense(&p, None))).unwrap(),
            _ => ordered(&device, &p),
        };
        let (one, other) =
            (Held::new(&device, &p, plan.workspace()), Held::new(&device, &p, plan.workspace()));
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
        for held in [one, other] {
            close(&held.output(&p), &expected(&p), 2e-3);
        }
    }
}

#[test]
fn every_device_computes() {
    if device().is_none() {
        return;
    }
    let count = Device::count().unwrap();
    let p = problem(300, Dtype::F16);
    let want = expected(&p);
    // All at once, and each from several threads.
    std::thread::scope(|scope| {
        for ordinal in 0..count {
            for _ in 0..2 {
                let (p, want) = (&p, &want);
                scope.spawn(move || {
                    let device = Device::open(ordinal).unwrap();
                    let plan = match Plan::new(&device, &Request::new(p, &Operands::dense(p, None))) {
                        Ok(plan) => plan,
                        // Not for the first one, which every other test is about.
                        Err(why) if ordinal > 0 && why.kind() == ErrorKind::Unsupported => {
                            return eprintln!("skipped GPU {ordinal}: {why}");
                        }
                        Err(why) => panic!("GPU {ordinal}: {why}"),
                    };
                    let held = Held::new(&device, p, plan.workspace());
                    let stream = device.stream().unwrap();
                    // SAFETY: the tensors are of the problem, and live until the stream is done.
                    unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
                    stream.synchronize().unwrap();
                    close(&held.output(p), want, 2e-3);
                });
            }
        }
    });
    eprintln!("{count} device(s)");
}

#[test]
fn what_cannot_be_done_is_a_clear_error() {
    let Some(device) = device() else { return };
    let huge = device.alloc(1 << 50).unwrap_err();
    assert_eq!(huge.kind(), ErrorKind::Memory, "{huge}");
    assert!(Device::open(10_000).is_err());

    let p = problem(10, Dtype::F16);
    let operands = Operands::dense(&p, None);
    let plan = Plan::new(&device, &Request::new(&p, &operands)).unwrap();
    let held = Held::new(&device, &p, plan.workspace());
    let stream = device.stream().unwrap();
    let crooked = held.addresses().with(Slot::Value, held.value.address() + 2);
    // SAFETY: addresses that are not aligned as the plan wants are refused before anything is
    // queued.
    let error = unsafe { plan.launch(&crooked, stream.handle()) }.unwrap_err();
    assert!(error.to_string().contains("hint: "), "{error}");
    stream.synchronize().unwrap();
    assert!(held.output(&p).iter().all(|x| x.is_nan()), "something was written");

    // A kernel that does not take the problem says why.
    let request = Request::new(&p, &operands);
    let tiles: Kernel = "rows:heads=1,block=256,walk=tiles".parse().unwrap();
    let error = Plan::with_kernel(&device, &request, tiles).unwrap_err();
    assert!(error.to_string().contains("not the pixels"), "{error}");
}

#[test]
fn sums_of_f16_are_used_where_they_are_asked_for_and_pay() {
    let Some(device) = device() else { return };
    // Not by kernels that keep levels, nor where a lane has few samples at a time.
    let cases = [
        (300, 4, Layout::Bshd, Sums::F16),
        (6000, 16, Layout::Bshd, Sums::F16),
        (6000, 4, Layout::Bshd, Sums::F32),
        (6000, 4, Layout::Planar, Sums::F32),
    ];
    for (queries, points, layout, sums) in cases {
        let p =
            problem(queries, Dtype::F16).with(|s| (s.layout, s.points) = (layout, vec![points; 3])).unwrap();
        let operands = Operands::dense(&p, None);
        let asked = Request { sums: Sums::F16, ..Request::new(&p, &operands) };
        let plan = Plan::new(&device, &asked).unwrap();
        assert_eq!(plan.choice().kernel.sums(), sums);
        let held = Held::new(&device, &p, plan.workspace());
        let stream = device.stream().unwrap();
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        close(&held.output(&p), &expected(&p), 4e-3);
        // A request that does not ask for them refuses the kernel.
        let refused = Plan::with_kernel(&device, &Request::new(&p, &operands), plan.choice().kernel).is_err();
        assert_eq!(refused, sums == Sums::F16);
    }
}

#[test]
fn kernels_for_one_size_compute_the_same() {
    let Some(device) = device() else { return };
    // Many queries, the pixels of the levels, levels that are kept, rows of a line.
    let of = |queries, dtype, change: fn(&mut Spec)| problem(queries, dtype).with(change).unwrap();
    let cases = [
        of(6000, Dtype::Bf16, |_| ()),
        of(790, Dtype::F16, |s| s.batch = 80),
        of(790, Dtype::F32, |s| s.batch = 80),
        of(6000, Dtype::F16, |s| s.layout = Layout::PlanarRing),
        of(6000, Dtype::F32, |s| s.layout = Layout::Planar),
    ];
    for p in cases {
        let operands = Operands::dense(&p, None);
        let run = |sizes| {
            let plan = Plan::new(&device, &Request { sizes, ..Request::new(&p, &operands) }).unwrap();
            let held = Held::new(&device, &p, plan.workspace());
            let stream = device.stream().unwrap();
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            (plan.choice().kernel.to_string(), held.output(&p))
        };
        let (any, fixed) = (run(Sizes::Any), run(Sizes::Fixed));
        assert_eq!(fixed.0, format!("{},fixed_sizes=1", any.0));
        assert!(any.1.iter().all(|x| x.is_finite()) && any.1 == fixed.1, "{p}: {}", fixed.0);
    }
}

#[test]
fn blocks_that_keep_levels_go_from_image_to_image() {
    let Some(device) = device() else { return };
    // More planes than sms, an odd number of them, and of tiles: some blocks begin in one image and
    // end in the next. And small blocks with many tiles, of which the last are for whichever warp
    // is free.
    let of = |dtype, batch, queries| {
        problem(queries, dtype).with(|s| (s.batch, s.heads, s.layout) = (batch, 1, Layout::Planar)).unwrap()
    };
    for (dtype, sides, tolerance) in [(Dtype::F16, 2, 2e-3), (Dtype::F32, 1, 1e-5)] {
        for (batch, queries, block, round) in [(301, 300, 1024, 2), (5, 6001, 64, 2), (5, 6001, 96, 1)] {
            let p = of(dtype, batch, queries);
            let want = expected(&p);
            let operands = Operands::dense(&p, None);
            for walk in ["straight", "sorted", "ordered"] {
                for keep in [1, 3] {
                    let kernel =
                        format!("rows:sides={sides},block={block},round={round},keep={keep},walk={walk}");
                    let plan =
                        Plan::with_kernel(&device, &Request::new(&p, &operands), kernel.parse().unwrap())
                            .unwrap();
                    let held = Held::new(&device, &p, plan.workspace());
                    let stream = device.stream().unwrap();
                    // SAFETY: the tensors are of the problem, and live until the stream is done.
                    unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
                    stream.synchronize().unwrap();
                    close(&held.output(&p), &want, tolerance);
                }
            }
        }
    }
}

#[test]
fn fused_calls_may_keep_levels() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(9);
    for (dtype, sides, tolerance) in [(Dtype::F16, 2, 2e-3), (Dtype::F32, 1, 1e-5)] {
        let p = problem(3000, dtype).with(|s| (s.batch, s.heads, s.layout) = (3, 1, Layout::Planar)).unwrap();
        let [value, ..] = tensors(&p);
        let logits = Buffer::from_fn(dtype, p.weights_len(), |_| rng.unit() * 4.0 - 2.0);
        for kind in [ReferenceKind::Point, ReferenceKind::Box] {
            let reference = Buffer::from_fn(dtype, p.reference_len(kind.dim()), |_| 0.1 + 0.8 * rng.unit());
            let offsets = Buffer::from_fn(dtype, p.locations_len(), |_| rng.unit() * 4.0 - 2.0);
            let [value, reference, offsets, logits] =
                [&value, &reference, &offsets, &logits].map(Buffer::as_slice);
            let inputs = Inputs::fused(value, kind, reference, offsets, logits);
            let want = Cpu::new().output(&p, &inputs).unwrap().to_f64();
            for keep in 1..=3 {
                let kernel: Kernel =
                    format!("rows:tap_columns={sides},threads=256,samples_per_lane=2,resident_levels={keep}")
                        .parse()
                        .unwrap();
                let backend = Cuda::with_pick(&device, "resident", move |_| Some(kernel));
                close(&backend.output(&p, &inputs).unwrap().to_f64(), &want, tolerance);
            }
        }
    }
}

#[test]
fn what_cancels_is_nothing_on_levels_that_are_kept() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let p = Problem::new(Spec {
            batch: 1,
            queries: 5000,
            heads: 1,
            channels: 32,
            levels: vec![(16, 16); 2],
            points: vec![4; 2],
            layout: Layout::Planar,
            types: Types::uniform(dtype),
            ..Spec::default()
        })
        .unwrap();
        // Rows of pixels with signs in turn, and samples midway between two of them.
        let value =
            Buffer::from_fn(dtype, p.value_len(), |i| if i / (16 * 32) % 2 == 0 { 1000.0 } else { -1000.0 });
        let mut rng = Rng::new(3);
        let mut sixteenths = |_| (1 + rng.below(15)) as f64 / 16.0;
        let locations = Buffer::from_fn(dtype, p.locations_len(), &mut sixteenths);
        let weights = Buffer::from_fn(dtype, p.weights_len(), &mut sixteenths);
        let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
        let mut output = Buffer::filled(dtype, p.output_len(), f64::NAN);
        Cuda::new(&device).forward(&p, &inputs, output.as_mut().into()).unwrap();
        assert!(output.to_f64().iter().all(|&x| x == 0.0), "{dtype}");
    }
}

/// One query, one level of 2 x 2 pixels, 32 channels: the output's first element.
fn one_query(device: &Device, dtype: Dtype, rows: [f64; 4], location: [f64; 2]) -> f64 {
    let p = Problem::new(Spec {
        batch: 1,
        queries: 1,
        heads: 1,
        channels: 32,
        levels: vec![(2, 2)],
        points: vec![1],
        types: Types::uniform(dtype),
        ..Spec::default()
    })
    .unwrap();
    let value = Buffer::from_fn(dtype, p.value_len(), |i| rows[i / 32]);
    let locations = Buffer::from_fn(dtype, 2, |i| location[i]);
    let weights = Buffer::filled(dtype, 1, 1.0);
    let mut output = Buffer::filled(dtype, p.output_len(), f64::NAN);
    let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    Cuda::new(device).forward(&p, &inputs, output.as_mut().into()).unwrap();
    output.to_f64()[0]
}

#[test]
fn what_cancels_is_nothing_and_so_is_what_is_off_the_map() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        assert_eq!(one_query(&device, dtype, [1000.0, 1000.0, -1000.0, -1000.0], [0.5, 0.5]), 0.0, "{dtype}");
        let large = if dtype == Dtype::F16 { 6e4 } else { 3e38 };
        assert_eq!(one_query(&device, dtype, [large; 4], [5.0, 5.0]), 0.0, "{dtype}");
    }
}

#[test]
fn plans_of_other_sizes_do_not_disturb_each_other() {
    let Some(device) = device() else { return };
    let seed = |levels: Vec<(usize, usize)>| {
        let p = Problem::new(Spec {
            batch: 20,
            queries: 5000,
            heads: 1,
            channels: 32,
            levels,
            points: vec![8; 4],
            layout: Layout::Planar,
            types: Types::uniform(Dtype::F16),
            ..Spec::default()
        })
        .unwrap();
        let plan = Plan::new(&device, &Request::new(&p, &Operands::dense(&p, None))).unwrap();
        (p, plan)
    };
    let large = seed(vec![(92, 160), (46, 80), (23, 40), (12, 20)]);
    let small = seed(vec![(80, 136), (40, 68), (20, 34), (10, 17)]);
    // One function, with more shared memory or less for the levels that it keeps.
    let kernel = large.1.choice().kernel;
    assert_eq!(kernel, small.1.choice().kernel);
    assert!(
        device.arch().major < 8 || matches!(kernel, Kernel::Rows(knobs) if knobs.resident_levels > 0),
        "{kernel}"
    );
    let stream = device.stream().unwrap();
    for (p, plan) in [&large, &small, &large] {
        let held = Held::new(&device, p, plan.workspace());
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        unsafe { plan.launch(&held.addresses(), stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        close(&held.output(p), &expected(p), 2e-3);
    }
}
