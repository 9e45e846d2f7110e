"""Results and gradients of the operator, against grid_sample and against finite differences."""

from __future__ import annotations

import msda_attn as msda
import pytest
import torch
from support import locations_of, plain, problem

LEVELS = ((6, 9), (3, 5), (2, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_output_is_that_of_grid_sample(device, dtype):
    inputs = problem(dtype=dtype, device=device)
    expected = plain(inputs.value, LEVELS, inputs.locations, inputs.weights)
    torch.testing.assert_close(msda.ms_deform_attn(*inputs), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_values_are_summed_in_f32(device, dtype):
    inputs = problem(dtype=dtype, device=device)
    wide = [tensor.double() for tensor in inputs.tensors()]
    expected = plain(wide[0], LEVELS, wide[1], wide[2])
    output = msda.ms_deform_attn(*inputs)
    assert output.dtype == dtype
    # One rounding of the result, and sums in float32.
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), expected, rtol=step, atol=1e-5)


@pytest.mark.parametrize("sampling", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("corners", [False, True])
def test_options_are_those_of_grid_sample(device, sampling, padding, corners):
    inputs = problem(dtype=torch.float64, device=device)
    expected = plain(
        inputs.value,
        LEVELS,
        inputs.locations,
        inputs.weights,
        mode=sampling,
        padding=padding,
        corners=corners,
    )
    output = msda.ms_deform_attn(*inputs, sampling=sampling, padding=padding, align_corners=corners)
    torch.testing.assert_close(output, expected)


def gradients(output, inputs):
    torch.manual_seed(1)
    grad = torch.randn(output.shape, dtype=output.dtype).to(output.device)
    return torch.autograd.grad(output, inputs, grad)


def test_gradients_are_those_of_grid_sample(device):
    inputs = problem(dtype=torch.float64, device=device).requires_grad_()
    expected = gradients(
        plain(inputs.value, LEVELS, inputs.locations, inputs.weights), inputs.tensors()
    )
    for got, want in zip(gradients(msda.ms_deform_attn(*inputs), inputs.tensors()), expected):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_the_needed_gradients_are_computed(device, which):
    inputs = problem(dtype=torch.float64, device=device)
    tensors = [inputs.tensors()[i].requires_grad_() for i in which]
    expected = gradients(plain(inputs.value, LEVELS, inputs.locations, inputs.weights), tensors)
    output = msda.ms_deform_attn(*inputs)
    for got, want in zip(gradients(output, tensors), expected):
        torch.testing.assert_close(got, want)
    msda.ms_deform_attn(*inputs).sum().backward()
    assert [t.grad is not None for t in inputs.tensors()] == [i in which for i in range(3)]


@pytest.mark.parametrize("numbers", [2, 4])
def test_the_fused_form_is_softmax_and_locations(device, numbers):
    inputs = problem(dtype=torch.float64, device=device)
    torch.manual_seed(2)
    reference = torch.rand(2, 7, 3, numbers, dtype=torch.float64).to(device)
    offsets = 2 * torch.randn(inputs.locations.shape, dtype=torch.float64).to(device)
    logits = 3 * torch.randn(inputs.weights.shape, dtype=torch.float64).to(device)
    tensors = [inputs.value, reference, offsets, logits]
    for tensor in tensors:
        tensor.requires_grad_()
    weights = logits.flatten(-2).softmax(-1).view(logits.shape)
    expected = plain(inputs.value, LEVELS, locations_of(reference, offsets, LEVELS), weights)
    output = msda.ms_deform_attn_fused(
        inputs.value, inputs.shapes, inputs.starts, reference, offsets, logits
    )
    torch.testing.assert_close(output, expected)
    for got, want in zip(gradients(output, tensors), gradients(expected, tensors)):
        torch.testing.assert_close(got, want)


def test_one_reference_point_stands_for_all_levels(device):
    inputs = problem(dtype=torch.float64, device=device)
    reference = torch.rand(2, 7, 1, 4, dtype=torch.float64, device=device).requires_grad_()
    offsets, logits = inputs.locations, inputs.weights
    levels = (inputs.shapes, inputs.starts)
    one = msda.ms_deform_attn_fused(inputs.value, *levels, reference, offsets, logits)
    all_levels = reference.expand(-1, -1, 3, -1)
    same = msda.ms_deform_attn_fused(inputs.value, *levels, all_levels, offsets, logits)
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    one.sum().backward()
    assert reference.grad.shape == reference.shape


def test_points_per_level(device):
    points = [3, 6, 2]
    inputs = problem(dtype=torch.float64, device=device, points=max(points)).requires_grad_()
    locations = torch.cat([inputs.locations[:, :, :, l, :p] for l, p in enumerate(points)], 3)
    weights = torch.cat([inputs.weights[:, :, :, l, :p] for l, p in enumerate(points)], 3)
    expected = plain(inputs.value, LEVELS, locations, weights, points=points)
    output = msda.ms_deform_attn(
        inputs.value, inputs.shapes, inputs.starts, locations, weights, points=points
    )
    torch.testing.assert_close(output, expected)
    wanted = inputs.tensors()
    for got, want in zip(gradients(output, wanted), gradients(expected, wanted)):
        torch.testing.assert_close(got, want)


def test_level_sizes_as_list_cpu_tensor_and_device_tensor(device):
    inputs = problem(device=device)
    expected = msda.ms_deform_attn(*inputs)
    for shapes, starts in [
        (list(LEVELS), None),
        ([list(hw) for hw in LEVELS], [0, 54, 69]),
        (torch.tensor(LEVELS), None),
        (torch.tensor(LEVELS, dtype=torch.int32), torch.tensor([0, 54, 69], dtype=torch.int32)),
        (torch.tensor(LEVELS, device=device), None),
        (torch.tensor(LEVELS, device=device, dtype=torch.int32), None),
    ]:
        output = msda.ms_deform_attn(inputs.value, shapes, starts, inputs.locations, inputs.weights)
        # The kernels for both kinds of tables locate samples alike.
        torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "levels", [((1, 7), (5, 1), (1, 1)), ((1, 1), (1, 9)), ((3, 1),), ((4, 4), (1, 1))]
)
def test_levels_of_one_row_or_column(device, levels):
    inputs = problem(levels=levels, device=device, channels=32)
    expected = plain(inputs.value, levels, inputs.locations, inputs.weights)
    for shapes in (inputs.shapes, list(levels)):
        output = msda.ms_deform_attn(inputs.value, shapes, None, inputs.locations, inputs.weights)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_may_differ(device, dtype, other):
    inputs = problem(device=device)
    value = inputs.value.to(dtype)
    locations, weights = inputs.locations.to(other), inputs.weights.to(other)
    output = msda.ms_deform_attn(value, inputs.shapes, inputs.starts, locations, weights)
    assert output.dtype == dtype
    expected = plain(value.double(), LEVELS, locations.double(), weights.double())
    step = max(torch.finfo(dtype).eps, 2e-6)
    torch.testing.assert_close(output.double(), expected, rtol=step, atol=1e-5)


def test_strides(device):
    inputs = problem(device=device, channels=16)
    expected = msda.ms_deform_attn(*inputs)
    heads_first = inputs.value.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.zeros(2, 73, 3, 20, device=device)
    wide[..., :16] = inputs.value
    odd = torch.zeros(2, 73, 3, 32, device=device)
    odd[..., ::2] = inputs.value
    locations = inputs.locations.flip(-1).contiguous().flip(-1)
    turned = inputs.locations.permute(5, 0, 1, 2, 3, 4).contiguous().permute(1, 2, 3, 4, 5, 0)
    for value in (heads_first, wide[..., :16], odd[..., ::2]):
        for points in (inputs.locations, locations, turned):
            output = msda.ms_deform_attn(
                value, inputs.shapes, inputs.starts, points, inputs.weights
            )
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}])
def test_empty_tensors(device, empty):
    inputs = problem(device=device, **empty).requires_grad_()
    output = msda.ms_deform_attn(*inputs)
    assert output.shape == (inputs.value.shape[0], inputs.locations.shape[1], 24)
    output.sum().backward()
    assert all((t.grad == 0).all() for t in inputs.tensors())


