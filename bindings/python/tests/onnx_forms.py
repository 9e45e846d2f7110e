"""Multi-scale deformable attention as exports of other projects have it, and changed copies."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = [(6, 9), (3, 5), (2, 2)]
HEADS, CHANNELS, QUERIES, POINTS = 3, 8, 7, 4
NAMES = ["value", "locations", "weights"]


def arguments(form: str) -> tuple[Tensor, ...]:
    """Inputs of a form."""
    generator = torch.Generator().manual_seed(0)
    positions = sum(h * w for h, w in LEVELS)
    value = torch.randn(2, positions, HEADS, CHANNELS, generator=generator)
    shape = (2, QUERIES, HEADS, len(LEVELS), POINTS)
    locations = 1.4 * torch.rand(*shape, 2, generator=generator) - 0.2
    weights = torch.rand(shape, generator=generator)
    if form == "flat value":
        value = value.flatten(2)
    elif form == "channels first":
        value = value.permute(0, 2, 3, 1).contiguous()
    return value, locations, weights


def by_gathers(image: Tensor, grid: Tensor) -> Tensor:
    """`grid_sample` without GridSample: four gathers from a padded map."""
    rows, channels, height, width = image.shape
    x = (((grid[..., 0] + 1) * width - 1) / 2).reshape(rows, -1)
    y = (((grid[..., 1] + 1) * height - 1) / 2).reshape(rows, -1)
    left, top = torch.floor(x), torch.floor(y)
    pixels = F.pad(image, [1, 1, 1, 1]).view(rows, channels, -1)
    total = 0
    for dx in (0, 1):
        for dy in (0, 1):
            share = (1 - (x - left - dx).abs()) * (1 - (y - top - dy).abs())
            column = (left + dx + 1).clamp(0, width + 1).long()
            row = (top + dy + 1).clamp(0, height + 1).long()
            index = (row * (width + 2) + column)[:, None].expand(-1, channels, -1)
            total = total + torch.gather(pixels, 2, index) * share[:, None]
    return total.reshape(rows, channels, *grid.shape[1:3])


class Form(torch.nn.Module):
    """One way to write the operator. `change` makes it compute something else."""

    def __init__(self, form: str, change: str = "") -> None:
        super().__init__()
        self.form, self.change = form, change

    def sample(self, image: Tensor, grid: Tensor, level: int) -> Tensor:
        grid = GRID_CHANGES.get(self.change, lambda grid: grid)(grid)
        if self.form == "gather":
            return by_gathers(image, grid)
        options = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}
        name, _, where = self.change.partition(", ")
        if not where or level == 1:
            options |= OPTIONS.get(name, {})
        return F.grid_sample(image, grid, **options)

    def forward(self, value: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
        if self.form == "flat value":
            value = value.view(*value.shape[:2], HEADS, CHANNELS)
        elif self.form == "channels first":
            value = value.permute(0, 3, 1, 2)
        batch, _, heads, channels = value.shape
        queries, levels, points = locations.shape[1], locations.shape[3], locations.shape[4]
        maps = value.split([h * w for h, w in LEVELS], 1)
        grids = (2.01 if self.change == "2.01x - 1" else 2) * locations - 1
        parts = []
        for level, (height, width) in enumerate(LEVELS):
            image = maps[level].flatten(2).transpose(1, 2)
            image = image.reshape(batch * heads, channels, height, width)
            at = {0: 1, 1: 0}.get(level, level) if self.change == "swapped levels" else level
            grid = grids[:, :, :, at].transpose(1, 2).flatten(0, 1)
            sampled = self.sample(image, grid, level)
            share = weights[:, :, :, level].transpose(1, 2)
            if self.form == "per level":
                share = share.reshape(batch * heads, 1, queries, points)
                sampled = (sampled * share).sum(-1)
            elif self.form == "matmul":
                share = share.reshape(batch * heads, queries, points, 1)
                sampled = torch.matmul(sampled.permute(0, 2, 1, 3), share)[..., 0].transpose(1, 2)
            parts.append(sampled)
        if self.form in ("per level", "matmul"):
            total = parts[0] + parts[1] + parts[2]
        elif self.form == "einsum":
            share = weights.transpose(1, 2).flatten(0, 1)
            total = torch.einsum("ncqlp,nqlp->ncq", torch.stack(parts, -2), share)
        else:
            share = weights.transpose(1, 2).reshape(batch * heads, 1, queries, levels * points)
            total = (torch.stack(parts, -2).flatten(-2) * share).sum(-1)
        return total.reshape(batch, heads * channels, queries).transpose(1, 2).contiguous()


FORMS = ("stack", "per level", "matmul", "einsum", "gather", "flat value", "channels first")
OPTIONS = {
    "border": {"padding_mode": "border"},
    "reflection": {"padding_mode": "reflection"},
    "corners": {"align_corners": True},
    "nearest": {"mode": "nearest"},
}
ONE_LEVEL = tuple(f"{name}, one level" for name in ("border", "corners", "nearest"))
CHANGES = ("swapped levels", "2.01x - 1", *OPTIONS, *ONE_LEVEL)
# These differ for locations off the map only.
GRID_CHANGES = {
    "wrapped grid": lambda grid: torch.where(grid > 1.6, grid - 2, grid),
    "masked grid": lambda grid: torch.where(grid.abs() > 2, torch.zeros_like(grid), grid),
    "clamped grid": lambda grid: grid.clamp(-1.1, 1.1),
    "grid at least -1.2": lambda grid: torch.maximum(grid, torch.tensor(-1.2)),
}


class Arithmetic(torch.nn.Module):
    """The operator with the arithmetic of Deformable-DETR around it, and a change of that."""

    def __init__(self, change: str, operator: Callable[..., Tensor]) -> None:
        super().__init__()
        self.change, self.operator = change, operator

    def changed(self, name: str, tensor: Tensor) -> Tensor:
        what, change = ARITHMETIC_CHANGES.get(self.change, ("", None))
        return change(tensor) if what == name else tensor

    def forward(self, value: Tensor, reference: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
        reference = self.changed("points", reference)
        offsets, logits = self.changed("offsets", offsets), self.changed("logits", logits)
        weights = logits.flatten(3).softmax(-1).view_as(logits)
        sizes = torch.tensor([[float(w), float(h)] for h, w in LEVELS])
        if reference.shape[-1] == 4:
            moved = offsets / POINTS * reference[:, :, None, :, None, 2:] * 0.5
        else:
            moved = offsets / sizes[None, None, None, :, None, :]
        locations = self.changed("locations", reference[:, :, None, :, None, :2] + moved)
        return self.operator(value, LEVELS, None, locations, weights)


ARITHMETIC_NAMES = ["value", "reference", "offsets", "logits"]
ARITHMETIC_CHANGES = {
    "clamped points": ("points", lambda x: x.clamp(0, 1)),
    "points inside": ("points", lambda x: x.clamp(0.01, 0.99)),
    "points at least 0": ("points", lambda x: torch.maximum(x, torch.tensor(0.0))),
    "points at most 1": ("points", lambda x: torch.minimum(x, torch.tensor(1.0))),
    "wrapped points": ("points", lambda x: torch.where(x > 1, x - 1, x)),
    "clamped offsets": ("offsets", lambda x: x.clamp(-20, 20)),
    "clamped logits": ("logits", lambda x: x.clamp(-40, 40)),
    "clamped locations": ("locations", lambda x: x.clamp(-3, 4)),
    "wrapped locations": ("locations", lambda x: torch.where(x > 1.5, x - 1, x)),
}


def arithmetic_arguments(boxes: bool, wide: bool = False) -> tuple[Tensor, ...]:
    """Inputs of `Arithmetic`; `wide` ones reach where a change shows."""
    generator = torch.Generator().manual_seed(0)
    value, _, weights = arguments("stack")
    reference = torch.rand(2, QUERIES, len(LEVELS), 4 if boxes else 2, generator=generator)
    offsets = 2 * torch.randn(*weights.shape, 2, generator=generator)
    logits = torch.randn(weights.shape, generator=generator)
    if wide:
        reference, offsets, logits = 3 * reference - 1, 15 * offsets, 40 * logits
    return value, reference, offsets, logits
