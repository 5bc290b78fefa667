"""Losses under FSDP2 and HSDP: processes that are killed, and the numbers of those that go on.

The members are forked by fsdp_program.py, so that PyTorch is imported once. Numbers are compared
with those of one process that has the whole model.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pccl_torch
import pytest
import torch
from fsdp_program import batch, whole_model
from pccl_torch import mesh

import pccl_py as pccl
from examples import torch_hsdp
from harness.child import Child

SECONDS_MAX = 120.0


class Members:
    """Members of runs, and what they tell."""

    def __init__(self) -> None:
        self._told: queue.Queue[list[Any] | None] = queue.Queue()
        self._heard: list[list[Any]] = []
        program = str(Path(__file__).parent / "fsdp_program.py")
        self._child = Child(
            [sys.executable, program],
            heard=lambda line: self._told.put(json.loads(line)),
            ended=lambda _: self._told.put(None),
        )

    def fork(self, name: str, function: str, token: str, folder: Path, lives: int = 0) -> int:
        """Starts a member; returns its process id."""
        environment = {"PCCL_TOKEN": token, "PCCL_RESTARTS": str(lives)}
        self._child.say(json.dumps(["fork", name, function, environment, str(folder)]))
        (told,) = self.hear(lambda told: told[:3] == ["", "forked", name])
        return int(told[3])

    def ends(self, pid: int) -> int:
        """The exit status of a member, negative for a signal."""
        self._child.say(json.dumps(["wait", pid]))
        (told,) = self.hear(lambda told: told[:3] == ["", "ended", pid])
        return int(told[3])

    def hear(self, wanted: Callable[[list[Any]], bool], count: int = 1) -> list[list[Any]]:
        """The first lines that are wanted, whoever tells them; each is heard once."""
        until = time.monotonic() + SECONDS_MAX
        found = [told for told in self._heard if wanted(told)][:count]
        while len(found) < count:
            told = self._told.get(timeout=max(0.1, until - time.monotonic()))
            assert told is not None, f"the program has ended: {self._child.errors}"
            assert told[1] != "raised", f"{told}; {self._child.errors}"
            self._heard.append(told)
            if wanted(told):
                found.append(told)
        self._heard = [told for told in self._heard if told not in found]
        return found

    def end(self) -> None:
        """Kills those that are left."""
        self._child.end(group=True)


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    made = Members()
    yield made
    made.end()


def _word(place: int) -> mesh._Word:
    return mesh._Word(replicas=2, shards=3, place=place, began=0, has_state=0, count=0)


def test_newcomers_go_where_the_fewest_are_missing_and_nobody_else_moves() -> None:
    # Replica 0 lacks two shards, replica 1 one.
    words = [_word(place) for place in (5, mesh._NOWHERE, 3, 1, mesh._NOWHERE)]
    seats = mesh._seats(words)
    assert dict(seats.ranks) == {5: 0, 3: 2, 1: 3, 4: 1, 0: 4}
    assert seats.whole() == [1]
    assert seats.replica(1) == [2, 1, 0]
    assert seats.replica(0) is None
    assert seats.table(5) == [[4, 3, 7], [2, 1, 0]]


def test_those_beyond_the_places_are_spares() -> None:
    seats = mesh._seats([_word(mesh._NOWHERE) for _ in range(8)])
    assert dict(seats.ranks) == {place: place for place in range(6)}


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "2", 1 << 31])
def test_a_mesh_of_no_size_is_refused(number: Any) -> None:
    with pytest.raises(pccl.InvalidArgument, match="shards must be an integer above zero"):
        pccl_torch.Hsdp(2, number)


def test_fsdp_raises_on_all_survivors_until_it_is_made_anew_from_a_checkpoint(
    members: Members, tmp_path: Path
) -> None:
    with pccl.Coordinator(initial_world_size=3) as coordinator:
        names = "abc"
        pids = [members.fork(name, "fsdp", coordinator.token, tmp_path) for name in names]
        told = members.hear(lambda told: told[1] == "parameters", 2)
        survivors = {name for name, *_ in told}
        raised = members.hear(lambda told: told[1] == "fails", 10)
        sizes = members.hear(lambda told: told[1] == "size", 2)
        statuses = {members.ends(pid) for pid in pids}
    assert statuses == {0, -signal.SIGKILL}
    for survivor in survivors:
        told_of = {name: (lost, text) for who, _, name, lost, text in raised if who == survivor}
        assert set(told_of) == {"backward", "forward", "old", "unused", "whole"}
        for name, (lost, text) in told_of.items():
            assert lost, f"{name}: {text}"
        assert "make the model anew with fully_shard" in told_of["old"][1]
        assert "make the group anew" in told_of["whole"][1]
    assert all(size[2:] == [2, 3] for size in sizes)
    expected = _descended({0: 3, 1: 3, 2: 2, 3: 2})
    for _, _, parameters in told:
        torch.testing.assert_close(torch.tensor(parameters), expected)


def test_fsdp1_raises_on_all_survivors_and_a_new_one_has_the_right_numbers(
    members: Members, tmp_path: Path
) -> None:
    with pccl.Coordinator(initial_world_size=3) as coordinator:
        pids = [members.fork(name, "fsdp1", coordinator.token, tmp_path) for name in "mno"]
        told = members.hear(lambda told: told[1] == "norm", 2)
        raised = members.hear(lambda told: told[1] == "fails", 12)
        statuses = sorted(members.ends(pid) for pid in pids)
    assert statuses == [-signal.SIGKILL, 0, 0]
    for who, _, name, lost, text in raised:
        assert lost, (who, name, text)
        assert name == "step" or "FullyShardedDataParallel" in text, (who, name, text)
    model = whole_model()
    losses = [model(batch(1, rank)).square().mean() for rank in range(2)]
    (sum(losses) / 2).backward()
    norm = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    assert [numbers for _, _, *numbers in told] == [[pytest.approx(norm**0.5)]] * 2


def test_meshes_and_dtensors_of_members_that_were_raise_and_new_ones_have_the_right_numbers(
    members: Members, tmp_path: Path
) -> None:
    with pccl.Coordinator(initial_world_size=3) as coordinator:
        pids = [members.fork(name, "dtensors", coordinator.token, tmp_path) for name in "ijk"]
        told = members.hear(lambda told: told[1] == "numbers", 5)
        pids.append(members.fork("l", "dtensors", coordinator.token, tmp_path, lives=1))
        raised = members.hear(lambda told: told[1] == "fails", 36)
        told += members.hear(lambda told: told[1] == "numbers", 3)
        statuses = [members.ends(pid) for pid in pids]
    assert sorted(statuses) == [-signal.SIGKILL, 0, 0, 0]
    for who, _, name, lost, text in raised:
        assert lost and "make the mesh anew" in text, (who, name, text)
    norm = sum(number**2 for number in range(12)) ** 0.5
    for who, _, *numbers in told:
        assert numbers == pytest.approx([norm, 132]), who


def _descended(ranks: dict[int, int]) -> torch.Tensor:
    """The parameters after these steps, each of so many ranks, in one process."""
    model = whole_model()
    for step, count in ranks.items():
        losses = [model(batch(step, rank)).square().mean() for rank in range(count)]
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_hsdp_goes_on_with_the_other_replica_and_a_newcomer_brings_the_lost_one_back(
    members: Members, tmp_path: Path
) -> None:
    with pccl.Coordinator(initial_world_size=4) as coordinator:
        pids = [members.fork(name, "hsdp", coordinator.token, tmp_path) for name in "abcd"]
        places = {place: who for who, _, place in members.hear(lambda t: t[1] == "place", 4)}
        assert sorted(places) == ["00", "01", "10", "11"]
        # The half replica raises, and nobody waits for it.
        (lost,) = members.hear(lambda told: told[1:3] == ["10", "lost:"])
        assert "needs every member" in lost[5]
        assert lost[3:5] == [2, 0]
        alone = members.hear(lambda told: told[2:5] == ["step", 4, 1], 2)
        assert {place for _, place, *_ in alone} == {"00", "01"}
        pids.append(members.fork("e", "hsdp", coordinator.token, tmp_path, lives=1))
        (place,) = members.hear(lambda told: told[:2] == ["e", "place"])
        assert place[2] == "11"
        ended = members.hear(lambda told: told[2:5] == ["step", torch_hsdp.STEPS, 2], 4)
        assert {place for _, place, *_ in ended} == {"00", "01", "10", "11"}
        statuses = [members.ends(pid) for pid in pids]
    assert sorted(statuses) == [-signal.SIGKILL, 0, 0, 0, 0]
    # By steps, the places that have contributed to the first layer and to the last.
    everybody, one = (range(4), range(4)), (range(2), range(2))
    expected = _trained([everybody, everybody, (range(2), range(4)), one, everybody, everybody])
    for step, parameters in enumerate(expected, start=1):
        for shard in range(2):
            mine = torch.load(tmp_path / f"0{shard}-{step}.pt")
            for found, whole in zip(mine, parameters, strict=True):
                torch.testing.assert_close(found, whole.chunk(2)[shard])
            if step not in (3, 4):  # bit by bit
                theirs = torch.load(tmp_path / f"1{shard}-{step}.pt")
                assert all(map(torch.equal, mine, theirs))


def test_a_single_replica_that_has_lost_a_shard_is_made_anew_by_all(
    members: Members, tmp_path: Path
) -> None:
    with pccl.Coordinator(initial_world_size=2) as coordinator:
        pids = [members.fork(name, "lone", coordinator.token, tmp_path) for name in "fg"]
        told_of = members.hear(lambda told: told[1] == "fails", 3)
        pids.append(members.fork("h", "lone", coordinator.token, tmp_path, lives=1))
        told_of += members.hear(lambda told: told[1] == "fails", 2)
        losses = [told[2] for told in members.hear(lambda told: told[1] == "loss", 2)]
        statuses = [members.ends(pid) for pid in pids]
    assert sorted(statuses) == [-signal.SIGKILL, 0, 0]
    texts = {name: text for _, _, name, _, text in told_of}
    assert "call Hsdp.sync() before the first step" in texts["unsynced"]
    assert "needs every member" in texts["lost"]
    assert "no replica has all shards of the model any more" in texts["sync"]
    model = whole_model()
    expected = [model(batch(0, rank)).square().mean().item() for rank in range(2)]
    assert sorted(losses) == pytest.approx(sorted(expected))


def _trained(contributors: Iterable[tuple[range, range]]) -> Iterator[list[torch.Tensor]]:
    """The parameters after each step, in one process, each layer by its own contributors."""
    model = torch_hsdp.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, of_layers in enumerate(contributors):
        for layer, places in zip((model[0], model[2]), of_layers, strict=True):
            losses = [torch_hsdp.loss_of(model, step, place) for place in places]
            parameters = list(layer.parameters())
            gradients = torch.autograd.grad(torch.stack(losses).mean(), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        optimizer.step()
        yield [parameter.detach().clone() for parameter in model.parameters()]
