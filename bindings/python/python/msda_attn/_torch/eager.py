"""What an eager call of the operator runs, and what it runs in compiled and traced functions.

`run_form` chooses the way of a call:

| call | runs |
|---|---|
| compiled, traced, or with subclasses of tensors | a public operator of `torch.ops.msda` |
| under a transform of `torch.func` | `Transformed`, which calls the public operators |
| with a gradient | `Attention`, which calls private operators |
| all others | a private operator |
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .._arguments import listed
from . import forward_mode, grid, rules, sharding
from .levels import USUAL, Levels, Starts, flat, setup_of, tables

_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_forward_ad = torch.autograd.forward_ad
_transforms = forward_mode.transforms


def _direct(name: str) -> Callable[..., Any]:
    """The quickest way to call an operator: private parts of torch, or the public way."""
    try:
        handle = torch._C._dispatch_find_schema_or_throw(f"msda::{name}", "")
        return functools.partial(torch._C._dispatch_call_boxed, handle)
    except AttributeError:
        return getattr(torch.ops.msda, name).default


class Private:
    """The private operators of a form.

    With `in_tables`, level sizes and starts are two tensors of the caller behind value, and options
    and points are numbers at the end. Without, one tensor at the end has all of them; `setup_of`
    made it.
    """

    def __init__(self, suffix: str, bits: tuple[int, ...], in_tables: bool) -> None:
        ending = f"{suffix}_tables" if in_tables else suffix
        self.forward = _direct(f"_forward{ending}")
        self.backward = _direct(f"_backward{ending}")
        self.bits = bits
        self.all_wanted = sum(bits)
        # Tables have no gradient.
        self.gap = (None, None) if in_tables else ()
        # The sum of the wanted bits by `needs_input_grad` of `Attention`.
        self.wanted = {
            (False, first, *map(bool, self.gap), *rest): sum(
                itertools.compress(bits, (first, *rest))
            )
            for first, *rest in itertools.product((False, True), repeat=len(bits))
        }


class Attention(torch.autograd.Function):
    """A call with its gradients: private operators, and the arguments behind the tensors.

    Both are one argument, because every argument costs host time.
    """

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.save_for_backward(*tensors)
        private, tail = ctx.call = call
        return private.forward(*tensors, *tail)

    @staticmethod
    def backward(ctx, grad):
        private, tail = ctx.call
        backward, wanted = private.backward, private.wanted[ctx.needs_input_grad]
        if wanted != private.all_wanted:
            backward = functools.partial(backward, wanted=wanted)
        if _is_grad_enabled():
            backward = functools.partial(WithoutGradient.apply, backward)
        try:
            value, *others = backward(grad, *ctx.saved_tensors, *tail)
        except RuntimeError as error:
            _raise(error)
        if wanted != private.all_wanted:
            found = zip((value, *others), private.bits)
            value, *others = (result if wanted & bit else None for result, bit in found)
        return None, value, *private.gap, *others


class WithoutGradient(torch.autograd.Function):
    """A call of a backward operator. Its results cannot be differentiated, and say so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator, *args):
        return operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(rules.no_second_derivative)


class Transformed(torch.autograd.Function):
    """A call of a form's public operators for torch.func: they have rules for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args):
        *inputs, form = args
        return form.public(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *inputs, ctx.form = inputs
        rules.save(ctx, inputs, output)

    @staticmethod
    def backward(ctx, grad):
        return *ctx.form.gradients(ctx, grad), None


class Form:
    """The operators of the plain or the fused form."""

    def __init__(self, suffix: str, bits: tuple[int, ...]) -> None:
        self.public = getattr(torch.ops.msda, f"ms_deform_attn{suffix}")
        self.public_list = getattr(torch.ops.msda, f"ms_deform_attn{suffix}_list")
        backward = getattr(torch.ops.msda, f"ms_deform_attn{suffix}_backward")
        self.gradients = rules.gradients(bits, functools.partial(WithoutGradient.apply, backward))
        self.with_setup = Private(suffix, bits, in_tables=False)
        self.with_tables = Private(suffix, bits, in_tables=True)


PLAIN_FORM = Form("", rules.PLAIN_WANTED)
FUSED_FORM = Form("_fused", rules.FUSED_WANTED)


def run_form(
    form: Form, tensors: tuple[Tensor, ...], shapes: Levels, starts: Starts, numbers: tuple
) -> Tensor:
    """Runs the operator. `tensors` are value and the tensors behind the level sizes."""
    if _is_compiling() or _is_tracing():
        if torch.onnx.is_in_onnx_export() and not grid.operator_wanted:
            return grid.run(tensors, shapes, starts, numbers)
        return _run_public(form, tensors, shapes, starts, numbers)
    try:
        needs_grad = False
        for tensor in tensors:
            if type(tensor) not in _TENSORS:
                return _run_public(form, tensors, shapes, starts, numbers)
            if tensor.requires_grad:
                needs_grad = True
        if _transforms() is not None:
            forward_mode.refuse(tensors)
            value, *others = tensors
            return Transformed.apply(value, *tables(shapes, starts), *others, *numbers, form)
        if _forward_ad._current_level >= 0:
            forward_mode.refuse(tensors)
        private = form.with_setup
        tail = None if type(shapes) is Tensor else setup_of(shapes, starts, numbers)
        if tail is None:
            private, tail = form.with_tables, () if numbers is USUAL else numbers
            value, *others = tensors
            tensors = (value, *tables(shapes, starts), *others)
        if needs_grad and _is_grad_enabled():
            return Attention.apply((private, tail), *tensors)
        return private.forward(*tensors, *tail)
    except RuntimeError as error:
        _raise(error)


def _run_public(
    form: Form, tensors: tuple[Tensor, ...], shapes: Levels, starts: Starts, numbers: tuple
) -> Tensor:
    """Runs a public operator, also under `torch.compile`."""
    value, *others = tensors
    in_lists = not isinstance(shapes, Tensor) and not isinstance(starts, Tensor)
    if in_lists and not sharding.is_dtensor(value):
        shapes = listed("spatial_shapes", shapes)
        sizes = flat(shapes, starts)
        # A tensor would keep the numbers of this call.
        if _is_compiling() or any(isinstance(n, torch.SymInt) for n in sizes):
            return form.public_list(value, sizes, *others, *numbers)
    levels = sharding.replicate_levels(value, *tables(shapes, starts))
    return form.public(value, *levels, *others, *numbers)


_EXCEPTIONS = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "MemoryError": torch.OutOfMemoryError,
    "RuntimeError": RuntimeError,
}


def _raise(error: RuntimeError) -> NoReturn:
    """Raises the exception that the compiled part meant.

    Torch's C ABI has one way to raise: a message for a `RuntimeError`. So the name of the exception
    stands before the message, and torch adds lines about its own C++ code.
    """
    found = re.search(r"msda\.(\w+): (.*?)(\nException raised from msda|$)", str(error), re.DOTALL)
    if found is None or found[1] not in _EXCEPTIONS:
        raise error
    raise _EXCEPTIONS[found[1]](found[2]) from None
