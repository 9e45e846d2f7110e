"""What is the same for all kinds of arrays: names, checks of sizes, and types."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# The names of the tensors behind value: of the plain and of the fused form.
PLAIN = ("sampling_locations", "attention_weights")
FUSED = ("reference_points", "sampling_offsets", "attention_logits")

# More levels than any call has. Iterators are read up to here: one may never end.
MOST_LEVELS = 1 << 16

# Checks an argument, given its name, and makes it an array.
Convert = Callable[[str, Any], Any]


def listed(name: str, numbers: Any) -> Any:
    """Numbers per level that can be read more than once: an iterator becomes a list."""
    if hasattr(numbers, "__len__") or not hasattr(numbers, "__iter__"):
        return numbers
    found = list(itertools.islice(numbers, MOST_LEVELS + 1))
    if len(found) > MOST_LEVELS:
        raise ValueError(
            f"{name}: got an iterator with more than {MOST_LEVELS} levels, expected at most "
            f"{MOST_LEVELS}"
        )
    return found


def pairs(
    shapes: Any, integer: Callable[[Any], int] = operator.index, hint: str = ""
) -> tuple[tuple[int, int], ...]:
    """Heights and widths of the levels. `integer` raises a `TypeError` for floats and texts."""
    if type(shapes) is not list:
        shapes = listed("spatial_shapes", shapes)
    found = []
    try:
        for height, width in shapes:
            # A test of the type takes less time than a call.
            if type(height) is not int or type(width) is not int:
                height, width = integer(height), integer(width)
            found.append((height, width))
    except (TypeError, ValueError):
        raise TypeError(
            f"spatial_shapes: got {shapes!r}, expected a tensor (levels, 2), or a list of "
            f"(height, width) as integers{hint}"
        ) from None
    return tuple(found)


def first_positions(
    starts: Any, integer: Callable[[Any], int] = operator.index, hint: str = ""
) -> tuple[int, ...]:
    """First positions of the levels, as `pairs` reads their sizes."""
    starts = listed("level_start_index", starts)
    try:
        return tuple(integer(start) for start in starts)
    except TypeError:
        raise TypeError(
            f"level_start_index: got {starts!r}, expected a tensor (levels), a list of "
            f"integers, or None{hint}"
        ) from None


def level_sizes(
    shapes: Any, starts: Any, hint: str = ""
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...] | None]:
    """Heights and widths of the levels, and their first positions if they are given."""
    sizes = pairs(shapes, hint=hint)
    first = None if starts is None else first_positions(starts, hint=hint)
    for name, numbers in (
        ("spatial_shapes", list(itertools.chain(*sizes))),
        ("level_start_index", list(first or ())),
    ):
        if not all(0 <= n < 2**63 for n in numbers):
            raise ValueError(f"{name}: got {numbers}, expected numbers from 0 to 2**63 - 1")
    return sizes, first


def output_shape(value: Sequence[int], name: str, locations: Sequence[int]) -> tuple[int, ...]:
    """The shape of the output, given the shapes of value and of the tensor called `name`."""
    if len(value) != 4:
        raise ValueError(
            f"value: got shape {list(value)}, expected 4 dimensions: batch, positions, heads, "
            "channels"
        )
    if len(locations) < 3:
        raise ValueError(
            f"{name}: got shape {list(locations)}, expected 6 dimensions (batch, queries, heads, "
            "levels, points, 2), or 5 if levels and points are one dimension"
        )
    batch, _, heads, channels = value
    return batch, locations[1], heads * channels


def operands(
    convert: Convert,
    broadcast_to: Callable[[Any, tuple[int, ...]], Any],
    levels: int,
    value: Any,
    others: Sequence[Any],
) -> dict[str, Any]:
    """The arrays of the plain or the fused form by their names, with the types that the operator
    takes."""
    names = ("value", *(PLAIN if len(others) == len(PLAIN) else FUSED))
    arrays = {name: convert(name, array) for name, array in zip(names, (value, *others))}
    # Locations and weights have the type of value, or float32. Other floats become float32.
    for name in names[-2:]:
        if arrays[name].dtype not in (arrays["value"].dtype, "float32"):
            arrays[name] = arrays[name].astype("float32")
    reference = arrays.get("reference_points")
    if reference is None:
        return arrays
    # Reference points are coordinates: where the types differ, both are float32.
    if reference.dtype != arrays["sampling_offsets"].dtype:
        reference = reference.astype("float32")
        arrays["sampling_offsets"] = arrays["sampling_offsets"].astype("float32")
    if reference.ndim == 4 and reference.shape[2] == 1 and levels != 1:
        reference = broadcast_to(reference, (*reference.shape[:2], levels, reference.shape[3]))
    return {**arrays, "reference_points": reference}


def native_call(
    floats: Iterable[tuple], levels: tuple, options: int, points: int
) -> dict[str, Any]:
    """A call as the compiled part takes it. The tensors are in the order of their names."""
    value, *reference, locations, weights = floats
    return {
        "value": value,
        "levels": levels,
        "reference": reference[0] if reference else None,
        "locations": locations,
        "weights": weights,
        "options": options,
        "points": points,
    }


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether dimensions are contiguous. Strides are in elements."""
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, dense_strides(shape)))
