//! Without a driver everything is refused; with a GPU everything works. With `MSDA_GPU=1` in the
//! environment a missing GPU is a failure.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::jit;
use msda::ErrorKind;

#[test]
fn without_a_driver_everything_is_an_error_with_a_hint() {
    if driver_version().is_ok() {
        eprintln!("skipped: this machine has a driver");
        return;
    }
    let errors = [driver_version().unwrap_err(), Device::count().unwrap_err(), Device::open(0).unwrap_err()];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("no NVIDIA driver was found") && text.contains("hint: "), "{text}");
        assert!(!text.contains("libcuda"), "{text}");
    }
    assert!(driver_problem().is_some_and(|detail| detail.contains("libcuda") || cfg!(windows)));
}

/// The first GPU. Without one the test says that it is skipped.
fn gpu() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(why) => {
            assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Held while a graph is captured and while all of the device is waited for: the driver forbids
/// both at once.
static CAPTURING: Mutex<()> = Mutex::new(());

fn synchronize(device: &Device) {
    let _alone = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    device.synchronize().unwrap();
}

const COUNT: usize = 4096;

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(memory: &Memory) -> Vec<f32> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Two arrays of the numbers 0 to `COUNT - 1`, and the kernel that adds twice the second to the
/// first.
struct Adding {
    to: Memory,
    from: Memory,
    add: Function,
}

impl Adding {
    fn new(device: &Device) -> Self {
        let counted = bytes(&(0..COUNT).map(|i| i as f32).collect::<Vec<_>>());
        let filled = || {
            let mut memory = device.alloc(counted.len()).unwrap();
            memory.write(0, &counted).unwrap();
            memory
        };
        Self { to: filled(), from: filled(), add: module(device).function("selftest_add").unwrap() }
    }

    fn launch(&self, at: &Launch, stream: StreamHandle<'_>) -> msda::Result<()> {
        let (mut to, mut from, mut count) = (self.to.address(), self.from.address(), COUNT as i32);
        let mut args = [
            (&raw mut to).cast::<c_void>(),
            (&raw mut from).cast::<c_void>(),
            (&raw mut count).cast::<c_void>(),
        ];
        // SAFETY: two pointers and an int, as the kernel is declared; both arrays have that many
        // numbers, and live until the test ends, which waits for the stream.
        unsafe { self.add.launch(at, stream, &mut args) }
    }

    /// Checks that the kernel ran this many times.
    fn check(&self, times: usize) {
        let expected: Vec<_> = (0..COUNT).map(|i| (i + 2 * i * times) as f32).collect();
        assert_eq!(numbers(&self.to), expected, "{times}");
    }
}

fn module(device: &Device) -> Module {
    let unit = jit::Unit::new("selftest.cu", "selftest", device.arch()).define("ELEMENT", "float");
    jit::load(device, &unit).unwrap()
}

const WHOLE: Launch = Launch::new([COUNT as u32 / 128, 1, 1], [128, 1, 1]);

#[test]
fn a_device_describes_itself() {
    let Some(device) = gpu() else { return };
    eprintln!(
        "{device:?} at {}: {} SMs, {} bytes shared, {} bytes of L2, {} of {} bytes free",
        device.pci_bus_id(),
        device.sms(),
        device.shared_per_block(),
        device.l2_bytes(),
        device.free_memory().unwrap(),
        device.total_memory(),
    );
    assert!(device.sms() > 0 && device.shared_per_block() >= 48 << 10 && device.l2_bytes() > 0);
    assert!(device.free_memory().unwrap() <= device.total_memory());
    assert_eq!(device, Device::open(0).unwrap());
    let error = Device::open(1000).unwrap_err().to_string();
    assert!(error.contains("1000") && error.contains("hint: "), "{error}");
    let outer = device.bind().unwrap();
    drop(device.bind().unwrap());
    drop(outer);
}

#[test]
fn memory_is_written_read_and_bounded() {
    let Some(device) = gpu() else { return };
    let mut memory = device.alloc(1000).unwrap();
    memory.fill(7).unwrap();
    memory.write(10, &[1, 2, 3]).unwrap();
    let mut read = [0; 5];
    memory.read(9, &mut read).unwrap();
    assert_eq!(read, [7, 1, 2, 3, 7]);
    memory.write(1000, &[]).unwrap();
    for (offset, length) in [(998, 3), (1001, 0), (usize::MAX, 2)] {
        assert_eq!(memory.read(offset, &mut vec![0; length]).unwrap_err().kind(), ErrorKind::Shape);
    }

    let mut empty = device.alloc(0).unwrap();
    assert_eq!((empty.address(), empty.len(), empty.is_empty()), (0, 0, true));
    empty.fill(1).unwrap();
    empty.read(0, &mut []).unwrap();

    let error = device.alloc(device.total_memory() * 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    assert!(error.to_string().contains("hint: end other programs"), "{error}");
}

#[test]
fn fills_and_copies_are_queued() {
    let Some(device) = gpu() else { return };
    let (from, to) = (device.alloc(64).unwrap(), device.alloc(64).unwrap());
    let stream = device.stream().unwrap();
    // SAFETY: both have 64 bytes and live until the stream is done.
    unsafe {
        fill_async(&device, from.address(), 5, 64, stream.handle()).unwrap();
        fill_async(&device, to.address(), 6, 64, stream.handle()).unwrap();
        copy_async(&device, to.address() + 16, from.address(), 16, stream.handle()).unwrap();
    }
    stream.synchronize().unwrap();
    let mut read = [0; 64];
    to.read(0, &mut read).unwrap();
    assert!(read.iter().enumerate().all(|(i, &byte)| byte == if (16..32).contains(&i) { 5 } else { 6 }));
}

#[test]
fn a_broken_module_is_refused() {
    let Some(device) = gpu() else { return };
    assert_eq!(device.load(b"not a cubin").unwrap_err().kind(), ErrorKind::Format);
    let error = module(&device).function("nothing").unwrap_err().to_string();
    assert!(error.contains("nothing") && error.contains("hint: "), "{error}");
}

#[test]
fn a_kernel_describes_itself() {
    let Some(device) = gpu() else { return };
    let reverse = module(&device).function("selftest_reverse").unwrap();
    assert_eq!(reverse.shared_bytes().unwrap(), 256);
    assert!(reverse.occupancy(64, 0).unwrap() > reverse.occupancy(64, 40 << 10).unwrap());
    reverse.allow_shared(device.shared_per_block() as u32 - 1024).unwrap();
    reverse.prefer_shared(100).unwrap();
    assert_eq!(reverse.occupancy(64, device.shared_per_block() as u32 - 1024).unwrap(), 1);
}

#[test]
fn launches_run_and_are_timed() {
    let Some(device) = gpu() else { return };
    let adding = Adding::new(&device);
    let stream = device.stream().unwrap();
    let (start, end) = (device.event().unwrap(), device.event().unwrap());
    start.record(stream.handle()).unwrap();
    adding.launch(&WHOLE, stream.handle()).unwrap();
    end.record(stream.handle()).unwrap();
    stream.synchronize().unwrap();
    let elapsed = Event::elapsed_ms(&start, &end).unwrap();
    assert!((0.0..1000.0).contains(&elapsed), "{elapsed}");
    adding.check(1);

    adding.launch(&WHOLE, StreamHandle::DEFAULT).unwrap();
    synchronize(&device);
    adding.check(2);

    // From a thread without a context.
    std::thread::scope(|scope| {
        scope.spawn(|| adding.launch(&WHOLE, stream.handle()).unwrap());
    });
    stream.synchronize().unwrap();
    adding.check(3);

    let too_much = Launch { block: [4096, 1, 1], ..WHOLE };
    let error = adding.launch(&too_much, stream.handle()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("hint: a size"), "{error}");
    stream.synchronize().unwrap();
}

#[test]
fn clusters_of_every_size_run() {
    let Some(device) = gpu() else { return };
    if device.arch().major < 9 {
        eprintln!("skipped: {} has no clusters", device.arch());
        return;
    }
    let adding = Adding::new(&device);
    let stream = device.stream().unwrap();
    for (times, blocks) in [2, 8, 16].into_iter().enumerate() {
        let at = Launch { cluster: [blocks, 1, 1], ..WHOLE };
        match adding.add.max_clusters(&at) {
            Ok(clusters) if clusters > 0 => {}
            // Not every GPU has clusters of more than 8 blocks.
            other if blocks > 8 => return eprintln!("skipped: clusters of {blocks}: {other:?}"),
            other => panic!("clusters of {blocks}: {other:?}"),
        }
        adding.launch(&at, stream.handle()).unwrap();
        stream.synchronize().unwrap();
        adding.check(times + 1);
    }
    assert!(adding.add.max_clusters(&WHOLE).unwrap() > 0);
}

#[test]
fn graphs_are_captured_and_run() {
    let Some(device) = gpu() else { return };
    let _alone = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    let adding = Adding::new(&device);
    let stream = device.stream().unwrap();
    let graph = Graph::capture(&stream, |stream| {
        adding.launch(&WHOLE, stream)?;
        adding.launch(&WHOLE, stream)
    })
    .unwrap();
    adding.check(0);
    for _ in 0..3 {
        // SAFETY: what it uses lives until the stream is done.
        unsafe { graph.launch(stream.handle()) }.unwrap();
    }
    stream.synchronize().unwrap();
    adding.check(6);

    // After a capture that fails or panics the stream works again.
    let refused = msda::Error::new(ErrorKind::Shape, "test", "this", "that");
    let failed = Graph::capture(&stream, |stream| {
        adding.launch(&WHOLE, stream)?;
        Err(refused.clone())
    });
    assert_eq!(failed.unwrap_err(), refused);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = Graph::capture(&stream, |_| panic!("on purpose"));
    }));
    assert!(panicked.is_err());
    adding.launch(&WHOLE, stream.handle()).unwrap();
    stream.synchronize().unwrap();
    adding.check(7);
}

