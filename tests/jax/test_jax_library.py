"""The library of handlers, XLA's header that it is built with, and what imports what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
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


def test_a_version_of_jax_without_a_private_name_is_refused_with_the_versions_that_have_it() -> (
    None
):
    program = (
        "import jax._src.core as core\n"
        "del core.abstract_token\n"
        "try: import pccl_jax\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.strip() == (
        f"pccl_jax keeps collectives in order by parts of JAX that jax {jax.__version__} does not "
        "have (module 'jax._src.core' has no attribute 'abstract_token'): install 'jax>=0.10,<0.11'"
    )


def test_no_handle_is_given_twice() -> None:
    with pccl_py.LocalWorld(2) as world:
        first, second = (comm.handle for comm in world.comms)
        assert first != second and world.comms[0].handle == first
    with pccl_py.LocalWorld(2) as world:
        assert not {first, second} & {comm.handle for comm in world.comms}
