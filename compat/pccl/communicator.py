"""Communicator: what a peer of PCCL 1.0 does, by the calls of pccl_py.

Every peer is in one group of pccl_py, the run, whose safe points all pass together: that is
`update_topology`. There all tell their peer groups, and make a group of pccl_py for each, unless
there is only one. World sizes change where all members learn of it alike: there, and in the outcome
of a reduction. A reduction goes on among its survivors (recovery "restart"), and has failed only
where nobody else is left. Enumerations and descriptors are in words.py.
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

# Whoever knows the address of a master can join, as with PCCL 1.0: its runs have no secret.
RUN_ID = b"pccl 1.0 has one"
# Where nothing else is said, peers listen where those of PCCL 1.0 do.
PORTS = "48149-49148"
CONNECT_SECONDS = 1.0
# Where PCCL_RECONNECT_TIMEOUT says nothing, a master that is gone fails calls after this time.
RECONNECT_SECONDS = 5.0
# For a decision about a call whose coordinator is away.
DOUBT_SECONDS = 60.0
# Tags that no program has: PCCL 1.0 numbers tensors.
SPLIT_TAG, PENDING_TAG = 2**62, 2**62 + 1
_GROUPLESS = 1 << 32

_log = logging.getLogger("pccl")
_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERR": "error", "FATAL": "error"}


@dataclass(eq=False)
class ReduceInfo:
    """How many have contributed to a reduction, and its bytes at this peer."""

    local_world_size: int
    tx_bytes: int
    rx_bytes: int

    @property
    def world_size(self) -> int:
        """`local_world_size`, by the name that it had before 1.0.0."""
        return self.local_world_size


@dataclass(eq=False)
class SharedStateSyncInfo:
    """Bytes of a sync at this peer."""

    tx_bytes: int
    rx_bytes: int


class SharedState:
    """Tensors that `Communicator.sync_shared_state` makes equal. The program sets `revision`."""

    def __init__(self, tensor_infos: list[TensorInfo]) -> None:
        assert tensor_infos, "At least one tensor info must be provided"
        self.revision = 0
        self.infos = list(tensor_infos)

    def push_revision(self) -> None:
        """Raises the revision by one."""
        self.revision += 1


class AsyncReduceHandle:
    """A reduction in flight."""

    def __init__(self, comm: Communicator, work: pccl_py.Work) -> None:
        self._comm = comm
        self._work = work
        self._told: tuple[bool, int, ReduceInfo] | None = None

    def wait(self) -> tuple[bool, int, ReduceInfo]:
        """Waits for the end: whether it succeeded, the value of its Result, and more about it."""
        if self._told is None:
            try:
                info = self._comm._finish(self._work, "pcclAwaitAsyncReduce")
                self._told = True, Result.SUCCESS.value, info
            except PCCLError as error:
                self._told = False, error.result.value, ReduceInfo(0, 0, 0)
        return self._told


class Communicator:
    """A peer of the run whose master is at `address`, "ip:port"; with PCCL_TOKEN, of that run.

    `p2p_connection_pool_size` is the coordinator's to say here, and is ignored.
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
        # Members of each peer group, as all members know them.
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
        """A number about the run, equal on all members: see `update_topology`."""
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
        """Whether a member knows of a reason for `update_topology`; all get the same answer.

        A newcomer that waits is one, and a member that was lost: until then nobody enters.
        """
        run, _ = self._opened("pcclArePeersPending")
        with self._told("pcclArePeersPending", run):
            now = run.info()
            flag = bytearray([now.pending > 0 or now.alive < now.world_size])
            run.all_reduce(flag, op="max", tag=PENDING_TAG, recovery="restart")
        return flag[0] != 0

    def optimize_topology(self) -> None:
        """Nothing moves: the ring is that of the ranks until there are others."""
        self._opened("pcclOptimizeTopology")
        if self.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
            raise PCCLError(Result.INVALID_USAGE, "pcclOptimizeTopology", "there is one peer")
        _log.info("optimize_topology: the ring goes by rank")

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Makes the tensors equal in the peer group, and `revision` that of their content."""
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
        """Begins what `all_reduce` does; one at a time for each tag."""
        work = self._begin("pcclAllReduceAsync", send, recv, op, tag, quantization_options)
        return AsyncReduceHandle(self, work)

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Reduces all of them, at most `max_in_flight` and 64 at once; repeats what was aborted."""
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

    # ---- what they are made of

    def _opened(self, name: str) -> tuple[pccl_py.Communicator, pccl_py.Group]:
        """The run, and the peer group."""
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
        """As `told`; a failure after which this peer is out of the group is a lost master."""
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
                # In PCCL 1.0 peers may be as late as they like, and without a master calls fail.
                deadline=None if os.environ.get("PCCL_DEADLINE") else SECONDS_MAX,
                reconnect_timeout=(
                    None if os.environ.get("PCCL_RECONNECT_TIMEOUT") else RECONNECT_SECONDS
                ),
            )
        except pccl_py.CoordinatorUnreachable as error:
            if self._address is None:
                raise
            # Its remedies are about tokens, of which a program with an address has none.
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
        """Learns who is in which peer group. If one of them is in none yet, all are made anew."""
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
        """The numbers of an outcome, which all members have alike; world sizes follow them."""
        here = len(outcome.contributors)
        if here and here < self._sizes[self._peer_group]:
            self._sizes[self._peer_group] = here
        return ReduceInfo(here, outcome.bytes_sent, outcome.bytes_received)


def _is_lost(group: pccl_py.Group) -> bool:
    """Whether this peer is out of the group; also if the group was closed meanwhile."""
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
    """The memory of an array in one dimension: PCCL 1.0 compares counts, and no shapes.

    A tensor of torch is taken without its gradient, which does not hand out memory with it.
    """
    buffer = readable(array.detach() if hasattr(array, "detach") else array)
    return replace(buffer, shape=None)


def _set_log_level() -> None:
    """PCCL_LOG_LEVEL of PCCL 1.0, where PCCL_LOG is not set."""
    level = _LEVELS.get(os.environ.get("PCCL_LOG_LEVEL", ""))
    if level is not None:
        os.environ.setdefault("PCCL_LOG", level)
