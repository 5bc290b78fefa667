"""Random collectives on three groups, against a model in plain Python.

All ranks draw the same steps from a seed. The values are small whole numbers, so that every dtype
has them exactly, and each rank can say what each other one gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed
from rank_program import Rank
from torch import Tensor

# Its types are those of C++.
dist: Any = torch.distributed

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
OPS: dict[str, tuple[Any, Callable[[Sequence[int]], int]]] = {
    "sum": (dist.ReduceOp.SUM, sum),
    "min": (dist.ReduceOp.MIN, min),
    "max": (dist.ReduceOp.MAX, max),
}
Values = list[int]


class Step:
    """One collective of one group, drawn by all ranks alike."""

    def __init__(self, seed: int, number: int, members: Sequence[int], rank: int) -> None:
        self.draw = random.Random(f"{seed}/{number}")
        self.seed, self.number, self.members = seed, number, members
        self.own = members.index(rank) if rank in members else -1
        self.size = len(members)
        self.count = self.draw.choice((0, 1, 3, 17, 1000))
        self.root = self.draw.randrange(self.size)
        self.dtype = self.draw.choice(DTYPES)
        self.strided = self.draw.random() < 0.3
        self.op, self.reduce = OPS[self.draw.choice(sorted(OPS))]

    def given(self, member: int, count: int, part: int = 0) -> Values:
        """The contribution of a member."""
        values = random.Random(f"{self.seed}/{self.number}/{member}/{part}")
        return [values.randrange(30) for _ in range(count)]

    def tensor(self, values: Sequence[int]) -> Tensor:
        """Values as a tensor, of every second element of another one if the step is strided."""
        packed = torch.tensor(list(values), dtype=self.dtype)
        if not self.strided:
            return packed
        wide = torch.zeros(2 * packed.numel(), dtype=self.dtype)
        wide[::2] = packed
        return wide[::2]

    def empty(self, count: int) -> Tensor:
        """Where a result goes."""
        return self.tensor([99] * count)

    def combined(self, lists: Sequence[Values]) -> Values:
        """The reduction of lists, element by element."""
        return [self.reduce(values) for values in zip(*lists, strict=True)]


Call = tuple[Any, Callable[[], None]]


def _expect(result: Tensor, values: Sequence[int]) -> Callable[[], None]:
    def check() -> None:
        assert result.tolist() == list(values), (result, values)

    return check


def _all_reduce(step: Step, group: Any) -> Call:
    x = step.tensor(step.given(step.own, step.count))
    work = dist.all_reduce(x, op=step.op, group=group, async_op=True)
    return work, _expect(x, step.combined([step.given(m, step.count) for m in range(step.size)]))


def _reduce(step: Step, group: Any) -> Call:
    x = step.tensor(step.given(step.own, step.count))
    dst = step.members[step.root]
    work = dist.reduce(x, dst, op=step.op, group=group, async_op=True)
    if step.own != step.root:
        return work, lambda: None
    return work, _expect(x, step.combined([step.given(m, step.count) for m in range(step.size)]))


def _broadcast(step: Step, group: Any) -> Call:
    x = step.tensor(step.given(step.own, step.count))
    work = dist.broadcast(x, step.members[step.root], group=group, async_op=True)
    return work, _expect(x, step.given(step.root, step.count))


def _all_gather(step: Step, group: Any) -> Call:
    counts = [step.draw.randrange(step.count + 1) for _ in range(step.size)]
    into = [step.empty(count) for count in counts]
    own = step.tensor(step.given(step.own, counts[step.own]))
    work = dist.all_gather(into, own, group=group, async_op=True)

    def check() -> None:
        assert [x.tolist() for x in into] == [step.given(m, n) for m, n in enumerate(counts)]

    return work, check


def _all_gather_single(step: Step, group: Any) -> Call:
    out = step.empty(step.count * step.size)
    own = step.tensor(step.given(step.own, step.count))
    work = dist.all_gather_single(out, own, group=group, async_op=True)
    every = [step.given(m, step.count) for m in range(step.size)]
    return work, _expect(out, [*chain(*every)])


def _reduce_scatter(step: Step, group: Any) -> Call:
    out = step.empty(step.count)
    whole = step.tensor(step.given(step.own, step.count * step.size))
    work = dist.reduce_scatter_single(out, whole, op=step.op, group=group, async_op=True)
    total = step.combined([step.given(m, step.count * step.size) for m in range(step.size)])
    return work, _expect(out, total[step.own * step.count :][: step.count])


def _all_to_all(step: Step, group: Any) -> Call:
    table = [[step.draw.randrange(5) for _ in range(step.size)] for _ in range(step.size)]
    gives, takes = table[step.own], [row[step.own] for row in table]
    pieces = [step.given(step.own, n, part=to) for to, n in enumerate(gives)]
    out = step.empty(sum(takes))
    whole = step.tensor([*chain(*pieces)])
    work = dist.all_to_all_single(out, whole, takes, gives, group=group, async_op=True)
    got = [step.given(m, n, part=step.own) for m, n in enumerate(takes)]
    return work, _expect(out, [*chain(*got)])


def _gather(step: Step, group: Any) -> Call:
    is_root = step.own == step.root
    into = [step.empty(step.count) for _ in range(step.size)] if is_root else None
    own = step.tensor(step.given(step.own, step.count))
    work = dist.gather(own, into, step.members[step.root], group=group, async_op=True)

    def check() -> None:
        for member, x in enumerate(into or ()):
            assert x.tolist() == step.given(member, step.count)

    return work, check


def _scatter(step: Step, group: Any) -> Call:
    dealt = None
    if step.own == step.root:
        parts = range(step.size)
        dealt = [step.tensor(step.given(step.root, step.count, part=to)) for to in parts]
    out = step.empty(step.count)
    work = dist.scatter(out, dealt, step.members[step.root], group=group, async_op=True)
    return work, _expect(out, step.given(step.root, step.count, part=step.own))


def _ring(step: Step, group: Any) -> Call:
    right, left = (step.own + 1) % step.size, (step.own - 1) % step.size
    out = step.empty(step.count)
    tag = step.draw.randrange(3)
    sent = step.tensor(step.given(step.own, step.count))
    sending = dist.isend(sent, step.members[right], group=group, tag=tag)
    work = dist.irecv(out, step.members[left], group=group, tag=tag)
    expect = _expect(out, step.given(left, step.count))

    def check() -> None:
        sending.wait()
        expect()

    return work, check


CALLS = (
    _all_reduce,
    _reduce,
    _broadcast,
    _all_gather,
    _all_gather_single,
    _reduce_scatter,
    _all_to_all,
    _gather,
    _scatter,
    _ring,
)
IN_FLIGHT_MAX = 8


def steps(rank: Rank, seed: int, count: int) -> None:
    """Some steps, up to eight in flight: on the world, on two of it, on all in another order."""
    lists = [[0, 1, 2], [0, 2], [1, 2, 0]]
    groups = [dist.group.WORLD, dist.new_group([0, 2])]
    groups.append(dist.new_group([1, 2, 0], sort_ranks=False))
    chooser = random.Random(seed)
    pending: list[tuple[str, Any, Callable[[], None]]] = []

    def finish(leave: int) -> None:
        while len(pending) > leave:
            name, work, check = pending.pop(random.randrange(len(pending)))
            try:
                work.wait()
                check()
            except Exception as error:
                raise AssertionError(f"seed {seed}, {name}") from error

    for number in range(count):
        which, call = chooser.randrange(3), chooser.choice(CALLS)
        step = Step(seed, number, lists[which], rank.rank)
        if step.own >= 0:
            pending.append((f"step {number}, {call.__name__}", *call(step, groups[which])))
        finish(chooser.randrange(IN_FLIGHT_MAX))
    finish(0)
    dist.barrier()
    for group in groups[1:]:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
