"""The run of this process: how `dist.init_process_group("pccl")` finds its coordinator and peers.

    pccl run -n 3 -- python train.py        init_method="pccl://": ranks are those of the run
    torchrun --nproc-per-node 2 train.py    rank 0 starts the coordinator, which goes with it

PCCL_TOKEN in the environment names the run. Without it rank 0 of the default group starts a
coordinator, and passes the token to the other ranks through the store. PyTorch calls `create` for
each group, and gets a ProcessGroupPccl (backend.py).

`admit` is the safe point of all groups of torch.distributed in this process. Only there newcomers
enter, lost members are removed, and ranks and sizes change: `dist.get_rank()` and
`dist.get_world_size()` follow. docs/guides/TORCH.md says what a loss does before the next `admit`.

The program names the members of a ReconfigurableGroup, which it makes with
`init_process_group("pccl", enable_reconfigure=True)`. PyTorch has this since 2.14, for programs
that find their peers by their own means:

    handle = dist._get_reconfigure_handle()    # exchanged with the other processes, by any means
    dist._reconfigure(uuid, handles).wait()    # the same number and handles in all processes

Until the first reconfigure the group has no members. Each reconfigure enters a new group of pccl
that the processes with the given handles form (quorum.py), and leaves the group before. With
`admit` the program names no members: the coordinator knows them.
"""

from __future__ import annotations

import atexit
import hashlib
import ipaddress
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d
from torch.futures import Future

import pccl_py as pccl
from pccl_py import Communicator, Coordinator, Group, InvalidUsage, PcclError, PeerId
from pccl_py.errors import InvalidArgument
from pccl_torch import ahead, ddp, quorum
from pccl_torch.backend import ProcessGroupPccl, leave_behind
from pccl_torch.beside import has_other_backends
from pccl_torch.errors import PeerLost, losses_told, torch_error
from pccl_torch.founding import found
from pccl_torch.options import Founded, Options

# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed
c10d: Any = distributed_c10d
# The stubs of _distributed_c10d lack names that exist.
native: Any = _distributed_c10d

log = logging.getLogger("pccl.torch")

# How long rank 0, as it ends, keeps the coordinator for peers that have not left the run yet, and
# how often it asks for them.
_LAST_SECONDS = 10.0
_LOOK_SECONDS = 0.02
# The oldest PyTorch that was tested with success; most tests fail with 2.6 (docs/guides/TORCH.md).
_OLDEST = "2.13"
_TOKEN = "pccl/token"
# The variables that torchrun sets, by which "env://" makes the default group.
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Arrangement(Protocol):
    """A mesh with a place for each process, as mesh.py implements it."""

    def pass_safe_point(self, deadline: float | None) -> tuple[pccl.Admission, bool]:
        """Passes the default group's and the mesh's safe point; True: the mesh's groups changed."""


@dataclass(eq=False)
class Run:
    """A run that this process is in: its connection, and its groups in the order of creation."""

    comm: Communicator
    token: str
    coordinator: Coordinator | None
    has_default: bool
    pid: int = field(default_factory=os.getpid)
    groups: list[ProcessGroupPccl] = field(default_factory=list)
    mesh: Arrangement | None = None
    # For the next answer of `admit`: the default group's members in the last answer, the members
    # that have joined since, and whether the members of some group have changed.
    answered: tuple[PeerId, ...] | None = None
    joined: set[PeerId] = field(default_factory=set)
    has_changed: bool = False
    # `errors.losses_told()` at the last `admit`, or when the run began.
    losses_told: int = field(default_factory=losses_told)
    # Number of groups made of the same members in the default group's epoch `made_in`.
    made: Counter[tuple[PeerId, ...]] = field(default_factory=Counter)
    made_in: int = 0

    @property
    def world(self) -> ProcessGroupPccl:
        """The group that was made first; its ranks name the members of the other groups."""
        return self.groups[0]

    def name_for(self, told: str, peers: tuple[PeerId, ...]) -> str:
        """The name of the next group of these members, the same on all of them.

        `told`, PyTorch's name, has the number of groups that this process has made, which differs
        in a newcomer. Until the first `admit` it is the name: so newcomers enter the groups that
        every process makes at its start. From then on the name has the epoch and the members.
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
        """Leaves a group. Leaving the default group, or the last group, leaves the whole run.

        A first group that is not the default one has the connection: leaving it does nothing while
        the run has other groups.
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
# A communicator that the rendezvous "pccl://" has entered, until the default group takes it.
_met: Communicator | None = None
# The store of the last "pccl://" rendezvous; LoneStore says why it is kept.
_store: LoneStore | None = None


