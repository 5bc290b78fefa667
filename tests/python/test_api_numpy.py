"""pccl_numpy: what is NumPy's own: layouts, byte orders, overlaps, what is like an array, masks.

The duties of every frontend, this one too, are in tests/frontends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl


@pytest.fixture(scope="module")
def world() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(2, deadline=30) as made:
        yield made


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda x: x,
    "step": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "fortran": np.asfortranarray,
    "foreign": lambda x: x.astype(x.dtype.newbyteorder("S")),
    "foreign step": lambda x: np.repeat(x, 2, axis=1).astype(x.dtype.newbyteorder("S"))[:, ::2],
}


def values(rank: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(12).reshape(3, 4) * (rank + 1)).astype(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_and_byte_order_are_packed_and_written_back(
    world: pccl.LocalWorld, layout: str
) -> None:
    """Also beside an array that is contiguous: layouts are each peer's own matter."""
    both = values(0) + values(1)

    def program(comm: pccl.Communicator) -> bytes:
        x, mine = LAYOUTS[layout](values(comm.rank)), values(comm.rank)
        dtype, out = x.dtype, LAYOUTS[layout](np.zeros((3, 4), np.float32))
        made, rows = pnp.all_reduce(comm, x), pnp.all_gather(comm, x)
        assert made.flags.owndata and np.array_equal(made, both)
        assert np.array_equal(rows, np.concatenate([values(0), values(1)]))
        for result in (made, rows):
            assert result.flags.c_contiguous and result.dtype == np.float32
        assert pnp.all_reduce(comm, mine, out) is out and np.array_equal(out, both)
        assert np.array_equal(x, mine)
        mixed = pnp.all_reduce(comm, x if comm.rank else mine, op="prod")
        assert np.array_equal(mixed, values(0) * values(1))
        pnp.all_reduce_(comm, x, op="max")
        assert x.dtype == dtype and np.array_equal(x, np.maximum(values(0), values(1)))
        return mixed.tobytes()

    results = world.run(program)
    assert results[0] == results[1]


def test_what_lies_between_the_strides_is_not_touched(world: pccl.LocalWorld) -> None:
    wholes = [np.full((4, 6), 9.0) for _ in range(2)]
    world.run(lambda comm: pnp.all_reduce_(comm, wholes[comm.rank][::2, 1::3]))
    for whole in wholes:
        assert (whole == 18.0).sum() == 4
        assert (whole == 9.0).sum() == 20


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_out_may_overlap_the_input(world: pccl.LocalWorld, shift: int) -> None:
    """As with NumPy's own functions: the result is as if the input had been copied first."""
    wholes = [np.arange(10.0) * (rank + 1) for rank in range(2)]
    expected = (np.arange(10.0) * 3)[1:9]
    world.run(
        lambda comm: pnp.all_reduce(
            comm, wholes[comm.rank][1:9], wholes[comm.rank][1 + shift : 9 + shift]
        )
    )
    for whole in wholes:
        assert np.array_equal(whole[1 + shift : 9 + shift], expected)


def test_what_is_like_an_array_becomes_one(world: pccl.LocalWorld) -> None:
    results = world.run(lambda comm: pnp.all_reduce(comm, [[1, 2], [3, comm.rank]]))
    assert np.array_equal(results[0], [[2, 4], [6, 1]])
    means = world.run(lambda comm: pnp.all_reduce(comm, comm.rank * 1.0, op="avg"))
    assert means == [0.5, 0.5]
    assert means[0].shape == ()


def test_the_root_of_a_broadcast_may_be_read_only(world: pccl.LocalWorld) -> None:
    arrays = [values(rank).T for rank in range(2)]
    arrays[1].flags.writeable = False
    world.run(lambda comm: pnp.broadcast_(comm, arrays[comm.rank], 1))
    assert np.array_equal(arrays[0], values(1).T)


def rows_of(rank: int, counts: list[int]) -> slice:
    return slice(sum(counts[:rank]), sum(counts[: rank + 1]))


def tall(rank: int) -> np.ndarray:
    return (np.arange(24).reshape(6, 4) * (rank + 1)).astype(np.float32)


