"""The site of the documentation, short of building it (`make docs`): its pages."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import c_reference
import make_site
import pccl_numpy
import pytest

import pccl_py as pccl
from pccl_py.shared_state import SharedState
from pccl_py.work import Work

ROOT = Path(__file__).resolve().parents[2]
CLI = "pccl_py.cli"


def test_every_document_has_a_place_in_the_navigation() -> None:
    listed = [page for pages in make_site.NAVIGATION.values() for page in pages]
    assert len(listed) == len(set(listed))
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert {make_site.page_of(page) for page in pages} <= set(listed)


def test_pictures_are_small_and_each_is_shown() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = "\n".join(page.read_text("utf-8") for page in pages)
    pictures = make_site.pictures()
    assert len(pictures) > 3
    for picture in pictures:
        assert picture.stat().st_size < 300_000, picture
        assert re.search(rf"!\[[^\]]+\]\([\w./]*{picture.name}\)", shown), picture


def test_the_python_reference_is_by_topic_with_the_errors_last() -> None:
    page = make_site.python_page("pccl_py", "Python reference", make_site.TOPICS)
    names = re.findall(r"^::: pccl_py\.(\w+)$", page, re.MULTILINE)
    assert sorted(names) == sorted(set(pccl.__all__) - {"__version__"})
    assert names[:3] == ["connect", "steps", "Step"]
    errors = page.partition("## Errors")[2]
    for name in re.findall(r"^::: pccl_py\.(\w+)$", errors, re.MULTILINE):
        assert issubclass(getattr(pccl, name), pccl.PcclError), name
    assert "PcclError" in errors


def test_a_version_stays_beside_a_newer_one(tmp_path: Path) -> None:
    for version in ("0.1.0", "0.10.0", "0.9.0", "another folder"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    make_site.list_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert [entry["version"] for entry in listed] == ["0.10.0", "0.9.0", "0.1.0"]
    assert "0; 0.10.0/" in (tmp_path / "index.html").read_text("utf-8")


def test_links_lead_to_pages_and_to_nothing_that_is_no_page() -> None:
    text = (
        "[a](docs/reference/RUN.md#signals) [`h`](include/pccl.h) [e](examples/c_embed) "
        "[w](https://w.example)"
    )
    assert make_site.with_links(text, Path("README.md")) == (
        "[a](reference/RUN.md#signals) [`h`](reference/c.md) e [w](https://w.example)"
    )
    text = "[a](RUN.md) [r](../../README.md) [s](../../SECURITY.md) [b](#b)"
    assert make_site.with_links(text, Path("docs/reference/X.md")) == (
        "[a](RUN.md) [r](../index.md) s [b](#b)"
    )


def test_the_c_reference_has_all_that_the_header_declares() -> None:
    """Goal: nothing is lost or said twice. Method: all code of the header is in the page's blocks
    of code, line by line, and each function has its own head."""
    header = (ROOT / "include" / "pccl.h").read_text("utf-8")
    page = c_reference.page(header)
    code = "\n".join(re.findall(r"```c\n(.*?)```", page, re.DOTALL))
    functions = re.findall(r"^PCCL_API .*?\b(pccl_\w+)\(", header, re.MULTILINE)
    assert len(functions) > 50
    for name in functions:
        assert len(re.findall(rf"\b{name}\(", code)) >= 1, name
    for line in re.findall(r"^(?:PCCL_API|typedef|  \w+ ).*$", header, re.MULTILINE):
        assert code.count(line) >= 1, line
    opaque = {"pccl_comm_t", "pccl_status_t", "pccl_reduce_options_t", "pccl_work_wait"}
    heads = set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    assert opaque & set(re.findall(r"\w+", header)) <= heads | set(functions)
    assert "/*" not in re.sub(r"```c\n.*?```", "", page, flags=re.DOTALL)


# ---- coming from another library

OWNERS: dict[str, Any] = {
    "comm": pccl.Communicator,
    "outcome": pccl.Outcome,
    "pccl": pccl,
    "pnp": pccl_numpy,
    "state": SharedState,
    "work": Work,
}


def right_column() -> list[str]:
    text = (ROOT / "docs" / "guides" / "MIGRATING.md").read_text("utf-8")
    rows = [line.split(" | ", 1)[1] for line in text.splitlines() if line.startswith("| ")]
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    return [span for span in spans if span.split(".")[0].split(" ")[-1] in OWNERS]


def keywords(function: Any) -> set[str]:
    """Its parameters, and the options that its docstring lists."""
    named = re.findall(r"^  (\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    return set(inspect.signature(function).parameters) | set(named)


def test_the_tables_of_other_libraries_name_what_is_there() -> None:
    """Each call of the right column: the name, and the keywords that it is given."""
    checked = 0
    for span in right_column():
        for owner, name, arguments in re.findall(r"\b(\w+)\.(\w+)(?:\(([^`]*)\))?", span):
            if owner not in OWNERS:
                continue
            found = inspect.getattr_static(OWNERS[owner], name, None)
            assert found is not None, span
            for keyword in re.findall(r"\b(\w+)=", arguments):
                assert keyword in keywords(getattr(OWNERS[owner], name)), span
            checked += 1
    assert checked > 40


# ---- the tutorial


@pytest.fixture(params=["by hand", "with pccl.steps"])
def tutorial(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    text = (ROOT / "docs" / "TUTORIAL.md").read_text("utf-8")
    by_hand, with_steps = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "pccl.steps" in with_steps and "pccl.steps" not in by_hand
    file = tmp_path / "train.py"
    file.write_text(by_hand if request.param == "by hand" else with_steps)
    return file


def test_the_programs_of_the_tutorial_train(start: Any, tutorial: Path) -> None:
    program = start("run", "-n", "2", "--", sys.executable, str(tutorial), "50", module=CLI)
    assert program.end() == 0, program.errors
    lines = {line[4:] for line in program.rest().splitlines()}
    assert len(lines) == 1, lines
    assert re.fullmatch(r"step 50: \[2\.\d+ +(0\.9|1\.)\d*\], 2 peers", lines.pop())
