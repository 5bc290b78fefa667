"""Checks of the backend of torch.distributed, on three ranks: test_torch_backend.py names them.

Each is called on all ranks (world.py) with the rank it is on. Values are compared with gloo's in
the same processes, or where gloo has no such thing, with what all ranks can compute themselves.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pccl_torch
import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional
from pccl_torch import founding
from rank_program import GROUP_SECONDS, Rank
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.testing import assert_close

import pccl_py as pccl

# Its types are those of C++.
dist: Any = torch.distributed
c10d: Any = distributed_c10d
Op: Any = dist.ReduceOp
differentiable: Any = torch.distributed.nn.functional

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
# Gloo has none of these.
MORE_INTEGERS = (torch.int16, torch.uint16, torch.uint32, torch.uint64)


def data(rank: int, dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """A rank's contribution: other numbers on each, which every rank can make."""
    random = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=random).bool()
    if dtype.is_complex or dtype.is_floating_point:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, dtype=wide, generator=random).to(dtype)
    low = -5 if dtype.is_signed else 0
    return torch.randint(low, 6, shape, generator=random).to(dtype)


def same(ours: object, theirs: object, dtype: torch.dtype) -> None:
    """Equal to the rounding of two additions."""
    loose = dtype.is_floating_point or dtype.is_complex
    near = 4 * torch.finfo(dtype).eps if loose else 0.0
    assert_close(ours, theirs, rtol=near, atol=near)


# The deadline of one member aborts the call of the others.
TOO_LATE = (pccl.DeadlineExceeded, pccl.InDoubt, pccl.Aborted)

# ---- values, against gloo

Make = Callable[[Rank, Any, torch.dtype], Any]


