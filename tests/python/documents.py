"""Whether what documents name is there: commands and their options, files, tests, symbols, links.

A name is what stands in backticks, a command in a block of shell, the target of a link, and every
bare word with an underscore; which rule judges it, the first that fits:

    `make soak MINUTES=60`      a target of the Makefile, and variables that it reads
    `pccl status --json`        a command of the program and its options (pccl, pccl-sim, bench, the
                                demo, zig build, scripts of the checkout); also inside a sentence
    `--state`                   an option of one of these programs
    `test_one_peer_never_calls` a test; `…_under_load`: one that ends so
    `epoch.zig: go_on`          a file, and what is declared in it under that name
    `tests/sim/oracle.zig`      a file or folder: from the root, from engine/, from the document,
                                or, without a slash, anywhere; .gitignore names what a build makes
    `Member.start`, `flock`     words of code: each part is in some source file, not as a comment,
                                or in FOREIGN

The rest (formulas, example values, output) is not judged. In a table, a column that is headed
`scenario`, `kept out by`, `caught by`, `checker` or `mutation` has names of these. Used by
test_tidy_documents.py, which also shows it texts that are wrong.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[2]

# Names of other people's programs, libraries, kernels and CPUs, and of nothing in particular.
FOREIGN = frozenset(
    re.findall(
        r"\S+",
        """
        apt dnf pip cc python3 python3.11 python3.14 mpich ziglang bochs wine
        epoll eventfd kqueue select selectors poll fork exec flock SIGPIPE sysctl
        g_unix_fd_add uv_poll_t vcvtps2ph tigerlake RANK WORLD_SIZE
        """,
    )
)
# Words of JAX and of mpi4jax.
FOREIGN |= frozenset(
    re.findall(
        r"\S+",
        """
        fori_loop process_index process_count psum pmean pmax pmin psum_scatter ppermute key_data
        multihost_utils broadcast_one_to_all sync_global_devices sendrecv
        """,
    )
)
# Words of the libraries that docs/guides/FRAMEWORKS.md has recipes for.
FOREIGN |= frozenset({"TrainingArguments", "DDPStrategy", "nnx", "eqx"})
# Words of the libraries from which docs/guides/DILOCO.md says how to move.
FOREIGN |= frozenset({"DiLoCoOptimizer"})
# Words of the libraries that docs/guides/MIGRATING.md is about.
FOREIGN |= frozenset(
    re.findall(
        r"\S+",
        """
        MASTER_ADDR MASTER_PORT get_rank get_world_size new_group all_gather_into_tensor
        reduce_scatter_tensor broadcast_object_list DistributedDataParallel backward
        bcast allgather
        Get_rank Get_size Allgatherv Reduce_scatter Scatterv Gatherv Alltoallv Iallreduce Wait
        ANY_SOURCE MasterNode ccoip_master are_peers_pending update_topology optimize_topology
        get_attribute PCCLError ReduceInfo local_world_size all_reduce_multiple_with_retry
        QuantizationOptions QuantizationAlgorithm ZERO_POINT_SCALE TensorInfo sync_shared_state
        SharedStateSyncInfo tx_bytes rx_bytes TOO_FEW_PEERS p2p_connection_pool_size
        _set_pg_timeout ZeroRedundancyOptimizer DistributedSampler
        init_device_mesh get_group UNDEFINED Create_group Attribute LARGEST_PEER_GROUP_WORLD_SIZE
        """,
    )
)
# Peers and connections in the simulator's traces, rounding and ranks in formulas.
NOTATION = re.compile(r"[pc]\d+|fl|[xyXYL]_\w")
# Files that name what is not there.
NO_SOURCES = frozenset({"documents.py", "test_tidy_documents.py", "test_tidy.py"})
SOURCE_SUFFIXES = frozenset(
    (".zig", ".zon", ".h", ".c", ".cpp", ".py", ".pyi", ".toml", ".txt", ".ld")
)
FILE_SUFFIXES = SOURCE_SUFFIXES | {".md", ".so", ".png", ".jsonl", ".json"}

SPAN = re.compile(r"`+([^`\n]+)`+")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
WORDS = re.compile(r"[A-Za-z_]\w*(\(\))?(\.[A-Za-z_]\w*(\(\))?)*")


@dataclass
class Program:
    """A program's commands by name, each with its options; "" has those of the program itself."""

    commands: dict[str, set[str]]
    # Each word is a command, as with `make`.
    is_flat: bool = False

    def has_below(self, path: str) -> bool:
        """After this command comes another one."""
        return (path == "" and len(self.commands) > 1) or any(
            name.startswith(f"{path} ") for name in self.commands
        )

    @property
    def options(self) -> set[str]:
        return set().union(*self.commands.values())


