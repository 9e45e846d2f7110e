"""Small pictures as PNG files, without any dependency.

`line_chart` draws curves, `sampling_points` draws where a query looks. `Canvas` is what both draw
on.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Union

Color = tuple[int, int, int]
Path = Union[str, "os.PathLike[str]"]

WHITE, BLACK, GREY, LIGHT = (255, 255, 255), (20, 20, 20), (120, 120, 120), (225, 225, 225)
# Told apart by people with any kind of colour vision.
PALETTE: tuple[Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (204, 121, 167),
    (213, 94, 0), (0, 114, 178), (240, 228, 66), (120, 120, 120),
)  # fmt: skip

# Seven rows of five pixels per letter, one hexadecimal pair per row.
_FONT = {
    letter: bytes.fromhex(rows)
    for letter, rows in {
        "A": "0E11111F111111", "B": "1E11111E11111E", "C": "0E11101010110E", "D": "1E11111111111E",
        "E": "1F10101E10101F", "F": "1F10101E101010", "G": "0E11101711110F", "H": "1111111F111111",
        "I": "0E04040404040E", "J": "0702020202120C", "K": "11121418141211", "L": "1010101010101F",
        "M": "111B1515111111", "N": "11191513111111", "O": "0E11111111110E", "P": "1E11111E101010",
        "Q": "0E11111115120D", "R": "1E11111E141211", "S": "0F10100E01011E", "T": "1F040404040404",
        "U": "1111111111110E", "V": "11111111110A04", "W": "11111115151B11", "X": "11110A040A1111",
        "Y": "11110A04040404", "Z": "1F01020408101F", "0": "0E11131519110E", "1": "040C040404040E",
        "2": "0E11010204081F", "3": "1F02040201110E", "4": "02060A121F0202", "5": "1F101E0101110E",
        "6": "0608101E11110E", "7": "1F010204080808", "8": "0E11110E11110E", "9": "0E11110F01020C",
        ".": "00000000000C0C", ",": "000000000C0408", ":": "000C0C000C0C00", "-": "0000000E000000",
        "+": "0004041F040400", "/": "01010204081010", "%": "18190204081303", "(": "02040808080402",
        ")": "08040202020408", "=": "00001F001F0000", " ": "00000000000000",
    }.items()
}  # fmt: skip


def write_png(path: Path, width: int, height: int, rgb: bytes) -> None:
    """Writes pixels, three bytes each, row by row."""
    if width < 1 or height < 1 or len(rgb) != width * height * 3:
        raise ValueError(
            f"rgb: got {len(rgb)} bytes, expected {width} x {height} x 3 = {width * height * 3}"
        )

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    row = width * 3
    # Each row starts with the number of its filter; 0 means none.
    lines = b"".join(b"\0" + rgb[y * row : (y + 1) * row] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*pair) for pair in chunks))


class Canvas:
    """A picture to draw on. The centre of the pixel in the top left corner is (0.5, 0.5)."""

    def __init__(self, width: int, height: int, background: Color = WHITE) -> None:
        self.width = width
        self.height = height
        self.pixels = bytearray(bytes(background) * (width * height))

    def save(self, path: Path) -> None:
        """Writes the picture as PNG."""
        write_png(path, self.width, self.height, bytes(self.pixels))

    def blend(self, x: int, y: int, color: Color, share: float) -> None:
        """Mixes a colour into a pixel. Pixels off the picture are ignored."""
        if share <= 0 or not (0 <= x < self.width and 0 <= y < self.height):
            return
        at = (y * self.width + x) * 3
        for i, part in enumerate(color):
            old = self.pixels[at + i]
            self.pixels[at + i] = round(old + (part - old) * min(share, 1.0))

    def disc(self, x: float, y: float, radius: float, color: Color, share: float = 1.0) -> None:
        """A filled circle."""
        for py in range(math.floor(y - radius - 1), math.ceil(y + radius + 1)):
            for px in range(math.floor(x - radius - 1), math.ceil(x + radius + 1)):
                distance = math.hypot(px + 0.5 - x, py + 0.5 - y)
                self.blend(px, py, color, share * max(0.0, min(1.0, radius + 0.5 - distance)))

    def line(
        self, start: tuple[float, float], end: tuple[float, float], color: Color, width: float = 1.5
    ) -> None:
        """A straight line."""
        (x0, y0), (x1, y1) = start, end
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy
        reach = width / 2 + 1
        for py in range(math.floor(min(y0, y1) - reach), math.ceil(max(y0, y1) + reach)):
            for px in range(math.floor(min(x0, x1) - reach), math.ceil(max(x0, x1) + reach)):
                cx, cy = px + 0.5 - x0, py + 0.5 - y0
                along = max(0.0, min(1.0, (cx * dx + cy * dy) / length)) if length else 0.0
                distance = math.hypot(cx - along * dx, cy - along * dy)
                self.blend(px, py, color, max(0.0, min(1.0, width / 2 + 0.5 - distance)))

    def frame(
        self, left: float, top: float, right: float, bottom: float, color: Color, width: float = 1.5
    ) -> None:
        """The outline of a rectangle."""
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        for start, end in zip(corners, corners[1:]):
            self.line(start, end, color, width)

    def fill(self, left: int, top: int, right: int, bottom: int, color: Color) -> None:
        """A filled rectangle."""
        left, right = max(left, 0), min(right, self.width)
        for y in range(max(top, 0), min(bottom, self.height)):
            at = (y * self.width + left) * 3
            self.pixels[at : at + 3 * (right - left)] = bytes(color) * max(0, right - left)

    def text(self, x: float, y: float, text: str, color: Color = BLACK, size: int = 2) -> None:
        """Capital letters, digits and some signs, from their top left corner."""
        for letter in text.upper():
            rows = _FONT.get(letter, b"\x1f" * 7)
            for row, bits in enumerate(rows):
                for column in range(5):
                    if bits >> (4 - column) & 1:
                        left, top = round(x) + column * size, round(y) + row * size
                        self.fill(left, top, left + size, top + size, color)
            x += 6 * size

    def image(self, left: int, top: int, pixels: Sequence[Sequence[Color]], scale: int) -> None:
        """A picture, each pixel drawn as a square."""
        for y, row in enumerate(pixels):
            for x, color in enumerate(row):
                at = left + x * scale, top + y * scale
                self.fill(*at, at[0] + scale, at[1] + scale, color)


def text_width(text: str, size: int = 2) -> int:
    """Pixels that a text takes."""
    return max(0, len(text) * 6 - 1) * size


def _round_steps(low: float, high: float, count: int) -> list[float]:
    """Round numbers from below `low` to above `high`."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * m for m in (1, 2, 5, 10) if power * m * count >= span)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, last + 1)]


