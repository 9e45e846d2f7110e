"""Models export to ONNX as before: there the operator is computed with `grid_sample`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed: the exports need it")

import msda_attn as msda  # noqa: E402
import transformers_models as models  # noqa: E402
from support import problem  # noqa: E402

LEVELS = [(6, 9), (3, 5)]


def operators(path) -> set[str]:
    found = set()

    def visit(graph):
        for node in graph.node:
            found.add(f"{node.domain}::{node.op_type}")
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g)

    model = onnx.load(path)
    visit(model.graph)
    for function in model.functions:
        visit(function)
    return found


def export(model, args, path, exporter: str) -> None:
    if exporter == "dynamo":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
        torch.onnx.export(model, args, str(path), dynamo=True, verbose=False)
    else:
        torch.onnx.export(model, args, str(path), dynamo=False, opset_version=20)


def check(model, args, path, exporter: str) -> None:
    """Exports the model. The file has `GridSample` and no operator of ours, and it computes."""
    with torch.no_grad():
        expected = model(*args)
        export(model, args, path, exporter)
    found = operators(path)
    assert "::GridSample" in found and not any("msda" in name for name in found)
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load(path)
    for node in proto.graph.node:
        for attribute in node.attribute:
            # The evaluator knows the newer name only.
            if node.op_type == "GridSample" and attribute.s == b"bilinear":
                attribute.s = b"linear"
    names = [i.name for i in proto.graph.input]
    got = ReferenceEvaluator(proto).run(None, dict(zip(names, (a.numpy() for a in args))))
    torch.testing.assert_close(torch.from_numpy(got[0]), expected, rtol=1e-3, atol=1e-4)


class Function(torch.nn.Module):
    def forward(self, value, locations, weights):
        return msda.ms_deform_attn(
            value, LEVELS, None, locations, weights, points=[3, 1], padding="border"
        )


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = msda.MSDeformAttn(16, 2, 2, 4)
        for parameter in self.attention.parameters():
            torch.nn.init.normal_(parameter, std=0.2)

    def forward(self, query, reference, pyramid):
        return self.attention(query, reference, pyramid, LEVELS)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("what", ["function", "module, points", "module, boxes"])
@pytest.mark.filterwarnings("ignore")
def test_the_function_and_the_module(what, exporter, tmp_path):
    torch.manual_seed(0)
    if what == "function":
        given = problem(levels=LEVELS)
        model, args = Function(), given.tensors()
        args = (args[0], args[1].flatten(3, 4)[..., :4, :], args[2].flatten(3)[..., :4])
    else:
        model = Module()
        size = 2 if what.endswith("points") else 4
        args = (torch.randn(2, 7, 16), torch.rand(2, 7, 1, size), torch.randn(2, 69, 16))
    check(model, tuple(a.contiguous() for a in args), tmp_path / "model.onnx", exporter)


class AnyOrder(torch.nn.Module):
    """Levels that do not follow each other in the order of their sizes."""

    def __init__(self, starts):
        super().__init__()
        self.starts = starts

    def forward(self, value, locations, weights):
        return msda.ms_deform_attn(value, LEVELS, self.starts, locations, weights)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("kind", [list, torch.tensor])
@pytest.mark.filterwarnings("ignore")
def test_levels_may_start_anywhere(kind, exporter, tmp_path):
    torch.manual_seed(0)
    args = tuple(problem(levels=LEVELS).tensors())
    height, width = LEVELS[1]
    starts = [height * width, 0]
    usual = msda.ms_deform_attn(args[0], LEVELS, None, *args[1:])
    model = AnyOrder(kind(starts))
    assert (model(*args) - usual).abs().max() > 0.01
    check(model, args, tmp_path / "model.onnx", exporter)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.filterwarnings("ignore")
def test_a_patched_model_of_transformers(exporter, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    case = models.make("deformable_detr")

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = case.model.eval()

        def forward(self, *inputs):
            return self.model(**dict(zip(case.inputs, inputs)))["last_hidden_state"]

    args, path = tuple(case.inputs.values()), tmp_path / "model.onnx"
    try:
        with msda.patch_transformers(), torch.no_grad():
            export(Logits(), args, path, exporter)
    except Exception:
        # Not ours, if this fails too.
        with torch.no_grad():
            export(Logits(), args, path, exporter)
        raise
    found = operators(path)
    assert "::GridSample" in found and not any("msda" in name for name in found)
