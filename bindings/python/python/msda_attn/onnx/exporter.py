"""`export`: torch models as ONNX files with our operators."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript import opset18 as op
from onnxscript.values import Opset
from torch.utils._pytree import tree_leaves, tree_map

from .._options import decode
from .._torch import grid
from . import graph as files
from . import match, tensorrt
from .ops import (
    ATTRIBUTES,
    DOMAIN,
    FUSED,
    PLAIN,
    OnnxError,
    error,
    is_ours,
    register_schemas,
)
from .verifier import limit_of

register_schemas()
_ours = Opset(DOMAIN, 1)


def _call(name: str, value, shapes, starts, rest: Sequence, options: int, points: int, levels: int):
    named, counts = decode(options, points, levels)
    given = {
        "sampling": named["mode"],
        "padding": named["padding_mode"],
        "align_corners": int(named["align_corners"]),
        "points": counts,
    }
    given = {key: found for key, found in given.items() if found != ATTRIBUTES[key]}
    return getattr(_ours, name)(value, shapes, starts, *rest, **given)


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


def _plain(
    value,
    spatial_shapes,
    level_start_index,
    sampling_locations,
    attention_weights,
    options: int = 0,
    points: int = 0,
):
    rest, levels = (sampling_locations, attention_weights), spatial_shapes.shape[0]
    return _call(PLAIN, value, spatial_shapes, level_start_index, rest, options, points, levels)


def _plain_list(
    value, levels, sampling_locations, attention_weights, options: int = 0, points: int = 0
):
    rest, tables = (sampling_locations, attention_weights), _tables(levels)
    return _call(PLAIN, value, *tables, rest, options, points, len(levels) // 3)


def _fused(
    value,
    spatial_shapes,
    level_start_index,
    reference_points,
    sampling_offsets,
    attention_logits,
    options: int = 0,
    points: int = 0,
):
    rest, levels = (reference_points, sampling_offsets, attention_logits), spatial_shapes.shape[0]
    return _call(FUSED, value, spatial_shapes, level_start_index, rest, options, points, levels)


def _fused_list(
    value,
    levels,
    reference_points,
    sampling_offsets,
    attention_logits,
    options: int = 0,
    points: int = 0,
):
    rest, tables = (reference_points, sampling_offsets, attention_logits), _tables(levels)
    return _call(FUSED, value, *tables, rest, options, points, len(levels) // 3)


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
        ops.ms_deform_attn.default: _plain,
        ops.ms_deform_attn_list.default: _plain_list,
        ops.ms_deform_attn_fused.default: _fused,
        ops.ms_deform_attn_fused_list.default: _fused_list,
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
    for a second set of sizes: a batch grows by one, height and width of images change places, other
    sizes double. A warning says what was not compared.

    Args:
        target: 'onnx', or 'tensorrt' for NVIDIA's plugin.

    Raises:
        OnnxError: a size in `dynamic_shapes` became a constant, or results differ.
    """
    if opset_version < 18:
        raise OnnxError(f"opset_version: got {opset_version}, expected 18 or newer")
    if target not in ("onnx", "tensorrt"):
        raise OnnxError(f"target: got {target!r}, expected 'onnx' or 'tensorrt'")
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
    call = inspect.signature(model.forward).bind(*args, **kwargs or {})
    leaves = list(_leaves(call.arguments, dynamic_shapes))
    made = _optimized(program)
    sizes = _check_dynamic(made, leaves)
    if not files.uses_ours(made):
        raise OnnxError(
            "the model: got no multi-scale deformable attention of msda in it\n"
            "hint: call msda_attn.patch_transformers() before, or use msda_attn.MSDeformAttn"
        )
    for at, node in enumerate(made.graph.node):
        node.name = node.name or f"node_{at}"
        # Torch writes defaults too.
        empty = [a for a in node.attribute if is_ours(node) and a.name == "points" and not a.ints]
        for attribute in empty:
            node.attribute.remove(attribute)
    if opset_version <= 20:
        # Torch writes a newer version, which ONNX Runtime 1.17 does not read.
        made.ir_version = 9
    files.add_functions(made, any(t.dtype is torch.float64 for t, _ in leaves))
    tensors = (*[tensor for tensor, _ in leaves], *model.parameters())
    if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
        _warn("ONNX Runtime's CPU provider does not run bfloat16: nothing was fused or compared")
    else:
        runs = _runs(model, made, call, leaves, sizes)
        match.fuse(made, [inputs for inputs, _ in runs], demand=True)
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


