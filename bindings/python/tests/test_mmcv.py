"""mmcv, with its compiled operators, calls msda."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("mmcv", reason="mmcv is not installed")
pytest.importorskip("mmcv._ext", reason="mmcv is installed without its operators")

import msda_attn.integrations.mmcv as integration  # noqa: E402
from counting import Calls  # noqa: E402
from mmcv.ops import multi_scale_deform_attn as original  # noqa: E402

# Imported by name before the patch, as other repositories do.
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch  # noqa: E402
from msda_attn.integrations import research  # noqa: E402
from test_research import SHAPES, gradients, inputs  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402


@pytest.fixture(autouse=True)
def _undone():
    yield
    integration.unpatch()


def state() -> list[object]:
    extension = importlib.import_module("mmcv._ext")
    return [
        original.multi_scale_deformable_attn_pytorch,
        multi_scale_deformable_attn_pytorch,
        original.MultiScaleDeformableAttnFunction.forward,
        "apply" in vars(original.MultiScaleDeformableAttnFunction),
        extension.ms_deform_attn_forward,
        extension.ms_deform_attn_backward,
    ]


def attention() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = original.MultiScaleDeformableAttention(
        embed_dims=32, num_heads=4, num_levels=2, num_points=3, dropout=0.0, batch_first=True
    ).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module, {
        "query": torch.randn(3, 11, 32, dtype=torch.float64),
        "value": torch.randn(3, 42, 32, dtype=torch.float64),
        "reference_points": torch.rand(3, 11, 2, 2, dtype=torch.float64),
        "spatial_shapes": torch.tensor(SHAPES),
        "level_start_index": torch.tensor([0, 30]),
    }


def test_the_module_computes_the_same() -> None:
    module, given = attention()
    parameters = list(module.parameters())
    with Calls() as calls:
        expected = module(**given)
        expected_gradients = gradients(expected, parameters)
    assert calls.count["msda._forward_tables"] == 0
    with integration.patch(), Calls() as calls:
        got = module(**given)
        got_gradients = gradients(got, parameters)
    assert calls.count["msda._forward_tables"] == 1
    assert calls.count["aten.grid_sampler_2d"] == 0
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got_gradients, expected_gradients)


def test_the_patch_is_idempotent_and_undone_completely() -> None:
    before = state()
    integration.patch()
    once = state()
    with integration.patch():
        pass
    assert all(a is b for a, b in zip(state(), once, strict=True))
    assert [a is b for a, b in zip(once, before, strict=True)] == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    integration.unpatch()
    assert all(a is b for a, b in zip(state(), before, strict=True))


def test_a_handle_undoes_only_its_own_call() -> None:
    before = state()
    stale = integration.patch()
    integration.unpatch()
    # The same functions, by another way.
    other = research.patch(original)
    handle = integration.patch()
    once = state()
    stale.undo()
    other.undo()
    assert all(a is b for a, b in zip(state(), once, strict=True))
    handle.undo()
    assert all(a is b for a, b in zip(state(), before, strict=True))


def test_functions_and_compiled_functions_compute_the_same() -> None:
    value, shapes, starts, locations, weights = inputs()
    wanted = [t.requires_grad_() for t in (value, locations, weights)]
    expected = original.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    expected_gradients = gradients(expected, wanted)
    extension = importlib.import_module("mmcv._ext")

    class Own(torch.autograd.Function):
        """A function of another repository over mmcv's compiled functions."""

        @staticmethod
        def forward(ctx, *args):
            ctx.save_for_backward(*args)
            return extension.ms_deform_attn_forward(*args, im2col_step=64)

        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            value, shapes, starts, locations, weights = ctx.saved_tensors
            results = [torch.zeros_like(t) for t in (value, locations, weights)]
            extension.ms_deform_attn_backward(
                *ctx.saved_tensors, grad.contiguous(), *results, im2col_step=64
            )
            return results[0], None, None, results[1], results[2]

    with integration.patch():
        for got in (
            multi_scale_deformable_attn_pytorch(value, shapes, locations, weights),
            original.MultiScaleDeformableAttnFunction.apply(
                value, shapes, starts, locations, weights, 64
            ),
            Own.apply(value, shapes, starts, locations, weights),
        ):
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(gradients(got, wanted), expected_gradients)