@dataclass(eq=False)
class Repository:
    """The files and names of the repository, read once."""

    root: Path = ROOT
    files: set[str] = field(init=False)
    ignored: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        lines = (self.root / ".gitignore").read_text("utf-8").splitlines()
        names = [line.strip("/") for line in lines if line and not line.startswith("#")]
        self.ignored = tuple(name for name in names if "*" not in name)
        self.files = set(self._walk())

    def _walk(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.root):
            here = Path(folder).relative_to(self.root)
            folders[:] = [
                name
                for name in folders
                if name == ".ci" or not name.startswith(".")
                if name not in self.ignored and (here / name).as_posix() not in self.ignored
            ]
            yield from ((here / name).as_posix() for name in (*files, *folders))

    @cache  # noqa: B019 (there is one, for as long as the tests run)
    def text(self, path: str) -> str:
        return (self.root / path).read_text("utf-8")

    @cache  # noqa: B019
    def sources(self) -> list[str]:
        return [
            path
            for path in sorted(self.files)
            if Path(path).suffix in SOURCE_SUFFIXES or path in ("Makefile", ".ci/run")
            if Path(path).name not in NO_SOURCES
        ]

    @cache  # noqa: B019
    def words(self) -> frozenset[str]:
        """All words of source files that are not in comments, and the names of files."""
        found = {Path(path).stem for path in self.files} | {Path(path).name for path in self.files}
        for path in self.sources():
            for line in self.text(path).splitlines():
                if not line.lstrip().startswith(("//", "# ")):
                    found.update(re.findall(r"\w+", line))
        return frozenset(found)

    @cache  # noqa: B019
    def tests(self) -> frozenset[str]:
        paths = [path for path in self.sources() if path.endswith(".py")]
        return frozenset(
            name for path in paths for name in re.findall(r"def (test_\w+)", self.text(path))
        )

    @cache  # noqa: B019
    def scenarios(self) -> frozenset[str]:
        folder = "tests/sim/scenarios/"
        return frozenset(Path(path).stem for path in self.files if path.startswith(folder))

    @cache  # noqa: B019
    def checks(self) -> frozenset[str]:
        """Checkers of the simulator, and mutations that they must see."""
        path = "tests/sim/checkers.zig"
        body = re.search(r"pub const Check = enum \{(.*?)\n\};", self.text(path), re.DOTALL)
        assert body, f"no enum Check in {path}"
        found = set(re.findall(r"^    (\w+),$", body.group(1), re.MULTILINE))
        for path in self.files:
            if path.startswith("tests/mutants/") and path.endswith(".txt"):
                found.update(re.findall(r"^mutant (\w+)$", self.text(path), re.MULTILINE))
        return frozenset(found)

    @cache  # noqa: B019
    def make(self) -> tuple[frozenset[str], frozenset[str]]:
        """Targets of the Makefile, and variables that it reads."""
        text = self.text("Makefile")
        targets = re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE)
        return frozenset(targets), frozenset(re.findall(r"\$\((?:if \$\()?([A-Z_]+)\b", text))

    @cache  # noqa: B019
    def programs(self) -> dict[str, Program]:
        import bench.__main__
        import examples.demo.__main__
        import pccl_py.cli.commands

        demo = typer.Typer()
        demo.command()(examples.demo.__main__.demo)
        return {
            "pccl": of_click(pccl_py.cli.commands.app),
            "bench": of_click(bench.__main__.app),
            "examples.demo": of_click(demo),
            "pccl-sim": self._simulator(),
            "zig build": self._zig_build(),
        }

    def _simulator(self) -> Program:
        usage = "\n".join(
            line
            for path in sorted(self.files)
            if path.startswith("tests/sim/") and path.endswith(".zig")
            for line in self.text(path).splitlines()
            if line.lstrip().startswith("\\\\")
        )
        options = set(OPTION.findall(usage))
        commands = set(re.findall(r"pccl-sim ([a-z]+)", usage))
        return Program(dict.fromkeys(("", *commands), options))

    def _zig_build(self) -> Program:
        command = [sys.executable, "-m", "ziglang", "build", "--help"]
        said = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        steps, _, rest = said.stdout.partition("Project-Specific Options:")
        options = {
            *re.findall(r"^ +(-D[\w-]+)", rest, re.M),
            *re.findall(r"(?<![\w-])-[-\w]+", rest),
        }
        names = re.findall(r"^  ([a-z][\w-]*)", steps.partition("Steps:")[2], re.MULTILINE)
        return Program(dict.fromkeys(("", *names), options), is_flat=True)


