//! A call allocates a few megabytes, and nothing that grows with queries x levels x points. Without
//! memory it is an error.

#![cfg(feature = "rayon")]
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::sized;
use msda::{Backend, Buffer, Cpu, Dtype, ErrorKind, Gradients, Inputs, Problem, Spec, Types};

/// Counts the bytes allocated now and their maximum, and refuses more than `MOST` at once.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: every call goes to the system's allocator unchanged, or fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST.load(Ordering::SeqCst) {
            return std::ptr::null_mut();
        }
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the arguments go on unchanged, so the caller's promises hold.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the arguments go on unchanged, so the caller's promises hold.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that `f` allocated at a time.
fn peak(f: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    f();
    PEAK.load(Ordering::SeqCst) - before
}

#[test]
fn a_call_takes_a_few_megabytes() {
    let threads = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    let (one, two) = (threads(1), threads(2));
    for dtype in [Dtype::F32, Dtype::F16] {
        let mut forward = Vec::new();
        for queries in [300, 2000, 8000] {
            let levels = [(92, 160), (46, 80), (23, 40), (12, 20)];
            let spec = sized([1, queries, 8, 32], &levels, &[8; 4]);
            let p = Problem::new(Spec { types: Types::with_value(dtype), ..spec }).unwrap();
            let value = Buffer::filled(dtype, p.value_len(), 1.0);
            let locations = Buffer::from_fn(Dtype::F32, p.locations_len(), |i| (i % 97) as f64 / 97.0);
            let weights = Buffer::filled(Dtype::F32, p.weights_len(), 0.1);
            let grad = Buffer::filled(dtype, p.output_len(), 1.0);
            let mut output = Buffer::filled(dtype, p.output_len(), 0.0);
            let mut grads = [
                Buffer::filled(dtype, p.value_len(), 0.0),
                Buffer::filled(Dtype::F32, p.locations_len(), 0.0),
                Buffer::filled(Dtype::F32, p.weights_len(), 0.0),
            ];
            let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
            let cpu = Cpu::new();
            // One thread: with two, the peak depends on whether both hold buffers at the same time.
            forward.push(peak(|| one.install(|| cpu.forward(&p, &inputs, output.as_mut().into()).unwrap())));
            let backward = peak(|| {
                let [value, locations, weights] = grads.each_mut().map(|b| Some(b.as_mut().into()));
                let to = Gradients { value, locations, weights, reference: None };
                two.install(|| cpu.backward(&p, &inputs, grad.as_slice().into(), to).unwrap());
            });
            // Two threads with at most 4 MB of sums each, and a quarter of a megabyte for the rest.
            assert!(backward < (8 << 20) + (1 << 18), "{dtype} {queries} queries: {backward} bytes");
        }
        let [_, some, many] = forward[..] else { unreachable!("one per number of queries") };
        assert!(many < 1 << 18, "{dtype}: {many} bytes");
        // Locations alone grow by 12 MB here. Only the order of the queries may grow, 10 bytes
        // each.
        assert!(many < some + 6000 * 12, "{dtype}: {forward:?} bytes");
    }
    without_memory();
}

/// A query with very many samples, and no memory for them. Not a test of its own: it would disturb
/// the counts of the other one.
fn without_memory() {
    let p = Problem::new(sized([1, 1, 1, 1], &[(2, 2)], &[1 << 17])).unwrap();
    let [value, locations, weights] =
        [p.value_len(), p.locations_len(), p.weights_len()].map(|len| Buffer::filled(Dtype::F32, len, 0.5));
    let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    let mut output = Buffer::filled(Dtype::F32, 1, 7.0);
    let mut call = || Cpu::new().forward(&p, &inputs, output.as_mut().into());
    MOST.store(16 << 20, Ordering::SeqCst);
    let refused = call();
    MOST.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Memory);
    call().unwrap();
    assert_eq!(output.as_slice().get(0), 32768.0);
}
