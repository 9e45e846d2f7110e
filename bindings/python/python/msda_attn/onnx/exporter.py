"""`export`: torch models as ONNX files with our operators."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript import opset18 as op
from onnxscript.values import Opset
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._options import decode
from .._torch import grid
from . import graph as files
from . import match, tensorrt
from .ops import (
    DOMAIN,
    FUSED,
    INPUTS,
    PLAIN,
    OnnxError,
    changed,
    error,
    register_schemas,
)
from .verifier import limit_of

register_schemas()
_ours = Opset(DOMAIN, 1)
# The last arguments of torch's operators.
_NUMBERS = ("options", "points")


def _tables(levels: Sequence) -> tuple:
    """Level sizes and first positions of a flat list of numbers; some may be tensors."""
    if all(isinstance(number, int) for number in levels):
        flat = op.Constant(value_ints=list(levels))
    else:
        one = op.Constant(value_ints=[1])
        parts = [
            op.Constant(value_ints=[n]) if isinstance(n, int) else op.Reshape(n, one)
            for n in levels
        ]
        flat = op.Concat(*parts, axis=0)
    table = op.Reshape(flat, op.Constant(value_ints=[-1, 3]))
    shapes = op.Gather(table, op.Constant(value_ints=[0, 1]), axis=1)
    return shapes, op.Gather(table, op.Constant(value_int=2), axis=1)


def _translation(name: str, listed: bool) -> Callable:
    """The translation of an operator of torch, which has tables or one flat list of levels."""
    names = [*(("value", "levels") if listed else INPUTS[name][:3]), *INPUTS[name][3:]]
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    numbers = [inspect.Parameter(n, either, default=0, annotation=int) for n in _NUMBERS]
    signature = inspect.Signature([*(inspect.Parameter(n, either) for n in names), *numbers])

    def translate(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        value, *rest, options, points = given.arguments.values()
        if listed:
            levels, rest = len(rest[0]) // 3, [*_tables(rest[0]), *rest[1:]]
        else:
            levels = rest[0].shape[0]
        named, counts = decode(options, points, levels)
        found = {
            "sampling": named["mode"],
            "padding": named["padding_mode"],
            "align_corners": int(named["align_corners"]),
            "points": counts,
        }
        return getattr(_ours, name)(value, *rest, **changed(found))

    # Torch asks which arguments are tensors.
    translate.__signature__ = signature
    translate.__annotations__ = dict.fromkeys(_NUMBERS, int)
    return translate


def _is_all_true(self):
    # RT-DETRv2 has it, and torch has no translation.
    return op.Equal(
        op.ReduceMin(op.Cast(self, to=onnx.TensorProto.INT64), keepdims=0), op.Constant(value_int=1)
    )


def _cumulative(best: str, other: str):
    """`torch.cummax` or `cummin` of the last dimension. Grounding DINO has both."""

    def translate(self, dim: int):
        if dim not in (-1, len(self.shape) - 1):
            raise OnnxError(f"cum{best.lower()}: got dimension {dim}, expected the last one")
        size = op.Squeeze(op.Shape(self, start=-1))
        places = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
        before = op.LessOrEqual(places, op.Unsqueeze(places, op.Constant(value_ints=[1])))
        # A row per place, with the numbers up to it.
        rows = op.Unsqueeze(self, op.Constant(value_ints=[-2]))
        known = op.Where(before, rows, getattr(op, f"Reduce{other}")(self, keepdims=0))
        values = getattr(op, f"Reduce{best}")(known, op.Constant(value_ints=[-1]), keepdims=0)
        find = getattr(op, f"Arg{best}")
        return values, find(known, axis=-1, keepdims=0, select_last_index=1)

    return translate


def translations() -> dict:
    """For `custom_translation_table` of torch.onnx.export: the operators of `torch.ops.msda`."""
    ops = torch.ops.msda
    return {
        ops.ms_deform_attn.default: _translation(PLAIN, False),
        ops.ms_deform_attn_list.default: _translation(PLAIN, True),
        ops.ms_deform_attn_fused.default: _translation(FUSED, False),
        ops.ms_deform_attn_fused_list.default: _translation(FUSED, True),
        torch.ops.aten._is_all_true.default: _is_all_true,
        torch.ops.aten.cummax.default: _cumulative("Max", "Min"),
        torch.ops.aten.cummin.default: _cumulative("Min", "Max"),
    }


@contextlib.contextmanager
def _operators() -> Iterator[None]:
    before, grid.operator_wanted = grid.operator_wanted, True
    try:
        yield
    finally:
        grid.operator_wanted = before


def export(
    model: torch.nn.Module,
    args: tuple = (),
    path: str | os.PathLike | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int = 18,
    target: str = "onnx",
    **options: Any,
) -> onnx.ModelProto:
    """Exports a model with our operators in place of GridSample.

    The arguments are those of `torch.onnx.export(dynamo=True)`. Softmax and locations become part
    of the operator where that is proven to compute the same. The file has our nodes, and local
    functions that compute them where our library is missing.

    ONNX Runtime's results are compared with torch's for the arguments and, if sizes are dynamic,
    for a second set of larger sizes. Where torch selects (top-k, sort), ONNX Runtime must find the
    same numbers, and then uses torch's choice: numbers that nearly tie have no order.

    Args:
        target: 'onnx', or 'tensorrt' for NVIDIA's plugin.

    Raises:
        OnnxError: a size in `dynamic_shapes` is below 2 in `args` or became a constant, or results
            differ.
    """
    if opset_version < 18:
        raise OnnxError(f"opset_version: got {opset_version}, expected 18 or newer")
    if target not in ("onnx", "tensorrt"):
        raise OnnxError(f"target: got {target!r}, expected 'onnx' or 'tensorrt'")
    call = inspect.signature(model.forward).bind(*args, **kwargs or {})
    leaves = list(_leaves(call.arguments, dynamic_shapes))
    _check_sizes(leaves, input_names)
    with _operators(), torch.no_grad():
        program = torch.onnx.export(
            model,
            args,
            kwargs=kwargs,
            dynamo=True,
            verbose=False,
            optimize=False,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=dynamic_shapes,
            opset_version=opset_version,
            custom_translation_table=translations() | options.pop("custom_translation_table", {}),
            **options,
        )
    made = _optimized(program)
    sizes = _check_dynamic(made, leaves)
    if not files.uses_ours(made):
        raise OnnxError(
            "the model: got no multi-scale deformable attention of msda in it\n"
            "hint: call msda_attn.patch_transformers() before, or use msda_attn.MSDeformAttn"
        )
    for at, node in enumerate(made.graph.node):
        node.name = node.name or f"node_{at}"
    if opset_version <= 20:
        # Torch writes a newer version, which ONNX Runtime 1.17 does not read.
        made.ir_version = 9
    files.add_functions(made, any(t.dtype is torch.float64 for t, _ in leaves))
    tensors = (*[tensor for tensor, _ in leaves], *model.parameters())
    if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
        _warn("ONNX Runtime's CPU provider does not run bfloat16: nothing was fused or compared")
    else:
        runs = _runs(model, made, call, leaves, sizes)
        match.fuse(made, [run.inputs for run in runs], demand=True)
        _compare(made, runs)
    if target == "tensorrt":
        tensorrt.convert(made)
        _warn(tensorrt.NEVER_RUN)
    if path is not None:
        files.save(made, path)
    return made


def _optimized(program: torch.onnx.ONNXProgram) -> onnx.ModelProto:
    """The model after onnxscript's optimizer; before it where the optimizer breaks the graph."""
    plain = program.model_proto
    program.optimize()
    best = program.model_proto
    made = {tensor.name for tensor in (*best.graph.initializer, *best.graph.input)}
    for node in best.graph.node:
        if not made.issuperset(files.inputs_of(node)):
            files.prune(plain)
            return plain
        made.update(node.output)
    return best


