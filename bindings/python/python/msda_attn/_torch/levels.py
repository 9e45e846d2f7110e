"""Level sizes and first positions, as lists and tensors of the caller give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Union

import torch
from torch import Tensor

from .._arguments import first_positions, pairs

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
    sizes = pairs(shapes, _integer)
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


def _integer(number: object) -> int:
    """An integer; sizes that torch traces stay symbols. Floats and texts are a `TypeError`."""
    return number if isinstance(number, (int, torch.SymInt)) else operator.index(number)


def flat(shapes: Sequence[Sequence[int]], starts: Sequence[int] | None) -> list[int]:
    """Height, width and first position of each level, one after the other."""
    sizes = pairs(shapes, _integer)
    first = first_positions(starts, _integer) if starts is not None else None
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
        starts = torch.tensor(first_positions(starts, _integer), dtype=_int64, device="cpu")
        if shapes.device.type != "cpu":
            starts = starts.to(shapes.device, non_blocking=True)
    else:
        starts = _integers(starts)
    return shapes, starts


def sizes_of(shapes: Levels) -> tuple[tuple[int, int], ...]:
    """Heights and widths as numbers. A tensor is read."""
    return pairs(shapes.tolist() if isinstance(shapes, Tensor) else shapes, _integer)


def count(shapes: Levels) -> int:
    """The number of levels."""
    if not isinstance(shapes, Tensor):
        return len(sizes_of(shapes))
    # The kernel refuses other ranks.
    return shapes.shape[0] if shapes.dim() else 0
