"""How sentences of comments, docstrings and documents begin; test_tidy.py has the rule.

A sentence has a subject: none begins with a relative "Who" or "What" ("What is lost is found"), and
no comment is a fragment that begins with "Of". A cell of a table is a sentence, also in lower case.
Questions pass, and headings with "What" and heads of tables do. No noun is left out before a "who"
either ("sent again by" it). An error says what an argument must be, not what it "is".
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

Row = tuple[int, str | None]  # a line's number and its words; None ends a paragraph

STRINGS = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'"
ZIG = re.compile(rf"\\\\[^\n]*|{STRINGS}|//[^\n]*")
C = re.compile(rf"{STRINGS}|//[^\n]*|/\*.*?\*/", re.DOTALL)
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
BEGINS = re.compile(r"(?:^[-=\W]*|[.:;!?][\"')\]*_`]*\s+[\"'(\[*_]*)(Who|What|Of)\s[^.!?]*(.?)")

LEFT_OUT = re.compile(r"\b(?:[Oo]f|[Bb]y|[Ff]or)\s+(who)\b")
CELL = re.compile(r"(?:who|what|of)\s")
IS_FOR_MUST = re.compile(r"\b(?:is|are) (?!not\b)[^.;:]*, not\b")


def comments(pattern: re.Pattern[str], text: str) -> Iterator[Row]:
    """The comments of Zig or C; one that stands behind code is a paragraph of its own."""
    last = 0
    for match in pattern.finditer(text):
        if not match[0].startswith("/"):
            continue
        begin = text.rfind("\n", 0, match.start()) + 1
        first = text.count("\n", 0, match.start()) + 1
        if text[begin : match.start()].strip() or first != last + 1:
            yield first, None
        for last, line in enumerate(match[0].splitlines(), start=first):
            yield last, line.strip(" /!*")
        if text[begin : match.start()].strip():
            yield last, None


def python(text: str) -> Iterator[Row]:
    """Comments and docstrings of Python."""
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if not alone or token.start[0] != last + 1:
                yield token.start[0], None
            yield token.start[0], token.string.strip("# ")
            last = token.start[0] if alone else 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, None
            for n, line in enumerate(text.splitlines()[node.lineno - 1 : node.end_lineno]):
                yield node.lineno + n, line.strip().removeprefix("r").strip('" ')


def hashes(text: str) -> Iterator[Row]:
    """Comments that have a line of their own: TOML, shell, make, lists and transcripts."""
    for n, line in enumerate(text.splitlines(), start=1):
        yield n, line.strip("# ") if line.startswith("#") else None


def markdown(text: str) -> Iterator[Row]:
    """Paragraphs, items, headings and the cells of tables; no blocks of code."""
    fenced = False
    lines = text.splitlines()
    for n, line in enumerate(lines, start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fence or fenced:
            yield n, None
        elif line.startswith("#"):
            yield n, None
            yield n, "" if line.startswith("What ", line.find(" ") + 1) else line
            yield n, None
        elif line.startswith("|"):
            is_head = lines[n : n + 1] and lines[n].startswith("|--")
            for cell in line.strip("|").split("|"):
                yield n, None
                words = cell.strip()
                begins = CELL.match(words) and not is_head
                yield n, words[:1].upper() + words[1:] if begins else words
            yield n, None
        else:
            yield n, line.strip("> ")


READERS: dict[str, Callable[[str], Iterator[Row]]] = {
    ".zig": lambda text: comments(ZIG, text),
    ".c": lambda text: comments(C, text),
    ".h": lambda text: comments(C, text),
    ".cpp": lambda text: comments(C, text),
    ".py": python,
    ".pyi": python,
    ".md": markdown,
    **dict.fromkeys((".toml", ".sh", ".txt", ""), hashes),
}


def paragraphs(rows: Iterator[Row]) -> Iterator[list[tuple[int, str]]]:
    """Rows that belong together: a blank one ends a paragraph, an item begins one."""
    paragraph: list[tuple[int, str]] = []
    for n, words in rows:
        if paragraph and (not words or ITEM.match(words)):
            yield paragraph
            paragraph = []
        if words:
            paragraph.append((n, words))
    if paragraph:
        yield paragraph


def without_subject(path: Path, text: str) -> list[tuple[int, str]]:
    """Lines on which a sentence begins with a relative word, and the word."""
    found = []
    reader = READERS.get(path.suffix)
    for paragraph in paragraphs(reader(text)) if reader else ():
        whole = "\n".join(words for _, words in paragraph)
        at = 0
        while match := BEGINS.search(whole, at):
            at = match.end(1)
            if match[2] != "?":
                found.append((paragraph[whole.count("\n", 0, match.start(1))][0], match[1]))
        for match in LEFT_OUT.finditer(whole):
            found.append((paragraph[whole.count("\n", 0, match.start(1))][0], match[0]))
    return found


def is_for_must(path: Path, text: str) -> list[tuple[int, str]]:
    """Lines that raise an error of Python which says what a wrong argument "is"."""
    found = []
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        for part in ast.walk(node) if isinstance(node, ast.Raise) else ():
            if isinstance(part, ast.JoinedStr):
                words = "".join(
                    str(one.value) if isinstance(one, ast.Constant) else "{}" for one in part.values
                )
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                words = part.value
            else:
                continue
            if match := IS_FOR_MUST.search(words):
                found.append((part.lineno, match[0]))
    return found
