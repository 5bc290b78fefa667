"""The forms of a collective: all calls that PyTorch's own process groups accept.

PyTorch's C++ takes `broadcast([x], opts)` with a BroadcastOptions, and `broadcast(x, root=1)` with
single fields of the options. ProcessGroupPccl (backend.py) implements only the form with an
options object: `accepting` wraps its collectives, and converts every other form to that form. FORMS
repeats the docstrings of PyTorch's bindings of ProcessGroup and Backend; a test compares them. A
call that fits no form raises TypeError, as in the bindings, so that no argument is ignored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch.distributed
from torch import Tensor
from torch._C import _distributed_c10d

# The stubs of both modules lack names that exist.
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


# The check of an argument, by the type that FORMS gives it; `_is_of` checks options objects.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": _is_tensor,
    "[Tensor]": _are_tensors,
    "[[Tensor]]": _are_lists,
    "int": _is_number,
    "[int]": _are_numbers,
    "ReduceOp": _is_op,
    "timedelta": _is_time,
}
# Arguments that become fields of the options object: argument name, field name.
_PARTS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}
# Arguments that a caller may leave out.
_OPTIONAL = ("opts", "op", "timeout")
# Pairs (given, wanted) of types: a value of the given type is wrapped in a list.
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

# Forms of each collective; ProcessGroupPccl implements the first one, with positional arguments.
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
    # The field of the options object that the argument becomes, or None.
    part: str | None
    fits: Callable[[Any], bool]
    is_optional: bool
    # Whether the argument must be wrapped in a list for the first form.
    is_wrapped: bool


class _Form(NamedTuple):
    """One form of a collective. `options` makes an empty options object of its class."""

    parameters: tuple[_Parameter, ...]
    options: Callable[[], Any]

    def take(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Converts a call to the first form's arguments; None if the call is not of this form."""
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
    """A list of `value`; an empty list if `value` is empty, as it is on ranks but the root."""
    return [value] if isinstance(value, Tensor) or value else []


def _parsed(name: str) -> tuple[_Form, ...]:
    """Parses the forms of the collective `name` in FORMS."""
    first = [word.split(": ") for word in FORMS[name][0].split(", ")]
    # send and recv have no options object, so BarrierOptions is never used for them.
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
    """Makes the collectives of the class `group` accept all of their forms."""
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
