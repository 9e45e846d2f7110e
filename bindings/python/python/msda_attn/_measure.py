"""Checks and times implementations on a workload, for `python -m msda_attn bench`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _peers, _timing, _workloads
from ._peers import OURS, Operator, Peer
from ._workloads import Call, Workload

FORWARD, BACKWARD = PASSES = ("forward", "backward")
_CHECKED_QUERIES = 32
# Rows of the host times: level sizes in a list, not in tensors on the device; and what torch takes
# for an operator that only starts one kernel.
WITH_LIST = "msda, list of sizes"
CHEAPEST = "torch, value + value"
HOST_COLUMNS = ("no grad", "with grad", "forward + backward")


class Error(NamedTuple):
    """The largest difference from the exact result, and the difference allowed."""

    largest: float
    allowed: float
    compared: int

    @property
    def ratio(self) -> float:
        return self.largest / self.allowed if self.allowed > 0 else math.inf


@dataclasses.dataclass
class Result:
    """What was found about one pass of one implementation."""

    name: str
    which: str
    # Whether an error above the error allowed is wrong.
    exact: bool = True
    error: Error | None = None
    work: _timing.Work | None = None
    # Why there is no time, and whether the implementation does not take the call.
    missing: str = ""
    refused: bool = False

    def record(self) -> dict[str, Any]:
        found = {"name": self.name, "pass": self.which}
        if self.missing or self.work is None or self.error is None:
            return {**found, "missing": self.missing or "not run", "refused": self.refused}
        check = dict(zip(("max_error", "tolerance", "compared"), self.error))
        return {**found, **self.work.record(), "check": check | {"inexact": not self.exact}}


class Wrong(Exception):
    """The operator gave a wrong result, or none."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.which}: {result.missing}")
        self.result = result


def _poison(*like: Tensor) -> None:
    """Leaves NaN in the memory that results of these sizes get next: what an implementation does
    not write must not be right by chance."""
    memory = [torch.full_like(tensor, math.nan) for tensor in like for _ in range(2)]
    del memory


class Checker:
    """The exact results of some queries, by grid_sample in float64."""

    def __init__(self, call: Call) -> None:
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
        exact = call.some(self.rows).differentiable()
        output = _peers.grid_sample(exact)
        self.expected = [output, *torch.autograd.grad(output, exact.inputs(), some.double())]
        # One rounding of the type, and coordinates that are rounded to float32.
        side = max(n for level in call.levels for n in level)
        self.relative = 4 * torch.finfo(call.value.dtype).eps + 4 * side * 2.0**-23

    def _compare(self, got: Sequence[Tensor]) -> Error:
        """The error of the part that is the furthest off."""
        errors = []
        for part, expected in zip(got, self.expected):
            largest = (part.detach().double() - expected.detach()).abs().max().item()
            allowed = self.relative * expected.abs().max().item()
            largest = math.inf if math.isnan(largest) else largest
            errors.append(Error(largest, allowed, expected.numel()))
        worst = max(errors, key=lambda error: error.ratio)
        return worst._replace(compared=sum(error.compared for error in errors))

    def forward(self, run: Operator, call: Call) -> Error:
        with torch.no_grad():
            given = run.prepare(call)
            _poison(self.grad)
            return self._compare([run.run(given)[:, self.rows]])

    def backward(self, run: Operator, call: Call) -> Error:
        """The errors of the output and of all gradients."""
        given = run.prepare(call)
        _poison(self.grad, *(tensor.detach() for tensor in call.inputs()))
        output = run.run(given)
        grads = torch.autograd.grad(output, call.inputs(), self.grad)
        value, *others = run.finish(call, output, self.grad, grads)
        parts = (part[:, self.rows] for part in (output, *others))
        output, locations, weights = parts
        return self._compare([output, value, locations, weights])


