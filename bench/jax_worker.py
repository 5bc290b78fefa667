"""One process of the benchmark of JAX: it holds all contenders, and measures them in turn.

It owns the measuring: the programs, the order of the calls, the clock. The rows are made by
jax_steps.py, which starts this with a case in JSON and reads a line of JSON:

    {"samples": {contender: [[begin, end], ...]}}

"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import pccl_py as pccl
from bench import common, jax_identity
from bench.jax_plan import Case

Calls = dict[str, Callable[[], object]]
Samples = dict[str, list[tuple[float, float]]]
WIDTH = 512  # of the products beside a transfer


def measure(comm: pccl.Communicator, calls: Calls, case: Case) -> Samples:
    """Taken in turn, so that all see the same moods of the machine."""
    samples: Samples = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):  # the first compiles
            call()
    order = list(calls)
    for _ in range(case.samples):
        for name in order:
            comm.barrier()
            begin = time.monotonic()
            for _ in range(case.iterations):
                calls[name]()
            samples[name].append((begin, time.monotonic()))
        order = [*order[1:], order[0]]
    return samples


def dispatch(comm: pccl.Communicator, case: Case) -> Samples:
    """Programs of so many foreign calls, one after the other, in a world of one."""
    jax_identity.register()
    x, memory = jnp.zeros(case.size // 4), np.zeros(case.size // 4, np.float32)

    def repeated(call: Callable[[Any], Any]) -> Any:
        def program(x: Any) -> Any:
            for _ in range(case.calls):
                x = call(x)
            return x

        return jax.jit(program)

    programs = {
        "identity": repeated(lambda x: jax_identity.identity(x, is_ordered=False)),
        "ordered": repeated(lambda x: jax_identity.identity(x, is_ordered=True)),
        "pccl_jax": repeated(lambda x: pj.all_reduce(comm, x)),
    }

    def plain() -> None:
        for _ in range(case.calls):
            comm.all_reduce(memory)

    calls: Calls = {name: _runs(program, x) for name, program in programs.items()}
    return measure(comm, {**calls, "pccl_py": plain}, case)


def _runs(program: Any, x: Any) -> Callable[[], object]:
    return lambda: program(x).block_until_ready()


def all_reduce(comm: pccl.Communicator, case: Case) -> Samples:
    """The sum of two processes inside of jit, over pccl, over gloo, and without JAX."""
    own = np.full(case.size // 4, comm.rank + 1.0, np.float32)
    mesh = jax.make_mesh((2,), ("hosts",))
    here = NamedSharding(mesh, PartitionSpec("hosts"))
    both = jax.make_array_from_process_local_data(here, own[None], (2, own.size))
    x, memory = jnp.asarray(own), np.zeros_like(own)

    @pj.jit
    def ours(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x)

    @functools.partial(pj.jit, donate_argnums=1)
    def donated(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x, op="avg")  # so that numbers do not grow

    held = [jnp.asarray(own)]

    def again() -> None:
        held[0] = donated(comm, held[0])

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=PartitionSpec("hosts"), out_specs=PartitionSpec())
    def psum(x: Any) -> Any:
        return lax.psum(x, "hosts")

    for name, made in (("pccl", ours(comm, x)), ("gloo", psum(both))):
        if not (np.asarray(made) == 3.0).all():
            raise RuntimeError(f"{name} gave a wrong sum of {common.size_name(case.size)}")
    calls: Calls = {
        "pccl_jax": lambda: ours(comm, x),
        "psum": lambda: psum(both).block_until_ready(),
        "pccl_py": lambda: comm.all_reduce(own, memory),
        # As programs have it: a result has memory that is new to it.
        "new_memory": lambda: comm.all_reduce(own, np.empty_like(own)),
        "donated": again,
        "in_place": lambda: comm.all_reduce(memory, op="avg"),
    }
    return measure(comm, calls, case)


def overlap(comm: pccl.Communicator, case: Case) -> Samples:
    """A transfer and products that do not need it, in one program: alone, in turn, and together."""
    gradients = jnp.full(case.size // 4, comm.rank + 1.0, jnp.float32)
    # Neither grows nor fades: products of tiny numbers would take longer.
    x = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)) * 1.5 / WIDTH**0.5

    def work(x: Any, count: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, y: jnp.tanh(y @ x), x)

    @pj.jit
    def blocking(comm: pj.Comm, gradients: Any, x: Any, count: Any) -> Any:
        mean = pj.all_reduce(comm, gradients, op="avg")
        x, mean = lax.optimization_barrier((x, mean))  # the products wait for the transfer
        return mean, work(x, count)

    @pj.jit
    def overlapped(comm: pj.Comm, gradients: Any, x: Any, count: Any) -> Any:
        handle = pj.all_reduce_start(comm, gradients, op="avg")
        made = work(x, count)
        return pj.all_reduce_done(handle, after=made), made

    transfer = pj.jit(lambda comm, gradients: pj.all_reduce(comm, gradients, op="avg"))
    products = jax.jit(work)
    ours = _best(lambda: transfer(comm, gradients))
    each = _best(lambda: products(x, 8).block_until_ready()) / 8
    counts = np.array([1.5 * ours / each], np.float64)
    comm.all_reduce(counts, op="max")
    count = max(1, round(counts.item()))
    for made, _ in (blocking(comm, gradients, x, count), overlapped(comm, gradients, x, count)):
        if not (np.asarray(made) == 1.5).all():
            raise RuntimeError(f"a wrong mean of {common.size_name(case.size)}")
    calls: Calls = {
        "pccl_jax": lambda: transfer(comm, gradients),
        "products": lambda: products(x, count).block_until_ready(),
        "blocking": lambda: blocking(comm, gradients, x, count),
        "overlapped": lambda: overlapped(comm, gradients, x, count),
    }
    return measure(comm, calls, case)


def _best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that compiles."""
    call()
    taken = []
    for _ in range(5):
        begin = time.monotonic()
        call()
        taken.append(time.monotonic() - begin)
    return min(taken)


def compiles(comm: pccl.Communicator, case: Case) -> Samples:
    """A scan with so many calls in its body, lowered and compiled anew each time."""
    jax_identity.register()
    x = jnp.zeros(case.size // 4)

    def compiler(call: Callable[[Any], Any]) -> Callable[[], object]:
        def body(carry: Any, _: Any) -> Any:
            for _ in range(case.calls):
                carry = call(carry)
            return carry, None

        # A function of its own each time: JAX keeps traces by functions.
        return lambda: jax.jit(lambda x: lax.scan(body, x, length=5)).lower(x).compile()

    return measure(
        comm,
        {
            "pccl_jax": compiler(lambda x: pj.all_reduce(comm, x)),
            "identity": compiler(lambda x: jax_identity.identity(x, is_ordered=False)),
        },
        case,
    )


def main() -> None:
    """Pinned before any library starts a thread."""
    case, rank = Case(**json.loads(sys.argv[1])), int(os.environ["RANK"])
    os.sched_setaffinity(0, common.cores_of(rank, case.world))
    if case.world > 1:
        jax.distributed.initialize(os.environ["JAX_COORDINATOR"], case.world, rank)
    kinds = {
        "dispatch": dispatch,
        "all_reduce": all_reduce,
        "overlap": overlap,
        "compile": compiles,
    }
    with pccl.connect() as comm:
        comm.admit()
        samples = kinds[case.kind](comm, case)
    print(json.dumps({"samples": samples}), flush=True)
    if case.world > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
