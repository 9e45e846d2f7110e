"""The compiled part of the package."""

from collections.abc import Sequence
from os import PathLike
from typing import TypedDict

__version__: str
# The commit and the backends.
WORKLOADS: Sequence[tuple[str, str]]
# The names of the benchmark's workloads, and their texts in TOML.

# Address, name of the type, sizes, strides in elements.
_Array = tuple[int, str, Sequence[int], Sequence[int]]
# Pairs of height and width with starts, or addresses of both tables on the device, and levels.
_Levels = tuple[Sequence[tuple[int, int]], Sequence[int] | None] | tuple[int, int, int]
# Kernel, reason, stages, bytes of the workspace, and refusals with their reasons.
_Pass = tuple[str, str, list[tuple[str, str]], int, list[tuple[str, str]]]

class _Call(TypedDict):
    value: _Array
    levels: _Levels
    reference: _Array | None
    locations: _Array
    weights: _Array
    options: int
    points: int

def check(call: _Call) -> None:
    """Refuses a call with wrong types, sizes or levels. No element is read."""

def explain(call: _Call, place: str, threads: int, wanted: int) -> tuple[str, str, _Pass, _Pass]:
    """Which kernels a call gets, and why. No element is read.

    `place` is "cpu", the number of a GPU of this machine, or an architecture such as "sm_90".
    `wanted` has a bit per gradient: 1 value, 2 locations, 4 weights, 8 reference points."""

def forward(call: _Call, output: _Array) -> None:
    """Computes the output into memory of the caller."""

def cuda_level_key(levels: _Levels) -> list[int]:
    """The part of the key of a CUDA plan that level sizes give."""

def xla_handlers() -> list[tuple[str, list[int]]]:
    """XLA's name of each platform, and the addresses of the forward and the backward function
    there."""

def register_torch(cpu: str | PathLike[str], cuda: str | PathLike[str] | None = None) -> None:
    """Registers the kernels with torch's dispatcher: paths of `libtorch_cpu` and
    `libtorch_cuda`."""

def add_packages(folder: str | PathLike[str]) -> None:
    """A folder of Python packages in which NVRTC may be, such as `site-packages`."""

def cpu_isa() -> str:
    """The instruction set that the CPU backend uses here."""

def cpu_threads() -> int:
    """The number of threads that the CPU backend uses where the framework does not say one."""

def cuda_devices() -> list[tuple[str, str, int, int]]:
    """The GPUs: name, architecture, SMs, bytes of memory. An error says why there are none."""

def cuda_driver() -> tuple[int, int]:
    """The newest CUDA version that the driver supports."""

def cuda_plans() -> int:
    """How many plans the cache of CUDA calls holds."""

def nvrtc() -> tuple[str, str]:
    """The compiler of the kernels: its name and its file."""
