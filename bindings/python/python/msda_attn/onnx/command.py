"""`python -m msda_attn onnx`: rewrites and verifies ONNX files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys

from . import graph as files
from .match import Found, rewrite
from .ops import OnnxError, is_ours
from .tensorrt import NEVER_RUN, convert
from .verifier import SIZE_HINT, verify


def _size(text: str) -> tuple[str, int | tuple[int, int]]:
    name, _, given = text.rpartition("=")
    numbers = given.split(",")
    if not name or len(numbers) > 2 or not all(n.isdigit() and int(n) for n in numbers):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=NUMBER or NAME=FIRST,SECOND")
    first, *second = map(int, numbers)
    return name, (first, *second) if second else first


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m msda_attn onnx", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("rewrite", "replaces GridSample by the operators of msda where that is proven"),
        ("verify", "checks each node of msda, and the model against the file before"),
    ):
        sub = commands.add_parser(name, help=about, description=about)
        sub.add_argument("model", type=pathlib.Path)
        sub.add_argument("--json", action="store_true", help="print the report as JSON")
        sub.add_argument(
            "--size",
            type=_size,
            action="append",
            default=[],
            metavar="NAME=NUMBER[,SECOND]",
            help="a dynamic size of the inputs; the second run has another, or SECOND",
        )
        if name == "rewrite":
            sub.add_argument("-o", "--output", type=pathlib.Path, required=True)
            sub.add_argument("--target", choices=("onnx", "tensorrt"), default="onnx")
        else:
            sub.add_argument("--against", type=pathlib.Path, help="the file before the rewrite")
    return parser


def main(arguments: list[str]) -> int:
    """0: replaced, or right. 1: nothing replaced, or wrong. 2: a file that cannot be used."""
    args = _parser().parse_args(arguments)
    try:
        return _rewrite(args) if args.command == "rewrite" else _verify(args)
    except Exception as error:  # A hostile file may break onnx, NumPy or ONNX Runtime anywhere.
        text = str(error) if isinstance(error, OnnxError) else f"{type(error).__name__}: {error}"
        if isinstance(error, files.RunError):
            text += f"\n{SIZE_HINT}"
        if args.json:
            _print_json({"ok": False, "error": text})
        else:
            print(f"error: {text}", file=sys.stderr)
        return 2


def _print_json(found: dict) -> None:
    print(json.dumps(found, allow_nan=False))


def _rewrite(args: argparse.Namespace) -> int:
    model = files.load(args.model)
    report = rewrite(model, dict(args.size))
    done = any(map(is_ours, model.graph.node))
    if done and args.target == "tensorrt":
        convert(model, dict(args.size))
        report.append(Found([], "note", NEVER_RUN))
    if done:
        files.save(model, args.output)
    if args.json:
        found = [dataclasses.asdict(entry) for entry in report]
        _print_json({"ok": done, "output": str(args.output) if done else None, "found": found})
        return 0 if done else 1
    for entry in report:
        error = "" if entry.error is None else f" (relative error {entry.error:.1e})"
        nodes = f"{', '.join(entry.nodes)}: " if entry.nodes else ""
        print(f"{entry.status}: {nodes}{entry.reason}{error}")
    print(f"wrote {args.output}" if done else "nothing was replaced, and nothing was written")
    return 0 if done else 1


def _verify(args: argparse.Namespace) -> int:
    against = None if args.against is None else files.load(args.against)
    report = verify(files.load(args.model), against, dict(args.size))
    if args.json:
        _print_json({"ok": report.ok, **dataclasses.asdict(report)})
        return 0 if report.ok else 1
    for entry in report.nodes + report.outputs:
        name = f"node {entry['node']}" if "node" in entry else f"output {entry['output']}"
        said = entry.get("reason") or f"relative error {entry['error']:.1e} of {entry['limit']:.0e}"
        where = f"{name}, {entry['way']}, run {entry['run']}"
        print(f"{'ok' if entry['ok'] else 'WRONG'}: {where}: {said}")
    for text in report.warnings:
        print(f"warning: {text}")
    for text in report.failures:
        print(f"FAILED: {text}")
    print("right" if report.ok else "wrong")
    return 0 if report.ok else 1
