"""Multi-scale deformable attention: fast, exact and reproducible, on CPU and GPU.

    import msda

    output = msda.ms_deform_attn(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )

Torch tensors on the CPU and on NVIDIA GPUs, NumPy arrays, and anything else with DLPack on the CPU.
`msda.MSDeformAttn` is the module around the operator. `python -m msda doctor` says what works here.
"""

from __future__ import annotations

import importlib.util
import sys
import typing

from ._native import __version__

if typing.TYPE_CHECKING:
    from ._torch.functional import ms_deform_attn, ms_deform_attn_fused
    from ._torch.module import MSDeformAttn

__all__ = ["MSDeformAttn", "__version__", "ms_deform_attn", "ms_deform_attn_fused"]

_FUNCTIONS = {"ms_deform_attn", "ms_deform_attn_fused"}


def __getattr__(name: str) -> object:
    """Imports torch, if it is installed, when the operator is asked for: `import msda` stays fast."""
    if name in _FUNCTIONS:
        if importlib.util.find_spec("torch") is not None:
            from ._torch import functional as module
        else:
            from . import _array as module
        for function in _FUNCTIONS:
            globals()[function] = getattr(module, function)
        return globals()[name]
    if name == "MSDeformAttn":
        if importlib.util.find_spec("torch") is None:
            raise ImportError("msda.MSDeformAttn needs torch\nhint: pip install torch")
        from ._torch.module import MSDeformAttn

        globals()[name] = MSDeformAttn
        return MSDeformAttn
    raise AttributeError(f"module 'msda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if sys.modules.get("torch") is not None:
    # Programs that were exported or compiled call `torch.ops.msda` without the functions above.
    from . import _torch  # noqa: F401
