"""The operators in ONNX Runtime, against a computation in float64.

`cargo xtask ort` runs this file with several versions of ONNX Runtime. Needed are onnxruntime, onnx
and NumPy, and `MSDA_ORT`, the path of the library.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

LIBRARY = os.environ["MSDA_ORT"]
VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
OLD = VERSION < (1, 17)
ORT_TYPES = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "f64": TensorProto.DOUBLE,
    "i64": TensorProto.INT64,
    "i32": TensorProto.INT32,
}
# Half the distance of neighbouring numbers, relative.
ROUNDING = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
PLAIN = ["value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"]
FUSED = PLAIN[:3] + ["reference_points", "sampling_offsets", "attention_logits"]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
LEVELS = [(6, 9), (3, 5), (2, 2)]


def providers():
    """The CPU, and CUDA if it works. With MSDA_GPU=1 it must work."""
    node = helper.make_node("Neg", ["x"], ["y"])
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    proto = helper.make_model(
        helper.make_graph([node], "test", info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    if CUDA in ort.get_available_providers():
        made = ort.InferenceSession(proto.SerializeToString(), quiet, providers=[CUDA, CPU])
        if made.get_providers()[0] == CUDA:
            return [CPU, CUDA]
    if os.environ.get("MSDA_GPU") == "1":
        raise RuntimeError("MSDA_GPU=1, but CUDA does not work in this ONNX Runtime")
    return [CPU]


PROVIDERS = providers()
newer = pytest.mark.skipif(OLD, reason="ONNX Runtime before 1.17 is refused")


@pytest.mark.skipif(not OLD, reason="this ONNX Runtime is new enough")
def test_an_old_runtime_is_refused():
    with pytest.raises(Exception, match=r"got 1\.16\.\d, expected 1\.17 or newer"):
        ort.SessionOptions().register_custom_ops_library(LIBRARY)


def rounded(array, dtype):
    """The numbers of an array as that type stores them, in float64."""
    if dtype == "bf16":
        bits = array.astype(np.float32).view(np.uint32)
        bits = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)
    return array.astype({"f64": "f8", "f32": "f4", "f16": "f2"}[dtype]).astype(np.float64)


def oracle(value, locations, weights, *, levels=LEVELS, starts=None, sampling="bilinear",
           padding="zeros", align_corners=0):  # fmt: skip
    """The operator in float64. Locations and weights are lists with an array per level."""
    batch, _, heads, channels = value.shape
    queries = locations[0].shape[1]
    output = np.zeros((batch, queries, heads, channels))
    b, h = np.arange(batch)[:, None, None, None], np.arange(heads)[None, None, :, None]
    sizes = [h * w for h, w in levels]
    starts = np.cumsum([0, *sizes])[:-1] if starts is None else starts
    for (height, width), start, where, weight in zip(levels, starts, locations, weights):
        size = np.array([width, height])
        at = where * (size - 1) if align_corners else where * size - 0.5
        if padding == "border":
            at = np.clip(at, 0, size - 1)
        taps = [(np.rint(at), 1)]
        if sampling == "bilinear":
            low = np.floor(at)
            parts = [(0, 1 - (at - low)), (1, at - low)]
            taps = [
                (low + [dx, dy], px[..., 0] * py[..., 1])
                for (dx, px), (dy, py) in itertools.product(parts, parts)
            ]
        for tap, part in taps:
            inside = ((tap >= 0) & (tap < size)).all(-1)
            x, y = np.where(inside[..., None], tap, 0).astype(int).transpose(4, 0, 1, 2, 3)
            rows = value[b, start + y * width + x, h]
            output += ((weight * part * inside)[..., None] * rows).sum(3)
    return output.reshape(batch, queries, -1)


def locations_of(reference, offsets):
    """The locations of the fused form, as a list with an array per level."""
    found = []
    for level, (height, width) in enumerate(LEVELS):
        point = reference[:, :, min(level, reference.shape[2] - 1), None, None]
        offset = offsets[:, :, :, level]
        if reference.shape[-1] == 2:
            found.append(point + offset / [width, height])
        else:
            found.append(point[..., :2] + offset / offset.shape[3] * point[..., 2:] / 2)
    return found


def softmax(logits):
    flat = logits.reshape(*logits.shape[:3], -1)
    flat = np.exp(flat - flat.max(-1, keepdims=True))
    return (flat / flat.sum(-1, keepdims=True)).reshape(logits.shape)


def tables(levels=LEVELS):
    sizes = [h * w for h, w in levels]
    return np.array(levels, np.int64), np.cumsum([0, *sizes], dtype=np.int64)[:-1]


def inputs(batch=2, queries=7, heads=3, channels=8, points=4, levels=LEVELS, seed=0):
    """Random inputs of the plain form by their names, in float64. Some samples are off the map."""
    random = np.random.default_rng(seed)
    samples = (batch, queries, heads, len(levels), points)
    shapes, starts = tables(levels)
    return {
        "value": random.standard_normal((batch, sum(h * w for h, w in levels), heads, channels)),
        "spatial_shapes": shapes,
        "level_start_index": starts,
        "sampling_locations": 1.4 * random.random((*samples, 2)) - 0.2,
        "attention_weights": random.random(samples),
    }


def fused_inputs(kind, **sizes):
    """Random inputs of the fused form; `kind` is the last dimension of the reference points."""
    plain = inputs(**sizes)
    random = np.random.default_rng(1)
    batch, queries, _, levels = plain["attention_weights"].shape[:4]
    return {
        **{name: plain[name] for name in PLAIN[:3]},
        "reference_points": random.random((batch, queries, levels, kind)),
        "sampling_offsets": 3 * random.standard_normal(plain["sampling_locations"].shape),
        "attention_logits": 2 * random.standard_normal(plain["attention_weights"].shape),
    }


def model(arrays, types, shapes=None, name="attention", constants=(), **attributes):
    """A model with one node. Inputs of 16 bits come in as float32. Constants are no inputs."""
    fused = "reference_points" in arrays
    nodes, infos, taken = [], [], []
    for key in arrays:
        dtype = types.get(key, "i64")
        outside = {"f16": "f32", "bf16": "f32"}.get(dtype, dtype)
        if key not in constants:
            shape = (shapes or {}).get(key, arrays[key].shape)
            infos.append(helper.make_tensor_value_info(key, ORT_TYPES[outside], shape))
        taken.append(key)
        if dtype != outside:
            taken[-1] = key + "_"
            nodes.append(helper.make_node("Cast", [key], taken[-1:], to=ORT_TYPES[dtype]))
    op = "MultiScaleDeformableAttention" + ("Fused" if fused else "")
    nodes.append(helper.make_node(op, taken, ["result"], name, domain="msda", **attributes))
    # Nodes that need the type and the rank of the result.
    out = "f64" if types["value"] == "f64" else "f32"
    nodes.append(helper.make_node("Cast", ["result"], ["cast"], to=ORT_TYPES[out]))
    nodes.append(helper.make_node("Transpose", ["cast"], ["output"], perm=[0, 1, 2]))
    results = [helper.make_tensor_value_info("output", ORT_TYPES[out], None)]
    fixed = [numpy_helper.from_array(arrays[key], key) for key in constants]
    graph = helper.make_graph(nodes, "test", infos, results, fixed)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("msda", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def options(threads=0):
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 4
    made.register_custom_ops_library(LIBRARY)
    return made


def session(proto, provider=CPU, with_options=None):
    given = with_options or options()
    return ort.InferenceSession(proto.SerializeToString(), given, providers=[provider])


def run(made, arrays):
    kinds = {
        i.name: {"tensor(float)": "f4", "tensor(double)": "f8"}.get(i.type, "i8")
        for i in made.get_inputs()
    }
    feed = {
        key: array if array.dtype.kind == "i" else array.astype(kinds[key])
        for key, array in arrays.items()
        if key in kinds
    }
    return made.run(None, feed)[0]


def uniform(arrays, dtype="f32"):
    return {name: dtype for name in arrays if name not in PLAIN[1:3]}


def split(array, points=None):
    """An array per level."""
    if points:
        return np.split(array, np.cumsum(points)[:-1], 3)
    return [array[:, :, :, level] for level in range(array.shape[3])]


def compare(arrays, types=None, provider=CPU, made=None, points=None, **attributes):
    """Runs the operator, and compares with the computation in float64.

    The error: rounding of the result, and f32 (f64) arithmetic over some dozens of samples.
    """
    types = types or uniform(arrays)
    stored = {name: rounded(arrays[name], types[name]) for name in types}
    value, dtype = stored["value"], types["value"]
    if "reference_points" in stored:
        locations = locations_of(stored["reference_points"], stored["sampling_offsets"])
        weights = softmax(stored["attention_logits"])
    else:
        locations = split(stored["sampling_locations"], points)
        weights = stored["attention_weights"]
    levels, starts = (arrays[name].tolist() for name in PLAIN[1:3])
    options = {"levels": levels, "starts": starts, **attributes}
    expected = oracle(value, locations, split(weights, points), **options)
    if made is None:
        given = {**attributes, "points": points} if points else attributes
        made = session(model(arrays, types, **given), provider)
    got = run(made, arrays)
    scale = abs(value).max() * abs(weights).reshape(*weights.shape[:3], -1).sum(-1).max()
    inner = ROUNDING["f64" if dtype == "f64" else "f32"]
    bound = 2 * ROUNDING[dtype] * abs(expected) + 256 * inner * scale
    assert got.shape == expected.shape
    worst = (abs(got.astype(np.float64) - expected) / bound).max()
    assert worst < 1, f"{worst} times the bound"


COMBINATIONS = [("f32", "f32", "f32")] + [
    (value, *others)
    for value in ("f16", "bf16", "f64")
    for others in itertools.product([value, "f32"], repeat=2)
]


@newer
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("form", ["plain", "points", "boxes"])
@pytest.mark.parametrize("types", COMBINATIONS, ids="-".join)
def test_all_types(types, form, provider):
    value_type, location_type, weight_type = types
    arrays = inputs() if form == "plain" else fused_inputs(2 if form == "points" else 4)
    chosen = {}
    for name in uniform(arrays):
        last = name in ("attention_weights", "attention_logits")
        chosen[name] = value_type if name == "value" else weight_type if last else location_type
    compare(arrays, chosen, provider)


@newer
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "attributes",
    [
        {"sampling": "nearest"},
        {"padding": "border"},
        {"align_corners": 1},
        {"sampling": "nearest", "padding": "border", "align_corners": 1},
    ],
    ids=str,
)
def test_options(attributes, provider):
    compare(inputs(), provider=provider, **attributes)


@newer
@pytest.mark.parametrize("provider", PROVIDERS)
def test_points_that_differ_per_level(provider):
    arrays, counts = inputs(points=3), [3, 1, 2]
    for name in PLAIN[3:]:
        parts = [part[:, :, :, :n] for part, n in zip(split(arrays[name]), counts)]
        arrays[name] = np.concatenate(parts, 3)
    compare(arrays, provider=provider, points=counts)


@newer
def test_an_empty_list_of_points_is_the_default():
    arrays = inputs()
    plain, empty = (model(arrays, uniform(arrays)) for _ in range(2))
    (node,) = [node for node in empty.graph.node if node.domain == "msda"]
    node.attribute.append(helper.make_attribute("points", [], attr_type=onnx.AttributeProto.INTS))
    assert np.array_equal(run(session(empty), arrays), run(session(plain), arrays))


@newer
def test_levels_with_gaps_and_reference_points_of_one_level():
    arrays = fused_inputs(4)
    arrays["reference_points"] = arrays["reference_points"][:, :, :1]
    gap = np.zeros((2, 5, 3, 8))
    pieces = np.split(arrays["value"], np.cumsum([h * w for h, w in LEVELS])[:2], 1)
    arrays["value"] = np.concatenate([gap, pieces[0], pieces[1], gap, pieces[2]], 1)
    arrays["level_start_index"] += [5, 5, 10]
    compare(arrays)


@newer
@pytest.mark.parametrize("names", ["named", "unnamed", "unknown rank"])
@pytest.mark.parametrize("fused", [False, True])
def test_symbolic_sizes(fused, names):
    """One session for several batches, queries and pyramids."""
    make = (lambda **sizes: fused_inputs(2, **sizes)) if fused else inputs
    arrays = make()
    shapes = {}
    for name, array in arrays.items():
        if name in PLAIN[1:3]:
            continue
        dynamic = ["batch", "positions" if name == "value" else "queries"]
        shapes[name] = [*dynamic, *array.shape[2:]]
        if names == "unnamed":
            shapes[name][:2] = [None, None]
        elif names == "unknown rank":
            shapes[name] = None
    made = session(model(arrays, uniform(arrays), shapes))
    shape = made.get_outputs()[0].shape
    if names == "named":
        assert shape == ["batch", "queries", 24]
    else:
        # Each unknown size has a name of its own.
        unknown = shape[:2] if names == "unnamed" else shape
        assert len(set(unknown)) == len(unknown) and all(isinstance(n, str) and n for n in unknown)
    for batch, queries, levels in [
        (1, 7, LEVELS),
        (4, 1, LEVELS),
        (3, 20, [(3, 5), (1, 1), (7, 2)]),
        (0, 7, LEVELS),
        (2, 0, LEVELS),
    ]:
        arrays = make(batch=batch, queries=queries, levels=levels)
        assert run(made, arrays).shape == (batch, queries, 24)
        if batch and queries and not fused:
            compare(arrays, made=made)


def change(name, new):
    def edit(arrays):
        arrays[name] = new(arrays[name])

    return edit


WRONG_AT_RUN = {
    "value of rank 3": (change("value", lambda a: a[0]), "value: got shape .*, expected 4 dimensions"),
    "other positions": (change("value", lambda a: a[:, 1:]), "value: got 72 positions, expected 73"),
    "other heads": (change("value", lambda a: a[:, :, 1:]), "value: got shape .* with heads 2, expected 3"),
    "other batch": (change("attention_weights", lambda a: a[1:]), "attention_weights: got shape"),
    "locations of rank 4": (
        change("sampling_locations", lambda a: a[..., 0, 0]),
        "sampling_locations: got shape .*, expected 6 dimensions",
    ),
    "locations without pairs": (
        change("sampling_locations", lambda a: a[..., :1]),
        "sampling_locations: got shape .*, expected a last dimension of 2",
    ),
    "one level less": (
        lambda arrays: [change(n, lambda a: a[1:])(arrays) for n in PLAIN[1:3]],
        "spatial_shapes: got 2 levels, expected 3",
    ),
    "starts of other length": (
        change("level_start_index", lambda a: a[1:]),
        r"level_start_index: got shape \[2\], expected \[3\]",
    ),
    "shapes of rank 1": (
        change("spatial_shapes", lambda a: a[0]),
        r"spatial_shapes: got shape \[2\], expected \(levels, 2\)",
    ),
    "negative size": (change("spatial_shapes", lambda a: -a), "spatial_shapes: got -6, expected numbers of at"),
    "a level past the end": (change("level_start_index", lambda a: a + 9), "positions: got 73, expected at least 82"),
    "overflow": (change("spatial_shapes", lambda a: a + 2**62), "got .*, expected"),
}  # fmt: skip


@newer
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("what", WRONG_AT_RUN)
def test_wrong_inputs(what, provider):
    edit, message = WRONG_AT_RUN[what]
    right, arrays = inputs(), inputs()
    edit(arrays)
    shapes = dict.fromkeys(arrays)
    made = session(model(arrays, uniform(arrays), shapes, name="the_node"), provider)
    with pytest.raises(Exception, match=f"the_node(.|\n)*{message}"):
        run(made, arrays)
    # The session still works.
    assert run(made, right).shape == (2, 7, 24)


WRONG_AT_LOAD = {
    "sampling": ({"sampling": "cubic"}, "sampling: got \"cubic\", expected \"bilinear\" or \"nearest\""),
    "padding": ({"padding": "reflection"}, "padding: got \"reflection\""),
    "align_corners": ({"align_corners": 2}, "align_corners: got 2, expected 0 or 1"),
    "type of sampling": ({"sampling": 1}, "sampling: got .*, expected \"bilinear\""),
    "type of padding": ({"padding": ["zeros"]}, "padding: got .*, expected \"zeros\""),
    "type of align_corners": ({"align_corners": "yes"}, "align_corners: got .*, expected 0 or 1"),
    "type of points": ({"points": 4}, "points: got .*, expected one number per level"),
    "points above 255": ({"points": [4, 256, 4]}, r"points: got \[4, 256, 4\], expected one number"),
    "negative points": ({"points": [4, -1, 4]}, r"points: got \[4, -1, 4\], expected"),
    "no points": ({"points": [0, 0, 0]}, r"points: got \[0, 0, 0\], expected"),
}  # fmt: skip


@newer
@pytest.mark.parametrize("what", WRONG_AT_LOAD)
def test_wrong_attributes(what):
    attributes, message = WRONG_AT_LOAD[what]
    arrays = inputs()
    with pytest.raises(Exception, match=f"the_node(.|\n)*{message}"):
        session(model(arrays, uniform(arrays), name="the_node", **attributes))


@newer
def test_points_for_another_number_of_levels():
    arrays = inputs()
    made = session(model(arrays, uniform(arrays), points=[4, 4]))
    with pytest.raises(Exception, match="points: got 2 numbers, expected 3, one per level"):
        run(made, arrays)


@newer
@pytest.mark.parametrize(
    "types",
    [
        {"value": "f16", "attention_weights": "f64"},
        {"value": "f64", "sampling_locations": "f16"},
        {"value": "i64"},
        {"spatial_shapes": "i32"},
    ],
    ids=str,
)
def test_wrong_types(types):
    arrays = inputs()
    with pytest.raises(Exception, match="MultiScaleDeformableAttention"):
        session(model(arrays, {**uniform(arrays), **types}))


def threads_of_this_process():
    """The identifiers of the threads; none where the system does not list them."""
    tasks = pathlib.Path("/proc/self/task")
    return {task.name for task in tasks.iterdir()} if tasks.is_dir() else set()


def check_threads():
    arrays = inputs(batch=2, queries=600, heads=4, channels=32)
    proto = model(arrays, uniform(arrays))
    results = []
    for threads in (1, 2, 5):
        made = session(proto, with_options=options(threads))
        before = threads_of_this_process()
        results.append(run(made, arrays))
        # Threads of the session before this one may still end; Linux lists them for a moment.
        started = threads_of_this_process() - before
        assert not started, "the operator started threads of its own"
    assert all((result == results[0]).all() for result in results)


@newer
def test_threads():
    """ONNX Runtime's threads compute, and no others. Their number does not change the bits."""
    # A new process has no threads of other tests.
    program = [sys.executable, "-c", "import test_ort; test_ort.check_threads()"]
    subprocess.run(program, cwd=pathlib.Path(__file__).parent, check=True)


@newer
def test_sessions_and_callers_at_the_same_time():
    """Two sessions, one of them with shared options, used by many threads."""
    cases = [inputs(queries=50 + n, seed=n) for n in range(8)]
    shared = options(2)
    proto = model(cases[0], uniform(cases[0]), dict.fromkeys(cases[0]))
    sessions = [
        session(proto, with_options=shared),
        session(proto, with_options=shared),
        session(proto),
    ]
    expected = [run(sessions[0], case) for case in cases]

    def work(i):
        case = i % len(cases)
        got = run(sessions[i % len(sessions)], cases[case])
        return (got == expected[case]).all()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
