"""The proof that a piece of a graph computes an operator: both get the same random numbers."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from .graph import Graph, Observed, run, session
from .ops import DOMAIN, INPUTS, TABLES, OnnxError, compute, error

TOLERANCE = 1e-4
# Queries that are compared with the computation in float64.
_QUERIES = 200

Step = tuple[str, list[int]]


class Refused(Exception):
    """Why a piece is left alone, and the error if it was compared."""

    def __init__(self, reason: str, error: float = math.inf) -> None:
        super().__init__(reason)
        self.error = error


@dataclasses.dataclass
class Source:
    """A tensor of the graph, and steps that give it the layout of the operator."""

    name: str
    steps: list[Step]


@dataclasses.dataclass
class Proposal:
    """An operator that may compute `output`: its sources by input, without the level tables."""

    op: str
    sources: dict[str, Source]
    output: Source
    attributes: dict[str, Any]
    # Level sizes and first positions of each run.
    tables: list[tuple[np.ndarray, np.ndarray]]
    # Their names, where a node has them already.
    table_names: tuple[str, ...] = ()


def apply(array: np.ndarray, steps: Sequence[Step], batch: int) -> np.ndarray:
    """The steps with NumPy."""
    for kind, numbers in steps:
        if kind == "Transpose":
            array = array.transpose(numbers)
        elif kind == "Expand":
            array = np.broadcast_to(array, (batch, *array.shape[1:]))
        else:
            array = array.reshape([n or array.shape[at] for at, n in enumerate(numbers)])
    return array


def _undo(array: np.ndarray, steps: Sequence[Step], shape: tuple[int, ...]) -> np.ndarray:
    """The steps of an output backwards."""
    for kind, numbers in reversed(steps):
        array = (
            array.transpose(np.argsort(numbers)) if kind == "Transpose" else array.reshape(shape)
        )
    return array


# Ordinary and large numbers per input, one per set of random numbers. A clamp or a selection in the
# piece must show, so they reach beyond what models usually have.
_SCALES = {
    "value": (1, 1000),
    "attention_weights": (1, 100),
    "sampling_offsets": (2.5, 25),
    "attention_logits": (2, 30),
}
_LOCATIONS = ((-0.25, 1.25), (-1, 2), (-4, 5), (-10, 10))


def _random(
    field: str, shape: tuple[int, ...], sizes: np.ndarray, rng: np.random.Generator, seed: int
) -> np.ndarray:
    """Random numbers for an input, given the level sizes."""
    if field == "reference_points":
        # Sizes of boxes too: they have both signs.
        found = rng.uniform(-1, 2, shape)
    elif field == "sampling_locations":
        # On the map, just off it and far away; half are exact borders and pixel centres.
        ranges = [rng.uniform(low, high, shape) for low, high in _LOCATIONS]
        halves = 2 * rng.choice(np.unique(sizes), shape)
        exact = rng.integers(-2, halves + 3) / halves
        kind = rng.integers(0, 2 * len(ranges), shape)
        found = np.choose(kind, [*ranges, *[exact] * len(ranges)])
    else:
        found = _SCALES[field][seed] * rng.standard_normal(shape)
    return found.astype(np.float32)


def prove(graph: Graph, runs: Sequence[Observed], proposal: Proposal) -> float:
    """The largest error over all runs. Raises Refused where it is no rounding."""
    names = {source.name for source in proposal.sources.values()}
    if len(names) != len(proposal.sources):
        raise Refused("one tensor has two roles")
    worst = 0.0
    for number, observed in enumerate(runs):
        piece, fixed = _piece(graph, observed, names, proposal)
        runner = None
        sizes = proposal.tables[number][0]
        for seed in range(2):
            rng = np.random.default_rng([number, seed])
            given = {
                source.name: _random(field, observed.shapes[source.name], sizes, rng, seed)
                for field, source in proposal.sources.items()
            }
            try:
                runner = runner or session(piece)
                got = run(runner, None, {**given, **fixed})[0]
            except OnnxError as reason:
                raise Refused(f"its piece does not run alone: {reason}") from None
            worst = max(worst, _compare(proposal, number, given, got))
            if not worst <= TOLERANCE:
                reason = f"it computes something else: relative error {worst:.1e}"
                raise Refused(reason, min(worst, sys.float_info.max))
    return worst


def _compare(proposal: Proposal, number: int, given: dict[str, np.ndarray], got: np.ndarray):
    sources = proposal.sources
    try:
        value = apply(given[sources["value"].name], sources["value"].steps, 0)
        batch, _, heads, channels = value.shape
        arrays = {
            field: apply(given[source.name], source.steps, batch)
            for field, source in sources.items()
        }
        queries = arrays[list(arrays)[-1]].shape[1]
        got = _undo(got, proposal.output.steps, (batch, queries, heads * channels))
    except (ValueError, IndexError) as reason:
        raise Refused(f"other sizes do not fit: {reason}") from None
    if got.shape != (batch, queries, heads * channels):
        return math.inf
    some = np.random.default_rng(0).permutation(queries)[:_QUERIES]
    for field in list(arrays)[1:]:
        arrays[field] = arrays[field][:, some]
    node = helper.make_node(
        proposal.op, INPUTS[proposal.op], ["output"], domain=DOMAIN, **proposal.attributes
    )
    arrays.update(zip(TABLES, proposal.tables[number]))
    try:
        expected = compute(node, [arrays[field] for field in INPUTS[proposal.op]])
    except OnnxError as reason:
        raise Refused(f"other sizes do not fit: {reason}") from None
    return error(got[:, some], expected)


def _piece(
    graph: Graph, observed: Observed, names: set[str], proposal: Proposal
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The graph from some tensors to an output as a model, and integers that enter beside them."""
    reached, output = set(names), proposal.output.name
    for node, inputs in zip(graph.nodes, graph.inputs):
        # Sizes are those of the run, whatever the numbers are.
        if node.op_type != "Shape" and any(name in reached for name in inputs):
            reached.update(name for name in node.output if name not in names)

    def stop(name: str) -> bool:
        return name in names or (name in observed.integers and name not in reached)

    nodes, ends = graph.slice(output, stop)
    fixed = {n: observed.integers[n] for n in ends - names if n in observed.integers}
    tensors = [graph.initializers[n] for n in ends - names if n in graph.initializers]
    # Integers that change with the numbers of the inputs are no sizes.
    varying = {n for n in fixed if n in graph.data and n not in proposal.table_names}
    others = varying | ends - names - set(fixed) - set(graph.initializers)
    if others:
        raise Refused(
            f"it depends on {sorted(others)[0]!r} besides its value, locations and weights"
        )
    if not names <= ends:
        raise Refused(f"it does not depend on {sorted(names - ends)[0]!r}")
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in sorted(names)]
    for name, array in fixed.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
    made = helper.make_graph(nodes, "piece", inputs, [onnx.ValueInfoProto(name=output)], tensors)
    model = helper.make_model(made, opset_imports=graph.model.opset_import)
    model.ir_version = graph.model.ir_version
    model.functions.extend(graph.model.functions)
    _to_float32(model)
    return model, fixed


def _to_float32(model: onnx.ModelProto) -> None:
    """Makes 16-bit tensors float32: their rounding must not hide a difference."""
    small = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

    def widen(tensor: TensorProto) -> None:
        if tensor.data_type in small:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))

    for tensor in model.graph.initializer:
        widen(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                widen(attribute.t)
            elif node.op_type == "Cast" and attribute.i in small:
                attribute.i = TensorProto.FLOAT
