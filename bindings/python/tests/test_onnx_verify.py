"""`verify`, and files that are wrong, hostile or large."""

from __future__ import annotations

import json
import os

import pytest

# Skips where a package is missing.
pytest.importorskip("onnx_support")

import msda_attn.onnx as deploy
import numpy as np
import onnx
import onnx_support
from msda_attn.onnx import graph, ops
from msda_attn.onnx.ops import PLAIN
from onnx import TensorProto, helper
from onnx_support import (
    arrays,
    command,
    export_form,
    one_node,
    ours,
    rewrite,
    sizes_of,
    verify,
)

pytestmark = pytest.mark.filterwarnings("ignore")
exported = onnx_support.exported


def weights_of(model: onnx.ModelProto) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)


def with_tables(inputs: list[np.ndarray]) -> tuple[onnx.ModelProto, dict]:
    """A model of one node with constant level tables, and its sizes."""
    model = one_node(PLAIN, inputs)
    for name, array in zip(ops.INPUTS[PLAIN][1:3], inputs[1:3]):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del model.graph.input[1:3]
    sizes = sizes_of(inputs).items()
    return model, {k: n for k, n in sizes if not k.startswith(("level", "spatial"))}


def test_verify_finds_a_wrong_body(exported, tmp_path):
    """The library computes as before: only the way without it is wrong."""

    def spoil(model, op: str, inputs: list[str], **options) -> None:
        body = next(f for f in model.functions if f.name == PLAIN)
        (last,) = [node for node in body.node if node.output[0] == "output"]
        last.output[0] = "right"
        body.node.append(helper.make_node(op, inputs, ["output"], **options))

    model, path = deploy.load(exported[0]), tmp_path / "wrong.onnx"
    spoil(model, "Add", ["right", "right"])
    deploy.save(model, path)
    assert command("verify", path)[0] == 1
    code, report = command("verify", path, "--against", exported[0])
    assert code == 1
    for entry in report["nodes"] + report["outputs"]:
        assert entry["ok"] == (entry["way"] == "library")
    model, sizes = with_tables(arrays(PLAIN))
    spoil(model, "ReduceSum", ["right"], keepdims=0)
    right, wrong = deploy.verify(model, sizes=sizes).nodes[:2]
    assert right["ok"] and "got shape []" in wrong["reason"]


def test_verify_finds_other_weights(exported, tmp_path):
    """Each node is right, the whole is not."""
    other = deploy.load(exported[0])
    tensor = weights_of(other)
    changed = 2 * onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    deploy.save(other, tmp_path / "other.onnx")
    code, report = command("verify", tmp_path / "other.onnx", "--against", exported[0])
    assert code == 1 and all(e["ok"] for e in report["nodes"])
    assert not all(e["ok"] for e in report["outputs"])


def test_an_endless_loop_ends_with_an_error(exported, tmp_path, monkeypatch):
    model, path = deploy.load(exported[0]), tmp_path / "endless.onnx"
    output = model.graph.output[0].name
    text = f"""
    <ir_version: 9, opset_import: ["" : 18]>
    endless (float[N] unused) => (float[N] {output}_last) {{
      yes = Constant <value = bool {{1}}> ()
      most = Constant <value = int64 {{9223372036854775807}}> ()
      {output}_last = Loop (most, yes, {output}) <body = step
        (int64 i, bool go, float[M] before) => (bool go_on, float[M] after) {{
          go_on = Identity (go)
          after = Neg (before)
        }}>
    }}"""
    model.graph.node.extend(onnx.parser.parse_model(text).graph.node)
    model.graph.output[0].name = f"{output}_last"
    onnx.save(model, path)
    monkeypatch.setattr(graph, "_MOST_SECONDS", 1)
    code, report = command("verify", path)
    assert code == 1 and "got no end of its run within 1 seconds" in "".join(report["failures"])


def test_verify_warns(tmp_path):
    export_form(tmp_path / "before.onnx", "stack", opset=20)
    rewrite(tmp_path / "before.onnx", tmp_path / "after.onnx")
    said = "\n".join(command("verify", tmp_path / "after.onnx")[1]["warnings"])
    assert "TensorRT takes 'nearest'" in said and "its batch is the constant 2" in said
    model, sizes = with_tables(arrays(PLAIN, np.float16))
    report = deploy.verify(model, sizes=sizes)
    said = "\n".join(report.warnings)
    assert report.ok, report
    assert "locations have 16 bits" in said and "spatial_shapes is a constant" in said


def test_sizes_of_the_second_run_are_larger(exported):
    infos = [
        helper.make_tensor_value_info("image", 1, ["batch", 3, "h", "w"]),
        helper.make_tensor_value_info("tokens", 7, ["batch", "t"]),
    ]
    model = helper.make_model(helper.make_graph([], "sizes", infos, []))
    for first, second in (
        ({"batch": 2, "h": 32, "w": 64, "t": 5}, {"batch": 3, "h": 64, "w": 128, "t": 6}),
        ({"batch": 1, "h": 640, "w": 640, "t": 256}, {"batch": 2, "h": 736, "w": 832, "t": 288}),
        ({"batch": 2, "h": 800, "w": 1066, "t": 1}, {"batch": 3, "h": 928, "w": 1334, "t": 2}),
        ({"batch": 2, "h": 32, "w": 32, "t": (5, 5)}, {"batch": 3, "h": 64, "w": 96, "t": 5}),
    ):
        assert graph.run_sizes(model, first, 1) == second
        assert graph.run_sizes(model, first, 0) == {**first, "t": min(np.ravel(first["t"]))}
    for given, heights in (("height=6", [6, 8]), ("height=6,7", [6, 7])):
        report = verify(exported[0], exported[0], "--size", given)
        assert [e["sizes"]["first"][2] for e in report["outputs"][::2]] == heights


