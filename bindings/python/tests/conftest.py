"""Every test that takes `device` runs on the CPU, and on the GPU if there is one."""

from __future__ import annotations

import os
import pathlib
import sys

import msda_attn as msda
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
# Processes that tests start use the same msda, and modules of this folder.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(
        None,
        [str(HERE), str(pathlib.Path(msda.__file__).parents[1]), os.environ.get("PYTHONPATH")],
    )
)

from support import devices  # noqa: E402


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest) -> str:
    return request.param
