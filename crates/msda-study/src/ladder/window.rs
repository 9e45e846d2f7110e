//! L2 keeps the values of a call while a kernel runs.

use std::sync::Arc;

use msda_cuda::Slot;
use msda_cuda::driver::Launch;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Args, Call, Prepared};

use super::Ask;
use crate::persisting::Persisting;
use crate::sources::SOURCES;

/// Bytes of a line of L2.
const LINE: usize = 128;

/// Threads per block of the kernel that releases lines, and lines per thread.
const THREADS: usize = 256;
const LINES_PER_THREAD: usize = 8;

/// Bytes from the first value to the last.
fn value_bytes(ask: &Ask<'_>) -> usize {
    let (p, strides) = (ask.p, ask.request.operands[Slot::Value].strides);
    let counts = [p.batch(), p.positions(), p.heads()];
    let last = counts.iter().zip(strides).map(|(n, stride)| (n - 1) * stride);
    (last.sum::<usize>() + p.channels()) * p.types().value.size()
}

/// The next stage of the call keeps values in L2. The plan sets a part of L2 aside for them, and
/// gives it back at its end. [`release_values`] must follow.
pub(super) fn keep_values(call: &mut Call, ask: &Ask<'_>) {
    call.resource = Some(Arc::new(Persisting { stage: call.stages.len(), bytes: value_bytes(ask) }));
}

/// Adds a stage that makes the lines normal again. Otherwise the next call, whatever it is, would
/// have less L2, and a repeated call would find its values there.
pub(super) fn release_values(call: &mut Call, ask: &Ask<'_>) {
    let unit = Unit::of(&SOURCES, "ladder/release.cu", "release", ask.target.arch)
        .define("THREADS", THREADS)
        .define("LINES_PER_THREAD", LINES_PER_THREAD);
    // One more: values may begin within a line.
    let lines = value_bytes(ask).div_ceil(LINE) + 1;
    let mut args = Args::default();
    args.pointer("base", Slot::Value);
    args.i64("bytes", value_bytes(ask));
    let blocks = lines.div_ceil(THREADS * LINES_PER_THREAD) as u32;
    let launch = Launch::new([blocks, 1, 1], [THREADS as u32, 1, 1]);
    call.run(Prepared { unit, entry: "msda_release", launch, args }, "releases the lines of values in L2");
}
