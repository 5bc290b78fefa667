"""The words of the interface as Python values: element types, operations, recovery modes, peer ids.

The numbers of the words are those of include/pccl.h (tests/abi compares them). This file also
converts seconds to nanoseconds, and checks the range of unsigned integers.
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
# Errors of the native library about arrays, as engine/abi/sentence.zig has them.
DIFFER_IN_FORM = (
    "The arrays of these two differ in name, in structure or in the kind of their elements"
)
DIFFER_IN_SHAPE = "The arrays of these two differ in shape"
# A factor of hashes, 2**32 over the golden ratio: products of close numbers lie far apart.
_HASH_FACTOR, _HASH_MASK = 2_654_435_769, (1 << 32) - 1
_SEVERAL_LENGTHS = 1 << 31


class DType(IntEnum):
    """Type of one element. Functions also take a dtype's name: "f32", "bf16", or "float32" ..."""

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
        """Whether the dtype is a float: F32, F64, F16 or BF16."""
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
    """How contributions are combined. Functions also take the lower-case name of an op.

    BAND, BOR and BXOR combine the bits of integers, and of bool, whose bytes must be 0 and 1;
    floats do not have these ops. There is no scaled sum (PREMUL_SUM): scale the array before the
    call, or use AVG.
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
        """True for BAND, BOR and BXOR, which combine bits."""
        return self >= ReduceOp.BAND


class Recovery(IntEnum):
    """The effect of a peer's death on an operation. Functions also take its lower-case name.

    DEFAULT: COMPLETE for collectives on shards (reduce_scatter, all_gather, scatter, gather,
    all_to_all); else RESUME for the op avg and RESTART for other ops. RESUME: finished chunks are
    kept, so contributors may differ per range. RESTART: the whole result has one set of
    contributors; in gathered or exchanged data each shard is whole or is zeros. RAISE: every
    survivor gets `Aborted`, unless all members had voted when the loss was noticed. COMPLETE: every
    member of the epoch contributes, or all members get `Aborted`. This includes members that were
    lost or had left before the call: calls fail until an `admit` begins an epoch without these
    members (`Admission.changed`).

    With any other recovery, a call after a loss raises nothing: the operation runs among the
    `info().alive` members that are left in the epoch.
    """

    DEFAULT = 0
    RESUME = 1
    RESTART = 2
    RAISE = 3
    COMPLETE = 4


class Strategy(IntEnum):
    """A peer's wish for its content in a sync. Functions also take a wish's lower-case name.

    POPULAR: the members elect a content. Content of members that have committed a sync of a state
    of this name comes first, then content of other members of the epoch before, then content of
    newcomers; within each of these three, content of the highest revision, then the content of most
    members, then the content of the smallest peer id. A founder of a sub-group ranks as it does in
    the parent group. SEND_ONLY: all members get the content of this peer. RECEIVE_ONLY: the content
    of this peer is never elected.
    """

    POPULAR = 0
    SEND_ONLY = 1
    RECEIVE_ONLY = 2


class StateRule(IntEnum):
    """A rule that all syncs of a shared state keep. Functions also take a rule's lower-case name.

    The judges are the members of the epoch before, or all members if none of those is left.
    SUCCESSIVE: only content of the expected revision is elected: the last revision that a judge has
    committed with a state of this name, plus one; any revision before the first commit. A member
    with another revision receives the content. REFUSE: a member that does not fit is refused, and
    the other members go on. A member does not fit if its names, shapes or dtypes differ from those
    that most judges have, or, with SUCCESSIVE, if it would send content of a higher revision than
    expected. If no structure is that of most judges, all members get `Mismatch`. ONE_SENDER: if a
    member passes "send_only", all other members must pass "receive_only". HIGHEST_REVISION: content
    of the highest revision is elected, even if only a newcomer has it. Without this rule a
    newcomer's content never replaces that of members.
    """

    SUCCESSIVE = 2
    REFUSE = 4
    ONE_SENDER = 8
    HIGHEST_REVISION = 16


class Plan(IntEnum):
    """How the data of an operation moves. Functions also take the lower-case name of a plan.

    AUTO: DIRECT with a codec, and for scatter, gather and all_to_all; else what the measured rates
    make faster (`Plans`), RING as long as none are known. RING: each member sends to the next.
    DIRECT: all members send each part to its owner, which sends the result to all. With broken
    links or over 32 members the schedule may be another one than the plan.
    """

    AUTO = 0
    RING = 1
    DIRECT = 2


class Congestion(IntEnum):
    """Congestion control of a peer's lanes. Functions also take the lower-case name of a control.

    AUTO: the system's congestion control, and bbr for links that lose packets although no queue on
    the way is full, if this process may use bbr. With AUTO, lanes between peers of one machine have
    reno; so have lanes of a system with cubic, until a lane loses a packet or its link is full.
    SYSTEM: always the system's congestion control. BBR, CUBIC: always bbr or cubic; if this process
    may not use it, a warning says what to do.
    """

    AUTO = 0
    SYSTEM = 1
    BBR = 2
    CUBIC = 3


class Probe(IntEnum):
    """Whether links of unknown rate are probed. Functions also take "auto" and "off".

    AUTO: links with a round trip over 2 ms are probed while no operation uses them, each for at
    most a second and 16 MiB. OFF: links are never probed.
    """

    AUTO = 0
    OFF = 1


class Plans(IntEnum):
    """Whether the paths of data follow measured rates. Functions also take "auto" and "fixed".

    AUTO: the ring goes around slow links, and members with thin links own less of direct schedules.
    FIXED: rank order, around broken links alone, so that equal calls give equal bits in each run.
    """

    AUTO = 0
    FIXED = 1


OpName: TypeAlias = Literal["sum", "avg", "prod", "min", "max", "band", "bor", "bxor"]
RecoveryName: TypeAlias = Literal["default", "resume", "restart", "raise", "complete"]
StrategyName: TypeAlias = Literal["popular", "send_only", "receive_only"]
StateRuleName: TypeAlias = Literal["successive", "refuse", "one_sender", "highest_revision"]
# One rule of a shared state, or several rules.
StateRules: TypeAlias = StateRule | StateRuleName | Iterable[StateRule | StateRuleName]
PlanName: TypeAlias = Literal["auto", "ring", "direct"]
CongestionName: TypeAlias = Literal["auto", "system", "bbr", "cubic"]
ProbeName: TypeAlias = Literal["auto", "off"]
PlansName: TypeAlias = Literal["auto", "fixed"]


class PeerId(bytes):
    """The id of a peer: 16 bytes, or a text of 32 hexadecimal digits, else InvalidArgument."""

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
        """The first 8 hexadecimal digits of the id, for people."""
        return self.hex()[:8]

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"PeerId('{self.hex()}')"


def parse_dtype(value: DType | str | int) -> DType:
    """Converts the name or number of a dtype to a DType. Raises InvalidArgument."""
    if isinstance(value, str) and value in _LONG_NAMES:
        return _LONG_NAMES[value]
    return parse(DType, value, "dtype")


def parse_op(value: ReduceOp | str | int) -> ReduceOp:
    """Converts the name or number of an op to a ReduceOp. Raises InvalidArgument."""
    if isinstance(value, str) and value == "premul_sum":
        raise InvalidArgument(
            "there is no op 'premul_sum': multiply the array by the factor before a 'sum', or use "
            "'avg' where the factor is 1 / world size"
        )
    if isinstance(value, str) and value in ("mean", "average"):
        raise InvalidArgument(f"there is no op {value!r}: 'avg' is the mean of what peers give")
    return parse(ReduceOp, value, "op")


def parse_recovery(value: Recovery | str | int | None) -> Recovery:
    """Converts a name or a number to a Recovery; None gives DEFAULT. Raises InvalidArgument."""
    return Recovery.DEFAULT if value is None else parse(Recovery, value, "recovery")


def parse_strategy(value: Strategy | str | int) -> Strategy:
    """Converts the name or number of a strategy to a Strategy. Raises InvalidArgument."""
    return parse(Strategy, value, "strategy")


def parse_rules(value: object) -> int:
    """Converts rules of a shared state, StateRules or their names, to flags of pccl.h.

    Raises InvalidArgument for an unknown rule, and TypeError if `value` is not a collection.
    """
    rules = [value] if isinstance(value, (str, int)) else value
    if not isinstance(rules, Iterable):
        raise TypeError(f"rules must be names of rules, not {type(value).__name__}")
    flags = 0
    for rule in rules:
        flags |= parse(StateRule, rule, "rule")
    return flags


def parse_plan(value: Plan | str | int) -> Plan:
    """Converts the name or number of a plan to a Plan. Raises InvalidArgument."""
    return parse(Plan, value, "plan")


def parse_congestion(value: object, name: str = "congestion") -> Congestion:
    """Converts a name or a number to a Congestion; None gives AUTO. Raises InvalidArgument."""
    return Congestion.AUTO if value is None else parse(Congestion, value, name)


def parse_probe(value: object, name: str = "probe") -> Probe:
    """Converts a name or a number to a Probe; None gives AUTO. Raises InvalidArgument."""
    return Probe.AUTO if value is None else parse(Probe, value, name)


def parse_plans(value: object, name: str = "plans") -> Plans:
    """Converts a name or a number to Plans; None gives AUTO. Raises InvalidArgument."""
    return Plans.AUTO if value is None else parse(Plans, value, name)


WordType = TypeVar("WordType", bound=IntEnum)


def parse(words: type[WordType], value: object, name: str) -> WordType:
    """Converts a lower-case name or a number to a member of `words`. Raises InvalidArgument."""
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
    """Converts seconds to nanoseconds; None gives 0, for which the native library has a default.

    Zero seconds, with `may_be_zero`, become one nanosecond. Raises InvalidArgument unless `seconds`
    is positive and finite, TypeError if it is not a number.
    """
    if seconds is None:
        return 0
    value = _number(seconds, name)
    if not (math.isfinite(value) and (value > 0.0 or (may_be_zero and value == 0.0))):
        least = "0, or " if may_be_zero else ""
        raise InvalidArgument(f"{name} must be {least}positive, finite seconds, not {seconds!r}")
    return max(1, round(min(value, SECONDS_MAX) * 1e9))


def wait_nanoseconds(timeout: float | None, forever_ns: int) -> int:
    """Converts a timeout to nanoseconds: None gives `forever_ns`, and 0 or less gives 0.

    Raises InvalidArgument if `timeout` is NaN, TypeError if it is not a number.
    """
    if timeout is None:
        return forever_ns
    value = _number(timeout, "timeout")
    if math.isnan(value):
        raise InvalidArgument("timeout must be a number of seconds, not nan")
    return round(max(0.0, min(value, SECONDS_MAX)) * 1e9)


def _number(value: float, name: str) -> float:
    if isinstance(value, (str, bytes, bytearray)):  # float() would accept digits
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}") from None


def index(value: SupportsIndex, name: str) -> int:
    """The int of a value of any integer type. Raises TypeError, which names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def unsigned(value: SupportsIndex, name: str, bits: int) -> int:
    """Checks an integer in [0, 2**bits). Raises InvalidArgument, or TypeError for a non-integer."""
    number = index(value, name)
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"{name} must be between 0 and 2**{bits} - 1, not {number}")
    return number


