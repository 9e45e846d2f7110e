"""`msda_attn.jax` gives the bits of the functions for torch, also under JAX's transforms.

Every test runs on the CPU, and on a GPU if JAX has one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Torch needs memory of the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

import jax.numpy as jnp  # noqa: E402
import msda_attn.jax  # noqa: E402
import numpy as np  # noqa: E402
from test_readme import blocks  # noqa: E402

# Compiling takes most of the time of these tests.
jax.config.update("jax_disable_most_optimizations", True)

LEVELS = [(6, 9), (3, 5), (2, 2)]
POSITIONS = sum(h * w for h, w in LEVELS)


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


@pytest.fixture(autouse=True, params=["cpu", "cuda"] if on_gpu() else ["cpu"])
def device(request):
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


def problem(batch=2, queries=7, heads=3, channels=8, points=4, dtype="float32", seed=0):
    """Value, locations and weights. Some locations lie off the map."""
    generator = np.random.default_rng(seed)
    shape = (batch, queries, heads, len(LEVELS), points)
    value = generator.standard_normal((batch, POSITIONS, heads, channels))
    locations = 1.4 * generator.random((*shape, 2)) - 0.2
    return [jnp.asarray(a, dtype) for a in (value, locations, generator.random(shape))]


def fused_problem(coordinates: int, **sizes):
    value, offsets, logits = problem(**sizes)
    generator = np.random.default_rng(1)
    reference = generator.random((*offsets.shape[:2], len(LEVELS), coordinates))
    return [value, jnp.asarray(reference, value.dtype), 3 * offsets, 5 * logits]


def run(value, locations, weights):
    return msda_attn.jax.ms_deform_attn(value, LEVELS, None, locations, weights)


def run_fused(value, reference, offsets, logits):
    return msda_attn.jax.ms_deform_attn_fused(value, LEVELS, None, reference, offsets, logits)


FORMS = {
    "plain": (run, problem),
    "points": (run_fused, lambda **sizes: fused_problem(2, **sizes)),
    "boxes": (run_fused, lambda **sizes: fused_problem(4, **sizes)),
}


def python(code: str, **settings: str) -> str:
    """What a new process prints. It uses the same msda."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def close(got, expected, tolerance=1e-5):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    got, expected = (np.asarray(a, np.float64) for a in (got, expected))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def gradients(function, inputs):
    """Gradients of all inputs along one direction."""
    output = jax.eval_shape(function, *inputs)
    direction = jnp.cos(jnp.arange(output.size, dtype="float32")).reshape(output.shape)

    def along(*inputs):
        return (function(*inputs).astype("float32") * direction).sum()

    return jax.jit(jax.grad(along, argnums=tuple(range(len(inputs)))))(*inputs)


def by_hand(function, axes):
    """What `jax.vmap(function, axes)` means, for three calls."""

    def mapped(*inputs):
        pick = lambda a, axis, i: a if axis is None else jnp.take(a, i, axis)
        calls = ([pick(a, axis, i) for a, axis in zip(inputs, axes)] for i in range(3))
        return jnp.stack([function(*call) for call in calls])

    return mapped


@pytest.mark.parametrize("form", FORMS)
def test_vmap(form):
    function, make = FORMS[form]
    first, *rest = make()
    # The value differs per call; the other inputs are shared, or have their new dimension last.
    values = jnp.stack([first, 2 * first, first - 1])
    moved = jnp.stack([rest[-1], rest[-1] + 0.5, rest[-1] * 2], -1)
    inputs = [values, *rest[:-1], moved]
    axes = (0, *[None] * (len(rest) - 1), -1)
    mapped, expected = jax.vmap(function, axes), by_hand(function, axes)
    close(mapped(*inputs), expected(*inputs))
    for got, want in zip(gradients(mapped, inputs), gradients(expected, inputs)):
        close(got, want, 1e-4)


def test_vmap_of_a_gradient_and_of_vmap():
    value, locations, weights = problem()
    values = jnp.stack([jnp.stack([value, -value]), jnp.stack([value + 1, value * 2])])

    def gradient(value):
        return jax.grad(lambda v: jnp.sin(run(v, locations, weights)).sum())(value)

    got = jax.jit(jax.vmap(jax.vmap(gradient)))(values)
    want = jnp.stack([jnp.stack([gradient(value) for value in row]) for row in values])
    close(got, want, 1e-4)


def test_the_options_are_those_of_arrays(device):
    value, locations, weights = problem()
    options = {"sampling": "nearest", "padding": "border", "align_corners": True}
    got = msda_attn.jax.ms_deform_attn(value, LEVELS, [0, 54, 69], locations, weights, **options)
    arrays = [np.asarray(a) for a in (locations, weights)]
    want = msda_attn.ms_deform_attn(np.asarray(value), LEVELS, None, *arrays, **options)
    if device == "cpu":
        assert np.array_equal(got, want)
    close(got, want)