def _leaves(given: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """The tensors among the arguments in their order, and which of their sizes are dynamic."""
    if isinstance(given, torch.Tensor):
        yield given, shapes
    elif isinstance(given, dict):
        named = shapes if isinstance(shapes, dict) else dict(zip(given, shapes or ()))
        for key, item in given.items():
            yield from _leaves(item, named.get(key))
    elif isinstance(given, (list, tuple)):
        for at, item in enumerate(given):
            yield from _leaves(item, shapes[at] if isinstance(shapes, (list, tuple)) else None)


def _asked(wanted: Any) -> Iterator[tuple[int, Any]]:
    """The dimensions of a tensor that shall be dynamic, and their names."""
    for axis, asked in wanted.items() if isinstance(wanted, dict) else enumerate(wanted or ()):
        static = asked is None or asked is getattr(torch.export.Dim, "STATIC", None)
        if not static and (not isinstance(asked, int) or isinstance(asked, torch.export.Dim)):
            yield axis, asked


def _check_sizes(leaves: list, names: Sequence[str] | None) -> None:
    """Refuses examples of which torch makes a constant."""
    for at, (tensor, wanted) in enumerate(leaves):
        name = repr(names[at]) if names and at < len(names) else str(at)
        for axis, _ in _asked(wanted):
            if tensor.shape[axis] < 2:
                raise OnnxError(
                    f"input {name}, dimension {axis}: got size {tensor.shape[axis]}, expected 2 or "
                    "more for a dynamic size\nhint: torch makes sizes below 2 constants; export "
                    "with a batch of 2, and the file takes a batch of 1 too"
                )


def _check_dynamic(made: onnx.ModelProto, leaves: list) -> dict[str, int]:
    """Refuses sizes that became constants. The result are the sizes of the example."""
    sizes: dict[str, int] = {}
    for info, (tensor, wanted) in zip(files.model_inputs(made), leaves):
        dims = info.type.tensor_type.shape.dim
        for axis, asked in _asked(wanted):
            if dims[axis].HasField("dim_value"):
                name = getattr(asked, "__name__", asked)
                raise OnnxError(
                    f"input {info.name!r}, dimension {axis}: got the constant "
                    f"{dims[axis].dim_value}, expected the dynamic size {name!s}\n"
                    "hint: the model's Python code makes it a number, for example with len(tensor) "
                    "or int(tensor.shape[0]); torch.export.Dim.AUTO may keep it dynamic"
                )
        for axis, dim in enumerate(dims):
            if dim.HasField("dim_param"):
                sizes.setdefault(dim.dim_param, tensor.shape[axis])
    return sizes


class _Choices(TorchDispatchMode):
    """Records what torch selects: the numbers and their places."""

    _OPERATORS = (
        torch.ops.aten.topk.default,
        torch.ops.aten.sort.default,
        torch.ops.aten.sort.stable,
    )

    def __init__(self) -> None:
        super().__init__()
        self.made: list[list[np.ndarray]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func in self._OPERATORS:
            self.made.append([tensor.cpu().numpy() for tensor in found])
        return found


@dataclasses.dataclass
class _Run:
    """Inputs by their names in the file, torch's results, and what its top-k and sort selected."""

    inputs: dict[str, np.ndarray]
    results: list[np.ndarray]
    choices: list[list[np.ndarray]]


def _runs(
    model: torch.nn.Module,
    made: onnx.ModelProto,
    call: inspect.BoundArguments,
    leaves: list,
    sizes: dict[str, int],
) -> list[_Run]:
    """Torch with the example, and with other sizes if there are dynamic ones."""
    names = [i.name for i in files.model_inputs(made)]

    def run(tensors: list[torch.Tensor]) -> _Run:
        swap = {id(old): new for (old, _), new in zip(leaves, tensors)}
        with torch.no_grad(), _Choices() as choices:
            given = tree_map(lambda item: swap.get(id(item), item), call.arguments)
            given = inspect.BoundArguments(call.signature, given)
            results = tree_leaves(model(*given.args, **given.kwargs))
        inputs = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors)}
        results = [t.cpu().numpy() for t in results if isinstance(t, torch.Tensor)]
        return _Run(inputs, results, choices.made)

    example = run([tensor for tensor, _ in leaves])
    if not sizes:
        return [example]
    kinds = files.symbols(made)
    for grow in (files.grown, lambda size, kind: size + 1 if kind == "batch" else 2 * size):
        wanted = {name: grow(size, kinds[name]) for name, size in sizes.items()}
        try:
            return [example, run(_resized(made, leaves, wanted))]
        except Exception as reason:  # Whatever the model's code raises.
            problem = f"torch does not run it with the sizes {wanted}: {reason}"
    raise OnnxError(f"the model: got a constant where a dynamic size was asked for; {problem}")


