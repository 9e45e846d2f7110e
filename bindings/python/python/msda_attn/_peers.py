"""Implementations of the operator that the benchmark measures: msda, torch and other peers."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._torch.functional import ms_deform_attn
from ._torch.grid import sample
from ._workloads import Call, read_toml

DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Operator:
    """An implementation that is loaded. Only `run` is timed."""

    def __init__(self, run: Callable[[Any], Tensor]) -> None:
        self.run = run

    def prepare(self, call: Call) -> Any:
        """What `run` gets. It belongs to the graph of gradients."""
        return call

    def finish(
        self, call: Call, output: Tensor, grad: Tensor, grads: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Completes gradients of value, locations and weights before they are checked."""
        return grads

    def __call__(self, call: Call) -> Tensor:
        return self.run(self.prepare(call))


@dataclasses.dataclass(frozen=True)
class Peer:
    """An implementation: what it takes, and how it is loaded."""

    name: str
    load: Callable[[], Operator]
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = tuple(DTYPES.values())
    backward: bool = True
    points_may_differ: bool = False
    # Whether a result outside the tolerance is wrong. None: in float64 and float32 only, because in
    # 16 bits coordinates may be rounded.
    exact: bool | None = None

    def refuses(self, device: str, dtype: str, call: Call, which: str = "forward") -> str:
        """Why it cannot run a call; empty if it can."""
        if device not in self.devices:
            return f"does not run on {device}"
        if dtype not in self.dtypes:
            return f"has no {dtype}"
        if not call.same_points and not self.points_may_differ:
            return "needs the same number of points on each level"
        if which == "backward" and not self.backward:
            return "has no backward pass"
        return ""

    def is_exact(self, dtype: str) -> bool:
        return dtype in ("float64", "float32") if self.exact is None else self.exact


def _msda(call: Call) -> Tensor:
    points = None if call.same_points else call.points
    return ms_deform_attn(
        call.value, call.shapes, call.starts, call.locations, call.weights, points=points
    )


def msda_with_list(call: Call) -> Tensor:
    """The same with level sizes in a list, for the table of host times."""
    return ms_deform_attn(call.value, call.levels, None, call.locations, call.weights)


def grid_sample(call: Call) -> Tensor:
    """The operator through torch's `grid_sample`, one level after the other."""
    return sample(call.value, call.levels, call.locations, call.weights, call.points)


OURS = Peer("msda", lambda: Operator(_msda), points_may_differ=True, exact=True)
TORCH = Peer("torch", lambda: Operator(grid_sample), points_may_differ=True)


def differentiable(forward: Callable, backward: Callable) -> Callable[..., Tensor]:
    """Joins two functions that have the signatures of the original extension."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Tensor:
            *tensors, ctx.step = arguments
            ctx.save_for_backward(*tensors)
            return forward(*arguments)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            value, locations, weights = backward(*ctx.saved_tensors, grad.contiguous(), ctx.step)
            return value, None, None, locations, weights, None

    return Function.apply


class _Described(Operator):
    """An implementation that a file describes."""

    def __init__(self, entry: dict[str, Any]) -> None:
        module = importlib.import_module(entry["import"])
        top = entry["import"].partition(".")[0]
        names = {top: sys.modules[top], **vars(module), "torch": torch}
        names["differentiable"] = differentiable
        exec(entry.get("setup", ""), names)
        inputs = ", ".join(field.name for field in dataclasses.fields(Call))
        grads = "grad_value, grad_locations, grad_weights"
        statements = {key: textwrap.indent(entry.get(key) or "pass", "    ") for key in _STATEMENTS}
        exec(
            f"def _msda_bind({inputs}):\n{statements['prepare']}\n    return lambda: (\n{entry['call']}\n)\n"
            f"def _msda_finish({inputs}, output, grad, {grads}):\n{statements['finish']}\n    return {grads}\n",
            names,
        )
        self.bind, self.complete = names["_msda_bind"], names["_msda_finish"]

    def prepare(self, call: Call) -> tuple[Callable[[], Tensor], tuple[int, ...]]:
        batch, _, heads, channels = call.value.shape
        shape = (batch, call.locations.shape[1], heads, channels)
        return self.bind(**vars(call)), shape

    def run(self, given: tuple[Callable[[], Tensor], tuple[int, ...]]) -> Tensor:
        call, (*rows, heads, channels) = given
        output, expected = call(), (*rows, heads * channels)
        if tuple(output.shape) not in (expected, (*rows, heads, channels)):
            raise ValueError(f"the call returned {tuple(output.shape)}, expected {expected}")
        return output.reshape(expected)

    def finish(
        self, call: Call, output: Tensor, grad: Tensor, grads: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        rows = (tensor.detach().unflatten(2, call.value.shape[2:]) for tensor in (output, grad))
        return self.complete(*vars(call).values(), *rows, *grads)


_STATEMENTS = ("prepare", "finish")

# The keys of an entry, their types, and whether they are needed.
_KEYS: dict[str, tuple[type, bool]] = {
    **dict.fromkeys(("about", "import", "call"), (str, True)),
    **dict.fromkeys(("setup", "prepare", "finish", "device"), (str, False)),
    "dtypes": (list, True),
    **dict.fromkeys(("backward", "points_may_differ", "exact"), (bool, False)),
}


def _peer(name: str, entry: Any) -> Peer:
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or name in (OURS.name, TORCH.name):
        raise ValueError("got this name, expected another one of letters, digits, '-', '_' and '.'")
    if not isinstance(entry, dict) or (unknown := sorted(set(entry) - set(_KEYS))):
        got = repr(unknown[0]) if isinstance(entry, dict) else repr(entry)
        raise ValueError(f"got {got}, expected the keys {', '.join(_KEYS)}")
    for key, (kind, needed) in _KEYS.items():
        if needed and key not in entry:
            raise ValueError(f"{key}: got none, expected one")
        if key in entry and type(entry[key]) is not kind:
            raise ValueError(f"{key}: got {entry[key]!r}, expected {kind.__name__}")
    for key, known in (("dtypes", tuple(DTYPES)), ("device", ("cpu", "cuda"))):
        got = entry.get(key, "cpu")
        if not got or not set([got] if isinstance(got, str) else map(str, got)) <= set(known):
            raise ValueError(f"{key}: got {got!r}, expected {', '.join(known)}")
    return Peer(
        name,
        lambda: _Described(entry),
        (entry["device"],) if "device" in entry else ("cpu", "cuda"),
        tuple(DTYPES[dtype] for dtype in entry["dtypes"]),
        entry.get("backward", False),
        entry.get("points_may_differ", False),
        entry.get("exact"),
    )


def read(text: str, file: str) -> dict[str, Peer]:
    """The peers that a file describes."""
    where = file
    try:
        table = read_toml(text)
        if unknown := sorted(set(table) - {"peer"}):
            raise ValueError(f"got {unknown[0]!r}, expected [peer.NAME]")
        peers = {}
        for name, entry in table.get("peer", {}).items():
            where = f"{file}: peer.{name}"
            peers[name] = _peer(name, entry)
        return peers
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def known() -> dict[str, Peer]:
    """All implementations: msda, torch, those of engines.toml, and those of `MSDA_ENGINES`."""
    file = pathlib.Path(__file__).with_name("engines.toml")
    peers = {OURS.name: OURS, TORCH.name: TORCH, **read(file.read_text("utf-8"), file.name)}
    if own := os.environ.get("MSDA_ENGINES"):
        try:
            text = pathlib.Path(own).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ValueError(f"MSDA_ENGINES: got {own}, which cannot be read: {error}") from error
        peers |= read(text, own)
    return peers
