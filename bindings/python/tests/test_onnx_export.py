"""`msda_attn.onnx.export`: models of torch as files with our operators."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Skips where a package is missing.
pytest.importorskip("onnx_support")

import msda_attn as msda
import msda_attn.onnx as deploy
import numpy as np
import onnx_forms
import onnx_support as support
import torch
from msda_attn.onnx import graph, ops, tensorrt
from msda_attn.onnx.ops import FUSED, PLAIN
from onnx_support import (
    NAMES,
    Case,
    Function,
    Module,
    module_inputs,
)

pytestmark = pytest.mark.filterwarnings("ignore")
exported = support.exported
AUTO = torch.export.Dim.AUTO


def refused(model, args, path, dynamic, message: str, **options) -> None:
    """The export is an error, and no file is written."""
    with pytest.raises(deploy.OnnxError, match=message):
        deploy.export(model.eval(), args, path, dynamic_shapes=dynamic, **options)
    assert not path.exists()


def test_the_module_is_exported_as_the_fused_operator(exported):
    path, model = exported
    proto = deploy.load(path)
    assert support.operators(path).count(FUSED) == 1
    assert {f.name for f in proto.functions} == {PLAIN, FUSED}
    for library in (False, True):
        for batch, height in ((2, 6), (5, 8), (1, 6)):
            args = module_inputs(batch, height)
            got = support.run(proto, args, library=library)
            assert ops.error(got, model(*args).detach().numpy()) < 5e-6


@pytest.mark.parametrize("boxes", [False, True], ids=["points", "boxes"])
@pytest.mark.parametrize("change", ["", *onnx_forms.ARITHMETIC_CHANGES])
def test_no_clamp_is_lost(change, boxes, tmp_path):
    model = onnx_forms.Arithmetic(change, msda.ms_deform_attn).eval()
    args = onnx_forms.arithmetic_arguments(boxes)
    wide = onnx_forms.arithmetic_arguments(boxes, wide=True)
    expected, names = model(*wide).numpy(), onnx_forms.ARITHMETIC_NAMES
    made = deploy.export(model, args, input_names=names)
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    support.script(model, args, before, names)
    support.rewrite(before, after)
    # Changed locations stay outside of the operator; the rest is fused.
    op = PLAIN if "locations" in change else FUSED
    for found in (made, deploy.load(after)):
        assert ops.error(support.run(found, wide), expected) < 1e-5
        assert [n.op_type for n in support.ours(found)] == [op]


@pytest.mark.parametrize("size", [torch.export.Dim("batch"), AUTO], ids=str)
def test_a_size_that_became_a_constant_is_refused(size, tmp_path):
    dynamic, message = ({0: size},) * 4, "got (the|a) constant(.|\n)*dynamic size"
    path = tmp_path / "model.onnx"
    refused(Module(fixed=2), module_inputs(2), path, dynamic, message)
    # Torch makes sizes below 2 constants.
    message = r"input 'query', dimension 0: got size 1, expected 2 or more(.|\n)*batch of 2"
    refused(Module(), module_inputs(1), path, dynamic, message, input_names=NAMES)


class TwoRows(Module):
    """A loop of Python over the batch."""

    def forward(self, *inputs):
        found = super().forward(*inputs)
        return torch.stack([found[row] for row in range(2)])


def test_an_output_that_does_not_follow_the_batch_is_refused(tmp_path):
    path, dynamic = tmp_path / "rows.onnx", (({0: torch.export.Dim("batch")},) * 4,)
    message = "got 2 rows for a batch of 3, expected 3"
    refused(TwoRows(), module_inputs(2), path, dynamic, message, input_names=NAMES)
    # With an example of another batch the output is not taken for a batch.
    deploy.export(TwoRows(), module_inputs(4), path, dynamic_shapes=dynamic, input_names=NAMES)
    code, report = support.command("verify", path)
    assert code == 1 and "got 2 rows for a batch of 3" in "".join(report["failures"])


class Image(torch.nn.Module):
    """One level and an image of any size. `fixed` keeps the example's size in the file.

    With `spread` it selects rows by scores that differ by that much; `largest` is for the file.
    """

    def __init__(self, fixed: str = "", spread: float = 0, largest: bool = True) -> None:
        super().__init__()
        self.attention = Module(levels=1).attention
        self.fixed, self.spread, self.largest = fixed, spread, largest

    def forward(self, image):
        size, exporting = image.shape[2:], torch.compiler.is_exporting()
        height, width = known = (4, 8) if exporting else size
        rows, columns = (torch.arange(n) / n for n in (known if self.fixed == "points" else size))
        points = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
        points = points.reshape(1, -1, 1, 2).expand(image.shape[0], -1, -1, -1)
        query = image.flatten(2).transpose(1, 2) + image.mean((2, 3))[:, None]
        pyramid = image.flatten(2)
        if self.fixed == "table":
            pyramid = pyramid * torch.from_numpy(np.float32(np.linspace(0, 2, height * width)))
        elif self.fixed == "area":
            pyramid = pyramid * (height * width / 32)
        elif self.fixed == "scale" and exporting:
            pyramid = pyramid * 1.005
        pyramid = pyramid.transpose(1, 2)
        found = self.attention(query[:, :32], points[:, :32], pyramid, [size])
        if not self.spread:
            return found
        scores = 1 + self.spread * found.mean(-1)
        best = scores.topk(8, 1, self.largest or not exporting).indices
        return found.gather(1, best[..., None].expand(-1, -1, 16))


IMAGE = (torch.randn(2, 16, 4, 8, generator=torch.Generator().manual_seed(0)),)
IMAGE_SIZES = ({0: AUTO, 2: AUTO, 3: AUTO},)


@pytest.mark.parametrize(
    "model",
    [("points",), ("table",), ("area",), ("area", 1e-7), ("", 1.0, False)],
    ids=["points", "table", "area", "area and near ties", "lowest scores"],
)
def test_constants_of_an_image_size_and_other_choices_are_seen(model, tmp_path):
    """The shapes with a factor of the area are right for all sizes."""
    message = "relative error .* to torch|got a constant"
    refused(Image(*model), IMAGE, tmp_path / "model.onnx", IMAGE_SIZES, message)


def test_scores_that_nearly_tie_are_compared_too():
    """Torch and ONNX Runtime select other rows; the file is right."""
    model = Image(spread=1e-7).eval()
    made = deploy.export(model, IMAGE, dynamic_shapes=IMAGE_SIZES)
    assert ops.error(support.run(made, IMAGE), model(*IMAGE).detach().numpy()) > 0.01


def test_a_small_difference_with_the_arguments_is_a_warning():
    with pytest.warns(UserWarning, match="differ from torch's by .* times the usual limit"):
        deploy.export(Image("scale"), IMAGE, dynamic_shapes=IMAGE_SIZES)


def test_options_are_attributes_and_tensorrt_refuses_them():
    args = (torch.randn(2, 69, 2, 4), torch.rand(2, 5, 2, 4, 2), torch.rand(2, 5, 2, 4))
    model = deploy.export(Function(), args)
    (node,) = support.ours(model)
    assert ops.attributes(node)["points"] == [3, 1] and node.op_type == PLAIN
    assert ops.error(support.run(model, args), Function()(*args).numpy()) < 5e-6
    with pytest.raises(deploy.OnnxError, match="attribute padding: got 'border', expected 'zeros'"):
        tensorrt.convert(model)


@pytest.mark.parametrize(
    "family, count",
    [
        ("rt_detr_v2", 2),
        ("deformable_detr", 4),
        ("rt_detr", 2),
        ("d_fine", 2),
        ("rf_detr", 2),
        ("mask2former", 2),
        ("grounding_dino", 4),
    ],
)
def test_a_patched_model_of_transformers_is_exported_and_fused(family, count, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    # Torch alone does not export the first.
    if family != "rt_detr_v2" and os.environ.get("MSDA_SLOW") != "1":
        pytest.skip("takes long: MSDA_SLOW=1 runs it")
    case = Case(family)
    if family in ("mask2former", "grounding_dino"):
        case.model.set_attn_implementation("eager")
    with msda.patch_transformers():
        model = deploy.export(case, case.args, tmp_path / "model.onnx", input_names=case.names)
    found = [node.op_type for node in model.graph.node]
    assert found.count(FUSED) == count and PLAIN not in found and "GridSample" not in found
    assert deploy.verify(model).ok


def test_rt_detr_has_constants_of_its_image_size(tmp_path):
    if os.environ.get("MSDA_SLOW") != "1":
        pytest.skip("takes long: MSDA_SLOW=1 runs it")
    case, dynamic = Case("rt_detr"), (({0: AUTO, 2: AUTO, 3: AUTO},),)
    with msda.patch_transformers():
        refused(case, case.args, tmp_path / "model.onnx", dynamic, "got a constant|relative error")


def test_a_model_without_the_operator_is_refused():
    with pytest.raises(deploy.OnnxError, match="no multi-scale deformable attention"):
        deploy.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),))


def test_bfloat16_models_are_exported_and_not_compared(tmp_path):
    path, model = tmp_path / "model.onnx", Module().bfloat16()
    args = tuple(tensor.bfloat16() for tensor in module_inputs(2))
    with pytest.warns(UserWarning, match="nothing was fused or compared"):
        deploy.export(model, args, path)
    assert {PLAIN, FUSED} & set(support.operators(path))


def test_an_old_runtime_is_named(monkeypatch):
    monkeypatch.setattr("onnxruntime.__version__", "1.16.3")
    model = support.one_node(PLAIN, support.arrays(PLAIN))
    with pytest.raises(deploy.OnnxError, match="onnxruntime: got 1.16.3, expected 1.17 or newer"):
        graph.session(model)


@pytest.mark.parametrize(
    "missing, statement, message",
    [
        (
            "torch",
            "import msda_attn.onnx; msda_attn.onnx.export",
            "msda_attn.onnx.export needs torch",
        ),
        (
            "onnx",
            "from msda_attn.__main__ import main; sys.exit(main(['onnx', 'verify', 'a.onnx']))",
            "hint: pip install onnx ",
        ),
    ],
)
def test_a_missing_package_is_named(missing, statement, message):
    code = f"import sys; sys.modules[{missing!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and message in done.stderr and "hint: pip install" in done.stderr
    assert missing == "torch" or done.returncode == 2 and "Traceback" not in done.stderr
