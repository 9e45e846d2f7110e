"""Draws where a query of the detector in train_shapes.py looks.

    python examples/train_shapes.py --out shapes
    python examples/where_it_looks.py --weights shapes/detector.pt --out looks.png

Without weights it trains a detector first. The picture shows the sampling points of one query over
the image: a colour per level, the area of a disc is the weight of the point.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import msda_attn.plot
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from train_shapes import NAMES, Detector, make_images, train


@torch.no_grad()
def draw(model: Detector, path: pathlib.Path, seed: int) -> str:
    """Draws the query of the largest shape, and says what the detector sees there."""
    images, classes, boxes = make_images(1, torch.Generator().manual_seed(seed))
    result = model(images)
    guess = result["logits"].argmax(-1)[0]
    there = (classes[0] > 0).float()
    query = int((there * boxes[0, :, 2]).argmax())
    layer, given, reference, shapes = result["last"]
    locations, weights = layer.attention.locations_and_weights(
        layer.norms[0](given), reference[:, :, None], shapes
    )
    says = f"query {query}: {NAMES[guess[query]]}, truth: {NAMES[classes[0, query]]}"
    msda_attn.plot.sampling_points(
        path,
        images[0].permute(1, 2, 0),
        locations[0, query],
        weights[0, query],
        layer.attention.points,
        reference=reference[0, query].tolist(),
        boxes=[result["boxes"][-1][0, query].tolist()],
        title=says,
    )
    return says


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=pathlib.Path, help="detector.pt of train_shapes.py")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("looks.png"))
    parser.add_argument("--seed", type=int, default=3, help="of the image")
    args = parser.parse_args(arguments)
    if args.weights is None:
        model, _, _ = train(steps=800, goal=0.97)
    else:
        model = Detector()
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    print(draw(model.eval(), args.out, args.seed))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
