"""Collectives through the host: callbacks of programs for GPUs and TPUs, in program order.

XLA calls the handlers of libpccl_jax only on the CPU. On other platforms a program copies the
arrays to the host, calls a function of this file, which calls eager.py, and copies the results
back, by JAX's io_callback with the token of the ordered effect. The exception of a callback is
found again by a number in its text, as for handlers (errors.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pccl_jax import eager
from pccl_jax.call import Call
from pccl_jax.communicators import group_of
from pccl_jax.errors import raised, unfinished
from pccl_jax.versions import TokenSet, emit_callback, optimization_barrier
from pccl_py import InvalidUsage, Mismatch
from pccl_py._watcher import logger

PLATFORMS = ("cuda", "rocm", "tpu")


@dataclass
class _Begun:
    """An operation of all_reduce_start, kept until its all_reduce_done. `handle`: the words of the
    communicator. `is_told`: the log has named the operation as unfinished."""

    call: Call
    handle: tuple[int, ...]
    finish: Callable[[], list[Any]]
    is_told: bool = False


class _Table:
    """Operations of all_reduce_start that are not finished, by ticket number."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.numbers = itertools.count(1)
        self.begun: dict[int, _Begun] = {}
        self.platforms: set[str] = set()  # platforms for which `_say_once` has logged its warning


_table = _Table()


class _Choice(threading.local):
    is_through_host = False


_choice = _Choice()


def is_chosen() -> bool:
    """Whether this thread is inside of `through_host`."""
    return _choice.is_through_host


@contextmanager
def through_host() -> Iterator[None]:
    """Programs that this thread compiles in the `with` block go through the host on the CPU, too.

    For tests of the path of GPUs and TPUs. JAX caches compiled programs by function: compile a new
    function in the block.
    """
    before, _choice.is_through_host = _choice.is_through_host, True
    try:
        yield
    finally:
        _choice.is_through_host = before


def lower(
    context: Any,
    call: Call,
    effect: Any,
    operands: Sequence[Any],
    function: Callable[[Call, Any, list[Any], Sequence[Any]], Sequence[Any]],
) -> Sequence[Any]:
    """Lowers a call to an io_callback of `function`, with the token of `effect`."""
    _say_once(context.module_context.platforms[0])
    results = context.avals_out

    def callback(handle: Any, *arrays: Any) -> Any:
        try:
            given = [np.asarray(each) for each in arrays]
            return tuple(function(call, np.asarray(handle), given, results))
        except BaseException as error:
            raise raised.keep(error) from error

    outs, token, _ = emit_callback(
        context,
        callback,
        context.tokens_in.get(effect),
        list(operands),
        context.avals_in[: len(operands)],
        results,
        has_side_effect=True,
        returns_token=True,
    )
    context.set_tokens_out(context.tokens_in.update_tokens(TokenSet({effect: token})))
    return list(optimization_barrier(list(outs))) if len(results) > 1 else list(outs)


def _say_once(platform: str) -> None:
    with _table.mutex:
        if platform in _table.platforms:
            return
        _table.platforms.add(platform)
    logger.warning(
        "collectives in programs for %s go through the host: each copies its arrays there and "
        "back, and waits for both",
        platform,
    )


# ---- what callbacks do --------------------------------------------------------------------------


def collective(call: Call, handle: Any, given: list[Any], results: Sequence[Any]) -> list[Any]:
    """The callback of a blocking call."""
    _check_world(call, handle)
    return eager.operate(call, handle, given, results)


def begin(call: Call, handle: Any, given: list[Any], _: Sequence[Any]) -> list[Any]:
    """The callback of all_reduce_start; returns the ticket of the operation."""
    words = tuple(handle.tolist())
    with _table.mutex:
        same = [
            (number, each)
            for number, each in _table.begun.items()
            if (each.handle, each.call.tag) == (words, call.tag)
        ]
        for number, each in same:
            if each.is_told:
                del _table.begun[number]
            each.is_told = True
    if any(number in _table.begun for number, _ in same):
        raise InvalidUsage(
            f"all_reduce_start: tag {call.tag} has an operation that no all_reduce_done has "
            "finished: give each one that is in flight a tag of its own, and finish all. Nothing "
            "was sent"
        )
    finish = eager.begin_operation(call, handle, [np.array(each) for each in given])
    with _table.mutex:
        number = next(_table.numbers)
        _table.begun[number] = _Begun(call, words, finish)
    return [np.array([number & 0xFFFFFFFF, number >> 32], np.uint32)]


def finish(_: Call, __: Any, given: list[Any], ___: Sequence[Any]) -> list[Any]:
    """The callback of all_reduce_done: waits for the operation of the ticket."""
    (ticket,) = given
    with _table.mutex:
        begun = _table.begun.pop(int(ticket[0]) | int(ticket[1]) << 32, None)
    if begun is None:
        raise InvalidUsage(
            "all_reduce_done: this handle has been finished before, or comes too late: its tag has "
            "begun another operation. Each all_reduce_start has one all_reduce_done, in one program"
        )
    return begun.finish()


def _unfinished() -> list[str]:
    """A sentence for each operation that a program has begun and not finished, only once each."""
    with _table.mutex:
        left = [each for each in _table.begun.values() if not each.is_told]
        for each in left:
            each.is_told = True
    return [
        f"all_reduce_start with tag {each.call.tag}: its program has ended, and no all_reduce_done "
        "has taken its result. The operation goes on for the other members; here its result is "
        "dropped"
        for each in left
    ]


unfinished.append(_unfinished)


def _check_world(call: Call, handle: Any) -> None:
    """Raises Mismatch if the program was traced for another world size or rank, like find_place in
    bindings/jax_handlers.c."""
    group = group_of(int(handle[0]) | int(handle[1]) << 32)
    if group is None:
        return
    name = call.kind.name.lower()
    if call.world_size not in (0, group.world_size):
        raise Mismatch(
            f"{name}: the program was traced for {call.world_size}, now {group.world_size} ranks "
            "are there: its arrays have other shapes. Trace it again, as pccl_jax.jit does. "
            "Nothing was sent"
        )
    if call.rank >= 0 and call.rank != group.rank:
        raise Mismatch(
            f"{name}: the program was traced for rank {call.rank}, now this is rank {group.rank}, "
            "with other rows by `counts`. Trace it again, as pccl_jax.jit does. Nothing was sent"
        )
