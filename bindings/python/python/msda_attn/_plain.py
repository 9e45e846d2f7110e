"""The operator in plain Python: slow, easy to read, and independent of the compiled part."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a call."""

    batch: int
    queries: int
    heads: int
    channels: int
    levels: tuple[tuple[int, int], ...]
    points: int

    @property
    def positions(self) -> int:
        return sum(height * width for height, width in self.levels)

    @property
    def value(self) -> tuple[int, ...]:
        return (self.batch, self.positions, self.heads, self.channels)

    @property
    def locations(self) -> tuple[int, ...]:
        return (*self.weights, 2)

    @property
    def weights(self) -> tuple[int, ...]:
        return (self.batch, self.queries, self.heads, len(self.levels), self.points)

    @property
    def output(self) -> tuple[int, ...]:
        return (self.batch, self.queries, self.heads * self.channels)


SMALL = Sizes(batch=2, queries=3, heads=2, channels=8, levels=((4, 6), (3, 2)), points=2)


def inputs(sizes: Sizes, seed: int = 0) -> tuple[list[float], list[float], list[float]]:
    """Value, locations and weights as flat lists. Some locations are outside the levels."""
    rng = random.Random(seed)
    value = [rng.uniform(-1, 1) for _ in range(math.prod(sizes.value))]
    weights = [rng.uniform(0, 1) for _ in range(math.prod(sizes.weights))]
    locations = []
    for i in range(math.prod(sizes.weights)):
        height, width = sizes.levels[i // sizes.points % len(sizes.levels)]
        # The gradient of a location jumps where a sample moves to other pixels. Fractions near
        # the middle keep samples of 16-bit locations away from there.
        x = rng.randrange(-2, width + 1) + rng.uniform(0.3, 0.7)
        y = rng.randrange(-2, height + 1) + rng.uniform(0.3, 0.7)
        locations += [(x + 0.5) / width, (y + 0.5) / height]
    return value, locations, weights


def forward(
    sizes: Sizes, value: Sequence[float], locations: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """The output of bilinear samples with zero padding, as a flat list."""
    output = [0.0] * math.prod(sizes.output)
    samples = len(sizes.levels) * sizes.points
    for row in range(sizes.batch * sizes.queries * sizes.heads):
        head, image = row % sizes.heads, row // (sizes.heads * sizes.queries)
        start = 0
        for level, (height, width) in enumerate(sizes.levels):
            for point in range(sizes.points):
                at = row * samples + level * sizes.points + point
                x = locations[2 * at] * width - 0.5
                y = locations[2 * at + 1] * height - 0.5
                left, top = math.floor(x), math.floor(y)
                for column, line in ((0, 0), (1, 0), (0, 1), (1, 1)):
                    px, py = left + column, top + line
                    if not (0 <= px < width and 0 <= py < height):
                        continue
                    share = weights[at] * (1 - abs(x - px)) * (1 - abs(y - py))
                    position = image * sizes.positions + start + py * width + px
                    pixel = (position * sizes.heads + head) * sizes.channels
                    for channel in range(sizes.channels):
                        output[row * sizes.channels + channel] += share * value[pixel + channel]
            start += height * width
    return output


def slope(
    sizes: Sizes,
    tensors: Sequence[Sequence[float]],
    which: int,
    direction: Sequence[float],
    grad_output: Sequence[float],
    step: float = 1e-5,
) -> float:
    """The derivative of `sum(output * grad_output)` along a direction of one input."""

    def loss(way: float) -> float:
        moved = [list(tensor) for tensor in tensors]
        moved[which] = [x + way * d for x, d in zip(moved[which], direction)]
        return sum(o * g for o, g in zip(forward(sizes, *moved), grad_output))

    return (loss(step) - loss(-step)) / (2 * step)
