"""The library of handlers, XLA's header that it is built with, and what imports what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.ffi
from pccl_jax import library

import pccl_py

ROOT = Path(__file__).resolve().parents[2]
HEADER = Path("xla", "ffi", "api", "c_api.h")


def test_the_header_is_that_of_the_installed_jaxlib() -> None:
    ours = ROOT / "bindings" / "third_party" / "xla_ffi" / HEADER
    assert ours.read_bytes() == Path(jax.ffi.include_dir(), HEADER).read_bytes()
    assert library.version() == library.version_of_jaxlib()


def test_pccl_py_imports_none_of_jax() -> None:
    """Also not when a handle is asked for."""
    program = (
        "import sys, pccl_py\n"
        "with pccl_py.LocalWorld(1) as world: assert world.comms[0].handle > 0\n"
        "assert not {'jax', 'jaxlib', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_no_handle_is_given_twice() -> None:
    with pccl_py.LocalWorld(2) as world:
        first, second = (comm.handle for comm in world.comms)
        assert first != second and world.comms[0].handle == first
    with pccl_py.LocalWorld(2) as world:
        assert not {first, second} & {comm.handle for comm in world.comms}
