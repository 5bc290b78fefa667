"""The forms of a collective: all calls that PyTorch's own process groups accept.

PyTorch's C++ takes `broadcast([x], opts)` with a BroadcastOptions, and `broadcast(x, root=1)` with
the parts of one. ProcessGroupPccl (backend.py) implements the form with options alone: `accepting`
wraps its collectives, and turns each other form into that one. FORMS is what the bindings of
ProcessGroup and of Backend say in their docstrings; a test compares them. A call that fits no form
raises TypeError, as those bindings do, so that no argument is ever ignored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch.distributed
from torch import Tensor
from torch._C import _distributed_c10d

# Their types do not have all that there is.
dist: Any = torch.distributed
native: Any = _distributed_c10d

Method: TypeAlias = Callable[..., Any]
Class = TypeVar("Class", bound=type)

_OPS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def _is_tensor(given: Any) -> bool:
    return isinstance(given, Tensor)


def _is_sequence(given: Any) -> bool:
    return type(given) is list or isinstance(given, Sequence)


def _are_tensors(given: Any) -> bool:
    return _is_sequence(given) and all(isinstance(x, Tensor) for x in given)


def _are_lists(given: Any) -> bool:
    return _is_sequence(given) and all(_are_tensors(row) for row in given)


def _is_number(given: Any) -> bool:
    return hasattr(type(given), "__index__")


def _are_numbers(given: Any) -> bool:
    return _is_sequence(given) and all(_is_number(x) for x in given)


def _is_op(given: Any) -> bool:
    return isinstance(given, _OPS)


def _is_time(given: Any) -> bool:
    return given is None or isinstance(given, timedelta | float)


# The checks of an argument, by the word behind its name in FORMS. Options are of a class instead.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": _is_tensor,
    "[Tensor]": _are_tensors,
    "[[Tensor]]": _are_lists,
    "int": _is_number,
    "[int]": _are_numbers,
    "ReduceOp": _is_op,
    "timedelta": _is_time,
}
# Arguments that become attributes of the options.
_PARTS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}
# Arguments that a caller may leave out.
_OPTIONAL = ("opts", "op", "timeout")
# A tensor stands for a list of one, and a list for a list of one list.
_WRAPPED = (("Tensor", "[Tensor]"), ("[Tensor]", "[[Tensor]]"))

_SPLITS = "output_split_sizes: [int], input_split_sizes: [int]"
_ALL_TO_ALL_SINGLE = (
    f"output: Tensor, input: Tensor, {_SPLITS}, opts: AllToAllOptions",
    f"output: Tensor, input: Tensor, {_SPLITS}, timeout: timedelta",
)
_ALL_GATHER_SINGLE = ("output: Tensor, input: Tensor, opts: AllgatherOptions",)
_ALL_GATHER_COALESCED = ("outputs: [Tensor], inputs: [Tensor], opts: AllgatherOptions",)
_REDUCE_SCATTER_SINGLE = ("outputTensor: Tensor, inputTensor: Tensor, opts: ReduceScatterOptions",)
_REDUCE_SCATTER_COALESCED = ("outputs: [Tensor], inputs: [Tensor], opts: ReduceScatterOptions",)

# The first form of each is that of ProcessGroupPccl, which gets its arguments by position.
FORMS: dict[str, tuple[str, ...]] = {
    "allreduce": (
        "tensors: [Tensor], opts: AllreduceOptions",
        "tensors: [Tensor], op: ReduceOp, timeout: timedelta",
        "tensor: Tensor, op: ReduceOp, timeout: timedelta",
    ),
    "allreduce_coalesced": ("tensors: [Tensor], opts: AllreduceCoalescedOptions",),
    "reduce": (
        "tensors: [Tensor], opts: ReduceOptions",
        "tensor: Tensor, root: int, op: ReduceOp, timeout: timedelta",
    ),
    "broadcast": (
        "tensors: [Tensor], opts: BroadcastOptions",
        "tensor: Tensor, root: int, timeout: timedelta",
    ),
    "allgather": (
        "output_tensors: [[Tensor]], input_tensors: [Tensor], opts: AllgatherOptions",
        "output_tensors: [Tensor], input_tensor: Tensor, timeout: timedelta",
    ),
    "allgather_coalesced": (
        "output_lists: [[Tensor]], input_list: [Tensor], opts: AllgatherOptions",
    ),
    "all_gather_single": _ALL_GATHER_SINGLE,
    "_allgather_base": _ALL_GATHER_SINGLE,
    "all_gather_single_coalesced": _ALL_GATHER_COALESCED,
    "allgather_into_tensor_coalesced": _ALL_GATHER_COALESCED,
    "gather": (
        "output_tensors: [[Tensor]], input_tensors: [Tensor], opts: GatherOptions",
        "output_tensors: [Tensor], input_tensor: Tensor, root: int, timeout: timedelta",
    ),
    "gather_single": ("output: Tensor, input: Tensor, opts: GatherOptions",),
    "scatter": (
        "output_tensors: [Tensor], input_tensors: [[Tensor]], opts: ScatterOptions",
        "output_tensor: Tensor, input_tensors: [Tensor], root: int, timeout: timedelta",
    ),
    "reduce_scatter": (
        "output_tensors: [Tensor], input_tensors: [[Tensor]], opts: ReduceScatterOptions",
        "output: Tensor, input: [Tensor], op: ReduceOp, timeout: timedelta",
        "output_tensors: Tensor, input_tensor: [Tensor], op: ReduceOp, timeout: timedelta",
    ),
    "reduce_scatter_single": _REDUCE_SCATTER_SINGLE,
    "_reduce_scatter_base": _REDUCE_SCATTER_SINGLE,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTER_COALESCED,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTER_COALESCED,
    "alltoall": (
        "output_tensors: [Tensor], input_tensors: [Tensor], opts: AllToAllOptions",
        "output_tensor: [Tensor], input_tensor: [Tensor], opts: AllToAllOptions",
    ),
    "alltoall_base": (
        *_ALL_TO_ALL_SINGLE,
        f"output_tensor: Tensor, input_tensor: Tensor, {_SPLITS}, opts: AllToAllOptions",
    ),
    "all_to_all_single": _ALL_TO_ALL_SINGLE,
    "send": ("tensors: [Tensor], dstRank: int, tag: int",),
    "recv": ("tensors: [Tensor], srcRank: int, tag: int",),
    "barrier": ("opts: BarrierOptions", "timeout: timedelta"),
}


class _Parameter(NamedTuple):
    name: str
    # The attribute of the options that it becomes, if it is a part of them.
    part: str | None
    fits: Callable[[Any], bool]
    is_optional: bool
    # Whether the first form has a list of it here.
    is_wrapped: bool


class _Form(NamedTuple):
    """One form of a collective. `options` makes the object that its parts become."""

    parameters: tuple[_Parameter, ...]
    options: Callable[[], Any]

    def take(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The arguments of the first form, by position; None if the call is not of this form."""
        if len(given) > len(self.parameters):
            return None
        taken: list[Any] = []
        parts: dict[str, Any] = {}
        unused = len(named)
        for number, parameter in enumerate(self.parameters):
            if number < len(given):
                value = given[number]
            elif parameter.name in named:
                value = named[parameter.name]
                unused -= 1
            elif parameter.is_optional:
                continue
            else:
                return None
            if not parameter.fits(value):
                return None
            if parameter.part is not None:
                parts[parameter.part] = value
            else:
                taken.append(_wrapped(value) if parameter.is_wrapped else value)
        if unused:
            return None
        return (*taken, self._options(parts)) if parts else tuple(taken)

    def _options(self, parts: Mapping[str, Any]) -> Any:
        options = self.options()
        for name, value in parts.items():
            if value is not None:
                setattr(options, name, value)
        return options


