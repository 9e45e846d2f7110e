"""Models that leave PyTorch: exports with our operators, rewritten files, and their proofs."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

import msda_attn as msda  # noqa: E402
import msda_attn.onnx as deploy  # noqa: E402
import onnx_forms  # noqa: E402
from msda_attn import __main__ as program  # noqa: E402
from msda_attn.onnx import graph, ops, tensorrt  # noqa: E402
from msda_attn.onnx.ops import FUSED, PLAIN  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

LEVELS = [(6, 9), (3, 5)]
OPTIONS = [
    {},
    {"sampling": "nearest"},
    {"padding": "border", "align_corners": 1},
    {"points": [5, 3]},
]


def arrays(op: str, dtype, points: bool, boxes: bool) -> list[np.ndarray]:
    """Inputs of a node. Some locations lie off the map."""
    rng = np.random.default_rng(3)
    shapes = np.array(LEVELS)
    areas = shapes.prod(1)
    samples = (8,) if points else (2, 4)
    lead = (2, 5, 3)
    weights = rng.standard_normal((*lead, *samples))
    locations = rng.uniform(-0.25, 1.25, (*lead, *samples, 2))
    rest = [locations, weights]
    if op == FUSED:
        reference = rng.uniform(0, 1, (2, 5, 2, 4) if boxes else (2, 5, 1, 2))
        rest = [reference, 4 * locations, weights]
    value = rng.standard_normal((2, areas.sum(), 3, 8))
    numbers = [array.astype(dtype) for array in (value, *rest)]
    return [numbers[0], shapes, np.cumsum(areas) - areas, *numbers[1:]]


def sizes_of(inputs: list[np.ndarray]) -> dict[str, int]:
    """The sizes of the inputs of the plain node by their names in the reports."""
    named = zip(ops.INPUTS[PLAIN], inputs)
    return {f"{name}_{axis}": n for name, a in named for axis, n in enumerate(a.shape)}


def one_node(op: str, inputs: list[np.ndarray], opset: int = 18, **options) -> onnx.ModelProto:
    """A model of one node with dynamic sizes."""
    node = helper.make_node(
        op, ops.INPUTS[op], ["output"], name="attention", domain=ops.DOMAIN, **options
    )
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    infos = [
        helper.make_tensor_value_info(name, kind, [None] * array.ndim)
        for name, kind, array in zip(ops.INPUTS[op], kinds, inputs)
    ]
    output = helper.make_tensor_value_info("output", kinds[0], [None] * 3)
    model = helper.make_model(
        helper.make_graph([node], "one", infos, [output]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    graph.add_functions(model, inputs[0].dtype == np.float64)
    return model


@pytest.mark.parametrize("library", [False, True], ids=["function", "library"])
@pytest.mark.parametrize("opset", [16, 18, 20, 22])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_body_computes_the_operator(options, opset, library):
    cases = [(PLAIN, False, np.float32), (FUSED, False, np.float32), (FUSED, True, np.float16)]
    for op, boxes, dtype in [*cases, (PLAIN, False, np.float64)] if opset >= 20 else cases:
        inputs = arrays(op, dtype, "points" in options, boxes)
        model = one_node(op, inputs, opset, **options)
        onnx.checker.check_model(model, full_check=True)
        runner = graph.session(model, library=library)
        (got,) = runner.run(None, dict(zip(ops.INPUTS[op], inputs)))
        expected = ops.compute(model.graph.node[0], inputs)
        limit = {np.float16: 2e-3, np.float32: 5e-6, np.float64: 1e-13}[dtype]
        assert got.dtype == dtype and ops.error(got, expected) < limit
        # NumPy's computation is that of the compiled operator.
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a.tolist() for a in inputs]
        named = {**options, "align_corners": bool(options.get("align_corners"))}
        function = msda.ms_deform_attn_fused if op == FUSED else msda.ms_deform_attn
        assert ops.error(function(*wide, **named), expected) < 1e-13


def test_both_samplings_in_one_model_of_opset_20():
    inputs = arrays(PLAIN, np.float32, False, False)
    model = one_node(PLAIN, inputs, 20)
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.output[0], second.name = "second", "second"
    second.attribute.append(helper.make_attribute("sampling", "nearest"))
    model.graph.node.append(second)
    model.graph.output.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, None))
    graph.add_functions(model)
    results = graph.session(model, library=False).run(None, dict(zip(ops.INPUTS[PLAIN], inputs)))
    for got, node in zip(results, model.graph.node):
        assert ops.error(got, ops.compute(node, inputs)) < 5e-6
    assert ops.error(results[0], results[1]) > 0.01


def script(model, args, path, names, opset: int, dynamic: bool) -> None:
    """An export of torch's older exporter."""
    axes = {name: {0: "batch"} for name in names} if dynamic else None
    torch.onnx.export(
        model,
        args,
        str(path),
        dynamo=False,
        opset_version=opset,
        input_names=names,
        dynamic_axes=axes,
    )


