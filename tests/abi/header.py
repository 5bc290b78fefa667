"""include/pccl.h as cffi reads it: the header itself is the source, five rules make it plain C.

The header stays free of inline functions and of macros in declarations so that this is all it
takes. Programs in C are compiled against it here, too. test_abi.py tests what the functions do,
test_manifest.py what programs rely on. The other header, COMPAT, has the names of PCCL 1.0
(tests/compat/test_compat_c.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cffi

import pccl_py

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "include" / "pccl.h"
COMPAT = ROOT / "compat" / "include" / "pccl.h"
LIBRARY = Path(pccl_py.__file__).with_name(
    {"darwin": "libpccl.dylib", "win32": "pccl.dll"}.get(sys.platform, "libpccl.so")
)


def declarations(text: str) -> str:
    """The declarations of a header, without what only a C compiler understands."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"PCCL_(API|EXPORT|NULLABLE) ", "", text.replace("\\\n", " "))
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    numbers = re.findall(r"^#define \w+ +\d+ *$", text, flags=re.MULTILINE)
    return "\n".join(numbers) + re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def functions(header: Path = HEADER) -> set[str]:
    """The names of all functions that the header declares."""
    plain = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    return set(re.findall(r"PCCL_(?:API|EXPORT) [^;]*?\b(pccl\w+)\(", plain))


def load(header: Path = HEADER) -> tuple[Any, Any]:
    """(ffi, library)."""
    ffi = cffi.FFI()
    ffi.cdef(declarations(header.read_text()))
    return ffi, ffi.dlopen(str(LIBRARY))


def compile_with(*arguments: str) -> None:
    """With the compiler of the ziglang package; no warning is let pass.

    Optimised, because without -O Zig first compiles a runtime for -fsanitize=undefined, for 10 s.
    """
    compiler, *rest = arguments
    command = [sys.executable, "-m", "ziglang", compiler, "-O1", *rest]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""


def flags(*arguments: str) -> str:
    """The compiler's, as a program's author asks for them: `pccl flags`."""
    command = [sys.executable, "-m", "pccl_py.cli", "flags", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