def test_points_per_level():
    value, locations, weights = problem()
    flat = locations.reshape(2, 7, 3, 12, 2), weights.reshape(2, 7, 3, 12)

    def with_points(value, locations, weights):
        return msda_attn.jax.ms_deform_attn(
            value, LEVELS, None, locations, weights, points=[4, 4, 4]
        )

    close(with_points(value, *flat), run(value, locations, weights))
    got = gradients(with_points, (value, *flat))
    for a, b in zip(got, gradients(run, (value, locations, weights))):
        close(a.reshape(b.shape), b, 1e-4)


def test_one_level_of_reference_points_stands_for_all():
    value, reference, offsets, logits = fused_problem(4)

    def one(reference):
        return run_fused(value, reference, offsets, logits)

    def every(reference):
        return run_fused(value, jnp.repeat(reference, 3, 2), offsets, logits)

    first = reference[:, :, :1]
    close(one(first), every(first))
    close(gradients(one, (first,))[0], gradients(every, (first,))[0], 1e-4)


def test_wrong_shapes_are_refused_while_tracing():
    value, locations, weights = problem()
    with pytest.raises(ValueError, match=r"attention_weights: got shape \[2, 7, 3, 3, 3\], exp"):
        run(value, locations, weights[..., :3])
    with pytest.raises(ValueError, match=r"sampling_locations: got shape \[2, 7, 3, 3, 4, 1\]"):
        run(value, locations[..., :1], weights)
    with pytest.raises(ValueError, match=r"value: got shape \[2, 73, 3\], expected 4 dimensions"):
        run(value[..., 0], locations, weights)
    with pytest.raises(TypeError, match="value: got int32, expected float64"):
        run(value.astype(int), locations, weights)
    with pytest.raises(ValueError, match="reference_points: got shape"):
        run_fused(value, weights[:, :, 0, :, :3], locations, weights)
    with pytest.raises(ValueError, match="value: got 73 positions, expected 81"):
        msda_attn.jax.ms_deform_attn(value, [(6, 9), (3, 5), (4, 3)], None, locations, weights)
    huge = [(2**62, 2**62)] * 3
    with pytest.raises(ValueError, match="value: got 73 positions, expected a sum below"):
        msda_attn.jax.ms_deform_attn(value, huge, None, locations, weights)


def test_one_level_needs_no_dimension():
    value, locations, weights = problem()
    value, locations, weights = value[:, :54], locations[:, :, :, 0], weights[:, :, :, 0]
    joined = msda_attn.jax.ms_deform_attn(value, [(6, 9)], None, locations, weights)
    apart = msda_attn.jax.ms_deform_attn(
        value, [(6, 9)], None, locations[:, :, :, None], weights[:, :, :, None]
    )
    assert (joined == apart).all()


def test_errors_of_the_operator_come_from_xla():
    value, locations, weights = problem()
    result = jax.ShapeDtypeStruct((2, 7, 24), "float32")
    static = (((6, 9), (3, 5), (4, 3)), (0, 54, 69), 0, 0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="value: got 73 positions, expected"):
        got = msda_attn.jax._call("msda_forward", result, static, value, locations, weights)
        jax.block_until_ready(got)


def test_level_sizes_are_static():
    value, locations, weights = problem()

    @jax.jit
    def function(shapes):
        return msda_attn.jax.ms_deform_attn(value, shapes, None, locations, weights)

    with pytest.raises(TypeError, match="hint: under jax.jit level sizes are static"):
        function(jnp.asarray(LEVELS))


def test_symbolic_sizes_are_refused_by_name():
    from jax import export

    sizes = export.symbolic_shape("b")
    call = jax.jit(lambda *v: msda_attn.jax.ms_deform_attn(v[0], [(2, 2)], None, *v[1:]))
    shapes = ((*sizes, 4, 1, 3), (*sizes, 5, 1, 1, 2, 2), (*sizes, 5, 1, 1, 2))
    with pytest.raises(ValueError, match=r"value: got shape \(b, 4, 1, 3\), expected sizes"):
        export.export(call)(*(jax.ShapeDtypeStruct(shape, "f4") for shape in shapes))


def test_two_calls_at_once_on_one_core():
    """Arrays that XLA copies in other threads must not be waited for in a call."""
    code = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax, jax.numpy as jnp, msda_attn.jax
value, locations = jnp.ones((4, 10000, 8, 32)), jnp.full((4, 10000, 8, 1, 4, 2), 0.5)
weights = jnp.ones((4, 10000, 8, 1, 4))
@jax.jit
def both(value, locations, weights):
    first = msda_attn.jax.ms_deform_attn(value + 1, [(100, 100)], None, locations, weights)
    second = msda_attn.jax.ms_deform_attn(value * 3, [(100, 100)], None, locations, weights)
    return first.sum(), second.sum()
