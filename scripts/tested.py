"""Which versions the tests ran with.

As a plugin of pytest it adds a line to records/tested.jsonl, or to the file that MSDA_TESTED names,
at the end of a run:
    PYTHONPATH=scripts:bindings/python/python python -m pytest -p tested bindings/python/tests
As a program it writes these lines as the table of docs/SUPPORT.md. With `--check` it only compares;
with `doctor` it adds a line for `python -m msda_attn doctor` first.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
RECORD = pathlib.Path(os.environ.get("MSDA_TESTED", ROOT / "records/tested.jsonl"))
PAGE = ROOT / "docs/SUPPORT.md"
PACKAGES = ("torch", "numpy", "transformers", "jax", "onnxruntime", "onnx")
COLUMNS = ("date", "system", "device", "python", *PACKAGES, "tests", "result")


def pytest_terminal_summary(terminalreporter, exitstatus):
    if exitstatus != 0:
        return  # a run with failures is no evidence
    counts = [(len(terminalreporter.stats.get(kind, [])), kind) for kind in ("passed", "skipped")]
    result = ", ".join(f"{count} {kind}" for count, kind in counts)
    add(tests(terminalreporter.config.args), result)


def doctor() -> None:
    """Adds a line for `python -m msda_attn doctor`, which needs no torch."""
    done = subprocess.run([sys.executable, "-m", "msda_attn", "doctor", "--json"], stdout=-1)
    report = json.loads(done.stdout)
    if not report["ok"]:
        sys.exit("doctor found a fault: no line was added")
    add("doctor", f"{report['checks']} numbers compared")


def add(tests: str, result: str) -> None:
    run = {
        "date": datetime.date.today().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "tests": tests,
        "result": result,
    }
    with RECORD.open("a") as file:
        file.write(json.dumps(run) + "\n")


def tests(args: list[str]) -> str:
    """`python` for all tests of the package, `ort` for those for ONNX Runtime; else files."""
    names = {"bindings/python/tests": "python", "crates/msda-ort/tests": "ort"}
    paths = [pathlib.Path(arg).resolve().relative_to(ROOT).as_posix() for arg in args]
    return ", ".join(
        names.get(path, pathlib.Path(path).stem.removeprefix("test_")) for path in paths
    )


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def device() -> str:
    try:
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    except ImportError:
        return "CPU"


def table(rows: list) -> str:
    head, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body))


def runs() -> str:
    rows = [json.loads(line) for line in RECORD.read_text().splitlines()]
    rows.sort(key=lambda row: (row["device"] == "CPU", row["tests"], row["python"], row["torch"]))
    return table([COLUMNS, *([row[name] for name in COLUMNS] for row in rows)])


def gpus() -> str:
    """The GPUs in the records of `msda bench`, which checks results before it measures."""
    machines = [json.loads(path.read_text())["machine"] for path in ROOT.glob("records/*/*.json")]
    found = {(gpu["name"], gpu["driver"], gpu["cuda"]) for m in machines if (gpu := m.get("gpu"))}
    return table([("GPU", "driver", "CUDA"), *sorted(found)])


def main() -> int:
    if sys.argv[1:] == ["doctor"]:
        doctor()
    old = PAGE.read_text()
    before, begin, rest = old.partition("<!-- begin -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not (begin and end):
        sys.exit(f"{PAGE}: got no marks, expected <!-- begin --> and <!-- end -->")
    new = before + begin + gpus() + "\n" + runs() + end + after
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(new)
    elif new != old:
        print(f"{PAGE}: got another table than {RECORD} gives\nhint: python scripts/tested.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
