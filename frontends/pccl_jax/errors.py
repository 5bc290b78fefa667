"""Errors of compiled programs: JAX raises its own, with a number in it; here it becomes ours.

Where a program has failed, the tokens that keep its order carry the failure. JAX waits for a token
before it begins the next program of that order, and would raise the failure there: this program
would never run, while other peers wait for its calls. So a token that carries a failure is
dropped before that, also by eager calls: each call is made, whatever became of the one before.
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
    """Inside of it, programs of `jax.jit` raise the exceptions of pccl_py: `Aborted` and so on.

        with pccl_jax.errors():
            params, loss = step(params, batch)

    At its end it waits for the collectives that this thread has begun in it, as programs may still
    run then. It waits for those of earlier programs first: a failure of theirs is in their results.
    Eager calls and `pccl_jax.jit` need no such context. An exception of a signal handler (Ctrl-C)
    that comes while this waits withdraws the collectives that programs wait in.
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
    """The failures of programs that the innermost `errors` of this thread raises at its end."""

    failures: list[BaseException] | None = None


_thread = _Thread()


# Functions that tell of operations that programs have begun and not finished.
unfinished: list[Callable[[], list[str]]] = [library.unfinished]


class _Programs:
    """The threads that may have programs: those inside of `errors`, and those that have begun one
    and not waited since. Where the last one leaves, no program runs."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._inside: Counter[int] = Counter()
        self._begun: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def begin(self) -> None:
        """This thread begins a program."""
        with self._mutex:
            self._begun.add(threading.current_thread())

    def end(self) -> None:
        """All programs of this thread are over."""
        with self._mutex:
            self._begun.discard(threading.current_thread())

    def enter(self) -> None:
        with self._mutex:
            self._inside[threading.get_ident()] += 1

    def leave(self) -> None:
        """Tells about the operations that programs have begun and not finished."""
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
    """Around a wait for programs: an exception of a signal handler ends what they wait for."""
    try:
        yield
    except jax.errors.JaxRuntimeError:
        raise
    except BaseException:
        withdraw()
        raise


def withdraw() -> None:
    """Ends the collectives of programs that run beside Python's threads."""
    _pccl.handlers_withdraw()
    forget()


def settle() -> None:
    """Waits for all ordered collectives that programs of this thread have begun.

    It raises none of their failures: what comes next is made in any case.
    """
    for effect in list(runtime_tokens.current_tokens):
        _settle(effect)
    _programs.end()


def _before_program(effect: Any) -> bool:
    """Whether the effect is ours. Costs no overlap: JAX waits there as well."""
    if not is_ours(effect):
        return False
    _settle(effect)
    _programs.begin()
    return True


def _settle(effect: Any) -> None:
    """The same for one effect of JAX."""
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
    """Drops the tokens of this thread, of which none is waited for."""
    for effect in [each for each in runtime_tokens.current_tokens if is_ours(each)]:
        del runtime_tokens.current_tokens[effect]
    runtime_tokens.output_runtime_tokens.clear()


# A forked child has none of the threads that run programs: it would wait for them when it ends.
os.register_at_fork(after_in_child=forget)


@atexit.register
def _leave() -> None:
    """Before JAX waits at exit for programs that may be blocked: what blocks gives up."""
    _pccl.exit_begin()
    _thread.failures = []
    settle()
    for failure in _thread.failures:
        logger.warning("a program had failed, or was ended at exit: %s", failure)
    _log(_unfinished())


class _Raised:
    """Exceptions of callbacks (host.py), of which XLA passes on the text alone."""

    _NUMBERED = re.compile(r"\[pccl host error (\d+)\]")
    _KEPT_MAX = 256

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)
        self._errors: OrderedDict[int, BaseException] = OrderedDict()

    def keep(self, error: BaseException) -> RuntimeError:
        """The error to raise instead, whose text names it."""
        with self._mutex:
            number = next(self._numbers)
            # Without the frames it came through, which hold the arrays of the call.
            self._errors[number] = error.with_traceback(None)
            if len(self._errors) > self._KEPT_MAX:
                self._errors.popitem(last=False)
        return RuntimeError(f"[pccl host error {number}] {error}")

    def find(self, text: str) -> BaseException | None:
        """One like that which a text names; None if it names none, or one that is long past."""
        found = self._NUMBERED.search(text)
        error = None if found is None else self._errors.get(int(found[1]))
        # Whoever raises it gives it frames, and later ones raise it as well.
        return copy.copy(error) if isinstance(error, PcclError) else error


raised = _Raised()


# XLA begins with this where it has not run a program, since an operand is of one that failed.
_NOT_RUN = "Error dispatching computation"


def exception_of(error: BaseException) -> BaseException | None:
    """The exception of PCCL that an error of JAX stands for; None if it is of something else."""
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
# A program does not pass safe points, where shapes would change. A trace that passed one would do
# so once, while it compiles, and never again: it is refused, also of a communicator that the
# function closes over. Outside of traced functions `comm.admit()` comes behind the programs of its
# thread.


def refuse_traces(what: str) -> None:
    """Raises InvalidUsage while JAX traces a function on this thread, or transforms one."""
    if is_tracing():
        raise InvalidUsage(f"{what}() inside of a traced function: call it outside, between steps")


def _before_admit() -> None:
    refuse_traces("admit")
    with withdrawing():
        settle()


communicator.before_admit.append(_before_admit)
