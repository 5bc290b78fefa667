"""ProcessGroupPccl: the collectives of torch.distributed over a group of pccl_py.

PyTorch calls the methods by these names, from Python and from C++ (DDP, functional collectives). A
collective checks and packs its tensors, begins one operation and returns a Work (work.py). start.py
makes groups and has their safe point; tensors.py says which tensors can be sent.

PyTorch's ranks of a group follow the list that the group was made of; pccl_py's ranks follow the
ids of peers. `_peers` has the peer ids in the order of PyTorch's ranks.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed
from torch import Tensor
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from pccl_py import (
    Admission,
    Codec,
    CodecKind,
    DeadlineExceeded,
    ErrorFeedback,
    Group,
    InvalidUsage,
    PcclError,
    PeerId,
    Recovery,
    ReduceOp,
    Work,
)
from pccl_py.codec import CodecName, parse_codec
from pccl_py.collectives import TAG_BITS
from pccl_py.errors import InvalidArgument
from pccl_py.words import RecoveryName, parse_plan, parse_recovery
from pccl_torch.beside import Beside
from pccl_torch.errors import PeerLost, remembered, torch_error
from pccl_torch.forms import accepting
from pccl_torch.founding import Missing
from pccl_torch.options import Options
from pccl_torch.staging import Stager, staged, stages_for
from pccl_torch.tensors import TORCH, check_written
from pccl_torch.work import PcclWork

# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed
c10d: Any = distributed_c10d
# The stubs of _distributed_c10d lack names that exist.
native: Any = _distributed_c10d

Tensors: TypeAlias = Sequence[Tensor]
Splits: TypeAlias = Sequence[int]

# pccl_py's op for each op of PyTorch, already parsed, as a call takes a fifth of a millisecond.
_OPS: dict[Any, Any] = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVG,
    dist.ReduceOp.PRODUCT: ReduceOp.PROD,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.BAND: ReduceOp.BAND,
    dist.ReduceOp.BOR: ReduceOp.BOR,
    dist.ReduceOp.BXOR: ReduceOp.BXOR,
    # pccl_py refuses this op, and its error says why.
    dist.ReduceOp.PREMUL_SUM: "premul_sum",
}
# A message's tag in pccl_py: PyTorch's tag times this, plus the message's number, counted by tag.
_IN_FLIGHT = 1 << 14
# Separates the name that a group was given from the number of its renamings.
_RENAMED = "~"
_TAGS = 1 << (TAG_BITS - 14)
# Ops for bool tensors, as in NCCL: a sum is true where any member's value is true.
_OPS_OF_BOOL: dict[Any, Any] = {
    ReduceOp.SUM: ReduceOp.BOR,
    ReduceOp.MAX: ReduceOp.BOR,
    ReduceOp.PROD: ReduceOp.BAND,
    ReduceOp.MIN: ReduceOp.BAND,
}


@accepting  # accepts all forms of a call, where a method has one (forms.py)
@staged  # takes CUDA tensors as well (staging.py)
class ProcessGroupPccl(dist.ProcessGroup):  # type: ignore[misc]  # of type Any
    """A process group of torch.distributed. `dist.init_process_group("pccl")` makes one.

    Calls may come from any thread; all members must make the same calls in the same order. A
    process enters the group in its first call, or in an earlier `pccl_torch.admit`.
    """

    of_mesh = False
    """Whether the group is one of an `Hsdp`, which changes the group's members (mesh.py)."""

    needs_founders = False
    """Whether the group is barred if one of its founders is lost before it begins (start.py)."""

    token = ""
    """The run's token, to ask the coordinator for missing members before the group begins."""

    def __init__(
        self,
        group: Group,
        peers: Sequence[PeerId],
        rank: int,
        name: str,
        options: Options,
        store: Any,
        leave: Callable[[], None],
    ) -> None:
        super().__init__(rank, len(peers))
        self.comm = group
        """The group of pccl_py, for calls that torch.distributed does not have."""
        self._peers = tuple(peers)
        self._rank = rank
        self._named = name
        self._renamed = 0
        self._described = "undefined"
        self._options = options
        self._recovery = parse_recovery(options.recovery)
        self._codec = parse_codec(options.codec)
        self._plan = parse_plan(options.plan)
        self._store = store
        self._leave = leave
        self._stager = Stager(leave)
        stages_for(self._stager, group)
        self._beside = Beside(self)
        self._lock = threading.RLock()
        self._tag = 0
        # Number of messages begun, by call ("send" or "recv"), rank of the other member, and tag.
        self._messages: dict[tuple[str, int, int], int] = {}
        # Whether this process has entered the group, and calls are permitted; no loss resets it.
        self._is_entered = group.epoch != 0
        # The answer of the safe point at which this process entered, until `take_entry`.
        self._entry: Admission | None = group._admission
        self.is_founder = self._entry is not None and _is_founding(self._entry)
        """Whether the last safe point of this process began an epoch of new members alone."""
        # Whether PyTorch's ranks follow the list that the group was made of; else the epoch.
        self._is_listed = group.epoch == 0
        # pccl_py's rank for each rank of PyTorch; None if all are equal.
        self._places: list[int] | None = None
        # The error that every call in the group raises; None permits calls.
        self._barred: PcclError | None = None

    # ---- questions that PyTorch asks of a group

    def getBackendName(self) -> str:
        """The name of the backend, "pccl"."""
        return "pccl"

    def name(self) -> str:
        """The name of the backend, "pccl"."""
        return "pccl"

    def rank(self) -> int:
        """The rank of this process in the group. Changes only in `pccl_torch.admit`."""
        return self._rank

    def size(self) -> int:
        """The number of members of the group. Changes only in `pccl_torch.admit`."""
        return len(self._peers)

    # C++ calls these names (DDP divides by the size); else it takes the constructor's values.
    getRank = rank
    getSize = size

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """The peer ids of the members, in the order of PyTorch's ranks."""
        return self._peers

    @property
    def next_tag(self) -> int:
        """The tag of the next collective in `comm`; each collective takes the next number."""
        return self._tag

    @property
    def pg_name(self) -> str:
        """The name that PyTorch has given the group."""
        return self._named

    @property
    def group_name(self) -> str:
        """The name that PyTorch has given the group."""
        return self._named

    @property
    def group_desc(self) -> str:
        """The description that the program gave the group when it made it."""
        return self._described

    def _set_group_name(self, name: str) -> None:
        self._named = name

    def _set_group_desc(self, desc: str) -> None:
        self._described = desc

    @property
    def supports_coalescing(self) -> bool:
        """False: the `_coalesced` methods send a list of tensors as one operation."""
        return False

    supports_splitting = False
    """`split_group` raises: dist.new_group makes groups of some ranks."""

    supports_reconfigure = False
    """Members change in `pccl_torch.admit`; only start.py's ReconfigurableGroup reconfigures."""

    supports_window = False
    """Members cannot write to each other's memory."""

    def get_backend(self, device: Any) -> ProcessGroupPccl:
        """This group, as the backend for any `device`."""
        return self

    _get_backend = get_backend

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors a collective takes; collectives of objects use the first."""
        cuda = [torch.device("cuda")] if torch.cuda.is_available() else []
        return [torch.device("cpu"), *cuda]

    @property
    def bound_device_id(self) -> None:
        """None: no group is bound to a device."""
        return

    def get_group_store(self) -> Any:
        """The store that PyTorch gave the group."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the deadline of later calls without a timeout, in this group and in `comm`."""
        self.comm.deadline = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def __repr__(self) -> str:
        return f"<ProcessGroupPccl {self._named!r}: {self.comm!r}>"

    # ---- beginning and ending

    def enter(self, call: str, timeout: timedelta | None = None) -> None:
        """Enters the group, if this process has not entered it; waits for the other members.

        Each collective calls `enter` first. `enter` waits until earlier calls, whose CUDA tensors
        are still being copied, have begun (staging.py). `call`: the collective's name, for the
        error after `timeout` (the group's timeout if None). Raises the error of a barred group:
        PeerLost if the group cannot go on with its members.
        """
        self._stager.drain()
        if self._is_entered:
            return
        with self._lock:
            if self._barred is None and self.comm.epoch == 0:
                self._entry = self._enter_first(call, timeout)
            if self._barred is not None:
                raise remembered(type(self._barred)(*self._barred.args))
            self._is_entered = True

    def _enter_first(self, call: str, timeout: timedelta | None) -> Admission:
        seconds = _seconds(timeout) or self.comm.deadline
        with Missing(self.comm, self.token, self.comm.name, self._peers, seconds) as missing:
            try:
                return self.pass_safe_point(seconds)
            except DeadlineExceeded:
                if missing.has_begun:
                    raise
        error = DeadlineExceeded(
            f"{call}, the first call in group {self._named!r}, timed out: the timeout of "
            f"{seconds:g} s passed, waiting for {missing} to make theirs. A group begins when all "
            "its members have made their first call in it"
        )
        raise torch_error(error, self.comm)

    def take_entry(self) -> Admission | None:
        """The answer of the safe point at which this process entered, once; then None."""
        entry, self._entry = self._entry, None
        return entry

    def pass_safe_point(self, deadline: float | None) -> Admission:
        """Passes this group's safe point alone; pccl_torch.admit passes those of all groups."""
        self._stager.drain()
        with self._lock:
            try:
                admission = self.comm.admit(deadline)
            except PcclError as error:
                raise torch_error(error, self.comm) from None
            if admission.joined and len(admission.joined) < admission.world_size:
                self._is_listed = False
            self.is_founder = _is_founding(admission)
            if self.is_founder and self.needs_founders:
                self._bar_if_short(self.comm.members)
            if admission.changed and self._options.whole:
                self._bar_if_changed(self.comm.members)
            if admission.changed and self._barred is None:
                self._take_up(self.comm.members)
            return admission

    def _bar_if_short(self, members: tuple[PeerId, ...]) -> None:
        missing = len(set(self._peers) - set(members))
        if missing:
            why = (
                f"{missing} of the {len(self._peers)} members that group {self._named!r} was made "
                "of left or were lost before it began: make it anew"
            )
            self.bar(PeerLost(why))

    def _bar_if_changed(self, members: tuple[PeerId, ...]) -> None:
        """Bars the group if its members changed; its ranks and size stay, as buffers need them."""
        if set(members) != set(self._peers) and self._barred is None:
            left = len(set(self._peers) & set(members))
            why = (
                f"group {self._named!r} was made with {len(self._peers)} members that it cannot do "
                f"without (Options(whole=True)), and {left} of them are left: make the group anew, "
                "and the model that is sharded over it from a checkpoint"
            )
            self.bar(PeerLost(why))

    @property
    def is_barred(self) -> bool:
        """Whether every call in the group raises the error of `bar`."""
        return self._barred is not None

    def bar(self, why: PcclError | None) -> None:
        """Makes every call in the group raise `why`; None permits calls again."""
        self._barred = why
        self._is_entered = False

    def rename(self) -> None:
        """Gives the group another name, as `leave_behind` gives its old name to a past group."""
        self._renamed += 1
        self._named = f"{self._named.partition(_RENAMED)[0]}{_RENAMED}{self._renamed}"

    def past(self, peers: Sequence[PeerId], rank: int, why: str) -> ProcessGroupPccl:
        """A copy of this group with past members, in which every call raises PeerLost(why)."""
        made = ProcessGroupPccl(
            self.comm, peers, rank, self._named, self._options, self._store, lambda: None
        )
        stages_for(self._stager, self.comm)
        made.bar(PeerLost(why))
        return made

    def _failed(self, error: PcclError) -> None:
        """Called when a call in the group has failed; mesh.py overrides it."""

    def _take_up(self, members: tuple[PeerId, ...], leaves_behind: bool = True) -> None:
        """Takes the members of a new epoch as the members of the group, and counts tags from 0.

        Ranks follow the list that the group was made of until a member has joined, whose list may
        differ. From then on they follow the epoch on all members: old members first, then new ones.
        Models and meshes made for the old members are cut off (`leave_behind`).
        """
        before, rank = self._peers, self._rank
        there = set(members)
        listed = tuple(peer for peer in self._peers if peer in there)
        is_known = self._is_listed and len(listed) == len(members)
        self._peers = listed if is_known else members
        self._places = [members.index(peer) for peer in self._peers]
        if self._places == list(range(len(members))):
            self._places = None
        self._rank = self._peers.index(self.comm.peer_id)
        self._tag = 0
        self._messages.clear()
        if leaves_behind and (self._peers, self._rank) != (before, rank):
            event = (
                f"the members of group {self._named!r} have changed (there were {len(before)}, and "
                f"there are {self.size()})"
            )
            leave_behind(self, before, rank, event)

    def shutdown(self) -> None:
        """Leaves the group. Operations in flight end with Cancelled. Idempotent."""
        self._leave()
        self._stager.close()

    abort = shutdown

    # ---- one operation

    def _begin(
        self,
        call: str,
        *given: Any,
        outputs: Tensors,
        fill: Callable[[], None] | None = None,
        deadline: timedelta | None = None,
        feedback: ErrorFeedback | None = None,
        **options: Any,
    ) -> PcclWork:
        """Begins an operation of all members, with the next tag.

        `feedback`: the codec's losses of the previous call, which this call adds to its input.
        """
        self.enter(call, deadline)
        options.setdefault("recovery", self._recovery)
        with self._lock:
            comm, tag = self.comm, self._tag
            if feedback is not None:  # pccl_py finds it by the tag, which each call changes
                comm._feedbacks[tag] = feedback
            try:
                begun = self._start(call, given, tag, fill, deadline, options)
            finally:
                if feedback is not None:
                    del comm._feedbacks[tag]
            if not isinstance(begun, PcclError):
                self._tag += 1
        if isinstance(begun, PcclError):
            raise self._refused(begun, comm) from None
        return self._keep(PcclWork(comm, begun, outputs, failed=self._on_failure(comm)))

    def _start(
        self,
        call: str,
        given: tuple[Any, ...],
        tag: int,
        fill: Callable[[], None] | None,
        deadline: timedelta | None,
        options: dict[str, Any],
    ) -> Work[Any] | PcclError:
        """Begins an operation with the lock held; returns an error, as it must not raise there."""
        seconds = _seconds(deadline)
        finish = None if fill is None else _finisher(fill)
        begin: Any = getattr(self.comm, call)
        try:
            work: Work[Any] = begin(
                *given, tag=tag, deadline=seconds, async_op=True, _finish=finish, **options
            )
        except PcclError as error:
            return error
        return work

    def _refused(self, error: PcclError, comm: Group) -> PcclError:
        """The error to raise for a call that was refused at its begin.

        Called without the lock: `_failed` may wait for a thread that renews this group (mesh.py),
        which takes the lock.
        """
        made = torch_error(error, comm)
        if comm is self.comm and not isinstance(made, InvalidArgument):
            self._failed(made)
        return made

    def _on_failure(self, comm: Group) -> Callable[[PcclError], None] | None:
        """A callback for a failed Work that calls `_failed`; None unless a subclass has its own."""
        if type(self)._failed is ProcessGroupPccl._failed:
            return None

        def failed(error: PcclError) -> None:
            if comm is self.comm:  # the group was not renewed since
                self._failed(error)

        return failed

    def _keep(self, work: PcclWork) -> PcclWork:
        """Returns the Work of a call; torchft.py overrides it to record each Work."""
        return work

    def _place(self, rank: int) -> int:
        """pccl_py's rank for a rank of PyTorch."""
        if not 0 <= rank < self.size():
            raise InvalidArgument(
                f"rank {rank} is not in the group, which has {self.size()} members"
            )
        return rank if self._places is None else self._places[rank]

    def _reduction(self, opts: Any, tensors: Tensors) -> dict[str, Any]:
        """pccl_py's options for a reduction of these tensors: op, plan, codec."""
        asked = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        op = _OPS[getattr(asked, "op", asked)]
        kinds = {tensor.dtype for tensor in tensors}
        if torch.bool in kinds:
            if len(kinds) > 1:
                raise InvalidArgument(
                    "bool has operations of its own: reduce it apart from tensors of other dtypes"
                )
            op = _OPS_OF_BOOL.get(op, op)
        options: dict[str, Any] = {"op": op, "plan": self._plan}
        if op in (ReduceOp.SUM, ReduceOp.AVG) and kinds == {torch.float32}:
            options["codec"] = self._codec
        return options

    def _plans(self, options: dict[str, Any], tensors: Tensors) -> bool:
        """Whether the caller must multiply an average to get this sum (Options.planned)."""
        if not self._options.planned or options["op"] is not ReduceOp.SUM:
            return False
        floats = [tensor.is_floating_point() or tensor.is_complex() for tensor in tensors]
        if not all(floats):
            if any(floats):
                raise InvalidArgument(
                    "sums of this group are planned (Options), for floats: reduce integers apart"
                )
            return False
        options["op"] = ReduceOp.AVG
        return True

    # ---- tensors

    def _source(self, x: Tensor) -> Tensor:
        return TORCH.packed(TORCH.array(x, adds=False))

    def _flat(self, x: Tensor) -> Tensor:
        """The packed elements of `x` in one dimension, as other members may use another shape."""
        return self._source(x).view(-1)

    def _target(self, x: Tensor) -> Tensor:
        """Memory for the result of `x`: `x` itself if it is contiguous, else a new tensor."""
        tensor = TORCH.array(x, adds=False)
        if tensor.is_contiguous():
            # The operation may write the tensor from now on, even if the program drops the Work.
            TORCH.written(tensor)
            return tensor
        check_written(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")

    def _places_of(self, tensors: Tensors) -> list[Tensor]:
        """Packed tensors with the values of `tensors`, to be reduced in place."""
        made = []
        for tensor in tensors:
            target = self._target(tensor)
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor.detach())
            made.append(target)
        return made

    def _order(self) -> Sequence[int]:
        """PyTorch's ranks, sorted by pccl_py's ranks."""
        if self._places is None:
            return range(self.size())
        return sorted(range(self.size()), key=self._places.__getitem__)

    def _in_order(self, tensors: Tensors) -> list[Tensor]:
        return [tensors[rank] for rank in self._order()]

    def _check_each(self, name: str, tensors: Sequence[object]) -> None:
        if len(tensors) != self.size():
            raise InvalidArgument(
                f"{name} has {len(tensors)} tensors, and the group {self.size()} members: it needs "
                "one for each"
            )

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> PcclWork:
        """Reduces a tensor over all members, in place."""
        _check_one(tensors, "allreduce")
        return self._reduce("all_reduce", tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> PcclWork:
        """Reduces each of the tensors over all members, in place, as one operation."""
        return self._reduce("all_reduce", tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> PcclWork:
        """Reduces a tensor over all members, in place on the root."""
        _check_one(tensors, "reduce")
        return self._reduce("reduce", tensors, opts, root=_root(opts))

    def average(
        self,
        x: Tensor,
        *,
        codec: Codec | CodecKind | CodecName | None,
        recovery: Recovery | RecoveryName,
        form: int,
        feedback: ErrorFeedback | None,
        reword: Callable[[str], str],
    ) -> PcclWork:
        """Averages a tensor over the members that contribute, in place: for hooks (ddp.py).

        `codec`: the group's codec if None; only float32 is encoded. `form`: a hash of what `x` is,
        which all members must give alike. `feedback`: the codec's losses of the previous call,
        which this call adds to `x`. `reword`: changes the sentence of an error.
        """
        used = self._places_of([x])
        options: dict[str, Any] = {"op": "avg", "plan": self._plan, "recovery": recovery}
        if x.dtype == torch.float32:
            options["codec"] = self._codec if codec is None else codec
        return self._begin(
            "all_reduce",
            _memory(used),
            outputs=[x],
            fill=_writer([x], used),
            feedback=feedback,
            _form=form,
            _reword=reword,
            **options,
        )

    def _reduce(self, call: str, tensors: Tensors, opts: Any, root: int | None = None) -> PcclWork:
        self.enter(call, _timeout(opts))
        writes = root is None or root == self._rank
        used = self._places_of(tensors) if writes else [self._source(x) for x in tensors]
        options = self._reduction(opts, used)
        if root is not None:
            options["root"] = self._place(root)
        fill = _writer(tensors, used) if writes else None
        if self._plans(options, used):
            fill = None if fill is None else _multiplied(used, self.size(), fill)
        return self._begin(
            call,
            _memory(used),
            outputs=tensors,
            fill=fill,
            deadline=_timeout(opts),
            **options,
        )

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> PcclWork:
        """Reduces a list of tensors over all members; each receives the tensor of its rank."""
        self.enter("reduce_scatter", _timeout(opts))
        (output,), (parts,) = outputs, inputs
        self._check_each("the input list", parts)
        return self._reduce_scatter([output], [list(parts)], opts)

    def reduce_scatter_single(self, output: Tensor, x: Tensor, opts: Any = None) -> PcclWork:
        """Reduces `x` over all members; each member receives the part of its rank."""
        return self._reduce_scatter_singles([output], [x], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PcclWork:
        """Reduces several tensors as `reduce_scatter_single`, in one operation."""
        return self._reduce_scatter_singles(outputs, inputs, opts)

    def _reduce_scatter_singles(self, outputs: Tensors, inputs: Tensors, opts: Any) -> PcclWork:
        self.enter("reduce_scatter", _timeout(opts))
        if self._places is None:
            sources = [self._source(x) for x in inputs]
            targets = [self._target(output) for output in outputs]
            return self._scatter_reduced(outputs, sources, targets, opts)
        sources = [_joined(self._in_order(self._shares(x))).view(x.shape) for x in inputs]
        targets = [self._target(output) for output in outputs]
        return self._scatter_reduced(outputs, sources, targets, opts)

    def _reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> PcclWork:
        """Begins a reduce_scatter of lists with a tensor for each rank of PyTorch, in order."""
        sources = [_stacked([self._source(part) for part in self._in_order(p)]) for p in inputs]
        targets = [self._target(output) for output in outputs]
        counts = [part.numel() for part in self._in_order(inputs[0])]
        uneven = {"counts": counts} if len(set(counts)) > 1 else {}
        return self._scatter_reduced(outputs, sources, targets, opts, **uneven)

    def _scatter_reduced(
        self, outputs: Tensors, sources: Tensors, targets: Tensors, opts: Any, **uneven: Any
    ) -> PcclWork:
        options = self._reduction(opts, sources)
        fill = _writer(outputs, targets)
        if self._plans(options, sources):
            fill = _multiplied(targets, self.size(), fill)
        return self._begin(
            "reduce_scatter",
            _memory(sources),
            _memory(targets),
            outputs=outputs,
            fill=fill,
            deadline=_timeout(opts),
            **options,
            **uneven,
        )

    def _shares(self, x: Tensor) -> list[Tensor]:
        """Cuts `x` into flat parts of equal size, one for each rank of PyTorch."""
        flat = TORCH.packed(TORCH.array(x, adds=False)).view(-1)
        if flat.numel() % self.size():
            raise InvalidArgument(
                f"a tensor of {flat.numel()} elements has no equal part for each of {self.size()} "
                "members"
            )
        return list(flat.view(self.size(), -1).unbind(0))

    # ---- moves

    def broadcast(self, tensors: Tensors, opts: Any = None) -> PcclWork:
        """Copies a tensor of the root to all members."""
        _check_one(tensors, "broadcast")
        root = _root(opts)
        self.enter("broadcast", _timeout(opts))
        take = self._source if root == self._rank else self._target
        used = [take(tensor) for tensor in tensors]
        return self._begin(
            "broadcast",
            _memory(used),
            self._place(root),
            outputs=tensors,
            fill=None if root == self._rank else _writer(tensors, used),
            deadline=_timeout(opts),
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> PcclWork:
        """Collects a tensor of each member in a list, on all members; sizes may differ."""
        self.enter("all_gather", _timeout(opts))
        (parts,), (x,) = outputs, inputs
        self._check_each("the output list", parts)
        return self._all_gather([parts], [self._flat(x)], parts, opts)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> PcclWork:
        """Collects a list of tensors of each member, as one operation: `outputs[rank][number]`."""
        self.enter("all_gather", _timeout(opts))
        self._check_each("the output list", outputs)
        lists = [[of_rank[number] for of_rank in outputs] for number in range(len(inputs))]
        sources = [self._flat(x) for x in inputs]
        return self._all_gather(lists, sources, [t for ts in outputs for t in ts], opts)

    def all_gather_single(self, output: Tensor, x: Tensor, opts: Any = None) -> PcclWork:
        """Concatenates a tensor of each member, in the order of ranks, on all members."""
        return self._all_gather_singles([output], [x], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> PcclWork:
        """Gathers several tensors as `all_gather_single`, in one operation."""
        return self._all_gather_singles(outputs, inputs, opts)

    def _all_gather_singles(self, outputs: Tensors, inputs: Tensors, opts: Any) -> PcclWork:
        self.enter("all_gather", _timeout(opts))
        if self._places is None:
            targets = [self._target(output) for output in outputs]
            return self._gather_all(inputs, targets, outputs, _writer(outputs, targets), opts)
        packed = [self._target(output) for output in outputs]
        lists = [self._shares(target) for target in packed]
        write = _writer(outputs, packed)
        return self._all_gather(lists, inputs, outputs, opts, then=write)

    def _all_gather(
        self,
        lists: Sequence[Tensors],
        inputs: Tensors,
        outputs: Tensors,
        opts: Any,
        then: Callable[[], None] | None = None,
    ) -> PcclWork:
        """Begins an all_gather into lists that have a tensor for each rank of PyTorch, in order."""
        collected = [_Parts(self._in_order(parts)) for parts in lists]
        counts = collected[0].counts

        def fill() -> None:
            for parts in collected:
                parts.fill()
            if then is not None:
                then()

        uneven = {"counts": counts} if len(set(counts)) > 1 else {}
        targets = [parts.joined for parts in collected]
        return self._gather_all(inputs, targets, outputs, fill, opts, **uneven)

    def _gather_all(
        self,
        inputs: Tensors,
        targets: Tensors,
        outputs: Tensors,
        fill: Callable[[], None],
        opts: Any,
        **uneven: Any,
    ) -> PcclWork:
        sources = [self._source(x) for x in inputs]
        return self._begin(
            "all_gather",
            _memory(sources),
            _memory(targets),
            outputs=outputs,
            fill=fill,
            deadline=_timeout(opts),
            plan=self._plan,
            **uneven,
        )

    def gather_whole(
        self, x: Tensor, out: Tensor, counts: list[int] | None, deadline: float | None
    ) -> None:
        """Concatenates `x` of each member in `out`, in the order of pccl_py's ranks; blocks.

        Raises PeerLost if a member is lost, whatever the group's recovery, as elastic.py needs the
        data of all members.
        """
        uneven: dict[str, Any] = {}
        if counts is not None and len(set(counts)) > 1:
            uneven["counts"] = counts
        self._begin(
            "all_gather",
            _memory([x]),
            _memory([out]),
            outputs=[out],
            deadline=None if deadline is None else timedelta(seconds=deadline),
            recovery="complete",
            **uneven,
        ).wait()

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> PcclWork:
        """Collects a tensor of each member in a list, on the root."""
        self.enter("gather", _timeout(opts))
        (x,), parts = inputs, None
        if _root(opts) == self._rank:
            (parts,) = outputs
            self._check_each("the output list", parts)
        return self._gather(parts, x, [] if parts is None else parts, opts)

    def gather_single(self, output: Tensor, x: Tensor, opts: Any = None) -> PcclWork:
        """Concatenates a tensor of each member, in the order of ranks, on the root."""
        self.enter("gather", _timeout(opts))
        if _root(opts) != self._rank:
            return self._gather(None, x, [], opts)
        whole = self._target(output)
        then = _writer([output], [whole])
        return self._gather(self._shares(whole), x, [output], opts, then)

    def _gather(
        self,
        parts: Tensors | None,
        x: Tensor,
        outputs: Tensors,
        opts: Any,
        then: Callable[[], None] | None = None,
    ) -> PcclWork:
        """Begins a gather into `parts`, one for each rank of PyTorch; None except on the root."""
        collected = None if parts is None else _Parts(self._in_order(parts))
        if collected is not None and len(set(collected.counts)) > 1:
            raise InvalidArgument(
                "gather needs tensors of one size on all members: all_gather takes others"
            )

        def fill() -> None:
            if collected is not None:
                collected.fill()
            if then is not None:
                then()

        return self._begin(
            "gather",
            TORCH.memory(self._flat(x)),
            None if collected is None else TORCH.memory(collected.joined),
            self._place(_root(opts)),
            outputs=outputs,
            fill=None if collected is None else fill,
            deadline=_timeout(opts),
            plan=self._plan,
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> PcclWork:
        """Sends each member the tensor of its rank, from a list on the root."""
        self.enter("scatter", _timeout(opts))
        root, (output,) = _root(opts), outputs
        source = None
        if root == self._rank:
            (parts,) = inputs
            self._check_each("the input list", parts)
            source = TORCH.memory(_joined([self._source(p) for p in self._in_order(parts)]))
        target = self._target(output)
        return self._begin(
            "scatter",
            source,
            TORCH.memory(self._flat(target)),
            self._place(root),
            outputs=outputs,
            fill=_writer(outputs, [target]),
            deadline=_timeout(opts),
            plan=self._plan,
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> PcclWork:
        """Sends each member the tensor of its rank, and receives a tensor from each member."""
        return self._all_to_all(outputs, inputs, opts)

    def _all_to_all(self, outputs: Tensors, inputs: Tensors, opts: Any) -> PcclWork:
        self.enter("all_to_all", _timeout(opts))
        self._check_each("the input list", inputs)
        self._check_each("the output list", outputs)
        collected = _Parts(self._in_order(outputs))
        sources = [self._source(x) for x in self._in_order(inputs)]
        counts = [x.numel() for x in sources], collected.counts
        return self._exchange(
            _joined(sources), collected.joined, counts, outputs, collected.fill, opts
        )

    def alltoall_base(
        self,
        output: Tensor,
        x: Tensor,
        output_splits: Splits,
        input_splits: Splits,
        opts: Any = None,
    ) -> PcclWork:
        """Sends each member some rows of `x`, and receives rows from each member in `output`.

        If both lists of splits are empty, each member gets the same number of rows.
        """
        self.enter("all_to_all", _timeout(opts))
        if output_splits or input_splits:
            rows = self._split(output, output_splits), self._split(x, input_splits)
            return self._all_to_all(*rows, opts)
        whole = self._target(output)
        collected = _Parts(self._in_order(self._shares(whole)))
        source = _joined(self._in_order(self._shares(x)))
        write = _writer([output], [whole])

        def fill() -> None:
            collected.fill()
            write()

        return self._exchange(source, collected.joined, None, [output], fill, opts)

    all_to_all_single = alltoall_base

    def _split(self, x: Tensor, splits: Splits) -> list[Tensor]:
        if not splits:
            return self._shares(x)
        self._check_each("the list of splits", splits)
        if sum(splits) != x.size(0):
            raise InvalidArgument(
                f"the splits add up to {sum(splits)}, and the tensor has {x.size(0)} rows"
            )
        return list(torch.split(x.detach(), list(splits)))

    def _exchange(
        self,
        source: Tensor,
        target: Tensor,
        counts: tuple[list[int], list[int]] | None,
        outputs: Tensors,
        fill: Callable[[], None],
        opts: Any,
    ) -> PcclWork:
        # Equal counts are passed too, as they may differ on another member.
        uneven: dict[str, Any] = {}
        if counts is not None:
            uneven = {"send_counts": counts[0], "recv_counts": counts[1]}
        return self._begin(
            "all_to_all",
            TORCH.memory(source),
            TORCH.memory(target),
            outputs=outputs,
            fill=fill,
            deadline=_timeout(opts),
            **uneven,
        )

    def barrier(self, opts: Any = None) -> PcclWork:
        """Begins a barrier: the Work is done when all members have called it."""
        return self._begin("barrier", outputs=[], deadline=_timeout(opts))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Waits in a barrier, whose error names missing members; `wait_all_ranks` is ignored."""
        if timeout is not None:  # a timeout of 0 must not mean the group's deadline
            timeout = max(timeout, timedelta(milliseconds=1))
        self._begin("barrier", outputs=[], deadline=timeout).wait()

    # ---- messages

    def send(self, tensors: Tensors, dst: int, tag: int) -> PcclWork:
        """Sends a tensor to another member."""
        (x,) = tensors
        return self._message("send", self._source(x), dst, tag, tensors, None)

    def recv(self, tensors: Tensors, src: int, tag: int) -> PcclWork:
        """Receives a tensor from another member."""
        (x,) = tensors
        target = self._target(x)
        return self._message("recv", target, src, tag, tensors, _writer(tensors, [target]))

    def recv_anysource(self, tensors: Tensors, tag: int) -> PcclWork:
        """Raises InvalidArgument: a source cannot be chosen exactly once under losses."""
        raise InvalidArgument(
            "recv needs a source (src): with members that may be lost, nobody could say whose "
            "message was taken. Begin an irecv for each member that may send, and take the first "
            "that is done; the others stay for the next messages"
        )

    def _message(
        self,
        call: str,
        x: Tensor,
        other: int,
        tag: int,
        outputs: Tensors,
        fill: Callable[[], None] | None,
    ) -> PcclWork:
        if not 0 <= tag < _TAGS:
            raise InvalidArgument(f"the tag of a message must be from 0 to {_TAGS - 1}, not {tag}")
        self.enter(call)
        place, memory = self._place(other), TORCH.memory(x)
        with self._lock:
            comm = self.comm
            # PyTorch allows several messages of one tag in flight, pccl_py one: tags are numbered.
            number = self._messages.get((call, other, tag), 0)
            own = tag * _IN_FLIGHT + number % _IN_FLIGHT
            begun = self._start(call, (memory, place), own, fill, None, {})
            if not isinstance(begun, PcclError):
                self._messages[call, other, tag] = number + 1
        if isinstance(begun, PcclError):
            raise self._refused(begun, comm) from None
        return self._keep(PcclWork(comm, begun, outputs, other))

    # ---- names of other releases of PyTorch

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def split_group(self, *_: Any, **__: Any) -> None:
        """Raises InvalidUsage: dist.new_group makes groups of this backend."""
        raise InvalidUsage("a group of pccl is not split: dist.new_group makes one of some ranks")


class _Parts:
    """Tensors that an operation fills, and `joined`, the contiguous memory that it writes."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = [TORCH.array(tensor, adds=False) for tensor in tensors]
        self.counts = [tensor.numel() for tensor in tensors]
        joined = _adjoining(self._tensors)
        self._is_apart = joined is None
        if joined is None:
            for tensor in self._tensors:
                if not tensor.is_contiguous():
                    check_written(tensor)
            joined = torch.empty(sum(self.counts), dtype=tensors[0].dtype, device="cpu")
        self.joined = joined

    def fill(self) -> None:
        """Copies `joined` to the tensors, unless `joined` is the tensors' own memory."""
        if not self._is_apart:
            TORCH.written(self.joined)
            return
        for tensor, part in zip(self._tensors, torch.split(self.joined, self.counts), strict=True):
            TORCH.write(tensor, part.view(tensor.shape))


def _adjoining(tensors: Tensors) -> Tensor | None:
    """One tensor over the memory of all `tensors`, if they are adjacent; else None."""
    first = tensors[0]
    place, end = first.data_ptr(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        apart = tensor.data_ptr() != place or tensor.untyped_storage().data_ptr() != end
        if apart or not tensor.is_contiguous() or tensor.dtype != first.dtype:
            return None
        place += tensor.numel() * tensor.element_size()
    count = sum(tensor.numel() for tensor in tensors)
    return first.as_strided((count,), (1,))


def _joined(tensors: Tensors) -> Tensor:
    """Concatenates packed tensors; without a copy if they are adjacent in memory."""
    joined = _adjoining(tensors)
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if joined is None else joined


def _stacked(tensors: Tensors) -> Tensor:
    """Concatenates tensors: along the rows if all rows have the same shape, else flat."""
    joined, (tail, *others) = _joined(tensors), [tensor.shape[1:] for tensor in tensors]
    if not tail or any(other != tail for other in others):
        return joined
    return joined.view(sum(tensor.size(0) for tensor in tensors), *tail)


def _memory(tensors: Tensors) -> Any:
    """The memory of the tensors, as pccl_py takes it: a Buffer for one tensor, else a list."""
    if len(tensors) == 1:
        return TORCH.memory(tensors[0])
    return [TORCH.memory(tensor) for tensor in tensors]


def _finisher(fill: Callable[[], None]) -> Callable[[Any], Any]:
    def finish(outcome: Any) -> Any:
        fill()
        return outcome

    return finish


def _writer(targets: Tensors, used: Tensors) -> Callable[[], None]:
    """A function that copies the tensors `used`, which an operation has filled, to `targets`."""

    def fill() -> None:
        for target, source in zip(targets, used, strict=True):
            if target.data_ptr() == source.data_ptr():
                TORCH.written(target)
            else:
                TORCH.write(target.detach(), source)

    return fill


def _multiplied(used: Tensors, factor: int, then: Callable[[], None]) -> Callable[[], None]:
    """A function that multiplies the averages in `used` by `factor`, and then calls `then`."""

    def fill() -> None:
        with torch.no_grad():
            for tensor in used:
                tensor.detach().mul_(factor)
        then()

    return fill


def _is_founding(admission: Admission) -> bool:
    return admission.changed and len(admission.joined) == admission.world_size


def _check_one(tensors: Tensors, method: str) -> None:
    """Refuses lists of several tensors, which gloo would add up, and NCCL refuses as well."""
    if len(tensors) != 1:
        raise InvalidArgument(
            f"{method} takes a list of one tensor, and this list has {len(tensors)}: call "
            f"{method} for each tensor, or allreduce_coalesced"
        )


def _root(opts: Any) -> int:
    if opts is None:
        return 0
    if getattr(opts, "rootTensor", 0) != 0:
        raise InvalidArgument(
            f"rootTensor is {opts.rootTensor}, and must be 0, as a collective has one tensor"
        )
    return int(opts.rootRank)


def _timeout(opts: Any) -> timedelta | None:
    return getattr(opts, "timeout", None)


def _seconds(timeout: timedelta | None) -> float | None:
    """A timeout in seconds; None, for the group's deadline, unless it is above 0 (C++: -1 ms)."""
    seconds = 0.0 if timeout is None else timeout.total_seconds()
    return seconds if seconds > 0 else None


# ---- models, meshes and DTensors of members that change ------------------------------------------
#
# Models, meshes and DTensors are cut for the members that the group had. FSDP2 reads the size of
# its group at each call, but its buffers fit the size at first: in a smaller group it would return
# memory that no member has written, and the norm of a DTensor would lack the shards of lost
# members. FSDP1 keeps the first size and divides by it. So models and meshes get a past group, in
# which every call raises PeerLost, while the group itself goes on.

# Attributes in which objects of FSDP2 and FSDP1 keep their groups.
_GROUPS = (
    "shard_process_group",
    "reduce_scatter_process_group",
    "process_group",
    "_inter_node_pg",
)


def leave_behind(group: ProcessGroupPccl, peers: Sequence[PeerId], rank: int, event: str) -> None:
    """Makes models, meshes and compiled code for the old members `peers` raise PeerLost.

    `rank`: this process's rank among `peers`; `event`: the reason, for the error. Models of FSDP
    keep the group object itself (`cut_off`). A DeviceMesh, DTensors and compiled code find the
    group by its name: a past group gets this name, and the group a new one.
    """
    if group not in c10d._world.pg_map:  # a group of torchft.py, unknown to PyTorch
        return
    cut_off(
        group,
        peers,
        rank,
        f"{event}, and the shards of this model are on those from before: make the model anew with "
        "fully_shard or FullyShardedDataParallel, and load a checkpoint",
    )
    name = group.pg_name
    past = _past(
        group,
        peers,
        rank,
        f"{event}, and this DeviceMesh is made for those from before: make the mesh anew, and its "
        "DTensors, whose shards come from a checkpoint (code that was compiled with them is made "
        "anew after torch.compiler.reset())",
    )
    group.rename()
    c10d._world.pg_names[group] = group.pg_name
    native._unregister_process_group(name)
    native._register_process_group(name, past)
    native._register_process_group(group.pg_name, group)
    for mesh in _meshes(name):
        # Else the old mesh equals a new mesh of its shape, and new DTensors could land on it.
        mesh._thread_id, mesh._hash = name, None


def cut_off(group: ProcessGroupPccl, peers: Sequence[PeerId], rank: int, why: str) -> None:
    """Makes forward and backward of models that FSDP sharded over the group raise PeerLost(why).

    The models are those of FSDP1 and `fully_shard`, sharded over the members `peers`. They keep
    their parameters, the shards of this process.
    """
    past: ProcessGroupPccl | None = None
    for holder in (*_mesh_infos(), *_states_of_fsdp1()):
        for name in _GROUPS:
            if getattr(holder, name, None) is not group:
                continue
            if past is None:
                past = _past(group, peers, rank, why)
            setattr(holder, name, past)


def _past(group: ProcessGroupPccl, peers: Sequence[PeerId], rank: int, why: str) -> Any:
    past = group.past(peers, rank, why)
    # PyTorch looks the past group up in these tables when it logs the error.
    c10d._world.pg_map[past] = c10d._world.pg_map[group]
    c10d._world.pg_group_ranks[past] = _Anywhere(past.rank())
    return past


class _Anywhere(dict[int, int]):
    """Maps every rank of the default group to this process's rank in a past group."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: int) -> int:
        return self._rank


def _meshes(name: str) -> Iterator[Any]:
    """The meshes that find a group by this name; meshes frozen by gc.freeze() are missed."""
    for one in gc.get_objects():
        if issubclass(type(one), DeviceMesh) and name in getattr(one, "_dim_group_names", ()):
            yield one


def _mesh_infos() -> Iterator[Any]:
    """The objects in which the FSDP2 models of this process keep their groups."""
    if "torch.distributed.fsdp" not in sys.modules:
        return
    from torch.distributed import _composable_state
    from torch.distributed.fsdp import FSDPModule

    for module, known in list(_composable_state._module_state_mapping.items()):
        state: Any = known()
        if state is None or not isinstance(module, FSDPModule):
            continue
        for params in state._fsdp_param_groups:
            yield params.mesh_info
            yield params.post_forward_mesh_info


def _states_of_fsdp1() -> Iterator[Any]:
    """The objects in which FSDP1 models keep their groups: models, handles, hook states."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    for one in () if kind is None else gc.get_objects():
        if issubclass(type(one), kind):
            own: Any = one
            yield from (own, own._handle, own._exec_order_data, own._comm_hook_state)
