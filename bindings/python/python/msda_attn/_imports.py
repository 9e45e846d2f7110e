"""Work to do directly after other modules are imported."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence


class AfterImport:
    """A finder for `sys.meta_path` that passes modules to a function directly after their import."""

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
        if not isinstance(loader, importlib.machinery.SourceFileLoader):
            return spec

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            self._then(module)

        loader.exec_module = exec_module
        return spec
