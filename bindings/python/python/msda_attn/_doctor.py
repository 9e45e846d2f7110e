"""`python -m msda_attn doctor`: what works here, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import array
import contextlib
import dataclasses
import functools
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

from . import __version__, _native, ms_deform_attn
from ._arguments import dense_strides, native_call
from ._imports import name_packages

_WIDTH = 80
_COLUMNS = ("inference", "training", "compile", "export", "same bits")
_ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclasses.dataclass
class Finding:
    """One thing that was looked for. `ok` is False where it is missing or does not work.

    The command fails where a thing that is not ok is `required`.
    """

    what: str
    ok: bool
    says: str
    hint: str | None = None
    required: bool = False


class Wrong(Exception):
    """A result that differs from the stored numbers."""


# The problem that is computed. Every type represents its numbers exactly, and float64 the results.
LEVELS = ((4, 8), (2, 4))
VALUE, LOCATIONS, WEIGHTS, OUTPUT = (2, 40, 2, 8), (2, 3, 2, 2, 2, 2), (2, 3, 2, 2, 2), (2, 3, 16)
SHAPES = (VALUE, LOCATIONS, WEIGHTS)
# A channel of value and of the output is the first one times such a factor.
CHANNELS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, -0.25)
# The first channel of the output. `tests/test_doctor.py` computes these numbers with grid_sample.
EXPECTED = (
    -0.193359375, -0.02783203125, 0.03564453125, 0.099609375, 0.07470703125, 0.009765625,
    -0.0400390625, -0.06298828125, 0.14306640625, -0.05517578125, 0.0849609375, -0.2216796875,
)  # fmt: skip
# Sums of the gradients of value, locations and weights along two directions.
EXPECTED_SUMS = (
    (2.55078125, 0.998046875), (50.860107421875, -11.541015625), (0.743896484375, -0.293212890625),
)  # fmt: skip


def inputs() -> tuple[list[float], list[float], list[float]]:
    """Value, locations and weights as flat lists. Some locations are outside the levels."""
    value = [(i * 37 % 29 - 14) / 16 * factor for i in range(160) for factor in CHANNELS]
    locations = []
    for i in range(math.prod(WEIGHTS)):
        height, width = LEVELS[i // 2 % 2]
        # The gradient of a location jumps at the centre of a pixel: locations are between them.
        x, y = i * 7 % (width + 2) - 1.75 + i % 3 / 4, i * 11 % (height + 2) - 1.75 + i % 2 / 2
        locations += [(x + 0.5) / width, (y + 0.5) / height]
    return value, locations, [(1 + i % 5) / 8 for i in range(math.prod(WEIGHTS))]


def grad_output() -> list[float]:
    """The gradient of the output."""
    return [(i % 7 - 3) / 4 for i in range(math.prod(OUTPUT))]


def directions(size: int) -> tuple[list[float], list[float]]:
    """Two directions along which gradients are added up."""
    return [(-1.0) ** i * (1 + i % 3) for i in range(size)], [i * 7 % 5 - 2 for i in range(size)]


class Checks:
    """Compares results with the stored numbers, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.worst = 0.0

    def compare(self, what: str, got: float, expected: float, allowed: float) -> None:
        error = abs(got - expected)
        self.count += 1
        self.worst = max(self.worst, error / allowed)
        # Not `error > allowed`: NaN is wrong too.
        if not error <= allowed:
            raise Wrong(f"{what}: got {got:.9g}, expected {expected:.9g} within {allowed:.2g}")

    def output(self, dtype: str, got: list[float]) -> None:
        """Compares an output."""
        expected = [first * factor for first in EXPECTED for factor in CHANNELS]
        for i, (number, exact) in enumerate(zip(got, expected, strict=True)):
            allowed = 8 * _ROUNDING[dtype] * max(1.0, abs(exact))
            self.compare(f"output {i} in {dtype}", number, exact, allowed)

    def gradients(self, dtype: str, got: list[list[float]]) -> None:
        """Compares gradients of `sum(output * grad_output())`."""
        names = ("value", "locations", "weights")
        for name, gradient, sums in zip(names, got, EXPECTED_SUMS):
            for direction, expected in zip(directions(len(gradient)), sums):
                parts = [g * d for g, d in zip(gradient, direction)]
                allowed = 8 * _ROUNDING[dtype] * sum(map(abs, parts))
                self.compare(f"gradient of {name} in {dtype}", sum(parts), expected, allowed)


