"""Every snippet of MIGRATION.md runs."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

GUIDE = pathlib.Path(__file__).parent.parent / "docs" / "MIGRATION.md"
FENCE = re.compile(r"^```python(?: needs=(?P<needs>\S+))?\n(?P<code>.*?)^```$", re.M | re.S)


def snippets() -> list[object]:
    text = GUIDE.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        line = text[: match.start()].count("\n") + 1
        found.append(pytest.param(match["needs"], match["code"], id=f"line {line}"))
    return found


def available(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_all_snippets_are_found() -> None:
    assert len(snippets()) == GUIDE.read_text(encoding="utf-8").count("```python")


@pytest.mark.parametrize(("needs", "code"), snippets())
def test_a_snippet_runs(needs: str | None, code: str) -> None:
    if needs is not None and not available(needs):
        pytest.skip(f"{needs} is not installed")
    before = dict(sys.modules)
    try:
        exec(compile(code, str(GUIDE), "exec"), {"__name__": "snippet"})
    finally:
        for name in set(sys.modules) - set(before):
            if name == "MultiScaleDeformableAttention" or name.endswith("._C"):
                del sys.modules[name]