def _wrapped(value: Any) -> list[Any]:
    """A list of one; of an empty list nothing, as ranks that are not the root give it."""
    return [value] if isinstance(value, Tensor) or value else []


def _parsed(name: str) -> tuple[_Form, ...]:
    """The forms of a collective, as `_Form.take` reads them."""
    first = [word.split(": ") for word in FORMS[name][0].split(", ")]
    # send and recv have no options, and no parts of any.
    kind = next((kind for _, kind in first if kind not in _KINDS), "BarrierOptions")
    options: Any = getattr(native, kind)
    forms = []
    for form in FORMS[name]:
        parameters = []
        for number, word in enumerate(form.split(", ")):
            called, kind = word.split(": ")
            parameters.append(
                _Parameter(
                    called,
                    _PARTS.get(called),
                    _KINDS.get(kind, functools.partial(_is_of, options)),
                    called in _OPTIONAL,
                    number < len(first) and (kind, first[number][1]) in _WRAPPED,
                )
            )
        forms.append(_Form(tuple(parameters), options))
    return tuple(forms)


def _is_of(kind: type, given: Any) -> bool:
    return given is None or isinstance(given, kind)


def accepting(group: Class) -> Class:
    """Has the collectives of a class of process groups accept all forms."""
    for name in FORMS:
        setattr(group, name, _accepting(getattr(group, name), name))
    return group


def _accepting(method: Method, name: str) -> Method:
    forms = _parsed(name)

    @functools.wraps(method)
    def call(group: Any, *given: Any, **named: Any) -> Any:
        for form in forms:
            taken = form.take(given, named)
            if taken is not None:
                return method(group, *taken)
        raise TypeError(_refusal(name, given, named))

    return call


def _refusal(name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    was = [type(value).__name__ for value in given]
    was += [f"{key}: {type(value).__name__}" for key, value in named.items()]
    forms = " or ".join(f"({form})" for form in FORMS[name])
    return f"{name}({', '.join(was)}) is no form of this collective: it takes {forms}"