def export_form(path, form: str, change: str = "", opset: int = 16, dynamic: bool = False) -> None:
    args = onnx_forms.arguments(form)
    script(onnx_forms.Form(form, change), args, path, onnx_forms.NAMES, opset, dynamic)


def command(*arguments: object) -> tuple[int, dict]:
    """Runs a command with --json: its exit code and what it printed."""
    out, before = io.StringIO(), sys.stdout
    sys.stdout = out
    try:
        code = program.main(["onnx", *map(str, arguments), "--json"])
    finally:
        sys.stdout = before
    return code, json.loads(out.getvalue(), parse_constant=lambda text: pytest.fail(text))


def operators(path) -> list[str]:
    return [node.op_type for node in deploy.load(path).graph.node]


@pytest.mark.parametrize("opset, dynamic", [(16, True), (20, False)], ids=["dynamic", "static"])
@pytest.mark.parametrize("form", onnx_forms.FORMS)
def test_every_form_is_replaced(form, opset, dynamic, tmp_path):
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, form, opset=opset, dynamic=dynamic)
    code, report = command("rewrite", before, "-o", after)
    assert code == 0 and [f["status"] for f in report["found"]] == ["replaced", "not fused"]
    assert operators(after).count(PLAIN) == 1
    assert not {"GridSample", "GatherElements"} & set(operators(after))
    code, report = command("verify", after, "--against", before)
    assert code == 0 and len(report["nodes"]) == (2 if dynamic else 1)
    assert all(entry["error"] < 1e-5 for entry in report["outputs"])


@pytest.mark.parametrize("change", onnx_forms.CHANGES)
def test_a_changed_graph_is_never_replaced(change, tmp_path):
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, "per level" if "level" in change else "stack", change)
    code, report = command("rewrite", before, "-o", after)
    assert code == 1 and not after.exists() and os.listdir(tmp_path) == ["before.onnx"]
    assert report["found"] and {f["status"] for f in report["found"]} == {"left"}
    assert all(f["reason"] for f in report["found"])


@pytest.mark.parametrize("change", onnx_forms.GRID_CHANGES)
@pytest.mark.parametrize("form", ["stack", "per level", "gather"])
def test_a_change_far_from_the_map_is_seen(form, change, tmp_path):
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, form, change, dynamic=True)
    code, report = command("rewrite", before, "-o", after)
    assert code == 1 and not after.exists()
    assert {f["status"] for f in report["found"]} == {"left"}


def run_arithmetic(model: onnx.ModelProto, args: tuple[torch.Tensor, ...]) -> np.ndarray:
    feeds = dict(zip(onnx_forms.ARITHMETIC_NAMES, (a.numpy() for a in args)))
    return graph.session(model).run(None, feeds)[0]


@pytest.mark.parametrize("boxes", [False, True], ids=["points", "boxes"])
@pytest.mark.parametrize("change", ["", *onnx_forms.ARITHMETIC_CHANGES])
def test_no_clamp_is_lost(change, boxes, tmp_path):
    model = onnx_forms.Arithmetic(change, msda.ms_deform_attn).eval()
    args = onnx_forms.arithmetic_arguments(boxes)
    wide = onnx_forms.arithmetic_arguments(boxes, wide=True)
    expected, names = model(*wide).numpy(), onnx_forms.ARITHMETIC_NAMES
    made = deploy.export(model, args, input_names=names)
    assert ops.error(run_arithmetic(made, wide), expected) < 1e-5
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    script(model, args, before, names, 17, True)
    assert command("rewrite", before, "-o", after)[0] == 0
    rewritten = deploy.load(after)
    assert ops.error(run_arithmetic(rewritten, wide), expected) < 1e-5
    # Changed locations stay outside of the operator; the rest is fused.
    op = PLAIN if "locations" in change else FUSED
    for found in (made, rewritten):
        assert [n.op_type for n in found.graph.node if ops.is_ours(n)] == [op]


