"""Training programs for PCCL 1.0 with torch, each with the calls of one of the reference's.

Goal: data parallel training, DiLoCo, DiLoCo over shards and asynchronous DiLoCo run unchanged. They
make the same calls in the same order, with the same arguments and attributes, and end with equal
weights that are those of all peers together. Method: peers in threads, and models of one layer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pccl
import pytest
from pccl import (
    Attribute,
    Communicator,
    DataType,
    DistributionHint,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    TensorInfo,
)

torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ModuleNotFoundError)

INNER_STEPS, OUTER_STEPS = 2, 5
INNER_RATE, OUTER_RATE = 0.25, 0.5
SECONDS_MAX = 60.0


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PCCL_BIND", "127.0.0.1:0")
    monkeypatch.setenv("PCCL_DEADLINE", "30")
    monkeypatch.setenv("PCCL_COORDINATOR_HEARTBEAT", "0.1")
    master = pccl.MasterNode(listen_address="127.0.0.1:0")
    master.run()
    yield f"127.0.0.1:{master.port}"
    master.interrupt()


def run(program: Callable[[int], Any], count: int) -> list[Any]:
    """Runs the program of each peer, and returns their results."""
    with ThreadPoolExecutor(count) as threads:
        running = [threads.submit(program, number) for number in range(count)]
        return [each.result(SECONDS_MAX) for each in running]


def model_of(start: float) -> Any:
    """One weight w without a bias: the loss (w - goal)² / 2 has the gradient w - goal."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, start)
    return model


def backward(model: Any, goal: float) -> None:
    loss = (model(torch.ones(1, 1)) - goal).square().sum() / 2
    loss.backward()


def all_reduce_multiple_with_retry(
    communicator: Communicator, tensors: list[Any], op: ReduceOp, max_in_flight: int
) -> pccl.ReduceInfo:
    """The function that the reference's programs have, by this name."""
    descriptors = []
    for tag, tensor in enumerate(tensors):
        descriptors.append(
            ReduceOpDescriptor.from_torch(
                send=tensor,
                recv=tensor,
                reduce_descriptor=ReduceDescriptor(
                    count=tensor.numel(),
                    op=op,
                    tag=tag,
                    operand_descriptor=ReduceOperandDescriptor(
                        datatype=DataType.FLOAT, distribution_hint=DistributionHint.NORMAL
                    ),
                    quantization_options=QuantizationOptions(
                        quantized_datatype=DataType.FLOAT, algorithm=QuantizationAlgorithm.NONE
                    ),
                ),
            )
        )
    return communicator.all_reduce_multiple_with_retry(descriptors, max_in_flight=max_in_flight)


def state_of(tensors: dict[str, Any]) -> SharedState:
    return SharedState(
        [
            TensorInfo.from_torch(tensor, name, allow_content_inequality=False)
            for name, tensor in tensors.items()
        ]
    )


def test_data_parallel_training(address: str) -> None:
    """Gradients are summed in one tensor, asynchronously; the optimizer is part of the state."""

    def program(number: int) -> tuple[float, int]:
        model = model_of(start=float(number))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        communicator = Communicator(address, 0)
        communicator.connect(n_attempts=15)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        tensors = {}
        for name, param in model.named_parameters():
            tensors[name] = param
            for key in ("exp_avg", "exp_avg_sq", "step"):
                tensors[f"{name}_{key}"] = optimizer.state[param][key]
        shared_state = state_of(tensors)
        num_syncs = i = 0
        while True:
            i += 1
            if i > 1:
                communicator.update_topology()
            if communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
                continue
            communicator.optimize_topology()
            sync_info = communicator.sync_shared_state(shared_state)
            num_syncs += 1
            if num_syncs > 1:
                assert (sync_info.tx_bytes, sync_info.rx_bytes) == (0, 0)
            if shared_state.revision >= OUTER_STEPS:
                return model.weight.item(), shared_state.revision
            optimizer.zero_grad(set_to_none=False)
            backward(model, goal=10.0 * number)
            grads = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
            own = grads.item()
            while True:
                handle = communicator.all_reduce_async(
                    grads,
                    grads,
                    operand_descriptor=ReduceOperandDescriptor(
                        datatype=DataType.FLOAT, distribution_hint=DistributionHint.NORMAL
                    ),
                    quantization_options=QuantizationOptions(
                        quantized_datatype=DataType.FLOAT,
                        algorithm=pccl.QuantizationAlgorithm.NONE,
                    ),
                    op=ReduceOp.SUM,
                )
                is_success, status, info = handle.wait()
                assert is_success, status
                assert info.world_size == 2 and info.rx_bytes > 0 and info.tx_bytes > 0
                break
            # Both have one weight, and their goals are 10 apart.
            other = own + 10.0 if number == 1 else own - 10.0
            assert math.isclose(grads.item(), own + other, rel_tol=1e-5)
            for p in model.parameters():
                p.grad.data.copy_(grads.view_as(p.grad))
            optimizer.step()
            shared_state.revision += 1

    (one, revision), other = run(program, 2)
    assert (one, revision) == other and revision == OUTER_STEPS


