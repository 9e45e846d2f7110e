//! Forward kernels: level sizes on the device, packing, sums in f16, kernels for one size, levels
//! resident in shared memory, sums that cancel.

use msda::conformance::compare;
use msda::rng::Rng;
use msda::{Backend, Buffer, Dtype, ErrorKind, Layout, Problem, ReferenceKind, Spec, pack};
use msda_cuda::driver::Device;
use msda_cuda::kernels::Kernel;
use msda_cuda::{Cuda, Levels, Operands, Packing, Pass, Plan, Request, Sizes, Slot, Sums};

use crate::calls::{Given, Held, on_device, read, spec};
use crate::common::device;

#[test]
fn levels_may_stay_on_the_device() {
    let Some(device) = device() else { return };
    let given = Given::new(spec(77, Dtype::F32));
    // What is known on the host: the number of levels and of positions.
    let blind = Levels::hidden(&given.problem).unwrap();
    let operands = Operands::dense(&blind, None);
    let request = Request { levels: Levels::Device, ..Request::new(&blind, &operands) };
    let plan = Plan::new(&device, &request).unwrap();
    assert!(matches!(plan.choice().kernel, Kernel::Rows(_)), "{}", plan.choice().why);
    let mut held = Held::new(&device, &given, Pass::Forward, plan.workspace());
    let words = |words: &[i64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        on_device(&device, &bytes)
    };
    let stream = device.stream().unwrap();
    let mut run = |shapes: &[i64], starts: &[i64]| {
        let (shapes, starts) = (words(shapes), words(starts));
        held.poison();
        let at = held.addresses().with(Slot::Shapes, shapes.address()).with(Slot::Starts, starts.address());
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        unsafe { plan.launch(&at, stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        held.results()
    };
    let right = run(&[20, 30, 10, 15, 5, 8], &[0, 600, 750]);
    given.check("levels on the device", Pass::Forward, &right);
    // Levels that do not lie within the value are left out, and nothing is read there.
    let wrong = run(&[1 << 40, 30, -1, 15, 5, 8], &[0, 600, i64::MAX]);
    assert!(wrong[0].to_f64().iter().all(|x| *x == 0.0));
    // SAFETY: nothing is launched without the levels' addresses.
    let missing = unsafe { plan.launch(&held.addresses(), stream.handle()) };
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Shape);
}

#[test]
fn packing_is_the_hosts_packing() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    for dtype in Dtype::ALL {
        for (from, to) in Layout::ALL.into_iter().flat_map(|from| Layout::ALL.map(|to| (from, to))) {
            let [a, b] = [from, to].map(|layout| Problem::new(Spec { layout, ..spec(1, dtype) }).unwrap());
            let mut rng = Rng::new(3);
            let value = Buffer::from_fn(dtype, a.value_len(), |_| rng.unit());
            let mut want = Buffer::filled(dtype, b.value_len(), f64::NAN);
            pack(&a, value.as_slice(), &b, want.as_mut()).unwrap();

            let source = on_device(&device, &value.to_le_bytes());
            let mut packed = device.alloc(b.value_len() * dtype.size()).unwrap();
            packed.fill(0xff).unwrap();
            let packing = Packing::new(&device, &a, &b).unwrap();
            // SAFETY: both are dense tensors of the problems, and live until the stream is done.
            unsafe { packing.launch(source.address(), packed.address(), stream.handle()).unwrap() };
            stream.synchronize().unwrap();
            let got = read(&packed, 0, dtype, b.value_len());
            assert!(got.to_le_bytes() == want.to_le_bytes(), "{dtype} {from:?} to {to:?}");
        }
    }
}

#[test]
fn sums_of_f16_are_used_where_they_are_asked_for_and_pay() {
    let Some(device) = device() else { return };
    // Not by kernels that keep levels, nor where a lane has few samples at a time.
    for (queries, points, layout, sums) in [
        (300, 4, Layout::Bshd, Sums::F16),
        (6000, 16, Layout::Bshd, Sums::F16),
        (6000, 4, Layout::Bshd, Sums::F32),
        (6000, 4, Layout::Planar, Sums::F32),
    ] {
        let given =
            Given::new(Spec { heads: 8, layout, points: vec![points; 3], ..spec(queries, Dtype::F16) });
        let plan =
            given.request(Pass::Forward, |r| Plan::new(&device, &Request { sums: Sums::F16, ..r })).unwrap();
        let kernel = plan.choice().kernel;
        assert_eq!(kernel.sums(), sums);
        let stream = device.stream().unwrap();
        let got = Held::new(&device, &given, Pass::Forward, plan.workspace()).run(&plan, &stream);
        // Four samples of four taps are summed in f16, and weights are rounded too.
        let want = given.output();
        let more = if sums == Sums::F16 { 17.0 * Dtype::F16.rounding() * want.size } else { 0.0 };
        compare(&got[0].to_f64(), &want.exact, want.tolerance + more).unwrap();
        // A request that does not ask for them refuses the kernel.
        let refused =
            given.request(Pass::Forward, |request| Plan::with_kernel(&device, &request, kernel)).is_err();
        assert_eq!(refused, sums == Sums::F16);
    }
}