/// Captures on a stream in the mode that forbids most to every thread: the default of torch and of
/// CUDA's samples.
fn global_capture(stream: &Stream, work: impl FnOnce()) -> Graph {
    const GLOBAL: u32 = 0;
    Graph::capture_in(stream, GLOBAL, |_| {
        work();
        Ok(())
    })
    .unwrap()
}

#[test]
fn everything_can_be_made_while_a_graph_is_captured() {
    let Some(device) = gpu() else { return };
    let _alone = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    let adding = Adding::new(&device);
    let stream = device.stream().unwrap();
    let make = || {
        let mut memory = device.alloc(4096).unwrap();
        memory.fill(3).unwrap();
        memory.write(5, &[1, 2]).unwrap();
        let mut read = [0; 4];
        memory.read(4, &mut read).unwrap();
        assert_eq!(read, [3, 1, 2, 3]);
        let unit = jit::Unit::new("selftest.cu", "capture", device.arch()).define("ELEMENT", "float");
        let cubin = jit::Cache::global().get(&unit).unwrap();
        let module = device.load(&cubin.cubin).unwrap();
        let function = module.function("selftest_reverse").unwrap();
        assert!(function.shared_bytes().unwrap() > 0 && function.occupancy(64, 0).unwrap() > 0);
        function.allow_shared(64 << 10).unwrap();
        let other = device.stream().unwrap();
        let event = device.event().unwrap();
        event.record(other.handle()).unwrap();
        other.synchronize().unwrap();
        // SAFETY: no kernels.
        let graph = unsafe { LaunchGraph::new(&device, &[(&[], Node::Clear { bytes: 64 })]) };
        drop(graph.unwrap());
    };
    let graph = global_capture(&stream, || {
        adding.launch(&WHOLE, stream.handle()).unwrap();
        make();
        // The mode is global: it holds for other threads too.
        std::thread::scope(|scope| scope.spawn(make).join().unwrap());
        adding.launch(&WHOLE, stream.handle()).unwrap();
    });
    adding.check(0);
    // SAFETY: the memory lives until the stream is done.
    unsafe { graph.launch(stream.handle()) }.unwrap();
    stream.synchronize().unwrap();
    adding.check(2);
}

