"""Groups whose members the program names itself: processes that come, go, are killed, and disagree.

Their program is reconfigure_program.py. With a release of PyTorch that has no `enable_reconfigure`
all tests run but the one of PyTorch's own functions.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from members import Member, Pool, Raised, all_of
from pccl_torch import start

import pccl_py as pccl

PROGRAM = Path(__file__).parent / "reconfigure_program.py"

# Its types are those of C++.
dist: Any = torch.distributed


@pytest.fixture(scope="module")
def processes() -> Iterator[Pool]:
    with Pool(PROGRAM) as pool:
        yield pool


@pytest.fixture
def pool(processes: Pool) -> Iterator[Pool]:
    yield processes
    processes.give_back()


@pytest.fixture
def three(pool: Pool) -> list[Member]:
    return pool.take(3)


def raised(member: Member, name: str, **options: Any) -> Raised:
    with pytest.raises(Raised) as caught:
        member.ask(name, **options).answer()
    return caught.value


def refused_at_the_beginning(member: Member, **options: Any) -> Raised:
    """PyTorch counts the group though it has failed, and names later ones by their number."""
    error = raised(member, "begin", **options)
    member.end()
    return error


def reconfigured(members: list[Member], uuid: int, handles: list[str], **options: Any) -> None:
    """These members, in the order of their handles."""
    size = len(members)
    told = all_of(members, "reconfigure", uuid=uuid, handles=handles, **options)
    assert told == [[rank, size] for rank in range(size)]


def test_members_are_those_of_the_handles_in_their_order(three: list[Member]) -> None:
    handles = all_of(three, "begin")
    assert len(set(handles)) == 3
    reconfigured(three, 1, handles)
    all_of(three, "collectives")
    reconfigured(three[::-1], 2, handles[::-1])
    all_of(three, "collectives")
    # A set has no order; the ranks are the same on all, whatever order they get it in.
    for member, shift in zip(three, range(3), strict=True):
        given = handles[shift:] + handles[:shift]
        member.ask("reconfigure", uuid=3, handles=given, as_set=True)
    told = [member.answer() for member in three]
    assert sorted(told) == [[0, 3], [1, 3], [2, 3]]
    all_of(three, "collectives")


def test_groups_shrink_grow_and_split(three: list[Member]) -> None:
    handles = all_of(three, "begin")
    for number, member in enumerate(three):
        reconfigured([member], number, [handles[number]])
        assert member.ask("reduce").answer() == 1
    reconfigured(three, 10, handles)
    all_of(three, "collectives")
    reconfigured([three[0], three[2]], 11, [handles[0], handles[2]])
    reconfigured([three[1]], 12, [handles[1]])
    all_of(three, "collectives")
    reconfigured(three, 13, handles)
    all_of(three, "collectives")


def test_a_killed_process_takes_nothing_along_and_a_new_one_takes_its_place(pool: Pool) -> None:
    first, second, third = three = pool.take(3)
    handles = all_of(three, "begin")
    reconfigured(three, 1, handles)
    first.signal(signal.SIGKILL)  # the coordinator of the three was in it
    first.killed()
    for member in (second, third):
        error = raised(member, "reduce")
        assert "DistBackendError" in error.kinds
    reconfigured([second, third], 2, handles[1:])
    all_of([second, third], "collectives")
    (fourth,) = pool.take(1)
    last = fourth.ask("begin").answer()
    reconfigured([second, third, fourth], 3, [*handles[1:], last])
    all_of([second, third, fourth], "collectives")
    third.signal(signal.SIGKILL)
    third.killed()
    for member in (second, fourth):
        assert "PeerLost" in raised(member, "reduce").kinds
    # The other way out: the safe point, where nobody has to be named.
    assert all_of([second, fourth], "admit") == [[[1], 0, 2], [[1], 1, 2]]
    all_of([second, fourth], "collectives")
    reconfigured([fourth, second], 4, [last, handles[1]])
    all_of([second, fourth], "collectives")


def test_in_the_run_of_a_token_the_coordinator_outlives_all(pool: Pool) -> None:
    with pccl.Coordinator() as coordinator:
        first, second = two = pool.take(2)
        handles = all_of(two, "begin", token=coordinator.token)
        assert all(handle.endswith(coordinator.token) for handle in handles)
        reconfigured(two, 1, handles)
        all_of(two, "collectives")
        first.signal(signal.SIGKILL)
        first.killed()
        assert "PeerLost" in raised(second, "reduce").kinds
        reconfigured([second], 2, handles[1:])
        second.ask("collectives").answer()
        second.ask("leave").answer()


def test_without_members_every_call_says_what_to_do(three: list[Member]) -> None:
    handles = all_of(three, "begin")
    for name in ("reduce", "group", "admit"):
        assert "_reconfigure(uuid, handles)" in str(raised(three[0], name))
    reconfigured(three, 1, handles)
    all_of(three, "abort")
    assert "was aborted" in str(raised(three[0], "reduce"))
    reconfigured(three, 2, handles)
    all_of(three, "collectives")
    all_of(three, "abort_and_forget")
    handles = all_of(three, "begin")
    reconfigured(three, 2, handles)
    all_of(three, "collectives")


def test_what_cannot_be_is_refused_and_changes_nothing(three: list[Member]) -> None:
    handles = all_of(three, "begin")
    reconfigured(three, 1, handles)
    member, own = three[0], handles[0]
    for given, text in (
        ([], "needs a handle"),
        ([own, own], "must differ"),
        (handles[1:], "is none of the 2"),
        ([own, "gloo:1:2:3"], "handle 1 of reconfigure is none of pccl's"),
        ([own, "pccl:12"], "handle 1 of reconfigure is cut off"),
    ):
        error = raised(member, "reconfigure", uuid=2, handles=given)
        assert error.kinds[0] == "InvalidArgument" and text in str(error)
    error = raised(member, "reconfigure", uuid=1, handles=handles)
    assert "RuntimeError" in error.kinds and "already used" in str(error)
    all_of(three, "collectives")
    assert "not reconfigure" in str(raised(member, "hsdp"))
    all_of(three, "leave")
    assert "leave one of them out" in str(refused_at_the_beginning(member, whole=True))


def test_a_group_that_cannot_be_made_ends_at_its_timeout(three: list[Member]) -> None:
    """Somebody is missing, and somebody has been told other members."""
    handles = all_of(three, "begin")
    error = raised(three[0], "reconfigure", uuid=1, handles=handles[:2], seconds=1)
    assert error.kinds[0] == "DeadlineExceeded"
    assert "The last time it failed" in str(raised(three[0], "reduce"))
    three[0].ask("reconfigure", uuid=2, handles=handles[:2], seconds=1)
    three[1].ask("reconfigure", uuid=2, handles=handles[1::-1], seconds=1)
    for member in three[:2]:
        with pytest.raises(Raised, match="DeadlineExceeded"):
            member.answer()
    reconfigured(three, 3, handles)
    all_of(three, "collectives")


def test_the_members_of_a_run_are_not_named(pool: Pool) -> None:
    with pccl.Coordinator() as coordinator:
        (member,) = pool.take(1)
        options = {"token": coordinator.token, "init_method": "pccl://"}
        error = refused_at_the_beginning(member, **options)
        assert "leave enable_reconfigure out" in str(error)


def test_what_was_made_of_the_members_follows_or_raises(three: list[Member]) -> None:
    handles = all_of(three, "begin")
    reconfigured(three, 1, handles)
    all_of(three, "group")
    assert all_of(three, "reduce_in_group") == [3, 3, 3]
    all_of(three, "wrap")
    for _ in range(3):  # in the second one it makes its buckets anew
        assert all_of(three, "step") == [2, 2, 2]
    assert all_of(three, "forward_of_shards") == [16, 16, 16]
    reconfigured(three, 2, handles)
    assert "make it anew" in str(raised(three[0], "reduce_in_group"))
    assert all_of(three, "step") == [2, 2, 2]
    assert all_of(three, "forward_of_shards") == [16, 16, 16]
    two = three[:2]
    reconfigured(two, 3, handles[:2])
    assert all_of(two, "step") == [1.5, 1.5]
    error = raised(two[0], "forward_of_shards")
    assert "PeerLost" in error.kinds and "load a checkpoint" in str(error)
    all_of(two, "group")
    assert all_of(two, "reduce_in_group") == [2, 2]
    # A newcomer's buckets may be in another order.
    reconfigured(three, 4, handles)
    assert "has joined" in str(raised(two[0], "step"))


def test_a_release_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_OLDEST", "99.1")
    with pytest.raises(pccl.InvalidUsage, match=r"needs torch 99\.1 or later, and this is torch 2"):
        start.create(None)


def test_pytorch_s_functions_reach_a_group_whose_members_are_named() -> None:
    """All other tests call them, too, where PyTorch has them."""
    if "enable_reconfigure" not in inspect.signature(dist.init_process_group).parameters:
        pytest.skip(f"torch {torch.__version__} has no init_process_group(enable_reconfigure=True)")
    assert not os.environ.get("PCCL_TOKEN")
    dist.init_process_group(
        "pccl", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True
    )
    try:
        world = dist.group.WORLD
        assert dist._supports_reconfigure() and not dist._supports_window()
        assert dist.get_backend_impl(world, torch.device("cpu")) is world
        dist._reconfigure(1, [dist._get_reconfigure_handle()]).wait()
        x, out = torch.ones(2), torch.zeros(2)
        dist.gather_single(x, out)
        assert out.tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="not safe to split"):
            dist.split_group(world, [[0]])
    finally:
        dist.destroy_process_group()
