"""Other modules: where packages are, and work to do after an import."""

from __future__ import annotations

import importlib.machinery
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from typing import Any

from . import _native


def name_packages(*folders: str) -> None:
    """Says to the compiled part where packages are: NVRTC may be in one."""
    for folder in (*(sysconfig.get_paths()[key] for key in ("purelib", "platlib")), *folders):
        _native.add_packages(folder)


class _Loader:
    """The loader of one module, which then calls functions with it."""

    def __init__(self, loader: Any, then: Sequence[Callable[[types.ModuleType], None]]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # From here on the module names its original loader.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for then in self._then:
            then(module)


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
        # The first finder of this kind answers for all of them.
        ours = [finder for finder in sys.meta_path if isinstance(finder, AfterImport)]
        others = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, [f._then for f in ours if f._wanted(name)])
        return spec
