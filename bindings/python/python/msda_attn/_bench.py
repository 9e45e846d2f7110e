"""`python -m msda_attn bench`: times the operator, or whole models, beside other implementations."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import math
import os
import pathlib
import platform
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from . import __version__, _native
from ._doctor import _import, _processor

if TYPE_CHECKING:
    from torch import Tensor

    from ._peers import Operator
    from ._workloads import Call, Workload

_WIDTH = 80
# More would end in a crash of OpenMP.
_MOST_THREADS = 4096
_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_FORWARD, _TRAINING = "forward", "forward + backward"
_CHECKED_QUERIES = 32
# Rows of the host times: level sizes in a list, not in tensors on the device; and what torch takes
# for an operator that only starts one kernel.
_WITH_LIST = "msda, list of sizes"
_CHEAPEST = "torch, value + value"
_HOST_COLUMNS = ("no grad", "with grad", _TRAINING)


@dataclasses.dataclass
class Row:
    """What was found about one implementation and workload."""

    name: str
    times: dict[str, Any] = dataclasses.field(default_factory=dict)  # pass -> Times
    # Pass -> largest error over the error allowed.
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    # Pass -> why there is no time.
    missing: dict[str, str] = dataclasses.field(default_factory=dict)

    def record(self, workload: str, dtype: str, device: str) -> list[dict[str, Any]]:
        common = {"workload": workload, "dtype": dtype, "device": device, "name": self.name}
        records = []
        for which in (_FORWARD, _TRAINING):
            record = {**common, "pass": which, "error_over_allowed": self.errors.get(which)}
            if which in self.times:
                times = self.times[which]
                record["runs"] = len(times.runs)
                record["median_us"] = times.median
                record["p10_us"], record["p90_us"] = times.share(10), times.share(90)
            else:
                record["missing"] = self.missing.get(which, "not run")
            records.append(record)
        return records


class Wrong(Exception):
    """The operator gave a wrong result, or none."""


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _train(run: Operator, call: Call, grad: Tensor) -> list[Tensor]:
    import torch

    output = run(call)
    return [output, *torch.autograd.grad(output, call.inputs(), grad)]


class Checker:
    """The exact results of some queries, by grid_sample in float64."""

    def __init__(self, call: Call) -> None:
        import torch

        from . import _peers

        count = call.locations.shape[1]
        step = max(1, count // _CHECKED_QUERIES)
        self.rows = torch.arange(0, count, step)[:_CHECKED_QUERIES].to(call.value.device)
        batch, _, heads, channels = call.value.shape
        generator = torch.Generator().manual_seed(7)
        some = torch.randn(batch, len(self.rows), heads * channels, generator=generator)
        some = some.to(call.value.device, call.value.dtype)
        # Only the checked queries have a gradient, so the gradient of value is exact too.
        self.grad = call.value.new_zeros((batch, count, heads * channels))
        self.grad[:, self.rows] = some
        exact = call.some(self.rows)
        for tensor in exact.inputs():
            tensor.requires_grad_()
        self.expected = _train(_peers.grid_sample, exact, some.double())
        # One rounding of the type, and coordinates that are rounded to float32.
        side = max(n for level in call.levels for n in level)
        self.relative = 4 * torch.finfo(call.value.dtype).eps + 4 * side * 2.0**-23

    def _error(self, got: Tensor, expected: Tensor) -> float:
        allowed = self.relative * expected.abs().max()
        ratio = (got.detach().double() - expected.detach()).abs().max() / allowed
        return float("inf") if ratio.isnan() else ratio.item()

    def forward(self, run: Operator, call: Call) -> float:
        """The largest error over the error allowed."""
        import torch

        with torch.no_grad():
            return self._error(run(call)[:, self.rows], self.expected[0])

    def training(self, run: Operator, call: Call) -> float:
        """The same over the output and all gradients."""
        output, value, locations, weights = _train(run, call, self.grad)
        parts = [output[:, self.rows], value, locations[:, self.rows], weights[:, self.rows]]
        return max(self._error(got, exact) for got, exact in zip(parts, self.expected))


def _differentiable(call: Call) -> Call:
    leaves = [tensor.clone().requires_grad_() for tensor in call.inputs()]
    return dataclasses.replace(call, value=leaves[0], locations=leaves[1], weights=leaves[2])


def _without_grad(run: Operator, call: Call) -> Tensor:
    import torch

    with torch.no_grad():
        return run(call)


def measure(
    workload: Workload, dtype: str, device: str, operators: dict[str, Operator], seconds: float
) -> list[Row]:
    """Checks and times the implementations on one workload."""
    import torch

    from . import _peers, _timing, _workloads

    call = _workloads.make(workload, getattr(torch, dtype), device)
    checker = Checker(call)
    leaves = _differentiable(call)
    grad = torch.ones_like(checker.grad)
    peers = {peer.name: peer for peer in _peers.PEERS}
    rows = {name: Row(name) for name in operators}
    works: dict[tuple[str, str], Any] = {}
    for name, run in operators.items():
        refused = peers[name].refuses(device, dtype, call)
        for which in (_FORWARD, _TRAINING):
            if refused:
                rows[name].missing[which] = refused
                continue
            try:
                if which == _FORWARD:
                    error = checker.forward(run, call)
                    work = lambda run=run: _without_grad(run, call)
                else:
                    error = checker.training(run, leaves)
                    work = lambda run=run: _train(run, leaves, grad)
            except Exception as problem:  # a peer may raise anything
                rows[name].missing[which] = _reason(problem)
                if name == _peers.OURS:
                    raise Wrong(f"{which}: {_reason(problem)}") from problem
                continue
            if name == _peers.OURS and error > 1:
                raise Wrong(f"{which}: the error is {error:.3g} times the error allowed")
            rows[name].errors[which] = error
            works[name, which] = work
    clock = _timing.CpuClock() if device == "cpu" else _timing.CudaClock()
    for (name, which), times in _timing.measure(works, clock, seconds).items():
        rows[name].times[which] = times
    return list(rows.values())


def measure_host(dtype: str, device: str, operators: dict[str, Operator]) -> list[dict[str, Any]]:
    """Microseconds of the host per eager call of each implementation with one sample."""
    import torch

    from . import _peers, _timing, _workloads

    call = _workloads.make(_workloads.TINY, getattr(torch, dtype), device)
    leaves = _differentiable(call)
    grad = torch.ones_like(_without_grad(operators[_peers.OURS], call))
    ones = torch.ones_like(call.value)
    peers = {peer.name: peer for peer in _peers.PEERS}
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    listed = {_peers.OURS: operators[_peers.OURS], _WITH_LIST: _peers.msda_with_list}
    works = {}
    for name, run in {**listed, **operators}.items():
        if name in peers and peers[name].refuses(device, dtype, call):
            continue
        works[name] = (
            lambda run=run: run(call),
            lambda run=run: run(leaves),
            lambda run=run: _train(run, leaves, grad),
        )
    works[_CHEAPEST] = (
        lambda: call.value + call.value,
        lambda: leaves.value + leaves.value,
        lambda: torch.autograd.grad(leaves.value + leaves.value, leaves.value, ones),
    )
    found = []
    for name, row in works.items():
        times: dict[str, Any] = {}
        for column, work in zip(_HOST_COLUMNS, row):
            try:
                with torch.set_grad_enabled(column != _HOST_COLUMNS[0]):
                    times[column] = _timing.host_time(work, synchronize)
            except Exception as problem:  # a peer may raise anything
                times[column] = _reason(problem)
        found.append({"name": name, "host_us": times})
    return found


def _number(x: float) -> str:
    """Three digits."""
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def _cells(row: Row, ours: Row, which: str, scale: float) -> tuple[str, str]:
    if which not in row.times:
        return "-", ""
    median = row.times[which].median
    ratio = ""
    if row is not ours and which in ours.times:
        ratio = f"{_number(median / ours.times[which].median)}x"
    return _number(median / scale), ratio


def table(name: str, workload: Workload, rows: list[Row], dtype: str, device: str) -> str:
    """The table of one workload."""
    scale, unit = (1000.0, "milliseconds") if device == "cpu" else (1.0, "microseconds")
    ours = rows[0]
    lines = [
        textwrap.fill(f"{name}: {workload.about}", _WIDTH),
        f"{workload.rows:,} queries, {dtype}, {unit} per call (medians)",
        f"{'implementation':<21}{'forward':>9}{'/ msda':>9}{'fwd + bwd':>12}{'/ msda':>9}  checked",
    ]
    for row in rows:
        if not row.errors:
            continue
        forward, slower = _cells(row, ours, _FORWARD, scale)
        training, training_slower = _cells(row, ours, _TRAINING, scale)
        worst = max(row.errors.values())
        checked = "exact" if worst <= 1 else f"{_number(worst)}x off"
        lines.append(
            f"{row.name:<21}{forward:>9}{slower:>9}{training:>12}{training_slower:>9}  {checked}"
        )
    lines += [
        textwrap.fill(f"{row.name}: {problem}", _WIDTH, subsequent_indent="  ")
        for row in rows
        for problem in dict.fromkeys(row.missing.values())
    ]
    return "\n".join(lines)


def _host_cell(found: float | str) -> str:
    return _number(found) if isinstance(found, float) else "-"


def host_table(found: list[dict[str, Any]]) -> str:
    """The table of host times."""
    lines = [
        "host time of an eager call with one sample, microseconds",
        f"{'implementation':<21}{'no grad':>12}{'with grad':>12}{'fwd + bwd':>12}",
    ]
    for entry in found:
        cells = [_host_cell(entry["host_us"][column]) for column in _HOST_COLUMNS]
        lines.append(f"{entry['name']:<21}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def _span(ratios: list[float]) -> str:
    low, high = _number(min(ratios)), _number(max(ratios))
    return low if low == high else f"{low} to {high}"


def _ratios(all_rows: list[list[Row]], which: str, name: str | None) -> list[float]:
    """Times of a peer, or of the fastest one besides grid_sample, over ours, per workload."""
    from . import _peers

    ratios = []
    for ours, *others in all_rows:
        times = [
            row.times[which].median
            for row in others
            if which in row.times and (row.name == name if name else row.name != _peers.BASE)
        ]
        if which in ours.times and times:
            ratios.append(min(times) / ours.times[which].median)
    return ratios


def summary(all_rows: list[list[Row]], host: list[dict[str, Any]], where: str) -> str:
    """Two sentences: how fast, and compared with what."""
    from . import _peers

    forward = _ratios(all_rows, _FORWARD, _peers.BASE)
    training = _ratios(all_rows, _TRAINING, _peers.BASE)
    number = len(all_rows)
    first = f"On {where}, over {number} workload{'s' if number > 1 else ''}, msda is "
    parts = [f"{_span(forward)} times as fast as torch's grid_sample forward"] if forward else []
    parts += [f"{_span(training)} times as fast forward and backward"] if training else []
    first += " and ".join(parts) if parts else "alone: nothing else could be timed"
    fastest = _ratios(all_rows, _FORWARD, None)
    eager = host[0]["host_us"]["no grad"] if host else None
    second = ""
    if fastest:
        second = f"Forward, it is {_span(fastest)} times as fast as the fastest other peer"
    if isinstance(eager, float):
        cost = f"n eager call without gradients costs {_number(eager)} us on the host"
        second += f", and a{cost}" if second else f"A{cost}"
    return textwrap.fill(f"{first}. {second or 'No other peer is installed'}.", _WIDTH)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m msda_attn bench",
        description="Checks the operator and other implementations that are installed, and times "
        "them. CPU: caches are warm. CUDA: L2 is flushed, and host time is measured apart. Exit "
        "code 0: measured. 1: a result of msda is wrong. 2: wrong arguments, or torch is missing.",
    )
    parser.add_argument("--list", action="store_true", help="list workloads and models, and stop")
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help="a workload, or all; can be repeated"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="a whole model of transformers with random weights in place of workloads, or all",
    )
    parser.add_argument("--train", action="store_true", help="with --model: a training step")
    parser.add_argument("--batch", type=int, default=1, help="with --model: images (default: 1)")
    parser.add_argument(
        "--compile",
        choices=["default", "reduce-overhead", "max-autotune"],
        help="with --model: the mode of torch.compile",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="cuda where torch has it")
    parser.add_argument("--dtype", choices=_DTYPES, default="f32", help="type of all tensors")
    parser.add_argument("--threads", type=int, metavar="N", help="threads on the CPU")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time per measurement (default: 1)"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all numbers there")
    return parser.parse_args(arguments)


def _unwritable(path: pathlib.Path) -> str:
    """Why a file cannot be written; empty if it can. No new file stays."""
    new = not os.path.exists(path)
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        return error.strerror or str(error)
    if new:
        # The path may be a link, which stays.
        os.remove(os.path.realpath(path))
    return ""


def _refusal(args: argparse.Namespace) -> str:
    """What is wrong with the command line, before anything is measured."""
    import torch

    from ._workloads import WORKLOADS

    for name in args.workload or []:
        if name != "all" and name not in WORKLOADS:
            return f"--workload: got {name!r}, expected all or one of {', '.join(WORKLOADS)}"
    if args.model:
        from ._bench_models import MODELS

        for name in args.model:
            if name != "all" and name not in MODELS:
                return f"--model: got {name!r}, expected all or one of {', '.join(MODELS)}"
        if args.workload:
            return "--workload: got it beside --model, expected one of the two"
        if args.batch < 1:
            return f"--batch: got {args.batch}, expected at least 1"
        if args.dtype == "f64":
            return "--dtype: got 'f64', expected f32, f16 or bf16 with --model"
        if importlib.util.find_spec("transformers") is None:
            return "--model: got it without transformers\nhint: pip install transformers"
    elif args.train or args.batch != 1 or args.compile:
        return "--train, --batch, --compile: got one without --model"
    if args.device == "cuda" and not torch.cuda.is_available():
        return "--device: got cuda, but torch finds no GPU\nhint: `python -m msda_attn doctor`"
    if args.threads is not None and not 1 <= args.threads <= _MOST_THREADS:
        return f"--threads: got {args.threads}, expected a number from 1 to {_MOST_THREADS}"
    if not (math.isfinite(args.seconds) and args.seconds > 0):
        return f"--seconds: got {args.seconds}, expected a finite number larger than 0"
    if args.json is not None and (why := _unwritable(args.json)):
        return f"--json: got {args.json}, which cannot be written: {why}"
    return ""


def _load(device: str) -> tuple[dict[str, Operator], list[str]]:
    """The implementations that can be imported, ours first, and the names of the others."""
    from . import _peers

    operators, absent = {}, []
    for peer in _peers.PEERS:
        if device not in peer.devices:
            continue
        try:
            operators[peer.name] = peer.load(device)
        except Exception as error:  # a broken installation raises anything
            if peer.name == _peers.OURS:
                raise
            missing = isinstance(error, ModuleNotFoundError)
            absent.append(peer.name if missing else f"{peer.name} ({_reason(error)})")
    return operators, absent


def _machine(device: str) -> str:
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{_processor()} ({_native.cpu_isa()}, {threads} thread{'s' if threads > 1 else ''})"


def _document(where: str, found: dict[str, Any]) -> str:
    """A record: the machine, the versions, and what was found."""
    import torch

    document = {
        "schema": 1,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": where,
        "system": platform.platform(),
        "msda": __version__,
        "torch": torch.__version__,
    }
    return json.dumps({**document, **found}, indent=1) + "\n"


def _models(args: argparse.Namespace, device: str) -> int:
    """Prints a table per model. A model that this transformers does not have is named."""
    import torch
    import transformers

    from . import _bench_models

    where = _machine(device)
    versions = f"msda {__version__}, torch {torch.__version__}, transformers "
    print(textwrap.fill(f"{versions}{transformers.__version__}, {where}", _WIDTH))
    dtype = getattr(torch, _DTYPES[args.dtype])
    names = list(_bench_models.MODELS) if "all" in args.model else dict.fromkeys(args.model)
    results = []
    for name in names:
        what = "training step" if args.train else "inference"
        title = f"{name}, {what}, batch {args.batch}, {args.dtype}"
        title += f", torch.compile {args.compile}" if args.compile else ""
        note = lambda text, name=name: print(f"{name}: {text}", file=sys.stderr, flush=True)
        note("making the model")
        try:
            step = _bench_models.Step(name, dtype, args.batch, args.train, device)
        except (ImportError, AttributeError) as problem:
            text = f"{name}: transformers {transformers.__version__} does not have it"
            print(f"\n{text} ({_reason(problem)})", file=sys.stderr, flush=True)
            continue
        note("checking the attention of msda")
        error = _bench_models.error(step)
        if error > 1:
            hint = "hint: `python -m msda_attn doctor` checks the installation"
            text = f"error: {title}: the error is {error:.3g} times the error allowed"
            print(f"{text}\n{hint}", file=sys.stderr)
            return 1
        rows = _bench_models.measure(step, args.seconds, args.compile, note)
        print("\n" + _bench_models.table(title, rows), flush=True)
        common = {"model": name, "train": args.train, "batch": args.batch, "dtype": args.dtype}
        common["compile"] = args.compile
        results += [{**common, **row.record(), "error_over_allowed": error} for row in rows]
        if args.json is not None:
            found = {"transformers": transformers.__version__, "models": results}
            args.json.write_text(_document(where, found), encoding="utf-8")
        del step, rows
        if device == "cuda":
            torch.cuda.empty_cache()
    return 0 if results else 2


def main(arguments: list[str]) -> int:
    """Prints the tables. The result is 1 if a result of msda is wrong, 2 if nothing can run."""
    args = _arguments(arguments)
    torch, missing = _import("torch")
    if missing:
        missing = f"torch: {missing}, expected for timing\nhint: pip install torch"
        print(f"error: {missing}", file=sys.stderr)
        return 2
    refused = _refusal(args)
    if refused:
        print(f"error: {refused}", file=sys.stderr)
        return 2
    from ._workloads import WORKLOADS

    if args.list:
        for name, workload in WORKLOADS.items():
            print(f"{name:<20}{textwrap.shorten(workload.about, _WIDTH - 20, placeholder=' ...')}")
        from ._bench_models import MODELS

        print(textwrap.fill(f"models: {', '.join(MODELS)}", _WIDTH))
        return 0
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = _DTYPES[args.dtype]
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.model:
        return _models(args, device)
    names = args.workload or ["detr-decoder", "rt-detr-decoder", "rf-detr-decoder"]
    names = list(WORKLOADS) if "all" in names else list(dict.fromkeys(names))
    operators, absent = _load(device)
    where = _machine(device)
    print(textwrap.fill(f"msda {__version__}, torch {torch.__version__}, {where}", _WIDTH))
    if absent:
        print(textwrap.fill(f"not installed: {', '.join(absent)}", _WIDTH))
    all_rows, records = [], []
    for name in names:
        try:
            rows = measure(WORKLOADS[name], dtype, device, operators, args.seconds)
        except Wrong as wrong:
            hint = "hint: `python -m msda_attn doctor` checks the installation"
            print(f"error: {name} in {dtype} on {device}: {wrong}\n{hint}", file=sys.stderr)
            return 1
        print("\n" + table(name, WORKLOADS[name], rows, dtype, device), flush=True)
        all_rows.append(rows)
        records += [record for row in rows for record in row.record(name, dtype, device)]
    host = measure_host(dtype, device, operators)
    print("\n" + host_table(host))
    if args.json is not None:
        found = {"not_installed": absent, "results": records, "host": host}
        args.json.write_text(_document(where, found), encoding="utf-8")
    print("\n" + summary(all_rows, host, f"{where} in {dtype}"))
    return 0
