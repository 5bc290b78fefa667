"""Groups: entering, leaving, safe points and sub-groups.

A Communicator is this process as a peer of a run, in its first group. `Communicator.group` enters
another group; `split` and `subgroup` make sub-groups. This file chooses the founders and the name
of a sub-group; the coordinator leaves out a founder that is lost meanwhile
(docs/internals/PROTOCOL.md, sub-groups). This file checks arguments; the native library decides
everything else. collectives.py has collectives and messages, shared_state.py has syncs.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NoReturn, SupportsIndex

from pccl_py import _lifecycle, _log_output, _pccl
from pccl_py._environment import Arguments
from pccl_py.buffers import Array
from pccl_py.collectives import Collectives
from pccl_py.errors import InvalidArgument, InvalidUsage, PcclError, class_name
from pccl_py.network import Rates
from pccl_py.outcome import Admission, Roster, Rosters, figure
from pccl_py.shared_state import SharedState
from pccl_py.words import (
    Congestion,
    CongestionName,
    PeerId,
    Plan,
    Probe,
    ProbeName,
    StateRules,
    at_least_one,
    index,
    nanoseconds,
    text,
)

# The deadline of calls where the program gives none, as in engine/abi/comm.zig.
DEADLINE_NS_DEFAULT = 600 * 10**9

# Functions that are called before each safe point: a frontend that traces programs refuses a safe
# point in a trace, or waits for its programs.
before_admit: list[Callable[[], None]] = []
# Functions that are called at each read of a property that `admit` may change, with the group and
# the property's name: a traced program depends on the values that it has read.
at_read: list[Callable[[Group, str], None]] = []


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """This peer's knowledge of its group right now.

    `world_size` is the number of members of the epoch, of whom `alive` are left; `pending`
    newcomers wait for this peer's next safe point (after a loss they enter at the safe point after
    that). `operations_in_flight` is the number of operations that have been called and are not
    decided. Before the first `admit` epoch, rank, world_size and alive are 0. `bytes_sent` and
    `bytes_received` count payload and headers since `connect`, over all groups. `lost` is None
    while this peer is a member. Afterwards `lost` is the name of the error that calls in the group
    raise, "Expelled" for example, and the other fields have the last values that this peer knew.
    """

    epoch: int
    attempt: int
    rank: int
    world_size: int
    alive: int
    pending: int
    operations_in_flight: int
    peer_id: PeerId
    bytes_sent: int
    bytes_received: int
    lost: str | None = None


# The end of a limit that stands for all links of the other end, as in pccl.h.
_ALL_LINKS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The way that the data of calls with `plan="auto"` takes, and what it brings.

    `kind` is "ring" or "direct". `order` has the ranks in the order of the ring; it is empty if
    every ring has a broken link. `shares` says how much of the data each rank of the epoch owns in
    a direct schedule, as parts of their sum; if all are 0, the members own equally much. Calls of
    fewer than `small_bytes` bytes are direct, with equal shares. `predicted` is how many seconds an
    all_reduce of 64 MiB takes at the rates that this peer knows, and `bound` the least seconds that
    any schedule needs; None if a rate is not known. `limits` names the links that need longest, as
    pairs of ranks (from, to); None at one end stands for all links of the rank at the other end.
    `epoch` and `attempt` tell plans apart, and are 0 before the first `admit`.
    docs/guides/PLANS.md says how a plan is chosen.
    """

    epoch: int
    attempt: int
    kind: Literal["ring", "direct"]
    order: tuple[int, ...]
    shares: tuple[int, ...]
    small_bytes: int
    predicted: float | None
    bound: float | None
    limits: tuple[tuple[int | None, int | None], ...]

    def __str__(self) -> str:
        if self.kind == "ring":
            way = "ring " + " ".join(map(str, self.order))
        elif any(self.shares):
            owners = (f"{rank}:{share}" for rank, share in enumerate(self.shares) if share)
            way = "direct, shares " + " ".join(owners)
        else:
            way = "direct"
        if self.small_bytes:
            way += f", direct below {self.small_bytes // 1024} KiB"
        if self.predicted is None or self.bound is None:
            return way
        return f"{way}: {self.predicted:.3g} s for 64 MiB, at least {self.bound:.3g} s"


