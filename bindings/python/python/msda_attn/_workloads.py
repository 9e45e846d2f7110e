"""Calls of well-known models, for `python -m msda_attn bench`."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sizes of a call. `queries` is 0 where there is one query per position."""

    about: str
    batch: int
    queries: int
    heads: int
    channels: int
    levels: tuple[tuple[int, int], ...]
    points: int | tuple[int, ...]
    references: str  # 'pixels', 'grid', 'random' or 'clustered'

    @property
    def positions(self) -> int:
        return sum(height * width for height, width in self.levels)

    @property
    def rows(self) -> int:
        return self.queries or self.positions

    @property
    def counts(self) -> tuple[int, ...]:
        """Points per level."""
        return (self.points,) * len(self.levels) if isinstance(self.points, int) else self.points


_DETR = ((100, 167), (50, 84), (25, 42), (13, 21))
_640 = ((80, 80), (40, 40), (20, 20))
_BEV = ((116, 200), (58, 100), (29, 50), (15, 25))

WORKLOADS = {
    "detr-encoder": Workload(
        "Deformable-DETR encoder at 800x1333, batch 4", 4, 0, 8, 32, _DETR, 4, "pixels"
    ),
    "detr-decoder": Workload(
        "Deformable-DETR decoder at 800x1333, batch 4", 4, 300, 8, 32, _DETR, 4, "random"
    ),
    "dino-encoder": Workload(
        "DINO encoder with five scales at 800x1333, batch 2",
        2, 0, 8, 32, ((200, 334), *_DETR), 4, "pixels",
    ),
    "mask2former": Workload(
        "Mask2Former pixel decoder at 1024x1024",
        2, 0, 8, 32, ((32, 32), (64, 64), (128, 128)), 4, "pixels",
    ),
    "bevformer-temporal": Workload(
        "BEVFormer temporal self-attention: a 200x200 grid over itself and its past",
        2, 40000, 8, 32, ((200, 200),), 4, "grid",
    ),
    "bevformer-cross": Workload(
        "BEVFormer cross-attention with every reference point on the image, queries in no order",
        6, 9664, 8, 32, _BEV, 8, "random",
    ),
    "rt-detr-decoder": Workload(
        "RT-DETR decoder at 640x640, batch 16", 16, 300, 8, 32, _640, 4, "random"
    ),
    "rf-detr-decoder": Workload(
        "RF-DETR base decoder: one level, 16 heads of 16 channels, 2 points",
        8, 300, 16, 16, ((40, 40),), 2, "random",
    ),
    "d-fine-decoder": Workload(
        "D-FINE decoder at 640x640: a different number of points on each level",
        8, 300, 8, 32, _640, (3, 6, 3), "clustered",
    ),
    "small": Workload(
        "A quick check of everything: two levels, few queries",
        1, 400, 4, 32, ((24, 32), (12, 16)), 4, "grid",
    ),
}  # fmt: skip

# Its work takes no time: the time of a call is the time of the host.
TINY = Workload("one sample", 1, 1, 1, 8, ((2, 2),), 1, "random")


@dataclasses.dataclass
class Call:
    """Tensors of a call. All floating-point tensors have one type, as most peers require."""

    value: Tensor  # (batch, positions, heads, channels)
    shapes: Tensor  # (levels, 2)
    starts: Tensor  # (levels)
    locations: Tensor  # (batch, queries, heads, levels, points, 2), or all samples in one dimension
    weights: Tensor  # the same without the last dimension
    levels: list[tuple[int, int]]
    counts: tuple[int, ...]

    @property
    def same_points(self) -> bool:
        return len(set(self.counts)) == 1

    def some(self, rows: Tensor) -> Call:
        """The call of some queries, in float64."""
        return dataclasses.replace(
            self,
            value=self.value.detach().double(),
            locations=self.locations.detach()[:, rows].double(),
            weights=self.weights.detach()[:, rows].double(),
        )

    def inputs(self) -> list[Tensor]:
        return [self.value, self.locations, self.weights]


def _reference_points(workload: Workload, generator: torch.Generator) -> Tensor:
    """`(batch, queries, 2)` as (x, y)."""
    batch, rows = workload.batch, workload.rows
    if workload.references == "random":
        return torch.rand(batch, rows, 2, generator=generator)
    if workload.references == "clustered":
        centres = torch.rand(batch, 8, 2, generator=generator)
        chosen = torch.randint(8, (batch, rows, 1), generator=generator).expand(-1, -1, 2)
        noise = torch.randn(batch, rows, 2, generator=generator) * 0.05
        return (centres.gather(1, chosen) + noise).clamp(0, 1)
    if workload.references == "grid":
        height, width = workload.levels[0]
        columns = max(1, round(math.sqrt(rows * width / height)))
        grids = [(math.ceil(rows / columns), columns)]
    else:
        grids = list(workload.levels)
    centres = []
    for height, width in grids:
        y, x = torch.meshgrid(
            (torch.arange(height) + 0.5) / height,
            (torch.arange(width) + 0.5) / width,
            indexing="ij",
        )
        centres.append(torch.stack((x, y), -1).view(-1, 2))
    return torch.cat(centres)[:rows].expand(batch, -1, 2)


def make(workload: Workload, dtype: torch.dtype, device: str, seed: int = 1) -> Call:
    """Random values; samples 1, 2, ... pixels from a reference point, plus noise of 2 pixels."""
    generator = torch.Generator().manual_seed(seed)
    batch, rows, heads = workload.batch, workload.rows, workload.heads
    reference = _reference_points(workload, generator)
    angles = torch.arange(heads) * (2 * math.pi / heads)
    directions = torch.stack((angles.cos(), angles.sin()), -1)
    parts = []
    for (height, width), count in zip(workload.levels, workload.counts):
        size = torch.tensor([width, height], dtype=torch.float32)
        ring = directions[:, None] * torch.arange(1, count + 1)[:, None]
        noise = 2 * torch.randn(batch, rows, heads, count, 2, generator=generator)
        pixel = reference[:, :, None, None] * size - 0.5 + ring + noise
        # The gradient of a location jumps at pixel centres: samples keep away from them.
        whole = pixel.floor()
        parts.append((whole + (pixel - whole).clamp(0.02, 0.98) + 0.5) / size)
    locations = torch.cat(parts, 3)
    weights = torch.randn(batch, rows, heads, locations.shape[3], generator=generator).softmax(-1)
    if len(set(workload.counts)) == 1:
        locations = locations.view(batch, rows, heads, len(workload.levels), -1, 2)
        weights = weights.view(locations.shape[:-1])
    shape = (batch, workload.positions, heads, workload.channels)
    value = torch.randn(shape, generator=generator)
    shapes = torch.tensor(workload.levels)
    sizes = shapes.prod(1)
    return Call(
        value.to(device, dtype),
        shapes.to(device),
        (sizes.cumsum(0) - sizes).to(device),
        locations.to(device, dtype),
        weights.to(device, dtype),
        list(workload.levels),
        workload.counts,
    )
