"""`--target tensorrt`: NVIDIA's plugin in place of our nodes.

The plugin takes value, locations and weights of one type, tables of int32, the same number of
points per level, and gives `(batch, queries, heads, channels)`. In 16 bits it computes coordinates
in 16 bits, so it always gets float32 here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from . import graph as files
from .ops import (
    ATTRIBUTES,
    DOMAIN,
    FUSED,
    INPUTS,
    PLAIN,
    OnnxError,
    attributes,
    compute,
    functions,
    is_ours,
)

NEVER_RUN = "no file of msda was ever run in TensorRT: compare its results with those of the model"
PLUGIN = "MultiscaleDeformableAttnPlugin_TRT"
# ONNX Runtime's TensorRT provider finds plugins in this domain; TensorRT's parser ignores it.
PLUGIN_DOMAIN = "trt.plugins"


def convert(model: onnx.ModelProto, sizes: files.Sizes | None = None) -> None:
    """Replaces our nodes by the plugin. The model is changed in place."""
    observed = files.Observer(model).run(files.feeds(model, sizes or {}))
    add = files.Nodes(model)
    for node in [node for node in model.graph.node if is_ours(node)]:
        _convert(node, observed, add)
        add.replace(node.output[0])
    if files.uses_ours(model):
        raise OnnxError(
            "the model has nodes of msda inside branches or loops, which stay as they are"
        )
    files.prune(model)
    files.add_functions(model)
    if not any(i.domain == PLUGIN_DOMAIN for i in model.opset_import):
        model.opset_import.append(helper.make_opsetid(PLUGIN_DOMAIN, 1))


def _convert(node: onnx.NodeProto, observed: files.Observed, add: files.Nodes) -> None:
    options = attributes(node)
    for name, expected in ATTRIBUTES.items():
        if name != "points" and options[name] != expected:
            raise OnnxError(
                f"node {node.name!r} ({node.op_type}): attribute {name}: got {options[name]!r}, "
                f"expected {expected!r}, as NVIDIA's plugin has no other"
            )
    value, shapes, starts, *rest = node.input
    heads = observed.shapes[value][2]
    levels = observed.shapes[shapes][0]
    rest = [add("Cast", name, to=TensorProto.FLOAT) for name in rest]
    samples = int(np.prod(observed.shapes[node.input[-1]][3:]))
    counts = options["points"] or [samples // levels] * levels
    if len(counts) != levels or sum(counts) != samples:
        raise OnnxError(
            f"node {node.name!r} ({node.op_type}): attribute points: got {counts}, expected "
            f"{levels} numbers of sum {samples}"
        )
    *reference, locations, weights = rest
    locations = add("Reshape", locations, [0, 0, heads, samples, 2])
    weights = add("Reshape", weights, [0, 0, heads, samples])
    if node.op_type == FUSED:
        weights = add("Softmax", weights, axis=-1)
        boxes = observed.shapes[node.input[3]][3] == 4
        locations = _locations(add, reference[0], shapes, locations, counts, levels, boxes)
    most = max(counts)
    if set(counts) != {most}:
        # Levels with fewer points get points of weight 0.
        first = np.cumsum(counts) - counts
        index = [f + min(p, n - 1) if n else 0 for f, n in zip(first, counts) for p in range(most)]
        share = np.float32([p < n for n in counts for p in range(most)])
        locations = add("Gather", locations, index, axis=3)
        weights = add("Mul", add("Gather", weights, index, axis=3), share)
    locations = add("Reshape", locations, [0, 0, heads, levels, most, 2])
    weights = add("Reshape", weights, [0, 0, heads, levels, most])
    output = add(
        PLUGIN,
        add("Cast", value, to=TensorProto.FLOAT),
        add("Cast", shapes, to=TensorProto.INT32),
        add("Cast", starts, to=TensorProto.INT32),
        locations,
        weights,
        domain=PLUGIN_DOMAIN,
        name=node.name,
        plugin_version="2",
        plugin_namespace="",
    )
    output = add("Reshape", output, [0, 0, -1])
    add("Cast", output, to=files.element_type(observed.types[node.output[0]]))


def _locations(
    add: files.Nodes,
    reference: str,
    shapes: str,
    offsets: str,
    counts: list,
    levels: int,
    boxes: bool,
) -> str:
    """The locations of the fused operator, one dimension for all samples."""
    reference = add("Expand", reference, [1, 1, levels, 1])
    level = np.repeat(np.arange(levels), counts)
    reference = add("Unsqueeze", add("Gather", reference, level, axis=2), [2])
    centre = add("Slice", reference, [0], [2], [-1])
    if boxes:
        half = np.float32(0.5 / np.asarray(counts)[level])[:, None]
        moved = add("Mul", add("Mul", offsets, half), add("Slice", reference, [2], [4], [-1]))
    else:
        sizes = add("Gather", add("Gather", shapes, [1, 0], axis=1), level, axis=0)
        moved = add("Div", offsets, add("Cast", sizes, to=TensorProto.FLOAT))
    return add("Add", centre, moved)


def is_plugin(node: onnx.NodeProto) -> bool:
    return node.op_type == PLUGIN and node.domain == PLUGIN_DOMAIN


def emulate(node: onnx.NodeProto, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The plugin in NumPy, with the checks of types and shapes that TensorRT makes."""
    where = f"node {node.name!r} ({PLUGIN})"
    if len(inputs) != 5:
        raise OnnxError(f"{where}: got {len(inputs)} inputs, expected 5")
    kinds = ("float32", "int32", "int32", "float32", "float32")
    value, _, _, locations, _ = inputs
    for name, array, kind, rank in zip(INPUTS[PLAIN], inputs, kinds, (4, 2, 1, 6, 5)):
        if array.dtype != kind or array.ndim != rank:
            raise OnnxError(
                f"{where}: {name}: got {array.dtype} of shape {list(array.shape)}, expected {kind} "
                f"of rank {rank}"
            )
    plain = helper.make_node(PLAIN, [""] * 5, ["output"], name=node.name)
    return compute(plain, inputs).reshape(*locations.shape[:2], *value.shape[2:])


_STAND_IN = """
<domain: "trt.plugins", opset_import: ["" : {opset}, "msda" : 1]>
MultiscaleDeformableAttnPlugin_TRT (value, shapes, starts, locations, weights) => (output) {{
  shapes_64 = Cast <to = 7> (shapes)
  starts_64 = Cast <to = 7> (starts)
  flat = msda.MultiScaleDeformableAttention (value, shapes_64, starts_64, locations, weights)
  front = Constant <value_ints = [0, 0]> ()
  back = Shape <start = 2, end = 4> (value)
  shape = Concat <axis = 0> (front, back)
  output = Reshape (flat, shape)
}}
"""


def runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model for ONNX Runtime on the CPU: plugins get a body that computes the same."""
    if not any(map(is_plugin, model.graph.node)):
        return model
    copy = files.copy_of(model)
    opset = files.opset(model)
    copy.functions.append(onnx.parser.parse_function(_STAND_IN.format(opset=opset)))
    copy.functions.extend(functions([helper.make_node(PLAIN, [], [])], opset))
    if not any(i.domain == DOMAIN for i in copy.opset_import):
        copy.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    copy.ir_version = max(copy.ir_version, 9)
    return copy
