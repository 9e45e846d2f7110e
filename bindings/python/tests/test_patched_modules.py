"""Patched attention modules: what they launch, what they keep, and where the original runs."""

from __future__ import annotations

import collections
import copy
import pickle
import shutil
import sys
import threading
import types
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import msda_attn as msda  # noqa: E402
import transformers_models as models  # noqa: E402
from counting import Calls, Kernels  # noqa: E402
from msda_attn.integrations import _modules, research  # noqa: E402
from msda_attn.integrations._replace import Replacements  # noqa: E402
from support import gpu  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers_models import undone  # noqa: E402, F401

# Families whose modules differ: a mask that says what is valid, one that says what is padding, the
# same points on each level, different points, no projections, one level of reference points.
FORMS = ["deformable_detr", "mask2former", "rt_detr", "rt_detr_v2", "d_fine", "grounding_dino"]
FUSED = [family for family in models.FAMILIES if "discrete" not in family]


def attention(family: str) -> models.Call:
    return models.first_attention(models.make(family))


def fused_calls(call: models.Call, **changed: object) -> int:
    with Calls() as calls:
        call(**changed)
    return calls.count["msda._forward_fused"] + calls.count["msda._forward_fused_tables"]


def kernels(call: models.Call) -> Kernels:
    with torch.no_grad(), Kernels() as found:
        call()
    return found


@pytest.mark.parametrize("family", FUSED)
def test_a_layer_launches_less_than_half_of_the_kernels(family: str) -> None:
    call = attention(family)
    before = kernels(call)
    with msda.patch("transformers"):
        after = kernels(call)
    print(f"{family}: {before.calls} to {after.calls} kernels, {before.bytes} to {after.bytes} B")
    assert after.calls * 2 <= before.calls
    # The linear layers stay. They are most bytes where a model has one level and few queries.
    assert after.bytes <= 0.6 * before.bytes
    # Four linear layers, the operator, the sum with the position, the mask inverted and applied,
    # and the weights for the caller. No family has more.
    assert after.calls <= 9


@pytest.mark.parametrize("wrapped", [False, True], ids=["hook", "wrapped forward"])
@pytest.mark.parametrize("family", FORMS)
def test_who_records_the_weights_gets_them(family: str, wrapped: bool) -> None:
    """Transformers records them by a hook; 5.0 and 5.1 wrap the forward."""
    call = attention(family)
    expected = call()
    seen = []
    with msda.patch("transformers"):
        weights = call()[1]
        inner = call.module.forward
        if wrapped:
            call.module.forward = lambda *args, **kwargs: seen.append(inner(*args, **kwargs))
        else:
            call.module.register_forward_hook(lambda *parts: seen.append(parts[-1]))
        assert fused_calls(call) == 1
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-6)
    # Where models take weights by hooks only, they are not computed without one.
    if _modules._is_recorded(type(call.module)):
        assert weights is None
    else:
        torch.testing.assert_close(weights, expected[1])


@pytest.mark.parametrize("family", FORMS)
def test_output_attentions_of_a_model_stay(family: str) -> None:
    case = models.make(family)

    def attentions() -> dict[str, list[Tensor]]:
        with torch.no_grad():
            result = case.model(**case.inputs, output_attentions=True)
        found = {}
        for name in result:
            if "attentions" in name and result[name] is not None:
                found[name] = list(torch.utils._pytree.tree_leaves(result[name]))
        return found

    expected = attentions()
    assert expected
    with msda.patch("transformers"):
        got = attentions()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_hook_on_the_operator_still_sees_its_arguments() -> None:
    call = attention("deformable_detr")
    seen = []
    with msda.patch("transformers"):
        hook = call.module.attn.register_forward_pre_hook(lambda _, args: seen.append(args))
        # The original forward calls the operator inside.
        assert fused_calls(call) == 0
        assert len(seen) == 1 and seen[0][4].shape[-1] == 2
        hook.remove()
        everywhere = nn.modules.module.register_module_forward_hook(lambda *parts: None)
        assert fused_calls(call) == 0
        everywhere.remove()
        assert fused_calls(call) == 1


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook"])
@pytest.mark.parametrize("family", ["deformable_detr", "mask2former"])
def test_backward_hooks_of_the_value_layer_see_its_gradient(family: str, kind: str) -> None:
    call = attention(family)
    assert call.kwargs["attention_mask"] is not None
    call.kwargs["encoder_hidden_states"].requires_grad_()
    seen: list[Tensor] = []
    getattr(call.module.value_proj, f"register_{kind}")(lambda *args: seen.append(args[-1][0]))

    def gradient() -> Tensor:
        seen.clear()
        call()[0].square().sum().backward()
        (found,) = seen
        return found

    expected = gradient()
    with msda.patch("transformers"):
        assert fused_calls(call) == 1
        torch.testing.assert_close(gradient(), expected, rtol=1e-4, atol=1e-5)


