"""Lives of programs: many calls, a file, another communicator, a fork of their process."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import psutil
import pytest
from jax import lax
from jax._src import monitoring
from jax.experimental.compilation_cache import compilation_cache
from pccl_jax import call

import pccl_py as pccl

CACHE: dict[str, Any] = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
CALLS, COUNT = 2000, 4096  # 16 KiB an array
# A leak of one array in eight calls would be more.
BYTES_MAX = CALLS * COUNT * 4 // 8


def test_memory_is_flat_over_two_thousand_calls() -> None:
    """Calls of all kinds: jitted, eager, begun and finished apart, with outcomes and errors."""

    @pj.jit
    def step(comm: pj.Comm, x: Any) -> Any:
        handle = pj.all_reduce_start(comm, x, tag=1)
        mean, outcome = pj.all_reduce(comm, x, op="avg", return_outcome=True)
        return mean, pj.all_reduce_done(handle), outcome

    refused = pj.jit(lambda comm, x: pj.broadcast(comm, x, root=9))
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        x, process, begin = jnp.ones(COUNT), psutil.Process(), 0
        for call in range(CALLS // 4 + 100):
            if call == 100:  # pools are filled, programs compiled
                gc.collect()
                begin = process.memory_info().rss
            mean, total, outcome = step(comm, x)
            assert pj.decode(outcome).ranks == (0,) and mean is not total
            pj.all_reduce(comm, x)
            with pytest.raises(pccl.InvalidArgument, match="rank from 0 to 0"):
                refused(comm, x)
        gc.collect()
        grown = process.memory_info().rss - begin
    assert grown < BYTES_MAX, f"{grown} bytes more after {CALLS} calls"


def test_an_exported_program_serves_other_communicators() -> None:
    """Goal: a program in a file needs nothing of the run in which it was made.

    Method: export for a world of two, and read it for a world of three.
    """
    pytest.importorskip("flatbuffers", reason="jax.export writes files by flatbuffers")

    def function(comm: pj.Comm, x: Any) -> Any:
        total = lax.scan(lambda y, _: (pj.all_reduce(comm, y), None), x, None, length=2)[0]
        return total, pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=1))

    with pccl.LocalWorld(2, deadline=20) as world:
        export = jax.export.export(jax.jit(function), disabled_checks=pj.EXPORT_CHECKS)
        written = export(world.comms[0], jnp.ones(3)).serialize()
    step = pj.jit(jax.export.deserialize(written).call)
    with pccl.LocalWorld(3, deadline=20) as world:

        def program(comm: pccl.Communicator) -> list[float]:
            twice, once = step(comm, jnp.ones(3))
            return [twice[0].item(), once[2].item()]

        assert world.run(program) == [[9.0, 3.0]] * 3
    assert step.compiled == 1


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[list[str]]:
    """JAX keeps compiled programs in a folder; the list gets the names of what it does there."""
    events: list[str] = []

    def note(event: str, **_: Any) -> None:
        events.append(event.rpartition("/")[2])

    before = {name: getattr(jax.config, name) for name in CACHE}
    compilation_cache.reset_cache()
    for name, value in {**CACHE, "jax_compilation_cache_dir": str(tmp_path)}.items():
        jax.config.update(name, value)
    monitoring.register_event_listener(note)
    yield events
    monitoring.unregister_event_listener(note)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_a_program_in_the_cache_of_jax_serves_other_communicators(cached: list[str]) -> None:
    """Method: compile for a world of two, forget, and take it for a world of three."""

    def function(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x * 5), pj.all_reduce_done(pj.all_reduce_start(comm, x, tag=1))

    x = np.ones(3, np.float32)  # of NumPy, as each operation of JAX is a program as well
    for ranks, event in ((2, "cache_misses"), (3, "cache_hits")):
        jax.clear_caches()
        cached.clear()
        step = pj.jit(function)

        def program(comm: pccl.Communicator, step: Any = step) -> list[float]:
            return [np.asarray(each)[0].item() for each in step(comm, x)]

        with pccl.LocalWorld(ranks, deadline=20) as world:
            made = world.run(program)
        assert made == [[5.0 * ranks, ranks]] * ranks
        found = [each for each in cached if each in ("cache_misses", "cache_hits")]
        assert found == [event] and step.compiled == 1


def test_a_program_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a file never makes another call. Method: words of the same number, of version 0."""
    monkeypatch.setattr(call, "_WORDS_VERSION", 0)
    step = pj.jit(lambda comm, x: pj.all_reduce(comm, x))
    with (
        pccl.LocalWorld(1, deadline=20) as world,
        pytest.raises(pccl.InvalidArgument, match="made by another version of pccl_jax: compile"),
    ):
        step(world.comms[0], jnp.ones(3))


