"""Other modules: where packages are, an old one in the way, and work to do after an import."""

from __future__ import annotations

import importlib.machinery
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence

from . import _native

# Loaders of which each module has its own. An archive has one for all its modules.
_LOADERS = (importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader)

OLD_PACKAGE = "the package msda of the old distribution msda-rs"
OLD_HINT = "hint: pip uninstall msda-rs, and import msda_attn only"


def name_packages(*folders: str) -> None:
    """Says to the compiled part where packages are: NVRTC may be in one."""
    for folder in (*(sysconfig.get_paths()[key] for key in ("purelib", "platlib")), *folders):
        _native.add_packages(folder)


def refuse_old_package() -> None:
    """Raises if this package's former self is imported: both define `torch.ops.msda`."""
    if "msda._native" in sys.modules:
        raise ImportError(f"msda_attn: got {OLD_PACKAGE} imported in this process\n{OLD_HINT}")


class AfterImport:
    """A finder for `sys.meta_path`: it calls a function with modules after their import."""

    def __init__(
        self, wanted: Callable[[str], object], then: Callable[[types.ModuleType], None]
    ) -> None:
        self._wanted = wanted
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._wanted(name):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader = None if spec is None else spec.loader
        if not isinstance(loader, _LOADERS):
            return spec

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            self._then(module)

        loader.exec_module = exec_module
        return spec
