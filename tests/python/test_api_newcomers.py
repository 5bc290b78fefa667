"""Newcomers that come with something wrong: they are refused alone, and the members go on.

Whose word counts, and every order of events: engine/protocol/operation_test.zig and tests/sim.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"


def join(coordinator: pccl.Coordinator, world_size: int | None = None) -> pccl.Communicator:
    return pccl.connect(
        coordinator.token, bind=LOOPBACK, deadline=30.0, initial_world_size=world_size
    )


def each(comms: list[pccl.Communicator], do: Callable[[pccl.Communicator], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(do, comms))


def admit(comm: pccl.Communicator) -> pccl.Admission:
    """Safe points until a new epoch begins; members sum in between, as a program does."""
    while not (admission := comm.admit()).changed:
        comm.barrier()
    return admission


def members_and_newcomer(
    coordinator: pccl.Coordinator,
) -> tuple[list[pccl.Communicator], pccl.Communicator]:
    with ThreadPoolExecutor(2) as pool:
        members = list(pool.map(lambda _: join(coordinator, 2), range(2)))
    each(members, admit)
    newcomer = join(coordinator)
    each([newcomer, *members], admit)
    return members, newcomer


def check_refused(newcomer: pccl.Communicator, raised: pccl.PcclError, *parts: str) -> None:
    """It was told both, and every later call says why it is no member."""
    assert "the members go on without it" in str(raised)
    with pytest.raises(pccl.Expelled) as later:
        newcomer.admit()
    for part in parts:
        assert part in str(raised), raised
        assert part in str(later.value), later.value
    assert newcomer.info().lost == "Expelled"
    assert "lost (Expelled), was rank" in repr(newcomer)
    newcomer.close()


def test_a_newcomer_with_another_shape_is_refused_alone(coordinator: pccl.Coordinator) -> None:
    """999 elements instead of 1000: members sync, lose nobody else, and let the next one in."""
    members, newcomer = members_and_newcomer(coordinator)
    arrays = {comm.peer_id: np.full(1000, comm.rank, np.float32) for comm in members}
    wrong = np.full(999, 7, np.float32)

    def sync(comm: pccl.Communicator) -> Any:
        array = arrays.get(comm.peer_id, wrong)
        with comm.shared_state({"parameters": array}) as state:
            if comm is not newcomer:
                return state.sync()
            with pytest.raises(pccl.Mismatch) as caught:
                state.sync()
            return caught.value

    *outcomes, raised = each([*members, newcomer], sync)
    assert {outcome.revision for outcome in outcomes} == {1}
    assert len({arrays[comm.peer_id].tobytes() for comm in members}) == 1
    assert (wrong == 7).all()
    check_refused(newcomer, raised, '"parameters" is f32[1000]', "f32[999]")

    def go_on(comm: pccl.Communicator) -> None:
        while comm.admit().world_size < 3:
            comm.barrier()

    with ThreadPoolExecutor(2) as pool:
        going = [pool.submit(go_on, comm) for comm in members]
        good = join(coordinator)
        assert good.admit().world_size == 3
        for future in going:
            future.result()
    for comm in [good, *members]:
        comm.close()


def test_a_newcomer_with_another_first_call_is_refused_alone(
    coordinator: pccl.Coordinator,
) -> None:
    """Another op of its first all_reduce: members have their sum, and theirs alone."""
    members, newcomer = members_and_newcomer(coordinator)

    def reduce(comm: pccl.Communicator) -> Any:
        array = np.full(1000, 3, np.float32)
        if comm is newcomer:
            with pytest.raises(pccl.Mismatch) as caught:
                comm.all_reduce(array, op="max")
            assert (array == 3).all()
            return caught.value
        outcome = comm.all_reduce(array)
        assert (array == 6).all()
        return outcome

    *outcomes, raised = each([*members, newcomer], reduce)
    for outcome in outcomes:
        assert set(outcome.contributors) == {comm.peer_id for comm in members}
    check_refused(newcomer, raised, "all_reduce(max, 1000 f32", "all_reduce(sum, 1000 f32")
    for comm in members:
        comm.close()


def test_a_newcomer_whose_counts_do_not_fit_is_refused_alone(
    coordinator: pccl.Coordinator,
) -> None:
    """It has two rows for rank 1, which wants one; rank 0 may have had its row before that."""
    members, newcomer = members_and_newcomer(coordinator)

    def exchange(comm: pccl.Communicator) -> Any:
        sends = [1, 2, 1] if comm is newcomer else [1, 1, 1]
        rows = np.full((sum(sends), 2), comm.rank + 1.0)

        def call() -> Any:
            return pnp.all_to_all(
                comm, rows, send_counts=sends, recv_counts=[1, 1, 1], recovery="restart"
            )

        if comm is not newcomer:
            return call()
        with pytest.raises(pccl.Mismatch) as caught:
            call()
        return caught.value

    *received, raised = each([*members, newcomer], exchange)
    for comm, rows in zip(members, received, strict=True):
        assert rows[:2].tolist() == [[1, 1], [2, 2]]
        assert rows[2].tolist() in [[0, 0], [3, 3]][: 2 - comm.rank]
    parts = ["it called all_to_all(f64, 4 elements for the other", "where rank 1 (", "2 from it)"]
    check_refused(newcomer, raised, *parts)
    for comm in members:
        comm.close()


@pytest.mark.parametrize("what", ["tag", "state"])
def test_a_newcomer_that_calls_where_nobody_does_is_refused_alone(what: str) -> None:
    """Another tag, or another name of its shared state: the members wait for the stall warning."""
    with pccl.Coordinator(stall_warning=1.0) as coordinator:
        members, newcomer = members_and_newcomer(coordinator)

        def call(comm: pccl.Communicator) -> Any:
            array = np.ones(1000, np.float32)
            if what == "tag":
                return comm.all_reduce(array, tag=7 if comm is newcomer else 3)
            name = "weights" if comm is newcomer else "parameters"
            with comm.shared_state({"array": array}, name=name) as state:
                return state.sync()

        def raised_by(comm: pccl.Communicator) -> Any:
            if comm is not newcomer:
                return call(comm)
            with pytest.raises(pccl.Mismatch) as caught:
                call(comm)
            return caught.value

        *_, raised = each([*members, newcomer], raised_by)
        parts = (
            ["(tag 7)", "(tag 3)"]
            if what == "tag"
            else [
                'it waits in sync of "weights", which no member',
                'its sync of "parameters"',
            ]
        )
        check_refused(newcomer, raised, "which no member has called", *parts)
        assert all(comm.info().alive == 2 for comm in members)
        for comm in members:
            comm.close()


def test_a_newcomer_with_another_array_of_a_list_is_told_which(
    coordinator: pccl.Coordinator,
) -> None:
    """The leaf of its tree has a name, and so has the member that has called something else."""
    members, newcomer = members_and_newcomer(coordinator)

    def reduce(comm: pccl.Communicator) -> str:
        arrays = [np.ones(10, np.float32), np.ones(499 + (comm is not newcomer), np.int16)]
        if comm is not newcomer:
            return str(pnp.tree.all_reduce_(comm, {"a": arrays[0], "b": arrays[1:]}))
        with pytest.raises(pccl.Mismatch) as caught:
            pnp.tree.all_reduce_(comm, {"a": arrays[0], "b": arrays[1:]})
        return str(caught.value)

    raised = each([*members, newcomer], reduce)[-1]
    named = [
        f"rank {comm.rank} ({comm.label(comm.peer_id)}, {comm.peer_id.short})" for comm in members
    ]
    mine = "leaf ['b'][0] has 499 i16 at rank 2 (this peer) and 500 i16 at"
    assert any(f"{mine} {name}. " in raised for name in named), raised
    for comm in [*members, newcomer]:
        comm.close()


def test_lost_shards_that_adjoin_are_one_range(coordinator: pccl.Coordinator) -> None:
    """Two of four leave: of an all_gather there are two shards, and one range that nobody gave."""
    with ThreadPoolExecutor(4) as pool:
        comms = list(pool.map(lambda _: join(coordinator, 4), range(4)))
    each(comms, admit)
    comms.sort(key=lambda comm: comm.rank)
    for comm in comms[1:3]:
        comm.close()
    left = [comms[0], comms[3]]

    def gather(comm: pccl.Communicator) -> pccl.Outcome:
        return comm.all_gather(np.full(8, comm.rank), np.empty(32, np.int64), recovery="restart")

    for outcome in each(left, gather):
        ranges = [(part.begin, part.end, part.contributors) for part in outcome.ranges]
        assert ranges == [
            (0, 8, (comms[0].peer_id,)),
            (8, 24, ()),
            (24, 32, (comms[3].peer_id,)),
        ]
    for comm in left:
        comm.close()


@pytest.mark.parametrize("rules", [(), ("highest_revision",)], ids=["default", "highest"])
def test_a_newcomer_of_a_high_revision_receives_unless_a_rule_lets_it_give(
    coordinator: pccl.Coordinator,
    rules: tuple[pccl.StateRuleName, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And whose content is replaced says in its log what it has now, and from whom; as a warning
    where its own revision was higher."""
    caplog.set_level("INFO", logger="pccl")
    with ThreadPoolExecutor(2) as pool:
        members = list(pool.map(lambda _: join(coordinator, 2), range(2)))
    each(members, admit)
    values = {comm: np.full(1, 50.0) for comm in members}
    states = {comm: comm.shared_state({"x": values[comm]}, rules=rules) for comm in members}
    for _ in range(3):
        each(members, lambda comm: states[comm].sync())
        for value in values.values():
            value += 1
    newcomer = join(coordinator)
    each([newcomer, *members], admit)
    values[newcomer] = np.full(1, 7.0)
    states[newcomer] = newcomer.shared_state({"x": values[newcomer]}, revision=5000, rules=rules)
    everybody = [*members, newcomer]
    each(everybody, lambda comm: states[comm].sync())
    wanted, revision = (7, 5000) if rules else (53, 3)
    assert [float(value[0]) for value in values.values()] == [wanted] * 3
    assert {state.revision for state in states.values()} == {revision + 1}

    givers = [newcomer] if rules else members
    level, replaced = ("INFO", "3") if rules else ("WARNING", "5000")
    said = f"content of revision {revision} replaces revision {replaced} of this peer; it came from"
    lines = [f"{said} peer {giver.peer_id.short}" for giver in givers]
    limit = time.monotonic() + 20
    while True:  # the log has a thread of its own
        found = [r for r in caplog.records if any(line in r.getMessage() for line in lines)]
        if found:
            break
        assert time.monotonic() < limit, caplog.text
    assert {record.levelname for record in found} == {level}
    for comm in everybody:
        states[comm].close()
        comm.close()
