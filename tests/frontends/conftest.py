"""Which frontends are tested, and worlds of communicators that many tests share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import pytest
from adapter import Adapter

import pccl_py as pccl

Worlds = Callable[[int], pccl.LocalWorld]


# Their libraries by the names of the adapters; where one is missing, its tests are skipped.
FRONTENDS = {
    "NumpyAdapter": "numpy",
    "TorchAdapter": "torch",
    "JaxAdapter": "jax",
    "JaxJitAdapter": "jax",
}
NAMES = {"NumpyAdapter": "numpy", "TorchAdapter": "torch", "JaxAdapter": "jax"}


@pytest.fixture(scope="session", params=FRONTENDS, ids=lambda name: NAMES.get(name, "jax_jit"))
def frontend(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    library = FRONTENDS[request.param]
    pytest.importorskip(library, reason=f"{library} is not installed", exc_type=ModuleNotFoundError)
    module = importlib.import_module(f"{library}_adapter")
    made: Adapter = getattr(module, request.param)()
    yield made
    made.close()


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """A world by its size. One that a test has left without a member is not used again."""
    made: dict[int, pccl.LocalWorld] = {}

    def world(n: int) -> pccl.LocalWorld:
        known = made.get(n)
        if known is None or any(comm.closed for comm in known.comms):
            if known is not None:
                known.close()
            made[n] = pccl.LocalWorld(n, deadline=60)
        return made[n]

    yield world
    for one in made.values():
        one.close()