def test_a_tensor_that_the_value_layer_keeps_stays() -> None:
    call = attention("deformable_detr")
    kept = call.module.value_proj(call.kwargs["encoder_hidden_states"]).detach()
    before = kept.clone()
    call.module.value_proj.forward = lambda _: kept
    mask = torch.zeros(kept.shape[:2], dtype=torch.bool)
    with msda.patch("transformers"), torch.no_grad():
        assert fused_calls(call, attention_mask=mask) == 1
    assert torch.equal(kept, before)


def test_layers_of_the_user_are_called() -> None:
    """Wrapped or replaced linear layers, as in fine-tuning with adapters, keep working."""
    call = attention("rt_detr")
    seen = []
    for name in ("value_proj", "sampling_offsets", "attention_weights", "output_proj"):
        inner = getattr(call.module, name)
        inner.register_forward_hook(lambda *_, name=name: seen.append(name))
        setattr(call.module, name, nn.Sequential(inner))
    expected = call()[0]
    seen.clear()
    with msda.patch("transformers"):
        torch.testing.assert_close(call()[0], expected, rtol=1e-5, atol=1e-6)
    assert sorted(seen) == ["attention_weights", "output_proj", "sampling_offsets", "value_proj"]


@pytest.mark.parametrize("family", FORMS)
def test_state_copies_and_pickles_of_a_patched_module_are_unchanged(family: str) -> None:
    call = attention(family)
    before = call.module.state_dict()
    attributes = set(vars(call.module))
    with msda.patch("transformers"):
        call()
        assert set(vars(call.module)) == attributes
        after = call.module.state_dict()
        copies = [pickle.loads(pickle.dumps(call.module)), copy.deepcopy(call.module)]
        assert all(fused_calls(call._replace(module=module)) == 1 for module in copies)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(fused_calls(call._replace(module=module)) == 0 for module in copies)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FORMS)
def test_short_types_are_as_near_to_the_exact_result(family: str, dtype: torch.dtype) -> None:
    call = attention(family)
    short = models.Call(copy.deepcopy(call.module), call.args, call.kwargs).to(dtype)
    # The exact result of the rounded inputs.
    exact = models.Call(copy.deepcopy(short.module), short.args, short.kwargs).to(torch.float64)
    with torch.no_grad():
        expected = exact()[0]
        own = short()[0]
        with msda.patch("transformers"):
            got = short()[0]
    assert got.dtype is dtype

    def error(found: Tensor) -> float:
        return (found.double() - expected).abs().max().item()

    rounding = torch.finfo(dtype).eps * expected.abs().max().item()
    assert error(got) <= 2 * error(own) + rounding


@pytest.mark.parametrize("family", FORMS)
def test_autocast_computes_both_passes(family: str) -> None:
    call = attention(family)
    # As in a model, where a layer before the attention has computed its pixels in 16 bits.
    call.kwargs["encoder_hidden_states"] = call.kwargs["encoder_hidden_states"].bfloat16()

    def step() -> tuple[Tensor, dict[str, Tensor]]:
        call.module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = call()[0]
        output.float().square().sum().backward()
        grads = {n: p.grad.clone() for n, p in call.module.named_parameters()}
        return output.detach(), grads

    expected, expected_grads = step()
    with msda.patch("transformers"), Calls() as calls:
        got, grads = step()
    assert calls.count["msda._forward_fused"] == calls.count["msda._backward_fused"] == 1
    # `grid_sample` gives float32: so does D-FINE, which has no layer after it.
    assert got.dtype == expected.dtype == (torch.float32 if family == "d_fine" else torch.bfloat16)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())
    for name, grad in expected_grads.items():
        scale = grad.abs().max().item()
        assert (grads[name] - grad).abs().max().item() <= 0.1 * scale + 1e-3, name


