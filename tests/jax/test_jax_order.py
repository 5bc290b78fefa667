"""Order: collectives happen as the program has them, in whatever JAX makes of it.

Random programs run on three peers at once: one eagerly, one jitted, one in NumPy. If one of them
went another way, the members would call different things, which is a Mismatch, or wait for each
other until the deadline.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pccl_numpy as pnp
import pytest
from jax import lax
from pccl_jax import versions

import pccl_py as pccl

# A step takes and returns f32 (4,). Values stay small integers, which all sums hold exactly.
Step = tuple[Any, ...]
FLAT = ("sum", "max", "root", "unused", "pair")
KINDS = (*FLAT, "scan", "cond", "switch", "fori", "while", "nested", "remat")


def steps_of(seed: int, depth: int = 0) -> list[Step]:
    drawn = random.Random(seed)
    made: list[Step] = []
    for number in range(drawn.randrange(2, 5)):
        kind = drawn.choice(KINDS if depth == 0 else FLAT)
        inner = steps_of(seed * 31 + number, 1) if kind not in FLAT else []
        made.append((kind, drawn.randrange(3), inner))
    return made


def reduced(x: Any) -> Any:
    """Small again, the same in all arithmetics."""
    return x % 8


def in_jax(comm: pj.Comm, steps: list[Step], x: Any) -> Any:
    for kind, number, inner in steps:

        def go(x: Any, inner: Any = inner) -> Any:
            return in_jax(comm, inner, x)

        match kind:
            case "sum":
                x = reduced(pj.all_reduce(comm, x))
            case "max":
                x = pj.all_reduce(comm, x, op="max", tag=number)
            case "root":
                x = pj.broadcast(comm, x, root=number)
            case "unused":
                pj.all_reduce(comm, x[:number])
            case "pair":  # two that do not depend on each other, and cannot take each other's place
                first = pj.all_reduce(comm, x)
                second = pj.all_reduce(comm, x + 1)
                x = reduced(first + 2 * second)
            case "scan":
                x, _ = lax.scan(lambda x, _: (go(x), None), x, None, length=number + 1)
            case "cond":
                x = lax.cond(agreed(pj, comm, x) > 0, go, lambda x: pj.broadcast(comm, x), x)
            case "switch":
                branches = [go, lambda x: pj.broadcast(comm, x), lambda x: pj.all_reduce(comm, x)]
                x = lax.switch(agreed(pj, comm, x), branches, x)
            case "fori":
                x = lax.fori_loop(0, agreed(pj, comm, x), lambda _, x: go(x), x)
            case "while":

                def once(state: Any) -> Any:
                    return go(state[0]), state[1] - 1

                x, _ = lax.while_loop(lambda state: state[1] > 0, once, (x, number))
            case "nested":
                x = jax.jit(go)(x)
            case "remat":
                x = jax.checkpoint(go)(x)
    return x


def agreed(frontend: Any, comm: Any, x: Any) -> Any:
    """A number from 0 to 2, from data, the same on all ranks."""
    return frontend.all_reduce(comm, x)[0].astype(np.int32) % 3


def in_numpy(comm: pccl.Group, steps: list[Step], x: Any) -> Any:
    for kind, number, inner in steps:

        def go(comm: pccl.Group, x: Any, inner: Any = inner) -> Any:
            return in_numpy(comm, inner, x)

        match kind:
            case "sum":
                x = reduced(pnp.all_reduce(comm, x))
            case "max":
                x = pnp.all_reduce(comm, x, op="max", tag=number)
            case "root":
                x = pnp.broadcast(comm, x, root=number)
            case "unused":
                pnp.all_reduce(comm, x[:number])
            case "pair":
                first = pnp.all_reduce(comm, x)
                x = reduced(first + 2 * pnp.all_reduce(comm, x + 1))
            case "cond":
                is_inner = agreed(pnp, comm, x) > 0
                x = go(comm, x) if is_inner else pnp.broadcast(comm, x)
            case "switch":
                branch = agreed(pnp, comm, x)
                functions = (go, pnp.broadcast, pnp.all_reduce)
                x = functions[branch](comm, x)
            case _:
                repeats = {"scan": number + 1, "while": number}.get(kind, 1)
                for _ in range(agreed(pnp, comm, x) if kind == "fori" else repeats):
                    x = go(comm, x)
    return x


@pytest.mark.parametrize("block", range(6))
def test_random_programs_agree_eager_jitted_and_in_numpy(
    world: pccl.LocalWorld, block: int
) -> None:
    for seed in range(5 * block, 5 * block + 5):
        steps = steps_of(seed)

        def program(comm: pccl.Communicator, steps: list[Step] = steps) -> list[float]:
            x = np.arange(4, dtype=np.float32) + comm.rank
            run: Callable[[], Any] = lambda: in_numpy(comm, steps, x)  # noqa: E731
            if comm.rank == 1:
                run = lambda: in_jax(comm, steps, jnp.asarray(x))  # noqa: E731
            if comm.rank == 2:
                run = lambda: pj.jit(lambda comm, x: in_jax(comm, steps, x))(comm, x)  # noqa: E731
            made: list[float] = np.asarray(run()).tolist()
            return made

        made = world.run(program)
        # After a "max" alone they are equal; otherwise each rank has its own start, so all end with
        # a broadcast.
        agreed = world.run(lambda comm: comm.info().operations_in_flight)
        assert agreed == [0, 0, 0], f"seed {seed}: {steps}"
        if any(kind in ("sum", "max", "root", "pair") for kind, _, _ in steps):
            assert made[0] == made[1] == made[2], f"seed {seed}: {steps}"


def test_peers_in_other_branches_are_told_both_calls_and_the_next_one_works(
    world: pccl.LocalWorld,
) -> None:
    """Method: the predicate is from data, and one peer has other data."""

    @pj.jit
    def branched(comm: pj.Comm, x: Any) -> Any:
        return lax.cond(
            x[0] > 1, lambda x: pj.all_reduce(comm, x), lambda x: pj.broadcast(comm, x, root=1), x
        )

    def program(comm: pccl.Communicator) -> list[float]:
        x = jnp.full(3, float(comm.rank))
        with pytest.raises(pccl.Mismatch) as raised:
            branched(comm, x)
        said = str(raised.value)
        assert "called different things" in said and "rank 2" in said
        assert "all_reduce(sum, 3 f32)" in said and "broadcast(" in said
        made: list[float] = branched(comm, x + 2).tolist()
        return made

    assert world.run(program) == [[9.0] * 3] * 3


def test_a_loop_reads_results_and_outcomes_that_began_as_constants(world: pccl.LocalWorld) -> None:
    """Method: conditions on both, which would never be false, or never true, of the constants."""

    @pj.jit
    def doubled(comm: pj.Comm) -> Any:
        def body(state: Any) -> Any:
            total, other, _, rounds = state
            made, outcome = pj.all_reduce(comm, (total, other), return_outcome=True)
            return (*made, outcome.contributors, rounds + 1)

        return lax.while_loop(lambda state: state[0] < 20, body, (1.0, 0, 0, 0))

    @pj.jit
    def until_all(comm: pj.Comm) -> Any:
        def body(state: Any) -> Any:
            _, outcome = pj.all_reduce(comm, (1.0, 1), return_outcome=True)
            return outcome.contributors, state[1] + 1

        return lax.while_loop(lambda state: state[0] != 3, body, (jnp.int32(0), 0))

    def program(comm: pccl.Communicator) -> Any:
        return [each.item() for each in doubled(comm)], [each.item() for each in until_all(comm)]

    assert world.run(program) == [([27.0, 0, 3, 3], [3, 1])] * 3


def test_a_body_that_is_a_call_alone_is_not_taken_for_one_that_changes_nothing(
    world: pccl.LocalWorld,
) -> None:
    """Goal: the barrier behind a call of several results keeps XLA 0.10.2 from a false conclusion.

    Where the body of a loop ends with such a call itself, XLA takes an element whose place among
    the results is that of its operand for one that stays as it began, and makes the condition
    `true`. Method: the communicator is a constant, so that the token and it are the first operands
    and the second array is the third operand, and the third result. Without the barrier the loop
    would not end, so its text is read first.
    """

    def swapped(comm: pj.Comm) -> Any:
        return lax.while_loop(
            lambda state: state[1] < 20,
            lambda state: pj.all_reduce(comm, (state[1], state[0])),
            (1.0, 0.0),
        )

    def program(comm: pccl.Communicator) -> list[float]:
        run = jax.jit(lambda: swapped(comm)).lower().compile()
        assert "constant(true)" not in (run.as_text() or "")
        return [each.item() for each in run()]

    assert world.run(program) == [[0.0, 27.0]] * 3


def with_other(comm: pccl.Communicator) -> pccl.Group:
    other = comm.group("other", initial_world_size=2)
    other.admit()
    return other


def test_calls_of_several_groups_have_one_order() -> None:
    """Goal: no peer waits in one group for a peer that waits in the other.

    Method: XLA has the operand of the second call first, and would make it first. One peer is
    eager, and one jits the calls with the product on the other side.
    """

    def step(one: pj.Comm, two: pj.Comm, x: Any, y: Any) -> Any:
        return pj.all_reduce(one, x @ x), pj.all_reduce(two, y)

    def turned(one: pj.Comm, two: pj.Comm, x: Any, y: Any) -> Any:
        return pj.all_reduce(one, y), pj.all_reduce(two, x @ x)

    with pccl.LocalWorld(2, deadline=20) as world:

        def program(comm: pccl.Communicator) -> Any:
            other, x = with_other(comm), jnp.ones((1, 1))
            made = []
            for ours, theirs in ((step, pj.jit(step)), (pj.jit(step), pj.jit(turned))):
                made.append((ours if comm.rank == 0 else theirs)(comm, other, x, x))
            other.close()
            return [each.item() for pair in made for each in pair]

        assert world.run(program) == [[2.0] * 4] * 2


def test_groups_of_several_threads_do_not_wait_for_each_other() -> None:
    """Method: rank 0 is in both groups at once, and rank 1 calls in one after the other."""
    reduced = pj.jit(lambda comm, x: pj.all_reduce(comm, x))

    def sums(group: pccl.Group) -> float:
        total: float = reduced(group, jnp.float32(1)).item()
        return total

    with pccl.LocalWorld(2, deadline=20) as world:

        def program(comm: pccl.Communicator) -> list[float]:
            other = with_other(comm)
            if comm.rank == 1:
                made = [sums(other), sums(comm)]
            else:
                with ThreadPoolExecutor(2) as threads:
                    made = list(threads.map(sums, (comm, other)))
            other.close()
            return made

        assert world.run(program) == [[2.0, 2.0]] * 2


def test_eager_calls_come_behind_programs_that_still_run(world: pccl.LocalWorld) -> None:
    """Programs of a bare jax.jit are begun and not waited for; results tell the order."""

    def program(comm: pccl.Communicator) -> list[float]:
        doubled = jax.jit(lambda comm, x: pj.all_reduce(comm, x, op="max") + (x @ x).sum())
        x = jnp.full((64, 64), comm.rank, jnp.float32)
        made = []
        for _ in range(5):
            made.append(doubled(comm, x))
            made.append(pj.all_reduce(comm, jnp.float32(1)))
        return [each.ravel()[0].item() for each in made[1::2]]

    assert world.run(program) == [[3.0] * 5] * 3


def test_a_token_is_passed_on_and_not_put_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no `device_put` in each program. Method: count the tokens that JAX is asked for."""
    asked: list[str] = []
    token_of = versions._get_token_input

    def counted(tokens: Any, effect: Any, devices: Any) -> Any:
        asked.append(repr(effect))
        return token_of(tokens, effect, devices)

    monkeypatch.setattr(versions, "_get_token_input", counted)
    step = pj.jit(lambda comm, x: pj.all_reduce(comm, x))
    with pccl.LocalWorld(1, deadline=20) as world:

        def program(comm: pccl.Communicator) -> None:
            for _ in range(3):
                step(comm, jnp.ones(1))
            assert asked == ["PCCL"]  # the first of this thread

        world.run(program)
