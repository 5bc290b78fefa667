"""Checks of what PyTorch builds on process groups, on three ranks: DDP, FSDP2, DTensor and others.

As backend_checks.py; the names are in test_torch_backend.py. Models are compared with one process
that has all the data.
"""

from __future__ import annotations

import copy
import gc
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pccl_torch
import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives as functional
from rank_program import Rank
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

# Its types are those of C++.
dist: Any = torch.distributed

ROWS = 24


def model() -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def batch() -> tuple[Tensor, Tensor]:
    """The rows that all ranks together train on."""
    random = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 16, generator=random), torch.randn(ROWS, 4, generator=random)


def train(module: nn.Module, x: Tensor, y: Tensor, steps: int = 3) -> None:
    """A few steps of SGD."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(module(x), y))
        optimizer.step()


def alone(steps: int = 3) -> list[Tensor]:
    """The parameters that one process comes to with all the data."""
    module = model()
    train(module, *batch(), steps)
    return [p.detach() for p in module.parameters()]


def share(rank: Rank) -> tuple[Tensor, Tensor]:
    """This rank's rows of the batch."""
    x, y = batch()
    return x[rank.rank :: rank.size], y[rank.rank :: rank.size]


def like_alone(module: nn.Module, near: float = 1e-6) -> None:
    """A module has the parameters of one process with all the data."""
    assert_close([p.detach() for p in module.parameters()], alone(), rtol=0, atol=near)


def ddp(rank: Rank) -> None:
    """DDP with several buckets trains as one process does; with find_unused and static_graph."""
    for options in (
        {"bucket_cap_mb": 0.001},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"static_graph": True},
    ):
        module = DistributedDataParallel(model(), **options)
        train(module, *share(rank))
        like_alone(module)


def ddp_hooks(rank: Rank) -> None:
    """Comm hooks: torch's, compressed ones, and one of the program that uses op=AVG."""

    # PyTorch looks at the name of the second argument, and at annotations if there are any.
    def average(state, bucket):  # type: ignore[no-untyped-def]
        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    for hook, near in (
        (default_hooks.allreduce_hook, 1e-6),
        (average, 1e-6),
        (default_hooks.fp16_compress_hook, 1e-3),
    ):
        module = DistributedDataParallel(model())
        module.register_comm_hook(None, hook)
        train(module, *share(rank))
        like_alone(module, near)


def ddp_with_power_sgd(rank: Rank) -> None:
    """PowerSGD's callback waits for another future: it must not wait on the thread that ends it."""
    module = DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(module, *share(rank), steps=6)
    every: list[Any] = [None] * rank.size
    dist.all_gather_object(every, [p.detach() for p in module.parameters()])
    assert_close(every[0], every[1], rtol=0, atol=0)
    assert_close(every[0], alone(6), rtol=0.5, atol=0.2)


def ddp_with_uneven_inputs(rank: Rank) -> None:
    """Join: a rank that is done answers the others' collectives, and drops Work and Future."""
    module = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    x, y = share(rank)
    with Join([module]):
        for _ in range(3 + 2 * rank.rank):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(module(x), y))
            optimizer.step()
    every: list[Any] = [None] * rank.size
    dist.all_gather_object(every, [p.detach() for p in module.parameters()])
    assert_close(every[0], every[2], rtol=0, atol=0)


def dropped_works(rank: Rank) -> None:
    """An operation whose Work is dropped goes on, for the others and for its Future."""
    tensors = [torch.full((1000,), 1.0 + rank.rank) for _ in range(20)]
    futures = [dist.all_reduce(x, async_op=True).get_future() for x in tensors]
    for x in tensors[:10]:
        dist.all_reduce(copy.copy(x).clone(), async_op=True)
    gc.collect()
    for future, x in zip(futures, tensors, strict=True):
        assert future.wait()[0] is x and x[0].item() == 6
    dist.barrier()


