"""The operator as functions that XLA calls on the CPU through its C interface for custom calls.

XLA gives addresses of its buffers; the compiled part reads and writes them in place. The structures
below are the parts of XLA's `c_api.h` that this needs. Every one begins with its size, so that a
version of XLA with another layout is noticed.
"""

from __future__ import annotations

import ctypes
import math
import pathlib
import re
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from . import _native

_METADATA = 1  # an extension of a call that asks for the version of the interface
_EXECUTE = 3
_ARRAY = 1
_INT64 = 5
_INVALID_ARGUMENT, _UNIMPLEMENTED, _INTERNAL = 3, 12, 13
_FLOATS = {10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"}


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Buffers(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("buffers", POINTER(POINTER(_Buffer))),
    ]


class _Array(Structure):
    _fields_ = [("dtype", c_int), ("count", c_size_t), ("data", POINTER(c_int64))]


class _Attributes(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", c_void_p),
        ("arrays", POINTER(POINTER(_Array))),
    ]


class _ErrorArgs(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("message", c_char_p),
        ("code", c_int),
    ]


class _Api(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArgs))),
    ]


class _Frame(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("inputs", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
# The address, the type, the sizes and the strides of a buffer, as the compiled part takes them.
_Raw = tuple[int, str, tuple[int, ...], tuple[int, ...]]


def _version(include: str) -> tuple[int, int]:
    """The version of the interface, from the header that comes with JAX."""
    header = pathlib.Path(include) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text(encoding="utf-8")
    major, minor = (
        int(re.search(rf"^#define XLA_FFI_API_{part} (\d+)$", text, re.MULTILINE)[1])
        for part in ("MAJOR", "MINOR")
    )
    return major, minor


def _check_layout(frame: _Frame) -> None:
    parts = {"inputs": _Buffers, "results": _Buffers, "attributes": _Attributes}
    for name, kind in parts.items():
        got, expected = getattr(frame, name).size, ctypes.sizeof(kind)
        if got != expected:
            raise NotImplementedError(
                f"XLA: got {got} bytes for the {name} of a call, expected {expected}\n"
                "hint: this version of JAX is too new for this version of msda"
            )


def _raw(buffer: _Buffer, lead: int) -> _Raw:
    """A buffer whose first dimensions, those of vmap and the batch, are one."""
    if buffer.dtype not in _FLOATS:
        raise TypeError(f"XLA: got a buffer of type {buffer.dtype}, expected a floating-point type")
    dims = buffer.dims[: buffer.rank]
    sizes = (math.prod(dims[: lead + 1]), *dims[lead + 1 :])
    strides = tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
    return buffer.data or 0, _FLOATS[buffer.dtype], sizes, strides


def _numbers(attributes: _Attributes) -> list[int]:
    """The attribute of the call: options, points, and height, width and start of each level."""
    if attributes.count != 1 or attributes.types[0] != _ARRAY:
        raise TypeError(f"XLA: got {attributes.count} attributes, expected one array")
    array = attributes.arrays[0][0]
    if array.dtype != _INT64:
        raise TypeError(f"XLA: got an attribute of type {array.dtype}, expected int64")
    return array.data[: array.count]


def _call(numbers: list[int], tensors: list[_Raw]) -> dict[str, Any]:
    value, *reference, locations, weights = tensors
    options, points, *levels = numbers
    pairs = list(zip(levels[::3], levels[1::3]))
    return {
        "value": value,
        "levels": (pairs, levels[2::3]),
        "reference": reference[0] if reference else None,
        "locations": locations,
        "weights": weights,
        "options": options,
        "points": points,
    }


def _forward(numbers: list[int], inputs: list[_Buffer], results: list[_Buffer]) -> None:
    lead = inputs[0].rank - 4
    tensors = [_raw(buffer, lead) for buffer in inputs]
    _native.forward(_call(numbers, tensors), _raw(results[0], lead))


def _backward(numbers: list[int], inputs: list[_Buffer], results: list[_Buffer]) -> None:
    lead = inputs[1].rank - 4
    grad, *tensors = (_raw(buffer, lead) for buffer in inputs)
    value, *reference, locations, weights = (_raw(buffer, lead) for buffer in results)
    # The compiled part has the gradient of the reference points last.
    targets = [value, locations, weights, reference[0] if reference else None]
    _native.backward(_call(numbers, tensors), grad, targets)


def _error(frame: _Frame, error: Exception) -> int:
    code = _INTERNAL
    if isinstance(error, (ValueError, TypeError)):
        code = _INVALID_ARGUMENT
    elif isinstance(error, NotImplementedError):
        code = _UNIMPLEMENTED
    message = str(error).encode()
    args = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, message, code)
    return frame.api[0].create_error(ctypes.byref(args))


def _handler(run: Callable[..., None], version: tuple[int, int]) -> Any:
    def handle(pointer: Any) -> int | None:
        frame = pointer[0]
        if frame.extension and frame.extension[0].type == _METADATA:
            asked = ctypes.cast(frame.extension, POINTER(_MetadataExtension))[0].metadata[0]
            asked.version.major, asked.version.minor = version
            asked.traits = 0
            return None
        try:
            _check_layout(frame)
            if frame.stage == _EXECUTE:
                inputs, results = (
                    [part.buffers[i][0] for i in range(part.count)]
                    for part in (frame.inputs, frame.results)
                )
                run(_numbers(frame.attributes), inputs, results)
        except Exception as error:
            return _error(frame, error)
        return None

    return _Handler(handle)


# XLA keeps the addresses of these functions.
_kept: list[Any] = []


def register(ffi: Any) -> None:
    """Registers `msda_forward` and `msda_backward` for the CPU with `jax.ffi`."""
    version = _version(ffi.include_dir())
    for name, run in (("msda_forward", _forward), ("msda_backward", _backward)):
        handler = _handler(run, version)
        _kept.append(handler)
        ffi.register_ffi_target(name, ffi.pycapsule(handler), platform="cpu")
