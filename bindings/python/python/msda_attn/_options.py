"""Options of the operator as the numbers that the compiled part takes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

from ._arguments import listed

Sampling = Literal["bilinear", "nearest"]
Padding = Literal["zeros", "border"]

_SAMPLING = {"bilinear": 0, "nearest": 1}
_PADDING = {"zeros": 0, "border": 2}
_CORNERS = 4


def encode(
    sampling: str, padding: str, align_corners: bool, points: Sequence[int] | None, levels: int
) -> tuple[int, int]:
    """The number of the options, and the number of the points: 0 if all levels have the same."""
    options = encode_options(sampling, padding, align_corners)
    return options, 0 if points is None else encode_points(points, levels)


def encode_options(sampling: str, padding: str, align_corners: bool) -> int:
    """One number for the three options."""
    try:
        bits = _SAMPLING[sampling]
    except (KeyError, TypeError):
        raise ValueError(f"sampling: got {sampling!r}, expected 'bilinear' or 'nearest'") from None
    try:
        bits |= _PADDING[padding]
    except (KeyError, TypeError):
        raise ValueError(f"padding: got {padding!r}, expected 'zeros' or 'border'") from None
    if align_corners not in (False, True):
        raise ValueError(f"align_corners: got {align_corners!r}, expected True or False")
    return bits | (_CORNERS if align_corners else 0)


def decode(options: int, points: int, levels: int) -> tuple[dict[str, Any], list[int]]:
    """The options as `grid_sample` names them, and points per level: none if all have the same."""
    named = {
        "mode": "nearest" if options & _SAMPLING["nearest"] else "bilinear",
        "padding_mode": "border" if options & _PADDING["border"] else "zeros",
        "align_corners": bool(options & _CORNERS),
    }
    return named, [points >> 8 * level & 255 for level in range(levels)] if points else []


def encode_points(points: Sequence[int], levels: int) -> int:
    """Points per level as bytes of one number, the first level in the lowest byte."""
    expected = (
        f"expected one number for each of the {levels} levels (at most 8), from 0 to 255 and at "
        "least one above 0"
    )
    points = listed("points", points)
    try:
        counts = [operator.index(n) for n in points]
    except TypeError:
        raise TypeError(f"points: got {points!r}, {expected}") from None
    fits = len(counts) == levels <= 8 and all(0 <= n <= 255 for n in counts)
    if not fits or not any(counts):
        raise ValueError(f"points: got {counts!r}, {expected}")
    # Plain arithmetic, which torch.compile can follow.
    packed = 0
    for level, count in enumerate(counts):
        packed |= count << 8 * level
    # The schema has signed integers.
    return packed - (1 << 64) if packed >= 1 << 63 else packed
