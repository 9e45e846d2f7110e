"""LibreYOLO: msda takes its slot for multi-scale deformable attention.

    import msda_attn as msda

    msda.patch("libreyolo")

LibreYOLO asks the slot in eager calls. Compiled and exported models keep its own code.
"""

from __future__ import annotations

import importlib

from torch import Tensor

from .._torch.functional import ms_deform_attn
from ._library import Library
from ._replace import Replacements

_SLOT, _NAME = "ms_deform_attn", "msda"


def _provider(
    value: Tensor, spatial_shapes: Tensor, sampling_locations: Tensor, attention_weights: Tensor
) -> Tensor:
    """The slot's function. Value is any strided tensor: it is not copied before the call."""
    return ms_deform_attn(value, spatial_shapes, None, sampling_locations, attention_weights)


def _replace(replaced: Replacements) -> None:
    """Registers msda as the newest provider of the slot."""
    kernels = importlib.import_module("libreyolo.kernels")

    def unregister() -> None:
        kernels.unregister(_SLOT, _NAME)
        kernels.clear_cache()

    # LibreYOLO's own providers come first: a newer provider is asked earlier.
    kernels.resolve(_SLOT)
    kernels.register(_SLOT, _provider, name=_NAME)
    kernels.clear_cache()
    replaced.add(f"libreyolo.kernels:{_SLOT}", unregister)


library = Library("libreyolo", _replace)
