"""Counts the operators that torch runs, so that a test can tell which implementation it ran."""

from __future__ import annotations

import collections

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """The number of calls of each operator inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.count: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count[str(op.overloadpacket)] += 1
        return op(*args, **(kwargs or {}))


class Kernels(TorchDispatchMode):
    """The number of calls that compute something, and the bytes that they read and write.

    Views and allocations are left out. On a GPU each counted call launches at least one kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.bytes = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        given = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if _is_tensor(a)]
        made = [r for r in torch.utils._pytree.tree_leaves(result) if _is_tensor(r)]
        if not (op.is_view or "view" in op.name() or "empty" in op.name()) and made:
            self.calls += 1
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in (*given, *made))
        return result


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
