"""Groups whose members the program names: `init_process_group("pccl", enable_reconfigure=True)`.

PyTorch has this since 2.14, for programs that find out by their own means who is there:

    handle = dist._get_reconfigure_handle()    # exchanged with the others, by any means
    dist._reconfigure(uuid, handles).wait()    # the same number and handles on all of them

Until the first reconfigure the group has no members. Each enters a new group of pccl, which those
are in whose handles were given (quorum.py), and leaves the one before. start.py makes the object;
the collectives are those of backend.py. With `pccl_torch.admit()` (admit.py) nobody has to be
named: the coordinator knows who is there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch._C import _distributed_c10d
from torch.futures import Future

from pccl_py import Communicator, Coordinator, InvalidUsage, PcclError
from pccl_py.errors import InvalidArgument
from pccl_torch import ddp, quorum, start
from pccl_torch.admit import tell_torch
from pccl_torch.backend import ProcessGroupPccl, leave_behind
from pccl_torch.beside import has_other_backends
from pccl_torch.errors import torch_error
from pccl_torch.options import Options

# Its types do not have all that there is.
native: Any = _distributed_c10d

_PREFIX = "pccl"
_MEMBERLESS = (
    "the process group has no members: exchange the handles of _get_reconfigure_handle(), and call "
    "dist._reconfigure(uuid, handles) in each of the processes"
)


class Memberless:
    """In the place of a group of pccl_py, before the first reconfigure."""

    epoch = 0
    _admission = None
    deadline = 0.0
    """That of the groups to come."""

    def close(self) -> None:
        """Nothing to leave."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidUsage(_MEMBERLESS)


