"""`msda.explain`: which kernels a call gets, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _native
from ._arguments import FUSED, PLAIN, dense_strides, is_dense, level_sizes, native_call, operands
from ._options import Padding, Sampling, encode


class Pass(NamedTuple):
    """The kernel of one pass."""

    kernel: str
    # The reason of this choice, a sentence.
    why: str
    # What is launched, in order: the key of each kernel, and its purpose.
    stages: list[tuple[str, str]]
    # Bytes of device memory that a call allocates beside its results.
    workspace: int
    # Kernels that do not take the call, each with its reason.
    refused: list[tuple[str, str]]


class Explanation(NamedTuple):
    """How a call runs. `str` of it is for people."""

    # The sizes, options and types in one word, as in records and logs.
    problem: str
    # The GPU, or the CPU and its threads.
    target: str
    forward: Pass
    backward: Pass

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.target}"]
        for name, found in (("forward", self.forward), ("backward", self.backward)):
            lines += ["", f"{name}: {found.kernel}", f"  {found.why}"]
            lines += [f"  launches {key}: {why}" for key, why in found.stages]
            lines += [f"  workspace: {found.workspace:,} bytes"] * bool(found.workspace)
            lines += [f"  refused, because {why}: {kernel}" for kernel, why in found.refused]
        return "\n".join(lines)


class _Described(NamedTuple):
    """An array without its elements, for the rules that make the arrays of a call."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def astype(self, dtype: str) -> _Described:
        return _Described(0, dtype, self.shape, dense_strides(self.shape))


def _describe(name: str, array: Any) -> _Described:
    """A tensor or an array of any kind. Inner dimensions that are not dense would be copied."""
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    shape = tuple(getattr(array, "shape", ()))
    strides, address = dense_strides(shape), 0
    if hasattr(array, "data_ptr"):
        strides, address = array.stride(), array.data_ptr()
    elif hasattr(array, "ctypes"):
        strides = tuple(stride // array.itemsize for stride in array.strides)
        address = array.ctypes.data
    if min(strides, default=0) < 0 or not is_dense(shape[3:], strides[3:]):
        strides, address = dense_strides(shape), 0
    return _Described(address, dtype, shape, tuple(strides))


def _broadcast(array: _Described, shape: tuple[int, ...]) -> _Described:
    strides = (n if a == b else 0 for n, a, b in zip(array.strides, array.shape, shape))
    return array._replace(shape=shape, strides=tuple(strides))


def _levels(shapes: Any, starts: Any) -> tuple:
    """Level sizes as the compiled part takes them. Those on a GPU stay there."""
    is_cuda = getattr(shapes, "is_cuda", False) or getattr(starts, "is_cuda", False)
    if is_cuda:
        return (1, 1, len(shapes))
    numbers = [n.tolist() if hasattr(n, "tolist") else n for n in (shapes, starts)]
    return level_sizes(*numbers)


def _place(value: Any, device: object) -> str:
    """The CPU, the number of a GPU, or an architecture."""
    if device is None:
        device = value.device if getattr(value, "is_cuda", False) else "cpu"
    kind, _, number = str(device).partition(":")
    if kind == "cuda":
        return number or "0"
    if kind != "cpu" and not kind.startswith("sm_"):
        raise ValueError(
            f"device: got {device!r}, expected 'cpu', 'cuda', or an architecture such as 'sm_90'"
        )
    return kind


def explain(
    value: Any,
    spatial_shapes: Any,
    level_start_index: Any,
    *tensors: Any,
    device: str | None = None,
    sampling: Sampling = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> Explanation:
    """Says which kernels a call of the operator gets, and why. Nothing is computed.

    The arguments are those of `ms_deform_attn`, or of `ms_deform_attn_fused`, by position. The
    gradients of the backward pass are those of tensors with `requires_grad`; all, if there is none.

    Args:
        device: where the call would run: None for the device of `value`, "cpu", "cuda", or an
            architecture such as "sm_90", which need not be in this machine. Then the tensors may be
            on any device, also on "meta".

    Returns:
        An `Explanation`. `print` shows it; `forward` and `backward` have the parts.
    """
    if len(tensors) not in (len(PLAIN), len(FUSED)):
        raise TypeError(
            f"explain: got {len(tensors)} tensors behind level_start_index, expected "
            f"{' and '.join(PLAIN)}, or {', '.join(FUSED)}"
        )
    levels = _levels(spatial_shapes, level_start_index)
    count = levels[2] if len(levels) == 3 else len(levels[0])
    arrays = operands(_describe, _broadcast, count, value, tensors)
    numbers = encode(sampling, padding, align_corners, points, count)
    # In the order of the arguments: value, reference points, locations, weights.
    bits = (1, 2, 4) if len(tensors) == len(PLAIN) else (1, 8, 2, 4)
    needed = [getattr(tensor, "requires_grad", False) for tensor in (value, *tensors)]
    wanted = sum(bit for bit, needs in zip(bits, needed) if needs or not any(needed))
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    threads = torch.get_num_threads() if is_tensor else _native.cpu_threads()
    call = native_call(map(tuple, arrays.values()), levels, *numbers)
    problem, target, *passes = _native.explain(call, _place(value, device), threads, wanted)
    return Explanation(problem, target, *(Pass(*found) for found in passes))
