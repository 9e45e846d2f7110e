"""The operator for torch tensors, and the functions of the package with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _array, _functions
from .._arguments import FUSED, PLAIN, listed
from .._functions import ms_deform_attn, ms_deform_attn_fused
from .._options import encode
from .eager import FUSED_FORM, PLAIN_FORM, run_form
from .levels import USUAL, count

__all__ = ["ms_deform_attn", "ms_deform_attn_fused", "promote", "run"]

_float32 = torch.float32
_DEFAULTS = ("bilinear", "zeros", False)


def promote(name: str, tensor: Tensor, value: Tensor) -> Tensor:
    """Locations and weights have the type of value, or float32. Other floats become float32."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, expected a torch tensor like value")
    dtype = tensor.dtype
    if dtype is value.dtype or dtype is _float32 or not tensor.is_floating_point():
        return tensor
    return tensor.to(_float32)


# The third tensor of the plain form, which has two.
_NONE: Any = object()


def run(
    value: Any,
    shapes: Any,
    starts: Any,
    options: tuple,
    points: Any,
    first: Any,
    second: Any,
    third: Any = _NONE,
) -> Any:
    """Runs a call of the plain or the fused form: with two or three tensors behind value."""
    is_plain = third is _NONE
    if not isinstance(value, Tensor):
        others = (first, second) if is_plain else (first, second, third)
        for name, array in zip(PLAIN if is_plain else FUSED, others):
            if isinstance(array, Tensor):
                kind = type(value).__name__
                raise TypeError(
                    f"{name}: got a torch tensor, expected an array, as value is a {kind}"
                )
        return _array.run(value, shapes, starts, options, points, *others)
    numbers = USUAL
    if points is not None or options != _DEFAULTS:
        shapes = listed("spatial_shapes", shapes)
        numbers = encode(*options, points, count(shapes))
    if is_plain:
        locations, weights = first, second
    else:
        locations, weights = second, third
    dtype = value.dtype
    if type(locations) is not Tensor or locations.dtype is not dtype:
        locations = promote(PLAIN[0] if is_plain else FUSED[1], locations, value)
    if type(weights) is not Tensor or weights.dtype is not dtype:
        weights = promote(PLAIN[1] if is_plain else FUSED[2], weights, value)
    if is_plain:
        return run_form(PLAIN_FORM, (value, locations, weights), shapes, starts, numbers)
    reference = first
    if type(reference) is not Tensor:
        reference = promote(FUSED[0], reference, value)
    # Reference points are coordinates: where the types differ, both are float32. The kernel refuses
    # other types than floats.
    if reference.dtype is not locations.dtype:
        if reference.is_floating_point() and locations.is_floating_point():
            reference, locations = reference.to(_float32), locations.to(_float32)
    if reference.dim() == 4 and reference.shape[2] == 1:
        shapes = listed("spatial_shapes", shapes)
        levels = count(shapes)
        if levels != 1:
            reference = reference.expand(-1, -1, levels, -1)
    return run_form(FUSED_FORM, (value, reference, locations, weights), shapes, starts, numbers)


_functions.use(run)
