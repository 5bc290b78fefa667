"""Programs: compiled once for every communicator, again where their shapes change, in place."""

from __future__ import annotations

import functools
import gc
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pccl_jax as pj
import pccl_numpy as pnp
import pytest
from jax import lax

import pccl_py as pccl
from pccl_py.local_world import LOOPBACK


def test_one_program_serves_all_communicators_and_worlds() -> None:
    """Goal: a communicator is an operand. Method: count what two worlds of two sizes compile."""

    @pj.jit
    def mean(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, pj.broadcast(comm, x), op="avg")

    for size in (3, 2):
        with pccl.LocalWorld(size, deadline=20) as world:
            made = world.run(lambda comm: mean(comm, jnp.float32(comm.rank + 1)).item())
        assert made == [1.0] * size
    assert mean.compiled == 1


def test_a_shape_of_the_world_is_traced_again_and_no_other(world: pccl.LocalWorld) -> None:
    """A peer leaves, an admit closes the gap, and two newcomers enter.

    The gather is compiled for 3, 2 and 4 ranks, and the mean once.
    """

    @pj.jit
    def gathered(comm: pj.Comm, x: Any) -> Any:
        return pj.all_gather(comm, x)

    @pj.jit
    def mean(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x, op="avg")

    stage, end = threading.Barrier(3, timeout=60), time.monotonic() + 60

    def check(comm: pccl.Communicator, size: int, programs: int) -> None:
        x = jnp.float32(comm.rank)
        assert gathered(comm, x).tolist() == [*range(size)]
        assert mean(comm, x).item() == (size - 1) / 2
        assert gathered.compiled <= programs and mean.compiled == 1

    def grow(comm: pccl.Communicator) -> None:
        while comm.admit().world_size < 4:
            comm.barrier()
            assert time.monotonic() < end, "a newcomer has failed"
        check(comm, 4, 3)
        comm.barrier()  # nobody leaves before all have called

    def newcomer(_: int) -> None:
        with pccl.connect(world.coordinator.token, bind=LOOPBACK, deadline=20) as comm:
            grow(comm)

    def program(comm: pccl.Communicator) -> None:
        check(comm, 3, 1)
        if comm.rank == 0:
            comm.close()
            stage.wait()
            with ThreadPoolExecutor(2) as newcomers:
                list(newcomers.map(newcomer, range(2)))
            return
        while not comm.admit().changed:
            comm.barrier()
        check(comm, 2, 2)
        stage.wait()
        grow(comm)

    world.run(program)
    assert (gathered.compiled, mean.compiled) == (3, 1)


def test_a_shape_of_the_world_depends_on_no_communicator_of_an_earlier_call() -> None:
    gathered = pj.jit(lambda comm, x: pj.all_gather(comm, x * comm.world_size))
    for _ in range(2):
        with pccl.LocalWorld(1, deadline=20) as world:
            assert gathered(world.comms[0], jnp.float32(1)).tolist() == [1.0]
    assert gathered.compiled == 1


