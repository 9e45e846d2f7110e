"""What the functions for NumPy and for JAX do with their arguments before they compute."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

# Checks an argument, given its name, and makes it an array.
Convert = Callable[[str, Any], Any]


def level_sizes(
    shapes: Any, starts: Any, hint: str = ""
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...] | None]:
    """Heights and widths of the levels, and their first positions if they are given."""
    try:
        pairs = tuple((operator.index(h), operator.index(w)) for h, w in shapes)
        first = None if starts is None else tuple(operator.index(start) for start in starts)
    except (TypeError, ValueError):
        raise TypeError(
            f"spatial_shapes and level_start_index: got {shapes!r} and {starts!r}, expected a list "
            f"of (height, width) and a list of integers or None{hint}"
        ) from None
    if any(n < 0 for pair in pairs for n in pair) or any(n < 0 for n in first or ()):
        raise ValueError(
            f"spatial_shapes and level_start_index: got {pairs} and {first}, expected numbers of "
            "at least 0"
        )
    if any(n >= 2**63 for pair in pairs for n in pair) or any(n >= 2**63 for n in first or ()):
        raise ValueError(
            f"spatial_shapes and level_start_index: got {pairs} and {first}, expected numbers "
            "below 2**63"
        )
    return pairs, first


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


def plain_tensors(convert: Convert, value: Any, locations: Any, weights: Any) -> dict[str, Any]:
    """The arrays of the plain form by their names, with the types that the operator takes."""
    value = convert("value", value)
    return {
        "value": value,
        "sampling_locations": _promote(convert("sampling_locations", locations), value),
        "attention_weights": _promote(convert("attention_weights", weights), value),
    }


def fused_tensors(
    convert: Convert,
    broadcast_to: Callable[[Any, tuple[int, ...]], Any],
    levels: int,
    value: Any,
    reference: Any,
    offsets: Any,
    logits: Any,
) -> dict[str, Any]:
    """The arrays of the fused form by their names, with the types that the operator takes."""
    value = convert("value", value)
    offsets = _promote(convert("sampling_offsets", offsets), value)
    reference = convert("reference_points", reference)
    # Reference points are coordinates: where the types differ, both are float32.
    if reference.dtype != offsets.dtype:
        reference, offsets = reference.astype("float32"), offsets.astype("float32")
    if reference.ndim == 4 and reference.shape[2] == 1 and levels != 1:
        reference = broadcast_to(reference, (*reference.shape[:2], levels, reference.shape[3]))
    return {
        "value": value,
        "reference_points": reference,
        "sampling_offsets": offsets,
        "attention_logits": _promote(convert("attention_logits", logits), value),
    }


def _promote(array: Any, value: Any) -> Any:
    """Locations and weights have the type of value, or float32. Other floats become float32."""
    if array.dtype == value.dtype or array.dtype.name == "float32":
        return array
    return array.astype("float32")
