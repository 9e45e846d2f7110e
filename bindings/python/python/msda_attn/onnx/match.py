"""Finds multi-scale deformable attention in a graph and puts our operators in its place.

Search only proposes: which tensors may be the value, the locations and the weights, by their sizes
in a real run. `prove` decides.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx.inliner
from onnx import helper

from . import graph as files
from .graph import Graph, Observed, is_integer
from .ops import DOMAIN, FUSED, INPUTS, PLAIN, TABLES, OnnxError, attributes, changed, is_ours
from .prove import Proposal, Refused, Source, Step, prove

# Operators that move numbers and change none.
_LAYOUT = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Cast Split Slice Gather Expand "
    "SplitToSequence SequenceAt Pad".split()
)
_ARITHMETIC = frozenset("Mul Add Sub Div Concat".split())
# Operators between locations and the indices of a Gather.
_INDICES = frozenset("Floor Clip Min Max".split())
_MOST_PROOFS = 40


@dataclasses.dataclass
class Found:
    """One place of a graph: what became of it and why."""

    nodes: list[str]
    status: str
    reason: str
    error: float | None = None


@dataclasses.dataclass(frozen=True)
class Seed:
    """One sampled level: its result, its map (rows, channels, height, width) and its places.

    `through` are the operators, layouts apart, between locations and places.
    """

    output: str
    map: str
    places: tuple[str, ...]
    node: str
    through: frozenset[str] = _ARITHMETIC


@dataclasses.dataclass(frozen=True)
class _Flow:
    """Levels that flow into a tensor, and the weights that they were multiplied with."""

    seeds: frozenset[int]
    weights: tuple[str, ...] = ()


def _observe(
    model: onnx.ModelProto, inputs: Sequence[Mapping[str, np.ndarray]]
) -> tuple[list[Observed], str]:
    """Observes a run with each set of inputs, and says why there is only one."""
    observer = files.Observer(model)
    runs = [observer.run(inputs[0])]
    try:
        return runs + [observer.run(given) for given in inputs[1:]], ""
    except OnnxError as error:
        return runs, f"only one set of sizes runs: {error}"


class Matcher:
    """A graph with its runs."""

    def __init__(self, model: onnx.ModelProto, runs: Sequence[Observed]) -> None:
        self.graph, self.runs = Graph(model), runs
        self.shapes = runs[0].shapes
        self._fixed: dict[str, bool] = {}
        for node, names in zip(self.graph.nodes, self.graph.inputs):
            fixed = all(self.fixed(name) for name in names)
            self._fixed.update(dict.fromkeys(node.output, fixed))

    def fixed(self, name: str) -> bool:
        """Whether a tensor depends on weights and sizes only."""
        if name in self.graph.initializers or is_integer(self.runs[0].types.get(name, "")):
            return True
        return self._fixed.get(name, False)

    def integers(self, name: str) -> list[np.ndarray | None]:
        """The numbers of a tensor in each run, where they are known."""
        constant = self.graph.constant(name)
        return [observed.integers.get(name, constant) for observed in self.runs]

    def size(self, name: str) -> int:
        return math.prod(self.shapes[name]) if name in self.shapes else -1

    def chain(self, name: str) -> list[str]:
        """A tensor and its ancestors through operators that only move numbers."""
        found = [name]
        while node := self.graph.maker.get(found[-1]):
            alone = node.op_type == "Concat" and len(node.input) == 1
            if node.op_type not in _LAYOUT and not alone:
                break
            found.append(node.input[0])
        return found

    def near(self, names: Sequence[str], through: frozenset[str] = _ARITHMETIC) -> list[str]:
        """Tensors and what they are computed from with layouts and `through`, nearest first.

        No clamp, maximum or selection belongs to the operators, so the search stops there.
        """
        found, work = {}, list(names)
        while work:
            name = work.pop(0)
            if name in found or name not in self.shapes:
                continue
            found[name] = True
            node = self.graph.maker.get(name)
            if node is not None and node.op_type in _LAYOUT:
                work.append(node.input[0])
            elif node is not None and node.op_type in through:
                work += node.input
        return list(found)

    def common(self, lists: Sequence[list[str]], size: int) -> list[str]:
        """Tensors that are in all lists and have this many numbers."""
        shared = [n for n in lists[0] if all(n in other for other in lists[1:])]
        return [n for n in shared if self.size(n) == size]

    def flows(self, seeds: Sequence[Seed]) -> dict[str, _Flow]:
        """Follows sampled levels forward through layouts, one product with weights, and sums."""
        found = {seed.output: _Flow(frozenset([at])) for at, seed in enumerate(seeds)}
        for node in self.graph.nodes:
            flows = [found.get(name) for name in node.input]
            some = [flow for flow in flows if flow]
            if not some or node.output[0] in found:
                continue
            kind, flow = node.op_type, some[0]
            if kind in ("Concat", "Add", "Sum") and len(some) == len(flows):
                weights = tuple(dict.fromkeys(w for f in some for w in f.weights))
                flow = _Flow(frozenset().union(*(f.seeds for f in some)), weights)
            elif kind in ("Mul", "MatMul", "Einsum") and len(flows) == 2 and len(some) == 1:
                other = node.input[1 - flows.index(flow)]
                if flow.weights or self.fixed(other) and kind == "MatMul":
                    continue
                flow = _Flow(flow.seeds, (other,))
            elif not (flows[0] and (kind in _LAYOUT or kind == "ReduceSum")):
                continue
            found.update(dict.fromkeys(node.output, flow))
        return found

    def groups(self, seeds: Sequence[Seed]) -> Iterator[tuple[list[Seed], list[tuple[str, _Flow]]]]:
        """Levels that meet, and the tensors in which all of them are."""
        flows = self.flows(seeds)
        sets = {flow.seeds for flow in flows.values() if flow.weights}
        for group in sorted(sets, key=min):
            if any(group < other for other in sets):
                continue
            tensors = [(n, f) for n, f in flows.items() if f.seeds == group and f.weights]
            yield sorted((seeds[at] for at in sorted(group)), key=self.start), tensors
        alone = set(range(len(seeds))).difference(*sets) if sets else range(len(seeds))
        for at in alone:
            yield [seeds[at]], []

    def start(self, seed: Seed) -> int:
        """Where a level's map starts in the tensor that it is a piece of. Files have any order."""
        for name in self.chain(seed.map):
            node = self.graph.maker.get(name)
            if node is not None and len(node.output) > 1:
                return list(node.output).index(name)
            if node is not None and node.op_type in ("Slice", "Gather", "SequenceAt"):
                known = self.integers(node.input[1])[0]
                return 0 if known is None else int(known.reshape(-1)[0])
        return 0

    def proposals(self, seeds: Sequence[Seed], tensors: list) -> Iterator[Proposal]:
        """What a group may compute."""
        maps = [self.shapes[seed.map] for seed in seeds]
        if any(len(m) != 4 or m[:2] != maps[0][:2] for m in maps):
            raise Refused("its maps have different channels")
        rows, channels = maps[0][:2]
        counts = [self.size(seed.output) // channels for seed in seeds]
        positions = sum(m[2] * m[3] for m in maps)
        # Tensors far from the samples have the layout of the operator.
        chains = [self.chain(seed.map)[::-1] for seed in seeds]
        values = self.common(chains, rows * channels * positions)
        places = self.common([self.near(s.places, s.through) for s in seeds], 2 * sum(counts))
        if not values:
            raise Refused("its maps come from no common tensor")
        if not places:
            raise Refused("its grids come from no common tensor")
        tables = [self.tables_of(seeds, observed) for observed in self.runs]
        for output, flow in reversed(tensors):
            weights = self.common([self.chain(w)[::-1] for w in flow.weights], sum(counts))
            for heads in (h for h in range(rows, 0, -1) if rows % h == 0):
                batch = rows // heads
                for queries, steps in _output_fits(self.shapes[output], batch, heads * channels):
                    if any(count % (rows * queries) for count in counts):
                        continue
                    points = [count // (rows * queries) for count in counts]
                    same = len(set(points)) == 1
                    samples = (len(seeds), points[0]) if same else (sum(points),)
                    shape = (batch, queries, heads, *samples)
                    options = (
                        self.sources(values, (batch, positions, heads, channels)),
                        self.sources(places, (*shape, 2)),
                        self.sources(weights, shape),
                    )
                    for value, location, weight in itertools.product(*(o[:6] for o in options)):
                        given = dict(zip(_arguments(PLAIN), (value, location, weight)))
                        uneven = {} if same else {"points": points}
                        yield Proposal(PLAIN, given, Source(output, steps), uneven, tables)

    def sources(self, names: Sequence[str], target: tuple[int, ...]) -> list[Source]:
        """Ways to make a tensor of this shape, those with fewer steps first."""
        found = [Source(n, steps) for n in names for steps in _fits(self.shapes[n], target)]
        return sorted(found, key=lambda source: len(source.steps))

    def tables_of(self, seeds: Sequence[Seed], observed: Observed) -> tuple[np.ndarray, np.ndarray]:
        shapes = np.array([observed.shapes[seed.map][2:] for seed in seeds], np.int64)
        return shapes, np.cumsum(shapes.prod(1)) - shapes.prod(1)

    def fused_proposals(self, node: onnx.NodeProto) -> Iterator[Proposal]:
        """The same node with its softmax and its locations."""
        value, shapes, starts, locations, weights = node.input
        soft = next((n for n in self.chain(weights) if self.makes(n, "Softmax")), None)
        if soft is None:
            raise Refused("its weights come from no Softmax")
        batch, queries, heads, *samples = self.shapes[weights]
        levels = self.shapes[shapes][0]
        logits = self.sources(
            self.chain(self.graph.maker[soft].input[0]), (batch, queries, heads, *samples)
        )
        near = self.near([locations])[::-1]
        near = [n for n in near if not is_integer(self.runs[0].types.get(n, ""))]
        offsets = self.sources(near, (*self.shapes[weights], 2))
        points = []
        for count, size in itertools.product(sorted({levels, 1}, reverse=True), (4, 2)):
            points += self.sources(near, (batch, queries, count, size))
            if batch > 1:
                expand: Step = ("Expand", [])
                for source in self.sources(near, (1, queries, count, size)):
                    points.append(Source(source.name, [*source.steps, expand]))
        points.sort(key=lambda source: len(source.steps))
        tables = list(zip(self.integers(shapes), self.integers(starts)))
        offsets = [o for o in offsets if o.name != locations][:4]
        for logit, point, offset in itertools.product(logits[:3], points[:6], offsets):
            given = dict(zip(_arguments(FUSED), (Source(value, []), point, offset, logit)))
            output, options = Source(node.output[0], []), changed(attributes(node))
            yield Proposal(FUSED, given, output, options, tables, (shapes, starts))

    def makes(self, name: str, op: str) -> bool:
        """Whether an operator of this kind makes a tensor."""
        return name in self.graph.maker and self.graph.maker[name].op_type == op


def _arguments(op: str) -> list[str]:
    """The inputs of an operator without its tables."""
    return [name for name in INPUTS[op] if name not in TABLES]


def _output_fits(
    shape: tuple[int, ...], batch: int, width: int
) -> Iterator[tuple[int, list[Step]]]:
    """Queries, and steps from `(batch, queries, width)` to an output of this shape."""
    if len(shape) == 3 and shape[0] == batch:
        if shape[2] == width:
            yield shape[1], []
        if shape[1] == width:
            yield shape[2], [("Transpose", [0, 2, 1])]
    if len(shape) == 4 and shape[0] == batch and shape[2] * shape[3] == width:
        yield shape[1], [("Reshape", [0, 0, shape[2], shape[3]])]


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> Iterator[list[Step]]:
    """Steps from one shape to another. The first two sizes may be dynamic."""
    if shape == target:
        yield []
        return
    reshape: list[Step] = [("Reshape", [0, 0, *target[2:]])]
    if len(shape) >= 2 and shape[:2] == target[:2] and math.prod(shape) == math.prod(target):
        yield reshape
    if len(shape) == len(target):
        for order in itertools.permutations(range(len(shape))):
            if tuple(shape[at] for at in order) == target:
                yield [("Transpose", list(order))]
    if len(shape) == 3 and len(target) == 4:
        if (shape[0], shape[2], shape[1]) == (*target[:2], math.prod(target[2:])):
            yield [("Transpose", [0, 2, 1]), *reshape]


def grid_samples(matcher: Matcher) -> tuple[list[Seed], list[Found]]:
    """The levels that GridSample samples as our operator does, and the others."""
    seeds, others = [], []
    for node in matcher.graph.nodes:
        if node.op_type != "GridSample" or node.domain not in ("", "ai.onnx"):
            continue
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        mode = given.get("mode", b"linear").decode()
        padding = given.get("padding_mode", b"zeros").decode()
        corners = given.get("align_corners", 0)
        if mode not in ("bilinear", "linear") or padding != "zeros" or corners:
            reason = f"mode={mode}, padding_mode={padding}, align_corners={corners}"
            others.append(Found([node.name or node.output[0]], "left", f"not replaced: {reason}"))
            continue
        name = node.name or node.output[0]
        seeds.append(Seed(node.output[0], node.input[0], (node.input[1],), name))
    return seeds, others


def gathers(matcher: Matcher) -> list[Seed]:
    """Levels sampled without GridSample: four pixels by GatherElements, and their weighted sum."""
    corners: dict[str, list[onnx.NodeProto]] = {}
    for node in matcher.graph.nodes:
        if node.op_type == "GatherElements" and not matcher.fixed(node.input[0]):
            corners.setdefault(node.input[0], []).append(node)
    seeds = []
    for data, nodes in corners.items():
        maps = [n for n in matcher.chain(data) if len(matcher.shapes.get(n, ())) == 4]
        # The map is the tensor before its padding.
        padded = [n for n in maps if matcher.makes(n, "Pad")]
        if len(nodes) != 4 or not maps:
            continue
        found = {node.output[0]: frozenset([at]) for at, node in enumerate(nodes)}
        for node in matcher.graph.nodes:
            sets = [found[name] for name in node.input if name in found]
            if sets and node.op_type in _LAYOUT | {"Mul", "Add", "Sum"}:
                found.setdefault(node.output[0], frozenset().union(*sets))
        whole = [name for name, corner in found.items() if len(corner) == 4]
        if whole:
            map = matcher.graph.maker[padded[-1]].input[0] if padded else maps[0]
            places = tuple(node.input[1] for node in nodes)
            name = nodes[0].name or nodes[0].output[0]
            seeds.append(Seed(whole[0], map, places, name, _ARITHMETIC | _INDICES))
    return seeds


def _add_steps(add: files.Nodes, name: str, steps: Sequence[Step], value: str = "") -> str:
    """Adds nodes that change a layout. The result is the last tensor."""
    for kind, numbers in steps:
        if kind == "Transpose":
            name = add(kind, name, perm=numbers)
        elif kind == "Expand":
            batch = add("Shape", value, start=0, end=1)
            name = add(kind, name, add("Concat", batch, [1, 1, 1], axis=0))
        else:
            name = add(kind, name, numbers)
    return name


def _add_tables(
    matcher: Matcher, add: files.Nodes, seeds: Sequence[Seed], proposal: Proposal
) -> list[str]:
    """Level sizes and first positions: constants, or from shapes that the graph computes."""
    first, last = proposal.tables[0], proposal.tables[-1]
    dynamic = set(files.symbols(matcher.graph.model).values())
    if dynamic <= {"batch"} and (first[0] == last[0]).all():
        return [add.constant(table) for table in first]
    parts = []
    for level, seed in enumerate(seeds):
        made = matcher.graph.maker.get(seed.map)
        target = made.input[1] if made is not None and made.op_type == "Reshape" else ""
        known = matcher.graph.constant(target)
        seen = zip(matcher.integers(target), (shapes[level] for shapes, _ in proposal.tables))
        if known is not None and list(known[-2:]) == list(first[0][level]):
            parts.append(add.constant(first[0][level]))
        elif all(shape is not None and list(shape[-2:]) == list(size) for shape, size in seen):
            parts.append(add("Slice", target, [-2], [2**31]))
        else:
            parts.append(add("Shape", seed.map, start=2))
    shapes = add("Reshape", add("Concat", *parts, axis=0), [-1, 2])
    height, width = (add("Gather", shapes, at, axis=1) for at in range(2))
    return [shapes, add("CumSum", add("Mul", height, width), 0, exclusive=1)]


def _write(
    matcher: Matcher, add: files.Nodes, proposal: Proposal, tables: list[str], name: str
) -> None:
    """Puts the operator into the model, as a node of this name."""
    value, *others = proposal.sources.values()
    types, output = matcher.runs[0].types, proposal.output
    kind = types.get(value.name)
    inputs = [first := _add_steps(add, value.name, value.steps), *tables]
    for source in others:
        tensor = source.name
        # The library takes numbers like the value's, or float32.
        wide = types.get(tensor) != kind or proposal.op == FUSED and kind != "tensor(double)"
        if wide and types.get(tensor) != "tensor(float)":
            tensor = add("Cast", tensor, to=onnx.TensorProto.FLOAT)
        inputs.append(_add_steps(add, tensor, source.steps, first))
    result = add(proposal.op, *inputs, name=name, domain=DOMAIN, **proposal.attributes)
    result = _add_steps(add, result, output.steps)
    if kind != types.get(output.name):
        add("Cast", result, to=files.element_type(types[output.name]))
    add.replace(output.name)


def _first_proven(matcher: Matcher, proposals: Iterator[Proposal]) -> tuple[Proposal, float]:
    """The first proposal with a proof. Otherwise the reason is that of the most similar one."""
    reasons = [Refused("no tensors have the sizes of its inputs")]
    for proposal in itertools.islice(proposals, _MOST_PROOFS):
        try:
            return proposal, prove(matcher.graph, matcher.runs, proposal)
        except Refused as refused:
            reasons.append(refused)
    raise min(reasons[1:] or reasons, key=lambda refused: refused.error)


def rewrite(model: onnx.ModelProto, sizes: files.Sizes | None = None) -> list[Found]:
    """Replaces what is proven to be our operator. The model is changed in place.

    `sizes` are dynamic sizes of the inputs: a number, or one for each of two runs.
    """
    others = [(f.domain, f.name) for f in model.functions if f.domain != DOMAIN]
    if others:
        model.CopyFrom(onnx.inliner.inline_selected_functions(model, others))
    # Tools drop the bodies, which the runs need.
    files.add_functions(model)
    report = _inside(model)
    inputs = files.both_feeds(model, sizes or {})
    runs, note = _observe(model, inputs)
    if note:
        report.append(Found([], "note", note))
    matcher, add = Matcher(model, runs), files.Nodes(model)
    seeds, left = grid_samples(matcher)
    seeds += gathers(matcher)
    report += left
    for group, tensors in matcher.groups(seeds):
        names = [seed.node for seed in group]
        try:
            if not tensors:
                raise Refused("its samples meet no attention weights")
            proposal, error = _first_proven(matcher, matcher.proposals(group, tensors))
        except Refused as refused:
            report.append(Found(names, "left", str(refused)))
            continue
        name = f"msda_attention_{sum(map(is_ours, model.graph.node))}"
        _write(matcher, add, proposal, _add_tables(matcher, add, group, proposal), name)
        report.append(Found(names, "replaced", name, error))
    files.prune(model)
    files.add_functions(model)
    return report + fuse(model, inputs)


def fuse(
    model: onnx.ModelProto, inputs: Sequence[Mapping[str, np.ndarray]], demand: bool = False
) -> list[Found]:
    """Makes softmax and locations part of our operator where that is proven to be the same.

    With `demand` a model that does not run with all inputs is an error.
    """
    runs, note = _observe(model, inputs)
    if note and demand:
        raise OnnxError(f"the model: got a constant where a dynamic size was asked for; {note}")
    matcher, add, report = Matcher(model, runs), files.Nodes(model), []
    for node in matcher.graph.nodes:
        if not (is_ours(node) and node.op_type == PLAIN):
            continue
        try:
            proposal, error = _first_proven(matcher, matcher.fused_proposals(node))
        except Refused as refused:
            report.append(Found([node.name], "not fused", str(refused)))
            continue
        _write(matcher, add, proposal, list(node.input[1:3]), node.name)
        report.append(Found([node.name], "fused", "with its softmax and its locations", error))
    files.prune(model)
    kinds = [runs[0].types.get(n.input[0], "") for n in model.graph.node if is_ours(n)]
    files.add_functions(model, any("double" in kind for kind in kinds))
    _describe_outputs(model, runs)
    return report


def _describe_outputs(model: onnx.ModelProto, runs: Sequence[Observed]) -> None:
    """Types of what our nodes make. Tools infer them only if they know functions."""
    known = {v.name for v in (*model.graph.output, *model.graph.value_info)}
    dynamic = bool(files.symbols(model))
    for node in filter(is_ours, model.graph.node):
        name = node.output[0]
        if name not in known:
            sizes = {observed.shapes[name] for observed in runs}
            *lead, width = sizes.pop()
            lead = [None, None] if dynamic else lead
            width = None if any(other[-1] != width for other in sizes) else width
            kind = files.element_type(runs[0].types[name])
            info = helper.make_tensor_value_info(name, kind, [*lead, width])
            model.graph.value_info.append(info)


def _inside(model: onnx.ModelProto) -> list[Found]:
    """GridSamples in branches and loops, which are left alone."""
    found = []
    for node in model.graph.node:
        graphs = (g for a in node.attribute for g in (a.g, *a.graphs))
        for inner in files.all_nodes(*graphs):
            if inner.op_type == "GridSample":
                name = inner.name or inner.output[0]
                found.append(Found([name], "left", f"it is inside {node.op_type} {node.name!r}"))
    return found
