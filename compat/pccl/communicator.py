"""Communicator: what a peer of PCCL 1.0 does, by the calls of pccl_py.

Every peer of PCCL 1.0 is a member of one group of pccl_py, called the run here. In
`update_topology` all peers pass the run's safe point together and tell each other their peer
groups; if there are several, each peer group becomes a sub-group. World sizes change only where all
members learn the same: in `update_topology`, and in the outcome of a reduction. A reduction goes on
among the survivors of a loss (recovery "restart"), and fails if this peer is the only survivor.
Enumerations and descriptors are in words.py.
"""

from __future__ import annotations

import array
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pccl_py
from pccl.words import (
    Attribute,
    PCCLError,
    QuantizationOptions,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    SharedStateSyncStrategy,
    TensorInfo,
    name_of,
    told,
)
from pccl_py.buffers import readable
from pccl_py.collectives import Part
from pccl_py.many import IN_FLIGHT_MAX
from pccl_py.words import SECONDS_MAX

# The run id of every master: as it is fixed, a peer needs only the master's address to join, as
# with PCCL 1.0.
RUN_ID = b"pccl 1.0 has one"
# The default ports of a peer, those of PCCL 1.0 (PCCL_PORTS).
PORTS = "48149-49148"
CONNECT_SECONDS = 1.0
# The default time after which calls fail when the master is gone (PCCL_RECONNECT_TIMEOUT).
RECONNECT_SECONDS = 5.0
# How long a call in doubt waits for the coordinator's decision.
DOUBT_SECONDS = 60.0
# Tags of calls that this file makes by itself; programs use lower tags, numbers of tensors.
SPLIT_TAG, PENDING_TAG = 2**62, 2**62 + 1
# Added to the peer group in a member's word in `_split`: the member is in no peer group yet.
_GROUPLESS = 1 << 32

_log = logging.getLogger("pccl")
_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERR": "error", "FATAL": "error"}


@dataclass(eq=False)
class ReduceInfo:
    """Number of peers that contributed to a reduction; bytes that this peer sent and received."""

    local_world_size: int
    tx_bytes: int
    rx_bytes: int

    @property
    def world_size(self) -> int:
        """`local_world_size`, by the name that PCCL before 1.0.0 has for it."""
        return self.local_world_size


@dataclass(eq=False)
class SharedStateSyncInfo:
    """Bytes of tensors that this peer sent and received in a sync."""

    tx_bytes: int
    rx_bytes: int


class SharedState:
    """Tensors that `Communicator.sync_shared_state` makes equal. The program sets `revision`."""

    def __init__(self, tensor_infos: list[TensorInfo]) -> None:
        assert tensor_infos, "At least one tensor info must be provided"
        self.revision = 0
        self.infos = list(tensor_infos)

    def push_revision(self) -> None:
        """Adds one to `revision`."""
        self.revision += 1


class AsyncReduceHandle:
    """A reduction in flight."""

    def __init__(self, comm: Communicator, work: pccl_py.Work) -> None:
        self._comm = comm
        self._work = work
        self._told: tuple[bool, int, ReduceInfo] | None = None

    def wait(self) -> tuple[bool, int, ReduceInfo]:
        """Waits for the end; returns whether it succeeded, its Result as a number, and its info."""
        if self._told is None:
            try:
                info = self._comm._finish(self._work, "pcclAwaitAsyncReduce")
                self._told = True, Result.SUCCESS.value, info
            except PCCLError as error:
                self._told = False, error.result.value, ReduceInfo(0, 0, 0)
        return self._told


