"""C programs against include/pccl.h: the header stands alone, and the examples build and run.

The compiler is the one of the ziglang package, so that no other is needed on the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from header import HEADER, LIBRARY, ROOT, compile_with, flags

import pccl_py as pccl

EXAMPLES = ROOT / "examples"
CLI = [sys.executable, "-m", "pccl_py.cli"]
LOOPBACK = "127.0.0.1:0"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'frontends'}"}
TWO = {"PCCL_BIND": LOOPBACK, "PCCL_INITIAL_WORLD_SIZE": "2"}
EMBED_COUNT = 4 << 20  # of examples/c_embed/embed.c


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"),
    [("cc", "c99", "c"), ("cc", "c23", "c"), ("c++", "c++17", "cpp")],
)
def test_the_header_stands_alone_in_every_language(
    tmp_path: Path, compiler: str, standard: str, suffix: str
) -> None:
    """Also the initialisers: each must fit its struct. The examples are compiled as C11."""
    header = (ROOT / "include" / "pccl.h").read_text()
    inits = re.findall(r"#define PCCL_(\w+)_INIT\b", header)
    assert len(inits) == 14
    lines = ['#include "pccl.h"', '#include "pccl.h"']
    lines += [f"pccl_{name.lower()}_t {name.lower()} = PCCL_{name}_INIT;" for name in inits]
    source = tmp_path / f"alone.{suffix}"
    source.write_text("\n".join(lines) + "\n")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'include'}"]
    compile_with(compiler, f"-std={standard}", *flags, "-c", str(source), "-o", str(tmp_path / "o"))


def test_a_thread_needs_a_stack_of_64_kib(tmp_path: Path) -> None:
    made = tmp_path / "small_stack"
    source = Path(__file__).with_name("small_stack.c")
    compile_with("cc", "-std=c11", str(source), *flags().split(), "-lpthread", "-o", str(made))
    done = subprocess.run([made], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# ---- the examples: built with the command of their pages, run as processes ----------------------


def build(folder: str, to: Path) -> Path:
    """As the README of an example says, with the compiler at hand and no warning let pass."""
    (source,) = (EXAMPLES / folder).glob("*.c")
    page = (EXAMPLES / folder / "README.md").read_text()
    assert f"cc examples/{folder}/{source.name} $(pccl flags) -o {source.stem}\n" in page
    assert len(source.read_text().splitlines()) < 100
    made = to / source.stem
    strict = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"]
    compile_with("cc", *strict, str(source), *flags().split(), "-o", str(made))
    return made


@pytest.fixture(scope="module")
def average(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("c_average", tmp_path_factory.mktemp("average"))


@pytest.fixture(scope="module")
def embed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("c_embed", tmp_path_factory.mktemp("embed"))


def run(count: int, *command: str) -> list[str]:
    """The output of the processes of one run, without their numbers."""
    answer = subprocess.run(
        [*CLI, "run", "-n", str(count), "--", *command],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=ENVIRONMENT,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return [line.partition("] ")[2] for line in answer.stdout.splitlines()]


def test_the_flags_say_where_header_and_library_are() -> None:
    include, library = pccl.include_dir(), pccl.library_dir()
    assert (Path(include) / "pccl.h").read_text() == HEADER.read_text()
    assert Path(library) == LIBRARY.parent
    linking = f"-L{library} -lpccl -Wl,-rpath,{library}\n"
    assert flags("--compile") == f"-I{include}\n"
    assert flags("--link") == linking
    assert flags() == flags("--compile", "--link") == f"-I{include} {linking}"


# One process decides by its number what it is: the shell's $0 is ./average, $1 is python.
MIXED = 'case $RANK in 0|2) exec "$0" 3;; *) exec "$1" examples/numpy_average.py 3;; esac'


@pytest.mark.parametrize(("kind", "count"), [("c", 1), ("numpy", 2), ("mixed", 4)])
def test_averages_are_the_same_in_c_and_numpy(average: Path, kind: str, count: int) -> None:
    """All in one run, of either kind or of both, print one average and one digest.

    The test of the page has a run of two in C, and of three of both kinds.
    """
    lines = run(
        count,
        *{
            "c": [str(average), "3"],
            "numpy": [sys.executable, "examples/numpy_average.py", "3"],
            "mixed": ["sh", "-c", MIXED, str(average), sys.executable],
        }[kind],
    )
    mean = 3 + (count - 1) / 2
    digests = set()
    for rank, line in enumerate(sorted(lines)):
        match = re.fullmatch(
            rf"rank {rank} of {count}: average {mean:g} of {count} contributors, digest (\w{{8}})",
            line,
        )
        assert match, line
        digests.add(match[1])
    assert len(lines) == count
    assert len(digests) == 1


def test_the_page_shows_what_the_averages_print(average: Path) -> None:
    page = (EXAMPLES / "c_average" / "README.md").read_text()
    alone, together = re.findall(
        r"^\$ pccl run -n (?:2|3) .*\n((?:\[\d\] .*\n)+)", page, re.MULTILINE
    )
    for shown, lines in (
        (alone, run(2, str(average), "3")),
        (together, run(3, "sh", "-c", MIXED, str(average), sys.executable)),
    ):
        assert sorted(line[4:] for line in shown.splitlines()) == sorted(lines)


@pytest.mark.parametrize("what", ["average", "embed"])
def test_an_example_says_what_went_wrong(request: pytest.FixtureRequest, what: str) -> None:
    environment = {**os.environ, "PCCL_TOKEN": "nonsense"}
    program = request.getfixturevalue(what)
    answer = subprocess.run(
        [str(program), "3"], capture_output=True, text=True, env=environment, check=False
    )
    assert answer.returncode == 1
    assert re.match(what + r": connect: PCCL_INVALID_ARGUMENT: .{10,}", answer.stderr)
    assert subprocess.run([str(program)], capture_output=True, check=False).returncode == 2
    del environment["PCCL_TOKEN"]
    answer = subprocess.run(
        [str(program), "3"], capture_output=True, text=True, env=environment, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith(
        f"{what}: no token: start it with `pccl run -n 2 -- ./{what} 3`"
    )


# ---- the one with an event loop ------------------------------------------------------------------

ROUND = r"round {}: average {:g}, (\d+) ticks meanwhile"


def test_the_page_shows_what_the_embedded_loop_prints(embed: Path) -> None:
    page = (EXAMPLES / "c_embed" / "README.md").read_text()
    shown = re.findall(r"^\[\d\] (.*)$", page, flags=re.MULTILINE)
    lines = run(2, str(embed), "3")
    assert len(lines) == len(shown) == 6
    for line in (*shown, *lines):
        assert any(re.fullmatch(ROUND.format(number, 0.5), line) for number in (1, 2, 3)), line


def test_an_event_loop_goes_on_while_an_all_reduce_is_under_way(embed: Path, start: Any) -> None:
    """Goal: it answers what it is asked meanwhile. Method: this process calls when it was."""
    with pccl.Coordinator() as coordinator:
        environment = {"PCCL_TOKEN": coordinator.token, **TWO}
        program = start("2", file=embed, **environment)
        with pccl.connect(coordinator.token, bind=LOOPBACK, initial_world_size=2) as comm:
            comm.admit()
            for _ in range(2):
                program.say("?")
                program.expect("round 1 of 2 is under way")
            numbers = np.full(EMBED_COUNT, 3 + comm.rank, np.float32)
            expected = 2.0  # of 3 + our rank, and theirs
            comm.all_reduce(numbers, op="avg")
            assert re.fullmatch(ROUND.format(1, expected), program.line())
            program.say("?")
            program.expect("round 2 of 2 is under way")
            comm.all_reduce(numbers, op="avg")
            assert re.fullmatch(ROUND.format(2, expected), program.line())
            assert program.end() == 0


def test_an_event_loop_leaves_in_the_middle_and_the_others_finish_the_round(
    embed: Path, start: Any
) -> None:
    with pccl.Coordinator() as coordinator:
        environment = {"PCCL_TOKEN": coordinator.token, **TWO, "PCCL_INITIAL_WORLD_SIZE": "3"}
        leaves, stays = (start("1", file=embed, **environment) for _ in range(2))
        with pccl.connect(coordinator.token, bind=LOOPBACK, initial_world_size=3) as comm:
            comm.admit()
            for program in (leaves, stays):
                program.say("?")
                program.expect("round 1 of 1 is under way")
            leaves.say("q")
            assert leaves.end() == 0
            numbers = np.full(EMBED_COUNT, comm.rank, np.float32)
            outcome = comm.all_reduce(numbers, op="avg")
            assert len(outcome.contributors) == 2
            assert re.fullmatch(ROUND.format(1, numbers[0]), stays.line())
            assert stays.end() == 0


def test_input_that_ends_does_not_end_the_event_loop(embed: Path, start: Any) -> None:
    with pccl.Coordinator() as coordinator:
        environment = {"PCCL_TOKEN": coordinator.token, **TWO, "PCCL_INITIAL_WORLD_SIZE": "1"}
        program = start("3", file=embed, **environment)
        program.process.close_input()
        for number in (1, 2, 3):
            assert re.fullmatch(ROUND.format(number, 0), program.line())
        assert program.end() == 0
