"""Small problems whose training is known: linear models, a worker for each rank of a world."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pccl_train.numpy
from numpy.typing import NDArray
from pccl_train import Exchange

import pccl_py as pccl

Parameters = dict[str, NDArray[Any]]


class Worker:
    """Fits y = x @ w + b by plain SGD to samples of its own."""

    def __init__(self, rank: int, dtype: Any = np.float32, rate: float = 0.05) -> None:
        self.random = np.random.default_rng((7, rank))
        self.rate = rate
        # Peers need not begin with equal parameters: the first sync gives them those of one.
        start = np.random.default_rng(1)
        self.parameters: Parameters = {
            "w": start.standard_normal((3, 5)).astype(dtype),
            "b": np.zeros(5, dtype),
            "scale": np.ones((), dtype),
        }

    def gradients(self) -> Parameters:
        x = self.random.standard_normal((8, 3)).astype(np.float32)
        wanted = x @ np.full((3, 5), 0.5, np.float32) + 2
        w, b, scale = (self.parameters[name].astype(np.float32) for name in ("w", "b", "scale"))
        error = (x @ w + b) * scale - wanted
        return {
            "w": x.T @ error * scale / len(x),
            "b": error.mean(0) * scale,
            "scale": np.float32((error * (x @ w + b)).mean()),
        }

    def step(self) -> None:
        for name, gradient in self.gradients().items():
            parameter = self.parameters[name]
            parameter[...] = (parameter - np.float32(self.rate) * gradient).astype(parameter.dtype)

    def bytes(self) -> bytes:
        return b"".join(self.parameters[name].tobytes() for name in sorted(self.parameters))


def outer_bytes(diloco: pccl_train.Rounds) -> bytes:
    """The outer parameters, in the order of their names."""
    found = diloco.outer_parameters
    return b"".join(found[name].tobytes() for name in sorted(found))


def distance(diloco: pccl_train.Rounds) -> float:
    """How far the outer parameters are from those of the samples, at most."""
    found = diloco.outer_parameters
    scaled = [found["w"] * found["scale"] - 0.5, found["b"] * found["scale"] - 2]
    return float(max(abs(each).max() for each in scaled))


class Entry:
    """The entry of a newcomer, with which a world has `size` members; all end their training at an
    equal progress."""

    def __init__(self, more: int, size: int = 3) -> None:
        self._more, self._size = more, size
        self._at = 0
        self._is_known = threading.Event()
        self._is_called = threading.Event()

    def call(self) -> None:
        """The newcomer comes now."""
        self._is_called.set()

    def is_called(self) -> bool:
        return self._is_called.wait()

    @property
    def ends_at(self) -> int:
        """The progress at which all end."""
        return self._at + self._more

    def goes_on(self, diloco: pccl_train.Rounds, *, newcomer: bool = False) -> bool:
        """Whether to train on: until the newcomer is in, and then `more` inner steps."""
        if newcomer:
            self._is_known.wait()
        elif not self._is_known.is_set() and diloco.world_size == self._size:
            self._at = diloco.progress
            self._is_known.set()
        return not self._is_known.is_set() or diloco.progress < self.ends_at


def with_a_newcomer(
    program: Callable[[pccl.Communicator, Entry], Any],
    newcomer: Callable[[pccl.Communicator, Entry], Any],
    more: int,
    size: int = 3,
) -> list[Any]:
    """The results of two members, and of a newcomer that comes when one calls it."""
    entry = Entry(more, size)

    def join(token: str) -> Any:
        entry.is_called()
        with pccl.connect(token, bind="127.0.0.1:0") as comm:
            return newcomer(comm, entry)

    with ThreadPoolExecutor(1) as pool, pccl.LocalWorld(2) as world:
        joined = pool.submit(join, world.coordinator.token)
        try:
            found = world.run(lambda comm: program(comm, entry))
        finally:
            entry.call()
        return [*found, joined.result()]


class Trained:
    """A worker at the end of its rounds."""

    def __init__(self, worker: Worker, diloco: pccl_train.Rounds, told: list[Exchange]) -> None:
        self.worker = worker
        self.diloco = diloco
        self.told = told

    @property
    def outer(self) -> bytes:
        return outer_bytes(self.diloco)


def train(
    world: pccl.LocalWorld,
    rounds: int,
    *,
    name: str,
    tokens: Callable[[int], float] = lambda rank: 1.0,
    **settings: Any,
) -> list[Trained]:
    """Each rank trains for so many rounds; all must then have the same outer parameters."""

    def program(comm: pccl.Communicator) -> Trained:
        worker, told = Worker(comm.rank), list[Exchange]()
        diloco = pccl_train.numpy.DiLoCo(
            comm, worker.parameters, name=name, on_exchange=told.append, **settings
        )
        diloco.begin()
        while diloco.round < rounds:
            worker.step()
            diloco.step(tokens(comm.rank))
        diloco.finish()
        diloco.detach()
        return Trained(worker, diloco, told)

    trained = world.run(program)
    assert_equal([each.outer for each in trained])
    return trained


def assert_equal(values: Sequence[bytes]) -> None:
    assert len(set(values)) == 1