def test_nan_and_infinite_locations_contribute_nothing(device):
    inputs = problem(device=device).requires_grad_()
    first = (0, 0, 0, 0, 0)
    with torch.no_grad():
        inputs.weights[first] = 0
    output = msda.ms_deform_attn(*inputs)
    expected = [output.detach(), *gradients(output, inputs.tensors())]
    expected[2][first] = expected[3][first] = 0
    with torch.no_grad():
        inputs.weights[first] = 5
    for wrong in (float("nan"), float("inf"), -float("inf"), 1e30):
        with torch.no_grad():
            inputs.locations[(*first, 0)] = wrong
        output = msda.ms_deform_attn(*inputs)
        # On a GPU such a row is summed again, in another order.
        for got, want in zip((output, *gradients(output, inputs.tensors())), expected):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_pixel_before_the_first_centre_there_is_no_gradient(device, axis):
    """Only samples with `-1 < px < width` count. grid_sample has a gradient of one side there."""
    value = torch.ones(1, 4, 1, 1, dtype=torch.float64, device=device)
    weights = torch.ones(1, 1, 1, 1, 1, dtype=torch.float64, device=device)
    found = []
    for pixel in (-1, -0.999):
        locations = torch.full((1, 1, 1, 1, 1, 2), 0.5, dtype=torch.float64)
        locations[..., axis] = (pixel + 0.5) / 2
        locations = locations.to(device).requires_grad_()
        msda.ms_deform_attn(value, [(2, 2)], None, locations, weights).sum().backward()
        own = locations.grad[..., axis].item()
        (theirs,) = torch.autograd.grad(plain(value, [(2, 2)], locations, weights).sum(), locations)
        found.append((own, theirs[..., axis].item()))
    assert found == [(0, 2), (pytest.approx(2), pytest.approx(2))]


def test_same_bits_on_every_run_and_number_of_threads():
    inputs = problem(
        queries=300, heads=8, channels=32, levels=((40, 40), (20, 20))
    ).requires_grad_()
    first = None
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            output = msda.ms_deform_attn(*inputs)
            results = [output, *gradients(output, inputs.tensors())]
            first = first or results
            assert all(torch.equal(a, b) for a, b in zip(results, first))
    finally:
        torch.set_num_threads(threads)
