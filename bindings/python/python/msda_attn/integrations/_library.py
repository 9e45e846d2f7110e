"""A library whose models call msda, and how it is patched."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from collections.abc import Callable

from .._imports import AfterImport
from ._forwards import d_fine
from ._modules import replace_modules
from ._operators import replace_operators
from ._replace import Patch, Replacements, lock


def _patch_module(module: types.ModuleType, replaced: Replacements) -> None:
    """Replaces the attention modules of a module, and the operator where the original calls it."""
    # First the modules: they are compared with the library's own operator.
    families = replace_modules(module, replaced)
    # Modules of D-FINE keep the function: its name must still give it, because pickle looks there.
    if not any(family.forward is d_fine for family in families):
        replace_operators(module, replaced)


def in_modules(pattern: str) -> Callable[[Replacements], None]:
    """Patches modules whose names match: those that are imported, and those imported later."""
    wanted = re.compile(pattern).fullmatch

    def replace(replaced: Replacements) -> None:
        def after_import(module: types.ModuleType) -> None:
            with lock:
                if replaced:
                    _patch_module(module, replaced)

        replaced.add_finder(AfterImport(wanted, after_import))
        for name, module in list(sys.modules.items()):
            if wanted(name) and isinstance(module, types.ModuleType):
                _patch_module(module, replaced)

    return replace


class Library:
    """A library that can be patched.

    Args:
        name: its package.
        replace: replaces what the library's models call.
        pip: its name for pip, if it differs.
    """

    def __init__(
        self, name: str, replace: Callable[[Replacements], None], pip: str | None = None
    ) -> None:
        self.name = name
        self._replace = replace
        self._pip = pip or name
        self._replaced = Replacements()

    def patch(self) -> Patch:
        """Makes the models of the library call msda, on the CPU and on CUDA.

        Models that exist already are included. The result undoes the call with `undo()`, or at the
        end of a `with` block; the patch stays until all calls are undone.
        """
        if importlib.util.find_spec(self.name) is None:
            raise ImportError(
                f"msda_attn.patch({self.name!r}) needs {self.name}\nhint: pip install {self._pip}"
            )
        with lock:
            if not self._replaced:
                with self._replaced.all_or_nothing():
                    self._replace(self._replaced)
            return self._replaced.handle()

    def unpatch(self) -> None:
        """Undoes all calls of `patch`. Without a patch it does nothing."""
        self._replaced.undo()
