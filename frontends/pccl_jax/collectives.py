"""The collectives over JAX's arrays and pytrees of them, eager and in whatever JAX traces.

    mean = pj.all_reduce(comm, grads, op="avg")     # a pytree is one operation

`comm` is a Communicator or a Group: an argument of the jitted function, so that one program serves
all of them, or closed over. Each function makes one Call (call.py) of its arguments. Outside of
jit it waits for the result; in a program calls happen in its order. On an error
every input is as it was. All members must make the same calls in the same order, on whatever
frontend, eager or traced; in `cond` and `switch` all must take the same branch.

Results are arrays on all ranks, as one program is for all: zeros where pccl_numpy returns None, on
ranks that are not the root of a reduce or a gather. Derivatives are those of the sum of all peers'
losses (derivatives.py), which Y_p below is differentiated to the result of rank p, and X_p to its
operand; a call and its backward have the same tag, deadline, recovery and plan. Under vmap a whole
batch is one operation (batching.py). A world that has changed since a program was
traced is a Mismatch, where shapes depend on it, and pccl_jax.jit traces again.

    w, b = pj.all_reduce_many(comm, [w, b], in_flight=4, recovery="raise")

all_reduce_many is eager alone: a program cannot repeat what was aborted. Which operations are in
flight, and why members agree about what they repeat, is in pccl_py/many.py.

    handle = pj.all_reduce_start(comm, grads, op="avg", tag=1)
    y = f(x)                                    # meanwhile
    grads = pj.all_reduce_done(handle, after=y)

This operation works in memory of its own, with a copy of `grads`: XLA may free or reuse the memory
of a call once its handler has returned, and a program that fails never comes to its other half. So
the two calls can lie anywhere: around a loop, in two steps of a scan, in branches. The handlers are
in bindings/jax_async.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from pccl_jax import eager, host, library
from pccl_jax.call import Call
from pccl_jax.communicators import Comm, Operand, Place, Traced, World
from pccl_jax.eager import empty
from pccl_jax.effects import ORDERED
from pccl_jax.options import asked_of, everywhere, numbers_of
from pccl_jax.outcomes import WORDS, OutcomeArrays, encode
from pccl_jax.primitive import bind, lower, register
from pccl_jax.trees import Leaves, as_given, check_dtype, is_float, name_of_bytewise, reworded
from pccl_jax.versions import (
    Primitive,
    ShapedArray,
    is_tracing,
    primitive_batchers,
    primitive_jvps,
)
from pccl_py import InvalidArgument, InvalidUsage, ReduceOp
from pccl_py.call import (
    ADDING,
    BroadcastOptions,
    Kind,
    ManyOptions,
    MessageOptions,
    MoveOptions,
    Named,
    ReduceOptions,
    documented,
)
from pccl_py.collectives import Part, Root, listed
from pccl_py.rows import Counts, Rows
from pccl_py.words import parse_op

T = TypeVar("T")
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]


@everywhere(ReduceOptions)
def all_reduce(comm: Comm, x: Any, **options: Unpack[ReduceOptions]) -> Any:
    """The reduction of `x` over all members, on all of them.

    `x`: an array of any shape, of a dtype in `pccl_py.DType`, or a pytree of such arrays, which is
    one operation; the same structure, shapes and dtypes on every peer. A donated array is reduced
    where it lies. "avg" divides by those who contributed.

    Backward: X_p = Y_0 + Y_1 + ..., an all_reduce; for "avg" that of the Y, divided by the numbers
    of contributors that the call itself had. "min", "max", "prod" and codecs raise InvalidArgument.
    """
    return _call(Kind.ALL_REDUCE, comm, x, options)


@everywhere(ReduceOptions)
def reduce(comm: Comm, x: Any, root: Root = 0, **options: Unpack[ReduceOptions]) -> Any:
    """The reduction of `x` over all members on `root`, a rank or a peer id; zeros elsewhere.

    A lost root ends the operation with Aborted on all. Otherwise as `all_reduce`. Backward:
    X_p = Y_root, a broadcast, and for "avg" divided as in `all_reduce`.
    """
    return _call(Kind.REDUCE, comm, x, options, root=root)


@everywhere(BroadcastOptions)
def broadcast(comm: Comm, x: Any, root: Root = 0, **options: Unpack[BroadcastOptions]) -> Any:
    """`x` of `root`, a rank or a peer id, on every member; elsewhere its values do not matter.

    `x`: an array or a pytree, of a dtype in `pccl_py.DType`, bool or an element of eight bits or
    fewer (float8, float4, int4, int2), each of which goes as a byte; the same structure, shapes and
    dtypes on every peer. Backward: X_root = Y_0 + Y_1 + ..., a reduce, and zeros elsewhere.
    """
    return _call(Kind.BROADCAST, comm, x, options, root=root)


@everywhere(ReduceOptions)
def reduce_scatter(
    comm: Comm, x: Any, counts: Counts = None, **options: Unpack[ReduceOptions]
) -> Any:
    """This rank's rows of the reduction of `x` over all members.

    `x`: shape (n * k, ...) in a world of n ranks, for a result of shape (k, ...); or with `counts`,
    of sum(counts) rows, for one of counts[rank], which makes the program one for this rank. The
    same shape, dtype and `counts` on every peer. Otherwise as `all_reduce`. Backward:
    X_p = (Y_0, Y_1, ...), an all_gather, and for "avg" divided as in `all_reduce`.
    """
    return _call(Kind.REDUCE_SCATTER, comm, x, options, counts=counts)


@everywhere(MoveOptions)
def all_gather(comm: Comm, x: Any, counts: Counts = None, **options: Unpack[MoveOptions]) -> Any:
    """`x` of all members, one behind the other along axis 0 in rank order.

    `x`: shape (k, ...) for a result of shape (n * k, ...) in a world of n ranks; or with `counts`,
    of counts[rank] rows, for one of sum(counts). One of no dimension is a row of one element: n of
    them make the shape (n,). Dtypes are those of `broadcast`. A member that is lost ends the call
    with Aborted on all, and each such call until an `admit` closes the gap, unless `recovery` says
    otherwise. Backward: X_p = the rows of p of Y_0 + Y_1 + ..., a reduce_scatter.
    """
    return _call(Kind.ALL_GATHER, comm, x, options, counts=counts)


@everywhere(MoveOptions)
def scatter(
    comm: Comm,
    x: Any,
    out: Any = None,
    root: Root = 0,
    counts: Counts = None,
    **options: Unpack[MoveOptions],
) -> Any:
    """This rank's rows of `x` of `root`, a rank or a peer id.

    `x`: of n * k rows in a world of n ranks, or with `counts` of sum(counts). Its values matter on
    the root alone; elsewhere it says the shapes, or it is None, and `out` says those of the result:
    a pytree of arrays or of jax.ShapeDtypeStruct. A lost root ends the operation with Aborted on
    all. Dtypes are those of `broadcast`. Backward: X_root = (Y_0, Y_1, ...), a gather, and zeros
    elsewhere; for this, and under vmap, all ranks pass an x that depends on what is differentiated.
    """
    if x is None:
        return _received_of_scatter(comm, out, root, counts, options)
    return _call(Kind.SCATTER, comm, x, options, root=root, counts=counts)


@everywhere(MoveOptions)
def gather(
    comm: Comm, x: Any, root: Root = 0, counts: Counts = None, **options: Unpack[MoveOptions]
) -> Any:
    """`x` of all members on `root`, as `all_gather` has it; zeros of that shape elsewhere.

    A lost root ends the operation with Aborted on all, whatever the recovery. Backward:
    X_p = the rows of p of Y_root, a scatter.
    """
    return _call(Kind.GATHER, comm, x, options, root=root, counts=counts)


@everywhere(MoveOptions)
def all_to_all(
    comm: Comm,
    x: Any,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **options: Unpack[MoveOptions],
) -> Any:
    """This rank's rows of `x` of each member, in rank order.

    `x`: n * k rows in a world of n ranks, of which k go to each; the same shape and dtype on every
    peer. Or `send_counts` says how many rows go to each rank, and `recv_counts` how many come from
    each, for one array: every two must agree about those between them, else Mismatch. Dtypes are
    those of `broadcast`. A member that is lost ends the call as it does an `all_gather`. Backward:
    X_p = (the rows of p of Y_0, of Y_1, ...), an all_to_all the other way round.
    """
    if send_counts is None and recv_counts is None:
        return _call(Kind.ALL_TO_ALL, comm, x, options)
    if send_counts is None or recv_counts is None:
        raise InvalidArgument("send_counts and recv_counts go together: pass both, or none")
    return _call(Kind.ALL_TO_ALL, comm, x, options, counts=send_counts, others=recv_counts)


@overload
def barrier(comm: Comm, **_: Unpack[BroadcastOptions]) -> None: ...
@overload
def barrier(
    comm: Comm, *, return_outcome: Literal[True], **_: Unpack[BroadcastOptions]
) -> OutcomeArrays: ...
@documented(BroadcastOptions, "return_outcome")
def barrier(comm: Comm, **options: Any) -> Any:
    """Is over once every member that is there has called it; with return_outcome, the outcome.

    With recovery "complete" it fails instead if one is lost.
    """
    operand, (asked, tells) = Operand.of(comm), asked_of(Kind.BARRIER, options)
    call = Call(Kind.BARRIER, numbers_of(asked, 0), tells_outcome=tells)
    outs = bind(operand.handle, [], call)
    return OutcomeArrays.of(outs[0]) if tells else None


@overload
def send(comm: Comm, x: Any, dst: Root, **_: Unpack[MessageOptions]) -> None: ...
@overload
def send(
    comm: Comm, x: Any, dst: Root, *, return_outcome: Literal[True], **_: Unpack[MessageOptions]
) -> OutcomeArrays: ...
@overload
def send(
    comm: Comm, x: Any, dst: Root, *, return_tie: Literal[True], **_: Unpack[MessageOptions]
) -> jax.Array: ...
@overload
def send(
    comm: Comm,
    x: Any,
    dst: Root,
    *,
    return_tie: Literal[True],
    return_outcome: Literal[True],
    **_: Unpack[MessageOptions],
) -> tuple[jax.Array, OutcomeArrays]: ...
@documented(MessageOptions, "return_outcome")
def send(comm: Comm, x: Any, dst: Root, *, return_tie: bool = False, **options: Any) -> Any:
    """Sends `x`, an array, to `dst`, another rank or the id of a member, which calls `recv`.

    It is over when `dst` has all of it: two that both send first wait for each other. Dtypes are
    those of `broadcast`; with return_outcome, the outcome.

    For derivatives, `return_tie=True` returns a zero of no dimensions, of the dtype of `x`, which
    is to be added to the loss, or to a `tie` of a later `recv`: it makes the loss depend on `x`.
    Backward: X_src = Y_dst, a recv, so `dst` must pass `tie` to its recv. Without return_tie the
    derivative of a send raises InvalidArgument while it is traced.
    """
    operand, (asked, tells) = Operand.of(comm), asked_of(Kind.SEND, options)
    leaves = Leaves.of(x)
    if leaves.names:
        raise TypeError(f"a message must be one array, not a tree of {len(leaves.names)}")
    leaves.check(None)
    (array,) = leaves.arrays
    if return_tie and not is_float(array):
        raise InvalidArgument(f"return_tie is for derivatives, and {array.dtype.name} has none")
    call = Call(
        Kind.SEND,
        numbers_of(asked, 0),
        root=operand.rank_of(dst, "dst"),
        results=(((), array.dtype.name),) if return_tie else (),
        tells_outcome=tells,
    )
    outs = call.split(bind(operand.handle, leaves.bytewise(), call))
    made = [*outs.results, *map(OutcomeArrays.of, outs.outcome)]
    return tuple(made) if len(made) == 2 else made[0] if made else None


@overload
def recv(
    comm: Comm, shape: Shape, dtype: Any, src: Root, *, tie: Any = None, **_: Unpack[MessageOptions]
) -> jax.Array: ...
@overload
def recv(
    comm: Comm,
    shape: Shape,
    dtype: Any,
    src: Root,
    *,
    tie: Any = None,
    return_outcome: Literal[True],
    **_: Unpack[MessageOptions],
) -> tuple[jax.Array, OutcomeArrays]: ...
@documented(MessageOptions, "return_outcome")
def recv(
    comm: Comm,
    shape: Shape,
    dtype: Any,
    src: Root,
    *,
    tie: Any = None,
    **options: Any,
) -> Any:
    """The array that `src` sends, as a new array of this shape and dtype.

    Its elements must be as many and of the same dtype as those of the `x` that `src` sends, or both
    get `Mismatch`. Bool and elements of eight bits or fewer go as u8: nobody compares such
    dtypes.

    `tie`, for derivatives: an array of floats that depends on what is differentiated on this rank,
    as parameters do, and whose values do not matter; `src` passes return_tie. Backward:
    X_src = Y_dst, a send; that of the tie is zeros. Without a tie nothing goes back, and a `src`
    that waits for it waits until its deadline. Under vmap the whole batch is one message where the
    tie is batched.
    """
    operand, (asked, tells) = Operand.of(comm), asked_of(Kind.RECV, options)
    sizes = shape if isinstance(shape, Sequence) else (shape,)
    like = jax.eval_shape(lambda: jnp.zeros([int(size) for size in sizes], dtype))
    check_dtype(like.dtype.name, None)
    ties = [] if tie is None else [jnp.ravel(tie)[:1]]
    if not all(map(is_float, ties)):
        raise InvalidArgument(f"tie must be an array of floats, not of {ties[0].dtype.name}")
    call = Call(
        Kind.RECV,
        numbers_of(asked, 0),
        root=operand.rank_of(src, "src"),
        results=((like.shape, name_of_bytewise(like.dtype.name)),),
        tells_outcome=tells,
    )
    outs = bind(operand.handle, ties, call)
    received = as_given(outs[0], like.dtype.name)
    return (received, OutcomeArrays.of(outs[1])) if tells else received


# ---- several operations in one call -------------------------------------------------------------


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
        with Named(f"xs[{number}]"):
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


# ---- a transfer beside what does not need its result ---------------------------------------------


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
    operand, (asked, _) = Operand.of(comm), asked_of(Kind.ALL_REDUCE, options)
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


# ---- what they are made of -----------------------------------------------------------------------


def _call(
    kind: Kind,
    comm: Comm,
    x: Any,
    options: Mapping[str, Any],
    *,
    root: Root = 0,
    counts: Counts = None,
    others: Counts = None,
) -> Any:
    """A collective of what `x` has; `others`: counts of what an all_to_all receives."""
    operand = Operand.of(comm)
    asked, tells = asked_of(kind, options)
    leaves = Leaves.of(x)
    leaves.check(asked.op if kind in ADDING else None)
    member = operand.rank_of(root, "root")
    world_size, rank = 0, -1
    listed: tuple[int, ...] = ()
    arrays = leaves.bytewise()
    if kind not in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST):
        world = _world(operand, counts)
        world_size, rank = world.world_size, world.rank if counts is not None else -1
        if kind in (Kind.ALL_GATHER, Kind.GATHER):
            arrays = [each if each.shape else each.reshape(1) for each in arrays]
        _check_rows(kind, world, leaves, arrays, counts, others)
        listed = (*_counts(counts), *_counts(others))
    call = Call(
        kind,
        numbers_of(asked, leaves.form()),
        root=member,
        counts=listed,
        world_size=world_size,
        rank=rank,
        tells_outcome=tells,
    )
    outs = bind(operand.handle, arrays, call)
    if tells:
        return leaves.rebuild(outs[:-1]), OutcomeArrays.of(outs[-1])
    return leaves.rebuild(outs)


def _received_of_scatter(
    comm: Comm, out: Any, root: Root, counts: Counts, options: Mapping[str, Any]
) -> Any:
    """For a rank that passes no array: the root knows what is scattered, and `out` its shape."""
    operand, (asked, tells) = Operand.of(comm), asked_of(Kind.SCATTER, options)
    member = operand.rank_of(root, "root")
    if out is None:
        raise InvalidArgument(
            "x is needed on the root of a scatter, and elsewhere x or out: without x, out says the "
            "shape of the result"
        )
    leaves = Leaves.of(jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), out))
    leaves.check(None)
    world = _world(operand, counts)
    for each in leaves.arrays:
        Rows.of_part(world, each.shape, counts, "out")
    call = Call(
        Kind.SCATTER,
        numbers_of(asked, leaves.form()),
        root=member,
        counts=_counts(counts),
        world_size=world.world_size,
        rank=-1 if counts is None else world.rank,
        results=tuple((each.shape, name_of_bytewise(each.dtype.name)) for each in leaves.arrays),
        tells_outcome=tells,
    )
    outs = bind(operand.handle, [], call)
    if tells:
        return leaves.rebuild(outs[:-1]), OutcomeArrays.of(outs[-1])
    return leaves.rebuild(outs)


def _world(operand: Operand, counts: Counts) -> World:
    """The world that a call depends on: the rank matters where ranks have different rows."""
    if counts is None:
        return Place(operand.world_size())
    return Place(operand.world_size(), operand.rank())


def _counts(counts: Counts) -> tuple[int, ...]:
    return () if counts is None else tuple(int(count) for count in counts)


def _check_rows(
    kind: Kind, world: World, leaves: Leaves, arrays: list[Any], counts: Counts, others: Counts
) -> None:
    """Raises InvalidArgument where rows cannot be shared so."""
    if counts is not None and len(arrays) > 1:
        raise InvalidArgument("lists of counts are for one array: call once for each array")
    for array, name in zip(arrays, leaves.names or ("",), strict=True):
        try:
            if others is not None:
                own = Rows.of_whole(world, array.shape, counts, name="send_counts")
                Rows.of_counts(world, own.tail, others, "recv_counts")
            elif kind in (Kind.ALL_GATHER, Kind.GATHER):
                Rows.of_part(world, array.shape, counts)
            else:
                takes = kind is not Kind.ALL_TO_ALL
                Rows.of_whole(world, array.shape, counts, takes_counts=takes)
        except InvalidArgument as error:
            raise InvalidArgument(f"leaf {name}: {error}" if name else str(error)) from None


# ---- the two primitives of a transfer ------------------------------------------------------------

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
