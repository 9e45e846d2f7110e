"""Attention modules of other libraries: each class gets a forward of `_forwards.py`.

A class is found by its name, and its row by the arguments of its forward. The old and the new
forward must give the same results for a small example, or the class stays as it is.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ._forwards import FAMILIES, Family, is_plain
from ._operators import plain_state
from ._replace import Replacements, original

_NAME = re.compile(r"Deform\w*Att", re.IGNORECASE)
_REFERENCE = ("reference_points", "refer_bbox")
_MASKS = ("attention_mask", "input_padding_mask", "value_mask", "key_padding_mask")

# Sizes of the example. Most of them differ, so that no dimension passes for another one.
_BATCH, _QUERIES, _HEADS, _CHANNELS, _POINTS = 2, 5, 3, 2, 4
_SIZES = [(3, 2), (1, 4)]
_POSITIONS = sum(height * width for height, width in _SIZES)
_WIDTH = _HEADS * _CHANNELS

# Arguments in `**kwargs` that callers pass and modules ignore, and what the example passes. A call
# with any other one goes to the original.
_IGNORED: dict[str, Any] = {
    **dict.fromkeys(("attn_mask", "key_pos", "query_key_padding_mask", "valid_ratios"), True),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "return_dict"), True),
    "num_items_in_batch": 2,
    "decoder_inputs_embeds": None,
}

_has_global_hook = getattr(nn.modules.module, "_has_any_global_hook", lambda: False)

# The new forward and its row, or why there is none, by the original forward.
_made: dict[Callable[..., Any], tuple[Callable[..., Any], Family] | str] = {}


def attention_classes(module: types.ModuleType) -> list[type]:
    """The attention modules that a module defines: by their name, and their reference points."""
    found = []
    for cls in list(vars(module).values()):
        if not (isinstance(cls, type) and cls.__module__ == module.__name__):
            continue
        forward = vars(cls).get("forward") if issubclass(cls, nn.Module) else None
        if isinstance(forward, types.FunctionType) and _NAME.search(cls.__name__):
            if any("ref" in name for name in inspect.signature(forward).parameters):
                found.append(cls)
    return found


def _numbers(*shape: int, seed: int) -> Tensor:
    """Fixed numbers between -1 and 1. The state of random generators stays as it is."""
    steps = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu")
    return (steps * 0.7 + seed).sin().reshape(shape)


def _layer(outputs: int, seed: int) -> nn.Linear:
    layer = nn.Linear(_WIDTH, outputs, dtype=torch.float64, device="meta").to_empty(device="cpu")
    layer.weight.data = _numbers(outputs, _WIDTH, seed=seed) * 0.5
    layer.bias.data = _numbers(outputs, seed=seed) * 0.5
    return layer


def _example(cls: type, family: Family) -> nn.Module:
    """A module of the class, without its constructor, with the attributes that libraries use."""
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    points = [_POINTS] * len(_SIZES)
    attributes: dict[str, Any] = {
        **dict.fromkeys(("d_model", "embed_dim", "embed_dims"), _WIDTH),
        **dict.fromkeys(("n_heads", "num_heads"), _HEADS),
        **dict.fromkeys(("n_levels", "num_levels"), len(_SIZES)),
        **dict.fromkeys(("n_points", "num_points"), _POINTS),
        **dict.fromkeys(("n_points_list", "num_points_list"), points),
        **dict.fromkeys(("n_points_scale", "num_points_scale"), torch.ones(sum(points)) / _POINTS),
        **dict.fromkeys(("method", "decoder_method"), "default"),
        "offset_scale": 0.5,
        "_export": False,
        "head_dim": _CHANNELS,
        "ratio": 1,
        "im2col_step": 64,
        "disable_custom_kernels": True,
        "batch_first": True,
        "dropout": nn.Identity(),
        "sampling_offsets": _layer(_HEADS * sum(points) * 2, 2),
        "attention_weights": _layer(_HEADS * sum(points), 3),
    }
    if family.projects:
        attributes |= {"value_proj": _layer(_WIDTH, 1), "output_proj": _layer(_WIDTH, 4)}
    here = vars(sys.modules[cls.__module__])
    operator = here.get("MultiScaleDeformableAttention", cls)
    if operator is not cls:
        attributes["attn"] = operator()
    for name in ("multi_scale_deformable_attention_v2", "deformable_attention_core_func_v2"):
        if name in here:
            attributes["ms_deformable_attn_core"] = here[name]
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def _arguments(levels: int, coordinates: int, masked: bool, dimensions: int) -> dict[str, Any]:
    """Arguments of the example, by all names that libraries use."""
    table = torch.tensor(_SIZES, device="cpu")
    areas = table.prod(1)
    query, pixels = (_numbers(_BATCH, n, _WIDTH, seed=n) for n in (_QUERIES, _POSITIONS))
    if dimensions == 4:
        pixels = pixels.unflatten(2, (_HEADS, _CHANNELS))
    reference = _numbers(_BATCH, _QUERIES, levels, coordinates, seed=7) * 0.3 + 0.5
    mask = _numbers(_BATCH, _POSITIONS, seed=11) > 0 if masked else None
    return {
        **dict.fromkeys(("hidden_states", "query"), query),
        **dict.fromkeys(("position_embeddings", "query_pos"), query.cos()),
        "identity": query.exp(),
        **dict.fromkeys(_REFERENCE, reference),
        **dict.fromkeys(("encoder_hidden_states", "input_flatten", "value"), pixels),
        **dict.fromkeys(_MASKS, mask),
        **dict.fromkeys(("spatial_shapes_list", "input_spatial_shapes_hw"), _SIZES),
        **dict.fromkeys(("value_shapes", "value_spatial_shapes"), _SIZES),
        **dict.fromkeys(("spatial_shapes", "input_spatial_shapes"), table),
        **dict.fromkeys(("level_start_index", "input_level_start_index"), areas.cumsum(0) - areas),
        **dict.fromkeys(("encoder_attention_mask", "key"), pixels > 0),
        **_IGNORED,
    }


def _compare(
    cls: type, original: Callable[..., Any], names: list[str], family: Family
) -> set[tuple[bool, int, bool]]:
    """The calls that the original takes: levels of reference points, coordinates, mask.

    It raises where a row gives another result.
    """
    accepted: list[tuple[int, int, bool]] = []
    masks = [name for name in _MASKS if name in names]
    reason = ""
    for state in ({}, *family.states):
        module = _example(cls, family)
        for name, value in state.items():
            setattr(module, name, value)
        tries = itertools.product((1, len(_SIZES)), (2, 4), (False, True) if masks else (False,))
        for levels, coordinates, masked in tries if not state else accepted:
            values = _arguments(levels, coordinates, masked, family.dimensions)
            given = {name: values[name] for name in names}
            try:
                expected = [original(module.train(mode), **given) for mode in (True, False)]
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            got = family.forward(module, **{**given, "output_attentions": True})
            if got is None:
                continue
            try:
                for result in expected:
                    torch.testing.assert_close(got, result, rtol=1e-9, atol=1e-9)
            except AssertionError:
                mask = f"with {masks[0]!r} " if masked else ""
                raise ValueError(f"its result {mask}for a small example differs") from None
            if not state:
                accepted.append((levels, coordinates, masked))
    if not accepted:
        raise ValueError(f"a small example gives {reason}")
    return {(levels == 1, coordinates, masked) for levels, coordinates, masked in accepted}


def _is_recorded(cls: type) -> bool:
    """Whether models take the weights of a module by a hook only. Without one nobody uses them."""
    for model in list(vars(sys.modules[cls.__module__]).values()):
        records = vars(model).get("_can_record_outputs") if isinstance(model, type) else None
        for record in records.values() if isinstance(records, dict) else ():
            targets = record if isinstance(record, list) else [record]
            if any(cls in (target, getattr(target, "target_class", None)) for target in targets):
                return True
    return False


def _is_usual(module: nn.Module, library: str) -> bool:
    """Whether the operator of a module is the library's own, and nobody listens to its calls."""
    if _has_global_hook():
        return False
    layer = module._modules.get("attn")
    if layer is not None and not (is_plain(layer) and type(layer).__module__.startswith(library)):
        return False
    function = module.__dict__.get("ms_deformable_attn_core")
    return function is None or getattr(function, "func", function).__module__.startswith(library)


