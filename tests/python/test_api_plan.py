"""Plans as a program sees them: `plan`, `optimize_topology`, and the page of `pccl status --plan`.

Which plan is chosen: engine/plan/planner.zig. When it begins: engine/protocol/attempt.zig.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import pccl_py as pccl
from pccl_py.cli import status as status_view

COUNT = 1 << 22


@pytest.fixture
def peers() -> Iterator[list[pccl.Communicator]]:
    """Four members; links have 200 Mbit/s, and 50 Mbit/s between "b" and "c"."""
    rates: dict[str, dict[str | None, str | int]]
    rates = {label: {"*": "200mbit"} for label in "abcd"}
    rates["b"] = {"c": "50mbit", "*": "200mbit"}
    rates["c"] = {"b": "50mbit", "*": "200mbit"}
    with pccl.Coordinator(bind="127.0.0.1:0", initial_world_size=4) as run, _pool() as pool:

        def enter(label: str) -> pccl.Communicator:
            comm = pccl.connect(run.token, label=label, send_rate=rates[label], deadline=60)
            comm.admit()
            return comm

        comms = list(pool.map(enter, "abcd"))
        comms.sort(key=lambda comm: comm.rank)
        yield comms
        for comm in comms:
            comm.close()


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def _together(comms: list[pccl.Communicator], plan: Any) -> None:
    """An all_reduce of 16 MiB by all of `comms`."""

    def call(comm: pccl.Communicator) -> None:
        array = np.full(COUNT, comm.rank, np.float32)
        comm.all_reduce(array, plan=plan)
        assert (array == sum(range(4))).all()

    with _pool() as pool:
        list(pool.map(call, comms))


def _rank(comms: list[pccl.Communicator], label: str) -> int:
    return comms[0].labels.index(label)


def test_a_plan_spares_the_slow_pair_and_every_member_knows_it(
    peers: list[pccl.Communicator],
) -> None:
    slow = {_rank(peers, "b"), _rank(peers, "c")}

    def spares(plan: pccl.GroupPlan) -> bool:
        if plan.kind == "direct":  # with equal shares their link would carry two fourths
            return 3 * sum(plan.shares[rank] for rank in slow) < sum(plan.shares)
        pairs = zip(plan.order, plan.order[1:] + plan.order[:1], strict=True)
        return all({one, other} != slow for one, other in pairs)

    plan = peers[0].plan()
    assert (plan.kind, plan.order, plan.shares) == ("ring", (0, 1, 2, 3), (0, 0, 0, 0))
    while not spares(plan):  # pytest's limit of time ends the loop
        _together(peers, "direct")  # each link has something to carry
        plan = peers[2].optimize_topology()
    for comm in peers:
        known = comm.plan()
        assert (known.attempt, known.order, known.shares) == (plan.attempt, plan.order, plan.shares)
    _together(peers, "auto")


def test_a_plan_says_what_it_brings_once_the_rates_are_known() -> None:
    with pccl.Coordinator(bind="127.0.0.1:0", initial_world_size=3) as run, _pool() as pool:

        def program(_: int) -> pccl.GroupPlan:
            with pccl.connect(run.token, send_rate="200mbit", deadline=60) as comm:
                comm.admit()
                known = np.zeros(1)
                while not known[0]:
                    comm.all_reduce(np.ones(COUNT, np.float32))
                    plan = comm.plan()
                    known[0] = plan.predicted is not None
                    comm.all_reduce(known, op="min")
                return plan

        plans = list(pool.map(program, range(3)))
    for plan in plans:
        # In a ring of three each sends 4/3 of 64 MiB at 25 MB/s.
        assert plan.predicted is not None and plan.bound is not None
        assert plan.bound <= plan.predicted
        assert 0.9 < plan.predicted / (4 / 3 * 2**26 / 25e6) < 1.5
        assert plan.limits
        assert str(plan).startswith("ring 0 1 2: ") and " s for 64 MiB, at least " in str(plan)


def test_calls_of_several_members_and_threads_are_answered_while_operations_go_on() -> None:
    over = threading.Event()

    def train(comm: pccl.Communicator) -> int:
        array, go_on, steps = np.ones(1000), np.ones(1), 0
        while go_on[0]:
            comm.all_reduce(array, op="avg")
            go_on[0] = comm.rank != 0 or not over.is_set()
            comm.broadcast(go_on, 0)
            steps += 1
        return steps

    with pccl.LocalWorld(3, deadline=60) as world, ThreadPoolExecutor(7) as pool:
        training = [pool.submit(train, comm) for comm in world.comms]
        asking = [pool.submit(comm.optimize_topology) for comm in world.comms for _ in range(2)]
        assert {ask.result().kind for ask in asking} == {"ring"}
        over.set()
        assert min(each.result() for each in training) > 0


def test_a_member_that_leaves_holds_nobody_up() -> None:
    with pccl.LocalWorld(3, deadline=60) as world:
        world.comms[1].close()
        plan = world.comms[0].optimize_topology()
        assert plan.order == (0, 2) and len(plan.shares) == 3
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            world.comms[1].optimize_topology()
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            world.comms[1].plan()


def test_a_peer_alone_before_its_first_epoch_and_in_a_forked_child() -> None:
    with pccl.LocalWorld(1) as world:
        comm = world.comms[0]
        assert comm.optimize_topology().order == (0,)
        with comm.group("other") as group:
            assert group.plan() == pccl.GroupPlan(
                epoch=0,
                attempt=0,
                kind="ring",
                order=(),
                shares=(),
                small_bytes=0,
                predicted=None,
                bound=None,
                limits=(),
            )
            with pytest.raises(pccl.InvalidUsage, match="call admit first"):
                group.optimize_topology()
        child = os.fork()
        if child == 0:
            codes = []
            for call in (comm.plan, comm.optimize_topology):
                try:
                    call()
                except pccl.InvalidUsage as error:
                    codes.append("fork" in str(error))
            os._exit(0 if codes == [True, True] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_sub_group_has_a_plan_of_its_own() -> None:
    with pccl.LocalWorld(4, deadline=60) as world:

        def program(comm: pccl.Communicator) -> pccl.GroupPlan:
            group = comm.split(comm.rank % 2)
            assert group is not None
            with group:
                group.all_reduce(np.ones(10))
                plan = group.optimize_topology()
                group.barrier()
                return plan

        assert {plan.order for plan in world.run(program)} == {(0, 1)}


def test_a_call_that_gives_up_says_so() -> None:
    # Without its coordinator nobody can answer.
    with pccl.LocalWorld(2, deadline=60) as world:
        world.coordinator.close()
        words = (
            "optimize_topology timed out before the coordinator had answered: .* Operations go on"
        )
        with pytest.raises(pccl.DeadlineExceeded, match=words):
            world.comms[0].optimize_topology(deadline=0.2)
        with pytest.raises(pccl.InvalidArgument, match="deadline"):
            world.comms[0].optimize_topology(deadline=-1)
        # A thread that waits is told that another has closed the communicator.
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(world.comms[1].optimize_topology) for _ in range(2)]
            world.comms[1].close()
            for ask in asking:
                with pytest.raises(pccl.InvalidUsage, match="closed"):
                    ask.result()


# ---- pccl status --plan


def _link(rank: int, rate: int, **more: int) -> dict[str, int]:
    link = {"rank": rank, "sent_per_s": 0, "received_per_s": 0, "rate": rate, "rtt_ns": 80_000_000}
    return {**link, "retransmitted_ppm": 0, "lanes": 2, "age_ns": 0, **more}


def _epoch(count: int, **more: Any) -> dict[str, Any]:
    members = [
        {
            "rank": rank,
            "peer_id": f"{rank:032x}",
            "label": f"site-{rank}",
            "alive": True,
            "up": 25_000_000,
            "down": 25_000_000,
            "links": [_link(other, 25_000_000) for other in range(count) if other != rank],
        }
        for rank in range(count)
    ]
    paths = {"plan": "ring", "order": list(range(count)), "hubs": list(range(count)), "shares": []}
    return {"members": members, "small_bytes": 0, **paths, **more}


def _shown(epoch: dict[str, Any]) -> str:
    console = Console(width=120, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    for part in status_view._plan(epoch):
        console.print(part)
    console.file.close()
    return console.export_text()


def test_the_page_says_what_the_plan_brings_why_it_won_and_what_limits_it() -> None:
    planned = {
        "predicted_ns": 4_400_000_000,
        "bound_ns": 4_004_000_000,
        "limits": [{"from": 1, "to": 3}, {"from": 2, "to": None}, {"from": None, "to": 0}],
        "ring_of_ranks_ns": 42_000_000_000,
        "best_ring_ns": 4_400_000_000,
        "direct_even_ns": 12_600_000_000,
        "direct_shares_ns": 0,
        "middle": 2,
        "middle_rtt_ns": 80_000_000,
    }
    epoch = _epoch(4, planned=planned, order=[0, 1, 3, 2], small_bytes=65536)
    epoch["members"][1]["links"] = [_link(0, 25_000_000), _link(2, 2_500_000, age_ns=90 * 10**9)]
    text = " ".join(_shown(epoch).split())
    for words in (
        "plan ring 0 1 3 2, direct below 64.0 KiB",
        "64 MiB take 4.4 s, 91% of what these links can give; limited by rank 1 (site-1, 00000000)"
        " -> rank 3 (site-3, 00000000) and what rank 2 (site-2, 00000000) sends and what rank 0"
        " (site-0, 00000000) receives",
        "ring in rank order 42 s, best ring 4.4 s, direct 12.6 s",
        "the coordinator would best be beside rank 2 (site-2, 00000000): 80 ms at most",
        "23.8 MiB/s",
        "1 min 30 s old",
    ):
        assert words in text
    assert "direct with shares" not in text
    assert text.count("?") == 1  # rank 1 knows nothing of its link to rank 3


def test_the_page_lists_the_links_of_many_members() -> None:
    planned = {"predicted_ns": 0, "bound_ns": 0, "limits": []}
    planned |= dict.fromkeys(status_view._TRIED, 0)
    text = _shown(_epoch(9, planned=planned, plan="direct", shares=[1, 0, 2, 0, 0, 0, 0, 0, 0]))
    assert "plan direct, shares 0:1 2:2" in text
    assert text.count("23.8 MiB/s, 80 ms, 2 lanes") == 9 * 8


def test_the_page_says_that_nothing_is_known() -> None:
    assert "no rates are known yet" in _shown(_epoch(2))
    assert "epochs of more than 32 members are not planned" in _shown(_epoch(33))
    assert "plan direct by ranks 0 1" in _shown(_epoch(2, plan="direct"))


def test_the_command_shows_the_plan_of_a_run(pccl_command: Any) -> None:
    with pccl.LocalWorld(2) as world:
        shown = pccl_command("status", "--plan", PCCL_TOKEN=world.coordinator.token)
        assert "plan ring 0 1" in shown.stdout
        assert "no rates are known yet" in shown.stdout