def _work(run: Operator, which: str, call: Call, grad: Tensor) -> _timing.Work:
    """One pass, to be timed. The forward pass before a backward pass has ended."""
    if which == BACKWARD:
        return _timing.Work(
            lambda output: torch.autograd.grad(output, call.inputs(), grad), lambda: run(call)
        )

    def forward(given: Any) -> None:
        with torch.no_grad():
            run.run(given)

    def prepare() -> Any:
        with torch.no_grad():
            return run.prepare(call)

    return _timing.Work(forward, prepare)


def measure(
    workload: Workload,
    dtype: str,
    device: str,
    operators: Mapping[Peer, Operator],
    seconds: float,
    passes: Sequence[str] = PASSES,
    note: Callable[[str], None] = lambda name: None,
) -> list[Result]:
    """Checks and times implementations on one workload. `note` gets the name of the next one that
    is checked, and an empty one when all of them are timed."""
    call = _workloads.make(workload, getattr(torch, dtype), device)
    checker = Checker(call)
    calls = {FORWARD: call, BACKWARD: call.differentiable()}
    grad = torch.ones_like(checker.grad)
    results = []
    for peer, run in operators.items():
        for which in passes:
            result = Result(peer.name, which, peer.is_exact(dtype))
            results.append(result)
            result.missing = peer.refuses(device, dtype, call, which)
            if result.missing:
                result.refused = True
                continue
            note(f"{peer.name} {which}")
            try:
                result.error = getattr(checker, which)(run, calls[which])
            except Exception as problem:  # a peer may raise anything
                result.missing = _timing.reason(problem)
                _check_gpu(peer.name, device)
            else:
                result.missing = _judge(result.error, result.exact)
            if result.missing and peer is OURS:
                raise Wrong(result)
            result.work = _work(run, which, calls[which], grad)
    note("")
    timed = [result for result in results if not result.missing]
    clock = _timing.CpuClock() if device == "cpu" else _timing.CudaClock()
    _timing.measure([result.work for result in timed], clock, seconds)
    for result in timed:
        result.missing = result.work.failed
    return results


def _judge(error: Error, exact: bool) -> str:
    """Why a result does not count; empty if it does."""
    if not math.isfinite(error.ratio):
        return "wrong: some numbers are not finite"
    if error.ratio > 1 and exact:
        return f"wrong: the error is {error.ratio:.3g} times the error allowed"
    return ""


def _check_gpu(name: str, device: str) -> None:
    """Ends the program if a failed kernel has left a GPU that no call can use."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception as problem:
            raise SystemExit(f"error: {name} broke the GPU: {_timing.reason(problem)}") from problem


def measure_host(
    dtype: str, device: str, operators: Mapping[Peer, Operator]
) -> list[dict[str, Any]]:
    """Microseconds of the host per eager call of each implementation with one sample."""
    call = _workloads.make(_workloads.TINY, getattr(torch, dtype), device)
    leaves = call.differentiable()
    with torch.no_grad():
        grad = torch.ones_like(operators[OURS](call))
    ones = torch.ones_like(call.value)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    listed = {peer.name: (peer, run) for peer, run in operators.items()}
    first = {OURS.name: listed[OURS.name], WITH_LIST: (OURS, _peers.msda_with_list)}
    works = {}
    for name, (peer, run) in {**first, **listed}.items():
        if not peer.refuses(device, dtype, call):
            works[name] = (
                lambda run=run: run(call),
                lambda run=run: run(leaves),
                lambda run=run: torch.autograd.grad(run(leaves), leaves.inputs(), grad),
            )
    works[CHEAPEST] = (
        lambda: call.value + call.value,
        lambda: leaves.value + leaves.value,
        lambda: torch.autograd.grad(leaves.value + leaves.value, leaves.value, ones),
    )
    found = []
    for name, row in works.items():
        times: dict[str, Any] = {}
        for column, work in zip(HOST_COLUMNS, row):
            try:
                with torch.set_grad_enabled(column != HOST_COLUMNS[0]):
                    times[column] = _timing.host_time(work, synchronize)
            except Exception as problem:  # a peer may raise anything
                times[column] = _timing.reason(problem)
        found.append({"name": name, "host_us": times})
    return found