class ReconfigurableGroup(ProcessGroupPccl):
    """The default group of a program that names its members. Any thread may use it.

    A handle has the address of a coordinator, and the right to join it. With PCCL_TOKEN in the
    environment that is the coordinator of this token; otherwise each process starts one when it is
    first asked for its handle, and the first process of a list serves the members of that list. So
    the loss of any process is that of a member, at most, and the next reconfigure goes on without.
    """

    supports_reconfigure = True

    def __init__(self, asked: Any, options: Options, found: Callable[[], Coordinator]) -> None:
        """`asked`: what PyTorch asks for. `found` starts a coordinator where others reach it."""
        if options.whole:
            raise InvalidArgument(
                "Options(whole=True) is for groups that never have other members, and "
                "enable_reconfigure=True for those that do: leave one of them out"
            )
        nowhere: Any = Memberless()
        peers = [start.peer_of(rank) for rank in range(asked.group_size)]
        super().__init__(
            nowhere,
            peers,
            asked.group_rank,
            asked.group_id,
            options,
            asked.store,
            lambda: self._run().leave(self),
        )
        self.set_timeout(options.timeout(asked.timeout))
        self._found = found
        self._nonce = secrets.token_hex(8)
        self._token = ""
        self._used: set[int] = set()
        self._handles: list[str] = []
        # One at a time; `_lock` is not held while others are waited for.
        self._reconfiguring = threading.Lock()
        self.bar(InvalidUsage(_MEMBERLESS))

    def get_reconfigure_handle(self) -> str:
        """The others need it to reach this process: opaque, the same at each call, and a secret.

        Raises SystemRefused if no coordinator can be started, InvalidUsage after the end.
        """
        with self._lock:
            run = self._run()
            if not self._token:
                self._token = os.environ.get("PCCL_TOKEN", "").strip()
            if not self._token:
                run.coordinator = self._found()
                self._token = run.coordinator.token
            return f"{_PREFIX}:{self._nonce}:{self._token}"

    def reconfigure(self, opts: Any) -> Any:
        """The members of the group are those with these handles, from now on; waits for them.

        `opts` has `uuid`, a number that this group has not had; `handles`, a list in the order of
        the ranks, or a set, and then the ranks are in an order of ours; and `timeout`, or None for
        that of the group. All members give the same ones. `hints` are for other backends. The Work
        that it returns is done.

        Operations in flight end with Cancelled. Sub-groups raise InvalidUsage from now on, and
        models of FSDP2 raise PeerLost unless the handles are those there were. Raises, and changes
        nothing: InvalidArgument for handles that cannot be, InvalidUsage for a number that was
        used. Other errors, DeadlineExceeded for one, leave the group without members.
        """
        handles = _ordered(opts.handles)
        rank = self._rank_among(handles)
        with self._reconfiguring:
            run = self._run()
            self._check_use(opts.uuid)
            seconds = self.comm.deadline if opts.timeout is None else opts.timeout.total_seconds()
            self._part(_MEMBERLESS)
            name = f"torch/{opts.uuid}/{_digest(handles)}"
            try:
                comm = quorum.enter(
                    handles[0].split(":", 2)[2],
                    name,
                    rank,
                    len(handles),
                    time.monotonic() + seconds,
                    coordinator_stays=bool(os.environ.get("PCCL_TOKEN", "").strip()),
                )
            except PcclError as error:
                self.bar(InvalidUsage(f"{_MEMBERLESS}. The last time it failed: {error}"))
                raise torch_error(error, self.comm) from None
            self._enter(run, comm, handles)
        done: Any = Future()
        done.set_result([])
        return native._create_work_from_future(done)

    def abort(self) -> None:
        """Leaves the members until the next reconfigure. Operations in flight are Cancelled."""
        self._part(f"the process group was aborted. {_MEMBERLESS}")

    def _run(self) -> start.Run:
        run = start.current()
        if run.world is not self:
            raise InvalidUsage("the process group is over: this process is in another run")
        return run

    def _rank_among(self, handles: Sequence[str]) -> int:
        own = self.get_reconfigure_handle()
        for number, handle in enumerate(handles):
            if not isinstance(handle, str) or handle.split(":")[0] != _PREFIX:
                raise InvalidArgument(f"handle {number} of reconfigure is none of pccl's")
            if len(handle.split(":", 2)) != 3:
                raise InvalidArgument(f"handle {number} of reconfigure is cut off")
        if len(set(handles)) != len(handles):
            raise InvalidArgument("the handles of reconfigure must differ: one for each member")
        if own not in handles:
            raise InvalidArgument(
                f"the handle of this process is none of the {len(handles)} handles of reconfigure: "
                "only members call it, each with the list of all"
            )
        return list(handles).index(own)

    def _check_use(self, uuid: int) -> None:
        if has_other_backends(self):
            raise InvalidUsage(
                "reconfigure is for groups of pccl alone: other backends in them cannot follow"
            )
        if uuid in self._used:
            raise InvalidUsage(
                f"uuid {uuid} was already used in this process group: each reconfigure needs one "
                "of its own"
            )
        self._used.add(uuid)

    def _part(self, why: str) -> None:
        """Leaves the members, and all groups that were made of them."""
        with self._lock:
            self.bar(InvalidUsage(why))
            run = self._run()
            for group in run.groups[1:]:
                group.bar(
                    InvalidUsage(
                        f"group {group.pg_name!r} was made of members that the default group had "
                        "before it was reconfigured: make it anew"
                    )
                )
                group.comm.close()
            del run.groups[1:]
            self.comm.close()

    def _enter(self, run: start.Run, comm: Communicator, handles: list[str]) -> None:
        """These are the members now."""
        stay = handles == self._handles and len(handles) == self.size()
        if not stay:
            event = "the default group was reconfigured, with other members"
            leave_behind(self, self.peers, self.rank(), event)
        with self._lock:
            joined = not set(handles) <= set(self._handles)
            self._handles = handles
            comm.deadline = self.comm.deadline
            self.comm = run.comm = comm
            run.token = handles[0].split(":", 2)[2]
            self._is_listed = True
            self._take_up(comm.members, leaves_behind=False)
            self.bar(None)
        ddp.renew({self: joined})
        run.answered, run.has_changed = self.peers, False
        run.joined.clear()
        tell_torch(run.groups)


def _ordered(handles: Any) -> list[str]:
    """The handles by rank. All members put those of a set in the same order."""
    listed = sorted(handles) if isinstance(handles, set | frozenset) else list(handles)
    if not listed:
        raise InvalidArgument("reconfigure needs a handle at least, that of this process")
    return listed


def _digest(handles: Sequence[str]) -> str:
    """Processes with other handles, or in another order, must not meet."""
    return hashlib.sha256("\n".join(handles).encode()).hexdigest()[:32]
