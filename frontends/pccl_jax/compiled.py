"""jit: jax.jit that raises pccl_py's exceptions, and traces again when the world has changed.

A program is compiled for the world size or the rank if its trace has read them: all_gather,
reduce_scatter, scatter, gather and all_to_all read them for the shapes of their results, and the
user's function may read `comm.world_size`. A program that has read `comm.members` is compiled for
the epoch. A program that has read none of these is compiled once, and serves every world.

jax.jit makes other threads wait until a function's first call has compiled and run. If the threads
of one process are peers of each other, the first call would wait for ever for the other threads.
So in `pccl_jax.jit` one thread compiles, and then every thread runs the program.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

import jax

from pccl_jax import communicators
from pccl_jax.communicators import Reads, Traced, note, reading
from pccl_jax.errors import errors, withdrawing
from pccl_jax.versions import (
    infer_argnums_and_argnames,
    is_tracing,
    make_user_context,
    run_compiled,
    trace_context,
)
from pccl_py import Group, InvalidUsage


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call without static arguments. `signature`: the key of the program."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    signature: Any

    @property
    def are_traced(self) -> bool:
        """Whether an argument is a tracer: JAX traces the caller, too."""
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
        """The arguments that are not static, a Group as a `Traced`, and the signature of all."""
        statics = {number % len(args) for number in self._nums if number < len(args)}
        given = tuple(arg for number, arg in enumerate(args) if number not in statics)
        named = {name: value for name, value in kwargs.items() if name not in self._names}
        leaves, treedef = jax.tree.flatten((given, named))
        # Unflattening turns each Group into a Traced, as JAX does with a program's arguments.
        given, named = jax.tree.unflatten(treedef, leaves)
        treedef = jax.tree.structure((given, named))
        fixed = tuple((number, args[number]) for number in sorted(statics))
        fixed_names = tuple((name, kwargs[name]) for name in self._names if name in kwargs)
        types = tuple(_type_of(leaf) for leaf in leaves)
        return Arguments(
            given, named, leaves, (treedef, types, fixed, fixed_names, trace_context())
        )


def _type_of(leaf: Any) -> Any:
    """The part of an array that a program depends on: its type, and its sharding if committed."""
    if isinstance(leaf, jax.core.Tracer):
        return jax.typeof(leaf), None
    placed = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None
    return jax.typeof(leaf), placed


P = ParamSpec("P")
R = TypeVar("R")
Key: TypeAlias = tuple[tuple[int, int, int], ...]
# JAX caches the traces of inner functions (jit, checkpoint, bodies of loops) by this context's
# value. Without the context, a trace would be reused for another world, and not record its reads.
_context = make_user_context()


def jit(function: Callable[P, R], **options: Any) -> Jitted[P, R]:
    """`jax.jit` of a function or method that has collectives; `options` are those of jax.jit.

    A call of the jitted function waits for its program, and raises pccl_py's exceptions, such as
    `Aborted`, where jax.jit would raise JaxRuntimeError. Pass communicators as arguments: one
    compiled program serves all communicators, also of later calls of `connect`. The function is
    traced again only if its program depends on the world size (or the rank) of a communicator, and
    that has changed.
    """
    return Jitted(function, options)


class Jitted(Generic[P, R]):
    """A jitted function with its compiled programs, keyed by what they read of communicators.

    Any thread may call the function.
    """

    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._statics = Statics(function, options)
        self._reads = Reads()
        # Held while a thread traces or compiles; a trace that reads more changes all keys (_move).
        self._compiling = threading.RLock()
        self._functions: dict[Key, tuple[Any, object]] = {}
        self._programs: dict[tuple[Key, Any], Any] = {}
        self._compiled = 0

    @property
    def compiled(self) -> int:
        """Number of programs that this function has compiled."""
        return self._compiled

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        groups = _groups_in((args, kwargs))
        arguments = self._statics.arguments(args, kwargs)
        if arguments.are_traced or is_tracing():
            with self._function_of(self._key(groups)) as function:
                result: R = function(*args, **kwargs)
        else:
            with errors():
                program = self._program(groups, arguments, args, kwargs)
                result = run_compiled(program, arguments.args, arguments.kwargs)
                with withdrawing():
                    jax.block_until_ready(result)
        # A traced caller depends on all that this function reads, even if this call traced nothing.
        for group in (*groups, *self._reads.closed_over()):
            note(
                group if isinstance(group, Group) else None,
                world_size=self._reads.world_size,
                rank=self._reads.rank,
                epoch=self._reads.epoch,
            )
        return result

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Like `trace` of a function of jax.jit."""
        return self._traced("trace", args, kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Like `lower` of a function of jax.jit; the program raises JAX's errors, not pccl_py's."""
        return self._traced("lower", args, kwargs)

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Like `eval_shape` of a function of jax.jit."""
        return self._traced("eval_shape", args, kwargs)

    def clear_cache(self) -> None:
        """Drops all traces and compiled programs of this function."""
        with self._compiling:
            self._programs.clear()
            self._functions.clear()

    def _program(
        self, groups: list[Group | Traced], arguments: Arguments, args: Any, kwargs: Any
    ) -> Any:
        """The program for these arguments and communicators, compiled if there is none yet."""
        program = self._programs.get((self._key(groups), arguments.signature))
        if program is not None:
            return program
        with self._compiling:
            program = self._programs.get((self._key(groups), arguments.signature))
            if program is None:
                lowered = self._traced("lower", args, kwargs)
                key = self._key(groups)
                with _one_device():
                    program = lowered.compile()
                self._compiled += 1
                self._programs[key, arguments.signature] = program
            return program

    def _traced(self, name: str, args: Any, kwargs: Any) -> Any:
        """Calls the method `name` of the function that jax.jit made, and returns its result."""
        groups = _groups_in((args, kwargs))
        with self._compiling:
            key = self._key(groups)
            with _one_device(), self._function_of(key) as function:
                made = getattr(function, name)(*args, **kwargs)
            self._move(key, self._key(groups))
            return made

    def _move(self, key: Key, now: Key) -> None:
        """After a trace that read further properties: moves programs from `key` to the key `now`.

        The older programs have read less than the trace, so they are valid for `now`, too.
        """
        if now == key:
            return
        self._functions[now] = self._functions.pop(key)
        for each in [each for each in self._programs if each[0] == key]:
            self._programs[now, each[1]] = self._programs.pop(each)

    @contextmanager
    def _function_of(self, key: Key) -> Iterator[Any]:
        """The function of jax.jit for `key`, inside of its own context.

        Each key has a function of its own, because JAX caches traces by the function.
        """

        def traced(*args: Any, **kwargs: Any) -> Any:
            with reading(self._reads):
                return self._function(*args, **kwargs)

        with self._compiling:
            if key not in self._functions:
                named = functools.wraps(self._function)(traced)
                self._functions[key] = jax.jit(named, **self._options), object()
            function, own = self._functions[key]
        with _context(own):
            yield function

    def _key(self, groups: list[Group | Traced]) -> Key:
        reads = self._reads
        if not (reads.world_size or reads.rank or reads.epoch):
            return ()
        return tuple(
            (
                each.world_size if reads.world_size else 0,
                each.rank if reads.rank else -1,
                each.epoch if reads.epoch and isinstance(each, Group) else 0,
            )
            for each in [*groups, *reads.closed_over()]
        )


@contextmanager
def _one_device() -> Iterator[None]:
    """Raises InvalidUsage where JAX refuses ordered effects in a program on several devices."""
    try:
        yield
    except ValueError as error:
        if "not supported for more than 1 device" not in str(error):
            raise
        raise InvalidUsage(
            "arrays of this program lie on several local devices, over which collectives have no "
            "order: inside of shard_map call pccl_jax.psum and pmean, or move the arrays to one "
            "device with jax.device_put"
        ) from error


def _groups_in(tree: Any) -> list[Group | Traced]:
    """The communicators among the leaves of a call's arguments."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda each: isinstance(each, communicators.Comm))
    return [leaf for leaf in leaves if isinstance(leaf, Group | Traced)]
