"""Checks of Works that PyTorch keeps, while the program has dropped them, on three ranks.

As wrapper_checks.py; test_torch_backend.py has the names. Here are also the functions of PyTorch
that look for the devices of a group: they save and load states.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives as functional
from rank_program import Rank
from torch import Tensor, nn
from torch._C import _distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from wrapper_checks import like_alone, model, share, train

# Their types are those of C++.
dist: Any = torch.distributed
native: Any = _distributed_c10d


def joined_ddp(rank: Rank) -> None:
    """DDP.join divides by the ranks that are left, which C++ waits for."""
    for finds_unused in (False, True):
        layer = nn.Linear(1, 1, bias=False)
        module = DistributedDataParallel(layer, find_unused_parameters=finds_unused)
        gradients = []
        with module.join(divide_by_initial_world_size=False):
            for _ in range(1 + rank.rank):
                layer.zero_grad()
                torch.autograd.backward(module(torch.full((1, 1), 1.0 + rank.rank)).sum())
                gc.collect()
                assert layer.weight.grad is not None
                gradients.append(layer.weight.grad.item())
        assert gradients == [2.0, 2.5, 3.0][: 1 + rank.rank]


def hooks_of_cpp(rank: Rank) -> None:
    """PyTorch's hook of DDP in C++ keeps the Future of a Work, and nothing else."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    dist._register_builtin_comm_hook(module.reducer, dist.BuiltinCommHookType.ALLREDUCE)
    train(module, *share(rank))
    like_alone(module)
    # It wants a list of C++, which Python cannot put into a Future (docs/guides/TORCH.md).
    module = DistributedDataParallel(model())
    dist._register_builtin_comm_hook(module.reducer, dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(RuntimeError, match="should return TensorList"):
        train(module, *share(rank))


def functional_works(rank: Rank) -> None:
    """Functional collectives keep Works by their results, those that a program registers too."""
    operators: Any = torch.ops._c10d_functional
    name, x = dist.group.WORLD.group_name, torch.full((3,), 1.0 + rank.rank)
    begun = operators.all_reduce(x, "sum", name)
    several = operators.all_reduce_coalesced([x, x * 2], "sum", name)
    native._register_work(x, dist.all_reduce(x, async_op=True))
    gc.collect()
    assert operators.wait_tensor(begun).tolist() == [6, 6, 6]
    assert operators.wait_tensor(x).tolist() == [6, 6, 6]
    assert [operators.wait_tensor(y)[0].item() for y in several] == [6, 12]
    boxed = dist.all_reduce(x, async_op=True).boxed()
    gc.collect()
    assert dist.Work.unbox(boxed).wait() is True and x.tolist() == [18, 18, 18]


def coalesced_works(rank: Rank) -> None:
    """A coalescing manager and a batch of messages have the only reference to their Works."""
    ones, out = torch.ones(2), torch.empty(2 * rank.size)
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(ones)
    with dist._coalescing_manager(async_ops=True) as gathers:
        dist.all_gather_single(out, torch.full((2,), float(rank.rank)))
    got = torch.empty(1)
    to, source = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    messages = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.tensor([float(rank.rank)]), to),
            dist.P2POp(dist.irecv, got, source),
        ]
    )
    gc.collect()
    manager.wait()
    gathers.wait()
    for work in messages:
        work.wait()
    assert ones.tolist() == [3, 3] and out.tolist() == [0, 0, 1, 1, 2, 2]
    assert got.item() == source


def distributed_tensors(rank: Rank) -> None:
    """DTensor waits for a redistribution when its result is used."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole = torch.arange(12.0).view(6, 2)
    mesh = init_device_mesh("cpu", (rank.size,))
    sharded: Any = distribute_tensor(whole, mesh, [Shard(0)])
    moved = sharded.redistribute(mesh, [Replicate()], async_op=True)
    across = sharded.redistribute(mesh, [Shard(1)], async_op=True)
    gc.collect()
    assert_close(moved.to_local() + 0, whole)
    assert_close(across.full_tensor(), whole)
    total = functional.all_reduce(whole, "sum", (mesh, 0))
    gc.collect()
    assert_close(total + 0, whole * rank.size)


def pipeline(rank: Rank) -> None:
    """A pipeline of three stages has the loss and the gradients of one process."""
    pipelining: Any = importlib.import_module("torch.distributed.pipelining")
    torch.manual_seed(0)
    stages = [nn.Linear(4, 4) for _ in range(rank.size)]
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    wanted = nn.functional.mse_loss(nn.Sequential(*stages)(x), y)
    torch.autograd.backward(wanted)
    mine, gradient = stages[rank.rank], stages[rank.rank].weight.grad
    mine.zero_grad()
    stage = pipelining.PipelineStage(mine, rank.rank, rank.size, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, 3, loss_fn=nn.functional.mse_loss)
    losses: list[Tensor] = []
    if rank.rank == 0:
        schedule.step(x)
    elif rank.rank == rank.size - 1:
        schedule.step(target=y, losses=losses)
        assert_close(torch.stack(losses).mean(), wanted)
    else:
        schedule.step()
    assert_close(mine.weight.grad, gradient)


@contextlib.contextmanager
def _folder(rank: Rank) -> Iterator[str]:
    """One that all ranks have, until all are done with it."""
    with tempfile.TemporaryDirectory() as made:
        told: list[Any] = [made]
        dist.broadcast_object_list(told, src=0)
        yield told[0]
        dist.barrier()


def saved_in_the_background(rank: Rank) -> None:
    """DCP's async_save in a group of its own, while the default group goes on."""
    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
    group = dist.new_group()
    module = model()
    with _folder(rank) as folder:
        saved = checkpoint.async_save(
            module.state_dict(), checkpoint_id=folder, process_group=group
        )
        x = torch.ones(3)
        dist.all_reduce(x)
        saved.result()
        state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
        checkpoint.load(state, checkpoint_id=folder)
        assert_close(state, dict(module.state_dict()), rtol=0, atol=0)
    assert x.tolist() == [3, 3, 3]
    dist.destroy_process_group(group)


def states_of_rank_0(rank: Rank) -> None:
    """The states of rank 0 become those of a sharded model and its optimizer on all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    states: Any = importlib.import_module("torch.distributed.checkpoint.state_dict")
    whole = model()
    optimizer = torch.optim.Adam(whole.parameters(), 0.1)
    torch.autograd.backward(whole(torch.ones(1, 16)).sum())
    optimizer.step()
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    sharded: Any = fully_shard(model(), mesh=init_device_mesh("cpu", (rank.size,)))
    other = torch.optim.Adam(sharded.parameters(), 0.1)
    told = whole.state_dict() if rank.rank == 0 else {}
    states.set_model_state_dict(sharded, told, options=options)
    for mine, wanted in zip(sharded.parameters(), whole.parameters(), strict=True):
        assert_close(mine.full_tensor(), wanted.detach(), rtol=0, atol=0)
    told = states.get_optimizer_state_dict(whole, optimizer) if rank.rank == 0 else {}
    states.set_optimizer_state_dict(sharded, other, told, options=options)
    for mine, wanted in zip(sharded.parameters(), whole.parameters(), strict=True):
        moment = other.state[mine]["exp_avg"].full_tensor()
        assert_close(moment, optimizer.state[wanted]["exp_avg"], rtol=0, atol=0)