def _leaves(given: dict, shapes: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """The tensors among the arguments in their order, and which of their sizes are dynamic."""
    if not isinstance(shapes, dict):
        shapes = dict(zip(given, shapes or ()))
    yield from _walk(given, shapes)


def _walk(given: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    if isinstance(given, torch.Tensor):
        yield given, shapes
    elif isinstance(given, dict):
        for key, item in given.items():
            yield from _walk(item, shapes.get(key) if isinstance(shapes, dict) else None)
    elif isinstance(given, (list, tuple)):
        for at, item in enumerate(given):
            yield from _walk(item, shapes[at] if isinstance(shapes, (list, tuple)) else None)


def _check_dynamic(made: onnx.ModelProto, leaves: list) -> dict[str, int]:
    """Refuses sizes that became constants. The result are the sizes of the example."""
    sizes: dict[str, int] = {}
    for info, (tensor, wanted) in zip(files.model_inputs(made), leaves):
        pairs = wanted.items() if isinstance(wanted, dict) else enumerate(wanted or ())
        for axis, asked in pairs:
            dim = info.type.tensor_type.shape.dim[axis]
            if asked is None or asked is getattr(torch.export.Dim, "STATIC", None):
                continue
            if isinstance(asked, int) and not isinstance(asked, torch.export.Dim):
                continue
            if dim.HasField("dim_value"):
                name = getattr(asked, "__name__", asked)
                raise OnnxError(
                    f"input {info.name!r}, dimension {axis}: got the constant {dim.dim_value}, "
                    f"expected the dynamic size {name!s}\n"
                    "hint: the model's Python code makes it a number, for example with len(tensor) "
                    "or int(tensor.shape[0]); torch.export.Dim.AUTO may keep it dynamic"
                )
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_param"):
                sizes.setdefault(dim.dim_param, tensor.shape[axis])
    return sizes


_Run = tuple[dict[str, np.ndarray], list[np.ndarray]]


def _runs(
    model: torch.nn.Module,
    made: onnx.ModelProto,
    call: inspect.BoundArguments,
    leaves: list,
    sizes: dict[str, int],
) -> list[_Run]:
    """Inputs by their names in the file, with torch's results: the example, and one of other sizes.

    The second has other sizes wherever torch runs with them.
    """
    names = [i.name for i in files.model_inputs(made)]

    def run(tensors: list[torch.Tensor]) -> _Run:
        swap = {id(old): new for (old, _), new in zip(leaves, tensors)}
        with torch.no_grad():
            changed = tree_map(lambda item: swap.get(id(item), item), call.arguments)
            changed = inspect.BoundArguments(call.signature, changed)
            results = tree_leaves(model(*changed.args, **changed.kwargs))
        inputs = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors)}
        return inputs, [t.cpu().numpy() for t in results if isinstance(t, torch.Tensor)]

    runs = [run([tensor for tensor, _ in leaves])]
    if not sizes:
        return runs
    every = files.run_sizes(made, sizes, 1)
    kinds = files.symbols(made)
    batch = {name: n if kinds[name] == "batch" else sizes[name] for name, n in every.items()}
    problem = ""
    for wanted in (every, batch):
        if wanted == sizes:
            break
        try:
            runs.append(run(_resized(made, leaves, wanted)))
            break
        except Exception as reason:  # Whatever the model's code raises.
            problem = f"torch does not run it with the sizes {wanted}: {reason}"
    else:
        raise OnnxError(f"the model: got a constant where a dynamic size was asked for; {problem}")
    if problem:
        _warn(f"results were compared for fewer sizes: {problem}")
    return runs


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


def _compare(made: onnx.ModelProto, runs: list[_Run]) -> None:
    """Refuses a file whose results differ from torch's."""
    names, runner = [o.name for o in made.graph.output], files.session(made)
    got = [files.run(runner, names, inputs) for inputs, _ in runs]
    if len(runs) > 1:
        shapes = [[array.shape for array in results] for results in got]
        batches = files.batches(made, [inputs for inputs, _ in runs])
        for problem in files.fixed_batches(names, shapes, batches):
            raise OnnxError(problem)
    known = True
    for results, (inputs, expected) in zip(got, runs):
        sizes = {name: list(array.shape) for name, array in inputs.items()}
        if len(results) != len(expected):
            return _warn(f"torch has {len(expected)} outputs, the file {len(results)}")
        for name, found, right in zip(names, results, expected):
            where, limit = f"output {name!r}, inputs {sizes}", limit_of(found)
            if found.shape != right.shape:
                raise OnnxError(
                    f"{where}: got shape {list(found.shape)}, expected {list(right.shape)} as in "
                    f"torch\n{_HINT}"
                )
            worst = error(found, right)
            if not known or worst <= limit:
                continue
            problem = f"{where}: relative error {worst:.1e} to torch, expected at most {limit:.0e}"
            if results is not got[0]:
                raise OnnxError(f"{problem}\n{_HINT}")
            # Near ties of a top-k, or an operator that ONNX Runtime computes in another way.
            _warn(f"{problem}; as these are the arguments of the call, only shapes were compared")
            known = False


_HINT = "hint: the model's code makes a size a number"


def _warn(text: str) -> None:
    warnings.warn(f"msda_attn.onnx.export: {text}", stacklevel=3)
