"""Bool arrays, and others whose elements travel as bytes, are told from those of u8.

Goal: where members call with arrays that are alike on the wire and not to their callers, all get a
Mismatch that names the kinds, whatever offers the array. Their values: test_api_trees.py; what an
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