class Case(torch.nn.Module):
    """A model of transformers with positional inputs and tensors as outputs."""

    def __init__(self, family: str) -> None:
        super().__init__()
        models = pytest.importorskip("transformers_models", reason="transformers is not installed")
        self.model, inputs = models.make(family)
        self.names, self.args = list(inputs), tuple(inputs.values())
        self.eval()

    def forward(self, *inputs):
        found = self.model(**dict(zip(self.names, inputs)))
        if "logits" in found:
            return found["logits"], found["pred_boxes"]
        return found["pixel_decoder_last_hidden_state"]


@pytest.mark.parametrize(
    "family, dynamic, count",
    [
        ("deformable_detr", True, 4),
        ("rt_detr", False, 2),
        ("d_fine", True, 2),
        ("mask2former", True, 2),
    ],
)
def test_models_of_transformers_are_rewritten(family, dynamic, count, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    case = Case(family)
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    with torch.no_grad():
        script(case, case.args, before, case.names, 17, dynamic)
    code, report = command("rewrite", before, "-o", after)
    found = [entry["status"] for entry in report["found"]]
    assert code == 0 and sorted(found) == ["fused"] * count + ["replaced"] * count
    assert operators(after).count(FUSED) == count and "GridSample" not in operators(after)
    code, report = command("verify", after, "--against", before)
    assert all(entry["ok"] for entry in report["nodes"]), report
    # The older exporter divides by 0 for a level of one pixel. There runtimes differ.
    assert code == 0 or "NaN" in "".join(report["warnings"]), report
    if family == "d_fine":
        # Points per level: the plugin gets points of weight 0.
        model = deploy.load(after)
        tensorrt.convert(model)
        check = deploy.verify(model, deploy.load(before))
        assert check.ok and {n["operator"] for n in check.nodes} == {tensorrt.PLUGIN}


class Module(torch.nn.Module):
    """The module; level sizes come from the maps."""

    def __init__(self, fixed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = msda.MSDeformAttn(16, 2, 2, 4)
        for parameter in self.attention.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        self.bias = torch.nn.Parameter(torch.randn(fixed, 7, 16)) if fixed else 0.0

    def forward(self, query, reference, first, second):
        sizes = [first.shape[2:], second.shape[2:]]
        pyramid = torch.cat([m.flatten(2).transpose(1, 2) for m in (first, second)], 1)
        return self.attention(query + self.bias, reference, pyramid, sizes)


def module_inputs(batch: int, height: int = 6, boxes: bool = False) -> tuple[torch.Tensor, ...]:
    first = torch.randn(batch, 16, height, 9), torch.randn(batch, 16, 3, 5)
    return (torch.randn(batch, 7, 16), torch.rand(batch, 7, 1, 4 if boxes else 2), *first)


DYNAMIC = tuple({0: "batch"} for _ in range(2)) + ({0: "batch", 2: "height"}, {0: "batch"})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The module as a file with dynamic sizes."""
    path = tmp_path_factory.mktemp("exported") / "module.onnx"
    model = Module().eval()
    names = ["query", "reference", "first", "second"]
    deploy.export(model, module_inputs(2), path, dynamic_shapes=DYNAMIC, input_names=names)
    return path, model


def test_sizes_of_levels_may_be_dynamic(tmp_path):
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    torch.onnx.export(
        Module().eval(),
        module_inputs(2, boxes=True),
        str(before),
        dynamo=True,
        verbose=False,
        opset_version=20,
        dynamic_shapes=DYNAMIC,
    )
    assert operators(before).count("GridSample") == 2
    assert command("rewrite", before, "-o", after)[0] == 0
    assert operators(after).count(FUSED) == 1 and "GridSample" not in operators(after)
    code, report = command("verify", after, "--against", before)
    assert code == 0, report
    assert "spatial_shapes" not in "".join(report["warnings"])


def to_16_bits(path) -> None:
    """Makes all float32 tensors of a file float16."""
    model = deploy.load(path)
    half = TensorProto.FLOAT16
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = half
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                array = onnx.numpy_helper.to_array(attribute.t).astype(np.float16)
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))
    del model.graph.value_info[:]
    onnx.save(model, path)


def test_16_bits_are_proven_in_32(tmp_path):
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, "stack")
    to_16_bits(before)
    code, report = command("rewrite", before, "-o", after)
    assert code == 0 and report["found"][0]["error"] < 1e-5
    checked = deploy.verify(deploy.load(after))
    assert checked.ok and "16 bits" in "".join(checked.warnings)


def test_the_module_is_exported_as_the_fused_operator(exported):
    path, model = exported
    proto = deploy.load(path)
    assert operators(path).count(FUSED) == 1 and {f.name for f in proto.functions} == {PLAIN, FUSED}
    for library in (False, True):
        runner = graph.session(proto, library=library)
        for batch, height in ((2, 6), (5, 8)):
            args = module_inputs(batch, height)
            names = [i.name for i in proto.graph.input]
            (got,) = runner.run(None, dict(zip(names, (a.numpy() for a in args))))
            assert ops.error(got, model(*args).detach().numpy()) < 5e-6
    assert deploy.verify(proto).ok


@pytest.mark.parametrize("size", [torch.export.Dim("batch"), torch.export.Dim.AUTO], ids=str)
def test_a_size_that_became_a_constant_is_refused(size, tmp_path):
    dynamic = tuple({0: size} for _ in range(4))
    path = tmp_path / "model.onnx"
    with pytest.raises(deploy.OnnxError, match="got (the|a) constant") as caught:
        deploy.export(Module(fixed=2).eval(), module_inputs(2), path, dynamic_shapes=dynamic)
    assert "dynamic size" in str(caught.value) and not path.exists()


class TwoRows(Module):
    """A loop of Python over the batch."""

    def forward(self, *inputs):
        found = super().forward(*inputs)
        return torch.stack([found[row] for row in range(2)])


class Points(torch.nn.Module):
    """Reference points of the example's image size, as exports of Deformable-DETR have them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = msda.MSDeformAttn(16, 1, 2, 4)
        for parameter in self.attention.parameters():
            torch.nn.init.normal_(parameter, std=0.2)

    def forward(self, image):
        height, width = image.shape[2:]
        if torch.compiler.is_exporting():
            height, width = 4, 8
        rows, columns = (torch.arange(n) / n for n in (height, width))
        points = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
        points = points.reshape(1, -1, 1, 2).expand(image.shape[0], -1, -1, -1)
        pyramid = image.flatten(2).transpose(1, 2)
        query = pyramid + image.mean((2, 3))[:, None]
        return self.attention(query[:, :32], points, pyramid, [image.shape[2:]])


def test_constants_of_an_image_size_are_seen(tmp_path):
    path, auto = tmp_path / "model.onnx", torch.export.Dim.AUTO
    with pytest.raises(deploy.OnnxError, match="relative error .* to torch, expected at most"):
        deploy.export(
            Points().eval(),
            (torch.randn(2, 16, 4, 8),),
            path,
            dynamic_shapes=({0: auto, 2: auto, 3: auto},),
        )
    assert not path.exists()


def test_given_sizes_differ_in_the_second_run(exported):
    model = onnx.helper.make_model(
        helper.make_graph(
            [],
            "sizes",
            [
                helper.make_tensor_value_info("image", 1, ["batch", 3, "h", "w"]),
                helper.make_tensor_value_info("tokens", 7, ["batch", "t"]),
            ],
            [],
        )
    )
    sizes = {"batch": 2, "h": 32, "w": 64, "t": 5}
    assert graph.run_sizes(model, sizes, 0) == sizes
    assert graph.run_sizes(model, sizes, 1) == {"batch": 3, "h": 64, "w": 32, "t": 10}
    sizes = {"batch": 2, "h": 32, "w": 32, "t": (5, 5)}
    assert graph.run_sizes(model, sizes, 1) == {"batch": 3, "h": 64, "w": 64, "t": 5}
    code, report = command("verify", exported[0], "--size", "height=6", "--against", exported[0])
    assert code == 0
    assert [e["sizes"]["first"][2] for e in report["outputs"]] == [6, 12]
    report = command("verify", exported[0], "--size", "height=6,7", "--against", exported[0])[1]
    assert [e["sizes"]["first"][2] for e in report["outputs"]] == [6, 7]


def test_an_output_that_does_not_follow_the_batch_is_refused(tmp_path):
    path, names = tmp_path / "rows.onnx", ["query", "reference", "first", "second"]
    dynamic = ({0: torch.export.Dim("batch")},) * 4
    options = {"input_names": names, "dynamic_shapes": (dynamic,)}
    with pytest.raises(deploy.OnnxError, match="got 2 rows for a batch of 3, expected 3"):
        deploy.export(TwoRows().eval(), module_inputs(2), path, **options)
    assert not path.exists()
    # With an example of another batch the output is not taken for a batch.
    deploy.export(TwoRows().eval(), module_inputs(4), path, **options)
    code, report = command("verify", path)
    assert code == 1 and "got 2 rows for a batch of 3" in "".join(report["failures"])


class Function(torch.nn.Module):
    def forward(self, value, locations, weights):
        return msda.ms_deform_attn(
            value, LEVELS, None, locations, weights, points=[3, 1], padding="border"
        )


def test_options_are_attributes_and_tensorrt_refuses_them(tmp_path):
    args = (torch.randn(2, 69, 2, 4), torch.rand(2, 5, 2, 4, 2), torch.rand(2, 5, 2, 4))
    model = deploy.export(Function(), args)
    (node,) = [n for n in model.graph.node if ops.is_ours(n)]
    assert ops.attributes(node)["points"] == [3, 1] and node.op_type == PLAIN
    names = [i.name for i in model.graph.input]
    (got,) = graph.session(model).run(None, dict(zip(names, (a.numpy() for a in args))))
    assert ops.error(got, Function()(*args).numpy()) < 5e-6
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


def test_a_model_without_the_operator_is_refused():
    with pytest.raises(deploy.OnnxError, match="no multi-scale deformable attention"):
        deploy.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),))