def at_least_one(value: SupportsIndex | None, name: str, bits: int = 32) -> int:
    """Checks an integer in [1, 2**bits); None gives 0, for a default. Raises as `unsigned`."""
    if value is None:
        return 0
    if index(value, name) < 1:
        raise InvalidArgument(f"{name} must be at least 1, not {value}")
    return unsigned(value, name, bits)


def text(value: str, name: str) -> str:
    """Checks a string for C. Raises InvalidArgument if `value` holds a NUL or is not UTF-8.

    A str is not UTF-8 if it holds lone surrogates, because it was made from other bytes. Raises
    TypeError if `value` is not a str.
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
    """Hashes a text that describes a call's arrays, equal on every peer, for `form` of pccl.h."""
    told = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little") or 1


@functools.lru_cache(maxsize=1024)
def form_of_shapes(shapes: tuple[tuple[int, ...], ...]) -> int:
    """Hashes the shapes of arrays for `form` of pccl.h; combine the hash by exclusive or.

    The hash is 0 for arrays of one dimension or none. It leaves out the first length of each shape,
    which follows from the count of elements and may differ between ranks that have rows. If only
    one length is left, the hash has that length itself (pccl.h).
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
    """Adds the shapes of this peer to the library's error that arrays differ in shape."""
    here = first_of([str(tuple(shape)) for shape in shapes])
    return sentence.replace(DIFFER_IN_SHAPE, f"{DIFFER_IN_SHAPE} (here {here})")


def not_added_up(dtype: str) -> TypeError:
    """The error of a reduction for `dtype`, the frontend's name of a dtype that only moves."""
    ops = "; bool has op 'band' (and), 'bor' (or) and 'bxor' (exclusive or)"
    return TypeError(
        f"dtype {dtype} is not added up, and goes where nothing is: convert it first"
        f"{ops if dtype == 'bool' else ''}"
    )


def counted(number: int, what: str, several: str = "") -> str:
    """A number and a noun: "1 rank", "3 ranks"; `several` is an irregular plural."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def shown(value: object) -> str:
    """Makes a text of a coordinator or a peer safe for a terminal.

    Control characters, line ends and characters that change the direction of writing are escaped,
    as by engine/base/text.zig. A table of rich needs a `Text` of the result, because rich reads a
    str as markup.
    """
    return "".join(
        letter if letter.isprintable() else _escaped(ord(letter)) for letter in str(value)
    )


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{{{code:x}}}"


def first_of(words: Sequence[str], most: int = 8) -> str:
    """The first `most` words, for an error: "a, b, ..."."""
    return ", ".join(words[:most]) + ", ..." * (len(words) > most)