class Communicator:
    """A peer of the run of the master at `address`, "ip:port"; or of the run that PCCL_TOKEN names.

    `p2p_connection_pool_size` is ignored: the coordinator sets the number of connections.
    """

    def __init__(
        self, address: str, peer_group: int = 0, p2p_connection_pool_size: int = 0
    ) -> None:
        assert ":" in address, f"Invalid address: {address}, expected format: ip:port"
        with told("pcclCreateCommunicator"):
            self._token = os.environ.get("PCCL_TOKEN") or pccl_py.token_create(address, RUN_ID)
        self._address = None if os.environ.get("PCCL_TOKEN") else address
        self._peer_group = peer_group
        self._run: pccl_py.Communicator | None = None
        self._group: pccl_py.Group | None = None
        # Number of members of each peer group, equal on all members.
        self._sizes: Counter[int] = Counter()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)
        if run is not None:
            run.close()

    def connect(self, n_attempts: int = 5) -> None:
        """Joins the run; returns once the members have accepted this peer at a safe point."""
        if self._run is not None:
            raise PCCLError(Result.INVALID_USAGE, "pcclConnect", "it is connected")
        _set_log_level()
        last: PCCLError | None = None
        for attempt in range(1, n_attempts + 1):
            try:
                with told("pcclConnect", Result.MASTER_CONNECTION_FAILED):
                    self._enter()
            except PCCLError as error:
                _log.warning("no master (attempt %d of %d): %s", attempt, n_attempts, error)
                last = error
            else:
                return
        why = "n_attempts is 0" if last is None else last
        raise Exception(f"Failed to connect to the master node: {why}") from last

    def get_attribute(self, attribute: Attribute) -> int:
        """A number about the run, equal on all members; updates and reductions change it."""
        sizes = self._sizes
        self._opened("pcclGetAttribute")
        return {
            Attribute.GLOBAL_WORLD_SIZE: sizes.total(),
            Attribute.LOCAL_WORLD_SIZE: sizes[self._peer_group],
            Attribute.NUM_DISTINCT_PEER_GROUPS: len(sizes),
            Attribute.LARGEST_PEER_GROUP_WORLD_SIZE: max(sizes.values(), default=0),
        }[attribute]

    def update_topology(self) -> None:
        """The safe point: all peers of the run pass it together, and newcomers enter there."""
        run = self._run
        if run is None:
            raise PCCLError(Result.INVALID_USAGE, "pcclUpdateTopology", "connect() comes first")
        with self._told("pcclUpdateTopology", run, Result.UPDATE_TOPOLOGY_FAILED):
            if any(each.info().operations_in_flight for each in (run, self._group or run)):
                why = "wait for the reductions first"
                raise PCCLError(Result.PENDING_ASYNC_OPS, "pcclUpdateTopology", why)
            run.admit(together=True)
            self._split(run)

    def are_peers_pending(self) -> bool:
        """Whether there is a reason for `update_topology`; all members get the same answer.

        A reason is a newcomer that waits, or a lost member: after a loss no newcomer enters before
        all members call `update_topology`.
        """
        run, _ = self._opened("pcclArePeersPending")
        with self._told("pcclArePeersPending", run):
            now = run.info()
            flag = bytearray([now.pending > 0 or now.alive < now.world_size])
            run.all_reduce(flag, op="max", tag=PENDING_TAG, recovery="restart")
        return flag[0] != 0

    def optimize_topology(self) -> None:
        """Waits until the peer group's data takes the best paths; any peer may call it alone.

        Links whose rates are not known are probed first.
        """
        _, group = self._opened("pcclOptimizeTopology")
        if self.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
            why = "this peer is alone: update_topology() lets others in"
            raise PCCLError(Result.INVALID_USAGE, "pcclOptimizeTopology", why)
        with self._told("pcclOptimizeTopology", group, Result.TOPOLOGY_OPTIMIZATION_FAILED):
            _log.info("optimize_topology: %s", group.optimize_topology())

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Gives all peers of the peer group the elected content of the tensors and its revision."""
        _, group = self._opened("pcclSynchronizeSharedState")
        infos = shared_state.infos
        own = [info.name for info in infos if info.allow_content_inequality]
        tensors = {info.name: info.buffer for info in infos}
        with (
            self._told("pcclSynchronizeSharedState", group),
            group.shared_state(tensors, may_differ=own, rules=["one_sender"]) as state,
        ):
            outcome = state.sync(strategy.word, revision=shared_state.revision)
        shared_state.revision = outcome.elected_revision
        return SharedStateSyncInfo(outcome.bytes_sent, outcome.bytes_received)

    def all_reduce(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
    ) -> ReduceInfo:
        """Reduces `send` over the peer group into `recv`, arrays of NumPy or torch on the CPU."""
        work = self._begin("pcclAllReduce", send, recv, op, tag, quantization_options)
        return self._finish(work, "pcclAllReduce")

    def all_reduce_async(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
    ) -> AsyncReduceHandle:
        """Begins a reduction as `all_reduce`; one reduction at a time for each tag."""
        work = self._begin("pcclAllReduceAsync", send, recv, op, tag, quantization_options)
        return AsyncReduceHandle(self, work)

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Makes these reductions, at most `max_in_flight` (and 64) at once; retries aborts."""
        name = "pcclAllReduceMultipleWithRetry"
        _, group = self._opened(name)
        self._check_size(name)
        with self._told(name, group):
            parts = [_part(each) for each in descriptors]
            options = {"in_flight": min(max_in_flight, IN_FLIGHT_MAX), "recovery": "restart"}
            outcomes: list[pccl_py.Outcome] = group._many(parts, options)
        infos = [self._count(outcome) for outcome in outcomes]
        self._check_size(name)
        sent, received = (sum(info.tx_bytes for info in infos), sum(i.rx_bytes for i in infos))
        return ReduceInfo(self._sizes[self._peer_group], sent, received)

    # ---- parts of the calls

    def _opened(self, name: str) -> tuple[pccl_py.Communicator, pccl_py.Group]:
        """The run and the peer group; raises PCCLError if this peer is not connected to both."""
        if self._run is None or self._group is None:
            why = "connect() comes first" if self._run is None else "update_topology() has failed"
            raise PCCLError(Result.INVALID_USAGE, name, why)
        return self._run, self._group

    def _check_size(self, name: str) -> None:
        if self._sizes[self._peer_group] < 2:
            why = "this peer is alone in its peer group"
            raise PCCLError(Result.TOO_FEW_PEERS, name, why)

    @contextmanager
    def _told(
        self, name: str, group: pccl_py.Group, lost: Result = Result.RANK_CONNECTION_LOST
    ) -> Iterator[None]:
        """Raises errors as `told`; if this peer is out of `group`, MASTER_CONNECTION_FAILED."""
        with told(name, lost):
            try:
                yield
            except pccl_py.PcclError as error:
                if not _is_lost(group):
                    raise
                result = Result.MASTER_CONNECTION_FAILED
                raise PCCLError(result, name, str(error)) from error

    def _reach(self) -> pccl_py.Communicator:
        try:
            return pccl_py.connect(
                self._token,
                ports=os.environ.get("PCCL_PORTS") or PORTS,
                connect_timeout=CONNECT_SECONDS,
                # In PCCL 1.0 calls wait for late peers without a limit, and fail without a master.
                deadline=None if os.environ.get("PCCL_DEADLINE") else SECONDS_MAX,
                reconnect_timeout=(
                    None if os.environ.get("PCCL_RECONNECT_TIMEOUT") else RECONNECT_SECONDS
                ),
            )
        except pccl_py.CoordinatorUnreachable as error:
            if self._address is None:
                raise
            # The error advises about tokens, but this program has the master's address instead.
            reason = str(error).partition(": ")[0]
            raise pccl_py.CoordinatorUnreachable(
                f"{reason}. Start a master at {self._address} (pccl_master, or MasterNode), or "
                "check the host and the port that Communicator was given"
            ) from error

    def _enter(self) -> None:
        run = self._reach()
        try:
            while not _admitted(run):
                continue
            self._split(run)
        except BaseException:
            run.close()
            raise
        self._run = run

    def _split(self, run: pccl_py.Communicator) -> None:
        """Learns all members' peer groups; makes all groups anew if a member has no group yet."""
        mine = self._peer_group | (_GROUPLESS if self._group is None else 0)
        everybody = array.array("Q", bytes(8 * run.world_size))
        outcome = run.all_gather(
            array.array("Q", [mine]), everybody, tag=SPLIT_TAG, recovery="restart"
        )
        there = set(outcome.contributors)
        said = {
            rank: each
            for rank, (each, peer) in enumerate(zip(everybody, run.members, strict=True))
            if peer in there
        }
        self._sizes = Counter(each % _GROUPLESS for each in said.values())
        if all(each < _GROUPLESS for each in said.values()):
            return
        old, self._group = self._group, None
        if old is not None and old is not run:
            old.close()
        group: pccl_py.Group = run
        if len(self._sizes) > 1:
            mates = [rank for rank, each in said.items() if each % _GROUPLESS == self._peer_group]
            group = run.subgroup(mates, name=f"{self._peer_group}.{outcome.sequence}")
        self._group = group

    def _begin(
        self,
        name: str,
        send: Any,
        recv: Any,
        op: ReduceOp,
        tag: int,
        quantization: QuantizationOptions | None,
    ) -> pccl_py.Work:
        _, group = self._opened(name)
        self._check_size(name)
        options: Any = {"op": name_of(op), "tag": tag, "recovery": "restart", "async_op": True}
        with told(name):
            if quantization is not None:
                options["codec"] = quantization.codec
            work: pccl_py.Work = group.all_reduce(_elements_of(send), _elements_of(recv), **options)
        return work

    def _finish(self, work: pccl_py.Work, name: str) -> ReduceInfo:
        run, group = self._run, self._group
        assert run is not None, "it is connected, as a reduction has begun"
        with self._told(name, group or run):
            outcome = _outcome(work)
        info = self._count(outcome)
        if info.local_world_size < 2:
            why = "all other peers have left or were lost"
            raise PCCLError(Result.RANK_CONNECTION_LOST, name, why)
        return info

    def _count(self, outcome: pccl_py.Outcome) -> ReduceInfo:
        """The info of an outcome; shrinks the peer group's size to the number of contributors."""
        here = len(outcome.contributors)
        if here and here < self._sizes[self._peer_group]:
            self._sizes[self._peer_group] = here
        return ReduceInfo(here, outcome.bytes_sent, outcome.bytes_received)


