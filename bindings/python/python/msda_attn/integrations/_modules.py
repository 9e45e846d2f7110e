"""Attention modules of other libraries: a forward that calls the fused operator.

The modules of all libraries have the same parts: linear layers for the value, the offsets, the
weights and the output, with the operator between them. They differ in the names of arguments and
attributes, and in the meaning of the mask. `fused_forward` reads the names from the class and
checks the rest: the old and the new forward must give the same result for a small example.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import itertools
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._torch.functional import ms_deform_attn_fused

# Names of arguments, by their part in the computation.
_ARGUMENTS = {
    "query": ("hidden_states", "query"),
    "position": ("position_embeddings", "query_pos"),
    "reference": ("reference_points", "refer_bbox"),
    "pixels": ("encoder_hidden_states", "input_flatten", "value"),
    "identity": ("identity",),
    "mask": ("attention_mask", "input_padding_mask", "value_mask", "key_padding_mask"),
    # Level sizes that the host knows, and level sizes in a tensor.
    "sizes": (
        "spatial_shapes_list",
        "input_spatial_shapes_hw",
        "value_shapes",
        "value_spatial_shapes",
    ),
    "shapes": ("spatial_shapes", "input_spatial_shapes"),
    "starts": ("level_start_index", "input_level_start_index"),
    "asked": ("output_attentions",),
    "unused": ("encoder_attention_mask", "key"),
}
_PART = {name: part for part, names in _ARGUMENTS.items() for name in names}

_HEADS = ("n_heads", "num_heads")
_LEVELS = ("n_levels", "num_levels")
_POINTS = ("num_points_list", "n_points_list", "n_points", "num_points")
# An attribute that holds the operator: a module, or a function.
_OPERATOR = ("attn", "ms_deformable_attn_core")
# The values with which a module computes what the operator computes.
_STATE = {"method": "default", "decoder_method": "default", "offset_scale": 0.5, "_export": False}

# Sizes of the example. Most of them differ, so that no dimension passes for another one.
_BATCH, _QUERIES, _N_HEADS, _CHANNELS, _N_POINTS = 2, 5, 3, 2, 4
_SIZES = [(3, 2), (1, 4)]
_POSITIONS = sum(height * width for height, width in _SIZES)
_WIDTH = _N_HEADS * _CHANNELS

_has_global_hook = getattr(nn.modules.module, "_has_any_global_hook", lambda: False)

# What `fused_forward` made, or why it did not, by the original forward.
_made: dict[Callable[..., Any], Callable[..., Any] | str] = {}


def _constructors(cls: type) -> list[types.CodeType]:
    bases = cls.__mro__[: cls.__mro__.index(nn.Module)]
    found = [inspect.unwrap(vars(base)["__init__"]) for base in bases if "__init__" in vars(base)]
    return [function.__code__ for function in found if hasattr(function, "__code__")]


def stored_names(cls: type) -> set[str]:
    """The attributes that the constructors of a module's class set."""
    steps = itertools.chain.from_iterable(map(dis.get_instructions, _constructors(cls)))
    return {step.argval for step in steps if step.opname == "STORE_ATTR"}


def stores(cls: object, module: str, name: str) -> bool:
    """Whether a module defines this class of `nn.Module`, and its constructors set an attribute."""
    if not (isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == module):
        return False
    # The first test is the faster one: most classes do not pass it.
    return any(name in code.co_names for code in _constructors(cls)) and name in stored_names(cls)


def is_attention(cls: object, module: str) -> bool:
    """Whether a module defines this class, and its instances have the layers of the attention."""
    layers = ("sampling_offsets", "attention_weights")
    return all(stores(cls, module, name) for name in layers) and "forward" in vars(cls)


def _uses_kwargs(forward: Callable[..., Any], name: str) -> bool:
    """Whether the code of a forward may read its `**kwargs`, which have this name."""
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return True
    # Some instructions name two variables.
    named = [step.argval for step in dis.get_instructions(forward)]
    return any(name == found or isinstance(found, tuple) and name in found for found in named)


def _is_plain(module: nn.Module) -> bool:
    """Whether a module has no hook and no forward of its own."""
    forward_hooks = module._forward_hooks or module._forward_pre_hooks
    backward_hooks = module._backward_hooks or module._backward_pre_hooks
    return not (forward_hooks or backward_hooks or "forward" in module.__dict__)


