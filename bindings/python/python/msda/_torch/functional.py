"""The operator for torch tensors: what an eager call runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NoReturn, Union

import torch
from torch import Tensor

from .. import _array
from .._options import encode_options, encode_points
from . import rules, schema, sharding

Levels = Union[Tensor, Sequence[Sequence[int]]]
Starts = Union[Tensor, Sequence[int], None]

_float32 = torch.float32
_is_compiling = torch.compiler.is_compiling
_PLAIN = frozenset((Tensor, torch.nn.Parameter))

# Private parts of torch, each with a public way around it.
_forward_op = getattr(torch.ops.msda._forward.default, "_op", torch.ops.msda._forward)
_forward_fused_op = getattr(
    torch.ops.msda._forward_fused.default, "_op", torch.ops.msda._forward_fused
)
_backward_op = getattr(torch.ops.msda._backward.default, "_op", torch.ops.msda._backward)
_backward_fused_op = getattr(
    torch.ops.msda._backward_fused.default, "_op", torch.ops.msda._backward_fused
)
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)

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


def _guarded(op):
    """A backward operator that raises what the compiled part meant."""

    def run(*args):
        try:
            return op(*args)
        except RuntimeError as error:
            _raise(error)

    return run


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, shapes, starts, locations, weights, options, points):
        ctx.save_for_backward(value, shapes, starts, locations, weights)
        ctx.numbers = (options, points)
        return _forward_op(value, shapes, starts, locations, weights, options, points)

    @staticmethod
    def backward(ctx, grad):
        # With create_graph the public operator is called: its own gradient says what is missing.
        op = torch.ops.msda.ms_deform_attn_backward if torch.is_grad_enabled() else _backward_op
        return rules.gradients(ctx, grad, _guarded(op))


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, shapes, starts, reference, offsets, logits, options, points):
        ctx.save_for_backward(value, shapes, starts, reference, offsets, logits)
        ctx.numbers = (options, points)
        return _forward_fused_op(value, shapes, starts, reference, offsets, logits, options, points)

    @staticmethod
    def backward(ctx, grad):
        public = torch.ops.msda.ms_deform_attn_fused_backward
        op = public if torch.is_grad_enabled() else _backward_fused_op
        return rules.gradients_fused(ctx, grad, _guarded(op))


def _transformable(op, save, gradients):
    """A function for torch.func over a public operator, which has a rule for vmap."""

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


def _transformed(forward, backward, gradients):
    inner = _transformable(backward, lambda ctx, inputs, output: None, rules.no_second_derivative)
    return _transformable(forward, rules.save, lambda ctx, grad: gradients(ctx, grad, inner.apply))


_Transformed = _transformed(
    torch.ops.msda.ms_deform_attn, torch.ops.msda.ms_deform_attn_backward, rules.gradients
)
_TransformedFused = _transformed(
    torch.ops.msda.ms_deform_attn_fused,
    torch.ops.msda.ms_deform_attn_fused_backward,
    rules.gradients_fused,
)

# `Function.apply` first asks whether torch.func is active; these calls know that it is not.
_apply = super(torch.autograd.Function, _Attention).apply
_apply_fused = super(torch.autograd.Function, _FusedAttention).apply


@functools.lru_cache(maxsize=1024)
def _tables(shapes: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor]:
    """Level sizes and starts as CPU tensors."""
    with torch.inference_mode(False):
        starts = [0]
        for height, width in shapes:
            starts.append(starts[-1] + height * width)
        return (
            torch.tensor(shapes, dtype=torch.int64).reshape(-1, 2),
            torch.tensor(starts[:-1], dtype=torch.int64),
        )


def _levels(shapes: Levels, starts: Starts) -> tuple[Tensor, Tensor]:
    """Level sizes and starts as tensors of int64. Nothing waits for a device."""
    if not isinstance(shapes, Tensor):
        try:
            pairs = tuple((int(height), int(width)) for height, width in shapes)
        except (TypeError, ValueError):
            raise TypeError(
                f"spatial_shapes: got {shapes!r}, expected a tensor (levels, 2), or a list of "
                "(height, width)"
            ) from None
        # While compiling, the cache would only be traced.
        tables = _tables.__wrapped__(pairs) if _is_compiling() else _tables(pairs)
        if starts is None:
            return tables
        shapes = tables[0]
    if shapes.dtype is not torch.int64 and not shapes.is_floating_point():
        shapes = shapes.to(torch.int64)
    if starts is None:
        sizes = shapes.prod(1)
        starts = sizes.cumsum(0) - sizes
    elif not isinstance(starts, Tensor):
        starts = torch.tensor(starts, dtype=torch.int64)
        if shapes.device.type != "cpu":
            starts = starts.to(shapes.device, non_blocking=True)
    elif starts.dtype is not torch.int64 and not starts.is_floating_point():
        starts = starts.to(torch.int64)
    return shapes, starts


def _promote(tensor: Tensor, value: Tensor) -> Tensor:
    """Locations and weights have the type of value, or float32. Other floats become float32."""
    dtype = tensor.dtype
    if dtype is value.dtype or dtype is _float32 or not tensor.is_floating_point():
        return tensor
    return tensor.to(_float32)


def _check_forward_mode(*tensors: Tensor) -> None:
    if torch.autograd.forward_ad._current_level >= 0 and any(
        torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        raise NotImplementedError(
            "msda has no forward-mode derivatives\n"
            "hint: use reverse mode: backward() or torch.func.grad"
        )


def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    *,
    sampling: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> Tensor:
    """Multi-scale deformable attention.

    Args:
        value: `(batch, positions, heads, channels)`: the pixels of all levels.
        spatial_shapes: height and width of each level: a list, or a tensor `(levels, 2)` on the CPU
            or on the device of `value`. A tensor on the GPU is read by the kernel, so that the host
            waits for nothing.
        level_start_index: the first position of each level, or None: the levels follow each other.
        sampling_locations: `(batch, queries, heads, levels, points, 2)` as (x, y), where 0 and 1
            are the edges of a level.
        attention_weights: `(batch, queries, heads, levels, points)`.
        sampling: 'bilinear' or 'nearest'.
        padding: 'zeros', or 'border': locations are moved onto the level.
        align_corners: whether 0 and 1 are the centres of the corner pixels.
        points: points per level, if levels differ. The tensors then have one dimension for all
            samples: locations `(batch, queries, heads, samples, 2)`, weights without the 2.

    Returns:
        `(batch, queries, heads * channels)` with the type of `value`.

    Sums are computed in float32 (float64 for float64 values), coordinates never in 16 bits.
    Locations and weights have the type of `value` or float32; other types become float32.
    """
    if not isinstance(value, Tensor):
        return _array.ms_deform_attn(
            value,
            spatial_shapes,
            level_start_index,
            sampling_locations,
            attention_weights,
            sampling=sampling,
            padding=padding,
            align_corners=align_corners,
            points=points,
        )
    options = (
        0
        if sampling == "bilinear" and padding == "zeros" and not align_corners
        else encode_options(sampling, padding, align_corners)
    )
    packed = 0 if points is None else encode_points(points)
    if (
        type(spatial_shapes) is not Tensor
        or type(level_start_index) is not Tensor
        or spatial_shapes.dtype is not torch.int64
        or level_start_index.dtype is not torch.int64
    ):
        spatial_shapes, level_start_index = _levels(spatial_shapes, level_start_index)
    dtype = value.dtype
    if sampling_locations.dtype is not dtype:
        sampling_locations = _promote(sampling_locations, value)
    if attention_weights.dtype is not dtype:
        attention_weights = _promote(attention_weights, value)
    args = (
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
        options,
        packed,
    )
    if _is_compiling() or not (
        type(value) in _PLAIN
        and type(sampling_locations) in _PLAIN
        and type(attention_weights) in _PLAIN
    ):
        levels = sharding.replicate_levels(*args[:3])
        return torch.ops.msda.ms_deform_attn(value, *levels, *args[3:])
    try:
        if _transforms() is not None:
            return _Transformed.apply(*args)
        if torch.autograd.forward_ad._current_level >= 0:
            _check_forward_mode(value, sampling_locations, attention_weights)
        if torch.is_grad_enabled() and (
            value.requires_grad
            or sampling_locations.requires_grad
            or attention_weights.requires_grad
        ):
            return _apply(*args)
        return _forward_op(*args)
    except RuntimeError as error:
        _raise(error)


def ms_deform_attn_fused(
    value: Tensor,
    spatial_shapes: Levels,
    level_start_index: Starts,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    *,
    sampling: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
    points: Sequence[int] | None = None,
) -> Tensor:
    """Multi-scale deformable attention with its softmax and its locations.

    Args:
        reference_points: `(batch, queries, levels, 2)` as (x, y), or `(..., 4)` as (x, y, width,
            height). One level stands for all.
        sampling_offsets: `(batch, queries, heads, levels, points, 2)`, as the linear layer gives
            them. A location is `reference + offset / (width, height)` of its level, or
            `reference_xy + offset / points * reference_wh / 2`.
        attention_logits: `(batch, queries, heads, levels, points)`. The softmax is over all points
            of all levels.

    The other arguments and the result are those of `ms_deform_attn`.
    """
    if not isinstance(value, Tensor):
        return _array.ms_deform_attn_fused(
            value,
            spatial_shapes,
            level_start_index,
            reference_points,
            sampling_offsets,
            attention_logits,
            sampling=sampling,
            padding=padding,
            align_corners=align_corners,
            points=points,
        )
    options = (
        0
        if sampling == "bilinear" and padding == "zeros" and not align_corners
        else encode_options(sampling, padding, align_corners)
    )
    packed = 0 if points is None else encode_points(points)
    if (
        type(spatial_shapes) is not Tensor
        or type(level_start_index) is not Tensor
        or spatial_shapes.dtype is not torch.int64
        or level_start_index.dtype is not torch.int64
    ):
        spatial_shapes, level_start_index = _levels(spatial_shapes, level_start_index)
    if sampling_offsets.dtype is not value.dtype:
        sampling_offsets = _promote(sampling_offsets, value)
    if attention_logits.dtype is not value.dtype:
        attention_logits = _promote(attention_logits, value)
    # Reference points are coordinates: where the types differ, both are float32.
    if reference_points.dtype is not sampling_offsets.dtype:
        reference_points = reference_points.to(_float32)
        sampling_offsets = sampling_offsets.to(_float32)
    if reference_points.dim() == 4 and reference_points.shape[2] == 1:
        levels = spatial_shapes.shape[0]
        if levels != 1:
            reference_points = reference_points.expand(-1, -1, levels, -1)
    args = (
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        options,
        packed,
    )
    if _is_compiling() or not (
        type(value) in _PLAIN
        and type(reference_points) in _PLAIN
        and type(sampling_offsets) in _PLAIN
        and type(attention_logits) in _PLAIN
    ):
        levels = sharding.replicate_levels(*args[:3])
        return torch.ops.msda.ms_deform_attn_fused(value, *levels, *args[3:])
    try:
        if _transforms() is not None:
            return _TransformedFused.apply(*args)
        if torch.autograd.forward_ad._current_level >= 0:
            _check_forward_mode(value, reference_points, sampling_offsets, attention_logits)
        if torch.is_grad_enabled() and (
            value.requires_grad
            or sampling_offsets.requires_grad
            or attention_logits.requires_grad
            or reference_points.requires_grad
        ):
            return _apply_fused(*args)
        return _forward_fused_op(*args)
    except RuntimeError as error:
        _raise(error)


kernels = schema.kernels
