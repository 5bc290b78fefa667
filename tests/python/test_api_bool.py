"""Bool arrays, and others whose elements travel as bytes, are told from those of u8.

Goal: where members call with arrays that are alike on the wire and not to their callers, all get a
Mismatch that names the kinds, whatever offers the array. Their values: tests/frontends; what an
array is: test_buffers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

BOOL, BYTES = np.zeros(10, bool), np.zeros(10, np.uint8)


def core(comm: pccl.Communicator, array: Any) -> None:
    comm.broadcast(array.copy())


def as_memory(comm: pccl.Communicator, array: Any) -> None:
    memory = memoryview(bytearray(10))
    comm.broadcast(memory.cast("?") if array.dtype == bool else memory)


def gathered(comm: pccl.Communicator, array: Any) -> None:
    pnp.all_gather(comm, array)


def in_a_tree(comm: pccl.Communicator, array: Any) -> None:
    pnp.tree.broadcast(comm, {"mask": array, "weights": np.ones(3)})


def in_a_list(comm: pccl.Communicator, array: Any) -> None:
    comm.broadcast([np.ones(3), array.copy()])


def in_parts(comm: pccl.Communicator, array: Any) -> None:
    counts = [10, 5]
    comm.all_gather(array[: counts[comm.rank]], np.empty(15, array.dtype), counts)


def said_by_each(call: Callable[..., None], arrays: list[Any]) -> list[str]:
    def program(comm: pccl.Communicator) -> str:
        with pytest.raises(pccl.Mismatch) as caught:
            call(comm, arrays[comm.rank])
        call(comm, arrays[0])
        return str(caught.value)

    with pccl.LocalWorld(2, deadline=30) as world:
        return world.run(program)


@pytest.mark.parametrize("call", [core, as_memory, gathered])
def test_bool_against_u8_is_a_mismatch_that_names_both(call: Callable[..., None]) -> None:
    for said in said_by_each(call, [BOOL, BYTES]):
        assert "0 bool" in said and "0 u8" in said
        assert "structure" not in said


@pytest.mark.parametrize("call", [in_a_tree, in_a_list, in_parts])
def test_among_several_arrays_or_shards_each_peer_says_its_own(call: Callable[..., None]) -> None:
    for said, kind in zip(said_by_each(call, [BOOL, BYTES]), ["bool", "u8"], strict=True):
        assert "differ in name, in structure or in the kind of their elements (here " in said
        assert kind in said.split("(here ")[1].split(")")[0].split(", ")
        assert ("this peer's are ['mask'], ['weights']" in said) == (call is in_a_tree)


def test_kinds_of_eight_bit_floats_are_told_apart() -> None:
    kinds = ["float8_e4m3fn", "float8_e5m2"]
    arrays = [np.zeros(10, getattr(ml_dtypes, kind)) for kind in kinds]
    for said, kind in zip(said_by_each(core, arrays), kinds, strict=True):
        assert f"(here {kind})" in said


FLAGS = np.array([[1, 1, 0, 0, 1], [1, 0, 1, 0, 1], [1, 0, 0, 0, 0]], bool)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [("band", FLAGS.all(axis=0)), ("bor", FLAGS.any(axis=0)), ("bxor", FLAGS.sum(axis=0) % 2 == 1)],
)
def test_bool_is_combined_and_stays_bool(op: pccl.OpName, wanted: np.ndarray) -> None:
    """By the core, by the frontend, in a list beside integers, and in a tree."""

    def program(comm: pccl.Communicator) -> list[Any]:
        own, whole = FLAGS[comm.rank].copy(), np.full(3, 6, np.int64)
        comm.all_reduce(own, op=op)
        listed = [FLAGS[comm.rank].copy(), whole]
        comm.all_reduce(listed, op=op)
        made = pnp.all_reduce(comm, FLAGS[comm.rank], op=op)
        tree = pnp.tree.all_reduce(comm, {"mask": FLAGS[comm.rank]}, op=op)
        (many,) = pnp.all_reduce_many(comm, [FLAGS[comm.rank]], op=op)
        return [own, listed[0], made, tree["mask"], many]

    with pccl.LocalWorld(3, deadline=30) as world:
        for results in world.run(program):
            for made in results:
                assert made.dtype == bool
                assert np.array_equal(made, wanted)


def test_bool_is_not_added_up_and_eight_bit_floats_have_no_bits() -> None:
    floats = np.zeros(3, ml_dtypes.float8_e5m2)
    with pccl.LocalWorld(1) as world:
        comm = world.comms[0]
        for op in ("sum", "avg", "prod", "min", "max"):
            with pytest.raises(TypeError, match=r"bool arrays cannot be added up: use op 'band'"):
                comm.all_reduce(BOOL.copy(), op=op)
        for refused in (comm.all_reduce, lambda x, op: pnp.all_reduce(comm, x, op=op)):
            with pytest.raises(TypeError, match="float8_e5m2 arrays cannot be reduced"):
                refused(floats, op="band")


@pytest.mark.parametrize("frontend", [False, True])
@pytest.mark.parametrize(
    "kinds", [("bool", "u8"), ("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "bool")]
)
def test_kinds_of_elements_are_compared_in_a_shared_state(
    kinds: tuple[str, str], frontend: bool
) -> None:
    """Their names have the kind, so that what is told of them has it, too."""
    dtypes = {"u8": np.uint8, "bool": np.bool_}

    def program(comm: pccl.Communicator) -> str:
        kind = kinds[comm.rank]
        array = np.full(4, comm.rank, dtypes.get(kind) or getattr(ml_dtypes, kind))
        share: Any = pnp.shared_state if frontend else pccl.Communicator.shared_state
        with share(comm, {"mask": array}) as state, pytest.raises(pccl.Mismatch) as caught:
            state.sync(revision=comm.rank)
        assert (array == comm.rank).all()
        same = np.full(4, comm.rank, bool)
        with share(comm, {"mask": same}, name="same") as state:
            state.sync(revision=comm.rank)
        assert same.all()
        return str(caught.value)

    with pccl.LocalWorld(2, deadline=30) as world:
        for said in world.run(program):
            for rank, kind in enumerate(kinds):
                name = '"mask"' if kind == "u8" else f'"mask ({kind})"'
                assert f"{name} is only on rank {rank}" in said


def test_bool_against_u8_is_a_mismatch_where_bits_are_combined() -> None:
    def combine(comm: pccl.Communicator, array: Any) -> None:
        comm.all_reduce(array.copy(), op="bor")

    for said in said_by_each(combine, [BOOL, BYTES]):
        assert "10 bool" in said and "10 u8" in said
