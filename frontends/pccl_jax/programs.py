"""Arguments of a jitted function: what a program of it depends on, and what it runs with.

While the first call of a function of jax.jit compiles and runs, other threads that call it wait. So
threads of one process that are peers of each other would wait for ever. `pccl_jax.jit` compiles
first, by one thread, and then all of them run the program (compiled.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from pccl_jax.versions import infer_argnums_and_argnames, trace_context


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, without the static ones. `signature`: programs are known by it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    signature: Any

    @property
    def are_traced(self) -> bool:
        """Whether the call is a part of another program."""
        return any(isinstance(leaf, jax.core.Tracer) for leaf in self.leaves)


class Statics:
    """Which arguments of a function are static, by the options of jax.jit."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._nums: tuple[int, ...] = ()
        self._names: tuple[str, ...] = ()
        nums, names = options.get("static_argnums"), options.get("static_argnames")
        if nums is not None or names is not None:
            signature = inspect.signature(function)
            self._nums, self._names = infer_argnums_and_argnames(signature, nums, names)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The others, and the signature of all. A Group becomes what it is in a trace."""
        statics = {number % len(args) for number in self._nums if number < len(args)}
        given = tuple(arg for number, arg in enumerate(args) if number not in statics)
        named = {name: value for name, value in kwargs.items() if name not in self._names}
        leaves, treedef = jax.tree.flatten((given, named))
        # As those are that JAX keeps of a program's arguments.
        given, named = jax.tree.unflatten(treedef, leaves)
        treedef = jax.tree.structure((given, named))
        fixed = tuple((number, args[number]) for number in sorted(statics))
        fixed_names = tuple((name, kwargs[name]) for name in self._names if name in kwargs)
        types = tuple(_type_of(leaf) for leaf in leaves)
        return Arguments(
            given, named, leaves, (treedef, types, fixed, fixed_names, trace_context())
        )


def _type_of(leaf: Any) -> Any:
    """A program depends on the type of an array, and on where it must stay."""
    if isinstance(leaf, jax.core.Tracer):
        return jax.typeof(leaf), None
    placed = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None
    return jax.typeof(leaf), placed
