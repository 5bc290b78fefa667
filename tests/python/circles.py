"""Files of one layer that import each other in a circle: whoever reads one has to read them all.

An import counts if anything but tests reaches it. Used by test_tidy_circles.py; `python
tests/python/circles.py` prints the circles of all layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "engine"
LAYERS = ("base", "wire", "protocol", "collective", "session", "net", "abi")

# A declaration at the top of a file begins in the first column (zig fmt), and ends at the next one.
START = re.compile(
    r"^(?:(?P<open>pub|export) )?"
    r"(?:(?:noinline |inline )?(?:fn|const|var) (?P<name>\w+)|test\b|(?P<runs>comptime) \{)",
    re.MULTILINE,
)
IMPORT = re.compile(r'@import\("(\w+\.zig)"\)')


def declarations(code: str) -> Iterator[tuple[str | None, bool, str]]:
    """Name, whether the compiler reaches it from other files, and text; a test has no name."""
    starts = list(START.finditer(code))
    ends = [match.start() for match in starts[1:]] + [len(code)]
    for match, end in zip(starts, ends, strict=True):
        yield match["name"], bool(match["open"] or match["runs"]), code[match.start() : end]


def imports(text: str) -> set[str]:
    """The files beside this one that it needs for all that other files can reach in it."""
    parts = list(declarations(re.sub(r"//[^\n]*", "", text)))
    by_name = {name: body for name, _, body in parts if name}
    waiting = [body for _, is_open, body in parts if is_open]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        body = waiting.pop()
        found |= set(IMPORT.findall(body))
        used = (set(re.findall(r"\w+", body)) & by_name.keys()) - seen
        seen |= used
        waiting += [by_name[name] for name in used]
    return found


def graph(layer: str) -> dict[str, set[str]]:
    """Which file of a layer imports which others; files of tests are left out."""
    files = [path for path in (ENGINE / layer).glob("*.zig") if not path.stem.endswith("_test")]
    names = {path.name for path in files}
    return {path.name: imports(path.read_text("utf-8")) & names for path in files}


def reached(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in edges[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The sets of files that all reach each other."""
    reach = {name: reached(edges, name) for name in edges}
    found = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in edges
        if name in reach[name]
    }
    return sorted(list(circle) for circle in found)


if __name__ == "__main__":
    for each in LAYERS:
        for circle in circles(graph(each)):
            print(f"engine/{each}: {len(circle)} files in a circle: {', '.join(circle)}")
