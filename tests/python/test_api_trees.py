"""pccl_numpy.tree: named tuples, None, strided leaves, names of leaves, and what is refused.

tests/frontends shows that each function does for every leaf what the function of its name in
pccl_numpy does for one array. Lists of arrays on the wire: test_api_arrays.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl
from pccl_py.kit.frontend import flatten
from pccl_py.words import DIFFER_IN_FORM


class Layer(NamedTuple):
    weights: np.ndarray
    bias: Any


def model(rank: int) -> dict[str, Any]:
    """Dicts, tuples, a list, None, other dtypes and strides."""
    strided = np.arange(12, dtype="f8").reshape(2, 6).T[::2] + rank
    return {
        "z": Layer(np.full((3, 2), rank + 1, "f4"), None),
        "a": [np.arange(3, dtype="i4") + rank, (strided,)],
        "empty": np.empty((3, 0), "u1"),
    }


def leaves(tree: Any) -> list[np.ndarray]:
    return [tree["a"][0], tree["a"][1][0], tree["empty"], tree["z"].weights]


def check_structure(tree: Any) -> None:
    assert list(tree) == ["z", "a", "empty"]
    assert isinstance(tree["z"], Layer) and tree["z"].bias is None
    assert isinstance(tree["a"], list) and isinstance(tree["a"][1], tuple)


def equal(got: Any, wanted: list[np.ndarray]) -> bool:
    check_structure(got)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
        for a, b in zip(leaves(got), wanted, strict=True)
    )


def joined(models: list[list[np.ndarray]], join: Any) -> list[np.ndarray]:
    return [join(arrays) for arrays in zip(*models, strict=True)]


def test_structures_survive_with_named_tuples_none_and_strided_leaves() -> None:
    """New trees, in place and into `out`; the root of a broadcast in place is only read."""
    models = [leaves(model(rank)) for rank in range(3)]
    total, whole = joined(models, sum), joined(models, np.concatenate)

    def program(comm: pccl.Communicator) -> None:
        rank, tree = comm.rank, pnp.tree
        assert equal(tree.all_reduce(comm, model(rank)), total)
        mine = model(rank)
        outcome = tree.all_reduce_(comm, mine, tag=3)
        assert outcome.sequence == 0 and equal(mine, total)
        mine = model(rank)
        if rank == 2:
            for array in leaves(mine):
                array.flags.writeable = False
        tree.broadcast_(comm, mine, 2)
        assert equal(mine, models[2])
        gathered = tree.all_gather(comm, model(rank))
        assert equal(gathered, whole)
        into = model(7)
        assert tree.scatter(comm, gathered if rank == 0 else None, into, 0) is into
        assert equal(into, models[rank])

    with pccl.LocalWorld(3, deadline=60) as world:
        world.run(program)


def test_bytes_that_no_kernel_knows_are_moved_in_trees_and_never_added_up() -> None:
    def program(comm: pccl.Communicator) -> None:
        for kind in (np.dtype(bool), np.dtype(ml_dtypes.float8_e4m3fn)):
            first, second = ((np.arange(4) % 3 + rank).astype(kind) for rank in range(2))
            mine = (first, second)[comm.rank]
            for got, wanted in (
                (pnp.tree.all_gather(comm, {"a": mine})["a"], np.concatenate([first, second])),
                (pnp.tree.broadcast(comm, [mine], 1)[0], second),
            ):
                assert got.dtype == kind and got.tobytes() == wanted.tobytes()
            tail = "; bool has op .*" if kind == np.bool_ else ""
            for call in (pnp.all_reduce, pnp.reduce_scatter, pnp.tree.all_reduce):
                with pytest.raises(TypeError, match=f"added up, .*convert it first{tail}$"):
                    call(comm, mine)
            if comm.rank == 0:
                pnp.send(comm, mine, 1)
            else:
                assert pnp.recv_(comm, mine, 0) and mine.tobytes() == first.tobytes()

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)


def test_a_tree_that_cannot_be_is_refused_and_stays_as_it_was() -> None:
    with pccl.LocalWorld(1) as world:
        comm = world.comms[0]
        nothings: list[Any] = [{}, [], None, {"a": [None]}]
        for nothing in nothings:
            with pytest.raises(ValueError, match="no arrays"):
                pnp.tree.all_reduce(comm, nothing)
        frozen = np.ones(3)
        frozen.flags.writeable = False
        other = np.ones(3)
        with pytest.raises(ValueError, match="read-only"):
            pnp.tree.all_reduce_(comm, {"b": frozen, "a": other})
        with pytest.raises(TypeError, match="numpy.ndarray"):
            pnp.tree.all_reduce_(comm, [other, 3.5])
        with pytest.raises(TypeError, match="complex"):
            pnp.tree.all_reduce(comm, [other, np.ones(2, "c8")])
        for option in ("return_outcome", "out", "opp"):
            wrong: dict[str, Any] = {option: True}
            with pytest.raises(TypeError, match=f"no option '{option}'"):
                pnp.tree.all_reduce_(comm, [other], **wrong)
        tied = np.ones(6)
        for twice in ([tied, tied], [tied[:4], tied[2:]], [tied[::2], tied[::3]]):
            with pytest.raises(ValueError, match=r"leaf \[0\] and leaf \[1\] share memory"):
                pnp.tree.all_reduce_(comm, twice)
        pnp.tree.all_reduce_(comm, [tied[::2], tied[1::2]])
        assert list(tied) == [1] * 6
        table = np.ones((10, 2))  # of which the first column reaches further than the others
        nested = [table[:, 0], table[:3, 1], table[2:5, 1]]
        xs = [np.ones(len(each)) for each in nested]
        for refused in (
            lambda: pnp.tree.all_reduce_(comm, nested),
            lambda: pnp.tree.all_reduce(comm, xs, nested),
        ):
            with pytest.raises(ValueError, match=r"leaf \[1\] and leaf \[2\] share memory"):
                refused()
        with pytest.raises(TypeError, match="order"):
            pnp.tree.all_reduce(comm, {"a": other, 1: other})
        with pytest.raises(ValueError, match="out has 1"):
            pnp.tree.scatter(comm, [other, other], [np.ones(3)], 0)
        assert list(other) == [1, 1, 1]


def test_an_error_about_one_leaf_of_a_tree_names_it() -> None:
    """Goal: whatever is wrong with one array, here or between peers, is said with its path."""
    with pccl.LocalWorld(1) as world:
        comm, tree = world.comms[0], pnp.tree
        good, frozen = np.ones((3, 2)), np.ones(3)
        frozen.flags.writeable = False
        wrong: list[tuple[str, Any]] = [
            (
                "leaf ['b'][1]: dtype complex64",
                lambda: tree.all_reduce(comm, {"a": good, "b": [good, np.ones(2, "c8")]}),
            ),
            (
                "leaf ['a'].bias: the array is read-only",
                lambda: tree.all_reduce_(comm, {"a": Layer(good, frozen)}),
            ),
            (
                "leaf [1]: out has shape (3,), x has shape (3, 2)",
                lambda: tree.all_reduce(comm, [good, good], [np.ones((3, 2)), np.ones(3)]),
            ),
            (
                "leaf [0]: out is float32, x is float64",
                lambda: tree.all_gather(
                    comm, (good, good), (np.ones((3, 2), "f4"), np.ones((3, 2)))
                ),
            ),
            (
                "leaf ['x']: x has no rows",
                lambda: tree.reduce_scatter(comm, {"w": good, "x": np.ones(())}),
            ),
            (
                "leaf ['a'] and leaf ['b'] share memory",
                lambda: tree.all_reduce_(comm, {"b": good[1:], "a": good}),
            ),
        ]
        for words, call in wrong:
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            assert str(caught.value).startswith(words), caught.value
        # An array that is its own tree has no path.
        with pytest.raises(TypeError, match="^dtype complex64"):
            tree.all_reduce(comm, np.ones(2, "c8"))


@pytest.mark.parametrize("async_op", [False, True])
def test_a_mismatch_of_trees_names_the_leaf(async_op: bool) -> None:
    """Goal: dtype and count of the leaf at both peers, by rank and label. Method: one differs, with
    names that look like what is replaced; then two are in each other's place."""

    def call(comm: pccl.Communicator, tree: Any) -> Any:
        answer = pnp.tree.all_reduce(comm, tree, async_op=async_op)
        return answer.wait() if async_op else answer

    def program(comm: pccl.Communicator) -> None:
        odd, key = comm.rank == 1, "arrays[0]"
        mine = {
            "a": np.ones(4, "f4"),
            key: [np.ones(7 + odd, "f8" if odd else "f4"), np.ones(2, "f4")],
        }
        with pytest.raises(pccl.Mismatch) as caught:
            call(comm, mine)
        names = [
            f"rank {rank} (this peer)"
            if rank == comm.rank
            else f"rank {rank} ({comm.labels[rank]}, {comm.members[rank].short})"
            for rank in range(2)
        ]
        there = [f"7 f32 at {names[0]}", f"8 f64 at {names[1]}"]
        orders = [" and ".join(there), " and ".join(there[::-1])]
        said = str(caught.value)
        assert any(f"leaf ['arrays[0]'][0] has {order}. " in said for order in orders), said

        swapped = [np.ones(5, "f4"), np.ones(6, "f4")]
        with pytest.raises(pccl.Mismatch, match=r"leaf \[0\] and leaf \[1\] of one are in each"):
            pnp.tree.all_reduce(comm, swapped[::-1] if odd else swapped, tag=1)

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"weight": 2}, {"bias": 2}),
        ({"weight": 2}, 2),
        ({"a": 2, "b": 2}, {"a": 2, "c": 2}),
        ({"a": [2, 2], "b": [2]}, {"a": [2], "b": [2, 2]}),
        ({"a": 2, "b": 2}, [2, 2]),
        (Layer(np.array(2), 2), {"bias": 2, "weights": 2}),
    ],
)
def test_trees_whose_leaves_have_other_names_are_not_added_up(mine: Any, theirs: Any) -> None:
    """Goal: a renamed layer of equal shape is a Mismatch on all, with this peer's names."""

    def filled(tree: Any, value: float) -> Any:
        form = flatten(tree)
        return form.rebuild([np.full(size, value) for size in form.arrays])

    def program(comm: pccl.Communicator) -> None:
        tree = filled((mine, theirs)[comm.rank], 1.0 + comm.rank)
        with pytest.raises(pccl.Mismatch) as caught:
            pnp.tree.all_reduce_(comm, tree)
        said, form = str(caught.value), flatten(tree)
        own = ", ".join(form.names)
        words = DIFFER_IN_FORM
        assert words + (f"; this peer's are {own}. " if own else ". ") in said
        assert all((leaf == 1 + comm.rank).all() for leaf in form.arrays)

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)


def test_plain_lists_and_trees_that_are_lists_are_one() -> None:
    """Goal: names that say no more than the order are none. So it is with places in memory."""

    class Key:
        def __lt__(self, other: Key) -> bool:
            return id(self) < id(other)

    def program(comm: pccl.Communicator) -> None:
        arrays = [np.ones(2), np.ones(3)]
        if comm.rank == 0:
            comm.all_reduce(arrays)
        else:
            pnp.tree.all_reduce_(comm, tuple(arrays))
        pnp.tree.all_reduce_(comm, {Key(): arrays[0]})
        (pnp.tree.all_reduce_ if comm.rank == 0 else pnp.all_reduce_)(comm, arrays[1])
        assert [array.tolist() for array in arrays] == [[4, 4], [4, 4, 4]]

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)


def test_names_that_differ_are_told_with_the_first_of_many() -> None:
    def program(comm: pccl.Communicator) -> None:
        name = "ab"[comm.rank]
        with pytest.raises(pccl.Mismatch) as caught:
            pnp.tree.broadcast(comm, {f"{name}{number}": np.ones(1) for number in range(9)})
        told = ", ".join(f"['{name}{number}']" for number in range(8))
        assert f"elements; this peer's are {told}, .... All" in str(caught.value)

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)
