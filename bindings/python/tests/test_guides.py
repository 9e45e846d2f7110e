"""Every snippet of MIGRATION.md and MODELS.md runs."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

DOCS = pathlib.Path(__file__).parent.parent / "docs"
GUIDES = [DOCS / "MIGRATION.md", DOCS / "MODELS.md"]
FENCE = re.compile(
    r"^(?:<!-- needs: (?P<needs>\S+) -->\n)?```python\n(?P<code>.*?)^```$", re.M | re.S
)


def snippets() -> list[object]:
    found = []
    for guide in GUIDES:
        text = guide.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text[: match.start()].count("\n") + 1
            name = f"{guide.name} line {line}"
            found.append(pytest.param(match["needs"], match["code"], id=name))
    return found


def available(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_all_snippets_are_found() -> None:
    texts = [guide.read_text(encoding="utf-8") for guide in GUIDES]
    assert len(snippets()) == sum(text.count("```python") for text in texts)


@pytest.mark.parametrize(("needs", "code"), snippets())
def test_a_snippet_runs(needs: str | None, code: str) -> None:
    if needs is not None and not available(needs):
        pytest.skip(f"{needs} is not installed")
    before = dict(sys.modules)
    try:
        exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    finally:
        for name in set(sys.modules) - set(before):
            if name == "MultiScaleDeformableAttention" or name.endswith("._C"):
                del sys.modules[name]
