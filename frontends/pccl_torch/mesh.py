"""Hsdp: replicas of a model, each of them in shards, on a mesh in which each process has a place.

    hsdp = pccl_torch.Hsdp(replicas=2, shards=2)
    for layer in layers: fully_shard(layer, mesh=hsdp.mesh)

A process is lost: its replica raises PeerLost, leaves the groups that it shares with other replicas
in the same moment, and these finish the step with averages over who is left. `pccl_torch.admit` is
the safe point: there a newcomer takes the free place, all groups are made anew, and `Hsdp.sync`
fetches each shard from the same shard of another replica. docs/guides/TORCH.md has the loop around
it.

Places are agreed on at each change: all say what they have (`_Word`), and `_seats` makes the same
table of that everywhere. Groups are sub-groups of the default group's epoch: their
members are those of the table, in its order, until the next change.
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

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _Word:
    """The words of a process when places are dealt out. Zero shards: it was lost meanwhile.

    `began`: it has had a model that was trained. `has_state`: it has its shard of it, still.
    `count`: how often it has said a word.
    """

    replicas: int
    shards: int
    place: int
    began: int
    has_state: int
    count: int


@dataclass(frozen=True, slots=True)
class _Seats:
    """Ranks of the default group by their places, for those that are taken."""

    replicas: int
    shards: int
    ranks: Mapping[int, int]

    def replica(self, number: int) -> list[int] | None:
        """The ranks of a replica, or None if one of its shards has nobody."""
        places = range(number * self.shards, (number + 1) * self.shards)
        found = [self.ranks[place] for place in places if place in self.ranks]
        return found if len(found) == self.shards else None

    def whole(self) -> list[int]:
        """The replicas that have all their shards."""
        return [number for number in range(self.replicas) if self.replica(number) is not None]

    def table(self, world_size: int) -> list[list[int]]:
        """Ranks by replica and shard. A place that is free has the number of no rank."""
        count = self.replicas * self.shards
        flat = [self.ranks.get(place, world_size + place) for place in range(count)]
        return [flat[i : i + self.shards] for i in range(0, count, self.shards)]


def _seats(words: Sequence[_Word]) -> _Seats:
    """Places that are taken stay; the others go where the fewest are missing, by rank."""
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
    """A group of a mesh, whose members change in `Hsdp` alone."""

    hsdp: Hsdp
    of_mesh = True

    def renew(self, group: Group) -> None:
        """The members of the group are these now."""
        with self._lock:
            group.deadline = self.comm.deadline
            self.comm = group
            stages_for(self._stager, group)
            self._take_up(group.members)
            self.bar(None)

    def _take_up(self, members: tuple[PeerId, ...], leaves_behind: bool = False) -> None:
        """Their order is that of the places already, and meshes of places stay."""
        self._peers = members
        self._rank = members.index(self.comm.peer_id)
        self._tag = 0
        self._messages.clear()


class _ShardGroup(_PlaceGroup):
    def _failed(self, error: PcclError) -> None:
        self.hsdp._break(error)


class Hsdp:
    """The place of this process in a mesh of `replicas` times `shards`, and its groups.

    All processes of the default group make it, with the same numbers, as do newcomers. Those beyond
    replicas * shards are spares: the constructor returns when this process has a place in a replica
    with all its shards, and passes safe points until then. With `shards` = 1 it is DDP, and with
    one replica FSDP whose lost shards nobody has.

    Before the first step, and whenever `pccl_torch.admit()` has `changed`, call `sync`: until then
    calls in the groups raise InvalidUsage. Raises InvalidUsage without a run, or if the others have
    other numbers; InvalidArgument for numbers that are none; and errors of the network.
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
        """The number of this process's replica. It never changes."""
        return self._place // self._size[1]

    @property
    def shard(self) -> int:
        """The number of its shard in the replica. It never changes."""
        return self._place % self._size[1]

    @property
    def whole(self) -> bool:
        """Whether its replica has all shards, so that it can take part in steps."""
        return self._whole

    @property
    def replicas(self) -> int:
        """How many replicas share gradients with this one, itself included; 0 without `whole`."""
        return self._comms[1].world_size if self._whole else 0

    def sync(self, tensors: Mapping[str, Any]) -> bool:
        """Makes these tensors equal in all replicas, shard by shard, in place; blocks.

        `tensors`: DTensors, of which the local shards are meant, and tensors of the CPU; numbers
        are left out. The content is that of a replica that has lost nobody; at the beginning, that
        of the first. All processes call it, those whose replica lacks a shard as well: they take no
        part, and it returns False. Otherwise True.

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
        """That of the default group, then of the mesh, for `pccl_torch.admit`.

        All wait for each other here: those whose replica lacks a shard have no step to make.
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
        """Deals out places and makes the groups, if those there were are of the past."""
        world = self._run.world
        if self._epoch == world.comm.epoch:
            return False
        while self._epoch != world.comm.epoch:
            self._count += 1
            try:
                words = self._words()
            except PeerLost:  # on all of them
                world.pass_safe_point(deadline)
                continue
            self._arrange(words, deadline)
            self._epoch = world.comm.epoch
        return True

    def _words(self) -> list[_Word]:
        """The words of each member of the default group, by rank."""
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
        """The groups of the places that these words lead to."""
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
        """Enters the groups of this place: all do so in one order."""
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
        """The replica of this process has lost a shard, or cannot reach it.

        Leaves its groups, so that nobody waits for this process, and nothing of half a model
        counts; and cuts off the models, which may be in the middle of a step. Those that are made
        afterwards are not. Any thread may call it, again and again.
        """
        with self._lock:
            self._asks = self._whole or self._asks
            self._whole = self._has_state = False
            comms = list(self._comms)
            # Those of other replicas wait for this process, before those of its own.
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
        """Leaves the groups, at a safe point."""
        with self._lock:
            self._whole = False
            comms, self._comms = self._comms, []
        for comm in comms:
            comm.close()

    def _give_up(self) -> None:
        """Another Hsdp takes the place of this one: its groups are over."""
        self._leave()
        why = "this model is of an Hsdp that another has replaced: make it anew on the mesh of that"
        for group in self._groups or ():
            cut_off(group, group.peers, group.rank(), why)
            group.bar(PeerLost(why))
            self._run.leave(group)

    # ---- the mesh of PyTorch

    def _make_mesh(self) -> DeviceMesh:
        """Made of groups that PyTorch knows by their names."""
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
        """A group of PyTorch."""
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