def test_diloco_with_shards_in_peer_groups(address: str) -> None:
    """Peers of one shard are a peer group; both groups have the same two worlds."""
    shards, replicas = 2, 2

    def program(number: int) -> tuple[int, float]:
        shard, replica = number % shards, number // shards
        model = model_of(start=0.0)
        inner = torch.optim.SGD(model.parameters(), lr=INNER_RATE)
        outer_params = [torch.nn.Parameter(p.detach().cpu().clone()) for p in model.parameters()]
        outer = torch.optim.SGD(outer_params, lr=OUTER_RATE)
        communicator = Communicator(address, shard)
        communicator.connect(n_attempts=15)
        shared_state = state_of(
            {name: param.detach().cpu() for name, param in model.named_parameters()}
        )
        shared_state.revision = 0
        local_world_size = communicator.get_attribute(Attribute.LOCAL_WORLD_SIZE)
        local_iter_num = num_syncs = 0
        while True:
            local_iter_num += 1
            global_world_size = communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
            if local_iter_num > 1 or global_world_size < shards or local_world_size == 1:
                communicator.update_topology()
            local_world_size = communicator.get_attribute(Attribute.LOCAL_WORLD_SIZE)
            sizes = [communicator.get_attribute(each) for each in Attribute]
            if sizes != [shards * replicas, replicas, shards, replicas]:
                continue
            sync_info = communicator.sync_shared_state(shared_state)
            iter_num = shared_state.revision
            num_syncs += 1
            assert num_syncs == 1 or sync_info.rx_bytes == 0
            for _ in range(INNER_STEPS):
                backward(model, goal=100.0 * shard + replica)
                inner.step()
                inner.zero_grad(set_to_none=False)
            outer_grads = []
            for param, outer_p in zip(model.parameters(), outer_params, strict=True):
                outer_p.grad = outer_p.data - param.data.to("cpu")
                outer_grads.append(outer_p.grad)
            info = all_reduce_multiple_with_retry(communicator, outer_grads, ReduceOp.AVG, 16)
            assert info.local_world_size == replicas
            outer.step()
            outer.zero_grad()
            with torch.no_grad():
                for param, outer_p in zip(model.parameters(), outer_params, strict=True):
                    param.copy_(outer_p, non_blocking=True)
            iter_num += 1
            shared_state.revision = iter_num
            if iter_num > OUTER_STEPS:
                return shard, model.weight.item()

    for shard, weight in run(program, shards * replicas):
        wanted = weight_after(OUTER_STEPS + 1, 100.0 * shard + 0.5)
        assert math.isclose(weight, wanted, rel_tol=1e-5)


def weight_after(steps: int, goal: float) -> float:
    """The weight of DiLoCo whose peers have this goal on average: each step goes part of the way.

    It begins at 0.
    """
    part = OUTER_RATE * (1 - (1 - INNER_RATE) ** INNER_STEPS)
    return goal * (1 - (1 - part) ** steps)


def test_diloco(address: str) -> None:
    """The pseudo-gradients come from parameters that need gradients, so they do, too."""

    def program(number: int) -> float:
        model = model_of(start=0.0)
        inner = torch.optim.SGD(model.parameters(), lr=INNER_RATE)
        outer_params = [torch.nn.Parameter(p.detach().cpu().clone()) for p in model.parameters()]
        outer = torch.optim.SGD(outer_params, lr=OUTER_RATE)
        communicator = Communicator(address, 0)
        communicator.connect(n_attempts=15)
        shared_state = state_of(dict(model.named_parameters()))
        shared_state.revision = 0
        world_size = communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
        local_iter_num = num_syncs = 0
        while True:
            local_iter_num += 1
            if local_iter_num > 1 or world_size == 1:
                communicator.update_topology()
            world_size = communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
            if world_size < 2:
                continue
            sync_info = communicator.sync_shared_state(shared_state)
            iter_num = shared_state.revision
            num_syncs += 1
            assert num_syncs == 1 or sync_info.rx_bytes == 0
            for _ in range(INNER_STEPS):
                backward(model, goal=float(number))
                inner.step()
                inner.zero_grad(set_to_none=False)
            outer_grads = []
            for local_p, outer_p in zip(model.parameters(), outer_params, strict=True):
                outer_p.grad = outer_p - local_p.data.to("cpu")
                assert outer_p.grad.requires_grad
                outer_grads.append(outer_p.grad)
            handles = [
                communicator.all_reduce_async(
                    tensor,
                    tensor,
                    operand_descriptor=ReduceOperandDescriptor(
                        datatype=DataType.FLOAT, distribution_hint=DistributionHint.NORMAL
                    ),
                    quantization_options=QuantizationOptions(
                        quantized_datatype=DataType.FLOAT, algorithm=QuantizationAlgorithm.NONE
                    ),
                    op=ReduceOp.AVG,
                    tag=tag,
                )
                for tag, tensor in enumerate(outer_grads)
            ]
            for handle in handles:
                is_success, status, info = handle.wait()
                world_size = communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
                assert is_success and world_size == 2, status
                assert info.tx_bytes > 0 and info.rx_bytes > 0
            outer.step()
            outer.zero_grad()
            with torch.no_grad():
                for local_p, outer_p in zip(model.parameters(), outer_params, strict=True):
                    local_p.copy_(outer_p, non_blocking=True)
            iter_num += 1
            shared_state.revision = iter_num
            if iter_num > OUTER_STEPS:
                return float(model.weight.item())

    for weight in run(program, 2):
        assert math.isclose(weight, weight_after(OUTER_STEPS + 1, 0.5), rel_tol=1e-5)


