"""What torch must know about the operators besides their kernels: shapes, gradients, batching."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._arguments import FUSED, PLAIN, output_shape
from .schema import library

# The bits of the gradients in their order: value, locations, weights.
PLAIN_WANTED = (1, 2, 4)
# Value, reference points, offsets, logits.
FUSED_WANTED = (1, 8, 2, 4)


def _output(value: Tensor, tables: Sequence[Tensor], floats: dict[str, Tensor]) -> Tensor:
    """The output of the floating-point tensors behind value; the last but one has the queries."""
    for name, tensor in floats.items():
        if tensor.device != value.device:
            raise ValueError(
                f"{name}: got a tensor on {tensor.device}, expected one on {value.device}, where "
                "value is"
            )
    for table in tables:
        if table.device != value.device and table.device.type != "cpu":
            where = "" if value.device.type == "cpu" else f" or on {value.device}, where value is"
            raise ValueError(
                f"spatial_shapes and level_start_index: got tensors on {table.device}, expected "
                f"both on the CPU{where}"
            )
    if len({table.device for table in tables}) > 1:
        raise ValueError(
            "spatial_shapes and level_start_index: got tensors on different devices, expected both "
            "on the CPU, or both on the device of value"
        )
    name = list(floats)[-2]
    return value.new_empty(output_shape(value.shape, name, floats[name].shape))


def _like(tensor: Tensor, wanted: int, bit: int, value: Tensor) -> Tensor:
    if not wanted & bit:
        return value.new_empty((0,))
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _fake(names: Sequence[str], gap: int):
    """The output without its numbers. `gap` arguments with level sizes stand behind value."""

    def fake(value, *rest):
        tables = [table for table in rest[:gap] if isinstance(table, Tensor)]
        return _output(value, tables, dict(zip(names, rest[gap:])))

    return fake


def _fake_backward(bits: Sequence[int], gap: int, numbers: int):
    """Gradients without their numbers. `numbers` arguments stand before `wanted`."""

    def fake(grad, value, *rest):
        tensors = (value, *rest[gap : gap + len(bits) - 1])
        # Torch leaves it out where all gradients are wanted.
        wanted = rest[gap + len(bits) - 1 + numbers :] or (sum(bits),)
        return tuple(_like(t, wanted[0], bit, value) for t, bit in zip(tensors, bits))

    return fake


def save(ctx, inputs, output) -> None:
    """Keeps what the gradients need."""
    *arguments, options, points = inputs
    ctx.save_for_backward(*(a for a in arguments if isinstance(a, Tensor)))
    # Level sizes that are numbers.
    ctx.levels = [a for a in arguments if not isinstance(a, Tensor)]
    ctx.numbers = (options, points)


def gradients(bits: Sequence[int], op):
    """The gradients of a public operator's inputs, by its backward operator."""

    def run(ctx, grad):
        gap = 1 if ctx.levels else 2
        # Torch may leave out the numbers at the end.
        needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[1 + gap : gap + len(bits)])
        wanted = sum(bit for bit, needs in zip(bits, needed) if needs)
        value, *others = ctx.saved_tensors
        results = op(grad, value, *ctx.levels, *others, *ctx.numbers, wanted)
        value, *others = (r if needs else None for r, needs in zip(results, needed))
        return value, *[None] * gap, *others, None, None

    return run


def no_second_derivative(ctx, *grads):
    """The gradient of a backward operator."""
    raise NotImplementedError(
        "msda has no second derivatives: its gradients cannot be differentiated again\n"
        "hint: call backward without create_graph=True"
    )


def _fold(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Makes a batched dimension part of the first dimension."""
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
    return tensor.reshape(size * tensor.shape[1], *tensor.shape[2:])


def _first_size(tensor: Tensor, dim: int | None) -> int:
    """The first size of a tensor without its batched dimension."""
    sizes = list(tensor.shape)
    if dim is not None:
        del sizes[dim]
    return sizes[0]


def _batched(op, levels: range, tensors: int):
    """The rule of vmap for an operator: where its level sizes are, and how many tensors it has."""

    def rule(info, in_dims, *args):
        size = info.batch_size
        if any(isinstance(in_dims[at], int) for at in levels):
            raise NotImplementedError(
                "vmap over spatial_shapes or level_start_index: got batched level sizes, "
                "expected the same for all"
            )
        folded = [
            arg if at in levels else _fold(arg, in_dims[at], size)
            for at, arg in enumerate(args[:tensors])
        ]
        results = op(*folded, *args[tensors:])
        batch = _first_size(args[0], in_dims[0])

        def unfold(result: Tensor) -> Tensor:
            # A gradient that was not asked for is empty.
            if result.dim() == 1:
                return result.new_empty((size, 0))
            return result.reshape(size, batch, *result.shape[1:])

        if isinstance(results, Tensor):
            return unfold(results), 0
        return tuple(unfold(r) for r in results), (0,) * len(results)

    return rule


def _register() -> None:
    ops = torch.ops.msda
    for suffix, bits, names in (("", PLAIN_WANTED, PLAIN), ("_fused", FUSED_WANTED, FUSED)):
        public = f"ms_deform_attn{suffix}"
        for forward, backward, gap, numbers in (
            (public, f"{public}_backward", 2, 2),
            (f"{public}_list", f"{public}_list_backward", 1, 2),
            (f"_forward{suffix}_tables", f"_backward{suffix}_tables", 2, 2),
            # Level sizes and numbers are one tensor at the end.
            (f"_forward{suffix}", f"_backward{suffix}", 0, 1),
        ):
            torch.library.register_fake(f"msda::{forward}", _fake(names, gap), lib=library)
            fake = _fake_backward(bits, gap, numbers)
            torch.library.register_fake(f"msda::{backward}", fake, lib=library)
        for name, tables in ((public, 2), (f"{public}_list", 1)):
            forward, backward = getattr(ops, name), getattr(ops, f"{name}_backward")
            torch.library.register_autograd(
                f"msda::{name}", gradients(bits, backward), setup_context=save, lib=library
            )
            torch.library.register_autograd(
                f"msda::{name}_backward", no_second_derivative, lib=library
            )
            count = tables + len(bits)
            torch.library.register_vmap(
                f"msda::{name}", _batched(forward, range(1, 1 + tables), count)
            )
            torch.library.register_vmap(
                f"msda::{name}_backward", _batched(backward, range(2, 2 + tables), 1 + count)
            )


_register()
