"""DiLoCo and related methods for PyTorch modules, with torchft's argument names.

    comm = pccl.connect()
    with pccl_train.torch.DiLoCo(comm, [model], inner_optimizer, sync_every=50) as diloco:
        for batch in batches:
            model(batch).backward()
            inner_optimizer.step()      # counts as an inner step; then makes exchanges that are due
            inner_optimizer.zero_grad()

An inner step is a step of the optimizer, so gradients may be accumulated, and a step that a
GradScaler skips does not count. Only parameters that require a gradient are exchanged; a parameter
that several modules share is exchanged once. Buffers are not exchanged unless `buffers` names them.
"""

from __future__ import annotations

import fnmatch
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Literal, Self

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_train.torch needs PyTorch: pip install torch", name=error.name
    ) from error

import numpy as np
from torch import nn

from pccl_py import buffers
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_py.words import DType
from pccl_train import checkpoint
from pccl_train.fragments import Tensor
from pccl_train.method import Method
from pccl_train.outer import SGD, Nesterov, OuterOptimizer
from pccl_train.rounds import Buffers, Exchange, Rounds


class DiLoCo(Rounds):
    """A worker whose parameters are those of PyTorch modules.

    `comm`: the group of all workers; if parameters are sharded within a worker (FSDP2), the group
    of the ranks with the same shard; None: call `attach` with the group later. `model_fragments`:
    a list of modules, each of which is a fragment, or one module, which `fragments` (of `Method`)
    divides. `inner_optimizer`: its steps are the inner steps. `outer`: an outer optimizer of
    pccl_train, or "nesterov", "sgd" or "adam", or a torch.optim.SGD, or a list of equal ones as in
    torchft; only the numbers of torch optimizers are used. `tokens`: a function, called after each
    step, that returns the step's number of tokens; without it all steps count alike. `buffers`:
    for a name or pattern of buffers ("*.running_mean"), what happens to them at the end of each
    round: "averaged" over the members, "synced" from rank 0, or "own": unchanged, like buffers
    that no pattern matches. A newcomer receives averaged and synced buffers. `inherit_optimizer`:
    a newcomer takes over the state of a member's inner optimizer; otherwise it starts fresh. The
    other arguments are those of `Method`, with torchft's names. `on_exchange`: called with each
    Exchange. `name`: distinguishes successive trainings in one group.

    A `with` block begins with a sync of all members, and counts the optimizer's steps as inner
    steps. Parameters on an accelerator are copied through pinned host memory. Raises
    InvalidArgument for modules without parameters to train and for settings that exclude each
    other.
    """

    def __init__(
        self,
        comm: Group | None,
        model_fragments: nn.Module | Sequence[nn.Module],
        inner_optimizer: torch.optim.Optimizer,
        outer: OuterOptimizer | str | torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (
            "nesterov"
        ),
        sync_every: int = 500,
        *,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float = 0.0,
        tokens: Callable[[], float] | None = None,
        buffers: Mapping[str, Literal["averaged", "synced", "own"]] | None = None,
        inherit_optimizer: bool = False,
        on_exchange: Callable[[Exchange], object] | None = None,
        name: str = "diloco",
        **settings: Any,
    ) -> None:
        modules = [model_fragments] if isinstance(model_fragments, nn.Module) else model_fragments
        _check_arguments(modules, inner_optimizer, tokens, settings)
        parameters, parts = _named(modules)
        if len(modules) > 1:
            if "fragments" in settings:
                raise InvalidArgument(
                    f"model_fragments has {len(modules)} modules, which are the fragments: pass "
                    "one module to have it divided by `fragments`"
                )
            settings["fragments"] = parts
        method = Method(
            sync_every=sync_every,
            outer=_outer_of(outer),
            fragment_sync_delay=fragment_sync_delay,
            fragment_update_alpha=fragment_update_alpha,
            **settings,
        )
        self._all_buffers = _named_buffers(modules)
        super().__init__(
            _Memory(lambda: _named(modules)[0]), method, name=name, on_exchange=on_exchange,
            buffers=_shared(self._all_buffers, buffers or {}),
        )  # fmt: skip
        if inherit_optimizer and method.privacy is not None:
            raise InvalidArgument(
                "inherit_optimizer must be False with privacy: the moments of an optimizer are not "
                "clipped, and have no noise"
            )
        if inherit_optimizer and any(hasattr(p, "to_local") for p in parameters.values()):
            raise InvalidArgument(
                "inherit_optimizer must be False for parameters that are sharded: the state of "
                "their optimizer is of this rank's mesh"
            )
        stepped = {id(p) for group in inner_optimizer.param_groups for p in group["params"]}
        # With `tokens`, a worker may train none of the parameters: its tokens of 0 count nothing.
        if tokens is None and stepped.isdisjoint(map(id, parameters.values())):
            raise InvalidArgument(
                "inner_optimizer has no parameter of model_fragments: give it those of the model"
            )
        self._parameters = parameters
        self._optimizer = inner_optimizer
        self._inherit_optimizer = inherit_optimizer
        self._tokens = tokens
        self._hook: Any = None
        if comm is not None:
            self.attach(comm)

    def __enter__(self) -> Self:
        super().__enter__()
        self._hook = self._optimizer.register_step_post_hook(self._after_step)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hook.remove()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `state_dict` to a file by torch.save, replacing the file atomically."""
        state = self.state_dict()
        state["fragments"] = _as_tensors(state["fragments"])
        checkpoint.write(path, lambda file: torch.save(state, file))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores the state from a file of `save`. Raises OSError, and InvalidArgument for a file
        that `save` has not written."""
        self.load_state_dict(_loaded(path, repr(os.fspath(path))))

    def _own_state(self) -> dict[str, Any]:
        return {
            "parameters": {name: x.detach().clone() for name, x in self._parameters.items()},
            "buffers": {name: x.clone() for name, x in self._all_buffers.items()},
            "optimizer": self._optimizer.state_dict(),
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        _copy(state["parameters"], self._parameters)
        _copy(state["buffers"], self._all_buffers)
        self._optimizer.load_state_dict(state["optimizer"])

    @property
    def _inherits(self) -> bool:
        return self._inherit_optimizer

    def _gift(self, *, with_optimizer: bool) -> bytes:
        shared = () if self._buffers is None else self._buffers.averaged + self._buffers.synced
        if not (shared or with_optimizer):
            return b""
        file = io.BytesIO()
        buffers = {name: self._all_buffers[name] for name in shared}
        optimizer = self._optimizer.state_dict() if with_optimizer else None
        torch.save({"buffers": buffers, "optimizer": optimizer}, file)
        return file.getvalue()

    def _take_gift(self, gift: bytes) -> None:
        state = _loaded(io.BytesIO(gift), "what a member has given")
        if not isinstance(state, dict) or not {"buffers", "optimizer"} <= state.keys():
            raise InvalidArgument("a member has given something else than buffers and optimizer")
        shared = {name: x for name, x in self._all_buffers.items() if name in state["buffers"]}
        _copy(state["buffers"], shared)
        if state["optimizer"] is not None:
            self._optimizer.load_state_dict(state["optimizer"])

    def _after_step(self, *_: object) -> None:
        self.step(1.0 if self._tokens is None else self._tokens())


def _loaded(file: Any, what: str) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as refusal:  # torch raises many types for a file that is no archive
        raise InvalidArgument(f"{what} is no checkpoint of PyTorch: {refusal}") from refusal


def _copy(source: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(source[name])


def _as_tensors(value: Any) -> Any:
    """Replaces NumPy arrays in `value` by tensors, because `weights_only` refuses NumPy arrays."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: _as_tensors(each) for key, each in value.items()}
    return [_as_tensors(each) for each in value] if isinstance(value, (list, tuple)) else value


def _check_arguments(modules: Any, optimizer: Any, tokens: Any, settings: Any) -> None:
    if not modules:
        raise InvalidArgument("model_fragments is empty: name at least one module")
    for name in settings.keys() - {each.name for each in fields(Method)}:
        raise TypeError(f"DiLoCo has no argument {name!r}{_OF_TORCHFT.get(name, '')}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"inner_optimizer must be a torch optimizer, not {optimizer!r}")
    if tokens is not None and not callable(tokens):
        raise TypeError(f"tokens must be a function that gives those of a step, not {tokens!r}")


# Arguments of torchft's DiLoCo that this DiLoCo lacks, and what to use instead.
_OF_TORCHFT = {
    "outer_optimizer": ": it is called outer, and may be the fourth",
    "should_quantize": ": codec names what is sent, as 'int8'",
    **dict.fromkeys(
        ("backup_device", "pin_memory", "use_bucketization", "bucket_cap_mb"),
        ": leave it out, the outer parameters are in host memory and travel in chunks",
    ),
}


def _outer_of(outer: Any) -> Any:
    """The outer optimizer with the numbers of one or several equal torch.optim.SGD; any other value
    is returned as it is."""
    optimizers = [outer] if isinstance(outer, torch.optim.Optimizer) else outer
    if not isinstance(optimizers, (list, tuple)):
        return outer
    found = {_numbers_of(each) for each in optimizers}
    if len(found) != 1:
        raise InvalidArgument("outer must be one optimizer, or several with the same numbers")
    (value,) = found
    return value


def _numbers_of(optimizer: Any) -> OuterOptimizer:
    if isinstance(optimizer, torch.optim.SGD) and len(optimizer.param_groups) == 1:
        (group,) = optimizer.param_groups
        is_plain = not (group["weight_decay"] or group["dampening"] or group["maximize"])
        if is_plain and group["nesterov"]:
            return Nesterov(group["lr"], group["momentum"])
        if is_plain and group["momentum"] == 0:
            return SGD(group["lr"])
    raise InvalidArgument(
        "outer must be an outer optimizer of pccl_train, or a torch.optim.SGD of one group, with "
        "nesterov or without momentum, and without weight_decay, dampening and maximize"
    )


def _named(
    modules: Sequence[nn.Module],
) -> tuple[dict[str, nn.Parameter], tuple[tuple[str, ...], ...]]:
    """The parameters to train by name, and the parameters' names of each module."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    parts: list[tuple[str, ...]] = []
    for number, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise TypeError(f"model_fragments must be modules, not {type(module).__name__}")
        own = []
        for name, parameter in module.named_parameters():
            name = _full_name(name, number, modules)
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            _check_floats("parameter", name, parameter)
            seen.add(id(parameter))
            found[name] = parameter
            own.append(name)
        if not own:
            raise InvalidArgument(
                f"module {number} of model_fragments has no parameter of its own that requires a "
                "gradient: there is nothing to exchange"
            )
        parts.append(tuple(own))
    return found, tuple(parts)


def _named_buffers(modules: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """The buffers by name; a buffer that several modules share has the first of its names."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for number, module in enumerate(modules):
        for name, buffer in module.named_buffers():
            if id(buffer) not in seen:
                seen.add(id(buffer))
                found[_full_name(name, number, modules)] = buffer
    return found


def _full_name(name: str, number: int, modules: Sequence[nn.Module]) -> str:
    """The name of a parameter or buffer: without the `_orig_mod.` that torch.compile adds, and with
    the module's number if there are several modules."""
    name = name.replace("_orig_mod.", "")
    return name if len(modules) == 1 else f"{number}.{name}"


def _shared(found: Mapping[str, torch.Tensor], asked: Mapping[str, str]) -> Buffers | None:
    """The averaged and synced buffers, or None; the first pattern that matches a name decides."""
    chosen: dict[str, str] = {}
    for pattern, what in asked.items():
        if what not in ("averaged", "synced", "own"):
            raise InvalidArgument(
                f"buffers[{pattern!r}] must be 'averaged', 'synced' or 'own', not {what!r}"
            )
        matched = fnmatch.filter(found, pattern)
        if not matched:
            raise InvalidArgument(
                f"buffers has {pattern!r}, which matches none of {', '.join(found) or 'no buffer'}"
            )
        for name in matched:
            chosen.setdefault(name, what)
    averaged, synced = (
        tuple(sorted(name for name, what in chosen.items() if what == wanted))
        for wanted in ("averaged", "synced")
    )
    for name in averaged:
        _check_floats("buffer", name, found[name], "; it may be 'synced'")
    return Buffers(_Memory(lambda: found), averaged, synced) if averaged or synced else None


def _check_floats(kind: str, name: str, tensor: torch.Tensor, hint: str = "") -> None:
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1:
        raise InvalidArgument(f"{kind} {name!r} must be of floats, not {tensor.dtype}{hint}")


class _Memory:
    """The Replica of named tensors. Tensors on an accelerator are copied through pinned memory."""

    def __init__(self, find: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._find = find
        self._given = find()
        # CPU copies of tensors that are on an accelerator or not contiguous.
        self._copies: dict[str, torch.Tensor] = {}

    def tensors(self) -> Sequence[Tensor]:
        self._given = self._find()  # looks again, so that `same_model` sees a changed module
        return [
            Tensor(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self._locals(list(self._given)).items()
        ]

    def read(self, names: Sequence[str], *, to_write: bool = False) -> Mapping[str, buffers.Array]:
        """The memory of tensors that are contiguous on the CPU; CPU copies of other tensors."""
        tensors, waits = {}, False
        for name, tensor in self._locals(names).items():
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                self._copies.pop(name, None)  # the tensor may have been on an accelerator before
                tensors[name] = tensor
                continue
            if name not in self._copies:
                self._copies[name] = torch.empty(
                    tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type != "cpu"
                )
            tensors[name] = self._copies[name].copy_(tensor, non_blocking=True)
            waits = waits or tensor.device.type != "cpu"
        if waits:
            torch.accelerator.synchronize()
        return {name: _memory(tensor) for name, tensor in tensors.items()}

    def write(self, arrays: Mapping[str, buffers.Array]) -> None:
        for name, tensor in self._locals(list(arrays)).items():
            if name in self._copies:
                tensor.copy_(self._copies[name], non_blocking=True)

    def _locals(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The named tensors, with the local shard in the place of a DTensor."""
        found = {}
        for name in names:
            tensor = self._given[name].detach()
            found[name] = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return found


def _memory(tensor: torch.Tensor) -> buffers.Buffer:
    """The memory of a tensor as a Buffer; elements other than floats as bytes."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        return buffers.Buffer(tensor.data_ptr(), tensor.nbytes, DType.U8, owner=tensor)
    return buffers.Buffer(
        tensor.data_ptr(), tensor.numel(), dtype, owner=tensor, shape=tensor.shape
    )


_DTYPES = {
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
}
