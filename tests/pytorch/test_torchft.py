"""The process group of torchft: quorums, losses, sums that lack a replica; Manager, its wrappers.

Replicas are threads of this process, as in the tests of torchft, and in the example processes, of
which one is killed. torchft has no wheels for some platforms: where it is missing, these tests are
skipped.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ModuleNotFoundError)
pytest.importorskip("torchft", reason="torchft is not installed", exc_type=ModuleNotFoundError)

import torch.distributed._functional_collectives as functional  # noqa: E402
from pccl_torch import PeerLost  # noqa: E402
from pccl_torch.torchft import DistributedDataParallel, ProcessGroupPccl  # noqa: E402
from torchft import process_group  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402
from torchft.local_sgd import DiLoCo, LocalSGD  # noqa: E402
from torchft.manager import Manager  # noqa: E402
from torchft.optim import OptimizerWrapper  # noqa: E402

# Its types are those of C++.
dist: Any = importlib.import_module("torch.distributed")
ROOT = Path(__file__).parents[2]
SECONDS = timedelta(seconds=30)
HAS_RECONFIGURE = hasattr(process_group, "reconfigure_with_store")
# An all_reduce that is under way for long enough to lose somebody.
LONG = 4 << 20


def _copy(value: Any, _: int) -> Any:
    return value.clone()


@pytest.fixture(autouse=True)
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of this machine may take the resolver seconds; and no run from outside."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.delenv("PCCL_TOKEN", raising=False)


class Replicas:
    """Process groups, and quorums of them. Each acts on a thread of its own."""

    def __init__(self, count: int, **options: Any) -> None:
        options.setdefault("timeout", SECONDS)
        self.groups = [ProcessGroupPccl(**options) for _ in range(count)]
        self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.threads = ThreadPoolExecutor(count)
        self.quorum = 0

    def each(self, act: Callable[[int], Any], numbers: list[int] | None = None) -> list[Any]:
        chosen = range(len(self.groups)) if numbers is None else numbers
        return list(self.threads.map(act, chosen))

    def meet(self, numbers: list[int], planned: int | None = None) -> list[float]:
        """A quorum of these, in this order; `planned`: of more, who do not come. The seconds."""
        self.quorum += 1
        address = f"localhost:{self.store.port}/torchft/{self.quorum}/0"
        size = len(numbers) if planned is None else planned

        def enter(number: int) -> float:
            begin, rank = time.perf_counter(), numbers.index(number)
            group = self.groups[number]
            if HAS_RECONFIGURE:
                process_group.reconfigure_with_store(group, address, rank, size, SECONDS)
            else:
                group.configure(address, f"replica_{number}", rank, size)
            return time.perf_counter() - begin

        return self.each(enter, numbers)

    def sum(self, numbers: list[int], value: Callable[[int], Any]) -> list[Any]:
        """The sums of their values, as each of them gets it."""

        def add(number: int) -> Any:
            tensor = value(number)
            self.groups[number].allreduce([tensor], dist.ReduceOp.SUM).wait()
            return tensor

        return self.each(add, numbers)

    def lose(self, lost: int, options: Any = dist.ReduceOp.SUM) -> list[Any]:
        """A long sum of all, in which one leaves: the tensor or the error of each."""

        def add(number: int) -> Any:
            tensor = torch.full((LONG,), float(1 << number))
            work = self.groups[number].allreduce([tensor], options)
            if number == lost:
                self.groups[number].abort()
            try:
                work.wait()
            except pccl.PcclError as error:
                return error
            return tensor

        return self.each(add)

    def close(self) -> None:
        self.each(lambda number: self.groups[number].shutdown())
        self.threads.shutdown()


@pytest.fixture
def replicas() -> Iterator[Callable[..., Replicas]]:
    made: list[Replicas] = []

    def make(*arguments: Any, **options: Any) -> Replicas:
        made.append(Replicas(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_each_quorum_has_a_group_with_its_ranks(replicas: Callable[..., Replicas]) -> None:
    three = replicas(3)
    seconds: list[float] = []
    for quorum in ([0, 1, 2], [2, 0], [1, 2, 0], [1], [0, 1]):
        seconds += three.meet(quorum)
        for rank, number in enumerate(quorum):
            group = three.groups[number]
            assert (group.rank(), group.size()) == (rank, len(quorum))
            assert group.getBackendName() == "torchft-pccl"
            assert torch.device("cpu") in group._device_types
            assert group.parent.comm.deadline == SECONDS.total_seconds()
        sums = three.sum(quorum, lambda number: torch.tensor([1.0 + number]))
        assert [tensor.item() for tensor in sums] == [float(sum(quorum) + len(quorum))] * len(sums)
    # Tens of milliseconds on a machine that does nothing else; nothing in it waits for a deadline.
    assert statistics.median(seconds) < 2


def test_a_run_of_a_token_has_a_group_for_each_quorum_and_keeps_none(
    replicas: Callable[..., Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pccl.Coordinator() as coordinator:
        monkeypatch.setenv("PCCL_TOKEN", coordinator.token)
        two = replicas(2)
        for number in range(66):  # a run has 64 groups at once
            two.meet([0, 1] if number % 2 else [1, 0])
        assert [t.item() for t in two.sum([0, 1], lambda n: torch.tensor([1.0 + n]))] == [3.0, 3.0]
        groups = pccl.run_status(coordinator.token)["groups"]
        assert sum(len(group["epochs"]) > 0 for group in groups) <= 2
        two.each(lambda number: two.groups[number].shutdown())


def test_a_group_before_its_quorum_says_so() -> None:
    group = ProcessGroupPccl()
    with pytest.raises(pccl.InvalidUsage, match="no quorum yet"):
        group.allreduce([torch.ones(1)], dist.ReduceOp.SUM)
    assert group.errored() is None
    group.abort()
    group.shutdown()
    group.shutdown()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_replica_that_is_gone_makes_an_error_at_the_timeout(
    replicas: Callable[..., Replicas], missing: int
) -> None:
    two = replicas(2, timeout=timedelta(seconds=2))
    begin = time.monotonic()
    store = dist.PrefixStore("gone", dist.TCPStore("localhost", two.store.port, is_master=False))
    with pytest.raises((pccl.DeadlineExceeded, dist.DistError)):
        two.groups[1 - missing]._create_pg(store, 1 - missing, 2)
    assert 1 < time.monotonic() - begin < 20
    two.meet([0, 1])
    assert two.sum([0, 1], lambda _: torch.ones(1))[0].item() == 2


def test_a_loss_is_an_error_on_all_and_the_next_quorum_is_without_it(
    replicas: Callable[..., Replicas],
) -> None:
    three = replicas(3)
    three.meet([0, 1, 2])
    *left, lost = three.lose(2)
    assert [type(error) for error in left] == [PeerLost, PeerLost]
    assert isinstance(lost, pccl.Cancelled)
    for group in three.groups:
        assert isinstance(group.errored(), pccl.PcclError)
    with pytest.raises(PeerLost):
        three.sum([0, 1], lambda _: torch.ones(1))
    three.meet([1, 0])
    assert [group.errored() for group in three.groups[:2]] == [None, None]
    assert three.sum([0, 1], lambda _: torch.ones(1))[0].item() == 2


def test_an_error_that_nobody_waits_for_is_known_to_the_group(
    replicas: Callable[..., Replicas],
) -> None:
    two = replicas(2)
    two.meet([0, 1])
    work = two.groups[0].allreduce([torch.ones(LONG)], dist.ReduceOp.SUM)
    two.groups[1].abort()
    failed = threading.Event()
    work.get_future().add_done_callback(lambda _: failed.set())
    assert failed.wait(30)
    assert isinstance(two.groups[0].errored(), PeerLost)


def test_works_in_flight_end_when_a_quorum_does(replicas: Callable[..., Replicas]) -> None:
    two = replicas(2)
    two.meet([0, 1])
    work = two.groups[0].allreduce([torch.ones(4)], dist.ReduceOp.SUM)  # the other never calls
    two.meet([0])
    with pytest.raises(pccl.Cancelled):
        work.wait()
    assert two.sum([0], lambda _: torch.ones(1))[0].item() == 1


def test_a_sum_that_lacks_a_replica_is_scaled_so_that_the_average_is_right(
    replicas: Callable[..., Replicas],
) -> None:
    three = replicas(3, recovery="resume", participants=lambda: 3)
    three.meet([0, 1, 2])
    one, two, lost = three.lose(2)
    assert isinstance(lost, pccl.Cancelled)
    assert torch.equal(one, two)
    # Chunks that were settled before the loss have its contribution, the others have not.
    assert set((one / 3).unique().tolist()) <= {1.5, torch.tensor(7.0).div(3).item()}
    assert [group.errored() for group in three.groups[:2]] == [None, None]
    # Called after the loss: by two of three, and still right.
    flat = three.sum([0, 1], lambda number: torch.full((2, 3), float(1 << number)).t())
    assert [set((t / 3).flatten().tolist()) for t in flat] == [{1.5}, {1.5}]
    # Tensors that cannot be scaled need all members.
    for value in (torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.complex64)):
        with pytest.raises(PeerLost):
            three.sum([0, 1], functools.partial(_copy, value))
    with pytest.raises(PeerLost):
        three.each(lambda number: three.groups[number].barrier().wait(), [0, 1])


def test_nothing_is_scaled_while_a_replica_does_not_contribute(
    replicas: Callable[..., Replicas],
) -> None:
    three = replicas(3, recovery="resume", participants=lambda: 2)
    three.meet([0, 1, 2])
    *left, _ = three.lose(2)
    assert [type(error) for error in left] == [PeerLost, PeerLost]


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(pccl.InvalidArgument, match="recovery"):
        ProcessGroupPccl(recovery="restart")
    with pytest.raises(pccl.InvalidArgument, match="participants"):
        ProcessGroupPccl(recovery="resume")
    with pytest.raises(pccl.InvalidArgument, match="participants"):
        ProcessGroupPccl(participants=lambda: 3)


def test_functional_collectives_run_on_registered_groups(
    replicas: Callable[..., Replicas],
) -> None:
    two = replicas(2)
    two.meet([0, 1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        known = [group.register(f"replica{number}") for number, group in enumerate(two.groups)]

        def use(number: int) -> tuple[list[float], list[float]]:
            mine = torch.full((2,), 1.0 + number)
            added = functional.all_reduce(mine, "sum", known[number])
            row = torch.empty(2, 2)
            options = dist.distributed_c10d.AllgatherOptions()
            two.groups[number].allgather([list(row)], [mine], options).wait()
            return added.tolist(), row[:, 0].tolist()

        assert two.each(use) == [([3.0, 3.0], [1.0, 2.0])] * 2
    finally:
        dist.destroy_process_group()


# ---- with a Manager


@pytest.fixture
def lighthouse() -> Iterator[str]:
    house = LighthouseServer("[::]:0", 2, join_timeout_ms=10_000, heartbeat_timeout_ms=1000)
    yield f"http://localhost:{house.address().rsplit(':', 1)[1]}"
    house.shutdown()


class Replica:
    """A model, and what torchft needs to train it."""

    def __init__(self, number: int, lighthouse: str, *, use_async_quorum: bool = True) -> None:
        self.number = number
        made = torch.Generator().manual_seed(number)
        self.model = torch.nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=made))
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.group = ProcessGroupPccl(timeout=SECONDS)
        self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=self.group,
            load_state_dict=self.load,
            state_dict=lambda: {"model": self.model.state_dict(), "inner": self.inner.state_dict()},
            min_replica_size=2,
            use_async_quorum=use_async_quorum,
            timeout=SECONDS,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self.store.port,
            lighthouse_addr=lighthouse,
            replica_id=f"replica_{number}",
            hostname="localhost",
        )
        self.inputs = torch.full((3, 4), 1.0 + number)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["inner"])

    def step(self, optimizer: Any, model: Any = None) -> None:
        optimizer.zero_grad()
        (self.model if model is None else model)(self.inputs).square().mean().backward()
        optimizer.step()

    def parameters(self) -> list[list[float]]:
        return [p.detach().flatten().tolist() for p in self.model.parameters()]

    def close(self) -> None:
        self.manager.shutdown()
        self.group.shutdown()


def _train_two(lighthouse: str, train: Callable[[Replica], Any], **options: Any) -> list[Any]:
    def run(number: int) -> Any:
        replica = Replica(number, lighthouse, **options)
        try:
            return train(replica)
        finally:
            replica.close()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def test_ddp_and_its_optimizer_train_the_same_on_all(lighthouse: str) -> None:
    def train(replica: Replica) -> Any:
        ddp = DistributedDataParallel(replica.manager, replica.model)
        optimizer = OptimizerWrapper(replica.manager, replica.inner)
        while replica.manager.current_step() < 4:
            replica.step(optimizer, ddp)
        assert replica.manager.batches_committed() == 8
        return replica.parameters()

    one, two = _train_two(lighthouse, train)
    assert one == two


def test_a_loss_in_backward_is_a_step_that_does_not_count(lighthouse: str) -> None:
    """torchft 0.2.0's own hook of DDP raises AssertionError on the one that is left."""

    def train(replica: Replica) -> Any:
        ddp = DistributedDataParallel(replica.manager, replica.model)
        optimizer = OptimizerWrapper(replica.manager, replica.inner)
        lost: list[int] = []

        def leave(_: Any) -> None:
            if replica.manager.current_step() == 2 and not lost:
                replica.manager.wait_quorum()
                replica.group.abort()

        if replica.number == 1:
            replica.model.weight.register_hook(leave)
        while (step := replica.manager.current_step()) < 4:
            replica.step(optimizer, ddp)
            if replica.manager.current_step() == step:
                lost.append(step)
        return lost, replica.parameters()

    one, two = _train_two(lighthouse, train)
    assert one == two
    assert one[0] == [2]


