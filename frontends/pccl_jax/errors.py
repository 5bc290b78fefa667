"""Errors of compiled programs: converts a JaxRuntimeError to pccl_py's error, by a number in it.

When a program fails, the token of its ordered effect carries the failure. JAX waits for the token
before it runs the next program with that effect, and would raise the failure instead of running the
program, while other peers wait for its collectives. So a token that carries a failure is dropped
before the next program or eager call: every call is made, even after a failed one.
"""

from __future__ import annotations

import atexit
import copy
import itertools
import os
import re
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from pccl_jax import library
from pccl_jax.communicators import group_of
from pccl_jax.effects import is_ours
from pccl_jax.trees import reworded
from pccl_jax.versions import before_programs, is_tracing, runtime_tokens
from pccl_py import InvalidUsage, PcclError, _pccl, communicator
from pccl_py._watcher import logger
from pccl_py.call import Kind


@contextmanager
def errors() -> Iterator[None]:
    """In the `with` block, programs of `jax.jit` raise pccl_py's exceptions, such as `Aborted`.

        with pccl_jax.errors():
            params, loss = step(params, batch)

    At its end the block waits for the collectives of its programs, which may still run. At its
    beginning the block waits for earlier programs of this thread, and raises none of their errors:
    reading their results raises them. Eager calls and `pccl_jax.jit` do not need this block. An
    exception of a signal handler (Ctrl-C) during such a wait withdraws the collectives that
    programs wait for.
    """
    with withdrawing():
        settle()
    _programs.enter()
    around, failures = _thread.failures, list[BaseException]()
    _thread.failures = failures
    try:
        yield
        with withdrawing():
            settle()
        if failures:
            raise failures[0]
    except (KeyboardInterrupt, SystemExit):
        withdraw()
        raise
    except jax.errors.JaxRuntimeError as error:
        with withdrawing():
            settle()
        made = exception_of(error)
        if made is None:
            raise
        raise made from error
    finally:
        _thread.failures = around
        _programs.leave()


class _Thread(threading.local):
    """`failures`: failures of programs since this thread's innermost `errors` began, which raises
    the first of them at its end; None outside of `errors`."""

    failures: list[BaseException] | None = None


_thread = _Thread()


# Functions that return a sentence for each operation that a program has begun and not finished.
unfinished: list[Callable[[], list[str]]] = [library.unfinished]


class _Programs:
    """The threads that may have running programs: threads inside of `errors`, and threads that have
    begun a program and not waited since. When the last of these threads leaves, no program runs."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._inside: Counter[int] = Counter()
        self._begun: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def begin(self) -> None:
        """Records that this thread begins a program."""
        with self._mutex:
            self._begun.add(threading.current_thread())

    def end(self) -> None:
        """Records that all programs of this thread have ended."""
        with self._mutex:
            self._begun.discard(threading.current_thread())

    def enter(self) -> None:
        with self._mutex:
            self._inside[threading.get_ident()] += 1

    def leave(self) -> None:
        """Undoes this thread's `enter`. If no other thread may have programs, logs the operations
        that programs have begun and not finished."""
        own = threading.get_ident()
        with self._mutex:
            is_alone = len(self._inside) == 1 and all(
                each.ident == own or not each.is_alive() for each in self._begun
            )
            self._inside[own] -= 1
            if self._inside[own] == 0:
                del self._inside[own]
            told = _unfinished() if is_alone else []
        _log(told)


def _unfinished() -> list[str]:
    return [sentence for told in unfinished for sentence in told()]


def _log(sentences: list[str]) -> None:
    for sentence in sentences:
        logger.warning("%s", sentence)


_programs = _Programs()


@contextmanager
def withdrawing() -> Iterator[None]:
    """Wraps a wait for programs: if a signal handler raises, withdraws their collectives."""
    try:
        yield
    except jax.errors.JaxRuntimeError:
        raise
    except BaseException:
        withdraw()
        raise


def withdraw() -> None:
    """Withdraws the collectives in which running programs wait, and drops this thread's tokens."""
    _pccl.handlers_withdraw()
    forget()


def settle() -> None:
    """Waits for all ordered collectives that programs of this thread have begun.

    If a program has failed, drops the failed token and raises nothing, so that the next call runs.
    """
    for effect in list(runtime_tokens.current_tokens):
        _settle(effect)
    _programs.end()


