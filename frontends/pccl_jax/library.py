"""libpccl_jax: the handlers that compiled programs call (bindings/jax_handlers.c, jax_async.c,
jax_parts.c).

Importing this module checks that jaxlib has the version of XLA's interface that the handlers were
built for, and registers the handlers with XLA for the CPU. The text of a handler's error has a
number, by which `failure_in` finds the error.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import jax.export
import jax.ffi

from pccl_py import _pccl, paths
from pccl_py.errors import make

TARGET = "pccl_collective"
TARGET_BEGIN = "pccl_begin"
TARGET_FINISH = "pccl_finish"
TARGET_PART = "pccl_part"
# `jax.export.export` refuses unknown custom calls; pass it EXPORT_CHECKS as `disabled_checks`.
EXPORT_CHECKS = tuple(
    jax.export.DisabledSafetyCheck.custom_call(target)
    for target in (TARGET, TARGET_BEGIN, TARGET_FINISH, TARGET_PART)
)
_TEXT_BYTES_MAX = 4096
_NUMBERED = re.compile(r"\[pccl error (\d+)\]")
_VERSION = re.compile(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)")

_suffix = ".dylib" if sys.platform == "darwin" else ".so"
_library = ctypes.CDLL(str(Path(paths.library_dir()) / f"libpccl_jax{_suffix}"))
_library.pccl_jax_start.argtypes = [ctypes.c_void_p, ctypes.c_ulong]
_library.pccl_jax_start.restype = None
_library.pccl_jax_version.argtypes = [ctypes.POINTER(ctypes.c_int)] * 2
_library.pccl_jax_version.restype = None
_library.pccl_jax_error.argtypes = [
    *(ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t),
    *(ctypes.POINTER(ctypes.c_int64), *(ctypes.POINTER(ctypes.c_uint64),) * 2),
]
_library.pccl_jax_memory.argtypes = [ctypes.POINTER(ctypes.c_uint64)] * 2
_library.pccl_jax_memory.restype = None
_library.pccl_jax_unfinished.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


class Failure(NamedTuple):
    """An error of a handler: its exception, the kind and form of the failed call, and the handle of
    the call's communicator."""

    exception: Exception
    kind: int
    form: int
    handle: int


def version() -> tuple[int, int]:
    """Major and minor version of XLA's interface that the handlers were built for."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library.pccl_jax_version(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def version_of_jaxlib() -> tuple[int, int]:
    """Major and minor version of XLA's interface in the installed jaxlib, read from its header."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    found = dict(_VERSION.findall(header.read_text()))
    return int(found["MAJOR"]), int(found["MINOR"])


def failure_in(text: str) -> Failure | None:
    """The handler's error whose number is in a text of XLA; None if there is no number, or the
    error is no longer kept."""
    found = _NUMBERED.search(text)
    if found is None:
        return None
    said = ctypes.create_string_buffer(_TEXT_BYTES_MAX)
    kind, form, handle = ctypes.c_int64(), ctypes.c_uint64(), ctypes.c_uint64()
    also = ctypes.byref(kind), ctypes.byref(form), ctypes.byref(handle)
    status = _library.pccl_jax_error(int(found[1]), said, len(said), *also)
    if status == 0:
        return None
    sentence = said.value.decode("utf-8", "replace")
    return Failure(make(status, sentence), kind.value, form.value, handle.value)


def unfinished() -> list[str]:
    """A sentence for each operation that a program has begun and not finished, only once each."""
    said, told = ctypes.create_string_buffer(_TEXT_BYTES_MAX), []
    while _library.pccl_jax_unfinished(said, len(said)):
        told.append(said.value.decode())
    return told


def memory() -> tuple[int, int]:
    """Bytes of all_reduce_start's memory: those kept for reuse, and those in use."""
    kept, used = ctypes.c_uint64(), ctypes.c_uint64()
    _library.pccl_jax_memory(ctypes.byref(kept), ctypes.byref(used))
    return kept.value, used.value


def _start() -> None:
    """Raises ImportError if the versions do not fit; else registers the handlers with XLA."""
    built, installed = version(), version_of_jaxlib()
    # XLA accepts handlers of its own major version whose minor version is not newer than its own.
    if built[0] != installed[0] or built[1] > installed[1]:
        raise ImportError(
            f"the handlers of pccl_jax are for version {built[0]}.{built[1]} of XLA's foreign "
            f"functions, and jaxlib has {installed[0]}.{installed[1]}: install jax>=0.10,<0.11"
        )
    main = threading.main_thread().ident
    assert main is not None
    _library.pccl_jax_start(_pccl.handler_hooks(main), main)
    for target, handler in (
        (TARGET, _library.pccl_jax_collective),
        (TARGET_BEGIN, _library.pccl_jax_begin),
        (TARGET_FINISH, _library.pccl_jax_finish),
        (TARGET_PART, _library.pccl_jax_part),
    ):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform="cpu")


_start()
