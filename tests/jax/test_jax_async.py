"""all_reduce_start and all_reduce_done: what is in flight, in which order, and what is left."""

from __future__ import annotations

import logging
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest
from jax import lax
from pccl_jax import library

import pccl_py as pccl


def test_start_does_not_wait_for_others(world: pccl.LocalWorld) -> None:
    """Method: rank 0 sends by its program what the others wait for before they begin."""

    @pj.jit
    def step(comm: pj.Comm, x: Any, ahead: Any) -> Any:
        handle = pj.all_reduce_start(comm, {"x": x}, tag=1)
        for other in (1, 2):
            pj.send(comm, ahead, other)
        return pj.all_reduce_done(handle)["x"]

    @pj.jit
    def late(comm: pj.Comm, x: Any) -> Any:
        first = pj.recv(comm, (), np.float32, 0)
        handle = pj.all_reduce_start(comm, {"x": x + first}, tag=1)
        return pj.all_reduce_done(handle)["x"]

    def program(comm: pccl.Communicator) -> list[float]:
        x = jnp.arange(3.0, dtype=jnp.float32)
        made = step(comm, x, jnp.float32(1)) if comm.rank == 0 else late(comm, x)
        numbers: list[float] = made.tolist()
        return numbers

    assert world.run(program) == [[2.0, 5.0, 8.0]] * 3


def test_four_in_flight_beside_products_and_blocking_calls(world: pccl.LocalWorld) -> None:
    @pj.jit
    def step(comm: pj.Comm, x: Any, m: Any) -> Any:
        handles = [pj.all_reduce_start(comm, (k + 1) * x, op="avg", tag=k + 1) for k in range(4)]
        m = m @ m
        blocking = pj.all_reduce(comm, x)
        made = [pj.all_reduce_done(handle, return_outcome=True) for handle in reversed(handles)]
        return m, blocking, [y for y, _ in made], [outcome for _, outcome in made]

    def program(comm: pccl.Communicator) -> None:
        x = jnp.full(20_000, float(comm.rank), jnp.float32)
        for _ in range(3):
            m, blocking, means, outcomes = step(comm, x, jnp.eye(40))
            np.testing.assert_array_equal(m, np.eye(40))
            np.testing.assert_array_equal(blocking, np.full(20_000, 3.0))
            for factor, mean, outcome in zip((4, 3, 2, 1), means, outcomes, strict=True):
                np.testing.assert_array_equal(mean, np.full(20_000, float(factor)))
                assert pj.decode(outcome).ranks == (0, 1, 2) and pj.decode(outcome).tag == factor

    world.run(program)
    assert step.compiled == 1


def test_a_scan_finishes_in_the_next_step_what_it_begins_in_one(world: pccl.LocalWorld) -> None:
    """The carry holds a handle, so a transfer lasts over the end of a step."""

    @pj.jit
    def run(comm: pj.Comm, rows: Any) -> Any:
        def body(handle: Any, row: Any) -> Any:
            total = pj.all_reduce_done(handle)
            return pj.all_reduce_start(comm, row, tag=1), total

        last, totals = lax.scan(body, pj.all_reduce_start(comm, rows[0], tag=1), rows[1:])
        return jnp.concatenate([totals, pj.all_reduce_done(last)[None]])

    def program(comm: pccl.Communicator) -> Any:
        rows = jnp.arange(24.0).reshape(12, 2) * (comm.rank + 1)
        np.testing.assert_array_equal(run(comm, rows), 6 * np.arange(24.0).reshape(12, 2))
        once = jax.jit(lambda comm, x: pj.all_reduce_done(pj.all_reduce_start(comm, x)))
        with pj.errors():
            return once(comm, rows[0, 1]).item()

    assert world.run(program) == [6.0] * 3


