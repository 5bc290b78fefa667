"""How these tests call the library: structs with their size, statuses checked, two ranks at hand.

The header and the library come from header.py. A call that succeeds is noted in `succeeded`, which
test_abi.py compares with the header at its end.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from header import load

ffi, _library = load()

FOREVER = 2**64 - 1
SECOND = 10**9
LOOPBACK = ffi.new("char[]", b"127.0.0.1:0")

succeeded: set[str] = set()


class _Library:
    """The library, with a note of what has answered PCCL_OK, or anything where that is no status.

    Functions that answer nothing are noted when they return.
    """

    def __getattr__(self, name: str) -> Any:
        found = getattr(_library, name)
        if callable(found):
            found = self._noting(name, found)
        setattr(self, name, found)
        return found

    @staticmethod
    def _noting(name: str, function: Any) -> Any:
        is_status = signature(name).result.cname == "pccl_status_t"

        @functools.wraps(function, assigned=())
        def call(*arguments: Any) -> Any:
            answer = function(*arguments)
            if not is_status or answer == 0:
                succeeded.add(name)
            return answer

        return call


lib: Any = _Library()


def signature(name: str) -> Any:
    """The type of a function, with `args` and `result`."""
    return ffi.typeof(getattr(_library, name))


def options(kind: str, **fields: Any) -> Any:
    """A zeroed options or result struct of that kind, with its size and some fields set."""
    made = ffi.new(f"pccl_{kind}_t *")
    made.size = ffi.sizeof(f"pccl_{kind}_t")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def text(value: Any) -> str:
    said: str = ffi.string(value).decode()
    return said


def check(status: int) -> None:
    assert status == lib.PCCL_OK, (
        f"{text(lib.pccl_status_name(status))}: {text(lib.pccl_last_error())}"
    )


def refused(status: int, name: str = "PCCL_INVALID_ARGUMENT") -> str:
    """Asserts the status and that there is a sentence about it, which is returned."""
    assert text(lib.pccl_status_name(status)) == name
    sentence = text(lib.pccl_last_error())
    assert len(sentence) > 10, sentence
    return sentence


@contextlib.contextmanager
def coordinator(**fields: Any) -> Iterator[Any]:
    made = ffi.new("pccl_coordinator_t **")
    check(lib.pccl_coordinator_create(options("coordinator_options", **fields), made))
    try:
        yield made[0]
    finally:
        lib.pccl_coordinator_destroy(made[0])


def connect(token: Any, **fields: Any) -> Any:
    made = ffi.new("pccl_comm_t **")
    check(lib.pccl_comm_create(token, options("comm_options", bind=LOOPBACK, **fields), made))
    return made[0]


def together(calls: list[Any]) -> list[Any]:
    """Runs the calls at once, each in a thread of its own; cffi releases the GIL in each."""
    results: dict[int, Any] = {}

    def run(index: int) -> None:
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(calls), "a call failed; see above"
    return [results[index] for index in range(len(calls))]


def admit(comm: Any) -> None:
    check(lib.pccl_comm_admit(comm, 0, options("admission")))


@contextlib.contextmanager
def two_ranks() -> Iterator[tuple[Any, Any]]:
    """Two communicators of one group, admitted; the first has rank 0."""
    with coordinator(initial_world_size=2) as running:
        token = lib.pccl_coordinator_token(running)
        comms = together([lambda: connect(token, deadline_ns=30 * SECOND)] * 2)
        # The first epoch begins when all of its members have come.
        together([functools.partial(admit, comm) for comm in comms])
        info = options("comm_info")
        check(lib.pccl_comm_info(comms[0], info))
        yield (comms[0], comms[1]) if info.rank == 0 else (comms[1], comms[0])
        for comm in comms:
            check(lib.pccl_comm_close(comm))
            lib.pccl_comm_destroy(comm)


@contextlib.contextmanager
def one_rank() -> Iterator[Any]:
    """A communicator that is alone in its group, admitted."""
    with coordinator() as running:
        comm = connect(lib.pccl_coordinator_token(running))
        admit(comm)
        yield comm
        lib.pccl_comm_destroy(comm)
