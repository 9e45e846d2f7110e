"""What several tests use: problems, and a plain computation to compare with."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
import torch.nn.functional as F

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def devices() -> list[str]:
    """The CPU, and the GPU if there is one. With MSDA_GPU=1 a missing GPU is an error."""
    if torch.cuda.is_available():
        return ["cpu", "cuda"]
    if os.environ.get("MSDA_GPU") == "1":
        raise RuntimeError("MSDA_GPU=1, but torch finds no GPU")
    return ["cpu"]


@dataclasses.dataclass
class Inputs:
    """The inputs of a call in its plain form."""

    value: torch.Tensor
    shapes: torch.Tensor
    starts: torch.Tensor
    locations: torch.Tensor
    weights: torch.Tensor

    def __iter__(self):
        return iter((self.value, self.shapes, self.starts, self.locations, self.weights))

    def tensors(self) -> list[torch.Tensor]:
        return [self.value, self.locations, self.weights]

    def requires_grad_(self) -> Inputs:
        for tensor in self.tensors():
            tensor.requires_grad_()
        return self


def problem(
    batch=2,
    queries=7,
    heads=3,
    channels=8,
    levels=((6, 9), (3, 5), (2, 2)),
    points=4,
    dtype=torch.float32,
    device="cpu",
    seed=0,
) -> Inputs:
    """Random inputs. Some locations lie off the map."""
    generator = torch.Generator().manual_seed(seed)
    positions = sum(h * w for h, w in levels)
    shapes = torch.tensor(levels)
    sizes = shapes.prod(1)
    count = len(levels)
    weights = torch.rand(batch, queries, heads, count, points, generator=generator)
    locations = torch.rand(batch, queries, heads, count, points, 2, generator=generator)
    return Inputs(
        torch.randn(batch, positions, heads, channels, generator=generator).to(device, dtype),
        shapes.to(device),
        (sizes.cumsum(0) - sizes).to(device),
        (1.4 * locations - 0.2).to(device, dtype),
        (weights / weights.sum((-1, -2), keepdim=True)).to(device, dtype),
    )


def plain(
    value,
    levels,
    locations,
    weights,
    *,
    points=None,
    mode="bilinear",
    padding="zeros",
    corners=False,
):
    """The operator with grid_sample: the definition that models use on the CPU.

    With `points` per level, the samples of all levels are one dimension.
    """
    batch, _, heads, channels = value.shape
    queries = locations.shape[1]
    points = points or [locations.shape[4]] * len(levels)
    locations = locations.reshape(batch, queries, heads, sum(points), 2)
    sampled = []
    pixels = value.split([h * w for h, w in levels], 1)
    for part, (h, w), where in zip(pixels, levels, locations.split(points, 3)):
        image = part.flatten(2).transpose(1, 2).reshape(batch * heads, channels, h, w)
        grid = 2 * where.transpose(1, 2).flatten(0, 1) - 1
        options = dict(mode=mode, padding_mode=padding, align_corners=corners)
        sampled.append(F.grid_sample(image, grid, **options))
    share = weights.transpose(1, 2).reshape(batch * heads, 1, queries, sum(points))
    output = (torch.cat(sampled, -1) * share).sum(-1)
    return output.view(batch, heads * channels, queries).transpose(1, 2)


def locations_of(reference, offsets, levels, points=None):
    """The locations that the fused form computes. `points` as in `plain`."""
    counts = torch.tensor(points or [offsets.shape[4]] * len(levels))
    level = torch.arange(len(levels)).repeat_interleave(counts)
    flat = offsets.reshape(*offsets.shape[:3], len(level), 2)
    reference = reference.expand(-1, -1, len(levels), -1)[:, :, None, level]
    if reference.shape[-1] == 2:
        moved = flat / torch.tensor(levels).flip(1)[level].to(offsets)
    else:
        moved = flat / counts[level][:, None].to(offsets) * reference[..., 2:] * 0.5
    return (reference[..., :2] + moved).view(offsets.shape)
