"""The results of a frontend's collectives: every form, layout, dtype, shape and size of world."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from adapter import COLLECTIVES, Adapter, Shape
from model import BITWISE, COUNTED, REDUCING, ROOTED, WHOLE, Call
from numpy_adapter import NumpyAdapter

import pccl_py as pccl

Worlds = Callable[[int], pccl.LocalWorld]
Make = Callable[..., Any]

# They are called with every dtype: the first adds up, the second also takes what only moves.
OF_EVERY_DTYPE = ("all_reduce", "all_gather")


def uneven(world: int) -> tuple[int, ...]:
    """Rows of each rank: none for the first, together no multiple of `world` above 1."""
    return tuple((3 * rank) % 4 for rank in range(world))


def calls_of(collective: str, world: int) -> list[Call]:
    """Shapes of one to three dimensions and empty ones; every root; rows that are uneven."""
    even, last = (2,) * world, world - 1
    made = [
        Call(collective, even),
        Call(collective, even, (3, 2), root=last),
        Call(collective, (0,) * world, (3,)),
        Call(collective, even, (0,), root=last),
    ]
    if collective in WHOLE:
        # Elements that do not share out among the ranks evenly, and one element.
        rest = (0,) * last
        made += [Call(collective, (7, *rest), (5,)), Call(collective, (1, *rest), scalar=True)]
    if collective in ("all_gather", "gather"):
        made.append(Call(collective, (1,) * world, scalar=True))
    if collective in COUNTED:
        made += [Call(collective, uneven(world), (2,), root=root) for root in {0, last}]
    if collective == "all_to_all":
        made.append(Call(collective, even, (3,), uneven=True))
    return made


def check(frontend: Adapter, array: Any, values: list[float], shape: Shape, dtype: str) -> None:
    assert frontend.read(array) == values
    assert frontend.shape(array) == shape
    assert frontend.dtype(array) == dtype


def run_forms(
    frontend: Adapter, comm: pccl.Communicator, call: Call, make: Make, dtype: str = "f32"
) -> None:
    """All forms that the frontend has: a new array, `out`, and in place."""
    rank, wanted, shape = comm.rank, call.wanted(comm.rank), call.wanted_shape(comm.rank)
    given = call.given(rank)
    deals_not = given is None  # not the root of a scatter: what it gets has the shape of out

    def blank() -> Any:
        return None if wanted is None else make([7] * len(wanted), shape, dtype)

    for with_out in (False, True):
        if with_out and call.collective not in frontend.with_out:
            continue
        x = None if given is None else make(given, call.given_shape(rank), dtype)
        out = blank() if with_out or deals_not else None
        result = frontend.call(call.collective, comm, x, out, **call.options_of(rank))
        if wanted is None:
            assert result is None
        else:
            check(frontend, result, wanted, shape, dtype)
            if with_out:
                assert frontend.is_same_memory(result, out)
            elif x is not None:
                assert not frontend.is_same_memory(result, x) or wanted == []
        if given is not None:
            check(frontend, x, given, call.given_shape(rank), dtype)
    if call.collective in frontend.in_place and not (call.scalar and call.collective not in WHOLE):
        x = make(call.given_in_place(rank), call.shape_in_place(), dtype)
        outcome = frontend.call_in_place(call.collective, comm, x, **call.options)
        assert set(outcome.contributors) <= set(comm.members)
        check(frontend, x, call.wanted_in_place(rank), call.shape_in_place(), dtype)


def run_on_all(world: pccl.LocalWorld, frontend: Adapter, call: Call, dtype: str = "f32") -> None:
    world.run(lambda comm: run_forms(frontend, comm, call, frontend.make, dtype))


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_results_of_contiguous_arrays(
    frontend: Adapter, worlds: Worlds, collective: str, world: int
) -> None:
    for call in calls_of(collective, world):
        run_on_all(worlds(world), frontend, call)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_results_of_arrays_that_are_not_contiguous(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """Also beside those that are: layouts are each peer's own matter."""
    if frontend.strided([1, 2], (2,)) is None:
        pytest.skip("all arrays of this frontend are contiguous")
    for call in calls_of(collective, 3):
        for mixed in (False, True):

            def program(comm: pccl.Communicator, call: Call = call, mixed: bool = mixed) -> None:
                plain = mixed and comm.rank == 1
                make = frontend.make if plain else frontend.strided
                run_forms(frontend, comm, call, make)

            worlds(3).run(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_results_of_every_dtype(frontend: Adapter, worlds: Worlds, collective: str) -> None:
    """A frontend has one place for the names of dtypes: two collectives show all of them, the
    others show each size, bool and the last of those that only move."""
    call = calls_of(collective, 3)[1]
    moving = frontend.moving_dtypes if collective not in REDUCING else ()
    some = ("f64", "bf16", "u8", "bool", frontend.moving_dtypes[-1])
    for dtype in (*frontend.dtypes, *moving):
        if collective in OF_EVERY_DTYPE or dtype in some:
            moves = dtype in moving
            run_on_all(worlds(3), frontend, replace(call, bits=moves), dtype)


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
@pytest.mark.parametrize("collective", REDUCING)
def test_results_of_every_op(frontend: Adapter, worlds: Worlds, collective: str, op: str) -> None:
    call = Call(collective, (2, 2, 2), (3,), root=1, op=op, spread=3 if op == "avg" else 1)
    for dtype in ("f32", "i32"):
        run_on_all(worlds(3), frontend, call, dtype)


@pytest.mark.parametrize("collective", REDUCING)
def test_an_average_lies_between_the_inputs_although_their_sum_has_no_room(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """The greatest number of f16 is 65504; of three arrays with 60000 the sum is infinite."""
    arriving = {"reduce": {"root": 0}}.get(collective, {})

    def program(comm: pccl.Communicator) -> None:
        x = frontend.make([60000] * 6, (6,), "f16")
        tree = [frontend.make([60000] * 6, (6,), "f16") for _ in range(2)]
        one = frontend.call(collective, comm, x, op="avg", **arriving)
        many = frontend.call_tree(collective, comm, tree, op="avg", **arriving)
        for result in (one, *(many or [None])):
            assert result is None or set(frontend.read(result)) == {60000}
        assert (one is None) == (collective == "reduce" and comm.rank != 0)

    worlds(3).run(program)


@pytest.mark.parametrize("op", BITWISE)
@pytest.mark.parametrize("collective", REDUCING)
def test_bits_of_integers_and_of_bool_are_combined(
    frontend: Adapter, worlds: Worlds, collective: str, op: str
) -> None:
    call = Call(collective, (2, 2, 2), (3,), root=1, op=op)
    for dtype in ("u8", "i64"):
        run_on_all(worlds(3), frontend, call, dtype)
    if "bool" in frontend.moving_dtypes:
        run_on_all(worlds(3), frontend, replace(call, bits=True), "bool")


@pytest.mark.parametrize("world", [5, 16])
def test_results_in_larger_worlds(frontend: Adapter, worlds: Worlds, world: int) -> None:
    collectives = ("all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all")
    calls = [Call(name, (3,) * world, (2,), root=world // 2) for name in collectives]
    calls += [Call(name, uneven(world), root=1) for name in collectives if name in COUNTED]
    calls.append(Call("all_to_all", (2,) * world, uneven=True))

    def program(comm: pccl.Communicator) -> None:
        for call in calls:
            run_forms(frontend, comm, call, frontend.make)

    worlds(world).run(program)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 2)])
def test_messages_arrive(frontend: Adapter, worlds: Worlds, shape: Shape) -> None:
    """From rank 0 to rank 2, of any layout; rank 1 looks on. One shape has every dtype."""
    count = math.prod(shape)
    dtypes = (*frontend.dtypes, *frontend.moving_dtypes) if len(shape) == 3 else ("f32",)
    has_strides = frontend.strided([1, 2], (2,)) is not None

    def program(comm: pccl.Communicator) -> None:
        for dtype in dtypes:
            most = 2 if dtype in frontend.moving_dtypes else 100
            values = [float(number % most) for number in range(count)]
            for make in (frontend.make, frontend.strided)[: 1 + has_strides]:
                if comm.rank == 0:
                    frontend.send(comm, make(values, shape, dtype), 2)
                elif comm.rank == 2:
                    got = frontend.recv(comm, shape, dtype, 0)
                    check(frontend, got, values, shape, dtype)

    worlds(3).run(program)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_tree_of_arrays_is_one_operation(
    frontend: Adapter, worlds: Worlds, collective: str, world: int
) -> None:
    """Arrays have several shapes and dtypes, one is empty, and the structure comes back."""
    rows = (2,) * world
    calls = [Call(collective, rows, tail, root=world - 1) for tail in ((3,), (), (0,), (2, 2))]
    dtypes = ("f32", "i64", "f64", "bf16")

    def tree(values: list[Any]) -> Any:
        return {"w": values[0], "rest": [values[1], (values[2], values[3])]}

    def leaves(made: Any) -> list[Any]:
        first, (second, third) = made["rest"]
        assert set(made) == {"w", "rest"} and isinstance(made["rest"][1], tuple)
        return [made["w"], first, second, third]

    def program(comm: pccl.Communicator) -> None:
        rank = comm.rank
        x: Any = None
        if calls[0].given(rank) is not None:
            x = [
                frontend.make(call.given(rank) or [], call.given_shape(rank), dtype)
                for call, dtype in zip(calls, dtypes, strict=True)
            ]
        blank = [
            frontend.make([0] * len(call.wanted(rank) or []), call.wanted_shape(rank), dtype)
            for call, dtype in zip(calls, dtypes, strict=True)
            if collective == "scatter"
        ]
        given, out = x and tree(x), tree(blank) if blank else None
        got = frontend.call_tree(collective, comm, given, out, **calls[0].options)
        if calls[0].wanted(rank) is None:
            assert got is None
            return
        for call, dtype, array in zip(calls, dtypes, leaves(got), strict=True):
            check(frontend, array, call.wanted(rank) or [], call.wanted_shape(rank), dtype)
        for call, array in zip(calls, x or [], strict=False):
            assert frontend.read(array) == call.given(rank)

    worlds(world).run(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_form_is_begun_or_waited_for_and_has_its_outcome(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """Arrays that are not contiguous, new ones, in place and trees: the Work fills and returns."""
    call = Call(collective, (2, 2, 2), (2,), root=1)

    def strided(values: list[float], shape: Shape) -> Any:
        made = frontend.strided(values, shape)
        return frontend.make(values, shape) if made is None else made

    def program(comm: pccl.Communicator) -> None:
        rank, wanted = comm.rank, call.wanted(comm.rank)
        given, options = call.given(rank), call.options

        def arguments(tree: bool = False) -> list[Any]:
            x = None if given is None else strided(given, call.given_shape(rank))
            out = None
            if wanted is not None and (given is None or collective in frontend.with_out):
                out = strided([7] * len(wanted), call.wanted_shape(rank))
            if not tree:
                return [x, out]
            return [x if x is None else [x], [out] if collective == "scatter" else None]

        def check_result(result: Any, tree: bool) -> None:
            array = result[0] if tree and result is not None else result
            assert (None if array is None else frontend.read(array)) == wanted

        for tree in (False, True):
            run = frontend.call_tree if tree else frontend.call
            x, out = arguments(tree)
            result, outcome = run(collective, comm, x, out, return_outcome=True, **options)
            check_result(result, tree)
            assert outcome.tag == 0 and set(outcome.contributors) <= set(comm.members)
            if not frontend.has_works:
                continue
            x, out = arguments(tree)
            work = run(collective, comm, x, out, async_op=True, **options)
            check_result(work.wait(), tree)
            assert work.wait() is work.wait() and work.outcome.sequence == outcome.sequence + 1
            x, out = arguments(tree)
            both = run(
                collective, comm, x, out, async_op=True, return_outcome=True, **options
            ).wait()
            check_result(both[0], tree)
            assert both[1].sequence == outcome.sequence + 2
        in_place = [frontend.call_in_place] if collective in frontend.in_place else []
        if collective in ("all_reduce", "broadcast") and in_place:
            in_place.append(frontend.call_tree_in_place)
        for form in in_place:
            x = strided(call.given_in_place(rank), call.shape_in_place())
            tree = form == frontend.call_tree_in_place
            work = form(collective, comm, [x] if tree else x, async_op=True, **options)
            assert work.wait() == work.outcome
            assert frontend.read(x) == call.wanted_in_place(rank)

    worlds(3).run(program)


def test_messages_are_begun_or_waited_for_and_have_their_outcome(
    frontend: Adapter, worlds: Worlds
) -> None:
    if not frontend.has_works:
        pytest.skip("this frontend has no works: its messages arrive, another test says")

    def program(comm: pccl.Communicator) -> None:
        x = frontend.make([1, 2], (2,))
        other = 1 - comm.rank
        sending = frontend.send(comm, x, other, async_op=True)
        got, outcome = frontend.recv(comm, (2,), "f32", other, return_outcome=True)
        assert frontend.read(got) == [1, 2] and sending.wait().tag == outcome.tag == 0
        receiving = frontend.recv(comm, (2,), "f32", other, async_op=True)
        assert frontend.send(comm, x, other).tag == 0
        assert frontend.read(receiving.wait()) == [1, 2]

    worlds(2).run(program)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_arrays_of_one_shape_meet_whatever_frontend_a_peer_has(
    frontend: Adapter, worlds: Worlds, collective: str
) -> None:
    """Goal: each frontend says a shape and a dtype alike. Method: rank 1 has NumPy."""
    calls = [Call(collective, (2,) * 3, tail, root=1) for tail in ((), (3,), (3, 2), (1, 3, 1))]
    if collective in COUNTED:
        calls += [Call(collective, (1, 0, 3), tail, root=1) for tail in ((3,), (3, 2))]
    pairs = [*((call, "f32") for call in calls), (calls[1], "i16")]
    if collective not in REDUCING:
        pairs.append((replace(calls[1], bits=True), "bool"))

    def program(comm: pccl.Communicator) -> None:
        used = NumpyAdapter() if comm.rank == 1 else frontend
        for call, dtype in pairs:
            given, wanted = call.given(comm.rank), call.wanted(comm.rank)
            x = out = None
            if given is None:
                out = used.make([0] * len(wanted or []), call.wanted_shape(comm.rank), dtype)
            else:
                x = used.make(given, call.given_shape(comm.rank), dtype)
            got = used.call(collective, comm, x, out, **call.options)
            assert (None if got is None else used.read(got)) == wanted
            if got is not None:
                assert used.shape(got) == call.wanted_shape(comm.rank)
                assert used.dtype(got) == dtype

    worlds(3).run(program)


def test_operations_of_several_tags_run_at_once(frontend: Adapter, worlds: Worlds) -> None:
    """Threads of one peer each have a tag of their own, and begin in another order on each."""
    calls = [
        Call(name, (2, 2, 2), (5,), root=index % 3 if name in ROOTED else 0)
        for index, name in enumerate(COLLECTIVES)
    ]

    def program(comm: pccl.Communicator) -> None:
        def one(tag: int) -> None:
            call = calls[tag]
            given, wanted = call.given(comm.rank), call.wanted(comm.rank)
            for _ in range(3):
                x = out = None
                if given is None:
                    out = frontend.make([0] * len(wanted or []), call.wanted_shape(comm.rank))
                else:
                    x = frontend.make(given, call.given_shape(comm.rank))
                got = frontend.call(call.collective, comm, x, out, tag=tag, **call.options)
                assert (None if got is None else frontend.read(got)) == wanted

        with ThreadPoolExecutor(len(calls)) as pool:
            order = [(tag + comm.rank * 3) % len(calls) for tag in range(len(calls))]
            list(pool.map(one, order))

    worlds(3).run(program)