def test_memory_of_a_program_is_not_the_operations(world: pccl.LocalWorld) -> None:
    """Goal: nothing is written where XLA has put something else.

    Method: the operand is dead after the start, and later values take its memory, while rank 0
    waits to take part until the others have computed them.
    """

    @pj.jit
    def others(comm: pj.Comm, x: Any) -> Any:
        handle = pj.all_reduce_start(comm, x * 2, tag=1)
        filled = [jnp.sin(x + k).sum() for k in range(20)]
        pj.send(comm, sum(filled), 0)
        return filled, pj.all_reduce_done(handle)

    @pj.jit
    def first(comm: pj.Comm, x: Any) -> Any:
        handles = [pj.recv(comm, (), np.float32, other) for other in (1, 2)]
        return handles, pj.all_reduce_done(pj.all_reduce_start(comm, x * 2, tag=1))

    def program(comm: pccl.Communicator) -> None:
        x = jnp.arange(50_000, dtype=jnp.float32)
        filled, total = (first if comm.rank == 0 else others)(comm, x)
        np.testing.assert_array_equal(total, 6 * np.arange(50_000, dtype=np.float32))
        if comm.rank > 0:
            np.testing.assert_allclose(filled[3], np.sin(np.asarray(x) + 3).sum(), rtol=1e-2)

    world.run(program)


