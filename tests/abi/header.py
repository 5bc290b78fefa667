"""include/pccl.h as cffi reads it: the header itself is the source, five rules make it plain C.

The header stays free of inline functions and of macros in declarations so that this is all it
takes. test_abi.py tests what the functions do, test_manifest.py what programs rely on.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import cffi

import pccl_py

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "include" / "pccl.h"
LIBRARY = Path(pccl_py.__file__).with_name(
    {"darwin": "libpccl.dylib", "win32": "pccl.dll"}.get(sys.platform, "libpccl.so")
)


def declarations(text: str) -> str:
    """The declarations of a header, without what only a C compiler understands."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = text.replace("\\\n", " ").replace("PCCL_API ", "")
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    numbers = re.findall(r"^#define PCCL_\w+ +\d+ *$", text, flags=re.MULTILINE)
    return "\n".join(numbers) + re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def functions() -> set[str]:
    """The names of all functions that the header declares."""
    plain = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    return set(re.findall(r"PCCL_API [^;]*?\b(pccl_\w+)\(", plain))


def load() -> tuple[Any, Any]:
    """(ffi, library)."""
    ffi = cffi.FFI()
    ffi.cdef(declarations(HEADER.read_text()))
    return ffi, ffi.dlopen(str(LIBRARY))
