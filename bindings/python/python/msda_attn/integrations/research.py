"""Research repositories: the compiled module `MultiScaleDeformableAttention`, and its relatives.

    from msda_attn.integrations import research

    research.install()

Afterwards `import MultiScaleDeformableAttention` gives a module with `ms_deform_attn_forward` and
`ms_deform_attn_backward`, on the CPU and on CUDA. No file is written or replaced.

For a repository that should not be edited, run its program with the module in place:

    python -m msda_attn.integrations.research train.py --epochs 50
"""

from __future__ import annotations

import importlib
import importlib.machinery
import pathlib
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch.functional import ms_deform_attn, promote
from .._torch.levels import tables
from ._modules import attention_classes, replace_modules
from ._operators import FUNCTIONS, OURS, replacement
from ._replace import ABSENT, Patch, Replacements, original

EXTENSION = "MultiScaleDeformableAttention"

# Autograd functions of Deformable-DETR, detrex, mmcv and the repositories derived from them.
_CLASSES = ("MultiScaleDeformableAttnFunction", "MSDeformAttnFunction")


def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int = 64,
) -> Tensor:
    """The output `(batch, queries, heads * channels)`. `im2col_step` is ignored.

    It has gradients, so it is also `apply` of the repositories' autograd functions.
    """
    return ms_deform_attn(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )


def ms_deform_attn_backward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    im2col_step: int = 64,
) -> list[Tensor]:
    """The gradients of value, sampling locations and attention weights."""
    shapes, starts = tables(spatial_shapes, level_start_index)
    results = torch.ops.msda.ms_deform_attn_backward(
        grad_output.to(value.dtype),
        value,
        shapes,
        starts,
        promote("sampling_locations", sampling_locations, value),
        promote("attention_weights", attention_weights, value),
        0,
        0,
        7,
    )
    inputs = (value, sampling_locations, attention_weights)
    return [result.to(given.dtype) for result, given in zip(results, inputs)]


def _extension(name: str) -> types.ModuleType:
    module = types.ModuleType(name, "Multi-scale deformable attention by msda.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, origin="msda")
    module.ms_deform_attn_forward = ms_deform_attn_forward
    module.ms_deform_attn_backward = ms_deform_attn_backward
    return module


def install(*names: str) -> Patch:
    """Makes compiled modules importable that have not been built.

    Args:
        names: names of modules. Without one it is `MultiScaleDeformableAttention`. GroundingDINO
            has `groundingdino._C`, detrex has `detrex._C`.

    A module that is imported already keeps its other functions. The result undoes the call with
    `undo()`, or at the end of a `with` block; a module stays until all calls for it are undone.
    """
    replaced = Replacements()
    with replaced.all_or_nothing():
        for name in names or (EXTENSION,):
            present = sys.modules.get(name)
            if original(sys.modules, name) in (ABSENT, None):
                replaced.set(sys.modules, name, present or _extension(name))
                continue
            replaced.set(present, "ms_deform_attn_forward", ms_deform_attn_forward)
            replaced.set(present, "ms_deform_attn_backward", ms_deform_attn_backward)
        return replaced.handle()


def patch(module: str | types.ModuleType) -> Patch:
    """Makes the modules and functions of a repository call msda, also on the CPU.

    Args:
        module: the module, or its name, which defines the attention module, or the function
            `multi_scale_deformable_attn_pytorch` or `ms_deform_attn_core_pytorch`, and the autograd
            function beside it, such as `detrex.layers.multi_scale_deform_attn`.

    Each of them is called with a small example. A function that computes something else is refused;
    an attention module that does stays as it is, with a warning.
    Other modules that imported the function by name are included. The result undoes the call with
    `undo()`, or at the end of a `with` block; a function stays until all calls for it are undone.
    """
    if isinstance(module, str):
        module = importlib.import_module(module)
    replaced = Replacements()
    with replaced.all_or_nothing():
        replace_in(module, replaced)
    return replaced.handle()


def replace_in(module: types.ModuleType, replaced: Replacements) -> None:
    """Replaces the modules and functions of a module, and notes them in `replaced`."""
    found: dict[str, Any] = vars(module)
    functions: list[Any] = [original(module, name) for name in FUNCTIONS if name in found]
    classes = [found[name] for name in _CLASSES if name in found]
    if not functions and not classes and not attention_classes(module):
        raise ValueError(
            f"module: got {module.__name__}, expected a module with an attention module, or with "
            f"one of {', '.join((*FUNCTIONS, *_CLASSES))}"
        )
    replace_modules(module, replaced)
    pairs = [(function, replacement(function)) for function in functions if function not in OURS]
    for cls in classes:
        replaced.set(cls, "apply", staticmethod(ms_deform_attn_forward))
    for function, new in pairs:
        replaced.set_everywhere(module, function, new)


def main(arguments: Sequence[str]) -> int:
    """Runs a Python program with the modules in place."""
    if not arguments or arguments[0].startswith("-"):
        usage = "usage: python -m msda_attn.integrations.research PROGRAM.py [ARGUMENT ...]"
        print(usage, file=sys.stderr)
        return 2
    install()
    sys.argv = list(arguments)
    # As `python PROGRAM.py` does.
    sys.path[0] = str(pathlib.Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    # Under its own name: the program replaces `__main__`.
    sys.exit(importlib.import_module("msda_attn.integrations.research").main(sys.argv[1:]))
