"""maturin, with an error that says what to do where Rust is missing."""

import os
import shutil
import sys

# Without this, maturin downloads a toolchain of its own.
os.environ["MATURIN_NO_INSTALL_RUST"] = "1"

from maturin import *  # noqa: F403
from maturin import get_requires_for_build_wheel as _requires


def get_requires_for_build_wheel(config_settings=None):
    """The first thing that pip asks before it builds."""
    if shutil.which("cargo") is None:
        sys.exit(
            "error: got no `cargo` on the path, expected a Rust toolchain\n"
            "hint: install Rust from https://rustup.rs, or use a system that has a wheel"
        )
    return _requires(config_settings)


get_requires_for_build_editable = get_requires_for_build_wheel