def test_verify_finds_a_wrong_node(exported, tmp_path):
    path, _ = exported
    wrong = deploy.load(path)
    # A body that squares where it should double. The library would not use it.
    for node in (node for function in wrong.functions for node in function.node):
        if node.output[0] == "twice":
            node.op_type = "Mul"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "session", functools.partial(graph.session, library=False))
        report = deploy.verify(wrong)
    assert not report.ok and not any(entry["ok"] for entry in report.nodes)
    # Other weights: each node is right, the whole is not.
    other = deploy.load(path)
    tensor = next(t for t in other.graph.initializer if t.data_type == TensorProto.FLOAT)
    changed = 2 * onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    deploy.save(other, tmp_path / "other.onnx")
    code, report = command("verify", tmp_path / "other.onnx", "--against", path)
    assert code == 1 and all(e["ok"] for e in report["nodes"])
    assert not all(e["ok"] for e in report["outputs"])


def test_verify_warns(tmp_path):
    export_form(tmp_path / "before.onnx", "stack", opset=20)
    command("rewrite", tmp_path / "before.onnx", "-o", tmp_path / "after.onnx")
    said = "\n".join(command("verify", tmp_path / "after.onnx")[1]["warnings"])
    assert "TensorRT takes 'nearest'" in said and "its batch is the constant 2" in said
    inputs = arrays(PLAIN, np.float16, False, False)
    model = one_node(PLAIN, inputs)
    for name, array in zip(ops.INPUTS[PLAIN][1:3], inputs[1:3]):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del model.graph.input[1:3]
    sizes = {
        name: n if name.endswith("_0") else (n, n)
        for name, n in sizes_of(inputs).items()
        if not name.startswith(("level", "spatial"))
    }
    report = deploy.verify(model, sizes=sizes)
    said = "\n".join(report.warnings)
    assert report.ok, report
    assert "locations have 16 bits" in said and "spatial_shapes is a constant" in said


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensorrt_gets_the_plugin_with_its_types(exported, dtype, tmp_path):
    if dtype is np.float32:
        path, _ = exported
        model, before = deploy.load(path), deploy.load(path)
        tensorrt.convert(model)
        assert deploy.verify(model, before).ok
    else:
        inputs = arrays(PLAIN, dtype, False, False)
        model = one_node(PLAIN, inputs)
        sizes = sizes_of(inputs)
        for info in model.graph.input:
            for axis, dim in enumerate(info.type.tensor_type.shape.dim):
                dim.dim_value = sizes[f"{info.name}_{axis}"]
        tensorrt.convert(model)
        given = dict(zip(ops.INPUTS[PLAIN], inputs))
        (got,) = graph.session(tensorrt.runnable(model)).run(None, given)
        expected = ops.compute(helper.make_node(PLAIN, [""] * 5, [""]), inputs)
        assert got.dtype == dtype and ops.error(got, expected) < 2e-3
    deploy.save(model, tmp_path / "plugin.onnx")
    model = deploy.load(tmp_path / "plugin.onnx")
    (node,) = [n for n in model.graph.node if n.op_type == tensorrt.PLUGIN]
    assert not model.functions and not graph.uses_ours(model)
    makers = {n.output[0]: n for n in model.graph.node}
    tables = [makers[name] for name in node.input[1:3]]
    assert all(n.op_type == "Cast" and n.attribute[0].i == TensorProto.INT32 for n in tables)
    with pytest.raises(deploy.OnnxError, match="value: got float16 .* expected float32"):
        inputs = arrays(PLAIN, np.float16, False, False)
        tensorrt.emulate(node, inputs)


