"""The operators on the GPU: graphs, streams and callers at the same time. See test_ort.py."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
test_ort = pytest.importorskip("test_ort", reason="onnx is not installed")
if test_ort.CUDA not in test_ort.PROVIDERS:
    pytest.skip("CUDA does not work in this ONNX Runtime", allow_module_level=True)

from test_ort import PLAIN, fused_inputs, inputs, model, options, run, session, uniform  # noqa: E402

# As many queries as positions: such calls order their queries, and need a workspace.
LEVELS = [(64, 80), (32, 40), (16, 20), (8, 10)]
ENCODER = dict(batch=2, queries=6800, heads=8, channels=32, levels=LEVELS)


def on_cuda(proto, **settings):
    given = options()
    # A node that would run on the CPU is an error.
    given.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = (test_ort.CUDA, settings)
    made = ort.InferenceSession(proto.SerializeToString(), given, providers=[provider])
    assert made.get_providers()[0] == test_ort.CUDA, "the provider could not be loaded"
    return made


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("form", ["plain", "fused"])
def test_a_graph_replays_with_new_inputs(form, dtype):
    make = inputs if form == "plain" else lambda **sizes: fused_inputs(2, **sizes)
    cases = [make(**ENCODER), make(**{**ENCODER, "seed": 1})]
    if form == "fused":
        cases[1]["sampling_offsets"] = cases[1]["sampling_offsets"][::-1].copy()
    proto = model(cases[0], uniform(cases[0], dtype), constants=PLAIN[1:3])
    expected = [run(session(proto), case) for case in cases]
    made = on_cuda(proto, enable_cuda_graph="1")
    given = {
        name: ort.OrtValue.ortvalue_from_numpy(cases[0][name].astype("f4"), "cuda", 0)
        for name in uniform(cases[0])
    }
    output = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(expected[0]), "cuda", 0)
    binding = made.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("output", output)
    close = dict(rtol=1e-2, atol=1e-2) if dtype != "f32" else dict(rtol=1e-4, atol=1e-4)
    # The first runs capture; the others replay.
    for turn in range(6):
        case = turn % 2
        for name, value in given.items():
            value.update_inplace(cases[case][name].astype("f4"))
        made.run_with_iobinding(binding)
        np.testing.assert_allclose(output.numpy(), expected[case], **close)


def test_callers_at_the_same_time():
    """Many threads, two sessions: every run has a stream, and every stream a workspace."""
    cases = [inputs(**{**ENCODER, "seed": n}) for n in range(3)]
    proto = model(cases[0], uniform(cases[0]), constants=PLAIN[1:3])
    for case in cases:
        for name in PLAIN[1:3]:
            case.pop(name)
    sessions = [on_cuda(proto), on_cuda(proto)]
    expected = [run(sessions[0], case) for case in cases]

    def work(i):
        got = run(sessions[i % 2], cases[i % 3])
        return (got == expected[i % 3]).all()

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(60)))
