"""What `python -m msda_attn bench` measures: workloads, models, or what the command `msda` asks."""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import __version__, _measure, _native, _peers
from ._doctor import _processor
from ._measure import Result
from ._peers import DTYPES, OURS, Operator, Peer
from ._tables import WIDTH, host_table, number, summary, table
from ._timing import reason
from ._workloads import Workload, built_in

_HINT = "hint: `python -m msda_attn doctor` checks the installation"
_USUAL = ("detr-decoder", "rt-detr-decoder", "rf-detr-decoder")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Record:
    """What `--json` writes: the machine, the versions, and what was found so far."""

    def __init__(self, path: pathlib.Path | None, where: str, live: bool, **first: Any) -> None:
        self.path, self.live = path, live
        self.document: dict[str, Any] = {
            "schema": 2,
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": sys.argv,
            "machine": where,
            "system": platform.platform(),
            "msda": __version__,
            "torch": torch.__version__,
            "results": [],
        }
        self.save(**first)

    def save(self, **more: Any) -> None:
        """Adds to the record. One that is live is in its file at each time."""
        self.document |= more
        if self.live:
            self.write()

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")


def _load(peers: dict[str, Peer], devices: set[str], record: Record) -> dict[Peer, Operator]:
    """The implementations that can be imported, ours first. The record says why others cannot."""
    operators, absent = {}, {}
    for peer in peers.values():
        if devices.isdisjoint(peer.devices):
            continue
        record.save(running={"engine": peer.name})
        try:
            operators[peer] = peer.load()
        except Exception as error:  # a broken installation raises anything
            if peer is OURS:
                raise
            absent[peer.name] = reason(error)
    record.save(running=None, absent=absent)
    return operators


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{_processor()} ({_native.cpu_isa()}, {threads} thread{'s' if threads > 1 else ''})"


def _measured(
    runs: list[dict[str, Any]],
    workloads: dict[str, Workload],
    operators: dict[Peer, Operator],
    record: Record,
    limits: tuple[float, Sequence[str]],
) -> Iterator[tuple[dict[str, Any], list[Result]]]:
    """Measures one run after the other. At each time the record says what runs, so that its reader
    knows what has ended this process."""
    for at, run in enumerate(runs):
        name, dtype, device, engines = (run[k] for k in ("workload", "dtype", "device", "engines"))
        chosen = {
            peer: operator
            for peer, operator in operators.items()
            if device in peer.devices and (peer is OURS or not engines or peer.name in engines)
        }
        alone = set(chosen) <= {OURS} and engines and OURS.name not in engines
        if alone or device == "cuda" and not torch.cuda.is_available():
            continue

        def note(text: str, at: int = at, where: str = f"{name} {dtype}") -> None:
            record.save(running={"run": at, "engine": text.partition(" ")[0] or None})
            _say(f"{where}: {text or 'timing'}")

        record.save(running={"run": at})
        try:
            long, workload = DTYPES[dtype], workloads[name]
            results = _measure.measure(workload, long, device, chosen, *limits, note)
        except _measure.Wrong as wrong:
            # Without a compiler of kernels there is no result, but the next run may have one.
            if not record.live or wrong.result.error:
                record.save(running=None, error=f"{name} in {long} on {device}: {wrong}")
                raise
            results = [wrong.result]
        found = record.document["results"] + [{"run": at, **result.record()} for result in results]
        record.save(results=found, running=None)
        yield run, results


