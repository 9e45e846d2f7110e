"""Kernels in Python, for versions of torch without the stable C ABI (before 2.7)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _native
from .._arguments import FUSED, PLAIN, is_dense, native_call, output_shape
from .levels import read_setup

# Why these kernels are used; empty while they are not.
reason = ""

_NAMES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


def _raw(name: str, tensor: Tensor) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        got = str(tensor.dtype).removeprefix("torch.")
        raise TypeError(f"{name}: got {got}, expected float64, float32, float16 or bfloat16")
    return tensor.data_ptr(), dtype, tuple(tensor.shape), tuple(tensor.stride())


def _dense(tensor: Tensor, first: int = 3) -> Tensor:
    """The tensor with contiguous dimensions from `first` on."""
    dense = is_dense(tensor.shape[first:], tensor.stride()[first:])
    return tensor if dense else tensor.contiguous()


def _levels(shapes: Tensor, starts: Tensor, value: Tensor) -> tuple[tuple, list[Tensor]]:
    """The levels as the compiled part takes them, and tensors that must live through the call."""
    if shapes.dim() != 2 or shapes.shape[1] != 2:
        raise ValueError(
            f"spatial_shapes: got shape {list(shapes.shape)}, expected (levels, 2): height and "
            "width"
        )
    if list(starts.shape) != [shapes.shape[0]]:
        raise ValueError(
            f"level_start_index: got shape {list(starts.shape)}, expected [{shapes.shape[0]}], "
            "one per level"
        )
    for name, table in (("spatial_shapes", shapes), ("level_start_index", starts)):
        if table.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"{name}: got {table.dtype}, expected int64 or int32")
    if shapes.device.type == "cpu" and starts.device.type == "cpu":
        pairs, first = [tuple(hw) for hw in shapes.tolist()], starts.tolist()
        for name, numbers in (("spatial_shapes", sum(pairs, ())), ("level_start_index", first)):
            wrong = [n for n in numbers if n < 0]
            if wrong:
                raise ValueError(f"{name}: got {wrong[0]}, expected numbers of at least 0")
        return (pairs, first), []
    if shapes.device != value.device or starts.device != value.device:
        raise ValueError(
            "spatial_shapes and level_start_index: got tensors on different devices, expected both "
            "on the CPU, or both on the device of value"
        )
    shapes, starts = shapes.to(torch.int64).contiguous(), starts.to(torch.int64).contiguous()
    return (shapes.data_ptr(), starts.data_ptr(), shapes.shape[0]), [shapes, starts]


def _names(reference: Tensor | None) -> tuple[str, ...]:
    return PLAIN if reference is None else FUSED


def _call(value, shapes, starts, reference, locations, weights, options, points):
    """The call as a dictionary of addresses, and tensors that must live through it."""
    tensors = (value, *([] if reference is None else [reference]), locations, weights)
    given = dict(zip(("value", *_names(reference)), map(_dense, tensors)))
    for name, tensor in given.items():
        if tensor.device != value.device:
            raise ValueError(
                f"{name}: got a tensor on {tensor.device}, expected one on {value.device}, where "
                "value is"
            )
    levels, kept = _levels(shapes, starts, value)
    floats = [_raw(name, tensor) for name, tensor in given.items()]
    return native_call(floats, levels, options, points), [*given.values(), *kept]


def _device(value: Tensor, kept: list[Tensor]):
    if value.device.type != "cuda":
        return None

    def allocate(nbytes: int) -> int:
        kept.append(torch.empty(nbytes, dtype=torch.uint8, device=value.device))
        return kept[-1].data_ptr()

    index = value.device.index
    return index, torch.cuda.current_stream(index).cuda_stream, allocate


def _forward(value, shapes, starts, reference, locations, weights, options, points):
    call, kept = _call(value, shapes, starts, reference, locations, weights, options, points)
    output = value.new_empty(output_shape(value.shape, _names(reference)[-2], locations.shape))
    device = _device(value, kept)
    _native.forward(call, _raw("output", output), device, torch.get_num_threads())
    return output


def _backward(grad, value, shapes, starts, reference, locations, weights, options, points, wanted):
    bits = 1 << (3 if reference is None else 4)
    if not 0 <= wanted < bits:
        raise ValueError(f"wanted: got {wanted}, expected a sum of bits below {bits}")
    call, kept = _call(value, shapes, starts, reference, locations, weights, options, points)
    grad = _dense(grad, 2)
    # In the order of the bits of `wanted`.
    inputs = [value, locations, weights, reference]
    results = [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if tensor is not None and wanted >> i & 1
        else value.new_empty(0)
        for i, tensor in enumerate(inputs)
    ]
    targets = [
        _raw("gradient", result) if tensor is not None and wanted >> i & 1 else None
        for i, (tensor, result) in enumerate(zip(inputs, results))
    ]
    device = _device(value, kept)
    _native.backward(call, _raw("grad_output", grad), targets, device, torch.get_num_threads())
    value, locations, weights, reference = results
    if inputs[3] is None:
        return value, locations, weights
    return value, reference, locations, weights


def _arguments(rest: tuple, count: int, in_tables: bool) -> tuple[tuple, list[int]]:
    """Levels and tensors behind value as `_forward` takes them; options, points and `wanted`."""
    if in_tables:
        (shapes, starts), tensors, numbers = rest[:2], rest[2 : 2 + count], [*rest[2 + count :]]
    else:
        tensors, (setup, *wanted) = rest[:count], rest[count:]
        shapes, starts, *numbers = read_setup(setup)
        numbers += wanted
    # Torch leaves out arguments that have their default.
    numbers += (0, 0, 2 ** (count + 1) - 1)[len(numbers) :]
    reference = tensors[0] if count == 3 else None
    return (shapes, starts, reference, *tensors[-2:]), numbers


def register(library: torch.library.Library) -> None:
    """Registers these kernels for the CPU and for CUDA."""
    for suffix, count in (("", 2), ("_fused", 3)):
        public = f"ms_deform_attn{suffix}"
        for forward, backward, in_tables in (
            (public, f"{public}_backward", True),
            (f"_forward{suffix}_tables", f"_backward{suffix}_tables", True),
            (f"_forward{suffix}", f"_backward{suffix}", False),
        ):

            def run(value, *rest, how=(count, in_tables)):
                tensors, (options, points, _) = _arguments(rest, *how)
                return _forward(value, *tensors, options, points)

            def run_backward(grad, value, *rest, how=(count, in_tables)):
                tensors, numbers = _arguments(rest, *how)
                return _backward(grad, value, *tensors, *numbers)

            for key in ("CPU", "CUDA"):
                library.impl(forward, run, key)
                library.impl(backward, run_backward, key)
