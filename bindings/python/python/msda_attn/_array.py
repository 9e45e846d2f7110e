"""The operator for NumPy arrays, and for anything with DLPack, on the CPU and without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._arguments import is_dense, level_sizes, native_call, operands, output_shape
from ._options import encode

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
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: got a masked array, expected one without a mask\nhint: use array.filled(0)"
        )
    if given.dtype.name not in ("float64", "float32", "float16"):
        raise TypeError(f"{name}: got {given.dtype}, expected float64, float32 or float16")
    usable = given.dtype.isnative and given.flags.aligned
    if not usable or any(stride % given.itemsize for stride in given.strides):
        return np.array(given, dtype=given.dtype.newbyteorder("="), order="C")
    strides = _strides(given)
    if any(stride < 0 for stride in strides) or not is_dense(given.shape[3:], strides[3:]):
        return np.ascontiguousarray(given)
    return given


def _strides(array: numpy.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def _raw(array: numpy.ndarray) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
    return array.ctypes.data, array.dtype.name, array.shape, _strides(array)


def run(
    value: Any, shapes: Any, starts: Any, options: tuple, points: Any, *others: Any
) -> numpy.ndarray:
    """The operator for arrays. `others` are the arrays behind the level sizes."""
    np = _numpy()
    levels = level_sizes(shapes, starts)
    arrays = operands(_array, np.broadcast_to, len(levels[0]), value, others)
    numbers = encode(*options, points, len(levels[0]))
    value, locations = arrays["value"], list(arrays)[-2]
    shape = output_shape(value.shape, locations, arrays[locations].shape)
    output = np.empty(shape, dtype=value.dtype)
    _native.forward(native_call(map(_raw, arrays.values()), levels, *numbers), _raw(output))
    return output
