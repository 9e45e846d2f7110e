"""The attention module of Deformable-DETR around the operator."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import MOST_LEVELS, listed
from .._options import Padding, Sampling, encode_options, encode_points
from .functional import ms_deform_attn_fused
from .grid import locations_of
from .levels import Levels, Starts, count, sizes_of


def _points_per_level(points: int | Sequence[int], levels: int) -> tuple[int, ...]:
    expected = f"expected a number above 0, or {levels} numbers, one per level"
    try:
        counts = (points,) * levels if isinstance(points, int) else listed("points", points)
        counts = tuple(operator.index(n) for n in counts)
    except TypeError:
        raise TypeError(f"points: got {points!r}, {expected}") from None
    if len(counts) != levels or any(n < 0 for n in counts) or not any(counts):
        raise ValueError(f"points: got {points!r}, {expected}")
    return counts


# Names of the same arguments in Deformable-DETR, DINO, mmcv and transformers.
_OTHER_NAMES = {
    "d_model": "embed_dim",
    "embed_dims": "embed_dim",
    "n_levels": "levels",
    "num_levels": "levels",
    "n_heads": "heads",
    "num_heads": "heads",
    "n_points": "points",
    "num_points": "points",
    "input_spatial_shapes": "spatial_shapes",
    "input_level_start_index": "level_start_index",
    "input_padding_mask": "padding_mask",
}


def _takes_other_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also takes arguments by their names in other libraries."""

    @functools.wraps(function)
    def renamed(*args: Any, **given: Any) -> Any:
        for other in [name for name in given if name in _OTHER_NAMES]:
            name = _OTHER_NAMES[other]
            if name in given:
                raise TypeError(f"{other}: got it beside {name}, expected one of the two")
            given[name] = given.pop(other)
        return function(*args, **given)

    return renamed


