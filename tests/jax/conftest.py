"""Tests of pccl_jax beside the conformance suite: order, programs, errors, ends of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import pccl_py as pccl

# Before JAX is imported: it would look for other devices, and have a thread for each core. Peers of
# one process wait for each other in those, so there must be one for each.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["NPROC"] = "8"
jax = pytest.importorskip("jax", reason="jax is not installed", exc_type=ModuleNotFoundError)


@pytest.fixture(autouse=True)
def narrow() -> Iterator[None]:
    """Numbers of 32 bits, also where an earlier file of this worker has asked for 64."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(autouse=True)
def programs_end() -> Iterator[None]:
    """Programs that a test has begun on this thread are over before the next test begins."""
    import pccl_jax  # after JAX has its settings

    yield
    with pccl_jax.errors():
        pass


@pytest.fixture
def world() -> Iterator[pccl.LocalWorld]:
    """Three peers, which are threads of this process."""
    with pccl.LocalWorld(3, deadline=20) as made:
        yield made
