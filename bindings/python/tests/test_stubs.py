"""`_native.pyi` says what the compiled module has."""

from __future__ import annotations

import ast
import inspect
import pathlib

import msda
from msda import _native

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
