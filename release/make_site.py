"""The site of the documentation, in build/site: `make docs`.

mkdocs-material shows docs/, the README as its first page, the Python reference from docstrings
(mkdocstrings), the C reference from the header (c_reference.py) and that of the commands. Sources
are put together in build/site-sources, with links to files that the site does not have as plain
text; a link to nowhere is an error. The picture of the demo is docs/loss.png, drawn by `make demo`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import c_reference
import typer.main
from typer.cli import get_docs_for_click

import pccl_py.cli.commands

ROOT = Path(__file__).resolve().parent.parent
SOURCES, SITE = ROOT / "build" / "site-sources", ROOT / "build" / "site"
LINK = re.compile(r"\[([^\]\n]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
# Files that are pages under another name.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "include/pccl.h": "reference/c.md",
}
# A page that is not listed is an error.
NAVIGATION: dict[str, list[str]] = {
    "Start": ["index.md", "guides/INSTALL.md", "TUTORIAL.md"],
    "Guides": [
        *("guides/DILOCO.md", "guides/CHECKPOINTS.md", "guides/NETWORKING.md"),
        *("guides/INTERNET.md", "guides/OPERATE.md", "guides/PERFORMANCE.md"),
        *("guides/TORCH.md", "guides/FRAMEWORKS.md", "guides/JAX.md", "guides/C.md"),
        "guides/MIGRATING.md",
    ],
    "Reference": [
        *("reference/python.md", "reference/numpy.md", "reference/torch.md"),
        *("reference/jax.md", "reference/train.md", "reference/c.md", "reference/cli.md"),
        *("reference/RUN.md", "reference/ENVIRONMENT.md", "reference/ERRORS.md"),
        *("reference/STATUS.md", "reference/CODECS.md", "reference/PROMISE.md"),
        "reference/SECURITY.md",
    ],
    "Internals": [
        *("internals/ARCHITECTURE.md", "internals/PROTOCOL.md", "internals/ALGORITHMS.md"),
        *("internals/PROMISE.md", "internals/KERNELS.md", "internals/SIMULATOR.md"),
        *("internals/MUTANTS.md", "internals/TRACK_RECORD.md", "internals/BENCHMARKS.md"),
        *("internals/HACKING.md", "CONTRIBUTING.md", "ROADMAP.md"),
    ],
}


def main() -> None:
    """Ends with status 1 and the words of mkdocs where it has found something wrong."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    (SOURCES / "reference").mkdir(parents=True)
    write("index.md", with_links((ROOT / "README.md").read_text("utf-8"), Path("README.md")))
    for document in [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        source = document.relative_to(ROOT)
        page = source.as_posix().removeprefix("docs/")
        write(page, with_links(document.read_text("utf-8"), source))
    write("reference/c.md", c_reference.page((ROOT / "include" / "pccl.h").read_text("utf-8")))
    write("reference/python.md", python_page("pccl_py", "Python reference"))
    write("reference/numpy.md", python_page("pccl_numpy", "NumPy reference"))
    write("reference/torch.md", python_page("pccl_torch", "PyTorch reference"))
    write("reference/jax.md", python_page("pccl_jax", "JAX reference"))
    write("reference/train.md", python_page("pccl_train", "Training reference"))
    command = typer.main.get_command(pccl_py.cli.commands.app)
    context = typer.Context(command, info_name="pccl")
    page = get_docs_for_click(obj=command, ctx=context, name="pccl")
    write("reference/cli.md", page)
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, SOURCES)
    show_demo()
    (SOURCES.parent / "mkdocs.yml").write_text(json.dumps(configuration(), indent=2))
    # Not --quiet, which hides the warnings from --strict too.
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # an advertisement of mkdocs-material for its successor
    done = subprocess.run(
        [*mkdocs, "-f", str(SOURCES.parent / "mkdocs.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)


def write(name: str, text: str) -> None:
    (SOURCES / name).parent.mkdir(parents=True, exist_ok=True)
    (SOURCES / name).write_text(text, encoding="utf-8")


def with_links(text: str, document: Path) -> str:
    """Links as the site has them. One that leads to no page becomes plain text."""
    here = PAGES.get(document.as_posix(), document.as_posix().removeprefix("docs/"))

    def replaced(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        file = (ROOT / document.parent / target).resolve().relative_to(ROOT).as_posix()
        page = PAGES.get(file)
        if file.startswith("docs/") and file.endswith((".md", ".png", ".svg")):
            page = file.removeprefix("docs/")
        if page is None:
            return text
        return f"[{text}]({os.path.relpath(page, Path(here).parent)}{anchor})"

    return LINK.sub(replaced, text)


def python_page(module: str, title: str) -> str:
    """A directive for each public name, so that the page is in the order of `__all__`.

    The module is read, not imported: what it needs may be missing here.
    """
    places = (ROOT / module, ROOT / "frontends" / module)
    (source,) = (place for place in places if place.is_dir())
    tree = ast.parse((source / "__init__.py").read_text("utf-8"))
    (listed,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    names = [name for name in ast.literal_eval(listed) if not name.startswith("__")]
    directives = [f"::: {module}.{name}\n" for name in names]
    opening = (ast.get_docstring(tree) or "").partition("\n")[0]
    return f"# {title}\n\n{opening}\n\n" + "\n".join(directives)


def show_demo() -> None:
    """On the first page. It is in the repository: the demo takes minutes, and the site does not."""
    text = (SOURCES / "index.md").read_text("utf-8")
    head, mark, rest = text.partition("## Twenty lines")
    assert mark, "the README has no such heading any more"
    write("index.md", f"{head}![Loss of the peers of the demo](loss.png)\n\n{mark}{rest}")


def configuration() -> dict[str, object]:
    """For mkdocs, whose YAML takes JSON as well."""
    there = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.md")}
    listed = {page for pages in NAVIGATION.values() for page in pages}
    if there - listed:
        sys.exit(f"make_site: no place in the navigation for {sorted(there - listed)}")
    options = {
        "docstring_style": "google",
        "heading_level": 2,
        "show_root_heading": True,
        "show_root_full_path": False,
        "show_source": False,
        "members_order": "source",
        "show_signature_annotations": True,
        "separate_signature": True,
        "inherited_members": True,
        "filters": ["!^_"],
    }
    return {
        "site_name": "PCCL",
        "docs_dir": str(SOURCES),
        "site_dir": str(SITE),
        # No fonts and no search from elsewhere: the site works without a network.
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.sections", "toc.follow", "content.code.copy"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
            ],
        },
        "plugins": [
            "search",
            {
                "mkdocstrings": {
                    "handlers": {
                        "python": {
                            "paths": [str(ROOT), str(ROOT / "frontends")],
                            "options": options,
                        }
                    }
                }
            },
        ],
        "markdown_extensions": [
            "tables",
            "admonition",
            "pymdownx.highlight",
            "pymdownx.superfences",
        ],
        "validation": {
            "links": {
                "not_found": "warn",
                "anchors": "warn",
                "absolute_links": "warn",
                "unrecognized_links": "warn",
            },
            "nav": {"not_found": "warn", "omitted_files": "warn"},
        },
        "nav": [
            {title: [page for page in pages if page in there]}
            for title, pages in NAVIGATION.items()
        ],
    }


if __name__ == "__main__":
    main()
