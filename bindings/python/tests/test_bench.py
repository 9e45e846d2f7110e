"""`python -m msda_attn bench`: its workloads, its checks and its output."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="the command needs torch")

from msda_attn import (  # noqa: E402
    _bench,
    _bench_models,
    _bench_run,
    _measure,
    _native,
    _peers,
    _tables,
    _timing,
    _workloads,
)
from msda_attn.__main__ import main  # noqa: E402
from msda_attn._peers import OURS, TORCH, Operator  # noqa: E402
from msda_attn.integrations import transformers as patched  # noqa: E402
from support import gpu  # noqa: E402

FILES = pathlib.Path(__file__).parents[3] / "crates" / "msda-bench" / "workloads"
LITTLE = _workloads.Workload("a test", 2, 40, 2, 8, ((7, 9), (4, 5)), (3, 3))
PASSES = ("forward", "backward")


def bench(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "msda_attn", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture
def bench_here(capsys):
    """The command in this process, which has imported torch."""

    def run(*arguments: str) -> subprocess.CompletedProcess:
        try:
            code = main(["bench", *arguments])
        except SystemExit as ended:
            code = ended.code
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def little():
    return _workloads.make(LITTLE, torch.float32, "cpu")


@pytest.fixture(scope="module")
def checker(little):
    return _measure.Checker(little)


def test_workloads_are_the_files_of_the_repository():
    known = _workloads.built_in()
    assert known["d-fine-decoder"].points == (3, 6, 3) and known["detr-encoder"].rows == 22223
    assert all(w.batch * w.rows * w.heads * w.channels > 0 for w in known.values())
    if FILES.is_dir():
        assert set(known) == {path.stem for path in FILES.glob("*.toml")} - {"Cargo"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"references": "pixels", "queries": 0},
        {"references": "grid", "spread": 0.0},
        {"kind": "clustered"},
        {"kind": "uniform"},
        {"kind": "point"},
    ],
    ids=str,
)
def test_samples_lie_where_the_workload_says(options):
    workload = dataclasses.replace(LITTLE, **options)
    call = _workloads.make(workload, torch.float32, "cpu")
    rows = 83 if "queries" in options else 40
    assert call.locations.shape == (2, rows, 2, 2, 3, 2) and call.value.shape == (2, 83, 2, 8)
    torch.testing.assert_close(call.weights.sum((-1, -2)), torch.ones(2, rows, 2))
    assert -2 < call.locations.min() and call.locations.max() < 3
    inside = ((call.locations > 0) & (call.locations < 1)).float().mean()
    assert inside > (0.99 if options.get("kind") in ("uniform", "point") else 0.3)
    again = _workloads.make(workload, torch.float32, "cpu")
    assert torch.equal(call.locations, again.locations) and torch.equal(call.value, again.value)
    moved = dataclasses.replace(workload, kind="point", outside=0.25)
    locations = _workloads.make(moved, torch.float32, "cpu").locations
    share = ((locations - 0.5).abs() > 1.0).any(-1).float().mean()
    assert 0.15 < share < 0.35


@pytest.mark.parametrize("points", [(3, 3), (1, 4)], ids=str)
@pytest.mark.parametrize(
    "peer",
    [peer for peer in _peers.known().values() if "cpu" in peer.devices],
    ids=lambda peer: peer.name,
)
def test_implementations_are_exact_in_float32(peer, points):
    try:
        run = peer.load()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    call = _workloads.make(dataclasses.replace(LITTLE, points=points), torch.float32, "cpu")
    refused = peer.refuses("cpu", "float32", call)
    if refused:
        pytest.skip(f"{peer.name} {refused}")
    checker = _measure.Checker(call)
    assert checker.forward(run, call).ratio <= 1
    error = checker.backward(run, call.differentiable())
    assert error.ratio <= 1 and error.compared > call.value.numel()


def wrong_weights(call):
    return _peers.grid_sample(dataclasses.replace(call, weights=call.weights * 1.001))


def wrong_place(call):
    return _peers.grid_sample(dataclasses.replace(call, locations=call.locations + 1e-3))


def wrong_image(call):
    return _peers.grid_sample(call).flip(0)


def not_a_number(call):
    output = _peers.grid_sample(call)
    return output.where(torch.arange(output.shape[-1]) > 0, float("nan"))


def broken(call):
    raise NotImplementedError("no kernel")


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.99


@pytest.mark.parametrize("run", [wrong_weights, wrong_place, wrong_image, not_a_number])
def test_the_check_notices_wrong_outputs(run, little, checker):
    assert checker.forward(Operator(run), little).ratio > 1


@pytest.mark.parametrize("which", ["value", "locations", "weights"])
def test_the_check_notices_wrong_gradients(which, little, checker):
    def run(call):
        wrong = {which: HalfGradient.apply(getattr(call, which))}
        return _peers.grid_sample(dataclasses.replace(call, **wrong))

    assert checker.forward(Operator(run), little).ratio <= 1
    assert checker.backward(Operator(run), little.differentiable()).ratio > 1


def test_memory_that_is_not_written_has_nan(checker, little):
    """Most of the time: an allocator may take other memory."""
    unwritten = Operator(lambda call: torch.empty(checker.grad.shape))
    found = [checker.forward(unwritten, little).ratio for _ in range(40)]
    assert min(found) > 1 and found.count(float("inf")) >= 4


def measure(operators, passes=PASSES, dtype="float32"):
    loaded = {peer: run if isinstance(run, Operator) else Operator(run) for peer, run in operators}
    return _measure.measure(LITTLE, dtype, "cpu", loaded, 0.01, passes)


def test_a_wrong_result_of_ours_stops_the_run():
    with pytest.raises(_measure.Wrong, match="times the error allowed"):
        measure([(OURS, wrong_place), (TORCH, TORCH.load())])


@pytest.mark.parametrize("which", PASSES)
def test_an_operator_that_does_not_run_stops_the_run(which):
    def run(call):
        if which == "forward" or torch.is_grad_enabled():
            broken(call)
        return OURS.load()(call)

    message = re.escape(f"{which}: NotImplementedError: no kernel")
    with pytest.raises(_measure.Wrong, match=f"^{message}"):
        measure([(OURS, run)])


def test_peers_that_fail_are_listed_with_their_reasons():
    """Of inexact ones the error is marked. Refused passes are told apart from failures."""
    rough = dataclasses.replace(TORCH, name="rough", exact=False)
    wrong = dataclasses.replace(TORCH, name="wrong")
    half = dataclasses.replace(TORCH, name="half", backward=False)
    odd = dataclasses.replace(TORCH, name="odd", exact=False)
    results = measure(
        [
            (OURS, OURS.load()),
            (TORCH, broken),
            (rough, wrong_weights),
            (wrong, wrong_image),
            (half, TORCH.load()),
            (odd, not_a_number),
        ]
    )
    found = {(result.name, result.which): result for result in results}
    assert found["half", "backward"].refused and not found["half", "forward"].missing
    assert found["wrong", "forward"].missing.startswith("wrong: the error is ")
    assert found["odd", "forward"].missing == "wrong: some numbers are not finite"
    check = found["rough", "forward"].record()["check"]
    assert check["max_error"] > check["tolerance"] > 0 and check["inexact"]
    text = _tables.table("test", LITTLE, results, "float32", "cpu")
    assert "torch: NotImplementedError: no kernel\n" in text
    assert "half: has no backward pass" in text and "\nwrong: wrong: the error" in text
    lines = {line[:23].strip(): line for line in text.splitlines()}
    assert lines["msda"].endswith("exact") and lines["rough"].endswith("x off")


def test_a_backward_pass_is_timed_without_the_forward_pass():
    def slow_forward(call):
        time.sleep(0.05)
        return _peers.grid_sample(call)

    forward, backward = measure([(dataclasses.replace(TORCH, name="slow"), slow_forward)])
    assert forward.work.median > 0.05e6 > backward.work.median


def test_times_are_medians_with_shares_and_end():
    work = _timing.Work(lambda given: None, runs=[5.0, 1.0, 3.0, 2.0, 4.0], spent=0.5)
    assert (work.median, work.share(10), work.share(90)) == (3.0, 1.0, 5.0)
    assert work.enough(0.5) and not work.enough(0.6)
    slow = dataclasses.replace(work, runs=[2e6], spent=2.0)
    assert not slow.enough(1.0) and slow.enough(0.4)
    assert dataclasses.replace(work, runs=[1.0] * 300).enough(60.0)


def test_one_work_that_fails_leaves_the_others():
    works = [_timing.Work(lambda given: 1 / 0), _timing.Work(lambda given: given, lambda: 1)]
    _timing.measure(works, _timing.CpuClock(), 0.001)
    assert works[0].failed == "ZeroDivisionError: division by zero" and not works[0].runs
    assert len(works[1].runs) >= 3 and not works[1].failed


MODULE = """
import torch

