"""Eager calls: run at once on the memory of the arrays, without compiling a program.

An eager call waits for the programs that its thread has begun, so that eager calls and collectives
of programs keep one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pccl_jax.call import Call
from pccl_jax.communicators import group_of
from pccl_jax.errors import errors
from pccl_jax.outcomes import encode, pair
from pccl_jax.trees import parse_kind, reworded
from pccl_py import (
    Buffer,
    Codec,
    CodecKind,
    DType,
    Group,
    InvalidArgument,
    InvalidUsage,
    Outcome,
    PcclError,
    Plan,
    Recovery,
    ReduceOp,
    Rounding,
)
from pccl_py.call import ADDING, Kind

# XLA uses an array's memory without a copy if it is aligned to this many bytes.
_ALIGNED = 64


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialized NumPy array that XLA can use without a copy."""
    return _of(np.empty(_size(shape, dtype), np.uint8), shape, dtype)


def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy array of zeros that XLA can use without a copy."""
    return _of(np.zeros(_size(shape, dtype), np.uint8), shape, dtype)


def _size(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * int(dtype.itemsize) + _ALIGNED


def _of(memory: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    size = memory.size - _ALIGNED
    first = -memory.__array_interface__["data"][0] % _ALIGNED
    return memory[first : first + size].view(dtype).reshape(shape)


def run(call: Call, handle: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Makes a call, and returns its results, of the shapes and dtypes of `results`. Raises the
    errors of pccl_py."""
    return put(arrays, operate(call, handle, taken(call.kind, arrays), results))


