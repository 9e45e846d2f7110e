"""What bad input gets: an exception that names the argument, and nothing else."""

from __future__ import annotations

import itertools

import msda_attn as msda
import numpy
import pytest
import torch
from support import gpu, problem


def call(change, device="cpu", **options):
    # Level sizes stay on the CPU: on the GPU only the kernel reads them.
    inputs = problem(device=device)
    inputs.shapes, inputs.starts = inputs.shapes.cpu(), inputs.starts.cpu()
    given = dict(zip(("value", "shapes", "starts", "locations", "weights"), inputs))
    given.update(change(inputs))
    return msda.ms_deform_attn(*given.values(), **options)


def listed(inputs, starts):
    return {"shapes": inputs.shapes.tolist(), "starts": starts}


def deep(like):
    """A tensor of twelve dimensions, on the device of another one."""
    return torch.zeros([1, 2] * 6, device=like.device).transpose(1, 11)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda i: {"value": i.value[0]}, ValueError, "value: got shape .* 4 dimensions"),
        (lambda i: {"value": i.value[:, :-1]}, ValueError, "value: got 72 positions, expected 73"),
        (lambda i: {"value": i.value.int()}, TypeError, "value: got .* expected float64, float32"),
        (lambda i: {"value": i.value[:1]}, ValueError, "value: got .* with batch 1, expected 2"),
        (
            lambda i: {"value": i.value.transpose(1, 2)},
            ValueError,
            "value: got .* with heads 73, expected 3, as in sampling_locations and "
            "attention_weights\nhint: value is .batch, positions, heads, channels",
        ),
        (lambda i: {"value": i.value.flatten(2)}, ValueError, "value: got shape .* 4 dimensions"),
        (
            lambda i: {"locations": i.weights, "weights": i.locations},
            ValueError,
            "sampling_locations: got .*, expected a last dimension of 2: x and y\n"
            "hint: sampling_locations and attention_weights are swapped",
        ),
        (lambda i: {"shapes": [], "starts": None}, ValueError, "spatial_shapes: got 0 levels"),
        (
            lambda i: {"shapes": [(73, 1)], "starts": None},
            ValueError,
            "spatial_shapes: got 1 levels, expected 3, as in sampling_locations of shape",
        ),
        (
            lambda i: {"locations": i.locations[:1]},
            ValueError,
            "sampling_locations: got .* with batch 1, expected 2, as in value and attention_w",
        ),
        (lambda i: {"weights": i.weights[:1]}, ValueError, "attention_weights: got shape .1, "),
        (lambda i: {"weights": i.weights[:, :1]}, ValueError, "attention_weights: got shape .2, 1"),
        (
            lambda i: {"locations": i.locations.flatten(3, 4), "weights": i.weights.flatten(3)},
            ValueError,
            "sampling_locations: got .* expected 6 dimensions .*, or the argument `points`",
        ),
        (lambda i: {"shapes": i.shapes[:2]}, ValueError, "level_start_index: got shape"),
        (lambda i: {"shapes": i.shapes.flatten()}, ValueError, "spatial_shapes: got shape"),
        (
            lambda i: {"shapes": i.shapes[0], "starts": None},
            ValueError,
            r"spatial_shapes: got shape \[2\], expected \(levels, 2\)",
        ),
        (
            lambda i: {"shapes": i.shapes.double()},
            TypeError,
            "spatial_shapes: got .* expected int64",
        ),
        (lambda i: {"shapes": -i.shapes}, ValueError, "spatial_shapes: got -"),
        (lambda i: {"shapes": [(1, 2, 3)]}, TypeError, "spatial_shapes: got .* expected a tensor"),
        (lambda i: {"shapes": "shapes"}, TypeError, "spatial_shapes: got 'shapes'"),
        (lambda i: {"starts": i.starts + 70}, ValueError, "positions: got 73"),
        (
            lambda i: {"locations": i.locations[..., :1]},
            ValueError,
            "sampling_locations: got shape",
        ),
        (
            lambda i: {"locations": i.locations[0]},
            ValueError,
            "sampling_locations|attention_weights",
        ),
        (lambda i: {"weights": i.weights[..., :2]}, ValueError, "attention_weights: got shape"),
        (lambda i: {"weights": i.weights[0, 0]}, ValueError, "attention_weights: got shape"),
        (lambda i: {"locations": i.locations[0, 0, 0, 0]}, ValueError, "sampling_locations: got"),
        (lambda i: {"weights": i.weights.long()}, TypeError, "attention_weights: got"),
        (lambda i: {"value": deep(i.value)}, ValueError, "value: got shape"),
        (lambda i: {"shapes": deep(i.shapes).long()}, ValueError, "spatial_shapes: got shape"),
        (lambda i: {"locations": deep(i.value)}, ValueError, "sampling_locations: got shape"),
        (lambda i: {"weights": deep(i.value)}, ValueError, "attention_weights: got shape"),
        (lambda i: {"shapes": i.shapes.cfloat()}, TypeError, "spatial_shapes: got .*complex"),
        (
            lambda i: {"shapes": [(7, 9), (3, 5), (2, 2)], "starts": None},
            ValueError,
            "value: got 73 positions, expected 82",
        ),
        (lambda i: {"starts": object()}, TypeError, "level_start_index: got <object"),
        (lambda i: listed(i, [0, 54]), ValueError, "level_start_index: got 2 numbers, expected 3"),
        (lambda i: listed(i, [0, 54, "x"]), TypeError, "level_start_index: got .*'x'"),
        (lambda i: listed(i, 5), TypeError, "level_start_index: got 5"),
        (lambda i: listed(i, [0, 54, -1]), ValueError, "level_start_index: got -1"),
        (lambda i: {"value": i.value[..., :0]}, ValueError, "value: channels: got 0"),
        (
            lambda i: {"shapes": i.shapes[:0], "starts": i.starts[:0]},
            ValueError,
            "spatial_shapes: got 0 levels, expected 3",
        ),
        (
            lambda i: {
                "shapes": [],
                "starts": None,
                "locations": i.locations[:, :, :, :0],
                "weights": i.weights[:, :, :, :0],
            },
            ValueError,
            "spatial_shapes: got 0 levels, expected at least 1",
        ),
        (lambda i: {"starts": i.starts * 0}, ValueError, "level_start_index: start of level 1"),
        (lambda i: {"locations": i.locations.to("meta")}, ValueError, "sampling_locations: got"),
        (lambda i: {"weights": i.weights.to("meta")}, ValueError, "attention_weights: got a ten"),
        (lambda i: {"shapes": i.shapes.to("meta")}, ValueError, "spatial_shapes and .*on meta"),
        (lambda i: {"shapes": [(2**62, 2)] * 3, "starts": None}, ValueError, "spatial_shapes"),
        (lambda i: {"shapes": [(2**70, 2)] * 3, "starts": None}, ValueError, "spatial_shapes"),
    ],
)
def test_the_argument_is_named(device, change, error, message):
    with pytest.raises(error, match=message):
        call(change, device)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"sampling": "cubic"}, ValueError, "sampling: got 'cubic'"),
        ({"padding": "reflection"}, ValueError, "padding: got 'reflection'"),
        ({"points": [1, 2]}, ValueError, "points|sampling_locations"),
        ({"points": [300, 1, 1]}, ValueError, "points: got"),
        ({"points": "four"}, TypeError, "points: got 'four'"),
        ({"align_corners": "no"}, ValueError, "align_corners: got 'no', expected True or False"),
        ({"align_corners": ""}, ValueError, "align_corners: got '', expected True or False"),
        ({"align_corners": None}, ValueError, "align_corners: got None, expected True or False"),
        ({"points": 4}, TypeError, "points: got 4"),
        ({"points": [2.9, 2.1, 1]}, TypeError, "points: got .*2.9"),
        ({"points": [12]}, ValueError, "points: got .12., expected one number"),
        ({"points": [4, 4, 4, 0]}, ValueError, "points: got .*, expected one number"),
    ],
)
def test_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        call(lambda i: {}, **options)


