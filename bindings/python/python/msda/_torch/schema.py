"""The operators of `torch.ops.msda`, and their kernels.

The kernels for CPU and CUDA are Rust functions that torch calls through its stable C ABI. Where
torch is too old for that (before 2.7), Python functions call the same code by address.
"""

from __future__ import annotations

import pathlib
import sysconfig

import torch

from .. import _native

_TENSORS = "Tensor value, Tensor spatial_shapes, Tensor level_start_index"
_PLAIN = f"{_TENSORS}, Tensor sampling_locations, Tensor attention_weights"
_FUSED = f"{_TENSORS}, Tensor reference_points, Tensor sampling_offsets, Tensor attention_logits"

# `options` and `points` are explained in `_options.py`. `wanted` has a bit per gradient: 1 value,
# 2 locations or offsets, 4 weights or logits, 8 reference points.
_SIGNATURES = {
    "ms_deform_attn": f"({_PLAIN}, int options=0, int points=0) -> Tensor",
    "ms_deform_attn_backward": (
        f"(Tensor grad_output, {_PLAIN}, int options, int points, int wanted)"
        " -> (Tensor, Tensor, Tensor)"
    ),
    "ms_deform_attn_fused": f"({_FUSED}, int options=0, int points=0) -> Tensor",
    "ms_deform_attn_fused_backward": (
        f"(Tensor grad_output, {_FUSED}, int options, int points, int wanted)"
        " -> (Tensor, Tensor, Tensor, Tensor)"
    ),
}

# Private operators for eager calls: without an autograd formula the dispatcher runs no Python.
_PRIVATE = {
    "_forward": "ms_deform_attn",
    "_backward": "ms_deform_attn_backward",
    "_forward_fused": "ms_deform_attn_fused",
    "_backward_fused": "ms_deform_attn_fused_backward",
}

library = torch.library.Library("msda", "DEF")


def _define() -> None:
    for name, signature in _SIGNATURES.items():
        library.define(name + signature)
    for name, public in _PRIVATE.items():
        library.define(name + _SIGNATURES[public])


def _libraries() -> tuple[pathlib.Path, pathlib.Path | None]:
    """The files of libtorch_cpu and libtorch_cuda."""
    folder = pathlib.Path(torch.__file__).parent / "lib"

    def file(name: str) -> pathlib.Path | None:
        names = [f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll"]
        return next((folder / n for n in names if (folder / n).is_file()), None)

    cpu = file("torch_cpu")
    if cpu is None:
        raise RuntimeError(f"{folder} has no libtorch_cpu")
    return cpu, file("torch_cuda") if torch.version.cuda else None


def _register() -> str:
    """Registers the kernels: 'native' ones, or 'python' ones where torch is too old."""
    for key in ("purelib", "platlib"):
        _native.add_packages(sysconfig.get_paths()[key])
    _native.add_packages(str(pathlib.Path(torch.__file__).parent.parent))
    try:
        _native.register_torch(*_libraries())
        return "native"
    except RuntimeError as error:
        from . import fallback

        fallback.register(library)
        fallback.reason = str(error)
        return "python"


_define()
kernels = _register()
