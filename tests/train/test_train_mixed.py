"""One run of NumPy, PyTorch, JAX and C: the same bytes, on every CPU level, today and later."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from calling import check, ffi, lib, options
from pccl_train import Nesterov
from problems import outer_bytes

import pccl_py as pccl

pytest.importorskip("torch")
pytest.importorskip("jax")
import jax
import pccl_train.jax
import pccl_train.torch
import torch

LEVELS = ("baseline", "v3", "v4", "v4x")
SHAPES = {"w": (9, 5), "b": (5,)}
# The sum of two contributions has the same bits in any order.
TOKENS = (1, 2, 0)
ROUNDS, STEPS = 6, 2
SETTINGS: dict[str, Any] = {"sync_every": STEPS, "outer": Nesterov(0.6, 0.8)}
# The outer parameters after each step have this digest, which changes only with the arithmetic.
GOLDEN = "d1aacef121722805211302e779197734"


def noise(shape: tuple[int, ...], key: int) -> np.ndarray:
    """Numbers from -1 to 1 that no version of NumPy changes (a multiplicative hash)."""
    places = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(1000 * key)
    bits = places * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    numbers: np.ndarray = bits.astype(np.float32) / np.float32(2**23) - 1
    return numbers.reshape(shape)


def moved(values: np.ndarray, rank: int, name: str, step: int) -> np.ndarray:
    """An inner step that every framework can make exactly: it is made here."""
    push = noise(SHAPES[name], 100 * step + 10 * rank + (name == "w"))
    return np.asarray(values * np.float32(0.75) + push)


def start() -> dict[str, np.ndarray]:
    return {name: noise(shape, 7777 + len(shape)) for name, shape in SHAPES.items()}


class Digest:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, outer: bytes) -> None:
        self._hash.update(outer)

    def __str__(self) -> str:
        return self._hash.hexdigest()


def with_numpy(comm: pccl.Communicator) -> str:
    parameters, digest = start(), Digest()
    diloco = pccl_train.numpy.DiLoCo(comm, parameters, **SETTINGS)
    diloco.begin()
    for step in range(ROUNDS * STEPS):
        for name, value in parameters.items():
            value[...] = moved(value, comm.rank, name, step)
        diloco.step(TOKENS[comm.rank])
        digest.add(outer_bytes(diloco))
    return str(digest)


def with_torch(comm: pccl.Communicator) -> str:
    module, digest = torch.nn.Module(), Digest()
    for name, value in start().items():
        module.register_parameter(name, torch.nn.Parameter(torch.from_numpy(value)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    settings = {**SETTINGS, "tokens": lambda: TOKENS[comm.rank]}
    with pccl_train.torch.DiLoCo(comm, module, optimizer, **settings) as diloco:
        for step in range(ROUNDS * STEPS):
            for name, parameter in module.named_parameters():
                value = moved(parameter.detach().numpy(), comm.rank, name, step)
                parameter.data.copy_(torch.from_numpy(value))
            optimizer.step()
            digest.add(outer_bytes(diloco))
    return str(digest)


def with_jax(comm: pccl.Communicator) -> str:
    diloco, digest = pccl_train.jax.DiLoCo(**SETTINGS), Digest()
    params, state = diloco.init(comm, start())
    for step in range(ROUNDS * STEPS):
        params = {n: moved(np.asarray(x), comm.rank, n, step) for n, x in params.items()}
        params, state = diloco.step(
            jax.tree_util.tree_map(jax.numpy.asarray, params), state, TOKENS[comm.rank]
        )
        digest.add(outer_bytes(state))
    return str(digest)


def at(array: np.ndarray) -> Any:
    return ffi.cast("float *", array.ctypes.data)


def with_c() -> str:
    """Three workers with the inner steps of the other programs, by the C interface."""
    digest, total = Digest(), sum(TOKENS)
    outer = {name: value.copy() for name, value in start().items()}
    momentum = {name: np.zeros_like(value) for name, value in outer.items()}
    workers = [{name: value.copy() for name, value in outer.items()} for _ in TOKENS]
    nesterov = options("outer_options", rule=lib.PCCL_OUTER_NESTEROV, scale=1)
    nesterov.learning_rate, nesterov.momentum = 0.6, 0.8
    for step in range(ROUNDS * STEPS):
        for rank, worker in enumerate(workers):
            for name, value in worker.items():
                value[...] = moved(value, rank, name, step)
        if step % STEPS == STEPS - 1:
            for name, value in outer.items():
                average = np.zeros_like(value)
                for tokens, worker in zip(TOKENS, workers, strict=True):
                    gradient = np.empty_like(value)
                    own = ffi.cast("void *", worker[name].ctypes.data)
                    of = lib.pccl_outer_difference
                    check(of(at(value), own, lib.PCCL_F32, value.size, at(gradient), ffi.NULL))
                    average += gradient * np.float32(tokens / total)
                step_of, size = lib.pccl_outer_step, value.size
                moments = (at(momentum[name]), ffi.NULL)
                check(step_of(at(value), *moments, at(average), size, nesterov))
                for worker in workers:
                    own = ffi.cast("void *", worker[name].ctypes.data)
                    check(lib.pccl_outer_mix(own, lib.PCCL_F32, at(value), size, 0))
        digest.add(b"".join(outer[name].tobytes() for name in sorted(outer)))
    return str(digest)


@pytest.fixture
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Kernels of this level; afterwards of the best one again."""
    before = pccl.cpu_level()
    monkeypatch.setenv("PCCL_CPU_LEVEL", request.param)
    yield request.param
    monkeypatch.setenv("PCCL_CPU_LEVEL", before)
    assert pccl.cpu_level() == before


def supported() -> list[str]:
    return [*LEVELS[: LEVELS.index(pccl.cpu_level()) + 1]]


@pytest.mark.parametrize("level", supported(), indirect=True)
def test_numpy_torch_jax_and_c_hold_the_golden_bytes(level: str) -> None:
    programs: list[Callable[[pccl.Communicator], str]] = [with_numpy, with_torch, with_jax]
    with pccl.LocalWorld(3) as world:
        assert pccl.cpu_level() == level
        digests = world.run(lambda comm: programs[comm.rank](comm))
    assert set(digests) == {with_c()} == {GOLDEN}
