"""The programs of docs/guides/CHECKPOINTS.md run as printed, and its tables say what happens."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py.words import StateRule, StateRuleName, Strategy, StrategyName

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/CHECKPOINTS.md").read_text("utf-8")
PROGRAM, BY_HAND, INSIST, PREFETCH, ELASTIC_STATE = re.findall(
    r"```python\n(.*?)```", PAGE, re.DOTALL
)
# The part of the program before it connects.
HEAD = PROGRAM.split("\nrevision = load()\n")[0]
CLI = "pccl_py.cli"
ENDED = re.compile(r"ended at step (\d+) with \[(.+), (.+)\]")
REPLACED = re.compile(r"content of revision (\d+) replaces revision (\d+) of this peer")


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return str(file)


def a_file(path: Path, *, weight: float, done: int, revision: int) -> str:
    """A checkpoint as the program writes it."""
    weights = np.full(2, weight)
    np.savez(path, weights=weights, momentum=np.zeros(2), done=np.array([done]), revision=revision)
    return str(path)


def named(arguments: list[str]) -> dict[str, Any]:
    """The names that the head of the program defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before, sys.argv = sys.argv, ["train.py", *arguments]
    try:
        exec(HEAD, names)
    finally:
        sys.argv = before
    return names


# ---- saving and resuming


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_stopped(
    start: Any, program: str, tmp_path: Path
) -> None:
    def run(steps: int, file: str) -> tuple[list[str], str]:
        command = [sys.executable, program, str(steps), str(tmp_path / file)]
        running = start("run", "-n", "2", "--", *command, module=CLI)
        assert running.end() == 0, running.errors
        lines = [line[4:] for line in running.rest().splitlines()]
        ends = {line for line in lines if ENDED.fullmatch(line)}
        assert len(ends) == 1, lines
        return [line for line in lines if line.startswith("loaded ")], ends.pop()

    assert run(25, "run.npz")[0] == ["loaded step 0, revision 0"] * 2
    loaded, resumed = run(45, "run.npz")
    assert loaded == ["loaded step 25, revision 26"] * 2
    assert "prints `loaded step 25` in each process" in PAGE
    assert resumed == run(45, "whole.npz")[1]
    assert sorted(os.listdir(tmp_path)) == ["run.npz", "train.py", "whole.npz"]


def test_a_crash_in_a_save_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_file(tmp_path / "run.npz", weight=1.0, done=10, revision=11)
    names = named(["0", file])
    names["weights"][:] = 2.0
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, raising)
            with pytest.raises(KeyboardInterrupt):
                names["save"](20)
        assert names["load"]() == 11
        assert names["weights"].tolist() == [1.0, 1.0]
        names["weights"][:] = 2.0
    names["save"](20)
    assert names["load"]() == 20
    assert names["weights"].tolist() == [2.0, 2.0]


def raising(*_: Any) -> None:
    raise KeyboardInterrupt


