"""The rules for wheels (release/wheel_check.py), each with a wheel that breaks it.

`make wheels` and `make test-long` ask auditwheel and abi3audit as well, about a real wheel.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest

import pccl_py as pccl

wheel_check = pytest.importorskip("wheel_check", reason="needs pyelftools")

EXTENSION = "pccl_py/_pccl.abi3.so"
GOOD = [
    *("pccl_py/__init__.py", "pccl_py/py.typed", "pccl_py/libpccl.so"),
    "pccl_py/libpccl_jax.so",
    EXTENSION,
]
GOOD += ["pccl_py/include/pccl.h", "pccl_py/include/compat/pccl.h", "pccl_numpy/__init__.py"]
GOOD += ["pccl_py/libpccl_jax.so", "pccl_jax/__init__.py", "pccl_train/__init__.py"]
GOOD += ["pccl_torch/__init__.py", "pccl_torch_entry/__init__.py", "pccl_py-1.dist-info/METADATA"]


@pytest.mark.parametrize(
    ("names", "abi", "complaint"),
    [
        (GOOD, "abi3", ""),
        ([name for name in GOOD if not name.endswith("pccl.h")], "abi3", "pccl.h is missing"),
        ([*GOOD, "tests/conftest.py"], "abi3", "tests/conftest.py does not belong there"),
        ([*GOOD, "pccl_py/__pycache__/a.pyc"], "abi3", "a.pyc does not belong there"),
        (GOOD, "cp311", "its extensions are"),
        ([*GOOD, "pccl_py/_pccl.cpython-311.so"], "abi3", "its extensions are"),
        ([name for name in GOOD if name != EXTENSION], "abi3", "its extensions are []"),
    ],
)
def test_a_wheel_has_the_package_and_one_extension(
    names: list[str], abi: str, complaint: str
) -> None:
    found = "; ".join(wheel_check.contents(names, abi))
    assert (complaint in found) if complaint else found == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("all_reduce [a](https://a.example) [b](#b)", ""),
        ("something else", "is not the README"),
        ("all_reduce [run](docs/RUN.md)", "relative link ](docs/RUN.md)"),
    ],
)
def test_the_description_has_no_link_to_a_file(tmp_path: Path, text: str, complaint: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("pccl_py-1.dist-info/METADATA", f"Name: pccl-py\n\n{text}\n")
        found = "; ".join(wheel_check.description(archive))
    assert (complaint in found) if complaint else found == ""


def test_a_library_is_for_the_cpu_of_its_wheel_and_searches_beside_itself() -> None:
    """Method: our own library, and the same with another CPU in its head."""
    image = bytearray((Path(pccl.library_dir()) / "libpccl.so").read_bytes())
    machine = os.uname().machine
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert list(wheel_check.library(bytes(image), machine)) == []
    (complaint,) = wheel_check.library(bytes(image), other)
    assert complaint.startswith(f"it is for {wheel_check.MACHINES[machine]}")
    struct.pack_into("<H", image, 18, 62 if other == "x86_64" else 183)  # e_machine
    assert list(wheel_check.library(bytes(image), other)) == []
    (extension,) = Path(pccl.__file__).parent.glob("_pccl*.so")
    searched = extension.read_bytes()
    assert list(wheel_check.library(searched, machine)) == []
    place = searched.index(b"$ORIGIN\0")
    wrong = searched[:place] + b"$OTHERS\0" + searched[place + 8 :]
    assert list(wheel_check.library(wrong, machine)) == ["it searches $OTHERS"]


@pytest.mark.parametrize(
    ("kind", "flags", "complaint"),
    [
        (0x6474E551, 7, "its stack is executable"),
        (0x6474E552, None, "its relocations stay writable"),
        (1, 7, "a segment is writable and executable"),
    ],
)
def test_memory_of_a_library_is_writable_or_executable(
    kind: int, flags: int | None, complaint: str
) -> None:
    """Method: our own library, with other flags in the heads of its segments, or without one."""
    image = bytearray((Path(pccl.library_dir()) / "libpccl.so").read_bytes())
    (first,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    for at in range(first, first + size * count, size):
        if struct.unpack_from("<I", image, at) != (kind,):
            continue
        if flags is None:
            struct.pack_into("<I", image, at, 0)  # PT_NULL
        else:
            struct.pack_into("<I", image, at + 4, flags)
    found = list(wheel_check.library(bytes(image), os.uname().machine))
    assert complaint in found and len(found) <= 2


def test_symbols_are_bound_when_a_library_is_loaded() -> None:
    image = (Path(pccl.library_dir()) / "libpccl.so").read_bytes()
    place = image.index(struct.pack("<QQ", 30, 8))  # DT_FLAGS, BIND_NOW
    lazy = image[: place + 8] + bytes(8) + image[place + 16 :]
    (complaint,) = wheel_check.library(lazy, os.uname().machine)
    assert complaint == "its symbols are not bound when it is loaded"
