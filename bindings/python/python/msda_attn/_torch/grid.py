"""The operator through torch's `grid_sample`: for exports to ONNX, and to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .._options import decode
from .levels import Levels, Starts, flat, sizes_of

# `msda_attn.onnx.export` writes the operator itself; other exports of ONNX get this file's nodes.
operator_wanted = False


def sample(
    value: Tensor,
    levels: Sequence[Sequence[int]],
    locations: Tensor,
    weights: Tensor,
    counts: Sequence[int],
    starts: Starts = None,
    **options: object,
) -> Tensor:
    """The operator, one level after the other. `counts` are points per level."""
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    options = {"align_corners": False, **options}
    maps = _maps(value, levels, starts)
    grid = (2 * locations - 1).reshape(batch, queries, heads, -1, 2)
    grid = grid.transpose(1, 2).flatten(0, 1).to(value.dtype)
    samples = []
    for pixels, (height, width), part in zip(maps, levels, grid.split(list(counts), 2)):
        pixels = pixels.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        samples.append(F.grid_sample(pixels, part, **options))
    weights = weights.reshape(batch, queries, heads, -1).transpose(1, 2).flatten(0, 1)
    output = (torch.cat(samples, -1) * weights[:, None].to(value.dtype)).sum(-1)
    return output.view(batch, heads * channels, queries).transpose(1, 2).contiguous()


def _maps(value: Tensor, levels: Sequence[Sequence[int]], starts: Starts) -> Sequence[Tensor]:
    """The pixels of each level."""
    sizes = [height * width for height, width in levels]
    if isinstance(starts, Tensor):
        if torch.compiler.is_compiling():
            # The numbers are not known yet.
            index = lambda start, size: start + torch.arange(size, device=starts.device)
            parts = zip(starts, sizes, strict=True)
            return [value.index_select(1, index(*part).to(value.device)) for part in parts]
        starts = starts.tolist()
    usual = flat(levels, None)[2::3]
    first = flat(levels, starts)[2::3]
    if first == usual:
        return value.split(sizes, 1)
    return [value.narrow(1, start, size) for start, size in zip(first, sizes)]


def locations_of(
    reference: Tensor, offsets: Tensor, levels: Sequence[Sequence[int]], counts: Sequence[int]
) -> Tensor:
    """The locations of the fused form. All samples are one dimension of `offsets`."""
    parts = []
    for level, part in enumerate(offsets.split(list(counts), 3)):
        base = reference[:, :, None, level, None]
        if reference.shape[-1] == 2:
            height, width = levels[level]
            size = torch.tensor([width, height], dtype=base.dtype, device=base.device)
            parts.append(base + part / size)
        else:
            parts.append(base[..., :2] + part / counts[level] * base[..., 2:] * 0.5)
    return torch.cat(parts, 3)


def run(
    tensors: tuple[Tensor, ...], shapes: Levels, starts: Starts, numbers: tuple[int, int]
) -> Tensor:
    """A call of the operator, plain or fused, with the numbers of `_options.encode`."""
    value, *reference, locations, weights = tensors
    levels = sizes_of(shapes)
    options, counts = decode(*numbers, len(levels))
    counts = counts or [locations.shape[4]] * len(levels)
    if reference:
        locations = locations_of(reference[0], locations.flatten(3, -2), levels, counts)
        weights = weights.flatten(3).softmax(-1)
    return sample(value, levels, locations, weights, counts, starts, **options)
