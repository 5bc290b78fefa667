"""House rules that a program can check: heads, line lengths, banned calls, numbers kept twice.

Each rule is a function from (path, text) to complaints, applied to every source file; each is also
shown a text that breaks it, so that a rule which finds nothing is known to look. Why the rules are
what they are: docs/internals/HACKING.md.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sentences

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("kernels", "engine", "include", "compat", "bindings", "pccl_py", "frontends"),
    *("tests", "bench", "examples", "harness", "release", "docs", ".ci"),
)
# The folders of Python that users import.
LIBRARY = ("pccl_py", "frontends", "compat")
SUFFIXES = {".zig", ".zon", ".h", ".c", ".cpp", ".py", ".pyi", ".toml", ".md", ".sh", ".txt"}
PLAIN_NAMES = {"Makefile", "run"}

# C's documentation is read in the header, and Markdown wraps badly.
COLUMNS_MAX = {".md": 120, ".h": 120}
HEADS = {
    ".zig": ("//!",),
    ".py": ('"""', 'r"""', "#!/usr/bin/env python"),
    ".pyi": ('"""', "#"),
    ".h": ("/*", "//"),
    ".c": ("/*", "//"),
    ".cpp": ("/*", "//"),
    ".toml": ("#",),
    ".sh": ("#!",),
    ".md": ("# ",),
}