def test_the_target_tensorrt_says_that_it_never_ran(tmp_path, capsys):
    export_form(tmp_path / "before.onnx", "stack")
    arguments = ["rewrite", tmp_path / "before.onnx", "-o", tmp_path / "after.onnx"]
    arguments += ["--target", "tensorrt"]
    assert program.main(["onnx", *map(str, arguments)]) == 0
    assert "note: no file of msda was ever run in TensorRT" in capsys.readouterr().out
    assert command(*arguments)[1]["found"][-1]["status"] == "note"


def test_openvino_runs_the_operators(exported, tmp_path):
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    inputs = arrays(PLAIN, np.float32, True, False)
    plain = one_node(PLAIN, inputs, points=[5, 3], padding="border")
    deploy.save(plain, tmp_path / "plain.onnx")
    cases = [(tmp_path / "plain.onnx", dict(zip(ops.INPUTS[PLAIN], inputs)))]
    proto = deploy.load(exported[0])
    for batch in (2, 3):
        args = (a.numpy() for a in module_inputs(batch))
        cases.append((exported[0], dict(zip([i.name for i in proto.graph.input], args))))
    for path, given in cases:
        core = openvino.Core()
        for extension in deploy.openvino_extension():
            core.add_extension(extension)
        model = core.read_model(str(path))
        assert {PLAIN, FUSED} & {op.get_type_name() for op in model.get_ops()}
        got = core.compile_model(model, "CPU")(given)[0]
        expected = graph.session(deploy.load(path)).run(None, given)[0]
        assert ops.error(got, expected) < 5e-6


