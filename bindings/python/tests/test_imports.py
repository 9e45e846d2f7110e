"""Packages in the way: the former `msda` of this project, and others of that name. Imports that
are followed by a patch."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import py_compile
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("torch", reason="the operators of torch are in question")

from msda_attn import _imports

OLD = {"__init__.py": "from . import _native", "_native.py": ""}
UNRELATED = {"__init__.py": "from . import tables", "tables.py": ""}


def python(folder: pathlib.Path, files: dict[str, str], *arguments: str):
    """Runs Python where a package `msda` with these files is installed too."""
    package = folder / "msda"
    package.mkdir()
    for name, text in files.items():
        (package / name).write_text(text)
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


REGISTERS = 'import torch; old = torch.library.Library("msda", "DEF"); old.define("f() -> ()")'


@pytest.mark.parametrize(
    "first, says",
    [
        ("import msda", "msda_attn: got the package msda of the old distribution msda-rs imported"),
        ("import msda, torch", "msda_attn: got the package msda of the old distribution msda-rs"),
        (REGISTERS, "torch.ops.msda: got operators of another package, expected none"),
    ],
)
def test_an_old_package_is_refused(tmp_path, first, says):
    done = python(tmp_path, OLD, "-c", f"{first}; import msda_attn")
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    assert lines[-2].startswith(f"ImportError: {says}"), done.stderr
    assert lines[-1] == "hint: pip uninstall msda-rs, and import msda_attn only"


def test_an_unrelated_package_does_not_matter(tmp_path):
    program = "import msda, msda_attn, torch; print(torch.ops.msda.ms_deform_attn)"
    done = python(tmp_path, UNRELATED, "-c", program)
    assert done.stdout == "msda.ms_deform_attn\n", done.stderr


@pytest.mark.parametrize("files, named", [(OLD, True), (UNRELATED, False)])
def test_the_doctor_names_an_old_package(tmp_path, files, named):
    done = python(tmp_path, files, "-m", "msda_attn", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = [f for f in json.loads(done.stdout)["findings"] if f["what"] == "old package"]
    assert len(found) == named
    if named:
        assert str(tmp_path / "msda") in found[0]["says"]
        assert found[0]["hint"].startswith("pip uninstall msda-rs")


@pytest.mark.parametrize("ending", [".py", ".pyc", ".zip"])
def test_modules_are_seen_after_their_import(ending, tmp_path, monkeypatch):
    name = f"seen_by_msda_{ending[1:]}"
    source = tmp_path / "source.py"
    source.write_text("answer = 42\n")
    if ending == ".zip":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.write(source, f"{name}.py")
        monkeypatch.syspath_prepend(tmp_path / "all.zip")
    elif ending == ".pyc":
        py_compile.compile(str(source), str(tmp_path / f"{name}.pyc"))
    else:
        source.rename(tmp_path / f"{name}.py")
    seen = []
    # Two that want the same module: both see it.
    first = _imports.AfterImport(name.__eq__, lambda module: seen.append(module.answer))
    second = _imports.AfterImport(name.__eq__, lambda module: seen.append(module.answer + 1))
    if ending != ".zip":
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [first, second, *sys.meta_path])
    module = importlib.import_module(name)
    assert seen == [42, 43]
    assert module.__loader__ is module.__spec__.loader is not None
    assert not isinstance(module.__loader__, _imports._Loader)
    importlib.reload(module)
    assert seen == [42, 43, 42, 43]
    del sys.modules[name]


def test_the_package_can_be_loaded_again_before_torch():
    program = "import importlib, msda_attn; importlib.reload(msda_attn); import torch; " + (
        "print(torch.ops.msda.ms_deform_attn)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "msda.ms_deform_attn\n", done.stderr
