"""The operator for NumPy arrays, and for anything with DLPack, on the CPU and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _native
from ._arguments import fused_tensors, level_sizes, output_shape, plain_tensors
from ._options import Padding, Sampling, encode

if TYPE_CHECKING:
    import numpy


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise ImportError(
            "msda needs NumPy for arrays that are not torch tensors\nhint: pip install numpy"
        ) from None
    return numpy


def _array(name: str, given: object) -> numpy.ndarray:
    """The array without a copy if possible. Its inner dimensions are contiguous."""
    np = _numpy()
    if not isinstance(given, np.ndarray):
        if not hasattr(given, "__dlpack__"):
            raise TypeError(
                f"{name}: got {type(given).__name__}, expected a torch tensor, a NumPy array or an "
                "object with DLPack"
            )
        try:
            given = np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"{name}: NumPy cannot take it through DLPack: {error}\n"
                "hint: move it to the CPU; without torch, msda computes there"
            ) from None
    if given.dtype.name not in ("float64", "float32", "float16"):
        raise TypeError(f"{name}: got {given.dtype}, expected float64, float32 or float16")
    usable = given.dtype.isnative and given.flags.aligned
    if not usable or any(stride % given.itemsize for stride in given.strides):
        return np.array(given, dtype=given.dtype.newbyteorder("="), order="C")
    expected = given.itemsize
    for size, stride in zip(reversed(given.shape[3:]), reversed(given.strides[3:])):
        if size != 1 and stride != expected:
            return np.ascontiguousarray(given)
        expected *= size
    if any(stride < 0 for stride in given.strides):
        return np.ascontiguousarray(given)
    return given


def _raw(array: numpy.ndarray) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return array.ctypes.data, array.dtype.name, array.shape, strides


def _run(tensors: dict[str, Any], levels: tuple, options: int, points: int) -> numpy.ndarray:
    value, *reference, locations, weights = tensors.values()
    shape = output_shape(value.shape, list(tensors)[-2], locations.shape)
    output = _numpy().empty(shape, dtype=value.dtype)
    call = {
        "value": _raw(value),
        "levels": levels,
        "reference": _raw(reference[0]) if reference else None,
        "locations": _raw(locations),
        "weights": _raw(weights),
        "options": options,
        "points": points,
    }
    _native.forward(call, _raw(output))
    return output


def ms_deform_attn(
    value: Any,
    spatial_shapes: Sequence[Sequence[int]],
    level_start_index: Sequence[int] | None,
    sampling_locations: Any,
    attention_weights: Any,
    *,
    sampling: Sampling = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> numpy.ndarray:
    """Multi-scale deformable attention of arrays; see `msda.ms_deform_attn` with torch."""
    tensors = plain_tensors(_array, value, sampling_locations, attention_weights)
    levels = level_sizes(spatial_shapes, level_start_index)
    numbers = encode(sampling, padding, align_corners, points, len(levels[0]))
    return _run(tensors, levels, *numbers)


def ms_deform_attn_fused(
    value: Any,
    spatial_shapes: Sequence[Sequence[int]],
    level_start_index: Sequence[int] | None,
    reference_points: Any,
    sampling_offsets: Any,
    attention_logits: Any,
    *,
    sampling: Sampling = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> numpy.ndarray:
    """The same with its softmax and its locations; see `msda.ms_deform_attn_fused` with torch."""
    levels = level_sizes(spatial_shapes, level_start_index)
    tensors = fused_tensors(
        _array,
        _numpy().broadcast_to,
        len(levels[0]),
        value,
        reference_points,
        sampling_offsets,
        attention_logits,
    )
    numbers = encode(sampling, padding, align_corners, points, len(levels[0]))
    return _run(tensors, levels, *numbers)