def refused(path, tmp_path, message: str, *more: object) -> None:
    """The commands refuse a file, and nothing new lies in the folder."""
    before = sorted(os.listdir(tmp_path))
    code, said = command("rewrite", path, "-o", tmp_path / "out.onnx", *more)
    assert code == 2 and message in said["error"], said
    assert sorted(os.listdir(tmp_path)) == before
    code, said = command("verify", path)
    assert code == 2 and message in said["error"], said


def test_hostile_files_are_refused(exported, tmp_path):
    good, path = exported[0].read_bytes(), tmp_path / "hostile.onnx"
    for data in (b"", b"no model", good[: len(good) // 2], good[:-1], b"\xff" * 1000):
        path.write_bytes(data)
        refused(path, tmp_path, "hostile.onnx")
    refused(tmp_path / "missing.onnx", tmp_path, "got no such file")

    def broken(change) -> None:
        model = deploy.load(exported[0])
        (node,) = [n for n in model.graph.node if ops.is_ours(n)]
        node.name = "attention"
        change(model, node)
        onnx.save(model, path)

    def attribute(name, found):
        def change(model, node) -> None:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute(name, found))

        return change

    broken(attribute("padding", "mirror"))
    refused(
        path, tmp_path, "node 'attention' (MultiScaleDeformableAttentionFused): attribute padding"
    )
    broken(attribute("points", "three"))
    refused(path, tmp_path, "attention")
    broken(attribute("speed", 3))
    refused(path, tmp_path, "attention")
    broken(lambda m, n: n.input.pop())
    refused(path, tmp_path, "attention")
    broken(lambda m, n: n.input.__setitem__(0, "nobody makes this"))
    refused(path, tmp_path, "nobody makes this")
    broken(lambda m, n: n.input.__setitem__(0, m.graph.output[0].name))
    refused(path, tmp_path, "need each other")
    broken(lambda m, n: n.input.__setitem__(0, "query"))
    code, said = command("verify", path)
    text = json.dumps(said)
    assert code in (1, 2) and "attention" in text

    def old(model, node) -> None:
        model.opset_import[0].version = 13

    broken(old)
    refused(path, tmp_path, "opset")


def test_external_data_stays_in_its_folder(exported, tmp_path):
    (tmp_path / "secret").write_bytes(b"\0" * 4096)
    inside = tmp_path / "inside"
    inside.mkdir()
    for location in ("../secret", str(tmp_path / "secret"), "absent"):
        model = deploy.load(exported[0])
        tensor = next(t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        onnx.save(model, inside / "model.onnx")
        refused(inside / "model.onnx", inside, tensor.name)


def test_large_files_have_external_data_and_appear_complete(exported, tmp_path, monkeypatch):
    path = tmp_path / "large.onnx"
    monkeypatch.setattr(graph, "_LIMIT", 100)
    deploy.save(deploy.load(exported[0]), path)
    assert sorted(os.listdir(tmp_path)) == ["large.onnx", "large.onnx.data"]
    assert deploy.verify(deploy.load(path), deploy.load(exported[0])).ok
    monkeypatch.undo()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(graph.onnx.checker, "check_model", fail)
    with pytest.raises(deploy.OnnxError, match="no space left"):
        graph.save(onnx.load(exported[0]), tmp_path / "partial.onnx")
    assert sorted(os.listdir(tmp_path)) == ["large.onnx", "large.onnx.data"]


def test_external_data_is_a_file_of_its_own_in_the_folder(exported, tmp_path):
    """Checked here: what onnx checks depends on its version."""
    secret, inside = tmp_path / "secret", tmp_path / "inside"
    secret.write_bytes(b"\1" * 10**6)
    inside.mkdir()
    os.symlink(secret, inside / "link")
    os.symlink(tmp_path, inside / "folder")
    os.link(secret, inside / "hard")
    (inside / "own").write_bytes(b"\1" * 10**6)
    for location in ("link", "folder/secret", "hard", "../secret", "", "own"):
        model = onnx.load(exported[0])
        tensor = next(t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="length", value=str(4 * int(np.prod(tensor.dims))))
        attribute = helper.make_node("Constant", [], ["constant"], value=tensor)
        for with_attribute in (False, True):
            if with_attribute:
                model = onnx.load(exported[0])
                model.graph.node.insert(0, attribute)
            path = inside / "model.onnx"
            onnx.save(model, path)
            if location == "own":
                graph._check_external_data(onnx.load(path, load_external_data=False), inside)
                continue
            with pytest.raises(deploy.OnnxError, match=f"tensor '{tensor.name}': external data"):
                deploy.load(path)


def test_files_over_2_gb(tmp_path):
    if os.environ.get("MSDA_SLOW") != "1":
        pytest.skip("takes minutes and 12 GB of memory: MSDA_SLOW=1 runs it")
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, "stack")
    model = onnx.load(before)
    numbers, output = 300_000_000, model.graph.output[0]
    with open(tmp_path / "zeros", "wb") as file:
        file.truncate(4 * numbers)
    ends = onnx.numpy_helper.from_array(np.array([0, numbers - 1]), "ends")
    model.graph.initializer.append(ends)
    last = output.name
    for at in range(2):
        tensor = model.graph.initializer.add(
            name=f"large_{at}", data_type=TensorProto.FLOAT, dims=[numbers]
        )
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="zeros")
        tensor.external_data.add(key="length", value=str(4 * numbers))
        some, most, total = f"some_{at}", f"most_{at}", f"total_{at}"
        model.graph.node.append(helper.make_node("Gather", [tensor.name, "ends"], [some]))
        model.graph.node.append(helper.make_node("ReduceMax", [some], [most], keepdims=0))
        model.graph.node.append(helper.make_node("Add", [last, most], [total]))
        last = total
    output.name = last
    onnx.save(model, before)
    del model
    code, report = command("rewrite", before, "-o", after)
    assert code == 0, report
    assert os.path.getsize(tmp_path / "after.onnx.data") > 2**31
    code, report = command("verify", after, "--against", before)
    assert code == 0, report