def test_an_array_that_the_root_alone_needs_is_not_looked_at_elsewhere(
    world: pccl.LocalWorld,
) -> None:
    """And nobody writes to what the others give. The root is named as a peer."""

    def program(comm: pccl.Communicator) -> None:
        root, is_root = comm.members[1], comm.rank == 1
        x, ignored = tall(comm.rank).T, "not looked at"
        x.flags.writeable = False
        out: Any = np.zeros_like(x) if is_root else ignored
        assert pnp.reduce(comm, x, out, root) is (out if is_root else None)
        held = x.copy() if is_root else x
        pnp.reduce_(comm, held, root)
        table: Any = np.zeros((8, 6), np.float32) if is_root else ignored
        assert pnp.gather(comm, x, table, root) is (table if is_root else None)
        if is_root:
            assert np.array_equal(out, (tall(0) + tall(1)).T) and np.array_equal(held, out)
            assert np.array_equal(table, np.concatenate([tall(0).T, tall(1).T]))
        part = np.zeros((4, 6), np.float32)
        assert pnp.scatter(comm, table, part, root) is part
        assert np.array_equal(part, x) and np.array_equal(x, tall(comm.rank).T)

    world.run(program)


def test_the_parts_of_an_array_may_be_in_it_and_overlap_it(world: pccl.LocalWorld) -> None:
    """In the place of the rank nothing is copied; elsewhere, as if the input had been copied."""

    def program(comm: pccl.Communicator) -> None:
        ours, theirs = rows_of(comm.rank, [3, 3]), rows_of(1 - comm.rank, [3, 3])
        for place in (ours, theirs, slice(1, 4)):
            array = tall(comm.rank)
            pnp.reduce_scatter(comm, array, array[place])
            assert np.array_equal(array[place], (tall(0) + tall(1))[ours])
            array = tall(comm.rank)
            array[place] = tall(comm.rank)[ours]
            pnp.all_gather(comm, array[place], array)
            assert np.array_equal(array, np.concatenate([tall(0)[:3], tall(1)[3:]]))
        for array in (tall(comm.rank), np.asfortranarray(tall(comm.rank))):
            assert pnp.all_to_all(comm, array, array) is array
            assert np.array_equal(array, np.concatenate([tall(0)[ours], tall(1)[ours]]))

    world.run(program)


def test_rows_of_a_root_may_be_in_its_array_and_overlap_it(world: pccl.LocalWorld) -> None:
    """In the place of the rank nothing is copied; elsewhere, as if the input had been copied."""

    def program(comm: pccl.Communicator) -> None:
        for root, place in itertools.product(range(2), (slice(3), slice(3, 6), slice(1, 4))):
            whole = tall(root) if comm.rank == root else np.zeros((6, 4), np.float32)
            pnp.scatter(comm, whole, whole[place], root)
            assert np.array_equal(whole[place], tall(root)[rows_of(comm.rank, [3, 3])])
            pnp.gather(comm, whole[place], whole, root)
            assert comm.rank != root or np.array_equal(whole, tall(root))

    world.run(program)


