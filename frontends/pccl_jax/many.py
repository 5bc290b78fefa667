"""all_reduce_many: operations of one call, each repeated by itself if a loss has aborted it.

    w, b = pj.all_reduce_many(comm, [w, b], in_flight=4, recovery="raise")

It is eager alone: a program cannot repeat what was aborted. Which ones are in flight, and why
members agree about what they repeat, is in pccl_py/many.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy as np

from pccl_jax import eager
from pccl_jax.aligned import empty
from pccl_jax.call import Kind
from pccl_jax.communicators import Comm, Operand, Traced
from pccl_jax.outcomes import OutcomeArrays, encode
from pccl_jax.trees import Leaves, reworded
from pccl_jax.versions import is_tracing
from pccl_py import InvalidUsage, ReduceOp
from pccl_py.collectives import Part, listed, numbered
from pccl_py.options import ManyOptions, documented
from pccl_py.words import parse_op

T = TypeVar("T")


@overload
def all_reduce_many(comm: Comm, xs: Sequence[T], **_: Unpack[ManyOptions]) -> list[T]: ...
@overload
def all_reduce_many(
    comm: Comm, xs: Sequence[T], *, return_outcome: Literal[True], **_: Unpack[ManyOptions]
) -> tuple[list[T], list[OutcomeArrays]]: ...
@documented(ManyOptions, "return_outcome")
def all_reduce_many(
    comm: Comm, xs: Sequence[Any], *, return_outcome: bool = False, **options: Unpack[ManyOptions]
) -> Any:
    """The reductions of all `xs`, arrays or pytrees, as a list; outside of traced functions.

    Each is an operation of its own, as `all_reduce` makes it; number i has the tag `tag` + i. They
    begin in their order, at most `in_flight` at once. Those that are aborted are made again, up to
    `retry` times each: an abort is of all members, so all repeat the same. All members pass as
    many, and the same `retry`. `deadline` is that of the whole. With `return_outcome` the second
    list has an outcome for each.

    All are tried, whatever becomes of the others. Then the error of the first that failed is
    raised, and `error.works` has the last operation of each. On any error all `xs` are as they
    were. Inside of a traced function it raises InvalidUsage.
    """
    group = Operand.of(comm).comm
    if isinstance(group, Traced) or is_tracing():
        raise InvalidUsage(
            "all_reduce_many inside of a traced function: a program cannot repeat an operation "
            "that was aborted. Call it outside of jit; or begin each array in the program by "
            "all_reduce_start, with a tag of its own, and finish it by all_reduce_done"
        )
    op = parse_op(options.get("op", ReduceOp.SUM))
    trees = []
    for number, (x, _) in enumerate(listed("xs", xs, None)):
        with numbered("xs", number):
            leaves = Leaves.of(x)
            leaves.check(op)
        trees.append(leaves)
    made, parts = [], []
    for leaves in trees:
        given = eager.taken(Kind.ALL_REDUCE, leaves.arrays)
        made.append([empty(each.shape, each.dtype) for each in given])
        sends = eager.memory([np.ascontiguousarray(each) for each in given])
        parts.append(Part(sends, eager.memory(made[-1]), _beside(leaves.form())))
    outcomes = group._many(parts, options, "xs")
    results = [
        leaves.rebuild(eager.put(leaves.arrays, recvs))
        for leaves, recvs in zip(trees, made, strict=True)
    ]
    if not return_outcome:
        return results
    return results, [OutcomeArrays.of(encode(each, group.handle)) for each in outcomes]


def _beside(form: int) -> dict[str, Any]:
    return {"_form": form, "_reword": lambda sentence: reworded(form, sentence)}
