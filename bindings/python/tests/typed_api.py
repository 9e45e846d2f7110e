"""Calls that a type checker must accept, and calls that it must refuse.

`cargo xtask check` reads this file with mypy; nothing runs it. A `type: ignore` that is not needed
is an error: so each call that is marked is one that mypy refuses.
"""

from __future__ import annotations

from typing import Any

import msda_attn as msda
import numpy
import torch


def tensors(x: torch.Tensor) -> torch.Tensor:
    shapes = torch.tensor([[2, 2]])
    y = msda.ms_deform_attn(x, [(2, 2)], None, x, x, sampling="nearest", padding="border")
    z = msda.ms_deform_attn(y, shapes, shapes, x, x, points=[4])
    return msda.ms_deform_attn_fused(z, shapes, [0], x, x, x, align_corners=True)


def arrays(x: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    return msda.ms_deform_attn(x, [(2, 2)], None, x, x)


def module(x: torch.Tensor) -> torch.Tensor:
    made = msda.MSDeformAttn(256, levels=4, heads=8, points=4, dtype=torch.float16)
    output: torch.Tensor = made(x, x, x, [(2, 2)])
    return output


def explained(x: torch.Tensor) -> str:
    return msda.explain(x, [(2, 2)], None, x, x, device="sm_90").forward.kernel


def refused(x: torch.Tensor, y: numpy.ndarray[Any, Any]) -> None:
    msda.ms_deform_attn(x, [(2, 2)], None, x, x, sampling="bicubic")  # type: ignore[arg-type]
    msda.ms_deform_attn_fused(x, [(2, 2)], None, x, x, x, padding="none")  # type: ignore[arg-type]
    msda.ms_deform_attn(x, [(2, 2)], None, x)  # type: ignore[call-arg]
    msda.ms_deform_attn(x, [(2, 2)], None, y, x)  # type: ignore[type-var]
    msda.ms_deform_attn(x, 4, None, x, x)  # type: ignore[arg-type]
