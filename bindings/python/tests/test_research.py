"""The compiled module of research repositories, and the functions around it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from msda_attn.integrations import _operators, research  # noqa: E402
from msda_attn.integrations._replace import Replacements  # noqa: E402
from support import plain  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402

SHAPES = [(6, 5), (3, 4)]


def inputs(dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    """value, spatial_shapes, level_start_index, sampling_locations, attention_weights."""
    torch.manual_seed(3)
    made = [
        torch.randn(2, 42, 2, 4, dtype=dtype),
        torch.tensor(SHAPES),
        torch.tensor([0, 30]),
        torch.rand(2, 7, 2, 2, 3, 2, dtype=dtype) * 1.4 - 0.2,
        torch.rand(2, 7, 2, 2, 3, dtype=dtype),
    ]
    return [t.to(device) for t in made]


def grid_sample(value: Tensor, shapes: Tensor, locations: Tensor, weights: Tensor) -> Tensor:
    """The operator from torch's own functions."""
    return plain(value, shapes.tolist(), locations, weights)


def gradients(output: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    factors = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return torch.autograd.grad(output, wanted, factors.to(output))


def repository_function(extension: types.ModuleType) -> type[torch.autograd.Function]:
    """An autograd function around the extension, with the calls that the repositories make."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, shapes, starts, locations, weights, im2col_step):
            ctx.im2col_step = im2col_step
            ctx.save_for_backward(value, shapes, starts, locations, weights)
            return extension.ms_deform_attn_forward(
                value, shapes, starts, locations, weights, ctx.im2col_step
            )

        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            value, locations, weights = extension.ms_deform_attn_backward(
                *ctx.saved_tensors, grad, ctx.im2col_step
            )
            return value, None, None, locations, weights, None

    return Function


def test_the_module_can_be_imported_and_computes_output_and_gradients(device: str) -> None:
    assert importlib.util.find_spec(research.EXTENSION) is None, "the real extension is installed"
    with research.install():
        extension = importlib.import_module("MultiScaleDeformableAttention")
        assert importlib.util.find_spec("MultiScaleDeformableAttention").origin == "msda"
        function = repository_function(extension)
    assert research.EXTENSION not in sys.modules
    value, shapes, starts, locations, weights = inputs(device=device)
    wanted = [t.requires_grad_() for t in (value, locations, weights)]
    # Two images: 64 is no divisor of the batch, which the extension would refuse.
    got = function.apply(value, shapes, starts, locations, weights, 64)
    expected = grid_sample(value, shapes, locations, weights)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients(got, wanted), gradients(expected, wanted))


def test_types_may_differ() -> None:
    value, shapes, starts, locations, weights = inputs(torch.float32)
    exact = [t.double() for t in (value, locations, weights)]
    args = (value, shapes.int(), starts.int(), locations.half(), weights)
    got = research.ms_deform_attn_forward(*args, 64)
    expected = grid_sample(exact[0], shapes, locations.half().double(), exact[2])
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    results = research.ms_deform_attn_backward(*args, torch.ones_like(got), 64)
    assert [t.dtype for t in results] == [torch.float32, torch.float16, torch.float32]
    assert [t.shape for t in results] == [value.shape, locations.shape, weights.shape]


def test_a_module_inside_a_package_can_be_installed(tmp_path: pathlib.Path, monkeypatch) -> None:
    package = tmp_path / "msda_test_detector"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text("from msda_test_detector import _C\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with research.install("msda_test_detector._C"):
        ops = importlib.import_module("msda_test_detector.ops")
    assert ops._C.ms_deform_attn_forward is research.ms_deform_attn_forward
    assert "msda_test_detector._C" not in sys.modules


def test_an_imported_extension_keeps_its_other_functions(monkeypatch) -> None:
    present = types.ModuleType("msda_test_extension")
    present.ms_deform_attn_forward = original = object()
    present.other = other = object()
    monkeypatch.setitem(sys.modules, "msda_test_extension", present)
    patch = research.install("msda_test_extension")
    assert present.ms_deform_attn_forward is research.ms_deform_attn_forward
    assert present.other is other
    patch.undo()
    assert present.ms_deform_attn_forward is original
    assert not hasattr(present, "ms_deform_attn_backward")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_the_module_stays_until_all_calls_are_undone(order: tuple[int, int]) -> None:
    handles = [research.install(), research.install()]
    module = sys.modules[research.EXTENSION]
    for _ in range(2):
        handles[order[0]].undo()
        assert sys.modules[research.EXTENSION] is module
    handles[order[1]].undo()
    assert research.EXTENSION not in sys.modules


def test_a_module_of_others_stays_when_a_call_is_undone(monkeypatch) -> None:
    patch = research.install("msda_test_extension")
    theirs = types.ModuleType("msda_test_extension")
    monkeypatch.setitem(sys.modules, "msda_test_extension", theirs)
    patch.undo()
    assert sys.modules["msda_test_extension"] is theirs


REPOSITORY = """
import torch
import test_research

calls = 0

class MSDeformAttnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        raise RuntimeError("the extension is not built")

def multi_scale_deformable_attn_pytorch(value, shapes, locations, weights):
    global calls
    calls += 1
    return test_research.grid_sample(value, shapes, locations, weights)
"""

PLANAR = """
import test_research

def ms_deform_attn_core_pytorch(value, shapes, locations, weights):
    weights = weights.reshape(locations.shape[:-1])
    return test_research.grid_sample(value.permute(0, 3, 1, 2), shapes, locations, weights)
"""

USER = """
from msda_test_repository import MSDeformAttnFunction, multi_scale_deformable_attn_pytorch

def on_cpu(value, shapes, locations, weights):
    return multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)

