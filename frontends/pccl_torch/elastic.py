"""ElasticState: the state that all members of a training run, newcomers included, must share.

    state = pccl_torch.ElasticState(model, optimizer, step=0)
    while state.step < 1000:
        if pccl_torch.admit().changed:
            state.sync()
            ddp = DistributedDataParallel(model, init_sync=False)
            ddp.register_comm_hook(None, pccl_torch.average_hook())
        ...
        state.step += 1

ElasticState decides which tensors of a module and an optimizer are shared, and under which names.
pccl_py/shared_state.py elects the content and moves the bytes. ahead.py starts a newcomer's fetch
before it enters. A loop that handles losses: examples/torch_elastic.py.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Never

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pccl_py import Group, InvalidUsage, Mismatch, PcclError, PeerId, Strategy, SyncOutcome
from pccl_py.errors import InvalidArgument
from pccl_py.words import StrategyName, first_of, shown, unsigned
from pccl_torch import ahead
from pccl_torch.backend import ProcessGroupPccl
from pccl_torch.errors import torch_error
from pccl_torch.shared_state import SharedState
from pccl_torch.tensors import DTYPES, OPAQUE, PAIRS, TORCH

# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed

# Limits of the description of an optimizer's state that another member sends: bytes of it,
# letters of a key, dimensions of a tensor.
_PLAN_BYTES_MAX = 64 << 20
_KEY_LETTERS_MAX = 200
_AXES_MAX = 16
# Limit of the elements of all entries together, in multiples of the limit of one entry, which is
# twice the elements of all parameters; AdamW with amsgrad needs one and a half.
_STATES_MAX = 8
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*DTYPES, *PAIRS, *OPAQUE)}


class _Entry(NamedTuple):
    """The description of a tensor or a number in the state of an optimizer."""

    parameter: int  # place of the parameter among all parameters of the optimizer
    key: str
    dtype: str  # "" for a number of Python
    shape: tuple[int, ...] = ()


class _Shared(NamedTuple):
    """A shared state of pccl_torch, and what it was made of."""

    group: Group
    state: SharedState
    numbers: dict[str, Tensor]  # tensors of one element that hold the shared numbers
    places: dict[str, tuple[Any, ...]]  # memory and layout of each shared tensor (`_place`)


class ElasticState:
    """A module, its optimizer and some counters, which `sync` makes equal on all members.

    Shared are the parameters and the persistent buffers of `module`, under their `state_dict`
    names; the state of `optimizer`, which may be None, and the numbers of its param_groups (lr,
    betas, weight_decay and so on); and `counters`, ints and floats, which are attributes of this
    object: `state.step += 1`. Not shared are buffers that are not persistent, flags and strings of
    param_groups, and schedulers: derive these from a counter (`scheduler.last_epoch = state.step`
    after each sync).

    All members make an ElasticState of modules and optimizers of the same structure. If one member
    has state that its optimizer made at the first step, `sync` makes this state on members without
    it. `group`: a process group of pccl; if None, the default group at the time of `sync`.
    `revision`: if members start together, the content of the highest revision wins. Pass the step
    of a checkpoint: a run whose members stay syncs once, so `self.revision` does not tell its
    checkpoints apart.

    `prefetch`, the same on all members: a newcomer fetches in the background, before the members
    admit it, the tensors that do not change, those of a frozen base model for example. The newcomer
    must make the ElasticState before its `dist.init_process_group`. A member has one ElasticState
    with `prefetch` at a time: it keeps the memory of the tensors of the last sync until the next
    sync, or until `close`.

    Raises InvalidArgument for a revision outside [0, 2**62), and TypeError for what is no module,
    no optimizer or no number, for a module with extra state that is no tensor, and for state of an
    optimizer that is no tensor and no number. `sync` and `digest` also raise TypeError for a
    DTensor that is not replicated on all of its mesh (FSDP2), which `Hsdp.sync` takes.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | None = None,
        *more: Never,
        group: Any = None,
        revision: int = 0,
        prefetch: bool = False,
        **counters: float,
    ) -> None:
        if more:
            other: object = more[0]
            raise TypeError(
                f"ElasticState takes a module and an optimizer, and no {type(other).__name__}"
                f"{_for_scheduler(other)}"
            )
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer must be a torch.optim.Optimizer or None, not {type(optimizer).__name__}"
            )
        inner: Any = module.module if isinstance(module, DistributedDataParallel) else module
        self._module: nn.Module = inner
        self._optimizer = optimizer
        self._group = group
        self._revision = unsigned(revision, "revision", 62)
        self._prefetch = bool(prefetch)
        self._shared: _Shared | None = None
        # With prefetch: zeros for the optimizer's state, until a member's optimizer has state.
        self._to_come: dict[tuple[int, str], Any] = {}
        self._counters: dict[str, float] = {}
        for name, value in counters.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise InvalidArgument(f"a counter cannot have the name {name!r}")
            self._counters[name] = _number(name, value)
        if prefetch:
            self._fetch_ahead()

    def __getattr__(self, name: str) -> Any:
        counters = self.__dict__.get("_counters", {})
        if name not in counters:
            raise AttributeError(self._unknown(name))
        return counters[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        if name not in self._counters:
            raise AttributeError(self._unknown(name))
        number, known = _number(name, value), self._counters[name]
        if isinstance(known, int) and not isinstance(number, int):
            raise TypeError(f"counter {name!r} is an int, and {value!r} is none")
        self._counters[name] = type(known)(number)

    def _unknown(self, name: str) -> str:
        known = first_of(sorted(self._counters)) or "none"
        return f"there is no counter {name!r}; those that ElasticState was made with: {known}"

    @property
    def revision(self) -> int:
        """One more than the revision that the last sync elected; before it the constructor's."""
        return self._revision

    def sync(
        self,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        deadline: float | None = None,
    ) -> SyncOutcome:
        """Makes the shared state equal on all members, which must sync equally often. Blocks.

        Sync after each `pccl_torch.admit()` with `changed`, and after a call that has failed.
        Newcomers receive the content of the earlier members, unless `strategy` says otherwise. On
        an error everything is as it was, but that an optimizer without state may have zeros as
        state. `deadline`: seconds from now, for each operation of the sync.

        Raises PeerLost if a member is lost while the members exchange which state their optimizers
        have: call `admit` again, and then sync. Raises Mismatch if modules, optimizers or counters
        differ in names, shapes or dtypes, which the message lists; and the other errors of
        `pccl_py.SharedState.sync`.
        """
        group = self._group_now()
        self._make_what_others_have(group, deadline)
        try:
            shared = self._share(group.comm)
            outcome = shared.state.sync(strategy, revision=self._revision, deadline=deadline)
        except PcclError as error:
            raise torch_error(error, group.comm) from None
        finally:
            if not self._prefetch:
                self._unshare()
        self._revision = outcome.revision
        for name, value in dict(self._numbers()).items():
            given = shared.numbers[name].item()
            if given != value:
                self._take(name, given)
        return outcome

    def close(self) -> None:
        """Releases the memory that `prefetch` keeps for newcomers, until the next sync."""
        self._unshare()

    def digest(self) -> str:
        """A hash of the shared state, 32 hexadecimal digits: equal exactly if the states are."""
        hasher = hashlib.blake2b(digest_size=16)
        shared: dict[str, Any] = dict(self._tensors()) | dict(self._numbers())
        for name in sorted(shared):
            value = shared[name]
            hasher.update(f"{name}\n".encode())
            if isinstance(value, Tensor):
                packed = TORCH.packed(value.detach())
                size = packed.numel() * packed.element_size()
                hasher.update((ctypes.c_char * size).from_address(packed.data_ptr()))
            else:
                hasher.update(f"{value!r}\n".encode())
        return hasher.hexdigest()

    def __repr__(self) -> str:
        counters = "".join(f" {name}={value}" for name, value in self._counters.items())
        return f"<ElasticState{counters} revision={self._revision}>"

    # ---- the shared state of pccl

    def _share(self, group: Group) -> _Shared:
        """The last sync's shared state, or a new one if tensors moved; sets the present numbers."""
        numbers = dict(self._numbers())
        # Detached tensors keep the memory, even if the program replaces a parameter's memory.
        tensors = {name: tensor.detach() for name, tensor in self._tensors()}
        for (place, key), value in self._to_come.items():
            name = f"optimizer.{place}.{key}"
            if isinstance(value, Tensor):
                tensors.setdefault(name, _whole(name, value))
            else:
                numbers.setdefault(name, float(value))
        places = {name: _place(tensor) for name, tensor in tensors.items()}
        made = self._shared
        if (
            made is None
            or made.group is not group
            or made.places != places
            or made.numbers.keys() != numbers.keys()
        ):
            self._unshare()
            held = {name: _held(value) for name, value in numbers.items()}
            state = SharedState(
                group,
                dict(sorted((tensors | held).items())),
                name="torch, kept" if self._prefetch else "torch",
                revision=self._revision,
                prefetch=self._prefetch,
            )
            made = self._shared = _Shared(group, state, held, places)
        for name, value in numbers.items():
            made.numbers[name].fill_(value)
        return made

    def _unshare(self) -> None:
        made, self._shared = self._shared, None
        if made is not None:
            made.state.close()

    def _fetch_ahead(self) -> None:
        """Begins to fetch if the group exists and is not entered; else at the next connection."""
        group = self._group
        if group is None:
            ahead.await_connection(self)
            group = dist.group.WORLD
        if not isinstance(group, ProcessGroupPccl) or group.supports_reconfigure:
            return
        if group.comm.epoch == 0:
            self.begin_to_fetch(group.comm)

    def begin_to_fetch(self, group: Group) -> None:
        """Begins to fetch from `group`, to which this process is connected, but not admitted."""
        self._expect()
        self._share(group)

    def _expect(self) -> None:
        """With `prefetch`: prepares zeros for the state that the optimizer's first step will make.

        All members share these zeros under the same names, so a newcomer's state fits theirs. A
        sync that finds that a member's optimizer has state drops the zeros.
        """
        parameters = self._parameters()
        if self._prefetch and not self._to_come:
            for place, key, value in ahead.entries_to_come(self._optimizer, parameters):
                self._to_come[place, key] = _zeros(_entry(place, key, value), parameters[place])

    # ---- what is shared

    def _group_now(self) -> ProcessGroupPccl:
        group = dist.group.WORLD if self._group is None else self._group
        if not isinstance(group, ProcessGroupPccl):
            raise InvalidUsage(
                "ElasticState needs a process group of pccl: call "
                f'dist.init_process_group("pccl") first, or pass group= (not {group!r})'
            )
        group.enter("ElasticState")
        return group

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        module = self._module
        kept = module.state_dict(keep_vars=True)
        for name, value in kept.items():
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"{name!r} in the state_dict of the module is no tensor but "
                    f"{type(value).__name__}, and is not shared: remove it, or make it a buffer"
                )
        for name, parameter in module.named_parameters():
            yield f"module.{name}", _whole(name, parameter)
        for name, buffer in module.named_buffers():
            if name in kept:
                yield f"module.{name}", _whole(name, buffer)
        for place, key, value in self._optimizer_state():
            if isinstance(value, Tensor):
                yield f"optimizer.{place}.{key}", _whole(key, value)
        for name, _, _, value in self._group_values():
            if isinstance(value, Tensor):
                yield name, _whole(name, value)

    def _numbers(self) -> Iterator[tuple[str, float]]:
        for name, value in self._counters.items():
            yield f"counter.{name}", value
        for place, key, value in self._optimizer_state():
            if not isinstance(value, Tensor):
                yield f"optimizer.{place}.{key}", float(value)
        for name, _, _, value in self._group_values():
            if not isinstance(value, Tensor):
                yield name, float(value)

    def _parameters(self) -> list[Tensor]:
        """The optimizer's parameters, in the order in which its state_dict numbers them."""
        if self._optimizer is None:
            return []
        return [each for group in self._optimizer.param_groups for each in group["params"]]

    def _optimizer_state(self) -> Iterator[tuple[int, str, Any]]:
        """The optimizer's state: place of the parameter, key, tensor or number."""
        if self._optimizer is None:
            return
        state: Any = self._optimizer.state
        for place, parameter in enumerate(self._parameters()):
            for key, value in state.get(parameter, {}).items():
                if value is None:
                    continue
                if not isinstance(value, Tensor | int | float):
                    raise TypeError(
                        f"{type(self._optimizer).__name__} keeps {key!r} of its parameter {place} "
                        f"as {type(value).__name__}; only tensors and numbers are shared"
                    )
                yield place, str(key), value

    def _group_values(self) -> Iterator[tuple[str, dict[str, Any], tuple[str, int | None], Any]]:
        """Numbers of the param_groups: name, group, key and place in a tuple, value."""
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        for number, group in enumerate(groups):
            for key, value in group.items():
                if key == "params":
                    continue
                name = f"optimizer.group.{number}.{key}"
                if _is_shared(value):
                    yield name, group, (key, None), value
                elif isinstance(value, list | tuple) and all(map(_is_shared, value)):
                    for place, each in enumerate(value):
                        yield f"{name}.{place}", group, (key, place), each

    # ---- taking over state of other members

    def _take(self, name: str, given: float) -> None:
        """Sets the counter, or the number of the optimizer, `name` to `given`, after a sync."""
        if name.startswith("counter."):
            self._counters[name.removeprefix("counter.")] = given
            return
        for known, group, (key, place), value in list(self._group_values()):
            if known == name:
                whole = isinstance(value, int) and given.is_integer()
                number = int(given) if whole else given
                if place is None:
                    group[key] = number
                else:
                    values = list(group[key])
                    values[place] = number
                    group[key] = type(group[key])(values)
                return
        assert self._optimizer is not None
        state: Any = self._optimizer.state
        _, place_of, key = name.split(".", 2)
        own = state[self._parameters()[int(place_of)]]
        own[key] = int(given) if isinstance(own[key], int) and given.is_integer() else given

    def _make_what_others_have(self, group: ProcessGroupPccl, deadline: float | None) -> None:
        """Makes zeros for state of the optimizer that another member has and this member lacks.

        A newcomer has made no step, so it lacks the state that the first step makes.
        """
        parameters = self._parameters()
        most = 2 * sum(parameter.numel() for parameter in parameters) + 4096
        entries = _plans(group, self._plan(), len(parameters), most, deadline)
        for entry in entries:
            assert self._optimizer is not None  # without parameters, `_plans` accepts no entry
            state: Any = self._optimizer.state
            parameter = parameters[entry.parameter]
            if state.get(parameter, {}).get(entry.key) is None:
                known = self._to_come.get((entry.parameter, entry.key))
                if known is None or _entry(entry.parameter, entry.key, known) != entry:
                    known = _zeros(entry, parameter)
                state[parameter][entry.key] = known
        if entries:
            self._to_come.clear()
        else:
            self._expect()

    def _plan(self) -> bytes:
        """Describes to the other members the optimizer's state and `prefetch`, as JSON."""
        listed = [_entry(*each) for each in self._optimizer_state()]
        return json.dumps([len(self._parameters()), listed, self._prefetch]).encode()


