"""LocalWorld: n communicators in this process, over real loopback sockets, for users' tests.

A LocalWorld has a coordinator, and a thread per communicator while `run` runs; its peers are like
any others. Nothing is simulated; tests/sim has the simulator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pccl_py.closing import Closing
from pccl_py.communicator import Communicator, connect
from pccl_py.coordinator import Coordinator
from pccl_py.errors import InvalidArgument

ResultType = TypeVar("ResultType")

LOOPBACK = "127.0.0.1:0"
# Seconds within which a signal is noticed while a thread is waited for.
JOIN_SECONDS = 0.05


class LocalWorld(Closing):
    """`n` communicators, already admitted to one group, `comms[rank]` having rank `rank`.

        with LocalWorld(3) as world:
            outcomes = world.run(lambda comm: comm.all_reduce(arrays[comm.rank]))

    `deadline`: default deadline of operations in seconds. Further options are those of
    `Coordinator`. Raises the errors of `Coordinator` and `connect`.
    """

    def __init__(
        self,
        n: int,
        *,
        group: str = "default",
        deadline: float | None = None,
        **coordinator_options: Any,
    ) -> None:
        if n < 1:
            raise InvalidArgument(f"a world has at least 1 peer, not {n}")
        self.comms: list[Communicator] = []
        self.coordinator = Coordinator(**{"initial_world_size": n, **coordinator_options})

        def enter() -> Communicator:
            comm = connect(
                self.coordinator.token,
                group=group,
                initial_world_size=n,
                bind=LOOPBACK,
                deadline=deadline,
            )
            self.comms.append(comm)
            comm.admit()
            return comm

        try:
            # If a peer fails, the others wait for it until the coordinator is closed.
            entered = _run_in_threads([enter] * n, lambda index: self.coordinator.close())
        except BaseException:
            self.close()
            raise
        self.comms = sorted(entered, key=lambda comm: comm.rank)

    def run(self, fn: Callable[[Communicator], ResultType]) -> list[ResultType]:
        """Calls `fn(comm)` for every communicator, each in a thread, and returns the results.

        If calls of `fn` raise, `run` raises the first error once all calls are done, with a note
        that names the rank. A peer whose `fn` raised leaves the group, so that the others do not
        wait for it.
        """
        jobs = [_bind(fn, comm, rank) for rank, comm in enumerate(self.comms)]
        return _run_in_threads(jobs, lambda index: self.comms[index].close())

    def close(self) -> None:
        """Closes the communicators, then the coordinator. Idempotent."""
        try:
            for comm in self.comms:
                comm.close()
        finally:
            self.coordinator.close()


def _bind(
    fn: Callable[[Communicator], ResultType], comm: Communicator, rank: int
) -> Callable[[], ResultType]:
    def job() -> ResultType:
        try:
            return fn(comm)
        except BaseException as error:
            error.add_note(f"Raised by rank {rank} of a LocalWorld.")
            raise

    return job


def _run_in_threads(
    jobs: list[Callable[[], ResultType]], on_error: Callable[[int], None]
) -> list[ResultType]:
    """Runs all jobs at once; `on_error(index)` is called in the thread of a job that raised."""
    results: dict[int, ResultType] = {}
    errors: list[BaseException] = []

    def work(index: int, job: Callable[[], ResultType]) -> None:
        try:
            results[index] = job()
        except BaseException as error:  # noqa: BLE001  raised again by the caller
            errors.append(error)
            on_error(index)

    threads = [
        threading.Thread(target=work, args=(index, job), name=f"pccl-local-{index}", daemon=True)
        for index, job in enumerate(jobs)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            _join(thread)
    except BaseException:  # Ctrl-C: threads must not go on when nothing waits for them
        for index in range(len(jobs)):
            on_error(index)
        for thread in threads:
            if thread.is_alive():  # the interrupt may have come before the thread was started
                _join(thread)
        raise
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(jobs))]


def _join(thread: threading.Thread) -> None:
    """Waits for a thread in slices: a signal that reaches another thread does not end a join."""
    while thread.is_alive():
        thread.join(JOIN_SECONDS)
