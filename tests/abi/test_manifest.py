"""Old programs and new headers: the header keeps what abi.txt says, and the library what it says.

manifest.py says what a change to the header means for programs that were compiled before; here it
says it about changes that are made up.
"""

from __future__ import annotations

import re
import sys

import pytest
from calling import ffi
from header import COMPAT, HEADER, LIBRARY, functions
from manifest import (
    GOLDEN,
    Change,
    changes,
    exports,
    from_text,
    manifest,
    of_all,
    to_text,
)


def test_the_headers_are_what_programs_were_compiled_against() -> None:
    now, golden = of_all(), GOLDEN.read_text()
    found = changes(from_text(golden), now)
    if found or to_text(now) != golden:
        said = "\n".join(map(str, found)) or "the same things in another order"
        pytest.fail(
            f"{HEADER} or {COMPAT} is not what {GOLDEN} says:\n\n{said}\n\n"
            f"If that is meant, this renews it: python {GOLDEN.with_name('manifest.py')}",
            pytrace=False,
        )


@pytest.mark.skipif(sys.platform != "linux", reason="the symbols of ELF are read")
def test_the_library_exports_what_the_headers_declare_and_nothing_else() -> None:
    assert exports(LIBRARY) == functions() | functions(COMPAT)


def test_cffi_sees_every_function_of_the_headers() -> None:
    """Goal: a declaration that header.py cannot read is not left out in silence."""
    of_compat = {line.split()[1].rstrip(":") for line in manifest(COMPAT.read_text())}
    assert functions(COMPAT) <= of_compat
    assert len(functions(COMPAT)) == COMPAT.read_text().count("PCCL_EXPORT ") - 2
    listed = {line.split()[1].rstrip(":") for line in manifest(HEADER.read_text())}
    assert functions() <= listed
    assert len(functions()) == HEADER.read_text().count("PCCL_API ") - 2  # its two definitions
    structs = {
        name
        for name in ffi.list_types()[0]
        if ffi.typeof(name).kind == "struct" and ffi.typeof(name).fields
    }
    assert structs <= listed


