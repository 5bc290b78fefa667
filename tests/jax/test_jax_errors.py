"""Errors: exceptions of pccl_py out of programs, a process that stays usable, losses, the end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest
from jax import lax

import pccl_py as pccl

SECONDS_MAX = 60


def scanned(length: int) -> Any:
    """A mean in each step, with its contributors."""

    @pj.jit
    def run(comm: pj.Comm, x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            made, outcome = pj.all_reduce(comm, carry, op="avg", return_outcome=True)
            return made, (outcome.contributors, outcome.bits[0, 0])

        return lax.scan(body, x, None, length=length)

    return run


def test_a_mismatch_inside_of_a_scan_reaches_all_and_the_next_call_succeeds(
    world: pccl.LocalWorld,
) -> None:
    step = scanned(3)

    def program(comm: pccl.Communicator) -> float:
        wide = {"a": jnp.ones(2), "b": jnp.ones(3 + (comm.rank == 1))}
        with pytest.raises(pccl.Mismatch, match=r"leaf \['b'\]") as raised:
            step(comm, wide)
        assert (raised.value.operation, raised.value.group) == ("all_reduce", "default")
        made, _ = step(comm, {"a": jnp.ones(2), "b": jnp.ones(3)})
        return float(made["b"].sum())

    assert world.run(program) == [3.0] * 3


def test_an_error_inside_of_a_scan_says_which_call_it_was(world: pccl.LocalWorld) -> None:
    """Method: one peer is eager, and calls something else in the place of call 8, twice.

    The second time operations are begun and finished apart: the number is that of the beginning.
    """

    @pj.jit
    def blocking(comm: pj.Comm, x: Any) -> Any:
        return lax.scan(lambda y, _: (pj.all_reduce(comm, y), None), x, None, length=20)[0]

    @pj.jit
    def apart(comm: pj.Comm, x: Any) -> Any:
        def body(y: Any, _: Any) -> Any:
            handles = [pj.all_reduce_start(comm, y, tag=tag) for tag in (1, 2)]
            return sum(pj.all_reduce_done(handle) for handle in handles), None

        return lax.scan(body, x, None, length=20)[0]

    def program(comm: pccl.Communicator) -> None:
        x = jnp.ones(3)
        for step, tags in ((blocking, [0]), (apart, [1, 2])):
            if comm.rank == 2:
                for call in range(7):
                    pj.all_reduce(comm, x, tag=tags[call % len(tags)])
                with pytest.raises(pccl.Mismatch):
                    pj.all_reduce(comm, jnp.ones(4), tag=tags[7 % len(tags)])
            else:
                with pytest.raises(pccl.Mismatch, match="It was call 8 of the program's run on"):
                    step(comm, x)
            comm.barrier()

    world.run(program)


def test_the_same_exceptions_under_a_bare_jit(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> float:
        reduced = jax.jit(lambda comm, x: pj.all_reduce(comm, x))
        wrong = jnp.ones(3 + (comm.rank == 2))
        with pytest.raises(jax.errors.JaxRuntimeError, match="pccl error"):
            jax.block_until_ready(reduced(comm, wrong))
        with pytest.raises(pccl.Mismatch, match="called different things"), pj.errors():
            reduced(comm, wrong)
        with pytest.raises(ZeroDivisionError), pj.errors():
            raise ZeroDivisionError
        return float(reduced(comm, jnp.ones(3)).sum())

    assert world.run(program) == [9.0] * 3


@pytest.mark.parametrize("after", ["bare", "pj.jit", "eager", "errors", "admit"])
def test_calls_are_made_after_a_program_that_failed_on_a_thread_of_xla(
    world: pccl.LocalWorld, after: str
) -> None:
    """Goal: no failure is raised in the place of a later call, for which other peers wait.

    Method: a program with products before its call, which does not run inline, fails. Its error is
    caught, or nobody reads its result. The barriers show that the next call was made by all.
    """

    def program(comm: pccl.Communicator) -> None:
        bare = jax.jit(lambda comm, x: pj.all_reduce(comm, x @ x @ x)[0, 0])
        ours = pj.jit(lambda comm, x: pj.all_reduce(comm, x))
        x, wrong = jnp.ones((300, 300)), jnp.ones((300 + comm.rank,) * 2)
        for is_caught in (True, False):
            made = bare(comm, wrong)
            if is_caught:
                with pytest.raises(jax.errors.JaxRuntimeError, match="pccl error"):
                    made.block_until_ready()
            for _ in range(2):
                match after:
                    case "bare":
                        assert bare(comm, x).item() == 3 * 300**2
                    case "pj.jit":
                        assert ours(comm, jnp.ones(3)).tolist() == [3.0] * 3
                    case "eager":
                        assert pj.all_reduce(comm, jnp.ones(3)).tolist() == [3.0] * 3
                    case "errors":
                        with pj.errors():
                            total = bare(comm, x)
                        assert total.item() == 3 * 300**2
                    case "admit":
                        assert not comm.admit().changed
            comm.barrier()

    world.run(program)


def test_a_failure_that_a_later_call_has_met_is_raised_at_the_end_of_errors(
    world: pccl.LocalWorld,
) -> None:
    """Method: nobody reads the result of the program that fails; calls come behind it."""

    def program(comm: pccl.Communicator) -> list[float]:
        bare = jax.jit(lambda comm, x: pj.all_reduce(comm, x @ x @ x)[0, 0])
        ours = pj.jit(lambda comm, x: pj.all_reduce(comm, x))
        totals: list[float] = []

        def calls() -> None:
            with pj.errors():
                bare(comm, jnp.ones((300 + comm.rank,) * 2))
                for each in (pj.all_reduce, ours):
                    totals.append(each(comm, jnp.float32(1)).item())

        with pytest.raises(pccl.Mismatch, match="called different things"):
            calls()
        return totals

    assert world.run(program) == [[3.0, 3.0]] * 3


def test_a_nan_that_jax_looks_for_is_an_error_and_no_second_run(world: pccl.LocalWorld) -> None:
    """Goal: jax_debug_nans repeats no collective. Method: one peer alone gets a NaN."""
    step = pj.jit(lambda comm, x, low: jnp.log(low + pj.all_reduce(comm, x)))

    def program(comm: pccl.Communicator) -> float:
        with jax.debug_nans(True):
            if comm.rank == 1:
                with pytest.raises(FloatingPointError, match=r"\(nan\) encountered in a result of"):
                    step(comm, jnp.ones(2), jnp.float32(-9))
            else:
                step(comm, jnp.ones(2), jnp.float32(0))
        total: float = pj.all_reduce(comm, jnp.ones(2))[0].item()
        return total

    assert world.run(program) == [3.0] * 3


def test_a_call_on_results_of_a_program_that_failed_says_that_it_was_not_made(
    world: pccl.LocalWorld,
) -> None:
    def program(comm: pccl.Communicator) -> None:
        bare = jax.jit(lambda comm, x: pj.all_reduce(comm, x @ x @ x)[0, :1])
        ours = pj.jit(lambda comm, x: pj.all_reduce(comm, x))
        lost = bare(comm, jnp.ones((300 + comm.rank,) * 2))
        with pytest.raises(pccl.Mismatch, match="an earlier program failed; this one.*not made"):
            ours(comm, lost)
        with pytest.raises(pccl.Mismatch, match="failed; this all_reduce, which.*was not made"):
            pj.all_reduce(comm, lost)
        assert ours(comm, jnp.ones(1)).item() == 3.0

    world.run(program)


def test_a_work_is_refused(world: pccl.LocalWorld) -> None:
    with pytest.raises(TypeError, match="no option 'async_op' here"):
        pj.all_reduce(world.comms[0], jnp.ones(5), async_op=True)  # type: ignore[call-overload]


def test_a_peer_that_leaves_in_the_middle_of_a_jitted_scan(world: pccl.LocalWorld) -> None:
    """Survivors end with equal bytes; the outcomes tell step by step who contributed."""
    step, length = scanned(20), 20
    begun = threading.Event()

    def program(comm: pccl.Communicator) -> Any:
        x = jnp.full(50_000, float(comm.rank))
        if comm.rank == 2:
            for _ in range(7):
                pj.all_reduce(comm, x, op="avg")
            begun.set()
            comm.close()
            return None
        made, (contributors, bits) = step(comm, x)
        assert begun.is_set()
        return np.asarray(made).tobytes(), contributors.tolist(), bits.tolist()

    first, second, left = world.run(program)
    assert left is None and first == second
    _, contributors, bits = first
    assert len(contributors) == length
    assert contributors[:7] == [3] * 7 and contributors[8:] == [2] * 12
    assert bits[0] == 0b111 and bits[-1] == 0b011


def test_under_complete_recovery_a_loss_ends_the_scan_and_each_call_until_an_admit(
    world: pccl.LocalWorld,
) -> None:
    """Method: a peer leaves after seven calls of a scan of twenty; programs are for all worlds."""

    @pj.jit
    def step(comm: pj.Comm, x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            return pj.all_reduce(comm, carry, op="avg", recovery="complete"), None

        return lax.scan(body, x, None, length=20)[0]

    def program(comm: pccl.Communicator) -> float:
        x = jnp.full(3, float(comm.rank))
        if comm.rank == 0:
            for _ in range(7):
                pj.all_reduce(comm, x, op="avg", recovery="complete")
            comm.close()
            return 2.5
        with pytest.raises(pccl.Aborted, match="It was call 8 of the program's run on"):
            step(comm, x)
        with pytest.raises(pccl.Aborted):
            step(comm, x)
        while not comm.admit().changed:
            comm.barrier()
        made: float = step(comm, jnp.full(3, comm.rank + 2.0))[0].item()
        return made

    assert world.run(program) == [2.5] * 3
    assert step.compiled == 1


def ends(program: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


INTERRUPTED = """
    import os, signal, threading
    import jax, jax.numpy as jnp, pccl_jax as pj, pccl_py as pccl
    reduced = {
        "eager": lambda comm, x: pj.all_reduce(comm, x),
        "inline": pj.jit(lambda comm, x: pj.all_reduce(comm, x)),
        "beside": pj.jit(lambda comm, x: pj.all_reduce(comm, x @ x @ x) + 1),
    }
    def interrupt():
        while comm.info().operations_in_flight == 0:
            other.info()
        os.kill(os.getpid(), signal.SIGINT)
    for how in reduced:
        world = pccl.LocalWorld(2, deadline=15)
        comm, other = world.comms
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            reduced[how](comm, jnp.ones((300, 300)))
        except KeyboardInterrupt:
            print(how, "interrupted")
        try:
            pj.all_reduce(comm, jnp.ones(1))
        except pccl.Expelled:
            print(how, "expelled")
        interrupting.join()
        world.close()
