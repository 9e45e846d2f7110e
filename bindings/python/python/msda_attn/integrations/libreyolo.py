"""LibreYOLO: msda takes its slot for multi-scale deformable attention.

    import msda_attn as msda

    msda.patch("libreyolo")

LibreYOLO asks the slot in eager calls. Compiled and exported models keep its own code.
"""

from __future__ import annotations

import importlib
import importlib.util
import types

from torch import Tensor

from .._torch.functional import ms_deform_attn
from ._replace import Patch, Replacements, lock

_SLOT, _NAME = "ms_deform_attn", "msda"

_replaced = Replacements()


def _provider(
    value: Tensor, spatial_shapes: Tensor, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    """The slot's function. Value is any strided tensor: it is not copied before the call."""
    return ms_deform_attn(value, spatial_shapes, None, sampling_locations, attention_weights)


def patch() -> Patch:
    """Registers msda as the newest provider of the slot.

    The result undoes the call with `undo()`, or at the end of a `with` block; the provider stays
    until all calls are undone.
    """
    if importlib.util.find_spec("libreyolo") is None:
        raise ImportError(
            "msda_attn.patch('libreyolo') needs libreyolo\nhint: pip install libreyolo"
        )
    kernels = importlib.import_module("libreyolo.kernels")
    with lock:
        if not _replaced:
            # LibreYOLO's own providers come first: a newer provider is asked earlier.
            kernels.resolve(_SLOT)
            kernels.register(_SLOT, _provider, name=_NAME)
            kernels.clear_cache()
            _replaced.add(f"libreyolo.kernels:{_SLOT}", lambda: _unregister(kernels))
        return _replaced.handle()


def _unregister(kernels: types.ModuleType) -> None:
    kernels.unregister(_SLOT, _NAME)
    kernels.clear_cache()