READ = """
    import sys
    import jax, jax.numpy as jnp, pccl_jax as pj, pccl_py as pccl
    step = pj.jit(jax.export.deserialize(open(sys.argv[1], "rb").read()).call)
    world = pccl.LocalWorld(3, deadline=20)
    def program(comm):
        with comm.group(sys.argv[2], initial_world_size=3) as group:
            group.admit()
            return step(group, jnp.ones(3))[0].item()
    try:
        print(world.run(program))
    except ValueError as error:
        print(" ".join(str(error).split()))
    world.close()
"""


def test_a_program_of_a_named_group_is_read_in_another_process(tmp_path: Path) -> None:
    """The name of its group is in the file: a group of another name is refused."""
    pytest.importorskip("flatbuffers", reason="jax.export writes files by flatbuffers")
    with pccl.LocalWorld(2, deadline=20) as world:

        def program(comm: pccl.Communicator) -> bytes:
            with comm.group("model", initial_world_size=2) as group:
                group.admit()
                step = jax.jit(lambda comm, x: pj.all_reduce(comm, x))
                export = jax.export.export(step, disabled_checks=pj.EXPORT_CHECKS)
                return bytes(export(group, jnp.ones(3)).serialize())

        written = tmp_path / "step"
        written.write_bytes(world.run(program)[0])
    assert run_in_a_process(READ, str(written), "model") == ["[3.0, 3.0, 3.0]"]
    (refused,) = run_in_a_process(READ, str(written), "other")
    assert "group 'other' in the invocation" in refused
    assert "group 'model' when exported" in refused


def run_in_a_process(program: str, *arguments: str) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FORKED = """
    import os, sys, warnings
    import jax.numpy as jnp, pccl_jax as pj, pccl_py as pccl
    warnings.simplefilter("ignore")  # that of JAX, that a child must not use it much
    world = pccl.LocalWorld(2, deadline=20)
    step, x = pj.jit(lambda comm, x: pj.all_reduce(comm, x)), jnp.ones(3)
    both = lambda comm: (step(comm, x)[0].item(), pj.all_reduce(comm, x)[2].item())
    print(world.run(both), flush=True)
    child = os.fork()
    if child == 0:
        for call in (pj.all_reduce, step):
            try:
                call(world.comms[0], x)
            except pccl.InvalidUsage as error:
                print(error, flush=True)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), world.run(both))
    world.close()
"""


def test_a_forked_child_is_told_to_connect_and_its_parent_goes_on() -> None:
    said = run_in_a_process(FORKED)
    sums = "[(2.0, 2.0), (2.0, 2.0)]"
    refused = (
        "group 'default' was opened before this process was forked: connect in the child itself"
    )
    assert said == [sums, refused, refused, f"7 {sums}"]


FORKED_WHILE_A_PROGRAM_RUNS = """
    import os, sys, threading, warnings
    import jax, jax.numpy as jnp, pccl_jax as pj, pccl_py as pccl
    warnings.simplefilter("ignore")  # that of JAX, that a child must not use it much
    world = pccl.LocalWorld(2, deadline=40)
    # A product, so that it runs beside the thread that calls it.
    step, begun = jax.jit(lambda comm, x: pj.all_reduce(comm, (x @ x)[0, :3])), threading.Event()
    def answer():
        begun.wait()
        pj.all_reduce(world.comms[1], jnp.ones(3))
    other = threading.Thread(target=answer)
    other.start()
    running = step(world.comms[0], jnp.eye(600))
    child = os.fork()
    if child == 0:
        pj.errors().__enter__()  # waits for the programs of this thread
        print("nothing to wait for", flush=True)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    begun.set()
    other.join()
    print(running[0].item())
    world.close()
"""


def test_a_child_forked_while_a_program_runs_does_not_wait_for_it() -> None:
    """The threads that would finish the program are its parent's; so it could never end."""
    assert run_in_a_process(FORKED_WHILE_A_PROGRAM_RUNS) == ["nothing to wait for", "7", "2.0"]


def test_a_program_on_a_closed_communicator_leaves_others_alone() -> None:
    """Goal: nothing of a communicator stays in a program but its number."""
    step = pj.jit(lambda comm, x: pj.all_reduce(comm, x))
    with pccl.LocalWorld(1, deadline=20) as first, pccl.LocalWorld(1, deadline=20) as second:
        x = np.ones(2, np.float32)
        assert step(first.comms[0], x).tolist() == [1.0, 1.0]
        first.close()
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            step(first.comms[0], x)
        assert step(second.comms[0], x).tolist() == [1.0, 1.0]
    assert step.compiled == 1