def current() -> Run:
    """The run of this process. Raises InvalidUsage before there is one."""
    if _run is None:
        raise InvalidUsage(
            'this process is in no run of pccl: call dist.init_process_group("pccl") first'
        )
    return _run


def peer_of(rank: int) -> PeerId:
    """The peer id for a rank of PyTorch: pccl_py's ranks follow the ids, so both ranks agree."""
    return PeerId((1 + rank).to_bytes(16, "big"))


def create(asked: Any, options: Options | None = None) -> ProcessGroupPccl:
    """Makes a process group for torch.distributed; its first call enters it.

    The first group connects to the run. Raises PeerLost if a member of the new group is lost, and
    errors of the network.
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
            _run.close()  # PyTorch dropped the aborted group, and makes a new default group
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
    """The run of a program that names the members of its default group (`ReconfigurableGroup`)."""
    global _run, _met
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
    """The peer ids of the members of a new group, in the order of PyTorch's ranks."""
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
    """Starts fetches (ahead.py) if the default group is not entered; "pccl://" has entered it."""
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
    """Rank 0 starts a coordinator, and sends the other ranks its token, or its error.

    A store may outlive a run, so a rank's nth call with a store gets the token of rank 0's nth
    call. `host`: the address of rank 0's host for the others, if the store may be elsewhere.
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
    """Addresses for the coordinator: on the store's host, unless the environment names them."""
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
    """Waits until all peers have left: a peer may still wait for a decision on its last call."""
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

    Enters the default group, so it waits until the run begins, or until the members pass a safe
    point. Without PCCL_TOKEN it does the rendezvous "env://", or raises InvalidArgument if the
    variables of "env://" are missing as well. The store belongs to this process alone.
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
    """Leaves the run of a program that ends without destroy_process_group."""
    run = _run
    if run is not None and run.pid == os.getpid():
        run.close()


class LoneStore(dist.Store):  # type: ignore[misc]  # of type Any
    """The store of the rendezvous "pccl://", which PyTorch needs: no other process shares it.

    Other backends would wait in it for keys that no process can set, so it is a `HashStore` that
    raises InvalidUsage instead of waiting. Any thread may use it.

    PyTorch keeps only the C++ object of the store, so the global `_store` keeps the Python object.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: Any = dist.HashStore()

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """The value of a key that this process has set."""
        self.wait([key])
        found: bytes = self._store.get(key)
        return found

    def add(self, key: str, amount: int) -> int:
        """Adds `amount` to the number of a key, 0 at first; returns the sum."""
        return int(self._store.add(key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Sets a key to `desired` if it has the expected value; returns the key's value then."""
        found: bytes = self._store.compare_set(key, expected, desired)
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys are set."""
        return bool(self._store.check(keys))

    def delete_key(self, key: str) -> bool:
        """Deletes a key; returns whether it was set."""
        return bool(self._store.delete_key(key))

    def num_keys(self) -> int:
        """The number of keys that are set."""
        return int(self._store.num_keys())

    # C++ calls the two methods by these names.
    deleteKey = delete_key
    getNumKeys = num_keys

    def append(self, key: str, value: str) -> None:
        """Appends `value` to the value of a key."""
        self._store.append(key, value)

    def clone(self) -> LoneStore:
        """Returns this store itself."""
        return self

    def has_extended_api(self) -> bool:
        """False: the store has no calls for several keys at once."""
        return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Raises InvalidUsage unless all keys are set: no other process could set a key."""
        for key in keys:
            if not self._store.check([key]):
                raise torch_error(
                    InvalidUsage(
                        f'the store of init_method="pccl://" has no key {key!r}, and is one of '
                        "this process alone: groups of other backends than pccl, and programs that "
                        'share data through the store, need init_method="env://", or a store of '
                        "their own"
                    ),
                    None,
                )


