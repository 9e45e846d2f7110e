"""`python -m msda_attn bench`: its workloads, its checks and its output."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="the command needs torch")

from msda_attn import _bench, _bench_models, _peers, _timing, _workloads  # noqa: E402
from msda_attn.__main__ import main  # noqa: E402
from msda_attn.integrations import transformers as patched  # noqa: E402
from support import gpu  # noqa: E402

FILES = pathlib.Path(__file__).parents[3] / "crates" / "msda-bench" / "workloads"
LITTLE = _workloads.Workload("a test", 2, 40, 2, 8, ((7, 9), (4, 5)), 3, "random")


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


@pytest.mark.parametrize("name", _workloads.WORKLOADS)
def test_workloads_are_those_of_the_repository(name):
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read TOML")
    if not FILES.is_dir():
        pytest.skip(f"{FILES} is not there: this is not a checkout of the repository")
    file = tomllib.loads((FILES / f"{name}.toml").read_text())
    workload = _workloads.WORKLOADS[name]
    assert workload.about == file["about"]
    sizes = (workload.batch, workload.heads, workload.channels)
    assert sizes == (file["batch"], file["heads"], file["channels"])
    assert (workload.queries or "positions") == file["queries"]
    assert [list(level) for level in workload.levels] == file["levels"]
    points = file["points"]
    assert workload.points == (points if isinstance(points, int) else tuple(points))
    locations = file["locations"]
    assert workload.references == locations.get("references", locations["kind"])


@pytest.mark.parametrize("references", ["random", "clustered", "grid", "pixels"])
def test_samples_lie_around_the_image(references):
    workload = dataclasses.replace(LITTLE, references=references, queries=0)
    call = _workloads.make(workload, torch.float32, "cpu")
    assert call.locations.shape == (2, 83, 2, 2, 3, 2)
    assert call.value.shape == (2, 83, 2, 8)
    torch.testing.assert_close(call.weights.sum((-1, -2)), torch.ones(2, 83, 2))
    assert -2 < call.locations.min() and call.locations.max() < 3
    inside = (call.locations > 0) & (call.locations < 1)
    assert inside.float().mean() > 0.4


@pytest.mark.parametrize("points", [3, (1, 4)], ids=str)
@pytest.mark.parametrize(
    "peer", [peer for peer in _peers.PEERS if "cpu" in peer.devices], ids=lambda peer: peer.name
)
def test_implementations_are_exact_in_float32(peer, points):
    try:
        run = peer.load("cpu")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    call = _workloads.make(dataclasses.replace(LITTLE, points=points), torch.float32, "cpu")
    refused = peer.refuses("cpu", "float32", call)
    if refused:
        pytest.skip(f"{peer.name} {refused}")
    checker = _bench.Checker(call)
    assert checker.forward(run, call) <= 1
    assert checker.training(run, _bench._differentiable(call)) <= 1


def wrong_weights(call):
    return _peers.grid_sample(dataclasses.replace(call, weights=call.weights * 1.001))


def wrong_place(call):
    return _peers.grid_sample(dataclasses.replace(call, locations=call.locations + 1e-3))


def wrong_image(call):
    return _peers.grid_sample(call).flip(0)


def not_a_number(call):
    output = _peers.grid_sample(call)
    return output.where(torch.arange(output.shape[-1]) > 0, float("nan"))


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.99


@pytest.mark.parametrize("run", [wrong_weights, wrong_place, wrong_image, not_a_number])
def test_the_check_notices_wrong_outputs(run):
    call = _workloads.make(LITTLE, torch.float32, "cpu")
    assert _bench.Checker(call).forward(run, call) > 1


@pytest.mark.parametrize("which", ["value", "locations", "weights"])
def test_the_check_notices_wrong_gradients(which):
    def run(call):
        wrong = {which: HalfGradient.apply(getattr(call, which))}
        return _peers.grid_sample(dataclasses.replace(call, **wrong))

    call = _workloads.make(LITTLE, torch.float32, "cpu")
    checker = _bench.Checker(call)
    assert checker.forward(run, call) <= 1
    assert checker.training(run, _bench._differentiable(call)) > 1


def test_a_wrong_result_of_ours_stops_the_run():
    operators = {_peers.OURS: wrong_place, _peers.BASE: _peers.grid_sample}
    with pytest.raises(_bench.Wrong, match="times the error allowed"):
        _bench.measure(LITTLE, "float32", "cpu", operators, 0.01)


@pytest.mark.parametrize("which", ["forward", "forward + backward"])
def test_an_operator_that_does_not_run_stops_the_run(which):
    def broken(call):
        if which == "forward" or torch.is_grad_enabled():
            raise NotImplementedError("NVRTC: got none")
        return _peers.PEERS[0].load("cpu")(call)

    message = re.escape(f"{which}: NotImplementedError: NVRTC: got none")
    with pytest.raises(_bench.Wrong, match=f"^{message}"):
        _bench.measure(LITTLE, "float32", "cpu", {_peers.OURS: broken}, 0.01)


def test_a_peer_that_does_not_run_is_listed_with_its_reason():
    def broken(call):
        raise NotImplementedError("no kernel")

    operators = {_peers.OURS: _peers.PEERS[0].load("cpu"), _peers.BASE: broken}
    rows = _bench.measure(LITTLE, "float32", "cpu", operators, 0.01)
    text = _bench.table("test", LITTLE, rows, "float32", "cpu")
    assert f"{_peers.BASE}: NotImplementedError: no kernel" in text


def test_a_wrong_result_of_a_peer_is_marked():
    ours = _peers.PEERS[0].load("cpu")
    operators = {_peers.OURS: ours, _peers.BASE: wrong_image}
    rows = _bench.measure(LITTLE, "float32", "cpu", operators, 0.01)
    text = _bench.table("test", LITTLE, rows, "float32", "cpu")
    lines = {line[:21].strip(): line for line in text.splitlines()}
    assert lines[_peers.OURS].endswith("exact")
    assert lines[_peers.BASE].endswith("x off")


def test_times_are_medians_with_shares():
    times = _timing.Times([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (times.median, times.share(10), times.share(90)) == (3.0, 1.0, 5.0)
    assert not times.enough(1.0) and times.enough(1e-6)


def test_the_command_prints_a_table_and_writes_a_record(tmp_path):
    file = tmp_path / "record.json"
    arguments = ["--workload", "small", "--device", "cpu", "--threads", "1", "--seconds", "0.02"]
    # The table has 80 columns on machines with a long name too.
    program = (
        "import sys; from msda_attn import _bench; "
        "_bench._processor = lambda: 'Genuine Processor With Eighty Columns ' * 2 + '@ 2.50GHz'; "
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
    for name in (_peers.OURS, _peers.BASE):
        for which in ("forward", "forward + backward"):
            row = found[name, which]
            assert row["error_over_allowed"] <= 1
            assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"] and row["runs"] >= 5
    names = [entry["name"] for entry in record["host"]]
    assert names[:3] == [_peers.OURS, "msda, list of sizes", _peers.BASE]
    assert names[-1] == "torch, value + value"
    for entry in (*record["host"][:3], record["host"][-1]):
        assert set(entry["host_us"]) == {"no grad", "with grad", "forward + backward"}
        assert all(0 < time < 1e5 for time in entry["host_us"].values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workload", "detr"), "--workload: got 'detr', expected all or one of detr-encoder"),
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
    assert [line.split()[0] for line in workloads.splitlines()] == list(_workloads.WORKLOADS)
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
    peer = dataclasses.replace(_peers.PEERS[1], name="some peer")
    broken = dataclasses.replace(_peers.PEERS[1], name="broken", dtypes=())
    monkeypatch.setattr(_peers, "PEERS", (*_peers.PEERS, peer, broken))
    step = _bench_models.Step("rt-detr", torch.float32, 1, False, "cpu")
    rows = {row.name: row for row in _bench_models.measure(step, 0.01)}
    assert rows["some peer"].walls and rows["broken"].missing == "has no float32"


def test_a_model_that_transformers_does_not_have_is_named(small_model, monkeypatch, capsys):
    maker = _bench_models._detector("SomeFuture", (8, 8))
    monkeypatch.setitem(_bench_models.MODELS, "rt-detr", maker)
    assert _bench.main(small_model) == 2
    assert "rt-detr: transformers" in capsys.readouterr().err


@gpu
def test_the_gpu_clock_leaves_out_host_time():
    import time

    tensor = torch.zeros(1024, device="cuda")

    def work():
        tensor.add_(1)
        time.sleep(0.002)
        tensor.add_(1)

    times = _timing.measure({"work": work}, _timing.CudaClock(), 0.01)["work"]
    assert times.median < 200
