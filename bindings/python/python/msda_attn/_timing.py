"""Clocks for `python -m msda_attn bench`."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

_FLUSH = 256 << 20
_LONGEST_DELAY = 1 << 28
_FEWEST, _MOST = 5, 300


@dataclasses.dataclass
class Times:
    """Microseconds of repeated runs."""

    runs: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def share(self, percent: int) -> float:
        """The time that this share of the runs does not exceed."""
        ordered = sorted(self.runs)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

    def enough(self, seconds: float) -> bool:
        spent = sum(self.runs) / 1e6
        return len(self.runs) >= _MOST or (len(self.runs) >= _FEWEST and spent >= seconds)


class CpuClock:
    """Wall time, caches warm."""

    def time(self, work: Callable[[], object]) -> float | None:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e6


class CudaClock:
    """Time on the GPU without host time, caches cold."""

    def __init__(self) -> None:
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.written = torch.empty(_FLUSH, dtype=torch.uint8, device="cuda")
        self.read = torch.zeros(_FLUSH // 4, dtype=torch.float32, device="cuda")
        self.delay = 1 << 16

    def time(self, work: Callable[[], object]) -> float | None:
        """Microseconds, or None: the host was too slow, and the next run waits longer for it."""
        # Writing evicts L2. Reading then leaves clean lines, which need no write-back.
        self.written.zero_()
        self.read.sum()
        # The GPU is busy until the host has queued all work.
        torch.cuda._sleep(self.delay)
        self.begin.record()
        work()
        self.end.record()
        host_was_late = self.begin.query()
        self.end.synchronize()
        if not host_was_late:
            return self.begin.elapsed_time(self.end) * 1e3
        if self.delay >= _LONGEST_DELAY:
            raise RuntimeError("the call waits for the GPU: its GPU time cannot be measured")
        self.delay *= 2
        return None


def measure(
    works: dict[str, Callable[[], object]], clock: CpuClock | CudaClock, seconds: float
) -> dict[str, Times]:
    """Times all works in turns, so that a disturbance hits all of them."""
    for work in works.values():
        work()
    times = {name: Times() for name in works}
    while waiting := [name for name in works if not times[name].enough(seconds)]:
        for name in waiting:
            took = clock.time(works[name])
            if took is not None:
                times[name].runs.append(took)
    return times


def host_time(work: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Microseconds of the host per call: the median over loops of calls that wait for nothing."""
    calls = 50
    loops = []
    for _ in range(25):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        loops.append((time.perf_counter() - start) / calls * 1e6)
        synchronize()
    # The first loops warm up.
    return statistics.median(loops[5:])
