"""Implementations of the operator that `python -m msda_attn bench` times, if they are installed."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._torch.grid import sample
from ._workloads import Call

Operator = Callable[[Call], Tensor]
OURS = "msda"
BASE = "torch grid_sample"


def _msda(device: str) -> Operator:
    from ._torch.functional import ms_deform_attn

    def run(call: Call) -> Tensor:
        points = None if call.same_points else call.counts
        return ms_deform_attn(
            call.value, call.shapes, call.starts, call.locations, call.weights, points=points
        )

    return run


def msda_with_list(call: Call) -> Tensor:
    """The same with level sizes in a list, for the table of host times."""
    from ._torch.functional import ms_deform_attn

    return ms_deform_attn(call.value, call.levels, None, call.locations, call.weights)


def grid_sample(call: Call) -> Tensor:
    """The operator through torch's `grid_sample`, one level after the other."""
    return sample(call.value, call.levels, call.locations, call.weights, call.counts)


def _transformers(device: str) -> Operator:
    folder = "transformers.models."
    same = importlib.import_module(folder + "deformable_detr.modeling_deformable_detr")
    differ = importlib.import_module(folder + "d_fine.modeling_d_fine")
    module = same.MultiScaleDeformableAttention()

    def run(call: Call) -> Tensor:
        if not call.same_points:
            return differ.multi_scale_deformable_attention_v2(
                call.value, call.levels, call.locations, call.weights, list(call.counts), "default"
            )
        return module(
            call.value, call.shapes, call.levels, call.starts, call.locations, call.weights, 64
        )

    return run


def _mmcv(device: str) -> Operator:
    ops = importlib.import_module("mmcv.ops.multi_scale_deform_attn")
    if device == "cpu":
        return lambda call: ops.multi_scale_deformable_attn_pytorch(
            call.value, call.shapes, call.locations, call.weights
        )
    return lambda call: ops.MultiScaleDeformableAttnFunction.apply(
        call.value, call.shapes, call.starts, call.locations, call.weights, 64
    )


def _original(device: str) -> Operator:
    extension = importlib.import_module("MultiScaleDeformableAttention")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> Tensor:
            ctx.save_for_backward(*tensors)
            return extension.ms_deform_attn_forward(*tensors, 64)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            value, locations, weights = extension.ms_deform_attn_backward(
                *ctx.saved_tensors, grad.contiguous(), 64
            )
            return value, None, None, locations, weights

    return lambda call: Function.apply(
        call.value, call.shapes, call.starts, call.locations, call.weights
    )


def _triton(device: str) -> Operator:
    """Rziga's package. Its exported function falls back to grid_sample; this one does not."""
    run = importlib.import_module("msda_triton.frontend").triton_multiscale_deformable_attention
    return lambda call: run(
        call.value, call.shapes, call.locations, call.weights, "zeros", False
    ).flatten(2)


def _triton_blocks(device: str) -> Operator:
    """Roulbac's package, which has the same name."""
    run = importlib.import_module("msda_triton.ops").multi_scale_deformable_attention
    return lambda call: run(call.value, call.shapes, call.starts, call.locations, call.weights)


@dataclasses.dataclass(frozen=True)
class Peer:
    """An implementation: where it runs, and how it is loaded."""

    name: str
    load: Callable[[str], Operator]
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    points_may_differ: bool = False

    def refuses(self, device: str, dtype: str, call: Call) -> str:
        """Why it cannot run a call; empty if it can."""
        if device not in self.devices:
            return f"does not run on {device}"
        if dtype not in self.dtypes:
            return f"has no {dtype}"
        if not call.same_points and not self.points_may_differ:
            return "needs the same number of points on each level"
        return ""


PEERS = (
    Peer(OURS, _msda, points_may_differ=True),
    Peer(BASE, lambda device: grid_sample, points_may_differ=True),
    Peer("transformers", _transformers, points_may_differ=True),
    Peer("mmcv", _mmcv, dtypes=("float32", "float16", "bfloat16")),
    Peer("original extension", _original, ("cuda",), ("float64", "float32")),
    Peer("msda-triton, rziga", _triton, ("cuda",), ("float32", "float16")),
    Peer("msda-triton, roulbac", _triton_blocks, ("cuda",), ("float32", "float16", "bfloat16")),
)
