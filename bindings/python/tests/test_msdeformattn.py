"""`msda.MSDeformAttn` against linear layers and `grid_sample`."""

from __future__ import annotations

import copy
import io
import itertools

import pytest

torch = pytest.importorskip("torch", reason="the module needs torch")

import msda_attn as msda  # noqa: E402
from support import gpu, locations_of, plain  # noqa: E402

SHAPES = [(9, 7), (5, 4), (3, 2)]
POSITIONS = sum(height * width for height, width in SHAPES)


def plain_forward(module, query, reference, pyramid, mask=None, **options):
    """The module as its definition says."""
    shape = (*query.shape[:2], module.heads, sum(module.points))
    value = module.value_proj(pyramid)
    if mask is not None:
        value = torch.where(mask[..., None], torch.zeros((), dtype=value.dtype), value)
    offsets = module.sampling_offsets(query).view(*shape, 2)
    weights = module.attention_weights(query).view(shape).softmax(-1)
    value = value.unflatten(-1, (module.heads, -1))
    locations = locations_of(reference, offsets, SHAPES, module.points)
    output = plain(value, SHAPES, locations, weights, points=module.points, **options)
    return module.output_proj(output)


def make(points=4, seed=0, **options):
    torch.manual_seed(seed)
    module = msda.MSDeformAttn(16, 3, 2, points, dtype=torch.float64, **options)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def inputs(reference=2, levels=3, batch=2, queries=6, dtype=torch.float64):
    torch.manual_seed(1)
    sizes = (batch, queries, 16), (batch, queries, levels, reference), (batch, POSITIONS, 16)
    numbers = torch.randn(sizes[0]), torch.rand(sizes[1]), torch.randn(sizes[2])
    return tuple(tensor.to(dtype).requires_grad_() for tensor in numbers)


def gradients(output, tensors):
    torch.manual_seed(2)
    return torch.autograd.grad((output * torch.randn_like(output)).sum(), tensors)


