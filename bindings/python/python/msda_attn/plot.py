"""Pictures of sampling points, with matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

try:
    import matplotlib.figure
    import matplotlib.patches
except ImportError:
    raise ImportError("msda_attn.plot needs matplotlib\nhint: pip install matplotlib") from None
import numpy as np

# The colour of each level. People with any kind of colour vision can tell them apart.
COLORS = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#f0e442", "#787878")


def sampling_points(
    path: str | os.PathLike[str],
    image: Any,
    locations: Any,
    weights: Any,
    points: Sequence[int],
    *,
    reference: Sequence[float] | None = None,
    boxes: Sequence[Sequence[float]] = (),
    title: str = "",
) -> None:
    """Draws where one query looks, and saves the picture.

    Args:
        path: the file. Its ending names the format, such as `.png`.
        image: `(height, width, 3)` with numbers from 0 to 1.
        locations: `(heads, samples, 2)` as (x, y) from 0 to 1; the points of the first level come
            first. Samples with NaN or infinite numbers are left out.
        weights: `(heads, samples)`. The area of a disc is proportional to its weight.
        points: points per level. Each level has its colour.
        reference: the reference point of the query, (x, y) or (x, y, width, height).
        boxes: outlines to draw, (x, y, width, height) each, with the centre at (x, y).
    """
    image, places, shares = np.asarray(image), np.asarray(locations), np.asarray(weights)
    samples = sum(points)
    if places.ndim != 3 or places.shape[1:] != (samples, 2) or shares.shape != places.shape[:2]:
        raise ValueError(
            f"locations and weights: got shapes {places.shape} and {shares.shape}, expected "
            f"(heads, {samples}, 2) and (heads, {samples}): {samples} is the sum of points"
        )
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"image: got shape {image.shape}, expected (height, width, 3)")
    figure = matplotlib.figure.Figure(figsize=(6.4, 6.4), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xticks=[], yticks=[])
    axes.imshow(image.clip(0, 1), extent=(0, 1, 1, 0), aspect=image.shape[0] / image.shape[1])
    outlines = [(box, "white") for box in boxes]
    if reference is not None:
        axes.plot(*reference[:2], "w+", markersize=14, markeredgewidth=3)
        outlines += [(reference, "grey")] if len(reference) == 4 else []
    for (x, y, w, h), color in outlines:
        corner = (x - w / 2, y - h / 2)
        axes.add_patch(matplotlib.patches.Rectangle(corner, w, h, fill=False, ec=color, lw=2))
    finite = np.isfinite(places).all(-1) & np.isfinite(shares)
    areas = 250 * shares.clip(0) / max(shares[finite].max(initial=0), 1e-30)
    level_of = np.repeat(np.arange(len(points)), points)
    for level in range(len(points)):
        mine = finite & (level_of == level)
        color = COLORS[level % len(COLORS)]
        axes.scatter(*places[mine].T, areas[mine], color, ec="black", lw=0.8, label=f"{level + 1}")
    axes.set(xlim=(0, 1), ylim=(1, 0))
    figure.legend(loc="outside lower center", ncols=8, title="level; area = weight")
    figure.savefig(path)