#[test]
fn launch_graphs_clear_memory_and_take_other_addresses() {
    let Some(device) = gpu() else { return };
    let reverse = module(&device).function("selftest_reverse").unwrap();
    let launch = Launch::new([1, 1, 1], [64, 1, 1]);
    let mut memory = [(); 2].map(|()| device.alloc(512).unwrap());
    let stream = device.stream().unwrap();
    let mut args = memory.each_ref().map(Memory::address);
    let kernel = Node::Kernel { function: &reverse, launch: &launch, arg: (&raw mut args[0]).cast() };
    let nodes: [(&[usize], _); 3] =
        [(&[], Node::Clear { bytes: 128 }), (&[0], kernel), (&[0, 1], Node::Clear { bytes: 2 })];
    // SAFETY: no kernels.
    let error = unsafe { LaunchGraph::new(&device, &[(&[0], Node::Clear { bytes: 2 })]) }.unwrap_err();
    assert!(error.to_string().contains("node before it"), "{error}");
    // SAFETY: the kernel has one parameter, which is an address.
    let mut graph = unsafe { LaunchGraph::new(&device, &nodes).unwrap() };
    // SAFETY: the argument is not used: the node is no kernel.
    assert!(unsafe { graph.set_argument(0, (&raw mut args[1]).cast()) }.is_err());
    assert!(graph.set_address(1, args[1]).is_err() && graph.set_address(3, args[1]).is_err());
    assert!(graph.set_address(0, args[1] + 1).unwrap_err().to_string().contains("a multiple of 4"));
    // SAFETY: nothing is queued, because the clears have no addresses.
    let error = unsafe { graph.launch(stream.handle()) }.unwrap_err();
    assert!(error.to_string().contains("address of a clear"), "{error}");
    for i in [0, 1, 0] {
        memory.iter_mut().for_each(|memory| memory.fill(9).unwrap());
        graph.set_address(0, args[i]).unwrap();
        graph.set_address(2, args[i] + 127).unwrap();
        // SAFETY: an address, as the kernel takes it.
        unsafe { graph.set_argument(1, (&raw mut args[i]).cast()).unwrap() };
        // SAFETY: the memory has more than 256 bytes and lives until the stream is done.
        unsafe { graph.launch(stream.handle()).unwrap() };
        stream.synchronize().unwrap();
        let mut read = [0; 512];
        memory[i].read(0, &mut read).unwrap();
        for (at, &byte) in read.iter().enumerate() {
            // The kernel moves the zeros to the second 128 bytes.
            assert_eq!(byte, if (127..256).contains(&at) { 0 } else { 9 }, "{i} {at}");
        }
        memory[1 - i].read(0, &mut read).unwrap();
        assert_eq!(read, [9; 512], "{i}");
    }
}

