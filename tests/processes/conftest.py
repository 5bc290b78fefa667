"""Ends the processes that the tests of this folder share, when the last of them is over.

PCCL_TESTED_LIBRARY names the libpccl that they must have loaded, where it is not that of pccl_py:
`make process-test-safe` gives the dynamic linker another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from peers import nursery


@pytest.fixture(scope="session", autouse=True)
def _end_processes() -> Iterator[None]:
    yield
    nursery.close()


@pytest.fixture(scope="session", autouse=True)
def _tested_library() -> None:
    """A dynamic linker that takes another library than the one that is asked for says nothing."""
    wanted = os.environ.get("PCCL_TESTED_LIBRARY")
    if wanted is None:
        return
    # A child, as the peers are.
    program = "import pccl_py; print(open('/proc/self/maps').read())"
    command = [sys.executable, "-c", program]
    maps = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = {line.split()[-1] for line in maps.splitlines() if line.endswith("libpccl.so")}
    assert loaded == {wanted}
