"""What torch must know about the operators besides their kernels: shapes, gradients, batching."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._arguments import output_shape
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
    name = list(floats)[-2]
    return value.new_empty(output_shape(value.shape, name, floats[name].shape))


def _like(tensor: Tensor, wanted: int, bit: int, value: Tensor) -> Tensor:
    if not wanted & bit:
        return value.new_empty((0,))
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _fake(value, shapes, starts, locations, weights, options=0, points=0):
    floats = {"sampling_locations": locations, "attention_weights": weights}
    return _output(value, (shapes, starts), floats)


def _fake_fused(value, shapes, starts, reference, offsets, logits, options=0, points=0):
    floats = {
        "reference_points": reference,
        "sampling_offsets": offsets,
        "attention_logits": logits,
    }
    return _output(value, (shapes, starts), floats)


def _fake_setup(value, locations, weights, setup):
    return _fake(value, setup, setup, locations, weights)


def _fake_fused_setup(value, reference, offsets, logits, setup):
    return _fake_fused(value, setup, setup, reference, offsets, logits)


def _fake_list(value, levels, locations, weights, options=0, points=0):
    return _fake(value, value, value, locations, weights)


def _fake_fused_list(value, levels, reference, offsets, logits, options=0, points=0):
    return _fake_fused(value, value, value, reference, offsets, logits)


def _fake_backward_list(grad, value, levels, locations, weights, options, points, wanted):
    return _fake_backward_setup(grad, value, locations, weights, None, wanted)


def _fake_backward_fused_list(
    grad, value, levels, reference, offsets, logits, options, points, wanted
):
    return _fake_backward_fused_setup(grad, value, reference, offsets, logits, None, wanted)


def _fake_backward(grad, value, shapes, starts, locations, weights, options=0, points=0, wanted=7):
    return _fake_backward_setup(grad, value, locations, weights, None, wanted)


def _fake_backward_fused(
    grad, value, shapes, starts, reference, offsets, logits, options=0, points=0, wanted=15
):
    return _fake_backward_fused_setup(grad, value, reference, offsets, logits, None, wanted)


def _fake_backward_setup(grad, value, locations, weights, setup, wanted=7):
    tensors = (value, locations, weights)
    return tuple(_like(t, wanted, bit, value) for t, bit in zip(tensors, PLAIN_WANTED))


def _fake_backward_fused_setup(grad, value, reference, offsets, logits, setup, wanted=15):
    tensors = (value, reference, offsets, logits)
    return tuple(_like(t, wanted, bit, value) for t, bit in zip(tensors, FUSED_WANTED))


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
    fakes = {
        "ms_deform_attn": _fake,
        "ms_deform_attn_fused": _fake_fused,
        "ms_deform_attn_backward": _fake_backward,
        "ms_deform_attn_fused_backward": _fake_backward_fused,
        "ms_deform_attn_list": _fake_list,
        "ms_deform_attn_fused_list": _fake_fused_list,
        "ms_deform_attn_list_backward": _fake_backward_list,
        "ms_deform_attn_fused_list_backward": _fake_backward_fused_list,
        "_forward_tables": _fake,
        "_forward_fused_tables": _fake_fused,
        "_backward_tables": _fake_backward,
        "_backward_fused_tables": _fake_backward_fused,
        "_forward": _fake_setup,
        "_forward_fused": _fake_fused_setup,
        "_backward": _fake_backward_setup,
        "_backward_fused": _fake_backward_fused_setup,
    }
    for name, fake in fakes.items():
        torch.library.register_fake(f"msda::{name}", fake, lib=library)
    for suffix, bits in (("", PLAIN_WANTED), ("_fused", FUSED_WANTED)):
        for name, tables in ((f"ms_deform_attn{suffix}", 2), (f"ms_deform_attn{suffix}_list", 1)):
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
