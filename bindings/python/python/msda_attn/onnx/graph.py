"""Files and graphs: reading and writing, who makes and uses a tensor, and a run that observes."""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import itertools
import math
import os
import pathlib
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import helper

from .. import _native
from .ops import DOMAIN, OLDEST_OPSET, OnnxError, attributes, functions, is_ours, register_schemas

_LIMIT = 2**31 - 2**20
_OLDEST_RUNTIME = (1, 17)
# Loops may be endless.
_MOST_SECONDS = 600


def library_path() -> pathlib.Path:
    """The library with the operators for ONNX Runtime (`register_custom_ops_library`).

    It is the compiled part of this package. Programs without Python use `libmsda_ort`, which
    `cargo build --release -p msda-ort` makes.
    """
    return pathlib.Path(_native.__file__)


def load(path: str | os.PathLike) -> onnx.ModelProto:
    """Reads and checks a file. External data outside its folder is refused."""
    path = pathlib.Path(path)
    register_schemas()
    try:
        model = onnx.load(str(path), load_external_data=False)
        _check_external_data(model, path.parent)
        onnx.load_external_data_for_model(model, str(path.parent))
        if opset(model) < OLDEST_OPSET:
            raise OnnxError(
                f"opset: got {opset(model)}, expected {OLDEST_OPSET} or newer\n"
                "hint: onnx.version_converter.convert_version converts a model"
            )
        _sort(model)
        if size(model) <= _LIMIT:
            onnx.checker.check_model(model)
        for node in filter(is_ours, all_nodes(model.graph)):
            attributes(node)
    except FileNotFoundError as error:
        raise OnnxError(f"{path}: got no such file: {_short(error)}") from None
    except OnnxError as error:
        raise OnnxError(f"{path}: {error}") from None
    except (DecodeError, onnx.checker.ValidationError, ValueError, OSError, RuntimeError) as error:
        raise OnnxError(f"{path}: got no valid ONNX model: {_short(error)}") from None
    return model