def _label(number: float) -> str:
    return f"{number:,.6g}" if abs(number) < 1e6 else f"{number:.0e}"


def line_chart(
    path: Path,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    width: int = 800,
    height: int = 480,
) -> None:
    """Draws one curve per name, each a list of (x, y), and saves it as PNG."""
    points = [point for curve in series.values() for point in curve]
    if not points or not all(math.isfinite(n) for point in points for n in point):
        raise ValueError(f"series: got {len(points)} points, expected finite ones, at least one")
    xs = _round_steps(min(x for x, _ in points), max(x for x, _ in points), 6)
    ys = _round_steps(min(y for _, y in points), max(y for _, y in points), 5)
    # A single value has no span of its own.
    xs, ys = (n if len(n) > 1 else [n[0], n[0] + 1] for n in (xs, ys))
    canvas = Canvas(width, height)
    left, right = 30 + max(text_width(_label(y)) for y in ys), width - 30
    top, bottom = 76, height - 66

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0])
        up = (y - ys[0]) / (ys[-1] - ys[0])
        return left + across * (right - left), bottom - up * (bottom - top)

    for y in ys:
        level = place(xs[0], y)[1]
        canvas.fill(left, round(level), right, round(level) + 1, LIGHT)
        canvas.text(left - 10 - text_width(_label(y)), level - 7, _label(y), GREY)
    for x in xs:
        at = place(x, ys[0])[0]
        canvas.fill(round(at), bottom, round(at) + 1, bottom + 6, GREY)
        canvas.text(at - text_width(_label(x)) / 2, bottom + 12, _label(x), GREY)
    canvas.fill(left, bottom, right, bottom + 1, GREY)
    canvas.text(left, 16, title)
    canvas.text(left, 46, y_label, GREY)
    canvas.text(right - text_width(x_label), height - 26, x_label, GREY)
    legend = right
    for (name, curve), color in reversed(list(zip(series.items(), PALETTE[4:] + PALETTE[:4]))):
        placed = [place(x, y) for x, y in curve]
        for start, end in zip(placed, placed[1:]):
            canvas.line(start, end, color, 2.5)
        if len(placed) == 1:
            canvas.disc(*placed[0], 4, color)
        if len(series) > 1:
            legend -= text_width(name)
            canvas.text(legend, 46, name, color)
            legend -= 24
    canvas.save(path)


