"""The manifest of the ABI: what programs were compiled against, a line for each thing, in abi.txt.

`python tests/abi/manifest.py` writes abi.txt anew from include/pccl.h, and compat/include/pccl.h
with the names of PCCL 1.0, and says what that changes for programs that were compiled before; the
commit of a change to a header has it. Its tests: test_manifest.py.
"""

from __future__ import annotations

import functools
import re
import struct
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cffi
from header import COMPAT, HEADER, declarations

GOLDEN = Path(__file__).with_name("abi.txt")

HEAD = """\
# The promises of include/pccl.h, and then of compat/include/pccl.h, to programs that are compiled
# already, where pointers have 64 bits.
# Made by tests/abi/manifest.py, which says what a change means to them; read by test_manifest.py.
"""

# By what a line begins with: "struct pccl_outcome_t: 80 bytes, aligned to 8".
Manifest = dict[str, str]


@functools.cache
def manifest(header: str) -> Manifest:
    """The promises of a header. Its version is no part of that: it is there to rise."""
    plain = declarations(header)
    ffi = cffi.FFI()
    ffi.cdef(plain)
    lines: Manifest = {}
    for name, value in re.findall(r"^#define (\w+) +(\d+)", plain, flags=re.MULTILINE):
        if not name.startswith("PCCL_VERSION_"):
            lines[f"constant {name}"] = value
    for name in ffi.list_types()[0]:
        lines.update(_type(ffi, name))
    for name in sorted(re.findall(r"\b(pccl\w+)\([^;]*;", plain)):
        lines[f"function {name}"] = _signature(ffi, plain, name)
    return lines


def of_all() -> Manifest:
    """The promises of both headers."""
    return {**manifest(HEADER.read_text()), **manifest(COMPAT.read_text())}


def _type(ffi: Any, name: str) -> Iterator[tuple[str, str]]:
    kind = ffi.typeof(name)
    if kind.kind == "enum":
        yield f"enum {name}", f"{ffi.sizeof(kind)} bytes"
        for word, number in sorted(kind.relements.items(), key=lambda item: item[1]):
            yield f"value {name}.{word}", str(number)
    elif not kind.fields:
        yield f"handle {name}", "opaque"
    else:
        yield f"struct {name}", f"{ffi.sizeof(kind)} bytes, aligned to {ffi.alignof(kind)}"
        for field, part in kind.fields:
            size = ffi.sizeof(part.type)
            yield f"field {name}.{field}", f"{size} bytes at {part.offset}, {part.type.cname}"


def _signature(ffi: Any, plain: str, name: str) -> str:
    """The signature in types alone: names of parameters, and const, are not compiled."""
    found = re.search(rf"(?:^|;)\s*([^;]*?)\b{name}\(([^;]*)\);", plain)
    assert found, name
    cname: str = ffi.typeof(f"{found[1]}(*)({found[2]})").cname
    return cname.replace("(*)", " ", 1)


def to_text(lines: Manifest) -> str:
    wrap = textwrap.TextWrapper(100, subsequent_indent="    ", break_long_words=False)
    return HEAD + "".join(wrap.fill(f"{what}: {how}") + "\n" for what, how in lines.items())


def from_text(text: str) -> Manifest:
    lines = (line for line in text.replace("\n    ", " ").splitlines() if line[0] != "#")
    return {what: how for what, _, how in (line.partition(": ") for line in lines)}


# ---- what a change means ---------------------------------------------------------------------


class Change(NamedTuple):
    breaks: bool
    sentence: str

    def __str__(self) -> str:
        return ("BREAKS OLD CALLERS  " if self.breaks else "only adds           ") + self.sentence


def changes(old: Manifest, new: Manifest) -> list[Change]:
    """The differences, and whether a program that was compiled with the old one goes on."""
    found = []
    for what in [*old, *(what for what in new if what not in old)]:
        if what not in new:
            fills = _place(what, old) in [_place(other, new) for other in new if other not in old]
            is_used_now = what.endswith(".reserved") and fills
            found.append(Change(not is_used_now, f"{what} is gone; it was {old[what]}"))
        elif what not in old:
            found += _added(what, old, new)
        elif old[what] != new[what]:
            sentence = f"{what} was {old[what]}, and is {new[what]}"
            found.append(Change(not _grows(what, old, new), sentence))
    return found


def _added(what: str, old: Manifest, new: Manifest) -> Iterator[Change]:
    kind, _, name = what.partition(" ")
    owner = name.partition(".")[0]
    sentence = f"{what} is new: {new[what]}"
    if kind == "field":
        if f"struct {owner}" not in old:
            return  # the struct is new, and has its own line
        yield Change(not _in_new_place(what, owner, old, new), sentence)
    elif kind != "value" or f"enum {owner}" in old:
        yield Change(False, sentence)


def _grows(what: str, old: Manifest, new: Manifest) -> bool:
    """A struct in which callers say how large theirs is may get longer."""
    kind, _, name = what.partition(" ")
    if kind != "struct" or not _says_its_size(name, old):
        return False
    (was, was_aligned), (now, now_aligned) = (_numbers(lines[what]) for lines in (old, new))
    return now > was and now_aligned == was_aligned


def _in_new_place(what: str, owner: str, old: Manifest, new: Manifest) -> bool:
    """Not where old callers have something. Options are read there, and padding may be anything."""
    if _place(what, new) == _place(f"field {owner}.reserved", old):
        return True  # which had to be zero
    size, _ = _numbers(old[f"struct {owner}"])
    _, offset = _numbers(new[what])
    is_result = not owner.endswith("_options_t")
    return _says_its_size(owner, old) and (offset >= size or is_result)


def _place(what: str, lines: Manifest) -> tuple[str, int, int] | None:
    """For a field: its struct, size and offset."""
    kind, _, name = what.partition(" ")
    if kind != "field" or what not in lines:
        return None
    return (name.partition(".")[0], *_numbers(lines[what]))


def _says_its_size(owner: str, lines: Manifest) -> bool:
    return lines.get(f"field {owner}.size") == "8 bytes at 0, size_t"


def _numbers(how: str) -> tuple[int, int]:
    first, second = re.findall(r"\d+", how)[:2]
    return int(first), int(second)


# ---- the library -----------------------------------------------------------------------------


def exports(library: Path) -> set[str]:
    """The names that an ELF library of 64 bits offers to whoever links with it."""
    data = library.read_bytes()
    assert data[:6] == b"\x7fELF\2\1", f"{library} is no little-endian ELF of 64 bits"
    table, entry_size, count = (
        *struct.unpack_from("<Q", data, 40),
        *struct.unpack_from("<HH", data, 58),
    )
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + entry_size * n) for n in range(count)
    ]
    dynamic_symbols = 11
    (symbols,) = (section for section in sections if section[1] == dynamic_symbols)
    names_at = sections[symbols[6]][4]
    found = set()
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name_at, info, _, section = struct.unpack_from("<IBBH", data, at)
        if section != 0 and info >> 4 != 0:  # defined here, and not local
            begin = names_at + name_at
            found.add(data[begin : data.index(b"\0", begin)].decode())
    return found


def main() -> None:
    new = of_all()
    old = from_text(GOLDEN.read_text()) if GOLDEN.exists() else {}
    GOLDEN.write_text(to_text(new))
    for change in changes(old, new):
        print(change)
    print(f"{GOLDEN}: {len(new)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