def operate(call: Call, handle: Any, given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """`run` with NumPy arrays; callbacks of programs (host.py) use it, too."""
    number, epoch, group = _group(call, handle)
    made = [empty(each.shape, each.dtype) for each in call.split(results).results]
    operation = _with_feedback if call.feeds_back else _operation
    outcome = operation(call, group, [np.ascontiguousarray(each) for each in given], made)
    if call.tells_origin:
        if call.op is ReduceOp.AVG:
            made += _contributors(outcome, made)
        made.append(np.array([*pair(number), *pair(epoch)], np.uint32))
    if call.tells_outcome:
        made.append(encode(outcome, number))
    return made


def begin(call: Call, handle: Any, arrays: Sequence[Any]) -> Callable[[], list[Any]]:
    """Begins an all_reduce. The function returned waits, and returns results and outcome words."""
    finish = begin_operation(call, handle, taken(call.kind, arrays))
    return lambda: put(arrays, finish())


def begin_operation(call: Call, handle: Any, given: Sequence[Any]) -> Callable[[], list[Any]]:
    """`begin` with NumPy arrays."""
    number, _, group = _group(call, handle)
    kept = [np.ascontiguousarray(each) for each in given]
    made = [empty(each.shape, each.dtype) for each in given]
    work = group.all_reduce(memory(kept), memory(made), async_op=True, **_options(call))
    return lambda: [*made, encode(work.wait(), number)]


def _group(call: Call, handle: Any) -> tuple[int, int, Group]:
    """The number of the communicator behind `handle`, its epoch, and its Group.

    Raises InvalidUsage if the communicator is gone, or if `handle` is an origin of another epoch.
    """
    words = np.asarray(handle)
    number = int(words[0]) | int(words[1]) << 32
    group = group_of(number)
    if group is None:
        raise InvalidUsage(f"{call.kind.name.lower()}: the communicator is gone: pass an open one")
    epoch = int(words[2]) | int(words[3]) << 32 if len(words) > 2 else group.epoch
    if epoch != group.epoch:
        raise InvalidUsage(
            f"{call.kind.name.lower()}: this derivative is of a call in epoch {epoch}, now the "
            f"group is in epoch {group.epoch}, whose ranks may be other members. Repeat the "
            "forward pass, and call admit before it or after the backward pass. Nothing was sent"
        )
    return number, epoch, group


def taken(kind: Kind, arrays: Sequence[Any]) -> list[Any]:
    """The arrays as NumPy arrays, once this thread's programs have ended. If a program that made
    an array has failed, raises its error."""
    _check_local(kind, arrays)
    try:
        with errors():
            return [np.asarray(array) for array in arrays]
    except PcclError as error:
        error.args = (
            f"an earlier program failed; this {kind.name.lower()}, which reads its results, was "
            f"not made: {error}",
        )
        raise


def put(arrays: Sequence[Any], made: Sequence[Any]) -> list[Any]:
    """The results `made` as JAX arrays, on the device of the first input if it is committed there.

    A result with the shape of its input gets the input's sharding over local devices.
    """
    first = arrays[0] if arrays and getattr(arrays[0], "committed", False) else None
    if first is None:
        return [jax.device_put(each) for each in made]
    device = next(iter(first.sharding.device_set)) if len(first.sharding.device_set) == 1 else None
    like = {id(each): given for each, given in zip(made, arrays, strict=False)}
    return [
        jax.device_put(each, given.sharding)
        if (given := like.get(id(each))) is not None and given.shape == each.shape
        else jax.device_put(each, device)
        for each in made
    ]


def _operation(call: Call, group: Group, given: list[Any], made: list[Any]) -> Outcome:
    operation: Callable[..., Outcome] = getattr(group, call.kind.name.lower())
    sends, recvs, options = memory(given), memory(made), _options(call)
    counts = {} if not call.counts else {"counts": _elements(call, (given or made)[0])}
    kind, root = call.kind, {"root": call.root}
    match kind:
        case Kind.ALL_REDUCE:
            return operation(sends, recvs, **options)
        case Kind.BROADCAST:
            for target, source in zip(made, given, strict=True):
                target[...] = source
            return operation(recvs, **root, **options)
        case Kind.REDUCE | Kind.GATHER:
            is_root = group._rank_of(call.root) == group.rank
            for target in () if is_root else made:
                target[...] = np.zeros((), target.dtype)
            return operation(sends, recvs if is_root else None, **root, **counts, **options)
        case Kind.SCATTER:
            return operation(sends or None, recvs, **root, **counts, **options)
        case Kind.REDUCE_SCATTER | Kind.ALL_GATHER:
            return operation(sends, recvs, **counts, **options)
        case Kind.ALL_TO_ALL:
            listed = counts.get("counts", [])
            half = len(listed) // 2
            both = {"send_counts": listed[:half], "recv_counts": listed[half:]} if listed else {}
            return operation(sends, recvs, **both, **options)
        case Kind.BARRIER:
            return operation(**options)
        case Kind.SEND:
            for tie in made:
                tie[...] = np.zeros((), tie.dtype)
            return operation(memory(given[:1]), call.root, **options)
        case Kind.RECV:
            return operation(recvs, call.root, **options)


def _contributors(outcome: Outcome, results: list[Any]) -> list[Any]:
    """Number of contributors of each element of each result, at least 1: averages divide by it."""
    first, made = 0, []
    for each in results:
        numbers = np.ones(each.size, np.uint16)
        for part in outcome.ranges:
            begin, end = max(part.begin - first, 0), max(part.end - first, 0)
            numbers[begin:end] = max(len(part.contributors), 1)
        first += each.size
        made.append(numbers.reshape(each.shape))
    return made


def _with_feedback(call: Call, group: Group, given: list[Any], made: list[Any]) -> Outcome:
    """A reduction with error feedback: the last array is the old residual, the last result the
    new residual."""
    tag = call.options[1]
    kept = group._feedbacks.get(tag)
    if kept is not None and not kept.closed:
        raise InvalidUsage(
            f"tag {tag} has error feedback by Group.error_feedback, and this call has a residual "
            "of its own: use another tag"
        )
    feedback = group.error_feedback(tag)
    try:
        feedback.load(given[-1])
        outcome = _operation(call, group, given[:-1], made[:-1])
        made[-1][...] = np.frombuffer(feedback.save(), np.float32)
    finally:
        feedback.close()
    return outcome


def _options(call: Call) -> dict[str, Any]:
    """The options that calls of this kind have, as keyword arguments of pccl_py."""
    op, tag, deadline_ns, recovery, plan, codec, block, rotate, rounding, form = call.options
    made: dict[str, Any] = {"tag": tag}
    if deadline_ns:
        made["deadline"] = deadline_ns / 1e9
    if call.kind in (Kind.SEND, Kind.RECV):
        return made
    made["recovery"] = Recovery(recovery)
    if call.kind is Kind.BARRIER:
        return made
    made |= {"_form": form, "_reword": lambda sentence: reworded(form, sentence)}
    if call.kind is Kind.BROADCAST:
        return made
    turns = {0: None, 1: True, 2: False}[rotate]
    made["codec"] = Codec(CodecKind(codec), block or None, turns, Rounding(rounding))
    made["plan"] = Plan(plan)
    if call.kind in ADDING:
        made["op"] = ReduceOp(op)
    return made


def memory(arrays: list[Any]) -> Any:
    """The arrays as `Buffer`s for pccl_py: a single array without a list."""
    made = [
        Buffer(
            array.__array_interface__["data"][0],
            array.size,
            _dtype(array.dtype.name),
            readonly=not array.flags.writeable,
            owner=array,
            shape=array.shape,
        )
        for array in arrays
    ]
    return made[0] if len(made) == 1 else made


def _dtype(name: str) -> DType:
    dtype = parse_kind(name)
    return DType.U8 if dtype is None else dtype


def _elements(call: Call, array: Any) -> list[int]:
    each = int(np.prod(array.shape[1:]))
    return [count * each for count in call.counts]


def _check_local(kind: Kind, arrays: Sequence[Any]) -> None:
    """Raises InvalidArgument for an array that is partly on devices of other processes."""
    for array in arrays:
        if not getattr(array, "is_fully_addressable", True):
            raise InvalidArgument(
                f"{kind.name.lower()}: an array lies on devices of other processes, too: pass "
                "what is on this one, as array.addressable_data(0)"
            )