def _plans(
    group: ProcessGroupPccl, own: bytes, parameters: int, most: int, deadline: float | None
) -> list[_Entry]:
    """Exchanges the plans of all members; returns the entries that any member has, each once."""
    if len(own) > _PLAN_BYTES_MAX:
        raise InvalidArgument(
            f"the optimizer has state of {len(own)} bytes of names; {_PLAN_BYTES_MAX} are possible"
        )
    sizes = torch.empty(group.size(), dtype=torch.int64, device="cpu")
    size = torch.tensor([len(own)], dtype=torch.int64, device="cpu")
    group.gather_whole(size, sizes, None, deadline)
    counts = [int(each) for each in sizes.tolist()]
    if not 0 < min(counts) <= max(counts) <= _PLAN_BYTES_MAX:
        raise Mismatch(f"members say that the names of their states take {counts} bytes")
    told = torch.empty(sum(counts), dtype=torch.uint8, device="cpu")
    group.gather_whole(torch.frombuffer(bytearray(own), dtype=torch.uint8), told, counts, deadline)
    entries: dict[_Entry, None] = {}
    texts = [bytes(part.tolist()) for part in torch.split(told, counts)]
    prefetch = json.loads(own)[-1]
    for text, rank in sorted({text: rank for rank, text in enumerate(texts)}.items()):
        entries |= dict.fromkeys(_parse(text, parameters, most, prefetch))
        _check_sum(entries, most, group.comm.members[rank])
    return list(entries)