class Group(Collectives):
    """Membership of this peer in one group. Any thread may call any method.

    Tags: operations with different tags may be in flight together, one at a time per tag. A program
    that takes a new tag for each operation must take the next number: an epoch holds 65,536 tags
    that are not neighbours. All members must call the same operations in the same order per tag,
    and `admit` equally often. 64 collectives of a group, 64 sends and 64 receives are in flight at
    once. Up to 1,024 further calls wait; waiting collectives, sends and receives each begin in the
    order of their calls. A program with that many calls must make them in one order of all tags on
    all members.
    After `close`, and in a forked child, `members` and every method but `close` raise InvalidUsage;
    the other properties keep their last values.
    """

    _exit_order = 0

    def __init__(
        self,
        native: _pccl.Comm,
        name: str,
        deadline_ns: int,
        groups: weakref.WeakSet[Group] | None = None,
    ) -> None:
        self._native = native
        self._name = name
        self._admission: Admission | None = None
        self._run: Run | None = None
        self._splits = 0  # number of splits in the current epoch
        # All groups of this peer except the first.
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet() if groups is None else groups
        self._closed = False
        self._forked = False
        super().__init__(Rosters(functools.partial(_roster_now, native)), deadline_ns)
        # Without this, a sub-group's deadline would be the time that was left for its making.
        native.set_deadline(deadline_ns)
        self._peer_id = PeerId(native.info()[7])
        _lifecycle.register(self)

    # ---- membership --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The group's name."""
        return self._name

    @property
    def peer_id(self) -> PeerId:
        """The id of this peer, the same in all its groups."""
        return self._peer_id

    @property
    def rank(self) -> int:
        """Position of this peer in the epoch, 0 to world_size - 1. Changes only in `admit`."""
        self._tell_read("rank")
        return self._admitted().rank

    @property
    def world_size(self) -> int:
        """Number of members of the epoch. Changes only in `admit`.

        Peers that were lost or have left count until the next `admit`; `info().alive` does not
        count them.
        """
        self._tell_read("world_size")
        return self._admitted().world_size

    @property
    def epoch(self) -> int:
        """Number of the current epoch; 0 before the first `admit`."""
        return 0 if self._admission is None else self._admission.epoch

    @property
    def members(self) -> tuple[PeerId, ...]:
        """All members of the epoch in rank order, also members that left or were lost since.

        `info().alive` counts the members that are left; the next `admit().left` names the others.
        """
        self._tell_read("members")
        return tuple(PeerId(peer) for peer in self._open().members())

    def label(self, peer: PeerId) -> str:
        """The name of a peer for people, "host:pid" unless `connect` was given another.

        The labels of members are known, and of peers that joined, left or are about to enter; for
        any other peer `label` returns the beginning of its id.
        """
        return _label_of(self._open(), peer)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of `members`, in rank order."""
        return tuple(self.label(peer) for peer in self.members)

    @property
    def deadline(self) -> float:
        """Seconds that a call without `deadline` may take; a program may set it for later calls.

        The first value comes from `connect` or `Communicator.group`, and for a sub-group from its
        parent.
        """
        return self._deadline_ns / 1e9

    @deadline.setter
    def deadline(self, seconds: float) -> None:
        native = self._open()
        self._deadline_ns = nanoseconds(seconds, "deadline") or DEADLINE_NS_DEFAULT
        native.set_deadline(self._deadline_ns)

    @property
    def handle(self) -> int:
        """A number that stands for this group in compiled programs, which outlive the group.

        The number is below 2**63, and a process never gives a number twice. Native code looks up
        the number in each call (bindings/handlers.h), so a call of a closed group is refused, and a
        group that a call uses is not freed.
        """
        return self._open().handle

    def info(self) -> GroupInfo:
        """This peer's knowledge of the group right now."""
        *numbers, peer_id, sent, received, lost = self._open().info()
        epoch, attempt, rank, world_size, alive, pending, in_flight = numbers
        return GroupInfo(
            epoch=epoch,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            alive=alive,
            pending=pending,
            operations_in_flight=in_flight,
            peer_id=PeerId(peer_id),
            bytes_sent=sent,
            bytes_received=received,
            lost=class_name(lost),
        )

    def plan(self) -> GroupPlan:
        """The present plan, as far as this peer knows. Costs no network round trip."""
        answer = self._open().plan()
        epoch, attempt, kind, order, shares, small_bytes, predicted_ns, bound_ns, limits = answer
        return GroupPlan(
            epoch=epoch,
            attempt=attempt,
            kind="direct" if kind == Plan.DIRECT else "ring",
            order=tuple(order),
            shares=tuple(shares),
            small_bytes=small_bytes,
            predicted=figure(predicted_ns),
            bound=figure(bound_ns),
            limits=tuple(
                (None if start == _ALL_LINKS else start, None if end == _ALL_LINKS else end)
                for start, end in limits
            ),
        )

    def optimize_topology(self, deadline: float | None = None) -> GroupPlan:
        """Waits until no better plan is known, and returns the plan.

        Links whose rates are not known are probed first, 1.5 seconds for each round of pairs, and a
        better plan begins at once, although members may be busy. Any member may call
        `optimize_topology`, alone or together with others, and on any thread; operations go on
        meanwhile. A program need not call it: plans follow the rates by themselves, but wait for a
        quiet moment, and links are probed while nothing moves.

        Raises DeadlineExceeded after `deadline` seconds (default: the communicator's); operations
        go on as before. Raises InvalidUsage before the first `admit`.
        """
        native = self._open()
        try:
            native.optimize_topology(nanoseconds(deadline, "deadline"))
        except PcclError as error:
            self._origin("optimize_topology").mark(error)
            raise
        return self.plan()

    def admit(self, deadline: float | None = None, *, together: bool = False) -> Admission:
        """The safe point: the only place where newcomers enter and where rank and size change.

        Every member must call `admit` equally often. A new epoch begins if newcomers are ready, or
        after peers were lost or left. Each member enters the epoch as it calls `admit`, so `admit`
        of a newcomer may return while members are still at work: `Admission.not_entered` names
        these members, and operations wait for them. With nothing pending the call costs no network
        round trip.

        `together`: `admit` returns when all members have called it, and either all members enter
        the new epoch or none does; a newcomer returns when all earlier members have entered. All
        members must pass `together` at the same safe points: a member that does not pass `together`
        does not wait. With `together` the call costs an operation of all members and raises the
        errors of an operation; after an error this peer has not passed the safe point, so call
        `admit` again. The other members have not passed the safe point either, except perhaps after
        a deadline; then the next `admit` of this peer passes it, too.

        A program in several groups must call `admit` of its groups in the same order on all peers.
        Raises DeadlineExceeded after `deadline` seconds (default: the communicator's); then this
        peer has not passed the safe point.
        """
        for check in before_admit:
            check()
        native = self._open()
        deadline_ns = nanoseconds(deadline, "deadline") or self._deadline_ns
        try:
            answer = native.admit(deadline_ns, together)
        except PcclError as error:
            self._origin("admit").mark(error)
            raise
        epoch, rank, world_size, changed, joined, left = answer
        came, went = (tuple(PeerId(peer) for peer in peers) for peers in (joined, left))
        self._admission = Admission(
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            joined=came,
            left=went,
            changed=changed,
            joined_labels=tuple(_label_of(native, peer) for peer in came),
            left_labels=tuple(_label_of(native, peer) for peer in went),
            not_entered=self.not_entered if changed else (),
        )
        if changed:
            self._rosters.learn()
            self._splits = 0
        return self._admission

    def pending_agreed(self, deadline: float | None = None) -> int:
        """How many newcomers wait for the next `admit(together=True)`, the same on all members.

        The newcomers enter at that `admit`; after a loss they enter at the `admit` after that, and
        a second `pending_agreed` counts them again. All members must call `pending_agreed`. The
        call passes no safe point, and costs an operation of all members; `info().pending` costs
        nothing and is this peer's own knowledge. Raises the errors of an operation; after an error
        call `pending_agreed` again.
        """
        return self._open().pending_agreed(nanoseconds(deadline, "deadline"))

    @property
    def not_entered(self) -> tuple[PeerId, ...]:
        """Members that, as far as this peer knows, have not entered the epoch yet.

        Operations wait for a member that is still in the epoch before.
        """
        return tuple(PeerId(peer) for peer in self._open().not_entered())

    # ---- sub-groups --------------------------------------------------------------------------

    def split(
        self,
        color: SupportsIndex | None,
        key: SupportsIndex = 0,
        *,
        tag: int = 0,
        deadline: float | None = None,
    ) -> Group | None:
        """Makes a sub-group of the members of each color, and enters the sub-group of this peer.

        All members must call `split`, like any operation. `color`: an integer, or None for no
        sub-group. `key`: orders the ranks in the sub-group; members with equal keys follow their
        ranks here. `tag`: the tag of the operation in which members exchange their colors. Returns
        when all members of the color have called `split`. Members that are lost meanwhile are left
        out of the sub-group and of its `members`; `run` has the colors that all members passed.

        A sub-group is a Group of its own: collectives and losses in a sub-group concern its members
        alone, whatever the run's `min_world_size` is. No newcomer enters a sub-group, and a safe
        point of this group does not change it: close the sub-group and split again after an `admit`
        that has `changed`. A peer is in at most 8 groups, and a run has at most 64.

        Raises the errors of an operation, on all members. If the members of a color do not meet,
        they get DeadlineExceeded or Expelled. When one member gives up, other members may have
        entered just before, and then see a loss.
        """
        wish = wish_of(color, key, self._splits)
        epoch, members, rank = self.epoch, self.members, self.rank
        until = time.monotonic() + (nanoseconds(deadline, "deadline") or self._deadline_ns) / 1e9
        memory = room_for(len(members))
        left = max(1e-3, until - time.monotonic())
        self.all_gather(wish.encode(), memory, recovery="restart", tag=tag, deadline=left)
        split = Split.decode(epoch, memory)
        self._splits = split.number + 1
        self._run = split.run(rank)
        if wish.color is None:
            return None
        founders = [members[rank] for rank in split.ranks(wish.color)]
        return self._found(split.name(self._name, wish.color), founders, until)

    @property
    def run(self) -> Run:
        """The sub-groups that the last `split` made, the same on all members."""
        if self._run is None:
            raise InvalidUsage("the groups of the run are known after the first split(): call it")
        return self._run

    def subgroup(
        self,
        ranks: Sequence[SupportsIndex],
        *,
        name: str = "",
        deadline: float | None = None,
    ) -> Group:
        """Makes a sub-group of these ranks of the epoch, in this order, and enters it.

        Only the members of these ranks call `subgroup`, with the same list and the same `name`;
        else all founders get Mismatch. Two sub-groups of one epoch need different names while the
        first is open. Members that make several sub-groups must make them in the same order.
        Otherwise as `split`, which finds out for its callers who is in which sub-group.
        """
        numbers = ranks_of(ranks, self.world_size)
        until = time.monotonic() + (nanoseconds(deadline, "deadline") or self._deadline_ns) / 1e9
        members = self.members
        founders = [members[number] for number in numbers]
        return self._found(name_of(self._name, self.epoch, text(name, "name")), founders, until)

    def _found(self, name: str, founders: list[PeerId], until: float) -> Group:
        left = max(1, round((until - time.monotonic()) * 1e9))
        ids = [bytes(peer) for peer in founders]
        native = self._open().subgroup(name, ids, left)
        group = Group(native, name, self._deadline_ns, self._groups)
        self._groups.add(group)
        try:
            group.admit(max(1e-3, until - time.monotonic()))
        except BaseException:
            group.close()
            raise
        return group

    # ---- shared state ------------------------------------------------------------------------

    def shared_state(
        self,
        tensors: Mapping[str, Array],
        *,
        name: str = "state",
        revision: int = 0,
        may_differ: Iterable[str] = (),
        prefetch: bool = False,
        rules: StateRules = (),
    ) -> SharedState:
        """Named arrays that `SharedState.sync` makes equal on all members. Nothing is sent yet.

        `tensors`: 1 to 65,536 writable C-contiguous arrays by name, which are kept until the state
        is closed. All peers pass the same names, shapes and dtypes; the order may differ. `name`:
        the name of the state; each state of a group has a name of its own. `revision`: how many
        syncs the content has seen; pass the `revision` that was saved with a checkpoint. The
        highest revision wins among members that start together; a newcomer's content never replaces
        that of members (`StateRule`). `may_differ`: names of tensors whose content stays each
        peer's own. `prefetch`: newcomers may read the arrays at any time, while this peer trains,
        so that their first sync moves only later changes. A newcomer that makes its state between
        `connect` and its first `admit` fetches the content from members that set `prefetch`, and
        then enters. `rules`: rules of all syncs, for example `rules=("successive", "refuse")`, the
        same on every peer; see `StateRule`.
        """
        native, origin = self._open(), self._origin("sync")
        return SharedState(native, origin, tensors, name, revision, may_differ, prefetch, rules)

    # ---- leaving -----------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group; the other members go on without this peer. Idempotent.

        This peer's operations in flight end with `Cancelled`.
        """
        if self._closed or self._forked:
            return
        self._closed = True
        self._native.close()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def __repr__(self) -> str:
        kind, name = type(self).__name__, self._name
        if self._closed:
            return f"<{kind} {name!r} closed>"
        now = self._admission
        place = (
            f"peer {self._peer_id.short} not admitted"
            if now is None
            else f"rank {now.rank} of {now.world_size} in epoch {now.epoch}"
        )
        if self._forked:
            return f"<{kind} {name!r} of the parent process, {place}>"
        if lost := self.info().lost:
            return f"<{kind} {name!r} lost ({lost}), was {place}>"
        return f"<{kind} {name!r} {place}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is a connection of this process and cannot be pickled: pass "
            "the run's token to the other process, and call pccl_py.connect(token) there"
        )

    def _open(self) -> _pccl.Comm:
        if self._forked:
            raise InvalidUsage(
                f"group {self._name!r} was opened before this process was forked: connect in the "
                "child itself"
            )
        if self._closed:
            _lifecycle.exit_again()
            raise InvalidUsage(f"group {self._name!r} is closed; connect again to go on")
        return self._native

    def _tell_read(self, name: str) -> None:
        for tell in at_read:
            tell(self, name)

    def _admitted(self) -> Admission:
        if self._admission is None:
            raise InvalidUsage(
                "rank and world_size are known after the first admit(): call it first"
            )
        return self._admission

    def _exit(self) -> None:
        self.close()

    def _leave(self) -> None:
        self.close()

    def _fork(self) -> None:
        self._forked = True


class Communicator(Group):
    """This process as a peer of a run, in its first group. Made by `connect`.

    `close`, or leaving the `with` block, leaves all groups and closes the connections.
    """

    def group(
        self,
        name: str,
        *,
        initial_world_size: int | None = None,
        deadline: float | None = None,
    ) -> Group:
        """Enters another group of the same run, over the same connections and port.

        Returns once this peer is ready to enter; the first `admit` of the Group enters. Arguments
        are as for `connect`.
        """
        deadline_ns = nanoseconds(deadline, "deadline") or self._deadline_ns
        native = self._open().join(
            text(name, "name"),
            at_least_one(initial_world_size, "initial_world_size"),
            deadline_ns,
        )
        group = Group(native, name, deadline_ns, self._groups)
        self._groups.add(group)
        return group

    def close(self) -> None:
        """Leaves all groups of this peer and closes its connections. Idempotent."""
        for group in list(self._groups):
            group.close()
        super().close()


def _label_of(native: _pccl.Comm, peer: PeerId) -> str:
    return native.label(bytes(peer)) or peer.short


def _roster_now(native: _pccl.Comm) -> Roster | None:
    """The members of the epoch in force; None if the epoch changes, or is left, meanwhile."""
    try:
        epoch = native.info()[0]
        members = tuple(PeerId(peer) for peer in native.members())
        roster = Roster(epoch, members, tuple(_label_of(native, peer) for peer in members))
        return roster if native.info()[0] == epoch else None
    except InvalidUsage:
        return None


def connect(
    token: str | None = None,
    *,
    group: str | None = None,
    initial_world_size: int | None = None,
    bind: str | None = None,
    advertise: str | None = None,
    ports: str | None = None,
    deadline: float | None = None,
    connect_timeout: float | None = None,
    peer_id: PeerId | bytes | str | None = None,
    label: str | None = None,
    reconnect_timeout: float | None = None,
    send_rate: Rates | None = None,
    congestion: Congestion | CongestionName | None = None,
    probe: Probe | ProbeName | None = None,
) -> Communicator:
    """Joins a run. Returns once this peer is ready to enter; the first `admit` enters the group.

    Arguments that are not given come from the environment (docs/reference/ENVIRONMENT.md). `token`:
    the coordinator's token; PCCL_TOKEN. `group`: name of the group, up to 256 bytes; PCCL_GROUP, or
    "default". `initial_world_size`: peers that the first epoch of the group waits for;
    PCCL_INITIAL_WORLD_SIZE, or the coordinator's number. `bind`: "host:port" or "host" to listen on
    for other peers, ":0" for all interfaces; PCCL_BIND, or a free port on the interface that leads
    to the coordinator (on all interfaces with `advertise`). `advertise`: the address that other
    peers dial, "host" or "host:port"; PCCL_ADVERTISE, or the local address, or if the coordinator
    does not reach this peer there, the host that the coordinator sees. An advertised host that is
    not the host of this peer's connection must be within reach of the coordinator. `ports`: the
    range from which the port to listen on is taken where `bind` names none, "29400-29500";
    PCCL_PORTS, or any free port. `deadline`: default deadline of all operations, in seconds;
    PCCL_DEADLINE, or 10 minutes. `connect_timeout`: seconds until CoordinatorUnreachable;
    PCCL_CONNECT_TIMEOUT, or 30. `peer_id`: 32 hexadecimal digits; PCCL_PEER_ID, or random. `label`:
    name for people, up to 80 bytes, in errors, logs and the status, in which %h is the host and %p
    the process id; PCCL_LABEL, or "%h:%p". `reconnect_timeout`: seconds that calls wait for a
    coordinator that is away, 0 for not at all; after these seconds this peer is out of its groups,
    and all calls end with CoordinatorUnreachable, or with InDoubt after the vote;
    PCCL_RECONNECT_TIMEOUT, or until the deadlines of the calls. `send_rate`: what this peer sends
    to all others together at most, "200mbit", "25MB" or bytes per second, and to single peers by
    their labels, "200mbit,eu-1=20mbit" or {None: "200mbit", "eu-1": "20mbit"}
    (docs/guides/NETWORKING.md); PCCL_SEND_RATE, or no limit. `congestion`: the congestion control
    of its lanes, "auto", "system", "bbr" or "cubic" (`Congestion`); PCCL_CONGESTION, or "auto".
    `probe`: probes of its links, "auto" or "off" (`Probe`); PCCL_PROBE, or "auto".

    Raises InvalidArgument, CoordinatorUnreachable, AuthenticationFailed, VersionMismatch,
    DeadlineExceeded, SystemRefused. Ctrl-C withdraws the attempt to join.
    """
    _log_output.configure()
    read = Arguments("PCCL_")
    name = _group(read, group)
    deadline_ns = read.nanoseconds(deadline, "PCCL_DEADLINE") or DEADLINE_NS_DEFAULT
    with _chosen_id(read, peer_id) as chosen, _lifecycle.opening():
        native = _pccl.Comm.connect(
            _token(read, token),
            name,
            read.text(bind, "PCCL_BIND"),
            read.text(advertise, "PCCL_ADVERTISE"),
            read.text(ports, "PCCL_PORTS"),
            read.at_least_one(initial_world_size, "PCCL_INITIAL_WORLD_SIZE"),
            deadline_ns,
            read.nanoseconds(connect_timeout, "PCCL_CONNECT_TIMEOUT"),
            chosen,
            _label(read, label),
            read.nanoseconds(reconnect_timeout, "PCCL_RECONNECT_TIMEOUT", may_be_zero=True),
            read.rates(send_rate, "PCCL_SEND_RATE"),
            read.congestion(congestion, "PCCL_CONGESTION"),
            read.probe(probe, "PCCL_PROBE"),
        )
        comm = Communicator(native, name, deadline_ns)
        _by_id[comm.peer_id] = comm
        return comm


# The communicators of this process by peer id. `_choosing` is held while a connection is made that
# takes the id given by `pccl run`.
_by_id: weakref.WeakValueDictionary[PeerId, Communicator] = weakref.WeakValueDictionary()
_choosing = threading.Lock()


@contextmanager
def _chosen_id(read: Arguments, value: PeerId | bytes | str | None) -> Iterator[PeerId | None]:
    """The id of a new connection: the argument, the id of PCCL_PEER_ID, or None for a random id.

    `pccl run` writes "ID@PID" into PCCL_PEER_ID. Only the process PID takes this id, and not a
    child that inherits the variable; and only one connection of the process has the id at a time.
    """
    said: PeerId | bytes | str | None
    said, variable = read.given(value, "PCCL_PEER_ID")
    if variable != "PCCL_PEER_ID" or not isinstance(said, str) or "@" not in said:
        yield None if said is None else PeerId(said)
        return
    text, _, process = said.partition("@")
    own = PeerId(text)
    if process != str(os.getpid()) or not _choosing.acquire(blocking=False):
        yield None
        return
    try:
        holder = _by_id.get(own)
        yield own if holder is None or holder.closed else None
    finally:
        _choosing.release()


def _group(read: Arguments, value: str | None) -> str:
    name = read.text(value, "PCCL_GROUP")
    return "default" if name is None else name


def _token(read: Arguments, value: str | None) -> str:
    token = (read.text(value, "PCCL_TOKEN") or "").strip()
    if not token:
        raise InvalidArgument(
            "no token: pass one, or set PCCL_TOKEN (`pccl run -n 1 -- PROGRAM` does)"
        )
    return token


def _label(read: Arguments, value: str | None) -> str | None:
    """The label of the argument or the environment, with %h and %p filled in; None for neither."""
    label = read.text(value, "PCCL_LABEL")
    return None if label is None else _log_output.filled_in(label)


# ---- the members of sub-groups ------------------------------------------------------------------

# The longest name of a group, as in engine/base/limits.zig.
NAME_BYTES_MAX = 256

# The fields of a Wish: whether there is one, whether it has a color, color, key, splits. The shard
# of a lost peer is zeros: there is no wish.
_WISH = struct.Struct("<??qqQ")


@dataclass(frozen=True, slots=True)
class Run:
    """The groups that the last `split` of a communicator made, as all its members know them.

    `epoch`: the epoch of the communicator that was split. `rank`: this peer's rank in this epoch.
    `colors`: the color of each rank; None for a rank that takes part in no group, or was lost. A
    peer that is lost after it has passed its color still counts.
    """

    epoch: int
    rank: int
    colors: tuple[int | None, ...]

    @property
    def world_size(self) -> int:
        """Number of members of the epoch."""
        return len(self.colors)

    @property
    def groups(self) -> int:
        """Number of groups that the split made."""
        return len(self._sizes())

    @property
    def largest_group(self) -> int:
        """Number of members of the largest group; 0 if there is none."""
        return max(self._sizes().values(), default=0)

    def _sizes(self) -> Counter[int]:
        return Counter(color for color in self.colors if color is not None)


@dataclass(frozen=True, slots=True)
class Wish:
    """The arguments of a member in a split; `splits`: how many the member has made in the epoch."""

    color: int | None
    key: int
    splits: int

    def encode(self) -> bytes:
        return _WISH.pack(True, self.color is not None, self.color or 0, self.key, self.splits)


def wish_of(color: SupportsIndex | None, key: SupportsIndex, splits: int) -> Wish:
    """Checks the arguments of a split. Raises TypeError or InvalidArgument before data is sent."""
    return Wish(None if color is None else _signed(color, "color"), _signed(key, "key"), splits)


def _signed(value: SupportsIndex, name: str) -> int:
    number = index(value, name)
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgument(f"{name} must be between -2**63 and 2**63 - 1, not {number}")
    return number


@dataclass(frozen=True, slots=True)
class Split:
    """The wishes of all members in a split, the same on all members."""

    epoch: int
    wishes: tuple[Wish | None, ...]

    @classmethod
    def decode(cls, epoch: int, memory: bytes | bytearray) -> Split:
        wishes = (
            Wish(color if has_color else None, key, splits) if there else None
            for there, has_color, color, key, splits in _WISH.iter_unpack(memory)
        )
        return cls(epoch, tuple(wishes))

    @property
    def number(self) -> int:
        """The number of this split in its epoch: the largest, as members may count a failed one."""
        return max(wish.splits for wish in self.wishes if wish is not None)

    def run(self, rank: int) -> Run:
        colors = (None if wish is None else wish.color for wish in self.wishes)
        return Run(self.epoch, rank, tuple(colors))

    def ranks(self, color: int) -> list[int]:
        """The ranks with this color, ordered by key, and by rank for equal keys."""
        found = [
            (wish.key, rank)
            for rank, wish in enumerate(self.wishes)
            if wish is not None and wish.color == color
        ]
        return [rank for _, rank in sorted(found)]

    def name(self, parent: str, color: int) -> str:
        return _name(parent, f"@{self.epoch}.{self.number}:{color}")


def room_for(world_size: int) -> bytearray:
    """Memory for the wishes of all members."""
    return bytearray(_WISH.size * world_size)


def name_of(parent: str, epoch: int, name: str) -> str:
    """The name of a sub-group that is made of ranks; names of two epochs differ."""
    return _name(parent, f"@{epoch}:{name}")


def _name(parent: str, rest: str) -> str:
    """Puts the parent's name, or if the whole is too long a hash of it, in front of `rest`."""
    name = parent + rest
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return hashlib.blake2b(parent.encode(), digest_size=8).hexdigest() + rest


def ranks_of(ranks: Sequence[SupportsIndex], world_size: int) -> list[int]:
    """Checks ranks of an epoch, each given once. Raises InvalidArgument or TypeError."""
    numbers = [index(rank, "a rank") for rank in ranks]
    for number in numbers:
        if not 0 <= number < world_size:
            raise InvalidArgument(f"rank {number} is not in a world of {world_size}")
    if len(set(numbers)) != len(numbers):
        raise InvalidArgument(f"ranks {numbers} name one rank twice")
    return numbers
