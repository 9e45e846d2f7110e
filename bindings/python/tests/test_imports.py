"""Other packages that register operators or have our name. Imports that are followed by a patch."""

from __future__ import annotations

import importlib
import os
import py_compile
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("torch", reason="the operators of torch are in question")

from msda_attn import _imports


def test_operators_of_another_package_are_refused():
    code = """
import torch
other = torch.library.Library("msda", "DEF")
other.define("f() -> ()")
import msda_attn
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    says = "ImportError: torch.ops.msda: got operators of another package, expected none"
    assert says in done.stderr.splitlines(), done.stderr


def test_an_unrelated_package_does_not_matter(tmp_path):
    (tmp_path / "msda.py").write_text("")
    program = "import msda, msda_attn, torch; print(torch.ops.msda.ms_deform_attn)"
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout == "msda.ms_deform_attn\n", done.stderr


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