def _check_sum(entries: Iterable[_Entry], most: int, peer: PeerId) -> None:
    """Raises Mismatch if entries would fill memory: a newcomer makes zeros for each of them."""
    elements = sum(max(1, math.prod(entry.shape)) for entry in entries)
    bound = _STATES_MAX * most
    if elements > bound:
        raise Mismatch(
            f"with what peer {peer} describes, the state of the optimizer has {elements} elements, "
            f"and {bound} are possible for its parameters"
        )


def _parse(text: bytes, parameters: int, most: int, prefetch: bool) -> list[_Entry]:
    """Parses a member's plan. Raises Mismatch for entries that this optimizer cannot have."""
    try:
        count, listed, fetches = json.loads(text)
        entries = [
            _Entry(int(place), str(key), str(dtype), tuple(int(length) for length in shape))
            for place, key, dtype, shape in listed
        ]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Mismatch(f"a member describes its optimizer in words unknown here: {error}") from None
    if count != parameters:
        raise Mismatch(
            f"the optimizer of a member has {shown(count)[:20]} parameters, and that of this one "
            f"{parameters}: all must make it of the same modules"
        )
    if fetches is not prefetch:
        raise Mismatch(
            f"prefetch of this member's ElasticState is {prefetch}, and of another's "
            f"{not prefetch}: all must give the same"
        )
    for entry in entries:
        short = len(entry.shape) <= _AXES_MAX and all(0 <= each <= most for each in entry.shape)
        small = short and math.prod(entry.shape) <= most
        known = 0 <= entry.parameter < parameters and entry.dtype in ("", *_DTYPES)
        if not (small and known) or len(entry.key) > _KEY_LETTERS_MAX:
            raise Mismatch(
                f"the optimizer of a member has state {shown(entry.key)[:_KEY_LETTERS_MAX]!r} of "
                f"dtype {shown(entry.dtype)[:20]!r} and shape {entry.shape[:_AXES_MAX]} for "
                f"parameter {entry.parameter}, which is not possible here"
            )
    return entries


