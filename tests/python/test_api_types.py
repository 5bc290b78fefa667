"""Types that callers are given: mypy and pyright check them as they read this file; it also runs.

A comment that ignores an error is itself an error where there is none, so these show what is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type, get_args

import numpy as np
import pccl_numpy as pnp
import pytest
from numpy.typing import NDArray

import pccl_py as pccl
from pccl_py import words


@pytest.fixture(scope="module")
def comm() -> Iterator[pccl.Communicator]:
    with pccl.LocalWorld(1, deadline=30) as world:
        yield world.comms[0]


def test_async_op_says_what_is_returned(comm: pccl.Communicator) -> None:
    array, flag = np.ones(3, np.float32), comm.rank == 0
    assert_type(comm.all_reduce(array), pccl.Outcome)
    assert_type(comm.all_reduce(array, async_op=False, op="max"), pccl.Outcome)
    assert_type(comm.all_reduce(array, async_op=True).wait(), pccl.Outcome)
    assert_type(comm.all_reduce(array, array, op="max", async_op=True), pccl.Work).wait()
    either = comm.all_reduce(array, async_op=flag)
    assert_type(either, pccl.Outcome | pccl.Work)
    assert isinstance(either, pccl.Work) and either.wait()


def test_objects_come_in_a_list(comm: pccl.Communicator) -> None:
    assert_type(comm.all_gather_object(1), list[Any])


def test_dtypes_are_kept(comm: pccl.Communicator) -> None:
    array: NDArray[np.float32] = np.ones((2, 2), np.float32)
    flag = comm.rank == 0
    assert_type(pnp.all_reduce(comm, array, op=pccl.ReduceOp.AVG), NDArray[np.float32])
    assert isinstance(pnp.all_reduce(comm, [1.0, 2.0]), np.ndarray)
    assert_type(pnp.all_gather(comm, array), NDArray[np.float32])
    assert_type(pnp.gather(comm, array), NDArray[np.float32] | None)
    assert_type(pnp.scatter(comm, array, array[:2]), NDArray[np.float32])
    assert_type(
        pnp.reduce(comm, array, async_op=True), pccl.Work[NDArray[np.float32] | None]
    ).wait()
    assert_type(pnp.all_gather(comm, array, async_op=True).wait(), NDArray[np.float32])
    assert_type(pnp.barrier(comm, async_op=True), pccl.Work).wait()
    _, outcome = pnp.broadcast(comm, array, return_outcome=True)
    assert_type(outcome, pccl.Outcome)
    work = pnp.all_to_all(comm, array, async_op=True)
    assert isinstance(work.wait(), np.ndarray)
    told: Any = pnp.all_to_all(comm, array, async_op=flag, return_outcome=flag)
    assert isinstance(told.wait(), tuple)
    assert_type(pnp.all_reduce_(comm, array), pccl.Outcome)


def test_many_results_have_the_type_of_the_arrays(comm: pccl.Communicator) -> None:
    array: NDArray[np.float32] = np.ones((2, 2), np.float32)
    flag = comm.rank == 0
    assert_type(comm.all_reduce_many([array, np.ones(3)], in_flight=2), list[pccl.Outcome])
    assert_type(pnp.all_reduce_many(comm, [array, array]), list[NDArray[np.float32]])
    both = pnp.all_reduce_many(comm, [array], return_outcome=True, codec="int8")
    assert_type(both, tuple[list[NDArray[np.float32]], list[pccl.Outcome]])
    told: Any = pnp.all_reduce_many(comm, [[1.0, 2.0], [3.0]], return_outcome=flag)
    assert isinstance(told, tuple)
    assert_type(pnp.all_reduce_many_(comm, [array]), list[pccl.Outcome])
    tree = {"w": array}
    assert_type(pnp.tree.all_reduce_many(comm, [tree]), list[dict[str, NDArray[np.float32]]])
    with pytest.raises(TypeError, match="no option 'async_op'"):
        comm.all_reduce_many([array], async_op=True)  # type: ignore[call-arg]


def test_trees_keep_their_type(comm: pccl.Communicator) -> None:
    tree = {"w": np.ones(3, np.float32), "b": np.ones(2, np.float32)}
    reduced = pnp.tree.all_reduce(comm, tree, codec="int8")
    assert reduced["w"].dtype == np.float32
    both = pnp.tree.all_gather(comm, tree, return_outcome=True)
    assert_type(both[1], pccl.Outcome)
    assert pnp.tree.reduce(comm, tree, async_op=True).wait() is not None


def test_words_that_do_not_exist_are_refused(comm: pccl.Communicator) -> None:
    array = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="unknown op"):
        comm.all_reduce(array, op="total")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no option"):
        comm.broadcast(array, codec="int8")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not an array"):
        comm.all_reduce({"x": 1})  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="unknown op"):  # a type checker does not know it there
        comm.all_reduce(array, op="total", async_op=True)
    with pytest.raises(TypeError, match="no option"):
        pnp.broadcast(comm, array, codec="int8")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("names", "enumeration"),
    [
        (words.OpName, pccl.ReduceOp),
        (words.PlanName, pccl.Plan),
        (words.RecoveryName, pccl.Recovery),
        (words.StrategyName, pccl.Strategy),
        (words.StateRuleName, pccl.StateRule),
        (pccl.CodecName, pccl.CodecKind),
        (pccl.RoundingName, pccl.Rounding),
    ],
)
def test_the_names_are_those_of_the_enumeration(names: Any, enumeration: Any) -> None:
    assert set(get_args(names)) == {word.name.lower() for word in enumeration}