def test_a_saved_model_keeps_its_numbers(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "_LIMIT", 100)
    model = deploy.load(exported[0])
    before = model.ByteSize()
    deploy.save(model, tmp_path / "model.onnx")
    assert model.ByteSize() == before


def test_files_with_local_functions_are_rewritten(tmp_path):
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, "stack")
    model = onnx.load(before)
    text = '<domain: "d", opset_import: ["" : 16]> Twice (x) => (y) { y = Add (x, x) }'
    model.functions.append(onnx.parser.parse_function(text))
    model.opset_import.append(helper.make_opsetid("d", 1))
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("Twice", [output.name], ["twice"], domain="d"))
    output.name = "twice"
    onnx.save(model, before)
    # A process of its own: other packages import onnx's modules too.
    arguments = ["-m", "msda_attn", "onnx", "rewrite", str(before), "-o", str(after)]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert command("verify", after, "--against", before)[0] == 0


def test_nothing_escapes_as_a_traceback(exported, tmp_path):
    path = tmp_path / "model.onnx"
    code, said = command("verify", exported[0], "--size", "batch=100000000000")
    assert code == 2 and "got shape [100000000000, 7, 16], expected sizes" in said["error"]

    def changed(change) -> str:
        model = onnx.load(exported[0])
        change(model)
        onnx.save(model, path)
        code, said = command("verify", path)
        assert code == 2
        return said["error"]

    def set_size(size):
        def change(model) -> None:
            model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = size

        return change

    assert "input 'query': got shape [2, -5, 16], expected sizes" in changed(set_size(-5))
    assert "expected sizes of at least 0" in changed(set_size(2**40))

    def other_type(model) -> None:
        reshape = next(n for n in model.graph.node if n.op_type == "Reshape")
        info = helper.make_tensor_value_info(reshape.output[0], TensorProto.STRING, None)
        del model.graph.value_info[:]
        model.graph.value_info.append(info)

    assert "Error" in changed(other_type)


