"""`_native.pyi` says what the compiled module has, and `__all__` what the package has."""

from __future__ import annotations

import ast
import inspect
import pathlib
import subprocess
import sys

import msda_attn as msda
import pytest
from msda_attn import _native

WITHOUT_TORCH = ["__version__", "explain", "ms_deform_attn", "ms_deform_attn_fused"]
STUB = pathlib.Path(msda.__file__).with_name("_native.pyi")


def functions() -> dict[str, ast.FunctionDef]:
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def compiled() -> dict[str, object]:
    members = {name: getattr(_native, name) for name in dir(_native)}
    return {name: member for name, member in members.items() if inspect.isbuiltin(member)}


def test_the_names_are_the_same():
    assert sorted(functions()) == sorted(compiled())
    assert isinstance(_native.__version__, str)


def test_the_parameters_are_the_same():
    for name, node in functions().items():
        signature = inspect.signature(compiled()[name])
        expected = [(p.name, p.default is not p.empty) for p in signature.parameters.values()]
        arguments = node.args.args
        required = len(arguments) - len(node.args.defaults)
        got = [(argument.arg, i >= required) for i, argument in enumerate(arguments)]
        assert got == expected, name
        assert all(ast.literal_eval(default) is None for default in node.args.defaults), name
        assert all(argument.annotation is not None for argument in arguments), name
        assert node.returns is not None, name


def test_the_descriptions_are_the_same():
    for name, node in functions().items():
        assert ast.get_docstring(node).split() == compiled()[name].__doc__.split(), name


def test_the_results_have_the_types_of_the_stub():
    assert isinstance(_native.cpu_isa(), str)
    assert isinstance(_native.cpu_threads(), int)
    assert isinstance(_native.cuda_plans(), int)


def test_all_names_that_are_listed_exist():
    pytest.importorskip("torch", reason="most names need torch")
    assert set(WITHOUT_TORCH) < set(msda.__all__)
    assert dir(msda) == sorted(msda.__all__)
    assert set(msda._WITH_TORCH) == set(msda.__all__) - set(WITHOUT_TORCH)
    assert all(hasattr(msda, name) for name in msda.__all__)


def test_listing_the_names_imports_no_torch():
    program = "import sys, msda_attn as m; dir(m), m.__all__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_names_that_need_torch_are_not_listed_without_it():
    program = """
import sys
sys.modules["torch"] = None
import inspect, msda_attn as msda
from msda_attn import *
help(msda)
print("LISTED", dir(msda), sorted(msda.__all__), [name for name, _ in inspect.getmembers(msda)])
try:
    msda.MSDeformAttn
except ImportError as error:
    print("ERROR", str(error).splitlines())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    help_text, _, rest = done.stdout.partition("LISTED ")
    assert "ms_deform_attn_fused(" in help_text
    lines = [f"{WITHOUT_TORCH} {WITHOUT_TORCH} {WITHOUT_TORCH}"]
    lines += ["ERROR ['msda_attn.MSDeformAttn needs torch', 'hint: pip install torch']"]
    assert rest.splitlines() == lines
