"""Draws docs/speed.svg from records: the operator on an H200 beside other implementations.

python scripts/chart.py
"""

from __future__ import annotations

import html
import json
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
RECORDS = {
    "Deformable-DETR encoder, batch 4": "2026-11-18-peers-detr-encoder.json",
    "RT-DETR decoder, batch 16": "2026-11-18-peers-rt-detr-decoder.json",
}
ENGINES = {
    "cuda": "msda",
    "peer:triton-query-block": "query-block Triton",
    "peer:dcnv4-safe": "FlashDeformAttn",
    "peer:triton": "msda-triton",
}
WIDTH, LABEL, BAR, ROW, GROUP = 860, 150, 420, 19, 30
LEFT = [LABEL, LABEL + BAR // 2 + 130]
INK, GREY, OURS, THEIRS = "#1b1f24", "#57606a", "#0a7c66", "#b6bec8"


def text(x: float, y: float, words: str, **style: object) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{html.escape(words)}</text>'


def times(file: str, dtype: str, which: str) -> list[tuple[str, float]]:
    """Names and microseconds, in the order of ENGINES."""
    record = json.loads((ROOT / "records/h200" / file).read_text())
    found = {
        row["engine"]: row["time"]["median"] * 1e3
        for row in record["measurements"]
        if row["dtype"] == dtype and row["pass"] == which
    }
    return [(name, found[engine]) for engine, name in ENGINES.items()]


def bars(x: float, y: float, rows: list[tuple[str, float]], names: bool) -> list[str]:
    longest, room, parts = max(us for _, us in rows), BAR / 2 - 20, []
    for i, (name, us) in enumerate(rows):
        top, ours = y + i * ROW, name == "msda"
        color, weight = (OURS, "600") if ours else (THEIRS, "400")
        if names:
            label = text(x - 8, top + 12, name, text_anchor="end", fill=INK, font_weight=weight)
            parts.append(label)
        width = us / longest * room
        parts.append(
            f'<rect x="{x}" y="{top}" width="{width:.1f}" height="14" rx="2" fill="{color}"/>'
        )
        times_msda = "" if ours else f"  {us / rows[0][1]:.1f}x"
        number = f"{us:.0f} us" if us >= 100 else f"{us:.1f} us"
        parts.append(
            text(x + width + 6, top + 12, number + times_msda, fill=GREY, font_weight=weight)
        )
    return parts


def main() -> None:
    parts, y = [], 46
    parts.append(text(LEFT[0], 28, "forward", fill=INK, font_weight="600"))
    parts.append(text(LEFT[1], 28, "backward", fill=INK, font_weight="600"))
    for title, file in RECORDS.items():
        for dtype in ("f16", "f32"):
            parts.append(text(16, y + 6, f"{title}, {dtype}", fill=INK, font_weight="600"))
            y += 14
            for x, which in zip(LEFT, ("forward", "backward")):
                parts += bars(x, y, times(file, dtype, which), names=x == LEFT[0])
            y += len(ENGINES) * ROW + GROUP
    parts.append(
        text(
            16, y, "NVIDIA H200, median time, cold caches; 2.0x: twice the time of msda", fill=GREY
        )
    )
    y += 16
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" font-family="system-ui, sans-serif" font-size="12.5">'
        f'<rect width="{WIDTH}" height="{y}" rx="8" fill="#ffffff"/>'
    )
    (ROOT / "docs/speed.svg").write_text(head + "\n" + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