def _make(cls: type, original: Callable[..., Any]) -> tuple[Callable[..., Any], Family]:
    """The new forward of a class, and its row."""
    parameters = list(inspect.signature(original).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    keywords = [*names, *(_IGNORED if len(names) < len(parameters) else ())]
    reasons = []
    for family in [family for family in FAMILIES if family.takes(set(names) - _IGNORED.keys())]:
        try:
            with plain_state():
                forms = _compare(cls, original, keywords, family)
            break
        except Exception as error:
            # A class of an unknown version may raise anything.
            text = f"{type(error).__name__}: {error}"
            reasons.append(str(error) if type(error) is ValueError else text)
    else:
        reasons.append(f"msda knows no forward with the arguments {', '.join(names)}")
        raise ValueError(reasons[0])
    known = frozenset(keywords)
    needed = frozenset(p.name for p in parameters if p.default is p.empty and p.name in names)
    reference = next(name for name in _REFERENCE if name in names)
    mask = next((name for name in _MASKS if name in names), "")
    library = cls.__module__.partition(".")[0]
    recorded = _is_recorded(cls)

    def run(module: Any, given: dict[str, Any]) -> Any:
        """The result of the row, or None where the original must run."""
        points = given.get(reference)
        if not (needed <= given.keys() <= known) or points is None or points.dim() != 4:
            return None
        form = (points.shape[2] == 1, points.shape[3], given.get(mask) is not None)
        if form not in forms or not _is_usual(module, library):
            return None
        # Models record weights by a hook; transformers 5.0 and 5.1 wrap the forward of the module.
        asked = not recorded or given.get("output_attentions") or module._forward_hooks
        weights = bool(asked) or "forward" in module.__dict__
        return family.forward(module, **{**given, "output_attentions": weights})

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        result = run(self, given) if len(given) == len(args) + len(kwargs) else None
        # The original also raises what a wrong call raises.
        return original(self, *args, **kwargs) if result is None else result

    return forward, family


def replace_modules(module: types.ModuleType, replaced: Replacements) -> list[Family]:
    """Replaces the forward of the attention modules that a module defines. The rows are given."""
    families = []
    for cls in attention_classes(module):
        forward = original(cls, "forward")
        if forward not in _made:
            try:
                _made[forward] = _make(cls, forward)
            except ValueError as reason:
                _made[forward] = str(reason)
        made = _made[forward]
        if isinstance(made, str):
            warnings.warn(
                f"msda left {cls.__module__}.{cls.__qualname__}.forward as it is: {made}\n"
                "hint: the operator inside still calls msda where msda knows it",
                stacklevel=2,
            )
            continue
        replaced.set(cls, "forward", made[0])
        families.append(made[1])
    return families