def test_the_loop_by_hand_saves_and_resumes(
    coordinator: pccl.Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCCL_TOKEN", coordinator.token)

    def run(steps: int) -> dict[str, Any]:
        names = named([str(steps), str(tmp_path / "run.npz")])

        def train(comm: pccl.Communicator) -> None:
            names["done"] += 1
            names["weights"] += comm.world_size

        exec(BY_HAND, names | {"saves": True, "train": train})
        return names

    assert run(15)["weights"].tolist() == [15.0, 15.0]
    names = run(30)
    assert names["load"]() == 32  # a sync before each step, and one more in each run
    assert names["weights"].tolist() == [30.0, 30.0]


# ---- which content wins


def test_beside_a_live_run_a_checkpoint_wins_only_if_its_peer_insists(
    start: Any, program: str, tmp_path: Path
) -> None:
    """Goal: neither a higher revision nor a lower one counts. Method: each joins, and leaves. The
    file of the peer that insists has the last step, so the members end with it.
    """
    token = tmp_path / "token"
    live = [sys.executable, program, "1000000", str(tmp_path / "live.npz")]
    running = start("run", "-n", "2", "--token-file", str(token), "--", *live, module=CLI)
    begun = [running.line()[4:] for _ in range(4)]
    assert begun.count("step 0, revision 0, 2 peers") == 2, begun

    def join(revision: int) -> tuple[int, str]:
        """The revision of the content that it received, and the line of its log."""
        file = a_file(tmp_path / "other.npz", weight=1e9, done=7, revision=revision)
        environment = {"PCCL_LOG": "info", "PCCL_TOKEN": token.read_text().strip()}
        joined = start(Path(program).read_text(), "0", file, **environment)
        assert joined.end() == 0, joined.errors
        loaded, entered, ended = joined.rest().splitlines()
        assert loaded == f"loaded step 7, revision {revision}"
        received = re.fullmatch(r"step (\d+), revision (\d+), 3 peers", entered)
        last = ENDED.fullmatch(ended)
        assert received and last and received[1] == last[1], (entered, ended)
        assert abs(float(last[2])) < 100
        assert abs(float(last[3])) < 100
        (line,) = [each for each in joined.errors.splitlines() if REPLACED.search(each)]
        replaced = REPLACED.search(line)
        assert replaced and replaced.groups() == (received[2], str(revision))
        assert "; it came from peer " in line
        with np.load(file) as kept:  # a file that the members have not passed stays
            assert (kept["revision"] == revision) == (revision > int(received[2]))
        return int(received[2]), line

    revision, told = join(10**9)
    assert " WARNING: " in told
    assert " INFO: " in join(revision)[1]  # by now the members are further
    assert REPLACED.search(PAGE), "the guide quotes another line"

    file = a_file(tmp_path / "other.npz", weight=5.0, done=1_000_000, revision=1)
    insisting = start(f"{HEAD}\n{INSIST}", "0", file, PCCL_TOKEN=token.read_text().strip())
    assert insisting.end() == 0, insisting.errors
    assert running.end() == 0, running.errors
    ends = [line[4:] for line in running.rest().splitlines() if "ended" in line]
    assert ends == ["ended at step 1000000 with [5.0, 5.0]"] * 2


def test_of_peers_that_start_together_the_highest_revision_wins(
    start: Any, program: str, tmp_path: Path
) -> None:
    """Also over a content that most peers hold, and that has more steps."""
    for number, (weight, done, revision) in enumerate([(1, 9, 5), (1, 9, 5), (2, 8, 6)]):
        a_file(tmp_path / f"{number}.npz", weight=weight, done=done, revision=revision)
    shell = f"cd {tmp_path} && exec {sys.executable} {program} 0 $RANK.npz"
    running = start("run", "-n", "3", "--", "sh", "-c", shell, module=CLI)
    assert running.end() == 0, running.errors
    ends = [line[4:] for line in running.rest().splitlines() if "ended" in line]
    assert ends == ["ended at step 8 with [2.0, 2.0]"] * 3


@pytest.mark.parametrize(
    ("strategy", "rule", "wins"),
    [
        ("popular", None, False),
        ("popular", "highest_revision", True),
        ("send_only", None, True),
    ],
)
def test_a_newcomer_wins_by_a_rule_or_a_strategy_alone(
    strategy: StrategyName, rule: StateRuleName | None, wins: bool
) -> None:
    """Its revision is higher than the member's. The member has begun alone, without waiting."""
    rules = () if rule is None else (rule,)
    with pccl.LocalWorld(1, deadline=30) as world:
        (member,), held = world.comms, np.ones(2)
        state = member.shared_state({"weights": held}, rules=rules)
        state.sync()
        newcomer = np.full(2, 2.0)

        def enter() -> None:
            with pccl.connect(world.coordinator.token, bind="127.0.0.1:0", deadline=30) as comm:
                own = comm.shared_state({"weights": newcomer}, revision=9, rules=rules)
                comm.admit()
                own.sync(strategy)

        thread = threading.Thread(target=enter)
        thread.start()
        while member.world_size < 2:
            member.admit()
        state.sync()
        thread.join()
    assert held.tolist() == newcomer.tolist() == ([2.0, 2.0] if wins else [1.0, 1.0])


def test_the_tables_have_each_rule_and_each_strategy() -> None:
    for word in (*StateRule, *Strategy):
        assert re.search(rf"^\| `{word.name.lower()}`", PAGE, re.MULTILINE), word


# ---- the fragments


def test_the_piece_that_prints_the_outcome_of_a_sync_runs(
    coordinator: pccl.Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PCCL_TOKEN", coordinator.token)
    arrays = {"weights": np.zeros(2), "done": np.zeros(1)}
    exec(PREFETCH + "    break\n", {"pccl": pccl, "arrays": arrays, "revision": 3})
    assert capsys.readouterr().out.startswith("0 0 0 2 ")  # alone: two arrays, a leaf each


def test_an_elastic_state_is_saved_and_loaded(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pccl_torch = pytest.importorskip("pccl_torch")

    def made() -> dict[str, Any]:
        model = torch.nn.Linear(2, 1)
        names = {
            "os": os,
            "torch": torch,
            "pccl_torch": pccl_torch,
            "FILE": str(tmp_path / "run.pt"),
            "model": model,
            "optimizer": torch.optim.AdamW(model.parameters()),
        }
        exec(ELASTIC_STATE, names)
        return names

    first = made()
    assert first["state"].step == 0
    first["model"](torch.ones(2)).sum().backward()
    first["optimizer"].step()
    first["state"].step += 1
    first["save"]()
    second = made()
    assert second["state"].step == second["state"].revision == 1
    assert second["state"].digest() == first["state"].digest()
    assert os.listdir(tmp_path) == ["run.pt"]