def test_a_root_collects_numbers_and_deals_out_lists(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> tuple[Any, list[int]]:
        out: Any = None if comm.rank == 0 else np.zeros(1, np.int64)
        return pnp.gather(comm, comm.rank + 0.5), pnp.scatter(comm, [7, 8], out).tolist()

    (made, first), (none, second) = world.run(program)
    assert none is None and made.tolist() == [0.5, 1.5]
    assert (first, second) == ([7], [8])


def test_rows_that_cannot_be_exchanged_are_refused(world: pccl.LocalWorld) -> None:
    comm, five, six = world.comms[0], np.zeros((5, 2)), np.zeros((6, 2))
    with pytest.raises(ValueError, match="root of a scatter needs x"):
        pnp.scatter(comm, None, six)
    with pytest.raises(ValueError, match="out is needed except on the root"):
        pnp.scatter(comm, six, root=1)
    with pytest.raises(ValueError, match=r"counts\[0\], of this rank, is 4; out has 6 rows"):
        pnp.scatter(comm, None, six, 1, [4, 6])
    with pytest.raises(ValueError, match=r"out has no rows: its shape is \(\)"):
        pnp.scatter(comm, None, np.zeros(()), 1)
    with pytest.raises(ValueError, match=r"counts\[0\], of this rank, is 4; x has 6 rows"):
        pnp.gather(comm, six, counts=[4, 6])
    with pytest.raises(ValueError, match=r"out has shape \(6, 2\), what all members have has"):
        pnp.gather(comm, six, six)
    with pytest.raises(ValueError, match=r"out has shape \(5, 2\), x has shape \(6, 2\)"):
        pnp.all_to_all(comm, six, five)
    with pytest.raises(ValueError, match="send_counts"):
        pnp.all_to_all(comm, six, send_counts=[2, 2], recv_counts=[3, 3])
    six.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pnp.scatter(comm, None, six, 1)


def test_rows_that_cannot_be_shared_are_refused(world: pccl.LocalWorld) -> None:
    comm, five, six = world.comms[0], np.zeros((5, 2)), np.zeros((6, 2))
    for scatter in (pnp.reduce_scatter_, pnp.all_gather_):
        with pytest.raises(ValueError, match="5 rows, which 2 ranks cannot share: pass counts"):
            scatter(comm, five)
        with pytest.raises(ValueError, match="no rows to share"):
            scatter(comm, np.zeros(()))
        with pytest.raises(ValueError, match="counts are 5 rows together, but x has 6"):
            scatter(comm, six, counts=[2, 3])
        with pytest.raises(ValueError, match="has 3 entries, but must have one for each of 2"):
            scatter(comm, six, counts=[2, 2, 2])
        with pytest.raises(ValueError, match="each of counts must be between 0 and"):
            scatter(comm, six, counts=[7, -1])
        with pytest.raises(TypeError):
            scatter(comm, six, counts=[3.0, 3.0])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"counts\[0\], of this rank, is 4; x has 6 rows"):
        pnp.all_gather(comm, six, counts=[4, 6])
    with pytest.raises(ValueError, match=r"out has shape \(6, 2\), this rank's part of x has"):
        pnp.reduce_scatter(comm, six, six)
    with pytest.raises(ValueError, match=r"out has shape \(6, 2\), what all members have has"):
        pnp.all_gather(comm, six, six)


def test_a_barrier_is_a_barrier(world: pccl.LocalWorld) -> None:
    assert [outcome.tag for outcome in world.run(lambda comm: pnp.barrier(comm, tag=7))] == [7, 7]
    works = world.run(lambda comm: pnp.barrier(comm, tag=8, async_op=True).wait())
    assert [outcome.tag for outcome in works] == [8, 8]


def test_an_error_leaves_strided_arrays_as_they_were() -> None:
    with pccl.LocalWorld(2, deadline=30) as world:
        arrays = [np.full((3, 4 + 2 * rank), 5.0).T for rank in range(2)]
        names = ("all_reduce_", "broadcast_", "reduce_", "reduce_scatter_", "all_gather_")
        for call in (getattr(pnp, name) for name in names):

            def program(comm: pccl.Communicator, call: Any = call) -> None:
                with pytest.raises(pccl.Mismatch):
                    call(comm, arrays[comm.rank])

            world.run(program)
        assert all((array == 5.0).all() for array in arrays)


@pytest.fixture(scope="module")
def alone() -> Iterator[pccl.Communicator]:
    with pccl.LocalWorld(1, deadline=30) as world:
        yield world.comms[0]


@pytest.mark.parametrize("dtype", [bool, "M8[s]", "S3", object, ml_dtypes.float8_e5m2])
def test_an_unsupported_dtype_is_a_type_error(alone: pccl.Communicator, dtype: Any) -> None:
    array = np.zeros(3, dtype)
    names = ["all_reduce", "reduce", "reduce_scatter"]
    # Arrays that are only moved may be of bytes that no kernel knows.
    if array.itemsize > 1:
        names += ["broadcast", "all_gather"]
    for name in names:
        for call in (getattr(pnp, name), getattr(pnp, name + "_")):
            with pytest.raises(TypeError, match="is not (supported|added up)"):
                call(alone, array)


def test_in_place_needs_an_array(alone: pccl.Communicator) -> None:
    for name in ("all_reduce_", "broadcast_", "reduce_", "reduce_scatter_", "all_gather_"):
        with pytest.raises(TypeError, match=r"numpy.ndarray, not list"):
            getattr(pnp, name)(alone, [1.0])


def test_out_must_be_an_array(alone: pccl.Communicator) -> None:
    with pytest.raises(TypeError, match=r"numpy.ndarray, not list"):
        pnp.all_reduce(alone, np.ones(1), [0.0])