def _all_reduce(op: Any) -> Make:
    def call(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
        x = data(rank.rank, dtype, 5, 7)
        dist.all_reduce(x, op=op, group=group)
        strided = data(rank.rank, dtype, 6, 4, seed=1).t()
        dist.all_reduce(strided, op=op, group=group)
        return x, strided

    return call


def _reduce(op: Any) -> Make:
    def call(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
        x = data(rank.rank, dtype, 4, 3)
        dist.reduce(x, dst=1, op=op, group=group)
        return x if rank.rank == 1 else None

    return call


def _reduce_scatter(op: Any) -> Make:
    def call(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
        parts = [data(rank.rank, dtype, 2, 3, seed=part) for part in range(rank.size)]
        out = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter(out, parts, op=op, group=group)
        joined = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter_single(joined, torch.cat(parts), op=op, group=group)
        return out, joined

    return call


def _broadcast(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
    x = data(rank.rank, dtype, 3, 5)
    dist.broadcast(x, src=2, group=group)
    strided = data(rank.rank, dtype, 3, 5).t()
    dist.broadcast(strided, src=1, group=group)
    return x, strided


def _all_gather(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
    x = data(rank.rank, dtype, 4, 2)
    parts = [torch.empty(4, 2, dtype=dtype) for _ in range(rank.size)]
    dist.all_gather(parts, x.t().contiguous().t(), group=group)
    joined = torch.empty(4 * rank.size, 2, dtype=dtype)
    dist.all_gather_single(joined, x, group=group)
    # Two lists at once, with an empty tensor among them.
    lists = [[torch.empty(n, dtype=dtype) for n in (3, 0)] for _ in range(rank.size)]
    dist.all_gather_coalesced(lists, [data(rank.rank, dtype, n) for n in (3, 0)], group=group)
    return parts, joined, lists


def _gather_and_scatter(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
    is_root = rank.rank == 1
    table = [torch.empty(3, dtype=dtype) for _ in range(rank.size)] if is_root else None
    dist.gather(data(rank.rank, dtype, 3), table, dst=1, group=group)
    out = torch.empty(2, 2, dtype=dtype)
    dealt = [data(r, dtype, 2, 2, seed=3) for r in range(rank.size)] if is_root else None
    dist.scatter(out, dealt, src=1, group=group)
    return table, out


def _all_to_all(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
    even = torch.empty(2 * rank.size, 2, dtype=dtype)
    dist.all_to_all_single(even, data(rank.rank, dtype, 2 * rank.size, 2), group=group)
    # Rank r gives rank s as many rows as s + 1, none to rank 1.
    gives = [0 if s == 1 else s + 1 for s in range(rank.size)]
    takes = [gives[rank.rank]] * rank.size
    out = torch.empty(sum(takes), 3, dtype=dtype)
    x = data(rank.rank, dtype, sum(gives), 3)
    dist.all_to_all_single(out, x, takes, gives, group=group)
    return even, out


def _messages(rank: Rank, group: Any, dtype: torch.dtype) -> Any:
    right, left = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    into = [torch.empty(2, 3, dtype=dtype) for _ in range(4)]
    sent = [data(rank.rank, dtype, 2, 3, seed=n) for n in range(4)]
    works = [dist.isend(x, right, group=group, tag=n // 2) for n, x in enumerate(sent)]
    works += [dist.irecv(x, left, group=group, tag=n // 2) for n, x in enumerate(into)]
    for work in works:
        work.wait()
    return into


def values(rank: Rank, kind: str) -> None:
    """Equal to gloo's to rounding: every dtype and operation that both have."""
    reductions = {"all_reduce": _all_reduce, "reduce": _reduce, "reduce_scatter": _reduce_scatter}
    moves = {
        "broadcast": _broadcast,
        "all_gather": _all_gather,
        "gather_and_scatter": _gather_and_scatter,
        "all_to_all": _all_to_all,
        "messages": _messages,
    }
    calls: list[tuple[Make, torch.dtype]] = []
    if kind in moves:
        # Gloo gathers to one rank neither complex numbers nor truth values.
        more = () if kind == "gather_and_scatter" else (*COMPLEX, torch.bool)
        calls += [(moves[kind], dtype) for dtype in (*FLOATS, *INTEGERS, *more)]
    else:
        make = reductions[kind]
        usual = (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX)
        bits = (Op.BAND, Op.BOR, Op.BXOR)
        calls += [(make(op), dtype) for op in usual for dtype in (*FLOATS, *INTEGERS)]
        calls += [(make(Op.AVG), dtype) for dtype in FLOATS]
        calls += [(make(op), dtype) for op in (Op.SUM, Op.AVG) for dtype in COMPLEX]
        calls += [(make(op), dtype) for op in bits for dtype in INTEGERS]
        calls += [(make(op), torch.bool) for op in (Op.PRODUCT, Op.MIN, Op.MAX, *bits)]
    for call, dtype in calls:
        same(call(rank, dist.group.WORLD, dtype), call(rank, rank.gloo, dtype), dtype)


def values_that_gloo_lacks(rank: Rank) -> None:
    """Averages of integers, sums of truth values, whose bytes gloo adds, other integers, float8."""
    size = rank.size
    for dtype in INTEGERS:
        x = data(rank.rank, dtype, 9)
        dist.all_reduce(x, op=Op.AVG)
        total = torch.stack([data(r, dtype, 9).to(torch.int64) for r in range(size)]).sum(0)
        assert torch.equal(x.to(torch.int64), total.div(size, rounding_mode="trunc")), dtype
    x = torch.full((9,), 60000.0, dtype=torch.float16)  # their sum is infinity
    dist.all_reduce(x, op=Op.AVG)
    assert x.tolist() == [60000.0] * 9
    x = data(rank.rank, torch.bool, 9)
    dist.all_reduce(x)
    whether = torch.any(torch.stack([data(r, torch.bool, 9) for r in range(size)]), 0)
    assert torch.equal(x.view(torch.uint8), whether.view(torch.uint8))
    for dtype in MORE_INTEGERS:
        x = data(rank.rank, dtype, 6)
        dist.all_reduce(x)
        total = torch.stack([data(r, dtype, 6).to(torch.int64) for r in range(size)]).sum(0)
        assert_close(x.to(torch.int64), total)
    for dtype in (*MORE_INTEGERS, *COMPLEX, torch.float8_e4m3fn, torch.bool):
        x = data(rank.rank, dtype, 4) if dtype != torch.float8_e4m3fn else _float8(rank.rank)
        table = [torch.empty_like(x) for _ in range(size)] if rank.rank == 0 else None
        dist.gather(x, table)
        for r, part in enumerate(table or ()):
            other = data(r, dtype, 4) if dtype != torch.float8_e4m3fn else _float8(r)
            assert torch.equal(part.view(torch.uint8), other.view(torch.uint8))


def _float8(rank: int) -> Tensor:
    return data(rank, torch.float32, 4).to(torch.float8_e4m3fn)


# ---- shapes and places


def uneven_sizes(rank: Rank) -> None:
    """all_gather, reduce_scatter and all_to_all of tensors that differ in size between ranks."""
    size = rank.size
    shapes = [(r + 1, 2) if r != 1 else (0, 2) for r in range(size)]
    parts = [torch.empty(*shape) for shape in shapes]
    dist.all_gather(parts, data(rank.rank, torch.float32, *shapes[rank.rank]))
    assert_close(parts, [data(r, torch.float32, *shapes[r]) for r in range(size)])
    gives = [data(rank.rank, torch.float32, *shape, seed=2) for shape in shapes]
    out = torch.empty(*shapes[rank.rank])
    dist.reduce_scatter(out, gives)
    total = sum(data(r, torch.float32, *shapes[rank.rank], seed=2) for r in range(size))
    assert_close(out, total)
    takes = [torch.empty(rank.rank * r) for r in range(size)]
    dist.all_to_all(takes, [data(rank.rank, torch.float32, rank.rank * r) for r in range(size)])
    assert_close(takes, [data(r, torch.float32, rank.rank * r) for r in range(size)])


def empty_tensors(rank: Rank) -> None:
    """Every collective with no elements at all."""
    none = torch.empty(0, 3)
    parts = [torch.empty(0, 3) for _ in range(rank.size)]
    dist.all_reduce(none)
    dist.broadcast(none, src=1)
    dist.reduce(none, dst=1)
    dist.all_gather(parts, none)
    dist.all_gather_single(torch.empty(0, 3), none)
    dist.reduce_scatter(none, parts)
    dist.reduce_scatter_single(torch.empty(0, 3), none)
    dist.all_to_all(parts, [torch.empty(0, 3) for _ in parts])
    dist.all_to_all_single(torch.empty(0, 3), none)
    dist.gather(none, parts if rank.rank == 0 else None)
    dist.scatter(none, parts if rank.rank == 0 else None)
    dist.barrier()
    assert dist.get_rank() == rank.rank


def scalars(rank: Rank) -> None:
    """Tensors of no dimension keep it."""
    x = torch.tensor(rank.rank + 1.0)
    dist.all_reduce(x)
    assert x.shape == () and x.item() == 6
    parts = [torch.tensor(0.0) for _ in range(rank.size)]
    dist.all_gather(parts, torch.tensor(float(rank.rank)))
    assert [part.item() for part in parts] == [0, 1, 2]


def results_beside_inputs(rank: Rank) -> None:
    """Strided outputs, parts of one tensor as outputs, and the input inside of the output."""
    size = rank.size
    wide = torch.zeros(4, 2 * size)
    columns = [wide[:, 2 * r : 2 * r + 2] for r in range(size)]
    dist.all_gather(columns, data(rank.rank, torch.float32, 4, 2))
    assert_close(wide, torch.cat([data(r, torch.float32, 4, 2) for r in range(size)], 1))
    whole = torch.zeros(size, 5)
    whole[rank.rank] = data(rank.rank, torch.float32, 5)
    dist.all_gather(list(whole.unbind(0)), whole[rank.rank])
    assert_close(whole, torch.stack([data(r, torch.float32, 5) for r in range(size)]))
    dist.all_gather_single(whole, whole[rank.rank])
    assert_close(whole, torch.stack([data(r, torch.float32, 5) for r in range(size)]))
    gradient = data(rank.rank, torch.float32, size * 4)
    dist.reduce_scatter_single(gradient.view(size, 4)[rank.rank], gradient)
    total = torch.stack([data(r, torch.float32, size * 4) for r in range(size)]).sum(0)
    assert_close(gradient.view(size, 4)[rank.rank], total.view(size, 4)[rank.rank])
    apart = torch.zeros(6, 2).t()  # of 2 rows
    dist.scatter(
        apart, [data(r, torch.float32, 2, 6) for r in range(size)] if not rank.rank else None
    )
    assert_close(apart, data(rank.rank, torch.float32, 2, 6))
    strided = torch.zeros(2, size * 2).t()
    dist.all_to_all_single(strided, data(rank.rank, torch.float32, size * 2, 2))
    rows = [data(r, torch.float32, size * 2, 2)[2 * rank.rank :][:2] for r in range(size)]
    assert_close(strided, torch.cat(rows))


def gradients_and_parameters(rank: Rank) -> None:
    """Leaves that require grad are taken, as by gloo; what autograd has saved is seen to change."""
    leaf = torch.nn.Parameter(data(rank.rank, torch.float32, 3))
    dist.broadcast(leaf.data, src=0)
    with torch.no_grad():
        dist.all_reduce(leaf, op=Op.AVG)
    assert_close(leaf.detach(), data(0, torch.float32, 3))
    x = torch.ones(3, requires_grad=True)
    saved = x * 2
    out = (saved * saved).sum()
    dist.all_reduce(saved.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(out)


# ---- objects, functional collectives, works


def objects(rank: Rank) -> None:
    """all_gather_object, gather_object, broadcast_object_list, scatter_object_list."""
    size = rank.size
    told: list[Any] = [None] * size
    dist.all_gather_object(told, {"rank": rank.rank, "text": "x" * 1000 * rank.rank})
    assert [each["rank"] for each in told] == [0, 1, 2]
    assert [len(each["text"]) for each in told] == [0, 1000, 2000]
    table: list[Any] | None = [None] * size if rank.rank == 2 else None
    dist.gather_object((rank.rank, "a"), table, dst=2)
    assert table is None or table == [(r, "a") for r in range(size)]
    shared: list[Any] = ["first", {"second": torch.ones(2)}] if rank.rank == 1 else [None, None]
    dist.broadcast_object_list(shared, src=1)
    assert shared[0] == "first" and shared[1]["second"].tolist() == [1, 1]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [10, "b", None] if rank.rank == 0 else None)
    assert mine[0] == [10, "b", None][rank.rank]
    messages: list[Any] = [{"to": 2}] if rank.rank == 0 else [None]
    if rank.rank == 0:
        dist.send_object_list(messages, dst=2)
    elif rank.rank == 2:
        dist.recv_object_list(messages, src=0)
        assert messages == [{"to": 2}]


def functional_collectives(rank: Rank) -> None:
    """Those that torch.compile and DTensor call, also coalesced, in place and with gradients."""
    world, size = dist.group.WORLD, rank.size
    x = data(rank.rank, torch.float32, size * 2)
    every = [data(r, torch.float32, size * 2) for r in range(size)]
    total = torch.stack(every).sum(0)
    assert_close(functional.all_reduce(x, "sum", world), total)
    assert_close(functional.all_reduce(x, "avg", world), total / size)
    assert_close(functional.all_gather_tensor(x, 0, world), torch.cat(every))
    shares = functional.reduce_scatter_tensor(x, "sum", 0, world)
    assert_close(shares, total.view(size, 2)[rank.rank])
    assert_close(functional.broadcast(x, 1, world), every[1])
    swapped = functional.all_to_all_single(x, None, None, world)
    assert_close(swapped, torch.cat([each.view(size, 2)[rank.rank] for each in every]))
    a, b = functional.all_reduce_coalesced([x, x * 2], "sum", world)
    assert_close((a, b), (total, total * 2))
    a, b = functional.all_gather_into_tensor_coalesced([x, x + 1], world)
    assert_close((a, b), (torch.cat(every), torch.cat(every) + 1))
    a, b = functional.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 0], world)
    assert_close((a, b), (shares, shares * 2))
    # A result that nobody waits for.
    functional.all_reduce(x, "sum", world)
    y = torch.ones(2, requires_grad=True)
    torch.autograd.backward(functional.all_gather_tensor_autograd(y, 0, world).sum())
    assert y.grad is not None and y.grad.tolist() == [3.0, 3.0]


def differentiable_collectives(rank: Rank) -> None:
    """torch.distributed.nn.functional: values and gradients equal gloo's."""
    size = rank.size
    scales = torch.arange(1.0, 4.0)

    def to_all(x: Tensor, group: Any) -> Tensor:
        into = [torch.empty(3) for _ in range(size)]
        return torch.cat(differentiable.all_to_all(into, [x * (1 + r) for r in range(size)], group))

    calls: dict[str, Callable[[Tensor, Any], Tensor]] = {
        "all_reduce": lambda x, group: differentiable.all_reduce(x, Op.SUM, group),
        "all_reduce max": lambda x, group: differentiable.all_reduce(x, Op.MAX, group),
        # The others' values are undefined.
        "reduce": lambda x, group: differentiable.reduce(x, 1, Op.SUM, group) * (rank.rank == 1),
        "broadcast": lambda x, group: differentiable.broadcast(x * 1, 2, group),
        "all_gather": lambda x, group: torch.cat(differentiable.all_gather(x, group)),
        "gather": lambda x, group: torch.cat(differentiable.gather(x, 1, group)),
        "scatter": lambda x, group: differentiable.scatter([x, x * 2, x * 3], 1, group),
        "reduce_scatter": lambda x, group: differentiable.reduce_scatter(
            torch.empty(3), [x, x * 2, x * 3], Op.SUM, group
        ),
        "all_to_all": to_all,
        "all_to_all_single": lambda x, group: differentiable.all_to_all_single(
            torch.empty(3), x, group=group
        ),
    }
    for name, call in calls.items():
        both = []
        for group in (dist.group.WORLD, rank.gloo):
            x = data(rank.rank, torch.float32, 3).requires_grad_()
            y = call(x, group)
            weights = (1.0 + rank.rank) * scales.repeat(y.numel() // 3)
            torch.autograd.backward((y * weights).sum())
            assert x.grad is not None
            both.append((y.detach(), x.grad))
        assert_close(*both, msg=f"{name}: {{}}".format)


def works(rank: Rank) -> None:
    """wait, get_future, is_completed, is_success, exception, result, source_rank; many at once."""
    tensors = [torch.full((3,), float(n)) for n in range(50)]
    begun = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in reversed(begun):
        assert work.wait() is True
    assert [x[0].item() for x in tensors] == [3.0 * n for n in range(50)]
    work = begun[7]
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is tensors[7]
    assert work.get_future().wait()[0] is tensors[7]
    assert work.get_future() is work.get_future()
    doubled = (
        dist.all_reduce(torch.ones(2), async_op=True)
        .get_future()
        .then(lambda future: future.value()[0] * 2)
    )
    assert doubled.wait().tolist() == [6.0, 6.0]
    # Waiting may end before the operation does, which goes on.
    if rank.rank == 0:
        x = torch.ones(1)
        late = dist.irecv(x, 1)
        with pytest.raises(TimeoutError):
            late.wait(timedelta(milliseconds=10))
        dist.barrier()
        late.wait()
        assert x.item() == 5
    else:
        dist.barrier()
        if rank.rank == 1:
            dist.send(torch.tensor([5.0]), 0)
    dist.barrier()


def coalesced_and_batched(rank: Rank) -> None:
    """_coalescing_manager, batch_isend_irecv with equal tags, all_reduce_coalesced."""
    size = rank.size
    a, b = torch.ones(2), torch.full((3,), float(rank.rank))
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    assert a.tolist() == [3, 3] and b.tolist() == [3, 3, 3]
    outs = [torch.empty(2 * size), torch.empty(size)]
    with dist._coalescing_manager():
        dist.all_gather_single(outs[0], torch.full((2,), float(rank.rank)))
        dist.all_gather_single(outs[1], torch.full((1,), float(rank.rank)))
    assert outs[0].tolist() == [0, 0, 1, 1, 2, 2] and outs[1].tolist() == [0, 1, 2]
    parts = [torch.empty(1), torch.empty(2)]
    with dist._coalescing_manager():
        dist.reduce_scatter_single(parts[0], torch.arange(float(size)))
        dist.reduce_scatter_single(parts[1], torch.arange(2.0 * size))
    assert parts[0].item() == 3 * rank.rank and parts[1].tolist()[0] == 6 * rank.rank
    dist.all_reduce_coalesced(tensors := [torch.ones(2), torch.ones(1)])
    assert [t.tolist() for t in tensors] == [[3, 3], [3]]
    right, left = (rank.rank + 1) % size, (rank.rank - 1) % size
    into = [torch.empty(2) for _ in range(8)]
    batch = [dist.P2POp(dist.irecv, x, left) for x in into]
    batch += [
        dist.P2POp(dist.isend, torch.full((2,), 10.0 * rank.rank + n), right) for n in range(8)
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert [x[0].item() for x in into] == [10.0 * left + n for n in range(8)]


def many_messages(rank: Rank) -> None:
    """Seven in flight each way, on three tags, received tag by tag."""
    others = [r for r in range(rank.size) if r != rank.rank]
    works, into = [], []
    for other in others:
        for n in range(7):
            works.append(dist.isend(torch.tensor([rank.rank, n]), other, tag=n % 3))
    for other in others:
        for tag in (2, 0, 1):
            for n in range(tag, 7, 3):
                x = torch.empty(2, dtype=torch.int64)
                works.append(dist.irecv(x, other, tag=tag))
                into.append((x, other, n))
    for work in works:
        work.wait()
    assert all(x.tolist() == [other, n] for x, other, n in into)
    assert works[-1].source_rank() == others[-1]


def receives_before_sends(rank: Rank) -> None:
    """More receives than may be in flight hold up neither the sends nor another thread's calls."""
    others = [r for r in range(rank.size) if r != rank.rank]
    count = 300
    into = {other: torch.zeros(count, dtype=torch.int64) for other in others}
    works = [dist.irecv(into[other][n], other) for n in range(count) for other in others]
    total = torch.tensor([rank.rank])
    thread = threading.Thread(target=dist.all_reduce, args=(total,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert total.item() == sum(range(rank.size))
    assert not any(work.is_completed() for work in works)
    mine = torch.arange(count) + 1000 * rank.rank
    # All must have called the above before the first message arrives.
    dist.barrier()
    works += [dist.isend(mine[n], other) for n in range(count) for other in others]
    for work in works:
        work.wait()
    for other, numbers in into.items():
        assert numbers.tolist() == [1000 * other + n for n in range(count)]


def done_means_filled(rank: Rank) -> None:
    """Outputs that are copied to their place are there once a Work says that it is done."""
    outputs = [torch.zeros(3) for _ in range(rank.size)]
    x = torch.arange(6.0).view(2, 3).t()  # of other strides
    works = [
        dist.all_gather(outputs, torch.full((3,), float(rank.rank)), async_op=True),
        dist.all_reduce(x, async_op=True),
    ]
    until = time.monotonic() + 30
    while not all(work.is_completed() for work in works):
        assert time.monotonic() < until
    assert [output.tolist() for output in outputs] == [[float(r)] * 3 for r in range(rank.size)]
    assert x.t().flatten().tolist() == [rank.size * n for n in range(6)]
    assert all(work.is_success() for work in works)


def planned_sums(rank: Rank) -> None:
    """Sums of a planned group are the same sums, of complex numbers and of shards as well."""
    group = dist.new_group(pg_options=pccl_torch.Options(recovery="resume", planned=True))
    for dtype in (torch.float32, torch.float64, torch.complex64):
        x = torch.full((rank.size,), 1 + rank.rank, dtype=dtype)
        mine = torch.empty(1, dtype=dtype)
        group.reduce_scatter_single(mine, x, dist.ReduceScatterOptions()).wait()
        group.allreduce([x], dist.AllreduceOptions()).wait()
        total = sum(range(1, rank.size + 1))
        assert_close(x, torch.full_like(x, total))
        assert_close(mine, torch.full_like(mine, total))
    with pytest.raises(pccl.InvalidArgument, match="planned"):
        group.allreduce_coalesced([torch.ones(2), torch.ones(2, dtype=torch.int32)])
    dist.destroy_process_group(group)


# ---- shapes


def other_shapes(rank: Rank) -> None:
    """A Mismatch where all have one tensor; lists say what shapes others have, as with gloo."""
    shapes = [(2, 3), (3, 2), (2, 3)]
    shape, size = shapes[rank.rank], rank.size
    backwards = dist.new_group([2, 1, 0], sort_ranks=False)
    for group in (dist.group.WORLD, backwards):
        x, whole = torch.ones(shape), torch.ones(size * shape[0], shape[1])
        parts, mine = list(torch.split(whole.clone(), shape[0])), torch.zeros(shape)
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (dist.all_reduce, (x,)),
            (dist.reduce, (x, 1)),
            (dist.broadcast, (x, 1)),
            (dist.all_gather_single, (whole, x)),
            (dist.reduce_scatter_single, (mine, whole)),
            (dist.reduce_scatter, (mine, parts)),
        ]
        for call, given in calls:
            with pytest.raises(pccl.Mismatch, match=r"differ in shape \(here \(\d, [23]\)\)"):
                call(*given, group=group)
        assert x.eq(1).all() and torch.cat(parts).eq(1).all()
        dist.all_reduce(x.view(-1), group=group)
        assert x.eq(size).all()
        _lists_of_other_shapes(rank, group, shapes)
    dist.destroy_process_group(backwards)


def _lists_of_other_shapes(rank: Rank, group: Any, shapes: list[tuple[int, int]]) -> None:
    own, shape = float(rank.rank), shapes[rank.rank]
    order = dist.get_process_group_ranks(group)
    parts = [torch.zeros(shapes[other]) for other in order]
    x = torch.full(shape, own)
    dist.all_gather(parts, x, group=group)
    dist.all_to_all([torch.zeros(shape) for _ in order], parts, group=group)
    dist.gather(x, parts if own == 1 else None, dst=1, group=group)
    for other, part in zip(order, parts, strict=True):
        assert part.eq(other).all() and tuple(part.shape) == shapes[other]
    dist.scatter(x.zero_(), parts if own == 1 else None, src=1, group=group)
    assert x.eq(own).all()


# ---- what is refused


def refusals(rank: Rank) -> None:
    """Refused on one rank before anything is sent: its next call meets the others', who wait."""
    if rank.rank == 1:
        for call, error, text in _refused(rank.size):
            with pytest.raises(error, match=text):
                call()
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.barrier()
    assert x.tolist() == [3, 3, 3]
    if rank.rank == 0:
        dist.send(torch.tensor([7.0]), 1, tag=5)
    elif rank.rank == 1:
        got = torch.zeros(1)
        dist.recv(got, 0, tag=5)
        assert got.item() == 7
    mixed = [torch.tensor([True]), torch.tensor([3], dtype=torch.int32)]
    with pytest.raises(pccl.InvalidArgument, match="bool"):
        dist.group.WORLD.allreduce_coalesced(mixed)
    works(rank)


def _refused(size: int) -> list[tuple[Callable[[], Any], type[Exception], str]]:
    ones = torch.ones(3)
    sparse = torch.eye(3).to_sparse()
    meta = torch.ones(3, device="meta")
    quantized = torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)
    narrow = torch.ones(1).expand(3)
    lists = [torch.ones(3) for _ in range(size)]
    premul = dist._make_nccl_premul_sum(2.0)
    invalid, bits = pccl.InvalidArgument, torch.tensor([True])
    world = dist.group.WORLD
    return [
        (lambda: dist.all_reduce(sparse), NotImplementedError, "sparse"),
        (lambda: dist.broadcast(sparse, 0), NotImplementedError, "sparse"),
        (lambda: dist.all_reduce(meta), RuntimeError, "meta"),
        (lambda: dist.all_reduce(quantized), NotImplementedError, "quantized"),
        (lambda: dist.all_reduce(narrow), RuntimeError, "single memory location"),
        (lambda: dist.all_gather(lists, meta), RuntimeError, "meta"),
        (lambda: dist.all_gather(lists[:2], ones), invalid, "one for each"),
        (lambda: dist.scatter(ones, lists[:2], src=1), Exception, "2"),
        (lambda: dist.reduce_scatter_single(ones, torch.ones(7)), Exception, "7"),
        (lambda: dist.all_to_all_single(ones, torch.ones(7)), Exception, "7"),
        (lambda: dist.all_to_all_single(ones, ones, [1, 1, 2], [1, 1, 1]), Exception, "4"),
        (lambda: dist.all_reduce(ones, op=premul), invalid, "premul_sum"),
        (lambda: dist.all_reduce(bits, op=Op.AVG), TypeError, "bool"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.cfloat), op=Op.MAX), Exception, "MAX"),
        (lambda: dist.all_reduce(ones, op=Op.BAND), Exception, "band|BAND"),
        (lambda: dist.all_reduce(_float8(0)), TypeError, "float8"),
        (lambda: dist.send(ones, 0, tag=-1), invalid, "tag"),
        (lambda: dist.recv(ones, 0, tag=1 << 40), Exception, "tag|argument"),
        (lambda: dist.recv(ones), invalid, "needs a source"),
        (lambda: world.send([ones], size, 0), invalid, "not in the group"),
        (lambda: world.recv_anysource([ones], 0), invalid, "needs a source"),
        (lambda: pccl_torch.Options(codec="int9"), ValueError, "int9"),  # type: ignore[arg-type]
    ]


# ---- profiler


def profiled(rank: Rank) -> None:
    """Each collective is one asynchronous event, by its kind, with the shapes of its inputs."""
    world, size, this = dist.group.WORLD, rank.size, rank.rank
    x, row, flat = torch.ones(2, 3), torch.ones(2), torch.ones(size)
    rows = [torch.ones(2) for _ in range(size)]
    calls: list[tuple[str, Callable[[], Any], list[list[int]]]] = [
        ("all_reduce", lambda: dist.all_reduce(x), [[2, 3]]),
        ("all_reduce", lambda: world.allreduce_coalesced([x, row]), [[2, 3], [2]]),
        ("reduce", lambda: dist.reduce(x, 1), [[2, 3]]),
        ("broadcast", lambda: dist.broadcast(x, 1), [[2, 3]]),
        ("all_gather", lambda: dist.all_gather(rows, row), [[2]]),
        ("all_gather", lambda: dist.all_gather_single(torch.ones(2 * size), row), [[2]]),
        ("gather", lambda: dist.gather(row, rows if this == 0 else None), [[2]]),
        ("scatter", lambda: dist.scatter(row, rows if this == 0 else None), [[2]] * size),
        ("reduce_scatter", lambda: dist.reduce_scatter(row, rows), [[2]] * size),
        ("reduce_scatter", lambda: dist.reduce_scatter_single(torch.ones(1), flat), [[size]]),
        ("all_to_all", lambda: dist.all_to_all(rows, [row] * size), [[2]] * size),
        ("all_to_all", lambda: dist.all_to_all_single(torch.ones(size), flat), [[size]]),
        ("all_reduce", lambda: _average(x), [[2, 3]]),
        ("barrier", dist.barrier, []),
    ]
    for name, call, shapes in calls:
        with torch.profiler.profile(record_shapes=True) as profiler:
            done = call()
            if isinstance(done, dist.Work):
                done.wait()
        events: Any = profiler.events()
        of_ours = [event for event in events if event.name.startswith("pccl:")]
        assert [event.name for event in of_ours] == [f"pccl:{name}"]
        assert of_ours[0].is_async and of_ours[0].count == 1, name
        if name != "scatter" or this == 0:
            assert of_ours[0].input_shapes == shapes, name
    with torch.profiler.profile() as profiler, pytest.raises(pccl.InvalidArgument):
        dist.all_gather(rows[:1], row)
    events = profiler.events()
    assert [event.name for event in events if event.name == "pccl:all_gather"]
    assert dist.all_reduce(x, async_op=True)._event is None


def _average(x: Tensor) -> Any:
    given = {"codec": None, "recovery": "complete", "form": 0, "feedback": None, "reword": str}
    return dist.group.WORLD.average(x, **given)


# ---- groups


def groups_of_some_ranks(rank: Rank) -> None:
    """new_group: for those who are no members, in any order, made by its members alone, nested."""
    # First, and on all: the names of groups depend on how many a process has (2.13), or has made.
    alone = dist.new_group([0] if rank.rank == 0 else [1, 2], use_local_synchronization=True)
    x = torch.tensor([1.0 * rank.rank])
    dist.all_reduce(x, group=alone)
    assert x.item() == (0 if rank.rank == 0 else 3)
    pair = dist.new_group([0, 2])
    if rank.rank == 1:
        assert pair == dist.GroupMember.NON_GROUP_MEMBER and dist.get_rank(pair) == -1
    else:
        x = torch.tensor([1.0 + rank.rank])
        dist.all_reduce(x, group=pair)
        assert x.item() == 4 and dist.get_rank(pair) == rank.rank // 2
        assert dist.get_process_group_ranks(pair) == [0, 2]
    backwards = dist.new_group([2, 1, 0], sort_ranks=False)
    assert dist.get_rank(backwards) == 2 - rank.rank
    _values_in_order_of(backwards, [2, 1, 0], rank)
    single = [dist.new_group([r]) for r in range(rank.size)][rank.rank]
    x = torch.tensor([2.0])
    dist.all_reduce(x, group=single)
    assert x.item() == 2
    for group in (alone, pair, backwards, single):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()


def _values_in_order_of(group: Any, order: Sequence[int], rank: Rank) -> None:
    size, own = len(order), dist.get_rank(group)
    out = torch.empty(2 * size)
    dist.all_gather_single(out, torch.full((2,), float(rank.rank)), group=group)
    assert out.view(size, 2)[:, 0].tolist() == list(order)
    parts = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(parts, torch.full((own + 1,), float(rank.rank)), group=group)
    assert [part[0].item() for part in parts] == list(order)
    share = torch.empty(1)
    dist.reduce_scatter_single(share, torch.arange(float(size)), group=group)
    assert share.item() == 3 * own
    dist.reduce_scatter(share, [torch.tensor([10.0 * r]) for r in range(size)], group=group)
    assert share.item() == 30 * own
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.arange(float(size)) + 10 * rank.rank, group=group)
    assert out.tolist() == [10 * other + own for other in order]
    into = [torch.empty(1) for _ in range(size)]
    gives = [torch.tensor([10.0 * rank.rank + r]) for r in range(size)]
    dist.all_to_all(into, gives, group=group)
    assert [x.item() for x in into] == [10 * other + own for other in order]
    x = torch.tensor([float(rank.rank)])
    dist.broadcast(x, src=order[1], group=group)
    assert x.item() == order[1]
    table = [torch.empty(1) for _ in range(size)] if rank.rank == order[0] else None
    dist.gather(torch.tensor([float(rank.rank)]), table, dst=order[0], group=group)
    assert table is None or [x.item() for x in table] == list(order)
    dealt = [torch.tensor([10.0 * r]) for r in range(size)] if rank.rank == order[2] else None
    dist.scatter(x, dealt, src=order[2], group=group)
    assert x.item() == 10 * own
    dist.reduce(x, dst=order[0], group=group)
    assert rank.rank != order[0] or x.item() == 30
    right, left = order[(own + 1) % size], order[(own - 1) % size]
    works = [dist.isend(torch.tensor([1.0 * rank.rank]), right, group=group)]
    works.append(dist.irecv(x, left, group=group))
    for work in works:
        work.wait()
    assert x.item() == left


def options_of_a_group(rank: Rank) -> None:
    """pg_options are those of their group alone: a codec, a recovery, a deadline, a plan."""
    coded = dist.new_group(pg_options=pccl_torch.Options(codec="int8", plan="ring"))
    x, y = data(rank.rank, torch.float32, 4096), data(rank.rank, torch.float32, 4096)
    dist.all_reduce(x, group=coded)
    dist.all_reduce(y)
    assert not torch.equal(x, y)
    assert_close(x, y, rtol=0, atol=0.1)
    every = [torch.empty(4096) for _ in range(rank.size)]
    dist.all_gather(every, x)
    assert all(torch.equal(x, other) for other in every)
    dist.destroy_process_group(coded)
    hurried = dist.new_group(pg_options=pccl_torch.Options(deadline=0.2))
    dist.barrier(group=hurried)
    if rank.rank != 1:
        with pytest.raises(TOO_LATE, match="rank 1"):
            dist.barrier(group=hurried)
    dist.barrier()
    dist.destroy_process_group(hurried)


def wrong_options(rank: Rank) -> None:
    """pg_options of another kind are refused, on all ranks, and the next group works."""
    with pytest.raises(TypeError, match="pccl_torch.Options"):
        dist.new_group(pg_options={"codec": "int8"})
    for wrong in ({"codec": "int9"}, {"plan": "star"}, {"recovery": "hope"}, {"recovery": None}):
        with pytest.raises(pccl.InvalidArgument):
            pccl_torch.Options(**wrong)
    group = dist.new_group()
    dist.barrier(group=group)
    dist.destroy_process_group(group)


def timeouts(rank: Rank) -> None:
    """torch's timeouts are deadlines; the error names who is missing, and is one of torch's."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier(group=group)
    group.set_timeout(timedelta(milliseconds=200))
    if rank.rank != 1:
        with pytest.raises(TOO_LATE, match="rank 1") as caught:
            dist.all_reduce(torch.ones(3), group=group)
        assert isinstance(caught.value, dist.DistBackendError)
        assert pccl_torch.last_error() is caught.value
    dist.barrier()
    dist.destroy_process_group(group)
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier(group=group, timeout=timedelta(seconds=20))
    if rank.rank == 0:
        with pytest.raises(TOO_LATE, match="rank [12]") as caught:
            dist.barrier(group=group, timeout=timedelta(milliseconds=200))
        assert isinstance(caught.value, dist.DistBackendError)
    dist.barrier()
    dist.destroy_process_group(group)
    group = dist.new_group(timeout=timedelta(seconds=20))
    group.monitored_barrier()
    if rank.rank == 0:
        with pytest.raises(TOO_LATE, match="rank [12]"):
            group.monitored_barrier(timedelta(milliseconds=200))
        with pytest.raises(TOO_LATE, match="timed out"):
            group.monitored_barrier(timedelta(0))
    dist.barrier()
    dist.destroy_process_group(group)


def deadlines_of_groups(rank: Rank) -> None:
    """Groups of every kind have the timeout that was asked, and PyTorch's where none was."""
    usual = c10d.default_pg_timeout.total_seconds()
    pairs = [[0, 1], [2]]
    made: list[tuple[Any, float]] = [
        (dist.group.WORLD, GROUP_SECONDS),
        (dist.new_group(timeout=timedelta(seconds=20)), 20.0),
        (dist.new_group([rank.rank], use_local_synchronization=True), usual),
        (dist.new_subgroups(3, timeout=timedelta(seconds=21))[0], 21.0),
        (dist.new_subgroups_by_enumeration(pairs, timeout=timedelta(seconds=22))[0], 22.0),
        (dist.new_group(pg_options=pccl_torch.Options(deadline=0.3)), 0.3),
    ]
    for group, seconds in made:
        assert group.comm.deadline == seconds
        group.set_timeout(timedelta(seconds=23))
        assert group.comm.deadline == 23
    dist.group.WORLD.set_timeout(timedelta(seconds=GROUP_SECONDS))
    for group, _ in made[1:]:
        dist.destroy_process_group(group)
    # As for TP beside DP, and for HSDP. A row of all is the default group.
    mesh: Any = init_device_mesh("cpu", (1, rank.size), mesh_dim_names=("replicate", "shard"))
    assert mesh.get_group("replicate").comm.deadline == usual
    assert mesh.get_group("shard").comm.deadline == GROUP_SECONDS
    dist.destroy_process_group(mesh.get_group("replicate"))
    dist.barrier()


def a_call_that_takes_long(rank: Rank) -> None:
    """Longer than members wait at first, before they ask who of a new group is lost."""
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=GROUP_SECONDS))
    dist.barrier(group=group)
    x = torch.ones(1)
    if rank.rank == 1:
        for waits in (0, 2):
            dist.recv(torch.empty(1), waits)
        dist.all_reduce(x, group=group)
    else:
        work = dist.all_reduce(x, group=group, async_op=True)
        with pytest.raises(TimeoutError):
            work.wait(timedelta(seconds=1.2 * founding._ASK_SECONDS_MIN))
        dist.send(torch.ones(1), 1)
        work.wait()
    assert x.item() == 3
    dist.destroy_process_group(group)


def first_calls_that_time_out(rank: Rank) -> None:
    """The first call in a group has the deadline of any other, and an error that says as much."""
    group = dist.new_group()
    if rank.rank == 0:
        late = pytest.raises(pccl.DeadlineExceeded, match="timed out")
        with late as caught:
            dist.barrier(group=group, timeout=timedelta(seconds=2))
        text = str(caught.value)
        assert text.startswith("barrier, the first call in group") and "admit" not in text
        assert "the timeout of 2 s passed, waiting for rank 1 (" in text and "rank 2 (" in text
        group.set_timeout(timedelta(milliseconds=400))
        with late as caught:
            dist.all_gather([torch.ones(1)] * rank.size, torch.ones(1), group=group)
        assert str(caught.value).startswith("all_gather, the first call in group")
        group.set_timeout(timedelta(seconds=GROUP_SECONDS))
    dist.barrier()
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    assert x.item() == 3
    if rank.rank == 0:
        with pytest.raises(TOO_LATE, match="timed out.*rank 1"):
            dist.barrier(group=group, timeout=timedelta(milliseconds=200))
    dist.barrier()
    # The others do not ask for it yet.
    if rank.rank == 0:
        with late as caught:
            founding.found(
                dist.group.WORLD.comm,
                dist.group.WORLD.token,
                "nobody else",
                dist.group.WORLD.peers,
                1.0,
            )
        assert "waiting for rank 1 (" in str(caught.value) and "new_group" in str(caught.value)
    dist.barrier()
    dist.destroy_process_group(group)


def _resources() -> tuple[int, int, int]:
    """Descriptors, threads, and resident memory in KiB."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(os.listdir("/proc/self/fd")), threading.active_count(), resident


def sixty_four_groups(rank: Rank) -> list[int]:
    """Made and dropped: descriptors, threads and memory stay as they were."""

    def make_and_drop(times: int) -> None:
        for n in range(times):
            ranks = [[0, 1, 2], [0, 1], [2, 0], [1, 2]][n % 4]
            group = dist.new_group(ranks)
            if rank.rank in ranks:
                x = torch.ones(2)
                dist.all_reduce(x, group=group)
                assert x[0].item() == len(ranks)
                dist.destroy_process_group(group)
        dist.barrier()

    make_and_drop(16)
    before = _resources()
    make_and_drop(64)
    after = _resources()
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)
    assert after[2] - before[2] < 4096, (before, after)
    return [late - early for late, early in zip(after, before, strict=True)]


def ten_thousand_works(rank: Rank) -> list[int]:
    """Waited for, dropped, and asked for their future: nothing of them stays."""

    def call(times: int) -> None:
        for _ in range(times // 50):
            tensors = [torch.ones(16) for _ in range(50)]
            works = [dist.all_reduce(x, async_op=True) for x in tensors]
            futures = [work.get_future() for work in works[1::3]]
            for work in works[::3]:
                work.wait()
            del work, works
            for future in futures:
                future.wait()
        dist.barrier()

    call(1000)
    before = _resources()
    call(10_000)
    after = _resources()
    assert after[0] <= before[0] and after[1] <= before[1] + 1, (before, after)
    assert after[2] - before[2] < 4096, (before, after)
    return [late - early for late, early in zip(after, before, strict=True)]


# ---- ends


def destroyed_with_works_in_flight(rank: Rank) -> None:
    """Works that others never call end with an error, their futures too; twice is once."""
    dist.barrier()
    world = dist.group.WORLD
    works = []
    if rank.rank != 1:
        works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(3)]
        works.append(dist.irecv(torch.ones(1), 1))
    futures = [work.get_future() for work in works]
    # Rank 0 has the coordinator with it: it stays until the others have left.
    dist.destroy_process_group()
    for work, future in zip(works, futures, strict=True):
        with pytest.raises((pccl.PcclError, dist.DistBackendError)):
            work.wait()
        with pytest.raises(RuntimeError):
            future.wait()
    world.shutdown()
    world.abort()
    with pytest.raises(RuntimeError):
        world.barrier()


def aborted_twice(rank: Rank) -> None:
    """abort and shutdown of a group, in any order, by some of its members first."""
    group = dist.new_group()
    dist.barrier(group=group)
    if rank.rank == 1:
        group.abort()
        group.abort()
        group.shutdown()
    else:
        # Rank 1, or the other one of these two, if that has heard of it and left, too.
        with pytest.raises(pccl_torch.PeerLost, match=f"rank [1{2 - rank.rank}]"):
            dist.all_reduce(torch.ones(1), group=group)
        group.shutdown()
        group.abort()
    with pytest.raises(pccl.PcclError):
        dist.barrier(group=group)
    dist.destroy_process_group(group)
    dist.barrier()


class _Squares(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index * index)])


def workers_that_are_forked(rank: Rank) -> None:
    """DataLoader's workers are forks of a process in a run: both go on, and the workers end."""
    loader = torch.utils.data.DataLoader(
        _Squares(), batch_size=3, num_workers=2, multiprocessing_context="fork"
    )
    pending = dist.all_reduce(torch.ones(4), async_op=True)
    total = torch.zeros(1)
    for batch in loader:
        total += batch.sum()
        dist.all_reduce(batch)
    pending.wait()
    dist.all_reduce(total)
    assert total.item() == 3 * sum(n * n for n in range(12))


def names(rank: Rank) -> None:
    """All names that PyTorch asks a group for, in 2.13 and before."""
    group = dist.new_group(group_desc="for names")
    world = dist.group.WORLD
    assert dist.get_backend() == "pccl" and dist.get_backend(group) == "pccl"
    assert world.name() == world.getBackendName() == "pccl"
    assert group.pg_name == group.group_name == c10d._get_process_group_name(group)
    assert group.group_desc == "for names" and group.bound_device_id is None
    assert c10d._resolve_process_group(group.group_name) is group
    size, x = rank.size, torch.full((2,), float(rank.rank))
    for name in ("_allgather_base", "all_gather_single"):
        out = torch.empty(2 * size)
        getattr(group, name)(out, x).wait()
        assert out.tolist() == [0, 0, 1, 1, 2, 2], name
    for name in ("_reduce_scatter_base", "reduce_scatter_single"):
        out = torch.empty(1)
        getattr(group, name)(out, torch.arange(float(size)), dist.ReduceScatterOptions()).wait()
        assert out.item() == 3 * rank.rank, name
    for name in ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"):
        outs = [torch.empty(2 * size), torch.empty(2 * size)]
        getattr(group, name)(outs, [x, x + 1]).wait()
        assert outs[1].tolist() == [1, 1, 2, 2, 3, 3], name
    for name in ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"):
        outs = [torch.empty(1), torch.empty(2)]
        xs = [torch.arange(float(size)), torch.ones(2 * size)]
        getattr(group, name)(outs, xs, dist.ReduceScatterOptions()).wait()
        assert outs[0].item() == 3 * rank.rank and outs[1].tolist() == [3, 3], name
    for name in ("alltoall_base", "all_to_all_single"):
        out = torch.empty(size)
        getattr(group, name)(out, torch.arange(float(size)), [], []).wait()
        assert out.tolist() == [rank.rank] * size, name
    outs = [torch.empty(2 * size)]
    with pytest.warns(FutureWarning):
        dist.all_gather_into_tensor(outs[0], x, group=group)
    with pytest.warns(FutureWarning):
        dist.reduce_scatter_tensor(torch.empty(1), torch.ones(size), group=group)
    dist.destroy_process_group(group)


def nine_groups_at_once(rank: Rank) -> str:
    """A peer is in eight groups at most: the ninth says so."""
    made = [dist.new_group() for _ in range(7)]
    for group in made:
        dist.barrier(group=group)
    with pytest.raises(pccl.PcclError) as caught:
        dist.barrier(group=dist.new_group())
    for group in made:
        dist.destroy_process_group(group)
    dist.barrier()
    return str(caught.value)


def begins_again_with_the_same_store(rank: Rank) -> None:
    """A run that is over has left its token in the store, which is not the next one's."""
    world = {"rank": rank.rank, "world_size": rank.size}
    port = int(os.environ["MASTER_PORT"])
    dist.barrier()
    dist.destroy_process_group()
    store = dist.PrefixStore("again", dist.TCPStore(os.environ["MASTER_ADDR"], port))
    for _ in range(3):
        dist.init_process_group("pccl", store=store, **world)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 3
        dist.destroy_process_group()
