"""The operators of `torch.ops.msda`, and their kernels.

The kernels for CPU and CUDA are Rust functions that torch calls through its stable C ABI.
"""

from __future__ import annotations

import pathlib

import torch

from .. import _native
from .._arguments import FUSED, PLAIN
from .._imports import name_packages
from . import forward_mode
from .levels import setup

_TABLES = "Tensor spatial_shapes, Tensor level_start_index, "


class _Library(torch.library.Library):
    """A library whose operators refuse forward mode. Torch would silently use a derivative of 0."""

    def impl(self, op_name, fn, dispatch_key="", **options):
        if dispatch_key == "Autograd":
            fn = _without_forward_mode(fn)
        super().impl(op_name, fn, dispatch_key, **options)


def _without_forward_mode(kernel):
    """A kernel of `register_autograd`, whose first argument are the dispatch keys."""

    def checked(keys, *args):
        forward_mode.refuse(args)
        return kernel(keys, *args)

    return checked


def _make() -> _Library:
    if torch.__version__ < (2, 7):
        raise ImportError(
            f"msda_attn: got torch {torch.__version__}, expected 2.7 or newer\n"
            "hint: pip install --upgrade torch; NumPy arrays work without torch"
        )
    try:
        return _Library("msda", "DEF")
    except RuntimeError as error:
        # Torch's message has the place of the first registration, and lines about its C++ code.
        raise ImportError(
            "torch.ops.msda: got operators of another package, expected none\n"
            "hint: uninstall the other package that registers them"
        ) from error


library = _make()


def _define() -> None:
    """Defines the operators. `_options.py` explains `options` and `points`.

    `wanted` has a bit per gradient: 1 value, 2 locations or offsets, 4 weights or logits,
    8 reference points.

    The operators with `_list` take level sizes as numbers: height, width and first position of
    each level. Compiled functions call them, so that no tensor on the CPU is in their graph.

    The operators whose names begin with `_` are for eager calls: they have no autograd formula,
    so that the dispatcher runs no Python. Those without `_tables` take level sizes, options and
    points in one tensor `setup`: every argument less costs less host time.
    """
    for suffix, names in (("", PLAIN), ("_fused", FUSED)):
        others = ", ".join(f"Tensor {name}" for name in names)
        count = 1 + len(names)
        results = "(" + ", ".join(["Tensor"] * count) + ")"
        wanted = f"int wanted={2**count - 1}"
        numbers = "int options=0, int points=0"
        public, tables = f"ms_deform_attn{suffix}", f"{suffix}_tables"
        for name, levels in ((f"{public}_list", "SymInt[] levels, "), (public, _TABLES)):
            tensors = f"Tensor value, {levels}{others}"
            library.define(f"{name}({tensors}, {numbers}) -> Tensor")
            library.define(
                f"{name}_backward(Tensor grad_output, {tensors}, int options, int points, "
                f"int wanted) -> {results}"
            )
        library.define(f"_forward{tables}({tensors}, {numbers}) -> Tensor")
        library.define(
            f"_backward{tables}(Tensor grad_output, {tensors}, {numbers}, {wanted}) -> {results}"
        )
        tensors = f"Tensor value, {others}, Tensor setup"
        library.define(f"_forward{suffix}({tensors}) -> Tensor")
        library.define(f"_backward{suffix}(Tensor grad_output, {tensors}, {wanted}) -> {results}")


def _define_lists() -> None:
    """The kernels of the operators with `_list`: they call the operators for eager calls."""
    ops = torch.ops.msda
    for suffix, others in (("", len(PLAIN)), ("_fused", len(FUSED))):
        forward = getattr(ops, f"_forward{suffix}").default
        backward = getattr(ops, f"_backward{suffix}").default

        def run(value, levels, *rest, forward=forward, others=others):
            # Torch leaves out numbers that have their default.
            numbers = (*rest[others:], 0, 0)[:2]
            return forward(value, *rest[:others], *setup((*numbers, *levels)))

        def run_backward(grad, value, levels, *rest, backward=backward):
            *tensors, options, points, wanted = rest
            return backward(grad, value, *tensors, *setup((options, points, *levels)), wanted)

        for key in ("CPU", "CUDA"):
            library.impl(f"ms_deform_attn{suffix}_list", run, key)
            library.impl(f"ms_deform_attn{suffix}_list_backward", run_backward, key)


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


_define()
name_packages(str(pathlib.Path(torch.__file__).parent.parent))
_native.register_torch(*_libraries())
_define_lists()
