"""The run of this process: how `dist.init_process_group("pccl")` finds its coordinator and peers.

    pccl run -n 3 -- python train.py        init_method="pccl://": ranks are those of the run
    torchrun --nproc-per-node 2 train.py    rank 0 starts the coordinator, which goes with it

With a PCCL_TOKEN in the environment the run is that of the token. Otherwise rank 0 of the default
group starts a coordinator, and its token goes through the store. PyTorch calls `create` for each
group; backend.py is what it gets. The safe point of all groups is in admit.py.
"""

from __future__ import annotations

import atexit
import hashlib
import ipaddress
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch.distributed import distributed_c10d

import pccl_py as pccl
from pccl_py import Admission, Communicator, Coordinator, Group, InvalidUsage, PeerId
from pccl_py.errors import InvalidArgument
from pccl_torch import ahead
from pccl_torch.backend import ProcessGroupPccl
from pccl_torch.errors import losses_told, torch_error
from pccl_torch.founding import found
from pccl_torch.lone_store import LoneStore
from pccl_torch.options import Founded, Options

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
c10d: Any = distributed_c10d

log = logging.getLogger("pccl.torch")

# How long rank 0 keeps the coordinator for those that have not left yet.
_LAST_SECONDS = 10.0
_LOOK_SECONDS = 0.02
# Most checks of the backend fail with 2.6, and releases between were not tried (docs/TORCH.md).
_OLDEST = "2.13"
_TOKEN = "pccl/token"
# By which its processes, and "env://", find each other.
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Arrangement(Protocol):
    """A mesh that has a place for each process (mesh.py)."""

    def pass_safe_point(self, deadline: float | None) -> tuple[Admission, bool]:
        """That of the default group, then its own; and whether its groups are others now."""


@dataclass(eq=False)
class Run:
    """This process in a run: its connection, its groups in the order in which they were made."""

    comm: Communicator
    token: str
    coordinator: Coordinator | None
    has_default: bool
    pid: int = field(default_factory=os.getpid)
    groups: list[ProcessGroupPccl] = field(default_factory=list)
    mesh: Arrangement | None = None
    # For the next answer of `admit`: the members at the last one, who has joined since,
    # and whether some group has others.
    answered: tuple[PeerId, ...] | None = None
    joined: set[PeerId] = field(default_factory=set)
    has_changed: bool = False
    # The losses that were told of before the last safe point, or before this run.
    losses_told: int = field(default_factory=losses_told)
    # How many groups were made of the same members, in an epoch of the default group.
    made: Counter[tuple[PeerId, ...]] = field(default_factory=Counter)
    made_in: int = 0

    @property
    def world(self) -> ProcessGroupPccl:
        """The group that was made first, with the ranks that others are named by."""
        return self.groups[0]

    def name_for(self, told: str, peers: tuple[PeerId, ...]) -> str:
        """The name of the group that is made of these members next: the same on all of them.

        PyTorch's, `told`, has the number of groups that this process has made, which a newcomer
        does not know. It serves until the first `admit`: so newcomers enter the groups with which
        all programs begin. From then on the name has the epoch and the members.
        """
        if self.answered is None:
            return f"{self.comm.name}/{told}"
        if self.made_in != self.comm.epoch:
            self.made.clear()
            self.made_in = self.comm.epoch
        self.made[peers] += 1
        members = hashlib.sha256(b"".join(map(bytes, peers))).hexdigest()[:16]
        return f"{self.comm.name}/{self.made_in}/{members}/{self.made[peers]}"

    def leave(self, group: ProcessGroupPccl) -> None:
        """A group is over here. All are with the default group, and the connection with the last.

        A first group that is not the default one is left with the others: it has the connection.
        """
        if group not in self.groups:
            return
        if group.comm is not self.comm:
            self.groups.remove(group)
            group.comm.close()
        elif self.has_default or len(self.groups) == 1:
            self.close()

    def close(self) -> None:
        """Leaves all groups; rank 0 waits for the others before it ends the coordinator."""
        global _run
        with _lock:
            if _run is self:
                _run = None
        self.groups.clear()
        self.comm.close()
        if self.coordinator is not None:
            await_others(self.coordinator)
            self.coordinator.close()


_lock = threading.RLock()
_run: Run | None = None
# Entered by the rendezvous "pccl://", and taken by the default group that is made next.
_met: Communicator | None = None
# The store of that group: lone_store.py says why it is kept.
_store: LoneStore | None = None


