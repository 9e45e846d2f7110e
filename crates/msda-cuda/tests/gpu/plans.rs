//! What plans promise, in both passes: the same bits on every run, graphs, threads, devices, no
//! allocations, a workspace of the size that the plan says, clear errors.

use std::sync::atomic::{AtomicBool, Ordering};

use msda::{Backend, Buffer, Dtype, ErrorKind, Gradients, Layout, Spec, View, ViewMut};
use msda_cuda::driver::{Device, Graph, Memory, StreamHandle};
use msda_cuda::kernels::Kernel;
use msda_cuda::{Cuda, Pass, Plan, Request, Scatter, Slot};

use crate::calls::{Given, Held, bytes, calls, spec};
use crate::common::device;
use crate::counting;

/// Runs `work` while another stream keeps the GPU and its memory busy.
fn while_busy(device: &Device, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let (started, is_busy) = std::sync::mpsc::channel();
    let given = Given::new(spec(20_000, Dtype::F32));
    let plan = given.plan(device, Pass::Forward);
    let held = Held::new(device, &given, Pass::Forward, plan.workspace());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = device.stream().unwrap();
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    held.launch(&plan, stream.handle()).unwrap();
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
    let stream = device.stream().unwrap();
    for given in calls() {
        for pass in given.passes() {
            let plan = given.plan(&device, pass);
            let mut held = Held::new(&device, &given, pass, plan.workspace());
            let first = held.run(&plan, &stream);
            given.check(&plan.choice().kernel.to_string(), pass, &first);
            while_busy(&device, || {
                for turn in 1..20 {
                    let same = bytes(&held.run(&plan, &stream)) == bytes(&first);
                    assert!(same, "{}: other bits in run {turn} of {pass:?}", given.problem);
                }
            });
        }
    }
}

#[test]
fn additions_in_any_order_are_right() {
    let Some(device) = device() else { return };
    for given in calls() {
        let plan = given.request(given.backward(), |request| {
            Plan::new(&device, &Request { scatter: Scatter::Atomic, ..request }).unwrap()
        });
        for _ in 0..3 {
            given.check_plan(&device, given.backward(), &plan);
        }
    }
}

/// Plans that are made before the capture, and inside it; all are gone at the replay. Chosen
/// kernels, the generic kernel with a table of levels in its argument, and one whose table is too
/// long for that.
#[test]
fn launches_can_be_captured_and_replayed() {
    let Some(device) = device() else { return };
    let many = Spec { levels: vec![(3, 4); 70], points: vec![1; 70], ..spec(50, Dtype::F32) };
    let generic = [spec(300, Dtype::F32), many].map(|spec| (Given::new(spec), Some(Kernel::Generic)));
    for (given, kernel) in calls().into_iter().map(|given| (given, None)).chain(generic) {
        for pass in given.passes() {
            let plan = || {
                given.request(pass, |request| match kernel {
                    Some(kernel) => Plan::with_kernel(&device, &request, kernel),
                    None => Plan::new(&device, &request),
                })
            };
            let stream = device.stream().unwrap();
            let before = plan().unwrap();
            let mut held = Held::new(&device, &given, pass, before.workspace());
            let want = held.run(&before, &stream);
            given.check("before the capture", pass, &want);
            let graphs = [
                Graph::capture(&stream, |s| held.launch(&before, s)).unwrap(),
                Graph::capture(&stream, |s| {
                    let inside = plan()?;
                    assert!(inside.workspace() == before.workspace() && inside.owned() == 0);
                    held.launch(&inside, s)
                })
                .unwrap(),
            ];
            drop(before);
            // The memory of the dropped plans, if they had any, is used again.
            let mut others: Vec<Memory> = (0..64).map(|_| device.alloc(4096).unwrap()).collect();
            others.iter_mut().for_each(|memory| memory.fill(0xff).unwrap());
            for graph in graphs {
                for _ in 0..3 {
                    held.poison();
                    // SAFETY: the tensors live until the stream is done.
                    unsafe { graph.launch(stream.handle()).unwrap() };
                    stream.synchronize().unwrap();
                    let same = bytes(&held.results()) == bytes(&want);
                    assert!(same, "{}: a replay of {pass:?} gave other bits", given.problem);
                }
            }
        }
    }
}