def ddp_whose_peer_leaves(rank: Rank) -> str:
    """Inside of backward one rank leaves: the others' raises, with our text, and nobody crashes."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    x, y = share(rank)
    train(module, x, y, steps=2)
    if rank.rank == 2:
        nn.functional.mse_loss(module(x), y)
        dist.destroy_process_group()
        return ""
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(RuntimeError, match="rank 2") as caught:
        train(module, x, y, steps=1)
    assert isinstance(pccl_torch.last_error(), pccl_torch.PeerLost)
    assert_close([p.detach() for p in module.parameters()], before, rtol=0, atol=0)
    # In silence nothing: it goes on raising.
    with pytest.raises(pccl_torch.PeerLost):
        dist.all_reduce(torch.ones(1))
    admission = pccl_torch.admit()
    assert admission.left == (2,) and dist.get_world_size() == 2
    again = DistributedDataParallel(module.module)
    train(again, x, y, steps=2)
    every: list[Any] = [None] * 2
    dist.all_gather_object(every, [p.detach() for p in again.parameters()])
    assert_close(every[0], every[1], rtol=0, atol=0)
    dist.destroy_process_group()
    return type(caught.value).__name__


def failed_futures(rank: Rank) -> None:
    """An error is one to C++ as well: a future that is chained, or of a collection, raises it."""
    group = dist.new_group()
    dist.barrier(group=group)
    if rank.rank == 1:
        dist.destroy_process_group(group)
        dist.barrier()
        return
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value()[0] * 2)
    gathered = torch.futures.collect_all([future])
    for each in (future, chained):
        with pytest.raises(RuntimeError, match="rank 1"):
            each.wait()
    with pytest.raises(RuntimeError, match="rank 1"):
        gathered.wait()[0].value()
    with pytest.raises(pccl_torch.PeerLost, match="rank 1"):
        work.wait()
    assert isinstance(work.exception(), pccl_torch.PeerLost) and not work.is_success()
    dist.barrier()  # the other one has seen rank 1 go, and not this one
    dist.destroy_process_group(group)


def waiting_callbacks(rank: Rank) -> None:
    """A callback of a future may begin an operation and wait for it, several deep and at once."""

    def again(depth: int) -> Callable[[Any], Tensor]:
        def callback(future: Any) -> Tensor:
            x: Tensor = future.value()[0]
            if depth == 0:
                return x
            begun = dist.all_reduce(x.clone(), op=dist.ReduceOp.MAX, async_op=True)
            result: Tensor = begun.get_future().then(again(depth - 1)).wait()
            return result

        return callback

    first = dist.all_reduce(torch.ones(3), async_op=True)
    assert first.get_future().then(again(3)).wait().tolist() == [3, 3, 3]
    dist.barrier()


def device_meshes(rank: Rank) -> None:
    """DTensor and tensor parallel: sharded, replicated, redistributed, a layer split by columns."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (rank.size,))
    whole = torch.arange(12.0).view(6, 2)
    sharded: Any = distribute_tensor(whole, mesh, [Shard(0)])
    assert_close(sharded.to_local(), whole[2 * rank.rank : 2 * rank.rank + 2])
    assert_close(sharded.full_tensor(), whole)
    assert_close(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert_close((sharded.t() @ sharded).full_tensor(), whole.t() @ whole)
    uneven: Any = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    assert uneven.sum().full_tensor().item() == 21
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(5, 8)
    expected = layers(x)
    split: Any = parallelize_module(
        copy.deepcopy(layers), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    result = split(x)
    assert_close(result, expected)
    torch.autograd.backward(result.sum())
    torch.autograd.backward(expected.sum())
    gradient: Any = split[0].weight.grad
    assert_close(gradient.full_tensor(), layers[0].weight.grad)


def whole_of(module: Any) -> list[Tensor]:
    """The parameters of a sharded module, put together."""
    return [p.full_tensor() for p in module.parameters()]


def fsdp(rank: Rank) -> None:
    """FSDP2 as one process; with bf16 reductions and clip_grad_norm_; saved and loaded by DCP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
    mesh = init_device_mesh("cpu", (rank.size,))

    def sharded(policy: MixedPrecisionPolicy) -> Any:
        module = model()
        for layer in (module[0], module[2]):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        return fully_shard(module, mesh=mesh, mp_policy=policy)

    module = sharded(MixedPrecisionPolicy())
    train(module, *share(rank))
    whole = whole_of(module)
    assert_close(whole, alone(), rtol=0, atol=1e-6)
    torch.autograd.backward(nn.functional.mse_loss(module(share(rank)[0]), share(rank)[1]))
    norm: Any = nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    gradients = torch.cat([p.grad.full_tensor().view(-1) for p in module.parameters()])
    assert_close(gradients.norm().item(), 0.01, rtol=1e-3, atol=0)
    assert norm.full_tensor().item() > 0.01
    low = sharded(MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    train(low, *share(rank))
    assert_close(whole_of(low), alone(), rtol=0, atol=0.02)
    folder: list[Any] = [tempfile.mkdtemp() if rank.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save(module.state_dict(), checkpoint_id=folder[0])
    fresh = sharded(MixedPrecisionPolicy())
    state = fresh.state_dict()
    checkpoint.load(state, checkpoint_id=folder[0])
    fresh.load_state_dict(state)
    assert_close(whole_of(fresh), whole, rtol=0, atol=0)
    dist.barrier()
    if rank.rank == 0:
        for file in (*Path(folder[0]).iterdir(),):
            file.unlink()
        Path(folder[0]).rmdir()


def compiled(rank: Rank) -> None:
    """torch.compile with aot_eager and fullgraph, of functional collectives."""
    world = dist.group.WORLD

    def step(x: Tensor) -> Tensor:
        total = functional.all_reduce(x * 2, "sum", world)
        every = functional.all_gather_tensor(total + 1, 0, world)
        result: Tensor = every.sum() * x
        return result

    fast = torch.compile(step, backend="aot_eager", fullgraph=True)
    x = torch.full((3,), 1.0 + rank.rank)
    assert_close(fast(x), 3 * 3 * 13.0 * x)
    assert_close(fast(x + 1), step(x + 1))
