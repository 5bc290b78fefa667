"""pccl_work_fd: the descriptor on which a program with an event loop of its own waits for works.

Every test has a work that cannot finish before the other rank has called too, so that nothing here
depends on time. The example of such a program is examples/c_embed.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import FOREVER, check, ffi, lib, options, refused, text, two_ranks

# In one group; base/limits.zig: operations_in_flight_max.
WORKS_IN_FLIGHT_MAX = 64


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Any, Any]]:
    with two_ranks() as ranks:
        yield ranks


def begin(comm: Any, tag: int = 0) -> Any:
    work = ffi.new("pccl_work_t **")
    check(lib.pccl_barrier_async(comm, options("collective_options", tag=tag), work))
    return work[0]


def descriptor(work: Any) -> int:
    fd = ffi.new("int *", -1)
    check(lib.pccl_work_fd(work, fd))
    return int(fd[0])


def end(*works: Any) -> None:
    for work in works:
        check(lib.pccl_work_wait(work, FOREVER))
        lib.pccl_work_destroy(work)


def by_select(fd: int, seconds: float) -> bool:
    return select.select([fd], [], [], seconds)[0] == [fd]


def by_poll(fd: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return waiting.poll(seconds * 1000) == [(fd, select.POLLIN)]


def by_epoll(fd: int, seconds: float) -> bool:
    with select.epoll() as waiting:
        waiting.register(fd, select.EPOLLIN)
        return waiting.poll(seconds) == [(fd, select.EPOLLIN)]


WAYS = {"select": by_select, "poll": by_poll}
if sys.platform == "linux":
    WAYS["epoll"] = by_epoll


@pytest.mark.parametrize("way", WAYS)
def test_it_is_readable_once_the_work_is_finished_and_stays_so(
    pair: tuple[Any, Any], way: str
) -> None:
    readable = WAYS[way]
    mine = begin(pair[0])
    fd = descriptor(mine)
    assert not readable(fd, 0)
    other = begin(pair[1])
    assert readable(fd, 60)
    check(lib.pccl_work_wait(mine, 0))
    assert readable(fd, 0)
    assert descriptor(mine) == fd
    end(mine, other)


def test_it_may_be_asked_for_when_the_work_is_finished(pair: tuple[Any, Any]) -> None:
    works = [begin(comm) for comm in pair]
    for work in works:
        check(lib.pccl_work_wait(work, FOREVER))
    assert all(by_select(descriptor(work), 0) for work in works)
    end(*works)


def test_a_callback_and_a_descriptor_both_tell(pair: tuple[Any, Any]) -> None:
    mine = begin(pair[0])
    ours, theirs = os.pipe()

    @ffi.callback("void(void *)")
    def finished(_: Any) -> None:
        os.write(theirs, b"x")

    check(lib.pccl_work_notify(mine, finished, ffi.NULL))
    fd = descriptor(mine)
    other = begin(pair[1])
    assert by_select(ours, 60)
    assert by_select(fd, 60)
    end(mine, other)
    os.close(ours)
    os.close(theirs)


def test_a_failure_is_an_end_too() -> None:
    with two_ranks() as pair:
        cancelled, closed = begin(pair[0], tag=1), begin(pair[0], tag=2)
        fds = [descriptor(work) for work in (cancelled, closed)]
        check(lib.pccl_work_cancel(cancelled))
        assert by_select(fds[0], 0)
        check(lib.pccl_comm_close(pair[0]))
        assert by_select(fds[1], 0)
        for work in (cancelled, closed):
            assert lib.pccl_work_wait(work, 0) not in (lib.PCCL_OK, lib.PCCL_TIMEOUT)
            lib.pccl_work_destroy(work)


def test_destroy_closes_it_and_a_work_that_is_not_asked_has_none(pair: tuple[Any, Any]) -> None:
    before = len(os.listdir("/dev/fd"))
    works = [begin(comm) for comm in pair]
    assert len(os.listdir("/dev/fd")) == before
    fds = [descriptor(work) for work in works]
    end(*works)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    unfinished = begin(pair[0], tag=1)  # of which the other rank never hears
    fd = descriptor(unfinished)
    lib.pccl_work_destroy(unfinished)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="epoll is of Linux")
def test_as_many_works_as_there_may_be_tell_in_one_epoll_set() -> None:
    with two_ranks() as pair, select.epoll() as waiting:
        mine = {
            descriptor(work): work
            for work in (begin(pair[0], n) for n in range(WORKS_IN_FLIGHT_MAX))
        }
        for fd in mine:
            waiting.register(fd, select.EPOLLIN)
        assert waiting.poll(0) == []
        other = []
        for done in range(WORKS_IN_FLIGHT_MAX):
            # In an order that is not that of the calls.
            tag = done * 37 % WORKS_IN_FLIGHT_MAX
            other.append(begin(pair[1], tag))
            ((fd, events),) = waiting.poll(60)
            assert events == select.EPOLLIN
            outcome = options("outcome")
            check(lib.pccl_work_outcome(mine[fd], outcome))
            assert outcome.tag == tag
            waiting.unregister(fd)
            end(mine.pop(fd))
        assert waiting.poll(0) == []
        end(*other)


def test_exec_closes_it_and_a_forked_child_has_none(pair: tuple[Any, Any]) -> None:
    mine = begin(pair[0])
    fd = descriptor(mine)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    look = f"import os, sys; sys.exit(os.path.exists('/dev/fd/{fd}'))"
    assert subprocess.run([sys.executable, "-c", look], close_fds=False).returncode == 0
    # In a program of its own: this one has threads, which a fork in Python warns about.
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "closed, refused\nreadable\n"), done.stderr
    end(mine, begin(pair[1]))


FORKS = """
import os, select, warnings
warnings.simplefilter("ignore")
from calling import check, ffi, lib, one_rank, options, text
with one_rank() as comm:
    work = ffi.new("pccl_work_t **")
    check(lib.pccl_barrier(comm, ffi.NULL, work))
    fd = ffi.new("int *")
    check(lib.pccl_work_fd(work[0], fd))
    child = os.fork()
    if child == 0:
        closed = not os.path.exists(f"/dev/fd/{fd[0]}")
        again = lib.pccl_work_fd(work[0], ffi.new("int *"))
        said = again == lib.PCCL_INVALID_USAGE and "fork" in text(lib.pccl_last_error())
        print("closed" if closed else "open", "refused" if said else again, sep=", ", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    if select.select([fd[0]], [], [], 0)[0]:
        print("readable")
    lib.pccl_work_destroy(work[0])
"""


def test_without_descriptors_it_says_so_and_the_work_goes_on(pair: tuple[Any, Any]) -> None:
    mine = begin(pair[0])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = ffi.new("int *", -7)
    # The lowest free number is the next to be given out.
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        status = lib.pccl_work_fd(mine, fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "open files" in refused(status, "PCCL_SYSTEM_ERROR")
    assert fd[0] == -7
    other = begin(pair[1])
    assert by_select(descriptor(mine), 60)
    end(mine, other)


def test_there_must_be_a_place_for_it(pair: tuple[Any, Any]) -> None:
    mine = begin(pair[0])
    assert lib.pccl_work_fd(mine, ffi.NULL) == lib.PCCL_INVALID_ARGUMENT
    assert text(lib.pccl_last_error()) == "fd is NULL"
    end(mine, begin(pair[1]))
