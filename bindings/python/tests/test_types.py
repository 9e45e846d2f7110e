"""mypy accepts the calls of the documents, and rejects wrong options."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import msda_attn as msda
import pytest

pytest.importorskip("torch", reason="the functions for tensors need torch")
pytest.importorskip("mypy", reason="mypy is not installed")

RIGHT = """
import numpy
import torch
import msda_attn as msda

pixels = numpy.ones((1, 16, 1, 8), dtype=numpy.float32)
center = numpy.full((1, 1, 1, 1, 1, 2), 0.5, dtype=numpy.float32)
one = numpy.ones((1, 1, 1, 1, 1), dtype=numpy.float32)
array = msda.ms_deform_attn(pixels, [(4, 4)], None, center, one)
mean: numpy.ndarray = array
value, locations, weights = torch.rand(1), torch.rand(1), torch.rand(1)
sizes = torch.tensor([(4, 4)])
tensor: torch.Tensor = msda.ms_deform_attn(value, sizes, None, locations, weights, padding="border")
tensor = msda.ms_deform_attn_fused(value, [(4, 4)], [0], value, locations, weights, points=[1])
tensor = msda.MSDeformAttn(256, levels=1, sampling="nearest")(value, value, value, sizes)
"""
WRONG = [
    'msda.ms_deform_attn(value, sizes, None, locations, weights, sampling="bicubic")',
    'msda.ms_deform_attn_fused(value, sizes, None, value, locations, weights, padding="none")',
    "msda.ms_deform_attn(value, sizes, None, center, one)",
    "msda.ms_deform_attn(value, 4, None, locations, weights)",
]


def test_the_types(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(RIGHT + "".join(f"{line}\n" for line in WRONG))
    package = pathlib.Path(msda.__file__).parents[1]
    done = subprocess.run(
        # Torch's own files take minutes, and say nothing about ours.
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path)]
        + ["--ignore-missing-imports", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(package)},
    )
    errors = [
        line for line in done.stdout.splitlines() if "program.py" in line and "error:" in line
    ]
    first = RIGHT.count("\n") + 1
    assert [int(line.split(":")[1]) for line in errors] == list(range(first, first + len(WRONG)))
