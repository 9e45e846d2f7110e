"""Hugging Face transformers: its models call msda.

    import msda_attn as msda

    msda.patch_transformers()

The forward of whole attention modules is replaced: see `_modules.py`. Calls that the fused operator
does not compute go to the original forward, and to the operator inside it. Transformers has the
operator in three forms, each copied into the file of every model:

- a layer `MultiScaleDeformableAttention` (Deformable DETR, RT-DETR, Grounding DINO, RF-DETR, ...),
- a function `multi_scale_deformable_attention` (Mask2Former, OneFormer),
- a function `multi_scale_deformable_attention_v2`, with points per level (RT-DETRv2, D-FINE,
  DEIMv2).

The patch finds them by name and signature, in modules that are imported already and in modules that
are imported later.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch.functional import ms_deform_attn
from ._library import Library
from ._modules import stores
from ._replace import Patch, Replacements

# D-FINE and DEIMv2 keep the function in this attribute of each attention module.
_STORED = "ms_deformable_attn_core"
# Before torch 2.12, torch.compile cannot read such an attribute through a descriptor of that name.
_READS_STORED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)

Sizes = Sequence[Sequence[int]]


def forward(
    self: torch.nn.Module,
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_spatial_shapes_list: Sizes,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """`MultiScaleDeformableAttention.forward`. `im2col_step` is ignored."""
    # The host knows the sizes in the list: the operator chooses its kernel by them.
    sizes = value_spatial_shapes_list
    return ms_deform_attn(value, sizes, None, sampling_locations, attention_weights)


def multi_scale_deformable_attention(
    value: Tensor,
    value_spatial_shapes: Tensor | Sizes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """The function of Mask2Former and OneFormer."""
    shapes = value_spatial_shapes
    return ms_deform_attn(value, shapes, None, sampling_locations, attention_weights)


def multi_scale_deformable_attention_v2(
    value: Tensor,
    value_spatial_shapes: Tensor | Sizes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: list[int],
    method: str = "default",
) -> Tensor:
    """The function of RT-DETRv2, D-FINE and DEIMv2: points per level, and two ways of sampling."""
    if method not in ("default", "discrete"):
        raise ValueError(f"method: got {method!r}, expected 'default' or 'discrete'")
    sampling = "bilinear"
    if method == "discrete":
        sampling = "nearest"
        sampling_locations = _pixel_centres(
            sampling_locations, value_spatial_shapes, num_points_list
        )
    points = list(num_points_list)
    if len(set(points)) == 1:
        sizes = (len(points), points[0])
        sampling_locations = sampling_locations.unflatten(3, sizes)
        attention_weights = attention_weights.unflatten(3, sizes)
        points = None
    return ms_deform_attn(
        value,
        value_spatial_shapes,
        None,
        sampling_locations,
        attention_weights,
        sampling=sampling,
        points=points,
    )


def _pixel_centres(locations: Tensor, sizes: Tensor | Sizes, points: Sequence[int]) -> Tensor:
    """The centre of the pixel that 'discrete' sampling takes: `location * size` rounded half up.

    Locations outside a level take the pixel at its edge. No gradient flows to the locations.
    """
    if isinstance(sizes, Tensor):
        sizes = sizes.tolist()
    centres = []
    for part, (height, width) in zip(locations.detach().float().split(points, dim=-2), sizes):
        axes = []
        for axis, size in ((0, width), (1, height)):
            pixel = (part[..., axis] * size + 0.5).floor().clamp(0, size - 1)
            axes.append((pixel + 0.5) / size)
        centres.append(torch.stack(axes, dim=-1))
    return torch.cat(centres, dim=-2)


def _fits(module: str, name: str, found: object, new: Callable[..., Any]) -> bool:
    """Whether a function of transformers takes the arguments that its replacement takes."""
    if not isinstance(found, types.FunctionType):
        return False
    got = list(inspect.signature(found).parameters)
    expected = list(inspect.signature(new).parameters)
    if got == expected:
        return True
    warnings.warn(
        f"msda left {module}.{name} as it is: it takes {got}, expected {expected}", stacklevel=4
    )
    return False


class _StoredFunction:
    """An attribute that instances keep as the original function and read as the replacement."""

    def __init__(self, original: object, new: object) -> None:
        self.original = original
        self.new = new

    def __get__(self, module: torch.nn.Module | None, _: type | None = None) -> object:
        if module is None:
            return self
        try:
            kept = module.__dict__[_STORED]
        except KeyError:
            raise AttributeError(_STORED) from None
        return self.new if kept is self.original else kept

    def __set__(self, module: torch.nn.Module, function: object) -> None:
        module.__dict__[_STORED] = function


def _replace(module: types.ModuleType, replaced: Replacements) -> None:
    """Replaces every form of the operator that this module defines."""
    name = module.__name__
    here = vars(module)
    layer = here.get("MultiScaleDeformableAttention")
    if (
        isinstance(layer, type)
        and layer.__module__ == name
        and _fits(
            name, "MultiScaleDeformableAttention.forward", vars(layer).get("forward"), forward
        )
    ):
        replaced.set(layer, "forward", forward)
    for new in (multi_scale_deformable_attention, multi_scale_deformable_attention_v2):
        original = here.get(new.__name__)
        if original is None or original.__module__ != name:
            continue
        if not _fits(name, new.__name__, original, new):
            continue
        owners = [cls for cls in here.values() if stores(cls, name, _STORED)]
        for cls in owners if _READS_STORED else ():
            replaced.set(cls, _STORED, _StoredFunction(original, new))
        # Where instances keep the function, its name must still give it: pickle looks there.
        if not owners:
            replaced.set(module, new.__name__, new)


library = Library("transformers", r"transformers\.models\..*\.modeling_\w+", _replace)


def patch_transformers() -> Patch:
    """Makes the models of transformers call msda, on the CPU and on CUDA.

    The forward of whole attention modules is replaced. Models that exist already are included. The
    result undoes the call with `undo()`, or at the end of a `with` block; the patch stays until all
    calls are undone.
    """
    return library.patch()


def unpatch_transformers() -> None:
    """Undoes all calls of `patch_transformers`. Without a patch it does nothing."""
    library.unpatch()
