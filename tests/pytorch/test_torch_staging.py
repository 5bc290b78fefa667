"""Tensors of a device go through the CPU: in which order, in pieces, and what an error leaves.

A double of the device is driven, whose memory is the CPU's and whose copies happen when a test lets
them. With CUDA there is one more test. The code: frontends/pccl_torch/staging.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed", exc_type=ModuleNotFoundError)

import pccl_torch
import torch
import torch.distributed as dist
from pccl_torch import staging
from pccl_torch.backend import ProcessGroupPccl
from pccl_torch.options import Options

import pccl_py as pccl

SECONDS = 30.0
WORLD = 2


class Double:
    """A device whose copies are made when somebody waits for the mark behind them.

    `gates`: marks, by their number, that are not over before they are opened. `broken`: those whose
    wait raises, as a device does that has failed.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gates: dict[int, threading.Event] = {}
        self.broken: set[int] = set()
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._marks = 0

    def follow(self) -> None:
        self.events.append("follow")

    def twin(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full(x.shape, 77, dtype=x.dtype)  # that of the CPU, before any copy

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.events.append("copy")
        self._copies.append((target, source))

    def mark(self) -> staging.Mark:
        self._marks += 1
        return _Mark(self, self._marks, len(self._copies))

    def reach(self, number: int, copies: int) -> None:
        if number in self.gates:
            assert self.gates[number].wait(SECONDS)
        if number in self.broken:
            raise RuntimeError("the device has fallen off the bus")
        for index in range(copies):
            target, source = self._copies[index]
            target.copy_(source)
            self._copies[index] = (target, target)  # once
        self.events.append(f"reached {number}")


class _Mark:
    def __init__(self, device: Double, number: int, copies: int) -> None:
        self._device, self._number, self._copies = device, number, copies

    def wait(self) -> None:
        self._device.reach(self._number, self._copies)


class Peer:
    """One member: its group and its device. Tensors that `on_device` has made are of the device."""

    def __init__(self, comm: pccl.Communicator) -> None:
        peers = comm.members
        self.device = Double()
        self.group: Any = ProcessGroupPccl(
            comm, peers, comm.rank, "test", Options(deadline=SECONDS), None, comm.close
        )
        stager: Any = self.group._stager
        stager.device = lambda _: self.device


# Kept, so that no other tensor gets their memory.
of_device: list[torch.Tensor] = []


def on_device(*values: float, count: int = 0) -> torch.Tensor:
    x = torch.arange(float(count)) if count else torch.tensor(values)
    of_device.append(x)
    return x


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Peer]]:
    """Two members, whose tensors of `on_device` are taken for those of a device."""

    def kept(x: torch.Tensor) -> bool:
        place = x.untyped_storage().data_ptr()
        return any(place == one.untyped_storage().data_ptr() for one in list(of_device))

    monkeypatch.setattr(staging, "is_accelerated", kept)
    with pccl.LocalWorld(WORLD, deadline=SECONDS) as world:
        made = [Peer(comm) for comm in world.comms]
        yield made
        for peer in made:
            peer.group.shutdown()
    of_device.clear()


def both(peers: list[Peer], call: Any) -> list[Any]:
    """The results of both members, each in a thread; the first error of either."""
    with ThreadPoolExecutor(len(peers)) as threads:
        return list(threads.map(call, peers))


def test_a_call_copies_behind_what_was_asked_then_reduces_then_copies_back(
    peers: list[Peer],
) -> None:
    def call(peer: Peer) -> list[str]:
        x = on_device(1.0, 2.0)
        peer.device.gates[1] = threading.Event()
        work = peer.group.allreduce([x])
        before = list(peer.device.events)
        assert not work.is_completed() and x.tolist() == [1.0, 2.0]
        peer.device.gates[1].set()
        assert work.wait()
        assert work.is_success() and work.exception() is None
        assert x.tolist() == [2.0, 4.0] and work.result()[0] is x
        assert before == ["follow", "copy"]
        return peer.device.events

    for events in both(peers, call):
        assert events == ["follow", "copy", "reached 1", "follow", "copy", "reached 2"]


