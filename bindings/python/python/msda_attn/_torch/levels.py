"""Level sizes and first positions, as lists and tensors of the caller give them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Union

import torch
from torch import Tensor

Levels = Union[Tensor, Sequence[Sequence[int]]]
Starts = Union[Tensor, Sequence[int], None]

_int64 = torch.int64
_LARGEST = 2**63 - 1

# Tensors that `setup_of` made, by options and points, first positions, and level sizes; those of
# the usual options and positions also by level sizes alone, because a short key is found faster.
_MOST_SETUPS = 1024
_setups: dict[tuple, tuple[Tensor]] = {}
_usual_setups: dict[tuple, tuple[Tensor]] = {}

# The numbers of the usual options, and of levels with the same points.
USUAL = (0, 0)


def setup_of(shapes: Levels, starts: Starts, numbers: tuple[int, int]) -> tuple[Tensor] | None:
    """Options, points and the levels of lists as one tensor; None where levels are in tensors."""
    try:
        # Most calls end here. A list of lists cannot be a key, and is converted first.
        if starts is None and numbers is USUAL:
            return _usual_setups[tuple(shapes)]
    except (KeyError, TypeError):
        pass
    if isinstance(shapes, Tensor) or isinstance(starts, Tensor):
        return None
    pairs, first = _numbers(shapes, starts)
    key = (numbers, None if starts is None else first, pairs)
    if key in _setups:
        return _setups[key]
    triples = ((*pair, start) for pair, start in zip(pairs, first))
    levels = list(itertools.chain.from_iterable(triples))
    if any(abs(n) > _LARGEST for n in levels):
        raise ValueError(
            f"spatial_shapes and level_start_index: got {shapes!r} and {starts!r}, expected sizes "
            "whose sum is below 2**63"
        )
    with torch.inference_mode(False):
        made = (torch.tensor([*numbers, *levels], dtype=_int64, device="cpu"),)
    if len(_setups) >= _MOST_SETUPS:
        _setups.clear()
        _usual_setups.clear()
    # A mode may have made something else than a tensor.
    if type(made[0]) is Tensor:
        _setups[key] = made
        if starts is None and numbers == USUAL:
            _usual_setups[pairs] = made
    return made


def read_setup(setup: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """Level sizes, starts, options and points of a tensor that `setup_of` made."""
    options, points = setup[:2].tolist()
    levels = setup[2:].view(-1, 3)
    return levels[:, :2], levels[:, 2], options, points


def _integer(number: object) -> int:
    """An integer; sizes that torch traces stay symbols. Floats and texts are a `TypeError`."""
    return number if isinstance(number, (int, torch.SymInt)) else operator.index(number)


def _numbers(
    shapes: Sequence[Sequence[int]], starts: Sequence[int] | None
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Level sizes and first positions of lists."""
    try:
        pairs = tuple((_integer(height), _integer(width)) for height, width in shapes)
    except (TypeError, ValueError):
        raise TypeError(
            f"spatial_shapes: got {shapes!r}, expected a tensor (levels, 2), or a list of "
            "(height, width)"
        ) from None
    if starts is None:
        # Plain arithmetic, which torch.compile can follow.
        ends = [0]
        for height, width in pairs:
            ends.append(ends[-1] + height * width)
        return pairs, tuple(ends[:-1])
    first = _starts(starts)
    if len(first) != len(pairs):
        raise ValueError(
            f"level_start_index: got {len(first)} numbers, expected {len(pairs)}, one per level"
        )
    return pairs, first


def _starts(starts: Sequence[int]) -> tuple[int, ...]:
    """First positions of a list."""
    try:
        return tuple(_integer(start) for start in starts)
    except TypeError:
        raise TypeError(
            f"level_start_index: got {starts!r}, expected a tensor (levels), a list of integers, "
            "or None"
        ) from None


def _integers(table: Tensor) -> Tensor:
    """A table as int64; the kernel refuses floats."""
    if table.dtype is _int64 or table.is_floating_point() or table.is_complex():
        return table
    return table.to(_int64)


def tables(shapes: Levels, starts: Starts) -> tuple[Tensor, Tensor]:
    """Level sizes and starts as tensors of int64. Nothing waits for a device."""
    if type(shapes) is type(starts) is Tensor and shapes.dtype is starts.dtype is _int64:
        return shapes, starts
    if not isinstance(shapes, Tensor):
        pairs, first = _numbers(shapes, None if isinstance(starts, Tensor) else starts)
        starts = starts if isinstance(starts, Tensor) else first
        shapes = torch.tensor(pairs, dtype=_int64, device="cpu").reshape(-1, 2)
    else:
        shapes = _integers(shapes)
    if starts is None:
        sizes = shapes.prod(1)
        starts = sizes.cumsum(0) - sizes
    elif not isinstance(starts, Tensor):
        starts = torch.tensor(_starts(starts), dtype=_int64, device="cpu")
        if shapes.device.type != "cpu":
            starts = starts.to(shapes.device, non_blocking=True)
    else:
        starts = _integers(starts)
    return shapes, starts


def count(shapes: Levels) -> int:
    """The number of levels."""
    if not isinstance(shapes, Tensor):
        return len(_numbers(shapes, None)[0])
    # The kernel refuses other ranks.
    return shapes.shape[0] if shapes.dim() else 0


def listed(shapes: Levels) -> Levels:
    """Level sizes that can be read more than once: a generator becomes a list."""
    if isinstance(shapes, Tensor) or not hasattr(shapes, "__next__"):
        return shapes
    return list(shapes)