@pytest.mark.parametrize("family", ["deformable_detr", "mask2former"])
@pytest.mark.parametrize("coordinates", [2, 4])
@pytest.mark.parametrize("one_level", [False, True])
def test_masks_and_reference_points(family: str, coordinates: int, one_level: bool) -> None:
    call = attention(family)
    torch.manual_seed(1)
    pixels, query = call.kwargs["encoder_hidden_states"], call.kwargs["hidden_states"]
    levels = 1 if one_level else call.module.n_levels
    changed = {
        "attention_mask": torch.rand(pixels.shape[:2]) < 0.5,
        "reference_points": torch.rand(*query.shape[:2], levels, coordinates),
    }
    expected = call(**changed)[0]
    with msda.patch("transformers"):
        assert fused_calls(call, **changed) == 1
        got = call(**changed)[0]
        # Padding counts as 0, whatever it is.
        mask = changed["attention_mask"]
        padding = mask if family == "mask2former" else ~mask
        wild = torch.where(padding[..., None], float("nan"), pixels)
        masked = call(**changed, encoder_hidden_states=wild)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(masked, got)


@pytest.mark.parametrize(
    ("family", "change", "operator"),
    [
        ("d_fine", {"decoder_method": "discrete"}, "forward"),
        ("d_fine", {"offset_scale": 0.25}, "forward_fused"),
        ("rt_detr_v2", {"method": "discrete"}, "forward"),
        ("rt_detr_v2", {"offset_scale": 1.0}, "forward_fused"),
    ],
)
def test_other_settings(family: str, change: dict, operator: str) -> None:
    call = attention(family)
    for name, value in change.items():
        setattr(call.module, name, value)
    expected = call()[0]
    with msda.patch("transformers"), Calls() as calls:
        got = call()[0]
    assert calls.count[f"msda._{operator}"] == 1 and not calls.count["aten.grid_sampler_2d"]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_wrong_calls_get_the_error_of_the_original() -> None:
    call = attention("deformable_detr")
    reference = call.kwargs["reference_points"]

    def errors() -> list[str]:
        found = []
        for wrong in (
            lambda: call(reference_points=reference[..., :1].expand(-1, -1, -1, 3)),
            lambda: call(reference_points=None),
            lambda: call.module(),
            lambda: call.module(*call.args, *[None] * 20, **call.kwargs),
        ):
            with pytest.raises(Exception) as error:
                wrong()
            found.append(f"{error.type.__name__}: {error.value}")
        return found

    expected = errors()
    with msda.patch("transformers"):
        assert errors() == expected


class MSDeformAttn(nn.Module):
    """A module of a repository. As in ViT-Adapter, the value has fewer channels than the query."""

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.n_levels, self.n_points = 8, 2, 1, 2
        self.ratio = ratio
        self.sampling_offsets = nn.Linear(8, 8)
        self.attention_weights = nn.Linear(8, 4)
        self.value_proj = nn.Linear(8, int(8 * ratio))
        self.output_proj = nn.Linear(int(8 * ratio), 8)

    def forward(self, query, reference_points, input_flatten, input_spatial_shapes):
        channels = int(self.ratio * self.d_model) // self.n_heads
        value = self.value_proj(input_flatten).unflatten(-1, (self.n_heads, channels))
        shape = (*query.shape[:2], self.n_heads, self.n_levels, self.n_points)
        offsets = self.sampling_offsets(query).view(*shape, 2)
        logits = self.attention_weights(query).view(shape)
        output = msda.ms_deform_attn_fused(
            value, input_spatial_shapes, None, reference_points, offsets, logits
        )
        return self.output_proj(output)


