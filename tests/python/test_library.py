"""The shared library as it is shipped: what it lets an attacker do, and how it ends after a bug.

How it is compiled: build.zig. The message of a panic: engine/abi/root.zig.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pccl_py as pccl

LIBRARIES = sorted(Path(pccl.__file__).parent.glob("*.so"))
PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
PF_X, PF_W = 1, 2
DT_FLAGS, DF_BIND_NOW = 30, 8

PROGRAM = """
import numpy as np
import pccl_py as pccl
with pccl.Coordinator() as coordinator, pccl.connect(coordinator.token) as comm:
    comm.admit()
    comm.all_reduce(np.ones(4, np.float32))
"""


class Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int


def segments(image: bytes) -> Iterator[Segment]:
    """The program headers of a 64-bit little-endian ELF file (System V ABI, chapter 5)."""
    assert image[:6] == b"\x7fELF\x02\x01"
    (first,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for index in range(count):
        kind, flags, offset, _, _, length = struct.unpack_from(
            "<IIQQQQ", image, first + index * size
        )
        yield Segment(kind, flags, offset, length)


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name.split(".")[0])
def test_nothing_is_writable_and_executable_and_all_symbols_are_bound_at_once(path: Path) -> None:
    image = path.read_bytes()
    found = {segment.kind: segment for segment in segments(image)}
    assert not found[PT_GNU_STACK].flags & PF_X
    assert PT_GNU_RELRO in found
    for segment in segments(image):
        assert segment.flags & (PF_W | PF_X) != PF_W | PF_X
    dynamic = found[PT_DYNAMIC]
    entries = struct.iter_unpack("<QQ", image[dynamic.offset : dynamic.offset + dynamic.size])
    flags = dict(entries).get(DT_FLAGS, 0)
    assert flags & DF_BIND_NOW


def test_a_bug_of_the_engine_ends_the_process_with_one_line_that_says_nothing_of_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PCCL_FAULT_POINT": "panic=operation.called"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT, done.stderr
    line = r"pccl: internal error: integer overflow\. [^\n]* report this line [^\n]*\n"
    assert re.fullmatch(line, done.stderr), done.stderr
    assert "0x" not in done.stderr
