"""A small model of every family of transformers that has multi-scale deformable attention.

All weights are random: nothing is downloaded. The operator sees several levels, and sampling
locations in general position: `randomise` moves the offsets off the pixel grid, where the gradient
of a location jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msda_attn as msda
import pytest
import torch
import transformers
from torch import Tensor, nn

IMAGE = 64

# Before version 5 some models had a backbone of another library unless told otherwise.
_OWN_BACKBONE = (
    {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    if int(transformers.__version__.split(".")[0]) < 5
    else {}
)


class Case(NamedTuple):
    """A model and the arguments of its forward."""

    model: nn.Module
    inputs: dict[str, Tensor]


# Sizes that the ResNets of Deformable DETR and of RT-DETR share.
_RESNET = dict(
    embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], layer_type="basic"
)


def _resnet() -> object:
    return transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"], **_RESNET)


def _rt_detr_resnet() -> object:
    return transformers.RTDetrResNetConfig(out_indices=[2, 3, 4], **_RESNET)


def _hgnet(out_indices: tuple[int, ...] = (2, 3, 4)) -> object:
    return transformers.HGNetV2Config(
        embedding_size=8,
        hidden_sizes=[8, 12, 16, 20],
        depths=[1, 1, 1, 1],
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 12, 16],
        stage_mid_channels=[4, 4, 8, 8],
        stage_out_channels=[8, 12, 16, 20],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[1, 1, 1, 1],
        stage_downsample=[False, True, True, True],
        stage_light_block=[False, False, True, True],
        stage_kernel_size=[3, 3, 5, 5],
        out_indices=list(out_indices),
    )


def _swin(out_indices: tuple[int, ...]) -> object:
    return transformers.SwinConfig(
        image_size=IMAGE,
        patch_size=4,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        drop_path_rate=0.0,
        out_indices=list(out_indices),
    )


# Sizes that RT-DETR and the models made after it share.
_RT_DETR = dict(
    encoder_in_channels=[12, 16, 20],
    encoder_hidden_dim=32,
    encoder_ffn_dim=16,
    encoder_attention_heads=2,
    d_model=32,
    num_queries=10,
    decoder_in_channels=[32, 32, 32],
    decoder_ffn_dim=16,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_n_points=3,
    num_denoising=0,
    num_labels=5,
)


def _case(name: str, kind: str = "ForObjectDetection", **sizes: Any) -> Case:
    """A model of transformers with a configuration of these sizes, and pixels for it."""
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}{kind}")(config)
    return Case(model, {"pixel_values": torch.randn(2, 3, IMAGE, IMAGE)})


def deformable_detr() -> Case:
    case = _case(
        "DeformableDetr",
        **_OWN_BACKBONE,
        backbone_config=_resnet(),
        num_queries=9,
        num_labels=5,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_n_points=3,
        decoder_n_points=2,
        with_box_refine=True,
        two_stage=True,
        two_stage_num_proposals=9,
    )
    mask = torch.ones(2, IMAGE, IMAGE, dtype=torch.int64)
    mask[1, :, 40:] = 0
    case.inputs["pixel_mask"] = mask
    return case


def _rt_detr(name: str, **sizes: Any) -> Case:
    return _case(name, **{"backbone_config": _hgnet(), **_RT_DETR, **sizes})


_D_FINE = {"decoder_n_points": [3, 4, 2]}


# Sizes that LW-DETR and RF-DETR share.
_VIT = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=IMAGE,
    patch_size=16,
    out_indices=[1, 2],
)


def _lw_detr(name: str, backbone: object, heads: int, **sizes: Any) -> Case:
    return _case(
        name,
        backbone_config=backbone,
        decoder_cross_attention_heads=heads,
        d_model=32,
        decoder_ffn_dim=16,
        decoder_layers=2,
        decoder_n_points=2,
        decoder_self_attention_heads=4,
        num_queries=6,
        group_detr=2,
        num_labels=5,
        **sizes,
    )


def lw_detr() -> Case:
    backbone = transformers.LwDetrViTConfig(
        pretrain_image_size=IMAGE, num_windows=4, window_block_indices=[0], **_VIT
    )
    return _lw_detr("LwDetr", backbone, 4, projector_scale_factors=[2.0, 0.5])


def rf_detr() -> Case:
    backbone = transformers.RfDetrDinov2Config(num_windows=2, **_VIT)
    return _lw_detr("RfDetr", backbone, 2, dropout=0.0)


def _grounding(name: str) -> Case:
    text = transformers.BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    case = _case(
        name,
        backbone_config=_swin((2, 3, 4)),
        text_config=text,
        num_queries=8,
        d_model=32,
        dropout=0.0,
        fusion_droppath=0.0,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_n_points=2,
        decoder_n_points=2,
        max_text_len=16,
    )
    ids = torch.randint(5, 90, (2, 6))
    case.inputs.update(input_ids=ids, attention_mask=torch.ones_like(ids))
    return case


def omdet_turbo() -> Case:
    text = transformers.CLIPTextConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=16,
        projection_dim=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=1,
        eos_token_id=99,
    )
    case = _case(
        "OmDetTurbo",
        **_OWN_BACKBONE,
        backbone_config=_swin((2, 3, 4)),
        text_config=text,
        image_size=IMAGE,
        apply_layernorm_after_vision_backbone=False,
        text_projection_in_dim=16,
        text_projection_out_dim=16,
        class_embed_dim=16,
        task_encoder_hidden_dim=16,
        num_queries=8,
        encoder_hidden_dim=32,
        decoder_hidden_dim=32,
        vision_features_channels=[32, 32, 32],
        encoder_in_channels=[16, 32, 64],
        encoder_attention_heads=2,
        encoder_dim_feedforward=16,
        decoder_num_heads=4,
        decoder_num_layers=2,
        decoder_num_points=2,
        decoder_dim_feedforward=16,
    )
    ids = torch.randint(5, 90, (3, 7))
    ids[:, -1] = 99
    tasks = torch.randint(5, 90, (2, 7))
    tasks[:, -1] = 99
    case.inputs.update(
        classes_input_ids=ids,
        classes_attention_mask=torch.ones_like(ids),
        tasks_input_ids=tasks,
        tasks_attention_mask=torch.ones_like(tasks),
        classes_structure=torch.tensor([2, 1]),
    )
    return case


def pp_doclayout_v2() -> Case:
    return _rt_detr(
        "PPDocLayoutV2",
        reading_order_config=dict(
            hidden_size=16,
            num_attention_heads=2,
            intermediate_size=16,
            num_hidden_layers=1,
            coordinate_size=3,
            shape_size=2,
            global_pointer_head_size=8,
            num_classes=5,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        class_thresholds=[0.0] * 5,
        class_order=list(range(5)),
    )


def pp_doclayout_v3() -> Case:
    return _rt_detr(
        "PPDocLayoutV3",
        backbone_config=_hgnet((1, 2, 3, 4)),
        x4_feat_dim=8,
        mask_feature_channels=[8, 8],
        num_prototypes=4,
        global_pointer_head_size=8,
        gp_dropout_value=0.0,
    )


def pp_doclayout_v4() -> Case:
    sizes = dict(
        _RT_DETR, backbone_config=_hgnet(), global_pointer_head_size=8, gp_dropout_value=0.0
    )
    sizes["hidden_size"] = sizes.pop("d_model")
    return _case("PPDocLayoutV4", **sizes)


# Sizes that Mask2Former and OneFormer share.
_MASK2FORMER = dict(
    hidden_dim=32,
    encoder_feedforward_dim=16,
    encoder_layers=2,
    decoder_layers=2,
    num_attention_heads=4,
    dim_feedforward=16,
    num_queries=6,
    num_labels=5,
)


def mask2former() -> Case:
    sizes = dict(feature_size=32, mask_feature_size=16, **_MASK2FORMER)
    return _case("Mask2Former", "Model", backbone_config=_swin((1, 2, 3, 4)), **sizes)


def oneformer() -> Case:
    sizes = dict(task_seq_len=7, conv_dim=32, mask_dim=32, dropout=0.0, **_MASK2FORMER)
    case = _case("OneFormer", "Model", backbone_config=_swin((1, 2, 3, 4)), **sizes)
    case.inputs["task_inputs"] = torch.randint(0, 90, (2, 7))
    return case


_DISCRETE = {"decoder_method": "discrete"}
FAMILIES: dict[str, Callable[[], Case]] = {
    "deformable_detr": deformable_detr,
    "rt_detr": lambda: _rt_detr("RTDetr", backbone_config=_rt_detr_resnet()),
    "rt_detr_v2": lambda: _rt_detr("RTDetrV2", backbone_config=_rt_detr_resnet()),
    "rt_detr_v2_discrete": lambda: _rt_detr(
        "RTDetrV2", backbone_config=_rt_detr_resnet(), **_DISCRETE
    ),
    "d_fine": lambda: _rt_detr("DFine", **_D_FINE),
    "d_fine_discrete": lambda: _rt_detr("DFine", **_D_FINE, **_DISCRETE),
    "deimv2": lambda: _rt_detr("Deimv2", **_D_FINE),
    "lw_detr": lw_detr,
    "rf_detr": rf_detr,
    "grounding_dino": lambda: _grounding("GroundingDino"),
    "mm_grounding_dino": lambda: _grounding("MMGroundingDino"),
    "omdet_turbo": omdet_turbo,
    "pp_doclayout_v2": pp_doclayout_v2,
    "pp_doclayout_v3": pp_doclayout_v3,
    "pp_doclayout_v4": pp_doclayout_v4,
    "mask2former": mask2former,
    "oneformer": oneformer,
}


@pytest.fixture(autouse=True)
def undone():
    """For tests that import it: none leaves a patch behind. One thread: the models are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    msda.unpatch_transformers()