/// A plan of two kernels, which are queued together on the first stream that it is launched on.
fn ordered(device: &Device, given: &Given) -> Plan {
    let plan = given.plan_of(device, "rows:heads_per_block=2,threads=128,walk=ordered");
    assert_eq!(plan.functions().count(), 2);
    plan
}

#[test]
fn kernels_that_are_queued_together_take_other_tensors_and_streams() {
    let Some(device) = device() else { return };
    let given = Given::new(Spec { heads: 8, ..spec(6000, Dtype::F16) });
    let plan = ordered(&device, &given);
    let new = || Held::new(&device, &given, Pass::Forward, plan.workspace());
    let check = |held: &Held| given.check("two kernels", Pass::Forward, &held.results());
    let (mut held, streams) = ([new(), new()], [(); 2].map(|()| device.stream().unwrap()));
    // One of its own that has only the default stream.
    let other = ordered(&device, &given);
    for _ in 0..2 {
        held[0].poison();
        held[0].launch(&other, StreamHandle::DEFAULT).unwrap();
        device.synchronize().unwrap();
        check(&held[0]);
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
        held.poison();
        if recorded {
            let graph = Graph::capture(stream, |s| {
                drop(ordered(&device, &given));
                held.launch(&plan, s)
            })
            .unwrap();
            // SAFETY: the tensors live until the stream is done.
            unsafe { graph.launch(stream.handle()).unwrap() };
        } else {
            held.launch(&plan, stream.handle()).unwrap();
        }
        stream.synchronize().unwrap();
        check(held);
    }
    // One behind the other, each with its own tensors: those of a launch are as they were when it
    // was queued.
    held.iter_mut().for_each(Held::poison);
    for _ in 0..50 {
        held.iter().for_each(|held| held.launch(&plan, streams[0].handle()).unwrap());
    }
    streams[0].synchronize().unwrap();
    held.iter().for_each(check);
}

/// Each thread has its own stream, tensors and workspace.
#[test]
fn a_plan_serves_many_threads() {
    let Some(device) = device() else { return };
    let given = Given::new(spec(900, Dtype::F16));
    let [forward, backward] = given.passes();
    let plans = [
        (forward, given.plan(&device, forward)),
        (forward, ordered(&device, &given)),
        (backward, given.plan(&device, backward)),
    ];
    for (pass, plan) in &plans {
        let run = || {
            let held = Held::new(&device, &given, *pass, plan.workspace());
            let stream = device.stream().unwrap();
            for _ in 0..20 {
                held.launch(plan, stream.handle()).unwrap();
            }
            stream.synchronize().unwrap();
            held.results()
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        given.check("a plan in many threads", *pass, &results[0]);
        let same = results.iter().all(|other| bytes(other) == bytes(&results[0]));
        assert!(same, "threads got other bits from {}", plan.choice().kernel);
    }
}

#[test]
fn planned_calls_allocate_nothing() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    // One kernel by itself, two that are queued together, and those of a backward pass.
    for given in calls() {
        let [forward, backward] = given.passes();
        let mut plans =
            vec![(forward, given.plan(&device, forward)), (backward, given.plan(&device, backward))];
        if given.problem.types().value == Dtype::F16 && given.reference.is_none() {
            plans.push((forward, ordered(&device, &given)));
        }
        for (pass, plan) in plans {
            let [one, other] = [(); 2].map(|()| Held::new(&device, &given, pass, plan.workspace()));
            one.launch(&plan, stream.handle()).unwrap();
            let before = counting::allocations();
            for _ in 0..10 {
                other.launch(&plan, stream.handle()).unwrap();
                one.launch(&plan, stream.handle()).unwrap();
            }
            assert_eq!(counting::allocations(), before);
            stream.synchronize().unwrap();
            for held in [one, other] {
                given.check("launches in a row", pass, &held.results());
            }
        }
    }
}