def _split_hint(error: BaseException) -> tuple[str, str | None]:
    text, _, hint = str(error).partition("\nhint: ")
    return text or type(error).__name__, hint or None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def _processor() -> str:
    name = None
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


def _import(name: str) -> tuple[Any, str]:
    """A module, or None and the reason."""
    if importlib.util.find_spec(name) is None:
        return None, "not installed"
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a broken installation raises anything
        return None, f"cannot be imported: {_first_line(error)}"


def _examine_threads(torch: Any) -> Finding:
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        for_arrays = _native.cpu_threads()
    except ValueError as error:
        says, hint = _split_hint(error)
        return Finding("threads", False, says, f"{hint}; until then calls with arrays fail", True)
    threads = torch.get_num_threads() if torch else for_arrays
    few = threads < cores
    return Finding(
        "threads",
        not few,
        f"{threads} of {cores} cores, by {'torch.get_num_threads()' if torch else 'msda'}",
        "look at torch.set_num_threads, MSDA_NUM_THREADS, OMP_NUM_THREADS" if few else None,
    )


def _examine_system(torch: Any) -> list[Finding]:
    isa = _native.cpu_isa()
    settings = [f"{key}={value}" for key, value in sorted(os.environ.items()) if key[:5] == "MSDA_"]
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return [
        Finding("msda", True, f"{__version__}; settings: {', '.join(settings) or 'none'}"),
        Finding("system", True, f"{system}, {platform.machine()}"),
        Finding(
            "processor",
            isa != "portable",
            f"{_processor()}; instruction set: {isa}",
            "without vector instructions the CPU backend is slower" if isa == "portable" else None,
        ),
        _examine_threads(torch),
    ]


def _ask(what: str, question: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, question())
    except Exception as error:
        return Finding(what, False, *_split_hint(error))


def _gpus() -> str:
    gpus = _native.cuda_devices()
    if not gpus:
        raise RuntimeError("the driver finds none")
    return "; ".join(f"{n} ({arch}, {sms} SMs, {m / 2**30:.0f} GiB)" for n, arch, sms, m in gpus)


def _examine_gpu() -> list[Finding]:
    driver = _ask("driver", lambda: "supports CUDA up to {}.{}".format(*_native.cuda_driver()))
    if driver.ok:
        nvrtc = _ask("nvrtc", lambda: "{} at {}".format(*_native.nvrtc()))
        return [driver, _ask("gpu", _gpus), nvrtc]
    has_none = __version__.endswith(".cpu")
    why = ": NVIDIA has no driver for this system" if has_none else "; GPUs need NVIDIA's driver"
    driver.hint = f"msda runs on the CPU{why}"
    unused = "not used without a driver"
    return [driver, Finding("gpu", False, unused), Finding("nvrtc", False, unused)]


def _check_compiled(checks: Checks) -> Finding:
    """Checks the compiled part with arrays of the standard library: no torch, no NumPy."""

    def raw(data: array.array, shape: tuple[int, ...], dtype: str) -> tuple:
        return data.buffer_info()[0], dtype, shape, dense_strides(shape)

    def check() -> str:
        for dtype, code in (("float64", "d"), ("float32", "f")):
            data = [array.array(code, numbers) for numbers in inputs()]
            floats = [raw(*pair, dtype) for pair in zip(data, SHAPES)]
            call = native_call(floats, (LEVELS, None), 0, 0)
            output = array.array(code, [0.0] * math.prod(OUTPUT))
            _native.forward(call, raw(output, OUTPUT, dtype))
            checks.output(dtype, list(output))
        return "the output is right"

    return dataclasses.replace(_ask("compiled part", check), required=True)


def _row(name: str, cell: str) -> dict[str, Any]:
    """A row of the table: 'yes', 'no', 'fails' or '-' in each column."""
    return {"name": name, **dict.fromkeys(_COLUMNS, cell), "types": [], "problems": []}


