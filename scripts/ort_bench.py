"""Times of the operator in ONNX Runtime on the CPU: `GridSample` as torch exports it, beside msda.

    python scripts/ort_bench.py LIBRARY     # target/release/libmsda_ort.so

Needs onnxruntime, onnx and NumPy. Both sessions take turns in one run; each time is a median. The
results are compared before.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HEADS, CHANNELS, POINTS = 8, 32, 4
WORKLOADS = {
    "300 queries, 3 levels": (300, [(80, 80), (40, 40), (20, 20)]),
    "15,422 queries, 4 levels": (15_422, [(92, 126), (46, 63), (23, 32), (12, 16)]),
}
SECONDS = 8


def inputs(queries, levels):
    random = np.random.default_rng(0)
    positions = sum(h * w for h, w in levels)
    samples = (1, queries, HEADS, len(levels), POINTS)
    weights = random.random(samples, np.float32)
    sizes = [h * w for h, w in levels]
    return {
        "value": random.standard_normal((1, positions, HEADS, CHANNELS), np.float32),
        "spatial_shapes": np.array(levels, np.int64),
        "level_start_index": np.cumsum([0, *sizes], dtype=np.int64)[:-1],
        # Around a centre per query, as trained models sample.
        "sampling_locations": np.float32(
            random.random((1, queries, 1, 1, 1, 2)) + 0.05 * random.standard_normal((*samples, 2))
        ),
        "attention_weights": weights / weights.sum((-1, -2), keepdims=True),
    }


def model(nodes, arrays, constants=()):
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
    infos = [
        helper.make_tensor_value_info(name, kinds[array.dtype.kind], array.shape)
        for name, array in arrays.items()
    ]
    output = [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "bench", infos, output, constants)
    opsets = [helper.make_opsetid("", 16), helper.make_opsetid("msda", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def grid_sample_model(arrays, levels):
    """The graph that an export of `torch.nn.functional.grid_sample` makes."""
    queries = arrays["attention_weights"].shape[1]
    nodes, constants = [], []

    def constant(array):
        constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(constants)}"))
        return constants[-1].name

    def node(op, *given, outputs=1, **attributes):
        names = [f"n{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(op, list(given), names, **attributes))
        return names[0] if outputs == 1 else names

    def shape(*sizes):
        return constant(np.array(sizes, np.int64))

    sizes = constant(np.array([h * w for h, w in levels], np.int64))
    values = node("Split", "value", sizes, outputs=len(levels), axis=1)
    doubled = node("Mul", "sampling_locations", constant(np.float32(2)))
    grids = node("Sub", doubled, constant(np.float32(1)))
    sampled = []
    for level, (h, w) in enumerate(levels):
        turned = node("Transpose", values[level], perm=[0, 2, 3, 1])
        image = node("Reshape", turned, shape(HEADS, CHANNELS, h, w))
        grid = node("Gather", grids, constant(np.int64(level)), axis=3)
        grid = node("Transpose", grid, perm=[0, 2, 1, 3, 4])
        grid = node("Reshape", grid, shape(HEADS, queries, POINTS, 2))
        sampled.append(node("GridSample", image, grid, mode="bilinear", padding_mode="zeros"))
    joined = node("Concat", *sampled, axis=3)
    weights = node("Transpose", "attention_weights", perm=[0, 2, 1, 3, 4])
    weights = node("Reshape", weights, shape(HEADS, 1, queries, len(levels) * POINTS))
    summed = node("ReduceSum", node("Mul", joined, weights), shape(-1), keepdims=0)
    rows = node("Reshape", summed, shape(1, HEADS * CHANNELS, queries))
    nodes.append(helper.make_node("Transpose", [rows], ["output"], perm=[0, 2, 1]))
    arrays = {name: arrays[name] for name in ("value", "sampling_locations", "attention_weights")}
    return model(nodes, arrays, constants)


def msda_model(arrays):
    name = "MultiScaleDeformableAttention"
    return model([helper.make_node(name, list(arrays), ["output"], domain="msda")], arrays)


def session(proto, threads, library=None):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if library:
        options.register_custom_ops_library(library)
    made = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in made.get_inputs()]
    return lambda arrays: made.run(None, {name: arrays[name] for name in names})[0]


def main(library):
    print(f"ONNX Runtime {ort.__version__}, f32, batch 1, {HEADS} heads, {CHANNELS} channels")
    print("| workload | threads | GridSample, ms | msda, ms | ratio |\n|---|---|---|---|---|")
    for name, (queries, levels) in WORKLOADS.items():
        arrays = inputs(queries, levels)
        for threads in (1, 0):
            runs = [
                session(grid_sample_model(arrays, levels), threads),
                session(msda_model(arrays), threads, library),
            ]
            expected, got = (run(arrays) for run in runs)
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
            times = [[], []]
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end or len(times[0]) < 5:
                for run, to in zip(runs, times):
                    start = time.perf_counter()
                    run(arrays)
                    to.append(1e3 * (time.perf_counter() - start))
            theirs, ours = map(statistics.median, times)
            said = threads or "all cores"
            print(
                f"| {name} | {said} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.1f} |", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1])
