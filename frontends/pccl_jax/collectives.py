"""Collectives over JAX's arrays and pytrees, called eagerly or in functions that JAX traces.

    mean = pj.all_reduce(comm, grads, op="avg")     # a pytree is one operation

`comm` is a Communicator or a Group: pass it to the jitted function as an argument, so that one
program serves every communicator, or close over it. Each function makes one Call (call.py) of its
arguments. An eager call waits for its result; calls in a program run in the program's order. On an
error every input is unchanged. All members must make the same calls in the same order, on any
frontend, eager or traced; in `cond` and `switch` all members must take the same branch.

Results are arrays on all ranks, so that all ranks can run one program: ranks that are not the root
of a reduce or a gather get zeros, where pccl_numpy returns None. Gradients are of L, the sum of all
peers' losses (derivatives.py): Y_p below is dL/d(result of rank p), and X_p dL/d(operand of rank
p). The backward call has the tag, deadline, recovery and plan of the forward call. Under vmap a
whole batch is one operation (batching.py). If the world has changed since tracing, a call whose
shapes depend on the world raises Mismatch; pccl_jax.jit traces again instead.

    w, b = pj.all_reduce_many(comm, [w, b], in_flight=4, recovery="raise")

all_reduce_many works only eagerly: a program cannot repeat an aborted operation. pccl_py/many.py
chooses which operations are in flight, and explains why members repeat the same ones.

    handle = pj.all_reduce_start(comm, grads, op="avg", tag=1)
    y = f(x)                                    # meanwhile
    grads = pj.all_reduce_done(handle, after=y)

all_reduce_start copies `grads` into memory of its own: XLA may free or reuse an operand's memory
once the handler has returned, and a program that fails never reaches all_reduce_done. So
all_reduce_start and all_reduce_done may be anywhere in a program: around a loop, in two steps of a
scan, in branches. Their handlers are in bindings/jax_async.c.
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
    """The reduction of `x` over all members, on all members.

    `x`: an array of any shape, of a dtype in `pccl_py.DType`, or a pytree of such arrays, which is
    one operation; the same structure, shapes and dtypes on every peer. A donated array is reduced
    in place. "avg" divides by the number of members that contributed.

    Backward: X_p = Y_0 + Y_1 + ..., an all_reduce; for "avg" this sum is divided by the numbers of
    contributors of the forward call. "min", "max", "prod" and codecs have no derivative: they raise
    InvalidArgument.
    """
    return _call(Kind.ALL_REDUCE, comm, x, options)


@everywhere(ReduceOptions)
def reduce(comm: Comm, x: Any, root: Root = 0, **options: Unpack[ReduceOptions]) -> Any:
    """The reduction of `x` over all members on `root`, a rank or a peer id; zeros elsewhere.

    A lost root ends the operation with Aborted on all members. Everything else is as in
    `all_reduce`. Backward: X_p = Y_root, a broadcast, and for "avg" divided as in `all_reduce`.
    """
    return _call(Kind.REDUCE, comm, x, options, root=root)


@everywhere(BroadcastOptions)
def broadcast(comm: Comm, x: Any, root: Root = 0, **options: Unpack[BroadcastOptions]) -> Any:
    """`x` of `root`, a rank or a peer id, on every member; other members' values are ignored.

    `x`: an array or a pytree, of a dtype in `pccl_py.DType`, of bool, or of float8, float4, int4 or
    int2, whose elements are sent as one byte each; the same structure, shapes and dtypes on every
    peer. Backward: X_root = Y_0 + Y_1 + ..., a reduce, and zeros on the other ranks.
    """
    return _call(Kind.BROADCAST, comm, x, options, root=root)


@everywhere(ReduceOptions)
def reduce_scatter(
    comm: Comm, x: Any, counts: Counts = None, **options: Unpack[ReduceOptions]
) -> Any:
    """This rank's rows of the reduction of `x` over all members.

    `x`: shape (n * k, ...) in a world of n ranks, for a result of shape (k, ...). With `counts`, x
    has sum(counts) rows and the result counts[rank] rows, so the program is compiled for this rank.
    Every peer passes the same shape, dtype and `counts`. Everything else is as in `all_reduce`.
    Backward: X_p = (Y_0, Y_1, ...), an all_gather, and for "avg" divided as in `all_reduce`.
    """
    return _call(Kind.REDUCE_SCATTER, comm, x, options, counts=counts)


@everywhere(MoveOptions)
def all_gather(comm: Comm, x: Any, counts: Counts = None, **options: Unpack[MoveOptions]) -> Any:
    """`x` of all members, concatenated along axis 0 in rank order.

    `x`: shape (k, ...) for a result of shape (n * k, ...) in a world of n ranks. With `counts`, x
    has counts[rank] rows and the result sum(counts). A scalar is a row of one element: n of
    them make the shape (n,). Dtypes are those of `broadcast`. A member that is lost ends the call
    with Aborted on all, and so each later call on shards until an `admit` removes that member and
    renumbers the ranks, unless `recovery` says otherwise. Backward: X_p = the rows of p of
    Y_0 + Y_1 + ..., a reduce_scatter.
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

    `x`: n * k rows in a world of n ranks, or with `counts` sum(counts) rows. Only the root's values
    of `x` are used. Other ranks pass an `x` of the same shapes; or x=None and `out`, a pytree of
    arrays or of jax.ShapeDtypeStruct with the shapes of the result. A lost root ends the operation
    with Aborted on all members. Dtypes are those of `broadcast`. Backward:
    X_root = (Y_0, Y_1, ...), a gather, and zeros on the other ranks. For derivatives every rank
    must pass an `x` that depends on a differentiated variable; under vmap, an `x` that is batched.
    """
    if x is None:
        return _received_of_scatter(comm, out, root, counts, options)
    return _call(Kind.SCATTER, comm, x, options, root=root, counts=counts)


@everywhere(MoveOptions)
def gather(
    comm: Comm, x: Any, root: Root = 0, counts: Counts = None, **options: Unpack[MoveOptions]
) -> Any:
    """The result of `all_gather` on `root`, a rank or a peer id; zeros of its shape elsewhere.

    A lost root ends the operation with Aborted on all members, whatever `recovery` is. Backward:
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
    """The rows that each member's `x` has for this rank, concatenated in rank order.

    `x`: n * k rows in a world of n ranks, k for each rank; the same shape and dtype on every peer.
    For a single array `send_counts` may say how many rows go to each rank, and `recv_counts` how
    many come from each rank. Sender and receiver must agree about the rows between them, or the
    call raises Mismatch. Dtypes are those of `broadcast`. A lost member ends the call as it ends
    an `all_gather`. Backward: X_p = (the rows of p of Y_0, of Y_1, ...), an all_to_all in which
    each rank returns the rows it received.
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
    """Returns once every member that is not lost has called it; with return_outcome, the outcome.

    With recovery "complete" the barrier fails if a member is lost.
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

    send returns when `dst` has received all of `x`: two ranks that both send first wait for each
    other. Dtypes are those of `broadcast`. With return_outcome, send returns the outcome.

    For derivatives, `return_tie=True` returns a tie: a zero of no dimensions and of the dtype of
    `x`. Add the tie to the loss, or to the `tie` of a later `recv`, so that the loss depends on
    `x`. Backward: X_src = Y_dst, a recv, so `dst` must pass `tie` to its recv. Without return_tie
    the derivative of a send raises InvalidArgument while JAX traces it.
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
    """The array that `src` sends, as a new array of `shape` and `dtype`.

    `shape` must have as many elements as the `x` that `src` sends, and `dtype` must be that of `x`,
    or sender and receiver get `Mismatch`. Bool, float8, float4, int4 and int2 are sent as u8, so a
    difference between these dtypes is not detected.

    `tie`, for derivatives: an array of floats that depends on a variable differentiated on this
    rank, such as a parameter; its values do not matter, and `src` passes return_tie. Backward:
    X_src = Y_dst, a send, and zeros for the tie. Without a tie the backward pass sends nothing, and
    a `src` that waits for X_src waits until its deadline. Under vmap, a batched tie makes the whole
    batch one message.
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

    Each of the `xs` is an operation of its own, as in `all_reduce`; xs[i] has the tag `tag` + i.
    Operations begin in the order of `xs`, at most `in_flight` at once. An aborted operation is
    repeated, up to `retry` times: an abort is for all members, so all repeat the same operations.
    All members pass equally many `xs`, and the same `retry`. `deadline` is for the whole call.
    With `return_outcome` a second list has the outcome of each operation.

    Every operation is tried, even if another operation fails. Afterwards the first failed
    operation's error is raised; its `works` has the Work of each operation's last try. On any error
    all `xs` are unchanged. Inside of a traced function all_reduce_many raises InvalidUsage.
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
    """The static part of a Handle; a loop or branch may exchange handles with equal parts."""

    call: Call
    treedef: Any


class Handle(Generic[T]):
    """An operation that all_reduce_start has begun, for one all_reduce_done.

    Inside of a traced function a Handle is a pytree, which loops and branches may carry;
    all_reduce_start and all_reduce_done must be in one program. If a program ends without the
    all_reduce_done, the log (logger `pccl`) names the operation, which goes on for other members.
    """

    def __init__(
        self,
        static: _Static,
        arrays: tuple[Any, Any] | None,
        finish: Callable[[], list[Any]] | None = None,
    ) -> None:
        self._static = static
        self._arrays = arrays  # in a trace: the communicator's handle and the ticket; else None
        self._finish = finish  # outside of a trace: waits, and returns results and outcome words

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

    `x` is as in `all_reduce`, and is copied. A tag has one operation at a time: a second operation
    needs another `tag` while the first is in flight, and so does a blocking call before
    `all_reduce_done`. all_reduce_start supports neither derivatives nor vmap: use `all_reduce`.
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

    `after`: an array or a pytree that XLA computes before the wait. Without `after` XLA may wait
    first, because it is free to reorder independent steps of a program. With `return_outcome` the
    outcome is returned, too. Raises the errors of `all_reduce`, InvalidUsage for a handle that has
    been finished before, and TypeError for anything that is not a Handle.
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
    """Makes a collective of the leaves of `x`. `others`: the recv_counts of an all_to_all."""
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
    """A scatter on a rank that passes x=None: `out` has the shapes of the result."""
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
    """The world that a call's shapes depend on; the rank is read only if `counts` are given."""
    if counts is None:
        return Place(operand.world_size())
    return Place(operand.world_size(), operand.rank())


def _counts(counts: Counts) -> tuple[int, ...]:
    return () if counts is None else tuple(int(count) for count in counts)


def _check_rows(
    kind: Kind, world: World, leaves: Leaves, arrays: list[Any], counts: Counts, others: Counts
) -> None:
    """Raises InvalidArgument if the rows of `arrays` do not fit the counts or the world size."""
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
