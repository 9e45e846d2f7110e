"""NumPy arrays and DLPack, also where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

import msda_attn as msda
import numpy
import pytest
import torch
from support import problem


def arrays(dtype=torch.float32):
    return [tensor.numpy() for tensor in problem(dtype=dtype)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_numpy(dtype):
    given = arrays(dtype)
    output = msda.ms_deform_attn(*given)
    assert isinstance(output, numpy.ndarray)
    assert numpy.array_equal(output, msda.ms_deform_attn(*problem(dtype=dtype)).numpy())


def test_numpy_with_strides():
    value, shapes, starts, locations, weights = arrays()
    expected = msda.ms_deform_attn(value, shapes, starts, locations, weights)
    backwards = numpy.ascontiguousarray(value[::-1])[::-1]
    swapped = value.astype(value.dtype.newbyteorder())
    fortran = numpy.asfortranarray(value)
    odd = numpy.frombuffer(b"x" + value.tobytes(), value.dtype, offset=1).reshape(value.shape)
    assert not odd.flags.aligned
    for other in (backwards, swapped, fortran, odd):
        output = msda.ms_deform_attn(other, shapes, starts, locations, weights)
        assert numpy.array_equal(output, expected)


def test_anything_with_dlpack():
    class Wrapped:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    value, shapes, starts, locations, weights = arrays()
    output = msda.ms_deform_attn(
        Wrapped(value), shapes, starts, Wrapped(locations), Wrapped(weights)
    )
    assert numpy.array_equal(output, msda.ms_deform_attn(value, shapes, starts, locations, weights))


def test_points_and_sizes_are_checked():
    value, shapes, starts, locations, weights = arrays()
    with pytest.raises(ValueError, match="points: got .*, expected one number"):
        msda.ms_deform_attn(value, shapes, starts, locations, weights, points=[12])
    with pytest.raises(TypeError, match="spatial_shapes: got"):
        msda.ms_deform_attn(value, shapes.astype(float), starts, locations, weights)


def test_masked_arrays_are_refused():
    value, *others = arrays()
    with pytest.raises(TypeError, match="value: got a masked array, expected one without"):
        msda.ms_deform_attn(numpy.ma.masked_array(value), *others)


def test_a_wrong_number_of_threads_is_refused(monkeypatch):
    given = [array.numpy() for array in problem(queries=2000)]
    for wrong in ("abc", "0", "-1", "1e3", "4097", str(2**63 - 1)):
        monkeypatch.setenv("MSDA_NUM_THREADS", wrong)
        with pytest.raises(ValueError, match=f"MSDA_NUM_THREADS: got .{wrong}., expected a number"):
            msda.ms_deform_attn(*given)
    monkeypatch.setenv("MSDA_NUM_THREADS", "")
    assert msda.ms_deform_attn(*given).shape == (2, 2000, 24)


def test_the_fused_form():
    value, shapes, starts, offsets, logits = arrays()
    reference = numpy.random.default_rng(0).random((2, 7, 1, 4), dtype=numpy.float32)
    output = msda.ms_deform_attn_fused(value, shapes, starts, reference, offsets, logits)
    tensors = [torch.from_numpy(a) for a in (value, shapes, starts, reference, offsets, logits)]
    assert numpy.array_equal(output, msda.ms_deform_attn_fused(*tensors).numpy())


def test_sizes_that_no_array_has():
    value, _, _, locations, weights = arrays()
    for size in (2**62, 2**70):
        with pytest.raises(ValueError, match="positions|spatial_shapes"):
            msda.ms_deform_attn(value, [(size, 2)] * 3, None, locations, weights)


def test_python_exits_while_a_daemon_thread_computes():
    """Before Python 3.14 such a thread ends in the call: its unwinder passes our frames."""
    code = """
import threading, time, numpy, msda_attn as msda
value = numpy.ones((1, 4096, 8, 32), dtype=numpy.float32)
where = numpy.full((1, 2000, 8, 1, 4, 2), 0.5, dtype=numpy.float32)
weights = numpy.ones((1, 2000, 8, 1, 4), dtype=numpy.float32)
started = threading.Event()
def compute():
    while True:
        msda.ms_deform_attn(value, [(64, 64)], None, where, weights)
        started.set()
threads = [threading.Thread(target=compute, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
started.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_torch():
    """A Python in which torch cannot be found."""
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.modules["torch"] = None
import numpy, msda_attn as msda
value = numpy.arange(4, dtype=numpy.float32).reshape(1, 4, 1, 1)
where = numpy.full((1, 1, 1, 1, 1, 2), 0.5, dtype=numpy.float32)
weights = numpy.ones((1, 1, 1, 1, 1), dtype=numpy.float32)
print(msda.ms_deform_attn(value, [(2, 2)], None, where, weights).item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1.5\n"
