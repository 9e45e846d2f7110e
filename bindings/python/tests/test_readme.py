"""Every code block of the documents runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import typing

import pytest

PACKAGE = pathlib.Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/API.md")
BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>[\w ]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(typing.NamedTuple):
    language: str
    needs: list[str]
    code: str
    line: int


def blocks(document: str) -> list[Block]:
    text = (PACKAGE / document).read_text(encoding="utf-8")
    found = BLOCK.finditer(text)
    return [
        Block(
            match["language"],
            (match["needs"] or "").split(),
            match["code"],
            text[: match.start("code")].count("\n"),
        )
        for match in found
    ]


def missing(needs: list[str]) -> str:
    """What a block needs and does not find here."""
    for need in needs:
        if need == "cuda":
            import torch

            there = torch.cuda.is_available()
        else:
            there = importlib.util.find_spec(need) is not None
        if not there:
            return need
    return ""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_blocks_run_from_top_to_bottom(document, capsys):
    pytest.importorskip("torch", reason="most blocks need torch")
    import torch

    names: dict = {}
    ran = 0
    torch.manual_seed(0)
    with contextlib.ExitStack() as undo:
        for block in blocks(document):
            if block.language != "python":
                continue
            lacks = missing(block.needs)
            if lacks:
                with capsys.disabled():
                    print(f"\n{document}:{block.line}: not run, it needs {lacks}")
                continue
            # Line numbers of an error are those of the document.
            code = "\n" * block.line + block.code
            exec(compile(code, str(PACKAGE / document), "exec"), names)
            ran += 1
            if "transformers" in block.needs:
                import msda_attn as msda

                undo.callback(msda.unpatch_transformers)
    assert ran >= 5


# The tests install nothing, and run where the package is there already.
COMMANDS = [
    (line.removeprefix("$ "), block.needs)
    for document in DOCUMENTS
    for block in blocks(document)
    if block.language == "console"
    for line in block.code.splitlines()
    if not line.startswith("$ pip install ")
]


def test_commands_run_in_their_order(tmp_path, capsys):
    pytest.importorskip("torch", reason="most commands need torch")
    (tmp_path / "examples").symlink_to(PACKAGE / "examples")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert len(COMMANDS) >= 4
    for command, needs in COMMANDS:
        if lacks := missing(needs):
            with capsys.disabled():
                print(f"\n{command}: not run, it needs {lacks}")
            continue
        program, *arguments = shlex.split(command)
        assert program == "python", command
        # The commands are the same, but for less work.
        if arguments[:3] == ["-m", "msda_attn", "bench"]:
            arguments += ["--seconds", "0.01"]
        elif arguments[0].endswith("train_shapes.py"):
            arguments += ["--goal", "0.5"]
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=1800,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, command + "\n" + done.stdout + done.stderr
    assert (tmp_path / "looks.png").is_file() or missing(["matplotlib"])


def test_the_readme_is_short_and_names_documents_that_exist():
    # It is also the page of a package index, where only whole addresses lead somewhere. Links of
    # the other documents are checked when the site is made.
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert all(link.startswith("http") for link in re.findall(r"\]\(([^)]+)\)", text))
    documents = re.findall(r"^\| `(docs/.*?)`", text, re.MULTILINE)
    assert documents and all((PACKAGE / name).is_file() for name in documents)


def test_the_first_lines_can_be_copied():
    first = blocks("README.md")[0]
    assert first.language == "python" and first.line < 4
    assert len(first.code.splitlines()) == 3


def test_signatures_of_the_reference_are_those_of_the_code():
    pytest.importorskip("torch", reason="the functions need torch")
    import inspect

    import msda_attn as msda

    text = " ".join((PACKAGE / "docs/API.md").read_text(encoding="utf-8").split())
    forms = {
        "ms_deform_attn": msda.ms_deform_attn,
        "ms_deform_attn_fused": msda.ms_deform_attn_fused,
        "explain": msda.explain,
        "MSDeformAttn": msda.MSDeformAttn.__init__,
        "forward": msda.MSDeformAttn.forward,
    }
    for name, function in forms.items():
        parameters = inspect.signature(function).parameters.values()
        shown = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
        shown = str(inspect.Signature(shown)).replace("'", '"')
        assert f"`{name}{shown}`" in text, f"{name}{shown}"
