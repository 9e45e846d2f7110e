"""`python -m msda_attn doctor`: what works here, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import array
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

from . import __version__, _native, _plain
from ._imports import OLD_HINT, OLD_PACKAGE, name_packages

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


@dataclasses.dataclass
class Backend:
    """A row of the table: column to 'yes', 'no', 'fails' or '-'."""

    name: str
    columns: dict[str, str]
    types: list[str]
    problems: list[str]


class Wrong(Exception):
    """A result that differs from the plain computation."""


class Checks:
    """Compares results with the plain computation, and counts them."""

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

    def output(self, dtype: str, got: list[float], inputs: list[list[float]]) -> None:
        """Compares an output with the plain one of the same, rounded, inputs."""
        allowed = 8 * _ROUNDING[dtype]
        for i, expected in enumerate(_plain.forward(_plain.SMALL, *inputs)):
            self.compare(f"output {i} in {dtype}", got[i], expected, allowed)

    def gradients(self, dtype: str, got: list[list[float]], inputs: list[list[float]]) -> None:
        """Compares gradients of `sum(output * grad_output())` with slopes of the plain output."""
        names = ("value", "locations", "weights")
        for which, (name, gradient) in enumerate(zip(names, got)):
            direction = [(-1.0) ** i * (1 + i % 3) for i in range(len(gradient))]
            slope = _plain.slope(_plain.SMALL, inputs, which, direction, grad_output())
            sums = [g * d for g, d in zip(gradient, direction)]
            scale = sum(abs(x) for x in sums)
            allowed = scale * (8 * _ROUNDING[dtype] + 1e-7)
            self.compare(f"gradient of {name} in {dtype}", sum(sums), slope, allowed)


def grad_output() -> list[float]:
    """Numbers that every type represents exactly."""
    batch, queries, row = _plain.SMALL.output
    return [(i % 7 - 3) / 4 for i in range(batch * queries * row)]


def _split_hint(error: BaseException) -> tuple[str, str | None]:
    text, _, hint = str(error).partition("\nhint: ")
    return text or type(error).__name__, hint or None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def _processor() -> str:
    name = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.split(":", 1)[1] for line in file if line.startswith("model name"))
            name = next(names, "")
    except OSError:
        pass
    return name.strip() or platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _import(name: str) -> tuple[Any, str]:
    """A module, or None and the reason."""
    if importlib.util.find_spec(name) is None:
        return None, "not installed"
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a broken installation raises anything
        return None, f"cannot be imported: {_first_line(error)}"


def _examine_threads(torch: Any) -> Finding:
    cores = _cores()
    try:
        for_arrays = _native.cpu_threads()
    except ValueError as error:
        text, _, hint = str(error).partition("\nhint: ")
        return Finding("threads", False, text, f"{hint}; until then calls with arrays fail", True)
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


def _examine_old_package() -> list[Finding]:
    """The package's former self, if it is installed. Other packages named msda do not matter."""
    spec = importlib.util.find_spec("msda")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [folder for folder in folders if any(pathlib.Path(folder).glob("_native.*"))]
    says = f"{OLD_PACKAGE} is in {{}}: a process can import one of the two"
    hint = OLD_HINT.removeprefix("hint: ")
    return [Finding("old package", False, says.format(folder), hint) for folder in found]


def _examine_torch(torch: Any, why: str) -> Finding:
    if torch is None:
        return Finding("torch", False, why, "pip install torch; NumPy arrays work without it")
    from ._torch import fallback, functional

    says = f"{torch.__version__}, built for CUDA {torch.version.cuda or 'none'}"
    says += f"; kernels: {functional.kernels}"
    if functional.kernels == "native":
        return Finding("torch", True, says)
    hint = "torch 2.7 or newer calls the kernels without Python, which is faster"
    return Finding("torch", False, f"{says} ({fallback.reason})", hint)


def _examine_numpy(numpy: Any, why: str) -> Finding:
    if numpy is None:
        return Finding("numpy", False, why, "pip install numpy; torch tensors work without it")
    return Finding("numpy", True, numpy.__version__)


def _ask(what: str, question: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, question())
    except Exception as error:
        says, hint = _split_hint(error)
        return Finding(what, False, says, hint)


