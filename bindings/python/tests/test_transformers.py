"""Models of transformers give the same results with msda, and the patch can be undone."""

from __future__ import annotations

import collections
import os
import pickle
import subprocess
import sys
import types
import typing
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import transformers_models as models  # noqa: E402
from counting import Calls  # noqa: E402
from msda_attn.integrations._operators import points_per_level  # noqa: E402
from msda_attn.integrations.transformers import (  # noqa: E402
    patch_transformers,
    unpatch_transformers,
)
from support import gpu  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers_models import undone  # noqa: E402, F401

# One family for each of the three forms of the operator, and both ways of sampling.
FORMS = ["deformable_detr", "mask2former", "rt_detr_v2", "rt_detr_v2_discrete", "d_fine"]


class Run(typing.NamedTuple):
    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    calls: collections.Counter[str]
    attentions: int


def tensors(output: object) -> typing.Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for part in output.values():
            yield from tensors(part)
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from tensors(part)


def double(case: models.Case) -> models.Case:
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in case.inputs.items()}
    model = case.model.double()
    for name, buffer in model.named_buffers():
        # 1 / points, which transformers rounds to float32. The operator divides by the points.
        if name.endswith(("n_points_scale", "num_points_scale")):
            buffer.copy_(1 / (1 / buffer).round())
    return models.Case(model, inputs)


def run(case: models.Case, gradients: bool = True) -> Run:
    """Outputs, and the gradients of a random sum of all outputs."""
    attentions = 0

    def count(*_: object) -> None:
        nonlocal attentions
        attentions += 1

    hooks = [m.register_forward_hook(count) for m in models.attention_modules(case.model)]
    with Calls() as calls, torch.set_grad_enabled(gradients):
        output = dict(case.model(**case.inputs))
        outputs = [t for t in tensors(output) if t.is_floating_point()]
        generator = torch.Generator().manual_seed(1)
        loss = 0.0
        for t in outputs:
            if t.requires_grad:
                factors = torch.randn(t.shape, generator=generator, dtype=torch.float64)
                # Masked logits are infinite.
                loss = loss + (torch.where(t.isfinite(), t, 0) * factors.to(t)).sum()
        if gradients:
            loss.backward()
    for hook in hooks:
        hook.remove()
    grads = {n: p.grad for n, p in case.model.named_parameters() if p.grad is not None}
    return Run([t.detach() for t in outputs], grads, calls.count, attentions)


def forwards(calls: collections.Counter[str]) -> int:
    """Calls of the operator, in either form."""
    return in_form(calls, "forward") + in_form(calls, "forward_fused")


def in_form(calls: collections.Counter[str], name: str) -> int:
    """Calls of an operator with level sizes in a list, and with level sizes in a tensor."""
    return calls[f"msda._{name}"] + calls[f"msda._{name}_tables"]


def form(family: str) -> str:
    """The form of the operator: discrete sampling goes through the original forward."""
    return "" if "discrete" in family else "_fused"