def test_16_bit_models_have_their_own_limits(tmp_path):
    """GridSample of float16 rounds positions, which the operator does not."""
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    export_form(before, "stack", dynamic=True)
    to_16_bits(before)
    assert command("rewrite", before, "-o", after)[0] == 0
    code, report = command("verify", after, "--against", before)
    assert code == 0 and all(entry["limit"] == 2e-2 for entry in report["outputs"])
    # A float32 output behind 16-bit nodes.
    for path in (before, after):
        model = onnx.load(path)
        output = model.graph.output[0]
        model.graph.node.append(helper.make_node("Cast", [output.name], ["wide"], to=1))
        output.name, output.type.tensor_type.elem_type = "wide", 1
        onnx.save(model, path)
    code, report = command("verify", after, "--against", before)
    assert code == 0 and all(entry["limit"] == 2e-2 for entry in report["outputs"])


def test_json_has_no_infinity(exported, tmp_path):
    path = tmp_path / "transposed.onnx"
    model = onnx.load(exported[0])
    output = model.graph.output[0]
    node = helper.make_node("Transpose", [output.name], ["transposed"], perm=[0, 2, 1])
    model.graph.node.append(node)
    output.name = "transposed"
    for dim in output.type.tensor_type.shape.dim:
        dim.Clear()
    onnx.save(model, path)
    code, report = command("verify", path, "--against", exported[0])
    assert code == 1
    entry = report["outputs"][0]
    assert entry["error"] is None and not entry["ok"]
    assert entry["reason"] == "got shape [2, 16, 7], expected [2, 7, 16]"


def test_nodes_in_branches_are_mentioned(tmp_path):
    inputs = arrays(PLAIN, np.float32, False, False)
    plain, path = one_node(PLAIN, inputs), tmp_path / "branch.onnx"
    branches = []
    for name in ("then", "else"):
        node = onnx.NodeProto()
        node.CopyFrom(plain.graph.node[0])
        node.output[0] = name
        made = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3)
        branches.append(helper.make_graph([node], name, [], [made]))
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    choose = helper.make_node(
        "If", ["yes"], ["output"], then_branch=branches[0], else_branch=branches[1]
    )
    del plain.graph.node[:]
    plain.graph.node.append(choose)
    plain.graph.initializer.append(yes)
    onnx.save(plain, path)
    assert graph.uses_ours(deploy.load(path))
    sizes = [("--size", f"{k}={n},{n}") for k, n in sizes_of(inputs).items()]
    code, report = command("verify", path, *(text for pair in sizes for text in pair))
    assert code == 1 and "2 nodes of msda inside branches" in report["warnings"][0]
    assert "outside of branches and loops" in "".join(report["failures"])
    attribute = branches[0].node[0].attribute.add(name="padding", type=3)
    attribute.s = b"mirror"
    plain.graph.node[0].attribute[0].g.CopyFrom(branches[0])
    onnx.save(plain, path)
    assert "attribute padding: got 'mirror'" in command("verify", path)[1]["error"]


def test_bfloat16_models_are_exported_and_not_compared(tmp_path):
    path, model = tmp_path / "model.onnx", Module().eval().bfloat16()
    args = tuple(tensor.bfloat16() for tensor in module_inputs(2))
    with pytest.warns(UserWarning, match="nothing was fused or compared"):
        deploy.export(model, args, path)
    assert {PLAIN, FUSED} & set(operators(path))


def test_an_old_runtime_is_named(monkeypatch):
    monkeypatch.setattr(ort, "__version__", "1.16.3")
    model = one_node(PLAIN, arrays(PLAIN, np.float32, False, False))
    with pytest.raises(deploy.OnnxError, match="onnxruntime: got 1.16.3, expected 1.17 or newer"):
        graph.session(model)


def test_a_missing_package_is_named():
    code = "import sys; sys.modules['torch'] = None; import msda_attn.onnx; msda_attn.onnx.export"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: msda_attn.onnx.export needs torch\nhint: pip install" in done.stderr
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from msda_attn.__main__ import main\n"
        "sys.exit(main(['onnx', 'verify', 'a.onnx']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "hint: pip install onnx " in done.stderr
    assert "Traceback" not in done.stderr
