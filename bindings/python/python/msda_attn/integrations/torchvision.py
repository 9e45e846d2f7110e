"""Feature maps as torchvision's networks give them.

    features = feature_pyramid(images)
    output = multi_scale_deform_attn(features, sampling_locations, attention_weights)

torchvision itself is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch.functional import ms_deform_attn


def _maps(features: Sequence[Tensor] | Mapping[str, Tensor]) -> list[Tensor]:
    given = features.values() if isinstance(features, Mapping) else features
    try:
        maps = list(given)
    except TypeError:
        maps = [given]
    for found in maps:
        if not isinstance(found, Tensor):
            raise TypeError(
                f"features: got {type(found).__name__}, expected torch tensors in a list or in a "
                "dictionary"
            )
    return maps


def _heads(sampling_locations: Tensor) -> int:
    if not isinstance(sampling_locations, Tensor):
        got = type(sampling_locations).__name__
        raise TypeError(f"sampling_locations: got {got}, expected a torch tensor")
    shape = sampling_locations.shape
    if len(shape) not in (5, 6) or shape[2] < 1:
        raise ValueError(
            f"sampling_locations: got shape {list(shape)}, expected 6 dimensions (batch, queries, "
            "heads, levels, points, 2), or 5 if levels and points are one dimension, and at least "
            "1 head"
        )
    return shape[2]


def flatten_features(
    features: Sequence[Tensor] | Mapping[str, Tensor], heads: int
) -> tuple[Tensor, list[tuple[int, int]]]:
    """The value of the operator, and the height and width of each level."""
    maps = _maps(features)
    if not isinstance(heads, (int, torch.SymInt)):
        raise TypeError(f"heads: got {type(heads).__name__}, expected an integer")
    if heads < 1:
        raise ValueError(f"heads: got {heads}, expected at least 1")
    if not maps or any(m.dim() != 4 or m.shape[:2] != maps[0].shape[:2] for m in maps):
        raise ValueError(
            f"features: got shapes {[tuple(m.shape) for m in maps]}, expected at least one map "
            "(batch, channels, height, width), all with the same batch and channels"
        )
    if maps[0].shape[1] % heads:
        raise ValueError(
            f"features: got {maps[0].shape[1]} channels, expected a multiple of {heads} heads"
        )
    value = torch.cat([m.flatten(2).transpose(1, 2) for m in maps], dim=1)
    return value.unflatten(2, (heads, -1)), [(m.shape[2], m.shape[3]) for m in maps]


def multi_scale_deform_attn(
    features: Sequence[Tensor] | Mapping[str, Tensor],
    sampling_locations: Tensor,
    attention_weights: Tensor,
    **options: Any,
) -> Tensor:
    """Multi-scale deformable attention over feature maps.

    Args:
        features: maps `(batch, channels, height, width)`, one per level: a list, or a dictionary as
            `torchvision.ops.FeaturePyramidNetwork` gives it. The channels are divided among heads.
        sampling_locations: `(batch, queries, heads, levels, points, 2)` as (x, y), where 0 and 1
            are the edges of a level.
        attention_weights: `(batch, queries, heads, levels, points)`.
        options: `sampling`, `padding`, `align_corners` and `points` of `msda.ms_deform_attn`.

    Returns:
        `(batch, queries, channels)`.
    """
    value, shapes = flatten_features(features, _heads(sampling_locations))
    return ms_deform_attn(value, shapes, None, sampling_locations, attention_weights, **options)
