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


def plain(value, levels, locations, weights, *, mode="bilinear", padding="zeros", corners=False):
    """The operator with grid_sample: the definition that models use on the CPU."""
    batch, _, heads, channels = value.shape
    queries, count, points = locations.shape[1], locations.shape[3], locations.shape[4]
    sampled = []
    for level, (part, (h, w)) in enumerate(zip(value.split([h * w for h, w in levels], 1), levels)):
        image = part.flatten(2).transpose(1, 2).reshape(batch * heads, channels, h, w)
        grid = 2 * locations[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
        sampled.append(
            F.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=corners)
        )
    share = weights.transpose(1, 2).reshape(batch * heads, 1, queries, count * points)
    output = (torch.stack(sampled, -2).flatten(-2) * share).sum(-1)
    return output.view(batch, heads * channels, queries).transpose(1, 2)


def locations_of(reference, offsets, levels):
    """The locations that the fused form computes."""
    points = offsets.shape[4]
    if reference.shape[-1] == 2:
        sizes = torch.tensor(
            [(w, h) for h, w in levels], dtype=offsets.dtype, device=offsets.device
        )
        return reference[:, :, None, :, None] + offsets / sizes[None, None, None, :, None]
    centre, size = reference[..., :2], reference[..., 2:]
    return centre[:, :, None, :, None] + offsets / points * size[:, :, None, :, None] * 0.5
