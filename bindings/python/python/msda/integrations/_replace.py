"""Attributes of other libraries: replacing them, and putting the original ones back."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

_ABSENT = object()


class Replacements:
    """A list of replaced attributes that can be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def set(self, owner: object, name: str, new: object) -> None:
        """Sets an attribute of a module or of a class. Inherited attributes stay as they are."""
        old = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)
        if old is _ABSENT:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, old))

    def set_everywhere(self, function: object, new: object) -> None:
        """Replaces a function in every imported module that has it as a global."""
        for module in list(sys.modules.values()):
            if not isinstance(module, types.ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if value is function:
                    self.set(module, name, new)

    def add_module(self, name: str, module: types.ModuleType) -> None:
        """Makes `import name` give this module."""
        old = sys.modules.get(name, _ABSENT)
        sys.modules[name] = module
        if old is _ABSENT:
            self._undo.append(lambda: sys.modules.pop(name, None))
        else:
            self._undo.append(lambda: sys.modules.__setitem__(name, old))

    def add_finder(self, finder: object) -> None:
        """Asks this finder first at every import."""
        sys.meta_path.insert(0, finder)
        self._undo.append(lambda: sys.meta_path.remove(finder))

    def undo(self) -> None:
        """Puts the original attributes back, the last one first."""
        while self._undo:
            self._undo.pop()()


class Patch:
    """What a patch function returns: `undo()`, or the end of a `with` block, undoes the patch.

    A patch that was in place before is not undone by the `with` block of a second call.
    """

    def __init__(self, undo: Callable[[], None] | None) -> None:
        self._undo = undo

    def undo(self) -> None:
        """Undoes what this call did. A second call does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()