def _resized(made: onnx.ModelProto, leaves: list, sizes: dict[str, int]) -> list[torch.Tensor]:
    """The example's tensors with other sizes: their numbers are repeated or left out."""
    resized = []
    for info, (tensor, _) in zip(files.model_inputs(made), leaves):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_param:
                places = torch.arange(sizes[dim.dim_param], device=tensor.device)
                tensor = tensor.index_select(axis, places % tensor.shape[axis])
        resized.append(tensor)
    return resized


def _with_choices(made: onnx.ModelProto, runs: list[_Run]) -> tuple[onnx.ModelProto, list]:
    """The model with inputs for what torch selected, and its own TopK nodes beside."""
    probe, found = files.copy_of(made), []
    nodes = [node for node in probe.graph.node if node.op_type == "TopK" and not node.domain]
    if any(len(run.choices) != len(nodes) for run in runs):
        return probe, []
    for at, node in enumerate(nodes):
        names = [name or f"msda_unused_{at}" for name in node.output]
        for name, array in zip(names, runs[0].choices[at]):
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            info = onnx.helper.make_tensor_value_info(name, kind, [None] * array.ndim)
            probe.graph.input.append(info)
        node.output[:] = [f"msda_best_{at}", f"msda_places_{at}"]
        found.append((node, names))
    return probe, found


