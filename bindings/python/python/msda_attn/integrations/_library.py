"""A library whose models call msda: which modules it has, and how they are replaced."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Callable

from .._imports import AfterImport
from ._modules import fused_forward, is_attention
from ._replace import Patch, Replacements, lock


def attention_classes(module: types.ModuleType) -> list[type]:
    """The attention modules that a module defines."""
    return [cls for cls in list(vars(module).values()) if is_attention(cls, module.__name__)]


def replace_modules(module: types.ModuleType, replaced: Replacements) -> None:
    """Replaces the forward of the attention modules that a module defines."""
    for cls in attention_classes(module):
        try:
            replaced.set(cls, "forward", fused_forward(cls))
        except ValueError as reason:
            warnings.warn(
                f"msda left {cls.__module__}.{cls.__qualname__}.forward as it is: {reason}\n"
                "hint: the operator inside still calls msda where msda knows it",
                stacklevel=2,
            )


class Library:
    """A library, patched in modules that are imported already and in modules imported later.

    Args:
        name: its package.
        modules: a pattern of the names of modules to patch.
        replace: replaces the operator in one module, for calls that the attention modules leave
            to the original code.
        pip: its name for pip, if it differs.
    """

    def __init__(
        self,
        name: str,
        modules: str,
        replace: Callable[[types.ModuleType, Replacements], None] | None = None,
        pip: str | None = None,
    ) -> None:
        self.name = name
        self._wanted = re.compile(modules).fullmatch
        self._replace = replace
        self._pip = pip or name
        self._replaced = Replacements()

    def _patch_module(self, module: types.ModuleType) -> None:
        # First the modules: they are compared with the library's own operator.
        replace_modules(module, self._replaced)
        if self._replace is not None:
            self._replace(module, self._replaced)

    def _after_import(self, module: types.ModuleType) -> None:
        with lock:
            if self._replaced:
                self._patch_module(module)

    def _patch_all(self) -> None:
        self._replaced.add_finder(AfterImport(self._wanted, self._after_import))
        for name, module in list(sys.modules.items()):
            if self._wanted(name) and isinstance(module, types.ModuleType):
                self._patch_module(module)

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
                    self._patch_all()
            return self._replaced.handle()

    def unpatch(self) -> None:
        """Undoes all calls of `patch`. Without a patch it does nothing."""
        self._replaced.undo()
