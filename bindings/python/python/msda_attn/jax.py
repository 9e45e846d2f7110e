"""The operator for JAX arrays, on CPUs and NVIDIA GPUs.

    import msda_attn.jax

    output = msda_attn.jax.ms_deform_attn(value, [(8, 8), (4, 4)], None, locations, weights)

Arguments and results are those of `msda.ms_deform_attn` and `msda.ms_deform_attn_fused`. Level
sizes and starts are static: lists of numbers. All arrays have gradients, of reverse mode.
`jax.jit`, `jax.grad`, `jax.vjp`, `jax.vmap` and `jax.shard_map` work. XLA calls the compiled part
through its interface for custom calls, without Python; on a GPU it is queued on XLA's stream. There
is no kernel for other devices: XLA refuses to compile the call there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import pathlib
from collections.abc import Iterable
from typing import Any

try:
    import jax
except ImportError:
    raise ImportError("msda_attn.jax needs JAX\nhint: pip install jax") from None
import jax.numpy as jnp
import numpy as np

from . import _functions, _native
from ._arguments import level_sizes, native_call, operands, output_shape
from ._functions import computed_by
from ._imports import name_packages
from ._options import encode

__all__ = ["ms_deform_attn", "ms_deform_attn_fused"]

if not hasattr(jax, "ffi"):
    raise ImportError(f"msda_attn.jax: got JAX {jax.__version__}, expected 0.5 or newer")
name_packages(str(pathlib.Path(jax.__file__).parent.parent))
for _platform, _addresses in _native.xla_handlers():
    for _name, _address in zip(("msda_forward", "msda_backward"), _addresses):
        _handler = jax.ffi.pycapsule(ctypes.c_void_p(_address))
        jax.ffi.register_ffi_target(_name, _handler, platform=_platform)

_FLOATS = ("float64", "float32", "float16", "bfloat16")


def _float_array(name: str, given: Any) -> jax.Array:
    array = jnp.asarray(given)
    if array.dtype.name not in _FLOATS:
        raise TypeError(
            f"{name}: got {array.dtype}, expected float64, float32, float16 or bfloat16"
        )
    return array


def _check(given: dict[str, jax.Array], levels: tuple, numbers: tuple[int, int]) -> None:
    """Refuses a wrong call while JAX traces. Later, errors come from XLA, or not at all: it leaves
    out calls whose results nobody needs."""
    for name, array in given.items():
        if not all(isinstance(size, int) for size in array.shape):
            raise ValueError(
                f"{name}: got shape {array.shape}, expected sizes that are numbers\n"
                "hint: export a function for each size that you need"
            )
    # Without data only types and sizes count.
    floats = ((0, a.dtype.name, a.shape, (0,) * a.ndim) for a in given.values())
    _native.check(native_call(floats, levels, *numbers))


def _starts(pairs: tuple, starts: tuple[int, ...] | None) -> tuple[int, ...]:
    """The first position of each level."""
    if starts is not None:
        return starts
    ends = itertools.accumulate((height * width for height, width in pairs), initial=0)
    return tuple(ends)[:-1]


def _axes(array: jax.Array) -> frozenset[str]:
    """Under `jax.shard_map`: the axes of the mesh along which devices have different arrays."""
    if not hasattr(jax, "typeof"):
        return frozenset()
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    return getattr(kind, "vma", frozenset()) if manual is None else manual.varying


def _differ_alike(arrays: Iterable[jax.Array]) -> list[jax.Array]:
    """Arrays of one call differ along the same axes. So the gradients of an array that is the same
    on several devices are added up."""
    arrays = list(arrays)
    axes: frozenset[str] = frozenset().union(*map(_axes, arrays))
    if hasattr(jax.lax, "pcast"):
        vary = functools.partial(jax.lax.pcast, to="varying")
    else:
        vary = getattr(jax.lax, "pvary", None)
    return [vary(a, tuple(axes - _axes(a))) if axes - _axes(a) else a for a in arrays]


def _like(array: jax.Array, shape: tuple[int, ...]) -> Any:
    """The type of a result that differs along the axes of an array."""
    if not _axes(array):
        return jax.ShapeDtypeStruct(shape, array.dtype)
    return jax.typeof(array).update(shape=shape)


def _call(name: str, results: Any, static: tuple, *arrays: jax.Array) -> Any:
    shapes, starts, options, points = static
    levels = [(*pair, start) for pair, start in zip(shapes, starts)]
    numbers = np.array([options, points, *itertools.chain(*levels)], np.int64)
    # With "broadcast_all", vmap adds the same first dimensions to every array: one call of the
    # operator computes them all.
    return jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")(*arrays, numbers=numbers)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: tuple, *tensors: jax.Array) -> jax.Array:
    shape = output_shape(tensors[0].shape, "locations", tensors[-2].shape)
    return _call("msda_forward", _like(tensors[0], shape), static, *tensors)


def _attention_fwd(static: tuple, *tensors: jax.Array) -> tuple[jax.Array, tuple]:
    return _attention(static, *tensors), tensors


def _attention_bwd(static: tuple, tensors: tuple, grad: jax.Array) -> tuple[jax.Array, ...]:
    results = tuple(_like(t, t.shape) for t in tensors)
    return _call("msda_backward", results, static, grad, *tensors)


_attention.defvjp(_attention_fwd, _attention_bwd)


def _run(
    value: Any, shapes: Any, starts: Any, options: tuple, points: Any, *others: Any
) -> jax.Array:
    hint = (
        "\nhint: under jax.jit level sizes are static: use a list, not an argument of the function"
    )
    pairs, first = level_sizes(shapes, starts, hint)
    tensors = operands(_float_array, jnp.broadcast_to, len(pairs), value, others)
    numbers = encode(*options, points, len(pairs))
    _check(tensors, (pairs, first), numbers)
    return _attention((pairs, _starts(pairs, first), *numbers), *_differ_alike(tensors.values()))


ms_deform_attn = computed_by(_run, _functions.ms_deform_attn)
ms_deform_attn_fused = computed_by(_run, _functions.ms_deform_attn_fused)
