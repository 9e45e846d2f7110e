"""Whole models of transformers, random weights: their own attention beside msda.

    python scripts/models.py --device cuda --out models.json
    python scripts/models.py --device cpu --threads 2 --model deformable-detr --runs 3

Each model runs in rounds: its own attention, msda, its own attention, and so on. The table has the
fastest round of each. A training step is a forward and a backward pass through all outputs, without
an optimizer. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import time
from collections.abc import Callable

import msda_attn as msda
import torch
import transformers

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def deformable_detr(batch: int) -> tuple[torch.nn.Module, dict]:
    backbone = transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    config = transformers.DeformableDetrConfig(backbone_config=backbone)
    pixels = torch.randn(batch, 3, 800, 1066)
    return transformers.DeformableDetrForObjectDetection(config), {"pixel_values": pixels}


def rt_detr(batch: int) -> tuple[torch.nn.Module, dict]:
    model = transformers.RTDetrForObjectDetection(transformers.RTDetrConfig(num_denoising=0))
    return model, {"pixel_values": torch.randn(batch, 3, 640, 640)}


def d_fine(batch: int) -> tuple[torch.nn.Module, dict]:
    model = transformers.DFineForObjectDetection(transformers.DFineConfig(num_denoising=0))
    return model, {"pixel_values": torch.randn(batch, 3, 640, 640)}


def grounding_dino(batch: int) -> tuple[torch.nn.Module, dict]:
    model = transformers.GroundingDinoForObjectDetection(transformers.GroundingDinoConfig())
    ids = torch.randint(1000, 2000, (batch, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model, {"pixel_values": torch.randn(batch, 3, 800, 1066), **inputs}


def mask2former(batch: int) -> tuple[torch.nn.Module, dict]:
    config = transformers.Mask2FormerConfig()
    model = transformers.Mask2FormerForUniversalSegmentation(config)
    return model, {"pixel_values": torch.randn(batch, 3, 800, 1066)}


MODELS: dict[str, Callable] = {
    "deformable-detr": deformable_detr,
    "grounding-dino": grounding_dino,
    "mask2former": mask2former,
    "rt-detr": rt_detr,
    "d-fine": d_fine,
}

# Model, type, batch, training or not: what the documents quote.
ROWS = {
    "cuda": [
        ("deformable-detr", "f16", 8, False),
        ("deformable-detr", "f16", 1, False),
        ("deformable-detr", "bf16", 4, True),
        ("deformable-detr", "f32", 4, True),
        ("grounding-dino", "f16", 2, False),
        ("grounding-dino", "bf16", 2, True),
        ("mask2former", "f16", 2, False),
        ("mask2former", "bf16", 2, True),
        ("rt-detr", "f16", 16, False),
        ("rt-detr", "bf16", 16, True),
        ("d-fine", "bf16", 8, True),
    ],
    "cpu": [(name, "f32", 1, False) for name in MODELS],
}


def numbers(output: object) -> list[torch.Tensor]:
    """The results of a model that people use: logits, boxes and masks."""
    names = ("logits", "pred_boxes", "class_queries_logits", "masks_queries_logits")
    found = [getattr(output, name, None) for name in names]
    return [tensor for tensor in found if tensor is not None]


class Step:
    """One step of a model: an inference, or a forward and a backward pass."""

    def __init__(self, name: str, dtype: str, batch: int, train: bool, device: str) -> None:
        torch.manual_seed(0)
        model, inputs = MODELS[name](batch)
        weights = DTYPES[dtype] if not train else torch.float32
        self.model = model.to(device=device, dtype=weights).train(train)
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        floats = {k: v.to(weights) if v.is_floating_point() else v for k, v in inputs.items()}
        self.inputs = {k: v.to(device) for k, v in floats.items()}
        self.train, self.device = train, device
        self.autocast = train and dtype != "f32"
        self.dtype = DTYPES[dtype]

    def run(self) -> None:
        if not self.train:
            with torch.no_grad():
                self.model(**self.inputs)
            return
        auto = (
            torch.autocast(self.device, self.dtype) if self.autocast else contextlib.nullcontext()
        )
        with auto:
            output = self.model(**self.inputs)
        found = numbers(output)
        finite = (torch.nan_to_num(tensor.float(), posinf=0.0, neginf=0.0) for tensor in found)
        sum(tensor.square().mean() for tensor in finite).backward()
        self.model.zero_grad(set_to_none=True)

    def timed(self, runs: int) -> dict[str, float]:
        """Milliseconds per step by the clock and on the GPU, and the peak of memory in MiB."""
        cuda = self.device == "cuda"
        self.run()
        if not cuda:
            start = time.perf_counter()
            for _ in range(runs):
                self.run()
            return {"wall_ms": (time.perf_counter() - start) / runs * 1e3}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for _ in range(runs):
            self.run()
        torch.cuda.synchronize()
        wall = (time.perf_counter() - start) / runs * 1e3
        return {"wall_ms": wall, "peak_mib": torch.cuda.max_memory_allocated() / 2**20}

    def gpu_ms(self) -> float:
        """The sum of the times of all kernels of one step."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self.run()
            torch.cuda.synchronize()
        return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3


def measure(row: tuple, device: str, rounds: int, runs: int) -> dict:
    name, dtype, batch, train = row
    step = Step(name, dtype, batch, train, device)
    ways = {"own": contextlib.nullcontext, "msda": msda.patch_transformers}
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for way, context in ways.items():
            with context():
                got = step.timed(runs)
            if way not in best or got["wall_ms"] < best[way]["wall_ms"]:
                best[way] = got
    if device == "cuda":
        for way, context in ways.items():
            with context():
                best[way]["gpu_ms"] = step.gpu_ms()
    return {"model": name, "dtype": dtype, "batch": batch, "train": train, **best}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=list(ROWS), default="cpu")
    parser.add_argument("--model", choices=list(MODELS), action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5, help="steps per round")
    parser.add_argument("--threads", type=int, help="threads of torch on the CPU")
    parser.add_argument("--out", help="a JSON file for the record")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    cuda = args.device == "cuda"
    where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"
    record = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(sys.argv),
        "machine": {"device": where, "system": platform.platform()},
        "versions": {
            "msda": msda.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "rows": [],
    }
    for row in ROWS[args.device]:
        if args.model and row[0] not in args.model:
            continue
        try:
            done = measure(row, args.device, args.rounds, args.runs)
        except Exception as error:  # a model that this version of transformers does not have
            print(f"{row[0]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        own, ours = done["own"], done["msda"]
        ratio = own["wall_ms"] / ours["wall_ms"]
        what = "training step" if row[3] else "inference"
        text = f"{row[0]:16} {row[1]:4} batch {row[2]:<2} {what:13}"
        text += f" {own['wall_ms']:8.1f} ms own, {ours['wall_ms']:8.1f} msda, {ratio:.2f}x"
        if cuda:
            text += f"; GPU {own['gpu_ms']:.1f}, {ours['gpu_ms']:.1f} ms"
            text += f"; {own['peak_mib'] / 1024:.1f}, {ours['peak_mib'] / 1024:.1f} GiB"
        print(text, flush=True)
        record["rows"].append(done)
        if args.out:
            with open(args.out, "w") as file:
                json.dump(record, file, indent=1)
    return 0 if record["rows"] else 1


if __name__ == "__main__":
    sys.exit(main())