class MultiScaleDeformableAttention(MSDeformAttn):
    """A module as GroundingDINO has it: mmcv's, which adds nothing. It refuses masks."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_levels, self.num_points = 2, 1, 2
        self.batch_first = False

    def forward(
        self,
        query,
        key=None,
        value=None,
        query_pos=None,
        key_padding_mask=None,
        reference_points=None,
        spatial_shapes=None,
        level_start_index=None,
        **kwargs,
    ):
        if key_padding_mask is not None:
            raise NotImplementedError
        query = query if query_pos is None else query + query_pos
        swap = lambda t: t if self.batch_first else t.transpose(0, 1)
        given = swap(query), reference_points, swap(value), spatial_shapes
        return swap(MSDeformAttn.forward(self, *given))


def test_a_module_that_adds_nothing_and_refuses_masks(monkeypatch) -> None:
    module = types.ModuleType(__name__)
    module.MultiScaleDeformableAttention = MultiScaleDeformableAttention
    call = models.Call(
        MultiScaleDeformableAttention(),
        [torch.rand(3, 2, 8), None, torch.rand(6, 2, 8), torch.rand(3, 2, 8)],
        {"reference_points": torch.rand(2, 3, 1, 4), "spatial_shapes": torch.tensor([[2, 3]])},
    )
    expected = call()
    with research.patch(module):
        with monkeypatch.context() as context:
            # The original forward would need it.
            context.delattr(MSDeformAttn, "forward")
            got = call()
        with pytest.raises(NotImplementedError):
            call(key_padding_mask=torch.zeros(2, 6, dtype=torch.bool))
    torch.testing.assert_close(got, expected)


BASE = "base(self, query, reference_points, input_flatten, input_spatial_shapes)"
# Arguments after the first three, the result, and what the warning says.
UNKNOWN = {
    "a new argument": ("input_spatial_shapes, gate", "1 / 0", "input_spatial_shapes, gate"),
    "no sizes": ("", "1 / 0", "msda knows no forward with the arguments query, reference_points, "),
    "another formula": (
        "input_spatial_shapes",
        BASE.replace("points", "points + 0.01"),
        "its result for a small example differs",
    ),
    "a formula for evaluation": (
        "input_spatial_shapes",
        f"{BASE} * (1 if self.training else 2)",
        "its result for a small example differs",
    ),
    "a new attribute": ("input_spatial_shapes", f"self.norm({BASE})", "has no attribute 'norm'"),
    "two masks": (
        "input_spatial_shapes, input_padding_mask=None",
        f"{BASE} * (1 if input_padding_mask is None else 2)",
        "its result with 'input_padding_mask' for a small example differs",
    ),
    "an ignored name that is read": (
        "input_spatial_shapes, **kwargs",
        f"{BASE} * (1 + bool(kwargs.get('valid_ratios')))",
        "its result for a small example differs",
    ),
}


def a_library(arguments: str, result: str) -> types.ModuleType:
    """A module of a library, with one attention module that notes its calls."""
    module = types.ModuleType("some_library")
    module.Base, module.base, module.ran = MSDeformAttn, MSDeformAttn.forward, []
    code = f"""
class MSDeformAttn(Base):
    def forward(self, query, reference_points, input_flatten, {arguments}):
        ran.append(self)
        return {result}