def _before_program(effect: Any) -> bool:
    """JAX calls this before a program with `effect`: settles PCCL's effects. Returns whether
    `effect` is PCCL's. The wait costs no overlap, because JAX waits for the token as well."""
    if not is_ours(effect):
        return False
    _settle(effect)
    _programs.begin()
    return True


def _settle(effect: Any) -> None:
    """Waits for the token of one effect, and drops a token that carries a failure."""
    token = runtime_tokens.current_tokens.get(effect) if is_ours(effect) else None
    if token is None:
        return
    try:
        token.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        del runtime_tokens.current_tokens[effect]
        runtime_tokens.output_runtime_tokens.clear()
        logger.info("a program has failed, and the next one of its order is run: %s", error)
        if _thread.failures is not None:
            _thread.failures.append(error)


before_programs(_before_program)


def forget() -> None:
    """Drops PCCL's tokens of this thread without waiting for them."""
    for effect in [each for each in runtime_tokens.current_tokens if is_ours(each)]:
        del runtime_tokens.current_tokens[effect]
    runtime_tokens.output_runtime_tokens.clear()


# A forked child has no threads that run programs, so waiting for a token at exit would never end.
os.register_at_fork(after_in_child=forget)


@atexit.register
def _leave() -> None:
    """Runs at exit before JAX waits for programs: withdraws the collectives that block programs."""
    _pccl.exit_begin()
    _thread.failures = []
    settle()
    for failure in _thread.failures:
        logger.warning("a program had failed, or was ended at exit: %s", failure)
    _log(_unfinished())


class _Raised:
    """Keeps the exceptions of callbacks (host.py), because XLA passes on only their text."""

    _NUMBERED = re.compile(r"\[pccl host error (\d+)\]")
    _KEPT_MAX = 256

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)
        self._errors: OrderedDict[int, BaseException] = OrderedDict()

    def keep(self, error: BaseException) -> RuntimeError:
        """Keeps `error`; returns the RuntimeError to raise instead, whose text has its number."""
        with self._mutex:
            number = next(self._numbers)
            # Drops the traceback, whose frames would keep the arrays of the call alive.
            self._errors[number] = error.with_traceback(None)
            if len(self._errors) > self._KEPT_MAX:
                self._errors.popitem(last=False)
        return RuntimeError(f"[pccl host error {number}] {error}")

    def find(self, text: str) -> BaseException | None:
        """The kept exception whose number is in `text`; None if there is no number, or the
        exception is no longer kept."""
        found = self._NUMBERED.search(text)
        error = None if found is None else self._errors.get(int(found[1]))
        # Returns a copy: raising an error adds frames to it, and the text may be looked up again.
        return copy.copy(error) if isinstance(error, PcclError) else error


raised = _Raised()


# XLA's error has this text if XLA did not run a program because an operand's program had failed.
_NOT_RUN = "Error dispatching computation"


def exception_of(error: BaseException) -> BaseException | None:
    """The exception of pccl_py whose number is in JAX's `error`; None if PCCL did not cause it."""
    failure = library.failure_in(str(error))
    if failure is None:
        return raised.find(str(error))
    made, group = failure.exception, group_of(failure.handle)
    if isinstance(made, PcclError):
        made.args = (reworded(failure.form, str(made)),)
        if group is not None and failure.kind in set(Kind):
            group._origin(Kind(failure.kind).name.lower()).mark(made)
        if _NOT_RUN in str(error):
            made.args = (
                f"an earlier program failed; this one, which reads its results, was not "
                f"run, and its calls were not made: {made}",
            )
    return made


# ---- safe points ---------------------------------------------------------------------------------
#
# A traced function may not call `admit`, not even of a communicator that it closes over: the call
# would run once, while tracing, and shapes may change at a safe point. Outside of traced functions
# `comm.admit()` first waits for the programs of its thread.


def refuse_traces(what: str) -> None:
    """Raises InvalidUsage while JAX traces a function on this thread, or transforms one."""
    if is_tracing():
        raise InvalidUsage(f"{what}() inside of a traced function: call it outside, between steps")


def _before_admit() -> None:
    refuse_traces("admit")
    with withdrawing():
        settle()


communicator.before_admit.append(_before_admit)