/// A plan with a table of levels in memory, one without, and one of two kernels.
#[test]
fn plans_can_be_made_while_a_graph_is_captured() {
    use crate::{Addresses, Operands, Plan, Request, Slot};
    use msda::rng::Rng;
    use msda::{Buffer, Dtype, Problem, Spec, Types};
    let Some(device) = gpu() else { return };
    let _alone = CAPTURING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rng = Rng::new(5);
    for (dtype, kernel) in [
        (Dtype::F64, None),
        (Dtype::F32, None),
        (Dtype::F16, Some("rows:heads_per_block=2,threads=128,walk=ordered")),
    ] {
        let spec = Spec {
            batch: 2,
            queries: 5000,
            heads: 8,
            channels: 32,
            levels: vec![(20, 30), (10, 15)],
            points: vec![4, 4],
            types: Types::uniform(dtype),
            ..Spec::default()
        };
        let p = Problem::new(spec).unwrap();
        let mut upload = |count: usize| {
            let bytes = Buffer::from_fn(dtype, count, |_| rng.unit()).to_le_bytes();
            let mut memory = device.alloc(bytes.len()).unwrap();
            memory.write(0, &bytes).unwrap();
            memory
        };
        let [value, locations, weights] =
            [p.value_len(), p.locations_len(), p.weights_len()].map(&mut upload);
        let mut output = device.alloc(p.output_len() * dtype.size()).unwrap();
        output.fill(0xff).unwrap();
        let workspace = device.alloc(1 << 20).unwrap();
        let addresses = Addresses::from([
            (Slot::Value, value.address()),
            (Slot::Locations, locations.address()),
            (Slot::Weights, weights.address()),
            (Slot::Output, output.address()),
            (Slot::Workspace, workspace.address()),
        ]);
        let operands = Operands::dense(&p, None);
        let make = || {
            let request = Request::new(&p, &operands);
            let plan = match kernel {
                Some(kernel) => Plan::with_kernel(&device, &request, kernel.parse().unwrap()).unwrap(),
                None => Plan::new(&device, &request).unwrap(),
            };
            assert!(plan.workspace() <= workspace.len());
            plan
        };
        // SAFETY: the tensors are of the problem, and live until the stream is done.
        let launch = |plan: &Plan, stream| unsafe { plan.launch(&addresses, stream) }.unwrap();
        let stream = device.stream().unwrap();
        let mut plan = None;
        let graph = global_capture(&stream, || {
            drop(make());
            launch(plan.insert(make()), stream.handle());
        });
        let read = |output: &Memory| {
            let mut bytes = vec![0; output.len()];
            output.read(0, &mut bytes).unwrap();
            bytes
        };
        assert!(read(&output).iter().all(|&byte| byte == 0xff), "{dtype}: nothing runs in a capture");
        // SAFETY: plan and tensors live until the stream is done.
        unsafe { graph.launch(stream.handle()) }.unwrap();
        stream.synchronize().unwrap();
        let replayed = read(&output);
        output.fill(0xff).unwrap();
        let direct = make();
        launch(&direct, stream.handle());
        stream.synchronize().unwrap();
        assert!(replayed == read(&output) && replayed.iter().any(|&byte| byte != 0xff), "{dtype}");
    }
}
