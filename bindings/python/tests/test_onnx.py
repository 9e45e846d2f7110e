"""torch.onnx.export writes `grid_sample` for the operator, and nothing of msda."""

from __future__ import annotations

import pytest

# Skips where a package is missing.
pytest.importorskip("onnx_support")

import msda_attn as msda
import onnx
import torch
from msda_attn.onnx import graph
from onnx_support import LEVELS, Case, Function, Module, module_inputs, run
from support import problem

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"]),
]


def export(model, args, path, dynamo: bool) -> onnx.ModelProto:
    """The file, which has `GridSample` and no operator of ours."""
    options = {"verbose": False} if dynamo else {"opset_version": 20}
    torch.onnx.export(model, args, str(path), dynamo=dynamo, **options)
    made = onnx.load(path)
    kinds = {(n.domain, n.op_type) for n in graph.all_nodes(made.graph, *made.functions)}
    assert ("", "GridSample") in kinds and "msda" not in dict(kinds)
    return made


def check(model, args, path, dynamo: bool) -> None:
    """Exports the model, and compares the file's result."""
    with torch.no_grad():
        expected = model(*args)
        got = torch.from_numpy(run(export(model, args, path, dynamo), args))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("what", ["function", "module, points", "module, boxes"])
def test_the_function_and_the_module(what, dynamo, tmp_path):
    torch.manual_seed(0)
    model, args = Module(), module_inputs(2, boxes="boxes" in what)
    if what == "function":
        value, locations, weights = problem(levels=LEVELS).tensors()
        args = (value, locations.flatten(3, 4)[..., :4, :], weights.flatten(3)[..., :4])
        model, args = Function(), tuple(a.contiguous() for a in args)
    check(model, args, tmp_path / "model.onnx", dynamo)


class AnyOrder(torch.nn.Module):
    """Levels that do not follow each other in the order of their sizes."""

    def __init__(self, starts):
        super().__init__()
        self.starts = starts

    def forward(self, value, locations, weights):
        return msda.ms_deform_attn(value, LEVELS, self.starts, locations, weights)


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_levels_may_start_anywhere(kind, dynamo, tmp_path):
    args = tuple(problem(levels=LEVELS).tensors())
    height, width = LEVELS[1]
    usual = msda.ms_deform_attn(args[0], LEVELS, None, *args[1:])
    model = AnyOrder(kind([height * width, 0]))
    assert (model(*args) - usual).abs().max() > 0.01
    check(model, args, tmp_path / "model.onnx", dynamo)


def test_a_patched_model_of_transformers(dynamo, tmp_path):
    case, path = Case("deformable_detr"), tmp_path / "model.onnx"
    try:
        with msda.patch_transformers(), torch.no_grad():
            export(case, case.args, path, dynamo)
    except Exception:
        # Not ours, if this fails too.
        with torch.no_grad():
            export(case, case.args, path, dynamo)
        raise
