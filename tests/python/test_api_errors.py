"""Bad input through pccl_py: each gets a named error with a sentence, and harms nothing."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"


@pytest.fixture(scope="module")
def comm() -> Iterator[pccl.Communicator]:
    """Alone in its group: what passes its checks completes at once."""
    with pccl.LocalWorld(1, deadline=30) as world:
        yield world.comms[0]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[pccl.Communicator]]:
    with pccl.LocalWorld(2, deadline=30) as world:
        yield world.comms


def test_two_that_wait_for_each_other_on_different_tags_are_told_of_it() -> None:
    """Neither is refused: another thread may be about to call. Log, error and status say it.

    One calls on a tag that nobody else uses, or syncs a state of a name that nobody else has.
    """
    with pccl.Coordinator(bind=LOOPBACK, stall_warning=1, heartbeat=0.1) as coordinator:
        with ThreadPoolExecutor(2) as pool:
            comms = list(
                pool.map(
                    lambda _: pccl.connect(coordinator.token, bind=LOOPBACK, initial_world_size=2),
                    range(2),
                )
            )
            list(pool.map(lambda comm: comm.admit(), comms))
            comms.sort(key=lambda comm: comm.rank)
            state = comms[1].shared_state({"w": np.ones(3)}, name="mine")

            def failure(call: Callable[[], object]) -> str:
                with pytest.raises(pccl.DeadlineExceeded) as caught:
                    call()
                return str(caught.value)

            def wait_elsewhere(call: Callable[[], object], name: str) -> str:
                """Rank 0 waits on tag 0, rank 1 elsewhere, and for longer."""
                first = pool.submit(failure, lambda: comms[0].all_reduce(np.ones(4), deadline=4))
                second = pool.submit(failure, call)
                until = time.monotonic() + 10
                found: list[dict[str, Any]] = []
                while not found and time.monotonic() < until:
                    (group,) = pccl.run_status(coordinator.token)["groups"]
                    for operation in group["epochs"][0]["operations"]:
                        found += operation.get("elsewhere", [])
                assert found[0]["waits_for"] == [1 - found[0]["rank"]]
                there = f"rank 1 ({comms[1].labels[1]}, {comms[1].peer_id.short})"
                said = f"which has not called it; {there} waits in {name}"
                assert said in first.result()
                assert "for rank 0 (this peer)" in first.result()
                assert [each.get("state") for each in found[:1]] in [[None], ["mine"]]
                return second.result()

            wait_elsewhere(
                lambda: comms[1].all_reduce(np.ones(4), tag=5, deadline=4.5), "all_reduce (tag 5, "
            )
            said = wait_elsewhere(lambda: state.sync(deadline=4.5), "sync (")
            assert said.startswith('sync of "mine" (sequence 0 of epoch 1) timed out: ')
        for comm in comms:
            comm.close()


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """Something that is not PCCL: says `answer` to everyone and hangs up, or never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # closed: the test is over
                connections.append(connection)
                if answer is not None:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


