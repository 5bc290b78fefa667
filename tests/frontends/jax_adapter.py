"""pccl_jax as the conformance suite calls it: eagerly, and inside of jitted functions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pccl_jax as pj
from adapter import Adapter, Shape

import pccl_py as pccl

jax.config.update("jax_platforms", "cpu")
# Threads of XLA, in which peers of one process may wait for each other.
os.environ["NPROC"] = "16"
# Else there are no numbers of 64 bits.
jax.config.update("jax_enable_x64", True)

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
# The whole suite compiles 551. With one program for each communicator, test_frontends_values.py
# alone would compile more than 900.
PROGRAMS_MAX = 580


class JaxAdapter(Adapter):
    """Calls that are not traced."""

    name = "jax"
    dtypes = tuple(DTYPES)
    moving_dtypes = tuple(MOVING_DTYPES)
    # Arrays cannot be written to.
    in_place = frozenset[str]()
    with_out = frozenset[str]()
    has_works = False

    def make(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        return jax.device_put(np.array(values, ALL_DTYPES[dtype]).reshape(shape))

    def strided(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        return None

    def frozen(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        return None

    def unsupported(self, count: int) -> Any:
        return jnp.zeros(count, jnp.complex64)

    def read(self, array: Any) -> list[float]:
        made = np.asarray(array)
        foreign = made.dtype.name.startswith(("bfloat", "float8", "float4", "int2", "uint2"))
        numbers: list[float] = (made.astype(np.float64) if foreign else made).ravel().tolist()
        return numbers

    def shape(self, array: Any) -> Shape:
        shape: Shape = array.shape
        return shape

    def dtype(self, array: Any) -> str:
        return next(name for name, dtype in ALL_DTYPES.items() if array.dtype == np.dtype(dtype))

    def is_same_memory(self, x: Any, y: Any) -> bool:
        return bool(x.unsafe_buffer_pointer() == y.unsafe_buffer_pointer())

    def call(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        run = self._run(collective, out if collective == "scatter" else None, options)
        result = run(comm, x)
        told = options.get("return_outcome", False)
        made: Any = result
        outcome: Any = None
        if told:
            made, outcome = result
        if collective in ("reduce", "gather") and options.get("root", 0) != comm.rank:
            # Zeros, where one program is for all ranks.
            for leaf in jax.tree.leaves(made):
                assert not np.asarray(leaf).any()
            made = None
        return (made, pj.decode(outcome)) if told else made

    def call_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        raise NotImplementedError("arrays cannot be written to")

    def call_tree(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        return self.call(collective, comm, x, out, **options)

    def call_tree_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        raise NotImplementedError("arrays cannot be written to")

    def send(self, comm: pccl.Group, x: Any, dst: int, **options: Any) -> Any:
        return pj.decode(pj.send(comm, x, dst, return_outcome=True, **options))

    def recv(self, comm: pccl.Group, shape: Shape, dtype: str, src: int, **options: Any) -> Any:
        got = pj.recv(comm, shape, ALL_DTYPES[dtype], src, **options)
        return (got[0], pj.decode(got[1])) if isinstance(got, tuple) else got

    def _run(
        self, collective: str, out: Any, options: dict[str, Any]
    ) -> Callable[[pccl.Group, Any], Any]:
        function = getattr(pj, collective)
        given = {"out": out} if collective == "scatter" else {}
        return lambda comm, x: function(comm, x, **given, **options)


class JaxJitAdapter(JaxAdapter):
    """The same calls in functions of pccl_jax.jit, one for each kind of call, of all ranks."""

    name = "jax_jit"

    def close(self) -> None:
        """One program serves all communicators: there are as many as there are kinds of calls."""
        compiled = sum(each.compiled for each in programs)
        assert compiled <= PROGRAMS_MAX, f"{compiled} programs"

    def _run(
        self, collective: str, out: Any, options: dict[str, Any]
    ) -> Callable[[pccl.Group, Any], Any]:
        shapes, treedef = jax.tree.flatten(
            jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), out)
        )
        hashable = tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(options.items())
        )
        run: Callable[[pccl.Group, Any], Any] = jitted(collective, tuple(shapes), treedef, hashable)
        return run

    def send(self, comm: pccl.Group, x: Any, dst: int, **options: Any) -> Any:
        return jitted_send(dst, tuple(sorted(options.items())))(comm, x)

    def recv(self, comm: pccl.Group, shape: Shape, dtype: str, src: int, **options: Any) -> Any:
        got = jitted_recv(shape, dtype, src, tuple(sorted(options.items())))(comm)
        return (got[0], pj.decode(got[1])) if isinstance(got, tuple) else got


programs: list[pj.Jitted[..., Any]] = []


def kept(function: Callable[..., Any]) -> Any:
    programs.append(pj.jit(function))
    return programs[-1]


@functools.cache
def jitted(collective: str, shapes: Any, treedef: Any, options: Any) -> Any:
    """A function that makes this call, for all communicators and shapes."""
    function, named = getattr(pj, collective), dict(options)
    if collective == "scatter":
        named["out"] = jax.tree.unflatten(treedef, shapes)
    return kept(lambda comm, x: function(comm, x, **named))


@functools.cache
def jitted_send(dst: int, options: Any) -> Any:
    return kept(lambda comm, x: pj.send(comm, x, dst, **dict(options)))


@functools.cache
def jitted_recv(shape: Shape, dtype: str, src: int, options: Any) -> Any:
    return kept(lambda comm: pj.recv(comm, shape, ALL_DTYPES[dtype], src, **dict(options)))
