"""Attributes of other libraries: replacing them, and putting the original ones back."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import types
from collections.abc import Callable, Iterator

ABSENT = object()

# Held while attributes are replaced or put back.
lock = threading.RLock()


@dataclasses.dataclass(eq=False)
class _Layer:
    """One replacement of an attribute."""

    owner: object
    name: str
    old: object
    new: object


# The replacements of each attribute, the newest last. They can be undone in any order.
_layers: dict[tuple[int, str], list[_Layer]] = {}


def _get(owner: object, name: str) -> object:
    """An attribute of the owner itself, or an entry of a dictionary."""
    return (owner if isinstance(owner, dict) else vars(owner)).get(name, ABSENT)


def _put(owner: object, name: str, value: object) -> None:
    if isinstance(owner, dict):
        if value is ABSENT:
            del owner[name]
        else:
            owner[name] = value
    elif value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _full_name(owner: object, name: str) -> str:
    """An attribute's name with its owner's; of an entry of `sys.modules`, the module's name."""
    if isinstance(owner, dict):
        return name
    is_class = isinstance(owner, type)
    return f"{f'{owner.__module__}.{owner.__qualname__}' if is_class else owner.__name__}.{name}"


def original(owner: object, name: str) -> object:
    """An attribute as it is without any replacement, or ABSENT."""
    value = _get(owner, name)
    for layer in reversed(_layers.get((id(owner), name), [])):
        if value is layer.new:
            value = layer.old
    return value


def _remove(layer: _Layer) -> None:
    """Takes one replacement away. Newer ones stay, and so does what others have set since."""
    layers = _layers[id(layer.owner), layer.name]
    place = layers.index(layer)
    newer = layers[place + 1 :]
    if newer:
        if newer[0].old is layer.new:
            newer[0].old = layer.old
    elif _get(layer.owner, layer.name) is layer.new:
        _put(layer.owner, layer.name, layer.old)
    del layers[place]
    if not layers:
        del _layers[id(layer.owner), layer.name]


class Replacements:
    """A list of replaced attributes. They stay until all handles are undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.names: list[str] = []
        self._handles: set[Patch] = set()

    def __bool__(self) -> bool:
        return bool(self._undo)

    def set(self, owner: object, name: str, new: object) -> None:
        """Sets an attribute of a module or of a class, or an entry of a dictionary.

        Inherited attributes stay as they are.
        """
        with lock:
            layer = _Layer(owner, name, _get(owner, name), new)
            _put(owner, name, new)
            _layers.setdefault((id(owner), name), []).append(layer)
            self._undo.append(lambda: _remove(layer))
            self.names.append(_full_name(owner, name))

    def set_everywhere(self, module: types.ModuleType, function: object, new: object) -> None:
        """Replaces a function in a module, and in every imported module that has it as a global."""
        found = {id(m): m for m in (module, *sys.modules.values())}
        for owner in found.values():
            if not isinstance(owner, types.ModuleType):
                continue
            for name, value in list(vars(owner).items()):
                # Where an earlier call has replaced it, this call replaces it too.
                again = value is new and original(owner, name) is function
                if value is function or again:
                    self.set(owner, name, new)

    def add(self, name: str, undo: Callable[[], object]) -> None:
        """Notes a replacement that was made in another way, and how it is undone."""
        self._undo.append(undo)
        self.names.append(name)

    def add_finder(self, finder: object) -> None:
        """Asks this finder first at every import."""

        def remove() -> None:
            # Others may have made a new list without it.
            sys.meta_path[:] = [other for other in sys.meta_path if other is not finder]

        sys.meta_path.insert(0, finder)
        self._undo.append(remove)

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Takes back everything if the block fails, also where the user made warnings errors."""
        with lock:
            try:
                yield
            except BaseException:
                self.undo()
                raise

    def handle(self) -> Patch:
        """One more handle."""
        with lock:
            handle = Patch(self)
            self._handles.add(handle)
            return handle

    def release(self, handle: Patch) -> None:
        """Undoes a handle. After the last one, the original attributes are back."""
        with lock:
            if handle in self._handles:
                self._handles.remove(handle)
                if not self._handles:
                    self.undo()

    def undo(self) -> None:
        """Undoes all handles: puts the original attributes back, the last one first."""
        with lock:
            self._handles.clear()
            self.names.clear()
            while self._undo:
                self._undo.pop()()


class Patch:
    """What a patch function returns: `undo()`, or the end of a `with` block, undoes the call.

    Each call gives its own handle, which undoes nothing else. What several calls have replaced
    stays replaced until all their handles are undone. The functions that unpatch undo all handles.
    """

    def __init__(self, replaced: Replacements) -> None:
        self._replaced = replaced

    @property
    def replaced(self) -> list[str]:
        """Full names of the attributes that are replaced now, in their order."""
        return list(self._replaced.names)

    def undo(self) -> None:
        """Undoes what this call did. A second call does nothing."""
        self._replaced.release(self)

    def __repr__(self) -> str:
        names = self.replaced
        return f"<Patch of {len(names)}: {', '.join(names)}>" if names else "<Patch of nothing>"

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()