def attention(value, locations, weights, levels, points):
    from msda_attn._torch.grid import sample
    return sample(value, levels, locations, weights, points)
"""
ATTENTION = "attention(value, locations, {}, levels, points)"
MINE = """
[peer.mine]
about = "by a module of the user"
import = "attention_of_mine"
call = "attention(value, locations, weights, levels, points)"
device = "cpu"
dtypes = ["f32"]
"""


def entry(name: str, call: str = ATTENTION.format("weights"), **more: str) -> str:
    text = MINE.replace("peer.mine", f"peer.{name}").replace(ATTENTION.format("weights"), call)
    return text + "".join(f"{key} = {value}\n" for key, value in more.items())


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Describes peers in the file of `MSDA_ENGINES`, by a module that can be imported."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "attention_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), *sys.path]))
    file = tmp_path / "mine.toml"
    monkeypatch.setenv("MSDA_ENGINES", str(file))

    def describe(text: str) -> dict[str, _peers.Peer]:
        file.write_text(text)
        return _peers.known()

    return describe


def test_peers_are_those_of_the_file_and_of_the_user(mine):
    usual = set(mine(""))
    assert {"original", "mmcv", "hub", "torch-ms-deform-attn", "triton", "dcnv4"} < usual
    assert {"triton-query-block", "dcnv4-safe", "transformers", "msda", "torch"} < usual
    known = mine(MINE + entry("triton"))
    assert set(known) == usual | {"mine"} and known["triton"].devices == ("cpu",)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("about", "abuot", "peer.mine: got 'abuot', expected the keys about, "),
        ('"cpu"', '"tpu"', "peer.mine: device: got 'tpu', expected cpu, cuda"),
        ('"f32"', '"f33"', "peer.mine: dtypes: got ['f33'], expected f64, f32"),
        ('["f32"]', "[]", "peer.mine: dtypes: got [], expected f64"),
        ('["f32"]', '"f32"', "peer.mine: dtypes: got 'f32', expected list"),
        ("call = ", "call ", "line 5"),
        ("call = ", "finish = ", "peer.mine: call: got none"),
        ("[peer.mine]", "[peers.mine]", "got 'peers', expected [peer.NAME]"),
        ("peer.mine", 'peer."a b"', "peer.a b: got this name"),
        ("peer.mine", "peer.torch", "peer.torch: got this name"),
    ],
)
def test_a_malformed_file_says_where(mine, bench_here, old, new, says):
    with pytest.raises(ValueError, match="mine.toml: .*" + re.escape(says)):
        mine(MINE.replace(old, new))
    assert says in bench_here("--workload", "small").stderr


def test_the_two_triton_packages_are_told_apart():
    text = pathlib.Path(_peers.__file__).with_name("engines.toml").read_text()
    imports = re.findall(r'^import = "(msda_triton.*)"', text, re.MULTILINE)
    assert imports == ["msda_triton.frontend", "msda_triton.ops"]


def test_a_peer_with_a_softmax_completes_its_gradient(mine, little, checker):
    """Without `finish` the gradient of the weights is wrong."""
    logits = 'prepare = "logits = weights.log()"\nbackward = true\n'
    call = ATTENTION.format("logits.flatten(-2).softmax(-1).view_as(logits)")
    finish = "grad_weights = grad_weights + (output * grad).sum(-1)[..., None, None]"
    known = mine(entry("good", call, finish=f'"{finish}"') + logits + entry("bad", call) + logits)
    errors = [
        getattr(checker, which)(known[name].load(), getattr(little, copy)())
        for name in ("good", "bad")
        for which, copy in (("forward", "differentiable"), ("backward", "differentiable"))
    ]
    good_forward, good, bad_forward, bad = (error.ratio for error in errors)
    assert max(good_forward, good, bad_forward) < 3 and bad > 100


def test_the_safe_entry_of_dcnv4_leaves_the_other_one_as_it_is(monkeypatch, tmp_path):
    """Both are loaded in one process, from a stand-in of the package."""
    package = tmp_path / "DCNv4" / "functions"
    package.mkdir(parents=True)
    (package / "flash_deform_attn_func.py").write_text(
        "def findspec(batch, queries, heads, channels):\n    return batch * queries\n"
        "findspec_bwd = findspec\n"
        "class FlashDeformAttnFunction:\n    @staticmethod\n"
        "    def apply(value, *_):\n"
        "        spec = findspec(2, 40, 2, 8)\n"
        "        return value.new_full((2, 40, 16), spec)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    call = _workloads.make(LITTLE, torch.float32, "cpu")
    known = _peers.known()
    safe, published = (known[name].load() for name in ("dcnv4-safe", "dcnv4"))
    assert (safe(call)[0, 0, 0], published(call)[0, 0, 0]) == (40, 80)


def test_what_a_peer_does_not_take_is_refused(little):
    peer = dataclasses.replace(TORCH, devices=("cpu",), dtypes=("float32",), backward=False)
    peer = dataclasses.replace(peer, points_may_differ=False)
    differ = dataclasses.replace(little, points=(2, 4))
    assert peer.refuses("cpu", "float32", little) == ""
    assert peer.refuses("cuda", "float32", little) == "does not run on cuda"
    assert peer.refuses("cpu", "float16", little) == "has no float16"
    assert peer.refuses("cpu", "float32", differ).startswith("needs the same number of points")
    assert peer.refuses("cpu", "float32", little, "backward") == "has no backward pass"
    assert [TORCH.is_exact(dtype) for dtype in ("float32", "float16")] == [True, False]


def request(tmp_path, *runs, **more):
    """What the command `msda bench` asks for; the record, and how the process has ended."""
    asked = {
        "workloads": dict(_native.WORKLOADS),
        "passes": ["forward"],
        "threads": 1,
        "seconds": 0.001,
    }
    asked |= {"without": [], "runs": [{"workload": "small", "device": "cpu"} | r for r in runs]}
    file, record = tmp_path / "request.json", tmp_path / "record.json"
    file.write_text(json.dumps(asked | more))
    done = bench("--request", str(file), "--json", str(record))
    return done, json.loads(record.read_text())


def test_a_request_is_measured_in_one_process(tmp_path, mine):
    mine(
        MINE
        + entry("crooked", "torch.zeros(3)")
        + entry("dies", "_exit(3)").replace("attention_of_mine", "os")
        + entry("absent").replace("attention_of_mine", "no_such_module_anywhere")
    )
    names = ["mine", "crooked", "absent"]
    runs = [{"dtype": "f32", "engines": names}, {"dtype": "f16", "engines": ["mine"]}]
    done, record = request(tmp_path, *runs)
    assert done.returncode == 0, done.stderr
    assert record["running"] is None and set(record["absent"]) == {"absent"}
    found = {(row["run"], row["name"]): row for row in record["results"]}
    assert set(found) == {(0, "msda"), (0, "mine"), (0, "crooked"), (1, "msda"), (1, "mine")}
    assert found[0, "mine"]["time"]["median"] > 0 and found[0, "mine"]["host_us"] is None
    assert "the call returned (3,)" in found[0, "crooked"]["missing"]
    assert not found[0, "crooked"]["refused"] and found[1, "mine"]["refused"]
    assert "bench: small forward f32 mine on cpu: " in done.stderr
    # A process that ends says in whom; the command starts another one without it.
    runs = [{"dtype": "f32", "engines": ["mine", "dies"]}]
    done, record = request(tmp_path, *runs)
    assert done.returncode == 3 and record["running"] == {"run": 0, "engine": "dies"}
    done, record = request(tmp_path, *runs, without=["dies"])
    assert done.returncode == 0 and [row["name"] for row in record["results"]] == ["msda", "mine"]


def test_a_request_without_runs_imports_all_and_names_are_checked(tmp_path, mine):
    mine(MINE)
    done, record = request(tmp_path)
    assert done.returncode == 0 and not record.get("results")
    assert "mine" in record["known"] and "mine" not in record["absent"]
    done, record = request(tmp_path, {"dtype": "f32", "engines": ["nobody"]})
    assert done.returncode == 2 and record["error"].startswith("engine: got nobody")


@pytest.mark.parametrize("live", [False, True])
def test_for_the_command_msda_a_run_without_our_result_is_noted(tmp_path, live):
    """A wrong result ends it."""
    run = {"workload": "x", "dtype": "f32", "device": "cpu", "engines": None}

    def found(operator):
        record = _bench_run.Record(tmp_path / "record.json", "here", live)
        operators, limits = {OURS: Operator(operator)}, (0.01, PASSES)
        measured = _bench_run._measured([run], {"x": LITTLE}, operators, record, limits)
        return [row.record() for _, results in measured for row in results]

    if live:
        (row,) = found(broken)
        assert row["missing"] == "NotImplementedError: no kernel" and not row["refused"]
    for operator in (wrong_place, *([] if live else [broken])):
        with pytest.raises(_measure.Wrong):
            found(operator)


def test_the_command_prints_a_table_and_writes_a_record(tmp_path):
    file = tmp_path / "record.json"
    arguments = ["--workload", "small", "--device", "cpu", "--threads", "1", "--seconds", "0.02"]
    # The table has 80 columns on machines with a long name too.
    program = (
        "import sys; from msda_attn import _bench, _bench_run; "
        "_bench_run._processor = lambda: 'Genuine Processor With Eighty Columns ' * 2 + '@ 2.50GHz'; "
        f"sys.exit(_bench.main({[*arguments, '--json', str(file)]!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(done.stdout.split())
    assert "times as fast as torch's grid_sample forward and" in text
    assert text.endswith("us on the host.")
    record = json.loads(file.read_text())
    found = {(r["name"], r["pass"]): r for r in record["results"]}
    for name in (OURS.name, TORCH.name):
        for which in PASSES:
            row = found[name, which]
            assert row["check"]["max_error"] <= row["check"]["tolerance"]
            times = [row["time"][share] for share in ("min", "p10", "median", "p90")]
            assert 0 < times[0] and times == sorted(times)
    names = [entry["name"] for entry in record["host"]]
    assert names[:3] == [OURS.name, "msda, list of sizes", TORCH.name]
    assert names[-1] == "torch, value + value"
    for entry in (*record["host"][:3], record["host"][-1]):
        assert set(entry["host_us"]) == {"no grad", "with grad", "forward + backward"}
        assert all(0 < time < 1e5 for time in entry["host_us"].values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--workload", "detr"),
            "--workload: got 'detr', expected all or one of small, seed-encoder",
        ),
        (("--json", "/no/such/folder/x.json"), "--json: got /no/such/folder/x.json, which cannot"),
        (("--json", str(pathlib.Path(__file__).parent)), "which cannot be written: Is a directory"),
        (("--threads", "0"), "--threads: got 0, expected a number from 1 to 4096"),
        (("--threads", "99999"), "--threads: got 99999, expected a number from 1 to 4096"),
        (("--seconds", "nan"), "--seconds: got nan, expected a finite number larger than 0"),
        (("--seconds", "inf"), "--seconds: got inf, expected a finite number larger than 0"),
        (("--seconds", "0"), "--seconds: got 0.0, expected a finite number larger than 0"),
        (
            ("--model", "detr"),
            "--model: got 'detr', expected all or one of deformable-detr, rt-detr",
        ),
        (("--model", "rt-detr", "--batch", "0"), "--batch: got 0, expected at least 1"),
        (("--model", "rt-detr", "--dtype", "f64"), "--dtype: got 'f64', expected f32, f16 or bf16"),
        (("--model", "rt-detr", "--workload", "small"), "--workload: got it beside --model"),
        (("--train",), "--train, --batch, --compile: got one without --model"),
        (("--request", "x.json"), "--request: got it without --json, expected both"),
        (("--seconds", "-1"), "--seconds: got -1.0, expected a finite number larger than 0"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_refused(bench_here, arguments, says):
    done = bench_here(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr


def test_the_check_of_the_file_leaves_nothing_behind(tmp_path):
    old, new, link = (tmp_path / name for name in ("old.json", "new.json", "link.json"))
    old.write_text("{}")
    link.symlink_to(new)
    assert [_bench._unwritable(path) for path in (old, new, link)] == ["", "", ""]
    assert old.read_text() == "{}" and link.is_symlink() and not new.exists()


def test_a_missing_torch_is_not_a_wrong_result():
    program = (
        "import sys; sys.modules['torch'] = None; "
        "from msda_attn.__main__ import main; sys.exit(main(['bench']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "error: torch: not installed, expected for timing\nhint: pip install torch\n"
    )


def test_the_help_lists_the_exit_codes(bench_here):
    text = " ".join(bench_here("--help").stdout.split())
    assert "0: measured. 1: a result of msda is wrong. 2: wrong arguments, or torch" in text


def test_a_missing_gpu_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = bench("--device", "cuda")
    assert done.returncode == 2
    assert "torch finds no GPU\nhint: `python -m msda_attn doctor`" in done.stderr


def test_workloads_are_listed():
    done = bench("--list")
    assert done.returncode == 0
    workloads, models = done.stdout.split("models: ")
    assert [line.split()[0] for line in workloads.splitlines()] == list(_workloads.built_in())
    assert " ".join(models.split()) == ", ".join(_bench_models.MODELS)
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.fixture
def small_model(monkeypatch):
    """A small model of transformers under the name of a large one."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    import transformers_models as models

    def make(batch):
        case = models.make("rt_detr")
        return case.model, {name: tensor[:batch] for name, tensor in case.inputs.items()}

    monkeypatch.setitem(_bench_models.MODELS, "rt-detr", make)
    # One thread: the model is small, and other tests run at the same time.
    threads = torch.get_num_threads()
    options = ["--device", "cpu", "--threads", "1", "--seconds", "0.01", "--batch", "2"]
    yield ["--model", "rt-detr", *options]
    torch.set_num_threads(threads)


