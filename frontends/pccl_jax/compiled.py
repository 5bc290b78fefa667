"""jit: jax.jit with the exceptions of PCCL, and tracing again where the world has changed.

A program that has read the size of the world, or the rank, is made for them: all_gather,
reduce_scatter, scatter, gather and all_to_all do, for the shapes of their results, and the program
itself through `comm.world_size`. Others are compiled once, and serve every world.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax

from pccl_jax import communicators
from pccl_jax.communicators import Reads, Traced, note, reading
from pccl_jax.errors import errors
from pccl_jax.programs import Programs
from pccl_py import Group

P = ParamSpec("P")
R = TypeVar("R")
Key: TypeAlias = tuple[tuple[int, int], ...]


def jit(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """`jax.jit` of a function that has collectives; `options` are those of jax.jit.

    The result waits for the program, and raises `pccl_py.Aborted` and so on where jax.jit would
    raise JaxRuntimeError. Pass communicators as arguments: a program is compiled once for all of
    them, also of later calls of `connect`. It is traced again only if it depends on the size of the
    world (or the rank) of one of them, and that has changed.
    """
    return functools.wraps(function)(_Jitted(function, options))


class _Jitted:
    """The programs of a function, by what they have read of communicators."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        self._reads = Reads()
        self._lock = threading.Lock()
        self._programs: dict[Key, Programs] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        groups = _groups_in((args, kwargs))
        key, program = self._program(groups)
        with errors():
            result = program(*args, **kwargs)
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(result))
            if not traced:
                jax.block_until_ready(result)
        self._keep(key, program, groups)
        # A function around this one depends on what this one does, also where it is not traced now.
        for group in (*groups, *self._reads.groups):
            note(
                group if isinstance(group, Group) else None,
                world_size=self._reads.world_size,
                rank=self._reads.rank,
            )
        return result

    def _program(self, groups: list[Group | Traced]) -> tuple[Key, Programs]:
        key = self._key(groups)
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self._make()
        return key, program

    def _keep(self, key: Key, program: Programs, groups: list[Group | Traced]) -> None:
        """A trace may have read what no earlier one has: then the program is for that alone."""
        now = self._key(groups)
        if now == key:
            return
        with self._lock:
            if self._programs.get(key) is program:
                del self._programs[key]
            self._programs.setdefault(now, program)

    def _make(self) -> Programs:
        def traced(*args: Any, **kwargs: Any) -> Any:
            with reading(self._reads):
                return self._function(*args, **kwargs)

        return Programs(functools.wraps(self._function)(traced), self._options)

    def _key(self, groups: list[Group | Traced]) -> Key:
        reads, closed_over = self._reads, sorted(self._reads.groups, key=lambda each: each.name)
        if not (reads.world_size or reads.rank):
            return ()
        every = [*groups, *(each for each in closed_over if not each.closed)]
        return tuple(
            (each.world_size if reads.world_size else 0, each.rank if reads.rank else -1)
            for each in every
        )


def _groups_in(tree: Any) -> list[Group | Traced]:
    """The communicators among the arguments of a call."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda each: isinstance(each, communicators.Comm))
    return [leaf for leaf in leaves if isinstance(leaf, Group | Traced)]
