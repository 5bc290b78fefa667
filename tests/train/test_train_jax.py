"""DiLoCo of pytrees, beside jitted inner steps of any optimizer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pccl_train import SGD, Exchange
from problems import Entry, outer_bytes, with_a_newcomer

import pccl_py as pccl

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import pccl_train.jax


def params_of(seed: int, dtype: Any = np.float32) -> Any:
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return jnp.asarray(0.3 * random.standard_normal(shape), dtype)

    return {"layers": [(draw(4, 4), draw(4)), (draw(4, 4), draw(4))], "scale": draw()}


def loss_of(params: Any, x: Any) -> Any:
    y = x
    for w, b in params["layers"]:
        y = jnp.tanh(y @ w + b)
    return ((y * params["scale"] - x[:, ::-1]) ** 2).mean()


@partial(jax.jit, static_argnums=2)
def inner_step(params: Any, x: Any, rate: float) -> Any:
    gradients = jax.grad(loss_of)(params, x)
    return jax.tree_util.tree_map(lambda p, g: (p - rate * g).astype(p.dtype), params, gradients)


def batch(rank: int, step: int) -> Any:
    return np.random.default_rng((rank, step)).standard_normal((8, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_workers_train_one_tree_while_exchanges_are_under_way(dtype: Any) -> None:
    def program(comm: pccl.Communicator) -> tuple[bytes, float, float]:
        told: list[Exchange] = []
        diloco = pccl_train.jax.DiLoCo(
            sync_every=4, fragments=2, fragment_sync_delay=2, on_exchange=told.append
        )
        params, state = diloco.init(comm, params_of(comm.rank, dtype))
        first = float(loss_of(params, batch(7, 7)))
        while state.round < 12:
            params = inner_step(params, batch(comm.rank, state.progress), 0.1)
            params, state = diloco.step(params, state)
        state.finish()
        assert len(told) == 24
        for name, value in state.outer_parameters.items():
            assert name.startswith("layers.") or name == "scale"
            assert value.dtype == np.float32
        return outer_bytes(state), first, float(loss_of(state.params, batch(7, 7)))

    with pccl.LocalWorld(3) as world:
        results = world.run(program)
    assert len({outer for outer, _, _ in results}) == 1
    assert all(last < first for _, first, last in results)


def test_a_run_goes_on_from_its_file_to_the_same_bytes(tmp_path: Path) -> None:
    def run(comm: pccl.Communicator, begin: int, end: int, save_at: int = 0) -> bytes:
        diloco = pccl_train.jax.DiLoCo(
            sync_every=4, fragments=2, fragment_sync_delay=3, fragment_update_alpha=0.5,
            outer=SGD(0.7),
        )  # fmt: skip
        file = tmp_path / f"{comm.rank}.npz"
        state = diloco.prepare(params_of(comm.rank, jnp.bfloat16))
        if begin:
            with pytest.raises(pccl.InvalidArgument, match="inner"):
                state.load(file)
        state.inner = {"steps": jnp.zeros((), jnp.int32)}
        if begin:
            state.load(file)
        state.attach(comm)
        state.begin()
        params = state.params
        for step in range(begin, end):
            assert state.inner["steps"] == step
            params = inner_step(params, batch(comm.rank, step), 0.1)
            inner = {"steps": state.inner["steps"] + 1}
            params, state = diloco.step(params, state, inner=inner)
            if step + 1 == save_at:
                state.save(file)
        own = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(params))
        return outer_bytes(state) + own

    with pccl.LocalWorld(2) as world:
        whole = world.run(lambda comm: run(comm, 0, 14, 7))
    with pccl.LocalWorld(2) as world:
        assert world.run(lambda comm: run(comm, 7, 14)) == whole


def test_other_trees_are_refused_by_name() -> None:
    diloco = pccl_train.jax.DiLoCo(sync_every=4)
    with pytest.raises(pccl.InvalidArgument, match="no leaves"):
        diloco.prepare({})
    with pytest.raises(pccl.InvalidArgument, match="'n'.*int32"):
        diloco.prepare({"n": jnp.zeros(3, jnp.int32)})
    with pccl.LocalWorld(1) as world:
        params, state = diloco.init(world.comms[0], {"a": jnp.zeros(3)})
        with pytest.raises(pccl.InvalidArgument, match="'b'"):
            diloco.step({**params, "b": jnp.zeros(2)}, state)


def test_a_newcomer_takes_over_what_a_member_has_as_inner() -> None:
    """As the state of an inner optimizer; what has another size is refused."""
    diloco = pccl_train.jax.DiLoCo(sync_every=2)

    def train(params: Any, state: Any, rank: int, entry: Entry) -> Any:
        while entry.goes_on(state, newcomer=rank == 9):
            count, mean = state.inner
            mean = jax.tree_util.tree_map(lambda m, p: 0.9 * m + 0.1 * p, mean, params)
            params = inner_step(params, batch(rank, state.progress), 0.1)
            params, state = diloco.step(params, state, inner=(count + 1, mean))
            if state.progress == 3:
                entry.call()
        return state.progress, int(state.inner[0])

    def inner() -> Any:
        zeros = jax.tree_util.tree_map(jnp.zeros_like, params_of(0))
        return jnp.zeros((), jnp.int32), zeros

    def program(comm: pccl.Communicator, entry: Entry) -> Any:
        params, state = diloco.init(comm, params_of(0), inner=inner())
        assert int(state.inner[0]) == 0
        return train(params, state, comm.rank, entry)

    def inherits(comm: pccl.Communicator, entry: Entry) -> Any:
        params, state = diloco.init(comm, params_of(0), inner=inner())
        count, mean = state.inner
        assert int(count) == state.progress > 3
        assert float(abs(mean["layers"][0][0]).max()) > 0
        return train(params, state, 9, entry)

    def differs(comm: pccl.Communicator, entry: Entry) -> None:
        with pytest.raises(pccl.InvalidArgument, match="must be the same on all peers"):
            diloco.init(comm, params_of(0), inner=jnp.zeros(3))

    counts = with_a_newcomer(program, inherits, more=3)
    assert len(set(counts)) == 1 and all(progress == count for progress, count in counts)
    assert with_a_newcomer(program, differs, more=3)[2] is None
