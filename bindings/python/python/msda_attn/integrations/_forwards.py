"""Forwards of attention modules over the fused operator, one per family of modules.

The modules of all libraries have the same parts: linear layers for the value, the offsets, the
weights and the output, with the operator between them. They differ in their arguments, in their
attributes and in the meaning of the mask. A function here has the arguments of the forward that it
replaces, and ignores others. Its result is the same, or None where the original must run. To support
another family, write its function and add a row to `FAMILIES`. `_modules.py` compares each class
with its row.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._torch.functional import ms_deform_attn_fused
from ._operators import points_per_level, widened


def is_plain(module: nn.Module) -> bool:
    """Whether a module has no hook and no forward of its own."""
    forward_hooks = module._forward_hooks or module._forward_pre_hooks
    backward_hooks = module._backward_hooks or module._backward_pre_hooks
    return not (forward_hooks or backward_hooks or "forward" in module.__dict__)


def _attend(
    module: nn.Module,
    query: Tensor,
    pixels: Tensor,
    reference: Tensor,
    heads: int,
    points: Sequence[int],
    sizes: Any = None,
    shapes: Any = None,
    starts: Any = None,
    padding: Tensor | None = None,
    valid: Tensor | None = None,
    scale: float = 0.5,
    discrete: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """The output of a module, and the logits of its weights. None: the original must run.

    Args:
        sizes, shapes, starts: level sizes that the host knows, or tensors.
        padding, valid: where pixels count as 0, or where they do not: masks of two meanings.
        scale: the factor of offsets beside a box.
        discrete: for discrete sampling, one over the points of the level of each sample.
    """
    if sizes is not None:
        shapes, starts = sizes, None
    mask = padding if valid is None else valid
    batch, queries = query.shape[0], query.shape[1]
    if pixels is None or shapes is None:
        return None
    if reference.shape[0] != batch or reference.shape[1] != queries:
        return None
    if reference.shape[2] not in (1, len(points)) or not (mask is None or mask.dtype is torch.bool):
        return None
    layer = module._modules.get("value_proj")
    value = pixels if layer is None else layer(pixels)
    if mask is not None:
        padding = (mask if valid is None else ~mask)[..., None]
        # In place there is no copy. Only this function has the result of a plain layer; where the
        # layer has a backward hook, autograd refuses to change the result.
        own = type(layer) is nn.Linear and is_plain(layer)
        value = value.masked_fill_(padding, 0.0) if own else value.masked_fill(padding, 0.0)
    if value.dim() == 3:
        value = value.unflatten(-1, (heads, -1))
    differ = len(set(points)) > 1
    samples = (sum(points),) if differ else (len(points), points[0])
    offsets = module.sampling_offsets(query).view(batch, queries, heads, *samples, 2)
    logits = module.attention_weights(query).view(batch, queries, heads, *samples)
    if discrete is None:
        if scale != 0.5 and reference.shape[3] == 4:
            offsets = offsets * (2 * scale)
        if value.dtype is torch.float64:
            # Some models make reference points in float32; offsets must not be rounded for them.
            reference = reference.double()
        output = ms_deform_attn_fused(
            value, shapes, starts, reference, offsets, logits, points=points if differ else None
        )
    else:
        moved = offsets.flatten(3, -2) * discrete.to(query.dtype)[:, None]
        locations = reference[:, :, None, :, :2] + moved * reference[:, :, None, :, 2:] * scale
        weights = _softmax(logits)
        output = points_per_level(value, shapes, locations, weights, list(points), "discrete")
    layer = module._modules.get("output_proj")
    return widened(output) if layer is None else layer(output), logits


def _softmax(logits: Tensor) -> Tensor:
    return F.softmax(logits.flatten(3), -1)


def transformers(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Any = None,
    encoder_attention_mask: Any = None,
    position_embeddings: Tensor | None = None,
    reference_points: Any = None,
    spatial_shapes: Any = None,
    spatial_shapes_list: Any = None,
    level_start_index: Any = None,
    output_attentions: bool = False,
    *,
    mask: str = "valid",
    version: int = 1,
    **unused: Any,
) -> Any:
    """Deformable DETR of transformers, and the models made after it.

    In Mask2Former and OneFormer the mask is True where there is padding. In version 2 of RT-DETR
    the weights have one dimension for all samples.
    """
    if version == 2 and self.method != "default":
        return None
    if position_embeddings is not None:
        hidden_states = hidden_states + position_embeddings
    found = _attend(
        self,
        hidden_states,
        encoder_hidden_states,
        reference_points,
        self.n_heads,
        [self.n_points] * self.n_levels,
        spatial_shapes_list,
        spatial_shapes,
        level_start_index,
        **{mask: attention_mask},
        scale=0.5 if version == 1 else self.offset_scale,
    )
    if found is None or not output_attentions:
        return found and (found[0], None)
    output, logits = found
    weights = _softmax(logits)
    return output, weights.view(logits.shape) if version == 1 else weights


def d_fine(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    reference_points: Any = None,
    encoder_hidden_states: Any = None,
    spatial_shapes: Any = None,
    spatial_shapes_list: Any = None,
    output_attentions: bool = False,
    **unused: Any,
) -> Any:
    """D-FINE and DEIMv2 of transformers: no projections, and points per level."""
    if attention_mask is not None or self.decoder_method not in ("default", "discrete"):
        return None
    found = _attend(
        self,
        hidden_states,
        encoder_hidden_states,
        reference_points,
        self.n_heads,
        self.num_points_list,
        spatial_shapes_list,
        spatial_shapes,
        scale=self.offset_scale,
        discrete=self.num_points_scale if self.decoder_method == "discrete" else None,
    )
    return found and (found[0], _softmax(found[1]) if output_attentions else None)


def deformable_detr(
    self: Any,
    query: Tensor,
    reference_points: Tensor,
    input_flatten: Tensor,
    input_spatial_shapes: Any,
    input_level_start_index: Any = None,
    input_padding_mask: Tensor | None = None,
    input_spatial_shapes_hw: Any = None,
    **unused: Any,
) -> Any:
    """The repository of Deformable-DETR and its copies; RF-DETR, which adds sizes in a list."""
    if self.__dict__.get("_export"):
        return None
    found = _attend(
        self,
        query,
        input_flatten,
        reference_points,
        self.n_heads,
        [self.n_points] * self.n_levels,
        input_spatial_shapes_hw,
        input_spatial_shapes,
        input_level_start_index,
        input_padding_mask,
    )
    return found and found[0]


def ultralytics(
    self: Any,
    query: Tensor,
    refer_bbox: Tensor,
    value: Tensor,
    value_shapes: Any,
    value_mask: Tensor | None = None,
    **unused: Any,
) -> Any:
    """RT-DETR of Ultralytics."""
    points = [self.n_points] * self.n_levels
    found = _attend(
        self, query, value, refer_bbox, self.n_heads, points, value_shapes, padding=value_mask
    )
    return found and found[0]


def rt_detr(
    self: Any,
    query: Tensor,
    reference_points: Tensor,
    value: Tensor,
    value_spatial_shapes: Any,
    value_mask: Tensor | None = None,
    **unused: Any,
) -> Any:
    """RT-DETRv2 and D-FINE of lightly-train.

    The value of D-FINE has a dimension for the heads, and no projections.
    """
    if self.method != "default":
        return None
    found = _attend(
        self,
        query,
        value,
        reference_points,
        self.num_heads,
        self.num_points_list,
        value_spatial_shapes,
        valid=value_mask,
        scale=self.offset_scale,
    )
    return found and found[0]


def mmcv(
    self: Any,
    query: Tensor,
    key: Any = None,
    value: Tensor | None = None,
    identity: Tensor | None = None,
    query_pos: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    reference_points: Any = None,
    spatial_shapes: Any = None,
    level_start_index: Any = None,
    *,
    residual: bool = True,
    **unused: Any,
) -> Any:
    """The module of mmcv and detrex, which adds its input; without that, of GroundingDINO."""
    pixels = query if value is None else value
    identity = query if identity is None else identity
    if query_pos is not None:
        query = query + query_pos
    if not self.batch_first:
        query, pixels = query.transpose(0, 1), pixels.transpose(0, 1)
    found = _attend(
        self,
        query,
        pixels,
        reference_points,
        self.num_heads,
        [self.num_points] * self.num_levels,
        shapes=spatial_shapes,
        starts=level_start_index,
        padding=key_padding_mask,
    )
    if found is None:
        return None
    output = found[0] if self.batch_first else found[0].transpose(0, 1)
    return self.dropout(output) + identity if residual else output


class Family(NamedTuple):
    """A row: a forward, and what the modules of a small example are like.

    Attributes:
        forward: the forward over the fused operator.
        projects: whether modules have `value_proj` and `output_proj`.
        dimensions: of the pixels: 4, if they have one for the heads.
        states: other values of attributes, for which the forwards must agree too.
    """

    forward: Callable[..., Any]
    projects: bool = True
    dimensions: int = 3
    states: tuple[dict[str, Any], ...] = ()

    def takes(self, names: set[str]) -> bool:
        """Whether the forward has arguments of these names, and needs no others."""
        parameters = list(inspect.signature(self.forward).parameters.values())[1:]
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        needed = {p.name for p in named if p.default is p.empty}
        return needed <= names <= {p.name for p in named}


_SCALED = {"offset_scale": 0.25}
FAMILIES = (
    Family(transformers),
    Family(functools.partial(transformers, mask="padding")),
    Family(functools.partial(transformers, version=2), states=({"method": "discrete"}, _SCALED)),
    Family(d_fine, projects=False, states=({"decoder_method": "discrete"}, _SCALED)),
    Family(deformable_detr, states=({"_export": True},)),
    Family(ultralytics),
    Family(rt_detr, states=(_SCALED,)),
    Family(rt_detr, projects=False, dimensions=4, states=(_SCALED,)),
    Family(mmcv),
    Family(functools.partial(mmcv, residual=False)),
)
