"""Swaps msda into a model of transformers: the same results, sooner.

    python examples/swap_transformers.py

The model is a Deformable-DETR of moderate size with random weights, so nothing is downloaded. A
model from the hub takes the same line: `msda.patch_transformers()`.
"""

from __future__ import annotations

import argparse
import sys
import time

import msda_attn as msda
import torch


def make_model() -> torch.nn.Module:
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = DeformableDetrConfig(
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        num_queries=100,
        num_labels=10,
    )
    torch.manual_seed(0)
    return DeformableDetrForObjectDetection(config).eval()


@torch.no_grad()
def timed(model: torch.nn.Module, pixels: torch.Tensor, runs: int) -> tuple[object, float]:
    """The result, and the seconds of the fastest run."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        result = model(pixel_values=pixels)
        best = min(best, time.perf_counter() - start)
    return result, best


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=320, help="pixels of the image's side")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args(arguments)
    model = make_model()
    pixels = torch.randn(1, 3, args.side, args.side)
    before, slow = timed(model, pixels, args.runs)
    with msda.patch_transformers():
        after, fast = timed(model, pixels, args.runs)
    difference = (before.logits - after.logits).abs().max().item()
    difference = max(difference, (before.pred_boxes - after.pred_boxes).abs().max().item())
    print(f"transformers' own function: {slow * 1000:.0f} ms for the whole model")
    print(f"msda: {fast * 1000:.0f} ms, {slow / fast:.1f} times as fast")
    print(f"largest difference of logits and boxes: {difference:.1e}")
    return 0 if difference < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