def test_the_future_of_a_work_is_done_when_the_results_are_back(peers: list[Peer]) -> None:
    def call(peer: Peer) -> None:
        x = on_device(3.0)
        back = peer.device.gates[2] = threading.Event()
        future = peer.group.allreduce([x]).get_future()
        assert not future.done() and x.tolist() == [3.0]
        back.set()
        assert future.wait()[0] is x and x.tolist() == [6.0]

    both(peers, call)


def test_pieces_travel_while_later_ones_are_still_copied(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 16)

    def call(peer: Peer) -> None:
        x = on_device(count=10)
        last = peer.device.gates[3] = threading.Event()
        begun = pieces_of(peer.group)
        work = peer.group.allreduce([x])
        # The first two of three pieces are reduced, and their results wait for the last.
        for piece in begun(2):
            assert piece.wait()
        assert not work.is_completed() and x.tolist() == [float(i) for i in range(10)]
        last.set()
        assert work.wait() and x.tolist() == [2.0 * i for i in range(10)]

    both(peers, call)


def pieces_of(group: Any) -> Callable[[int], list[Any]]:
    """Waits for so many works of pieces that begin from now on."""
    begins, listed, begin = threading.Condition(), [], group._begin

    def begins_one(*given: Any, **options: Any) -> Any:
        work = begin(*given, **options)
        with begins:
            listed.append(work)
            begins.notify_all()
        return work

    def begun(count: int) -> list[Any]:
        with begins:
            assert begins.wait_for(lambda: len(listed) >= count, SECONDS)
            return listed[:count]

    group._begin = begins_one
    return begun


def test_calls_of_the_cpu_wait_for_those_of_the_device_before_them(peers: list[Peer]) -> None:
    def call(peer: Peer) -> None:
        x, y = on_device(1.0), torch.tensor([10.0])
        if peer.group.rank() == 0:  # here the copy is late, so the order is at risk here only
            gate = peer.device.gates[1] = threading.Event()
            threading.Timer(0.05, gate.set).start()
        first = peer.group.allreduce([x])
        second = peer.group.allreduce([y])
        first.wait()
        second.wait()
        assert (x.item(), y.item()) == (2.0, 20.0)

    both(peers, call)


def two_safe_points(peer: Peer) -> None:
    for _ in range(2):  # that of entering is answered first
        peer.group.pass_safe_point(None)


def sync_of_a_state(peer: Peer) -> None:
    with pccl_torch.shared_state(peer.group.comm, {"x": torch.ones(3)}) as state:
        state.sync()


def sync_of_an_elastic_state(peer: Peer) -> None:
    pccl_torch.ElasticState(torch.nn.Linear(1, 1), group=peer.group).sync()


# By names: calls that have no tensors of a device, and where in pccl_py they arrive.
LATER: dict[str, tuple[Callable[[Peer], object], type, str]] = {
    "cpu": (lambda peer: peer.group.broadcast([torch.ones(1)]).wait(), pccl.Group, "broadcast"),
    "barrier": (lambda peer: peer.group.monitored_barrier(), pccl.Group, "barrier"),
    "admit": (two_safe_points, pccl.Group, "admit"),
    "state": (sync_of_a_state, pccl.SharedState, "sync"),
    "elastic": (sync_of_an_elastic_state, pccl.SharedState, "sync"),
}