def _examine_gpu() -> list[Finding]:
    def driver() -> str:
        major, minor = _native.cuda_driver()
        return f"supports CUDA up to {major}.{minor}"

    def gpus() -> str:
        names = [
            f"{name} ({arch}, {sms} SMs, {memory / 2**30:.0f} GiB)"
            for name, arch, sms, memory in _native.cuda_devices()
        ]
        if not names:
            raise RuntimeError("the driver finds none")
        return "; ".join(names)

    def nvrtc() -> str:
        name, path = _native.nvrtc()
        return f"{name} at {path}"

    found = _ask("driver", driver)
    if found.ok:
        return [found, _ask("gpu", gpus), _ask("nvrtc", nvrtc)]
    found.hint = "msda runs on the CPU; GPUs need NVIDIA's driver"
    if __version__.endswith(".cpu"):
        found.hint = "msda runs on the CPU: NVIDIA has no driver for this system"
    return [
        found,
        *(Finding(what, False, "not used without a driver") for what in ("gpu", "nvrtc")),
    ]


def _check_compiled(checks: Checks) -> Finding:
    """Checks the compiled part with arrays of the standard library: no torch, no NumPy."""
    sizes = _plain.SMALL
    shapes = (sizes.value, sizes.locations, sizes.weights)

    def raw(data: array.array, shape: tuple[int, ...], dtype: str):
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        return data.buffer_info()[0], dtype, shape, tuple(strides)

    def check() -> str:
        for dtype, code in (("float64", "d"), ("float32", "f")):
            data = [array.array(code, numbers) for numbers in _plain.inputs(sizes)]
            value, locations, weights = (raw(*pair, dtype) for pair in zip(data, shapes))
            call: _native._Call = {
                "value": value,
                "levels": (list(sizes.levels), None),
                "reference": None,
                "locations": locations,
                "weights": weights,
                "options": 0,
                "points": 0,
            }
            inputs = [list(numbers) for numbers in data]
            output = array.array(code, [0.0] * len(grad_output()))
            _native.forward(call, raw(output, sizes.output, dtype))
            checks.output(dtype, list(output), inputs)
            grads = [array.array(code, [0.0] * len(numbers)) for numbers in data]
            targets = [raw(*pair, dtype) for pair in zip(grads, shapes)]
            upstream = array.array(code, grad_output())
            _native.backward(call, raw(upstream, sizes.output, dtype), [*targets, None])
            checks.gradients(dtype, [list(numbers) for numbers in grads], inputs)
        return "output and gradients equal the plain computation"

    return dataclasses.replace(_ask("compiled part", check), required=True)


