"""The libraries whose models can call msda, by name.

import msda_attn as msda

msda.patch("ultralytics")
"""

from __future__ import annotations

from collections.abc import Callable

from . import libreyolo, mmcv, research, transformers
from ._library import Library, in_modules
from ._replace import Patch

_COMPONENTS = r"lightly_train\._task_models\.object_detection_components"
_LIBRARIES = (
    transformers.library,
    Library("ultralytics", in_modules(r"ultralytics\.nn\.modules\.transformer")),
    Library("rfdetr", in_modules(r"rfdetr\.models\.ops\.modules\.ms_deform_attn")),
    Library("lightly_train", in_modules(_COMPONENTS + r"\.\w+_decoder"), pip="lightly-train"),
    libreyolo.library,
    mmcv.library,
)
_PATCHES: dict[str, Callable[[], Patch]] = {
    **{library.name: library.patch for library in _LIBRARIES},
    "research": research.install,
}

NAMES = sorted(_PATCHES)


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
    if name not in NAMES:
        raise ValueError(
            f"library: got {library!r}, expected one of {', '.join(NAMES)}\n"
            "hint: `msda_attn.integrations.research.patch(module)` patches any module"
        )
    return _PATCHES[name]()