@pytest.mark.parametrize("train", [False, True])
def test_a_model_is_timed_with_its_own_attention_and_msda(small_model, train, tmp_path, capsys):
    file = tmp_path / "record.json"
    options = ["--train", "--dtype", "bf16"] if train else []
    assert _bench.main([*small_model, *options, "--json", str(file)]) == 0
    text, progress = capsys.readouterr()
    rounds = re.findall(r"^rt-detr: (own|msda): round (\d) of 3$", progress, re.MULTILINE)
    assert rounds == [(name, number) for number in "123" for name in ("own", "msda")]
    assert f"rt-detr, {'training step' if train else 'inference'}, batch 2" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "of its step is not attention." in text
    own, ours, *peers = json.loads(file.read_text())["models"]
    assert (own["name"], ours["name"]) == ("own", "msda")
    for row in (own, ours):
        assert row["train"] is train and row["error_over_allowed"] <= 1
        assert row["runs"] >= 6 and row["wall_ms"] > 0 and row["attention_ms"] > 0
    assert all("missing" in row or row["wall_ms"] > 0 for row in peers)


@pytest.fixture
def eager_compiler(monkeypatch):
    """Compiled graphs run as they are: the compiler takes minutes. The names of their nodes."""
    found = set()

    class Eager:
        def __init__(self, *_):
            pass

        def __call__(self, graph, inputs):
            def run(*args):
                found.update(str(node.target) for node in graph.graph.nodes)
                return graph.forward(*args)

            return run

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Eager)
    torch.compiler.reset()
    return found


