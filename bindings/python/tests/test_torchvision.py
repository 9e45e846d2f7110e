"""Lists of feature maps."""

from __future__ import annotations

import collections

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from msda_attn.integrations.torchvision import (  # noqa: E402
    flatten_features,
    multi_scale_deform_attn,
)
from test_research import grid_sample  # noqa: E402

SIZES = [(6, 5), (3, 4)]


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_feature_maps_give_what_grid_sample_gives(kind: type) -> None:
    torch.manual_seed(0)
    maps = [torch.randn(2, 8, *size, dtype=torch.float64, requires_grad=True) for size in SIZES]
    locations = torch.rand(2, 7, 2, 2, 3, 2, dtype=torch.float64) * 1.4 - 0.2
    weights = torch.rand(2, 7, 2, 2, 3, dtype=torch.float64)
    if kind is dict:
        features = collections.OrderedDict((str(i), m) for i, m in enumerate(maps))
    else:
        features = kind(maps)
    got = multi_scale_deform_attn(features, locations, weights)
    value = torch.cat([m.flatten(2) for m in maps], dim=2).transpose(1, 2).reshape(2, 42, 2, 4)
    expected = grid_sample(value, torch.tensor(SIZES), locations, weights)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), maps), torch.autograd.grad(expected.sum(), maps)
    )
    border = multi_scale_deform_attn(features, locations, weights, padding="border")
    assert not torch.equal(border, got)


def test_maps_that_do_not_fit_are_refused() -> None:
    locations, weights = torch.rand(2, 7, 2, 2, 3, 2), torch.rand(2, 7, 2, 2, 3)
    with pytest.raises(
        ValueError, match=r"features: got shapes \[\(2, 8, 6, 5\), \(2, 4, 3, 4\)\]"
    ):
        multi_scale_deform_attn(
            [torch.rand(2, 8, 6, 5), torch.rand(2, 4, 3, 4)], locations, weights
        )
    with pytest.raises(ValueError, match="features: got 7 channels, expected a multiple of 2"):
        multi_scale_deform_attn([torch.rand(2, 7, 6, 5)], locations, weights)


@pytest.mark.parametrize(
    ("features", "locations", "error", "says"),
    [
        (5, (2, 7, 2, 2, 3, 2), TypeError, "features: got int, expected torch tensors in a list"),
        (["a"], (2, 7, 2, 2, 3, 2), TypeError, "features: got str, expected torch tensors"),
        ({"p3": None}, (2, 7, 2, 2, 3, 2), TypeError, "features: got NoneType, expected torch"),
        (torch.tensor(1.0), (2, 7, 2, 2, 3, 2), ValueError, r"features: got shapes \[\(\)\]"),
        (None, [0.5], TypeError, "sampling_locations: got list, expected a torch tensor"),
        (None, (7,), ValueError, r"sampling_locations: got shape \[7\], expected 6 dimensions"),
        (None, (2, 7, 2, 2), ValueError, r"sampling_locations: got shape \[2, 7, 2, 2\]"),
        (None, (2, 7, 0, 2, 3, 2), ValueError, r"sampling_locations: .*, and at least 1 head"),
    ],
    ids=str,
)
def test_the_argument_is_named(features, locations, error, says) -> None:
    maps = [torch.rand(2, 8, 6, 5), torch.rand(2, 8, 3, 4)] if features is None else features
    if isinstance(locations, tuple):
        locations = torch.rand(locations)
    with pytest.raises(error, match=says):
        multi_scale_deform_attn(maps, locations, torch.rand(2, 7, 2, 2, 3))


def test_wrong_heads_are_named() -> None:
    maps = [torch.rand(2, 8, 6, 5)]
    for heads, error, says in (
        (0, ValueError, "heads: got 0, expected at least 1"),
        (-2, ValueError, "heads: got -2, expected at least 1"),
        ("2", TypeError, "heads: got str, expected an integer"),
    ):
        with pytest.raises(error, match=says):
            flatten_features(maps, heads)


def test_it_compiles_with_dynamic_sizes() -> None:
    maps = [torch.rand(2, 8, 6, 5), torch.rand(2, 8, 3, 4)]
    locations, weights = torch.rand(2, 7, 2, 2, 3, 2), torch.rand(2, 7, 2, 2, 3)
    compiled = torch.compile(
        multi_scale_deform_attn, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    expected = multi_scale_deform_attn(maps, locations, weights)
    torch.testing.assert_close(compiled(maps, locations, weights), expected)


def test_a_feature_pyramid_of_torchvision() -> None:
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed")
    pyramid = ops.FeaturePyramidNetwork([4, 6], 8)
    features = pyramid({"p3": torch.rand(2, 4, 6, 5), "p4": torch.rand(2, 6, 3, 3)})
    output = multi_scale_deform_attn(
        features, torch.rand(2, 7, 2, 2, 3, 2), torch.rand(2, 7, 2, 2, 3)
    )
    assert output.shape == (2, 7, 8)
