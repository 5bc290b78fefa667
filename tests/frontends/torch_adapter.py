"""pccl_torch as the conformance suite calls it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pccl_torch as pt
import torch
from adapter import Adapter, Shape

import pccl_py as pccl

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    **{f"i{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
}
MOVING_DTYPES = {
    "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
ALL_DTYPES = {**DTYPES, **MOVING_DTYPES}

# The peers are threads here; threads of PyTorch for each of them are more than there are cores.
torch.set_num_threads(1)


class TorchAdapter(Adapter):
    """PyTorch, with tensors of the CPU."""

    name = "torch"
    dtypes = tuple(DTYPES)
    moving_dtypes = tuple(MOVING_DTYPES)
    in_place = frozenset(["all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"])
    with_out = frozenset(
        ["all_reduce", "reduce", "reduce_scatter", "all_gather", "scatter", "gather", "all_to_all"]
    )

    def make(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        made = torch.tensor(values, dtype=torch.float64).reshape(shape)
        return made.to(ALL_DTYPES[dtype])

    def strided(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        # Every second element of the last dimension of a larger tensor; there is no backwards.
        if not shape:
            return self.make(values, shape, dtype)
        wide = torch.full((*shape[:-1], 2 * shape[-1]), 9.0, dtype=torch.float64)
        chosen = wide.to(ALL_DTYPES[dtype])[..., ::2]
        chosen.copy_(self.make(values, shape, dtype))
        return chosen

    def frozen(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        return None  # no tensor is read-only

    def unsupported(self, count: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is experimental, PyTorch says
            return torch.zeros(count, dtype=torch.complex32)

    def read(self, array: Any) -> list[float]:
        if array.dtype == torch.complex32:
            array = array.to(torch.complex64)
        numbers: list[float] = array.flatten().tolist()
        return numbers

    def shape(self, array: Any) -> Shape:
        return tuple(array.shape)

    def dtype(self, array: Any) -> str:
        return next(name for name, dtype in ALL_DTYPES.items() if array.dtype == dtype)

    def is_same_memory(self, x: Any, y: Any) -> bool:
        same = x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype
        return bool(same and x.data_ptr() == y.data_ptr())

    def call(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        if collective == "broadcast":
            return pt.broadcast(comm, x, **options)
        return getattr(pt, collective)(comm, x, out, **options)

    def call_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        return getattr(pt, collective + "_")(comm, x, **options)

    def call_tree(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        given = (x, out) if collective == "scatter" else (x,)
        return getattr(pt.tree, collective)(comm, *given, **options)

    def call_tree_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        return getattr(pt.tree, collective + "_")(comm, x, **options)

    def send(self, comm: pccl.Group, x: Any, dst: int, **options: Any) -> Any:
        return pt.send(comm, x, dst, **options)

    def recv(self, comm: pccl.Group, shape: Shape, dtype: str, src: int, **options: Any) -> Any:
        return pt.recv(comm, shape, ALL_DTYPES[dtype], src, **options)
