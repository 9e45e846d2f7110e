"""The functions of the operator for torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .. import _array
from .._options import Padding, Sampling, encode
from . import eager, schema
from .levels import USUAL, Levels, Starts, count, listed

if TYPE_CHECKING:
    import numpy

_float32 = torch.float32
_DEFAULTS = ("bilinear", "zeros", False)

# Arrays of one kind go in, and an array of that kind comes out.
Array = TypeVar("Array", Tensor, "numpy.ndarray[Any, Any]")


def promote(name: str, tensor: Tensor, value: Tensor) -> Tensor:
    """Locations and weights have the type of value, or float32. Other floats become float32."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, expected a torch tensor like value")
    dtype = tensor.dtype
    if dtype is value.dtype or dtype is _float32 or not tensor.is_floating_point():
        return tensor
    return tensor.to(_float32)


def _of_arrays(shapes: Any, starts: Any, options: tuple[Any, ...], **given: Any) -> Any:
    """The operator for arrays. Tensors beside a value that is none are refused."""
    for name, array in given.items():
        if isinstance(array, Tensor):
            kind = type(given["value"]).__name__
            raise TypeError(f"{name}: got a torch tensor, expected an array, as value is a {kind}")
    return _array.run(shapes, starts, options, **given)


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
    if not isinstance(value, Tensor):
        return _of_arrays(
            spatial_shapes,
            level_start_index,
            (sampling, padding, align_corners, points),
            value=value,
            sampling_locations=sampling_locations,
            attention_weights=attention_weights,
        )
    numbers = USUAL
    if points is not None or (sampling, padding, align_corners) != _DEFAULTS:
        spatial_shapes = listed(spatial_shapes)
        numbers = encode(sampling, padding, align_corners, points, count(spatial_shapes))
    dtype = value.dtype
    if type(sampling_locations) is not Tensor or sampling_locations.dtype is not dtype:
        sampling_locations = promote("sampling_locations", sampling_locations, value)
    if type(attention_weights) is not Tensor or attention_weights.dtype is not dtype:
        attention_weights = promote("attention_weights", attention_weights, value)
    tensors = (value, sampling_locations, attention_weights)
    return eager.plain.run(tensors, spatial_shapes, level_start_index, numbers)


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
    if not isinstance(value, Tensor):
        return _of_arrays(
            spatial_shapes,
            level_start_index,
            (sampling, padding, align_corners, points),
            value=value,
            reference_points=reference_points,
            sampling_offsets=sampling_offsets,
            attention_logits=attention_logits,
        )
    numbers = USUAL
    if points is not None or (sampling, padding, align_corners) != _DEFAULTS:
        spatial_shapes = listed(spatial_shapes)
        numbers = encode(sampling, padding, align_corners, points, count(spatial_shapes))
    dtype = value.dtype
    if type(sampling_offsets) is not Tensor or sampling_offsets.dtype is not dtype:
        sampling_offsets = promote("sampling_offsets", sampling_offsets, value)
    if type(attention_logits) is not Tensor or attention_logits.dtype is not dtype:
        attention_logits = promote("attention_logits", attention_logits, value)
    if type(reference_points) is not Tensor:
        reference_points = promote("reference_points", reference_points, value)
    # Reference points are coordinates: where the types differ, both are float32. The kernel refuses
    # other types than floats.
    if reference_points.dtype is not sampling_offsets.dtype:
        if reference_points.is_floating_point() and sampling_offsets.is_floating_point():
            reference_points = reference_points.to(_float32)
            sampling_offsets = sampling_offsets.to(_float32)
    if reference_points.dim() == 4 and reference_points.shape[2] == 1:
        spatial_shapes = listed(spatial_shapes)
        levels = count(spatial_shapes)
        if levels != 1:
            reference_points = reference_points.expand(-1, -1, levels, -1)
    tensors = (value, reference_points, sampling_offsets, attention_logits)
    return eager.fused.run(tensors, spatial_shapes, level_start_index, numbers)


kernels = schema.kernels
