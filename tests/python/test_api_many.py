"""all_reduce_many: results, tags, turns, what is repeated, and what an error leaves.

Goal: whatever becomes of one array's operation, the others are tried, and all members agree.
Method: real sockets in one process; losses are peers that withdraw. With processes that are
killed: tests/processes/test_processes_many.py.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

SIZE = 1000
COUNT = 10


def world_of(n: int) -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(n, deadline=60, heartbeat=0.1) as world:
        yield world


@pytest.fixture
def pair() -> Iterator[pccl.LocalWorld]:
    yield from world_of(2)


@pytest.fixture
def three() -> Iterator[pccl.LocalWorld]:
    yield from world_of(3)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


def arrays_of(rank: int, count: int = COUNT) -> list[np.ndarray]:
    """Ones of rank 0, tens of rank 1, hundreds of rank 2: a sum says who is in it."""
    return [np.full(SIZE + number, 10.0**rank) for number in range(count)]


def values(arrays: list[np.ndarray]) -> list[float]:
    """The one value that each of them holds."""
    for array in arrays:
        assert (array == array[0]).all()
    return [float(array[0]) for array in arrays]


# ---- results


def test_each_array_is_an_operation_with_a_tag_of_its_own(pair: pccl.LocalWorld) -> None:
    dtypes = ["f8", "f4", "i2", ml_dtypes.bfloat16, "u8"]

    def program(comm: pccl.Communicator) -> None:
        arrays = [np.full(5 * n, comm.rank + 1, dtype) for n, dtype in enumerate(dtypes)]
        outcomes = comm.all_reduce_many(arrays, tag=7)
        assert [outcome.tag for outcome in outcomes] == [7, 8, 9, 10, 11]
        assert [outcome.sequence for outcome in outcomes] == [0] * 5
        for array in arrays:
            assert (array == 3).all()
        out = [np.zeros_like(array) for array in arrays]
        outcomes = comm.all_reduce_many(arrays, out, tag=7, op="avg")
        assert [outcome.sequence for outcome in outcomes] == [1] * 5
        for array, result in zip(arrays, out, strict=True):
            assert (array == 3).all() and (result == 3).all()

    pair.run(program)


def test_a_list_among_the_arrays_goes_as_one_operation(pair: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        buckets: list[Any] = [[np.ones(3), np.ones(4, "f4")], np.ones(5)]
        outcomes = comm.all_reduce_many(buckets)
        assert [outcome.ranges[-1].end for outcome in outcomes] == [7, 5]
        assert (buckets[0][1] == 2).all() and (buckets[1] == 2).all()

    pair.run(program)


def test_numpy_arrays_of_any_layout(pair: pccl.LocalWorld) -> None:
    def given(rank: int) -> list[Any]:
        return [np.full((4, 6), rank + 1.0).T[::2], np.full(3, rank + 1, ">i4"), np.float32(rank)]

    def program(comm: pccl.Communicator) -> None:
        wanted = [np.full((3, 4), 3.0), np.full(3, 3), np.float32(1)]
        xs = given(comm.rank)
        made, outcomes = pnp.all_reduce_many(comm, xs, return_outcome=True, tag=2)
        assert [outcome.tag for outcome in outcomes] == [2, 3, 4]
        for got, right in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(got, right)
        np.testing.assert_array_equal(xs[0], given(comm.rank)[0])
        out = [np.zeros((6, 4))[::2], np.zeros(3, ">i4")]
        assert pnp.all_reduce_many(comm, xs[:2], out)[0] is out[0]
        outcomes = pnp.all_reduce_many_(comm, xs[:2])
        assert [outcome.sequence for outcome in outcomes] == [1, 1]
        for got, placed, right in zip(out, xs[:2], wanted[:2], strict=True):
            np.testing.assert_array_equal(got, right)
            np.testing.assert_array_equal(placed, right)

    pair.run(program)


def test_results_are_copied_when_all_inputs_were_read(pair: pccl.LocalWorld) -> None:
    """The first result goes to a strided array that shares memory with the second input."""

    def program(comm: pccl.Communicator) -> None:
        memory = np.ones(20)
        out = [memory[::2], np.zeros(10)]
        pnp.all_reduce_many(comm, [np.full(10, 3.0), memory[:10]], out, in_flight=1)
        assert (out[0] == 6).all() and (out[1] == 2).all()

    pair.run(program)


def test_trees_are_an_operation_each(pair: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        layers: list[dict[str, Any]] = [
            {"w": np.ones((2, n + 1)), "b": [np.ones(n)]} for n in range(3)
        ]
        made = pnp.tree.all_reduce_many(comm, layers, op="max")
        assert all(np.all(layer["w"] == 1) for layer in made)
        outcomes = pnp.tree.all_reduce_many_(comm, layers, tag=5)
        assert [outcome.tag for outcome in outcomes] == [5, 6, 7]
        for n, layer in enumerate(layers):
            assert (layer["w"] == np.full((2, n + 1), 2)).all() and (layer["b"][0] == 2).all()

    pair.run(program)


def test_error_feedback_is_that_of_each_tag(pair: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        feedback = comm.error_feedback(4)
        arrays = [np.linspace(0, 1, 500, dtype="f4") for _ in range(3)]
        comm.all_reduce_many(arrays, tag=3, codec="int4")
        assert feedback.count == 500
        assert np.frombuffer(feedback.save(), "f4").any()

    pair.run(program)


# ---- turns


def test_so_many_are_in_flight_at_once_and_the_others_wait(
    pair: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    first, second = pair.comms
    mine, theirs = arrays_of(0), arrays_of(1)
    running = pool.submit(lambda: first.all_reduce_many(mine, in_flight=3))
    most = 0
    for number, array in enumerate(theirs):
        wanted = min(3, COUNT - number)
        while (now := first.info().operations_in_flight) < wanted:
            continue
        most = max(most, now)
        second.all_reduce(array, tag=number)
    running.result()
    assert most == 3
    assert values(mine) == values(theirs) == [11.0] * COUNT


@pytest.mark.parametrize("turns", [(1, 8), (64, 2)])
def test_members_may_have_different_numbers_in_flight(
    pair: pccl.LocalWorld, turns: tuple[int, int]
) -> None:
    def program(comm: pccl.Communicator) -> list[float]:
        arrays = arrays_of(comm.rank, 100)
        comm.all_reduce_many(arrays, in_flight=turns[comm.rank])
        return values(arrays)

    assert pair.run(program) == [[11.0] * 100] * 2


# ---- what fails, and what is repeated


def withdrawn(
    three: pccl.LocalWorld, pool: ThreadPoolExecutor, call: Callable[[pccl.Communicator], Any]
) -> list[Any]:
    """The answers of two members to `call`, of which four operations fly when the third leaves.

    They wait for the third, which has called none of them.
    """
    *stay, leaver = three.comms
    running = [pool.submit(call, comm) for comm in stay]
    for comm in stay:
        while comm.info().operations_in_flight < 4:
            continue
    leaver.close()
    return [each.result() for each in running]


def test_what_was_aborted_is_made_again_by_all(
    three: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    arrays = [arrays_of(rank) for rank in range(2)]

    def call(comm: pccl.Communicator) -> list[pccl.Outcome]:
        return comm.all_reduce_many(arrays[comm.rank], tag=1, recovery="raise", in_flight=4)

    outcomes = withdrawn(three, pool, call)
    assert [values(each) for each in arrays] == [[11.0] * COUNT] * 2
    for one, other in zip(*outcomes, strict=True):
        assert (one.tag, one.sequence, one.digest) == (other.tag, other.sequence, other.digest)
        assert one.contributors == three.comms[0].members[:2]
    assert [outcome.sequence for outcome in outcomes[0]] == [1] * 4 + [0] * 6


def failed(call: Callable[[], object]) -> pccl.PcclError:
    with pytest.raises(pccl.PcclError) as caught:
        call()
    return caught.value


def test_without_repeats_the_first_error_is_raised_when_all_were_tried(
    three: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    arrays = [arrays_of(rank) for rank in range(2)]

    def call(comm: pccl.Communicator) -> pccl.PcclError:
        given = arrays[comm.rank]
        return failed(lambda: comm.all_reduce_many(given, recovery="raise", in_flight=4, retry=0))

    for rank, error in enumerate(withdrawn(three, pool, call)):
        assert isinstance(error, pccl.Aborted) and error.operation == "all_reduce"
        assert error.work is error.works[0] and len(error.works) == COUNT
        works = [work for work in error.works if work is not None]
        aborted = [isinstance(work.exception(), pccl.Aborted) for work in works]
        assert aborted == [True] * 4 + [False] * 6
        assert works[4].outcome.tag == 4
        assert values(arrays[rank]) == [10.0**rank] * 4 + [11.0] * 6
    # All are in step.
    *stay, _ = three.comms
    again = [pool.submit(comm.all_reduce_many, arrays[comm.rank][:4]) for comm in stay]
    for each in again:
        assert [outcome.sequence for outcome in each.result()] == [1] * 4


@pytest.mark.parametrize("frontend", [pnp, pnp.tree])
def test_inputs_of_a_frontend_are_as_they_were(
    three: pccl.LocalWorld, pool: ThreadPoolExecutor, frontend: Any
) -> None:
    arrays = [[np.full((SIZE, 2), 10.0**rank)[:, 0] for _ in range(5)] for rank in range(2)]

    def call(comm: pccl.Communicator) -> pccl.PcclError:
        xs = [[x] for x in arrays[comm.rank]] if frontend is pnp.tree else arrays[comm.rank]
        options: dict[str, Any] = {"recovery": "raise", "in_flight": 4, "retry": 0}
        if comm.rank == 0:
            return failed(lambda: frontend.all_reduce_many(comm, xs, **options))
        return failed(lambda: frontend.all_reduce_many_(comm, xs, **options))

    errors = withdrawn(three, pool, call)
    assert values(arrays[0]) == [1.0] * 5, "not in place"
    assert values(arrays[1]) == [10.0] * 4 + [11.0], "in place"
    assert [error.works[4].outcome.tag for error in errors] == [4, 4]


def test_a_deadline_is_that_of_the_whole(pair: pccl.LocalWorld) -> None:
    comm = pair.comms[0]
    arrays = arrays_of(0)
    error = failed(lambda: comm.all_reduce_many(arrays, in_flight=2, deadline=0.2))
    assert isinstance(error, pccl.DeadlineExceeded)
    assert [work is None for work in error.works] == [False] * 2 + [True] * 8
    assert values(arrays) == [1.0] * COUNT
    error = failed(lambda: comm.all_reduce_many(arrays, tag=COUNT, deadline=1e-9))
    assert str(error) == (
        "all_reduce_many in group 'default' timed out: the deadline passed before "
        "array 0 of 10 had its turn"
    )
    assert (error.operation, error.works) == ("all_reduce_many", (None,) * COUNT)


def test_one_that_is_behind_after_a_deadline_catches_up_by_repeating(
    pair: pccl.LocalWorld,
) -> None:
    """The other's deadline has passed, so its calls of two tags are one ahead."""
    first, second = pair.comms
    failed(lambda: first.all_reduce_many(arrays_of(0), in_flight=2, deadline=0.1))

    def program(comm: pccl.Communicator) -> list[float]:
        arrays = arrays_of(comm.rank)
        comm.all_reduce_many(arrays, in_flight=2)
        return values(arrays)

    assert pair.run(program) == [[11.0] * COUNT] * 2
    assert second.info().operations_in_flight == 0


