"""The two functions of the operator. Their signatures and descriptions are here and nowhere else.

This module needs neither torch nor NumPy. Tensors and arrays have their own `run`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import _array
from ._options import Padding, Sampling

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

    from ._torch.levels import Levels, Starts

# Arrays of one kind go in, and an array of that kind comes out.
Array = TypeVar("Array", "Tensor", "numpy.ndarray[Any, Any]")


def ms_deform_attn(
    value: Array,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Array,
    attention_weights: Array,
    *,
    sampling: Sampling = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> Array:
    """Multi-scale deformable attention.

    Args:
        value: `(batch, positions, heads, channels)`: the pixels of all levels.
        spatial_shapes: height and width of each level: a list, or a tensor `(levels, 2)` on the CPU
            or on the device of `value`. A tensor on the GPU is read by the kernel, so that the host
            waits for nothing.
        level_start_index: the first position of each level, or None: the levels follow each other.
        sampling_locations: `(batch, queries, heads, levels, points, 2)` as (x, y), where 0 and 1
            are the edges of a level.
        attention_weights: `(batch, queries, heads, levels, points)`.
        sampling: 'bilinear' or 'nearest'.
        padding: 'zeros', or 'border': locations are moved onto the level.
        align_corners: whether 0 and 1 are the centres of the corner pixels.
        points: points per level, if levels differ. The tensors then have one dimension for all
            samples: locations `(batch, queries, heads, samples, 2)`, weights without the 2.

    Returns:
        `(batch, queries, heads * channels)` with the type of `value`.

    Sums are computed in float32 (float64 for float64 values), coordinates never in 16 bits.
    Locations and weights have the type of `value` or float32; other types become float32.
    """
    return _run(
        value,
        spatial_shapes,
        level_start_index,
        (sampling, padding, align_corners),
        points,
        sampling_locations,
        attention_weights,
    )


def ms_deform_attn_fused(
    value: Array,
    spatial_shapes: Levels,
    level_start_index: Starts,
    reference_points: Array,
    sampling_offsets: Array,
    attention_logits: Array,
    *,
    sampling: Sampling = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> Array:
    """Multi-scale deformable attention with its softmax and its locations.

    Args:
        reference_points: `(batch, queries, levels, 2)` as (x, y), or `(..., 4)` as (x, y, width,
            height). One level stands for all.
        sampling_offsets: `(batch, queries, heads, levels, points, 2)`, as the linear layer gives
            them. A location is `reference + offset / (width, height)` of its level, or
            `reference_xy + offset / points * reference_wh / 2`.
        attention_logits: `(batch, queries, heads, levels, points)`. The softmax is over all points
            of all levels.

    The other arguments and the result are those of `ms_deform_attn`.
    """
    return _run(
        value,
        spatial_shapes,
        level_start_index,
        (sampling, padding, align_corners),
        points,
        reference_points,
        sampling_offsets,
        attention_logits,
    )


def _run_without_torch(value: Any, *rest: Any) -> Any:
    """Runs a call of arrays, where this package has no part for torch yet."""
    if isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ())):
        # The import of our part failed when torch was imported. It raises the exception again.
        from ._torch.functional import run

        return run(value, *rest)
    return _array.run(value, *rest)


# The part for torch replaces it: a call then finds its code without a question.
_run: Callable[..., Any] = _run_without_torch


def use(run: Callable[..., Any]) -> None:
    """Lets the functions call `run`, which takes tensors and arrays."""
    global _run
    _run = run


def computed_by(run: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its signature, computed by another `run`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        value, shapes, starts, *others = given.args
        *switches, points = given.kwargs.values()
        return run(value, shapes, starts, tuple(switches), points, *others)

    return call
