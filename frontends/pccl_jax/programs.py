"""Programs: what a jitted function is compiled to, by the shapes and dtypes of its arguments.

While the first call of a function of jax.jit compiles and runs, other threads that call it wait. So
threads of one process that are peers of each other would wait for ever. Here a program is compiled
first, by one thread, and then all of them run it.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from pccl_jax.versions import infer_argnums_and_argnames, run_compiled, trace_context


class Programs:
    """The compiled programs of one function. Any thread may call it.

    `counted` is how many have been compiled.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.jitted = jax.jit(function, **options)
        self.counted = 0
        nums, names = options.get("static_argnums"), options.get("static_argnames")
        self._nums: tuple[int, ...] = ()
        self._names: tuple[str, ...] = ()
        if nums is not None or names is not None:
            signature = inspect.signature(function)
            self._nums, self._names = infer_argnums_and_argnames(signature, nums, names)
        self._lock = threading.Lock()
        self._programs: dict[Any, _Program] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program of these arguments, which is compiled if it is not there yet."""
        return self.ready(*args, **kwargs).run()

    def ready(self, *args: Any, **kwargs: Any) -> Ready:
        """The program of these arguments, compiled, and what it runs with."""
        statics = {number % len(args) for number in self._nums if number < len(args)}
        given = tuple(arg for number, arg in enumerate(args) if number not in statics)
        named = {name: value for name, value in kwargs.items() if name not in self._names}
        leaves, treedef = jax.tree.flatten((given, named))
        # A Group becomes what it is in a trace: so do those that JAX keeps of a program's arguments.
        given, named = jax.tree.unflatten(treedef, leaves)
        treedef = jax.tree.structure((given, named))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return Ready(functools.partial(self.jitted, *args, **kwargs), is_new=False)
        fixed = tuple((number, args[number]) for number in sorted(statics))
        fixed_names = tuple((name, kwargs[name]) for name in self._names if name in kwargs)
        signature = tuple(_signature(leaf) for leaf in leaves)
        key = treedef, signature, fixed, fixed_names, trace_context()
        with self._lock:
            program = self._programs.setdefault(key, _Program())
        is_new = False
        with program.lock:
            if program.compiled is None:
                program.compiled = self.jitted.lower(*args, **kwargs).compile()
                self.counted += 1
                is_new = True
        return Ready(functools.partial(run_compiled, program.compiled, given, named), is_new)


class Ready(NamedTuple):
    """A program that has been compiled, perhaps just now; in a trace: the call that adds to it."""

    run: Callable[[], Any]
    is_new: bool


class _Program:
    """One program; the lock is held while it is compiled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.compiled: Any = None


def _signature(leaf: Any) -> Any:
    """What a program depends on: the type of an array, and where it must stay."""
    placed = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None
    return jax.typeof(leaf), placed
