"""Old programs and new headers: the header keeps what abi.txt says, and the library what it says.

manifest.py says what a change to the header means for programs that were compiled before; here it
says it about changes of a header that is made up.
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


# A short header, which is all that a change needs.
MADE_UP = """
#define PCCL_API __attribute__((visibility("default")))
#define PCCL_VERSION_MINOR 1
#define PCCL_NAME_BYTES_MAX 512
typedef enum pccl_op { PCCL_SUM = 0, PCCL_MAX = 4 } pccl_op_t;
typedef struct pccl_work pccl_work_t; /* opaque */
typedef struct pccl_tensor { /* does not say its size */
  void *data;
  uint32_t flags;
  uint32_t reserved;
} pccl_tensor_t;
typedef struct pccl_call_options {
  size_t size;
  pccl_op_t op;
  uint32_t reserved; /* 0 */
  float *residual;
  uint64_t form;
} pccl_call_options_t;
typedef struct pccl_peer_options { /* padding behind the count */
  size_t size;
  uint32_t count;
  const char *label;
  uint64_t rate;
} pccl_peer_options_t;
typedef struct pccl_outcome { /* padding at the end */
  size_t size;
  uint32_t changed;
} pccl_outcome_t;
PCCL_API uint32_t pccl_version(void);
PCCL_API uint16_t pccl_port(const pccl_work_t *work);
PCCL_API int pccl_cancel(pccl_work_t *work);
"""
# Changes of it, and what is to be said about them.
CHANGES = {
    "nothing": ("", "", []),
    "a comment": ("/* opaque */", "", []),
    "the version": ("PCCL_VERSION_MINOR 1", "PCCL_VERSION_MINOR 2", []),
    "the name of a parameter": (
        "pccl_cancel(pccl_work_t *work)",
        "pccl_cancel(pccl_work_t *w)",
        [],
    ),
    "const": ("pccl_cancel(pccl_work_t *work)", "pccl_cancel(const pccl_work_t *work)", []),
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
        "pccl_cancel(pccl_work_t *work)",
        "pccl_cancel(pccl_work_t *work, int how)",
        [(True, "function pccl_cancel was int (pccl_work_t *), and is ")],
    ),
    "another result": (
        "PCCL_API uint16_t pccl_port",
        "PCCL_API uint32_t pccl_port",
        [(True, "function pccl_port was uint16_t (")],
    ),
    "a value more": (
        "PCCL_MAX = 4",
        "PCCL_MAX = 4, PCCL_NAND = 8",
        [(False, "value pccl_op_t.PCCL_NAND is new: 8")],
    ),
    "a value moved": (
        "PCCL_MAX = 4",
        "PCCL_MAX = 5",
        [(True, "value pccl_op_t.PCCL_MAX was 4, and is 5")],
    ),
    "a constant moved": (
        "PCCL_NAME_BYTES_MAX 512",
        "PCCL_NAME_BYTES_MAX 600",
        [(True, "constant PCCL_NAME_BYTES_MAX was 512, and is 600")],
    ),
    "a field at the end of options": (
        "  uint64_t form;",
        "  uint64_t form; uint64_t more;",
        [
            (False, "struct pccl_call_options_t was 32 bytes, aligned to 8, and is 40"),
            (False, "field pccl_call_options_t.more is new: 8 bytes at 32, uint64_t"),
        ],
    ),
    "a field in the middle of options": (
        "  float *residual;",
        "  float *more; float *residual;",
        [
            (False, "struct pccl_call_options_t was 32 bytes"),
            (True, "field pccl_call_options_t.residual was 8 bytes at 16"),
            (True, "field pccl_call_options_t.form was 8 bytes at 24"),
            (True, "field pccl_call_options_t.more is new: 8 bytes at 16"),
        ],
    ),
    "a field in the padding of options": (
        "  uint32_t count;",
        "  uint32_t count; uint32_t more;",
        [(True, "field pccl_peer_options_t.more is new: 4 bytes at 12")],
    ),
    "a field in the padding of a result": (
        "  uint32_t changed;",
        "  uint32_t changed; uint32_t more;",
        [(False, "field pccl_outcome_t.more is new: 4 bytes at 12")],
    ),
    "a reserved field that is used": (
        "uint32_t reserved; /* 0 */",
        "uint32_t flags;",
        [
            (False, "field pccl_call_options_t.reserved is gone"),
            (False, "field pccl_call_options_t.flags is new: 4 bytes at 12"),
        ],
    ),
    "a field of another type": (
        "  uint64_t rate;",
        "  double rate;",
        [(True, "field pccl_peer_options_t.rate was 8 bytes at 24, uint64_t")],
    ),
    "a field less": (
        "  const char *label;\n",
        "",
        [
            (True, "struct pccl_peer_options_t was 32 bytes, aligned to 8, and is 24 bytes"),
            (True, "field pccl_peer_options_t.label is gone"),
            (True, "field pccl_peer_options_t.rate was 8 bytes at 24"),
        ],
    ),
    "a struct without a size that grows": (
        "  uint32_t reserved;\n} pccl_tensor_t;",
        "  uint32_t reserved; uint64_t more;\n} pccl_tensor_t;",
        [
            (True, "struct pccl_tensor_t was 16 bytes, aligned to 8, and is 24 bytes"),
            (True, "field pccl_tensor_t.more is new: 8 bytes at 16, uint64_t"),
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
    assert before in MADE_UP
    other = MADE_UP.replace(before, after, 1)
    found = changes(manifest(MADE_UP), manifest(other))
    assert [change.breaks for change in found] == [breaks for breaks, _ in expected], found
    for change, (_, begin) in zip(found, expected, strict=True):
        assert change.sentence.startswith(begin)


def test_the_word_for_a_break_is_plain_to_see() -> None:
    assert re.match("BREAKS OLD CALLERS +x", str(Change(True, "x")))
    assert re.match("only adds +x", str(Change(False, "x")))
