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
from pccl_jax.programs import Programs, Ready
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
        self._dropped = 0  # programs that have been compiled, and that another thread had as well

    @property
    def compiled(self) -> int:
        """How many programs have been compiled."""
        with self._lock:
            return self._dropped + sum(each.counted for each in self._programs.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        groups = _groups_in((args, kwargs))
        with errors():
            result = self._ready(groups, args, kwargs).run()
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(result)):
                jax.block_until_ready(result)
        # A function around this one depends on what this one does, also where it is not traced now.
        for group in (*groups, *self._reads.groups):
            note(
                group if isinstance(group, Group) else None,
                world_size=self._reads.world_size,
                rank=self._reads.rank,
            )
        return result

    def _ready(self, groups: list[Group | Traced], args: Any, kwargs: Any) -> Ready:
        """A program for the worlds of these communicators.

        A trace may read what no earlier one has: then it is for the worlds of its own caller alone,
        and other threads that have waited for it look again.
        """
        while True:
            key = self._key(groups)
            with self._lock:
                programs = self._programs.setdefault(key, self._make())
            ready = programs.ready(*args, **kwargs)
            now = self._key(groups)
            if now == key:
                return ready
            with self._lock:
                if self._programs.get(key) is programs:
                    del self._programs[key]
                kept = self._programs.setdefault(now, programs) if ready.is_new else programs
                if kept is not programs and ready.is_new:
                    self._dropped += programs.counted
            if ready.is_new:
                return ready

    def _make(self) -> Programs:
        """Each of its own function, as JAX keeps traces by their functions."""

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