class AsynchronousPeer:
    """A program of asynchronous DiLoCo: a thread reduces pseudo-gradients beside the next turn."""

    def __init__(self, address: str, number: int) -> None:
        self.goal = float(number)
        self.model = model_of(start=0.0)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=INNER_RATE)
        self.outer_params = [
            torch.nn.Parameter(p.detach().cpu().clone()) for p in self.model.parameters()
        ]
        self.outer = torch.optim.SGD(self.outer_params, lr=OUTER_RATE)
        self.communicator = Communicator(address, 0)
        self.communicator.connect(n_attempts=15)
        self.iter_num = torch.tensor(0, dtype=torch.int64, device="cpu")
        self.shared_state = state_of({"outer": self.outer_params[0], "iter_num": self.iter_num})
        self.shared_state.revision = 0
        self.world_size = self.communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
        self.local_iter_num = self.num_syncs = 0
        # World sizes of its averages. The thread tells nobody of its errors, so they are counted.
        self.averaged: list[int] = []
        self.last_pseudo_grads: list[Any] = []
        self.all_reduce_thread: threading.Thread | None = None

    def copy_to_inner(self) -> None:
        with torch.no_grad():
            for local_p, outer_p in zip(self.model.parameters(), self.outer_params, strict=True):
                local_p.copy_(outer_p, non_blocking=True)

    def sync(self, late_joiner: bool = False) -> None:
        sync_info = self.communicator.sync_shared_state(self.shared_state)
        self.shared_state.revision += 1
        self.num_syncs += 1
        assert self.num_syncs == 1 or late_joiner or sync_info.rx_bytes == 0
        if self.num_syncs == 1:
            self.copy_to_inner()

    def reduce(self, outer_grads: list[Any]) -> None:
        self.last_pseudo_grads = outer_grads.copy()
        info = all_reduce_multiple_with_retry(
            self.communicator, self.last_pseudo_grads, ReduceOp.AVG, 128
        )
        self.averaged.append(info.local_world_size)

    def turn(self) -> None:
        self.local_iter_num += 1
        topology_updated = self.local_iter_num == 1
        may_update = self.local_iter_num > 1 or self.world_size == 1
        if may_update and self.communicator.are_peers_pending():
            if self.all_reduce_thread is not None:
                self.all_reduce_thread.join()
            self.communicator.update_topology()
            topology_updated = True
        self.world_size = self.communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
        if self.world_size < 2:
            return
        if topology_updated:
            self.sync()
        for _ in range(INNER_STEPS):
            backward(self.model, self.goal)
            self.inner.step()
            self.inner.zero_grad(set_to_none=False)
        can_outer_step = self.all_reduce_thread is not None
        if self.all_reduce_thread is not None:
            self.all_reduce_thread.join()
            for pseudo_grad, outer_p in zip(self.last_pseudo_grads, self.outer_params, strict=True):
                outer_p.grad = pseudo_grad
        outer_grads = [
            outer_p - local_p.data.to("cpu")
            for local_p, outer_p in zip(self.model.parameters(), self.outer_params, strict=True)
        ]
        assert all(grad.requires_grad for grad in outer_grads)
        if can_outer_step:
            self.outer.step()
        if topology_updated and self.iter_num > 0:
            self.sync(late_joiner=not can_outer_step)
        self.copy_to_inner()
        self.all_reduce_thread = threading.Thread(target=self.reduce, args=(outer_grads,))
        self.all_reduce_thread.start()
        self.iter_num += 1


def test_asynchronous_diloco(address: str) -> None:
    """A third peer comes late, and all end with equal weights some turns after."""
    begun = threading.Event()
    turns_of_three = 4

    def program(number: int) -> tuple[float, list[int]]:
        if number == 2:
            assert begun.wait(SECONDS_MAX)
        peer = AsynchronousPeer(address, number)
        turns = 0
        while turns < turns_of_three:
            peer.turn()
            if peer.iter_num.item() == 2:
                begun.set()
            turns += peer.world_size == 3
        assert peer.all_reduce_thread is not None
        peer.all_reduce_thread.join()
        return float(peer.outer_params[0].item()), peer.averaged

    (one, averaged), (other, too), (late, last) = run(program, 3)
    assert one == other == late != 0
    assert averaged == too and set(averaged) == {2, 3}
    assert averaged[-turns_of_three:] == last == [3] * turns_of_three