def test_an_operation_that_is_refused_does_not_hold_up_the_others(pair: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        arrays = [np.ones(9, "f4"), np.ones(9, "f4"), np.ones(9, "f4")]
        comm.error_feedback(1).load(np.zeros(5, "f4"))
        error = failed(lambda: comm.all_reduce_many(arrays, codec="bf16"))
        assert "the error feedback of tag 1 has 5 elements, this call 9" in str(error)
        assert [work is None for work in error.works] == [False, True, False]
        assert values(arrays) == [2.0, 1.0, 2.0]

    pair.run(program)


def test_a_peer_that_is_out_of_the_group_is_told_so(pair: pccl.LocalWorld) -> None:
    comm = pair.comms[0]
    arrays = arrays_of(0)
    work = comm.all_reduce(np.ones(3), tag=1000, async_op=True)
    work.cancel()
    assert isinstance(failed(work.wait), pccl.Cancelled)
    assert isinstance(failed(lambda: comm.all_reduce_many(arrays)), pccl.Expelled)
    assert values(arrays) == [1.0] * COUNT


def test_ctrl_c_withdraws_all_that_are_in_flight(pair: pccl.LocalWorld) -> None:
    comm, other = pair.comms
    arrays = arrays_of(0)

    def wait_for(in_flight: int) -> None:
        while comm.info().operations_in_flight != in_flight:
            continue

    def send_when_it_waits() -> None:
        wait_for(COUNT)
        other.all_reduce(np.full(SIZE, 10.0), tag=0)
        wait_for(COUNT - 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=send_when_it_waits)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        comm.all_reduce_many(arrays, in_flight=COUNT)
    thread.join()
    works = caught.value.works  # type: ignore[attr-defined]
    assert works[0].outcome.tag == 0
    for work in works[1:]:
        assert isinstance(work.exception(), pccl.Cancelled)
    assert caught.value.work in works  # type: ignore[attr-defined]
    assert values(arrays) == [11.0] + [1.0] * (COUNT - 1)
    theirs = np.ones(SIZE + 1)
    other.all_reduce(theirs, tag=1)
    assert (theirs == 1).all(), "the others go on without it"


# ---- arguments


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (np.ones((2, 2)), {}, "arrays must be a list, not ndarray"),
        ([], {}, "arrays is empty"),
        ([np.ones(2)], {"out": np.ones(2)}, "out must be a list"),
        ([np.ones(2)], {"out": []}, "arrays has 1, out has 0"),
        ([np.ones(2), np.ones(2, "c8")], {}, r"arrays\[1\]: "),
        ([np.ones(2), [np.ones(2), 3]], {}, r"arrays\[1\]: array 1 of 2: "),
        ([np.ones(2)], {"in_flight": 0}, "in_flight must be between 1 and 64, not 0"),
        ([np.ones(2)], {"in_flight": 65}, "in_flight must be between 1 and 64, not 65"),
        ([np.ones(2)], {"retry": -1}, "retry must be between 0"),
        ([np.ones(2), np.ones(2)], {"tag": (254 << 56) - 1}, "go up to 18302628885633695744: "),
        ([np.ones(2)], {"async_op": True}, "all_reduce_many.. has no option 'async_op'"),
        ([np.ones(2)], {"form": 1}, "has no option 'form'; it has op, .*in_flight, retry$"),
        ([np.ones(2)], {"codec": "int7"}, "unknown codec"),
    ],
)
def test_arguments_are_refused_before_anything_is_sent(
    pair: pccl.LocalWorld, arrays: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        pair.comms[0].all_reduce_many(arrays, **options)
    assert pair.comms[0].info().operations_in_flight == 0


@pytest.mark.parametrize(
    ("second", "options", "message"),
    [
        (np.ones(2, bool), {}, r"\[1\]: bool arrays cannot be added up|\[1\]: dtype bool is not"),
        (np.ones(2, ml_dtypes.float8_e5m2), {"op": "band"}, r"\[1\]: (float8_e5m2|dtype|op band)"),
        (np.ones(2, "f4"), {"op": "bxor"}, r"\[1\]: op bxor is of integers, and dtype is f32"),
        (np.ones(2, "i4"), {"codec": "bf16"}, r"\[1\]: codec bf16 is for floats, and dtype is i32"),
    ],
)
@pytest.mark.parametrize("frontend", [False, True])
def test_an_array_that_cannot_be_reduced_is_refused_before_the_first_begins(
    pair: pccl.LocalWorld, second: np.ndarray, options: dict[str, Any], message: str, frontend: bool
) -> None:
    """Else the operations that have begun are withdrawn, and this peer from its group."""
    first = np.ones(2, "i4" if "op" in options else "f4")

    def program(comm: pccl.Communicator) -> None:
        run: Any = pnp.all_reduce_many if frontend else pccl.Communicator.all_reduce_many
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            run(comm, [first.copy(), second.copy()], **options)
        assert not getattr(caught.value, "works", ())
        whole = np.ones(1)
        comm.all_reduce(whole)
        assert whole == 2

    pair.run(program)


def test_operations_that_would_write_what_others_use_are_refused(pair: pccl.LocalWorld) -> None:
    comm = pair.comms[0]
    whole = np.ones(30)
    apart = [np.ones(10) for _ in range(2)]
    says = "arrays 0 and 1 share memory that one of them writes"
    with pytest.raises(ValueError, match=says):
        comm.all_reduce_many([whole[:10], whole[9:20]])
    with pytest.raises(ValueError, match=says):
        comm.all_reduce_many([whole[:10], whole[20:]], [apart[0], whole[5:15]])
    with pytest.raises(ValueError, match=r"xs\[0\] and xs\[2\]\['a'\] share memory"):
        pnp.tree.all_reduce_many_(comm, [whole[::2], apart[0], {"a": whole[4:8]}])
    assert comm.info().operations_in_flight == 0

    def read_twice(comm: pccl.Communicator) -> None:
        x = np.ones(10)
        for result in pnp.all_reduce_many(comm, [x, x, x[2:]]):
            assert (result == 2).all()

    pair.run(read_twice)
