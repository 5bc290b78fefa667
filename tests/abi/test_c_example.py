"""C programs against include/pccl.h: the header stands alone, and the example builds and runs.

The compiler is the one of the ziglang package, so that no other is needed on the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from header import LIBRARY, ROOT

EXAMPLE = ROOT / "examples" / "c_average"


def compile_with(*arguments: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "ziglang", *arguments], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"),
    [("cc", "c99", "c"), ("cc", "c11", "c"), ("cc", "c23", "c"), ("c++", "c++17", "cpp")],
)
def test_the_header_stands_alone_in_every_language(
    tmp_path: Path, compiler: str, standard: str, suffix: str
) -> None:
    """Also the initialisers: each must fit its struct."""
    header = (ROOT / "include" / "pccl.h").read_text()
    inits = re.findall(r"#define PCCL_(\w+)_INIT\b", header)
    assert len(inits) == 11
    lines = ['#include "pccl.h"', '#include "pccl.h"']
    lines += [f"pccl_{name.lower()}_t {name.lower()} = PCCL_{name}_INIT;" for name in inits]
    source = tmp_path / f"alone.{suffix}"
    source.write_text("\n".join(lines) + "\n")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'include'}"]
    compile_with(compiler, f"-std={standard}", *flags, "-c", str(source), "-o", str(tmp_path / "o"))


@pytest.fixture(scope="module")
def average(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("example") / "average"
    compile_with(
        "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}",
        str(EXAMPLE / "average.c"), f"-L{LIBRARY.parent}", "-lpccl",
        f"-Wl,-rpath,{LIBRARY.parent}", "-o", str(made),
    )  # fmt: skip
    return made


def run(average: Path, count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", str(count), "--"]
    return subprocess.run(
        [*command, str(average), *arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_example_averages_among_its_processes(average: Path, count: int) -> None:
    answer = run(average, count, "3")
    assert answer.returncode == 0, answer.stderr
    lines = sorted(line[4:] for line in answer.stdout.splitlines())
    mean = 3 + (count - 1) / 2
    digests = set()
    for rank, line in enumerate(lines):
        match = re.fullmatch(
            rf"rank {rank} of {count}: average {mean:g} of {count} contributors, digest (\w{{8}})",
            line,
        )
        assert match, line
        digests.add(match[1])
    assert len(lines) == count
    assert len(digests) == 1


def test_the_readme_shows_what_the_example_prints(average: Path) -> None:
    answer = run(average, 2, "3")
    page = (EXAMPLE / "README.md").read_text()
    shown = re.findall(r"^\[\d\] (.*)$", page, flags=re.MULTILINE)
    assert sorted(shown) == sorted(line[4:] for line in answer.stdout.splitlines())


def test_the_example_says_what_went_wrong(average: Path) -> None:
    environment = {**os.environ, "PCCL_TOKEN": "nonsense"}
    answer = subprocess.run(
        [str(average), "3"], capture_output=True, text=True, env=environment, check=False
    )
    assert answer.returncode == 1
    assert re.match(r"average: connect: PCCL_INVALID_ARGUMENT: .{10,}", answer.stderr)


def test_the_example_is_short() -> None:
    assert len((EXAMPLE / "average.c").read_text().splitlines()) < 100