def _try(row: dict[str, Any], column: str, trials: dict[str, Callable[[], None]]) -> list[str]:
    """Fills a cell: the names of the trials that raise nothing are the result."""
    worked = []
    for what, trial in trials.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trial()
            worked.append(what)
        except Exception as error:
            row["problems"].append(f"{what}: {_first_line(error)}")
    row[column] = "yes" if len(worked) == len(trials) else "fails"
    return worked


def _try_types(row: dict[str, Any], column: str, trial: Callable[[str], None], *types: str) -> None:
    """Fills a cell with a trial of each type."""
    trials = {f"{column} in {d}": functools.partial(trial, d) for d in types or _ROUNDING}
    worked = _try(row, column, trials)
    row["types"] = [_SHORT[what.split()[-1]] for what in worked]


def _try_torch(torch: Any, device: str, checks: Checks) -> dict[str, Any]:
    """The row of a device, also if torch cannot make a tensor there."""
    row = _row(f"torch, {'CUDA' if device == 'cuda' else 'CPU'}", "fails")
    try:
        _check_torch(torch, device, checks, row)
    except Exception as error:
        row["problems"].append(f"tensors on {device}: {_first_line(error)}")
    return row


def _check_torch(torch: Any, device: str, checks: Checks, row: dict[str, Any]) -> None:
    levels, starts = torch.tensor(LEVELS, device=device), torch.tensor([0, 32], device=device)
    upstream = torch.tensor(grad_output(), device=device).view(OUTPUT)

    def tensors(dtype: str, grad: bool = False) -> list[Any]:
        made = [torch.tensor(n, dtype=getattr(torch, dtype)) for n in inputs()]
        return [t.view(s).to(device).requires_grad_(grad) for t, s in zip(made, SHAPES)]

    def flat(tensor: Any) -> list[float]:
        return tensor.detach().double().flatten().tolist()

    def call(value: Any, locations: Any, weights: Any) -> Any:
        return ms_deform_attn(value, levels, starts, locations, weights)

    def infer(dtype: str, function: Callable = call) -> None:
        checks.output(dtype, flat(function(*tensors(dtype))))

    def train(dtype: str, function: Callable = call) -> None:
        given = tensors(dtype, grad=True)
        output = function(*given)
        output.backward(upstream.to(output.dtype))
        checks.gradients(dtype, [flat(t.grad) for t in given])

    def compile() -> None:
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        infer("float32", compiled)
        train("float32", compiled)

    def export() -> None:
        class Model(torch.nn.Module):
            def forward(self, value: Any, levels: Any, starts: Any, *others: Any) -> Any:
                return ms_deform_attn(value, levels, starts, *others)

        value, *others = tensors("float32")
        program = torch.export.export(Model(), (value, levels, starts, *others)).module()
        infer("float32", lambda value, *others: program(value, levels, starts, *others))

    def repeat() -> None:
        """The same bits twice, and on the CPU with one thread too."""
        generator = torch.Generator().manual_seed(0)
        given = [
            torch.rand(shape, generator=generator).to(device)
            for shape in ((2, 1200, 4, 32), (2, 700, 4, 1, 4, 2), (2, 700, 4, 1, 4))
        ]

        def results() -> list[Any]:
            fresh = [t.clone().requires_grad_() for t in given]
            output = ms_deform_attn(fresh[0], [(30, 40)], None, fresh[1], fresh[2])
            output.sum().backward()
            return [output, *(t.grad for t in fresh)]

        threads = torch.get_num_threads()
        first = results()
        try:
            torch.set_num_threads(1)
            second = results()
        finally:
            torch.set_num_threads(threads)
        if not all(torch.equal(a, b) for a, b in zip(first, second)):
            raise Wrong("two runs gave different bits")

    _try_types(row, "training", train)
    _try_types(row, "inference", infer)
    for column, trial in (("compile", compile), ("export", export), ("same bits", repeat)):
        _try(row, column, {column: trial})


