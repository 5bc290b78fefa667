"""Sub-groups: split and subgroup, what all are told of them, and losses before, in and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py.communicator import Split, Wish, name_of

LOOPBACK = "127.0.0.1:0"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def world() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(4, deadline=60.0, min_world_size=3) as made:
        yield made


def total(group: pccl.Group, value: float) -> float:
    array = np.array([value])
    group.all_reduce(array)
    return float(array[0])


def enter(coordinator: pccl.Coordinator) -> pccl.Communicator:
    comm = pccl.connect(coordinator.token, bind=LOOPBACK, deadline=60.0)
    comm.admit(together=True)
    return comm


def each(
    pool: ThreadPoolExecutor, call: Callable[[Any], Any], comms: list[Any]
) -> list[Future[Any]]:
    return [pool.submit(call, comm) for comm in comms]


def test_colors_make_groups_and_keys_their_order(world: pccl.LocalWorld) -> None:
    def split(comm: pccl.Communicator) -> tuple[Any, ...]:
        group = comm.split(comm.rank % 2, key=-comm.rank)
        assert group is not None
        assert group.members == tuple(
            comm.members[rank] for rank in (2 + comm.rank % 2, comm.rank % 2)
        )
        # The run's min_world_size is not that of its sub-groups.
        return group.rank, group.world_size, total(group, comm.rank), comm.run

    answers = world.run(split)
    assert [answer[:3] for answer in answers] == [
        (1, 2, 2.0),
        (1, 2, 4.0),
        (0, 2, 2.0),
        (0, 2, 4.0),
    ]
    for rank, run in enumerate(answer[3] for answer in answers):
        assert run == pccl.Run(1, rank, (0, 1, 0, 1))
        assert (run.world_size, run.groups, run.largest_group) == (4, 2, 2)


def test_a_member_without_a_color_takes_part_and_gets_no_group(world: pccl.LocalWorld) -> None:
    def split(comm: pccl.Communicator) -> tuple[Any, Any]:
        group = comm.split(None if comm.rank == 1 else -7)
        return comm.run, group and group.members

    answers = world.run(split)
    members = world.comms[0].members
    for rank, (run, found) in enumerate(answers):
        assert run.colors == (-7, None, -7, -7)
        assert (run.groups, run.largest_group) == (1, 3)
        assert found == (None if rank == 1 else (members[0], members[2], members[3]))
    assert world.run(lambda comm: comm.split(None)) == [None] * 4
    assert world.comms[0].run.largest_group == 0


def test_a_mesh_has_two_sub_groups_at_each_peer_and_groups_can_be_split_again(
    world: pccl.LocalWorld,
) -> None:
    def mesh(comm: pccl.Communicator) -> tuple[Any, ...]:
        row, column = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        assert row is not None and column is not None
        alone = row.split(row.rank)
        assert alone is not None
        sums = total(row, comm.rank), total(column, comm.rank), total(alone, comm.rank)
        alone.close()
        return sums

    assert world.run(mesh) == [(1.0, 2.0, 0.0), (1.0, 4.0, 1.0), (5.0, 2.0, 2.0), (5.0, 4.0, 3.0)]


def test_a_mesh_that_loses_one_and_gains_one_changes_shape_in_one_step(
    world: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    """2 x 2; one member dies and another peer comes; at the next safe point it is 2 x 2 again."""

    def shape(comm: pccl.Communicator) -> tuple[pccl.Group, pccl.Group]:
        row, column = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        assert row is not None and column is not None
        return row, column

    meshes = world.run(shape)
    lost = world.comms[3]
    lost.close()
    rest = world.comms[:3]
    # Those who are left in a sub-group go on.
    assert [job.result() for job in each(pool, lambda mesh: total(mesh[0], 1.0), [meshes[2]])] == [
        1.0
    ]
    newcomer = pool.submit(enter, world.coordinator)
    sums: list[set[float]] = []
    while rest[0].epoch == 1 or len(rest[0].members) < 4:
        for job in each(pool, lambda comm: comm.admit(together=True), rest):
            job.result()
        if rest[0].world_size == 4:
            break
    comms = [*rest, newcomer.result()]
    assert {comm.epoch for comm in comms} == {rest[0].epoch}
    # The old ones still work, for those who are in them.
    jobs = each(pool, lambda mesh: total(mesh[0], 1.0), meshes[:2])
    assert [job.result() for job in jobs] == [2.0, 2.0]
    for mesh in meshes[:3]:
        for group in mesh:
            group.close()
    again = [job.result() for job in each(pool, shape, comms)]
    for which in (0, 1):
        jobs = each(pool, lambda mesh: total(mesh[which], 1.0), again)  # noqa: B023
        sums.append({job.result() for job in jobs})
    assert sums == [{2.0}, {2.0}]
    assert len({comm.run.colors for comm in comms}) == 1
    comms[3].close()


def test_a_member_that_dies_before_it_asks_is_left_out_by_all(
    world: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    """It has said its color, so the others list it; they do not wait for it."""
    jobs = each(pool, lambda comm: comm.split(0), world.comms[:3])
    last = world.comms[3]
    wish = Wish(0, 0, 0).encode()
    last.all_gather(wish, bytearray(len(wish) * 4), recovery="restart")
    last.close()
    groups = [job.result() for job in jobs]
    for group in groups:
        assert group.members == world.comms[0].members[:3]
    assert [job.result() for job in each(pool, lambda group: total(group, 1.0), groups)] == [
        3.0
    ] * 3


def test_a_lost_member_has_no_color(world: pccl.LocalWorld, pool: ThreadPoolExecutor) -> None:
    world.comms[1].close()
    rest = [world.comms[rank] for rank in (0, 2, 3)]
    groups = [job.result() for job in each(pool, lambda comm: comm.split(0), rest)]
    for comm, group in zip(rest, groups, strict=True):
        assert comm.run.colors == (0, None, 0, 0)
        assert group.world_size == 3


def test_ranks_make_a_group_in_their_order_and_the_others_do_nothing(
    world: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    one, two = world.comms[3], world.comms[1]
    for name in ("", "another"):
        jobs = each(pool, lambda comm: comm.subgroup([3, 1], name=name), [one, two])  # noqa: B023
        groups = [job.result() for job in jobs]
        assert [group.rank for group in groups] == [0, 1]
        assert groups[0].members == (one.peer_id, two.peer_id)
        assert groups[0].name == name_of("default", 1, name) == f"default@1:{name}"
    # A group that has begun is closed, under its name.
    with pytest.raises(pccl.InvalidUsage, match="in group .* already"):
        one.subgroup([3, 1], name="another")
    with pytest.raises(pccl.InvalidUsage, match="has begun without this peer"):
        world.comms[0].subgroup([3, 0, 1], name="another")
    with pytest.raises(pccl.InvalidUsage, match="nobody enters a group of founders"):
        world.comms[0].group("default@1:another")
    for group in groups:
        group.close()


def test_founders_that_name_others_are_a_mismatch_for_all(
    world: pccl.LocalWorld, pool: ThreadPoolExecutor
) -> None:
    def make(comm: pccl.Communicator) -> pccl.Group:
        return comm.subgroup([0, 1] if comm.rank == 0 else [1, 0])

    for job in each(pool, make, world.comms[:2]):
        with pytest.raises(pccl.Mismatch, match="all founders must name the same"):
            job.result()
    # Nobody has lost its place, and they may try again.
    assert world.run(lambda comm: total(comm, 1.0)) == [4.0] * 4
    for job in each(pool, lambda comm: comm.subgroup([0, 1], name="again"), world.comms[:2]):
        assert job.result().world_size == 2


def test_a_founder_that_does_not_come_is_named_when_the_others_give_up(
    world: pccl.LocalWorld,
) -> None:
    with pytest.raises(pccl.DeadlineExceeded, match=r"must ask for the group first") as caught:
        world.comms[0].subgroup([0, 2], deadline=12.0)
    assert world.comms[0].label(world.comms[2].peer_id) in str(caught.value)
    assert world.run(lambda comm: total(comm, 1.0)) == [4.0] * 4


def test_sub_groups_have_the_deadline_of_their_parent_whatever_their_making_may_take(
    world: pccl.LocalWorld,
) -> None:
    """By what their calls raise, too: the deadline is also that of native code."""

    def make(comm: pccl.Communicator) -> list[pccl.Group | None]:
        halves = comm.split(comm.rank % 2, deadline=9.0)
        return [halves, comm.subgroup([3, 2, 1, 0], name="all", deadline=9.0)]

    groups = [group for made in world.run(make) for group in made if group is not None]
    assert [group.deadline for group in groups] == [60.0] * 8
    first = groups[1]
    first.deadline = 0.05
    with pytest.raises((pccl.DeadlineExceeded, pccl.InDoubt), match=r"waiting for \d\d+ ms for"):
        first.all_reduce(np.ones(1))
    with pytest.raises(pccl.InvalidArgument, match="deadline must be"):
        first.deadline = 0.0


def test_arguments_are_checked_before_anybody_is_asked(world: pccl.LocalWorld) -> None:
    comm = world.comms[1]
    with pytest.raises(pccl.InvalidUsage, match="first split"):
        _ = comm.run
    for ranks in ([0, 1, 1], [1, 4], [-1, 1]):
        with pytest.raises(pccl.InvalidArgument):
            comm.subgroup(ranks)
    with pytest.raises(pccl.InvalidArgument, match="this peer among them"):
        comm.subgroup([0, 2])
    with pytest.raises(TypeError, match="color must be an integer"):
        comm.split("red")  # type: ignore[arg-type]
    with pytest.raises(pccl.InvalidArgument, match="key must be between"):
        comm.split(0, 1 << 63)
    with pccl.connect(world.coordinator.token, bind=LOOPBACK) as outside:
        with pytest.raises(pccl.InvalidUsage, match="admit"):
            outside.split(0)
        with pytest.raises(pccl.InvalidUsage, match="admit"):
            outside.subgroup([0])


def test_closing_the_communicator_closes_its_sub_groups(world: pccl.LocalWorld) -> None:
    def leave(comm: pccl.Communicator) -> bool:
        group = comm.split(0)
        assert group is not None
        inner = group.split(0)
        assert inner is not None
        comm.close()
        return group.closed and inner.closed

    assert world.run(leave) == [True] * 4


def test_names_are_short_enough_and_differ_by_parent_epoch_and_number() -> None:
    wishes = (Wish(3, 0, 2), None, Wish(None, 0, 5))
    memory = b"".join(
        Wish.encode(wish) if wish else bytes(len(Wish(0, 0, 0).encode())) for wish in wishes
    )
    split = Split.decode(4, memory)
    assert split.wishes == wishes
    # One that failed may have been counted by some only.
    assert split.name("train", 3) == "train@4.5:3"
    long = split.name("ü" * 128, 3)
    assert long.endswith("@4.5:3")
    assert len(long.encode()) <= 256
    assert long != split.name("ö" * 128, 3)
