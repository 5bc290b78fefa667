"""pccl_numpy: any layout in, new arrays or writes through any strides out, NumPy's answers."""

from __future__ import annotations

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
def test_a_new_array_has_the_shape_and_leaves_the_input(
    world: pccl.LocalWorld, layout: str
) -> None:
    inputs = [LAYOUTS[layout](values(rank)) for rank in range(2)]
    results = world.run(lambda comm: pnp.all_reduce(comm, inputs[comm.rank]))
    for rank, result in enumerate(results):
        assert result.dtype == np.float32
        assert result.flags.c_contiguous and result.flags.owndata
        assert np.array_equal(result, values(0) + values(1))
        assert np.array_equal(inputs[rank], values(rank))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place_writes_through_any_strides(world: pccl.LocalWorld, layout: str) -> None:
    arrays = [LAYOUTS[layout](values(rank)) for rank in range(2)]
    before = [array.dtype for array in arrays]
    outcomes = world.run(lambda comm: pnp.all_reduce_(comm, arrays[comm.rank], op="max"))
    for array, dtype in zip(arrays, before, strict=True):
        assert array.dtype == dtype
        assert np.array_equal(array, np.maximum(values(0), values(1)))
    assert outcomes[0].digest == outcomes[1].digest


def test_what_lies_between_the_strides_is_not_touched(world: pccl.LocalWorld) -> None:
    wholes = [np.full((4, 6), 9.0) for _ in range(2)]
    world.run(lambda comm: pnp.all_reduce_(comm, wholes[comm.rank][::2, 1::3]))
    for whole in wholes:
        assert (whole == 18.0).sum() == 4
        assert (whole == 9.0).sum() == 20


@pytest.mark.parametrize("layout", LAYOUTS)
def test_peers_may_have_different_layouts(world: pccl.LocalWorld, layout: str) -> None:
    arrays = [values(0), LAYOUTS[layout](values(1))]
    results = world.run(lambda comm: pnp.all_reduce(comm, arrays[comm.rank], op="prod"))
    assert np.array_equal(results[0], values(0) * values(1))
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_receives_the_result_in_its_own_layout(world: pccl.LocalWorld, layout: str) -> None:
    outs = [LAYOUTS[layout](np.zeros((3, 4), np.float32)) for _ in range(2)]
    results = world.run(lambda comm: pnp.all_reduce(comm, values(comm.rank), outs[comm.rank]))
    for out, result in zip(outs, results, strict=True):
        assert result is out
        assert np.array_equal(out, values(0) + values(1))


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


def test_an_empty_array_takes_part(world: pccl.LocalWorld) -> None:
    results = world.run(lambda comm: pnp.all_reduce(comm, np.empty((0, 3)), return_outcome=True))
    for array, outcome in results:
        assert array.shape == (0, 3)
        assert outcome.ranges == ()


def test_bfloat16_is_reduced(world: pccl.LocalWorld) -> None:
    given = [values(rank, ml_dtypes.bfloat16) for rank in range(2)]
    results = world.run(lambda comm: pnp.all_reduce(comm, given[comm.rank].T))
    assert results[0].dtype == ml_dtypes.bfloat16
    assert np.array_equal(results[0], (values(0) + values(1)).T.astype(ml_dtypes.bfloat16))
    world.run(lambda comm: pnp.all_reduce_(comm, given[comm.rank][:, ::2]))
    assert np.array_equal(given[1][:, ::2], (values(0) + values(1))[:, ::2].astype(given[1].dtype))


def test_the_outcome_comes_along_when_asked_for(world: pccl.LocalWorld) -> None:
    results = world.run(
        lambda comm: pnp.all_reduce(comm, values(comm.rank), tag=3, return_outcome=True)
    )
    assert results[0][1].digest == results[1][1].digest
    assert results[0][1].tag == 3
    assert results[0][1].contributors == world.comms[0].members


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_copies_the_root(world: pccl.LocalWorld, layout: str, root: int) -> None:
    inputs = [LAYOUTS[layout](values(rank)) for rank in range(2)]
    results = world.run(lambda comm: pnp.broadcast(comm, inputs[comm.rank], root))
    for rank in range(2):
        assert np.array_equal(results[rank], values(root))
        assert np.array_equal(inputs[rank], values(rank))
    name = world.comms[root].peer_id
    world.run(lambda comm: pnp.broadcast_(comm, inputs[comm.rank], name))
    for rank in range(2):
        assert np.array_equal(inputs[rank], values(root))


