"""The examples run, and their pictures show what they should."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: object) -> str:
    # One thread: models this small gain nothing from more, and lose much on a busy machine.
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def plot():
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from msda_attn import plot

    return plot


def places(path: pathlib.Path, color: str):
    """Rows and columns of the pixels of about a colour."""
    import matplotlib.colors
    import matplotlib.image

    pixels = matplotlib.image.imread(path)[..., :3]
    return (abs(pixels - matplotlib.colors.to_rgb(color)) < 0.02).all(-1).nonzero()


def has_color(path: pathlib.Path, color: str) -> bool:
    return len(places(path, color)[0]) > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[pathlib.Path, str]:
    pytest.importorskip("torch", reason="the examples need torch")
    pytest.importorskip("matplotlib", reason="the examples draw with matplotlib")
    folder = tmp_path_factory.mktemp("shapes")
    return folder, run("train_shapes.py", "--out", folder, "--goal", "0.9")


def test_a_detector_learns_to_find_shapes(trained):
    folder, says = trained
    losses = [float(loss) for loss in re.findall(r"loss +([0-9.]+)", says)]
    assert losses[-1] < losses[0]
    assert re.search(r"^found the shapes: score (9|10)\d%$", says, re.MULTILINE)
    assert has_color(folder / "loss.png", "tab:orange")


def test_the_picture_shows_where_a_query_looks(trained, tmp_path, plot):
    folder, _ = trained
    picture = tmp_path / "looks.png"
    says = run("where_it_looks.py", "--weights", folder / "detector.pt", "--out", picture)
    assert re.match(r"query \d+: \w+, truth: (circle|square|triangle)\n", says)
    assert all(has_color(picture, color) for color in plot.COLORS[:3])


def test_the_detector_is_deployed(trained, tmp_path, plot):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"the example needs {package}")
    folder, _ = trained
    says = run("deploy_shapes.py", "--weights", folder / "detector.pt", "--out", tmp_path)
    found, all_shapes = map(int, re.search(r"found (\d+) of (\d+) shapes", says).groups())
    assert 0.6 * all_shapes < found <= all_shapes
    assert float(re.search(r"difference to torch: (\S+)", says).group(1)) < 1e-4
    # The legend has the colours of the boxes.
    assert all(has_color(tmp_path / "boxes.png", color) for color in plot.COLORS[1:4])


# Twice as wide as it is high.
BLUE = [[[0.0, 0.0, 1.0]] * 32] * 16


def test_discs_are_where_the_samples_are(tmp_path, plot):
    path = tmp_path / "looks.png"
    plot.sampling_points(path, BLUE, [[[0.25, 0.75]]], [[1.0]], [1])
    for image, disc, expected in zip(
        places(path, "blue"), places(path, plot.COLORS[0]), (0.75, 0.25)
    ):
        low, high = image.min(), image.max()
        # The legend has another disc below the image.
        inside = disc[places(path, plot.COLORS[0])[0] < places(path, "blue")[0].max()]
        assert (inside.mean() - low) / (high - low) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    "image, points, says",
    [
        (BLUE, [2], r"expected \(heads, 2, 2\) and \(heads, 2\): 2 is the sum of points"),
        ([], [1], r"image: got shape \(0,\), expected \(height, width, 3\)"),
        ([[[0, 0]]], [1], r"image: got shape \(1, 1, 2\), expected \(height, width, 3\)"),
    ],
    ids=str,
)
def test_wrong_shapes_are_refused(image, points, says, tmp_path, plot):
    with pytest.raises(ValueError, match=says):
        plot.sampling_points(tmp_path / "no.png", image, [[[0, 0]]], [[1]], points)
    assert not (tmp_path / "no.png").exists()


def test_samples_that_are_not_finite_are_not_drawn(tmp_path, plot):
    nan = float("nan")
    pictures = []
    for places, shares in (([[0.5, 0.5], [nan, 0.5]], [1.0, 1.0]), ([[0.5, 0.5]], [1.0])):
        path = tmp_path / "one.png"
        plot.sampling_points(path, BLUE, [places], [shares], [len(shares)])
        pictures.append(path.read_bytes())
    assert pictures[0] == pictures[1]
