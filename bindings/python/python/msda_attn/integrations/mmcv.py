"""mmcv: its operator, and the modules around it, call msda.

    import msda_attn.integrations.mmcv

    msda_attn.integrations.mmcv.patch()

Replaced are `multi_scale_deformable_attn_pytorch`, `MultiScaleDeformableAttnFunction.apply`, and
the compiled functions `ms_deform_attn_forward` and `ms_deform_attn_backward`, which repositories
such as BEVFormer call from functions of their own.
"""

from __future__ import annotations

import importlib

from torch import Tensor

from . import research
from ._library import Library
from ._replace import Replacements


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int = 64,
) -> Tensor:
    """The compiled function of mmcv, with its names of arguments. `im2col_step` is ignored."""
    return research.ms_deform_attn_forward(
        value, value_spatial_shapes, value_level_start_index, sampling_locations, attention_weights
    )


def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int = 64,
) -> None:
    """The compiled function of mmcv: gradients are added to the last three tensors."""
    results = research.ms_deform_attn_backward(
        value,
        value_spatial_shapes,
        value_level_start_index,
        sampling_locations,
        attention_weights,
        grad_output,
    )
    for target, result in zip((grad_value, grad_sampling_loc, grad_attn_weight), results):
        target.add_(result)


def _replace(replaced: Replacements) -> None:
    try:
        extension = importlib.import_module("mmcv._ext")
        module = importlib.import_module("mmcv.ops.multi_scale_deform_attn")
    except ImportError as error:
        raise ImportError(
            f"msda_attn.patch('mmcv') needs mmcv with its operators: {error}\n"
            "hint: mmcv-lite has none; install mmcv"
        ) from error
    research.replace_in(module, replaced)
    replaced.set(extension, "ms_deform_attn_forward", ms_deform_attn_forward)
    replaced.set(extension, "ms_deform_attn_backward", ms_deform_attn_backward)


library = Library("mmcv", _replace)
patch = library.patch
unpatch = library.unpatch