def sources() -> list[Path]:
    """Every file that a person wrote."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*") if (ROOT / folder).is_dir() else []
    generated = ROOT / "pccl_py" / "include"
    return sorted(
        path.relative_to(ROOT)
        for path in found
        if path.is_file()
        and (path.suffix in SUFFIXES or path.name in PLAIN_NAMES)
        and "__pycache__" not in path.parts
        and not any(part.startswith(".") and part != ".ci" for part in path.relative_to(ROOT).parts)
        and generated not in path.parents
    )


def numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def head_missing(path: Path, text: str) -> list[str]:
    """A file opens by saying what it owns. An empty one (py.typed, a namespace) says nothing."""
    heads = HEADS.get(path.suffix, ("#",) if path.name in PLAIN_NAMES else ())
    if not text.strip() or not heads or text.startswith(heads):
        return []
    return [f"{path}:1: opens with none of {', '.join(heads)}: say what the file owns"]


def line_too_long(path: Path, text: str) -> list[str]:
    columns = COLUMNS_MAX.get(path.suffix, 100)
    rows = numbered(text)
    # A table row or a link cannot be broken in Markdown.
    if path.suffix == ".md":
        rows = ((n, line) for n, line in rows if not line.startswith("|") and "](" not in line)
    return [
        f"{path}:{n}: {len(line)} columns, {columns} allowed"
        for n, line in rows
        if len(line) > columns
    ]


def whitespace(path: Path, text: str) -> list[str]:
    complaints = [
        f"{path}:{n}: trailing space" for n, line in numbered(text) if line != line.rstrip()
    ]
    if path.name != "Makefile":
        complaints += [f"{path}:{n}: a tab" for n, line in numbered(text) if "\t" in line]
    if text and not text.endswith("\n"):
        complaints.append(f"{path}: no newline at the end")
    return complaints


def is_test(path: Path) -> bool:
    return path.parts[0] == "tests" or path.stem == "tests" or path.stem.endswith("_test")


def banned_call(path: Path, text: str) -> list[str]:
    """A library does not print, and neither it nor a test waits by sleeping."""
    banned: list[tuple[str, str]] = []
    if path.suffix == ".zig" and path.parts[0] in ("engine", "kernels") and not is_test(path):
        banned.append((r"std\.debug\.print|std\.log\.", "a library does not print: engine/net/log"))
    if path.suffix == ".zig":
        banned.append((r"usingnamespace|@cImport", "gone from Zig"))
    library = path.parts[0] in LIBRARY and "cli" not in path.parts
    if path.suffix == ".py" and library:
        banned.append((r"(?<![\w.])print\(", "a library does not print: logging.getLogger('pccl')"))
    if path.suffix == ".py" and (library or is_test(path)):
        banned.append((r"\btime\.sleep\(", "wait for the event itself, with a deadline"))
    if path.suffix == ".py":
        banned.append((r"except\s*:", "name what is caught"))
    return [
        f"{path}:{n}: {match.group()}: {why}"
        for n, line in numbered(text)
        for pattern, why in banned
        if (match := re.search(pattern, line)) and not line.lstrip().startswith(("#", "//"))
    ]


def machine_path(path: Path, text: str) -> list[str]:
    """Nothing of the machine it was written on: no absolute home, no package index."""
    pattern = r"(?<![\w.~-])/(?:home|root|Users|work|tmp|opt)/\w+|index-ur[l]|https?://pypi\."
    return [
        f"{path}:{n}: {match.group()} belongs to one machine"
        for n, line in numbered(text)
        if (match := re.search(pattern, line))
    ]


def sentence_without_subject(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{n}: a noun is missing at {word!r}: give the sentence a subject"
        for n, word in sentences.without_subject(path, text)
    ]


def is_for_must(path: Path, text: str) -> list[str]:
    library = path.parts[0] in LIBRARY
    return [
        f"{path}:{n}: {words!r}: an error says what it must be"
        for n, words in (sentences.is_for_must(path, text) if library else ())
    ]


def swallowed_keyword(path: Path, text: str) -> list[str]:
    """A function of the library that takes `**names` uses them, or refuses every call."""
    library = path.parts[0] in LIBRARY
    # Links of an optax.chain must take the arguments of the other links.
    is_link = path.name == "optax.py"
    if path.suffix != ".py" or not library or is_link or "**" not in text:
        return []
    complaints = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or function.args.kwarg is None:
            continue
        name = function.args.kwarg.arg
        used = any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))
        # A signature alone, for overloads and protocols, has no body; the other refuses.
        is_form = ast.unparse(function.body[-1]) == "..."
        if not used and not is_form and not isinstance(function.body[-1], ast.Raise):
            complaints.append(f"{path}:{function.lineno}: **{name} is ignored: name what it takes")
    return complaints


Rule = Callable[[Path, str], list[str]]
RULES: list[Rule] = [
    *(head_missing, line_too_long, whitespace, banned_call, machine_path),
    *(sentence_without_subject, is_for_must, swallowed_keyword),
]

BREACHES: list[tuple[Rule, str, str]] = [
    (head_missing, "engine/base/x.zig", "const x = 1;\n"),
    (head_missing, "pccl_py/x.py", "import os\n"),
    (line_too_long, "kernels/x.zig", "//! " + "x" * 97 + "\n"),
    (line_too_long, "docs/X.md", "x" * 121 + "\n"),
    (whitespace, "pccl_py/x.py", '"""X."""\n\tx = 1\n'),
    (whitespace, "pccl_py/x.py", '"""X."""\nx = 1 \n'),
    (whitespace, "pccl_py/x.py", '"""X."""'),
    (banned_call, "engine/net/x.zig", '    std.debug.print("x", .{});\n'),
    (banned_call, "frontends/pccl_numpy/x.py", '    print("x")\n'),
    (banned_call, "tests/python/test_x.py", "    time" + ".sleep(1)\n"),
    (banned_call, "pccl_py/x.py", "    except" + ":\n"),
    (machine_path, "docs/X.md", "see " + "/home" + "/someone\n"),
    (sentence_without_subject, "engine/x.zig", "//! X: x.\n//! Who calls it: y.zig.\n"),
    (sentence_without_subject, "engine/x.zig", "    a: u8, // Of an attempt.\n"),
    (sentence_without_subject, "engine/x.zig", "    /// An end.\n    /// What is lost is gone.\n"),
    (sentence_without_subject, "include/x.h", "/* It waits. What\n * comes is kept. */\n"),
    (sentence_without_subject, "pccl_py/x.py", '"""X.\n\n    What it owns: x.\n"""\n'),
    (sentence_without_subject, "pccl_py/x.py", "x = 1  # Of each rank; None where none is.\n"),
    (sentence_without_subject, "docs/X.md", "It ends\nthere. **What is left** is kept.\n"),
    (sentence_without_subject, "docs/X.md", "- it does\n- Who calls gets it\n"),
    (sentence_without_subject, "docs/X.md", "| x | What it is. |\n"),
    (sentence_without_subject, "docs/X.md", "| a | b |\n|---|---|\n| x | what it is |\n"),
    (sentence_without_subject, "docs/X.md", "| a | b |\n|---|---|\n| x | of a chunk: it |\n"),
    (sentence_without_subject, "engine/x.zig", "/// Keeps the input of\n/// who doubts.\n"),
    (is_for_must, "pccl_py/x.py", 'raise ValueError(f"{n} is at least 1, not {v}")\n'),
    (is_for_must, "pccl_py/x.py", 'raise TypeError("names are a list, not a str") from None\n'),
    (swallowed_keyword, "frontends/x.py", "def f(x, **_):\n    return x\n"),
    (sentence_without_subject, "docs/X.md", "## Who may try what\n"),
    (sentence_without_subject, "tests/sim/x.txt", "# It dies.\n# What is left stays.\n"),
]

# Neither questions nor sentences in the middle, nor strings and code.
SENTENCES_RIGHT = [
    ("engine/x.zig", "/// Tells\n/// What it is. Who is it? Whoever asks gets it.\n"),
    ("engine/x.zig", "/// It ends.\n\nconst What = 1; // a list, of all\n"),
    ("engine/x.zig", 'const x = "// What is lost. Who calls.";\nconst y =\n    \\\\// What\n;\n'),
    ("tests/x.c", 'puts("What is it"); /* it says\n * What */\n'),
    ("pccl_py/x.py", 'x = "What is lost"\ny = """Of it."""\n# It says\n# What\n'),
    ("docs/X.md", "| what it is |\n|---|\n| a peer; what is lost of whom |\n"),
    ("pccl_py/x.py", 'raise ValueError(f"{x} is not a list, {y} must be 1, not {v}")\n'),
    ("docs/X.md", "## What it promises\n\n```\nWhat is this\n```\n\nSay so. What is it?\n"),
]

FILES = sources()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_source_file_keeps_the_rule(rule: Rule) -> None:
    assert len(FILES) > 50, "the list of source files is wrong"
    complaints = [c for path in FILES for c in rule(path, (ROOT / path).read_text("utf-8"))]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("rule", "name", "text"), BREACHES)
def test_the_rule_sees_a_breach(rule: Rule, name: str, text: str) -> None:
    assert rule(Path(name), text), f"{rule.__name__} let {text!r} pass"


@pytest.mark.parametrize(("name", "text"), SENTENCES_RIGHT)
def test_sentences_that_are_right_pass(name: str, text: str) -> None:
    assert not sentence_without_subject(Path(name), text)
    assert not is_for_must(Path(name), text)


def test_no_zig_file_is_dead() -> None:
    """Every Zig file is imported by another one, or named in build.zig."""
    zig = [path for path in FILES if path.suffix == ".zig" and path.name != "build.zig"]
    named = (ROOT / "build.zig").read_text("utf-8")
    imported: set[Path] = set()
    for path in zig:
        for match in re.finditer(r'@import\("([^"]+\.zig)"\)', (ROOT / path).read_text("utf-8")):
            imported.add((ROOT / path.parent / match.group(1)).resolve().relative_to(ROOT))
    dead = [path for path in zig if path not in imported and f'"{path}"' not in named]
    assert not dead, f"nothing imports {', '.join(map(str, dead))}"


def header() -> str:
    return (ROOT / "include" / "pccl.h").read_text("utf-8")


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    macros = dict(re.findall(r"#define PCCL_VERSION_(\w+) (\d+)", header()))
    assert project == f"{macros['MAJOR']}.{macros['MINOR']}.{macros['PATCH']}"
    zon = (ROOT / "build.zig.zon").read_text("utf-8")
    assert f'.version = "{project}"' in zon


def test_one_zig_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    pinned = {
        requirement.removeprefix("ziglang==")
        for requirement in (
            *project["build-system"]["requires"],
            *project["project"]["optional-dependencies"]["test"],
        )
        if requirement.startswith("ziglang")
    }
    assert len(pinned) == 1
    version = pinned.pop()
    assert f'const wanted = "{version}"' in (ROOT / "build.zig").read_text("utf-8")
    assert f'.minimum_zig_version = "{version}"' in (ROOT / "build.zig.zon").read_text("utf-8")


@pytest.mark.parametrize(("c_type", "zig_type"), [("dtype", "DType"), ("reduce_op", "ReduceOp")])
def test_header_and_engine_number_the_words_alike(c_type: str, zig_type: str) -> None:
    enum = re.search(rf"typedef enum pccl_{c_type} {{(.*?)}}", header(), re.DOTALL)
    assert enum
    in_header = {n.lower(): int(v) for n, v in re.findall(r"PCCL_(\w+) = (\d+)", enum.group(1))}
    dtype = (ROOT / "engine" / "base" / "dtype.zig").read_text("utf-8")
    declared = re.search(rf"const {zig_type} = enum\(u8\) {{(.*?)\n\n", dtype, re.DOTALL)
    assert declared
    in_engine = {n: int(v) for n, v in re.findall(r"(\w+) = (\d+),", declared.group(1))}
    assert in_header == in_engine
    assert len(in_header) >= 5


def test_every_defect_of_the_track_record_has_a_mutation_that_brings_it_back() -> None:
    record = (ROOT / "docs" / "internals" / "TRACK_RECORD.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in record.splitlines() if line.startswith("| ")][1:]
    listed = (ROOT / "tests" / "mutants" / "track_record.txt").read_text("utf-8")
    known = set(re.findall(r"^mutant (\w+)$", listed, re.MULTILINE))
    named = [name.strip() for row in rows for name in row[-1].split(",")]
    assert len(rows) > 10
    assert set(named) == known
