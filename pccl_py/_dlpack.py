"""DLPack: reads the description of a CPU tensor out of the capsule that its producer makes.

The structures are those of dlpack.h 1.0. The capsule is never consumed: it keeps the tensor's
memory, until it is dropped and the producer's destructor releases the memory. buffers.py decides
what may be done with a tensor.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

DEVICE_CPU = 1
CODE_BFLOAT = 4
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
CODES_OPAQUE = {6: "bool", **{code: f"float8_{kind}" for code, kind in enumerate(_FLOAT8, 7)}}
FLAG_READ_ONLY = 1


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True, slots=True)
class Description:
    """A tensor on CPU. `strides` are in elements; None means C-contiguous."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    lanes: int
    readonly: bool
    capsule: object


def describe(array: Any) -> Description:
    """Asks `array` for its DLPack capsule and reads it. Raises TypeError if `array` has none."""
    device, _ = array.__dlpack_device__()
    if int(device) != DEVICE_CPU:
        raise TypeError(
            f"the {type(array).__name__} is not in CPU memory (DLPack device {int(device)}): copy "
            "it there first"
        )
    capsule = _export(array)
    if _capsule_is(capsule, b"dltensor_versioned"):
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        versioned = ctypes.cast(address, ctypes.POINTER(_ManagedVersioned)).contents
        if versioned.major != 1:
            raise TypeError(f"DLPack version {versioned.major} is not known here; 1 is")
        tensor, readonly = versioned.tensor, bool(versioned.flags & FLAG_READ_ONLY)
    elif _capsule_is(capsule, b"dltensor"):
        address = _capsule_pointer(capsule, b"dltensor")
        managed = ctypes.cast(address, ctypes.POINTER(_Managed)).contents
        tensor, readonly = managed.tensor, False  # before DLPack 1.0 tensors are writable
    else:
        raise TypeError(f"__dlpack__ of the {type(array).__name__} made no DLPack capsule")
    rank = tensor.ndim
    return Description(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[:rank]) if rank else (),
        strides=tuple(tensor.strides[:rank]) if rank and tensor.strides else None,
        code=tensor.dtype.code,
        bits=tensor.dtype.bits,
        lanes=tensor.dtype.lanes,
        readonly=readonly,
        capsule=capsule,
    )


def _export(array: Any) -> object:
    try:
        try:
            return array.__dlpack__(max_version=(1, 0))
        except TypeError:  # a producer from before DLPack 1.0 does not know the argument
            return array.__dlpack__()
    except (BufferError, RuntimeError) as refusal:
        raise TypeError(f"the {type(array).__name__} does not export: {refusal}") from refusal
