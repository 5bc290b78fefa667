"""Codecs, which encode floats for the network, with their options; and error feedback.

docs/reference/CODECS.md says how each codec rounds an array. The native library checks whether
options go together. collectives.py and call.py use this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from pccl_py import buffers
from pccl_py.errors import (
    Aborted,
    CoordinatorUnreachable,
    InDoubt,
    InvalidArgument,
    InvalidUsage,
)
from pccl_py.words import DType, counted, parse, unsigned
from pccl_py.work import Work

_FLOAT_BYTES = 4
_BLOCKS = (32, 64, 128, 256)
# Codecs of PCCL 1.0 that this library does not have; an error says what to use instead.
_SIXTEEN_BITS = ("min_max_u16", "zero_point_u16")


class CodecKind(IntEnum):
    """The kind of a codec. Functions also take the lower-case name of a kind.

    NONE: elements travel unchanged. BF16, F16: elements are rounded to 16 bits. INT8, INT6, INT5,
    INT4: elements become integers of that many bits, with a scale for each block. E3M0: elements
    become a sign and three bits of exponent, with a scale for each block. FP8_E4M3: elements become
    floats of 8 bits, with a scale for each block. MIN_MAX_U8, ZERO_POINT_U8: elements become one of
    256 steps between the least and the greatest element of a piece.
    """

    NONE = 0
    BF16 = 1
    F16 = 2
    INT8 = 3
    INT6 = 4
    INT5 = 5
    INT4 = 6
    E3M0 = 7
    FP8_E4M3 = 8
    MIN_MAX_U8 = 9
    ZERO_POINT_U8 = 10


_Integers: TypeAlias = Literal["int8", "int6", "int5", "int4"]
_Floats: TypeAlias = Literal["bf16", "f16", "e3m0", "fp8_e4m3"]
CodecName: TypeAlias = Literal["none", _Integers, _Floats, "min_max_u8", "zero_point_u8"]


class Rounding(IntEnum):
    """How a codec rounds. STOCHASTIC is right on average, but less accurate for each element."""

    NEAREST = 0
    STOCHASTIC = 1


RoundingName: TypeAlias = Literal["nearest", "stochastic"]


def _parse_kind(value: CodecKind | str | int) -> CodecKind:
    if value in _SIXTEEN_BITS:
        raise InvalidArgument(
            f"there is no codec {value!r}: min_max_u8 and zero_point_u8 have 256 steps, of 8 bits; "
            "for 16 bits an element there are bf16 and f16"
        )
    return parse(CodecKind, value, "codec")


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec with its options. All members of an operation must pass the same codec and options.

    `block`: number of elements that share a scale, 32, 64, 128 or 256 (default 128). `rotate`:
    whether each block is multiplied by random signs and a Hadamard matrix before rounding, which
    spreads outliers (default: on, for the kinds that have blocks). Raises InvalidArgument for an
    unknown name or another `block`; the operation refuses options that do not go together.
    """

    kind: CodecKind | CodecName = CodecKind.NONE
    block: int | None = None
    rotate: bool | None = None
    rounding: Rounding | RoundingName = Rounding.NEAREST

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _parse_kind(self.kind))
        object.__setattr__(self, "rounding", parse(Rounding, self.rounding, "rounding"))
        if self.block is not None and unsigned(self.block, "block", 32) not in _BLOCKS:
            raise InvalidArgument(f"block is {self.block}; it must be 32, 64, 128 or 256")

    @property
    def name(self) -> str:
        """The lower-case name of the codec's kind."""
        return _parse_kind(self.kind).name.lower()

    @property
    def encodes(self) -> bool:
        """Whether the codec encodes elements, as every kind but "none" does."""
        return self.kind is not CodecKind.NONE

    def native(self) -> tuple[int, int, int, int]:
        """The numbers (codec, block, rotate, rounding) for pccl_collective_options_t."""
        rotate = 0 if self.rotate is None else 1 if self.rotate else 2
        return int(self.kind), self.block or 0, rotate, int(self.rounding)


NONE = Codec()


def parse_codec(value: Codec | CodecKind | str | int) -> Codec:
    """Converts a kind to a Codec with default options. Raises InvalidArgument for another value."""
    if isinstance(value, Codec):
        return value
    return Codec(_parse_kind(value))