def current() -> Run:
    """The run of this process. Raises InvalidUsage before there is one."""
    if _run is None:
        raise InvalidUsage(
            'this process is in no run of pccl: call dist.init_process_group("pccl") first'
        )
    return _run


def peer_of(rank: int) -> PeerId:
    """The id of a rank: ranks of pccl_py follow the ids of peers, so they are PyTorch's."""
    return PeerId((1 + rank).to_bytes(16, "big"))


def create(asked: Any, options: Options | None = None) -> ProcessGroupPccl:
    """A process group, for torch.distributed. Connects; the group is entered by its first call.

    Raises PeerLost if a rank that it is made of is lost, and errors of the network.
    """
    try:
        return _create(asked, options)
    except pccl.PcclError as error:
        raise torch_error(error, None if _run is None else _run.world.comm) from None


def _create(asked: Any, options: Options | None) -> ProcessGroupPccl:
    global _run
    if torch.__version__ < _OLDEST:
        raise InvalidUsage(
            f"the backend of torch.distributed needs torch {_OLDEST} or later, and this is torch "
            f"{torch.__version__}: pip install 'pccl-py[torch]'"
        )
    if options is not None and not isinstance(options, Options):
        raise TypeError(
            f"pg_options of pccl must be pccl_torch.Options, not {type(options).__name__}"
        )
    options = Options() if options is None else options
    ranks = list(asked.global_ranks_in_group)
    timeout: timedelta = asked.timeout
    with _lock:
        if _run is not None and not ranks and _run.world.supports_reconfigure:
            _run.close()  # aborted, and forgotten by PyTorch, which makes a default group now
        if _run is None and getattr(asked, "enable_reconfigure", False):
            return _without_members(asked, options)
        if _run is None:
            _run = _begin(asked, ranks, timeout)
            _fetch_ahead(_run)
            return _add(_run, _run.comm, asked, ranks, options)
        if isinstance(options, Founded):
            made: ProcessGroupPccl = options.take(asked, options)
            _run.groups.append(made)
            return made
        peers = tuple(_run.world.peers[rank] for rank in ranks)
        name = _run.name_for(asked.group_id, peers)
        group = found(_run.comm, _run.token, name, peers, timeout.total_seconds())
        return _add(_run, group, asked, ranks, options)


def _without_members(asked: Any, options: Options) -> ProcessGroupPccl:
    """The run of a program that names the members of its default group (reconfigure.py)."""
    global _run, _met
    from pccl_torch.reconfigure import ReconfigurableGroup

    if _met is not None:
        comm, _met = _met, None
        comm.close()
        raise InvalidUsage(
            'the group of init_method="pccl://" has the members of the run already: leave '
            "enable_reconfigure out, and call pccl_torch.admit(), or name another init_method"
        )
    made = ReconfigurableGroup(
        asked, options, lambda: Coordinator(**_address(asked.store, socket.gethostname()))
    )
    nowhere: Any = made.comm
    _run = Run(nowhere, "", None, has_default=True, groups=[made])
    return made


def _add(
    run: Run, group: Group, asked: Any, ranks: list[int], options: Options
) -> ProcessGroupPccl:
    made = ProcessGroupPccl(
        group,
        _peers(run, group, ranks, asked.group_size),
        asked.group_rank,
        asked.group_id,
        options,
        asked.store,
        lambda: run.leave(made),
    )
    made.needs_founders = bool(run.groups)
    made.token = run.token
    made.set_timeout(options.timeout(asked.timeout))
    run.groups.append(made)
    return made


def _peers(run: Run, group: Group, ranks: list[int], size: int) -> list[PeerId]:
    """The members that a group is made for, in PyTorch's order."""
    if run.groups:
        return [run.world.peers[rank] for rank in ranks]
    if group.epoch != 0:
        return list(group.members)
    return [peer_of(rank) for rank in ranks or range(size)]


def _begin(asked: Any, ranks: list[int], timeout: timedelta) -> Run:
    global _met
    rank: int = ranks[asked.group_rank] if ranks else asked.group_rank
    token = os.environ.get("PCCL_TOKEN", "").strip()
    if _met is not None:
        comm, _met = _met, None
        return Run(comm, token, None, True)
    if ranks and not token:
        raise InvalidUsage(
            "a group of pccl needs a run: make the default group with "
            'dist.init_process_group("pccl"), or start the program with `pccl run`'
        )
    coordinator = None
    if not token:
        coordinator, token = share_token(asked.store, rank, asked.group_size)
    try:
        comm = pccl.connect(
            token,
            group=None if not ranks else f"torch/{asked.group_id}",
            initial_world_size=asked.group_size,
            deadline=timeout.total_seconds(),
            peer_id=peer_of(rank),
        )
    except BaseException:
        if coordinator is not None:
            coordinator.close()
        raise
    return Run(comm, token, coordinator, not ranks)


