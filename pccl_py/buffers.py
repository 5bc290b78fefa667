"""Buffers: turns an array of any library into (address, count, dtype), without a copy.

An array is accepted by the buffer protocol, by DLPack on CPU, by `__array_interface__` (bfloat16
NumPy arrays offer only that), or as a Buffer, for memory known by its address. Elements of bool and
of eight-bit floats travel as bytes, and are not added up. Errors are raised before anything is
sent: InvalidArgument (a ValueError) for arrays that are not C-contiguous, and for outputs that are
read-only or overlap in part; TypeError for dtypes and byte orders that the kernels do not know. No
array library is imported. Frontends pack strided arrays.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pccl_py import _pccl
from pccl_py.errors import InvalidArgument
from pccl_py.words import DType, counted, parse_dtype, unsigned

_FLOATS = {2: DType.F16, 4: DType.F32, 8: DType.F64}
_SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}
_UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}

# The kind in __array_interface__ of each type character of the buffer protocol (module struct).
_KIND_OF_FORMAT = {
    **dict.fromkeys("efd", "f"),
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("BHILQN", "u"),
}
_COMPLEX = {DType.F16: "complex32", DType.F32: "complex64", DType.F64: "complex128"}
_DTYPES = {"f": _FLOATS, "i": _SIGNED, "u": _UNSIGNED}
# Names in ml_dtypes of dtypes that take one byte and that no kernel knows.
OPAQUE = re.compile(r"float[468]_\w+|u?int[124]")

_FOREIGN_ORDER = ">!" if sys.byteorder == "little" else "<"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Contiguous memory, given by its address: `count` elements of `dtype`.

    `owner`: an object that keeps the memory alive as long as the Buffer is in use; without an owner
    the caller must. `shape`: None stands for one dimension; complex numbers have 2 as the last
    length. `opaque`: the name of a dtype of one byte that no kernel knows, "bool" for example; then
    `dtype` is U8, and elements move as they are and are not added up, though the bits of bool can
    be combined. On the wire opaque elements are like any other bytes. `paired`: two elements are
    one complex number, so that `count` is twice the number of complex numbers; their reductions are
    "sum" and "avg". Collectives tell kinds apart by `form` of pccl.h, and shared states by the
    names of tensors; messages, and an all_to_all with counts, do not tell kinds apart. Raises
    InvalidArgument for an unknown dtype, a negative count, a null address of a buffer that is not
    empty, or `paired` elements of a dtype without complex numbers.
    """

    address: int
    count: int
    dtype: DType
    readonly: bool = False
    owner: object = None
    shape: tuple[int, ...] | None = None
    opaque: str | None = None
    paired: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        unsigned(self.address, "address", 64)
        unsigned(self.count, "count", 64)
        if self.address == 0 and self.count != 0:
            raise InvalidArgument("the address of a buffer that is not empty must not be 0")
        if self.paired and (self.dtype not in _COMPLEX or self.count % 2 or self.opaque):
            raise InvalidArgument(
                "a buffer of complex numbers has an even count of f16, f32 or f64, not "
                f"{self.count} of {self.opaque or self.dtype.name.lower()}"
            )

    @property
    def kind(self) -> str:
        """The name of the buffer's dtype, "bool" or "complex64" for example."""
        return _COMPLEX[self.dtype] if self.paired else self.opaque or self.dtype.name.lower()

    @property
    def has_own_kind(self) -> bool:
        """Whether `kind` is not the name of `dtype`: bool, eight-bit floats, complex numbers."""
        return self.paired or self.opaque is not None

    @property
    def end(self) -> int:
        """Address of the first byte behind the buffer."""
        return self.address + self.count * self.dtype.size


class HasBuffer(Protocol):
    """An object with the buffer protocol: bytearray, array.array, memoryview, and most arrays."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class HasInterface(Protocol):
    """An array with NumPy's array interface."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class HasDLPack(Protocol):
    """An array with DLPack, which must be on the CPU."""

    def __dlpack__(self) -> Any: ...


