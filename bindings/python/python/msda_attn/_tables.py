"""The tables and the summary of `python -m msda_attn bench`."""

from __future__ import annotations

import textwrap
from typing import Any

from ._measure import BACKWARD, FORWARD, HOST_COLUMNS, Result
from ._peers import OURS, TORCH
from ._workloads import Workload

WIDTH = 80


def number(x: float) -> str:
    """Three digits."""
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def _medians(results: list[Result]) -> dict[tuple[str, str], float]:
    """Microseconds per implementation and pass."""
    timed = [result for result in results if result.work is not None and not result.missing]
    return {(result.name, result.which): result.work.median for result in timed}


def table(name: str, workload: Workload, results: list[Result], dtype: str, device: str) -> str:
    """The table of one workload."""
    scale, unit = (1000.0, "milliseconds") if device == "cpu" else (1.0, "microseconds")
    medians, ours = _medians(results), results[0].name
    lines = [
        textwrap.fill(f"{name}: {workload.about}", WIDTH),
        f"{workload.rows:,} queries, {dtype}, {unit} per call (medians)",
        f"{'implementation':<23}{'forward':>9}{'/ msda':>9}{'backward':>12}{'/ msda':>9}  checked",
    ]
    names = list(dict.fromkeys(result.name for result in results))
    for row in [
        name for name in names if any((name, which) in medians for which in (FORWARD, BACKWARD))
    ]:
        cells = ""
        for which, width in ((FORWARD, 9), (BACKWARD, 12)):
            median, base = medians.get((row, which)), medians.get((ours, which))
            ratio = f"{number(median / base)}x" if median and base and row != ours else ""
            cells += f"{number(median / scale) if median else '-':>{width}}{ratio:>9}"
        worst = max(r.error.ratio for r in results if r.name == row and r.error and not r.missing)
        lines.append(f"{row:<23}{cells}  {'exact' if worst <= 1 else f'{number(worst)}x off'}")
    missing = dict.fromkeys((r.name, r.missing) for r in results if r.missing)
    lines += [textwrap.fill(f"{n}: {why}", WIDTH, subsequent_indent="  ") for n, why in missing]
    return "\n".join(lines)


def host_table(found: list[dict[str, Any]]) -> str:
    """The table of host times."""
    lines = [
        "host time of an eager call with one sample, microseconds",
        f"{'implementation':<23}{'no grad':>12}{'with grad':>12}{'fwd + bwd':>12}",
    ]
    for entry in found:
        times = [entry["host_us"][column] for column in HOST_COLUMNS]
        cells = [number(time) if isinstance(time, float) else "-" for time in times]
        lines.append(f"{entry['name']:<23}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def _span(ratios: list[float]) -> str:
    low, high = number(min(ratios)), number(max(ratios))
    return low if low == high else f"{low} to {high}"


def _ratios(runs: list[list[Result]], which: str, torch: bool) -> list[float]:
    """Times of torch, or of the fastest other peer, over ours, per workload."""
    ratios = []
    for medians in map(_medians, runs):
        others = {name: t for (name, p), t in medians.items() if p == which and name != OURS.name}
        times = [time for name, time in others.items() if (name == TORCH.name) == torch]
        if times and (OURS.name, which) in medians:
            ratios.append(min(times) / medians[OURS.name, which])
    return ratios


def summary(runs: list[list[Result]], host: list[dict[str, Any]], where: str) -> str:
    """Two sentences: how fast, and compared with what."""
    forward, backward = (_ratios(runs, which, True) for which in (FORWARD, BACKWARD))
    first = f"On {where}, over {len(runs)} workload{'s' if len(runs) > 1 else ''}, msda is "
    parts = [f"{_span(forward)} times as fast as torch's grid_sample forward"] if forward else []
    parts += [f"{_span(backward)} times as fast backward"] if backward else []
    first += " and ".join(parts) if parts else "alone: nothing else could be timed"
    fastest = _ratios(runs, FORWARD, False)
    eager = host[0]["host_us"]["no grad"] if host else None
    second = ""
    if fastest:
        second = f"Forward, it is {_span(fastest)} times as fast as the fastest other peer"
    if isinstance(eager, float):
        cost = f"n eager call without gradients costs {number(eager)} us on the host"
        second += f", and a{cost}" if second else f"A{cost}"
    return textwrap.fill(f"{first}. {second or 'No other peer is installed'}.", WIDTH)
