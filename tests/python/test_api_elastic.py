"""`pccl.steps`: which failures a step survives, as whom, and what its tensors hold afterwards."""

from __future__ import annotations

import inspect
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pccl_py as pccl
from pccl_py.elastic import ConnectOptions

LOOPBACK = "127.0.0.1:0"
STEPS = 6
SIZE = 1000
TURNS_MAX = 20_000
STAY: list[type[pccl.PcclError]] = [pccl.Aborted, pccl.DeadlineExceeded, pccl.StateUnavailable]
LEAVE: list[type[pccl.PcclError]] = [
    pccl.CoordinatorUnreachable,
    pccl.Expelled,
    pccl.InDoubt,
    pccl.TooFewPeers,
]

Body = Callable[["Program", pccl.Communicator], None]


class Program:
    """One peer's training: each step adds the average of ones, so `weights` counts the steps."""

    def __init__(self, token: str, peers: int = 1, **options: Any) -> None:
        self.peers = peers  # at the end
        self.weights = np.zeros(SIZE)
        self.steps_done = np.zeros(1, np.int64)
        self.turns = 0
        self.peer_ids: list[pccl.PeerId] = []
        self.gradients: NDArray[np.float64] = np.ones(SIZE)
        options.setdefault("initial_world_size", peers)
        tensors = {"weights": self.weights, "steps_done": self.steps_done}
        self.steps: Iterator[pccl.Step] = pccl.steps(
            tensors, **{"token": token, "bind": LOOPBACK, "deadline": 30.0, **options}
        )

    def run(self, body: Body) -> Program:
        for step in self.steps:
            if step.comm.peer_id not in self.peer_ids:
                self.peer_ids.append(step.comm.peer_id)
            # All members agree about both.
            if self.steps_done[0] >= STEPS and step.comm.world_size >= self.peers:
                break
            self.turns += 1
            assert self.turns < TURNS_MAX, "somebody else has failed"
            with step as comm:
                body(self, comm)
        return self

    def reduce(self, comm: pccl.Communicator, **options: Any) -> None:
        self.gradients[:] = 1
        comm.all_reduce(self.gradients, op="avg", **options)
        self.weights += self.gradients
        self.steps_done += 1

    def check(self) -> None:
        assert self.steps_done[0] >= STEPS
        np.testing.assert_array_equal(self.weights, np.full(SIZE, float(self.steps_done[0])))


def run_all(coordinator: pccl.Coordinator, *bodies: Body, **options: Any) -> list[Program]:
    """One peer for each body, in threads. Returns them once all are done."""
    programs = [Program(coordinator.token, len(bodies), **options) for _ in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        running = [
            pool.submit(program.run, body) for program, body in zip(programs, bodies, strict=True)
        ]
        return [each.result(timeout=60) for each in running]


def well(program: Program, comm: pccl.Communicator) -> None:
    program.reduce(comm)


def test_an_option_that_no_call_has_is_refused_by_the_name_of_the_loop() -> None:
    with pytest.raises(
        TypeError, match=r"steps\(\) has no option 'timeout'; .* connect\(\): token"
    ):
        pccl.steps({}, timeout=3)  # type: ignore[call-arg]


def test_all_steps_of_all_peers_are_made_once(coordinator: pccl.Coordinator) -> None:
    for program in run_all(coordinator, well, well, well):
        program.check()
        assert program.turns == STEPS
        assert len(program.peer_ids) == 1


def test_a_state_may_have_rules(coordinator: pccl.Coordinator) -> None:
    """Goal: they are those of each sync. Method: a peer whose rules are others does not fit."""
    with pytest.raises(pccl.InvalidArgument, match="rule 'best'"):
        pccl.steps({"x": np.zeros(1)}, rules="best")  # type: ignore[arg-type]
    rules = iter(("successive", "refuse"))  # each connection asks for them anew
    programs = [
        Program(coordinator.token, 2, rules=rules),
        Program(coordinator.token, 2, rules=["refuse", "successive"]),
    ]
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(program.run, well) for program in programs]:
            each.result(timeout=60).check()
    odd = [Program(coordinator.token, 2, rules=each) for each in ("refuse", ())]
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(program.run, well) for program in odd]:
            with pytest.raises(pccl.Mismatch, match="sync\\(rules refuse\\)"):
                each.result(timeout=60)


def call_in_turn(group: pccl.Group, over: threading.Event) -> None:
    """One calls alone, until its deadline; the other comes after that, and gets Aborted."""
    try:
        if group.rank == 1:
            assert over.wait(30)
        group.all_reduce(np.ones(SIZE), deadline=0.2 if group.rank == 0 else None)
    finally:
        over.set()


