"""`msda.explain` says which kernels a call gets, and why, also for a GPU that is not here."""

from __future__ import annotations

import msda_attn as msda
import pytest
import torch
from msda_attn import _native
from support import gpu, problem


def call(device="sm_90", change=lambda tensor: tensor, **sizes):
    """The explanation of a decoder with a few queries."""
    sizes = {"batch": 1, "queries": 300, "heads": 8, "channels": 32, **sizes}
    value, shapes, starts, locations, weights = problem(**sizes)
    return msda.explain(change(value), shapes, starts, locations, weights, device=device)


def test_a_gpu_can_be_described():
    found = call()
    assert found.problem == "b1_q300_h8_d32_l6x9.3x5.2x2_p4_bshd_f32_s73"
    assert found.target == "sm_90 with 132 SMs"
    for name, part in (("forward", found.forward), ("backward", found.backward)):
        assert part.kernel.startswith("rows:"), part
        assert part.why.startswith("There are few queries") and part.why.endswith(".")
        assert part.stages and all(key and why for key, why in part.stages)
        assert part.kernel not in [kernel for kernel, _ in part.refused]
        assert f"\n{name}: {part.kernel}\n  There are few queries" in str(found)
    # The gradient of value has a kernel of its own.
    assert len(found.backward.stages) > len(found.forward.stages)
    assert not found.backward.workspace and "workspace" not in str(found)


def test_refusals_have_their_reasons():
    found = call(change=torch.Tensor.double)
    assert found.forward.kernel == "generic"
    assert found.forward.why.startswith("No faster kernel accepts the request: ")
    assert any("f64" in why for _, why in found.forward.refused)
    assert "\n  refused, because values are f64, and it computes in f32: rows:" in str(found)


def test_kinds_and_strides_of_value():
    found = call().forward
    for change in (
        lambda v: v.to("meta"),
        lambda v: v.numpy(),
        lambda v: v.transpose(1, 2).contiguous().transpose(1, 2),
        lambda v: v.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        assert call(change=change).forward.kernel == found.kernel
    # Rows that begin at any byte get another kernel.
    assert call(change=lambda v: torch.cat([v, v], 3)[..., 1:33]).forward != found


def test_architectures_and_sizes_matter():
    small, large = call("sm_75"), call("sm_90", batch=8, queries=5000)
    assert small.target.startswith("sm_75 with 40 SMs") and small.forward != call().forward
    assert "many queries" in large.forward.why
    assert f"  workspace: {large.backward.workspace:,} bytes\n" in str(large)


def test_both_forms_and_the_gradients_that_are_needed():
    value, shapes, _, offsets, logits = problem(queries=300, heads=8, channels=32)
    sizes = shapes.tolist()
    reference = torch.rand(2, 300, 1, 4)
    tensors = (value, sizes, None, reference, offsets, logits)
    everything = msda.explain(*tensors, device="sm_80")
    assert "fused4" in everything.forward.stages[-1][0]
    value.requires_grad_()
    only_value = msda.explain(*tensors, device="sm_80")
    assert only_value.forward == everything.forward
    assert len(only_value.backward.stages) < len(everything.backward.stages)


def test_the_cpu_is_described():
    found = call(device=None)
    assert found.forward.kernel == found.backward.kernel == _native.cpu_isa()
    assert found.target == f"the CPU, on {torch.get_num_threads()} threads" or (
        torch.get_num_threads() == 1 and found.target == "the CPU, on the calling thread"
    )
    assert "because the call is small" in call(device="cpu", queries=1).target


@gpu
def test_the_gpu_of_this_machine():
    value, shapes, starts, locations, weights = problem(device="cuda", channels=32)
    found = msda.explain(value, shapes, starts, locations, weights)
    assert found.problem.endswith(", level sizes on the GPU")
    assert torch.cuda.get_device_name() in found.target and found.forward.stages


@pytest.mark.parametrize(
    "device, error, says",
    [
        ("tpu", ValueError, "device: got 'tpu', expected 'cpu', 'cuda', or an architecture"),
        ("sm_13", ValueError, "architecture: got sm_13, expected one of sm_75, sm_80"),
        ("sm_9x", ValueError, "architecture: got sm_9x, expected one like sm_80"),
    ],
)
def test_wrong_devices_are_named(device, error, says):
    with pytest.raises(error, match=says):
        call(device)


def test_wrong_arguments_are_named():
    value, shapes, starts, locations, weights = problem()
    with pytest.raises(TypeError, match="explain: got 1 tensors behind level_start_index"):
        msda.explain(value, shapes, starts, locations)
    with pytest.raises(ValueError, match="attention_weights: got shape"):
        msda.explain(value, shapes, starts, locations, weights[..., :1])
    with pytest.raises(ValueError, match="padding: got 'none'"):
        msda.explain(value, shapes, starts, locations, weights, padding="none")