CASES = {
    "points": {},
    "boxes": {"reference": 4},
    "one reference for all levels": {"levels": 1},
    "one box for all levels": {"reference": 4, "levels": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("points", [4, [3, 6, 3], [2, 0, 5]], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_outputs_and_all_gradients_equal_the_plain_module(case, points, masked):
    module = make(points)
    query, reference, pyramid = inputs(**CASES[case])
    mask = torch.rand(2, POSITIONS) < 0.3 if masked else None
    tensors = [query, reference, pyramid, *module.parameters()]
    got = module(query, reference, pyramid, SHAPES, padding_mask=mask)
    expected = plain_forward(module, query, reference, pyramid, mask)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    for g, e in zip(gradients(got, tensors), gradients(expected, tensors)):
        torch.testing.assert_close(g, e, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("corners", [False, True], ids=["edges", "corners"])
def test_sampling_options_are_passed_on(mode, padding, corners):
    module = make(sampling=mode, padding=padding, align_corners=corners)
    query, reference, pyramid = inputs()
    got = module(query, reference, pyramid, SHAPES)
    options = dict(mode=mode, padding=padding, corners=corners)
    expected = plain_forward(module, query, reference, pyramid, **options)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_level_sizes_as_tensors_or_lists():
    module = make()
    query, reference, pyramid = inputs()
    shapes = torch.tensor(SHAPES)
    starts = torch.tensor([0, 63, 83])
    expected = module(query, reference, pyramid, SHAPES)
    assert torch.equal(module(query, reference, pyramid, shapes, starts), expected)
    assert torch.equal(module(query, reference, pyramid, shapes), expected)
    assert torch.equal(module(query, reference, pyramid, SHAPES, [0, 63, 83]), expected)


def classic_state_dict(embed=256, levels=4, heads=8, points=4):
    """Names and shapes of a state dict of Deformable-DETR, DINO or mmcv."""
    samples = heads * levels * points
    shapes = {
        "sampling_offsets.weight": (samples * 2, embed),
        "sampling_offsets.bias": (samples * 2,),
        "attention_weights.weight": (samples, embed),
        "attention_weights.bias": (samples,),
        "value_proj.weight": (embed, embed),
        "value_proj.bias": (embed,),
        "output_proj.weight": (embed, embed),
        "output_proj.bias": (embed,),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_classic_state_dict_loads_unchanged():
    given = classic_state_dict()
    module = msda.MSDeformAttn()
    module.load_state_dict(given, strict=True)
    assert list(module.state_dict()) == list(given)
    assert all(torch.equal(module.state_dict()[name], given[name]) for name in given)


def test_state_dict_of_transformers_gives_its_output():
    modeling = pytest.importorskip(
        "transformers.models.deformable_detr.modeling_deformable_detr",
        reason="compares with transformers' own module",
    )
    from transformers import DeformableDetrConfig

    config = DeformableDetrConfig(d_model=32, num_feature_levels=3)
    theirs = modeling.DeformableDetrMultiscaleDeformableAttention(config, num_heads=4, n_points=4)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ours = msda.MSDeformAttn(32, 3, 4, 4)
    ours.load_state_dict(theirs.state_dict())
    query, pyramid = torch.randn(2, 5, 32), torch.randn(2, POSITIONS, 32)
    reference = torch.rand(2, 5, 3, 2)
    shapes = torch.tensor(SHAPES)
    expected = theirs(
        query,
        encoder_hidden_states=pyramid,
        reference_points=reference,
        spatial_shapes=shapes,
        spatial_shapes_list=SHAPES,
        level_start_index=torch.tensor([0, 63, 83]),
    )[0]
    got = ours(query, reference, pyramid, shapes)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_initial_offsets_are_a_ring_of_directions():
    module = msda.MSDeformAttn(32, 2, 8, 4)
    offsets = module.sampling_offsets.bias.view(8, 2, 4, 2)
    for head in range(8):
        for point in range(4):
            x, y = offsets[head, 0, point].tolist()
            # The point is on a square around the reference point, point + 1 pixels away.
            assert max(abs(x), abs(y)) == pytest.approx(point + 1, abs=1e-5)
        assert torch.equal(offsets[head, 0], offsets[head, 1])
    angles = torch.atan2(offsets[:, 0, 0, 1], offsets[:, 0, 0, 0]) % (2 * torch.pi)
    torch.testing.assert_close(angles, torch.arange(8) * torch.pi / 4, rtol=0, atol=1e-5)
    for zero in (
        module.sampling_offsets.weight,
        module.attention_weights.weight,
        module.attention_weights.bias,
        module.value_proj.bias,
        module.output_proj.bias,
    ):
        assert zero.abs().max() == 0
    limit = (6 / 64) ** 0.5
    for layer in (module.value_proj, module.output_proj):
        assert limit * 0.9 < layer.weight.abs().max() <= limit


def test_initial_offsets_with_points_per_level():
    module = msda.MSDeformAttn(32, 3, 8, [3, 6, 3])
    first_head = module.sampling_offsets.bias.view(8, 12, 2)[0, :, 0]
    assert first_head.tolist() == [1, 2, 3, 1, 2, 3, 4, 5, 6, 1, 2, 3]


def test_a_constant_pyramid_gives_a_constant_output_at_first():
    module = msda.MSDeformAttn(32, 3, 4, 4)
    pyramid = torch.ones(1, POSITIONS, 32)
    reference = torch.full((1, 2, 3, 4), 0.5)
    got = module(torch.randn(1, 2, 32), reference, pyramid, SHAPES)
    expected = module.output_proj(module.value_proj(pyramid[:, :2]))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_16_bit_values_and_float32_locations(dtype, monkeypatch):
    module = make([3, 6, 3]).float()
    query, reference, pyramid = inputs(dtype=torch.float32)
    exact = module(query, reference, pyramid, SHAPES)
    from msda_attn._torch import module as file

    seen = []

    def watch(value, shapes, starts, *rest, **options):
        seen.append(value.dtype)
        return original(value, shapes, starts, *rest, **options)

    original = file.ms_deform_attn_fused
    monkeypatch.setattr(file, "ms_deform_attn_fused", watch)
    with torch.autocast("cpu", dtype):
        got = module(query, reference, pyramid, SHAPES)
    assert got.dtype is dtype and seen == [dtype]
    torch.testing.assert_close(got.float(), exact, rtol=0.1, atol=0.15)
    got.float().square().sum().backward()
    for tensor in (query, reference, pyramid, *module.parameters()):
        assert tensor.grad.dtype is torch.float32 and tensor.grad.isfinite().all()


def test_autocast_keeps_the_locations_of_a_wide_level():
    # One pixel of 2000 is 1. In bfloat16 a location there would be off by several pixels.
    module = msda.MSDeformAttn(1, 1, 1, 1)
    with torch.no_grad():
        module.value_proj.weight.fill_(1)
        module.output_proj.weight.fill_(1)
        module.sampling_offsets.bias.zero_()
    pixels = torch.zeros(1, 2000, 1)
    pixels[0, 1801] = 1
    reference = torch.tensor([1801.5 / 2000, 0.5]).view(1, 1, 1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        got = module(torch.zeros(1, 1, 1), reference, pixels, [(1, 2000)])
    assert got.item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("points", "backend"),
    [(4, "aot_eager"), ([3, 6, 3], "aot_eager"), ([3, 6, 3], "inductor")],
    ids=str,
)
def test_compiles_without_graph_breaks(points, backend):
    module = make(points)
    query, reference, pyramid = inputs()
    expected = module(query, reference, pyramid, SHAPES)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    try:
        got = compiled(query, reference, pyramid, SHAPES)
    except Exception as error:
        if "compiler" in str(error) and backend == "inductor":
            pytest.skip(f"inductor needs a C++ compiler: {str(error).splitlines()[0]}")
        raise
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    tensors = [query, reference, pyramid, *module.parameters()]
    for g, e in zip(gradients(got, tensors), gradients(expected, tensors)):
        torch.testing.assert_close(g, e, rtol=1e-8, atol=1e-11)


def test_exports_with_sizes_as_a_tensor():
    module = make().float().eval()
    query, reference, pyramid = (t.detach() for t in inputs(dtype=torch.float32))
    args = (query, reference, pyramid, torch.tensor(SHAPES))
    program = torch.export.export(module, args)
    torch.testing.assert_close(program.module()(*args), module(*args))


def test_copies_are_independent_and_equal():
    module = make([3, 6, 3])
    query, reference, pyramid = inputs()
    expected = module(query, reference, pyramid, SHAPES)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        module.output_proj.bias.add_(1)
    assert torch.equal(twin(query, reference, pyramid, SHAPES), expected)
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(query, reference, pyramid, SHAPES), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_moves_to_another_type(dtype):
    module = make().to(dtype)
    query, reference, pyramid = inputs(dtype=dtype)
    output = module(query, reference, pyramid, SHAPES)
    assert output.dtype is dtype
    exact = make()(*inputs(), SHAPES)
    tolerance = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=tolerance)


def test_can_be_made_on_the_meta_device():
    module = msda.MSDeformAttn(16, 3, 2, device="meta")
    assert module.value_proj.weight.is_meta
    module.to_empty(device="cpu").reset_parameters()
    assert module.value_proj.weight.isfinite().all()


def train(module, shapes, device="cpu", steps=3):
    """Losses and parameters of a few steps."""
    module.to(device)
    query, reference, pyramid = (t.detach().to(device) for t in inputs())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (module(query, reference, pyramid, shapes) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(p.detach() for p in module.parameters())]


@gpu
@pytest.mark.parametrize("points", [4, [3, 6, 3]], ids=str)
def test_trains_on_a_gpu_as_on_the_cpu(points):
    expected = train(make(points), SHAPES)
    assert expected[0][-1] < expected[0][0]
    for shapes in (SHAPES, torch.tensor(SHAPES), torch.tensor(SHAPES, device="cuda")):
        for got, want in zip(train(make(points), shapes, "cuda"), expected, strict=True):
            torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("reference", [2, 4])
def test_locations_and_weights_are_those_of_forward(reference):
    module = make([3, 6, 3])
    query, points, pyramid = inputs(reference=reference)
    locations, weights = module.locations_and_weights(query, points, SHAPES)
    value = module.value_proj(pyramid).view(2, POSITIONS, 2, 8)
    output = msda.ms_deform_attn(value, SHAPES, None, locations, weights, points=[3, 6, 3])
    expected = module(query, points, pyramid, SHAPES)
    torch.testing.assert_close(module.output_proj(output), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reference", [2, 4])
def test_locations_and_weights_of_16_bits_are_not_rounded(reference):
    module = make().to(torch.bfloat16)
    query, points, _ = (tensor.to(torch.bfloat16) for tensor in inputs(reference=reference))
    with torch.device("meta"):  # the default device plays no part
        locations, weights = module.locations_and_weights(query, points, SHAPES)
    assert locations.dtype == weights.dtype == torch.float32
    narrow = locations.to(torch.bfloat16).float()
    assert (locations != narrow).any() and locations.device.type == "cpu"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"embed_dim": 100, "heads": 8}, "multiple of heads"),
        ({"points": [1, 2]}, "one per level"),
        ({"points": 0}, "above 0"),
        ({"sampling": "bicubic"}, "'bilinear' or 'nearest'"),
        ({"padding": "reflect"}, "'zeros' or 'border'"),
        ({"levels": 2**40}, "levels: got 1099511627776, expected at most 65536"),
        ({"points": itertools.count(1)}, "points: got an iterator with more than 65536 levels"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once(wrong, says):
    with pytest.raises(ValueError, match=says):
        msda.MSDeformAttn(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"points": 2.5}, {"points": "ab"}, {"points": [2.7] * 4}, {"levels": 2.0}], ids=str
)
def test_numbers_are_integers(wrong):
    assert type(msda.MSDeformAttn(torch.tensor(32), 2, 2).embed_dim) is int
    (name,) = wrong
    with pytest.raises(TypeError, match=f"{name}.*: got .*, expected"):
        msda.MSDeformAttn(**wrong)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda q, r, p: (q, r[..., :1], p, SHAPES), "reference_points: got shape"),
        (lambda q, r, p: (q, r[:1], p, SHAPES), "reference_points: got shape .1, 6,"),
        (lambda q, r, p: (q, r[:, :2], p, SHAPES), "reference_points: got shape .2, 2,"),
        (lambda q, r, p: (q, r[:, :, :2], p, SHAPES), "reference_points: .* expected .2, 6, 3 "),
        (lambda q, r, p: (q, r, p, [*SHAPES[:2], (4, 4)]), "value: got 89 positions, expected 99"),
        (lambda q, r, p: (q, r, p, SHAPES[:2]), "spatial_shapes: got 2 levels, expected 3"),
        (lambda q, r, p: (q, r, p, []), "spatial_shapes: got 0 levels, expected 3"),
        (lambda q, r, p: (q[0], r, p, SHAPES), "query: got shape"),
        (lambda q, r, p: (q, r, p[..., :-1], SHAPES), "input_flatten: got shape"),
        (lambda q, r, p: (q, r, p[:1], SHAPES), "input_flatten: got batch 1, expected 2"),
        (lambda q, r, p: (q, r, p, SHAPES, None, p[..., 0]), "padding_mask: got"),
        (lambda q, r, p: (q, r, p, SHAPES, None, p[:, :-1, 0] > 0), "padding_mask: got"),
        (lambda q, r, p: (q, r, p, SHAPES, None, p[0, :, 0] > 0), "padding_mask: got"),
    ],
)
def test_wrong_inputs_are_named(change, says):
    with pytest.raises(ValueError, match=says):
        make()(*change(*inputs()))


