"""What the tests of ONNX share: models, their files, and the commands."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

for package in ("torch", "onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason=f"{package} is not installed")

import msda_attn as msda  # noqa: E402
import msda_attn.onnx as deploy  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnx_forms  # noqa: E402
import torch  # noqa: E402
from msda_attn import __main__ as program  # noqa: E402
from msda_attn.onnx import graph, ops  # noqa: E402
from onnx import helper  # noqa: E402

LEVELS = [(6, 9), (3, 5)]


def arrays(op: str, dtype=np.float32, points: bool = False, boxes: bool = False) -> list:
    """Inputs of a node. Some locations lie off the map."""
    rng = np.random.default_rng(3)
    shapes = np.array(LEVELS)
    areas = shapes.prod(1)
    lead, samples = (2, 5, 3), (8,) if points else (2, 4)
    weights = rng.standard_normal((*lead, *samples))
    locations = rng.uniform(-0.25, 1.25, (*lead, *samples, 2))
    rest = [locations, weights]
    if op == ops.FUSED:
        reference = rng.uniform(0, 1, (2, 5, 2, 4) if boxes else (2, 5, 1, 2))
        rest = [reference, 4 * locations, weights]
    value = rng.standard_normal((2, areas.sum(), 3, 8))
    numbers = [array.astype(dtype) for array in (value, *rest)]
    return [numbers[0], shapes, np.cumsum(areas) - areas, *numbers[1:]]


def sizes_of(inputs: list[np.ndarray]) -> dict[str, tuple[int, int]]:
    """The sizes of the inputs of the plain node by their names in reports, for both runs."""
    named = zip(ops.INPUTS[ops.PLAIN], inputs)
    return {f"{name}_{axis}": (n, n) for name, a in named for axis, n in enumerate(a.shape)}


def one_node(op: str, inputs: list[np.ndarray], opset: int = 18, **options) -> onnx.ModelProto:
    """A model of one node with dynamic sizes."""
    names = ops.INPUTS[op]
    node = helper.make_node(op, names, ["output"], name="attention", domain=ops.DOMAIN, **options)
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    infos = [
        helper.make_tensor_value_info(name, kind, [None] * array.ndim)
        for name, kind, array in zip(names, kinds, inputs)
    ]
    output = helper.make_tensor_value_info("output", kinds[0], [None] * 3)
    made = helper.make_graph([node], "one", infos, [output])
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    graph.add_functions(model, inputs[0].dtype == np.float64)
    return model


def run(model: onnx.ModelProto, args, **options) -> np.ndarray:
    """The first output of a model for its inputs in their order."""
    args = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
    feeds = dict(zip([i.name for i in graph.model_inputs(model)], args))
    return graph.run(graph.session(model, **options), None, feeds)[0]


def script(model, args, path, names, opset: int = 17, dynamic: bool = True) -> None:
    """An export of torch's older exporter."""
    axes = {name: {0: "batch"} for name in names} if dynamic else None
    options = {"input_names": names, "dynamic_axes": axes, "opset_version": opset}
    with torch.no_grad():
        torch.onnx.export(model, args, str(path), dynamo=False, **options)


def export_form(path, form: str, change: str = "", opset: int = 16, dynamic: bool = False) -> None:
    model, args = onnx_forms.Form(form, change), onnx_forms.arguments(form)
    script(model, args, path, onnx_forms.NAMES, opset, dynamic)


def command(*arguments: object) -> tuple[int, dict]:
    """Runs a command with --json: its exit code and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = program.main(["onnx", *map(str, arguments), "--json"])
    return code, json.loads(out.getvalue(), parse_constant=lambda text: pytest.fail(text))


def rewrite(before, after, *more: object) -> list[dict]:
    """What the command found in a file in which it replaced something."""
    code, report = command("rewrite", before, "-o", after, *more)
    assert code == 0, report
    return report["found"]


def verify(path, against=None, *more: object) -> dict:
    """The report on a file that is right."""
    given = [] if against is None else ["--against", against]
    code, report = command("verify", path, *given, *more)
    assert code == 0, report
    return report


def operators(path) -> list[str]:
    return [node.op_type for node in deploy.load(path).graph.node]


def ours(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if ops.is_ours(node)]


class Function(torch.nn.Module):
    """The function with options."""

    def forward(self, value, locations, weights):
        return msda.ms_deform_attn(
            value, LEVELS, None, locations, weights, points=[3, 1], padding="border"
        )


class Module(torch.nn.Module):
    """The module; level sizes come from the maps."""

    def __init__(self, levels: int = 2, fixed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = msda.MSDeformAttn(16, levels, 2, 4)
        for parameter in self.attention.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        self.bias = torch.nn.Parameter(torch.randn(fixed, 7, 16)) if fixed else 0.0
        self.eval()

    def forward(self, query, reference, first, second):
        sizes = [first.shape[2:], second.shape[2:]]
        pyramid = torch.cat([m.flatten(2).transpose(1, 2) for m in (first, second)], 1)
        return self.attention(query + self.bias, reference, pyramid, sizes)


NAMES = ["query", "reference", "first", "second"]
DYNAMIC = tuple({0: "batch"} for _ in range(2)) + ({0: "batch", 2: "height"}, {0: "batch"})


def module_inputs(batch: int, height: int = 6, boxes: bool = False) -> tuple[torch.Tensor, ...]:
    maps = torch.randn(batch, 16, height, 9), torch.randn(batch, 16, 3, 5)
    return (torch.randn(batch, 7, 16), torch.rand(batch, 7, 1, 4 if boxes else 2), *maps)


class Case(torch.nn.Module):
    """A model of transformers with positional inputs and tensors as outputs."""

    def __init__(self, family: str) -> None:
        super().__init__()
        pytest.importorskip("transformers", reason="transformers is not installed")
        import transformers_models

        self.model, inputs = transformers_models.make(family)
        self.names, self.args = list(inputs), tuple(inputs.values())
        self.eval()

    def forward(self, *inputs):
        found = self.model(**dict(zip(self.names, inputs)))
        if "logits" in found:
            return found["logits"], found["pred_boxes"]
        return found["pixel_decoder_last_hidden_state"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The module as a file with dynamic sizes."""
    path, model = tmp_path_factory.mktemp("exported") / "module.onnx", Module()
    deploy.export(model, module_inputs(2), path, dynamic_shapes=DYNAMIC, input_names=NAMES)
    return path, model