_PREFIX = "pccl"
_MEMBERLESS = (
    "the process group has no members: exchange the handles of _get_reconfigure_handle(), and call "
    "dist._reconfigure(uuid, handles) in each of the processes"
)


class Memberless:
    """Stands for the group of pccl_py before the first reconfigure; other uses raise."""

    epoch = 0
    _admission = None
    deadline = 0.0
    """Seconds that a call may take, for the group that the first reconfigure enters."""

    def close(self) -> None:
        """Does nothing, as there is no group to leave."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidUsage(_MEMBERLESS)


class ReconfigurableGroup(ProcessGroupPccl):
    """The default group of a program that names its members. Any thread may use it.

    A handle has the token of a coordinator: that of PCCL_TOKEN in the environment; without it, each
    process starts a coordinator when it is first asked for its handle. A reconfigure uses the
    coordinator of the first handle in its list. So after the loss of any process, a reconfigure
    without that process goes on.
    """

    supports_reconfigure = True

    def __init__(self, asked: Any, options: Options, found: Callable[[], Coordinator]) -> None:
        """`asked`: PyTorch's description of the group. `found` starts a reachable coordinator."""
        if options.whole:
            raise InvalidArgument(
                "Options(whole=True) is for groups that never have other members, and "
                "enable_reconfigure=True for those that do: leave one of them out"
            )
        nowhere: Any = Memberless()
        peers = [peer_of(rank) for rank in range(asked.group_size)]
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
        # Held by a reconfigure, which waits for other processes and so must not hold `_lock`.
        self._reconfiguring = threading.Lock()
        self.bar(InvalidUsage(_MEMBERLESS))

    def get_reconfigure_handle(self) -> str:
        """The handle by which other processes name this one: opaque, constant, and a secret.

        Raises SystemRefused if no coordinator can be started, InvalidUsage after the group's end.
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
        """Makes the processes with these handles the members of the group; waits for all of them.

        `opts` has `uuid`, a number that this group has not used; `handles`, a list in the order of
        the ranks, or a set, whose ranks pccl chooses; and `timeout`, or None for the group's
        timeout. All members give the same values. `hints` are ignored. The Work that it returns is
        done.

        Operations in flight end with Cancelled. Sub-groups raise InvalidUsage from now on, and
        models of FSDP2 raise PeerLost unless the handles are the same as before. InvalidArgument
        for invalid handles and InvalidUsage for a used number change nothing. Other errors, such as
        DeadlineExceeded, leave the group without members.
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
        """Leaves the group until the next reconfigure. Operations in flight end with Cancelled."""
        self._part(f"the process group was aborted. {_MEMBERLESS}")

    def _run(self) -> Run:
        run = current()
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
        """Leaves the group of pccl_py, and all groups that were made of its members."""
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

    def _enter(self, run: Run, comm: Communicator, handles: list[str]) -> None:
        """Takes `comm`, the newly entered group, with its members as the members of this group."""
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
    """The handles in the order of ranks; a set is sorted, so all members have the same order."""
    listed = sorted(handles) if isinstance(handles, set | frozenset) else list(handles)
    if not listed:
        raise InvalidArgument("reconfigure needs a handle at least, that of this process")
    return listed