def _entry(parameter: int, key: str, value: Any) -> _Entry:
    if not isinstance(value, Tensor):
        return _Entry(parameter, key, "")
    return _Entry(parameter, key, _name(value.dtype), tuple(value.shape))


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype


def _zeros(entry: _Entry, parameter: Tensor) -> Any:
    if not entry.dtype:
        return 0
    dtype = _DTYPES[entry.dtype]
    if entry.shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros(entry.shape, dtype=dtype, device="cpu")


def _whole(name: str, x: Tensor) -> Tensor:
    """The whole tensor, local if it is a replicated DTensor; raises TypeError for a shard."""
    if not isinstance(x, DTensor):
        return x
    if not all(placement.is_replicate() for placement in x.placements):
        raise TypeError(
            f"{name!r} is a DTensor of which each member has a part ({x.placements}), and no other "
            "member has that of a lost one: replicas of shards share them with "
            "pccl_torch.Hsdp.sync, and a model on one mesh of shards comes from a checkpoint"
        )
    return x.to_local().detach()


def _held(value: float) -> Tensor:
    dtype = torch.int64 if isinstance(value, int) else torch.float64
    return torch.tensor([value], dtype=dtype, device="cpu")


def _is_shared(value: object) -> bool:
    return isinstance(value, Tensor | int | float) and not isinstance(value, bool)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"counter {name!r} must be an int or a float, not {type(value).__name__}"
            f"{_for_scheduler(value)}"
        )
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgument(f"counter {name!r} must have 64 bits at most, not {value}")
    return value


def _for_scheduler(value: object) -> str:
    """The end of the sentence that refuses `value`: a remedy for a scheduler, else empty."""
    if not isinstance(value, LRScheduler):
        return ""
    shares = (
        "best=0.0, num_bad_epochs=0), and set those of the scheduler"
        if isinstance(value, ReduceLROnPlateau)
        else "step=0), and set scheduler.last_epoch = state.step"
    )
    return (
        ": schedulers are not shared, but learning rates are, as numbers of the optimizer. Share "
        f"what the scheduler counts, ElasticState(module, optimizer, {shares} after each sync"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
