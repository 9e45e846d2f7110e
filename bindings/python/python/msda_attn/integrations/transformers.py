"""Hugging Face transformers: its models call msda.

    import msda_attn as msda

    msda.patch("transformers")

The forward of whole attention modules is replaced: see `_forwards.py`. Other calls go to the
original forward, and to the operator inside it: a layer `MultiScaleDeformableAttention`, or a
function that each model's file has for itself.
"""

from __future__ import annotations

from ._library import Library, in_modules

library = Library("transformers", in_modules(r"transformers\.models\..*\.modeling_\w+"))
patch_transformers = library.patch
unpatch_transformers = library.unpatch