def _digest(handles: Sequence[str]) -> str:
    """A hash for the group's name, so that processes with other handles or orders never meet."""
    return hashlib.sha256("\n".join(handles).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Admission:
    """The members that came and went at a safe point: the result of `admit`.

    `joined` has the ranks, in the default group, of its new members; `left` the ranks that members
    had before they were lost or left. `changed`: the members of some group have changed, or this
    process is itself new. `rank` and `world_size` are those of the default group.
    """

    joined: tuple[int, ...]
    left: tuple[int, ...]
    changed: bool
    rank: int
    world_size: int


def admit(deadline: float | None = None) -> Admission:
    """Passes the safe point of each group, in the order in which the groups were made.

    All members must call `admit` equally often, between the same collectives; no operation may be
    in flight that other members have not called. With nothing pending it costs no network round
    trip. The first call of a process enters the groups that the process has made. If its
    collectives have already entered them, the first call reports that entry, and losses since then;
    `joined` lists no founders if members have come or gone since. DistributedDataParallel over a
    changed group goes on with its new members.

    `deadline`: seconds for each group; the timeout of torch.distributed by default. Raises
    InvalidUsage without a run, and errors of `pccl_py.Group.admit`, after which call `admit` again.
    """
    run = current()
    world = run.world
    if run.answered is None:
        run.answered = world.peers
    heard, run.losses_told = run.losses_told, losses_told()
    told = run.losses_told > heard
    try:
        for group in list(run.groups):
            if not group.of_mesh and not _is_past(run, group):
                _pass_all(run, group, deadline, told)
    finally:
        if run.has_changed:
            tell_torch(run.groups)
    before = {peer: rank for rank, peer in enumerate(run.answered)}
    ranks = {peer: rank for rank, peer in enumerate(world.peers)}
    joined = ranks.keys() - before.keys()
    # If members have come or gone since the founders entered, `joined` lists no founders.
    if ranks.keys() == before.keys() or not run.joined >= before.keys():
        joined |= ranks.keys() & run.joined
    answer = Admission(
        joined=tuple(sorted(ranks[peer] for peer in joined)),
        left=tuple(sorted(before[peer] for peer in before if peer not in ranks)),
        changed=run.has_changed,
        rank=world.rank(),
        world_size=world.size(),
    )
    run.answered, run.has_changed = world.peers, False
    run.joined.clear()
    return answer


def _pass_all(run: Run, group: ProcessGroupPccl, deadline: float | None, told: bool) -> None:
    """Passes the safe points of one group for one call of `admit`: two, one or none.

    A newcomer that a collective has entered has passed the safe point for which the members called
    `admit`, so it passes none now; but if a call was `told` of a loss since then, all members call
    `admit` for the loss, so it passes one. Founders enter the group at a safe point for which no
    member called `admit`, so they pass one more now.
    """
    entry = group.take_entry()
    if entry is not None:
        _note(run, group, entry)
    if entry is None or group.is_founder or told:
        _pass(run, group, deadline)
    if group.is_founder:
        _pass(run, group, deadline)


def _note(run: Run, group: ProcessGroupPccl, admission: pccl.Admission) -> None:
    run.has_changed |= admission.changed
    if group is run.world:
        run.joined.update(admission.joined)


def _pass(run: Run, group: ProcessGroupPccl, deadline: float | None) -> None:
    """Passes one safe point of a group, notes its answer, and renews DDP wrappers of the group."""
    epoch, joined = group.comm.epoch, True
    try:
        if group is run.world and run.mesh is not None:
            admission, changed = run.mesh.pass_safe_point(deadline)
            run.has_changed |= changed
        else:
            admission = group.pass_safe_point(deadline)
        _note(run, group, admission)
        joined = bool(admission.joined)
    finally:
        run.has_changed |= group.comm.epoch != epoch
        if epoch not in (0, group.comm.epoch):
            ddp.renew({group: joined})


def _is_past(run: Run, group: ProcessGroupPccl) -> bool:
    """Bars a group that has not begun and whose member is lost; returns whether it is barred."""
    if group.comm.epoch != 0 or group is run.world:
        return False
    there, before = set(run.world.peers), run.answered or ()
    if any(peer in before and peer not in there for peer in group.peers):
        group.bar(
            PeerLost(
                f"group {group.pg_name!r} has not begun, and some of the {group.size()} members "
                "that it was made for have left or were lost: make it anew"
            )
        )
    return group.is_barred


def tell_torch(groups: list[ProcessGroupPccl]) -> None:
    """Updates torch.distributed's tables of the ranks of these groups, the default group first."""
    ranks = {peer: rank for rank, peer in enumerate(groups[0].peers)}
    tables = c10d._world.pg_group_ranks
    for group in groups:
        if group not in tables:
            continue
        members = enumerate(group.peers)
        tables[group] = {ranks[peer]: number for number, peer in members if peer in ranks}
        if group is dist.group.WORLD:
            c10d._update_default_pg(group)
