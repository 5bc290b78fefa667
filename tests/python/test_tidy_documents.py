"""Names in documents exist, and functions that are too long are listed with their reason.

The rules for names are at the head of documents.py; each is shown here a text that breaks it, and
one that does not, so that a rule which finds nothing is known to look.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import documents
import pytest

ROOT = documents.ROOT
THERE = documents.Repository()
DOCUMENTS = sorted(Path(path) for path in THERE.files if path.endswith(".md"))

WRONG: list[tuple[str, str]] = [
    ("Say `make tset`.", "no target tset"),
    ("Say `make sim SEADS=3`.", "reads no SEADS"),
    ("```sh\nmake build && make nothing\n```", "no target nothing"),
    ("```console\n$ pccl staus\n```", "pccl has no staus"),
    ("`pccl status --jsn`", "pccl status has no --jsn"),
    ("`pccl run -m 4`", "pccl run has no -m"),
    ("`pccl bench kernel`", "pccl bench has no kernel"),
    ("`pccl-sim --sead 3`", "pccl-sim has no --sead"),
    ("`pccl-sim fuz`", "pccl-sim has no fuz"),
    ("```sh\npython -m bench loopback --sizes 3  # so\n```", "loopback has no --sizes"),
    ("`zig build test-nett -Dtsan`", "zig build has no test-nett"),
    ("`zig build test-net -Dtsann`", "has no -Dtsann"),
    ("`python tests/abi/manifst.py`", "there is no tests/abi/manifst.py"),
    ("with `--stat` it", "no program of ours has --stat"),
    ("held by `test_one_peer_never_call`", "there is no test test_one_peer_never_call"),
    ("and by `…_under_loads`", "no test ends with _under_loads"),
    ("see `tests/sim/oracel.zig`", "there is no tests/sim/oracel.zig"),
    ("see `protocol/epochs.zig`", "there is no protocol/epochs.zig"),
    ("see `oracel.zig`", "there is no oracel.zig"),
    ("see `tests/smi/`", "there is no tests/smi/"),
    ("see `tests/sim/scenarios/*.text.md`", "there is no tests/sim/scenarios"),
    ("`protocol/attempt.zig: go_onn`", "declares no go_onn"),
    ("`pccl_all_reduse` begins", "pccl_all_reduse is in no source file"),
    ("`pccl.PcclErrors`", "PcclErrors is in no source file"),
    ("`comm.info().alife`", "alife is in no source file"),
    ("set PCCL_TOKENS=1 or `PCCL_TOKENS`", "PCCL_TOKENS is in no source file"),
    ("as sim cut_of_threes shows", "cut_of_threes is in no source file"),
    ("see [that](HACKIN.md)", "there is no docs/internals/HACKIN.md"),
    ("see [that](HACKING.md#testes)", "has no section testes"),
    ("| defect | kept out by |\n|---|---|\n| x | half_open_lanes |", "half_open_lanes is no kept"),
    ("| a | b |\n|---|--:|\n| 1 | 2 |\n\n| 3 | 4 |", "no head above the row | 3"),
    ("| mutation | caught by |\n|---|---|\n| forget_claims | p9_x |", "p9_x is no caught by"),
]
RIGHT = """
`make sim SEED=3`, `make` alone, `pccl run -n 4 -- python --what x.py`, `--state DIR`,
`pccl-sim fuzz --seeds 5`, `zig build golden -Dtarget=x86_64-windows -fwine`, `…_under_load`,
`protocol/attempt.zig: go_on`, `epoch.zig`, `bench/`, `demo_out/loss.png`, `comm.info().alive`,
`epoll`, `_async`, `window_bytes / 2n`, cut_of_three, [tests](HACKING.md#tests)

| defect | kept out by |
|---|---|
| any | half_open_lane |
"""


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_everything_that_a_document_names_exists(document: Path) -> None:
    complaints = documents.complaints(THERE, document, THERE.text(document.as_posix()))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_a_name_of_nothing_is_seen(text: str, complaint: str) -> None:
    found = documents.complaints(THERE, Path("docs/internals/X.md"), text)
    assert any(complaint in one for one in found), found


def test_names_of_what_is_there_pass() -> None:
    assert documents.complaints(THERE, Path("docs/internals/X.md"), RIGHT) == []
    assert len(DOCUMENTS) > 10, "the list of documents is wrong"


def test_sections_are_headings_and_no_comments_in_blocks_of_code(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("")
    (tmp_path / "X.md").write_text("# The `b` of [c](d.md)\n\n```sh\n# a comment\n```\n")
    there = documents.Repository(tmp_path)
    assert documents.link(there, "#the-b-of-c", Path("X.md")) == []
    found = documents.link(there, "#a-comment", Path("X.md"))
    assert found == ["X.md has no section a-comment"]


def test_the_table_of_canaries_is_that_of_the_mutations_which_the_gate_catches() -> None:
    lists = [path for path in THERE.files if re.fullmatch(r"tests/mutants/\w+\.txt", path)]
    mutants = "\n".join(map(THERE.text, sorted(lists))).split("\nmutant ")[1:]
    pattern = re.compile(r"^by (?:checker|transcript) (\w+)$", re.M)
    caught = {one.split()[0]: set(pattern.findall(one)) for one in mutants}
    canaries = re.findall(r"^mutant (\w+)$", THERE.text("tests/mutants/canaries.txt"), re.M)
    section = (
        THERE.text("docs/internals/SIMULATOR.md").split("\n## Canaries\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| ([a-z_, ]+) \| ([a-z0-9_, ]+)(?::.*)? \|$", section, re.M)[1:]
    told = {name: set(by.split(", ")) for names, by in rows for name in names.split(", ")}
    assert set(canaries) <= set(told)
    assert told == {name: caught.get(name) for name in told}
    assert len(told) > 20


def test_the_table_of_errors_has_each_class_of_them() -> None:
    classes = re.findall(r"^class (\w+)\(", THERE.text("pccl_py/errors.py"), re.M)
    rows = re.findall(r"^\| (?!---)(.*?) \|", THERE.text("docs/reference/ERRORS.md"), re.M)
    named = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    assert set(classes) - named == {"PcclError"}
    assert len(classes) > 10


# ---- long functions

LINES_MAX = 70
NAME_MAX = 60  # of a test's name, which is a sentence
LISTED = Path(__file__).parent / "long_functions.txt"
ZIG_FUNCTION = re.compile(
    r"( *)(?:pub |export |inline |noinline )*(?:fn (\w+)\(|test (?:\"(.*)\"|(\w+)) \{)"
)


def zig_functions(text: str) -> Iterator[tuple[str, int]]:
    """Functions and tests with their lengths, in text that `zig fmt` has made: each ends with a
    brace as far to the right as it begins. One that returns a type is a namespace, no function.
    """
    lines = text.splitlines()
    for begin, line in enumerate(lines):
        match = ZIG_FUNCTION.match(line)
        if match is None or line.endswith(("}", ";")):
            continue
        head = next(n for n in range(begin, len(lines)) if lines[n].endswith("{"))
        end = next(n for n in range(head, len(lines)) if lines[n].rstrip(",;") == match[1] + "}")
        if not lines[head].endswith(" type {"):
            yield match[2] or match[3] or match[4], end - begin + 1


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def long_functions() -> set[str]:
    found = set()
    for path in sorted(THERE.files):
        functions = {".zig": zig_functions, ".py": python_functions}.get(Path(path).suffix)
        for name, lines in functions(THERE.text(path)) if functions else ():
            if lines > LINES_MAX:
                found.add(f"{path}: {name[:NAME_MAX]}")
    return found


def test_functions_of_more_than_70_lines_are_listed_with_a_reason() -> None:
    entries = [line for line in LISTED.read_text("utf-8").splitlines() if line[:1] != "#"]
    names = [name for name in entries if name and name[0] != " "]
    for name in names:
        reason = entries[entries.index(name) + 1]
        assert reason.startswith("    ") and len(reason.split()) > 2, f"{name}: say why"
    found = long_functions()
    assert found.issubset(names), f"split, or list with a reason: {sorted(found - set(names))}"
    assert found.issuperset(names), f"no longer so long, take off: {sorted(set(names) - found)}"
    assert len(names) == len(set(names)), "listed twice"


def test_the_length_of_a_function_is_that_of_all_its_lines() -> None:
    zig = (
        "pub fn Ring(comptime T: type) type {\n    return struct {\n"
        "        fn step(\n            a: T,\n        ) error{\n"
        "            Full,\n        }!void {\n"
        "            if (a == 0) {\n                return;\n            }\n        }\n    };\n}\n"
        'test "it steps" {\n    const text =\n        \\\\}\n    ;\n}\n'
        "extern fn abs(x: i32) i32;\nfn none() void {}\n"
    )
    assert list(zig_functions(zig)) == [("step", 9), ("it steps", 5)]
    python = "def f(\n    a,\n):\n    async def g():\n        return 1\n\n    return g\n"
    assert sorted(python_functions(python)) == [("f", 7), ("g", 2)]
