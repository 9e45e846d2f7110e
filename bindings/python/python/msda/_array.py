"""The operator for NumPy arrays, and for anything with DLPack, on the CPU and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _native
from ._options import encode_options, encode_points

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
    if not given.dtype.isnative or any(stride % given.itemsize for stride in given.strides):
        return np.ascontiguousarray(given, dtype=given.dtype.newbyteorder("="))
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


def _levels(shapes: object, starts: object) -> tuple[list[tuple[int, int]], list[int] | None]:
    try:
        pairs = [(int(height), int(width)) for height, width in shapes]
        first = None if starts is None else [int(start) for start in starts]
    except (TypeError, ValueError):
        raise TypeError(
            f"spatial_shapes and level_start_index: got {shapes!r} and {starts!r}, expected a list "
            "of (height, width) and a list of integers or None"
        ) from None
    if any(n < 0 for pair in pairs for n in pair) or any(n < 0 for n in first or []):
        raise ValueError(f"spatial_shapes: got {pairs} from {first}, expected numbers of at least 0")
    return pairs, first


def _promote(array: numpy.ndarray, value: numpy.ndarray) -> numpy.ndarray:
    if array.dtype == value.dtype or array.dtype.name == "float32":
        return array
    return array.astype("float32")


def _run(value, shapes, starts, reference, locations, weights, options, points):
    np = _numpy()
    if len(value.shape) != 4 or len(locations.shape) < 3:
        raise ValueError(
            f"value: got shape {list(value.shape)}, expected 4 dimensions: batch, positions, heads, "
            "channels"
        )
    batch, _, heads, channels = value.shape
    output = np.empty((batch, locations.shape[1], heads * channels), dtype=value.dtype)
    call = {
        "value": _raw(value),
        "levels": _levels(shapes, starts),
        "reference": None if reference is None else _raw(reference),
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
    sampling: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> numpy.ndarray:
    """Multi-scale deformable attention of arrays; see `msda.ms_deform_attn` with torch."""
    value = _array("value", value)
    return _run(
        value,
        spatial_shapes,
        level_start_index,
        None,
        _promote(_array("sampling_locations", sampling_locations), value),
        _promote(_array("attention_weights", attention_weights), value),
        encode_options(sampling, padding, align_corners),
        0 if points is None else encode_points(points),
    )


def ms_deform_attn_fused(
    value: Any,
    spatial_shapes: Sequence[Sequence[int]],
    level_start_index: Sequence[int] | None,
    reference_points: Any,
    sampling_offsets: Any,
    attention_logits: Any,
    *,
    sampling: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> numpy.ndarray:
    """The same with its softmax and its locations; see `msda.ms_deform_attn_fused` with torch."""
    np = _numpy()
    value = _array("value", value)
    offsets = _promote(_array("sampling_offsets", sampling_offsets), value)
    reference = _array("reference_points", reference_points)
    if reference.dtype != offsets.dtype:
        reference, offsets = reference.astype("float32"), offsets.astype("float32")
    levels = len(spatial_shapes)
    if reference.ndim == 4 and reference.shape[2] == 1 and levels != 1:
        shape = (*reference.shape[:2], levels, reference.shape[3])
        reference = np.broadcast_to(reference, shape)
    return _run(
        value,
        spatial_shapes,
        level_start_index,
        reference,
        offsets,
        _promote(_array("attention_logits", attention_logits), value),
        encode_options(sampling, padding, align_corners),
        0 if points is None else encode_points(points),
    )