def test_a_root_in_the_place_of_out_is_refused_on_every_rank(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        for call in (pnp.reduce, pnp.gather):
            with pytest.raises(TypeError, match="root=1"):
                call(comm, np.ones(2), 1)

    world.run(program)


def test_a_doubt_that_is_resolved_returns_the_array_that_the_call_would_have_returned(
    world: pccl.LocalWorld,
) -> None:
    """The root of a small broadcast votes at once: it is in doubt until the other has called."""

    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 1:
            comm.barrier(tag=1)
            return pnp.broadcast(comm, values(1).T, root=0)
        with pytest.raises(pccl.InDoubt) as caught:
            pnp.broadcast(comm, values(0).T, root=0, deadline=0.2)
        comm.barrier(tag=1)
        assert caught.value.work is not None
        return caught.value.work.resolve(20)

    for result in world.run(program):
        assert result is not None and np.array_equal(result, values(0).T)


def test_arrays_of_any_layout_are_shared(world: pccl.LocalWorld) -> None:
    """Goal: packing on both ways, nothing written on an error. Method: rank 0 has most to say."""

    def arrays(rank: int) -> dict[str, Any]:
        return {
            "plain": np.full((3, 4), rank, np.float32),
            "strided": np.full((6, 8), rank, np.int16)[::2, ::-2],
            "foreign": np.full(5, rank, ">f8"),
            "own": np.full((4, 4), rank, np.int8)[:, ::2],
        }

    made = [arrays(rank) for rank in range(len(world.comms))]
    states = [
        pnp.shared_state(
            comm,
            made[comm.rank],
            revision=int(comm.rank == 0),
            may_differ=["own"],
            name="layouts",
            rules="successive",
        )
        for comm in world.comms
    ]

    def receive(comm: pccl.Communicator) -> None:
        with pytest.raises(pccl.StateUnavailable):
            states[comm.rank].sync("receive_only")

    world.run(receive)
    assert [int(part["strided"][0, 0]) for part in made] == list(range(len(made)))
    outcomes = world.run(lambda comm: states[comm.rank].sync())
    for rank, part in enumerate(made):
        for key, value in part.items():
            assert (value == (rank if key == "own" else 0)).all(), (rank, key)
    assert {state.revision for state in states} == {outcomes[0].revision} == {2}
    made[1]["strided"][:] = 9
    world.run(lambda comm: states[comm.rank].sync(revision=8 if comm.rank == 1 else 2))
    assert all((part["strided"] == 0).all() for part in made)  # by the rule 2 follows, not 8
    for state in states:
        state.close()
    comm = world.comms[0]
    with pytest.raises(TypeError, match="'x'.*ndarray"):
        pnp.shared_state(comm, {"x": [1.0]})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="'x'.*complex64"):
        pnp.shared_state(comm, {"x": np.zeros(2, np.complex64)})
    frozen = np.zeros((4, 4))[:, ::2]
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="'x'.*read-only"):
        pnp.shared_state(comm, {"x": frozen})


def test_what_is_no_array_of_numbers_is_refused_with_what_to_do() -> None:
    """Goal: the message has the cure, and no advice that was followed already."""
    masked = np.ma.MaskedArray([1.0, 2.0], mask=[True, False])
    sums = r"is not added up, .*'bxor' \(exclusive or\)$"
    with pccl.LocalWorld(1) as world:
        comm: Any = world.comms[0]
        refused: list[tuple[str, Any]] = [
            (f"^dtype bool {sums}", lambda: pnp.all_reduce(comm, np.ones(2, bool))),
            (
                r"types of ml_dtypes of 8 bits or less$",
                lambda: pnp.all_reduce(comm, np.ones(2, "c8")),
            ),
            ("object is not supported.*pccl_numpy.tree", lambda: pnp.all_reduce(comm, {"a": 1})),
            (
                r"^leaf \['a'\]: dtype str96.*types of ml_dtypes of 8 bits or less$",
                lambda: pnp.tree.reduce(comm, {"a": "str"}),
            ),
            ("dict is not an array: .*; pccl_numpy.tree", lambda: comm.all_reduce({"a": 1})),
            ("float is not an array: .*numpy.array", lambda: comm.shared_state({"lr": 0.5})),
            (
                "^the name of a tensor must be a str, not int",
                lambda: comm.shared_state({1: np.ones(2)}),
            ),
            ("has a mask", lambda: comm.all_reduce(masked)),
            ("has a mask", lambda: pnp.all_reduce(comm, masked)),
            ("has a mask", lambda: pnp.all_reduce_(comm, masked)),
            ("has a mask", lambda: pnp.shared_state(comm, {"a": masked})),
        ]
        for words, call in refused:
            with pytest.raises(TypeError, match=words):
                call()
