"""Calls that one member does not make: who it is, everybody learns, and a run may let it go.

The names come from the coordinator, which asks the members that have not called. How the rules
hold when members lie or are slow: engine/protocol/debt_test.zig.
"""

from __future__ import annotations

import re
import time
from typing import Any

import contributions
import numpy as np
import oracle
import pytest
from linked import LinkedWorld, await_condition
from peers import Peer, World
from proxy import Fate, Rule

import pccl_py as pccl

COUNT = 1000
SALT = 5
FAST: dict[str, Any] = {"heartbeat": 0.1, "silence": 5, "stall_warning": 0.5}
WAIT_SECONDS_MAX = 60
LABEL = r"\S+:\d+"


def operations(world: World) -> list[dict[str, Any]]:
    (group,) = pccl.run_status(world.coordinator.token)["groups"]
    return [operation for epoch in group["epochs"] for operation in epoch["operations"]]


def wait_until_named(world: World) -> dict[str, Any]:
    """The operation of which the status says who is waited for."""
    until = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < until:
        for operation in operations(world):
            if operation["waits_for"]:
                return operation
    pytest.fail(f"nobody was named: {operations(world)}")


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return [line for line in said if part in line]


def wait_until_said(caplog: pytest.LogCaptureFixture, part: str) -> str:
    """The one warning with these words: the log is handed on by a thread."""
    until = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < until:
        if said := lines(caplog, part):
            assert len(said) == 1, said
            return said[0]
    pytest.fail(f"not said: {part}")


def check_untouched(peer: Peer) -> None:
    assert np.array_equal(peer.read("x"), contributions.digits(peer.number, COUNT, SALT))


def test_a_member_that_never_calls_is_named_in_status_log_and_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two of three call. Their errors name the third, which stays a member."""
    caplog.set_level("INFO", logger="pccl")
    with World(3, **FAST) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=SALT)
        hasty, patient, absent = world.peers
        patient.ask("begin", work="w", kind="all_reduce", array="x", deadline=60)
        hasty.send("run", kind="all_reduce", array="x", deadline=5)
        named = wait_until_named(world)
        assert (named["kind"], named["called"], named["done"]) == ("all_reduce", 2, 0)
        assert named["waits_for"] == [2]
        assert named["stalled_ns"] >= 0.5e9
        waiting = (
            rf"waiting for \d+ s for rank 2 \({LABEL}, {absent.name}\), which has not called it"
        )
        raised = hasty.failure()
        assert raised.kind == "DeadlineExceeded" and re.search(waiting, raised.message), raised
        patient.send("wait", work="w")
        raised = patient.failure()
        assert raised.kind == "Aborted" and re.search(waiting, raised.message), raised
        assert re.search(
            rf"it timed out: the deadline of rank 0 \({LABEL}, {hasty.name}\) passed",
            raised.message,
        )
        for peer in (hasty, patient):
            check_untouched(peer)
        said = wait_until_said(caplog, "has not called all_reduce (tag 0, sequence 0 of epoch 1)")
        assert re.match(rf"peer {absent.name} \({LABEL}, rank 2\) ", said) and "2 of 3" in said
        assert absent.name in wait_until_said(caplog, "is not waited for any more")
        # All are still members.
        absent.send("run", kind="all_reduce", array="x")
        assert absent.failure().kind == "Aborted"
        outcomes = world.all("run", kind="all_reduce", array="x")
        for peer, outcome in zip(world.peers, outcomes, strict=True):
            oracle.check(outcome, peer.read("x"), SALT)


def test_a_member_that_never_calls_is_let_go_and_the_others_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one is told the true reason; the others' call succeeds without it."""
    caplog.set_level("INFO", logger="pccl")
    with World(3, stall=1.0, **FAST) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=SALT)
        first, second, absent = world.peers
        for peer in (first, second):
            peer.send("run", kind="all_reduce", array="x", deadline=60)
        for peer in (first, second):
            outcome = peer.answer()
            assert [entry["contributors"] for entry in outcome["ranges"]] == [[0, 1]]
            oracle.check(outcome, peer.read("x"), SALT)
        absent.send("run", kind="all_reduce", array="x")
        raised = absent.failure()
        why = "it has not called all_reduce (tag 0, sequence 0 of epoch 1), for which 2 of 3 have"
        assert raised.kind == "Expelled" and why in raised.message, raised
        check_untouched(absent)
        assert absent.name in wait_until_said(caplog, "must leave group")