Array: TypeAlias = Buffer | HasBuffer | HasInterface | HasDLPack
"""Memory that operations take: whatever `readable` knows to read, and `writable` to write."""


def readable(array: object) -> Buffer:
    """The buffer of an input. Raises TypeError or InvalidArgument (see the head of this file)."""
    if isinstance(array, Buffer):
        return array
    check_array(array)
    try:
        view = memoryview(array)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as refusal:
        return _without_buffer_protocol(array, refusal)
    return _from_memoryview(view, array)


def check_array(array: object) -> None:
    """Raises TypeError for a masked array, and for an array inside a function that JAX traces.

    A mask would be dropped in silence; a traced array has no memory.
    """
    core = getattr(sys.modules.get("jax"), "core", None)
    if isinstance(array, getattr(core, "Tracer", ())):
        raise TypeError(
            f"a {_name(array)} stands for an array while JAX traces, and has no memory: pass it to "
            "pccl_jax, which has the same calls for traced functions"
        )
    if hasattr(array, "mask") and hasattr(array, "filled"):
        raise TypeError(
            f"the {_name(array)} has a mask, which does not travel: pass x.filled(value), or x.data"
        )


def writable(array: object) -> Buffer:
    """The buffer of an output. Raises as `readable`, and InvalidArgument if it is read-only."""
    buffer = readable(array)
    if buffer.readonly:
        remedy = "pass a writable array"
        if _is_of_jax(array):
            remedy = "pccl_jax has the same calls, shared_state and steps, which give new arrays"
        raise InvalidArgument(f"the {_name(array)} is read-only, but receives the result: {remedy}")
    return buffer


def _is_of_jax(array: object) -> bool:
    return isinstance(array, getattr(sys.modules.get("jax"), "Array", ()))


def pair(array: object, out: object | None) -> tuple[Buffer, Buffer]:
    """The input and the output of a reduction; without `out`, in place.

    `array` and `out` must be the same memory or not overlap, and agree in dtype (else TypeError)
    and count (else InvalidArgument). With `out` given, an error names the wrong argument.
    """
    if out is None or out is array:
        buffer = writable(array)
        return buffer, buffer
    send, recv = apart(array, out)
    if send.count != recv.count:
        raise InvalidArgument(f"out has {counted(recv.count, 'element')}, array has {send.count}")
    same = send.address == recv.address
    if not same and send.address < recv.end and recv.address < send.end:
        raise InvalidArgument(
            "array and out overlap in part: pass the same array for a reduction in place, or "
            "separate ones"
        )
    return send, recv


def apart(array: object, out: object) -> tuple[Buffer, Buffer]:
    """The input and the output of an operation on shards. Raises TypeError if dtypes differ."""
    send, recv = _named("array", readable, array), _named("out", writable, out)
    if send.kind != recv.kind:
        raise TypeError(f"out is {recv.kind}, array is {send.kind}")
    return send, recv


def _named(name: str, take: Callable[[object], Buffer], array: object) -> Buffer:
    try:
        return take(array)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error


def _from_memoryview(view: memoryview, array: object) -> Buffer:
    order, kind = (view.format[:1], view.format[1:])
    if order not in "@=<>!":
        order, kind = "@", view.format
    opaque = "bool" if kind == "?" else None
    known = _DTYPES.get(_KIND_OF_FORMAT.get(kind, ""), {}).get(view.itemsize)
    foreign = order in _FOREIGN_ORDER and view.itemsize > 1
    what = f"elements of format {view.format!r}"
    dtype = _checked(array, what, DType.U8 if opaque else known, view.c_contiguous, foreign)
    address = _pccl.buffer_address(view)
    count = view.nbytes // view.itemsize
    return Buffer(address, count, dtype, view.readonly, view, view.shape, opaque)


def _without_buffer_protocol(array: Any, refusal: Exception) -> Buffer:
    if hasattr(array, "__array_interface__"):
        return _from_array_interface(array)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array)
    remedy = ""
    if isinstance(array, (dict, list, tuple)):
        remedy = (
            "; pccl_numpy.tree has collectives for dicts and lists of arrays, and a shared state "
            "takes one array for each name"
        )
    elif isinstance(array, (int, float)):
        remedy = f"; numpy.array({array}) is one"
    raise TypeError(
        f"{_name(array)} is not an array: it offers neither the buffer protocol nor DLPack nor "
        f"__array_interface__ ({refusal}){remedy}"
    )