def _fetch_ahead(run: Run) -> None:
    """If the default group is to be entered yet: that of "pccl://" has been."""
    if not run.has_default or run.comm.epoch != 0:
        return
    try:
        ahead.connected(run.comm)
    except BaseException:
        run.close()
        raise


def share_token(
    store: Any, rank: int, size: int, host: str | None = None
) -> tuple[Coordinator | None, str]:
    """Rank 0 starts the coordinator, and tells the others its token, or why there is none.

    A store may live longer than a run: each call of a rank meets as many calls of rank 0.
    `host`: the name of the host of rank 0 for the others, if the store may be on another one.
    """
    key = f"{_TOKEN}/{store.add(f'{_TOKEN}s/{rank}', 1)}"
    if rank != 0:
        told = store.get(key).decode()
        if told.startswith("!"):
            raise pccl.CoordinatorUnreachable(f"rank 0 could not start a coordinator: {told[1:]}")
        return None, told
    try:
        coordinator = Coordinator(**_address(store, host), initial_world_size=size)
    except BaseException as error:
        store.set(key, f"!{error}")
        raise
    store.set(key, coordinator.token)
    return coordinator, coordinator.token


def _address(store: Any, own: str | None) -> dict[str, Any]:
    """Where the coordinator listens: where the store does, unless the environment says more."""
    if os.environ.get("PCCL_COORDINATOR_BIND") or os.environ.get("PCCL_COORDINATOR_ADVERTISE"):
        return {}
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = store.host if isinstance(store, dist.TCPStore) else os.environ.get("MASTER_ADDR", "")
    if not host or host == "localhost" or _is_loopback(host):
        return {}  # the default: 127.0.0.1
    return {"bind": "0.0.0.0:0", "advertise": own or host}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def await_others(coordinator: Coordinator) -> None:
    """Until all peers have left: one may still wait for the decision on its last call."""
    until = time.monotonic() + _LAST_SECONDS
    pause = threading.Event()
    while (left := until - time.monotonic()) > 0:
        status = pccl.run_status(coordinator.token, max(left, 1.0))
        if not status["peers"]:
            return
        pause.wait(_LOOK_SECONDS)
    log.warning(
        "rank 0 ends the coordinator, and others have not left within %g s: what they call from "
        "now on raises CoordinatorUnreachable",
        _LAST_SECONDS,
    )


def meet(url: str, timeout: timedelta) -> Iterator[tuple[Any, int, int]]:
    """The rendezvous "pccl://": the ranks are those of the run that PCCL_TOKEN names.

    Enters the group, so it waits until the run begins, or until its members pass a safe point.
    Without a token it is "env://", or InvalidArgument where the variables of that are missing as
    well. The store is one of this process alone.
    """
    global _met, _store
    if not os.environ.get("PCCL_TOKEN", "").strip():
        missing = [name for name in _OF_TORCHRUN if not os.environ.get(name)]
        if missing:
            raise torch_error(
                InvalidArgument(
                    "no token: set PCCL_TOKEN, as `pccl run -n 1 -- python PROGRAM` does, or start "
                    "the program with `torchrun --nproc-per-node 1 PROGRAM`, which sets "
                    f"{', '.join(_OF_TORCHRUN)} (not set here: {', '.join(missing)})"
                ),
                None,
            )
        yield from c10d.rendezvous("env://", timeout=timeout)
        return
    with _lock:
        if _run is not None or _met is not None:
            raise InvalidUsage("this process is in a run already: destroy_process_group() first")
        try:
            comm = pccl.connect(deadline=timeout.total_seconds())
        except pccl.PcclError as error:
            raise torch_error(error, None) from None
        try:
            ahead.connected(comm)
            comm.admit()
        except BaseException as error:
            comm.close()
            if isinstance(error, pccl.PcclError):
                raise torch_error(error, None) from None
            raise
        _met = comm
    _store = LoneStore()
    yield _store, comm.rank, comm.world_size


@atexit.register
def _at_exit() -> None:
    """A program that ends without destroy_process_group leaves as if it had called it."""
    run = _run
    if run is not None and run.pid == os.getpid():
        run.close()