def once(fail: Body) -> Body:
    """A step that fails in its third turn, when it has written to its tensors."""

    def body(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            program.weights += 100
            fail(program, comm)
            raise AssertionError("it must fail")
        program.reduce(comm)

    return body


def test_what_all_members_get_is_tried_again_in_the_same_group(
    coordinator: pccl.Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    fail = once(lambda _, comm: call_in_turn(comm, over))
    with caplog.at_level(logging.WARNING, "pccl"):
        for program in run_all(coordinator, fail, fail):
            program.check()
            assert program.turns == STEPS + 1
            assert len(program.peer_ids) == 1
    told = [line for line in caplog.messages if line.endswith("; repeating the step")]
    assert sorted(line.split(":")[0] for line in told) == ["Aborted", "DeadlineExceeded"]


def test_a_sync_for_which_nobody_has_content_is_tried_again_in_the_same_group(
    coordinator: pccl.Coordinator,
) -> None:
    def sync(_: Program, comm: pccl.Communicator) -> None:
        with comm.shared_state({"x": np.zeros(SIZE)}, name="other") as other:
            with pytest.raises(pccl.StateUnavailable) as caught:
                other.sync("receive_only")
            assert (caught.value.operation, caught.value.group) == ("sync", comm.name)
            raise caught.value

    for program in run_all(coordinator, once(sync), once(sync)):
        program.check()
        assert program.turns == STEPS + 1
        assert len(program.peer_ids) == 1


def test_the_ends_of_a_message_that_failed_connect_again(coordinator: pccl.Coordinator) -> None:
    """The third goes on without them meanwhile, and they take its state."""
    over = threading.Event()

    def message(_: Program, comm: pccl.Communicator) -> None:
        if comm.rank == 1:
            try:
                comm.recv(np.empty(SIZE), 0, deadline=0.2)
            finally:
                over.set()
        elif comm.rank == 0:
            assert over.wait(30)
            comm.send(np.ones(SIZE), 1)

    check_that_two_of_three_connect_again(coordinator, message)


def test_members_of_a_group_whose_operation_failed_connect_again(
    coordinator: pccl.Coordinator,
) -> None:
    over = threading.Event()

    def in_group(_: Program, comm: pccl.Communicator) -> None:
        if comm.rank < 2:
            group = comm.group("two", initial_world_size=2)
            group.admit()
            call_in_turn(group, over)

    check_that_two_of_three_connect_again(coordinator, in_group)


def check_that_two_of_three_connect_again(coordinator: pccl.Coordinator, fail: Body) -> None:
    """Goal: no member is a call behind for ever. Ranks 0 and 1 fail in their third turn."""

    def body(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            fail(program, comm)
        program.reduce(comm)

    programs = run_all(coordinator, body, body, body, deadline=3.0, patience=15.0)
    for program in programs:
        program.check()
    assert sorted(len(program.peer_ids) for program in programs) == [1, 2, 2]


@pytest.mark.parametrize("error", LEAVE + STAY)
def test_what_one_member_gets_alone_makes_it_connect_again(
    coordinator: pccl.Coordinator, error: type[pccl.PcclError], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pccl"):
        program = Program(coordinator.token).run(failing(error))
    program.check()
    assert program.turns == STEPS + 1
    assert len(program.peer_ids) == 2
    assert f"{error.__name__}: made up; connecting again" in caplog.messages


def failing(error: type[BaseException]) -> Body:
    """A step that fails once, when it has written to its tensors."""

    def body(program: Program, comm: pccl.Communicator) -> None:
        program.reduce(comm)
        if program.turns == 3:
            raise error("made up")

    return body


def test_without_keep_what_a_failed_block_wrote_stays(coordinator: pccl.Coordinator) -> None:
    program = Program(coordinator.token, keep=False).run(failing(pccl.Aborted))
    program.check()
    assert program.turns == STEPS  # the failed one counts, and is not made again


@pytest.mark.parametrize("error", [pccl.InvalidArgument, KeyboardInterrupt, ZeroDivisionError])
def test_another_exception_gives_the_tensors_back_and_leaves_the_run(
    coordinator: pccl.Coordinator, error: type[BaseException]
) -> None:
    program = Program(coordinator.token)
    left: list[pccl.Communicator] = []

    def body(program: Program, comm: pccl.Communicator) -> None:
        left[:] = [comm]
        failing(error)(program, comm)

    with pytest.raises(error, match="made up"):
        program.run(body)
    assert left[0].closed
    assert program.steps_done[0] == program.weights[0] == 2


def test_leaving_the_loop_leaves_the_run(coordinator: pccl.Coordinator) -> None:
    for step in pccl.steps({"x": np.zeros(1)}, token=coordinator.token, bind=LOOPBACK):
        left = step.comm
        break
    assert left.closed


def test_an_error_is_raised_once_patience_is_over(coordinator: pccl.Coordinator) -> None:
    program = Program(coordinator.token, patience=1e-9)
    with pytest.raises(pccl.Aborted, match="made up"):
        program.run(failing(pccl.Aborted))
    with pytest.raises(pccl.InvalidArgument, match="patience"):
        pccl.steps({"x": np.zeros(1)}, patience=0)


def test_nobody_to_connect_to_ends_with_patience() -> None:
    # A port that is bound refuses connections, and no coordinator of another test gets it.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        token = pccl.token_create(f"127.0.0.1:{bound.getsockname()[1]}")
        program = Program(token, patience=1.5, connect_timeout=0.2)
        with pytest.raises(pccl.CoordinatorUnreachable):
            program.run(well)


def test_a_peer_that_fails_for_good_is_lost_and_the_others_repeat_the_step(
    coordinator: pccl.Coordinator,
) -> None:
    # Goal: Aborted, which all get, leads all to the same step again. Method: one of three raises
    # in the middle of an operation that is to be aborted by a loss.
    def others(program: Program, comm: pccl.Communicator) -> None:
        program.reduce(comm, recovery="raise")

    def leaver(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            comm.barrier(tag=1)  # the others are in their operation, or soon will be
            raise ZeroDivisionError("made up")
        program.reduce(comm, recovery="raise")

    def before(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            work = comm.all_reduce(program.gradients, op="avg", recovery="raise", async_op=True)
            comm.barrier(tag=1)
            work.wait()
            raise AssertionError("the loss must abort it")
        others(program, comm)

    programs = [Program(coordinator.token, 2, initial_world_size=3) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        bodies = (before, before, leaver)
        first, second, lost = (
            pool.submit(program.run, body) for program, body in zip(programs, bodies, strict=True)
        )
        with pytest.raises(ZeroDivisionError):
            lost.result(timeout=60)
        for each in (first, second):
            program = each.result(timeout=60)
            program.check()
            assert program.turns == STEPS + 1
            assert len(program.peer_ids) == 1


def test_a_peer_that_was_expelled_comes_back_with_what_the_others_have(
    coordinator: pccl.Coordinator,
) -> None:
    # Method: to withdraw an operation that another has called is to leave the group; the third
    # calls it only afterwards.
    called, withdrawn = threading.Event(), threading.Event()

    def expelled(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            work = comm.all_reduce(np.ones(SIZE), tag=9, async_op=True)
            assert called.wait(30)
            work.cancel()
            withdrawn.set()
            assert isinstance(work.exception(), pccl.Cancelled)
        program.reduce(comm)

    def first(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            work = comm.all_reduce(np.ones(SIZE), tag=9, async_op=True)
            called.set()
            work.wait()
        program.reduce(comm)

    def second(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            assert withdrawn.wait(30)
            comm.all_reduce(np.ones(SIZE), tag=9)
        program.reduce(comm)

    *stayed, back = run_all(coordinator, first, second, expelled)
    for program in (*stayed, back):
        program.check()
    assert [len(program.peer_ids) for program in stayed] == [1, 1]
    assert len(back.peer_ids) == 2


def test_a_peer_with_another_operation_in_flight_connects_again(
    coordinator: pccl.Coordinator,
) -> None:
    """Its buffers are still written to, and its tag is taken. The other one has the same error."""
    over = threading.Event()

    def alone(_: Program, comm: pccl.Communicator) -> None:
        call_in_turn(comm, over)

    def with_another(program: Program, comm: pccl.Communicator) -> None:
        comm.all_reduce(program.weights, tag=9, async_op=True)
        call_in_turn(comm, over)

    stayed, back = run_all(coordinator, once(alone), once(with_another))
    for program in (stayed, back):
        program.check()
    assert (len(stayed.peer_ids), len(back.peer_ids)) == (1, 2)


def test_a_run_goes_on_with_a_new_coordinator_that_knows_nothing() -> None:
    """All are expelled, connect again, and take the newest content."""
    first = pccl.Coordinator(bind=LOOPBACK, initial_world_size=2)
    token = first.token
    address = pccl.token_parse(token).address
    run_id = pccl.token_parse(token).run_id
    coordinators = [first]

    def replacing(program: Program, comm: pccl.Communicator) -> None:
        if program.turns == 3:
            coordinators[0].close()
            coordinators[0] = pccl.Coordinator(bind=address, run_id=run_id, initial_world_size=2)
        program.reduce(comm)

    try:
        for program in run_all(first, replacing, well):
            program.check()
            assert len(program.peer_ids) == 2
    finally:
        coordinators[0].close()


def test_its_options_are_the_arguments_of_connect() -> None:
    known = set(ConnectOptions.__annotations__)
    assert known == set(inspect.signature(pccl.connect).parameters)
