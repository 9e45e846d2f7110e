"""The operator as other libraries have it: functions and layers, and what replaces them."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import torch
from torch import Tensor

from .._torch.functional import ms_deform_attn
from ._replace import Replacements

Sizes = Union[Tensor, Sequence[Sequence[int]]]


def widened(output: Tensor) -> Tensor:
    """The output with the type that `grid_sample` gives: float32 under autocast."""
    narrow = output.dtype in (torch.float16, torch.bfloat16)
    return output.float() if narrow and torch.is_autocast_enabled(output.device.type) else output


def heads_last(
    value: Tensor,
    value_spatial_shapes: Sizes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """Value is `(batch, positions, heads, channels)`. Levels and points may be one dimension."""
    if sampling_locations.dim() == 5:
        sampling_locations = sampling_locations.unflatten(3, (len(value_spatial_shapes), -1))
    weights = attention_weights.reshape(sampling_locations.shape[:-1])
    return widened(ms_deform_attn(value, value_spatial_shapes, None, sampling_locations, weights))


def heads_first(
    value: Tensor,
    value_spatial_shapes: Sizes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    value_spatial_shapes_hw: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """LW-DETR and RF-DETR: value is `(batch, heads, channels, positions)`."""
    shapes = value_spatial_shapes if value_spatial_shapes_hw is None else value_spatial_shapes_hw
    return heads_last(value.permute(0, 3, 1, 2), shapes, sampling_locations, attention_weights)


def points_per_level(
    value: Tensor,
    value_spatial_shapes: Sizes,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    num_points_list: list[int],
    method: str = "default",
) -> Tensor:
    """RT-DETRv2, D-FINE and DEIMv2: points per level, and two ways of sampling."""
    if method not in ("default", "discrete"):
        raise ValueError(f"method: got {method!r}, expected 'default' or 'discrete'")
    discrete = method == "discrete"
    if discrete:
        sampling_locations = _pixel_centres(
            sampling_locations, value_spatial_shapes, num_points_list
        )
    elif len(set(num_points_list)) == 1:
        return heads_last(value, value_spatial_shapes, sampling_locations, attention_weights)
    output = ms_deform_attn(
        value,
        value_spatial_shapes,
        None,
        sampling_locations,
        attention_weights,
        sampling="nearest" if discrete else "bilinear",
        points=num_points_list,
    )
    return widened(output)


def _pixel_centres(locations: Tensor, sizes: Sizes, points: Sequence[int]) -> Tensor:
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


def layer_forward(
    self: torch.nn.Module,
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_spatial_shapes_list: Sequence[Sequence[int]],
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """The layer `MultiScaleDeformableAttention` of transformers. `im2col_step` is ignored."""
    # The host knows the sizes in the list: the operator chooses its kernel by them.
    return heads_last(value, value_spatial_shapes_list, sampling_locations, attention_weights)


# Names of functions in Deformable-DETR, detrex, mmcv, transformers and their copies.
FUNCTIONS = (
    "multi_scale_deformable_attn_pytorch",
    "ms_deform_attn_core_pytorch",
    "multi_scale_deformable_attention",
    "multi_scale_deformable_attention_v2",
)
OURS = (heads_last, heads_first, points_per_level, layer_forward)
_LAYER = "MultiScaleDeformableAttention"


@contextlib.contextmanager
def plain_state() -> Iterator[None]:
    """Nothing of the caller's state reaches an example: grad mode, autocast, default device."""
    with (
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def replacement(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function of msda that computes the same as this one, by a small example."""
    sizes, points = [(2, 3), (1, 2)], [1, 3]
    with plain_state():
        shapes, starts = torch.tensor(sizes), torch.tensor([0, 6])
        line = functools.partial(torch.linspace, dtype=torch.float32)
        value = line(-1, 1, 48).square().reshape(1, 8, 2, 3)
        locations = line(0.1, 0.9, 32).reshape(1, 2, 2, 2, 2, 2)
        weights = line(0.5, 1, 16).reshape(1, 2, 2, 2, 2)
        samples = (locations.flatten(3, 4), weights.flatten(3))
        planar = value.permute(0, 2, 3, 1).contiguous()
        reasons = []
        for new, *calls in (
            (heads_last, (value, shapes, locations, weights)),
            (heads_last, (value, shapes, *samples)),
            (heads_first, (planar, shapes, locations, weights)),
            (
                points_per_level,
                (value, sizes, *samples, points),
                (value, sizes, *samples, points, "discrete"),
            ),
            (layer_forward, (None, value, shapes, sizes, starts, locations, weights, 64)),
        ):
            try:
                for given in calls:
                    expected = function(*given)
                    torch.testing.assert_close(new(*given), expected, rtol=1e-4, atol=1e-5)
                return new
            except AssertionError:
                reasons.append("another result")
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {error}")
    raise ValueError(
        f"{function.__module__}.{function.__qualname__}: got {reasons[0]} for a small example, "
        "expected the result of multi-scale deformable attention\n"
        "hint: its arguments have another layout; call msda.ms_deform_attn in its place"
    )


def replace_operators(module: types.ModuleType, replaced: Replacements) -> None:
    """Replaces the operator where a module names it. What msda does not know gives a warning."""
    here = vars(module)
    found: list[tuple[Any, str]] = [(module, name) for name in FUNCTIONS if name in here]
    layer = here.get(_LAYER)
    if isinstance(layer, type) and layer.__module__ == module.__name__ and "forward" in vars(layer):
        found.append((layer, "forward"))
    for owner, name in found:
        try:
            replaced.set(owner, name, replacement(vars(owner)[name]))
        except ValueError as reason:
            full = f"{module.__name__}.{name}" if owner is module else f"{module.__name__}.{_LAYER}"
            warnings.warn(f"msda left {full} as it is: {reason}", stacklevel=2)