def test_a_compiled_model_is_timed_in_rounds(small_model, eager_compiler, tmp_path, capsys):
    file = tmp_path / "record.json"
    assert _bench.main([*small_model, "--compile", "default", "--json", str(file)]) == 0
    text, progress = capsys.readouterr()
    assert progress.count(": compiling\n") == 2
    rounds = re.findall(r"^rt-detr: (own|msda): round (\d) of 3$", progress, re.MULTILINE)
    assert rounds == [(name, number) for number in "123" for name in ("own", "msda")]
    # The time of attention inside of a compiled step is not known.
    assert [line.split()[-1] for line in text.splitlines() if re.match("own|msda  ", line)] == [
        "-"
    ] * 2
    assert "is not attention" not in text
    own, ours, *_ = json.loads(file.read_text())["models"]
    for row in (own, ours):
        assert row["runs"] >= 6 and row["wall_ms"] > 0 and row["attention_ms"] is None


def test_compiled_models_share_no_code(eager_compiler):
    """In each round each of them calls the attention that it was compiled with."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    import transformers_models as models

    # No guard of this model notices the patch.
    case = models.make("deformable_detr")
    own, ours = (_bench_models.compiled(case.model, "default") for _ in range(2))

    def calls_msda(model):
        eager_compiler.clear()
        with torch.no_grad():
            model(**case.inputs)
        assert eager_compiler
        return any("msda" in name for name in eager_compiler)

    for _ in range(3):
        assert not calls_msda(own)
        with patched.patch_transformers():
            assert calls_msda(ours)


def test_a_wrong_result_in_a_model_stops_the_run(small_model, monkeypatch, capsys):
    monkeypatch.setitem(_bench_models._ALLOWED, torch.float32, 1e-12)
    assert _bench.main(small_model) == 1
    assert "times the error allowed\nhint: `python -m msda_attn doctor`" in capsys.readouterr().err


def test_a_peer_takes_the_place_of_the_operator_in_a_model(small_model, monkeypatch):
    """The plain code of this package stands for a peer."""
    peer = dataclasses.replace(TORCH, name="some peer")
    broken = dataclasses.replace(TORCH, name="broken", dtypes=())
    rough = dataclasses.replace(TORCH, name="rough", exact=False)
    monkeypatch.setattr(_peers, "known", lambda: {p.name: p for p in (OURS, peer, broken, rough)})
    step = _bench_models.Step("rt-detr", torch.float32, 1, False, "cpu")
    rows = {row.name: row for row in _bench_models.measure(step, 0.01)}
    assert rows["some peer"].walls and rows["broken"].missing == "has no float32"
    assert "rough" not in rows


def test_a_model_that_transformers_does_not_have_is_named(small_model, monkeypatch, capsys):
    maker = _bench_models._detector("SomeFuture", (8, 8))
    monkeypatch.setitem(_bench_models.MODELS, "rt-detr", maker)
    assert _bench.main(small_model) == 2
    assert "rt-detr: transformers" in capsys.readouterr().err


@gpu
@pytest.mark.parametrize("where", ["run", "prepare"])
def test_the_gpu_clock_leaves_out_host_time(where):
    tensor = torch.zeros(1024, device="cuda")

    def slow(given=None):
        tensor.add_(1)
        time.sleep(0.002)
        tensor.add_(1)

    fast = lambda given=None: tensor.add_(1)
    work = _timing.Work(slow, fast) if where == "run" else _timing.Work(fast, slow)
    _timing.measure([work], _timing.CudaClock(), 0.01)
    assert work.median < 200 and not work.failed
    assert (statistics.median(work.host) > 2000) is (where == "run")


@gpu
def test_a_call_that_waits_for_the_gpu_has_no_time():
    work = _timing.Work(lambda given: torch.cuda.synchronize())
    _timing.measure([work], _timing.CudaClock(), 0.01)
    assert "the call waits for the GPU" in work.failed