def answer(path: pathlib.Path, to: pathlib.Path) -> int:
    """Measures what the command `msda bench` asks for."""
    request = json.loads(path.read_text("utf-8"))
    torch.set_num_threads(request["threads"])
    there = {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}
    known, runs = _peers.known(), request["runs"]
    record = Record(to, _machine("cpu"), True, known=list(known), cuda="cuda" in there)
    # Without a list all are asked for, and without a run all are imported.
    lists = [run["engines"] or list(known) for run in runs] or [list(known)]
    asked = {OURS.name}.union(*lists)
    if unknown := sorted(asked - set(known)):
        record.save(error=f"engine: got {unknown[0]}, which is not known")
        return 2
    asked -= set(request["without"])
    peers = {name: peer for name, peer in known.items() if name in asked}
    operators = _load(peers, {run["device"] for run in runs} & there if runs else there, record)
    workloads = {name: Workload.parse(text) for name, text in request["workloads"].items()}
    limits = (request["seconds"], request["passes"])
    try:
        for run, results in _measured(runs, workloads, operators, record, limits):
            for result in results:
                if not result.missing:
                    what = f"{run['workload']} {result.which} {run['dtype']} {result.name}"
                    time = f"{number(result.work.median / 1e3)} ms"
                    _say(f"bench: {what} on {run['device']}: {time}")
    except _measure.Wrong:
        return 1
    return 0


def workloads(args: argparse.Namespace, device: str) -> int:
    """Prints a table per workload, the host times and a summary."""
    known = built_in()
    names = args.workload or _USUAL
    names = list(known) if "all" in names else list(dict.fromkeys(names))
    where, dtype = _machine(device), DTYPES[args.dtype]
    common = {"dtype": args.dtype, "device": device, "engines": None}
    runs = [{"workload": name, **common} for name in names]
    record = Record(args.json, where, False, runs=runs)
    operators = _load(_peers.known(), {device}, record)
    print(textwrap.fill(f"msda {__version__}, torch {torch.__version__}, {where}", WIDTH))
    if absent := record.document["absent"]:
        no_module = "ModuleNotFoundError"
        short = [n if why.startswith(no_module) else f"{n} ({why})" for n, why in absent.items()]
        print(textwrap.fill(f"not installed: {', '.join(short)}", WIDTH))
    all_results = []
    try:
        limits = (args.seconds, _measure.PASSES)
        for run, results in _measured(runs, known, operators, record, limits):
            name = run["workload"]
            print("\n" + table(name, known[name], results, dtype, device), flush=True)
            all_results.append(results)
    except _measure.Wrong:
        _say(f"error: {record.document['error']}\n{_HINT}")
        return 1
    host = _measure.measure_host(dtype, device, operators)
    print("\n" + host_table(host))
    record.save(host=host)
    record.write()
    print("\n" + summary(all_results, host, f"{where} in {dtype}"))
    return 0


def models(args: argparse.Namespace, device: str) -> int:
    """Prints a table per model. A model that this transformers does not have is named."""
    import transformers

    from . import _bench_models

    where = _machine(device)
    record = Record(args.json, where, False)
    versions = f"msda {__version__}, torch {torch.__version__}, transformers "
    print(textwrap.fill(f"{versions}{transformers.__version__}, {where}", WIDTH))
    dtype = getattr(torch, DTYPES[args.dtype])
    names = list(_bench_models.MODELS) if "all" in args.model else dict.fromkeys(args.model)
    results = []
    for name in names:
        what = "training step" if args.train else "inference"
        title = f"{name}, {what}, batch {args.batch}, {args.dtype}"
        title += f", torch.compile {args.compile}" if args.compile else ""
        note = lambda text, name=name: _say(f"{name}: {text}")
        note("making the model")
        try:
            step = _bench_models.Step(name, dtype, args.batch, args.train, device)
        except (ImportError, AttributeError) as problem:
            text = f"{name}: transformers {transformers.__version__} does not have it"
            _say(f"\n{text} ({reason(problem)})")
            continue
        note("checking the attention of msda")
        error = _bench_models.error(step)
        if error > 1:
            times = f"{error:.3g} times the error allowed"
            _say(f"error: {title}: the error is {times}\n{_HINT}")
            return 1
        rows = _bench_models.measure(step, args.seconds, args.compile, note)
        print("\n" + _bench_models.table(title, rows), flush=True)
        common = {"model": name, "train": args.train, "batch": args.batch, "dtype": args.dtype}
        common["compile"] = args.compile
        results += [{**common, **row.record(), "error_over_allowed": error} for row in rows]
        record.save(transformers=transformers.__version__, models=results)
        record.write()
        del step, rows
        if device == "cuda":
            torch.cuda.empty_cache()
    return 0 if results else 2