def test_a_mask_is_a_tensor():
    query, reference, pyramid = inputs()
    with pytest.raises(TypeError, match="padding_mask: got list, expected a tensor"):
        make()(query, reference, pyramid, SHAPES, None, [[False] * POSITIONS] * 2)


def test_locations_and_weights_need_the_levels_of_the_module():
    query, reference, _ = inputs()
    for sizes in ([], SHAPES[:2], [*SHAPES, (1, 1)]):
        with pytest.raises(ValueError, match=f"got {len(sizes)} levels, expected 3"):
            make().locations_and_weights(query, reference, sizes)


@pytest.mark.parametrize(
    "names",
    [
        "embed_dim levels heads points spatial_shapes padding_mask",
        "d_model n_levels n_heads n_points input_spatial_shapes input_padding_mask",
        "embed_dims num_levels num_heads num_points spatial_shapes padding_mask",
    ],
)
def test_names_of_other_libraries(names):
    names = names.split()
    module = msda.MSDeformAttn(**dict(zip(names, (16, 3, 2, 4))), dtype=torch.float64)
    module.load_state_dict(make().state_dict())
    query, reference, pyramid = inputs()
    mask = torch.zeros(pyramid.shape[:2], dtype=torch.bool)
    expected = make()(query, reference, pyramid, SHAPES)
    given = dict(zip(names[4:], (SHAPES, mask)))
    starts = {"input_level_start_index": [0, 63, 83]} if names[0] == "d_model" else {}
    torch.testing.assert_close(module(query, reference, pyramid, **given, **starts), expected)
    with pytest.raises(TypeError, match="n_heads: got it beside heads"):
        msda.MSDeformAttn(heads=8, n_heads=8)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropout'"):
        msda.MSDeformAttn(dropout=0.1)


def test_sizes_from_a_generator():
    module = make()
    query, reference, pyramid = inputs()
    one = reference[:, :, :1]
    sizes = (size for size in SHAPES)
    expected = module(query, one, pyramid, SHAPES)
    torch.testing.assert_close(module(query, one, pyramid, sizes), expected)


def test_repr_says_what_was_made():
    text = repr(msda.MSDeformAttn(32, 3, 4, [3, 6, 3], padding="border"))
    assert "MSDeformAttn(" in text
    assert "32, levels=3, heads=4, points=[3, 6, 3], padding='border'" in text
