"""pccl_numpy as the conformance suite calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
from adapter import Adapter, Shape

import pccl_py as pccl

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
MOVING_DTYPES: dict[str, Any] = {
    "bool": np.bool_,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    **{name: getattr(ml_dtypes, name) for name in ("int2", "uint2", "int4", "uint4")},
}
ALL_DTYPES = {**DTYPES, **MOVING_DTYPES}


class NumpyAdapter(Adapter):
    """NumPy, and bfloat16 of ml_dtypes."""

    name = "numpy"
    dtypes = tuple(DTYPES)
    moving_dtypes = tuple(MOVING_DTYPES)
    in_place = frozenset(["all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"])
    with_out = frozenset(
        ["all_reduce", "reduce", "reduce_scatter", "all_gather", "scatter", "gather", "all_to_all"]
    )

    def make(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        return np.array(values, ALL_DTYPES[dtype]).reshape(shape)

    def strided(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        # Every second element of the last dimension of a larger array, and backwards.
        if not shape:
            return self.make(values, shape, dtype)
        wide = np.full((*shape[:-1], 2 * shape[-1]), 9, ALL_DTYPES[dtype])
        chosen = wide[..., ::-2]
        chosen[...] = self.make(values, shape, dtype)
        return chosen

    def frozen(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        array = self.make(values, shape, dtype)
        array.flags.writeable = False
        return array

    def unsupported(self, count: int) -> Any:
        return np.zeros(count, np.complex64)

    def read(self, array: Any) -> list[float]:
        # As Python's numbers: those of ml_dtypes are none.
        foreign = array.dtype.kind == "V"
        exact = array.astype(np.float64) if foreign else array
        numbers: list[float] = exact.ravel().tolist()
        return numbers

    def shape(self, array: Any) -> Shape:
        shape: Shape = array.shape
        return shape

    def dtype(self, array: Any) -> str:
        return next(name for name, dtype in ALL_DTYPES.items() if array.dtype == np.dtype(dtype))

    def is_same_memory(self, x: Any, y: Any) -> bool:
        return bool(x.__array_interface__ == y.__array_interface__)

    def call(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        if collective == "broadcast":
            return pnp.broadcast(comm, x, **options)
        return getattr(pnp, collective)(comm, x, out, **options)

    def call_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        return getattr(pnp, collective + "_")(comm, x, **options)

    def call_tree(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        given = (x, out) if collective == "scatter" else (x,)
        return getattr(pnp.tree, collective)(comm, *given, **options)

    def call_tree_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        return getattr(pnp.tree, collective + "_")(comm, x, **options)

    def send(self, comm: pccl.Group, x: Any, dst: int, **options: Any) -> Any:
        return pnp.send(comm, x, dst, **options)

    def recv(self, comm: pccl.Group, shape: Shape, dtype: str, src: int, **options: Any) -> Any:
        return pnp.recv(comm, shape, ALL_DTYPES[dtype], src, **options)
