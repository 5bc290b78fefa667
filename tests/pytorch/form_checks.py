"""The forms of collectives that the bindings of PyTorch accept, read from their docstrings.

test_torch_forms.py has a test for each form: `call` makes the call on three ranks of ours, with the
least arguments, with all by position, and with all by name, and compares the values with a model.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed
from rank_program import Rank
from torch import Tensor
from torch._C import _distributed_c10d
from torch.testing import assert_close

# Their types are those of C++.
dist: Any = torch.distributed
native: Any = _distributed_c10d

ROOT = 1
SECONDS = timedelta(seconds=20)
_RETURNS_WORK = re.compile(r"(\w+)\(self: [\w.]+, (.*)\) -> c10d::Work$")
_PARAMETER = re.compile(r"(\w+): (.*?)(?: = (.*))?$")
# Not collectives: what a program calls between two of them, and a receive that ours refuse.
OTHERS = ("_end_coalescing", "recv_anysource")


def forms() -> list[str]:
    """Each form: the class, the method, and `name: type`, with "?" where it may be left out."""
    found: dict[str, None] = {}
    for kind in (native.ProcessGroup, native.Backend):
        for name in dir(kind):
            for line in str(getattr(kind, name).__doc__).splitlines():
                match = _RETURNS_WORK.match(re.sub(r"^\d+\. ", "", line))
                if match is not None and name not in OTHERS:
                    found[f"{kind.__name__}.{name}({_parameters(match[2])})"] = None
    return list(found)


def _parameters(told: str) -> str:
    # A default may be an object, with commas in what it shows.
    told = re.sub(r"<[^>]*object at[^>]*>|<RedOp[^>]*>|datetime\.timedelta\([^)]*\)", "?", told)
    parameters = []
    for word in re.split(r", (?=\w+: )", told):
        match = _PARAMETER.match(word)
        assert match is not None, word
        name, kind, default = match.groups()
        kind = kind.replace("collections.abc.Sequence", "").replace("torch.Tensor", "Tensor")
        kind = kind.replace("typing.SupportsInt | typing.SupportsIndex", "int")
        kind = kind.replace("torch._C._distributed_c10d.", "").replace("datetime.", "")
        parameters.append(f"{name}: {kind.removesuffix(' | None')}{'' if default is None else '?'}")
    return ", ".join(parameters)


def call(rank: Rank, form: str) -> None:
    """Calls a form in all ways that it has, and compares the values."""
    method, _, told = form.partition(".")[2].removesuffix(")").partition("(")
    parameters = []
    for word in told.split(", "):
        name, _, kind = word.partition(": ")
        parameters.append((name, kind.removesuffix("?"), kind.endswith("?")))
    for way in ("least", "by place", "by name"):
        asked = [one for one in parameters if not (way == "least" and one[2])]
        names = [name for name, _, _ in asked]
        is_given = {kind for _, kind, _ in asked}
        has_options = any(kind.endswith("Options") for kind in is_given)
        root = ROOT if has_options or "root" in names else 0
        reduce = _greatest if has_options or "ReduceOp" in is_given else _sum
        if method == "allreduce_coalesced" and not has_options:
            reduce = _sum
        tensors, wanted = _case(method, rank.rank, rank.size, root, reduce)
        left = list(tensors)
        given = [_argument(name, kind, left, rank) for name, kind, _ in asked]
        function = getattr(dist.group.WORLD, method)
        if method == "send":
            out = torch.empty(3)
            later = dist.irecv(out, (rank.rank - 1) % rank.size)
            tensors = [[out]]
        if method == "recv":
            dist.isend(_x(rank.rank), (rank.rank + 1) % rank.size)
        if way == "by name":
            work = function(**dict(zip(names, given, strict=True)))
        else:
            work = function(*given)
        assert work.wait() is True
        if method == "send":
            later.wait()
        if wanted is not None:
            assert_close(tensors[0], wanted, rtol=0, atol=0, msg=f"{form}, {way}")


def _argument(name: str, kind: str, tensors: list[Any], rank: Rank) -> Any:
    """The value of one parameter; tensors are taken from the front of a list."""
    if kind.endswith("Tensor") or "Tensor]" in kind:
        tensor, depth = tensors.pop(0), kind.count("[")
        while _depth(tensor) > depth:
            tensor = tensor[0] if tensor else []
            if tensor == []:
                break
        return tensor
    if kind.endswith("Options"):
        options = getattr(native, kind)()
        for attribute, value in (("reduceOp", dist.ReduceOp.MAX), ("rootRank", ROOT)):
            if hasattr(options, attribute):
                setattr(options, attribute, value)
        return options
    simple = {
        "root": ROOT,
        "op": dist.ReduceOp.MAX,
        "timeout": SECONDS,
        "dstRank": (rank.rank + 1) % rank.size,
        "srcRank": (rank.rank - 1) % rank.size,
        "tag": 0,
        "output_split_sizes": [2] * rank.size,
        "input_split_sizes": [2] * rank.size,
    }
    return simple[name]


def _depth(given: Any) -> int:
    """Lists around a tensor. An empty list is what a rank gives that is not the root."""
    return 0 if isinstance(given, Tensor) else 1 + (_depth(given[0]) if given else 1)


# ---- the model


def _x(rank: int) -> Tensor:
    return torch.arange(3.0) + 10 * rank


def _part(rank: int, to: int) -> Tensor:
    return torch.arange(2.0) + 10 * rank + 100 * to


def _parts(rank: int, size: int) -> list[Tensor]:
    return [_part(rank, to) for to in range(size)]


def _sum(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0)


def _greatest(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).amax(0)


def _case(
    method: str, rank: int, size: int, root: int, reduce: Callable[[list[Tensor]], Tensor]
) -> tuple[list[Any], Any]:
    """The tensors of the form with options, and what the first argument is in the end, if known."""
    outs: list[Any]
    x, every = _x(rank), [_x(r) for r in range(size)]
    mine = [_part(r, rank) for r in range(size)]
    if method in ("allreduce", "allreduce_coalesced"):
        return [[x]], [reduce(every)]
    if method == "reduce":
        return [[x]], [reduce(every)] if rank == root else None
    if method == "broadcast":
        return [[x]], [every[root]]
    if method == "allgather":
        return [[[torch.empty(3) for _ in every]], [x]], [every]
    if method == "allgather_coalesced":
        outs = [[torch.empty(3), torch.empty(3)] for _ in every]
        return [outs, [x, x + 1]], [[y, y + 1] for y in every]
    if method in ("all_gather_single", "_allgather_base"):
        return [torch.empty(3 * size), x], torch.cat(every)
    if method in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [torch.empty(3 * size), torch.empty(3 * size)]
        return [outs, [x, x + 1]], [torch.cat(every), torch.cat(every) + 1]
    if method == "gather":
        outs = [[torch.empty(3) for _ in every]] if rank == root else []
        return [outs, [x]], [every] if rank == root else []
    if method == "scatter":
        return [[torch.empty(2)], [_parts(rank, size)] if rank == root else []], [mine[root]]
    if method == "reduce_scatter":
        return [[torch.empty(2)], [_parts(rank, size)]], [reduce(mine)]
    if method in ("reduce_scatter_single", "_reduce_scatter_base"):
        return [torch.empty(2), torch.cat(_parts(rank, size))], reduce(mine)
    if method in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        whole = torch.cat(_parts(rank, size))
        outs = [torch.empty(2), torch.empty(2)]
        return [outs, [whole, whole + 1]], [reduce(mine), reduce([part + 1 for part in mine])]
    if method == "alltoall":
        return [[torch.empty(2) for _ in every], _parts(rank, size)], mine
    if method in ("alltoall_base", "all_to_all_single"):
        return [torch.empty(2 * size), torch.cat(_parts(rank, size))], torch.cat(mine)
    if method == "send":
        return [[x]], [every[(rank - 1) % size]]
    if method == "recv":
        return [[torch.empty(3)]], [every[(rank - 1) % size]]
    assert method == "barrier", method
    return [], None


def refusals(rank: Rank) -> None:
    """A call that fits no form raises TypeError, and nothing is sent."""
    group, x = dist.group.WORLD, torch.ones(3)
    for method in sorted({form.partition(".")[2].partition("(")[0] for form in forms()}):
        tensors, _ = _case(method, rank.rank, rank.size, 0, _sum)
        function = functools.partial(getattr(group, method), *tensors)
        _refused(lambda f=function: f(surprise=1), method)  # type: ignore[misc]
        _refused(lambda f=function: f(object()), method)  # type: ignore[misc]
        _refused(lambda f=function: f(*[None] * 9), method)  # type: ignore[misc]
    for call in (
        lambda: group.allreduce([x], root=1),
        lambda: group.broadcast([x], root=1),
        lambda: group.broadcast(x),
        lambda: group.allreduce(x, dist.BroadcastOptions()),
        lambda: group.allreduce([x], tensors=[x]),
        lambda: group.send(x, 1, 0),
        lambda: group.recv(x, 1, 0),
        lambda: group.barrier(3),
    ):
        _refused(call, "no form of this collective")
    second = dist.BroadcastOptions()
    second.rootTensor = 1
    for call in (
        lambda: group.allreduce([x, x]),
        lambda: group.reduce([x, x], dist.ReduceOptions()),
        lambda: group.broadcast([x, x]),
        lambda: group.broadcast([x], second),
    ):
        with pytest.raises(ValueError, match="one tensor"):
            call()
    dist.all_reduce(x)
    assert x.tolist() == [3, 3, 3]


def _refused(call: Callable[[], Any], word: str) -> None:
    with pytest.raises(TypeError, match=word):
        call()