class ErrorFeedback:
    """Error feedback of a tag: each call adds the rounding errors of the codec in the call before.

    The residual has these errors, one f32 for each element. From `Group.error_feedback(tag)` on,
    every all_reduce, reduce and reduce_scatter of the tag with a codec adds the residual to this
    peer's contribution. The next residual is what this peer's encodings lose: of its contribution,
    of partial sums in a ring, and of results that this peer owns (Seide et al. 2014; Karimireddy et
    al., arXiv 1901.09847; results as in Tang et al., arXiv 1905.05957). Other operations of the tag
    cannot have a codec. If all members use error feedback, a later call makes up for every rounding
    error. The residual changes when an operation commits, even if Ctrl-C ended the call or the
    operation was in doubt, and never otherwise. One operation at a time may use the residual.
    """

    def __init__(self, tag: int) -> None:
        self._tag = tag
        self._count = 0
        self._counts: list[int] = []
        self._residuals = (bytearray(), bytearray())
        self._pending: Work[Any] | None = None
        self._closed = False

    @property
    def tag(self) -> int:
        """The tag whose operations use this error feedback."""
        return self._tag

    @property
    def count(self) -> int:
        """Number of elements of each operation of the tag; 0 before the first operation."""
        return self._count

    def save(self) -> bytes:
        """Returns the residual for a checkpoint: `count` f32 in native byte order.

        Raises InvalidUsage while an operation that uses the residual is in flight or in doubt.
        """
        self._settle()
        return bytes(self._residuals[0])

    def load(self, residual: buffers.Array) -> None:
        """Sets the residual to the bytes that `save` returned, or to any f32 array.

        Raises TypeError for elements that are neither f32 nor bytes, InvalidArgument if `residual`
        is not contiguous or, once `count` is known, has another number of elements, and
        InvalidUsage while an operation that uses the residual is in flight or in doubt.
        """
        self._settle()
        given = buffers.readable(residual)
        if given.dtype not in (DType.F32, DType.U8):
            raise TypeError(f"a residual must be f32, or its bytes, not {given.dtype.name.lower()}")
        import ctypes  # imported late: only `load` needs ctypes

        data = ctypes.string_at(given.address, given.count * given.dtype.size)
        if len(data) % _FLOAT_BYTES:
            raise InvalidArgument(f"a residual must be whole f32, not {counted(len(data), 'byte')}")
        count = len(data) // _FLOAT_BYTES
        if self._count and count != self._count:
            raise InvalidArgument(
                f"the residual has {counted(count, 'element')}, the operations {self._count}"
            )
        self._resize(count)
        self._residuals[0][:] = data

    def reset(self) -> None:
        """Drops the residual and `count`; the next operation starts from zero."""
        self._settle()
        self._resize(0)
        self._counts = []

    def close(self) -> None:
        """Ends error feedback for later operations of the tag. May be called at any time."""
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def begin(self, counts: list[int]) -> tuple[tuple[int, int], object]:
        """Returns the addresses of the residual and of the next residual, and the memory of both.

        `counts`: number of elements of each array of the call.
        """
        self._settle()
        count = sum(counts)
        if self._count and count and count != self._count:
            raise InvalidArgument(
                f"the error feedback of tag {self._tag} has {counted(self._count, 'element')}, "
                f"this call {count}: use another tag, or reset() it"
            )
        if self._counts and count and counts != self._counts:
            raise InvalidArgument(
                f"the error feedback of tag {self._tag} is for arrays of {self._counts} elements, "
                f"this call has {counts}: use another tag, or reset() it"
            )
        if not count:
            return (0, 0), None
        if not self._count:
            self._residuals = _zeros(count)
        now, after = self._residuals
        return (_address(now), _address(after)), (now, after)

    def begun(self, work: Work[Any], counts: list[int]) -> None:
        """Notes `work`, an operation that has begun: the residual changes if it commits."""
        self._pending = work
        self._count = self._count or sum(counts)
        self._counts = self._counts or (counts if self._count else [])

    def _settle(self) -> None:
        work = self._pending
        if work is None:
            return
        if not work.done():
            raise InvalidUsage(
                f"an operation with tag {self._tag} and its error feedback is in flight"
            )
        if self._was_committed(work):
            self._residuals = self._residuals[1], self._residuals[0]
        self._pending = None

    def _was_committed(self, work: Work[Any]) -> bool:
        error = work.exception(0)
        return self._became_committed(work) if isinstance(error, InDoubt) else error is None

    def _became_committed(self, work: Work[Any]) -> bool:
        try:
            work.resolve(0, copy=False)
        except (Aborted, CoordinatorUnreachable):  # not committed, or the decision is lost
            return False
        except TimeoutError:
            raise InvalidUsage(
                f"an operation with tag {self._tag} and its error feedback is in doubt until the "
                "coordinator answers: call again then, or resolve its work"
            ) from None
        return True

    def _resize(self, count: int) -> None:
        self._count = count
        self._residuals = _zeros(count)

    def __repr__(self) -> str:
        return f"<ErrorFeedback of tag {self._tag}, {counted(self._count, 'element')}>"


def _zeros(count: int) -> tuple[bytearray, bytearray]:
    return bytearray(count * _FLOAT_BYTES), bytearray(count * _FLOAT_BYTES)


def _address(data: bytearray) -> int:
    return buffers.writable(data).address