"""


def test_an_interrupt_withdraws_a_program_that_waits() -> None:
    """Whether the handler blocks the main thread, or one of XLA while the main thread waits.

    Each way has a world of its own, whose deadline ends it where the interrupt does not.
    """
    done = ends(INTERRUPTED)
    ways = ("eager", "inline", "beside")
    wanted = [f"{how} {what}" for how in ways for what in ("interrupted", "expelled")]
    assert done.stdout.splitlines() == wanted, done.stderr


LEFT = """
    import sys, threading
    import jax, jax.numpy as jnp, pccl_jax as pj, pccl_py as pccl
    world = pccl.LocalWorld(3, deadline=50)
    comm, other, _ = world.comms  # the third never calls
    x = jnp.ones((300, 300))
    def blocked():
        try:
            pj.jit(lambda comm, x: pj.all_reduce(comm, x))(comm, x)
        except pccl.PcclError as error:
            sys.stdout.write(type(error).__name__ + "\\n")
    threading.Thread(target=blocked, daemon=True).start()
    begun = jax.jit(lambda comm, x: pj.all_reduce(comm, x @ x @ x) + 1)(other, x)
    while not all(each.info().operations_in_flight for each in (comm, other)):
        pass
    print("leaving")
"""


def test_a_process_ends_while_programs_are_blocked() -> None:
    """Goal: nothing hangs at exit. Method: a thread in a program, and one that was begun here."""
    done = ends(LEFT)
    assert done.returncode == 0 and done.stdout.split()[0] == "leaving", done.stderr
    assert "Traceback" not in done.stderr
