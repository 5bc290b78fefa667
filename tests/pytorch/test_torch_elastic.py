"""Losses and joins under DistributedDataParallel, with processes that are killed and frozen.

The program of the processes is elastic_program.py; what needs one process alone is in
test_torch_ddp.py.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from members import ANSWER_SECONDS_MAX, Member, Pool, Raised, all_of

import pccl_py as pccl
from harness.child import held_port

# Its types are those of C++.
dist: Any = torch.distributed

PROGRAM = Path(__file__).parent / "elastic_program.py"
# The weights of the processes, which are the elements of their gradients, and averages of them.
WEIGHTS = (1.0, 2.0, 6.0)
OF_ALL, OF_TWO = 3.0, 1.5
# A shared state is compared and fetched in leaves.
LEAF_BYTES = 256 << 10


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


def test_a_newcomer_fetches_what_does_not_change_before_the_safe_point(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    """Goal: with prefetch, frozen parameters are there when the others let a newcomer in.

    The first newcomer comes when the others share no state of optimizers yet, the second when they
    do: both expect it.
    """
    frozen = 5 * LEAF_BYTES // 4
    members = pool.take(2)
    begin(members, coordinator, frozen=frozen)
    all_of(members, "admit")  # it answers for entering
    all_of(members, "sync")
    all_of(members, "wrap")
    all_of(members, "step")
    for rank in (2, 3):
        (newcomer,) = pool.take(1)
        environment = {"PCCL_TOKEN": coordinator.token}
        newcomer.ask("begin", environment=environment, weight=6.0, frozen=frozen)
        # It is in the next epoch, so its fetch has ended; the others have passed no safe point yet.
        until(coordinator, functools.partial(_can_begin, size=rank + 1))
        all_of(members, "step")  # changes all that trains
        for admitted in all_of(members, "admit"):
            assert admitted["joined"] == [rank]
        newcomer.answer()
        newcomer.ask("admit").answer()  # that of its entry
        told = all_of([*members, newcomer], "sync")
        check_equal(told, rank)
        assert [each["moved"] + each["early"] for each in told[:-1]] == [0] * rank
        assert told[-1]["early"] == 5 + 1  # the frozen ones, and the learning rate
        assert told[-1]["moved"] >= 6  # each layer, at least
        members.append(newcomer)
        all_of(members, "wrap")


def test_a_loss_that_only_another_group_has_told_of_counts_at_the_first_safe_point(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    """No call was made in the default group, whose entry the program has not asked about."""
    first, second, victim = members = pool.take(3)
    begin(members, coordinator)
    all_of(members, "groups_of", listed=[[0, 1, 2]])
    assert all_of(members, "from_the_last") == [[[[0, 1, 2], 2.0]]] * 3
    victim.signal(signal.SIGKILL)
    victim.killed()
    for (kinds,) in all_of([first, second], "from_the_last"):
        assert "PeerLost" in kinds
    for admitted in all_of([first, second], "admit"):
        assert admitted["changed"] and admitted["size"] == 2
        assert admitted["joined"] == [] and len(admitted["left"]) == 1
    assert all_of([first, second], "from_the_last") == [[[[0, 1], 1.0]]] * 2


def test_a_rank_that_returns_fetches_ahead_as_well(
    pool: Pool, coordinator: pccl.Coordinator, store: int
) -> None:
    """With "env://" the group is entered by the first call, and not by init_process_group."""
    frozen = 5 * LEAF_BYTES // 4
    first, victim, back = pool.take(3)
    begin_ranks({0: first, 1: victim}, coordinator, store, None, frozen=frozen)
    all_of([first, victim], "admit")  # it answers for entering
    all_of([first, victim], "sync")
    all_of([first, victim], "wrap")
    all_of([first, victim], "step")
    victim.signal(signal.SIGKILL)
    victim.killed()
    until(coordinator, without(1))
    assert first.ask("admit").answer()["left"] == [1]
    first.ask("sync").answer()
    begin_ranks({1: back}, coordinator, store, None, frozen=frozen, size=2)
    back.ask("admit")
    until(coordinator, functools.partial(_can_begin, size=2))
    assert first.ask("admit").answer()["joined"] == [1]
    back.answer()
    _, told = all_of([first, back], "sync")
    # Nobody has made a step since: six layers, what AdamW has of them, and the counter.
    assert (told["moved"], told["early"]) == (0, 6 + 18 + 1)


def _can_begin(group: dict[str, Any], size: int) -> bool:
    """An epoch of so many begins for each member at its next safe point."""
    return group["state"] == "activate" and len(group["epochs"][-1]["members"]) == size


def test_a_peer_that_makes_its_group_anew_after_a_loss_is_a_newcomer_like_any_other(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    """The loss was told in the group before, so it stands for no safe point of the new one."""
    first, second, victim = pool.take(3)
    begin([first, second, victim], coordinator, hook=False)
    check_equal(all_of([first, second, victim], "train", steps=2), 2)
    victim.ask("step", dies=True)
    for member in (first, second):
        with pytest.raises(Raised):
            member.ask("step").answer()
        assert "PeerLost" in member.ask("last_error").answer()
    victim.killed()

    first.ask("leave").answer()
    while second.ask("admit").answer()["size"] > 1:
        continue
    second.ask("wrap").answer()
    environment = {"PCCL_TOKEN": coordinator.token}
    first.ask("begin", environment=environment, weight=WEIGHTS[0], hook=False)
    second.ask("train", until_joined=True)
    first.answer()
    first.ask("train", until_joined=True)
    told = [member.answer() for member in (second, first)]
    check_equal(told, told[0]["step"])
    told = all_of([second, first], "train", steps=2)
    check_equal(told, told[0]["step"])
    assert told[0]["averages"] == [[OF_TWO]] * 6


def test_a_frozen_peer_is_dropped_and_the_hook_goes_on(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    first, second, frozen = pool.take(3)
    begin([first, second, frozen], coordinator, codec="int8")
    # In the second step DDP rebuilds its buckets, which needs every member.
    check_equal(all_of([first, second, frozen], "train", steps=2), 2)
    frozen.signal(signal.SIGSTOP)
    frozen.frozen()
    told = all_of([first, second], "train", steps=2)
    check_equal(told, 4)
    assert {each["size"] for each in told} == {2}
    frozen.signal(signal.SIGCONT)
    with pytest.raises(Raised, match="no longer a member"):  # in admit, or in backward
        frozen.ask("train", steps=1).answer()
    assert "Expelled" in frozen.ask("last_error").answer()


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


def peer(rank: int) -> str:
    """The id that a rank of `RANK` has, also if it comes back."""
    return (1 + rank).to_bytes(16, "big").hex()


def begin_ranks(
    members: dict[int, Member],
    coordinator: pccl.Coordinator,
    port: int,
    listed: list[int] | None,
    *,
    frozen: int = 0,
    size: int | None = None,
) -> None:
    """These members begin, or come back, as ranks of torchrun; and make a second group of all."""
    environment = {
        "PCCL_TOKEN": coordinator.token,
        "WORLD_SIZE": str(size or len(listed or members)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for rank, member in members.items():
        own = {**environment, "RANK": str(rank)}
        member.ask("begin", environment=own, weight=1.0, method="env://", frozen=frozen)
    for member in members.values():
        member.answer()
    if listed is not None:
        all_of(list(members.values()), "another_group", ranks=listed)


def until(
    coordinator: pccl.Coordinator, what: Callable[[dict[str, Any]], bool], groups: int = 0
) -> None:
    """Waits until each group of the run is so, and there are so many."""
    end = time.monotonic() + ANSWER_SECONDS_MAX
    while time.monotonic() < end:
        told = pccl.run_status(coordinator.token)["groups"]
        if len(told) >= groups and all(map(what, told)):
            return
    raise AssertionError(pccl.run_status(coordinator.token))


def without(rank: int) -> Callable[[dict[str, Any]], bool]:
    """Each group that has begun can go on without this one at its next safe point."""

    def is_so(group: dict[str, Any]) -> bool:
        if not group["epochs"]:
            return True
        members = group["epochs"][-1]["members"]
        others = all(each["alive"] and each["peer_id"] != peer(rank) for each in members)
        return others and group["state"] == "activate"

    return is_so


@pytest.fixture
def store() -> Iterator[int]:
    """The port of a store, as an agent of torchrun has it: it outlives all members."""
    made = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield made.port
    del made


def test_an_unsorted_group_keeps_its_order_after_a_loss_and_a_member_that_returns_is_the_last(
    pool: Pool, coordinator: pccl.Coordinator, store: int
) -> None:
    listed = [2, 0, 1]
    first, victim, third = pool.take(3)
    begin_ranks({0: first, 1: victim, 2: third}, coordinator, store, listed)
    all_of([first, victim, third], "admit")  # it answers for entering
    for told in all_of([first, victim, third], "gathered"):
        assert told == [[peer(0), peer(1), peer(2)], [peer(2), peer(0), peer(1)], listed]

    victim.signal(signal.SIGKILL)
    victim.killed()
    until(coordinator, without(1))
    survivors = [first, third]
    for admitted in all_of(survivors, "admit"):
        assert (admitted["joined"], admitted["left"]) == ([], [1])
    for told in all_of(survivors, "gathered"):
        assert told == [[peer(0), peer(2)], [peer(2), peer(0)], [1, 0]]

    (back,) = pool.take(1)
    begin_ranks({1: back}, coordinator, store, listed)
    back.ask("admit")
    # Both groups can be entered at the next safe point.
    until(coordinator, lambda group: group["state"] == "activate")
    for admitted in all_of(survivors, "admit"):
        assert (admitted["joined"], admitted["left"]) == ([2], [])
    assert back.answer()["changed"]
    for told in all_of([first, back, third], "gathered"):
        assert told == [[peer(0), peer(2), peer(1)]] * 2 + [[0, 1, 2]]


def test_groups_with_a_common_member_raise_when_it_is_lost_and_one_admit_mends_all(
    pool: Pool, coordinator: pccl.Coordinator, store: int
) -> None:
    members = pool.take(3)
    begin_ranks(dict(enumerate(members)), coordinator, store, None)
    all_of(members, "groups_of", listed=[[0, 1], [1, 2], [0, 1, 2]])
    all_of(members, "admit")  # it answers for entering
    pairs = {0: [[0, 1], 1], 1: [[1, 2], 2]}
    third = [[0, 1, 2], 2]
    expected = [[pairs[0], third], [pairs[0], pairs[1], third], [pairs[1], third]]
    assert all_of(members, "from_the_last") == expected

    members[1].signal(signal.SIGKILL)
    members[1].killed()
    until(coordinator, without(1))
    survivors = [members[0], members[2]]
    for raised in all_of(survivors, "from_the_last"):
        assert ["PeerLost" in kinds for kinds in raised] == [True, True]
    for admitted in all_of(survivors, "admit"):
        assert admitted["changed"] and admitted["left"] == [1]
    told = all_of(survivors, "from_the_last")
    assert told == [[[[0], 0], [[0, 1], 1]], [[[1], 1], [[0, 1], 1]]]


def test_an_admit_that_fails_between_two_groups_is_made_again_and_answers_for_both(
    pool: Pool, store: int
) -> None:
    with pccl.Coordinator(heartbeat=0.1, silence=60.0) as coordinator:
        first, frozen, third, lost = members = pool.take(4)
        begin_ranks(dict(enumerate(members)), coordinator, store, None)
        all_of(members, "admit")  # it answers for entering
        lost.signal(signal.SIGKILL)
        lost.killed()
        until(coordinator, without(3))
        survivors = [first, third]
        all_of([*survivors, frozen], "another_group", ranks=[2, 0, 1])
        # It passes the safe point of the first group, and never enters the second.
        frozen.ask("admit", freezes=True)
        for member in survivors:
            member.ask("admit", deadline=3.0)
        for member in survivors:
            with pytest.raises(Raised) as caught:
                member.answer()
            assert "DeadlineExceeded" in caught.value.kinds
            assert member.ask("told").answer()["size"] == 3
        frozen.signal(signal.SIGKILL)
        frozen.killed()
        until(coordinator, without(1))
        for admitted in all_of(survivors, "admit"):
            assert admitted["changed"] and admitted["left"] == [1, 3]
            assert admitted["size"] == 2
        for member in survivors:
            member.ask("gathered")
        for member in survivors:
            with pytest.raises(Raised, match="has not begun, and some of the 3 members") as caught:
                member.answer()
            assert "PeerLost" in caught.value.kinds
        all_of(survivors, "another_group", ranks=[1, 0])
        for told in all_of(survivors, "gathered"):
            assert told == [[peer(0), peer(2)], [peer(2), peer(0)], [1, 0]]
        all_of(survivors, "leave")


def test_a_new_group_raises_as_soon_as_a_member_that_it_needs_is_lost(
    pool: Pool, coordinator: pccl.Coordinator, store: int
) -> None:
    first, victim, third, other = members = pool.take(4)
    begin_ranks(dict(enumerate(members)), coordinator, store, None)
    all_of(members, "admit")  # it answers for entering
    survivors = [first, third]
    for member in survivors:  # they wait for the others
        member.ask("another_group", ranks=[0, 1, 2, 3])
    until(coordinator, lambda group: group.get("here", 2) == 2, groups=2)
    victim.signal(signal.SIGKILL)
    victim.killed()
    for member in survivors:
        with pytest.raises(Raised, match="cannot begin without rank 1 .* lost") as caught:
            member.answer()
        assert {"PeerLost", "DistBackendError"} <= set(caught.value.kinds)
    with pytest.raises(Raised, match="cannot begin without rank 1 .* lost"):
        other.ask("another_group", ranks=[0, 1, 2, 3]).answer()
    survivors.append(other)
    all_of(survivors, "another_group", ranks=[3, 0, 2])  # which needs nobody who is lost
    # The next safe point is without the lost one; the groups made since have begun or never will.
    is_without = without(1)
    until(coordinator, lambda group: group["name"] != "default" or is_without(group))
    for admitted in all_of(survivors, "admit"):
        assert admitted["left"] == [1]
    for told in all_of(survivors, "gathered"):
        assert told == [[peer(0), peer(2), peer(3)], [peer(3), peer(0), peer(2)], [2, 0, 1]]


def test_a_newcomer_and_the_others_make_the_same_group_however_many_those_have_made(
    pool: Pool, coordinator: pccl.Coordinator
) -> None:
    members = pool.take(2)
    begin(members, coordinator)
    all_of(members, "another_group", ranks=[0, 1])  # before the first admit(): newcomers enter it
    all_of(members, "admit")
    for _ in range(2):
        all_of(members, "another_group", ranks=[0, 1])
    (newcomer,) = pool.take(1)
    newcomer.ask("begin", environment={"PCCL_TOKEN": coordinator.token}, weight=6.0)
    while not all_of(members, "admit")[0]["joined"]:
        continue  # it is on its way
    newcomer.answer()
    newcomer.ask("admit").answer()
    members.append(newcomer)
    for ranks in ([2, 0, 1], [0, 1, 2], [0, 1, 2]):
        all_of(members, "another_group", ranks=ranks)
        (told, *others) = all_of(members, "gathered")
        assert others == [told] * 2
        assert told[1:] == [[told[0][rank] for rank in ranks], ranks]
    all_of(members, "another_group", ranks=[0, 1, 2], use_local_synchronization=True)
    assert all_of(members, "gathered")[2][1:] == [told[0], [0, 1, 2]]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:pccl"])
def test_another_backend_without_a_store_for_it_raises_at_once(
    pool: Pool, coordinator: pccl.Coordinator, backend: str
) -> None:
    members = pool.take(2)
    begin(members, coordinator)
    for member in members:
        with pytest.raises(Raised, match='need init_method="env://"') as caught:
            member.ask("sum_over_another_group", backend=backend).answer()
        assert {"RuntimeError", "InvalidUsage"} <= set(caught.value.kinds)


def test_the_loss_of_rank_0_with_the_coordinator_is_a_clear_error_for_all(pool: Pool) -> None:
    members = pool.take(3)
    with held_port() as held:
        for rank, member in enumerate(members):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": "3",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(held.getsockname()[1]),
                "PCCL_TOKEN": "",
                "PCCL_RECONNECT_TIMEOUT": "1",
                # Rank 0 has the store, also if its process had an agent's in the test before.
                "TORCHELASTIC_USE_AGENT_STORE": "False",
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