#[test]
fn kernels_for_one_size_compute_the_same() {
    let Some(device) = device() else { return };
    let stream = device.stream().unwrap();
    // Many queries, the pixels of the levels, levels that are kept, rows of a line.
    for (queries, dtype, batch, layout) in [
        (6000, Dtype::Bf16, 2, Layout::Bshd),
        (790, Dtype::F16, 80, Layout::Bshd),
        (790, Dtype::F32, 80, Layout::Bshd),
        (6000, Dtype::F16, 2, Layout::PlanarRing),
        (6000, Dtype::F32, 2, Layout::Planar),
    ] {
        let given = Given::new(Spec { batch, heads: 8, layout, ..spec(queries, dtype) });
        let run = |sizes| {
            let plan = given.request(Pass::Forward, |r| Plan::new(&device, &Request { sizes, ..r })).unwrap();
            let mut held = Held::new(&device, &given, Pass::Forward, plan.workspace());
            (plan.choice().kernel.to_string(), held.run(&plan, &stream)[0].to_f64())
        };
        let (any, fixed) = (run(Sizes::Any), run(Sizes::Fixed));
        assert_eq!(fixed.0, format!("{},fixed_sizes=1", any.0));
        assert!(any.1.iter().all(|x| x.is_finite()) && any.1 == fixed.1, "{}: {}", given.problem, fixed.0);
    }
}

/// More planes than SMs, an odd number of them, and of tiles: some blocks begin in one image and
/// end in the next. And small blocks with many tiles, of which the last are for whichever warp is
/// free.
#[test]
fn blocks_that_keep_levels_go_from_image_to_image() {
    let Some(device) = device() else { return };
    for (dtype, columns) in [(Dtype::F16, 2), (Dtype::F32, 1)] {
        for (batch, queries, threads, samples) in [(301, 300, 1024, 2), (5, 6001, 64, 2), (5, 6001, 96, 1)] {
            let given = Given::new(Spec { batch, heads: 1, layout: Layout::Planar, ..spec(queries, dtype) });
            for (walk, levels) in ["straight", "sorted", "ordered"].into_iter().flat_map(|w| [(w, 1), (w, 3)])
            {
                let plan = given.plan_of(
                    &device,
                    &format!(
                        "rows:tap_columns={columns},threads={threads},samples_per_lane={samples},\
                         resident_levels={levels},walk={walk}"
                    ),
                );
                given.check_plan(&device, Pass::Forward, &plan);
            }
        }
    }
}

#[test]
fn fused_calls_may_keep_levels() {
    let Some(device) = device() else { return };
    for (dtype, columns) in [(Dtype::F16, 2), (Dtype::F32, 1)] {
        for kind in [ReferenceKind::Point, ReferenceKind::Box] {
            let spec = Spec { batch: 3, heads: 1, layout: Layout::Planar, ..spec(3000, dtype) };
            let given = Given::fused(spec, kind);
            for levels in 1..=3 {
                let plan = given.plan_of(
                    &device,
                    &format!(
                        "rows:tap_columns={columns},threads=256,samples_per_lane=2,resident_levels={levels}"
                    ),
                );
                given.check_plan(&device, Pass::Forward, &plan);
            }
        }
    }
}

#[test]
fn what_cancels_is_nothing_on_levels_that_are_kept() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let (levels, points) = (vec![(16, 16); 2], vec![4; 2]);
        let layout = Layout::Planar;
        let mut given = Given::new(Spec { batch: 1, heads: 1, levels, points, layout, ..spec(5000, dtype) });
        // Rows of pixels with signs in turn, and samples midway between two of them.
        let sign = |i: usize| if (i / (16 * 32)).is_multiple_of(2) { 1000.0 } else { -1000.0 };
        given.value = Buffer::from_fn(dtype, given.value.len(), sign);
        let mut rng = Rng::new(3);
        let mut sixteenths = |_| (1 + rng.below(15)) as f64 / 16.0;
        given.locations = Buffer::from_fn(dtype, given.locations.len(), &mut sixteenths);
        given.weights = Buffer::from_fn(dtype, given.weights.len(), &mut sixteenths);
        let output = Cuda::new(&device).output(&given.problem, &given.inputs()).unwrap();
        assert!(output.to_f64().iter().all(|&x| x == 0.0), "{dtype}");
    }
}

/// One query, one level of 2 x 2 pixels, 32 channels: the output's first element.
fn one_query(device: &Device, dtype: Dtype, rows: [f64; 4], location: [f64; 2]) -> f64 {
    let (levels, points) = (vec![(2, 2)], vec![1]);
    let mut given = Given::new(Spec { batch: 1, heads: 1, levels, points, ..spec(1, dtype) });
    given.value = Buffer::from_fn(dtype, given.value.len(), |i| rows[i / 32]);
    given.locations = Buffer::from_fn(dtype, 2, |i| location[i]);
    given.weights = Buffer::filled(dtype, 1, 1.0);
    Cuda::new(device).output(&given.problem, &given.inputs()).unwrap().to_f64()[0]
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