def _check_external_data(model: onnx.ModelProto, folder: pathlib.Path) -> None:
    """Refuses external data that is not a file of its own in the folder of the model."""
    for tensor in tensors(model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = f"tensor {tensor.name!r}: external data: got {entries.get('location')!r}"
        path = (folder / entries.get("location", "")).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise OnnxError(f"{where}, expected a file in the folder of the model")
        if path.stat().st_nlink > 1:
            raise OnnxError(f"{where}, which has other names (hard links), expected one name")


def all_nodes(*graphs) -> Iterator[onnx.NodeProto]:
    """The nodes of graphs and functions, those of their branches and loops included."""
    for found in graphs:
        for node in found.node:
            yield node
            yield from all_nodes(*(g for a in node.attribute for g in (a.g, *a.graphs)))


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors of a model: initializers and attributes."""
    work = [model.graph, *model.functions]
    yield from (t for s in model.graph.sparse_initializer for t in (s.values, s.indices))
    yield from model.graph.initializer
    for node in all_nodes(*work):
        for a in node.attribute:
            sparse = (a.sparse_tensor, *a.sparse_tensors)
            yield from (a.t, *a.tensors)
            yield from (t for s in sparse for t in (s.values, s.indices))
            yield from (t for g in (a.g, *a.graphs) for t in g.initializer)


def size(model: onnx.ModelProto) -> int:
    """The bytes of a model. Protocol buffers cannot measure models over 2 GB."""
    try:
        return model.ByteSize()
    except EncodeError:
        return sys.maxsize


def _sort(model: onnx.ModelProto) -> None:
    """Puts nodes behind those that they need: torch writes some constants too late."""
    maker = {name: at for at, node in enumerate(model.graph.node) for name in node.output if name}
    needs = {
        at: {maker[name] for name in inputs_of(node) if name in maker}
        for at, node in enumerate(model.graph.node)
    }
    if all(before < at for at, found in needs.items() for before in found):
        return
    try:
        order = list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        names = [model.graph.node[at].name for at in error.args[1]]
        raise ValueError(f"nodes {names} need each other") from None
    nodes = [model.graph.node[at] for at in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400] or type(error).__name__


def save(model: onnx.ModelProto, path: str | os.PathLike, check: bool = True) -> None:
    """Writes a file that appears only when it is complete. Over 2 GB it uses external data."""
    path = pathlib.Path(path)
    external, data = size(model) > _LIMIT, f"{path.name}.data"
    try:
        with tempfile.TemporaryDirectory(prefix=".msda-", dir=path.parent) as folder:
            part = pathlib.Path(folder)
            options = {"save_as_external_data": True, "location": data} if external else {}
            # Saving external data would take the numbers out of the model.
            onnx.save_model(copy_of(model) if external else model, str(part / path.name), **options)
            if check:
                onnx.checker.check_model(str(part / path.name))
            # The data first: no moment has the new model with other data.
            if (part / data).exists():
                os.replace(part / data, path.parent / data)
            os.replace(part / path.name, path)
    except OSError as error:
        raise OnnxError(f"{path}: cannot write it: {error}") from None


def opset(model: onnx.ModelProto) -> int:
    versions = [i.version for i in model.opset_import if i.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def add_functions(model: onnx.ModelProto, double: bool = False) -> None:
    """Gives nodes of ours their bodies, and the model the domain."""
    nodes = [node for node in all_nodes(model.graph) if is_ours(node)]
    for node in nodes:
        # Torch writes an empty list of points, which the bodies do not take.
        for attribute in [a for a in node.attribute if a.name == "points" and not a.ints]:
            node.attribute.remove(attribute)
    others = [f for f in model.functions if f.domain != DOMAIN]
    del model.functions[:]
    model.functions.extend(others + functions(nodes, opset(model), double))
    domains = [i for i in model.opset_import if i.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(domains)
    if nodes:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        # Functions with defaults of attributes exist since this version.
        model.ir_version = max(model.ir_version, 9)


def session(model: onnx.ModelProto, optimize: bool = True, library: bool = True):
    """A session of ONNX Runtime on the CPU. Without our library, nodes run as local functions."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise OnnxError("onnxruntime: got none\nhint: pip install onnxruntime") from None
    found = tuple(int(n) for n in re.findall(r"\d+", ort.__version__)[:2])
    if found < _OLDEST_RUNTIME:
        raise OnnxError(f"onnxruntime: got {ort.__version__}, expected 1.17 or newer")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library and uses_ours(model):
        options.register_custom_ops_library(str(library_path()))
    make = functools.partial(ort.InferenceSession, providers=["CPUExecutionProvider"])
    try:
        if size(model) <= _LIMIT:
            return make(model.SerializeToString(), options)
        with tempfile.TemporaryDirectory(prefix="msda-") as folder:
            save(model, pathlib.Path(folder) / "model.onnx", check=False)
            return make(str(pathlib.Path(folder) / "model.onnx"), options)
    except Exception as error:  # ONNX Runtime's exceptions share no class with a name.
        raise OnnxError(f"ONNX Runtime does not load the model: {_short(error)}") from None


class RunError(OnnxError):
    """A run that failed: other sizes may help."""


def run(runner, names: Iterable[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime as ort

    options, sizes = ort.RunOptions(), {name: list(array.shape) for name, array in feeds.items()}
    options.log_severity_level = 4
    clock = threading.Timer(_MOST_SECONDS, setattr, (options, "terminate", True))
    clock.start()
    try:
        return runner.run(None if names is None else list(names), dict(feeds), options)
    except Exception as error:  # As above.
        if options.terminate:
            problem = f"got no end of its run within {_MOST_SECONDS} seconds"
            raise RunError(f"the model, with inputs {sizes}: {problem}") from None
        raise RunError(
            f"ONNX Runtime does not run the model with inputs {sizes}: {_short(error)}"
        ) from None
    finally:
        clock.cancel()


def uses_ours(model: onnx.ModelProto) -> bool:
    return any(map(is_ours, all_nodes(model.graph)))


def model_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    given = {tensor.name for tensor in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in given]


def symbols(model: onnx.ModelProto) -> dict[str, str]:
    """The dynamic sizes of the inputs: 'batch', 'height', 'width' or 'other' by their place."""
    found: dict[str, str] = {}
    for i in model_inputs(model):
        dims = i.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if dim.WhichOneof("value") != "dim_value":
                image = len(dims) >= 3 and axis >= len(dims) - 2
                kind = "batch" if axis == 0 else "other"
                kind = ("height", "width")[axis - len(dims) + 2] if image and axis else kind
                found.setdefault(dim.dim_param or f"{i.name}_{axis}", kind)
    return found


# Sizes of the first run. Height and width differ, so that an exchange of both is seen.
SIZES = {"batch": 2, "height": 64, "width": 96, "other": 6}
# Dynamic sizes by name: for the first run, or for both.
Sizes = Mapping[str, "int | tuple[int, int]"]
# Per input: 2 GB of float64 while random numbers are made.
_MOST_NUMBERS = 2**28


def grown(size: int, kind: str) -> int:
    """The size of a second run: larger, and divisible by the same power of two up to 32.

    All sizes grow, so that their products do; a width grows by twice as much as a height.
    """
    if kind == "batch":
        return size + 1
    part = math.gcd(size, 32)
    step = part * max(1, -(-size // (8 * part)))
    return size + (2 * step if kind == "width" else step)


def run_sizes(model: onnx.ModelProto, sizes: Sizes, run_number: int) -> dict[str, int]:
    """All dynamic sizes of the first or the second run. Some may be given for one run or for both.

    In the second run every size is larger.
    """
    kinds = symbols(model)
    unknown = set(sizes) - set(kinds)
    if unknown:
        raise OnnxError(f"--size: got {sorted(unknown)}, expected names of {sorted(kinds)}")
    found = {}
    for name, kind in kinds.items():
        given = sizes.get(name, SIZES[kind])
        if isinstance(given, int):
            given = (given, grown(given, kind))
        found[name] = given[run_number]
    return found


def fixed_batches(model: onnx.ModelProto, inputs: Sequence, shapes: Sequence) -> list[str]:
    """What is wrong with outputs whose first size was the batch, and stays in the second run.

    Inputs and shapes of the outputs are those of the first and the second run.
    """
    dims = {i.name: i.type.tensor_type.shape.dim for i in model_inputs(model)}
    batches = {
        tuple(given[name].shape[0] for given in inputs)
        for name, found in dims.items()
        if found and found[0].WhichOneof("value") != "dim_value"
    }
    return [
        f"output {output.name!r}: got {first[0]} rows for a batch of {after}, expected {after}\n"
        "hint: the model's code makes the batch a number; if this output has no batch, use "
        "another batch size"
        for output, first, second in zip(model.graph.output, *shapes)
        for before, after in batches
        if first[:1] == second[:1] == (before,) != (after,)
    ]


def feeds(model: onnx.ModelProto, sizes: Sizes, run_number: int = 0) -> dict[str, np.ndarray]:
    """Random inputs. Masks are ones; other integers are small."""
    rng = np.random.default_rng(run_number)
    chosen, made = run_sizes(model, sizes, run_number), {}
    for i in model_inputs(model):
        if not i.type.HasField("tensor_type"):
            raise OnnxError(f"input {i.name!r}: got a type that is no tensor")
        shape = [
            dim.dim_value
            if dim.WhichOneof("value") == "dim_value"
            else chosen[dim.dim_param or f"{i.name}_{axis}"]
            for axis, dim in enumerate(i.type.tensor_type.shape.dim)
        ]
        if min(shape, default=0) < 0 or math.prod(shape) > _MOST_NUMBERS:
            raise OnnxError(
                f"input {i.name!r}: got shape {shape}, expected sizes of at least 0 and at most "
                f"{_MOST_NUMBERS} numbers"
            )
        dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        if "mask" in i.name or np.issubdtype(dtype, np.bool_):
            made[i.name] = np.ones(shape, dtype)
        elif np.issubdtype(dtype, np.integer):
            made[i.name] = rng.integers(1, 9, shape).astype(dtype)
        else:
            made[i.name] = rng.standard_normal(shape).astype(dtype)
    return made


def both_feeds(model: onnx.ModelProto, sizes: Sizes) -> list[dict[str, np.ndarray]]:
    """Random inputs of a run, and of a second one where the model has dynamic sizes."""
    return [feeds(model, sizes, number) for number in range(2 if symbols(model) else 1)]


@dataclasses.dataclass
class Observed:
    """Shapes and integers of one run, and the types of all tensors."""

    types: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    integers: dict[str, np.ndarray]


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model with other outputs."""
    copy = copy_of(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy


class Observer:
    """Runs a model and keeps what the proofs need."""

    def __init__(self, model: onnx.ModelProto) -> None:
        names = [name for node in model.graph.node for name in node.output if name]
        runner = session(with_outputs(model, names), optimize=False, library=False)
        self.types = {output.name: output.type for output in runner.get_outputs()}
        self.types.update({i.name: i.type for i in runner.get_inputs()})
        del runner
        self.known = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        self.tensors = [name for name in names if self.types[name].startswith("tensor(")]
        integers = [name for name in self.tensors if is_integer(self.types[name])]
        probe = with_outputs(model, [*integers, *(f"{name}//msda" for name in self.tensors)])
        for name in self.tensors:
            probe.graph.node.append(helper.make_node("Shape", [name], [f"{name}//msda"]))
        self.runner = session(probe, optimize=False, library=False)
        for tensor in model.graph.initializer:
            kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
            self.types[tensor.name] = f"tensor({kind})"

    def run(self, given: Mapping[str, np.ndarray]) -> Observed:
        got = dict(zip((o.name for o in self.runner.get_outputs()), run(self.runner, None, given)))
        shapes = {name: tuple(got.pop(f"{name}//msda").tolist()) for name in self.tensors}
        shapes.update(self.known)
        shapes.update({name: array.shape for name, array in given.items()})
        got.update({n: a for n, a in given.items() if is_integer(self.types.get(n, ""))})
        return Observed(self.types, shapes, got)


def is_integer(kind: str) -> bool:
    return "int" in kind or "bool" in kind


def element_type(kind: str) -> int:
    """ONNX's number of a type that ONNX Runtime names, such as 'tensor(float)'."""
    return getattr(onnx.TensorProto, kind[len("tensor(") : -1].upper())


class Graph:
    """Who makes and who uses a tensor of the main graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = model.graph
        self.nodes = list(model.graph.node)
        self.maker = {name: node for node in self.nodes for name in node.output if name}
        self.place = {name: at for at, node in enumerate(self.nodes) for name in node.output}
        self.inputs = [inputs_of(node) for node in self.nodes]
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        # Tensors that depend on the numbers of the inputs, not only on their sizes.
        self.data = {i.name for i in model_inputs(model)}
        for node, inputs in zip(self.nodes, self.inputs):
            if node.op_type != "Shape" and not self.data.isdisjoint(inputs):
                self.data.update(node.output)

    def constant(self, name: str) -> np.ndarray | None:
        """The numbers of an initializer or of a Constant node."""
        if name in self.initializers:
            return onnx.numpy_helper.to_array(self.initializers[name])
        node = self.maker.get(name)
        if node is None or node.op_type != "Constant" or not node.attribute:
            return None
        given = helper.get_attribute_value(node.attribute[0])
        is_tensor = isinstance(given, onnx.TensorProto)
        return onnx.numpy_helper.to_array(given) if is_tensor else np.asarray(given)

    def is_constant(self, name: str) -> bool:
        node = self.maker.get(name)
        return name in self.initializers or (node is not None and node.op_type == "Constant")

    def slice(
        self, output: str, stop: Callable[[str], bool]
    ) -> tuple[list[onnx.NodeProto], set[str]]:
        """The nodes that make a tensor, back to tensors where `stop` says so, and those tensors."""
        seen, ends, work, places = set(), set(), [output], set()
        while work:
            name = work.pop()
            if name in seen or not name:
                continue
            seen.add(name)
            if name not in self.maker or stop(name):
                ends.add(name)
                continue
            places.add(self.place[name])
            work += self.inputs[self.place[name]]
        return [self.nodes[at] for at in sorted(places)], ends


def inputs_of(node: onnx.NodeProto) -> list[str]:
    """The tensors that a node reads, those of its branches and loops included."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            made = {t.name for t in (*graph.initializer, *graph.input)}
            for inner in graph.node:
                found += [name for name in inputs_of(inner) if name not in made]
                made.update(inner.output)
            found += [o.name for o in graph.output if o.name not in made]
    return found


class Nodes:
    """New nodes of a model: a call adds one, and gives the name of what it makes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.made, self.constants = model, [], {}
        taken = {name for node in model.graph.node for name in node.output}
        taken.update(tensor.name for tensor in (*model.graph.initializer, *model.graph.input))
        self.names = (n for n in (f"msda_{i}" for i in itertools.count()) if n not in taken)

    def __call__(self, op: str, *inputs: Any, **options: Any) -> str:
        """Numbers among the inputs become initializers."""
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.made.append(helper.make_node(op, names, [next(self.names)], **options))
        return self.made[-1].output[0]

    def constant(self, numbers: Any) -> str:
        """The name of an initializer. Integers are int64; the same numbers are written once."""
        array = np.asarray(numbers)
        array = array.astype(np.int64) if array.dtype.kind == "i" else array
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = next(self.names)
            tensor = onnx.numpy_helper.from_array(array, self.constants[key])
            self.model.graph.initializer.append(tensor)
        return self.constants[key]

    def replace(self, output: str) -> None:
        """Puts the new nodes in place of the node that makes `output`. The last makes it then."""
        self.made[-1].output[0] = output
        kept = []
        for node in self.model.graph.node:
            if output in node.output:
                kept += self.made
                if len(node.output) == 1:
                    continue
                node.output[list(node.output).index(output)] = f"{output}/unused"
            kept.append(node)
        del self.model.graph.node[:]
        self.model.graph.node.extend(kept)
        self.made = []


def prune(model: onnx.ModelProto) -> None:
    """Removes nodes, initializers and shapes that nothing uses."""
    used = {o.name for o in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if any(name in used for name in node.output):
            used.update(inputs_of(node))
            kept.append(node)
    kept.reverse()
    tensors = [t for t in model.graph.initializer if t.name in used]
    infos = [v for v in model.graph.value_info if v.name in used]
    for field, items in (("node", kept), ("initializer", tensors), ("value_info", infos)):
        del getattr(model.graph, field)[:]
        getattr(model.graph, field).extend(items)
