"""Times in ONNX Runtime on the CPU: `GridSample` as torch exports it, beside msda.

    python scripts/ort_bench.py LIBRARY             # the operator
    python scripts/ort_bench.py LIBRARY --models    # and modules and models of transformers

LIBRARY is target/release/libmsda_ort.so. Needs onnxruntime, onnx and NumPy; models need torch,
transformers, onnxscript and msda-attn. Both sessions take turns in one run; each time is a median.
The results are compared before.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile
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
    # Idle threads of the other session must not take time from this one.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library:
        options.register_custom_ops_library(library)
    made = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in made.get_inputs()]
    return lambda arrays: made.run(None, {name: arrays[name] for name in names})


def compare(name, theirs, ours, library, arrays):
    for threads in (1, 0):
        runs = [session(theirs, threads), session(ours, threads, library)]
        for expected, got in zip(*(run(arrays) for run in runs)):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
        times = [[], []]
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(times[0]) < 5:
            for run, to in zip(runs, times):
                start = time.perf_counter()
                run(arrays)
                to.append(1e3 * (time.perf_counter() - start))
        theirs_ms, ours_ms = map(statistics.median, times)
        print(
            f"| {name} | {threads or 'all cores'} | {theirs_ms:.2f} | {ours_ms:.2f} "
            f"| {theirs_ms / ours_ms:.1f} |",
            flush=True,
        )


def operators(library):
    for name, (queries, levels) in WORKLOADS.items():
        arrays = inputs(queries, levels)
        compare(name, grid_sample_model(arrays, levels), msda_model(arrays), library, arrays)


def models(library):
    """An attention module with its linear layers, and a whole model, with random weights."""
    import msda_attn as msda
    import msda_attn.onnx
    import torch
    import transformers
    from transformers.models.deformable_detr import modeling_deformable_detr as detr

    class Attention(torch.nn.Module):
        def __init__(self, levels):
            super().__init__()
            config = transformers.DeformableDetrConfig()
            self.attention = detr.DeformableDetrMultiscaleDeformableAttention(
                config, num_heads=HEADS, n_points=POINTS
            )
            self.levels = levels
            for parameter in self.parameters():
                torch.nn.init.normal_(parameter, std=0.05)

        def forward(self, x, points):
            sizes = torch.tensor(self.levels)
            starts = torch.cat((sizes.new_zeros(1), sizes.prod(1).cumsum(0)[:-1]))
            return self.attention(
                hidden_states=x,
                encoder_hidden_states=x,
                reference_points=points,
                spatial_shapes=sizes,
                spatial_shapes_list=self.levels,
                level_start_index=starts,
            )[0]

    class Detector(torch.nn.Module):
        def __init__(self):
            super().__init__()
            resnet = transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"])
            config = transformers.DeformableDetrConfig(
                use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=resnet
            )
            self.model = transformers.DeformableDetrForObjectDetection(config)

        def forward(self, pixels):
            found = self.model(pixel_values=pixels)
            return found.logits, found.pred_boxes

    torch.manual_seed(0)
    queries, levels = WORKLOADS["15,422 queries, 4 levels"]
    positions = sum(h * w for h, w in levels)
    x = torch.randn(1, positions, HEADS * CHANNELS)
    points = torch.rand(1, positions, len(levels), 2)
    cases = {
        f"attention with its linear layers, {positions:,} queries": (
            Attention(levels),
            {"x": x, "points": points},
        ),
        "Deformable-DETR, 480x640": (Detector(), {"pixels": torch.randn(1, 3, 480, 640)}),
    }
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = (str(pathlib.Path(folder, f"{kind}.onnx")) for kind in ("theirs", "ours"))
        for name, (module, given) in cases.items():
            tensors = tuple(given.values())
            with torch.no_grad():
                torch.onnx.export(module.eval(), tensors, theirs, dynamo=True, verbose=False)
                with msda.patch("transformers"):
                    msda_attn.onnx.export(module, tensors, ours)
            arrays = {name: tensor.numpy() for name, tensor in given.items()}
            compare(name, theirs, ours, library, arrays)


if __name__ == "__main__":
    print(f"ONNX Runtime {ort.__version__}, f32, batch 1, {HEADS} heads, {CHANNELS} channels")
    print("| workload | threads | GridSample, ms | msda, ms | ratio |\n|---|---|---|---|---|")
    operators(sys.argv[1])
    if "--models" in sys.argv:
        models(sys.argv[1])