@pytest.mark.parametrize("wrong", [torch.int64, torch.bool, torch.complex64])
def test_the_fused_form_takes_floats_only(device, wrong):
    inputs = problem(device=device)
    reference = torch.rand(2, 7, 1, 2, device=device)
    tensors = {
        "reference_points": reference,
        "sampling_offsets": inputs.locations,
        "attention_logits": inputs.weights,
    }
    for name, tensor in tensors.items():
        with pytest.raises(TypeError, match=f"{name}: got .*, expected float64"):
            msda.ms_deform_attn_fused(*list(inputs)[:3], **{**tensors, name: tensor.to(wrong)})


def test_compiled_functions_name_the_argument():
    inputs = problem()
    compiled = torch.compile(msda.ms_deform_attn, backend="eager", fullgraph=True)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="value: got shape .*, expected 4 dimensions"):
        compiled(inputs.value[0], *list(inputs)[1:])


def test_subclasses_get_the_same_exceptions():
    class Subclass(torch.Tensor):
        pass

    with pytest.raises(ValueError, match="value: got shape .*, expected 4 dimensions"):
        call(lambda i: {"value": i.value[0].as_subclass(Subclass)})


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda grad: grad[:1], "grad_output: got shape .*, expected"),
        (lambda grad: grad[:, :6], "grad_output: got shape .*, expected"),
        (lambda grad: grad[..., None], "grad_output: got shape .*, expected"),
        (lambda grad: grad.double(), "grad_output: got f64, expected f32"),
        (lambda grad: grad.int(), "grad_output: got int32, expected float64"),
    ],
)
def test_a_wrong_gradient_is_refused(device, wrong, message):
    inputs = problem(device=device)
    grad = torch.ones(2, 7, 24, device=device)
    # Autograd checks gradients itself: only a direct call can be wrong.
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
        torch.ops.msda.ms_deform_attn_backward(wrong(grad), *inputs, 0, 0, 7)