def _compare(made: onnx.ModelProto, runs: list[_Run]) -> None:
    """Refuses a file whose results differ from torch's."""
    names, (probe, choices) = [o.name for o in made.graph.output], _with_choices(made, runs)
    wanted = [*names, *(name for node, _ in choices for name in (node.input[0], node.output[0]))]
    given = {i.name for i in probe.graph.input}
    wanted = [name for name in dict.fromkeys(wanted) if name not in given]
    runner, shapes, slack = files.session(files.with_outputs(probe, wanted)), [], _SLACK
    for run in runs:
        feeds = dict(run.inputs)
        for (_, inputs), arrays in zip(choices, run.choices):
            feeds.update(zip(inputs, arrays))
        known = {**feeds, **dict(zip(wanted, files.run(runner, wanted, feeds)))}
        shapes.append([known[name].shape for name in names])
        sizes = {name: list(array.shape) for name, array in run.inputs.items()}
        hint, ratios = _SIZE_HINT if run is not runs[0] else _HINT, [0.0]
        for (node, _), (numbers, places) in zip(choices, run.choices):
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
            best, scores = known[node.output[0]], known[node.input[0]]
            fits = places.max(initial=-1) < scores.shape[axis]
            at_places = np.take_along_axis(scores, places, axis) if fits else scores
            for found in (best, at_places):
                pair = np.sort(found, axis), np.sort(numbers, axis)
                where = f"the choice of {node.name!r}, inputs {sizes}"
                ratios.append(_ratio(where, *pair, hint, slack))
        if len(run.results) != len(names):
            count = len(run.results)
            raise OnnxError(f"the file: got {len(names)} outputs, expected {count} as in torch")
        for name, right in zip(names, run.results):
            where = f"output {name!r}, inputs {sizes}"
            ratios.append(_ratio(where, known[name], right, hint, slack))
        if run is runs[0]:
            slack = max(1, 2 * max(ratios))
            if max(ratios) > 1:
                _warn(f"results differ from torch's by {max(ratios):.1f} times the usual limit")
    if len(runs) > 1:
        for problem in files.fixed_batches(made, [run.inputs for run in runs], shapes):
            raise OnnxError(problem)


def _ratio(where: str, found: np.ndarray, right: np.ndarray, hint: str, slack: float) -> float:
    """The error in units of the limit. More than `slack` of them are refused."""
    if found.shape != right.shape:
        shapes = f"got shape {list(found.shape)}, expected {list(right.shape)} as in torch"
        raise OnnxError(f"{where}: {shapes}\n{hint}")
    worst, limit = error(found, right), limit_of(found)
    if not worst <= slack * limit:
        most = f"expected at most {slack * limit:.0e}"
        raise OnnxError(f"{where}: relative error {worst:.1e} to torch, {most}\n{hint}")
    return worst / limit


# Runtimes round in another way, and a model may amplify that: the arguments of the call show by how
# much. Other sizes may differ twice as much.
_SLACK = 10
_SIZE_HINT = "hint: the model's code makes a size, or what it computes from sizes, a constant"
_HINT = "hint: with these arguments ONNX Runtime computes an operator of the model in another way"


def _warn(text: str) -> None:
    warnings.warn(f"msda_attn.onnx.export: {text}", stacklevel=3)
