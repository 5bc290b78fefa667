"""all_reduce_start and all_reduce_done: a transfer beside what does not need its result.

    handle = pj.all_reduce_start(comm, grads, op="avg", tag=1)
    y = f(x)                                    # meanwhile
    grads = pj.all_reduce_done(handle, after=y)

The operation works in memory of its own, with a copy of `x`: XLA may free or reuse the memory of a
call once its handler has returned, and a program that fails never comes to its other half. So the
two calls can lie anywhere: around a loop, in two steps of a scan, in branches. The handlers are in
bindings/jax_async.c; blocking calls in collectives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

import jax
import numpy as np

from pccl_jax import eager, host, library
from pccl_jax.call import Call, Kind
from pccl_jax.communicators import Comm, Operand
from pccl_jax.effects import ORDERED
from pccl_jax.options import asked_of, numbers_of
from pccl_jax.outcomes import WORDS, OutcomeArrays
from pccl_jax.primitive import lower, register
from pccl_jax.trees import Leaves
from pccl_jax.versions import (
    Primitive,
    ShapedArray,
    is_tracing,
    primitive_batchers,
    primitive_jvps,
)
from pccl_py import InvalidUsage
from pccl_py.options import ReduceOptions, documented

T = TypeVar("T")


@dataclass(frozen=True)
class _Static:
    """The rest of a handle: equal for operations that can take each other's place."""

    call: Call
    treedef: Any


class Handle(Generic[T]):
    """An operation that all_reduce_start has begun, for one all_reduce_done.

    Inside of a traced function it is a pytree, which may be carried through loops and branches; its
    two halves must be in one program. One that nobody finishes is named in the log (logger `pccl`)
    when the program has ended, and the operation goes on for the other members.
    """

    def __init__(
        self,
        static: _Static,
        arrays: tuple[Any, Any] | None,
        finish: Callable[[], list[Any]] | None = None,
    ) -> None:
        self._static = static
        self._arrays = arrays  # the communicator and the ticket, in a trace
        self._finish = finish  # outside of one

    def __repr__(self) -> str:
        return f"<Handle of all_reduce_start, tag {self._static.call.tag}>"


def _flatten(handle: Handle[Any]) -> tuple[tuple[Any, Any], _Static]:
    if handle._arrays is None:
        raise InvalidUsage(
            f"{handle!r} was begun outside of this program: finish it outside, by all_reduce_done"
        )
    return handle._arrays, handle._static


def _unflatten(static: _Static, arrays: Any) -> Handle[Any]:
    return Handle(static, tuple(arrays))


jax.tree_util.register_pytree_node(Handle, _flatten, _unflatten)


@documented(ReduceOptions)
def all_reduce_start(comm: Comm, x: T, **options: Unpack[ReduceOptions]) -> Handle[T]:
    """Begins an all_reduce of `x`, and returns without waiting for other peers.

    `x` is as `all_reduce` has it, and is copied. Operations of one tag come one after the other: a
    second one in flight needs another `tag`, and so does a blocking call before `all_reduce_done`.
    It has no derivative and no batches (vmap): take those of `all_reduce`.
    """
    operand, (asked, _) = Operand.of(comm), asked_of("all_reduce", options)
    leaves = Leaves.of(x)
    leaves.check(asked.op)
    call = Call(
        Kind.ALL_REDUCE,
        numbers_of(asked, leaves.form()),
        results=tuple((each.shape, each.dtype.name) for each in leaves.arrays),
    )
    static = _Static(call, leaves.treedef)
    if not is_tracing():
        return Handle(static, None, eager.begin(call, operand.handle, leaves.arrays))
    (ticket,) = _begin.bind(operand.handle, *leaves.arrays, call=call)
    return Handle(static, (operand.handle, ticket))


@overload
def all_reduce_done(
    handle: Handle[T], *, after: Any = None, return_outcome: Literal[False] = False
) -> T: ...
@overload
def all_reduce_done(
    handle: Handle[T], *, after: Any = None, return_outcome: Literal[True]
) -> tuple[T, OutcomeArrays]: ...
def all_reduce_done(handle: Handle[Any], *, after: Any = None, return_outcome: bool = False) -> Any:
    """Waits for an operation that `all_reduce_start` has begun, and returns its result.

    `after`: an array or a pytree that is computed first. Without it XLA may wait before it computes
    what the program has in between: it puts steps that are independent in an order of its own.
    With `return_outcome` the outcome, too. Raises what `all_reduce` raises, InvalidUsage for a
    handle that has been finished before, and TypeError for anything else.
    """
    if not isinstance(handle, Handle):
        raise TypeError(f"all_reduce_done takes what all_reduce_start returns, not {handle!r}")
    static = handle._static
    if handle._finish is not None:
        if is_tracing():
            _flatten(handle)
        *outs, words = handle._finish()
        handle._finish = _refuse_second
    else:
        call = static.call.replace(tells_outcome=True)
        ahead = [] if after is None else Leaves.of(after).arrays
        *outs, words = _finish.bind(*_flatten(handle)[0], *ahead, call=call)
    result = jax.tree_util.tree_unflatten(static.treedef, outs)
    return (result, OutcomeArrays.of(words)) if return_outcome else result


def _refuse_second() -> list[Any]:
    raise InvalidUsage(
        "all_reduce_done: this handle has been finished before. Each all_reduce_start has one "
        "all_reduce_done"
    )


# ---- the two primitives -------------------------------------------------------------------------

_TICKET = ShapedArray((2,), np.dtype(np.uint32))


def _abstract_begin(_: Any, *arrays: Any, call: Call) -> tuple[list[Any], set[Any]]:
    return [_TICKET], {ORDERED}


def _abstract_finish(_: Any, ticket: Any, *ahead: Any, call: Call) -> tuple[list[Any], set[Any]]:
    outs = [ShapedArray(shape, np.dtype(dtype)) for shape, dtype in call.results]
    return [*outs, ShapedArray((WORDS,), np.dtype(np.uint32))], {ORDERED}


def _lower_to(target: str) -> Callable[..., Any]:
    def lowering(context: Any, *operands: Any, call: Call) -> Any:
        return lower(context, target, ORDERED, operands, call.words(call.shapes), {})

    return lowering


def _primitive(
    name: str, abstract: Any, target: str, function: Any, operands_max: int | None = None
) -> Any:
    made = Primitive(f"pccl_{name}")
    made.multiple_results = True
    made.def_effectful_abstract_eval(abstract)

    def outside(*_: Any, call: Call) -> Any:
        raise InvalidUsage(
            f"{name} with tag {call.tag}: the two halves of an operation must be in one program"
        )

    def refused(*_: Any, **__: Any) -> Any:
        raise InvalidUsage(
            f"{name} has no derivative and no batches: use all_reduce there, or call it outside of "
            "grad and vmap"
        )

    made.def_impl(outside)
    primitive_jvps[made] = refused
    primitive_batchers[made] = refused
    register(made, _lower_to(target), function, operands_max=operands_max)
    return made


_begin = _primitive("all_reduce_start", _abstract_begin, library.TARGET_BEGIN, host.begin)
_finish = _primitive("all_reduce_done", _abstract_finish, library.TARGET_FINISH, host.finish, 2)