def test_the_root_of_a_broadcast_may_be_read_only(world: pccl.LocalWorld) -> None:
    arrays = [values(rank).T for rank in range(2)]
    arrays[1].flags.writeable = False
    world.run(lambda comm: pnp.broadcast_(comm, arrays[comm.rank], 1))
    assert np.array_equal(arrays[0], values(1).T)


def test_a_barrier_is_a_barrier(world: pccl.LocalWorld) -> None:
    assert [outcome.tag for outcome in world.run(lambda comm: pnp.barrier(comm, tag=7))] == [7, 7]


def test_an_error_leaves_strided_arrays_as_they_were() -> None:
    with pccl.LocalWorld(2, deadline=30) as world:
        arrays = [np.full((3, 4 + rank), 5.0).T for rank in range(2)]
        for call in (pnp.all_reduce_, pnp.broadcast_):

            def program(comm: pccl.Communicator, call: Any = call) -> None:
                with pytest.raises(pccl.Mismatch):
                    call(comm, arrays[comm.rank])

            world.run(program)
        assert all((array == 5.0).all() for array in arrays)


@pytest.fixture(scope="module")
def alone() -> Iterator[pccl.Communicator]:
    with pccl.LocalWorld(1, deadline=30) as world:
        yield world.comms[0]


@pytest.mark.parametrize("dtype", [bool, complex, "M8[s]", "S3", object, ml_dtypes.float8_e5m2])
def test_an_unsupported_dtype_is_a_type_error(alone: pccl.Communicator, dtype: Any) -> None:
    array = np.zeros(3, dtype)
    for call in (pnp.all_reduce, pnp.all_reduce_, pnp.broadcast, pnp.broadcast_):
        with pytest.raises(TypeError, match="not supported"):
            call(alone, array)


def test_in_place_needs_an_array(alone: pccl.Communicator) -> None:
    for call in (pnp.all_reduce_, pnp.broadcast_):
        with pytest.raises(TypeError, match=r"numpy.ndarray, not list"):
            call(alone, [1.0])  # type: ignore[arg-type]


def test_a_bad_output_is_refused(alone: pccl.Communicator) -> None:
    locked = np.ones(3)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pnp.all_reduce_(alone, locked)
    with pytest.raises(ValueError, match="read-only"):
        pnp.all_reduce(alone, np.ones(3), locked)
    with pytest.raises(ValueError, match=r"shape \(3,\), x has shape \(4,\)"):
        pnp.all_reduce(alone, np.ones(4), np.ones(3))
    with pytest.raises(ValueError, match="shape"):
        pnp.all_reduce(alone, np.ones((2, 2)), np.ones(4))
    with pytest.raises(TypeError, match="out is float32, x is float64"):
        pnp.all_reduce(alone, np.ones(4), np.ones(4, np.float32))
    with pytest.raises(TypeError, match=r"numpy.ndarray, not list"):
        pnp.all_reduce(alone, np.ones(1), [0.0])  # type: ignore[call-overload]


def test_a_doubt_names_the_array_that_its_resolution_fills(world: pccl.LocalWorld) -> None:
    """The root of a broadcast votes at once, and so is in doubt until the other has called."""

    def program(comm: pccl.Communicator) -> np.ndarray | None:
        if comm.rank == 1:
            comm.barrier(tag=1)
            return pnp.broadcast(comm, values(1), root=0)
        with pytest.raises(pccl.InDoubt) as caught:
            pnp.broadcast(comm, values(0).T, root=0, deadline=0.2)
        comm.barrier(tag=1)
        assert caught.value.work is not None
        caught.value.work.resolve(20)
        assert isinstance(caught.value.result, np.ndarray)
        return caught.value.result

    # Another shape, but the same number of elements, as that is all that peers compare.
    results = world.run(program)
    assert results[0] is not None and results[1] is not None
    assert np.array_equal(results[0], values(0).T)
    assert np.array_equal(results[1].ravel(), values(0).T.ravel())


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
            comm, made[comm.rank], revision=int(comm.rank == 0), may_differ=["own"], name="layouts"
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
