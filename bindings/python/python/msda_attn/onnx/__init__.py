"""Models that leave PyTorch: ONNX files with msda's operators, and proofs that they are right.

    import msda_attn.onnx

    msda_attn.onnx.export(model, (images,), "model.onnx")

`python -m msda_attn onnx` rewrites and verifies files that exist already. docs/DEPLOY.md explains
the runtimes.
"""

from __future__ import annotations

import importlib
import typing

try:
    from .graph import library_path, load, save
    from .ops import OnnxError, register_schemas
except ModuleNotFoundError as error:
    raise ImportError(
        f"msda_attn.onnx needs {error.name}\nhint: pip install onnx onnxruntime onnxscript"
    ) from error

if typing.TYPE_CHECKING:
    from .exporter import export
    from .match import rewrite
    from .openvino import openvino_extension
    from .verifier import verify

__all__ = [
    "OnnxError",
    "export",
    "library_path",
    "load",
    "openvino_extension",
    "register_schemas",
    "rewrite",
    "save",
    "verify",
]

# Names that need torch, ONNX Runtime or OpenVINO, and their modules.
_LATER = {
    "export": ".exporter",
    "openvino_extension": ".openvino",
    "rewrite": ".match",
    "verify": ".verifier",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'msda_attn.onnx' has no attribute {name!r}")
    try:
        globals()[name] = getattr(importlib.import_module(_LATER[name], __name__), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"msda_attn.onnx.{name} needs {error.name}\nhint: pip install {error.name}"
        ) from error
    return globals()[name]