print([float(x) / value.size for x in both(value, locations, weights)])
"""
    assert python(code, JAX_PLATFORMS="cpu") == "[8.0, 12.0]\n"


def test_the_batch_is_split_between_devices():
    """With `shard_map` each device computes its images; `jit` alone gives the same result."""
    code = """
import jax, jax.numpy as jnp, msda_attn.jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
assert len(jax.devices()) == 2
mesh, batch = Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch")
random = np.random.default_rng(0).random
value, locations = random((4, 21, 2, 8), "float32"), random((4, 5, 2, 2, 3, 2), "float32")
inputs = [jnp.asarray(a) for a in (value, locations, random((4, 5, 2, 2, 3), "float32"))]
def one(*inputs):
    return msda_attn.jax.ms_deform_attn(inputs[0], [(4, 4), (1, 5)], None, *inputs[1:])
def gradients(function):
    return jax.jit(jax.grad(lambda *i: jnp.sin(function(*i)).sum(), argnums=(0, 1, 2)))
each = shard_map(one, mesh=mesh, in_specs=(batch,) * 3, out_specs=batch)
# The same values for all images: the gradients of both devices are added up.
shared = shard_map(
    lambda v, *rest: one(jnp.broadcast_to(v, (2, *v.shape[1:])), *rest),
    mesh=mesh, in_specs=(PartitionSpec(), batch, batch), out_specs=batch,
)
split = [jax.device_put(a, NamedSharding(mesh, batch)) for a in inputs]
for function in (one, each):
    got = [jax.jit(function)(*split), *gradients(function)(*split)]
    for a, b in zip(got, [one(*inputs), *gradients(one)(*inputs)]):
        assert np.array_equal(a, b)
first = [inputs[0][:1], *inputs[1:]]
whole = lambda v, *rest: one(jnp.broadcast_to(v, (4, *v.shape[1:])), *rest)
for a, b in zip(gradients(shared)(*first), gradients(whole)(*first)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
text = jax.jit(each).lower(*split).compile().as_text()
print("all-gather" in text, jax.jit(each)(*split).sharding.spec == batch)
"""
    flags = "--xla_force_host_platform_device_count=2"
    assert python(code, XLA_FLAGS=flags, JAX_PLATFORMS="cpu") == "False True\n"


def test_calls_in_a_loop_share_memory():
    """A call of the loop must not use memory that an earlier one still works in."""
    value, locations, weights = problem(queries=300)

    def gradient(scale):
        return jax.grad(lambda l: jnp.sin(run(value * scale, l, weights)).sum())(locations)

    scales = jnp.arange(1.0, 20.0)
    _, got = jax.jit(lambda s: jax.lax.scan(lambda c, x: (c, gradient(x)), 0, s))(scales)
    for scale, a in zip(scales, got):
        close(a, jax.jit(gradient)(scale), 1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("others", ["same", "float32"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_the_bits_are_those_of_torch(form, dtype, others, compiled, device):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    if others == "float32" and dtype in ("float32", "float64"):
        pytest.skip("the types are those of another case")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        function, make = FORMS[form]
        value, *rest = make(dtype="float64")
        inputs = [
            value.astype(dtype),
            *(a.astype(dtype if others == "same" else others) for a in rest),
        ]
        output, gradient = jax.vjp(jax.jit(function) if compiled else function, *inputs)
        direction = jnp.cos(jnp.arange(output.size)).reshape(output.shape).astype(dtype)

        def tensor(a):
            # Every number is a float64.
            return torch.tensor(np.asarray(a, np.float64)).to(device, getattr(torch, a.dtype.name))

        tensors = [tensor(a).requires_grad_() for a in inputs]
        operator = msda_attn.ms_deform_attn if form == "plain" else msda_attn.ms_deform_attn_fused
        want = operator(tensors[0], LEVELS, None, *tensors[1:])
        want.backward(tensor(direction))
        for a, t in zip((output, *gradient(direction)), (want, *(t.grad for t in tensors))):
            assert a.dtype.name == str(t.dtype).removeprefix("torch.")
            assert torch.equal(tensor(a), t)


def test_torch_is_not_needed():
    code = "import sys; sys.modules['torch'] = None; import msda_attn.jax as j; print(j.__all__)"
    assert python(code) == "['ms_deform_attn', 'ms_deform_attn_fused']\n"


def test_the_code_of_the_document_runs():
    (block,) = (b for b in blocks("docs/DISTRIBUTED.md") if b.needs == ["jax"])
    names = {}
    exec(block.code, names)
    assert names["gradient"].shape == names["value"].shape