def _from_array_interface(array: Any) -> Buffer:
    interface: dict[str, Any] = array.__array_interface__
    typestr: str = interface["typestr"]
    order, kind, digits = typestr[0], typestr[1], typestr[2:]
    size = int(digits) if digits.isdigit() else 0  # a dtype of dates has a unit there
    # Dtypes of ml_dtypes have the typestr of opaque bytes; only the dtype's name tells them apart.
    name = str(getattr(getattr(array, "dtype", None), "name", None))
    opaque = "bool" if kind == "b" and size == 1 else None
    if size == 1 and OPAQUE.fullmatch(name):
        opaque = name
    known = DType.U8 if opaque else _DTYPES.get(kind, {}).get(size)
    if name == "bfloat16" and size == 2:
        known = DType.BF16
    shape: tuple[int, ...] = interface["shape"]
    contiguous = _contiguous(shape, interface.get("strides"), size)
    foreign = order in _FOREIGN_ORDER and size > 1
    dtype = _checked(array, f"elements of type {typestr!r}", known, contiguous, foreign)
    data = interface.get("data")
    if not isinstance(data, tuple):
        raise TypeError(f"the __array_interface__ of the {_name(array)} names no address")
    address, readonly = data
    return Buffer(address, math.prod(shape), dtype, bool(readonly), array, shape, opaque)


def _from_dlpack(array: Any) -> Buffer:
    from pccl_py import _dlpack  # imported late: only DLPack needs ctypes

    tensor = _dlpack.describe(array)
    kinds = {0: "i", 1: "u", 2: "f"}
    known = _DTYPES.get(kinds.get(tensor.code, ""), {}).get(tensor.bits // 8)
    if tensor.code == _dlpack.CODE_BFLOAT and tensor.bits == 16:
        known = DType.BF16
    opaque = None
    if tensor.code in _dlpack.CODES_OPAQUE and tensor.bits == 8:
        known, opaque = DType.U8, _dlpack.CODES_OPAQUE[tensor.code]
    if tensor.lanes != 1 or tensor.bits % 8 != 0:
        known = None
    lanes = counted(tensor.lanes, "lane")
    what = f"DLPack type {tensor.code}, {counted(tensor.bits, 'bit')}, {lanes}"
    dtype = _checked(array, what, known, _contiguous(tensor.shape, tensor.strides, 1))
    count = math.prod(tensor.shape)
    # The capsule owns the memory; some producers also expect the array to stay alive.
    owner = (tensor.capsule, array)
    return Buffer(tensor.address, count, dtype, tensor.readonly, owner, tensor.shape, opaque)


def _checked(
    array: object, what: str, dtype: DType | None, contiguous: bool, foreign: bool = False
) -> DType:
    """Returns `dtype` or raises. `what` describes elements; `foreign`: in another byte order."""
    if dtype is None:
        known = ", ".join(dtype.name.lower() for dtype in DType)
        named = getattr(array, "dtype", None)  # the dtype's name in its library, which users know
        what = what if named is None else f"dtype {named}"
        raise TypeError(
            f"the {_name(array)} has {what}; supported are {known}, and where nothing is added up "
            "bool and floats and integers of 8 bits or less, such as float8_e4m3fn and int4"
        )
    if foreign:
        raise TypeError(f"the {_name(array)} is not in native byte order: convert it first")
    if not contiguous:
        raise InvalidArgument(
            f"the {_name(array)} is not C-contiguous: pass a contiguous copy, or use pccl_numpy, "
            "which packs"
        )
    return dtype


def _contiguous(shape: Sequence[int], strides: Sequence[int] | None, step: int) -> bool:
    if strides is None or 0 in shape:
        return True
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def _name(array: object) -> str:
    return type(array).__name__