def on_gpu(*args):
    return MSDeformAttnFunction.apply(*args, 64)
"""


def test_the_functions_of_a_repository_are_replaced(tmp_path: pathlib.Path, monkeypatch) -> None:
    (tmp_path / "msda_test_repository.py").write_text(REPOSITORY)
    (tmp_path / "msda_test_user.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    user = importlib.import_module("msda_test_user")
    repository = sys.modules["msda_test_repository"]
    kept = ["multi_scale_deformable_attn_pytorch", "MSDeformAttnFunction"]
    before = [getattr(module, name) for module in (user, repository) for name in kept]
    value, shapes, starts, locations, weights = inputs()
    expected = grid_sample(value, shapes, locations, weights)
    with research.patch("msda_test_repository"):
        calls = repository.calls
        torch.testing.assert_close(user.on_cpu(value, shapes, locations, weights), expected)
        torch.testing.assert_close(user.on_gpu(value, shapes, starts, locations, weights), expected)
        assert repository.calls == calls
    after = [getattr(module, name) for module in (user, repository) for name in kept]
    assert all(a is b for a, b in zip(after, before, strict=True))
    assert "apply" not in vars(repository.MSDeformAttnFunction)
    user.on_cpu(value, shapes, locations, weights)
    assert repository.calls == calls + 1


def load(folder: pathlib.Path, name: str, code: str) -> types.ModuleType:
    """A module that `sys.modules` does not have."""
    file = folder / f"{name}.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_outside_of_sys_modules_is_patched(tmp_path: pathlib.Path) -> None:
    module = load(tmp_path, "msda_test_outside", REPOSITORY)
    original = module.multi_scale_deformable_attn_pytorch
    value, shapes, starts, locations, weights = inputs()
    expected = original(value, shapes, locations, weights)
    with research.patch(module):
        calls = module.calls
        got = module.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
        torch.testing.assert_close(got, expected)
        got = module.MSDeformAttnFunction.apply(value, shapes, starts, locations, weights, 64)
        torch.testing.assert_close(got, expected)
        assert module.calls == calls
    assert module.multi_scale_deformable_attn_pytorch is original


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("other", [False, True], ids=["same module", "module that imports it"])
def test_functions_stay_until_all_calls_are_undone(
    tmp_path: pathlib.Path, other: bool, order: tuple[int, int]
) -> None:
    module = load(tmp_path, "msda_test_twice", REPOSITORY)
    second = module
    if other:
        second = types.ModuleType("msda_test_other")
        second.MSDeformAttnFunction = module.MSDeformAttnFunction
        second.multi_scale_deformable_attn_pytorch = module.multi_scale_deformable_attn_pytorch
    original = module.multi_scale_deformable_attn_pytorch
    handles = [research.patch(module), research.patch(second)]
    owner = (module, second)[order[1]]
    for _ in range(2):
        handles[order[0]].undo()
        assert owner.multi_scale_deformable_attn_pytorch is _operators.heads_last
        assert "apply" in vars(module.MSDeformAttnFunction)
    handles[order[1]].undo()
    for each in (module, second):
        assert each.multi_scale_deformable_attn_pytorch is original
    assert "apply" not in vars(module.MSDeformAttnFunction)


def test_a_module_that_was_loaded_again_is_patched_again(tmp_path: pathlib.Path) -> None:
    module = load(tmp_path, "msda_test_again", REPOSITORY)
    first = research.patch(module)
    module.__spec__.loader.exec_module(module)
    fresh = module.multi_scale_deformable_attn_pytorch
    second = research.patch(module)
    assert module.multi_scale_deformable_attn_pytorch is _operators.heads_last
    second.undo()
    first.undo()
    assert module.multi_scale_deformable_attn_pytorch is fresh


def test_planar_values_of_lw_detr_and_rf_detr(tmp_path: pathlib.Path, monkeypatch) -> None:
    (tmp_path / "msda_test_planar.py").write_text(PLANAR)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("msda_test_planar")
    value, shapes, _, locations, weights = inputs()
    given = (value.permute(0, 2, 3, 1).contiguous(), shapes, locations, weights.flatten(3))
    original = module.ms_deform_attn_core_pytorch
    with research.patch(module):
        assert module.ms_deform_attn_core_pytorch is not original
        torch.testing.assert_close(module.ms_deform_attn_core_pytorch(*given), original(*given))


def test_functions_give_the_type_of_grid_sample() -> None:
    value, shapes, _, locations, weights = inputs(torch.bfloat16)
    assert _operators.heads_last(value, shapes, locations, weights).dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        expected = grid_sample(value, shapes, locations.float(), weights.float())
        got = _operators.heads_last(value, shapes, locations.float(), weights.float())
    assert got.dtype is expected.dtype is torch.float32
    torch.testing.assert_close(got, expected, rtol=0.01, atol=0.01)


def test_a_function_that_computes_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a module with an attention module"):
        research.patch(types.ModuleType("empty"))
    module = types.ModuleType("other")

    class MSDeformAttnFunction(torch.autograd.Function):
        pass

    def ms_deform_attn_core_pytorch(value, shapes, locations, weights):
        return 2 * grid_sample(value, shapes, locations, weights)

    module.ms_deform_attn_core_pytorch = ms_deform_attn_core_pytorch
    module.MSDeformAttnFunction = MSDeformAttnFunction
    with pytest.raises(ValueError, match="hint: its arguments have another layout"):
        research.patch(module)
    assert module.ms_deform_attn_core_pytorch is ms_deform_attn_core_pytorch
    assert "apply" not in vars(MSDeformAttnFunction)


def test_a_refusal_takes_back_what_was_replaced(monkeypatch) -> None:
    def ms_deform_attn_core_pytorch(value, shapes, locations, weights, more):
        return None

    module = types.ModuleType("half")
    module.ms_deform_attn_core_pytorch = ms_deform_attn_core_pytorch
    monkeypatch.setattr(
        research, "replace_modules", lambda module, replaced: replaced.set(module, "Attention", 1)
    )
    with pytest.raises(ValueError, match="missing 1 required positional argument: 'more'"):
        research.patch(module)
    assert "Attention" not in vars(module)
    # Libraries stay usable: there it is a warning.
    replaced = Replacements()
    with pytest.warns(UserWarning, match="msda left half.ms_deform_attn_core_pytorch as it is"):
        _operators.replace_operators(module, replaced)
    assert module.ms_deform_attn_core_pytorch is ms_deform_attn_core_pytorch and not replaced


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_example_does_not_depend_on_the_default_type(dtype, monkeypatch) -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            new = _operators.replacement(grid_sample)
    finally:
        torch.set_default_dtype(before)
    assert new is _operators.heads_last


PROGRAM = """
import sys
import MultiScaleDeformableAttention as MSDA
import helper
print(helper.NAME, sys.argv[1:], __name__, MSDA.ms_deform_attn_forward.__module__)
"""


def program(tmp_path: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "msda_attn.integrations.research", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_runs_with_the_module_in_place(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "helper.py").write_text("NAME = 'helper beside the program'\n")
    done = program(tmp_path, "repository/train.py", "--epochs", "50")
    assert done.returncode == 0, done.stderr
    expected = (
        "helper beside the program ['--epochs', '50'] __main__ msda_attn.integrations.research"
    )
    assert done.stdout.strip() == expected
    # The module does not run twice: runpy warns when it was imported before it is run.
    assert "RuntimeWarning" not in done.stderr
    assert program(tmp_path).returncode == 2


DEFORMABLE_DETR = os.environ.get("MSDA_DEFORMABLE_DETR", "")


@pytest.mark.skipif(
    not DEFORMABLE_DETR, reason="MSDA_DEFORMABLE_DETR does not name a checkout of Deformable-DETR"
)
def test_the_module_of_deformable_detr(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(pathlib.Path(DEFORMABLE_DETR) / "models"))
    with research.install():
        ops = importlib.import_module("ops.modules")
    core = importlib.import_module("ops.functions.ms_deform_attn_func")
    torch.manual_seed(0)
    module = ops.MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=3).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    query = torch.randn(3, 11, 32, dtype=torch.float64)
    reference = torch.rand(3, 11, 2, 2, dtype=torch.float64)
    pixels = torch.randn(3, 42, 32, dtype=torch.float64)
    levels = (torch.tensor(SHAPES), torch.tensor([0, 30]))
    got = module(query, reference, pixels, *levels)
    parameters = list(module.parameters())

    def slow(value, shapes, starts, locations, weights, im2col_step):
        return core.ms_deform_attn_core_pytorch(value, shapes, locations, weights)

    got_gradients = gradients(got, parameters)
    monkeypatch.setattr(core.MSDeformAttnFunction, "apply", staticmethod(slow))
    expected = module(query, reference, pixels, *levels)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got_gradients, gradients(expected, parameters))