@pytest.mark.parametrize("wanted", [8, -1, 1 << 40])
def test_gradients_that_do_not_exist_are_refused(device, wanted):
    inputs = problem(device=device)
    grad = torch.ones(2, 7, 24, device=device)
    with pytest.raises((RuntimeError, ValueError), match=f"wanted: got {wanted}, expected a sum"):
        torch.ops.msda.ms_deform_attn_backward(grad, *inputs, 0, 0, wanted)


@gpu
def test_devices_must_not_be_mixed():
    inputs = problem(device="cuda")
    for i in (0, 3, 4):
        mixed = list(inputs)
        mixed[i] = mixed[i].cpu()
        with pytest.raises((ValueError, NotImplementedError, RuntimeError), match="device|CPU|cpu"):
            msda.ms_deform_attn(*mixed)


def test_all_arguments_are_tensors_if_value_is():
    inputs = problem()
    for other in (inputs.weights.numpy(), inputs.weights.tolist(), None):
        with pytest.raises(TypeError, match="attention_weights: got .*, expected a torch tensor"):
            msda.ms_deform_attn(*list(inputs)[:4], other)
        with pytest.raises(TypeError, match="reference_points: got .*, expected a torch tensor"):
            msda.ms_deform_attn_fused(*list(inputs)[:3], other, inputs.locations, inputs.weights)


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_endless_iterators_end_with_an_error(kind):
    value, shapes, _, *others = problem()
    if kind == "arrays":
        value, *others = (tensor.numpy() for tensor in (value, *others))
    sizes = shapes.tolist()
    for given, options, name in (
        ((itertools.repeat((1, 1)), None), {}, "spatial_shapes"),
        ((sizes, itertools.count()), {}, "level_start_index"),
        ((sizes, None), {"points": itertools.count()}, "points"),
    ):
        with pytest.raises(ValueError, match=f"{name}: got an iterator with more than 65536"):
            msda.ms_deform_attn(value, *given, *others, **options)


def test_nothing_else_takes_other_objects():
    inputs = [numpy.asarray(t) for t in problem()]
    with pytest.raises(TypeError, match="value: got list"):
        msda.ms_deform_attn([1, 2], *inputs[1:])
    with pytest.raises(TypeError, match="sampling_locations: got object"):
        msda.ms_deform_attn(inputs[0], inputs[1], inputs[2], object(), inputs[4])


def test_arrays_and_tensors_are_not_mixed():
    value, shapes, starts, locations, weights = problem()
    levels = shapes.tolist()
    array = [t.numpy() for t in (value, locations, weights)]
    for name, given in (
        ("sampling_locations", (locations, array[2])),
        ("attention_weights", (array[1], weights)),
    ):
        with pytest.raises(TypeError, match=f"{name}: got a torch tensor, expected an array"):
            msda.ms_deform_attn(array[0], levels, None, *given)
    with pytest.raises(TypeError, match="reference_points: got a torch tensor"):
        msda.ms_deform_attn_fused(array[0], levels, None, torch.rand(2, 7, 1, 2), *array[1:])


def test_a_place_for_level_sizes_is_named_once():
    with pytest.raises(ValueError, match="got tensors on meta, expected both on the CPU$"):
        call(lambda i: {"shapes": i.shapes.to("meta")})


def test_torch_says_when_there_is_no_memory():
    inputs = problem(batch=1, queries=1)
    locations = inputs.locations.expand(-1, 1 << 50, -1, -1, -1, -1)
    weights = inputs.weights.expand(-1, 1 << 50, -1, -1, -1)
    with pytest.raises((MemoryError, RuntimeError, ValueError)):
        msda.ms_deform_attn(inputs.value, inputs.shapes, inputs.starts, locations, weights)


def test_no_memory_for_the_order_of_the_queries():
    inputs = problem(batch=1, queries=1)
    queries = 1 << 50
    grad = torch.ones(1, 1, 24).expand(1, queries, 24)
    locations = inputs.locations.expand(-1, queries, -1, -1, -1, -1)
    weights = inputs.weights.expand(-1, queries, -1, -1, -1)
    tensors = (inputs.value, inputs.shapes, inputs.starts, locations, weights)
    backward = torch.ops.msda.ms_deform_attn_backward
    with pytest.raises(Exception, match=f"got {queries} elements, expected"):
        backward(grad, *tensors, 0, 0, 1)
