"""`rewrite`: our operators in files that exist already, and what other tools do with the result."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Skips where a package is missing.
pytest.importorskip("onnx_support")

import msda_attn.onnx as deploy
import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import onnx_forms
import onnx_support
import onnxruntime as ort
import torch
from msda_attn import __main__ as program
from msda_attn.onnx import graph, ops, tensorrt
from msda_attn.onnx.ops import FUSED, PLAIN
from onnx import TensorProto, helper
from onnx_support import (
    DYNAMIC,
    NAMES,
    Case,
    Module,
    arrays,
    command,
    export_form,
    module_inputs,
    one_node,
    operators,
    ours,
    rewrite,
    run,
    script,
    verify,
)

pytestmark = pytest.mark.filterwarnings("ignore")
exported = onnx_support.exported

OPTIONS = [
    {},
    {"sampling": "nearest"},
    {"padding": "border", "align_corners": 1},
    {"points": [5, 3]},
]


@pytest.fixture
def files(tmp_path):
    """The paths of a file and of the rewritten one."""
    return tmp_path / "before.onnx", tmp_path / "after.onnx"


@pytest.mark.parametrize("library", [False, True], ids=["function", "library"])
@pytest.mark.parametrize("opset", [16, 18, 20, 22])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_body_computes_the_operator(options, opset, library):
    cases = [(PLAIN, False, np.float32), (FUSED, False, np.float32), (FUSED, True, np.float16)]
    for op, boxes, dtype in [*cases, (PLAIN, False, np.float64)] if opset >= 20 else cases:
        inputs = arrays(op, dtype, "points" in options, boxes)
        model = one_node(op, inputs, opset, **options)
        onnx.checker.check_model(model, full_check=True)
        expected = ops.compute(model.graph.node[0], inputs)
        limit = {np.float16: 2e-3, np.float32: 5e-6, np.float64: 1e-13}[dtype]
        for found in [model] if library else [model, onnx.inliner.inline_local_functions(model)]:
            got = run(found, inputs, library=library)
            assert got.dtype == dtype and ops.error(got, expected) < limit


def test_both_samplings_and_kinds_of_points_in_one_model_of_opset_20():
    inputs = arrays(PLAIN)
    model = one_node(PLAIN, inputs, 20)
    # Nodes with points per level have one dimension for all samples.
    *same, locations, weights = ops.INPUTS[PLAIN]
    feeds = dict(zip(ops.INPUTS[PLAIN], inputs))
    feeds |= {"flat": inputs[3].reshape(2, 5, 3, 8, 2), "shares": inputs[4].reshape(2, 5, 3, 8)}
    for name in ("flat", "shares"):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, feeds[name].shape)
        model.graph.input.append(info)
    for at, (names, options) in enumerate(
        (((locations, weights), {"sampling": "nearest"}), (("flat", "shares"), {"points": [3, 5]}))
    ):
        node = helper.make_node(PLAIN, [*same, *names], [f"{at}"], domain=ops.DOMAIN, **options)
        model.graph.node.append(node)
        model.graph.output.append(helper.make_tensor_value_info(f"{at}", TensorProto.FLOAT, None))
    graph.add_functions(model)
    results = graph.session(model, library=False).run(None, feeds)
    for got, node in zip(results, model.graph.node):
        assert ops.error(got, ops.compute(node, [feeds[name] for name in node.input])) < 5e-6
    assert ops.error(results[0], results[1]) > 0.01 and ops.error(*results[::2]) > 0.01


@pytest.mark.parametrize("opset, dynamic", [(16, True), (20, False)], ids=["dynamic", "static"])
@pytest.mark.parametrize("form", onnx_forms.FORMS)
def test_every_form_is_replaced(form, opset, dynamic, files):
    export_form(files[0], form, opset=opset, dynamic=dynamic)
    assert [f["status"] for f in rewrite(*files)] == ["replaced", "not fused"]
    kinds = operators(files[1])
    assert kinds.count(PLAIN) == 1 and not {"GridSample", "GatherElements"} & set(kinds)
    report = verify(files[1], files[0])
    # With the library and without it.
    assert len(report["nodes"]) == (4 if dynamic else 2)
    assert all(entry["error"] < 1e-5 for entry in report["outputs"])


def left(before, after) -> list[dict]:
    """What the command found in a file in which it replaced nothing."""
    code, report = command("rewrite", before, "-o", after)
    assert code == 1 and os.listdir(before.parent) == [before.name]
    assert report["found"] and {f["status"] for f in report["found"]} == {"left"}
    assert all(f["reason"] for f in report["found"])
    return report["found"]


FAR = [(form, c) for form in ("stack", "per level", "gather") for c in onnx_forms.GRID_CHANGES]
NEAR = [("per level" if "level" in change else "stack", change) for change in onnx_forms.CHANGES]


@pytest.mark.parametrize("form, change", NEAR + FAR)
def test_a_changed_graph_is_never_replaced(form, change, files):
    export_form(files[0], form, change, dynamic=(form, change) in FAR)
    left(*files)


@pytest.mark.parametrize("level", ["BASIC", "EXTENDED"])
def test_files_of_the_optimizer_of_onnx_runtime_are_rewritten(level, files, tmp_path):
    """They have nodes in another order."""
    script(Module(), module_inputs(2), tmp_path / "plain.onnx", NAMES)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(files[0])
    ort.InferenceSession(str(tmp_path / "plain.onnx"), options)
    assert [f["status"] for f in rewrite(*files)] == ["replaced", "fused"]
    verify(files[1], tmp_path / "plain.onnx")


def test_the_reason_is_that_of_the_most_similar_proposal(files):
    export_form(files[0], "stack", "2.01x - 1")
    (found,) = left(*files)
    assert "it computes something else: relative error" in found["reason"]


@pytest.mark.parametrize(
    "family, dynamic, count",
    [
        ("deformable_detr", True, 4),
        ("rt_detr", False, 2),
        ("d_fine", True, 2),
        ("mask2former", True, 2),
    ],
)
def test_models_of_transformers_are_rewritten(family, dynamic, count, files):
    case = Case(family)
    script(case, case.args, files[0], case.names, 17, dynamic)
    found = [entry["status"] for entry in rewrite(*files)]
    assert sorted(found) == ["fused"] * count + ["replaced"] * count
    kinds = operators(files[1])
    assert kinds.count(FUSED) == count and "GridSample" not in kinds
    code, report = command("verify", files[1], "--against", files[0])
    assert all(entry["ok"] for entry in report["nodes"]), report
    # The older exporter divides by 0 for a level of one pixel. There runtimes differ.
    assert code == 0 or "NaN" in "".join(report["warnings"]), report
    if family == "d_fine":
        # Points per level: the plugin gets points of weight 0.
        model = deploy.load(files[1])
        tensorrt.convert(model)
        check = deploy.verify(model, deploy.load(files[0]))
        assert check.ok and {n["operator"] for n in check.nodes} == {tensorrt.PLUGIN}


def test_sizes_of_levels_may_be_dynamic(files):
    options = {"dynamo": True, "verbose": False, "opset_version": 20, "dynamic_shapes": DYNAMIC}
    torch.onnx.export(Module(), module_inputs(2, boxes=True), str(files[0]), **options)
    assert operators(files[0]).count("GridSample") == 2
    rewrite(*files)
    assert operators(files[1]).count(FUSED) == 1 and "GridSample" not in operators(files[1])
    report = verify(files[1], files[0])
    assert "spatial_shapes" not in "".join(report["warnings"])


def to_16_bits(path) -> None:
    """Makes all float32 tensors of a file float16."""
    model = deploy.load(path)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                array = onnx.numpy_helper.to_array(attribute.t).astype(np.float16)
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))
    del model.graph.value_info[:]
    onnx.save(model, path)


def test_16_bit_models_are_proven_in_32_and_have_their_own_limits(files):
    """GridSample of float16 rounds positions, which the operator does not."""
    export_form(files[0], "stack", dynamic=True)
    to_16_bits(files[0])
    assert rewrite(*files)[0]["error"] < 1e-5
    report = verify(files[1], files[0])
    assert "16 bits" in "".join(report["warnings"])
    assert all(entry["limit"] == 2e-2 for entry in report["outputs"])
    # A float32 output behind 16-bit nodes.
    for path in files:
        model = onnx.load(path)
        output = model.graph.output[0]
        model.graph.node.append(helper.make_node("Cast", [output.name], ["wide"], to=1))
        output.name, output.type.tensor_type.elem_type = "wide", 1
        onnx.save(model, path)
    assert all(entry["limit"] == 2e-2 for entry in verify(files[1], files[0])["outputs"])


def test_other_tools_read_the_files(files, tmp_path):
    """The inliner, strict inference, the quantizer, and the converter of versions."""
    script(Module(), module_inputs(2), files[0], NAMES)
    rewrite(*files)
    model, args = deploy.load(files[1]), module_inputs(3)
    expected = run(model, args)
    inlined = onnx.inliner.inline_local_functions(model)
    onnx.checker.check_model(inlined, full_check=True)
    assert not ours(inlined) and ops.error(run(inlined, args), expected) < 1e-5
    # The converter drops the functions; `rewrite` adds them again.
    converted, again = tmp_path / "converted.onnx", tmp_path / "again.onnx"
    onnx.save(onnx.version_converter.convert_version(model, 20), converted)
    assert not onnx.load(converted).functions
    code, report = command("verify", converted)
    assert code == 1 and "got no function of the model" in "".join(report["failures"])
    rewrite(converted, again)
    verify(again, files[0])
    # Without functions, the type of a node is known from the file alone.
    from onnxruntime.quantization import quantize_dynamic

    for path in (files[1], converted):
        inferred = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
        (info,) = [v for v in inferred.graph.value_info if v.name == ours(inferred)[0].output[0]]
        assert info.type.tensor_type.elem_type == TensorProto.FLOAT
        assert [d.dim_value for d in info.type.tensor_type.shape.dim] == [0, 0, 16]
        quantize_dynamic(path, tmp_path / "quantized.onnx")
        quantized = onnx.load(tmp_path / "quantized.onnx")
        assert "DynamicQuantizeLinear" in {node.op_type for node in quantized.graph.node}
        assert ours(quantized) and ops.error(run(quantized, args), expected) < 0.1


def test_onnxslim_reads_the_files(exported):
    onnxslim = pytest.importorskip("onnxslim", reason="onnxslim is not installed")
    model, args = onnxslim.slim(onnx.load(exported[0])), module_inputs(3, 8)
    assert ours(model)
    for library in (False, True):
        expected = exported[1](*args).detach().numpy()
        assert ops.error(run(model, args, library=library), expected) < 1e-5


def test_files_with_local_functions_are_rewritten(files):
    export_form(files[0], "stack")
    model = onnx.load(files[0])
    text = '<domain: "d", opset_import: ["" : 16]> Twice (x) => (y) { y = Add (x, x) }'
    model.functions.append(onnx.parser.parse_function(text))
    model.opset_import.append(helper.make_opsetid("d", 1))
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("Twice", [output.name], ["twice"], domain="d"))
    output.name = "twice"
    onnx.save(model, files[0])
    # A process of its own: other packages import onnx's modules too.
    arguments = ["-m", "msda_attn", "onnx", "rewrite", str(files[0]), "-o", str(files[1])]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    verify(files[1], files[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensorrt_gets_the_plugin_with_its_types(exported, dtype, tmp_path):
    inputs = arrays(PLAIN, np.float16)
    if dtype is np.float32:
        model, before = deploy.load(exported[0]), deploy.load(exported[0])
        tensorrt.convert(model)
        assert deploy.verify(model, before).ok
    else:
        model = one_node(PLAIN, inputs)
        for info, array in zip(model.graph.input, inputs):
            for dim, size in zip(info.type.tensor_type.shape.dim, array.shape):
                dim.dim_value = size
        tensorrt.convert(model)
        got = run(tensorrt.runnable(model), inputs)
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
        tensorrt.emulate(node, inputs)


def test_the_target_tensorrt_says_that_it_never_ran(files, capsys):
    export_form(files[0], "stack")
    arguments = ["rewrite", *files[:1], "-o", files[1], "--target", "tensorrt"]
    assert program.main(["onnx", *map(str, arguments)]) == 0
    assert "note: no file of msda was ever run in TensorRT" in capsys.readouterr().out
    assert command(*arguments)[1]["found"][-1]["status"] == "note"


def test_openvino_runs_the_operators(exported, tmp_path):
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    inputs = arrays(PLAIN, np.float32, points=True)
    deploy.save(one_node(PLAIN, inputs, points=[5, 3], padding="border"), tmp_path / "plain.onnx")
    cases = [(tmp_path / "plain.onnx", inputs)]
    cases += [(exported[0], [a.numpy() for a in module_inputs(batch)]) for batch in (2, 3)]
    for path, args in cases:
        core = openvino.Core()
        # Some CPUs would compute in 16 bits.
        core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        for extension in deploy.openvino_extension():
            core.add_extension(extension)
        model = core.read_model(str(path))
        assert {PLAIN, FUSED} & {op.get_type_name() for op in model.get_ops()}
        got = core.compile_model(model, "CPU")(dict(zip((i.any_name for i in model.inputs), args)))
        assert ops.error(got[0], run(deploy.load(path), args)) < 5e-6


def test_files_over_2_gb(files, tmp_path):
    if os.environ.get("MSDA_SLOW") != "1":
        pytest.skip("takes minutes and 12 GB of memory: MSDA_SLOW=1 runs it")
    export_form(files[0], "stack")
    model = onnx.load(files[0])
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
    onnx.save(model, files[0])
    del model
    rewrite(*files)
    assert os.path.getsize(tmp_path / "after.onnx.data") > 2**31
    verify(files[1], files[0])
