"""`msda.patch(library)`: models of other libraries with random weights compute the same."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

# Nothing is downloaded, and no library asks for it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("YOLO_OFFLINE", "1")

import msda_attn as msda  # noqa: E402
import msda_attn.integrations.mmcv as integration  # noqa: E402
import test_research  # noqa: E402
from counting import Calls  # noqa: E402
from msda_attn.integrations import libraries, research  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

FEATURES = [(16, 8), (24, 4), (32, 2)]


def features() -> list[Tensor]:
    return [torch.rand(2, channels, side, side) for channels, side in FEATURES]


def _ultralytics() -> tuple[nn.Module, Tensor]:
    from ultralytics.nn.tasks import RTDETRDetectionModel

    return RTDETRDetectionModel("rtdetr-l.yaml", verbose=False), torch.rand(1, 3, 64, 64)


def _rfdetr() -> tuple[nn.Module, Tensor]:
    from rfdetr.config import RFDETRNanoConfig
    from rfdetr.models.lwdetr import build_model_from_config

    # With a name of weights the backbone is built without loading any.
    config = RFDETRNanoConfig(pretrain_weights="none.pth", device="cpu")
    return build_model_from_config(config), torch.rand(1, 3, 384, 384)


_DECODER = dict(
    num_classes=5,
    hidden_dim=32,
    num_queries=12,
    feat_channels=[channels for channels, _ in FEATURES],
    feat_strides=[8, 16, 32],
    nhead=4,
    num_layers=2,
    dim_feedforward=16,
    num_denoising=0,
)


def _lightly_rtdetrv2() -> tuple[nn.Module, list[Tensor]]:
    folder = "lightly_train._task_models.object_detection_components."
    module = importlib.import_module(folder + "rtdetrv2_decoder")
    return module.RTDETRTransformerv2(**_DECODER), features()


def _lightly_dfine() -> tuple[nn.Module, list[Tensor]]:
    folder = "lightly_train._task_models.object_detection_components."
    module = importlib.import_module(folder + "dfine_decoder")
    sizes = {**_DECODER, "feat_channels": [32] * 3, "num_points": [3, 6, 3]}
    maps = [torch.rand(2, 32, side, side) for _, side in FEATURES]
    return module.DFINETransformer(**sizes, reg_max=8), maps


def _libreyolo() -> tuple[nn.Module, list[Tensor]]:
    from libreyolo.models.rtdetr.nn import RTDETRTransformer

    sizes = dict(_DECODER)
    sizes["num_decoder_layers"] = sizes.pop("num_layers")
    return RTDETRTransformer(**sizes), features()


# Library, model, the form of the operator that it calls, and a type that the model allows.
MODELS: dict[str, tuple[str, Callable[[], tuple[nn.Module, object]], str, torch.dtype]] = {
    "ultralytics": ("ultralytics", _ultralytics, "_fused", torch.float64),
    "rfdetr": ("rfdetr", _rfdetr, "_fused", torch.float64),
    "lightly_train RT-DETRv2": ("lightly_train", _lightly_rtdetrv2, "_fused", torch.float32),
    "lightly_train D-FINE": ("lightly_train", _lightly_dfine, "_fused", torch.float32),
    "libreyolo": ("libreyolo", _libreyolo, "_tables", torch.float64),
}


def make(name: str) -> tuple[str, nn.Module, object, str, float]:
    library, build, form, dtype = MODELS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    torch.manual_seed(3)
    model, inputs = build()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "sampling_offsets" in parameter_name:
                parameter.add_(0.4 * torch.randn_like(parameter))
    inputs = torch.utils._pytree.tree_map(lambda t: t.to(dtype), inputs)
    precision = 1e-9 if dtype is torch.float64 else 1e-3
    return library, model.to(dtype).eval(), inputs, form, precision


def leaves(result: object) -> list[Tensor]:
    found = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
    return [t for t in found if t.is_floating_point()]


def gradients(model: nn.Module, inputs: object) -> tuple[list[Tensor], dict[str, Tensor]]:
    model.zero_grad()
    outputs = leaves(model(inputs))
    sum(torch.nan_to_num(t).sin().sum() for t in outputs if t.requires_grad).backward()
    named = model.named_parameters()
    return outputs, {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same(name: str) -> None:
    library, model, inputs, form, precision = make(name)
    outputs, grads = gradients(model, inputs)
    attentions = sum(hasattr(module, "sampling_offsets") for module in model.modules())
    with msda.patch(library) as patch, Calls() as calls:
        got, got_grads = gradients(model, inputs)
        assert patch.replaced
    assert calls.count[f"msda._forward{form}"] == attentions > 0
    assert calls.count["aten.grid_sampler_2d"] == 0
    torch.testing.assert_close(got, outputs, rtol=precision, atol=precision)
    assert got_grads.keys() == grads.keys()
    scale = max(grad.abs().max().item() for grad in grads.values())
    for parameter, expected in grads.items():
        assert (got_grads[parameter] - expected).abs().max() <= precision * scale, parameter
    with torch.no_grad(), Calls() as calls:
        model(inputs)
    assert calls.count[f"msda._forward{form}"] == 0


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Inside, an operator without a deterministic form raises."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def test_ultralytics_trains_with_the_same_bits() -> None:
    """Ultralytics asks for determinism. Its own operator has no deterministic gradient on a GPU."""
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("ultralytics is not installed")
    from ultralytics.nn.modules.transformer import MSDeformAttn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    module = MSDeformAttn(64, 3, 4, 4).to(device)
    sizes = [(20, 20), (10, 10), (5, 5)]
    # Many queries look at few pixels: sums of many gradients for one pixel.
    query = torch.rand(2, 500, 64, device=device)
    boxes = 0.5 + 0.01 * torch.rand(2, 500, 1, 4, device=device)
    value = torch.rand(2, 525, 64, device=device)

    def grads() -> list[Tensor]:
        module.zero_grad()
        module(query, boxes, value, sizes).square().sum().backward()
        return [parameter.grad.clone() for parameter in module.parameters()]

    with deterministic(), msda.patch("ultralytics"):
        first = grads()
        assert all(map(torch.equal, grads(), first))
    if device == "cuda":
        with deterministic(), pytest.raises(RuntimeError, match="deterministic"):
            grads()


def test_a_whole_model_of_ultralytics_trains_with_the_same_bits_on_the_cpu() -> None:
    _, model, image, *_ = make("ultralytics")
    model, images = model.float().train(), torch.cat([image, image.flip(-1)]).float()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def step() -> list[Tensor]:
        model.load_state_dict(start)
        outputs, grads = gradients(model, images)
        return [*outputs, *grads.values()]

    with deterministic(), msda.patch("ultralytics"), Calls() as calls:
        first = step()
        assert all(map(torch.equal, step(), first))
    assert calls.count["msda._backward_fused"] > 0


def test_rfdetr_does_not_transpose_its_value() -> None:
    if importlib.util.find_spec("rfdetr") is None:
        pytest.skip("rfdetr is not installed")
    from rfdetr.models.ops.modules.ms_deform_attn import MSDeformAttn

    module = MSDeformAttn(32, 1, 4, 2)
    given = dict(
        query=torch.rand(2, 5, 32),
        reference_points=torch.rand(2, 5, 1, 4),
        input_flatten=torch.rand(2, 12, 32),
        input_spatial_shapes=torch.tensor([[3, 4]]),
        input_level_start_index=torch.tensor([0]),
        input_spatial_shapes_hw=[(3, 4)],
    )
    expected = module(**given)
    with msda.patch("rfdetr"), torch.no_grad():
        with Calls() as calls:
            got = module(**given)
        assert calls.count["aten.clone"] == calls.count["aten.copy_"] == 0
        # In export mode its own forward runs; only the operator inside is msda's.
        module.export()
        with Calls() as calls:
            exported = module(**given)
        assert calls.count["msda._forward_fused"] == 0 and calls.count["msda._forward"] == 1
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(exported, expected)


@pytest.fixture(scope="module")  # mmcv refuses to load the file twice
def mmcv_ops() -> Iterator[types.ModuleType]:
    """The file of mmcv with its attention module.

    mmcv-lite has the file, and not the compiled functions: there they are those of msda.
    """
    mmcv = pytest.importorskip("mmcv", reason="mmcv is not installed")
    name = "mmcv.ops.multi_scale_deform_attn"
    if importlib.util.find_spec("mmcv._ext") is not None:
        yield importlib.import_module(name)
        return
    package = types.ModuleType("mmcv.ops")
    package.__path__ = [str(pathlib.Path(mmcv.__file__).parent / "ops")]
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("mmcv.ops")]:
        del sys.modules[loaded]
    sys.modules["mmcv.ops"] = package
    with research.install("mmcv._ext"):
        yield importlib.import_module(name)
    del sys.modules["mmcv.ops"], sys.modules[name]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_the_module_of_mmcv_and_detrex(mmcv_ops, batch_first: bool, ratio: float) -> None:
    torch.manual_seed(0)
    module = mmcv_ops.MultiScaleDeformableAttention(
        32, 4, 2, 3, dropout=0.0, batch_first=batch_first, value_proj_ratio=ratio
    ).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    query, value = torch.randn(3, 11, 32).double(), torch.randn(3, 42, 32).double()
    if not batch_first:
        query, value = query.transpose(0, 1), value.transpose(0, 1)
    given = {
        "query": query,
        "value": value,
        "query_pos": torch.randn_like(query),
        "reference_points": torch.rand(3, 11, 2, 2).double(),
        "spatial_shapes": torch.tensor([(6, 5), (3, 4)]),
        "level_start_index": torch.tensor([0, 30]),
        "key_padding_mask": torch.rand(3, 42) < 0.3,
        # mmdet passes these, and the module ignores them.
        "key_pos": None,
        "valid_ratios": torch.rand(3, 2, 2),
    }

    def run() -> list[Tensor]:
        output, moved = module(**given), module(**given, identity=query * 2)
        parameters = list(module.parameters())
        return [output, moved, *test_research.gradients(output, parameters)]

    expected = run()
    for patch in (integration.patch, lambda: research.patch(mmcv_ops)):
        with patch(), Calls() as calls:
            got = run()
        assert calls.count["msda._forward_fused_tables"] == 2
        torch.testing.assert_close(got, expected)


def mmcv_state(ops: types.ModuleType) -> list[object]:
    extension = importlib.import_module("mmcv._ext")
    return [
        ops.multi_scale_deformable_attn_pytorch,
        ops.MultiScaleDeformableAttention.forward,
        vars(ops.MultiScaleDeformableAttnFunction).get("apply"),
        extension.ms_deform_attn_forward,
        extension.ms_deform_attn_backward,
    ]


def test_a_patch_of_mmcv_is_idempotent_and_undone_completely(mmcv_ops) -> None:
    before = mmcv_state(mmcv_ops)
    stale = integration.patch()
    once = mmcv_state(mmcv_ops)
    assert all(a is not b for a, b in zip(once, before, strict=True))
    with integration.patch():
        pass
    assert mmcv_state(mmcv_ops) == once
    integration.unpatch()
    assert mmcv_state(mmcv_ops) == before
    # The same functions, by another way. A handle undoes its own call only.
    other = research.patch(mmcv_ops)
    handle = integration.patch()
    stale.undo()
    other.undo()
    assert all(a is not b for a, b in zip(mmcv_state(mmcv_ops), before, strict=True))
    handle.undo()
    assert mmcv_state(mmcv_ops) == before


def test_functions_of_mmcv_compute_the_same(mmcv_ops) -> None:
    value, shapes, starts, locations, weights = test_research.inputs()
    wanted = [t.requires_grad_() for t in (value, locations, weights)]
    expected = mmcv_ops.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    expected_gradients = test_research.gradients(expected, wanted)
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
            mmcv_ops.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights),
            mmcv_ops.MultiScaleDeformableAttnFunction.apply(
                value, shapes, starts, locations, weights, 64
            ),
            Own.apply(value, shapes, starts, locations, weights),
        ):
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(test_research.gradients(got, wanted), expected_gradients)


def test_a_name_has_any_case() -> None:
    with msda.patch("Research") as patch:
        assert patch.replaced == ["MultiScaleDeformableAttention"]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="library: got 'detectron', expected one of libreyolo, "):
        msda.patch("detectron")
    with pytest.raises(ValueError, match="library: got None"):
        msda.patch(None)


@pytest.mark.parametrize("name", libraries.NAMES)
def test_a_missing_library_is_named(name: str) -> None:
    if importlib.util.find_spec(name) is not None or name == "research":
        pytest.skip(f"{name} is there")
    with pytest.raises(ImportError, match=f"needs {name}"):
        msda.patch(name)


def test_every_library_can_be_patched_and_undone_in_any_order() -> None:
    found = [n for n in libraries.NAMES if n == "research" or importlib.util.find_spec(n)]
    found = [n for n in found if n != "mmcv" or importlib.util.find_spec("mmcv._ext")]
    before = list(sys.meta_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        handles = [msda.patch(name) for name in [*found, *found]]
    assert [handle.replaced for handle in handles[: len(found)]] == [
        handle.replaced for handle in handles[len(found) :]
    ]
    for handle in (*handles[::2], *handles[1::2], *handles):
        handle.undo()
    assert sys.meta_path == before
    assert all(handle.replaced == [] for handle in handles)
