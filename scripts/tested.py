"""Which versions the tests ran with.

As a plugin of pytest it adds a line to records/tested.jsonl at the end of a run:
    PYTHONPATH=scripts:bindings/python/python python -m pytest -p tested bindings/python/tests
As a program it writes these lines as the table of docs/SUPPORT.md; with --check it only compares.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import pathlib
import platform
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / "records/tested.jsonl"
PAGE = ROOT / "docs/SUPPORT.md"
PACKAGES = ("torch", "numpy", "transformers", "jax", "onnxruntime", "onnx")
COLUMNS = ("date", "system", "device", "python", *PACKAGES, "tests", "result")


def pytest_terminal_summary(terminalreporter, exitstatus):
    if exitstatus != 0:
        return  # a run with failures is no evidence
    counts = {kind: len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "skipped")}
    run = {
        "date": datetime.date.today().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "tests": tests(terminalreporter.config.args),
        "result": ", ".join(f"{count} {kind}" for kind, count in counts.items()),
    }
    with RECORD.open("a") as file:
        file.write(json.dumps(run) + "\n")


def tests(args: list[str]) -> str:
    """`python` for all tests of the package, `ort` for those for ONNX Runtime; else files."""
    names = {"bindings/python/tests": "python", "crates/msda-ort/tests": "ort"}
    paths = [pathlib.Path(arg).resolve().relative_to(ROOT).as_posix() for arg in args]
    return ", ".join(names.get(path, pathlib.Path(path).stem) for path in paths)


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


def table() -> str:
    rows = [json.loads(line) for line in RECORD.read_text().splitlines()]
    rows.sort(key=lambda row: (row["device"] == "CPU", row["system"], row["torch"]))
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([row[name] for name in COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    old = PAGE.read_text()
    new = re.sub(r"(?<=<!-- begin -->\n).*?(?=\n<!-- end -->)", table(), old, flags=re.DOTALL)
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(new)
    elif new != old:
        print(f"{PAGE}: got another table than {RECORD} gives\nhint: python scripts/tested.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