def _untouched(operator: Any, library: str) -> bool:
    """Whether the operator of a module is the library's own, and nobody listens to its calls."""
    if isinstance(operator, nn.Module):
        if not _is_plain(operator):
            return False
        where = type(operator).__module__
    else:
        where = getattr(operator, "func", operator).__module__
    return where.partition(".")[0] in (library, "msda_attn")


def _is_recorded(cls: type) -> bool:
    """Whether models take the weights of a module by a hook only. Without one nobody uses them."""
    for model in list(vars(sys.modules[cls.__module__]).values()):
        records = vars(model).get("_can_record_outputs") if isinstance(model, type) else None
        for record in records.values() if isinstance(records, dict) else ():
            for target in record if isinstance(record, list) else [record]:
                if cls in (target, getattr(target, "target_class", None)):
                    return True
    return False


class _Attention:
    """The computation of one class of modules."""

    def __init__(self, cls: type, original: Callable[..., Any]) -> None:
        self.original = original
        self.library = cls.__module__.partition(".")[0]
        stored = stored_names(cls)
        self.stored = stored
        parameters = list(inspect.signature(original).parameters.values())[1:]
        self.names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        kwargs = [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
        self.ignores_others = bool(kwargs) and not _uses_kwargs(original, kwargs[0])
        for parameter in parameters:
            known = parameter.name in _PART or parameter.kind is parameter.VAR_KEYWORD
            if not known or parameter.kind is parameter.VAR_POSITIONAL:
                raise ValueError(f"it takes {parameter.name!r}, which msda does not know")
        self.parts = {_PART[name]: name for name in self.names}
        for part in ("query", "reference", "pixels"):
            if part not in self.parts:
                raise ValueError(f"it takes none of {', '.join(_ARGUMENTS[part])}")
        if "sizes" not in self.parts and "shapes" not in self.parts:
            raise ValueError("it takes no level sizes")
        self.heads = self._attribute(_HEADS)
        self.levels = self._attribute(_LEVELS)
        self.points = self._attribute(_POINTS)
        self.operator = next((name for name in _OPERATOR if name in stored), None)
        self.state = {name: value for name, value in _STATE.items() if name in stored}
        self.projects = "value_proj" in stored, "output_proj" in stored
        self.residual = "identity" in self.parts
        self.recorded = _is_recorded(cls)
        # What the example shows. Values without a projection may have a dimension for the heads.
        self.pixels_dim = 3
        self.mask_is_padding: bool | None = None
        self.weights_dim = 0
        self.forms: set[tuple[bool, int]] = set()

    def _attribute(self, names: tuple[str, ...]) -> str:
        for name in names:
            if name in self.stored:
                return name
        raise ValueError(f"it has none of the attributes {', '.join(names)}")

    def applies(self, module: nn.Module) -> bool:
        """Whether a module is in the state that this computes."""
        for name, value in self.state.items():
            if getattr(module, name) != value:
                return False
        if self.operator is not None:
            if not _untouched(getattr(module, self.operator), self.library):
                return False
        return not _has_global_hook()

    def run(self, module: nn.Module, given: dict[str, Any]) -> Any:
        """The result of the forward, or None where the original must compute it."""
        parts = self.parts
        query, reference = given.get(parts["query"]), given.get(parts["reference"])
        pixels, mask = given.get(parts["pixels"]), given.get(parts.get("mask"))
        sizes = given.get(parts.get("sizes"))
        starts = None
        if sizes is None:
            sizes, starts = given.get(parts.get("shapes")), given.get(parts.get("starts"))
        if pixels is None and self.residual:
            pixels = query
        if query is None or pixels is None or reference is None or sizes is None:
            return None
        if pixels.dim() != self.pixels_dim:
            return None
        if mask is not None and (self.mask_is_padding is None or mask.dtype is not torch.bool):
            return None
        heads, levels = getattr(module, self.heads), getattr(module, self.levels)
        points = getattr(module, self.points)
        transposed = self.residual and not module.batch_first
        identity = given.get(parts.get("identity")) if self.residual else None
        if identity is None:
            identity = query
        position = given.get(parts.get("position"))
        if position is not None:
            query = query + position
        if transposed:
            query, pixels = query.transpose(0, 1), pixels.transpose(0, 1)
        batch, queries = query.shape[0], query.shape[1]
        shape = reference.shape
        if len(shape) != 4 or shape[0] != batch or shape[1] != queries:
            return None
        if shape[2] not in (1, levels) or (shape[2] == 1, shape[3]) not in self.forms:
            return None

        value = module.value_proj(pixels) if self.projects[0] else pixels
        if mask is not None:
            padding = (mask if self.mask_is_padding else ~mask)[..., None]
            layer = getattr(module, "value_proj", None)
            # In place there is no copy. Only this function has the result of a plain layer; where
            # the layer has a backward hook, autograd refuses to change the result.
            own = type(layer) is nn.Linear and _is_plain(layer)
            value = value.masked_fill_(padding, 0.0) if own else value.masked_fill(padding, 0.0)
        if self.pixels_dim == 3:
            value = value.unflatten(-1, (heads, -1))
        differ = not isinstance(points, int) and len(set(points)) > 1
        if differ:
            samples = (sum(points),)
        else:
            samples = (levels, points if isinstance(points, int) else points[0])
        offsets = module.sampling_offsets(query).view(batch, queries, heads, *samples, 2)
        logits = module.attention_weights(query).view(batch, queries, heads, *samples)
        if value.dtype is torch.float64:
            # Some models make reference points in float32; offsets must not be rounded for them.
            reference = reference.double()
        output = ms_deform_attn_fused(
            value, sizes, starts, reference, offsets, logits, points=points if differ else None
        )
        if self.projects[1]:
            output = module.output_proj(output)
        if self.residual:
            output = output.transpose(0, 1) if transposed else output
            return module.dropout(output) + identity
        if not self.weights_dim:
            return output
        weights = None
        # Models record weights by a hook; transformers 5.0 and 5.1 wrap the forward of the module.
        recorded = module._forward_hooks or "forward" in module.__dict__
        if not self.recorded or given.get("output_attentions") or recorded:
            weights = F.softmax(logits.flatten(3), -1)
            if self.weights_dim == 5:
                weights = weights.view(logits.shape)
        return output, weights

    def example(self, cls: type) -> nn.Module:
        """A module of the class without its constructor: only attributes that are known here."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        counts = [_N_POINTS] * len(_SIZES)
        scale = torch.full((sum(counts),), 1 / _N_POINTS, dtype=torch.float64)
        ratio = 2 if "ratio" in self.stored else 1
        attributes = {
            **dict.fromkeys(("d_model", "embed_dim", "embed_dims"), _WIDTH),
            **dict.fromkeys(_HEADS, _N_HEADS),
            **dict.fromkeys(_LEVELS, len(_SIZES)),
            **dict.fromkeys(_POINTS[:2], counts),
            **dict.fromkeys(_POINTS[2:], _N_POINTS),
            **_STATE,
            "head_dim": _CHANNELS,
            "ratio": ratio,
            "im2col_step": 64,
            "disable_custom_kernels": True,
            "batch_first": True,
            "dropout": nn.Identity(),
            "value_proj": _layer(_WIDTH, _WIDTH * ratio, 1),
            "sampling_offsets": _layer(_WIDTH, _N_HEADS * sum(counts) * 2, 2),
            "attention_weights": _layer(_WIDTH, _N_HEADS * sum(counts), 3),
            "output_proj": _layer(_WIDTH * ratio, _WIDTH, 4),
        }
        for name, value in attributes.items():
            if name in self.stored:
                setattr(module, name, value)
        # Buffers, which some constructors do not set as attributes.
        module.num_points_scale = module.n_points_scale = scale
        here = vars(sys.modules[cls.__module__])
        if self.operator == "attn":
            module.attn = here["MultiScaleDeformableAttention"]()
        elif self.operator is not None:
            names = ("multi_scale_deformable_attention_v2", "deformable_attention_core_func_v2")
            setattr(module, self.operator, next(here[name] for name in names if name in here))
        return module

    def arguments(self, levels: int, coordinates: int, mask: Tensor | None) -> dict[str, Any]:
        """The arguments of the example."""
        table = torch.tensor(_SIZES, device="cpu")
        areas = table.prod(1)
        pixels = _numbers(_BATCH, _POSITIONS, _WIDTH, seed=8)
        parts = {
            "query": _numbers(_BATCH, _QUERIES, _WIDTH, seed=5),
            "position": _numbers(_BATCH, _QUERIES, _WIDTH, seed=6),
            "reference": _numbers(_BATCH, _QUERIES, levels, coordinates, seed=7) * 0.3 + 0.5,
            "pixels": pixels
            if self.pixels_dim == 3
            else pixels.unflatten(2, (_N_HEADS, _CHANNELS)),
            "identity": _numbers(_BATCH, _QUERIES, _WIDTH, seed=9),
            "mask": mask,
            "sizes": _SIZES,
            "shapes": table,
            "starts": areas.cumsum(0) - areas,
            "asked": True,
            "unused": _numbers(_BATCH, _POSITIONS, _WIDTH, seed=10) > 0,
        }
        return {name: parts[part] for part, name in self.parts.items()}

    def prove(self, cls: type) -> None:
        """Runs the example both ways. It raises where the two differ."""
        module = self.example(cls)
        for dim in (3,) if self.projects[0] else (3, 4):
            self.pixels_dim = dim
            reason = self._find_forms(module)
            if self.forms:
                break
        else:
            raise ValueError(f"a small example gives {reason}")
        if "mask" in self.parts:
            self._find_mask(module)

    def _expected(self, module: nn.Module, given: dict[str, Any]) -> list[Any]:
        """The results of the original in training mode and in evaluation mode."""
        return [self.original(module.train(mode), **given) for mode in (True, False)]

    def _find_forms(self, module: nn.Module) -> str:
        """Finds the reference points that the original takes. The result is why it refuses one."""
        reason = ""
        for levels, coordinates in itertools.product((1, len(_SIZES)), (2, 4)):
            given = self.arguments(levels, coordinates, None)
            try:
                expected = self._expected(module, given)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if isinstance(expected[0], tuple):
                self.weights_dim = expected[0][1].dim()
            self.forms.add((levels == 1, coordinates))
            if not self._agrees(module, given, expected):
                raise ValueError("its result for a small example differs")
        return reason

    def _agrees(self, module: nn.Module, given: dict[str, Any], expected: list[Any]) -> bool:
        got = self.run(module, {**given, "output_attentions": True})
        return all(_same(got, result) for result in expected)

    def _find_mask(self, module: nn.Module) -> None:
        """Finds what True means in a mask. Without an answer masks go to the original forward."""
        one_level, coordinates = next(iter(self.forms))
        mask = _numbers(_BATCH, _POSITIONS, seed=11) > 0
        given = self.arguments(1 if one_level else len(_SIZES), coordinates, mask)
        try:
            expected = self._expected(module, given)
        except Exception:
            return
        for meaning in (True, False):
            self.mask_is_padding = meaning
            if self._agrees(module, given, expected):
                return
        raise ValueError(f"its result with {self.parts['mask']!r} for a small example differs")


def _numbers(*shape: int, seed: int) -> Tensor:
    """Fixed numbers between -1 and 1. The state of random generators stays as it is."""
    steps = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu")
    return (steps * 0.7 + seed).sin().reshape(shape)


def _layer(inputs: int, outputs: int, seed: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, dtype=torch.float64, device="meta").to_empty(device="cpu")
    layer.weight.data = _numbers(outputs, inputs, seed=seed) * 0.5
    layer.bias.data = _numbers(outputs, seed=seed + 0.5) * 0.5
    return layer


def _same(got: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        pairs = isinstance(got, tuple) and len(got) == len(expected) == 2
        return pairs and all(map(_same, got, expected))
    return (
        isinstance(got, Tensor)
        and isinstance(expected, Tensor)
        and got.shape == expected.shape
        and torch.allclose(got, expected, rtol=1e-9, atol=1e-9)
    )


@contextlib.contextmanager
def plain_state() -> Iterator[None]:
    """Nothing of the caller's state reaches an example: grad mode, autocast, default device."""
    with (
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _make(cls: type, original: Callable[..., Any]) -> Callable[..., Any]:
    attention = _Attention(cls, original)
    with plain_state():
        attention.prove(cls)
    names, known = attention.names, frozenset(attention.names)
    ignores_others = attention.ignores_others

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs} if args else kwargs
        fits = len(given) == len(args) + len(kwargs)
        if not ignores_others:
            for name in kwargs:
                fits = fits and name in known
        result = attention.run(self, given) if fits and attention.applies(self) else None
        # The original also raises what a wrong call raises.
        return original(self, *args, **kwargs) if result is None else result

    return forward


def fused_forward(cls: type) -> Callable[..., Any]:
    """The forward of a class over the fused operator. It raises `ValueError` if there is none."""
    original = vars(cls)["forward"]
    if original in _made.values():
        return original
    if original not in _made:
        try:
            _made[original] = _make(cls, original)
        except Exception as error:
            # A class of an unknown version may raise anything.
            text = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            _made[original] = text
    found = _made[original]
    if isinstance(found, str):
        raise ValueError(found)
    return found