def largest(t: Tensor) -> float:
    finite = t[t.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def error(got: Tensor, expected: Tensor) -> float:
    assert torch.equal(got.isfinite(), expected.isfinite())
    return largest(got.double() - expected.double())


def compare_exactly(patched: Run, exact: Run) -> float:
    """Compares two runs in float64. The result is the largest gradient.

    Rounding errors are 1e-16: a larger difference would be another formula.
    """
    for got, expected in zip(patched.outputs, exact.outputs, strict=True):
        # Some versions of transformers round logits to float32.
        precision = 1e-12 if expected.dtype is torch.float64 else 1e-6
        assert error(got, expected) <= precision * largest(expected)
    assert patched.gradients.keys() == exact.gradients.keys()
    # Some gradients are zero in theory (a bias before a softmax or a normalisation). They consist
    # of rounding errors of the largest gradients.
    scale = max(map(largest, exact.gradients.values()))
    for name, expected in exact.gradients.items():
        tolerance = 1e-9 * largest(expected) + 1e-12 * scale
        assert error(patched.gradients[name], expected) <= tolerance, name
    return scale


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_patched_model_computes_the_same(family: str) -> None:
    original = run(models.make(family))
    exact = run(double(models.make(family)))
    # Both models exist before the patch.
    single, precise = models.make(family), double(models.make(family))
    with patch_transformers():
        patched = run(single)
        patched_exact = run(precise)

    # The operator ran once per attention module, and transformers' own code did not.
    assert original.attentions > 0
    assert forwards(original.calls) == 0
    for got in (patched, patched_exact):
        assert got.attentions == original.attentions
        assert in_form(got.calls, f"forward{form(family)}") == got.attentions
        assert in_form(got.calls, f"backward{form(family)}") == got.attentions
        assert got.calls["aten.grid_sampler_2d"] == 0

    scale = compare_exactly(patched_exact, exact)

    # float32 is as near to the exact result as the original is: within 8 times its error, and a
    # floor for an original that happens to be exact.
    for got, before, expected in zip(patched.outputs, original.outputs, exact.outputs, strict=True):
        tolerance = 8 * error(before, expected) + 2e-6 * largest(expected)
        assert error(got, expected) <= tolerance
    assert patched.gradients.keys() == original.gradients.keys()
    for name, expected in exact.gradients.items():
        before = error(original.gradients[name], expected)
        tolerance = 8 * before + 1e-5 * largest(expected) + 1e-7 * scale
        assert error(patched.gradients[name], expected) <= tolerance, name


@pytest.mark.parametrize("family", ["deformable_detr", "mask2former", "d_fine"])
def test_autocast_is_as_near_to_float64(family: str) -> None:
    """Both sides round to 16 bits. msda is not farther from the exact result, and has its types."""
    exact = run(double(models.make(family)))
    with torch.autocast("cpu", torch.bfloat16):
        own = run(models.make(family))
        with patch_transformers():
            patched = run(models.make(family))
    assert [t.dtype for t in patched.outputs] == [t.dtype for t in own.outputs]

    def distance(found: list[Tensor], expected: list[Tensor]) -> float:
        pairs = [(a[b.isfinite()].double(), b[b.isfinite()]) for a, b in zip(found, expected)]
        return sum((a - b).square().sum().item() for a, b in pairs) ** 0.5

    for got, before, expected in zip(patched.outputs, own.outputs, exact.outputs, strict=True):
        near = 1.25 * distance([before], [expected]) + 1e-4 * largest(expected)
        assert distance([got], [expected]) <= near
    # One sum for all gradients: some are zero in theory, and only rounding errors here.
    expected = list(exact.gradients.values())
    found = [[side.gradients[n] for n in exact.gradients] for side in (patched, own)]
    assert distance(found[0], expected) <= 1.25 * distance(found[1], expected)


def snapshot() -> dict[str, object]:
    """Everything of transformers that the patch could change."""
    found: dict[str, object] = {"meta_path": list(sys.meta_path)}
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and isinstance(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                found[f"{name}.{key}"] = value
                if isinstance(value, type) and issubclass(value, nn.Module):
                    for attribute, member in vars(value).items():
                        found[f"{name}.{key}.{attribute}"] = member
    return found


def test_the_patch_is_idempotent_and_undone_completely() -> None:
    cases = {family: models.make(family) for family in FORMS}
    before = snapshot()
    patch_transformers()
    once = snapshot()
    patch_transformers()
    twice = snapshot()
    changed = {key for key in before if once.get(key) is not before[key]}
    assert {key.rpartition(".")[2] for key in changed} == {
        "meta_path",
        "forward",
        "multi_scale_deformable_attention",
        "multi_scale_deformable_attention_v2",
    }
    assert once.keys() == before.keys()
    assert all(twice[key] is once[key] for key in once if key != "meta_path")
    assert twice["meta_path"] == once["meta_path"]
    unpatch_transformers()
    after = snapshot()
    assert after.keys() == before.keys()
    assert after.pop("meta_path") == before.pop("meta_path")
    assert all(after[key] is before[key] for key in before)
    for family, case in cases.items():
        assert forwards(run(case).calls) == 0, family
    unpatch_transformers()


def test_a_with_block_keeps_an_earlier_patch() -> None:
    case = models.make("rt_detr")
    patch_transformers()
    with patch_transformers():
        pass
    assert forwards(run(case).calls) == 2
    unpatch_transformers()
    with pytest.raises(RuntimeError, match="in the block"), patch_transformers():
        raise RuntimeError("in the block")
    assert forwards(run(case).calls) == 0


def test_a_handle_undoes_only_its_own_call() -> None:
    before = list(sys.meta_path)
    stale = patch_transformers()
    unpatch_transformers()
    first, second = patch_transformers(), patch_transformers()
    patched = list(sys.meta_path)
    assert patched != before
    for handle in (stale, first, first):
        handle.undo()
        assert sys.meta_path == patched
    second.undo()
    assert sys.meta_path == before
    patch_transformers()
    patch_transformers()
    unpatch_transformers()
    assert sys.meta_path == before


def test_a_patch_that_fails_leaves_nothing() -> None:
    models.make("deformable_detr")
    before = snapshot()
    strange = types.ModuleType("transformers.models.strange.modeling_strange")
    exec("def multi_scale_deformable_attention(a, b): return 0", strange.__dict__)
    sys.modules[strange.__name__] = strange
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning):
                patch_transformers()
    finally:
        del sys.modules[strange.__name__]
    after = snapshot()
    assert after.pop("meta_path") == before.pop("meta_path")
    assert all(after[key] is before[key] for key in before)
    assert patch_transformers().replaced


def test_a_finder_that_others_took_away() -> None:
    before = list(sys.meta_path)
    patch = patch_transformers()
    sys.meta_path[:] = before
    patch.undo()
    assert sys.meta_path == before


@pytest.mark.parametrize("family", FORMS)
def test_a_model_made_under_the_patch_outlives_it(family: str) -> None:
    with patch_transformers():
        case = models.make(family)
        assert forwards(run(case).calls) == 2 * (family == "deformable_detr") + 2
    assert forwards(run(case).calls) == 0


def test_a_model_that_stores_the_function_can_be_pickled() -> None:
    before = models.make("d_fine")
    with patch_transformers():
        case = models.make("d_fine")
        saved = [pickle.dumps(before.model), pickle.dumps(case.model)]
        for data in saved:
            restored = models.Case(pickle.loads(data), case.inputs)
            assert forwards(run(restored).calls) == 2
    for data in saved:
        restored = models.Case(pickle.loads(data), case.inputs)
        assert forwards(run(restored).calls) == 0


def test_a_function_of_the_user_stays() -> None:
    case = models.make("d_fine")
    attention = models.attention_modules(case.model)[0]
    original = attention.ms_deformable_attn_core

    def own(*args: object) -> Tensor:
        return original(*args)

    attention.ms_deformable_attn_core = own
    with patch_transformers():
        assert attention.ms_deformable_attn_core is own
        calls = run(case).calls
        assert forwards(calls) == 1
        assert calls["aten.grid_sampler_2d"] == 3
    assert attention.ms_deformable_attn_core is own


LATER = """
import sys
import msda_attn.integrations.transformers as integration
assert "transformers" not in sys.modules
patch = integration.patch_transformers()
import test_transformers as tests, transformers_models as models
assert not any(".modeling_mask2former" in name for name in sys.modules)
for family in tests.FORMS:
    result = tests.run(models.make(family))
    assert tests.forwards(result.calls) == result.attentions > 0, family
patch.undo()
for family in tests.FORMS:
    assert tests.forwards(tests.run(models.make(family)).calls) == 0, family
print("patched before the import")
"""


def test_modules_imported_after_the_patch_are_patched() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LATER],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "patched before the import"