# Changes of the header, and what is to be said about them.
CHANGES = {
    "nothing": ("", "", []),
    "a comment": ("/* The port it listens on. */", "", []),
    "the version": ("PCCL_VERSION_MINOR 1", "PCCL_VERSION_MINOR 2", []),
    "the name of a parameter": (
        "pccl_comm_close(pccl_comm_t *comm)",
        "pccl_comm_close(pccl_comm_t *c)",
        [],
    ),
    "const": ("pccl_comm_close(pccl_comm_t *comm)", "pccl_comm_close(const pccl_comm_t *comm)", []),
    "a function more": (
        "PCCL_API uint32_t pccl_version(void);",
        "PCCL_API uint32_t pccl_version(void); PCCL_API int pccl_x(size_t n);",
        [(False, "function pccl_x is new: int (size_t)")],
    ),
    "a function less": (
        "PCCL_API uint32_t pccl_version(void);",
        "",
        [(True, "function pccl_version is gone; it was uint32_t ()")],
    ),
    "a parameter more": (
        "pccl_work_cancel(pccl_work_t *work)",
        "pccl_work_cancel(pccl_work_t *work, int how)",
        [(True, "function pccl_work_cancel was pccl_status_t (pccl_work_t *), and is ")],
    ),
    "another result": (
        "PCCL_API uint16_t pccl_coordinator_port",
        "PCCL_API uint32_t pccl_coordinator_port",
        [(True, "function pccl_coordinator_port was uint16_t (")],
    ),
    "a value more": (
        "PCCL_BXOR = 7",
        "PCCL_BXOR = 7, PCCL_NAND = 8",
        [(False, "value pccl_reduce_op_t.PCCL_NAND is new: 8")],
    ),
    "a value moved": (
        "PCCL_MAX = 4",
        "PCCL_MAX = 5",
        [(True, "value pccl_reduce_op_t.PCCL_MAX was 4, and is 5")],
    ),
    "a constant moved": (
        "PCCL_TOKEN_BYTES_MAX 512",
        "PCCL_TOKEN_BYTES_MAX 600",
        [(True, "constant PCCL_TOKEN_BYTES_MAX was 512, and is 600")],
    ),
    "a field at the end of options": (
        "  uint64_t form; /*",
        "  uint64_t form; uint64_t more; /*",
        [
            (False, "struct pccl_collective_options_t was 80 bytes, aligned to 8, and is 88"),
            (False, "field pccl_collective_options_t.more is new: 8 bytes at 80, uint64_t"),
        ],
    ),
    "a field in the middle of options": (
        "  float *residual_out;\n",
        "  float *more; float *residual_out;\n",
        [
            (False, "struct pccl_collective_options_t was 80 bytes"),
            (True, "field pccl_collective_options_t.residual_out was 8 bytes at 64"),
            (True, "field pccl_collective_options_t.form was 8 bytes at 72"),
            (True, "field pccl_collective_options_t.more is new: 8 bytes at 64"),
        ],
    ),
    "a field in the padding of options": (
        "this group waits for; 0: the coordinator's default */\n",
        "*/ uint32_t more;\n",
        [(True, "field pccl_comm_options_t.more is new: 4 bytes at 36")],
    ),
    "a field in the padding of a result": (
        "if this call entered a new epoch */\n",
        "*/ uint32_t more;\n",
        [(False, "field pccl_admission_t.more is new: 4 bytes at 36")],
    ),
    "a reserved field that is used": (
        "uint32_t reserved;        /* 0 */",
        "uint32_t flags;",
        [
            (False, "field pccl_collective_options_t.reserved is gone"),
            (False, "field pccl_collective_options_t.flags is new: 4 bytes at 52"),
        ],
    ),
    "a field of another type": (
        "  uint64_t heartbeat_ns;",
        "  double heartbeat_ns;",
        [(True, "field pccl_coordinator_options_t.heartbeat_ns was 8 bytes at 56, uint64_t")],
    ),
    "a field less": (
        "  void *interrupted_context;\n",
        "",
        [
            (True, "struct pccl_comm_options_t was 128 bytes, aligned to 8, and is 120 bytes"),
            (True, "field pccl_comm_options_t.interrupted_context is gone"),
            (True, "field pccl_comm_options_t.ports was 8 bytes at 80"),
            (True, "field pccl_comm_options_t.label was 8 bytes at 88"),
            (True, "field pccl_comm_options_t.reconnect_timeout_ns was 8 bytes at 96"),
            (True, "field pccl_comm_options_t.send_rate was 8 bytes at 104"),
            (True, "field pccl_comm_options_t.congestion was 4 bytes at 112"),
            (True, "field pccl_comm_options_t.probe was 4 bytes at 116"),
            (True, "field pccl_comm_options_t.send_rates was 8 bytes at 120"),
        ],
    ),
    "a struct without a size that grows": (
        "  uint32_t flags;\n  uint32_t reserved;\n} pccl_tensor_t;",
        "  uint32_t flags;\n  uint32_t reserved; uint64_t more;\n} pccl_tensor_t;",
        [
            (True, "struct pccl_tensor_t was 40 bytes, aligned to 8, and is 48 bytes"),
            (True, "field pccl_tensor_t.more is new: 8 bytes at 40, uint64_t"),
        ],
    ),
    "a struct and an enum more": (
        "typedef struct pccl_work pccl_work_t;",
        "typedef struct pccl_work pccl_work_t; typedef struct { size_t size; } pccl_x_t;"
        "typedef enum { PCCL_Y } pccl_y_t;",
        [
            (False, "struct pccl_x_t is new: 8 bytes, aligned to 8"),
            (False, "enum pccl_y_t is new: 4 bytes"),
        ],
    ),
    "a handle that is opaque no more": (
        "typedef struct pccl_work pccl_work_t;",
        "typedef struct pccl_work { int is; } pccl_work_t;",
        [
            (True, "handle pccl_work_t is gone"),
            (False, "struct pccl_work_t is new"),
        ],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_told_with_what_it_means_to_old_callers(what: str) -> None:
    before, after, expected = CHANGES[what]
    header = HEADER.read_text()
    assert before in header
    other = header.replace(before, after, 1)
    found = changes(manifest(header), manifest(other))
    assert [change.breaks for change in found] == [breaks for breaks, _ in expected], found
    for change, (_, begin) in zip(found, expected, strict=True):
        assert change.sentence.startswith(begin)


def test_the_word_for_a_break_is_plain_to_see() -> None:
    assert re.match("BREAKS OLD CALLERS +x", str(Change(True, "x")))
    assert re.match("only adds +x", str(Change(False, "x")))
