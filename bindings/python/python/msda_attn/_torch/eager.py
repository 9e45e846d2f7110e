"""What an eager call of the operator runs, and what it runs in compiled functions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import forward_mode, grid, rules, sharding
from .levels import USUAL, Levels, Starts, flat, listed, read_setup, setup_of, tables

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


_EXCEPTIONS = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "MemoryError": getattr(torch, "OutOfMemoryError", MemoryError),
    "RuntimeError": RuntimeError,
}


def _raise(error: RuntimeError) -> NoReturn:
    """Raises the exception that the compiled part meant: torch's C ABI has `RuntimeError` only."""
    text = str(error)
    at = text.find("msda.")
    name, _, message = text[at + 5 :].partition(": ")
    if at < 0 or name not in _EXCEPTIONS:
        raise error
    # Torch adds lines about its own C++ code.
    message = message.split("\nException raised from msda", 1)[0]
    raise _EXCEPTIONS[name](message) from None


class Form:
    """The plain or the fused form: its operators, and functions with gradients over them."""

    def __init__(self, suffix: str, bits: tuple[int, ...]) -> None:
        self.bits = bits
        self.public = getattr(torch.ops.msda, f"ms_deform_attn{suffix}")
        self.public_backward = getattr(torch.ops.msda, f"ms_deform_attn{suffix}_backward")
        self.public_list = getattr(torch.ops.msda, f"ms_deform_attn{suffix}_list")
        # Level sizes in one tensor that was made here, and in two tensors of the caller.
        self.forward = _direct(f"_forward{suffix}")
        self.forward_tables = _direct(f"_forward{suffix}_tables")
        self.apply = self._differentiable(self.forward, f"_backward{suffix}")
        self.apply_tables = self._differentiable(
            self.forward_tables, f"_backward{suffix}_tables", tables=True
        )
        self.transformed = self._transformed()

    def _differentiable(self, forward, name: str, tables: bool = False) -> Callable[..., Tensor]:
        """`apply` of a function of the private operator's tensors, and of a tuple with the rest."""
        form, bits, everything = self, self.bits, sum(self.bits)
        backward = _direct(name)
        # Tables have no gradient.
        gap = (None, None) if tables else ()
        wanted = {
            (False, first, *map(bool, gap), *rest): sum(itertools.compress(bits, (first, *rest)))
            for first, *rest in itertools.product((False, True), repeat=len(bits))
        }

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(ctx, rest, *tensors):
                ctx.save_for_backward(*tensors)
                ctx.rest = rest
                return forward(*tensors, *rest)

            @staticmethod
            def backward(ctx, grad):
                want = wanted[ctx.needs_input_grad]
                try:
                    if _is_grad_enabled():
                        value, *others = form._backward_twice(ctx, grad)
                    elif want == everything:
                        value, *others = backward(grad, *ctx.saved_tensors, *ctx.rest)
                    else:
                        args = (grad, *ctx.saved_tensors, *ctx.rest)
                        results = zip(backward(*args, wanted=want), bits)
                        value, *others = (r if want & bit else None for r, bit in results)
                except RuntimeError as error:
                    _raise(error)
                return None, value, *gap, *others

        # `Function.apply` first asks whether torch.func is active; these calls know that it is not.
        return super(torch.autograd.Function, Attention).apply

    def _backward_twice(self, ctx, grad):
        """Gradients with create_graph: the public operator's own gradient says what is missing."""
        value, *others = ctx.saved_tensors
        if len(others) < len(self.bits):
            shapes, starts, *numbers = read_setup(*ctx.rest)
        else:
            (shapes, starts, *others), numbers = others, ctx.rest or (0, 0)
        wanted = sum(self.bits)
        return self.public_backward(grad, value, shapes, starts, *others, *numbers, wanted)

    def _transformed(self) -> type[torch.autograd.Function]:
        """A function for torch.func over the public operators, which have rules for vmap."""
        inner = _transformable(
            self.public_backward, lambda ctx, inputs, output: None, rules.no_second_derivative
        )
        return _transformable(self.public, rules.save, rules.gradients(self.bits, inner.apply))

    def run(
        self, tensors: tuple[Tensor, ...], shapes: Levels, starts: Starts, numbers: tuple[int, int]
    ) -> Tensor:
        """Runs the operator. `tensors` are value and the tensors behind the level sizes."""
        if _is_compiling() or _is_tracing():
            if torch.onnx.is_in_onnx_export() and not grid.operator_wanted:
                return grid.run(tensors, shapes, starts, numbers)
            return self._run_public(tensors, shapes, starts, numbers)
        try:
            for tensor in tensors:
                if type(tensor) not in _TENSORS:
                    return self._run_public(tensors, shapes, starts, numbers)
            if _transforms() is not None:
                forward_mode.refuse(tensors)
                value, *others = tensors
                return self.transformed.apply(value, *tables(shapes, starts), *others, *numbers)
            if _forward_ad._current_level >= 0:
                forward_mode.refuse(tensors)
            grad = _is_grad_enabled() and _requires_grad(tensors)
            if type(shapes) is not Tensor:
                setup = setup_of(shapes, starts, numbers)
                if setup is not None:
                    return self.apply(setup, *tensors) if grad else self.forward(*tensors, *setup)
            shapes, starts = tables(shapes, starts)
            if numbers is USUAL:
                numbers = ()
            value, *others = tensors
            if grad:
                return self.apply_tables(numbers, value, shapes, starts, *others)
            return self.forward_tables(value, shapes, starts, *others, *numbers)
        except RuntimeError as error:
            _raise(error)

    def _run_public(
        self, tensors: tuple[Tensor, ...], shapes: Levels, starts: Starts, numbers: tuple[int, int]
    ) -> Tensor:
        """Runs the public operator: for compiled and traced functions, and for subclasses."""
        value, *others = tensors
        in_lists = not isinstance(shapes, Tensor) and not isinstance(starts, Tensor)
        if in_lists and not sharding.is_dtensor(value):
            shapes = listed(shapes)
            sizes = flat(shapes, starts)
            # A tensor would keep the numbers of this call.
            if _is_compiling() or any(isinstance(n, torch.SymInt) for n in sizes):
                return self.public_list(value, sizes, *others, *numbers)
        levels = sharding.replicate_levels(value, *tables(shapes, starts))
        return self.public(value, *levels, *others, *numbers)


def _requires_grad(tensors: tuple[Tensor, ...]) -> bool:
    # A loop takes half the time of `any` with a generator.
    for tensor in tensors:
        if tensor.requires_grad:
            return True
    return False


def _transformable(op, save, gradients):
    """A function for torch.func over a public operator."""

    class Transformable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args):
            return op(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            save(ctx, inputs, output)

        @staticmethod
        def backward(ctx, *grads):
            return gradients(ctx, *grads)

    return Transformable


plain = Form("", rules.PLAIN_WANTED)
fused = Form("_fused", rules.FUSED_WANTED)
