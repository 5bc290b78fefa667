"""Shared by the tests of PyTorch: where it is missing they are skipped, and it has one thread.

The folder is not called torch: where PyTorch is missing, Python would import it under this name.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pccl_py as pccl

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ModuleNotFoundError)
# The peers are threads here; threads of PyTorch for each of them are more than there are cores.
torch.set_num_threads(1)

# It needs torch.
from world import World  # noqa: E402


@pytest.fixture
def world() -> Iterator[pccl.LocalWorld]:
    """Two peers."""
    with pccl.LocalWorld(2, deadline=30) as made:
        yield made


@pytest.fixture
def three() -> Iterator[pccl.LocalWorld]:
    """Three peers."""
    with pccl.LocalWorld(3, deadline=30) as made:
        yield made


@pytest.fixture(scope="session")
def ranks() -> Iterator[World]:
    """Three processes for all tests: world.py."""
    with World(3) as made:
        yield made
