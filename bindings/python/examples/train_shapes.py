"""Trains a tiny detector with msda.MSDeformAttn until it finds shapes in synthetic images.

    python examples/train_shapes.py --out shapes

It takes about a minute on a CPU. It prints its progress and writes `loss.png`, the curve of the
loss, and `detector.pt`, the weights. The examples draw with matplotlib.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import matplotlib.figure
import msda_attn as msda
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 64  # pixels of an image
CELLS = 4  # queries per row and column: each is responsible for one cell of the image
NAMES = ("nothing", "circle", "square", "triangle")


def make_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Images `(count, 3, 64, 64)`, classes `(count, 16)` and boxes `(count, 16, 4)` per cell."""
    cells = CELLS * CELLS
    shapes = torch.randint(1, 4, (count, cells), generator=generator)
    there = torch.rand(count, cells, generator=generator) < 0.2
    classes = torch.where(there, shapes, 0)
    corner = torch.stack((torch.arange(cells) % CELLS, torch.arange(cells) // CELLS), -1)
    centre = (corner + 0.15 + 0.7 * torch.rand(count, cells, 2, generator=generator)) / CELLS
    size = 0.12 + 0.16 * torch.rand(count, cells, 1, generator=generator).expand(-1, -1, 2)
    boxes = torch.cat((centre, size), -1)
    images = 0.3 * torch.rand(count, 3, SIDE, SIDE, generator=generator)
    colors = 0.5 + 0.5 * torch.rand(count, cells, 3, generator=generator)
    ticks = (torch.arange(SIDE) + 0.5) / SIDE
    for image, cell in there.nonzero().tolist():
        # Distances from the centre in units of half the size: -1 to 1 within the box.
        x = (ticks - centre[image, cell, 0]) / size[image, cell, 0] * 2
        y = (ticks[:, None] - centre[image, cell, 1]) / size[image, cell, 1] * 2
        kind = NAMES[classes[image, cell]]
        if kind == "circle":
            inside = x**2 + y**2 < 1
        elif kind == "square":
            inside = torch.maximum(x.abs(), y.abs()) < 1
        else:
            inside = (y.abs() < 1) & (2 * x.abs() < y + 1)
        images[image, :, inside] = colors[image, cell, :, None]
    return images, classes, boxes


class Layer(nn.Module):
    """Deformable cross-attention and a feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = msda.MSDeformAttn(width, levels=3, heads=4, points=4)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        wide = 2 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, query: Tensor, reference: Tensor, pyramid: Tensor, shapes: list) -> Tensor:
        query = query + self.attention(self.norms[0](query), reference, pyramid, shapes)
        return query + self.mlp(self.norms[1](query))


class Detector(nn.Module):
    """A pyramid of three levels, 16 queries, and two layers: the second looks at boxes."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()

        def halve(channels: int, out: int) -> nn.Module:
            conv = nn.Conv2d(channels, out, 3, stride=2, padding=1)
            return nn.Sequential(conv, nn.GroupNorm(4, out), nn.GELU())

        self.stem = nn.Sequential(halve(3, 24), halve(24, width))
        self.down = nn.ModuleList([halve(width, width), halve(width, width)])
        self.query = nn.Parameter(0.1 * torch.randn(CELLS * CELLS, width))
        self.layers = nn.ModuleList([Layer(width), Layer(width)])
        self.boxes = nn.ModuleList([nn.Linear(width, 4), nn.Linear(width, 4)])
        self.classes = nn.Linear(width, len(NAMES))
        cells = torch.arange(CELLS * CELLS)
        centre = (torch.stack((cells % CELLS, cells // CELLS), -1) + 0.5) / CELLS
        self.register_buffer("anchors", torch.cat((centre, torch.full_like(centre, 0.2)), -1))

    def pyramid(self, images: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
        """The pixels of all levels `(batch, positions, width)`, and the sizes of the levels."""
        maps = [self.stem(images)]
        for layer in self.down:
            maps.append(layer(maps[-1]))
        shapes = [(m.shape[2], m.shape[3]) for m in maps]
        return torch.cat([m.flatten(2).transpose(1, 2) for m in maps], 1), shapes

    def forward(self, images: Tensor) -> dict[str, object]:
        """Logits of the classes, boxes after each layer, and what the last layer was given."""
        pyramid, shapes = self.pyramid(images)
        # Not len(images): an export would make a constant of it.
        batch = images.shape[0]
        query = self.query.expand(batch, -1, -1)
        # The first layer looks around points, the second around the boxes that the first found.
        reference = self.anchors[:, :2].expand(batch, -1, -1)
        box, found, given = self.anchors.expand(batch, -1, -1), [], query
        for layer, head in zip(self.layers, self.boxes):
            given = query
            query = layer(query, reference[:, :, None], pyramid, shapes)
            moved = head(query)
            centre = box[..., :2] + 0.1 * moved[..., :2]
            last = reference
            box = torch.cat((centre, box[..., 2:] * moved[..., 2:].clamp(-2, 2).exp()), -1)
            found.append(box)
            reference = box = box.detach() if len(found) < len(self.layers) else box
        return {
            "logits": self.classes(query),
            "boxes": found,
            "last": (self.layers[-1], given, last, shapes),
        }


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (x, y, width, height)."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - both).clamp(min=1e-6)


def loss_of(result: dict, classes: Tensor, boxes: Tensor) -> Tensor:
    total = F.cross_entropy(result["logits"].flatten(0, 1), classes.flatten())
    there = classes > 0
    for found in result["boxes"]:
        distance = (found - boxes)[there].abs().sum(-1).mean()
        total = total + 2 * distance + (1 - overlap(found, boxes)[there]).mean()
    return total


@torch.no_grad()
def score(model: Detector, images: Tensor, classes: Tensor, boxes: Tensor) -> float:
    """F1: 1 if every shape is found, with its class and half of its box, and nothing else is."""
    result = model(images)
    guess = result["logits"].argmax(-1)
    right = (guess == classes) & (classes > 0) & (overlap(result["boxes"][-1], boxes) > 0.5)
    return (2 * right.sum() / ((guess > 0).sum() + (classes > 0).sum())).item()


def train(steps: int, goal: float, say=print) -> tuple[Detector, list[float], float]:
    """Trains until the score reaches the goal: the model, its loss curve, and its score."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    held_out = make_images(128, torch.Generator().manual_seed(2))
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 4e-3, total_steps=steps, pct_start=0.1
    )
    curve, start, reached = [], time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        images, classes, boxes = make_images(24, generator)
        loss = loss_of(model(images), classes, boxes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        curve.append(loss.item())
        if step % 50 == 0 or step == steps:
            reached = score(model, *held_out)
            seconds = time.perf_counter() - start
            say(f"step {step:4}  loss {loss.item():5.2f}  found {reached:4.0%}  {seconds:5.1f} s")
            if reached >= goal:
                break
    return model, curve, reached


def draw(path: pathlib.Path, losses: list[float], around: int = 10) -> None:
    """The loss of each step, and the mean of the step and its neighbours."""
    parts = [losses[max(0, i - around) : i + around + 1] for i in range(len(losses))]
    figure = matplotlib.figure.Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, label="each step", alpha=0.4)
    axes.plot([sum(part) / len(part) for part in parts], label=f"mean of {2 * around + 1}")
    axes.set(title="A detector of shapes learns", xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("shapes"))
    parser.add_argument("--steps", type=int, default=800, help="the most steps")
    parser.add_argument("--goal", type=float, default=0.97, help="stop at this score")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    model, curve, reached = train(args.steps, args.goal, lambda line: print(line, flush=True))
    draw(args.out / "loss.png", curve)
    torch.save(model.state_dict(), args.out / "detector.pt")
    print(f"wrote {args.out / 'loss.png'} and {args.out / 'detector.pt'}")
    print(f"{'found' if reached >= args.goal else 'did not find'} the shapes: score {reached:.0%}")
    return 0 if reached >= args.goal else 1


if __name__ == "__main__":
    sys.exit(main())
