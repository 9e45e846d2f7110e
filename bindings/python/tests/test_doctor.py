"""`python -m msda_attn doctor`, run as people run it."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import msda_attn as msda
import pytest
from msda_attn import _doctor, _native

PACKAGES = str(pathlib.Path(msda.__file__).parent.parent)
HAS_TORCH = importlib.util.find_spec("torch") is not None


def run(*arguments: str, python: tuple[str, ...] = ("-m", "msda_attn"), environment=None):
    return subprocess.run(
        [sys.executable, *python, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture(scope="module")
def report() -> dict:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_commands_are_listed():
    done = run()
    assert done.returncode == 0
    assert all(f"python -m msda_attn {name}" in done.stdout for name in ("doctor", "bench"))
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_the_version_names_the_commit_and_the_backends():
    done = run("--version")
    assert done.stdout == f"msda {msda.__version__}\n"
    # A local version, which packaging tools can compare.
    assert re.fullmatch(r"\d+\.\d+\.\d+\+g([0-9a-f]{9,}|unknown)\.(cpu|cuda)", msda.__version__)


def test_an_unknown_command_is_refused():
    done = run("docter")
    assert done.returncode == 2 and done.stdout == ""
    assert "command: got 'docter', expected doctor or bench" in done.stderr


def test_the_machine_is_described(report):
    says = {finding["what"]: finding["says"] for finding in report["findings"]}
    assert msda.__version__ in says["msda"]
    assert _native.cpu_isa() in says["processor"]
    assert {"system", "threads", "torch", "numpy", "driver", "gpu", "nvrtc"} <= set(says)
    if HAS_TORCH:
        import torch

        assert torch.__version__ in says["torch"]


def test_results_were_compared(report):
    assert report["ok"]
    assert report["checks"] > 300
    assert 0 <= report["largest_error"] < 1


def test_the_table_says_what_works(report):
    rows = {row["name"]: row for row in report["backends"]}
    assert list(rows) == ["torch, CPU", "torch, CUDA", "NumPy, CPU"]
    if not HAS_TORCH:
        pytest.skip("torch is not installed")
    import torch

    columns = ("inference", "training", "compile", "export", "same bits")
    here = ["torch, CPU", *["torch, CUDA"] * torch.cuda.is_available()]
    for name in here:
        row = rows[name]
        assert row["types"] == ["f64", "f32", "f16", "bf16"]
        assert [row[column] for column in columns] == ["yes"] * 5, row["problems"]
    if not torch.cuda.is_available():
        assert [rows["torch, CUDA"][column] for column in columns] == ["-"] * 5


def test_the_text_fits_a_terminal(report):
    text = _doctor.text(report)
    long = [line for line in text.splitlines() if len(line) > 80 and "/" not in line]
    assert not long
    assert "The operator runs:" in text
    assert "torch, CPU" in text


def test_a_wrong_number_of_threads_is_a_failure():
    done = run("doctor", environment={"MSDA_NUM_THREADS": "abc"})
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert 'MSDA_NUM_THREADS: got "abc", expected a number from 1 to 4096 hint: ' in text


def test_it_is_short_without_a_gpu(report):
    found = {finding["what"]: finding for finding in report["findings"]}
    if found["driver"]["ok"]:
        pytest.skip("there is a driver")
    assert found["gpu"]["says"] == found["nvrtc"]["says"] == "not used without a driver"
    assert len(_doctor.text(report).splitlines()) <= 26


def test_it_works_without_torch_and_numpy(tmp_path):
    # -S leaves out site-packages, where torch and NumPy are, and msda too if it is installed.
    (tmp_path / "msda_attn").symlink_to(pathlib.Path(PACKAGES, "msda_attn"))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from msda_attn.__main__ import main; sys.exit(main(['doctor', '--json']))"
    )
    done = run(python=("-I", "-S", "-c", program))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    findings = {finding["what"]: finding for finding in report["findings"]}
    assert findings["torch"]["says"] == "not installed"
    assert findings["torch"]["hint"].startswith("pip install torch")
    assert findings["compiled part"]["ok"]
    assert report["checks"] > 100
    assert [row["inference"] for row in report["backends"]] == ["-", "-", "-"]


def test_a_device_that_cannot_be_used_is_reported():
    torch = pytest.importorskip("torch", reason="devices are torch's")
    row = _doctor._try_torch(torch, "cuda:99", _doctor.Checks())
    assert {row[column] for column in _doctor._COLUMNS} == {"fails"}
    assert len(row["problems"]) == 1 and row["problems"][0].startswith("tensors on cuda:99: ")


@pytest.mark.parametrize("wrong", ["0.1", "float('nan')"])
def test_a_wrong_result_is_noticed(wrong):
    program = (
        f"import sys; sys.path.insert(0, {PACKAGES!r})\n"
        "from msda_attn import _doctor\n"
        f"_doctor.EXPECTED = ({wrong}, *_doctor.EXPECTED[1:])\n"
        "from msda_attn.__main__ import main\n"
        "sys.exit(main(['doctor']))"
    )
    done = run(python=("-I", "-S", "-c", program))
    assert done.returncode == 1
    assert "output 0 in float64" in " ".join(done.stdout.split())
    assert "The operator does not run as it should here." in done.stdout


def test_the_stored_numbers_are_those_of_grid_sample():
    torch = pytest.importorskip("torch", reason="compares with torch's grid_sample")
    from support import plain

    tensors = [
        torch.tensor(numbers, dtype=torch.float64).view(shape).requires_grad_()
        for numbers, shape in zip(_doctor.inputs(), _doctor.SHAPES)
    ]
    output = plain(tensors[0], _doctor.LEVELS, *tensors[1:])
    expected = [first * factor for first in _doctor.EXPECTED for factor in _doctor.CHANNELS]
    assert output.flatten().tolist() == expected
    upstream = torch.tensor(_doctor.grad_output(), dtype=torch.float64).view(_doctor.OUTPUT)
    gradients = torch.autograd.grad(output, tensors, upstream)
    wrong = [gradient.flatten().tolist() for gradient in gradients]
    _doctor.Checks().gradients("float64", wrong)
    wrong[2][0] += 1e-9
    with pytest.raises(_doctor.Wrong, match="gradient of weights in float64"):
        _doctor.Checks().gradients("float64", wrong)
    for gradient, expected in zip(gradients, _doctor.EXPECTED_SUMS, strict=True):
        for direction, number in zip(_doctor.directions(gradient.numel()), expected, strict=True):
            assert (gradient.flatten() @ torch.tensor(direction).double()).item() == number
    # Every type represents the numbers exactly.
    for tensor in tensors:
        assert all(torch.equal(tensor.to(t).double(), tensor) for t in (torch.half, torch.bfloat16))
