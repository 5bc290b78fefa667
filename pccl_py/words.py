"""The words of the interface as Python values: element types, operations, recovery modes, peer ids.

The numbers are those of include/pccl.h (tests/abi compares them). Also the two conversions every
caller needs: seconds to nanoseconds, and small unsigned integers with a range check.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Literal, Self, SupportsIndex, TypeAlias, TypeVar

from pccl_py.errors import InvalidArgument

SECONDS_MAX = 10.0 * 365 * 86_400
# As engine/abi/sentence.zig says it.
DIFFER_IN_FORM = (
    "The arrays of these two differ in name, in structure or in the kind of their elements"
)
DIFFER_IN_SHAPE = "The arrays of these two differ in shape"
# The golden ratio times 2**32: as a factor it takes numbers that are close far apart.
_HASH_FACTOR, _HASH_MASK = 2_654_435_769, (1 << 32) - 1
_SEVERAL_LENGTHS = 1 << 31


class DType(IntEnum):
    """Type of one element. Functions also take its name: "f32", "bf16", "u8", or "float32" ..."""

    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 3
    I8 = 4
    U8 = 5
    I16 = 6
    U16 = 7
    I32 = 8
    U32 = 9
    I64 = 10
    U64 = 11

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZES[self]

    @property
    def is_float(self) -> bool:
        """Whether it is a float, as F32, F64, F16 and BF16 are."""
        return self <= DType.BF16


_SIZES = {
    DType.F32: 4,
    DType.F64: 8,
    DType.F16: 2,
    DType.BF16: 2,
    DType.I8: 1,
    DType.U8: 1,
    DType.I16: 2,
    DType.U16: 2,
    DType.I32: 4,
    DType.U32: 4,
    DType.I64: 8,
    DType.U64: 8,
}

_LONG_NAMES = {
    "float32": DType.F32,
    "float64": DType.F64,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "int8": DType.I8,
    "uint8": DType.U8,
    "int16": DType.I16,
    "uint16": DType.U16,
    "int32": DType.I32,
    "uint32": DType.U32,
    "int64": DType.I64,
    "uint64": DType.U64,
}


class ReduceOp(IntEnum):
    """How contributions are combined. Functions also take the lower-case name.

    BAND, BOR and BXOR are of the bits of integers, and of bool, whose bytes must be 0 and 1; floats
    have none of these. There is no scaled sum (PREMUL_SUM): scale the array before the call, or use
    AVG.
    """

    SUM = 0
    AVG = 1
    PROD = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7

    @property
    def is_bitwise(self) -> bool:
        """Whether it combines bits: BAND, BOR, BXOR."""
        return self >= ReduceOp.BAND


class Recovery(IntEnum):
    """The effect of a peer's death on an operation. Functions also take the lower-case name.

    DEFAULT: complete for what is scattered, gathered or exchanged by ranks (reduce_scatter,
    all_gather, scatter, gather, all_to_all); else resume for avg, restart for the others. RESUME:
    finished chunks are kept, so that contributors may differ per range. RESTART: one contributor
    set for the whole result; in gathered or exchanged data each shard is whole or is zeros. RAISE:
    `Aborted` on every survivor, unless all had voted when the loss was noticed. COMPLETE: every
    member of the epoch contributes, or the call is `Aborted` for all; also if a member was lost or
    had left before the call, so each such call fails until the `admit` at which an epoch without
    it begins (`Admission.changed`).

    Unless its recovery is COMPLETE, a call causes no error for a peer that was lost before it, or
    has left: in that epoch it runs among the `info().alive` members that remain.
    """

    DEFAULT = 0
    RESUME = 1
    RESTART = 2
    RAISE = 3
    COMPLETE = 4


class Strategy(IntEnum):
    """A peer's wish for its content in a sync. Functions also take the lower-case name.

    POPULAR: the elected content wins: that of members that have committed a sync of a state of this
    name, then that of other members of the epoch before, then that of newcomers; of equals that of
    the highest revision, then that of most members, then that of the smallest peer id. Founders of
    a sub-group have the standing that they have in its parent. SEND_ONLY: all members get the
    content of this peer. RECEIVE_ONLY: the content of this peer is never taken.
    """

    POPULAR = 0
    SEND_ONLY = 1
    RECEIVE_ONLY = 2


class StateRule(IntEnum):
    """A rule that all syncs of a shared state keep. Functions also take the lower-case names.

    The judges are the members of the epoch before, or all members where none of those is left.
    SUCCESSIVE: only content of the expected revision is elected: one more than the last one that a
    judge has committed with a state of this name; any before the first commit. A member with
    another revision receives.
    REFUSE: a member that does not fit is refused, and the others go on: one whose names, shapes or
    dtypes are not those that most judges have, and with SUCCESSIVE one that would give content of a
    higher revision than the expected one. Where no structure has most judges, all get `Mismatch`.
    ONE_SENDER: beside a member that passes "send_only" all others must pass "receive_only".
    HIGHEST_REVISION: content of the highest revision is elected, also that of a newcomer. Without
    this rule a newcomer's content never replaces that of members.
    """

    SUCCESSIVE = 2
    REFUSE = 4
    ONE_SENDER = 8
    HIGHEST_REVISION = 16


class Plan(IntEnum):
    """How the data of an operation moves. Functions also take the lower-case name.

    AUTO: direct with a codec, and for scatter, gather and all_to_all; else the ring. RING: from
    each member to the next. DIRECT: from all members to the owner of each part, and from there to
    all. Broken links, and groups of more than 32 members, may leave no choice.
    """

    AUTO = 0
    RING = 1
    DIRECT = 2


class Congestion(IntEnum):
    """Which congestion control the lanes of a peer have. Functions also take the lower-case name.

    AUTO: the system's, and bbr for links that lose packets though no queue on the way is full, if
    this process may use it; reno between peers of one machine, and in the place of cubic until a
    lane has lost a packet or its link is full. SYSTEM: the system's, always. BBR, CUBIC: this one,
    where the system lets this process use it; else a warning says what to do.
    """

    AUTO = 0
    SYSTEM = 1
    BBR = 2
    CUBIC = 3


class Probe(IntEnum):
    """Whether links of which nobody knows what they carry are probed. Functions also take the
    lower-case name.

    AUTO: over more than 2 ms, while nothing else moves, for a second and 16 MiB at most. OFF:
    never.
    """

    AUTO = 0
    OFF = 1


OpName: TypeAlias = Literal["sum", "avg", "prod", "min", "max", "band", "bor", "bxor"]
RecoveryName: TypeAlias = Literal["default", "resume", "restart", "raise", "complete"]
StrategyName: TypeAlias = Literal["popular", "send_only", "receive_only"]
StateRuleName: TypeAlias = Literal["successive", "refuse", "one_sender", "highest_revision"]
# One rule, or several.
StateRules: TypeAlias = StateRule | StateRuleName | Iterable[StateRule | StateRuleName]
PlanName: TypeAlias = Literal["auto", "ring", "direct"]
CongestionName: TypeAlias = Literal["auto", "system", "bbr", "cubic"]
ProbeName: TypeAlias = Literal["auto", "off"]


class PeerId(bytes):
    """The id of a peer: 16 bytes, written as 32 hexadecimal digits. Raises InvalidArgument."""

    __slots__ = ()

    def __new__(cls, value: bytes | str) -> Self:
        if isinstance(value, str):
            try:
                value = bytes.fromhex(value)
            except ValueError:
                raise InvalidArgument(
                    f"a peer id must be 32 hexadecimal digits, not {value!r}"
                ) from None
        if len(value) != 16:
            raise InvalidArgument(f"a peer id must be 16 bytes, not {len(value)}")
        return super().__new__(cls, value)

    @property
    def short(self) -> str:
        """The first 8 hexadecimal digits, for people."""
        return self.hex()[:8]

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"PeerId('{self.hex()}')"


def parse_dtype(value: DType | str | int) -> DType:
    """A DType from itself, its name or its number. Raises InvalidArgument."""
    if isinstance(value, str) and value in _LONG_NAMES:
        return _LONG_NAMES[value]
    return parse(DType, value, "dtype")


def parse_op(value: ReduceOp | str | int) -> ReduceOp:
    """A ReduceOp from itself, its name or its number. Raises InvalidArgument."""
    if isinstance(value, str) and value == "premul_sum":
        raise InvalidArgument(
            "there is no op 'premul_sum': multiply the array by the factor before a 'sum', or use "
            "'avg' where the factor is 1 / world size"
        )
    if isinstance(value, str) and value in ("mean", "average"):
        raise InvalidArgument(f"there is no op {value!r}: 'avg' is the mean of what peers give")
    return parse(ReduceOp, value, "op")


def parse_recovery(value: Recovery | str | int | None) -> Recovery:
    """A Recovery from itself, its name or its number; None is DEFAULT. Raises InvalidArgument."""
    return Recovery.DEFAULT if value is None else parse(Recovery, value, "recovery")


def parse_strategy(value: Strategy | str | int) -> Strategy:
    """A Strategy from itself, its name or its number. Raises InvalidArgument."""
    return parse(Strategy, value, "strategy")


def parse_rules(value: object) -> int:
    """Rules of a shared state, each itself or its name, as the flags of pccl.h.

    Raises InvalidArgument for an unknown one, and TypeError for what is no collection.
    """
    rules = [value] if isinstance(value, (str, int)) else value
    if not isinstance(rules, Iterable):
        raise TypeError(f"rules must be names of rules, not {type(value).__name__}")
    flags = 0
    for rule in rules:
        flags |= parse(StateRule, rule, "rule")
    return flags


def parse_plan(value: Plan | str | int) -> Plan:
    """A Plan from itself, its name or its number. Raises InvalidArgument."""
    return parse(Plan, value, "plan")


def parse_congestion(value: object, name: str = "congestion") -> Congestion:
    """A Congestion from itself, its name or its number; None is AUTO. Raises InvalidArgument."""
    return Congestion.AUTO if value is None else parse(Congestion, value, name)


def parse_probe(value: object, name: str = "probe") -> Probe:
    """A Probe from itself, its name or its number; None is AUTO. Raises InvalidArgument."""
    return Probe.AUTO if value is None else parse(Probe, value, name)


WordType = TypeVar("WordType", bound=IntEnum)


def parse(words: type[WordType], value: object, name: str) -> WordType:
    """A word of an enumeration from itself, its lower-case name or its number."""
    if isinstance(value, words):
        return value
    if isinstance(value, str):
        named: WordType | None = _by_name(words).get(value)
        if named is not None:
            return named
    elif isinstance(value, int) and not isinstance(value, (bool, IntEnum)):
        for word in words:
            if value == word.value:
                return word
    known = ", ".join(repr(word.name.lower()) for word in words)
    raise InvalidArgument(f"unknown {name} {value!r}; expected one of {known}")


@functools.cache
def _by_name(words: type[WordType]) -> dict[str, WordType]:
    return {word.name.lower(): word for word in words}


def nanoseconds(seconds: float | None, name: str, may_be_zero: bool = False) -> int:
    """Seconds as nanoseconds; None is 0, which the native library reads as its default.

    No seconds at all, where they may be, are one nanosecond. Raises InvalidArgument unless
    `seconds` is positive and finite, TypeError if it is not a number.
    """
    if seconds is None:
        return 0
    value = _number(seconds, name)
    if not (math.isfinite(value) and (value > 0.0 or (may_be_zero and value == 0.0))):
        least = "0, or " if may_be_zero else ""
        raise InvalidArgument(f"{name} must be {least}positive, finite seconds, not {seconds!r}")
    return max(1, round(min(value, SECONDS_MAX) * 1e9))


def wait_nanoseconds(timeout: float | None, forever_ns: int) -> int:
    """A timeout of a wait: None waits for ever, 0 and less only looks.

    Raises InvalidArgument if it is NaN, TypeError if it is not a number.
    """
    if timeout is None:
        return forever_ns
    value = _number(timeout, "timeout")
    if math.isnan(value):
        raise InvalidArgument("timeout must be a number of seconds, not nan")
    return round(max(0.0, min(value, SECONDS_MAX)) * 1e9)


def _number(value: float, name: str) -> float:
    if isinstance(value, (str, bytes, bytearray)):  # float() would read them
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}") from None


def index(value: SupportsIndex, name: str) -> int:
    """An integer of any type that is one. Raises TypeError, which names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def unsigned(value: SupportsIndex, name: str, bits: int) -> int:
    """An integer in [0, 2**bits). Raises InvalidArgument, or TypeError if it is not an integer."""
    number = index(value, name)
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{name} must be between 0 and 2**{bits} - 1, not {number}")
    return number


