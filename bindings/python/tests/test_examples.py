"""The examples run, and their pictures show what they should."""

from __future__ import annotations

import os
import pathlib
import re
import struct
import subprocess
import sys
import zlib

import pytest
from msda_attn import plot

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: object, threads: int = 1) -> str:
    # One thread: models this small gain nothing from more, and lose much on a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_png(path: pathlib.Path) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of a PNG of msda_attn.plot, with every checksum checked."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        (checksum,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert zlib.crc32(body) == checksum
        chunks[body[:4]] = body[4:]
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert kind == [8, 2, 0, 0, 0]
    pixels = zlib.decompress(chunks[b"IDAT"])
    rows = [pixels[y * (3 * width + 1) :][: 3 * width + 1] for y in range(height)]
    assert len(pixels) == height * (3 * width + 1) and all(row[0] == 0 for row in rows)
    return width, height, [row[1:] for row in rows]


def colors(rows: list[bytes]) -> set[bytes]:
    return {row[x : x + 3] for row in rows for x in range(0, len(row), 3)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[pathlib.Path, str]:
    pytest.importorskip("torch", reason="the examples need torch")
    folder = tmp_path_factory.mktemp("shapes")
    return folder, run("train_shapes.py", "--out", folder, "--goal", "0.9")


def test_a_detector_learns_to_find_shapes(trained):
    folder, says = trained
    losses = [float(loss) for loss in re.findall(r"loss +([0-9.]+)", says)]
    assert losses[-1] < losses[0]
    assert re.search(r"^found the shapes: score (9|10)\d%$", says, re.MULTILINE)
    width, height, rows = read_png(folder / "loss.png")
    assert (width, height) == (800, 480)
    assert bytes(plot.PALETTE[4]) in colors(rows) and bytes(plot.PALETTE[5]) in colors(rows)


def test_the_picture_shows_where_a_query_looks(trained, tmp_path):
    folder, _ = trained
    picture = tmp_path / "looks.png"
    says = run("where_it_looks.py", "--weights", folder / "detector.pt", "--out", picture)
    assert re.match(r"query \d+: \w+, truth: (circle|square|triangle)\n", says)
    width, height, rows = read_png(picture)
    assert (width, height) == (680, 736)
    # The legend has a disc of each level's colour.
    assert {bytes(color) for color in plot.PALETTE[:3]} <= colors(rows)


def test_the_detector_is_deployed(trained, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"the example needs {package}")
    folder, _ = trained
    says = run("deploy_shapes.py", "--weights", folder / "detector.pt", "--out", tmp_path)
    found, all_shapes = map(int, re.search(r"found (\d+) of (\d+) shapes", says).groups())
    assert 0.6 * all_shapes < found <= all_shapes
    assert float(re.search(r"difference to torch: (\S+)", says).group(1)) < 1e-4
    width, height, rows = read_png(tmp_path / "boxes.png")
    assert (width, height) == (1000, 370)
    # Boxes and the legend have the colours of the shapes.
    assert {bytes(color) for color in plot.PALETTE[1:4]} <= colors(rows)


def test_msda_can_be_swapped_into_transformers():
    pytest.importorskip("torch", reason="the example needs torch")
    pytest.importorskip("transformers", reason="the example needs transformers")
    import msda_attn as msda

    if not hasattr(msda, "patch_transformers"):
        pytest.skip("this version of msda has no patch_transformers")
    says = run("swap_transformers.py", "--side", "128", "--runs", "1")
    assert "times as fast" in says
    assert float(re.search(r"largest difference .*: (\S+)", says).group(1)) < 1e-3


def test_a_picture_is_written_as_it_was_drawn(tmp_path):
    canvas = plot.Canvas(20, 10, (1, 2, 3))
    canvas.fill(2, 3, 5, 6, (255, 0, 0))
    canvas.save(tmp_path / "a.png")
    width, height, rows = read_png(tmp_path / "a.png")
    assert (width, height) == (20, 10)
    for y, row in enumerate(rows):
        for x in range(20):
            inside = 2 <= x < 5 and 3 <= y < 6
            assert row[3 * x : 3 * x + 3] == (b"\xff\0\0" if inside else b"\x01\x02\x03")


def test_drawing_off_the_picture_is_cut():
    canvas = plot.Canvas(8, 8)
    before = len(canvas.pixels)
    canvas.disc(-3, 4, 5, plot.BLACK)
    canvas.line((-10, -10), (20, 20), plot.BLACK)
    canvas.fill(-5, -5, 100, 2, plot.GREY)
    canvas.fill(9, 0, 12, 2, plot.GREY)
    canvas.text(-4, 5, "Wide text", plot.BLACK)
    assert len(canvas.pixels) == before
    assert canvas.pixels[:3] == bytes(plot.GREY)


def test_the_area_of_a_disc_is_that_of_a_circle():
    canvas = plot.Canvas(60, 60, (0, 0, 0))
    canvas.disc(30.2, 29.7, 20, (255, 255, 255))
    area = sum(canvas.pixels[::3]) / 255
    assert area == pytest.approx(3.14159 * 400, rel=0.01)


def test_discs_are_where_the_samples_are(tmp_path):
    black = [[[0.0, 0.0, 0.0]] * 32] * 32
    path = tmp_path / "looks.png"
    plot.sampling_points(path, black, [[[0.25, 0.75]]], [[1.0]], [1], side=320)
    _, _, rows = read_png(path)
    x, y = 20 + round(0.25 * 320), 48 + round(0.75 * 320)
    at = rows[y][3 * x : 3 * x + 3]
    assert all(abs(a - 0.85 * b) < 4 for a, b in zip(at, plot.PALETTE[0]))
    away = rows[y - 40][3 * x : 3 * x + 3]
    assert away == b"\0\0\0"


def test_a_chart_of_one_point_or_a_constant_is_drawn(tmp_path):
    plot.line_chart(tmp_path / "one.png", {"a": [(1, 2)]})
    plot.line_chart(tmp_path / "flat.png", {"a": [(0, 3), (5, 3)], "b": [(0, 3), (5, 3)]})
    assert bytes(plot.PALETTE[4]) in colors(read_png(tmp_path / "one.png")[2])


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(0, float("nan"))]}], ids=str)
def test_a_chart_without_numbers_is_refused(series, tmp_path):
    with pytest.raises(ValueError, match="series: got"):
        plot.line_chart(tmp_path / "no.png", series)
    assert not (tmp_path / "no.png").exists()


