"""Runs Python tests with ThreadSanitizer in the native library and in the bindings.

CPython is not built with the sanitizer, and need not be: the runtime is in an instrumented libpccl
that is loaded before everything else, and sees the mutex of the interpreter's lock, as it replaces
what pthread does. It does not see what CPython itself touches. A library and an extension of their
own are built into .zig-cache/tsan, beside links to the Python files of pccl_py. First a control:
two threads that write the same memory must be reported, else nothing else would be.

    python tests/threads/under_tsan.py [TESTS AND OPTIONS OF PYTEST]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIX = ROOT / ".zig-cache" / "tsan"
PACKAGE = PREFIX / "pccl_py"
LIBRARY = PACKAGE / "libpccl.so"
# Tests with threads of Python inside the library.
TESTS = [
    f"tests/python/test_api_{topic}.py"
    for topic in ("work", "local_world", "membership", "messages", "state", "collectives")
]
REPORTED = 66
# Pytest keeps what a test writes on stderr, and a process that ends in a test takes it along.
REPORTS = PREFIX / "reports"
RACE = """
import ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
name, count = library.pccl_kernel_name, 65536
name.restype = ctypes.c_char_p
library.pccl_kernel_memory.restype = ctypes.c_size_t
memory = ctypes.create_string_buffer(library.pccl_kernel_memory(ctypes.c_size_t(count)) + 4096)
at = (ctypes.addressof(memory) + 4095) // 4096 * 4096
def prepare():
    took = ctypes.c_uint64()
    # Often, because the interpreter's lock orders calls that do not overlap.
    for _ in range(1000):
        status = library.pccl_kernel_run(name(0), 0, ctypes.c_void_p(at), ctypes.c_size_t(count),
                                         1, ctypes.byref(took))
        assert status == 0, status
threads = [threading.Thread(target=prepare) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def build() -> None:
    """The instrumented extension and library, in a package that is otherwise the same."""
    sys.path.insert(0, str(ROOT))
    os.environ["PCCL_ZIG_ARGS"] = "-Dtsan -Doptimize=Debug"
    from hatch_build import build_native, to_stderr

    build_native(PREFIX, to_stderr)
    for source in (ROOT / "pccl_py").iterdir():
        link = PACKAGE / source.name
        if source.suffix in {".so", ".dylib"} or source.name in {"include", "__pycache__"}:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(source)


def instrumented(arguments: list[str]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "PYTHONPATH": str(PREFIX),
        "TSAN_OPTIONS": f"exitcode={REPORTED}:halt_on_error=1:log_path={REPORTS}/report",
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def take_reports() -> str:
    files = sorted(REPORTS.iterdir())
    text = "".join(file.read_text() for file in files)
    for file in files:
        file.unlink()
    return text


def control() -> None:
    racing = instrumented(["-P", "-c", RACE, str(LIBRARY)])
    output, _ = racing.communicate(timeout=300)
    if racing.returncode != REPORTED or "ThreadSanitizer: data race" not in take_reports():
        sys.exit(f"the control was not reported; status {racing.returncode}\n{output}")
    program = "import pccl_py._pccl as native; print(native.__file__)"
    loading = instrumented(["-P", "-c", program])
    output, _ = loading.communicate(timeout=300)
    if not output.startswith(str(PACKAGE)):
        sys.exit(f"another extension was loaded:\n{output}")


def main() -> None:
    build()
    REPORTS.mkdir(exist_ok=True)
    control()
    pytest = Path(sys.executable).with_name("pytest")
    tests = sys.argv[1:] or [*TESTS, "-q"]
    running = instrumented(["-P", str(pytest), "-p", "no:cacheprovider", *tests])
    assert running.stdout is not None
    for line in running.stdout:
        print(line, end="")
    status = running.wait()
    reports = take_reports()
    print(reports, end="")
    if status != 0 or reports:
        sys.exit(f"ended with status {status}")
    print("no reports of ThreadSanitizer")


if __name__ == "__main__":
    main()
