"""`python -m msda_attn bench`: times the operator, or whole models, beside other implementations."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import pathlib
import sys
import textwrap

from ._doctor import _import

# More would end in a crash of OpenMP.
_MOST_THREADS = 4096


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
    dtypes = ["f64", "f32", "f16", "bf16"]
    parser.add_argument("--dtype", choices=dtypes, default="f32", help="type of all tensors")
    parser.add_argument("--threads", type=int, metavar="N", help="threads on the CPU")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time per measurement (default: 1)"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all numbers there")
    parser.add_argument(
        "--request",
        type=pathlib.Path,
        metavar="FILE",
        help="what the command `msda bench` asks for; the numbers go to the file of --json",
    )
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

    from ._peers import known as known_peers
    from ._workloads import built_in

    known = built_in()
    for name in args.workload or []:
        if name != "all" and name not in known:
            return f"--workload: got {name!r}, expected all or one of {', '.join(known)}"
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
    if args.request and not args.json:
        return "--request: got it without --json, expected both"
    if args.json is not None and (why := _unwritable(args.json)):
        return f"--json: got {args.json}, which cannot be written: {why}"
    try:
        known_peers()
    except ValueError as error:
        return str(error)
    return ""


def _list() -> None:
    from ._bench_models import MODELS
    from ._tables import WIDTH
    from ._workloads import built_in

    for name, workload in built_in().items():
        print(f"{name:<20}{textwrap.shorten(workload.about, WIDTH - 20, placeholder=' ...')}")
    print(textwrap.fill(f"models: {', '.join(MODELS)}", WIDTH))


def main(arguments: list[str]) -> int:
    """Prints the tables. The result is 1 if a result of msda is wrong, 2 if nothing can run."""
    args = _arguments(arguments)
    torch, missing = _import("torch")
    if missing:
        missing = f"torch: {missing}, expected for timing\nhint: pip install torch"
    refused = missing or _refusal(args)
    if refused:
        print(f"error: {refused}", file=sys.stderr)
        return 2
    if args.list:
        _list()
        return 0
    from . import _bench_run

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.request:
        return _bench_run.answer(args.request, args.json)
    return (_bench_run.models if args.model else _bench_run.workloads)(args, device)