class MSDeformAttn(nn.Module):
    """Multi-scale deformable attention with its four linear layers.

    Parameters have the names and shapes of Deformable-DETR, DINO and mmcv: state dicts load
    unchanged. Tensors have the batch first.

    Args:
        embed_dim: channels of queries, of the input and of the output.
        levels: feature maps of the pyramid.
        heads: attention heads; `embed_dim` is a multiple of them.
        points: sampling points per head and level, or a list with one number per level.
        sampling, padding, align_corners: options of `msda.ms_deform_attn`.
        device, dtype: of the parameters.

    The constructor and `forward` also take arguments by their names in Deformable-DETR and mmcv,
    such as `d_model`, `num_heads` and `input_padding_mask`.
    """

    @_takes_other_names
    def __init__(
        self,
        embed_dim: int = 256,
        levels: int = 4,
        heads: int = 8,
        points: int | Sequence[int] = 4,
        *,
        sampling: Sampling = "bilinear",
        padding: Padding = "zeros",
        align_corners: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = (embed_dim, levels, heads)
        expected = (
            f"embed_dim, levels, heads: got {embed_dim!r}, {levels!r}, {heads!r}, expected "
            "integers above 0, and an embed_dim that is a multiple of heads"
        )
        try:
            embed_dim, levels, heads = sizes = tuple(map(operator.index, sizes))
        except TypeError:
            raise TypeError(expected) from None
        if min(sizes) < 1 or embed_dim % heads:
            raise ValueError(expected)
        if levels > MOST_LEVELS:
            raise ValueError(f"levels: got {levels}, expected at most {MOST_LEVELS}")
        self.embed_dim = embed_dim
        self.levels = levels
        self.heads = heads
        self.points = _points_per_level(points, levels)
        self.sampling = sampling
        self.padding = padding
        self.align_corners = align_corners
        # Wrong options are refused here, not in the first step of a training run.
        encode_options(sampling, padding, align_corners)
        self._points_differ = len(set(self.points)) > 1
        if self._points_differ:
            encode_points(self.points, levels)
        samples = heads * sum(self.points)
        made = {"device": device, "dtype": dtype}
        self.sampling_offsets = nn.Linear(embed_dim, samples * 2, **made)
        self.attention_weights = nn.Linear(embed_dim, samples, **made)
        self.value_proj = nn.Linear(embed_dim, embed_dim, **made)
        self.output_proj = nn.Linear(embed_dim, embed_dim, **made)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Every head looks in its own direction, each next point one pixel farther."""
        nn.init.zeros_(self.sampling_offsets.weight)
        turns = torch.arange(self.heads, dtype=torch.float32) / self.heads
        directions = torch.stack(((2 * math.pi * turns).cos(), (2 * math.pi * turns).sin()), -1)
        # The farther coordinate is 1: directions end on a square, not on a circle.
        directions /= directions.abs().amax(-1, keepdim=True)
        steps = torch.cat([torch.arange(1.0, n + 1) for n in self.points])
        ring = directions[:, None, :] * steps[None, :, None]
        self.sampling_offsets.bias.copy_(ring.flatten())
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _check(
        self, query: Tensor, reference: Tensor, sizes: Levels, pixels: Tensor | None = None
    ) -> None:
        for name, tensor in (("query", query), ("input_flatten", pixels)):
            if tensor is None:
                continue
            if tensor.dim() != 3 or tensor.shape[-1] != self.embed_dim:
                raise ValueError(
                    f"{name}: got shape {list(tensor.shape)}, expected 3 dimensions, the last of "
                    f"{self.embed_dim} channels"
                )
        batch, queries = query.shape[:2]
        if pixels is not None and pixels.shape[0] != batch:
            raise ValueError(
                f"input_flatten: got batch {pixels.shape[0]}, expected {batch}, as in query"
            )
        levels = count(sizes)
        if levels != self.levels:
            raise ValueError(
                f"spatial_shapes: got {levels} levels, expected {self.levels}, as the module has"
            )
        shape = list(reference.shape)
        fits = len(shape) == 4 and shape[2] in (1, self.levels) and shape[3] in (2, 4)
        if not fits or shape[0] != batch or shape[1] != queries:
            raise ValueError(
                f"reference_points: got shape {shape}, expected ({batch}, {queries}, "
                f"{self.levels} or 1, 2 or 4): batch and queries of query, levels of the module"
            )

    def _offsets_and_logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        samples = (sum(self.points),) if self._points_differ else (self.levels, self.points[0])
        shape = (*query.shape[:2], self.heads, *samples)
        offsets = self.sampling_offsets(query).view(*shape, 2)
        return offsets, self.attention_weights(query).view(shape)

    @_takes_other_names
    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        spatial_shapes: Levels,
        level_start_index: Starts = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attends to the pyramid.

        Args:
            query: `(batch, queries, embed_dim)`.
            reference_points: `(batch, queries, levels, 2)` as (x, y) from 0 to 1, or `(..., 4)` as
                (x, y, width, height). One level stands for all.
            input_flatten: `(batch, positions, embed_dim)`, the pixels of all levels.
            spatial_shapes: height and width of each level, a list or a tensor `(levels, 2)`.
            level_start_index: the first position of each level, or None: the levels follow each
                other.
            padding_mask: `(batch, positions)`, True where a pixel is padding: it counts as 0.

        Returns:
            `(batch, queries, embed_dim)`.

        Under autocast the linear layers and the value are in 16 bits. Offsets are added to the
        reference points in float32: locations are never rounded to 16 bits.
        """
        spatial_shapes = listed("spatial_shapes", spatial_shapes)
        self._check(query, reference_points, spatial_shapes, input_flatten)
        value = self.value_proj(input_flatten)
        if padding_mask is not None:
            expected = input_flatten.shape[:2]
            if not isinstance(padding_mask, Tensor):
                kind = type(padding_mask).__name__
                raise TypeError(f"padding_mask: got {kind}, expected a tensor of torch.bool")
            if padding_mask.dtype is not torch.bool or padding_mask.shape != expected:
                raise ValueError(
                    f"padding_mask: got {padding_mask.dtype} of shape {list(padding_mask.shape)}, "
                    f"expected torch.bool of shape {list(expected)}"
                )
            value = value.masked_fill(padding_mask[..., None], 0.0)
        value = value.view(*value.shape[:2], self.heads, self.embed_dim // self.heads)
        offsets, logits = self._offsets_and_logits(query)
        output = ms_deform_attn_fused(
            value,
            spatial_shapes,
            level_start_index,
            reference_points,
            offsets,
            logits,
            sampling=self.sampling,
            padding=self.padding,
            align_corners=self.align_corners,
            points=self.points if self._points_differ else None,
        )
        return self.output_proj(output)

    def locations_and_weights(
        self, query: Tensor, reference_points: Tensor, spatial_shapes: Levels
    ) -> tuple[Tensor, Tensor]:
        """Where each query looks, and how much each sample counts, for plots and analysis.

        Returns:
            Locations `(batch, queries, heads, samples, 2)` as (x, y) and weights `(batch, queries,
            heads, samples)`, with the points of all levels in one dimension. `forward` computes
            the same inside the operator. For 16-bit tensors both are in float32, as there.
        """
        spatial_shapes = listed("spatial_shapes", spatial_shapes)
        self._check(query, reference_points, spatial_shapes)
        offsets, logits = self._offsets_and_logits(query)
        wide = torch.promote_types(offsets.dtype, torch.float32)
        offsets = offsets.to(wide).reshape(*query.shape[:2], self.heads, -1, 2)
        reference = reference_points.to(wide).expand(-1, -1, self.levels, -1)
        locations = locations_of(reference, offsets, sizes_of(spatial_shapes), self.points)
        return locations, logits.to(wide).reshape(offsets.shape[:-1]).softmax(-1)

    def extra_repr(self) -> str:
        points = list(self.points) if self._points_differ else self.points[0]
        shape = f"{self.embed_dim}, levels={self.levels}, heads={self.heads}, points={points}"
        options = [f"sampling={self.sampling!r}"] if self.sampling != "bilinear" else []
        options += [f"padding={self.padding!r}"] if self.padding != "zeros" else []
        options += ["align_corners=True"] if self.align_corners else []
        return ", ".join([shape, *options])