def test_a_bare_jit_is_told_that_the_world_has_changed(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> str:
        # One for each thread: the first call of a function of jax.jit keeps other threads out.
        gathered = jax.jit(lambda comm, x: pj.all_gather(comm, x))
        x = jnp.float32(comm.rank)
        assert gathered(comm, x).tolist() == [0.0, 1.0, 2.0]
        if comm.rank == 0:
            comm.close()
            return ""
        while not comm.admit().changed:
            comm.barrier()
        with pytest.raises(pccl.Mismatch) as raised, pj.errors():
            gathered(comm, x)
        assert pj.all_reduce(comm, x).item() == 3.0
        return str(raised.value)

    for said in world.run(program)[1:]:
        assert "all_gather: the program was traced for 3, now 2 ranks" in said


def test_a_communicator_that_is_closed_over_is_a_constant(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> Any:
        both = pj.jit(lambda x: (pj.all_gather(comm, x), pj.all_reduce(comm, x)))
        assert both(jnp.float32(1))[0].tolist() == [1.0] * 3
        if comm.rank == 0:
            comm.close()
            return None
        while not comm.admit().changed:
            comm.barrier()
        return both(jnp.float32(1))[0].tolist()

    assert world.run(program)[1:] == [[1.0, 1.0]] * 2


def read_inside(kind: str) -> Any:
    """A function of pj.jit whose world size is read in a function of which JAX keeps the trace."""

    def mean(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x) / comm.world_size

    def body(carry: Any, _: Any) -> Any:
        return (carry[0], mean(*carry)), None

    match kind:
        case "jit" | "checkpoint":
            inner: Any = (jax.jit if kind == "jit" else jax.checkpoint)(mean)
            return pj.jit(lambda comm, x: inner(comm, x))
        case "scan":
            return pj.jit(lambda comm, x: lax.scan(body, (comm, x), None, length=1)[0][1])
        case "pj.jit":
            own = pj.jit(mean)
            return pj.jit(lambda comm, x: own(comm, x))
    shared = jax.jit(mean)
    first, second = (pj.jit(lambda comm, x: shared(comm, x)) for _ in range(2))
    return lambda comm, x: second(comm, first(comm, x))


@pytest.mark.parametrize("kind", ["jit", "checkpoint", "scan", "pj.jit", "two"])
def test_functions_inside_of_a_program_follow_the_world(world: pccl.LocalWorld, kind: str) -> None:
    """Goal: a trace that JAX keeps is not of a world that is past. Method: a mean after a loss."""
    step = read_inside(kind)

    def program(comm: pccl.Communicator) -> Any:
        assert step(comm, jnp.float32(1)).item() == 1.0
        if comm.rank == 0:
            comm.close()
            return None
        while not comm.admit().changed:
            comm.barrier()
        return step(comm, jnp.float32(1)).item()

    assert world.run(program)[1:] == [1.0, 1.0]


READS: dict[str, Callable[[pccl.Group], Any]] = {
    "world_size": lambda comm: comm.world_size,
    "rank": lambda comm: comm.rank,
    "members": lambda comm: len(comm.members),
}


@pytest.mark.parametrize("name", READS)
def test_what_a_program_reads_of_a_closed_over_communicator_is_read_again(
    world: pccl.LocalWorld, name: str
) -> None:
    """Goal: no program has numbers of a past epoch. Method: rank 0 leaves, and an admit follows."""

    def program(comm: pccl.Communicator) -> Any:
        step = pj.jit(lambda x: x * READS[name](comm))
        twice = [step(jnp.float32(1)).item() for _ in range(2)]
        assert twice == [READS[name](comm)] * 2 and step.compiled == 1
        if comm.rank == 0:
            comm.close()
            return None
        while not comm.admit().changed:
            comm.barrier()
        assert step(jnp.float32(1)).item() == READS[name](comm)
        return step.compiled

    assert world.run(program)[1:] == [2, 2]


def test_a_function_of_pj_jit_is_used_like_one_of_jax_jit() -> None:
    """Goal: methods, and what jax.jit has beside the call. Method: a gather, after a change too."""

    class Model:
        scale = 2

        @functools.partial(pj.jit, static_argnums=0)
        def gathered(self, comm: pj.Comm, x: Any) -> Any:
            return self.scale * pj.all_gather(comm, x)

    step = Model.gathered
    assert isinstance(step, pj.Jitted)
    model, x = Model(), jnp.ones(3)
    for size in (1, 2):
        with pccl.LocalWorld(size, deadline=20) as world:
            (comm, *_) = world.comms
            assert step.eval_shape(model, comm, x).shape == (3 * size,)
            assert step.trace(model, comm, x).out_info.shape == (3 * size,)
            assert "pccl_collective" in step.lower(model, comm, x).as_text()
            made = world.run(lambda comm: model.gathered(comm, x).tolist())
            assert made == [[2.0] * 3 * size] * size
    assert step.compiled == 2
    step.clear_cache()
    with pccl.LocalWorld(1, deadline=20) as world:
        assert step(model, world.comms[0], jnp.ones(1)).tolist() == [2.0]
    assert step.compiled == 3


def test_a_donated_tree_is_reduced_where_it_lies(world: pccl.LocalWorld) -> None:
    step = pj.jit(lambda comm, x: pj.all_reduce(comm, x), donate_argnums=1)

    def addresses(tree: Any) -> list[int]:
        return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]

    def program(comm: pccl.Communicator) -> None:
        x = {"w": jnp.arange(1000.0), "b": [jnp.ones((30, 30), jnp.int32)]}
        before = addresses(x)
        made = step(comm, x)
        assert addresses(made) == before
        np.testing.assert_array_equal(made["w"], 3 * np.arange(1000.0))
        assert (np.asarray(made["b"][0]) == 3).all()

    world.run(program)


def test_an_operand_that_lives_on_is_not_copied(world: pccl.LocalWorld) -> None:
    """Goal: results go out of place, but into what is donated and into what a loop carries.

    Method: count the copies of the compiled programs, and run them on three peers.
    """
    count = 6151  # no other array has this shape

    def looped(comm: pj.Comm, x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, carry: pj.all_reduce(comm, carry), x)

    def copies(function: Any, **options: Any) -> int:
        x = jnp.ones(count, jnp.float32)
        made = jax.jit(function, **options).lower(world.comms[0], x).compile()
        return len(re.findall(rf"= f32\[{count}\]\S* copy\(", made.as_text() or ""))

    def plain(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x)

    def lives_on(comm: pj.Comm, x: Any) -> Any:
        y = x * 2
        return pj.all_reduce(comm, y) + y

    def twice(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, {"a": x, "b": x}), pj.broadcast(comm, x), pj.reduce(comm, x)

    assert [copies(each) for each in (plain, lives_on, twice, jax.jit(plain))] == [0] * 4
    assert [copies(each, donate_argnums=1) for each in (plain, looped)] == [0, 0]
    assert copies(looped) == 1  # the first carry, and none in the loop
    programs = [pj.jit(each) for each in (plain, lives_on, twice, looped)]

    def program(comm: pccl.Communicator) -> None:
        x = jnp.full(count, comm.rank + 1.0, jnp.float32)
        total, more, (tree, root_x, reduced), loop = (each(comm, x) for each in programs)
        assert (total == 6.0).all() and (more == 12.0 + 2 * x).all() and (loop == 18.0).all()
        assert (tree["a"] == 6.0).all() and (tree["b"] == 6.0).all() and (root_x == 1.0).all()
        assert (reduced == (6.0 if comm.rank == 0 else 0.0)).all()
        assert (x == comm.rank + 1.0).all()

    world.run(program)


def test_an_outcome_steers_a_program_and_is_decoded(world: pccl.LocalWorld) -> None:
    @pj.jit
    def step(comm: pj.Comm, x: Any) -> Any:
        total, outcome = pj.all_reduce(comm, {"x": x}, return_outcome=True)
        alone = lax.cond(outcome.contributors < 3, lambda: 1, lambda: 0)
        return total["x"], alone, outcome

    def program(comm: pccl.Communicator) -> None:
        x = jnp.arange(5.0)
        for call in (step, _eager):
            total, alone, outcome = call(comm, x)
            assert total.tolist() == [0.0, 3.0, 6.0, 9.0, 12.0] and alone == 0
            decoded = pj.decode(outcome)
            assert decoded.ranks == (0, 1, 2) and decoded.epoch == comm.epoch
            assert decoded.contributors == comm.members and decoded.attempts == 1
            (part,) = decoded.ranges
            assert (part.begin, part.end) == (0, 5) == (int(outcome.begin[0]), int(outcome.end[0]))
            assert outcome.bits[0, 0] == 0b111 and decoded.digest != "0" * 32
            numbers = np.zeros(5, np.float32)
            assert comm.all_reduce(numbers).sequence == decoded.sequence + 1

    def _eager(comm: pj.Comm, x: Any) -> Any:
        total, outcome = pj.all_reduce(comm, {"x": x}, return_outcome=True)
        return total["x"], int(outcome.contributors < 3), outcome

    world.run(program)


def test_an_outcome_of_many_ranges_has_all_contributors() -> None:
    """Goal: no number of ranges makes an outcome fail. Method: a gather of 18, eager and compiled,
    whose ranks have a range each; all but the first 15 are one.
    """

    def gathered(comm: pj.Comm, x: Any) -> Any:
        return pj.all_gather(comm, x, return_outcome=True)[1]

    def program(comm: pccl.Communicator) -> None:
        exact = comm.all_gather(np.ones(2), np.zeros(36)).ranges
        for call in (gathered, pj.jit(gathered)):
            arrays = call(comm, jnp.ones(2))
            assert int(arrays.range_count) == int(arrays.contributors) == 18
            outcome = pj.decode(arrays)
            assert outcome.contributors == comm.members
            assert outcome.ranges[:15] == exact[:15]
            (last,) = outcome.ranges[15:]
            assert (last.begin, last.end, last.contributors) == (30, 36, comm.members[15:])

    with pccl.LocalWorld(18, deadline=60) as world:
        world.run(program)


def test_complex_numbers_are_refused_with_a_way_to_move_them(world: pccl.LocalWorld) -> None:
    @pj.jit
    def added(comm: pj.Comm, x: Any) -> Any:
        return lax.complex(*pj.all_reduce(comm, jnp.stack([x.real, x.imag])))

    def program(comm: pccl.Communicator) -> Any:
        x = jnp.full(2, comm.rank + 1j, jnp.complex64)
        for call in (pj.all_reduce, pj.all_gather, pj.broadcast):
            with pytest.raises(TypeError, match=r"complex64 is not supported: pass the real"):
                call(comm, x)
        return added(comm, x).tolist()

    assert world.run(program) == [[3 + 3j] * 2] * 3


def test_a_communicator_that_is_gone_is_refused() -> None:
    """Goal: a handle is checked, never a bare pointer. Method: run with one of a freed Group."""
    reduced = jax.jit(lambda comm, x: pj.all_reduce(comm, x))
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        leaves, treedef = jax.tree.flatten(comm)
        assert reduced(comm, jnp.float32(2)).item() == 2.0
        traced = jax.tree.unflatten(treedef, leaves)
        comm.close()
        with pytest.raises(pccl.InvalidUsage, match="closed"), pj.errors():
            reduced(traced, jnp.float32(2))
    world.comms.clear()
    del comm
    gc.collect()  # the error above has kept it
    with pytest.raises(pccl.InvalidUsage, match="closed and gone"), pj.errors():
        reduced(traced, jnp.float32(2))


def test_programs_without_numbers_of_64_bits() -> None:
    with jax.enable_x64(False), pccl.LocalWorld(2, deadline=20) as world:
        step = pj.jit(lambda comm, x: pj.all_reduce(comm, x, return_outcome=True))

        def program(comm: pccl.Communicator) -> None:
            with jax.enable_x64(False):
                total, outcome = step(comm, jnp.float32(1))
                assert total.item() == 2.0 and outcome.epoch.dtype == np.uint32
                assert pj.decode(outcome).ranks == (0, 1)

        world.run(program)


def test_an_admit_inside_of_a_program_is_refused(world: pccl.LocalWorld) -> None:
    with pytest.raises(pccl.InvalidUsage, match="outside, between steps"):
        pj.jit(lambda comm, x: (comm.admit(), x)[1])(world.comms[0], jnp.float32(1))


def test_trees_of_all_kinds_go_between_eager_jitted_and_numpy(world: pccl.LocalWorld) -> None:
    """Goal: names and kinds of leaves have one form everywhere. Method: a frontend on each peer."""
    moved = pj.jit(lambda comm, x, root: pj.broadcast(comm, x, root), static_argnums=2)

    def program(comm: pccl.Communicator) -> None:
        number = comm.rank + 1
        x = {
            "flags": np.array([True, comm.rank == 2]),
            "rest": [np.float32(number), np.array([number], ml_dtypes.float8_e5m2)],
            "wide": np.array([number, 0], ml_dtypes.bfloat16),
        }
        root = comm.members[2]
        runs: list[Any] = [
            lambda: pnp.tree.broadcast(comm, x, root),
            lambda: pj.broadcast(comm, jax.tree.map(jnp.asarray, x), root),
            lambda: moved(comm, jax.tree.map(jnp.asarray, x), root),
        ]
        for first in range(3):
            made = jax.tree.map(np.asarray, runs[(comm.rank + first) % 3]())
            assert made["flags"].tolist() == [True, True] and made["flags"].dtype == np.bool_
            assert made["rest"][0] == 3.0 and float(made["rest"][1][0]) == 3.0
            assert made["wide"].astype(np.float32).tolist() == [3.0, 0.0]

    world.run(program)