def randomise(model: nn.Module) -> None:
    """Moves every parameter away from its initial value, so that no sample lies on the grid."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.4 if "sampling_offsets" in name else 0.05
            parameter.add_(scale * torch.randn_like(parameter))


def make(family: str) -> Case:
    """The model and inputs of a family, always the same."""
    torch.manual_seed(7)
    try:
        case = FAMILIES[family]()
    except (ImportError, AttributeError) as error:
        pytest.skip(f"transformers {transformers.__version__} has no {family}: {error}")
    randomise(case.model)
    return Case(case.model.eval(), case.inputs)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules around the operator: one call of them is one call of the operator."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "sampling_offsets") and hasattr(module, "attention_weights")
    ]


class Call(NamedTuple):
    """A call of an attention module inside of a model, with tensors that belong to no graph."""

    module: nn.Module
    args: list[Any]
    kwargs: dict[str, Any]

    def __call__(self, **changed: Any) -> Any:
        return self.module(*self.args, **{**self.kwargs, **changed})

    def to(self, dtype: torch.dtype) -> Call:
        def cast(value: Any) -> Any:
            floats = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(dtype) if floats else value

        kwargs = {name: cast(value) for name, value in self.kwargs.items()}
        return Call(self.module.to(dtype), [cast(value) for value in self.args], kwargs)


def first_attention(case: Case) -> Call:
    """The first call of an attention module in a model."""
    calls: list[Call] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        detached = lambda value: value.detach() if isinstance(value, Tensor) else value
        given = {name: detached(value) for name, value in kwargs.items()}
        calls.append(Call(module, [detached(value) for value in args], given))

    module = attention_modules(case.model)[0]
    hook = module.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        case.model(**case.inputs)
    hook.remove()
    return calls[0]
