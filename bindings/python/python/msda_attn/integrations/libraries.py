"""The libraries whose models can call msda, by name.

import msda_attn as msda

msda.patch("ultralytics")
"""

from __future__ import annotations

import importlib
import types
import warnings
from collections.abc import Callable
from typing import Any

from . import research
from ._library import Library
from ._replace import Patch, Replacements


def _replace_functions(module: types.ModuleType, replaced: Replacements) -> None:
    """Replaces the operator where a module calls it by its name."""
    for name in research.FUNCTIONS:
        if name not in vars(module):
            continue
        try:
            replaced.set(module, name, research.replacement(vars(module)[name]))
        except ValueError as reason:
            # The library must stay usable.
            warnings.warn(f"msda left {module.__name__}.{name} as it is: {reason}", stacklevel=2)


_PLAIN = {
    library.name: library
    for library in (
        Library("ultralytics", r"ultralytics\.nn\.modules\.transformer", _replace_functions),
        Library("rfdetr", r"rfdetr\.models\.ops\.modules\.ms_deform_attn", _replace_functions),
        Library(
            "lightly_train",
            r"lightly_train\._task_models\.object_detection_components\.\w+_decoder",
            pip="lightly-train",
        ),
    )
}

# Modules of this package with a function that patches.
_OTHERS = {
    "transformers": ("transformers", "patch_transformers"),
    "mmcv": ("mmcv", "patch"),
    "libreyolo": ("libreyolo", "patch"),
    "research": ("research", "install"),
}

NAMES = sorted([*_PLAIN, *_OTHERS])


def patch(library: str) -> Patch:
    """Makes the models of a library call msda, on the CPU and on CUDA.

    Args:
        library: 'transformers', 'ultralytics', 'rfdetr', 'lightly_train', 'libreyolo', 'mmcv', or
            'research', which makes the compiled module `MultiScaleDeformableAttention` of research
            repositories importable. Upper case counts as lower case, and `-` as `_`.

    Models that exist already are included, and modules that are imported later. The result undoes
    the call with `undo()`, or at the end of a `with` block; the patch stays until all calls are
    undone. What msda does not know stays as it is, with a warning.
    """
    name = library.lower().replace("-", "_") if isinstance(library, str) else library
    if name in _PLAIN:
        return _PLAIN[name].patch()
    if name in _OTHERS:
        module, function = _OTHERS[name]
        make: Callable[[], Any] = getattr(
            importlib.import_module(f".{module}", __package__), function
        )
        return make()
    raise ValueError(
        f"library: got {library!r}, expected one of {', '.join(NAMES)}\n"
        "hint: `msda_attn.integrations.research.patch(module)` patches any module"
    )
