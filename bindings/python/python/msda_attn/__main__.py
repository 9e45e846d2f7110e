"""`python -m msda_attn`: commands of the package."""

from __future__ import annotations

import importlib
import os
import sys

from . import __version__

_COMMANDS = {
    "doctor": ("_doctor", "what works here and what is missing"),
    "bench": ("_bench", "times the operator, or whole models, beside others"),
    "onnx": ("onnx.command", "rewrites and verifies ONNX files"),
}


def usage() -> str:
    """The commands, one per line."""
    lines = [f"msda {__version__}: multi-scale deformable attention", ""]
    lines += [f"  python -m msda_attn {name:<8}{about}" for name, (_, about) in _COMMANDS.items()]
    lines += ["", "`python -m msda_attn COMMAND --help` lists the options of a command."]
    return "\n".join(lines)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"msda {__version__}")
        return 0
    command, *rest = arguments
    if command not in _COMMANDS:
        expected = " or ".join(_COMMANDS)
        print(f"error: command: got {command!r}, expected {expected}\n\n{usage()}", file=sys.stderr)
        return 2
    return importlib.import_module(f".{_COMMANDS[command][0]}", __package__).main(rest)


def main(arguments: list[str]) -> int:
    """Runs a command; the result is the exit code."""
    try:
        code = _run(arguments)
        # A Python that was started without an output has none.
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ImportError as error:
        if "hint:" not in str(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # As a program that the signal of a closed pipe has ended. Python must not write again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
