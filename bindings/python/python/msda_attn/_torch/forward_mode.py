"""Forward-mode derivatives: msda has none, and says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_forward_ad = torch.autograd.forward_ad
# Private parts of torch: the innermost transform of torch.func, and the name of forward mode.
_functorch = getattr(torch._C, "_functorch", None)
transforms = getattr(_functorch, "peek_interpreter_stack", lambda: None)
_JVP = getattr(getattr(_functorch, "TransformType", None), "Jvp", None)


def refuse(arguments: Iterable[Any]) -> None:
    """Raises an exception if a tensor among the arguments has a tangent."""
    innermost = transforms()
    if innermost is None:
        if _forward_ad._current_level < 0:
            return
    # Other transforms run the operator again without themselves: tangents are found then.
    elif innermost.key() != _JVP:
        return
    for tensor in filter(lambda argument: isinstance(argument, Tensor), arguments):
        # Forward mode cannot be nested, so its level is always 0.
        if _forward_ad.unpack_dual(tensor, level=0).tangent is not None:
            raise NotImplementedError(
                "msda has no forward-mode derivatives\n"
                "hint: use reverse mode: backward() or torch.func.grad"
            )