def test_a_link_that_moves_nothing_is_named_though_all_have_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The bytes from rank 1 to rank 2 are held for less than the silence limit, then go on."""
    caplog.set_level("INFO", logger="pccl")
    settings = {**FAST, "silence": 60, "chunk_bytes": 4096, "window_bytes": 64 * 1024}
    with LinkedWorld(3, **settings) as world:
        world.all("make", name="x", of="digits", count=100 * COUNT, salt=SALT)
        world.proxy.set_rule("1", "2", Rule(rate=2e5))
        for peer in world.peers[1:]:
            peer.ask("begin", work="w", kind="all_reduce", array="x", plan="ring", deadline=60)
        world.peers[0].send("run", kind="all_reduce", array="x", plan="ring", deadline=9)
        world.await_bytes(1, 2, 20_000)
        world.proxy.set_rule("1", "2", Rule(fate=Fate.HOLD))

        def is_named() -> bool:
            links = [link for one in operations(world) for link in one["stuck_links"]]
            return {"rank": 1, "other": 2} in links or {"rank": 2, "other": 1} in links

        await_condition(is_named, "the link in the status")
        stands = "all_reduce (tag 0, sequence 0 of epoch 1) stands, though all have called it"
        assert stands in wait_until_said(caplog, "nothing of it moves between")
        raised = world.peers[0].failure()
        named = rf"nothing of it moves between .*rank [12] \({LABEL}, \w+\) and rank [12] "
        assert raised.kind == "DeadlineExceeded" and re.search(named, raised.message), raised
        for peer in world.peers[1:]:
            peer.send("wait", work="w")
            assert peer.failure().kind == "Aborted"
        world.proxy.heal()
        for peer, outcome in zip(
            world.peers, world.all("run", kind="all_reduce", array="x"), strict=True
        ):
            oracle.check(outcome, peer.read("x"), SALT)


def test_a_member_that_calls_late_is_not_let_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pccl")
    with World(3, stall=60, **FAST) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=SALT)
        first, second, late = world.peers
        for peer in (first, second):
            peer.send("run", kind="all_reduce", array="x", deadline=120)
        assert wait_until_named(world)["waits_for"] == [2]
        wait_until_said(caplog, "has not called all_reduce")  # the status may be ahead of the log
        late.send("run", kind="all_reduce", array="x")
        for peer in world.peers:
            oracle.check(peer.answer(), peer.read("x"), SALT)
        wait_until_said(caplog, "is not waited for any more")


def test_the_sender_of_a_message_is_told_that_nobody_receives_it() -> None:
    """Among three: only the two count, and nobody is let go on the word of one."""
    with World(3, stall=1.0, **FAST) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=SALT)
        first, second, _ = world.peers
        first.send("run", kind="send", array="x", dst=1, deadline=5)
        assert wait_until_named(world)["waits_for"] == [1]
        raised = first.failure()
        waiting = rf"for rank 1 \({LABEL}, {second.name}\), which has not called recv"
        assert raised.kind in ("DeadlineExceeded", "InDoubt"), raised
        assert re.search(waiting, raised.message), raised
        outcomes = world.all("run", kind="all_reduce", array="x")
        for peer, outcome in zip(world.peers, outcomes, strict=True):
            oracle.check(outcome, peer.read("x"), SALT)


def test_a_run_goes_on_with_the_times_that_it_was_begun_with(tmp_path: Any) -> None:
    state = tmp_path / "run"
    with (
        pccl.Coordinator(state=state, stall=120, stall_warning=20) as coordinator,
        pccl.connect(coordinator.token) as comm,
    ):
        comm.admit()
    with pccl.Coordinator(state=state):
        pass
    with pytest.raises(pccl.InvalidArgument, match="stall is 60"):
        pccl.Coordinator(state=state, stall=60)
    with pytest.raises(pccl.InvalidArgument, match="stall_warning is 10"):
        pccl.Coordinator(state=state, stall_warning=10)
    with pytest.raises(pccl.InvalidArgument, match="nobody is let go unnamed"):
        pccl.Coordinator(stall=5)