def test_a_wrong_number_of_samples_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected 2, the sum of points"):
        plot.sampling_points(tmp_path / "no.png", [[[0, 0, 0]]], [[[0, 0]]], [[1]], [2])


@pytest.mark.parametrize("image", [[], [[]], [[[0, 0]]], [[[[0, 0]]]]], ids=str)
def test_a_wrong_image_is_refused(image, tmp_path):
    with pytest.raises(ValueError, match="image: got .* expected .height, width, 3."):
        plot.sampling_points(tmp_path / "no.png", image, [[[0, 0]]], [[1]], [1])


def test_samples_that_are_not_finite_are_not_drawn(tmp_path):
    nan, black = float("nan"), [[[0.0, 0.0, 0.0]] * 4] * 4
    pictures = []
    for places, shares in (([[0.5, 0.5], [nan, 0.5]], [1.0, 1.0]), ([[0.5, 0.5]], [1.0])):
        path = tmp_path / "one.png"
        plot.sampling_points(path, black, [places], [shares], [len(shares)], side=64)
        pictures.append(path.read_bytes())
    assert pictures[0] == pictures[1]


def test_wrong_pixels_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got 5 bytes, expected 2 x 1 x 3 = 6"):
        plot.write_png(tmp_path / "no.png", 2, 1, b"12345")
