"""Hsdp: replicas of a model, each of them in shards, on a mesh in which each process has a place.

    hsdp = pccl_torch.Hsdp(replicas=2, shards=2)
    for layer in layers: fully_shard(layer, mesh=hsdp.mesh)

If a process is lost, its replica raises PeerLost and at once leaves the groups that it shares with
other replicas; the other replicas finish the step with averages over the remaining replicas. At the
safe point, `pccl_torch.admit`, a newcomer takes the free place and all groups are made anew; then
`Hsdp.sync` fetches each shard from the same shard of another replica. docs/guides/TORCH.md has the
training loop.

Places are dealt out at each change of the default group: each process sends its `_Word`, and
`_seats` makes the same table from the words in every process. The groups of the mesh are sub-groups
of the default group's epoch, with the members in the order of the table.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from pccl_py import Admission, Group, InvalidUsage, PcclError, PeerId, StateUnavailable
from pccl_py.errors import InvalidArgument
from pccl_torch import start
from pccl_torch.backend import ProcessGroupPccl, cut_off
from pccl_torch.errors import PeerLost, torch_error
from pccl_torch.options import Founded, Options
from pccl_torch.shared_state import shared_state
from pccl_torch.staging import stages_for
from pccl_torch.start import tell_torch
from pccl_torch.tensors import TORCH

# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Word:
    """Data that each process sends when places are dealt out; zero shards: the process was lost.

    `began`: whether the process has ever synced a model. `has_state`: whether it still has its
    shard of that model. `count`: how often places were dealt out, for the names of groups.
    """

    replicas: int
    shards: int
    place: int
    began: int
    has_state: int
    count: int


@dataclass(frozen=True, slots=True)
class _Seats:
    """The rank in the default group of the process in each taken place."""

    replicas: int
    shards: int
    ranks: Mapping[int, int]

    def replica(self, number: int) -> list[int] | None:
        """The ranks of a replica, or None if one of its places is free."""
        places = range(number * self.shards, (number + 1) * self.shards)
        found = [self.ranks[place] for place in places if place in self.ranks]
        return found if len(found) == self.shards else None

    def whole(self) -> list[int]:
        """Numbers of the replicas in which every place is taken."""
        return [number for number in range(self.replicas) if self.replica(number) is not None]

    def table(self, world_size: int) -> list[list[int]]:
        """Ranks by replica and shard; a free place has a number from `world_size` on."""
        count = self.replicas * self.shards
        flat = [self.ranks.get(place, world_size + place) for place in range(count)]
        return [flat[i : i + self.shards] for i in range(0, count, self.shards)]


def _seats(words: Sequence[_Word]) -> _Seats:
    """Deals out places: owners keep theirs; newcomers, by rank, fill the fullest replicas first."""
    first = words[0]
    taken = {word.place: rank for rank, word in enumerate(words) if word.place != _NOWHERE}
    places = range(first.replicas * first.shards)
    free = [place for place in places if place not in taken]
    missing = [sum(place // first.shards == r for place in free) for r in range(first.replicas)]
    free.sort(key=lambda place: (missing[place // first.shards], place))
    waiting = (rank for rank, word in enumerate(words) if word.place == _NOWHERE)
    taken.update(zip(free, waiting, strict=False))
    return _Seats(first.replicas, first.shards, taken)


class _PlaceGroup(ProcessGroupPccl):
    """A group of a mesh; only `Hsdp` changes its members."""

    hsdp: Hsdp
    of_mesh = True

    def renew(self, group: Group) -> None:
        """Continues in `group`, a new group of pccl_py with new members."""
        with self._lock:
            group.deadline = self.comm.deadline
            self.comm = group
            stages_for(self._stager, group)
            self._take_up(group.members)
            self.bar(None)

    def _take_up(self, members: tuple[PeerId, ...], leaves_behind: bool = False) -> None:
        """Takes new members, already in the order of the mesh; leaves no mesh behind."""
        self._peers = members
        self._rank = members.index(self.comm.peer_id)
        self._tag = 0
        self._messages.clear()


class _ShardGroup(_PlaceGroup):
    def _failed(self, error: PcclError) -> None:
        self.hsdp._break(error)


class Hsdp:
    """The place of this process in a mesh of `replicas` times `shards`, and its groups.

    All processes of the default group, newcomers included, make an Hsdp with the same numbers.
    Processes beyond replicas * shards are spares: the constructor passes safe points until this
    process has a place in a replica with all its shards. With `shards` = 1 an Hsdp is DDP; with one
    replica it is FSDP, and a lost shard cannot be fetched.

    Before the first step, and whenever `pccl_torch.admit()` has `changed`, call `sync`: until then
    calls in the groups raise InvalidUsage. Raises InvalidUsage without a run, or if another process
    has other numbers; InvalidArgument unless both numbers are integers above zero; and errors of
    the network.
    """

    def __init__(self, replicas: int, shards: int) -> None:
        _check("replicas", replicas)
        _check("shards", shards)
        self._run = start.current()
        if self._run.world.supports_reconfigure:
            raise InvalidUsage(
                "Hsdp follows pccl_torch.admit(), and not reconfigure: leave "
                "enable_reconfigure=True out of init_process_group"
            )
        self._size = replicas, shards
        self._lock = threading.RLock()
        self._place = _NOWHERE
        self._began = self._has_state = self._whole = self._asks = self._broken = False
        self._count = 0
        self._epoch = 0
        self._source: int | None = None
        self._comms: list[Group] = []
        self._groups: tuple[_ShardGroup, _PlaceGroup] | None = None
        if isinstance(self._run.mesh, Hsdp):
            self._run.mesh._give_up()
        self._run.mesh = self
        try:
            self._run.world.enter("Hsdp")
            self._settle(None)
            while not self._whole:
                self.pass_safe_point(None)
                tell_torch(self._run.groups)
            self.mesh = self._make_mesh()
            """For `fully_shard`: a DeviceMesh of the dimensions "replicate" and "shard"."""
        except BaseException:
            self._run.mesh = None
            self._leave()
            raise

    @property
    def replica(self) -> int:
        """The number of this process's replica, which never changes."""
        return self._place // self._size[1]

    @property
    def shard(self) -> int:
        """The number of this process's shard in its replica, which never changes."""
        return self._place % self._size[1]

    @property
    def whole(self) -> bool:
        """Whether this process's replica has all its shards, and so can take part in steps."""
        return self._whole

    @property
    def replicas(self) -> int:
        """Number of replicas that share gradients, this one included; 0 without `whole`."""
        return self._comms[1].world_size if self._whole else 0

    def sync(self, tensors: Mapping[str, Any]) -> bool:
        """Makes these tensors equal in all replicas, shard by shard, in place; blocks.

        `tensors`: DTensors, whose local shards are synced, and CPU tensors; values that are no
        tensors are left out. The content comes from a replica that still has all shards of the
        model; before the first step, from the first replica with all its places taken. All
        processes call `sync`. In a process whose replica lacks a shard it does nothing and returns
        False; otherwise it returns True.

        Raises StateUnavailable if no replica has all shards of the model any more: make a new
        `Hsdp` and the model from a checkpoint, in all processes. PeerLost and other errors of
        `pccl_py.SharedState.sync` count as a loss of this process's shard.
        """
        if not self._whole:
            return False
        if self._source is None:
            raise StateUnavailable(
                "no replica has all shards of the model any more: make a new Hsdp and the model "
                "from a checkpoint, in all processes"
            )
        mine = {name: _local(value) for name, value in tensors.items() if torch.is_tensor(value)}
        sends = self.replica == self._source
        replicas = self._comms[1]
        try:
            some = {name: tensor for name, tensor in mine.items() if tensor.numel()}
            if some and replicas.world_size > 1:
                with shared_state(replicas, some, name="hsdp") as state:
                    state.sync("send_only" if sends else "receive_only")
        except PcclError as error:
            made = torch_error(error, replicas)
            self._break(made)
            raise made from None
        with self._lock:
            if self._whole and self._groups is not None:
                self._began = self._has_state = True
                for group in self._groups:
                    group.bar(None)
        return True

    # ---- the safe point

    def pass_safe_point(self, deadline: float | None) -> tuple[Admission, bool]:
        """Passes the default group's safe point, then deals out places, for `pccl_torch.admit`.

        All processes wait for each other here: in a replica that lacks a shard they make no steps.
        """
        world = self._run.world
        asks = torch.tensor([self._asks], dtype=torch.uint8, device="cpu")
        memory = TORCH.memory(asks)
        world._begin("all_reduce", memory, outputs=[asks], op="max", recovery="resume").wait()
        admission = world.pass_safe_point(deadline)
        if asks.item():
            self._epoch = 0
        return admission, self._settle(deadline)

    def _settle(self, deadline: float | None) -> bool:
        """Deals out places and makes the groups if the epoch changed; returns whether it did."""
        world = self._run.world
        if self._epoch == world.comm.epoch:
            return False
        while self._epoch != world.comm.epoch:
            self._count += 1
            try:
                words = self._words()
            except PeerLost:  # all processes get it
                world.pass_safe_point(deadline)
                continue
            self._arrange(words, deadline)
            self._epoch = world.comm.epoch
        return True

    def _words(self) -> list[_Word]:
        """Exchanges words: returns the `_Word` of each member of the default group, by rank."""
        world = self._run.world
        own = _Word(*self._size, self._place, int(self._began), int(self._has_state), self._count)
        given = torch.tensor(astuple(own), device="cpu")
        told = torch.empty(world.size() * len(given), dtype=given.dtype, device="cpu")
        world.all_gather_single(told, given).wait()
        words = [_Word(*row) for row in told.view(world.size(), -1).tolist()]
        if not all(word.shards for word in words):
            raise PeerLost("a member left or was lost while places were dealt out")
        for rank, word in enumerate(words):
            if (word.replicas, word.shards) != self._size:
                raise InvalidUsage(
                    f"rank {rank} has made Hsdp({word.replicas}, {word.shards}), and this process "
                    f"Hsdp{self._size}: all processes need the same mesh"
                )
        return words

    def _arrange(self, words: list[_Word], deadline: float | None) -> None:
        """Takes the place that the words give this process, and makes the groups of the place."""
        world = self._run.world
        seats = _seats(words)
        self._count = max(word.count for word in words)
        mine = [place for place, rank in seats.ranks.items() if rank == world.rank()]
        self._leave()
        if mine:
            (self._place,) = mine
        whole = seats.whole()
        with_state = [r for r in whole if all(words[i].has_state for i in seats.replica(r) or ())]
        if any(word.began for word in words):
            self._source = with_state[0] if with_state else None
        else:
            self._source = whole[0] if whole else None
        self._asks = False
        self._seats = seats
        if self.replica in whole and mine:
            self._found(seats, deadline)
        if self._whole and with_state == whole:
            self._open()
        if not self._whole:
            self._break(None)

    def _found(self, seats: _Seats, deadline: float | None) -> None:
        """Enters this place's groups: the replica's first, then that of the shard, as all do."""
        comm = self._run.world.comm
        columns = [seats.replica(number) for number in seats.whole()]
        across = [ranks[self.shard] for ranks in columns if ranks is not None]
        named = {
            f"replica {self.replica}, {self._count}": seats.replica(self.replica) or [],
            f"shard {self.shard}, {self._count}": across,
        }
        try:
            for name, ranks in named.items():
                self._comms.append(comm.subgroup(ranks, name=name, deadline=deadline))
        except PcclError as error:
            self._break(torch_error(error, comm))
            self._asks = True
            return
        with self._lock:
            self._whole = self._comms[0].world_size == self._size[1]
            self._broken = not self._whole
            if self._groups is not None and self._whole:
                for group, made in zip(self._groups, self._comms, strict=True):
                    group.renew(made)
                    group.bar(_unsynced())

    def _open(self) -> None:
        for group in self._groups or ():
            group.bar(None)

    # ---- leaving

    def _break(self, error: PcclError | None) -> None:
        """Gives up this process's replica, which has lost a shard or cannot reach it.

        Leaves the groups of the mesh, so that no process waits for this one and an incomplete
        replica contributes nothing. Cuts off the models made so far, as they may be in the middle
        of a step. Any thread may call it, any number of times.
        """
        with self._lock:
            self._asks = self._whole or self._asks
            self._whole = self._has_state = False
            comms = list(self._comms)
            # The group across replicas first: the other replicas wait in it for this process.
            for comm in reversed(comms):
                comm.close()
            if self._broken:
                return
            self._broken = True
            because = "" if error is None else f" ({error})"
            why = (
                f"replica {self.replica} has not all its shards{because}. It takes part again when "
                "somebody has the place of the lost one: make the model anew, go on calling "
                "pccl_torch.admit(), and Hsdp.sync() when it has changed"
            )
            for group in self._groups or ():
                cut_off(group, group.peers, group.rank(), why)
                group.bar(PeerLost(why))

    def _leave(self) -> None:
        """Leaves the groups of the mesh, at a safe point."""
        with self._lock:
            self._whole = False
            comms, self._comms = self._comms, []
        for comm in comms:
            comm.close()

    def _give_up(self) -> None:
        """Ends the groups of this Hsdp, because the program has made another Hsdp."""
        self._leave()
        why = "this model is of an Hsdp that another has replaced: make it anew on the mesh of that"
        for group in self._groups or ():
            cut_off(group, group.peers, group.rank(), why)
            group.bar(PeerLost(why))
            self._run.leave(group)

    # ---- the mesh of PyTorch

    def _make_mesh(self) -> DeviceMesh:
        """The DeviceMesh of this process's two groups, which PyTorch finds by their names."""
        shards, replicas = self._comms
        self._groups = (
            self._known(_ShardGroup, shards, Options(whole=True)),
            self._known(_PlaceGroup, replicas, Options(recovery="resume", planned=True)),
        )
        if not self._has_state:
            for group in self._groups:
                group.bar(_unsynced())
        table = self._seats.table(self._run.world.size())
        across: Any = [self._groups[1], self._groups[0]]
        return DeviceMesh.from_group(
            across, "cpu", torch.tensor(table, device="cpu"), mesh_dim_names=("replicate", "shard")
        )

    def _known(self, kind: type[_PlaceGroup], comm: Group, options: Options) -> Any:
        """Makes the process group of `comm` through dist.new_group, so that PyTorch knows it."""
        run = self._run

        def take(asked: Any, _: Options) -> _PlaceGroup:
            made = kind(
                comm,
                comm.members,
                comm.rank,
                asked.group_id,
                options,
                asked.store,
                lambda: run.leave(made),
            )
            made.hsdp = self
            return made

        ranks = [run.world.peers.index(peer) for peer in comm.members]
        founded = Founded(
            take=take, recovery=options.recovery, whole=options.whole, planned=options.planned
        )
        return dist.new_group(
            ranks,
            backend="pccl",
            pg_options=founded,
            use_local_synchronization=True,
            sort_ranks=False,
        )


def _unsynced() -> InvalidUsage:
    return InvalidUsage(
        "the replicas have not been made equal: call Hsdp.sync() before the first step, and "
        "whenever pccl_torch.admit() has changed"
    )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def _check(name: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 31:
        raise InvalidArgument(f"{name} must be an integer above zero, not {number!r}")