def at_least_one(value: SupportsIndex | None, name: str, bits: int = 32) -> int:
    """An integer in [1, 2**bits), or 0 for None: the library's default. Raises as `unsigned`."""
    if value is None:
        return 0
    if index(value, name) < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {value}")
    return unsigned(value, name, bits)


def text(value: str, name: str) -> str:
    """A string that C can take. Raises InvalidArgument if it holds a NUL or is not UTF-8.

    A str that is not UTF-8 holds lone surrogates: it was made from bytes that were not UTF-8.
    Raises TypeError if `value` is not a str.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidArgument(f"{name} must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} must be UTF-8: {value!a}") from None
    return value


def form_of(text: str) -> int:
    """A hash for `form` of pccl.h: what the arrays of a call are, the same on every peer."""
    told = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little") or 1


@functools.lru_cache(maxsize=1024)
def form_of_shapes(shapes: tuple[tuple[int, ...], ...]) -> int:
    """The part of `form` of pccl.h that says the shapes of arrays: add it by exclusive or.

    It is 0 if they have one dimension or none. The first length of each is left out: the count of
    elements tells it, and where ranks have rows, each may have another number of them. One length
    that is left stands for itself (pccl.h).
    """
    upper = 0
    for shape in shapes:
        one = 0
        for length in shape[1:]:
            one = (one * _HASH_FACTOR + length) & _HASH_MASK
        if len(shape) > 2:
            one |= _SEVERAL_LENGTHS
        upper = (upper * _HASH_FACTOR + one) & _HASH_MASK
    return upper << 32


def told_shapes(sentence: str, shapes: Iterable[Sequence[int]]) -> str:
    """A sentence of the library that arrays differ in shape, with those of this peer."""
    here = first_of([str(tuple(shape)) for shape in shapes])
    return sentence.replace(DIFFER_IN_SHAPE, f"{DIFFER_IN_SHAPE} (here {here})")


def not_added_up(dtype: str) -> TypeError:
    """The error for a dtype whose elements only move, by its name in the frontend."""
    ops = "; bool has op 'band' (and), 'bor' (or) and 'bxor' (exclusive or)"
    return TypeError(
        f"dtype {dtype} is not added up, and goes where nothing is: convert it first"
        f"{ops if dtype == 'bool' else ''}"
    )


def counted(number: int, what: str, several: str = "") -> str:
    """A number of things: "1 rank", "3 ranks"; `several` where an s does not make the plural."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def shown(value: object) -> str:
    """Text of a coordinator or a peer as a terminal may have it.

    Characters that it would obey, that end a line or that turn the writing are escaped, as
    engine/base/text.zig does. In tables of rich it must be a `Text` as well, as a str is markup.
    """
    return "".join(
        letter if letter.isprintable() else _escaped(ord(letter)) for letter in str(value)
    )


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{{{code:x}}}"


def first_of(words: Sequence[str], most: int = 8) -> str:
    """Some words for an error: "a, b, ..."."""
    return ", ".join(words[:most]) + ", ..." * (len(words) > most)
