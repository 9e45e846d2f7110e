"""Counts the operators that torch runs, so that a test can tell which implementation it ran."""

from __future__ import annotations

import collections

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """The number of calls of each operator inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.count: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count[str(op.overloadpacket)] += 1
        return op(*args, **(kwargs or {}))