def refused(path, message: str) -> None:
    """The commands refuse a file, and nothing new lies in the folder."""
    before = sorted(os.listdir(path.parent))
    for arguments in (("rewrite", path, "-o", path.parent / "out.onnx"), ("verify", path)):
        code, said = command(*arguments)
        assert code == 2 and message in said["error"], said
    assert sorted(os.listdir(path.parent)) == before


def test_hostile_files_are_refused(exported, tmp_path):
    good, path = exported[0].read_bytes(), tmp_path / "hostile.onnx"
    for data in (b"", b"no model", good[: len(good) // 2], good[:-1], b"\xff" * 1000):
        path.write_bytes(data)
        refused(path, "hostile.onnx")
    refused(tmp_path / "missing.onnx", "got no such file")

    def broken(change) -> None:
        model = deploy.load(exported[0])
        (node,) = ours(model)
        node.name = "attention"
        change(model, node)
        onnx.save(model, path)

    def attribute(name, found):
        def change(_, node) -> None:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute(name, found))

        return change

    def old(model, _) -> None:
        model.opset_import[0].version = 13

    node = "node 'attention' (MultiScaleDeformableAttentionFused): attribute padding"
    for change, message in (
        (attribute("padding", "mirror"), node),
        (attribute("points", "three"), "attention"),
        (attribute("speed", 3), "attention"),
        (lambda m, n: n.input.pop(), "attention"),
        (lambda m, n: n.input.__setitem__(0, "nobody makes this"), "nobody makes this"),
        (lambda m, n: n.input.__setitem__(0, m.graph.output[0].name), "need each other"),
        (old, "opset"),
    ):
        broken(change)
        refused(path, message)
    broken(lambda m, n: n.input.__setitem__(0, "query"))
    code, said = command("verify", path)
    assert code in (1, 2) and "attention" in json.dumps(said)


def test_external_data_is_a_file_of_its_own_in_the_folder(exported, tmp_path):
    """Checked here: what onnx checks depends on its version."""
    secret, inside = tmp_path / "secret", tmp_path / "inside"
    secret.write_bytes(b"\1" * 10**6)
    inside.mkdir()
    os.symlink(secret, inside / "link")
    os.symlink(tmp_path, inside / "folder")
    os.link(secret, inside / "hard")
    (inside / "own").write_bytes(b"\1" * 10**6)
    places = ("link", "folder/secret", "hard", "../secret", str(secret), "absent", "", "own")
    for location in places:
        model = onnx.load(exported[0])
        tensor = weights_of(model)
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
            else:
                refused(path, f"tensor '{tensor.name}': external data")


def test_large_files_have_external_data_and_appear_complete(exported, tmp_path, monkeypatch):
    path, model = tmp_path / "large.onnx", deploy.load(exported[0])
    monkeypatch.setattr(graph, "_LIMIT", 100)
    size = model.ByteSize()
    deploy.save(model, path)
    # The saved model keeps its numbers.
    assert model.ByteSize() == size
    assert sorted(os.listdir(tmp_path)) == ["large.onnx", "large.onnx.data"]
    assert deploy.verify(deploy.load(path), deploy.load(exported[0])).ok
    monkeypatch.undo()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(graph.onnx.checker, "check_model", fail)
    with pytest.raises(deploy.OnnxError, match="no space left"):
        graph.save(onnx.load(exported[0]), tmp_path / "partial.onnx")
    assert sorted(os.listdir(tmp_path)) == ["large.onnx", "large.onnx.data"]


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
    inputs, path, branches = arrays(PLAIN), tmp_path / "branch.onnx", []
    model = one_node(PLAIN, inputs)
    for name in ("then", "else"):
        node = helper.make_node(PLAIN, ops.INPUTS[PLAIN], [name], domain=ops.DOMAIN)
        made = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3)
        branches.append(helper.make_graph([node], name, [], [made]))
    true = onnx.numpy_helper.from_array(np.array(True))
    given = {"then_branch": branches[0], "else_branch": branches[1]}
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Constant", [], ["yes"], value=true))
    model.graph.node.append(helper.make_node("If", ["yes"], ["output"], **given))
    onnx.save(model, path)
    assert graph.uses_ours(deploy.load(path))
    sizes = [("--size", f"{k}={n},{n}") for k, (n, _) in sizes_of(inputs).items()]
    code, report = command("verify", path, *(text for pair in sizes for text in pair))
    assert code == 1 and "2 nodes of msda inside branches" in report["warnings"][0]
    assert "outside of branches and loops" in "".join(report["failures"])
    branches[0].node[0].attribute.append(helper.make_attribute("padding", "mirror"))
    model.graph.node[1].attribute[0].g.CopyFrom(branches[0])
    onnx.save(model, path)
    assert "attribute padding: got 'mirror'" in command("verify", path)[1]["error"]
