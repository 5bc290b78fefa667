"""The collectives and messages over CPU tensors; tensors.py says which tensors they take.

The kit (pccl_py.kit) has the types, docstrings and code. A contiguous tensor is sent without a
copy. Other tensors are packed, and the thread that waits for a committed operation copies its
result back. At its begin a call raises the version of each tensor that it may write, so that a
backward that needs the old values raises an error. A tensor that requires grad is read as if it
were detached, and results require no grad: nn.py has the collectives with gradients. On an error
every input is as it was, in place too (docs/internals/PROMISE.md, P3); a separate `out` may hold
anything. After an InDoubt `work.resolve()` returns the result of the call.

Do not resize a tensor during an operation on it (`x.resize_`, or `resize_` of its storage): PyTorch
frees the old memory, and the operation goes on using it. `x.data = y` and dropping the tensor are
allowed, as the operation keeps the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, Unpack, overload

import torch
from torch import Tensor

from pccl_py import Group, Outcome, Work
from pccl_py.call import MessageOptions, documented
from pccl_py.collectives import Root
from pccl_py.kit import Functions, Single
from pccl_torch.tensors import TORCH, check_dtype

Shape: TypeAlias = Sequence[int]

_tensors: Functions[Single] = Functions(TORCH)
all_reduce = _tensors.all_reduce
all_reduce_ = _tensors.all_reduce_
all_reduce_many = _tensors.all_reduce_many
all_reduce_many_ = _tensors.all_reduce_many_
reduce = _tensors.reduce
reduce_ = _tensors.reduce_
broadcast = _tensors.broadcast
broadcast_ = _tensors.broadcast_
reduce_scatter = _tensors.reduce_scatter
reduce_scatter_ = _tensors.reduce_scatter_
all_gather = _tensors.all_gather
all_gather_ = _tensors.all_gather_
scatter = _tensors.scatter
gather = _tensors.gather
all_to_all = _tensors.all_to_all
barrier = _tensors.barrier
send = _tensors.send
recv_ = _tensors.recv_


@overload
def recv(
    comm: Group, shape: Shape, dtype: torch.dtype, src: Root, **_: Unpack[MessageOptions]
) -> Tensor: ...
@overload
def recv(
    comm: Group,
    shape: Shape,
    dtype: torch.dtype,
    src: Root,
    *,
    return_outcome: Literal[True],
    **_: Unpack[MessageOptions],
) -> tuple[Tensor, Outcome]: ...
@overload
def recv(
    comm: Group,
    shape: Shape,
    dtype: torch.dtype,
    src: Root,
    *,
    async_op: Literal[True],
    **_: Unpack[MessageOptions],
) -> Work[Tensor]: ...
@overload
def recv(
    comm: Group,
    shape: Shape,
    dtype: torch.dtype,
    src: Root,
    *,
    async_op: bool = ...,
    return_outcome: bool = ...,
    **_: Unpack[MessageOptions],
) -> Any: ...
@documented(MessageOptions, "async_op", "return_outcome")
def recv(comm: Group, shape: Shape, dtype: torch.dtype, src: Root, **options: Any) -> Any:
    """Receives the tensor that `src` sends, as a new tensor of this `shape` and `dtype`.

    Number and dtype of the elements must be those of the `x` that `src` sends, or both peers get
    `Mismatch`; the shapes may differ. Bool and floats of eight bits travel as u8, complex numbers
    as two floats each: a difference between dtypes that travel alike is not noticed.
    """
    check_dtype(dtype, adds=False)
    made = torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return _tensors.received(comm, made, src, options)
