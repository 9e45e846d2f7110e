"""Calls of well-known models, for `python -m msda_attn bench`.

The keys of a workload are those of crates/msda-bench/workloads/README.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any

import torch
from torch import Tensor

from . import _native


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name).loads(text)
        except ModuleNotFoundError:
            pass
    raise ImportError("tomllib: got none, expected Python 3.11 or newer\nhint: pip install tomli")


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sizes of a call, and where it samples. `queries` is 0 for one query per position."""

    about: str
    batch: int
    queries: int
    heads: int
    channels: int
    levels: tuple[tuple[int, int], ...]
    points: tuple[int, ...]
    kind: str = "reference"
    references: str = "random"
    spread: float = 2.0
    outside: float = 0.0
    seed: int = 1

    @classmethod
    def parse(cls, text: str) -> Workload:
        """A workload from its file, which the command `msda` checks."""
        table = read_toml(text)
        levels = tuple((height, width) for height, width in table["levels"])
        points = table["points"]
        return cls(
            table["about"],
            table["batch"],
            0 if table["queries"] == "positions" else table["queries"],
            table["heads"],
            table["channels"],
            levels,
            (points,) * len(levels) if isinstance(points, int) else tuple(points),
            **table["locations"],
        )

    @property
    def positions(self) -> int:
        return sum(height * width for height, width in self.levels)

    @property
    def rows(self) -> int:
        return self.queries or self.positions


def built_in() -> dict[str, Workload]:
    """The workloads of the repository."""
    return {name: Workload.parse(text) for name, text in _native.WORKLOADS}


# Its work takes no time: the time of a call is the time of the host.
TINY = Workload("one sample", 1, 1, 1, 8, ((2, 2),), (1,))


@dataclasses.dataclass
class Call:
    """Tensors of a call. All floating-point tensors have one type, as most peers require."""

    value: Tensor  # (batch, positions, heads, channels)
    shapes: Tensor  # (levels, 2)
    starts: Tensor  # (levels)
    locations: Tensor  # (batch, queries, heads, levels, points, 2), or all samples in one dimension
    weights: Tensor  # the same without the last dimension
    levels: list[tuple[int, int]]
    points: tuple[int, ...]  # per level

    @property
    def same_points(self) -> bool:
        return len(set(self.points)) == 1

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

    def differentiable(self) -> Call:
        """A copy whose inputs have gradients."""
        value, locations, weights = (tensor.clone().requires_grad_() for tensor in self.inputs())
        return dataclasses.replace(self, value=value, locations=locations, weights=weights)


def _centres(height: int, width: int) -> Tensor:
    """The centres of a grid as (x, y), row by row."""
    y, x = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij"
    )
    return torch.stack((x, y), -1).view(-1, 2)


def _reference_points(workload: Workload, generator: torch.Generator) -> Tensor:
    """`(batch, queries, 2)` as (x, y)."""
    batch, rows = workload.batch, workload.rows
    if workload.kind == "clustered":
        centres = torch.rand(batch, 8, 2, generator=generator)
        chosen = torch.randint(8, (batch, rows, 1), generator=generator).expand(-1, -1, 2)
        noise = torch.randn(batch, rows, 2, generator=generator) * 0.05
        return centres.gather(1, chosen) + noise
    if workload.references == "random":
        return torch.rand(batch, rows, 2, generator=generator)
    if workload.references == "pixels":
        centres = torch.cat([_centres(*level) for level in workload.levels])
    else:
        height, width = workload.levels[0]
        columns = max(1, math.ceil(math.sqrt(rows * width / height)))
        centres = _centres(math.ceil(rows / columns), columns)
    return centres[:rows].expand(batch, -1, 2)


def _locations(workload: Workload, generator: torch.Generator) -> Tensor:
    """Samples 1, 2, ... pixels from a reference point, plus noise; or as `kind` says."""
    batch, rows, heads = workload.batch, workload.rows, workload.heads
    reference = _reference_points(workload, generator)
    angles = torch.arange(heads) * (2 * math.pi / heads)
    directions = torch.stack((angles.cos(), angles.sin()), -1)
    parts = []
    for (height, width), count in zip(workload.levels, workload.points):
        size = torch.tensor([width, height], dtype=torch.float32)
        shape = (batch, rows, heads, count, 2)
        if workload.kind == "uniform":
            at = torch.rand(shape, generator=generator)
        elif workload.kind == "point":
            at = torch.full(shape, 0.51)
        else:
            ring = directions[:, None] * torch.arange(1, count + 1)[:, None]
            noise = workload.spread * torch.randn(shape, generator=generator)
            at = reference[:, :, None, None] + (ring + noise) / size
        if workload.outside:
            moved = torch.rand(shape[:-1], generator=generator) < workload.outside
            axis = torch.randint(2, shape[:-1], generator=generator)
            far = 1.1 + 1.9 * torch.rand(shape[:-1], generator=generator)
            far = torch.where(torch.rand(far.shape, generator=generator) < 0.5, -far, far) + 0.5
            chosen = moved[..., None] & (axis[..., None] == torch.arange(2))
            at = torch.where(chosen, far[..., None], at)
        # The gradient of a location jumps at pixel centres: samples keep away from them.
        pixel = at * size - 0.5
        whole = pixel.floor()
        parts.append((whole + (pixel - whole).clamp(0.02, 0.98) + 0.5) / size)
    return torch.cat(parts, 3)


def make(workload: Workload, dtype: torch.dtype, device: str) -> Call:
    """Random tensors, which are the same on every machine."""
    generator = torch.Generator().manual_seed(workload.seed)
    locations = _locations(workload, generator)
    weights = torch.randn(locations.shape[:-1], generator=generator).softmax(-1)
    if len(set(workload.points)) == 1:
        locations = locations.unflatten(3, (len(workload.levels), -1))
        weights = weights.view(locations.shape[:-1])
    shape = (workload.batch, workload.positions, workload.heads, workload.channels)
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
        workload.points,
    )