@contextlib.contextmanager
def refusing() -> Iterator[int]:
    """A port that is taken, so that nobody else gets it, and does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# ---- connecting ------------------------------------------------------------------------------


def test_without_a_token_connect_says_where_one_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PCCL_TOKEN", raising=False)
    with pytest.raises(pccl.InvalidArgument, match="PCCL_TOKEN"):
        pccl.connect()


@pytest.mark.parametrize("token", ["", "token", "pccl1-", "pccl1-AAAA", "pccl1-\0", "x" * 10_000])
def test_what_is_no_token_is_refused(token: str) -> None:
    for call in (pccl.connect, pccl.run_status):
        with pytest.raises(pccl.InvalidArgument) as caught:
            call(token)
        assert "pccl_" not in str(caught.value), "names of C"


def test_a_token_of_another_run_is_refused(coordinator: pccl.Coordinator) -> None:
    """The right address, the wrong run: a coordinator that was replaced by another one."""
    token = pccl.token_create(pccl.token_parse(coordinator.token).address, b"another run's id")
    with pytest.raises(pccl.AuthenticationFailed, match="a fresh token from it$"):
        pccl.connect(token, bind=LOOPBACK, connect_timeout=10)
    with pytest.raises(pccl.AuthenticationFailed, match="run"):
        pccl.run_status(token)


def test_a_port_where_nothing_listens_is_unreachable_after_the_timeout() -> None:
    with refusing() as port:
        address = f"127.0.0.1:{port}"
        began = time.monotonic()
        reason = f"nothing listens at {address}: connections were refused"
        with pytest.raises(pccl.CoordinatorUnreachable, match=reason):
            pccl.connect(pccl.token_create(address), bind=LOOPBACK, connect_timeout=0.5)
        assert 0.4 < time.monotonic() - began < 5
        with pytest.raises(pccl.CoordinatorUnreachable, match=reason):
            pccl.run_status(pccl.token_create(address), timeout=0.5)


def test_a_name_that_cannot_be_resolved_fails_at_once() -> None:
    """The name is too long to be one, so that no name server is asked."""
    token = pccl.token_create("x" * 70 + ":4000")
    began = time.monotonic()
    with pytest.raises(pccl.CoordinatorUnreachable, match="xxxx"):
        pccl.connect(token, bind=LOOPBACK, connect_timeout=60)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n" * 40, b"\0" * 4096], ids=["http", "zeros"]
)
def test_something_else_that_answers_is_a_version_mismatch(answer: bytes) -> None:
    with listening(answer) as port:
        token = pccl.token_create(f"127.0.0.1:{port}")
        with pytest.raises(pccl.VersionMismatch, match=str(port)):
            pccl.connect(token, bind=LOOPBACK, connect_timeout=10)
        with pytest.raises(pccl.VersionMismatch, match=str(port)):
            pccl.run_status(token, timeout=10)


@pytest.mark.parametrize("answer", [b"\xff", None], ids=["one byte", "nothing"])
def test_something_that_does_not_answer_is_told_from_a_closed_port(answer: bytes | None) -> None:
    with listening(answer) as port:
        token = pccl.token_create(f"127.0.0.1:{port}")
        with pytest.raises(
            pccl.CoordinatorUnreachable, match=f"{port} accepted the connection but"
        ):
            pccl.connect(token, bind=LOOPBACK, connect_timeout=0.5)
        with pytest.raises(
            pccl.CoordinatorUnreachable, match=f"{port} accepted the connection but"
        ):
            pccl.run_status(token, timeout=0.5)


def test_a_port_in_use_is_named(coordinator: pccl.Coordinator) -> None:
    address = f"127.0.0.1:{coordinator.port}"
    with pytest.raises(pccl.SystemRefused, match=str(coordinator.port)) as caught:
        pccl.Coordinator(bind=address)
    assert isinstance(caught.value, OSError)
    with pytest.raises(pccl.SystemRefused, match=str(coordinator.port)):
        pccl.connect(coordinator.token, bind=address)


def test_an_address_that_is_not_understood_is_quoted(coordinator: pccl.Coordinator) -> None:
    for bind in ("no host", "127.0.0.1:65536", "[::1", "127.0.0.1:"):
        said = re.escape(f'bind is "{bind}"')
        with pytest.raises(pccl.InvalidArgument, match=said):
            pccl.connect(coordinator.token, bind=bind)
        with pytest.raises(pccl.InvalidArgument, match=said):
            pccl.Coordinator(bind=bind)
    for advertise in ("two words", "host:0", ":1", "x" * 253):
        with pytest.raises(pccl.InvalidArgument, match=f'advertise is "{advertise}"'):
            pccl.connect(coordinator.token, bind=LOOPBACK, advertise=advertise)
        with pytest.raises(pccl.InvalidArgument, match=f'advertise is "{advertise}"'):
            pccl.Coordinator(bind=LOOPBACK, advertise=advertise)


def test_a_silence_that_is_too_short_is_told_in_seconds() -> None:
    with pytest.raises(pccl.InvalidArgument, match=r"silence \(0\.2 s\).*heartbeat \(0\.1 s\)"):
        pccl.Coordinator(silence=0.2, heartbeat=0.1)


def test_a_group_name_has_1_to_256_bytes(coordinator: pccl.Coordinator) -> None:
    for name in ("", "x" * 257, "é" * 129, "nul\0l"):
        with pytest.raises(pccl.InvalidArgument, match=r"256|NUL|UTF-8"):
            pccl.connect(coordinator.token, group=name, bind=LOOPBACK)
    for name in ("é" * 128, "x" * 256):
        with pccl.connect(coordinator.token, group=name, bind=LOOPBACK) as comm:
            assert comm.name == name
            with pytest.raises(pccl.InvalidArgument, match="256"):
                comm.group("x" * 257)
            with pytest.raises(pccl.InvalidArgument, match="UTF-8"):
                comm.group("bytes that were none: \udcff")


def test_a_short_deadline_names_who_has_not_called(pair: list[pccl.Communicator]) -> None:
    """Before callers hear for whom they wait as a rule, which is after 5 s.

    A machine that stands still for a second or two meanwhile leaves time for it.
    """
    calls: list[Callable[[], Any]] = [
        lambda: pair[0].all_reduce(np.ones(4), tag=71, deadline=4),
        lambda: pair[0].barrier(tag=72, deadline=4),
        lambda: pair[0].recv(np.ones(4), 1, tag=73, deadline=4),
    ]
    name = f"rank 1 ({pair[1].label(pair[1].peer_id)}, {pair[1].peer_id.short})"
    with ThreadPoolExecutor(len(calls)) as pool:
        for ended in [pool.submit(call) for call in calls]:
            with pytest.raises((pccl.DeadlineExceeded, pccl.InDoubt)) as caught:
                ended.result()
            told = rf"\(waiting for [34] s for {re.escape(name)}, which has not called "
            assert re.search(told, str(caught.value)), caught.value


def test_too_few_peers_to_begin_is_a_deadline(coordinator: pccl.Coordinator) -> None:
    with pytest.raises(pccl.DeadlineExceeded) as caught:
        pccl.connect(coordinator.token, bind=LOOPBACK, initial_world_size=2, deadline=0.3)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize(
    "options",
    [
        {"bind": "no host"},
        {"bind": "127.0.0.1:99999"},
        {"bind": "127.0.0.1:0\0"},
        {"initial_world_size": 0},
        {"initial_world_size": -1},
        {"initial_world_size": 2**32},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"connect_timeout": -1},
        {"peer_id": b"short"},
    ],
)
def test_bad_options_of_connect_are_refused(
    coordinator: pccl.Coordinator, options: dict[str, Any]
) -> None:
    with pytest.raises(pccl.InvalidArgument):
        pccl.connect(coordinator.token, **{"bind": LOOPBACK, **options})


def test_a_bad_world_size_in_the_environment_is_named(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCCL_INITIAL_WORLD_SIZE", "four")
    with pytest.raises(pccl.InvalidArgument, match="PCCL_INITIAL_WORLD_SIZE.*'four'"):
        pccl.connect(coordinator.token, bind=LOOPBACK)


@pytest.mark.parametrize(
    "options",
    [
        {"bind": "no host"},
        {"min_world_size": 0},
        {"initial_world_size": 0},
        {"lanes_per_link": 65},
        {"lanes_per_link": 0},
        {"lanes_per_link": "many"},
        {"chunk_bytes": 1000},
        {"chunk_bytes": 512},
        {"chunk_bytes": 512 * 1024},
        {"heartbeat": 1.0, "silence": 2.0},
        {"heartbeat": -1.0},
        {"run_id": b"short"},
    ],
)
def test_bad_options_of_a_coordinator_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(pccl.InvalidArgument):
        pccl.Coordinator(**options)


# ---- calling ---------------------------------------------------------------------------------


def test_before_the_first_safe_point_there_is_no_rank(coordinator: pccl.Coordinator) -> None:
    with pccl.connect(coordinator.token, bind=LOOPBACK) as comm:
        assert comm.epoch == 0
        for ask in (
            lambda: comm.rank,
            lambda: comm.world_size,
            lambda: comm.all_reduce(np.ones(1)),
            lambda: comm.broadcast(np.ones(1)),
            comm.barrier,
        ):
            with pytest.raises(pccl.InvalidUsage, match="admit"):
                ask()
        comm.admit()
        comm.barrier()


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.all_reduce(np.ones(3), op="median"),
        lambda c: c.all_reduce(np.ones(3), tag=-1),
        lambda c: c.all_reduce(np.ones(3), tag=2**64),
        lambda c: c.all_reduce(np.ones(3), recovery="never"),
        lambda c: c.all_reduce(np.ones(3), codec="int7"),
        lambda c: c.all_reduce(np.ones(3), deadline=0),
        lambda c: c.all_reduce(np.ones(6)[::2]),
        lambda c: c.all_reduce(b"read-only"),
        lambda c: c.broadcast(np.ones(3), 1),
        lambda c: c.broadcast(np.ones(3), -1),
        lambda c: c.broadcast(np.ones(3), pccl.PeerId(bytes(16))),
        lambda c: c.barrier(tag=-1),
        lambda c: c.admit(deadline=-1),
    ],
)
def test_a_bad_argument_is_refused_and_uses_no_sequence_number(
    comm: pccl.Communicator, call: Any
) -> None:
    before = comm.all_reduce(np.ones(1)).sequence
    with pytest.raises(pccl.InvalidArgument):
        call(comm)
    assert comm.all_reduce(np.ones(1)).sequence == before + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.all_reduce([1.0]),
        lambda c: c.all_reduce(np.ones(3, bool)),
        lambda c: c.all_reduce(np.ones(3, ">f4")),
        lambda c: c.all_reduce(np.ones(3), tag="0"),
        lambda c: c.broadcast(np.ones(3), "0"),
        lambda c: c.group(7),
    ],
)
def test_a_wrong_type_is_a_type_error(comm: pccl.Communicator, call: Any) -> None:
    with pytest.raises(TypeError):
        call(comm)


@pytest.mark.parametrize("count", [2**40 + 1, 2**61, 2**62, 2**64 - 1])
@pytest.mark.parametrize("dtype", ["u8", "f64"])
def test_a_count_beyond_the_limit_is_refused_before_memory_is_touched(
    comm: pccl.Communicator, count: int, dtype: str
) -> None:
    huge = pccl.Buffer(0x1000, count, dtype)  # type: ignore[arg-type]
    with pytest.raises(pccl.InvalidArgument, match="count"):
        comm.all_reduce(huge)
    with pytest.raises(pccl.InvalidArgument, match="count"):
        comm.broadcast(huge)


def test_an_unknown_codec_names_the_known(comm: pccl.Communicator) -> None:
    with pytest.raises(pccl.InvalidArgument, match="'int7'.*'none'"):
        comm.all_reduce(np.ones(3), codec="int7")  # type: ignore[call-overload]


def test_a_tag_in_use_is_refused_and_the_first_operation_goes_on(
    pair: list[pccl.Communicator],
) -> None:
    first = pair[0].all_reduce(np.ones(3), tag=5, async_op=True)
    with pytest.raises(pccl.InvalidUsage, match="5"):
        pair[0].all_reduce(np.ones(3), tag=5)
    with pytest.raises(pccl.InvalidUsage, match="5"):
        pair[0].barrier(tag=5)
    other = pair[0].barrier(tag=6, async_op=True)  # another tag is free
    pair[1].all_reduce(np.ones(3), tag=5)
    pair[1].barrier(tag=6)
    sequence = first.wait().sequence
    other.wait()
    works = [comm.all_reduce(np.ones(3), tag=5, async_op=True) for comm in pair]
    assert [work.wait().sequence for work in works] == [sequence + 1] * 2


def test_after_close_everything_is_refused(coordinator: pccl.Coordinator) -> None:
    comm = pccl.connect(coordinator.token, bind=LOOPBACK)
    with pytest.raises(pccl.InvalidUsage, match="first admit"):
        assert comm.rank
    admission = comm.admit()
    comm.close()
    comm.close()  # idempotent
    for call in (
        comm.admit,
        comm.info,
        lambda: comm.members,
        comm.barrier,
        lambda: comm.all_reduce(np.ones(1)),
        lambda: comm.broadcast(np.ones(1)),
        lambda: comm.group("other"),
    ):
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            call()
    assert (comm.name, comm.peer_id) == ("default", admission.joined[0])
    assert (comm.rank, comm.world_size, comm.epoch) == (0, 1, admission.epoch)  # known last


# ---- deadlines and losses that the caller sees -------------------------------------------------


def test_one_peer_never_calling_is_a_deadline_for_the_others() -> None:
    """The caller that gives up keeps its input, the other one, that comes late, is told."""
    with pccl.LocalWorld(2, deadline=30) as world:
        array = np.full(100_000, 3.0)
        began = time.monotonic()
        with pytest.raises(pccl.DeadlineExceeded):
            world.comms[0].all_reduce(array, deadline=0.3)
        assert 0.25 < time.monotonic() - began < 5
        assert np.array_equal(array, np.full(100_000, 3.0))
        late = np.full(100_000, 4.0)
        with pytest.raises(pccl.Aborted):
            world.comms[1].all_reduce(late)
        assert np.array_equal(late, np.full(100_000, 4.0))
        arrays = [np.ones(3), np.ones(3)]
        world.run(lambda comm: comm.all_reduce(arrays[comm.rank]))
        assert np.array_equal(arrays, np.full((2, 3), 2.0))


def test_a_coordinator_that_stops_is_unreachable() -> None:
    with pccl.LocalWorld(2, deadline=20) as world:
        work = world.comms[0].all_reduce(np.ones(10), async_op=True)
        world.coordinator.close()
        with pytest.raises((pccl.CoordinatorUnreachable, pccl.DeadlineExceeded)):
            work.wait()


def test_a_group_below_its_minimum_fails_by_name() -> None:
    with pccl.LocalWorld(2, min_world_size=2, deadline=20) as world:
        work = world.comms[0].all_reduce(np.ones(10), async_op=True)
        world.comms[1].close()
        with pytest.raises(pccl.TooFewPeers, match="min_world_size"):
            work.wait()