def _try(problems: list[str], what: str, trial: Callable[[], None]) -> str:
    """Tries something."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial()
        return "yes"
    except Exception as error:
        problems.append(f"{what}: {_first_line(error)}")
        return "fails"


def _try_torch(torch: Any, device: str, checks: Checks) -> Backend:
    """The row of a device, also if torch cannot make a tensor there."""
    name = f"torch, {'CUDA' if device == 'cuda' else 'CPU'}"
    try:
        return Backend(name, *_check_torch(torch, device, checks))
    except Exception as error:
        columns = dict.fromkeys(_COLUMNS, "fails")
        return Backend(name, columns, [], [f"tensors on {device}: {_first_line(error)}"])


def _check_torch(
    torch: Any, device: str, checks: Checks
) -> tuple[dict[str, str], list[str], list[str]]:
    """Columns, types and problems."""
    from ._torch.functional import ms_deform_attn

    sizes = _plain.SMALL
    shapes = (sizes.value, sizes.locations, sizes.weights)
    levels = torch.tensor(sizes.levels, device=device)
    starts = torch.tensor([0, sizes.levels[0][0] * sizes.levels[0][1]], device=device)
    upstream = torch.tensor(grad_output(), device=device).view(sizes.output)

    def tensors(dtype: str, grad: bool = False) -> list[Any]:
        made = [torch.tensor(n, dtype=getattr(torch, dtype)) for n in _plain.inputs(sizes)]
        return [t.view(s).to(device).requires_grad_(grad) for t, s in zip(made, shapes)]

    def flat(tensor: Any) -> list[float]:
        return tensor.detach().double().flatten().tolist()

    def call(value: Any, locations: Any, weights: Any) -> Any:
        return ms_deform_attn(value, levels, starts, locations, weights)

    def infer(dtype: str, function: Callable = call) -> None:
        given = tensors(dtype)
        checks.output(dtype, flat(function(*given)), [flat(t) for t in given])

    def train(dtype: str, function: Callable = call) -> None:
        given = tensors(dtype, grad=True)
        output = function(*given)
        output.backward(upstream.to(output.dtype))
        checks.gradients(dtype, [flat(t.grad) for t in given], [flat(t) for t in given])

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

    problems: list[str] = []
    columns: dict[str, str] = {}
    works = {d: _try(problems, f"inference in {d}", lambda d=d: infer(d)) for d in _ROUNDING}
    columns["inference"] = "yes" if set(works.values()) == {"yes"} else "fails"
    trains = {_try(problems, f"training in {d}", lambda d=d: train(d)) for d in _ROUNDING}
    columns["training"] = "yes" if trains == {"yes"} else "fails"
    columns["compile"] = _try(problems, "compile", compile)
    columns["export"] = _try(problems, "export", export)
    columns["same bits"] = _try(problems, "same bits", repeat)
    types = [_SHORT[d] for d, result in works.items() if result == "yes"]
    return columns, types, problems


def _check_numpy(numpy: Any, checks: Checks) -> Backend:
    from ._array import ms_deform_attn

    sizes = _plain.SMALL
    problems: list[str] = []

    def call(dtype: str) -> tuple[Any, list[Any]]:
        shapes = (sizes.value, sizes.locations, sizes.weights)
        pairs = zip(_plain.inputs(sizes), shapes)
        given = [numpy.array(numbers, dtype=dtype).reshape(shape) for numbers, shape in pairs]
        return ms_deform_attn(given[0], sizes.levels, None, given[1], given[2]), given

    def infer(dtype: str) -> None:
        output, given = call(dtype)
        inputs = [array.astype("float64").ravel().tolist() for array in given]
        checks.output(dtype, output.astype("float64").ravel().tolist(), inputs)

    def repeat() -> None:
        if not numpy.array_equal(call("float32")[0], call("float32")[0]):
            raise Wrong("two runs gave different bits")

    dtypes = ("float64", "float32", "float16")
    works = {d: _try(problems, f"inference in {d}", lambda d=d: infer(d)) for d in dtypes}
    columns = dict.fromkeys(_COLUMNS, "no")
    columns["inference"] = "yes" if set(works.values()) == {"yes"} else "fails"
    columns["same bits"] = _try(problems, "same bits", repeat)
    types = [_SHORT[d] for d, result in works.items() if result == "yes"]
    return Backend("NumPy, CPU", columns, types, problems)


def _absent(name: str) -> Backend:
    return Backend(name, dict.fromkeys(_COLUMNS, "-"), [], [])


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
    findings.append(_examine_torch(torch, why_no_torch))
    findings.append(_examine_numpy(numpy, why_no_numpy))
    findings += _examine_gpu() + _examine_old_package()

    checks = Checks()
    findings.append(_check_compiled(checks))
    gpu = torch is not None and torch.cuda.is_available()
    if torch and not gpu and any(f.what == "gpu" and f.ok for f in findings):
        findings.append(Finding("torch", False, "torch cannot use the GPU", "pip install torch"))
    backends = [
        _try_torch(torch, "cpu", checks) if torch else _absent("torch, CPU"),
        _try_torch(torch, "cuda", checks) if gpu else _absent("torch, CUDA"),
        _check_numpy(numpy, checks) if numpy else _absent("NumPy, CPU"),
    ]
    problems = [f"{b.name}: {problem}" for b in backends for problem in b.problems]
    return {
        "ok": all(finding.ok for finding in findings if finding.required)
        and not any("fails" in (b.columns["inference"], b.columns["training"]) for b in backends),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "backends": [
            {"name": b.name, **b.columns, "types": b.types, "problems": b.problems}
            for b in backends
        ],
        "problems": problems,
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
            f"The operator runs: {report['checks']} numbers were compared with a plain "
            "computation. "
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
