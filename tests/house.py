"""Prints how large the project is: `make house`.

Lines are all lines of a file, comments and blank lines included; fields are those that a struct
declares; words are those of a document as it is written, tables and code included.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "engine"
STRUCTS = {
    "Session": ENGINE / "session" / "session.zig",
    "Epoch": ENGINE / "protocol" / "epoch.zig",
    "Lane": ENGINE / "session" / "link.zig",
    "Link": ENGINE / "session" / "link.zig",
}


def main() -> None:
    zig = list(ENGINE.rglob("*.zig"))
    sources = [path for path in zig if not path.stem.endswith("_test")]
    rooms = [path for path in sources if path.parent.name in ("protocol", "session")]
    tests = [path for path in zig if path.stem.endswith("_test")]
    tests += [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".zig", ".py")]
    print(f"engine without tests: {lines(sources):,} lines in {len(sources)} files")
    compat = [path for path in (ROOT / "compat").rglob("*") if path.suffix in (".c", ".h", ".py")]
    print(f"names of PCCL 1.0: {lines(compat):,} lines in {len(compat)} files")
    print(f"files of protocol and session: {len(rooms)}")
    print(f"messages of the control protocol: {len(members('union', 'Message', control()))}")
    for name, path in STRUCTS.items():
        print(f"fields of {name}: {len(members('struct', name, path.read_text()))}")
    print(f"tests and _test.zig: {lines(tests):,} lines")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        print(f"words of {path.relative_to(ROOT)}: {len(path.read_text().split()):,}")


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def control() -> str:
    return (ENGINE / "wire" / "control.zig").read_text()


def members(kind: str, name: str, text: str) -> list[str]:
    """The fields of a struct or union at the top of a file that `zig fmt` has formatted."""
    found = re.search(rf"^pub const {name} = {kind}.*? \{{\n(.*?)^\}};", text, re.M | re.S)
    assert found is not None, name
    return re.findall(r"^    (\w+): ", found[1], re.M)


if __name__ == "__main__":
    main()
