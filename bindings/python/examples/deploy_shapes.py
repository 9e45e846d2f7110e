"""Exports the detector of train_shapes.py, runs it in ONNX Runtime, and draws its boxes.

    python examples/train_shapes.py --out shapes
    python examples/deploy_shapes.py --weights shapes/detector.pt --out deployed

Without weights it trains a detector first. It writes `detector.onnx`, which runs without torch and
without msda, and `boxes.png`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import matplotlib.figure
import matplotlib.patches
import msda_attn.onnx
import onnxruntime
import torch
from torch import Tensor, nn

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from train_shapes import NAMES, Detector, make_images, train

COLORS = ("black", "#56b4e9", "#009e73", "#cc79a7")  # of the boxes, by class


class Deployed(nn.Module):
    """The detector with tensors as outputs: probabilities of the classes, and boxes."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.detector(images)
        return found["logits"].softmax(-1), found["boxes"][-1]


def session(path: pathlib.Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime with the operators of msda; without them the file runs too, only slower."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(msda_attn.onnx.library_path()))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def draw(path: pathlib.Path, images, classes, boxes) -> None:
    """The images side by side, with the boxes of the shapes that were found."""
    figure = matplotlib.figure.Figure(figsize=(10, 3.8), layout="constrained")
    for axes, image, kinds, found in zip(figure.subplots(1, len(images)), images, classes, boxes):
        axes.imshow(image.transpose(1, 2, 0).clip(0, 1), extent=(0, 1, 1, 0))
        axes.set_axis_off()
        for kind, (x, y, width, height) in zip(kinds, found.tolist()):
            if kind:
                corner, color = (x - width / 2, y - height / 2), COLORS[kind]
                box = matplotlib.patches.Rectangle(corner, width, height, fill=False, ec=color)
                axes.add_patch(box)
    patches = [matplotlib.patches.Patch(color=color) for color in COLORS[1:]]
    figure.legend(patches, NAMES[1:], loc="outside lower center", ncols=3)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=pathlib.Path, help="detector.pt of train_shapes.py")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("deployed"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.weights is None:
        detector, _, _ = train(steps=800, goal=0.97)
    else:
        detector = Detector()
        detector.load_state_dict(torch.load(args.weights, weights_only=True))
    model, path = Deployed(detector.eval()), args.out / "detector.onnx"
    images, classes, _ = make_images(3, torch.Generator().manual_seed(5))
    msda_attn.onnx.export(
        model,
        (images,),
        path,
        input_names=["images"],
        output_names=["classes", "boxes"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
    )
    scores, boxes = session(path).run(None, {"images": images.numpy()})
    with torch.no_grad():
        expected = model(images)
    difference = max(
        abs(scores - expected[0].numpy()).max(), abs(boxes - expected[1].numpy()).max()
    )
    print(f"largest difference to torch: {difference:.1e}")
    guess = scores.argmax(-1)
    right = ((guess == classes.numpy()) & (guess > 0)).sum()
    print(f"found {right} of {(classes > 0).sum()} shapes in {len(images)} images")
    draw(args.out / "boxes.png", images.numpy(), guess, boxes)
    print(f"wrote {path} and {args.out / 'boxes.png'}")
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
