"""Multi-scale deformable attention: fast, exact and reproducible, on CPU and GPU.

    import msda_attn as msda

    output = msda.ms_deform_attn(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )

Torch tensors on the CPU and on NVIDIA GPUs, NumPy arrays, and anything else with DLPack on the CPU.
`msda.MSDeformAttn` is the module around the operator. `python -m msda_attn doctor` says what works
here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import typing
import warnings

from ._explain import explain
from ._functions import ms_deform_attn, ms_deform_attn_fused
from ._imports import AfterImport
from ._native import __version__

if typing.TYPE_CHECKING:
    from ._torch.module import MSDeformAttn
    from ._torch.sharding import register_sharding
    from .integrations.libraries import patch
    from .integrations.transformers import patch_transformers, unpatch_transformers

__all__ = [
    "MSDeformAttn",
    "__version__",
    "explain",
    "ms_deform_attn",
    "ms_deform_attn_fused",
    "patch",
    "patch_transformers",
    "register_sharding",
    "unpatch_transformers",
]

# Names that need torch, and their modules.
_WITH_TORCH = {
    "MSDeformAttn": "._torch.module",
    "patch": ".integrations.libraries",
    "patch_transformers": ".integrations.transformers",
    "register_sharding": "._torch.sharding",
    "unpatch_transformers": ".integrations.transformers",
}


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


if not _has_torch():
    # `from msda_attn import *` and `help(msda)` ask for every name that is listed.
    __all__[:] = [name for name in __all__ if name not in _WITH_TORCH]


def __getattr__(name: str) -> object:
    """Imports torch when a name needs it and it is installed: `import msda_attn` stays fast."""
    if name in _WITH_TORCH:
        if not _has_torch():
            raise ImportError(f"msda_attn.{name} needs torch\nhint: pip install torch")
        globals()[name] = getattr(importlib.import_module(_WITH_TORCH[name], __name__), name)
        return globals()[name]
    raise AttributeError(f"module 'msda_attn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _register(torch: types.ModuleType) -> None:
    """Registers the operators after a later import of torch, which must not fail because of it."""
    try:
        importlib.import_module("._torch", __name__)
    except Exception as error:
        # The functions above will raise the exception again.
        warnings.warn(f"torch.ops.msda does not work: {error}", RuntimeWarning, stacklevel=2)


# Programs that were exported or compiled call `torch.ops.msda` without the functions above.
if sys.modules.get("torch") is not None:
    from . import _torch  # noqa: F401
elif _has_torch():
    sys.meta_path.insert(0, AfterImport("torch".__eq__, _register))
