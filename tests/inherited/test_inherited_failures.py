"""Every known failure of the reference (PCCL 1.0), as a test that ours does not have it.

Named after the numbers of the list of gaps, then what was measured there, then what was found by
reading its source. Where a subject has a test file of its own, what is here is the one case that
the reference fails.

    G1   no authentication or encryption     here: a stranger without the run's token. Encryption
                                             is not there yet (docs/ROADMAP.md)
    G7   outcome as two messages             here: link to the coordinator cut; and every event of
                                             a small world is tried by tests/sim/sweep.zig
    ring order computed and thrown away      there is no planner yet (docs/ROADMAP.md)
    counts, dtypes and ops not compared      tests/python/test_api_collectives.py:
                                             peers_that_disagree. There is no quantization yet;
                                             the codec is part of what is compared
    16-bit floats not reduced                tests/processes/test_processes_values.py:
                                             every_dtype_and_op
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import contributions
import numpy as np
import oracle
import pytest
import test_processes_giving_up as giving_up
import test_processes_losses as losses
import test_processes_strangers as strangers
from linked import COORDINATOR, LinkedWorld
from peers import Peer, Raised, World, ask_all, nursery
from proxy import Fate, Rule
from waiting import waits

import pccl_py as pccl
from harness import wire

COUNT = 60_001
SMALL = 501  # one piece, so that little more happens than waiting
SETTINGS: dict[str, Any] = {"heartbeat": 0.2, "silence": 1.2, "chunk_bytes": 4096}
MIB = 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def _end_processes() -> Iterator[None]:
    yield
    nursery.close()


def reduce(peers: list[Peer], salt: int) -> dict[str, Any]:
    ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=salt)
    outcomes = ask_all(peers, "run", kind="all_reduce", array="x")
    oracle.check_agreement(outcomes)
    oracle.check_contributors(outcomes[0], [[peer.number for peer in peers]])
    for peer, outcome in zip(peers, outcomes, strict=True):
        oracle.check(outcome, peer.read("x"), salt)
    return dict(outcomes[0])


def check_untouched(peer: Peer, salt: int, count: int = COUNT) -> None:
    assert np.array_equal(peer.read("x"), contributions.digits(peer.number, count, salt))


# ---- G1 to G10 -------------------------------------------------------------------------------


def test_g1_without_the_token_of_the_run_nobody_gets_in() -> None:
    with pccl.Coordinator() as coordinator:
        address = pccl.token_parse(coordinator.token).address
        with pytest.raises(pccl.AuthenticationFailed):
            pccl.connect(pccl.token_create(address), bind="127.0.0.1:0", connect_timeout=5)
        assert pccl.run_status(coordinator.token)["peers"] == 0


def test_g2_ten_thousand_strangers_and_lengths_of_any_size_cost_no_memory() -> None:
    """The reference believes a length of 64 bits and lets its buffer grow."""
    with strangers.run_of(2) as (coordinator, token, peers):
        run_id = pccl.token_parse(token).run_id
        ports = [strangers.listening_port(one) for one in (coordinator, *peers)]
        greeting = strangers.greeting(wire.CONTROL, run_id)
        greedy = greeting + wire.head(0xFFFFFFFF, wire.JOIN) + bytes(MIB)
        huge = struct.pack("<Q", 1 << 62) + bytes(1000)
        for salt, port in enumerate(ports):  # buffers grow to their size, once
            strangers.say(port, greedy, reset=False)
            strangers.reduce(peers, salt)
        before = strangers.resident_bytes([coordinator, *peers])
        for number in range(10_000):
            message = greedy if number % 500 == 0 else huge
            strangers.say(ports[number % 3], message, reset=True)
        strangers.reduce(peers, 3)
        after = strangers.resident_bytes([coordinator, *peers])
        grown = [now - then for now, then in zip(after, before, strict=True)]
        # All of them would leave 3 MiB and more. On a busy machine 64 strangers are there at once,
        # each with a buffer of 16 KiB.
        assert max(grown) < 2 * MIB, f"grown by {grown} bytes"


def test_g3_streams_may_arrive_one_byte_at_a_time() -> None:
    """The reference closes a connection whose 8-byte length comes in two segments."""
    drip = Rule(rate=20_000, segment=1)
    # On a busy machine the proxy may take seconds to pass on what breaks the silence.
    with LinkedWorld(2, joined=False, silence=30.0) as world:
        for number in range(3):
            world.proxy.set_rules(str(number), COORDINATOR, drip)
        world.proxy.set_rules("0", "1", drip)
        world.join(world.peers, initial_world_size=2)
        ask_all(world.peers, "make", name="x", of="digits", count=301, salt=1)
        outcomes = ask_all(world.peers, "run", kind="all_reduce", array="x")
        for peer, outcome in zip(world.peers, outcomes, strict=True):
            assert outcome["attempts"] == 1
            oracle.check(outcome, peer.read("x"), 1)
        ask_all(world.peers, "admit")
        assert pccl.run_status(world.coordinator.token)["peers"] == 2


def test_g4_messages_that_are_too_short_end_a_connection_and_nothing_else() -> None:
    """Messages of every number, for every purpose: the reference throws out of its event loop."""
    with strangers.run_of(2) as (coordinator, token, peers):
        run_id = pccl.token_parse(token).run_id
        ports = [strangers.listening_port(one) for one in (coordinator, *peers)]
        for number in range(64):
            for size in (0, 1, 3, 9):
                sender = bytes([number, size] * 8)
                head = strangers.greeting(1 + number % 3, run_id, sender=sender)
                body = wire.message(number, bytes(size))
                strangers.say(ports[0], head + body + body, reset=False)
                strangers.say(ports[1 + number % 2], head + body, reset=True)
        assert all(one.process.running for one in (coordinator, *peers))
        reduce(peers, 0)


def test_g5_an_abort_after_this_peer_had_everything_gives_the_input_back() -> None:
    """In place; the reference leaves the buffer reduced, and the advised retry counts it twice."""
    made = losses.scene(3, 2, losses.name_of("settled", 1.0))
    with made.world:
        for peer, answer in zip(made.survivors, losses.strike(made, "raise"), strict=True):
            if isinstance(answer, Raised):
                assert answer.kind == "Aborted"
                made.check_input(peer, 8)
            else:  # all had voted: it is a success of everybody's
                oracle.check_contributors(answer, [made.everybody])
        losses.go_on(made)


def test_g6_a_frozen_peer_is_noticed_and_waiting_for_it_is_no_loop() -> None:
    """The reference waits for as long as it is frozen, in a loop."""
    with World(3, heartbeat=0.5, silence=3) as world:
        *others, victim = world.peers
        reduce(world.peers, 0)
        victim.signal(signal.SIGSTOP)
        assert victim.stopped()
        ask_all(others, "make", name="x", of="digits", count=SMALL, salt=1)
        began = time.monotonic()
        with waits(others):
            outcomes = ask_all(others, "run", kind="all_reduce", array="x")
        seconds = time.monotonic() - began
        oracle.check_contributors(outcomes[0], [[0, 1]])
        assert seconds < 3 + 10, f"{seconds} s"
        victim.signal(signal.SIGCONT)


@pytest.mark.parametrize("fate", [Fate.HOLD, Fate.SWALLOW])
def test_g7_a_link_to_the_coordinator_that_dies_mixes_no_outcomes(fate: Fate) -> None:
    """Whenever it is cut: no survivor fails what another one committed."""
    with LinkedWorld(3, **SETTINGS) as world:
        *others, victim = world.peers
        for salt in range(3):
            reduce(world.peers, salt)
        ask_all(world.peers, "make", name="x", of="digits", count=COUNT, salt=4)
        for peer in world.peers:
            peer.send("run", kind="all_reduce", array="x", recovery="raise")
        world.proxy.set_rule("2", COORDINATOR, Rule(fate=fate))
        answers: list[Any] = []
        for peer in others:
            try:
                answers.append(peer.answer())
            except Raised as raised:
                answers.append(raised.kind)
        failed = [answer == "Aborted" for answer in answers]
        assert all(failed) or not any(failed), answers
        for peer, answer in zip(others, answers, strict=True):
            if answer == "Aborted":
                check_untouched(peer, 4)
            else:
                oracle.check(answer, peer.read("x"), 4)
        reduce(others, 5)
        world.proxy.heal()
        with contextlib.suppress(Raised):
            victim.answer()


def test_g8_a_coordinator_that_is_killed_again_and_again_ends_nothing(tmp_path: Path) -> None:
    """The reference: "master crash = end of run"."""
    with giving_up.killable_run(3, tmp_path) as (coordinator, peers):
        ask_all(peers, "loop_begin", count=COUNT)
        for peer in peers:
            peer.event()
        for _ in range(5):
            coordinator.kill()
            coordinator.start_again()
        peers[0].ask("loop_end")
        for peer in peers:
            while peer.event() != "ended":
                continue
        logs = [peer.ask("loop_log") for peer in peers]
        assert [entry["digest"] for entry in logs[0]] == [entry["digest"] for entry in logs[1]]
        for log in logs:
            assert all(entry["sum_is_right"] for entry in log)
            assert all(sorted(entry["contributors"]) == [0, 1, 2] for entry in log)


def test_g9_states_that_differ_in_one_bit_are_told_apart() -> None:
    """By BLAKE3 of each leaf, which kernels/blake3_test.zig holds against the official vectors."""
    with pccl.LocalWorld(2) as world:
        arrays = {comm.rank: np.zeros(256 * 1024, np.float64) for comm in world.comms}
        arrays[1].view(np.uint8)[777_777] ^= 4

        def sync(comm: pccl.Communicator) -> pccl.SyncOutcome:
            with comm.shared_state({"x": arrays[comm.rank]}, revision=1 - comm.rank) as state:
                return state.sync()

        outcomes = world.run(sync)
        assert [outcome.leaves_moved for outcome in outcomes] == [0, 1]
        assert not arrays[1].any()


def test_g10_any_thread_may_call_and_misuse_is_an_error() -> None:
    """The reference ends the process when a call does not come from its main thread."""
    with pccl.LocalWorld(2) as world:
        results: list[float] = []

        def work(comm: pccl.Communicator, tag: int) -> None:
            array = np.ones(1000)
            comm.all_reduce(array, tag=tag)
            results.append(float(array.sum()))

        threads = [
            threading.Thread(target=work, args=(comm, tag))
            for comm in world.comms
            for tag in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [2000.0] * 16
        first = world.comms[0]
        pending = first.all_reduce(np.ones(3), tag=9, async_op=True)
        with pytest.raises(pccl.InvalidUsage):
            first.all_reduce(np.ones(3), tag=9)
        pending.cancel()


# ---- measured --------------------------------------------------------------------------------


def test_eight_zero_bytes_from_a_stranger_end_nobody() -> None:
    with World(2) as world:
        for port in (world.coordinator.port, *map(strangers.listening_port, world.peers)):
            for end_with_reset in (False, True):
                strangers.say(port, bytes(8), reset=end_with_reset)
        assert reduce(world.peers, 0)["attempts"] == 1


def test_a_frozen_coordinator_does_not_hang_its_peers() -> None:
    """A call ends by its deadline, its input is kept, and nobody spins meanwhile."""
    coordinator = Peer()
    peers = [Peer(), Peer()]
    try:
        coordinator.become(99)
        coordinator.answer()
        token = coordinator.ask("coordinate", heartbeat=0.5, silence=3)
        for number, peer in enumerate(peers):
            peer.become(number)
            peer.answer()
        ask_all(peers, "join", token=token, initial_world_size=2)
        reduce(peers, 0)
        ask_all(peers, "make", name="x", of="digits", count=SMALL, salt=1)
        coordinator.signal(signal.SIGSTOP)
        assert coordinator.stopped()
        began = time.monotonic()
        with waits(peers):
            for peer in peers:
                peer.send("run", kind="all_reduce", array="x", deadline=1.5)
            kinds = {peer.failure().kind for peer in peers}
        assert kinds <= {"InDoubt", "DeadlineExceeded", "CoordinatorUnreachable"}, kinds
        assert time.monotonic() - began < 1.5 + 3 + 10
        for peer in peers:
            check_untouched(peer, 1, SMALL)
    finally:
        coordinator.signal(signal.SIGCONT)
        for peer in (coordinator, *peers):
            peer.end()


@pytest.mark.alone
def test_a_small_operation_does_not_wait_for_delayed_acknowledgements() -> None:
    """The reference: 44 ms for each, for want of TCP_NODELAY."""
    with pccl.LocalWorld(3) as world:

        def work(comm: pccl.Communicator) -> list[float]:
            array = np.ones(10)
            return [comm.all_reduce(array).duration for _ in range(60)]

        durations = [statistics.median(each) for each in world.run(work)]
    assert min(durations) < 0.02, durations


CALLS: dict[str, Callable[[pccl.Communicator], object]] = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(3)),
    "barrier": lambda comm: comm.barrier(),
    "rank": lambda comm: comm.rank,
    "sync": lambda comm: comm.shared_state({"x": np.ones(3)}).sync(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_before_its_time_is_an_error_here_and_stops_nobody(call: str) -> None:
    """The reference hangs everybody."""
    with (
        pccl.Coordinator() as coordinator,
        pccl.connect(coordinator.token, bind="127.0.0.1:0") as comm,
    ):
        with pytest.raises(pccl.InvalidUsage):
            CALLS[call](comm)
        comm.admit()
        comm.barrier()


def test_a_peer_that_passes_a_safe_point_more_than_the_others_is_told_so() -> None:
    with pccl.LocalWorld(2) as world:
        world.comms[0].admit()
        with pytest.raises(pccl.Mismatch, match="safe points"):
            world.run(lambda comm: comm.all_reduce(np.ones(3), deadline=20))


# ---- found by reading ------------------------------------------------------------------------


def test_a_success_has_reduced_also_when_many_at_once_lose_a_peer() -> None:
    """AllReduceMultipleWithRetry could return success without having reduced."""
    fault = {"PCCL_FAULT_POINT": "operation.settled:0:0.5"}
    with World(3, environments={2: fault}, **{**SETTINGS, "silence": 10}) as world:
        *others, victim = world.peers
        for tag in range(6):
            name = f"x{tag}"
            ask_all(world.peers, "make", name=name, of="digits", count=COUNT, salt=tag)
        for peer in world.peers:
            for tag in range(6):
                call = {"kind": "all_reduce", "array": f"x{tag}", "tag": tag}
                peer.send("begin", work=f"w{tag}", recovery="restart", **call)
        assert victim.ended() == -signal.SIGKILL
        for peer in others:
            for _ in range(6):
                peer.answer()
        for tag in range(6):
            outcomes = ask_all(others, "wait", work=f"w{tag}")
            oracle.check_agreement(outcomes)
            for peer, outcome in zip(others, outcomes, strict=True):
                oracle.check(outcome, peer.read(f"x{tag}"), tag)
                oracle.check_contributors(outcome, [[0, 1], [0, 1, 2]])
