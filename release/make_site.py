"""The site of the documentation, in build/site/VERSION: `make docs`.

mkdocs-material builds the site from docs/, the README as first page, the Python reference from
docstrings (mkdocstrings), the C reference from the header (c_reference.py), and the reference of
the commands. The sources are collected in build/site-sources. A link to a file that is not on the
site becomes plain text; a broken link is an error.

VERSION is the wheel's version. Sites of other versions in build/site stay there: the head of each
page has a menu of versions, and build/site/index.html leads to the newest.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import c_reference
import typer.main
from typer.cli import get_docs_for_click

import pccl_py.cli.commands

ROOT = Path(__file__).resolve().parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
SOURCES, SITE = ROOT / "build" / "site-sources", ROOT / "build" / "site"
LINK = re.compile(r"\[([^\]\n]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
# Pages of the site for files outside of docs/, or whose page has another name.
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "include/pccl.h": "reference/c.md",
}
# The pages in the order of the site's menu; every page must be listed, and every entry must exist.
NAVIGATION: dict[str, list[str]] = {
    "Start": ["index.md", "TUTORIAL.md", "guides/INSTALL.md", "contents.md"],
    "Guides": [
        *("guides/COLLECTIVES.md", "guides/DILOCO.md", "guides/CHECKPOINTS.md"),
        *("guides/NETWORKING.md", "guides/INTERNET.md", "guides/OPERATE.md"),
        *("guides/PERFORMANCE.md", "guides/PLANS.md", "guides/TORCH.md", "guides/FRAMEWORKS.md"),
        *("guides/JAX.md", "guides/C.md", "guides/MIGRATING.md"),
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


# The names of pccl_py by topic, in the Python reference. Names in no topic are listed as errors.
TOPICS: dict[str, list[str]] = {
    "Joining a run": ["connect", "steps", "Step", "exit_on_sigterm"],
    "Collectives": ["Communicator", "Group", "Run"],
    "Results": [
        "Work",
        "Outcome",
        "Range",
        "Admission",
        "GroupInfo",
        "GroupPlan",
        "Roster",
        "PeerId",
    ],
    "Shared state": ["SharedState", "SyncOutcome", "Strategy", "StateRule"],
    "Codecs": ["Codec", "CodecKind", "Rounding", "ErrorFeedback"],
    "Choices": ["ReduceOp", "DType", "Plan", "Plans", "Recovery", "Congestion", "Probe"],
    "Coordinators and tokens": [
        *("Coordinator", "run_status", "Token", "token_create", "token_parse", "LocalWorld"),
    ],
    "Types of arguments": [
        *("Array", "Buffer", "CodecName", "CongestionName", "OpName", "PlanName", "PlansName"),
        *("ProbeName", "RecoveryName", "RoundingName", "StateRuleName", "StrategyName"),
    ],
    "The installation": ["cpu_level", "include_dir", "library_dir", "wire_version"],
}


def main() -> None:
    """Builds the site. Exits with status 1 and the output of mkdocs if mkdocs complains."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    (SOURCES / "reference").mkdir(parents=True)
    write("index.md", with_links((ROOT / "README.md").read_text("utf-8"), Path("README.md")))
    for document in [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        source = document.relative_to(ROOT)
        write(page_of(source.as_posix()), with_links(document.read_text("utf-8"), source))
    write("reference/c.md", c_reference.page((ROOT / "include" / "pccl.h").read_text("utf-8")))
    write("reference/python.md", python_page("pccl_py", "Python reference", TOPICS))
    write("reference/numpy.md", python_page("pccl_numpy", "NumPy reference", {}))
    write("reference/torch.md", python_page("pccl_torch", "PyTorch reference", {}))
    write("reference/jax.md", python_page("pccl_jax", "JAX reference", {}))
    write("reference/train.md", python_page("pccl_train", "Training reference", {}))
    command = typer.main.get_command(pccl_py.cli.commands.app)
    context = typer.Context(command, info_name="pccl")
    page = get_docs_for_click(obj=command, ctx=context, name="pccl")
    write("reference/cli.md", "# Options of commands\n" + page.partition("\n")[2])
    for picture in pictures():
        shutil.copy(picture, SOURCES)
    # Makes pages wide enough for programs of 100 columns.
    write(
        "wide.css",
        ".md-grid { max-width: 76rem; }\n.md-typeset pre > code { font-size: 0.68rem; }\n",
    )
    (SOURCES.parent / "mkdocs.yml").write_text(json.dumps(configuration(), indent=2))
    # Without --quiet, which would hide warnings from --strict, too.
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    os.environ["SOURCE_DATE_EPOCH"] = str(commit_time())
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # mkdocs-material would advertise its successor
    done = subprocess.run(
        [*mkdocs, "-f", str(SOURCES.parent / "mkdocs.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    list_versions(SITE)


def commit_time() -> int:
    """Time of the last commit, in seconds since 1970; 0 outside of a checkout."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    return int(done.stdout) if done.returncode == 0 else 0


def pictures() -> list[Path]:
    return sorted(path for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".svg"))


def list_versions(site: Path) -> None:
    """Writes versions.json for the menu of versions, and index.html, which leads to the newest."""
    names = [path.parent.name for path in site.glob("*/index.html")]
    versions = [name for name in names if re.fullmatch(r"\d+(\.\d+)*", name)]
    versions.sort(key=lambda text: [int(part) for part in text.split(".")], reverse=True)
    listed = [{"version": text, "title": text, "aliases": []} for text in versions]
    (site / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    lead = (
        f'<!doctype html><title>PCCL</title><meta http-equiv="refresh" content="0; {versions[0]}/">'
    )
    (site / "index.html").write_text(lead, encoding="utf-8")


def write(name: str, text: str) -> None:
    (SOURCES / name).parent.mkdir(parents=True, exist_ok=True)
    (SOURCES / name).write_text(text, encoding="utf-8")


def page_of(file: str) -> str:
    """The path on the site of a file of the repository."""
    return PAGES.get(file, file.removeprefix("docs/"))


def with_links(text: str, document: Path) -> str:
    """`text` with its links changed to paths on the site; a link to no page becomes plain text."""
    here = page_of(document.as_posix())

    def replaced(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        file = (ROOT / document.parent / target).resolve().relative_to(ROOT).as_posix()
        if file not in PAGES and not re.fullmatch(r"docs/.*\.(md|png|svg)", file):
            return text
        return f"[{text}]({os.path.relpath(page_of(file), Path(here).parent)}{anchor})"

    return LINK.sub(replaced, text)


def python_page(module: str, title: str, topics: dict[str, list[str]]) -> str:
    """A page with a mkdocstrings directive for each public name of `module`.

    Names are listed by topic, and names in no topic at the end as errors; without `topics`,
    functions come first, then classes. The module is parsed and not imported, because packages that
    it needs may be missing.
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
    told = {name for topic in topics.values() for name in topic}
    rest = [name for name in names if name not in told]
    sections = dict(topics)
    if topics:
        sections["Errors"] = sorted(rest, key=lambda name: name != "PcclError")
    else:
        sections["Functions"] = [name for name in rest if name[0].islower()]
        sections["Classes"] = [name for name in rest if name[0].isupper()]
    opening = (ast.get_docstring(tree) or "").partition("\n")[0]
    page = f"# {title}\n\n{opening}\n"
    for topic, members in sections.items():
        page += f"\n## {topic}\n\n" + "\n".join(f"::: {module}.{name}\n" for name in members)
    return page


def configuration() -> dict[str, object]:
    """The configuration of mkdocs, to be written as JSON, which is also YAML."""
    there = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.md")}
    listed = {page for pages in NAVIGATION.values() for page in pages}
    if there != listed:
        sys.exit(f"make_site: NAVIGATION and the pages differ by {sorted(there ^ listed)}")
    options = {
        "docstring_style": "google",
        "heading_level": 3,
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
        "site_dir": str(SITE / VERSION),
        "extra": {"version": {"provider": "mike"}, "generator": False},
        "extra_css": ["wide.css"],
        # No fonts and no search from other hosts, so the site works without a network.
        "theme": {
            "name": "material",
            "font": False,
            "features": [
                "navigation.sections",
                "navigation.top",
                "toc.follow",
                "content.code.copy",
            ],
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
        "nav": [{title: pages} for title, pages in NAVIGATION.items()],
    }


if __name__ == "__main__":
    main()