@pytest.mark.parametrize("name", LATER)
def test_nothing_overtakes_a_call_whose_tensors_are_still_copied(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The copies of rank 0 end when somebody waits for them, or when all else is over."""
    later, arrives_at, method = LATER[name]
    begun: list[str] = []
    own: set[int] = set()  # the thread of rank 0

    def spy(kind: type, method: str) -> None:
        real = getattr(kind, method)

        def call(*given: Any, **options: Any) -> Any:
            if given[0] is peers[0].group.comm or threading.get_ident() in own:
                begun.append(method)
            return real(*given, **options)

        monkeypatch.setattr(kind, method, call)

    spy(pccl.Group, "all_reduce")
    spy(arrives_at, method)

    def call(peer: Peer) -> None:
        x = on_device(1.0)
        if peer.group.rank() == 1:
            work = peer.group.allreduce([x])
            later(peer)
        else:
            own.add(threading.get_ident())
            gate = peer.device.gates[1] = threading.Event()
            stager, drain = peer.group._stager, peer.group._stager.drain

            def drained() -> None:
                gate.set()
                drain()

            work = peer.group.allreduce([x])
            monkeypatch.setattr(stager, "drain", drained)
            try:
                later(peer)
            finally:
                gate.set()
        work.wait()
        assert x.item() == 2.0

    both(peers, call)
    assert begun[0] == "all_reduce" and set(begun[1:]) == {method}


def test_a_device_that_fails_half_way_leaves_tensors_as_they_were_and_frees_the_others(
    peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 16)
    peers[1].device.broken.add(2)

    def call(peer: Peer) -> str:
        x = on_device(count=10)
        work = peer.group.allreduce([x])
        with pytest.raises(RuntimeError) as raised:  # a PeerLost is one
            work.wait()
        assert x.tolist() == [float(i) for i in range(10)]
        assert work.is_completed() and not work.is_success()
        with pytest.raises(RuntimeError):
            work.get_future().wait()
        assert type(work.exception()) is type(raised.value)
        return f"{type(raised.value).__name__}: {raised.value}"

    there, failed = both(peers, call)
    assert there.startswith("PeerLost")
    assert failed == "RuntimeError: the device has fallen off the bus"


def test_an_error_of_the_group_reaches_the_work_and_the_device_is_not_written(
    peers: list[Peer],
) -> None:
    x = on_device(1.0)
    peers[0].group.comm.close()
    with pytest.raises(pccl.InvalidUsage, match="is closed"):
        peers[0].group.allreduce([x]).wait()
    assert x.tolist() == [1.0] and peers[0].device.events == ["follow", "copy", "reached 1"]


@pytest.mark.parametrize("name", sorted(staging.HOW))
def test_each_collective_gives_what_it_gives_on_the_cpu(peers: list[Peer], name: str) -> None:
    """All, with the same arguments: those of the CPU are the reference."""

    def call(peer: Peer) -> None:
        rank = peer.group.rank()
        results = []
        for make in (on_device, lambda *values: torch.tensor(values)):
            given, outputs = arguments(name, rank, make)
            work = invoke(peer.group, name, given, rank)
            assert work.wait()
            results.append([x.tolist() for x in outputs])
        assert results[0] == results[1]
        copies = peer.device.events.count("copy")
        assert copies == 0 if name == "barrier" else copies > 0

    both(peers, call)


def invoke(group: Any, name: str, given: tuple[Any, ...], rank: int) -> Any:
    if name in ("send", "recv"):  # both are called, as one needs the other
        (x,), other = given, 1 - rank
        if rank == (0 if name == "send" else 1):
            return group.send(x, other, 5)
        return group.recv(x, other, 5)
    if name == "average":
        (x,) = given
        return group.average(x, codec=None, recovery="complete", form=0, feedback=None, reword=str)
    if name == "reduce_scatter":
        return group.reduce_scatter(*given, None)
    return getattr(group, name)(*given)


def arguments(name: str, rank: int, make: Any) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
    """The arguments of one member, and the tensors among them that are to be compared."""
    one, two = make(1.0 + rank), make(10.0 + rank, 20.0 + rank)
    empty, wide = make(0.0), make(0.0, 0.0)
    parts, pair = [make(0.0), make(0.0)], [make(5.0 + rank), make(7.0 + rank)]
    if name == "barrier":
        return (), []
    if name == "average":
        return (two,), [two]
    if name in ("allreduce", "allreduce_coalesced", "reduce", "broadcast", "send", "recv"):
        return ([two],), [two]
    single = "single" in name or "base" in name or "tensor" in name
    listed = "coalesced" in name
    if name.startswith(("alltoall", "all_to_all")):
        return ((wide, two, [], []), [wide]) if single else ((parts, pair), parts)
    if "reduce_scatter" in name and single:
        return (([empty], [two]) if listed else (empty, two)), [empty]
    if name == "reduce_scatter":
        return ([empty], [pair]), [empty]
    if name == "scatter":
        return ([empty], [pair] if rank == 0 else []), [empty]
    if name == "gather_single" and rank != 0:
        return (make(), one), []
    if single:
        return (([wide], [one]) if listed else (wide, one)), [wide]
    if name == "allgather_coalesced":
        return ([[part] for part in parts], [one]), parts
    if name == "gather" and rank != 0:
        return ([], [one]), []
    return ([parts], [one]), parts


def test_a_form_by_name_is_staged_too_and_is_one_event_of_a_profiler(peers: list[Peer]) -> None:
    def call(peer: Peer) -> list[Any]:
        x = on_device(1.0 + peer.group.rank(), 0.0)
        with torch.profiler.profile(record_shapes=True) as profiler:
            peer.group.allreduce(tensor=x, op=dist.ReduceOp.MAX).wait()
        assert x.tolist() == [2.0, 0.0] and peer.device.events.count("copy") == 2
        events: Any = profiler.events()
        return [event.input_shapes for event in events if event.name == "pccl:all_reduce"]

    # Only one of the threads is profiled.
    first, second = peers
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second.group.allreduce, [on_device(2.0, 0.0)], _maximum())
        assert call(first) == [[[2]]]
        other.result().wait()


def _maximum() -> Any:
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def test_tensors_of_a_device_that_cannot_be_sent_are_refused_before_any_copy(
    peers: list[Peer],
) -> None:
    group, events = peers[0].group, peers[0].device.events
    # Its device is the CPU's name, which "meta" is not.
    with pytest.raises(RuntimeError, match="tensors on cpu and on meta: those of one call"):
        group.all_gather_single(on_device(0.0, 0.0), torch.empty(1, device="meta"))
    x = on_device(1.0)
    with pytest.raises(RuntimeError, match="expanded"):
        group.allreduce([x.expand(4)])
    assert events == []


def test_a_device_without_cuda_is_named() -> None:
    with pytest.raises(RuntimeError, match="the tensor is on xpu:0: pccl takes tensors of the CPU"):
        staging.device_of(torch.device("xpu:0"))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="tensors of cuda:0 need CUDA, which this PyTorch"):
            staging.device_of(torch.device("cuda:0"))


def test_staged_calls_leave_one_thread_at_most_and_it_goes_with_the_group(
    peers: list[Peer],
) -> None:
    def call(peer: Peer) -> None:
        for _ in range(20):
            assert peer.group.allreduce([on_device(1.0)]).wait()

    before = set(threading.enumerate())
    both(peers, call)
    made = set(threading.enumerate()) - before
    named = [one for one in made if one.name.startswith("pccl-staging")]
    assert len(named) == WORLD
    for peer in peers:
        peer.group.shutdown()
    for thread in named:
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_on_cuda_sums_follow_the_current_stream() -> None:
    cuda: Any = torch.cuda

    def call(comm: pccl.Communicator) -> None:
        group: Any = ProcessGroupPccl(
            comm, comm.members, comm.rank, "cuda", Options(), None, comm.close
        )
        stream = cuda.Stream()
        with cuda.stream(stream):
            x = torch.zeros(32 << 20, device="cuda")  # pieces
            for _ in range(100):  # the stream is busy when the call comes
                x += 1
            work = group.allreduce([x])
        with cuda.stream(cuda.Stream()):
            work.wait()
            assert bool((x == 200).all())
        bits = torch.arange(7, device="cuda", dtype=torch.bfloat16)
        opts: Any = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.MAX
        group.allreduce([bits], opts).wait()
        assert bits.tolist() == list(range(7))

    with pccl.LocalWorld(WORLD, deadline=SECONDS) as world:
        world.run(call)
