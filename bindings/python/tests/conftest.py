"""Every test that takes `device` runs on the CPU, and on the GPU if there is one."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from support import devices  # noqa: E402


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> str:
    return request.param
