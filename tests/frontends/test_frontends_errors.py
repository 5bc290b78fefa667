"""A frontend's answer where something is wrong: clear errors, arrays kept, no lost turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from adapter import COLLECTIVES, Adapter
from model import BITWISE, COUNTED, NEED_ALL, REDUCING, ROOTED, Call

import pccl_py as pccl

Worlds = Callable[[int], pccl.LocalWorld]
ROOT = 1


def arrays_of(frontend: Adapter, call: Call, rank: int, dtype: str = "f32") -> list[Any]:
    """x and out of one rank; out where the collective has one."""
    given, wanted = call.given(rank), call.wanted(rank)
    x = None if given is None else frontend.make(given, call.given_shape(rank), dtype)
    out = None
    if wanted is not None and (call.collective in frontend.with_out or x is None):
        out = frontend.make([7] * len(wanted), call.wanted_shape(rank), dtype)
    return [x, out]


def read_all(frontend: Adapter, arrays: list[Any]) -> list[Any]:
    return [None if array is None else frontend.read(array) for array in arrays]


def refuse_on_all(
    frontend: Adapter,
    world: pccl.LocalWorld,
    call_of: Callable[[int], Call],
    words: str | None = None,
    **dtypes: str,
) -> None:
    """Every peer gets Mismatch and has its input as it was; `dtypes`: of ranks r0, r1 ..."""

    def program(comm: pccl.Communicator) -> None:
        call = call_of(comm.rank)
        arrays = arrays_of(frontend, call, comm.rank, dtypes.get(f"r{comm.rank}", "f32"))
        before = read_all(frontend, arrays[:1])
        with pytest.raises(pccl.Mismatch, match=words):
            frontend.call(call.collective, comm, *arrays, **call.options)
        assert read_all(frontend, arrays[:1]) == before
        if call.collective in frontend.in_place:
            dtype = dtypes.get(f"r{comm.rank}", "f32")
            x = frontend.make(call.given_in_place(comm.rank), call.shape_in_place(), dtype)
            with pytest.raises(pccl.Mismatch, match=words):
                frontend.call_in_place(call.collective, comm, x, **call.options)
            assert frontend.read(x) == call.given_in_place(comm.rank)

    world.run(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_rows_that_disagree_are_a_mismatch_on_all(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    refuse_on_all(
        frontend,
        worlds(3),
        lambda rank: Call(collective, (2 + (rank == 2),) * 3, (2,), root=ROOT),
    )


def shapes_told(rows: str, own: str) -> str:
    """The words of a Mismatch: the rows of two calls, and the shape of this peer's array."""
    told = r"The arrays of these two differ in shape \(here OWN\): pass arrays of one shape, or "
    return rf"{rows}.*{told.replace('OWN', own)}flatten them\. "


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_shapes_that_disagree_are_a_mismatch_on_all(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """Each rank has equally many elements; rows of 3 meet rows of 2."""
    world = worlds(3)
    words = shapes_told(r", rows of [23]\).*, rows of [23]\)", r"\(\d, [23]\)")

    def call_of(rank: int) -> Call:
        rows, tail = ((3,) * 3, (2,)) if rank == 2 else ((2,) * 3, (3,))
        return Call(collective, rows, tail, root=ROOT)

    refuse_on_all(frontend, world, call_of, words)
    goes_on(frontend, world)


@pytest.mark.parametrize("collective", COUNTED)
def test_rows_of_another_shape_are_a_mismatch_where_ranks_have_several_or_none(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """With counts: 24, 12 and 0 elements in rows of (2, 3), and on one rank in rows of (3, 2)."""

    def call_of(rank: int) -> Call:
        return Call(collective, (4, 2, 0), (3, 2) if rank == 2 else (2, 3), root=ROOT)

    words = "The arrays of these two differ in shape .*: pass arrays of one shape, or flatten them"
    refuse_on_all(frontend, worlds(3), call_of, words)


def test_a_matrix_and_what_is_flat_are_a_mismatch_that_names_both(
    frontend: Adapter, worlds: Worlds
) -> None:
    def program(comm: pccl.Communicator) -> None:
        shape = (2, 3) if comm.rank == 0 else (6,)
        own = r"\(2, 3\)" if comm.rank == 0 else ""
        x = frontend.make([1, 2, 3, 4, 5, 6], shape)
        with pytest.raises(pccl.Mismatch, match=rf"differ in shape.*{own}") as caught:
            frontend.call("all_reduce", comm, x)
        for words in ("6 f32, rows of 3", "6 f32, one dimension"):
            assert words in str(caught.value)
        assert frontend.read(x) == [1, 2, 3, 4, 5, 6]

    worlds(2).run(program)


@pytest.mark.parametrize("collective", COUNTED)
def test_counts_that_disagree_are_a_mismatch_on_all(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """As many elements together, shared out in another way by one of three."""
    refuse_on_all(
        frontend,
        worlds(3),
        lambda rank: Call(collective, (1, 2, 0) if rank == 2 else (2, 1, 0), root=ROOT),
    )


def test_what_one_sends_and_the_other_does_not_expect_is_a_mismatch_on_all(
    frontend: Adapter, worlds: Worlds
) -> None:
    """Rank 1 wants two rows of rank 0, which has one for it; rank 2 is at one with both."""
    sent = ((1, 1, 1), (1, 1, 1), (1, 1, 1))
    received = ((1, 1, 1), (2, 1, 1), (1, 1, 1))

    def program(comm: pccl.Communicator) -> None:
        x = frontend.make([1, 2, 3], (3,))
        counts = {"send_counts": sent[comm.rank], "recv_counts": received[comm.rank]}
        with pytest.raises(pccl.Mismatch):
            frontend.call("all_to_all", comm, x, **counts)
        assert frontend.read(x) == [1, 2, 3]

    worlds(3).run(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_trees_that_disagree_are_a_mismatch_on_all(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """As many elements together, in other arrays on one of three; every input is as it was."""

    def program(comm: pccl.Communicator) -> None:
        rows = ((3,) * 3, (1,) * 3) if comm.rank == 2 else ((2,) * 3, (2,) * 3)
        calls = [Call(collective, each, root=ROOT) for each in rows]
        pairs = [arrays_of(frontend, call, comm.rank) for call in calls]
        x = None if pairs[0][0] is None else [pair[0] for pair in pairs]
        out = [pair[1] for pair in pairs] if collective == "scatter" else None
        before = [read_all(frontend, pair[:1]) for pair in pairs]
        with pytest.raises(pccl.Mismatch):
            frontend.call_tree(collective, comm, x, out, **calls[0].options)
        assert [read_all(frontend, pair[:1]) for pair in pairs] == before

    worlds(3).run(program)


def test_a_leaf_of_another_shape_is_a_mismatch_that_says_so(
    frontend: Adapter, worlds: Worlds
) -> None:
    """Goal: names and shapes are told from each other, and a leaf of another size is still found.

    Method: a leaf of (2, 3) meets (3, 2), and then (2, 4).
    """

    def program(comm: pccl.Communicator) -> None:
        for other, words in (
            ((3, 2), r"differ in shape \(here \([23], [23]\), \(4,\)\): pass arrays of one"),
            ((2, 4), r"leaf \['a'\] has [68] f32 at .* and [68] f32 at "),
        ):
            shape = other if comm.rank else (2, 3)
            a = frontend.make([1] * (shape[0] * shape[1]), shape)
            with pytest.raises(pccl.Mismatch, match=words):
                frontend.call_tree("all_reduce", comm, {"a": a, "b": frontend.make([1] * 4, (4,))})

    worlds(2).run(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_dtypes_that_disagree_are_a_mismatch_on_all(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    refuse_on_all(
        frontend, worlds(3), lambda rank: Call(collective, (2, 2, 2), root=ROOT), r2="i32"
    )


def test_a_message_of_another_size_is_a_mismatch_for_both(
    frontend: Adapter, worlds: Worlds
) -> None:
    def program(comm: pccl.Communicator) -> None:
        if comm.rank == 0:
            x = frontend.make([1, 2, 3], (3,))
            with pytest.raises(pccl.Mismatch):
                frontend.send(comm, x, 2)
            assert frontend.read(x) == [1, 2, 3]
        elif comm.rank == 2:
            with pytest.raises(pccl.Mismatch):
                frontend.recv(comm, (4,), "f32", 0)

    worlds(3).run(program)


def goes_on(frontend: Adapter, world: pccl.LocalWorld) -> None:
    """A refused call has taken nobody's turn: the next operation of the same tag succeeds."""
    call = Call("all_reduce", (2,) * len(world.comms))

    def program(comm: pccl.Communicator) -> list[float]:
        x = frontend.make(call.given(comm.rank) or [], call.given_shape(comm.rank))
        return frontend.read(frontend.call("all_reduce", comm, x))

    assert world.run(program) == [call.wanted(0)] * len(world.comms)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_dtype_without_collectives_is_a_type_error(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    array, world = frontend.unsupported(4), worlds(2)
    if array is None:
        pytest.skip("every dtype of this frontend has collectives")
    before = frontend.read(array)
    for flags in ({}, {"async_op": True})[: 1 + frontend.has_works]:
        with pytest.raises(TypeError, match="complex|supported"):
            frontend.call(collective, world.comms[0], array, **flags)
    if collective in frontend.in_place:
        with pytest.raises(TypeError, match="complex|supported"):
            frontend.call_in_place(collective, world.comms[0], array)
    assert frontend.read(array) == before
    goes_on(frontend, world)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_an_option_that_a_collective_does_not_have_is_a_type_error(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    world = worlds(2)
    x, out = frontend.make([1, 2], (2,)), frontend.make([7], (1,))
    root = "root, " if collective in ("broadcast", "reduce", "scatter", "gather") else ""
    with pytest.raises(TypeError, match=f"has no option 'opp'; it has {root}.*async_op"):
        frontend.call(collective, world.comms[0], x, opp="sum")
    with pytest.raises(TypeError, match="has no option 'opp'; it has"):
        frontend.call_tree(collective, world.comms[0], [x], [out], opp="sum")
    if collective in frontend.in_place:
        with pytest.raises(TypeError, match="has no option 'return_outcome'"):
            frontend.call_in_place(collective, world.comms[0], x, return_outcome=True)
    assert (frontend.read(x), frontend.read(out)) == ([1, 2], [7])
    goes_on(frontend, world)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_no_comm_is_a_type_error(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    x = frontend.make([1, 2], (2,))
    no_comm: Any = 3  # a tracer under jit
    wanted = pytest.raises(TypeError, match="must be a Communicator or a Group, not ")
    with wanted:
        frontend.call(collective, no_comm, x)
    with wanted:
        frontend.call_tree(collective, no_comm, [x])
    if collective in frontend.in_place:
        with wanted:
            frontend.call_in_place(collective, no_comm, x)
    with wanted:
        frontend.send(no_comm, x, 1)
    with wanted:
        frontend.recv(no_comm, (2,), "f32", 1)
    assert frontend.read(x) == [1, 2]
    goes_on(frontend, worlds(2))


@pytest.mark.parametrize("collective", REDUCING)
def test_what_only_moves_is_not_added_up(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    world = worlds(2)
    for dtype in frontend.moving_dtypes:
        x = frontend.make([1, 0], (2,), dtype)
        with pytest.raises(TypeError, match=f"{dtype}.*added up"):
            frontend.call(collective, world.comms[0], x)
        with pytest.raises(TypeError, match=f"{dtype}.*added up"):
            frontend.call_tree(collective, world.comms[0], {"x": x})
    goes_on(frontend, world)


@pytest.mark.parametrize("collective", REDUCING)
def test_floats_have_no_bits(frontend: Adapter, worlds: Worlds, collective: str) -> None:
    """Those of eight bits have no reduction at all."""
    world = worlds(2)
    for dtype in (*frontend.dtypes, *frontend.moving_dtypes):
        if dtype[0] in "iu" or dtype == "bool":
            continue
        x = frontend.make([1, 0], (2,), dtype)
        for op in BITWISE:
            with pytest.raises((pccl.InvalidArgument, TypeError), match=dtype):
                frontend.call(collective, world.comms[0], x, op=op)
    goes_on(frontend, world)


def test_an_out_that_does_not_fit_is_refused(frontend: Adapter, worlds: Worlds) -> None:
    world = worlds(2)
    for collective in sorted(frontend.with_out):
        call = Call(collective, (2, 2), (3,))
        x, out = arrays_of(frontend, call, 0)
        shape, count = call.wanted_shape(0), len(call.wanted(0) or [])
        flat = frontend.make([7] * count, (count,))
        longer = frontend.make([7] * (count + 3), (shape[0] + 1, *shape[1:]))
        other = frontend.make([7] * count, shape, "f64")
        locked = frontend.frozen([7] * count, shape)
        arrays = [x, out, flat, longer, other, locked]
        before = read_all(frontend, arrays)
        for wrong in (flat, longer):
            with pytest.raises(ValueError, match="shape"):
                frontend.call(collective, world.comms[0], x, wrong, **call.options)
        with pytest.raises(TypeError, match=r"float32.*float64|float64.*float32"):
            frontend.call(collective, world.comms[0], x, other, **call.options)
        if locked is not None:
            with pytest.raises(ValueError, match="read-only"):
                frontend.call(collective, world.comms[0], x, locked, **call.options)
        assert read_all(frontend, arrays) == before
        goes_on(frontend, world)


def test_what_is_read_only_is_not_written_in_place(frontend: Adapter, worlds: Worlds) -> None:
    locked, world = frontend.frozen([1, 2, 3, 4], (4,)), worlds(2)
    for collective in sorted(frontend.in_place if locked is not None else ()):
        options = {"root": 1} if collective == "broadcast" else {}  # whose root only reads it
        with pytest.raises(ValueError, match="read-only"):
            frontend.call_in_place(collective, world.comms[0], locked, **options)
        assert frontend.read(locked) == [1, 2, 3, 4]
        goes_on(frontend, world)


@pytest.mark.parametrize("collective", ["reduce_scatter", "scatter", "all_to_all"])
def test_rows_that_cannot_be_shared_are_refused(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    world, cure = worlds(2), "pass counts" if collective in COUNTED else "all need as many"
    with pytest.raises(ValueError, match=f"5 rows, which 2 ranks cannot share: {cure}"):
        frontend.call(collective, world.comms[0], frontend.make([1] * 5, (5,)))
    with pytest.raises(ValueError, match="no rows to share"):
        frontend.call(collective, world.comms[0], frontend.make([1], ()))
    if collective in COUNTED:
        for counts, said in (
            ((2, 2), "together"),
            ((5,), "1 entry, but"),
            ((6, -1), "between 0 and"),
        ):
            with pytest.raises(ValueError, match=said):
                frontend.call(
                    collective, world.comms[0], frontend.make([1] * 5, (5,)), counts=counts
                )
    goes_on(frontend, world)


@pytest.mark.parametrize("collective", ROOTED)
@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_that_is_no_rank_is_refused(
    frontend: Adapter, worlds: Worlds, collective: str, root: int
) -> None:
    world = worlds(2)
    x, out = (frontend.make([1, 2], (2,)) for _ in range(2))
    given = (None, out) if collective == "scatter" else (x, None)
    with pytest.raises(ValueError, match=f"rank from 0 to 1, not {root}"):
        frontend.call(collective, world.comms[0], *given, root=root)
    assert frontend.read(x) == [1, 2] and frontend.read(out) == [1, 2]
    goes_on(frontend, world)


@pytest.mark.parametrize(
    ("collective", "uneven"), [*((name, False) for name in COLLECTIVES), ("all_to_all", True)]
)
@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("recovery", ["default", "restart"])
def test_a_member_that_leaves_instead_of_calling(
    frontend: Adapter, collective: str, lost: int, uneven: bool, recovery: str
) -> None:
    """A member that is left gets the result without it, or Aborted where nobody else can give it,
    or where every member is needed: by default that is so where ranks have shards.

    The leaving one is the root, rank 0, or not. Until the next safe point ranks stay as they are.
    """
    call = Call(collective, (2, 2, 2), (2,), root=0, uneven=uneven)
    needs_all = recovery == "default" and collective in NEED_ALL
    fails = needs_all or (collective in ROOTED and lost == call.root)
    called = threading.Barrier(3)

    def program(comm: pccl.Communicator) -> None:
        called.wait()
        if comm.rank == lost:
            comm.close()
            return
        arrays = arrays_of(frontend, call, comm.rank)
        before = read_all(frontend, arrays)
        wanted = call.wanted(comm.rank, lost={lost})
        if fails:
            with pytest.raises(pccl.Aborted):
                frontend.call(
                    collective, comm, *arrays, **call.options_of(comm.rank), recovery=recovery
                )
            # A result apart from the input may be there in part.
            kept = slice(1) if needs_all else slice(None)
            assert read_all(frontend, arrays)[kept] == before[kept]
            return
        got = frontend.call(
            collective, comm, *arrays, **call.options_of(comm.rank), recovery=recovery
        )
        assert (None if got is None else frontend.read(got)) == wanted
        assert read_all(frontend, arrays[:1]) == before[:1]

    with pccl.LocalWorld(3, deadline=30) as world:
        world.run(program)


def test_a_message_to_or_from_one_that_leaves_is_aborted(frontend: Adapter) -> None:
    def program(comm: pccl.Communicator) -> None:
        if comm.rank == 1:
            comm.close()
            return
        if comm.rank == 0:
            x = frontend.make([1], (1,))
            with pytest.raises(pccl.Aborted):
                frontend.send(comm, x, 1)
        else:
            with pytest.raises(pccl.Aborted):
                frontend.recv(comm, (1,), "f32", 1)

    with pccl.LocalWorld(3, deadline=30) as world:
        world.run(program)
