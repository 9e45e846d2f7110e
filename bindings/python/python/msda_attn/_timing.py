"""Clocks for `python -m msda_attn bench`."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_FLUSH = 256 << 20
# Cycles of the GPU: about 30 us and 130 ms at 2 GHz.
_SHORTEST_DELAY, _LONGEST_DELAY = 1 << 16, 1 << 28
_FEWEST, _MOST = 3, 300
# With this many times the seconds, one run is enough.
_PATIENCE = 5


@dataclasses.dataclass
class Work:
    """Something to time, and its times in microseconds. `prepare` is not timed."""

    run: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None
    runs: list[float] = dataclasses.field(default_factory=list)
    # The host time of each run, where a GPU computes.
    host: list[float] = dataclasses.field(default_factory=list)
    # Why it has no times.
    failed: str = ""
    delay: int = _SHORTEST_DELAY
    # Seconds of its timed runs, with all that is not timed around them.
    spent: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def share(self, percent: int) -> float:
        """The time that this share of the runs does not exceed."""
        ordered = sorted(self.runs)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

    def enough(self, seconds: float) -> bool:
        fewest = 1 if self.spent >= _PATIENCE * seconds else _FEWEST
        done = len(self.runs) >= fewest and self.spent >= seconds
        return bool(self.failed) or done or len(self.runs) >= _MOST

    def record(self) -> dict[str, Any]:
        """Milliseconds as the records of the command `msda` have them."""
        shares = {"median": self.median, "min": min(self.runs)}
        shares |= {"p10": self.share(10), "p90": self.share(90)}
        time = {name: us / 1e3 for name, us in shares.items()} | {"runs": len(self.runs)}
        return {"time": time, "host_us": statistics.median(self.host) if self.host else None}


class CpuClock:
    """Wall time, caches warm."""

    warm_up = 1

    def time(self, work: Work) -> None:
        given = work.prepare()
        start = time.perf_counter()
        work.run(given)
        work.runs.append((time.perf_counter() - start) * 1e6)


class CudaClock:
    """Time on the GPU without host time, caches cold."""

    warm_up = 3

    def __init__(self) -> None:
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.written = torch.empty(_FLUSH, dtype=torch.uint8, device="cuda")
        self.read = torch.zeros(_FLUSH // 4, dtype=torch.float32, device="cuda")

    def time(self, work: Work) -> None:
        """No time if the host was too slow: the next run waits longer for it."""
        given = work.prepare()
        # Writing evicts L2. Reading then leaves clean lines, which need no write-back.
        self.written.zero_()
        self.read.sum()
        # The GPU is busy until the host has queued all work.
        torch.cuda._sleep(work.delay)
        self.begin.record()
        start = time.perf_counter()
        work.run(given)
        host = time.perf_counter() - start
        self.end.record()
        host_was_late = self.begin.query()
        self.end.synchronize()
        if not host_was_late:
            work.runs.append(self.begin.elapsed_time(self.end) * 1e3)
            work.host.append(host * 1e6)
        elif work.delay >= _LONGEST_DELAY:
            raise RuntimeError("the call waits for the GPU: its GPU time cannot be measured")
        else:
            work.delay *= 2


def measure(works: Sequence[Work], clock: CpuClock | CudaClock, seconds: float) -> None:
    """Times all works in rounds of one run each, so that a disturbance affects all of them."""
    for work in works:
        _attempt(work, lambda work=work: [work.run(work.prepare()) for _ in range(clock.warm_up)])
        work.spent = 0.0
    while waiting := [work for work in works if not work.enough(seconds)]:
        for work in waiting:
            _attempt(work, lambda work=work: clock.time(work))


def _attempt(work: Work, run: Callable[[], object]) -> None:
    start = time.perf_counter()
    try:
        run()
    except Exception as error:  # another implementation may raise anything
        work.failed = reason(error)
    work.spent += time.perf_counter() - start


def reason(error: BaseException) -> str:
    """The type and the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


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