def of_click(app: typer.Typer) -> Program:
    """The commands of a typer program, those below others as `bench kernels`."""
    commands: dict[str, set[str]] = {}

    def add(command: Any, path: tuple[str, ...]) -> None:
        names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        commands[" ".join(path)] = {*(name for name in names if name[0] == "-"), "--help"}
        for name, below in getattr(command, "commands", {}).items():
            add(below, (*path, name))

    add(typer.main.get_command(app), ())
    return Program(commands)


# ---- the rules: each says what is wrong with a name, or nothing, or None if it is not about it


def command(there: Repository, text: str) -> list[str] | None:
    """`make`, or a program of ours, with its options."""
    text = re.sub(r"^(\$ |(\w+=\S+ )+|(time|nice) )+", "", text.partition(" #")[0].strip())
    if " && " in text:
        found = [command(there, part) for part in text.split(" && ")]
        return (
            None if all(one is None for one in found) else [c for one in found for c in one or ()]
        )
    if text == "make" or text.startswith("make "):
        return make(there, text.split()[1:])
    text = re.sub(r"^(\S*/)?python3? -m ziglang ", "zig ", text)
    module = re.match(r"(?:\S*/)?python3? -m (bench|examples\.demo)\b(.*)", text)
    if module:
        return arguments(there.programs()[module[1]], f"python -m {module[1]}", module[2].split())
    script = re.match(r"(?:(?:\S*/)?python3? )?([\w/]+\.py)((?: .*)?)$", text)
    if script and " " in text:
        if script[1] not in there.files:
            return [f"there is no {script[1]}"]
        source = there.text(script[1])
        return [
            f"{script[1]} has no {o}" for o in OPTION.findall(script[2]) if f'"{o}"' not in source
        ]
    for name in ("zig build", "pccl-sim", "pccl"):
        match = re.match(rf"(?:\S*/)?{name}(?: (.*))?$", text)
        if match and (match[1] or name != "pccl"):
            words = (match[1] or "").partition(" -- ")[0].split()
            return arguments(there.programs()[name], name, words)
    return None


def make(there: Repository, words: list[str]) -> list[str]:
    targets, variables = there.make()
    complaints = []
    for word in words:
        name, is_variable, _ = word.partition("=")
        if is_variable and name not in variables:
            complaints.append(f"the Makefile reads no {name}")
        elif not is_variable and name not in targets:
            complaints.append(f"the Makefile has no target {name}")
    return complaints


def arguments(program: Program, name: str, words: list[str]) -> list[str]:
    """Commands until there are none below the last; options are those of the last command."""
    path, complaints = "", []
    option = ""
    for word in (word.strip("[].,") for word in words):
        is_value = option.startswith("-") and word[0] != "-"
        option = word.partition("=")[0]
        deeper = word if program.is_flat else f"{path} {word}".strip()
        if option.startswith("-"):
            if option not in program.commands[path]:
                complaints.append(f"{name} {path}".strip() + f" has no {option}")
        elif deeper in program.commands:
            path = deeper
        elif program.is_flat or (program.has_below(path) and not is_value):
            complaints.append(f"{name} {path}".strip() + f" has no {word}")
    return complaints


def bare_option(there: Repository, text: str) -> list[str] | None:
    if not re.match(r"--?[A-Za-z]", text):
        return None
    name = re.split(r"[ =]", text)[0]
    known = any(name in program.options for program in there.programs().values()) or any(
        f'"{name}"' in there.text(path) for path in there.sources()
    )
    return [] if known else [f"no program of ours has {name}"]


def test_name(there: Repository, text: str) -> list[str] | None:
    if re.fullmatch(r"test_\w+", text):
        return [] if text in there.tests() else [f"there is no test {text}"]
    if re.fullmatch(r"…_\w+", text):
        ends = any(name.endswith(text[1:]) for name in there.tests())
        return [] if ends else [f"no test ends with {text[1:]}"]
    return None


def resolve(there: Repository, text: str, document: Path) -> list[str]:
    """The files that a document may mean."""
    text = text.rstrip("/")
    if "/" not in text:
        return [path for path in there.files if path.rpartition("/")[2] == text]
    folders = (Path(), Path("engine"), Path("tests"), document.parent)
    meant = {os.path.normpath(folder / text) for folder in folders}
    if "*" in text:
        return [path for path in there.files if any(Path(path).match(glob) for glob in meant)]
    return [path for path in meant if path in there.files]


