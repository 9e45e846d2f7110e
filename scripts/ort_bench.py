"""Times in ONNX Runtime on the CPU: `GridSample` as torch exports it, beside msda.

    python scripts/ort_bench.py LIBRARY             # the operator
    python scripts/ort_bench.py LIBRARY --models    # and modules and models of transformers

LIBRARY is target/release/libmsda_ort.so. Needs onnxruntime, onnxscript, torch, transformers and
msda_attn. Both sessions are timed in rounds in one process; each time is a median. The results are
compared before.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import msda_attn as msda
import msda_attn.onnx
import numpy as np
import onnxruntime as ort
import torch
import transformers
from msda_attn._timing import CpuClock, Work, measure
from msda_attn._workloads import Workload, make
from transformers.models.deformable_detr import modeling_deformable_detr as detr

HEADS, CHANNELS, POINTS = 8, 32, 4
SECONDS = 4
# Around a centre per query, as trained models sample.
WORKLOADS = [
    Workload("3 levels", 1, 300, HEADS, CHANNELS, ((80, 80), (40, 40), (20, 20)), (POINTS,) * 3),
    Workload(
        "4 levels",
        *(1, 15_422, HEADS, CHANNELS, ((92, 126), (46, 63), (23, 32), (12, 16)), (POINTS,) * 4),
    ),
]


class Operator(torch.nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = levels

    def forward(self, value, locations, weights):
        return msda.ms_deform_attn(value, self.levels, None, locations, weights)


class Attention(torch.nn.Module):
    def __init__(self, levels):
        super().__init__()
        config = transformers.DeformableDetrConfig()
        self.attention = detr.DeformableDetrMultiscaleDeformableAttention(
            config, num_heads=HEADS, n_points=POINTS
        )
        self.levels = levels
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.05)

    def forward(self, x, points):
        sizes = torch.tensor(self.levels)
        starts = torch.cat((sizes.new_zeros(1), sizes.prod(1).cumsum(0)[:-1]))
        return self.attention(
            hidden_states=x,
            encoder_hidden_states=x,
            reference_points=points,
            spatial_shapes=sizes,
            spatial_shapes_list=self.levels,
            level_start_index=starts,
        )[0]


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        resnet = transformers.ResNetConfig(out_features=["stage2", "stage3", "stage4"])
        config = transformers.DeformableDetrConfig(
            use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=resnet
        )
        self.model = transformers.DeformableDetrForObjectDetection(config)

    def forward(self, pixels):
        found = self.model(pixel_values=pixels)
        return found.logits, found.pred_boxes


def session(path, threads, library=None):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Idle threads of the other session must not take time from this one.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library:
        options.register_custom_ops_library(library)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare(name, module, given, library):
    tensors, arrays = tuple(given.values()), {name: t.numpy() for name, t in given.items()}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        theirs, ours = (str(pathlib.Path(folder, f"{kind}.onnx")) for kind in ("theirs", "ours"))
        torch.onnx.export(module.eval(), tensors, theirs, dynamo=True, verbose=False)
        with msda.patch("transformers"):
            msda_attn.onnx.export(module, tensors, ours)
        for threads in (1, 0):
            sessions = [session(theirs, threads), session(ours, threads, library)]
            for expected, got in zip(*(s.run(None, arrays) for s in sessions)):
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
            works = [Work(lambda _, s=s: s.run(None, arrays)) for s in sessions]
            measure(works, CpuClock(), SECONDS)
            theirs_ms, ours_ms = (work.median / 1e3 for work in works)
            times = f"{theirs_ms:.2f} | {ours_ms:.2f} | {theirs_ms / ours_ms:.1f}"
            print(f"| {name} | {threads or 'all cores'} | {times} |", flush=True)


def main(library, models):
    print(f"ONNX Runtime {ort.__version__}, f32, batch 1, {HEADS} heads, {CHANNELS} channels")
    print("| workload | threads | GridSample, ms | msda, ms | ratio |\n|---|---|---|---|---|")
    for workload in WORKLOADS:
        call = make(workload, torch.float32, "cpu")
        given = dict(zip(("value", "locations", "weights"), call.inputs()))
        name = f"{workload.rows:,} queries, {workload.about}"
        compare(name, Operator(call.levels), given, library)
    if models:
        torch.manual_seed(0)
        x = torch.randn(1, workload.positions, HEADS * CHANNELS)
        given = {"x": x, "points": torch.rand(1, workload.positions, 4, 2)}
        name = f"attention with its linear layers, {workload.positions:,} queries"
        compare(name, Attention(call.levels), given, library)
        image = {"pixels": torch.randn(1, 3, 480, 640)}
        compare("Deformable-DETR, 480x640", Detector(), image, library)


if __name__ == "__main__":
    main(sys.argv[1], "--models" in sys.argv)
