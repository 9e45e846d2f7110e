"""The attention module of Deformable-DETR around the operator."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._options import encode_options, encode_points
from .functional import ms_deform_attn_fused
from .levels import Levels, Starts


def _points_per_level(points: int | Sequence[int], levels: int) -> tuple[int, ...]:
    expected = f"expected a number above 0, or {levels} numbers, one per level"
    try:
        counts = (points,) * levels if isinstance(points, int) else tuple(points)
        counts = tuple(operator.index(n) for n in counts)
    except TypeError:
        raise TypeError(f"points: got {points!r}, {expected}") from None
    if len(counts) != levels or any(n < 0 for n in counts) or not any(counts):
        raise ValueError(f"points: got {points!r}, {expected}")
    return counts


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
    """

    def __init__(
        self,
        embed_dim: int = 256,
        levels: int = 4,
        heads: int = 8,
        points: int | Sequence[int] = 4,
        *,
        sampling: str = "bilinear",
        padding: str = "zeros",
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
        if not all(isinstance(n, int) for n in sizes):
            raise TypeError(expected)
        if min(sizes) < 1 or embed_dim % heads:
            raise ValueError(expected)
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

    def _check(self, name: str, tensor: Tensor) -> None:
        if tensor.dim() != 3 or tensor.shape[-1] != self.embed_dim:
            raise ValueError(
                f"{name}: got shape {list(tensor.shape)}, expected 3 dimensions, the last of "
                f"{self.embed_dim} channels"
            )

    def _offsets_and_logits(self, query: Tensor) -> tuple[Tensor, Tensor]:
        samples = (sum(self.points),) if self._points_differ else (self.levels, self.points[0])
        shape = (*query.shape[:2], self.heads, *samples)
        offsets = self.sampling_offsets(query).view(*shape, 2)
        return offsets, self.attention_weights(query).view(shape)

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
        self._check("query", query)
        self._check("input_flatten", input_flatten)
        value = self.value_proj(input_flatten)
        if padding_mask is not None:
            expected = input_flatten.shape[:2]
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
            the same inside the operator.
        """
        offsets, logits = self._offsets_and_logits(query)
        offsets = offsets.reshape(*query.shape[:2], self.heads, -1, 2)
        counts = torch.tensor(self.points, device=query.device)
        reference = reference_points.expand(-1, -1, self.levels, -1)
        reference = reference.repeat_interleave(counts, 2)[:, :, None]
        if reference.shape[-1] == 2:
            sizes = torch.as_tensor(spatial_shapes, device=query.device).flip(-1)
            scale = 1 / sizes.to(reference.dtype).repeat_interleave(counts, 0)
        else:
            scale = reference[..., 2:] / (2 * counts.repeat_interleave(counts)[:, None])
        weights = logits.reshape(*offsets.shape[:-1]).softmax(-1)
        return reference[..., :2] + offsets * scale, weights

    def extra_repr(self) -> str:
        points = list(self.points) if self._points_differ else self.points[0]
        shape = f"{self.embed_dim}, levels={self.levels}, heads={self.heads}, points={points}"
        options = [f"sampling={self.sampling!r}"] if self.sampling != "bilinear" else []
        options += [f"padding={self.padding!r}"] if self.padding != "zeros" else []
        options += ["align_corners=True"] if self.align_corners else []
        return ", ".join([shape, *options])
