"""The collectives with gradients, as torch.distributed.nn.functional has them.

    y = pccl_torch.nn.all_gather(comm, x)    # backward: a reduce_scatter of the gradients

The gradient of `x` is the gradient of the sum of all members' losses. Each collective here is
linear, and its backward is another collective of this file, so second gradients work as well. A
call and its backward have the same tag, deadline, recovery, codec and plan; if a member is lost in
a backward, the call's recovery applies. If a safe point begins another epoch between a call and its
backward, the backward raises InvalidUsage and sends nothing, as ranks may belong to other members.

In a backward all members must make the same calls in the same order; each member's graph orders its
calls. So the result requires grad on all members (while grad mode is on), even where `x` does not,
and all members must use the result in their losses. `loss.backward()` then runs every collective
that the loss goes through. `torch.autograd.grad(loss, inputs)` and `loss.backward(inputs=...)` may
skip a collective: a member skips its backward if its `x` does not depend on the `inputs`. If one
member skips a backward and others do not, the others wait until their deadline, or meet the
member's next call: a different call is a Mismatch, and a call of the same kind and size is taken
for the skipped call. So use these two only if `x` depends on `inputs` on all members or on none.
Errors of a backward that may come from a skipped call say so.

Results are new tensors. Every member has a result, so that its backward can be run; a member that
receives nothing has zeros. Shapes, dtypes and errors are otherwise those of functions.py; the
options `async_op` and `return_outcome` are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from pccl_py import (
    Aborted,
    DeadlineExceeded,
    Group,
    InvalidArgument,
    InvalidUsage,
    Mismatch,
    ReduceOp,
)
from pccl_py.call import BroadcastOptions, MoveOptions, ReduceOptions, check
from pccl_py.collectives import Root
from pccl_py.rows import Counts, Rows
from pccl_py.words import parse_op
from pccl_torch import functions
from pccl_torch.errors import is_whole
from pccl_torch.tensors import TORCH, check_no_tangent

_LEFT_OUT = (
    "This is the backward of a pccl_torch.nn call. torch.autograd.grad and backward(inputs=...) "
    "leave it out on a member where its x does not lead to the inputs, perhaps on one of the "
    "others: call loss.backward() on all members, or name inputs that all x lead to, or none"
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


def all_reduce(comm: Group, x: Tensor, **options: Unpack[ReduceOptions]) -> Tensor:
    """The sum, or the average, of all members' `x`. Backward: the same `op` of the gradients.

    Raises InvalidArgument for another `op`: only sum and avg are linear.
    """
    _check("all_reduce", options, ReduceOptions)
    op = options.get("op", ReduceOp.SUM)
    if parse_op(op) not in (ReduceOp.SUM, ReduceOp.AVG):
        raise InvalidArgument(f"op {op!r} has no gradient here: sum and avg have")
    return _linear(
        comm,
        x,
        lambda: functions.all_reduce(comm, x, **options),
        lambda grad: all_reduce(comm, grad, **options),
    )


def broadcast(
    comm: Group, x: Tensor, root: Root = 0, **options: Unpack[BroadcastOptions]
) -> Tensor:
    """`x` of `root` on every member. Backward: a reduce of the gradients to the root.

    `x` has the same shape and dtype on every member; its gradient is zero except on the root.
    """
    _check("broadcast", options, BroadcastOptions)
    return _linear(
        comm,
        x,
        lambda: functions.broadcast(comm, x, root, **options),
        lambda grad: reduce(comm, grad, root, **options),
    )


def reduce(comm: Group, x: Tensor, root: Root = 0, **options: Unpack[BroadcastOptions]) -> Tensor:
    """The sum of `x` of all members on `root`, and zeros elsewhere.

    Backward: a broadcast of the root's gradient; gradients of the zeros are ignored.
    """
    _check("reduce", options, BroadcastOptions)

    def run() -> Tensor:
        made = functions.reduce(comm, x, None, root, **options)
        return _zeros(x.shape, x) if made is None else made

    return _linear(comm, x, run, lambda grad: broadcast(comm, grad, root, **options))


def all_gather(
    comm: Group, x: Tensor, counts: Counts = None, **options: Unpack[MoveOptions]
) -> Tensor:
    """`x` of all members along dimension 0, in rank order, on each member.

    Backward: a reduce_scatter of the gradients. `x` has at least one dimension.
    """
    _check("all_gather", options, MoveOptions)
    return _linear(
        comm,
        x,
        lambda: functions.all_gather(comm, x, None, counts, **options),
        lambda grad: reduce_scatter(comm, grad, counts, **options).view(x.shape),
    )


def reduce_scatter(
    comm: Group, x: Tensor, counts: Counts = None, **options: Unpack[MoveOptions]
) -> Tensor:
    """This rank's rows of the sum of `x` of all members. Backward: an all_gather of gradients."""
    _check("reduce_scatter", options, MoveOptions)
    return _linear(
        comm,
        x,
        lambda: functions.reduce_scatter(comm, x, None, counts, **options),
        lambda grad: all_gather(comm, grad, counts, **options),
    )


