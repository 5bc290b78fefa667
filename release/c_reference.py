"""The site's page for include/pccl.h: its sections, with each declaration after its comment.

The header is the contract, so the page has all of the header and nothing else. make_site.py uses
this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SECTION = re.compile(r"/\* -{4} (.+?) -+ \*/\n")
# A comment of the header, with the end of its last line.
COMMENT = re.compile(r"/\*(.*?)\*/\n", re.DOTALL)
NAME = re.compile(
    r"\b(pccl_\w+)\s*\(|^\} (pccl_\w+);|^typedef .*?\b(pccl_\w+);|^#define (\w+)", re.M
)


def page(header: str) -> str:
    """The header as Markdown."""
    head, *sections = SECTION.split(header)
    opening = COMMENT.match(head)
    assert opening is not None, "the header begins with a comment"
    parts = ["# C reference", "This page is `pccl.h`, in the order of the file.", prose(opening[1])]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"## {title}")
        parts += declarations(body.split("#ifdef __cplusplus")[0])
    return "\n\n".join(parts) + "\n"


def prose(comment: str) -> str:
    """The text of a comment as Markdown, without the frame; indented "- " lines become a list."""
    lines = [re.sub(r"^ ?\* ?", "", line).rstrip() for line in comment.split("\n")]
    text = "\n".join(lines).strip().replace("<", "&lt;")
    text = re.sub(r"^ +- ", "- ", text, flags=re.MULTILINE)
    return re.sub(r":\n- ", ":\n\n- ", text)


def declarations(body: str) -> Iterator[str]:
    """For each chunk of a section: a heading with the name declared, the comment, and the code."""
    for chunk in re.split(r"\n\n+|(?<=;\n)(?=/\*)|(?<=;)\n(?=/\*)", body.strip()):
        code, comment = chunk.strip("\n"), ""
        if (found := COMMENT.match(code + "\n")) and not code.startswith("/* ----"):
            comment, code = found[1], (code + "\n")[found.end() :].strip("\n")
        names = [next(name for name in groups if name) for groups in NAME.findall(code)]
        if names:
            yield f"### `{names[0]}`"
        if comment:
            yield prose(comment)
        if code:
            yield f"```c\n{code}\n```"
