"""`verify`: every node of ours against float64, and the whole model against the file before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx

from . import graph as files
from .ops import OnnxError, compute, error, is_ours
from .tensorrt import emulate, is_plugin, runnable

# By the type of the output: rounding of its numbers, and of sums in float32.
_NODE_LIMITS = {"float16": 2e-3, "bfloat16": 2e-2}
_NODE_LIMIT = 1e-4
_MODEL_LIMIT = 1e-3
_QUERIES = 200


@dataclasses.dataclass
class Report:
    """What was checked. `ok` is the verdict; warnings do not change it."""

    nodes: list[dict] = dataclasses.field(default_factory=list)
    outputs: list[dict] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        checked = self.nodes + self.outputs
        return bool(self.nodes) and not self.failures and all(item["ok"] for item in checked)


def verify(
    model: onnx.ModelProto,
    against: onnx.ModelProto | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Runs the model with random inputs at two sets of sizes, where it has dynamic ones."""
    report = Report()
    sizes = dict(sizes or {})
    ours = [node for node in model.graph.node if is_ours(node) or is_plugin(node)]
    if not ours:
        report.failures.append("the model has no node of msda and no plugin of NVIDIA")
    for at, node in enumerate(ours):
        node.name = node.name or f"attention_{at}"
    _warn(model, report)
    names = [o.name for o in model.graph.output]
    wanted = list(
        dict.fromkeys([*names, *(n for node in ours for n in (*node.input, *node.output))])
    )
    given_inputs = {i.name for i in files.model_inputs(model)}
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    wanted = [n for n in wanted if n not in given_inputs and n not in constants]
    runner = files.session(files.with_outputs(runnable(model), wanted))
    before = None if against is None else files.session(runnable(against))
    for number in range(2 if files.symbols(model) else 1):
        given = files.feeds(model, sizes, number)
        try:
            got = dict(zip(wanted, files.run(runner, wanted, given)))
        except OnnxError as problem:
            report.failures.append(str(problem))
            break
        known = {**constants, **given, **got}
        for node in ours:
            report.nodes.append(entry := _node(node, known, number))
            if entry.get("not_finite"):
                report.warnings.append(
                    f"node {node.name!r}, run {number}: {entry['not_finite']} queries have "
                    "locations or weights that are NaN or infinite"
                )
        if before is not None:
            _against(report, before, given, [(name, got[name]) for name in names], number)
    if against is None:
        report.warnings.append("the whole model was not compared: give the file before (--against)")
    return report


def _node(node: onnx.NodeProto, known: Mapping[str, np.ndarray], number: int) -> dict:
    """One node against float64, some of its queries."""
    entry = {"node": node.name, "operator": node.op_type, "run": number, "ok": False}
    got = known[node.output[0]]
    limit = _NODE_LIMITS.get(got.dtype.name, _NODE_LIMIT)
    some = np.random.default_rng(0).permutation(got.shape[1])[:_QUERIES]
    arrays = [known[name] for name in node.input]
    picked = [a[:, some] if at > 2 and a.ndim > 2 else a for at, a in enumerate(arrays)]
    try:
        expected = (emulate if is_plugin(node) else compute)(node, picked)
    except (OnnxError, ValueError, IndexError) as problem:
        return {**entry, "reason": f"node {node.name!r}: {problem}"}
    # Runtimes differ where a location is NaN or infinite: those queries are counted, not compared.
    finite = np.ones(expected.shape[:2], bool)
    for array in picked[3:]:
        finite &= np.isfinite(array).all(tuple(range(2, array.ndim)))
    entry["not_finite"] = int((~finite).sum())
    if finite.size and not finite.any():
        return {**entry, "reason": "all its locations or weights are NaN or infinite"}
    worst = error(got[:, some][finite], expected[finite])
    return {**entry, "error": worst, "limit": limit, "ok": worst <= limit}


def _against(report: Report, before, given: Mapping, outputs: list, number: int) -> None:
    names = {o.name for o in before.get_inputs()}
    if names != set(given):
        raise OnnxError(f"--against: got inputs {sorted(names)}, expected {sorted(given)}")
    try:
        expected = files.run(before, None, given)
    except OnnxError as problem:
        report.failures.append(f"--against: {problem}")
        return
    if len(expected) != len(outputs):
        raise OnnxError(f"--against: got {len(expected)} outputs, expected {len(outputs)}")
    for (name, got), old in zip(outputs, expected):
        entry = {
            "output": name,
            "run": number,
            "sizes": {k: list(v.shape) for k, v in given.items()},
        }
        worst = error(got, np.asarray(old, np.float64))
        report.outputs.append(
            {**entry, "error": worst, "limit": _MODEL_LIMIT, "ok": worst <= _MODEL_LIMIT}
        )


def _warn(model: onnx.ModelProto, report: Report) -> None:
    """What other runtimes may compute wrongly, and what should not be constant."""
    say = report.warnings.append
    linear = [n for n in _all_nodes(model) if n.op_type == "GridSample" and _mode(n) == b"linear"]
    if files.opset(model) >= 20 and linear:
        say(
            f"{len(linear)} GridSample of opset 20 or newer: TensorRT takes 'nearest' for its "
            "'linear' without a word; export with opset_version=18"
        )
    inferred = onnx.shape_inference.infer_shapes(model) if model.ByteSize() < 2**30 else model
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in (*inferred.graph.value_info, *inferred.graph.input)
    }
    types.update({t.name: t.data_type for t in model.graph.initializer})
    symbols = files.symbols(model)
    graph = files.Graph(model)
    for node in model.graph.node:
        place = 1 if node.op_type == "GridSample" else 3
        if node.op_type == "GridSample" or is_ours(node) or is_plugin(node):
            kind = types.get(node.input[place])
            if kind in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
                say(f"node {node.name!r}: its locations have 16 bits: positions lose precision")
        if not (is_ours(node) or is_plugin(node)):
            continue
        sizes = {"height", "width"} & set(symbols.values())
        if sizes and graph.is_constant(node.input[1]):
            say(
                f"node {node.name!r}: spatial_shapes is a constant, but {sorted(symbols)} are "
                "dynamic: other image sizes give wrong results or fail"
            )
    for i in files.model_inputs(model):
        dims = i.type.tensor_type.shape.dim
        if len(dims) > 1 and dims[0].HasField("dim_value"):
            say(f"input {i.name!r}: its batch is the constant {dims[0].dim_value}")
    if "batch" in symbols.values():
        for o in model.graph.output:
            dims = o.type.tensor_type.shape.dim
            if len(dims) > 1 and dims[0].HasField("dim_value"):
                say(f"output {o.name!r}: its batch is the constant {dims[0].dim_value}")


def _mode(node: onnx.NodeProto) -> bytes:
    return next((a.s for a in node.attribute if a.name == "mode"), b"linear")


def _all_nodes(model: onnx.ModelProto):
    work = [model.graph, *model.functions]
    while work:
        for node in work.pop().node:
            yield node
            work += [g for a in node.attribute for g in (a.g, *a.graphs) if g.node]
