"""Buffers: what counts as an array, without a copy, and which answer everything else gets."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import re
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pccl_py as pccl
from pccl_py import _dlpack, buffers

SUPPORTED = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
}


class OnlyDlpack:
    """A tensor that offers DLPack and nothing else, in the form that `versioned` says."""

    def __init__(self, inner: Any, *, versioned: bool = True, device: int = 1) -> None:
        self.inner = inner
        self.versioned = versioned
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **options: Any) -> object:
        if not self.versioned:
            if options:
                raise TypeError("unexpected keyword argument")
            return self.inner.__dlpack__()
        return self.inner.__dlpack__(**options)


class OnlyInterface:
    """A tensor that offers __array_interface__ and nothing else."""

    def __init__(self, inner: Any, **changes: Any) -> None:
        self.inner = inner
        self.__array_interface__ = {**inner.__array_interface__, **changes}


@pytest.mark.parametrize(("name", "dtype"), SUPPORTED.items())
def test_numpy_arrays_of_every_dtype_are_taken_without_a_copy(name: str, dtype: Any) -> None:
    values = np.ones((3, 5), dtype)
    buffer = buffers.writable(values)
    assert buffer.address == values.ctypes.data
    assert buffer.count == 15
    assert buffer.dtype is pccl.DType[name.upper()]
    assert not buffer.readonly
    assert buffer.end == values.ctypes.data + values.nbytes


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("name", [name for name in SUPPORTED if name != "bf16"])
def test_dlpack_tensors_are_taken_without_a_copy(name: str, versioned: bool) -> None:
    values = np.ones((2, 3), SUPPORTED[name])
    buffer = buffers.writable(OnlyDlpack(values, versioned=versioned))
    assert (buffer.address, buffer.count) == (values.ctypes.data, 6)
    assert buffer.dtype is pccl.DType[name.upper()]


def test_a_dlpack_bfloat16_is_known_by_its_type_code() -> None:
    """NumPy exports no bfloat16, so the capsule of a u16 array is rewritten in place."""
    values = np.zeros(4, np.uint16)

    class Bfloat16(OnlyDlpack):
        def __dlpack__(self, **options: Any) -> object:
            capsule = values.__dlpack__(max_version=(1, 0))
            address = _dlpack._capsule_pointer(capsule, b"dltensor_versioned")
            managed = ctypes.cast(address, ctypes.POINTER(_dlpack._ManagedVersioned)).contents
            managed.tensor.dtype.code = _dlpack.CODE_BFLOAT
            return capsule

    buffer = buffers.readable(Bfloat16(values))
    assert (buffer.dtype, buffer.count) == (pccl.DType.BF16, 4)


def test_standard_library_buffers_are_taken() -> None:
    assert buffers.writable(array.array("d", [1, 2])).dtype is pccl.DType.F64
    assert buffers.writable((ctypes.c_int32 * 3)()).dtype is pccl.DType.I32
    assert buffers.writable(bytearray(7)).count == 7
    with mmap.mmap(-1, 4096) as pages:
        buffer = buffers.writable(pages)
        assert (buffer.dtype, buffer.count) == (pccl.DType.U8, 4096)
        del buffer
    assert buffers.readable(b"abc").readonly
    assert buffers.readable(memoryview(bytearray(8)).cast("i")).count == 2


def test_memory_known_by_its_address_is_taken() -> None:
    values = np.arange(4, dtype=np.uint16)
    buffer = pccl.Buffer(values.ctypes.data, 4, "bf16", owner=values)  # type: ignore[arg-type]
    assert buffers.writable(buffer) is buffer
    assert buffer.dtype is pccl.DType.BF16
    with pytest.raises(pccl.InvalidArgument, match="address"):
        pccl.Buffer(0, 1, pccl.DType.F32)
    assert pccl.Buffer(0, 0, pccl.DType.F32).count == 0
    with pytest.raises(pccl.InvalidArgument, match="count"):
        pccl.Buffer(64, -1, pccl.DType.F32)
    with pytest.raises(pccl.InvalidArgument, match="f8"):
        pccl.Buffer(64, 1, "f8")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [lambda x: x, OnlyDlpack, OnlyInterface])
def test_shapes_count_as_numpy_counts_them(wrap: Any) -> None:
    assert buffers.readable(wrap(np.array(3.0))).count == 1
    assert buffers.readable(wrap(np.empty((0, 4)))).count == 0
    assert buffers.readable(wrap(np.empty((4, 0, 2)))).count == 0
    assert buffers.readable(wrap(np.ones((1, 5, 1)))).count == 5
    assert buffers.readable(wrap(np.ones((4, 6))[2:3])).count == 6  # one row: still contiguous


@pytest.mark.parametrize("wrap", [lambda x: x, OnlyDlpack, OnlyInterface])
@pytest.mark.parametrize(
    "strided",
    [
        np.ones(6)[::2],
        np.ones(6)[::-1],
        np.ones((3, 4)).T,
        np.ones((3, 4))[:, :2],
        np.asfortranarray(np.ones((3, 4))),
    ],
    ids=["step", "reversed", "transposed", "columns", "fortran"],
)
def test_an_array_that_is_not_contiguous_is_a_value_error(wrap: Any, strided: Any) -> None:
    """Fortran order too: peers with different orders would add different elements."""
    with pytest.raises(ValueError, match="not C-contiguous.*pccl_numpy"):
        buffers.readable(wrap(strided))


@pytest.mark.parametrize(
    "dtype", ["c8", "c16", "M8[s]", "S4", "U2", "V3", object, [("a", "f4")], "g"]
)
def test_an_unsupported_dtype_is_a_type_error_that_names_the_supported(dtype: Any) -> None:
    name = re.escape(str(np.dtype(dtype)))
    supported = (
        r"supported are f32, f64.*, and where nothing is added up bool .*float8_e4m3fn and int4"
    )
    with pytest.raises(TypeError, match=f"has dtype {name}; {supported}"):
        buffers.readable(np.zeros(3, dtype))
    with pytest.raises(TypeError, match="elements of format 'c'; supported are f32, f64"):
        buffers.readable(memoryview(bytes(3)).cast("c"))


@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_other_dtypes_of_ml_dtypes_are_type_errors(name: str) -> None:
    with pytest.raises(TypeError, match=f"has dtype {name}; supported are"):
        buffers.readable(np.zeros(3, getattr(ml_dtypes, name)))


@pytest.mark.parametrize("wrap", [lambda x: x, OnlyDlpack, OnlyInterface])
def test_bools_are_bytes_that_only_move(wrap: Any) -> None:
    bits = np.array([True, False, True])
    buffer = buffers.writable(wrap(bits))
    assert (buffer.dtype, buffer.opaque, buffer.count) == (pccl.DType.U8, "bool", 3)
    assert buffer.address == bits.ctypes.data
    assert buffers.readable(memoryview(bytes(3)).cast("?")).opaque == "bool"
    with pytest.raises(TypeError, match="out is u8, array is bool"):
        buffers.apart(wrap(bits), np.zeros(3, np.uint8))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_are_bytes_that_only_move(name: str) -> None:
    values = np.zeros(3, getattr(ml_dtypes, name))
    buffer = buffers.writable(values)
    assert (buffer.dtype, buffer.opaque, buffer.count) == (pccl.DType.U8, name, 3)
    codes = {known: code for code, known in _dlpack.CODES_OPAQUE.items()}

    class Capsule(OnlyDlpack):
        def __dlpack__(self, **options: Any) -> object:
            capsule = values.view(np.uint8).__dlpack__(max_version=(1, 0))
            address = _dlpack._capsule_pointer(capsule, b"dltensor_versioned")
            managed = ctypes.cast(address, ctypes.POINTER(_dlpack._ManagedVersioned)).contents
            managed.tensor.dtype.code = codes[name]
            return capsule

    assert buffers.readable(Capsule(values)).opaque == name


@pytest.mark.parametrize("wrap", [lambda x: x, OnlyInterface])
@pytest.mark.parametrize("code", ["f2", "f4", "f8", "i2", "u4", "i8"])
def test_a_foreign_byte_order_is_a_type_error(wrap: Any, code: str) -> None:
    foreign = np.zeros(3, code).view(np.dtype(code).newbyteorder("S"))
    with pytest.raises(TypeError, match="byte order"):
        buffers.readable(wrap(foreign))
    assert buffers.readable(np.zeros(3, ">u1")).dtype is pccl.DType.U8  # bytes have none


@pytest.mark.parametrize("value", [None, 3, 1.5, "text", [1.0, 2.0], {}, object()])
def test_what_is_no_array_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="is not an array"):
        buffers.readable(value)


@pytest.mark.parametrize("wrap", [lambda x: x, OnlyDlpack, OnlyInterface])
def test_a_read_only_array_is_an_input_but_no_output(wrap: Any) -> None:
    values = np.ones(3)
    values.flags.writeable = False
    assert buffers.readable(wrap(values)).readonly
    with pytest.raises(ValueError, match="read-only"):
        buffers.writable(wrap(values))
    with pytest.raises(ValueError, match="read-only"):
        buffers.pair(np.ones(3), wrap(values))
    send, _ = buffers.pair(wrap(values), np.ones(3))
    assert send.address == values.ctypes.data


def test_a_tensor_on_another_device_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not in CPU memory"):
        buffers.readable(OnlyDlpack(np.ones(3), device=2))


def test_a_producer_that_refuses_is_a_type_error_with_its_reason() -> None:
    class Refuses(OnlyDlpack):
        def __dlpack__(self, **options: Any) -> object:
            raise BufferError("requires grad")

    with pytest.raises(TypeError, match="requires grad"):
        buffers.readable(Refuses(np.ones(3)))


def test_a_capsule_that_is_no_dlpack_capsule_is_a_type_error() -> None:
    class Lies(OnlyDlpack):
        def __dlpack__(self, **options: Any) -> object:
            return object()

    with pytest.raises(TypeError, match="no DLPack capsule"):
        buffers.readable(Lies(np.ones(3)))


def test_an_interface_without_an_address_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="names no address"):
        buffers.readable(OnlyInterface(np.ones(3), data=None))


def test_in_place_and_separate_outputs_are_taken() -> None:
    values = np.ones(8, np.float32)
    send, recv = buffers.pair(values, None)
    assert send is recv
    send, recv = buffers.pair(values, values)
    assert send.address == recv.address
    send, recv = buffers.pair(values, values.reshape(2, 4))  # the same memory by another name
    assert send.address == recv.address
    send, recv = buffers.pair(values[:4], values[4:])  # neighbours do not overlap
    assert send.end == recv.address
    assert buffers.pair(values[:0], values[2:2])[0].count == 0


@pytest.mark.parametrize(("send", "recv"), [(slice(0, 5), slice(1, 6)), (slice(1, 6), slice(0, 5))])
def test_outputs_that_overlap_in_part_are_value_errors(send: slice, recv: slice) -> None:
    values = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="overlap in part"):
        buffers.pair(values[send], values[recv])


def test_input_and_output_agree() -> None:
    with pytest.raises(ValueError, match="out has 4 elements, array has 5"):
        buffers.pair(np.ones(5), np.ones(4))
    with pytest.raises(TypeError, match="out is f32, array is f64"):
        buffers.pair(np.ones(5), np.ones(5, np.float32))
    with pytest.raises(TypeError, match="out is i32, array is u32"):
        buffers.pair(np.ones(5, np.uint32), np.ones(5, np.int32))


def test_what_is_wrong_with_one_of_two_is_said_with_its_name() -> None:
    good, complex_ = np.ones(5), np.ones(5, np.complex64)
    for take in (buffers.pair, buffers.apart):
        with pytest.raises(TypeError, match="^array: the ndarray has dtype complex64"):
            take(complex_, good)
        with pytest.raises(TypeError, match="^out: the ndarray has dtype complex64"):
            take(good, complex_)
        with pytest.raises(TypeError, match="^out: list is not an array"):
            take(good, [0.0] * 5)
        with pytest.raises(pccl.InvalidArgument, match="^array: the ndarray is not C-contiguous"):
            take(np.ones(10)[::2], good)
        with pytest.raises(pccl.InvalidArgument, match="^out: the bytes is read-only"):
            take(np.ones(5, np.uint8), bytes(5))


@pytest.mark.parametrize("wrap", [lambda x: x, OnlyDlpack, OnlyInterface])
def test_a_buffer_keeps_its_memory_alive_and_lets_it_go(wrap: Any) -> None:
    values = np.ones(1000)
    alive = weakref.ref(values)
    buffer = buffers.readable(wrap(values))
    del values
    gc.collect()
    assert alive() is not None
    del buffer
    gc.collect()
    assert alive() is None


def test_a_bytearray_in_use_cannot_be_resized() -> None:
    values = bytearray(16)
    buffer = buffers.writable(values)
    with pytest.raises(BufferError):
        values.append(0)
    del buffer
    values.append(0)