def _try_numpy(numpy: Any, checks: Checks) -> dict[str, Any]:
    row = _row("NumPy, CPU", "no")

    def call(dtype: str) -> Any:
        pairs = zip(inputs(), SHAPES)
        given = [numpy.array(numbers, dtype=dtype).reshape(shape) for numbers, shape in pairs]
        return ms_deform_attn(given[0], LEVELS, None, given[1], given[2])

    def infer(dtype: str) -> None:
        checks.output(dtype, call(dtype).astype("float64").ravel().tolist())

    def repeat() -> None:
        if not numpy.array_equal(call("float32"), call("float32")):
            raise Wrong("two runs gave different bits")

    _try_types(row, "inference", infer, "float64", "float32", "float16")
    _try(row, "same bits", {"same bits": repeat})
    return row


def examine() -> dict[str, Any]:
    """Everything that the command says, as data for JSON."""
    torch, why_no_torch = _import("torch")
    numpy, why_no_numpy = _import("numpy")
    if torch is not None:
        # Loading the operator tells the compiled part where packages are: NVRTC may be in one.
        _, problem = _import("msda_attn._torch.functional")
        torch, why_no_torch = (None, f"msda's part for it {problem}") if problem else (torch, "")
    else:
        name_packages()
    findings = _examine_system(torch)
    findings += [
        Finding(
            "torch", True, f"{torch.__version__}, built for CUDA {torch.version.cuda or 'none'}"
        )
        if torch
        else Finding("torch", False, why_no_torch, "pip install torch; NumPy arrays need none"),
        Finding("numpy", True, numpy.__version__)
        if numpy
        else Finding("numpy", False, why_no_numpy, "pip install numpy; torch tensors need none"),
    ]
    findings += _examine_gpu()

    checks = Checks()
    findings.append(_check_compiled(checks))
    gpu = torch is not None and torch.cuda.is_available()
    if torch and not gpu and any(f.what == "gpu" and f.ok for f in findings):
        findings.append(Finding("torch", False, "torch cannot use the GPU", "pip install torch"))
    rows = [
        _try_torch(torch, "cpu", checks) if torch else _row("torch, CPU", "-"),
        _try_torch(torch, "cuda", checks) if gpu else _row("torch, CUDA", "-"),
        _try_numpy(numpy, checks) if numpy else _row("NumPy, CPU", "-"),
    ]
    return {
        "ok": all(finding.ok for finding in findings if finding.required)
        and not any("fails" in (row["inference"], row["training"]) for row in rows),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "backends": rows,
        "problems": [f"{row['name']}: {problem}" for row in rows for problem in row["problems"]],
        "checks": checks.count,
        "largest_error": checks.worst,
    }


def _wrap(first: str, text: str) -> str:
    rest = " " * len(first)
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    for finding in report["findings"]:
        mark = "ok" if finding["ok"] else "--"
        lines.append(_wrap(f"{mark}  {finding['what']:<14}", finding["says"]))
        if finding["hint"]:
            lines.append(_wrap(" " * 18, f"hint: {finding['hint']}"))
    widths = [len(column) + 2 for column in _COLUMNS]
    header = "".join(f"{column:<{width}}" for column, width in zip(_COLUMNS, widths))
    lines += ["", f"{'backend':<13}{header}value types"]
    for backend in report["backends"]:
        cells = "".join(f"{backend[c]:<{width}}" for c, width in zip(_COLUMNS, widths))
        lines.append(f"{backend['name']:<13}{cells}{' '.join(backend['types']) or '-'}")
    lines += [
        "",
        "yes: tried here, and right. no: not offered. -: could not be tried here.",
        "fails: see below. same bits: runs and numbers of threads agree.",
        "",
    ]
    lines += [_wrap("problem: ", problem) for problem in report["problems"]]
    if report["ok"]:
        verdict = (
            f"The operator runs: {report['checks']} numbers were compared. "
            f"The largest error was {report['largest_error']:.0%} of the error allowed."
        )
    else:
        verdict = (
            "The operator does not run as it should here. Where the lines above have no hint that "
            "helps, please report them."
        )
    return "\n".join([*lines, textwrap.fill(verdict, _WIDTH)])


def main(arguments: list[str]) -> int:
    """Prints the report. The result is 0 if the operator runs and 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m msda_attn doctor",
        description="Says what works here and what is missing. Exit code 0: the operator runs and "
        "its results are right. 1: it does not.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(arguments)
    report = examine()
    print(json.dumps(report, indent=2) if args.json else text(report))
    return 0 if report["ok"] else 1