"""
    exec(code, vars(module))
    return module


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_module_is_left_alone_with_a_warning(name: str, monkeypatch) -> None:
    *code, reason = UNKNOWN[name]
    module = a_library(*code)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    forward = module.MSDeformAttn.forward
    with pytest.warns(UserWarning) as found:
        _modules.replace_modules(module, replaced := Replacements())
    assert module.MSDeformAttn.forward is forward and not replaced
    (warning,) = found
    assert "msda left some_library.MSDeformAttn.forward as it is" in str(warning.message)
    assert reason in str(warning.message)
    assert "hint: " in str(warning.message)


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_a_known_module_of_any_repository_is_replaced(ratio: float) -> None:
    module = types.ModuleType(__name__)
    module.MSDeformAttn = MSDeformAttn
    call = models.Call(
        MSDeformAttn(ratio),
        [torch.rand(2, 3, 8), torch.rand(2, 3, 1, 2), torch.rand(2, 6, 8), torch.tensor([[2, 3]])],
        {},
    )
    original, expected = MSDeformAttn.forward, call()
    with research.patch(module) as patch:
        assert patch.replaced == [f"{__name__}.MSDeformAttn.forward"]
        assert MSDeformAttn.forward is not original
        with Calls() as calls:
            got = call()
        assert calls.count["msda._forward_fused_tables"] == 1
    assert MSDeformAttn.forward is original
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("argument", "original_runs"),
    [("temperature", True), ("valid_ratios", False), ("output_attentions", False)],
)
def test_other_arguments_go_to_the_original(argument, original_runs, monkeypatch) -> None:
    """But for those that callers of known modules pass, and that the example has shown as ignored."""
    scale = f"{BASE} * kwargs.get('temperature', 1.0)"
    module = a_library("input_spatial_shapes, **kwargs", scale)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    given = [torch.rand(2, 3, 8), torch.rand(2, 3, 1, 2), torch.rand(2, 6, 8)]
    call = models.Call(module.MSDeformAttn(), [*given, torch.tensor([[2, 3]])], {})
    expected = call(), call(**{argument: 2.0})
    with research.patch(module):
        module.ran.clear()
        got = [call()]
        assert not module.ran
        got.append(call(**{argument: 2.0}))
        assert bool(module.ran) is original_runs
    torch.testing.assert_close(got, list(expected))


def test_random_numbers_and_the_grad_mode_stay_as_they_are() -> None:
    attention("rt_detr")
    _modules._made.clear()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.inference_mode(), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error")
        msda.patch("transformers")
    assert torch.equal(torch.rand(3), expected) and torch.is_grad_enabled()


def test_patches_come_and_go_while_other_threads_run_the_model() -> None:
    case = models.make("rt_detr")
    with torch.no_grad():
        expected = case.model(**case.inputs).logits
    stop, errors, steps = threading.Event(), [], collections.Counter()

    def run(number: int) -> None:
        try:
            while not stop.is_set():
                with torch.no_grad():
                    got = case.model(**case.inputs).logits
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
                steps[number] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    handles = []
    while not errors and (len(steps) < 2 or min(steps.values()) < 4):
        # Two handles, undone out of their order, and twice.
        handles = [msda.patch("transformers"), msda.patch("transformers")]
        for handle in (*handles, handles[0]):
            handle.undo()
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert handles[0].replaced == []


@pytest.mark.parametrize("sizes", ["list", "tensor"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("family", FORMS)
def test_a_compiled_module_is_one_graph(family: str, dynamic: bool, grad: bool, sizes: str) -> None:
    call = attention(family)
    names = set(call.kwargs) & {"spatial_shapes_list"}
    if sizes == "tensor":
        if "spatial_shapes" not in call.kwargs or not names:
            pytest.skip(f"{family} has no level sizes in a tensor")
        call = call._replace(kwargs={**call.kwargs, "spatial_shapes_list": None})
    operators: collections.Counter[str] = collections.Counter()

    def backend(graph, inputs):
        operators.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def run(module: nn.Module) -> list[Tensor]:
        call.module.zero_grad()
        with torch.set_grad_enabled(grad):
            output = call._replace(module=module)()[0]
        if grad:
            output.square().sum().backward()
        return [output, *(p.grad for p in call.module.parameters() if grad)]

    with msda.patch("transformers"):
        expected = run(call.module)
        torch.compiler.reset()
        # A graph break raises with fullgraph.
        got = run(torch.compile(call.module, fullgraph=True, dynamic=dynamic, backend=backend))
    form = "_fused_list" if sizes == "list" else "_fused"
    assert operators[f"msda.ms_deform_attn{form}"] == 1
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("c++") is None, reason="needs a C++ compiler"
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_module_compiled_by_inductor_computes_the_same(grad: bool) -> None:
    call = attention("deformable_detr")
    with msda.patch("transformers"), torch.set_grad_enabled(grad):
        expected = call()[0]
        torch.compiler.reset()
        got = call._replace(module=torch.compile(call.module, fullgraph=True))()[0]
        if grad:
            gradients = [
                torch.autograd.grad(t.sum(), call.module.value_proj.weight) for t in (got, expected)
            ]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("family", FORMS)
def test_a_compiled_module_runs_on_the_gpu(family: str, train: bool, mode: str) -> None:
    call = attention(family)
    move = lambda value: value.cuda() if isinstance(value, Tensor) else value
    kwargs = {name: move(value) for name, value in call.kwargs.items()}
    call = models.Call(call.module.cuda(), [move(value) for value in call.args], kwargs)

    def run(module: nn.Module) -> list[Tensor]:
        call.module.zero_grad()
        with torch.set_grad_enabled(train):
            output = call._replace(module=module)()[0]
        if train:
            output.square().sum().backward()
        found = [output, *(p.grad for p in call.module.parameters() if train)]
        return [tensor.detach().clone() for tensor in found]

    with msda.patch("transformers"):
        expected = run(call.module)
        torch.compiler.reset()
        compiled = torch.compile(call.module, fullgraph=True, mode=mode)
        for _ in range(3):  # the second and third call record and replay CUDA graphs
            got = run(compiled)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="before version 5 transformers reads level sizes of the GPU in each step",
)
def test_a_training_step_of_a_patched_encoder_is_a_cuda_graph() -> None:
    case = models.make("mask2former")
    # Layers in training mode ask the GPU whether all numbers are finite, and wait for the answer.
    model = case.model.cuda().eval()
    layers = [m for m in model.modules() if type(m).__name__.endswith("PixelDecoderEncoderOnly")]
    encoder = layers[0]
    given: list[tuple] = []
    hook = encoder.register_forward_pre_hook(
        lambda _, args, kwargs: given.append((args, kwargs)), with_kwargs=True
    )
    with torch.no_grad():
        model(**{name: tensor.cuda() for name, tensor in case.inputs.items()})
    hook.remove()
    args, kwargs = given[0]
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.0)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = encoder(*args, **kwargs)[0].square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def grads() -> list[Tensor]:
        found = [parameter.grad for parameter in encoder.parameters()]
        return [grad.clone() for grad in found if grad is not None]

    with msda.patch("transformers"):
        expected = [step(), *grads()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        for grad in [p.grad for p in encoder.parameters() if p.grad is not None]:
            grad.fill_(7.0)
        graph.replay()
    torch.testing.assert_close([loss, *grads()], expected, rtol=1e-3, atol=1e-4)