def _lists(array: Any) -> Any:
    return array.tolist() if hasattr(array, "tolist") else array


def sampling_points(
    path: Path,
    image: Any,
    locations: Any,
    weights: Any,
    points: Sequence[int],
    *,
    reference: Sequence[float] | None = None,
    boxes: Sequence[Sequence[float]] = (),
    title: str = "",
    side: int = 640,
) -> None:
    """Draws where one query looks, and saves it as PNG.

    Args:
        image: `(height, width, 3)` with numbers from 0 to 1.
        locations: `(heads, samples, 2)` as (x, y) from 0 to 1; the points of the first level come
            first. Samples with NaN or infinite numbers are left out.
        weights: `(heads, samples)`. The area of a disc is proportional to its weight.
        points: points per level. Each level has its colour.
        reference: the reference point of the query, (x, y) or (x, y, width, height).
        boxes: outlines to draw, (x, y, width, height) each, with the centre at (x, y).
        side: the longer side of the picture in pixels, about.
    """
    rows, places, shares = _lists(image), _lists(locations), _lists(weights)
    if any(len(head) != sum(points) for head in (*places, *shares)):
        raise ValueError(
            f"locations and weights: got {[len(head) for head in (*places, *shares)]} samples per "
            f"head, expected {sum(points)}, the sum of points"
        )
    height, width = len(rows), len(rows[0]) if len(rows) else 0
    if not height * width or any(len(pixel) != 3 for row in rows for pixel in row):
        raise ValueError(f"image: got {height} rows of {width}, expected (height, width, 3)")
    scale = max(1, side // max(height, width))
    margin, header, footer = 20, 48, 48
    canvas = Canvas(width * scale + 2 * margin, height * scale + header + footer)
    colors = [
        [tuple(round(255 * max(0.0, min(1.0, part))) for part in pixel) for pixel in row]
        for row in rows
    ]
    canvas.image(margin, header, colors, scale)
    canvas.text(margin, 16, title)

    def place(x: float, y: float) -> tuple[float, float]:
        return margin + x * width * scale, header + y * height * scale

    def outline(box: Sequence[float], color: Color) -> None:
        x, y, w, h = box
        canvas.frame(*place(x - w / 2, y - h / 2), *place(x + w / 2, y + h / 2), color, 2)

    for box in boxes:
        outline(box, WHITE)
    levels = [level for level, count in enumerate(points) for _ in range(count)]
    samples = [
        (share, place(*location), levels[i])
        for head, head_shares in zip(places, shares)
        for i, (location, share) in enumerate(zip(head, head_shares))
        if all(map(math.isfinite, (*location, share)))
    ]
    largest = max((share for share, _, _ in samples), default=0.0) or 1.0
    # Large discs first: small ones stay visible.
    for share, (x, y), level in sorted(samples, reverse=True):
        radius = 12 * math.sqrt(max(share, 0.0) / largest)
        canvas.disc(x, y, radius + 1, BLACK, 0.6)
        canvas.disc(x, y, radius, PALETTE[level % len(PALETTE)], 0.85)
    if reference is not None:
        x, y = place(*reference[:2])
        for color, thick in ((BLACK, 6.0), (WHITE, 3.0)):
            canvas.line((x - 11, y), (x + 11, y), color, thick)
            canvas.line((x, y - 11), (x, y + 11), color, thick)
        if len(reference) == 4:
            outline(reference, GREY)
    x = float(margin)
    for level in range(len(points)):
        canvas.disc(x + 7, canvas.height - 26, 7, PALETTE[level % len(PALETTE)])
        canvas.text(x + 20, canvas.height - 33, f"level {level + 1}")
        x += 44 + text_width(f"level {level + 1}")
    canvas.text(x, canvas.height - 33, "area = weight", GREY)
    canvas.save(path)
