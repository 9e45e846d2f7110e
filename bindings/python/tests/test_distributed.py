"""Several processes give the losses, outputs and gradients of one: DDP, FSDP2 and DTensor."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch.distributed needs torch")

from distributed_worker import UNSUPPORTED, cases  # noqa: E402

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "train_two_processes.py"
SECONDS = 600

pytestmark = pytest.mark.skipif(
    sys.platform == "win32"
    or not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="the tests need gloo and sessions of processes",
)


# One thread per process, and the loopback interface.
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
}


def launch(processes: int, folder: pathlib.Path) -> dict[str, str]:
    """Runs all cases: what went wrong in each, an empty text if nothing did."""
    command = [sys.executable, str(HERE / "distributed_worker.py"), str(processes), str(folder)]
    with open(folder / "log", "w") as log:
        # A session of its own: its processes can be ended together.
        running = subprocess.Popen(
            command, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True
        )
    try:
        running.wait(SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    found: dict[str, str] = {}
    says = (folder / "log").read_text()
    for rank in range(processes):
        file = folder / f"{rank}.json"
        results = json.loads(file.read_text()) if file.exists() else {}
        for name in cases(processes):
            wrong = results.get(name, f"rank {rank} did not run this case; output:\n{says}")
            found[name] = found.get(name, "") + wrong
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[int, dict[str, str]]:
    return {n: launch(n, tmp_path_factory.mktemp(f"processes{n}")) for n in (2, 4)}


@pytest.mark.parametrize(
    ("processes", "case"), [(n, name) for n in (2, 4) for name in cases(n)], ids=str
)
def test_processes_agree_with_one(results, processes, case):
    if case in UNSUPPORTED:
        pytest.skip(UNSUPPORTED[case])
    if results[processes][case]:
        pytest.fail(results[processes][case], pytrace=False)


def test_torch_distributed_tensor_is_not_imported():
    code = (
        "import sys, torch, msda_attn as m; m.MSDeformAttn; import msda_attn._torch.sharding; "
        "print('torch.distributed.tensor' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout.strip() == "False"


def test_the_example_trains():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both processes have the same parameters" in done.stdout