def test_local_sgd_averages_parameters(lighthouse: str) -> None:
    def train(replica: Replica) -> Any:
        with LocalSGD(replica.manager, replica.model, replica.inner, sync_every=2):
            while replica.manager.current_step() < 3:
                replica.step(replica.inner)
            return replica.parameters()

    one, two = _train_two(lighthouse, train)
    assert one == two


def test_diloco_averages_what_was_learned(lighthouse: str) -> None:
    def train(replica: Replica) -> Any:
        outer = torch.optim.SGD(replica.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(replica.manager, [replica.model], replica.inner, outer, sync_every=2) as diloco:
            while replica.manager.current_step() < 3:
                replica.step(replica.inner)
            assert diloco is not None
            return replica.parameters()

    one, two = _train_two(lighthouse, train, use_async_quorum=False)
    assert one == two


# ---- as processes


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["complete", "resume"])
def test_the_example_heals_a_replica_that_was_killed(recovery: str) -> None:
    paths = [str(ROOT), str(ROOT / "frontends"), str(ROOT / "compat")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "RUST_LOG": "warn",
        # The name of this machine may have no address of IPv6: nobody waits 5 s to hear that.
        "RES_OPTIONS": "timeout:1 attempts:1",
    }
    environment.pop("PCCL_TOKEN", None)
    program = [sys.executable, str(ROOT / "examples" / "torchft_manager.py")]
    with subprocess.Popen(
        [*program, "--recovery", recovery],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=240)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, said
    digests = re.findall(r"replica (\d) ends: (\w{16})", said)
    assert sorted(number for number, _ in digests) == ["0", "1", "2"], said
    assert len({digest for _, digest in digests}) == 1, said
    # The survivors lose the step with "complete", and with "resume" none.
    lost = re.findall(r"replica ([01]) step \d+: 3 replicas, not committed", said)
    assert sorted(lost) == ([] if recovery == "resume" else ["0", "1"]), said
    assert len(re.findall(r"replica [01] step \d+: 2 replicas, committed", said)) >= 2, said