def file_name(there: Repository, text: str, document: Path) -> list[str] | None:
    name, colon, symbol = text.partition(": ")
    is_path = re.fullmatch(r"\.?[\w*.-]+(/[\w*.-]+)*/?", name) is not None
    first = name.partition("/")[0]
    suffixed = Path(name).suffix in FILE_SUFFIXES and name not in FILE_SUFFIXES
    in_folder = "/" in name and (first in there.files or name.endswith("/"))
    if not is_path or not (suffixed or in_folder):
        return None
    if name.startswith(there.ignored) or Path(name).suffix == ".so":
        return []
    found = resolve(there, name, document)
    if not found:
        return [f"there is no {name}"]
    if colon and not any(declares(there.text(path), symbol) for path in found):
        return [f"{name} declares no {symbol}"]
    return []


def declares(text: str, symbol: str) -> bool:
    name = re.escape(symbol.rstrip("()"))
    words = r"(fn|const|var|def|class|struct)"
    return re.search(rf"\b{words} {name}\b|^\s*{name}\b\s*[:=,]", text, re.MULTILINE) is not None


def words_of_code(there: Repository, text: str) -> list[str] | None:
    if not WORDS.fullmatch(re.sub(r"\(.*\)", "()", text)):
        return None
    named = re.sub(r"\(.*\)", "", text)
    if NOTATION.fullmatch(named):
        return []
    if named.startswith("_") and any(word.endswith(named) for word in there.words()):
        return []
    parts = [named] if named in FOREIGN else named.split(".")
    return [
        f"{part} is in no source file"
        for part in parts
        if part not in FOREIGN and part not in there.words()
    ]


# ---- documents


def judge(there: Repository, text: str, document: Path) -> list[str]:
    """Complaints about a name."""
    text = text.replace("\\|", "|").strip()
    for found in (
        command(there, text),
        bare_option(there, text),
        test_name(there, text),
        file_name(there, text, document),
        words_of_code(there, text),
    ):
        if found is not None:
            return found
    return []


def link(there: Repository, target: str, document: Path) -> list[str]:
    if "://" in target:
        return []
    path, _, anchor = target.partition("#")
    meant = os.path.normpath(document.parent / path) if path else document.as_posix()
    if meant not in there.files:
        return [f"there is no {meant}"]
    if anchor:
        prose = LINK.sub("]", BLOCK.sub("", there.text(meant)))
        heads = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads]
        if anchor not in slugs:
            return [f"{meant} has no section {anchor}"]
    return []


def cells(text: str) -> Iterator[tuple[str, str]]:
    """The cells of all tables, each with the head of its column."""
    heads: list[str] = []
    for line in text.splitlines():
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = row
        else:
            yield from zip(heads, row, strict=False)


def table(there: Repository, head: str, cell: str) -> list[str]:
    """Names in the columns that have scenarios, checkers and mutations."""
    known = {
        "scenario": (there.scenarios(),),
        "kept out by": (there.scenarios(), there.tests()),
        "caught by": (there.scenarios(), there.checks()),
        "checker": (there.checks(),),
        "mutation": (there.checks(), there.words()),
    }.get(head)
    if known is None:
        return []
    names = re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", SPAN.sub("", cell))
    return [f"{name} is no {head}" for name in names if all(name not in one for one in known)]


def headless(prose: str) -> Iterator[str]:
    """Rows that are shown as text, because no head of a table is above them."""
    lines = ["", *prose.splitlines(), ""]
    for before, row, after in zip(lines, lines[1:], lines[2:], strict=False):
        if row.startswith("|") and not before.startswith("|") and not RULE.match(after):
            yield f"no head above the row {row}"


def complaints(there: Repository, document: Path, text: str) -> list[str]:
    """Everything that a document names and that is not there."""
    found: list[str] = []
    for language, body in BLOCK.findall(text):
        for line in body.splitlines():
            if language == "sh" or (language == "console" and line.startswith("$ ")):
                found += command(there, line) or []
                found += (c for span in SPAN.findall(line) for c in judge(there, span, document))
    prose = BLOCK.sub("", text)
    for span in SPAN.findall(prose):
        found += judge(there, span, document)
    for target in LINK.findall(prose):
        found += link(there, target, document)
    for head, cell in cells(prose):
        found += table(there, head, cell)
    found += headless(prose)
    bare = LINK.sub("]", SPAN.sub("", prose))
    for name in re.findall(r"(?<![\w/.-])[a-z]+(?:_[a-z0-9]+)+\b", bare):
        found += words_of_code(there, name) or []
    return [f"{document}: {complaint}" for complaint in dict.fromkeys(found)]
