"""Losses and joins under DistributedDataParallel, with processes that are killed and frozen.

The program of the processes is elastic_program.py; what needs one process alone is in
test_torch_ddp.py.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from members import Member, Pool, Raised, all_of

import pccl_py as pccl

PROGRAM = Path(__file__).parent / "elastic_program.py"
# The weights of the processes, which are the elements of their gradients, and averages of them.
WEIGHTS = (1.0, 2.0, 6.0)
OF_ALL, OF_TWO = 3.0, 1.5


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with Pool(PROGRAM) as pool:
        yield pool


@pytest.fixture
def pool(processes: Pool) -> Iterator[Pool]:
    yield processes
    processes.give_back()


def begin(members: list[Member], coordinator: pccl.Coordinator, **options: Any) -> None:
    environment = {"PCCL_TOKEN": coordinator.token, "PCCL_INITIAL_WORLD_SIZE": str(len(members))}
    for member, weight in zip(members, WEIGHTS, strict=False):
        member.ask("begin", environment=environment, weight=weight, **options)
    for member in members:
        member.answer()


def check_equal(told: list[Any], step: int) -> None:
    assert [each["step"] for each in told] == [step] * len(told)
    assert len({each["digest"] for each in told}) == 1


def test_a_kill_inside_backward_costs_no_step_and_a_newcomer_becomes_equal(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    first, second, victim = pool.take(3)
    begin([first, second, victim], coordinator)
    survivors = [first, second]
    check_equal(all_of([*survivors, victim], "train", steps=2), 2)

    victim.ask("train", steps=1, dies=True)
    told = all_of(survivors, "train", steps=1)
    victim.killed()
    check_equal(told, 3)
    # Buckets that were whole in time have the victim's part, and later ones do not.
    values = {value for each in told[0]["averages"] for value in each}
    assert OF_TWO in values <= {OF_TWO, OF_ALL}, values
    assert told[0]["averages"] == told[1]["averages"]

    told = all_of(survivors, "train", steps=1)
    check_equal(told, 4)
    assert {each["size"] for each in told} == {2}

    (newcomer,) = pool.take(1)
    environment = {"PCCL_TOKEN": coordinator.token}
    newcomer.ask("begin", environment=environment, weight=WEIGHTS[2])
    for member in survivors:
        member.ask("train", until_joined=True)
    newcomer.answer()
    newcomer.ask("train", until_joined=True)
    told = [member.answer() for member in (*survivors, newcomer)]
    check_equal(told, told[0]["step"])
    assert {each["size"] for each in told} == {3}
    assert told[2]["rates"] == told[0]["rates"]  # its own was another one

    told = all_of([*survivors, newcomer], "train", steps=2)
    check_equal(told, told[0]["step"])
    assert {value for each in told[2]["averages"] for value in each} == {OF_ALL}


def test_a_frozen_peer_is_dropped_and_the_hook_goes_on(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    first, second, frozen = pool.take(3)
    begin([first, second, frozen], coordinator, codec="int8")
    # In the second step DDP rebuilds its buckets, which needs every member.
    check_equal(all_of([first, second, frozen], "train", steps=2), 2)
    frozen.child.signal(signal.SIGSTOP)
    assert frozen.child.wait_until_frozen(10)
    told = all_of([first, second], "train", steps=2)
    check_equal(told, 4)
    assert {each["size"] for each in told} == {2}
    frozen.child.signal(signal.SIGCONT)
    with pytest.raises(Raised) as caught:
        frozen.ask("train", steps=1).answer()
    assert "Expelled" in caught.value.kinds


def test_without_a_hook_all_raise_and_after_admit_the_same_wrapper_averages_over_who_is_left(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    first, second, victim = pool.take(3)
    begin([first, second, victim], coordinator, hook=False)
    told = all_of([first, second, victim], "train", steps=2)
    check_equal(told, 2)
    assert told[0]["averages"] == [[OF_ALL]] * 6

    victim.ask("step", dies=True)
    for member in (first, second):
        with pytest.raises(Raised) as caught:
            member.ask("step").answer()
        assert "RuntimeError" in caught.value.kinds
        assert "PeerLost" in member.ask("last_error").answer()
    victim.killed()
    with pytest.raises(Raised) as caught:
        first.ask("step").answer()
    assert "RuntimeError" in caught.value.kinds  # it goes on raising
    with pytest.raises(Raised):
        second.ask("step").answer()

    told = all_of([first, second], "admit")
    assert len(told[0]["left"]) == 1 and told[0]["left"] == told[1]["left"]
    assert {each["size"] for each in told} == {2}
    check_equal(told, 2)
    for steps in (1, 2):  # before and after DDP has rebuilt its buckets
        told = all_of([first, second], "step")
        assert told[0]["averages"] == [[OF_TWO]] * 6
        check_equal(told, 2 + steps)


def test_the_loss_of_rank_0_with_the_coordinator_is_a_clear_error_for_all(pool: Pool) -> None:
    members = pool.take(3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for rank, member in enumerate(members):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PCCL_TOKEN": "",
            "PCCL_RECONNECT_TIMEOUT": "1",
        }
        member.ask("begin", environment=environment, weight=WEIGHTS[rank])
    for member in members:
        member.answer()
    check_equal(all_of(members, "train", steps=1), 1)
    survivors = members[1:]
    members[0].ask("train", steps=1, dies=True)
    for member in survivors:
        member.ask("train", steps=1)
    for member in survivors:
        with pytest.raises(Raised) as caught:
            member.answer()
        assert "RuntimeError" in caught.value.kinds
        kinds = member.ask("last_error").answer()
        assert {"CoordinatorUnreachable", "InDoubt"} & set(kinds), (kinds, caught.value)
    members[0].killed()


@pytest.mark.parametrize("hook", [True, False])
def test_a_member_that_has_joined_contributes_zeros(
    pool: Pool, coordinator: pccl.Coordinator, hook: bool
) -> None:
    members = pool.take(2)
    begin(members, coordinator, hook=hook)
    all_of(members, "train", steps=1)
    for member, steps in zip(members, (1, 3), strict=True):
        member.ask("join", steps=steps)
    first, second = (member.answer() for member in members)
    assert first["averages"] == [[OF_TWO]] * 6
    assert second["averages"] == [[WEIGHTS[1] / 2]] * 6


def test_buckets_of_another_layout_are_a_mismatch(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    first, second = pool.take(2)
    environment = {"PCCL_TOKEN": coordinator.token, "PCCL_INITIAL_WORLD_SIZE": "2"}
    first.ask("begin", environment=environment, weight=1.0)
    second.ask("begin", environment=environment, weight=2.0, reverse=True)
    first.answer()
    second.answer()
    for member in (first, second):
        member.ask("wrap").answer()
    for member in (first, second):
        member.ask("step")
    for member in (first, second):
        with pytest.raises(Raised, match="wrap the model anew"):
            member.answer()
        assert "Mismatch" in member.ask("last_error").answer()
