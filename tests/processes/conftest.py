"""Ends the processes that the tests of this folder share, when the last of them is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from peers import nursery


@pytest.fixture(scope="session", autouse=True)
def _end_processes() -> Iterator[None]:
    yield
    nursery.close()
