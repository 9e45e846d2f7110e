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

import msda_attn.onnx
import msda_attn.plot as plot
import onnxruntime
import torch
from torch import Tensor, nn

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from train_shapes import NAMES, SIDE, Detector, make_images, train

SCALE = 5  # pixels of the picture per pixel of an image


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
    side = SIDE * SCALE
    canvas = plot.Canvas(len(images) * (side + 10) + 10, side + 50)
    for at, image in enumerate(images):
        left, top = 10 + at * (side + 10), 10
        pixels = (255 * image.transpose(1, 2, 0).clip(0, 1)).astype(int).tolist()
        canvas.image(left, top, [[tuple(p) for p in row] for row in pixels], SCALE)
        for kind, (x, y, width, height) in zip(classes[at], boxes[at].tolist()):
            if kind:
                corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                ends = [c * side + (left, top)[i % 2] for i, c in enumerate(corners)]
                canvas.frame(*ends, plot.PALETTE[kind])
    for kind, name in enumerate(NAMES[1:], 1):
        canvas.text(10 + (kind - 1) * 130, side + 22, name, plot.PALETTE[kind])
    canvas.save(path)


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