/// All at once, and each from several threads.
#[test]
fn every_device_computes() {
    if device().is_none() {
        return;
    }
    let count = Device::count().unwrap();
    let given = &Given::new(spec(300, Dtype::F16));
    std::thread::scope(|scope| {
        for ordinal in (0..count).flat_map(|ordinal| [ordinal; 2]) {
            scope.spawn(move || {
                let device = Device::open(ordinal).unwrap();
                match given.request(Pass::Forward, |request| Plan::new(&device, &request)) {
                    Ok(plan) => given.check_plan(&device, Pass::Forward, &plan),
                    // Not for the first one, which every other test is about.
                    Err(why) if ordinal > 0 && why.kind() == ErrorKind::Unsupported => {
                        eprintln!("skipped GPU {ordinal}: {why}");
                    }
                    Err(why) => panic!("GPU {ordinal}: {why}"),
                }
            });
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

    let given = Given::new(spec(10, Dtype::F16));
    let plan = given.plan(&device, Pass::Forward);
    let held = Held::new(&device, &given, Pass::Forward, plan.workspace());
    let stream = device.stream().unwrap();
    let at = held.addresses();
    // SAFETY: addresses that are not aligned as the plan wants are refused before anything is
    // queued.
    let error =
        unsafe { plan.launch(&at.with(Slot::Value, at[Slot::Value] + 2), stream.handle()) }.unwrap_err();
    assert!(error.to_string().contains("hint: "), "{error}");
    stream.synchronize().unwrap();
    assert!(held.results()[0].to_f64().iter().all(|x| x.is_nan()), "something was written");

    // A kernel that does not take the problem says why.
    let tiles: Kernel = "rows:heads_per_block=1,threads=256,walk=tiles".parse().unwrap();
    let error =
        given.request(Pass::Forward, |request| Plan::with_kernel(&device, &request, tiles)).unwrap_err();
    assert!(error.to_string().contains("not the pixels"), "{error}");
}

/// The workspace lies between two guards. It holds NaN before the launch, and the guards are as
/// before after it.
#[test]
fn the_workspace_has_the_size_that_the_plan_says() {
    const GUARD: usize = 4096;
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    for given in calls() {
        let [forward, backward] = given.passes();
        let cases = [(forward, Scatter::Ordered), (backward, Scatter::Ordered), (backward, Scatter::Atomic)];
        for (pass, scatter) in cases {
            let plan =
                given.request(pass, |request| Plan::new(&device, &Request { scatter, ..request })).unwrap();
            let size = plan.workspace();
            let held = Held::new(&device, &given, pass, size + 2 * GUARD);
            let at = held.addresses().with(Slot::Workspace, held.workspace.address() + GUARD as u64);
            // SAFETY: the tensors are of the problem, and live until the stream is done.
            unsafe { plan.launch(&at, stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            let mut all = vec![0; size + 2 * GUARD];
            held.workspace.read(0, &mut all).unwrap();
            let clean = |guard: &[u8]| guard.iter().all(|&byte| byte == 0xff);
            assert!(clean(&all[..GUARD]) && clean(&all[GUARD + size..]), "{}: {scatter:?}", given.problem);
            given.check("a guarded workspace", pass, &held.results());
            if size > 0 {
                // SAFETY: a plan that needs a workspace refuses a launch without one.
                let missing = unsafe { plan.launch(&at.with(Slot::Workspace, 0), stream.handle()) };
                assert_eq!(missing.unwrap_err().kind(), ErrorKind::Shape);
            }
        }
    }
}

#[test]
fn each_gradient_alone_has_the_same_bits() {
    let Some(device) = device() else { return };
    let generic = Cuda::named(&device, "generic").unwrap();
    let backends = [Cuda::new(&device), Cuda::named(&device, "levels").unwrap(), generic];
    for given in calls() {
        for backend in &backends {
            for (i, want) in given.run(backend).iter().enumerate() {
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

#[test]
fn plans_of_other_sizes_do_not_disturb_each_other() {
    let Some(device) = device() else { return };
    let seed = |levels: [(usize, usize); 4]| {
        let given = Given::new(Spec {
            batch: 20,
            heads: 1,
            levels: levels.to_vec(),
            points: vec![8; 4],
            layout: Layout::Planar,
            ..spec(5000, Dtype::F16)
        });
        let plan = given.plan(&device, Pass::Forward);
        (given, plan)
    };
    let large = seed([(92, 160), (46, 80), (23, 40), (12, 20)]);
    let small = seed([(80, 136), (40, 68), (20, 34), (10, 17)]);
    // One function, with more shared memory or less for the levels that it keeps.
    let kernel = large.1.choice().kernel;
    assert_eq!(kernel, small.1.choice().kernel);
    let keeps = matches!(kernel, Kernel::Rows(knobs) if knobs.resident_levels > 0);
    assert!(device.arch().major < 8 || keeps, "{kernel}");
    for (given, plan) in [&large, &small, &large] {
        given.check_plan(&device, Pass::Forward, plan);
    }
}