def test_a_patch_tells_what_it_replaced() -> None:
    models.make("deformable_detr")
    assert patch_transformers().replaced == (patch := patch_transformers()).replaced
    name = (
        "transformers.models.deformable_detr.modeling_deformable_detr."
        "MultiScaleDeformableAttention.forward"
    )
    assert name in patch.replaced and name in repr(patch)
    unpatch_transformers()
    assert patch.replaced == [] and repr(patch) == "<Patch of nothing>"


def test_discrete_sampling_rounds_as_transformers_does() -> None:
    from transformers.models.rt_detr_v2 import modeling_rt_detr_v2

    torch.manual_seed(0)
    sizes, points = [(5, 7), (3, 1)], [3, 2]
    value = torch.randn(2, 38, 2, 4, dtype=torch.float64)
    # Halves, edges and locations outside of the level.
    steps = torch.arange(-9, 25, dtype=torch.float64) / 14
    locations = steps[torch.randint(len(steps), (2, 200, 2, 5, 2))]
    weights = torch.rand(2, 200, 2, 5, dtype=torch.float64)
    args = (value, sizes, locations, weights, points, "discrete")
    expected = modeling_rt_detr_v2.multi_scale_deformable_attention_v2(*args)
    # Rounding halves needs the same arithmetic: float32 on both sides.
    single = (value, sizes, locations.float(), weights, points, "discrete")
    expected_single = modeling_rt_detr_v2.multi_scale_deformable_attention_v2(*single)
    got = points_per_level(*single)
    torch.testing.assert_close(got, expected_single, rtol=0, atol=1e-6)
    assert expected.shape == got.shape
    with pytest.raises(ValueError, match="method: got 'cubic'"):
        points_per_level(*args[:-1], "cubic")


def on_gpu(case: models.Case) -> models.Case:
    inputs = {name: tensor.cuda() for name, tensor in case.inputs.items()}
    return models.Case(case.model.cuda(), inputs)


@gpu
@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_patched_model_computes_the_same_on_the_gpu(family: str) -> None:
    exact = run(on_gpu(double(models.make(family))))
    with patch_transformers():
        patched = run(on_gpu(double(models.make(family))))
    calls = in_form(patched.calls, f"forward{form(family)}")
    assert calls == patched.attentions == exact.attentions > 0
    assert in_form(patched.calls, f"backward{form(family)}") == patched.attentions
    assert patched.calls["aten.grid_sampler_2d"] == 0
    compare_exactly(patched, exact)


@gpu
@pytest.mark.parametrize("method", ["default", "discrete"])
def test_no_call_waits_for_the_gpu(method: str) -> None:
    sizes, points = [(5, 7), (3, 1)], [3, 2]
    value = torch.randn(2, 38, 2, 4, device="cuda")
    locations = torch.rand(2, 9, 2, 5, 2, device="cuda")
    weights = torch.rand(2, 9, 2, 5, device="cuda")
    args = (value, sizes, locations, weights, points, method)
    points_per_level(*args)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        points_per_level(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")
