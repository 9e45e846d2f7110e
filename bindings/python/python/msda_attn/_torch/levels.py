"""Level sizes and first positions, as lists and tensors of the caller give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Union

import torch
from torch import Tensor

Levels = Union[Tensor, Sequence[Sequence[int]]]
Starts = Union[Tensor, Sequence[int], None]

_int64 = torch.int64
_LARGEST = 2**63 - 1

# Tensors that `setup` made, by their numbers.
_MOST_SETUPS = 1024
_setups: dict[tuple, tuple[Tensor]] = {}
# Those of the usual options and positions, by level sizes: a short key is found faster.
_usual_setups: dict[tuple, tuple[Tensor]] = {}

# The numbers of the usual options, and of levels with the same points.
USUAL = (0, 0)


def setup_of(shapes: Levels, starts: Starts, numbers: tuple[int, int]) -> tuple[Tensor] | None:
    """Options, points and the levels of lists as one tensor; None where levels are in tensors."""
    # A test of the type is faster than `isinstance`, and most calls have these types.
    if type(shapes) is not list and isinstance(shapes, Tensor):
        return None
    if starts is not None and isinstance(starts, Tensor):
        return None
    # Always checked, so that a wrong list is refused whatever was called before.
    sizes = pairs(shapes)
    if starts is not None or numbers is not USUAL:
        return setup((*numbers, *flat(sizes, starts)))
    made = _usual_setups.get(sizes)
    if made is None:
        made = setup((*numbers, *flat(sizes, None)))
        if type(made[0]) is Tensor:
            _usual_setups[sizes] = made
    return made


def setup(numbers: tuple[int, ...]) -> tuple[Tensor]:
    """Options, points and the numbers of `flat` as one tensor."""
    made = _setups.get(numbers)
    if made is not None:
        return made
    if any(abs(n) > _LARGEST for n in numbers):
        raise ValueError(
            f"spatial_shapes and level_start_index: got heights, widths and starts {numbers[2:]}, "
            "expected sizes whose sum is below 2**63"
        )
    with torch.inference_mode(False):
        made = (torch.tensor(numbers, dtype=_int64, device="cpu"),)
    if len(_setups) >= _MOST_SETUPS:
        _setups.clear()
        _usual_setups.clear()
    # A mode may have made something else than a tensor.
    if type(made[0]) is Tensor:
        _setups[numbers] = made
    return made


def read_setup(setup: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """Level sizes, starts, options and points of a tensor that `setup_of` made."""
    options, points = setup[:2].tolist()
    levels = setup[2:].view(-1, 3)
    return levels[:, :2], levels[:, 2], options, points


def _integer(number: object) -> int:
    """An integer; sizes that torch traces stay symbols. Floats and texts are a `TypeError`."""
    return number if isinstance(number, (int, torch.SymInt)) else operator.index(number)


def pairs(shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Level sizes of a list."""
    found = []
    try:
        for height, width in shapes:
            # A test of the type takes less time than a call.
            if type(height) is not int or type(width) is not int:
                height, width = _integer(height), _integer(width)
            found.append((height, width))
    except (TypeError, ValueError):
        raise TypeError(
            f"spatial_shapes: got {shapes!r}, expected a tensor (levels, 2), or a list of "
            "(height, width)"
        ) from None
    return tuple(found)


def flat(shapes: Sequence[Sequence[int]], starts: Sequence[int] | None) -> list[int]:
    """Height, width and first position of each level, one after the other."""
    sizes = pairs(shapes)
    first = _starts(starts) if starts is not None else None
    if first is not None and len(first) != len(sizes):
        raise ValueError(
            f"level_start_index: got {len(first)} numbers, expected {len(sizes)}, one per level"
        )
    # Plain arithmetic, which torch.compile can follow.
    numbers, end = [], 0
    for level, (height, width) in enumerate(sizes):
        numbers += [height, width, end if first is None else first[level]]
        end = end + height * width
    return numbers


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
        numbers = flat(shapes, None if isinstance(starts, Tensor) else starts)
        table = torch.tensor(numbers, dtype=_int64, device="cpu").reshape(-1, 3)
        if not isinstance(starts, Tensor):
            return table[:, :2], table[:, 2]
        shapes = table[:, :2].to(starts.device, non_blocking=True)
    else:
        shapes = _integers(shapes)
    if starts is None:
        if shapes.dim() != 2:
            raise ValueError(
                f"spatial_shapes: got shape {list(shapes.shape)}, expected (levels, 2)"
            )
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
        return len(pairs(shapes))
    # The kernel refuses other ranks.
    return shapes.shape[0] if shapes.dim() else 0


def listed(shapes: Levels) -> Levels:
    """Level sizes that can be read more than once: a generator becomes a list."""
    if isinstance(shapes, Tensor) or not hasattr(shapes, "__next__"):
        return shapes
    return list(shapes)
