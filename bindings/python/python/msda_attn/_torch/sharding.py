"""How DTensor splits the operators between processes: by batch, by queries or by heads.

`torch.distributed.tensor` is imported only by `register_sharding`: it takes a second.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import torch

from .rules import FUSED_WANTED, PLAIN_WANTED

# The dimension of a tensor that is split by batch, by queries and by heads. None: every process
# has the whole tensor.
_VALUE = (0, None, 2)
_LEVELS = (None, None, None)
_REFERENCE = (0, 1, None)
_SAMPLES = (0, 1, 2)
_OUTPUT = (0, 1, 2)

_BATCH, _QUERIES, _HEADS = range(3)
_PLAIN = (_VALUE, _LEVELS, _LEVELS, _SAMPLES, _SAMPLES)
_FUSED = (_VALUE, _LEVELS, _LEVELS, _REFERENCE, _SAMPLES, _SAMPLES)
# Tensors with a gradient, in the order of the gradients.
_PLAIN_GRADIENTS = (_VALUE, _SAMPLES, _SAMPLES)
_FUSED_GRADIENTS = (_VALUE, _REFERENCE, _SAMPLES, _SAMPLES)


def _heads_divide(value: Any) -> bool:
    """Whether every way to split the heads over dimensions of the mesh gives equal parts.

    The last dimension of the output is heads * channels. DTensor splits it between two heads only
    if all processes have the same number of heads.
    """
    heads, sizes = value.shape[2], tuple(value.mesh.shape)
    parts = (
        math.prod(chosen)
        for count in range(1, len(sizes) + 1)
        for chosen in itertools.combinations(sizes, count)
    )
    # DTensor itself refuses to split into more parts than there are heads.
    return all(n > heads or heads % n == 0 for n in parts)


def _splits(value: Any) -> tuple[int, ...]:
    return (_BATCH, _QUERIES, _HEADS) if _heads_divide(value) else (_BATCH, _QUERIES)


def _rule(inputs: tuple, results: tuple, bits: tuple | None = None) -> Any:
    """The rule of an operator. `bits` of its last argument say which results are wanted."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    def given(dims: tuple, split: int) -> Any:
        return Replicate() if dims[split] is None else Shard(dims[split])

    def result(dims: tuple, split: int, wanted: bool) -> Any:
        # A gradient that is not wanted is an empty tensor. A tensor that all processes have gets
        # a part of its gradient from each.
        if not wanted:
            return Replicate()
        return Partial() if dims[split] is None else Shard(dims[split])

    def rule(*args: Any) -> list:
        numbers = [None] * (len(args) - len(inputs))
        wanted = [bits is None or bool(args[-1] & bits[i]) for i in range(len(results))]
        # DTensor takes the first of the cheapest: tensors that are whole stay whole.
        whole = [Replicate()]
        found = [(whole * len(results), whole * len(inputs) + numbers)]
        for split in _splits(args[inputs.index(_VALUE)]):
            made = [result(dims, split, want) for dims, want in zip(results, wanted)]
            found.append((made, [given(dims, split) for dims in inputs] + numbers))
        return found

    return rule


_registered = False


def register_sharding() -> None:
    """Tells DTensor how to split the operators of `torch.ops.msda` by batch, queries and heads.

    `msda.ms_deform_attn` and `msda.ms_deform_attn_fused` call it for the first DTensor. Call it
    before using the operators of `torch.ops.msda` directly, or under `torch.compile`.
    """
    global _registered
    if _registered:
        return
    if not torch.distributed.is_available():
        raise RuntimeError("register_sharding: this build of torch has no torch.distributed")
    from torch.distributed.tensor import experimental

    ops = torch.ops.msda
    rules = {
        ops.ms_deform_attn.default: _rule(_PLAIN, (_OUTPUT,)),
        ops.ms_deform_attn_fused.default: _rule(_FUSED, (_OUTPUT,)),
        ops.ms_deform_attn_backward.default: _rule(
            (_OUTPUT, *_PLAIN), _PLAIN_GRADIENTS, PLAIN_WANTED
        ),
        ops.ms_deform_attn_fused_backward.default: _rule(
            (_OUTPUT, *_FUSED), _FUSED_GRADIENTS, FUSED_WANTED
        ),
    }
    for op, rule in rules.items():
        experimental.register_sharding(op)(rule)
    _registered = True


def is_dtensor(value: Any) -> bool:
    """Whether a tensor is a DTensor. Their module is not imported for that."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def replicate_levels(value: Any, shapes: Any, starts: Any) -> tuple[Any, Any]:
    """Level sizes and starts for a call: DTensors on every process if `value` is a DTensor."""
    if not is_dtensor(value):
        return shapes, starts
    tensor = sys.modules["torch.distributed.tensor"]
    register_sharding()
    mesh = value.device_mesh
    whole = [tensor.Replicate()] * mesh.ndim
    return tuple(
        table
        if isinstance(table, tensor.DTensor)
        else tensor.DTensor.from_local(table, mesh, whole, run_check=False)
        for table in (shapes, starts)
    )