def test_a_handle_that_nobody_finishes_is_named(
    world: pccl.LocalWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The operation goes on for those who finish it, and its tag can be used again."""

    @pj.jit
    def forgets(comm: pj.Comm, x: Any) -> Any:
        pj.all_reduce_start(comm, x, tag=7)
        return x

    @pj.jit
    def finishes(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=7))

    def program(comm: pccl.Communicator) -> list[Any]:
        x = jnp.ones(100)
        made = (forgets if comm.rank == 0 else finishes)(comm, x)
        barrier.wait(10)  # all programs are over, and it has been told
        return [made[0].item(), finishes(comm, x)[0].item()]

    barrier = threading.Barrier(3)
    with caplog.at_level(logging.WARNING, "pccl"):
        assert world.run(program) == [[1.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    (said,) = [record.getMessage() for record in caplog.records if "tag 7" in record.getMessage()]
    assert said.startswith("all_reduce_start with tag 7, ") and "no all_reduce_done" in said


def test_a_program_of_another_thread_that_still_runs_is_not_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Method: a bare jax.jit of rank 0 is between its two halves, while rank 1 ends a program."""
    has_begun, has_ended = threading.Event(), threading.Event()

    def between(ticket: Any) -> Any:
        has_begun.set()
        assert has_ended.wait(10)
        return ticket

    def step(comm: pj.Comm, x: Any) -> Any:
        handle = pj.all_reduce_start(comm, x, tag=3)
        ticket = jax.tree.leaves(handle)[-1]
        shape = jax.ShapeDtypeStruct(ticket.shape, ticket.dtype)
        return pj.all_reduce_done(handle, after=jax.pure_callback(between, shape, ticket))

    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 1:
            assert has_begun.wait(10)
            pj.jit(lambda x: x + 1)(jnp.ones(2))
            has_ended.set()
        return jax.jit(lambda comm, x: step(comm, x))(comm, jnp.ones(2)).tolist()

    with pccl.LocalWorld(2, deadline=20) as world, caplog.at_level(logging.WARNING, "pccl"):
        assert world.run(program) == [[2.0, 2.0]] * 2
    assert not [record for record in caplog.records if "tag 3" in record.getMessage()]


def test_a_program_that_fails_between_the_two_leaves_a_process_that_works(
    world: pccl.LocalWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: a callback of the user raises between them, and the operation is never finished."""

    def refuse(_: Any) -> Any:
        raise ValueError("refused by the user")

    @pj.jit
    def fails(comm: pj.Comm, x: Any) -> Any:
        handle = pj.all_reduce_start(comm, x, tag=3)
        x = pj.all_reduce(comm, x)  # behind the start
        y = jax.pure_callback(refuse, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        y = pj.all_reduce(comm, y)  # before the end
        return pj.all_reduce_done(handle) + y

    again = pj.jit(lambda comm, x: pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=3)))

    def program(comm: pccl.Communicator) -> float:
        with pytest.raises(jax.errors.JaxRuntimeError, match="refused by the user"):
            fails(comm, jnp.ones(9))
        barrier.wait(10)
        total: float = again(comm, jnp.ones(9))[0].item()
        return total

    barrier = threading.Barrier(3)
    with caplog.at_level(logging.WARNING, "pccl"):
        assert world.run(program) == [3.0] * 3
    told = [record for record in caplog.records if "no all_reduce_done" in record.getMessage()]
    assert len(told) == 3


def test_a_second_operation_of_a_tag_is_refused_by_name(world: pccl.LocalWorld) -> None:
    @pj.jit
    def twice(comm: pj.Comm, x: Any) -> Any:
        handles = [pj.all_reduce_start(comm, x, tag=5) for _ in range(2)]
        return [pj.all_reduce_done(handle) for handle in handles]

    @pj.jit
    def finished_twice(comm: pj.Comm, x: Any) -> Any:
        handle = pj.all_reduce_start(comm, x, tag=6)
        return pj.all_reduce_done(handle), pj.all_reduce_done(handle)

    def program(comm: pccl.Communicator) -> float:
        with pytest.raises(
            pccl.InvalidUsage, match="tag 5 has an operation that no all_reduce_don"
        ):
            twice(comm, jnp.ones(3))
        with pytest.raises(pccl.InvalidUsage, match="finished before"):
            finished_twice(comm, jnp.ones(3))
        total: float = pj.all_reduce(comm, jnp.float32(1)).item()
        return total

    assert world.run(program) == [3.0] * 3


def test_the_same_two_calls_outside_of_programs(world: pccl.LocalWorld) -> None:
    """A peer may begin eagerly what others begin in programs or by pccl_py."""
    both = pj.jit(lambda comm, x: pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=2)))

    def program(comm: pccl.Communicator) -> list[float]:
        x = jnp.arange(4, dtype=jnp.float32)
        total: Any
        if comm.rank == 0:
            handle = pj.all_reduce_start(comm, x, tag=2)
            total, outcome = pj.all_reduce_done(handle, return_outcome=True)
            assert pj.decode(outcome).ranks == (0, 1, 2)
            with pytest.raises(pccl.InvalidUsage, match="begun outside of this program"):
                jax.jit(pj.all_reduce_done)(handle)
        elif comm.rank == 1:
            total = both(comm, x)
        else:
            total = np.arange(4, dtype=np.float32)
            comm.all_reduce(total, tag=2, async_op=True).wait()
        numbers: list[float] = total.tolist()
        return numbers

    assert world.run(program) == [[0.0, 3.0, 6.0, 9.0]] * 3


def test_what_is_named_is_computed_before_the_wait(world: pccl.LocalWorld) -> None:
    """Goal: `after` puts work before a wait. Method: others begin once rank 0 has done the work."""
    worked = threading.Event()

    def work(x: Any) -> Any:
        worked.set()
        return x

    @pj.jit
    def first(comm: pj.Comm, x: Any) -> Any:
        handle = pj.all_reduce_start(comm, x, tag=1)
        made = jax.pure_callback(work, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return pj.all_reduce_done(handle, after={"made": made}), made

    second = pj.jit(lambda comm, x: pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=1)))

    def program(comm: pccl.Communicator) -> float:
        x = jnp.ones(5)
        if comm.rank == 0:
            total, made = first(comm, x)
            assert made.tolist() == [1.0] * 5
        else:
            assert worked.wait(10)
            total = second(comm, x)
        number: float = total[0].item()
        return number

    assert world.run(program) == [3.0] * 3


def test_memory_is_used_again_and_given_back(world: pccl.LocalWorld) -> None:
    """Goal: room for operand and result of what is in flight at once, until the group is closed."""

    @pj.jit
    def step(comm: pj.Comm, x: Any, y: Any) -> Any:
        handles = [pj.all_reduce_start(comm, each, tag=tag) for tag, each in enumerate((x, y))]
        return [pj.all_reduce_done(handle) for handle in handles]

    def program(comm: pccl.Communicator) -> None:
        for count in (1 << 16, 1 << 16, 1 << 18, 1 << 18):
            x = jnp.ones(count)
            x_sum, y_sum = step(comm, x, 2 * x)
            assert (x_sum[-1].item(), y_sum[0].item()) == (3.0, 6.0)
            comm.barrier()

    world.run(program)
    bytes_max = 3 * 2 * 2 * 8 * (1 << 18)  # peers, operations, operand and result
    kept, used = library.memory()
    assert used == 0 and 0 < kept <= bytes_max
    world.close()
    with pj.errors():
        pass
    assert library.memory() == (0, 0)


def test_a_transfer_that_fails_raises_where_it_is_finished(world: pccl.LocalWorld) -> None:
    step = pj.jit(lambda comm, x: pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=4)) @ x)

    def program(comm: pccl.Communicator) -> float:
        with pytest.raises(pccl.Mismatch, match="called different things") as raised:
            step(comm, jnp.ones(3 + (comm.rank == 1)))
        assert (raised.value.operation, raised.value.group) == ("all_reduce", "default")
        total: float = step(comm, jnp.ones(3)).item()
        return total

    assert world.run(program) == [9.0] * 3


def test_errors_name_the_mistake() -> None:
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        with pytest.raises(TypeError, match="takes what all_reduce_start returns"):
            pj.all_reduce_done(jnp.ones(1))  # type: ignore[call-overload]
        with pytest.raises(pccl.InvalidUsage, match="has no derivative and no batches"):
            jax.grad(lambda x: pj.all_reduce_done(pj.all_reduce_start(comm, x)))(1.0)
        with pytest.raises(pccl.InvalidUsage, match="has no derivative and no batches"):
            jax.vmap(lambda x: pj.all_reduce_done(pj.all_reduce_start(comm, x)))(jnp.ones(3))
        with pytest.raises(TypeError, match="complex64 is not supported"):
            pj.all_reduce_start(comm, jnp.ones(1, jnp.complex64))
        begun = jax.jit(lambda comm, x: pj.all_reduce_start(comm, x))
        with pytest.raises(pccl.InvalidUsage, match="must be in one program"):
            pj.all_reduce_done(begun(comm, jnp.ones(1)))


def test_a_handle_is_finished_once_outside_of_programs_too() -> None:
    """Two results of one memory would be one, if the first is donated."""
    with pccl.LocalWorld(1, deadline=20) as world:
        handle = pj.all_reduce_start(world.comms[0], jnp.ones(2), tag=1)
        assert pj.all_reduce_done(handle).tolist() == [1.0, 1.0]
        with pytest.raises(pccl.InvalidUsage, match="has been finished before"):
            pj.all_reduce_done(handle)


def test_contributors_are_counted_where_their_ranks_are_not_known(world: pccl.LocalWorld) -> None:
    """Goal: an outcome of an epoch that is left has its number. Method: an admit in between.

    Rank 0 leaves when it has its result, and the others pass a safe point in a callback before they
    ask for theirs.
    """

    def program(comm: pccl.Communicator) -> Any:
        def next_epoch(x: Any) -> Any:
            while not comm.admit().changed:
                comm.barrier()
            return x

        def step(comm: pj.Comm, x: Any) -> Any:
            handle = pj.all_reduce_start(comm, x, tag=1)
            x = jax.pure_callback(next_epoch, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return pj.all_reduce_done(handle, after=x, return_outcome=True)

        x = jnp.ones(2)
        if comm.rank == 0:
            pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=1))
            comm.close()
            return None
        total, outcome = pj.jit(step)(comm, x)
        with pytest.raises(pccl.InvalidUsage, match="are not known any more"):
            pj.decode(outcome)
        return total.tolist(), int(outcome.contributors)

    assert world.run(program)[1:] == [([3.0, 3.0], 3)] * 2
