"""`verify`: every node of ours against float64, and the whole model against the file before."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import onnx

from . import graph as files
from .ops import DOMAIN, OnnxError, compute, error, is_ours
from .tensorrt import emulate, is_plugin, runnable

# By the type of the output: rounding of its numbers, and of sums in float32.
_NODE_LIMITS = {"float16": 2e-3, "bfloat16": 2e-2}
_NODE_LIMIT = 1e-4
# Other operators round too: in 16 bits GridSample rounds its positions.
_MODEL_LIMITS = {"float16": 2e-2, "bfloat16": 1e-1}
_MODEL_LIMIT = 1e-3
_QUERIES = 200
SIZE_HINT = "hint: give sizes with --size NAME=NUMBER"
_BODY_HINT = "hint: `python -m msda_attn onnx rewrite` adds it; onnx.version_converter drops it"


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
    sizes: files.Sizes | None = None,
) -> Report:
    """Runs the model with random inputs at two sets of sizes, where it has dynamic ones.

    It runs with the library, and without it, where the bodies of the nodes compute.

    `sizes` are dynamic sizes of the inputs: a number, or one for each run.
    """
    report = Report()
    inputs = files.both_feeds(model, sizes or {})
    ours = [node for node in model.graph.node if is_ours(node) or is_plugin(node)]
    inside = sum(map(is_ours, files.all_nodes(model.graph))) - sum(map(is_ours, ours))
    if inside:
        say = f"{inside} nodes of msda inside branches or loops were not compared with float64"
        report.warnings.append(say)
    if not ours:
        where = " outside of branches and loops" if inside else ""
        report.failures.append(f"the model has no node of msda{where} and no plugin of NVIDIA")
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
    probe = files.with_outputs(runnable(model), wanted)
    runners = {"library" if files.uses_ours(model) else "plugin": files.session(probe)}
    bodies = {function.name for function in model.functions if function.domain == DOMAIN}
    if missing := {n.op_type for n in files.all_nodes(model.graph) if is_ours(n)} - bodies:
        report.failures.append(f"{sorted(missing)}: got no function of the model\n{_BODY_HINT}")
    elif bodies:
        runners["function"] = files.session(probe, library=False)
    shapes: dict[str, list] = {way: [] for way in runners}
    before = None if against is None else files.session(runnable(against))
    for (number, given), way in itertools.product(enumerate(inputs), runners):
        try:
            got = dict(zip(wanted, files.run(runners[way], wanted, given)))
        except files.RunError as problem:
            report.failures.append(f"{way}: {problem}\n{SIZE_HINT}")
            break
        known = {**constants, **given, **got}
        shapes[way].append([known[name].shape for name in names])
        where = {"way": way, "run": number}
        for node in ours:
            report.nodes.append(entry := _node(node, known, where))
            if entry.get("not_finite"):
                report.warnings.append(
                    f"node {node.name!r}, {way}, run {number}: {entry['not_finite']} queries have "
                    "locations or weights that are NaN or infinite"
                )
        if before is not None:
            outputs = [(name, known[name]) for name in names]
            _against(report, before, given, outputs, [known[n.output[0]] for n in ours], where)
    for found in shapes.values():
        problems = files.fixed_batches(model, inputs, found) if len(found) == 2 else []
        report.failures += [text for text in problems if text not in report.failures]
    if against is None:
        report.warnings.append("the whole model was not compared: give the file before (--against)")
    return report


def limit_of(*arrays: np.ndarray) -> float:
    """The largest error of an output of a model that has tensors of these types."""
    return max(_MODEL_LIMITS.get(array.dtype.name, _MODEL_LIMIT) for array in arrays)


def _judged(entry: dict, limit: float, got: np.ndarray, expected: np.ndarray) -> dict:
    """An entry with its error, or with the reason why there is none."""
    worst = error(got, expected)
    entry |= {"error": worst, "limit": limit, "ok": worst <= limit}
    if not np.isfinite(worst):
        same = got.shape == expected.shape
        what = "numbers that are not finite" if same else f"shape {list(got.shape)}"
        entry |= {
            "error": None,
            "reason": f"got {what}, expected {'finite ones' if same else list(expected.shape)}",
        }
    return entry


def _node(node: onnx.NodeProto, known: Mapping[str, np.ndarray], where: dict) -> dict:
    """One node against float64, some of its queries."""
    entry = {"node": node.name, "operator": node.op_type, **where, "ok": False}
    got = known[node.output[0]]
    if got.ndim < 3:
        return {**entry, "reason": f"got shape {list(got.shape)}, expected 3 dimensions or more"}
    limit = _NODE_LIMITS.get(got.dtype.name, _NODE_LIMIT)
    some = np.random.default_rng(0).permutation(got.shape[1])[:_QUERIES]
    arrays = [known[name] for name in node.input]
    picked = [a[:, some] if at > 2 and a.ndim > 2 else a for at, a in enumerate(arrays)]
    try:
        expected = (emulate if is_plugin(node) else compute)(node, picked)
    except OnnxError as problem:
        return {**entry, "reason": str(problem)}
    # Runtimes differ where a location is NaN or infinite: those queries are counted, not compared.
    finite = np.ones(expected.shape[:2], bool)
    for array in picked[3:]:
        finite &= np.isfinite(array).all(tuple(range(2, array.ndim)))
    entry["not_finite"] = int((~finite).sum())
    if finite.size and not finite.any():
        return {**entry, "reason": "all its locations or weights are NaN or infinite"}
    return _judged(entry, limit, got[:, some][finite], expected[finite])


def _against(
    report: Report, before, given: Mapping, outputs: list, attention: list, where: dict
) -> None:
    """Compares outputs. Results of our nodes say whether the model computes in 16 bits inside."""
    names = {o.name for o in before.get_inputs()}
    if names != set(given):
        raise OnnxError(f"--against: got inputs {sorted(names)}, expected {sorted(given)}")
    try:
        expected = files.run(before, None, given)
    except files.RunError as problem:
        report.failures.append(f"--against: {problem}\n{SIZE_HINT}")
        return
    if len(expected) != len(outputs):
        raise OnnxError(f"--against: got {len(expected)} outputs, expected {len(outputs)}")
    for (name, got), old in zip(outputs, expected):
        sizes = {k: list(v.shape) for k, v in given.items()}
        entry = {"output": name, **where, "sizes": sizes}
        limit = limit_of(got, *attention)
        report.outputs.append(_judged(entry, limit, got, np.asarray(old, np.float64)))


def _warn(model: onnx.ModelProto, report: Report) -> None:
    """What other runtimes may compute wrongly, and what should not be constant."""
    say = report.warnings.append
    nodes = files.all_nodes(model.graph, *model.functions)
    linear = [n for n in nodes if n.op_type == "GridSample" and _mode(n) == b"linear"]
    if files.opset(model) >= 20 and linear:
        say(
            f"{len(linear)} GridSample of opset 20 or newer: TensorRT takes 'nearest' for its "
            "'linear' without a word; export with opset_version=18"
        )
    inferred = onnx.shape_inference.infer_shapes(model) if files.size(model) < 2**30 else model
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
    outputs = model.graph.output if "batch" in symbols.values() else ()
    for kind, infos in (("input", files.model_inputs(model)), ("output", outputs)):
        for info in infos:
            dims = info.type.tensor_type.shape.dim
            if len(dims) > 1 and dims[0].HasField("dim_value"):
                say(f"{kind} {info.name!r}: its batch is the constant {dims[0].dim_value}")


def _mode(node: onnx.NodeProto) -> bytes:
    return next((a.s for a in node.attribute if a.name == "mode"), b"linear")