def _is_lost(group: pccl_py.Group) -> bool:
    """Whether this peer was removed from the group; False if the group was closed meanwhile."""
    try:
        return group.info().lost is not None
    except pccl_py.PcclError:
        return False


def _admitted(run: pccl_py.Communicator) -> bool:
    """Passes the safe point; False if the members have not come there within a deadline."""
    try:
        run.admit(together=True)
    except pccl_py.DeadlineExceeded:
        return False
    return True


def _outcome(work: pccl_py.Work) -> pccl_py.Outcome:
    try:
        return work.wait()
    except pccl_py.InDoubt as doubt:
        try:
            return work.resolve(DOUBT_SECONDS)
        except TimeoutError:
            raise doubt from None


def _part(descriptor: ReduceOpDescriptor) -> Part:
    what = descriptor.reduce_descriptor
    codec = what.quantization_options.codec
    beside = {"op": name_of(what.op), "tag": what.tag, "codec": codec}
    send, recv = (descriptor.buffer(at) for at in (descriptor.sendbuf_ptr, descriptor.recvbuf_ptr))
    return Part(send, recv, beside)


def _elements_of(array: Any) -> pccl_py.Buffer:
    """The memory of an array, without its shape: PCCL 1.0 compares counts, and no shapes.

    A torch tensor is detached, as torch refuses the memory of a tensor that requires grad.
    """
    buffer = readable(array.detach() if hasattr(array, "detach") else array)
    return replace(buffer, shape=None)


def _set_log_level() -> None:
    """Sets PCCL_LOG from PCCL_LOG_LEVEL, the variable of PCCL 1.0, unless PCCL_LOG is set."""
    level = _LEVELS.get(os.environ.get("PCCL_LOG_LEVEL", ""))
    if level is not None:
        os.environ.setdefault("PCCL_LOG", level)
