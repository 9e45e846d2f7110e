"""Lists of level sizes: one rule, whether the list was seen before or not."""

from __future__ import annotations

import threading

import msda_attn as msda
import numpy
import pytest
import torch
from msda_attn import _native
from msda_attn._torch import levels as cache
from support import problem

SIZES = [(4, 6), (2, 3)]


@pytest.fixture(params=["cold", "warm"])
def call(request):
    """A call with level sizes; the cache is empty, or has the same sizes from an earlier call."""
    inputs = problem(levels=SIZES)

    def run(sizes, starts=None, **options):
        return msda.ms_deform_attn(
            inputs.value, sizes, starts, inputs.locations, inputs.weights, **options
        )

    cache._setups.clear()
    cache._usual_setups.clear()
    if request.param == "warm":
        run(SIZES)
        run(SIZES, [0, 24])
        run(SIZES, padding="border")
        assert len(cache._setups) >= 2
    return run


ALIKE = {
    "list": lambda: SIZES,
    "lists": lambda: [list(pair) for pair in SIZES],
    "tuple": lambda: tuple(SIZES),
    "generator": lambda: (pair for pair in SIZES),
    "map": lambda: map(tuple, SIZES),
    "NumPy integers": lambda: [tuple(map(numpy.int64, pair)) for pair in SIZES],
    "NumPy array": lambda: numpy.array(SIZES),
    "torch.Size": lambda: [torch.Size(pair) for pair in SIZES],
    "tensors": lambda: list(torch.tensor(SIZES)),
}


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.parametrize("starts", [None, [0, 24], (0, 24), numpy.array([0, 24])], ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_all_kinds_of_lists_mean_the_same(call, kind, starts, padding):
    expected = call(torch.tensor(SIZES), padding=padding)
    torch.testing.assert_close(call(ALIKE[kind](), starts, padding=padding), expected)


@pytest.mark.parametrize(
    "sizes, starts, error",
    [
        ([(4.0, 6.0), (2.0, 3.0)], None, TypeError),
        ([(4, 6), (2, 3.0)], None, TypeError),
        (numpy.array(SIZES, float), None, TypeError),
        ([("4", "6"), ("2", "3")], None, TypeError),
        ([4, 6, 2, 3], None, TypeError),
        (SIZES, [0.0, 24.0], TypeError),
        (SIZES, [0], ValueError),
        ([], None, ValueError),
        ((pair for pair in ()), None, ValueError),
        ([(4, 6)], None, ValueError),
    ],
)
def test_a_wrong_list_is_refused(call, sizes, starts, error):
    with pytest.raises(error, match="spatial_shapes|level_start_index"):
        call(sizes, starts)


def test_another_thread_may_clear_the_cache(call, monkeypatch):
    monkeypatch.setattr(cache, "_MOST_SETUPS", 1)
    expected, stop, failed = call(SIZES), threading.Event(), []

    def disturb():
        while not stop.is_set():
            cache._setups.clear()
            cache._usual_setups.clear()

    def work():
        try:
            for _ in range(200):
                for starts in (None, [0, 24]):
                    if not torch.equal(call(SIZES, starts), expected):
                        failed.append("another result")
        except Exception as error:
            failed.append(repr(error))

    others = [threading.Thread(target=work) for _ in range(3)]
    disturber = threading.Thread(target=disturb)
    disturber.start()
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    stop.set()
    disturber.join()
    assert not failed


def test_plans_of_different_levels_never_meet():
    lists = [
        ([(0, 0), (0, 20)], None),
        ([(0, 0)], [20]),
        ([(0, 0), (0, 20)], [0, 5]),
        ([(0, 0), (0, 20), (0, 0)], [5, 5, 5]),
        ([(0, 0), (0, 20), (0, 0), (5, 5)], [5, 6, 7, 8]),
        ([(1, 0), (0, 20)], None),
        ([(0, 1), (0, 20)], None),
        (0, 0, 1),
        (0, 0, 2),
    ]
    keys = [tuple(_native.cuda_level_key(levels)) for levels in lists]
    assert len(set(keys)) == len(keys)
    # Starts that say nothing new have the key of no starts.
    assert _native.cuda_level_key((SIZES, [0, 24])) == _native.cuda_level_key((SIZES, None))
    # Addresses of tables on the GPU do not matter.
    assert _native.cuda_level_key((1, 2, 3)) == _native.cuda_level_key((4, 5, 3))