def gather(
    comm: Group, x: Tensor, root: Root = 0, counts: Counts = None, **options: Unpack[MoveOptions]
) -> Tensor:
    """`x` of all members along dimension 0 on `root`, and zeros of that shape elsewhere.

    Backward: a scatter of the root's gradient; gradients of the zeros are ignored.
    """
    _check("gather", options, MoveOptions)

    def run() -> Tensor:
        made = functions.gather(comm, x, None, root, counts, **options)
        if made is not None:
            return made
        rows = Rows.of_part(comm, tuple(x.shape) or (1,), counts)
        return _zeros((rows.whole, *rows.tail), x)

    return _linear(
        comm, x, run, lambda grad: scatter(comm, grad, root, counts, **options).view(x.shape)
    )


def scatter(
    comm: Group, x: Tensor, root: Root = 0, counts: Counts = None, **options: Unpack[MoveOptions]
) -> Tensor:
    """This rank's rows of `x` of `root`. Backward: a gather of the gradients on the root.

    Unlike in pccl_torch.scatter, every member passes an `x` of the same shape and dtype, which are
    those of its gradient. Only the root's values are sent; elsewhere the gradient of `x` is zero.
    """
    _check("scatter", options, MoveOptions)

    def run() -> Tensor:
        rows = Rows.of_whole(comm, tuple(x.shape), counts)
        out = torch.empty((rows.own, *rows.tail), dtype=x.dtype, device="cpu")
        is_root = comm._rank_of(root) == comm.rank
        return functions.scatter(comm, x if is_root else None, out, root, counts, **options)

    return _linear(comm, x, run, lambda grad: gather(comm, grad, root, counts, **options))


def all_to_all(
    comm: Group,
    x: Tensor,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **options: Unpack[MoveOptions],
) -> Tensor:
    """This rank's rows of each member's `x`, in rank order. Backward: an all_to_all back."""
    _check("all_to_all", options, MoveOptions)
    return _linear(
        comm,
        x,
        lambda: functions.all_to_all(comm, x, None, send_counts, recv_counts, **options),
        lambda grad: all_to_all(comm, grad, recv_counts, send_counts, **options),
    )


class _Linear(torch.autograd.Function):
    """A linear function `run` of x, and its transpose `back`, which maps gradients to x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        everywhere: Tensor,
        comm: Group,
        run: Callable[[], Tensor],
        back: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.comm, ctx.epoch, ctx.back = comm, comm.epoch, back
        return run()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.comm.epoch != ctx.epoch:
            raise InvalidUsage(
                f"this backward is of a call in epoch {ctx.epoch} of group {ctx.comm.name!r}, "
                f"which is in epoch {ctx.comm.epoch} now: its ranks may be those of other members. "
                "Repeat the forward, and call admit before a forward or after its backward"
            )
        # Even if x needs no gradient: the other members wait for this call.
        try:
            made = ctx.back(_dense(grads[0]))
        except (Aborted, DeadlineExceeded, Mismatch) as error:
            if is_whole(ctx.comm) and _LEFT_OUT not in str(error):
                error.args = (f"{error}. {_LEFT_OUT}",)
            raise
        return made, None, None, None, None


def _linear(
    comm: Group, x: Tensor, run: Callable[[], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    TORCH.check_comm(comm)
    if isinstance(x, Tensor):
        check_no_tangent(x)  # here, as a Function does not see the tangent
    # An input that requires grad makes the result require grad, even if `x` does not.
    everywhere = torch.empty(0, device="cpu", requires_grad=True)
    made: Tensor = _Linear.apply(x, everywhere, comm, run, back)  # type: ignore[no-untyped-call]
    return made


def _dense(grad: Tensor) -> Tensor:
    """The gradient as a dense tensor: PyTorch's gradients may be sparse or lazy views."""
    if grad.layout != torch.strided:
        grad = grad.to_dense()
    return grad.resolve_conj().resolve_neg()


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=like.dtype, device="cpu")


def _check(name: str, options: Any, kind: type) -> None:
    """Checks options in the forward, so that the backward does not refuse one of them."""
    for flag in ("async_op", "return_outcome"):
        if flag in options:
            raise TypeError(f"nn.{name}() has no option {flag!r}: its result is a tensor")
    check(f"nn.{name}", options, kind)
