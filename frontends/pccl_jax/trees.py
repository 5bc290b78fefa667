"""Trees of arrays as operands of a call: leaves with names and dtypes, and the `form` of a tree.

A form is a hash of the names and dtypes of a tree's leaves, equal on peers of every frontend
(pccl_py/kit/frontend.py, pccl_py/collectives.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pccl_py import InvalidArgument, ReduceOp, _pccl
from pccl_py.kit import Form
from pccl_py.words import (
    DType,
    form_of,
    form_of_shapes,
    not_added_up,
    parse_dtype,
    told_shapes,
)

_NUMBERS = frozenset(
    ["bfloat16"]
    + [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
# Dtypes of less than a byte, and the integer dtype with the same bits. XLA packs several such
# elements into a byte; PCCL sends each in the low bits of a byte of its own, as NumPy stores it.
_NARROW = {
    "int2": "uint2",
    "uint2": "uint2",
    "int4": "uint4",
    "uint4": "uint4",
    "float4_e2m1fn": "uint4",
}
# The names of leaves by the form of a call, for error texts; one entry for each structure of trees.
_forms: dict[int, Form] = {}
# The shapes of arrays by the form of a compiled call that includes them (`form_with_shapes`).
_shapes: dict[int, tuple[tuple[int, ...], ...]] = {}


@dataclass(frozen=True)
class Leaves:
    """The leaves of a call's tree, and the tree's structure, which the result gets as well."""

    arrays: list[Any]
    names: tuple[str, ...]  # a name for each of `arrays`; () for a tree that is a single array
    treedef: Any

    @classmethod
    def of(cls, tree: Any) -> Leaves:
        """The leaves of `tree`. Raises InvalidArgument if there are none, TypeError for a leaf that
        is no array."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
        if not paths:
            raise InvalidArgument("the tree has no arrays: an operation has at least one")
        names = tuple(jax.tree_util.keystr(path) for path, _ in paths)
        arrays = [_array(leaf, name) for (_, leaf), name in zip(paths, names, strict=True)]
        return cls(arrays, () if names == ("",) else names, treedef)

    def check(self, op: ReduceOp | None) -> None:
        """Raises TypeError or InvalidArgument for a dtype that the call does not support. `op`: how
        the call reduces; None if it only moves data."""
        for array, name in zip(self.arrays, self.names or ("",), strict=True):
            try:
                check_dtype(array.dtype.name, op)
            except (TypeError, InvalidArgument) as error:
                raise type(error)(f"leaf {name}: {error}" if name else str(error)) from None

    def form(self) -> int:
        """The form of the leaves: a hash of their names, and of dtypes unknown to the library."""
        named = Form([], _nothing, self.names)
        number, kinds = named.number, [kind_of(array.dtype.name) for array in self.arrays]
        if any(parse_kind(array.dtype.name) is None for array in self.arrays):
            alone = kinds == ["bool"] and number == 0
            number = _pccl.FORM_BOOL if alone else form_of(f"{number} {kinds}")
        if self.names:
            _forms[number] = named
        return number

    def bytewise(self) -> list[Any]:
        """The arrays, with each element of less than a byte in a byte of its own."""
        return [bytewise(array) for array in self.arrays]

    def rebuild(self, arrays: Any) -> Any:
        """A tree of the same structure and dtypes from `arrays`, which may be `bytewise`."""
        made = [
            as_given(array, given.dtype.name)
            for array, given in zip(arrays, self.arrays, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.treedef, made)


def bytewise(array: Any) -> Any:
    """The array; for elements of less than a byte a u8 array with one element in each byte."""
    name = array.dtype.name
    return _bytes_of(array, name) if name in _NARROW else array


def name_of_bytewise(name: str) -> str:
    """The dtype name that `bytewise` gives to an array of dtype `name`."""
    return "uint8" if name in _NARROW else name


def as_given(array: Any, name: str) -> Any:
    """The array with dtype `name`: undoes `bytewise`."""
    if name not in _NARROW or array.dtype.name == name:
        return array
    bits = array.astype(jnp.dtype(_NARROW[name]))
    return jax.lax.bitcast_convert_type(bits, jnp.dtype(name))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _bytes_of(array: Any, name: str) -> Any:
    return jax.lax.bitcast_convert_type(array, jnp.dtype(_NARROW[name])).astype(jnp.uint8)


@_bytes_of.defjvp
def _no_derivative(name: str, _primals: Any, _tangents: Any) -> Any:
    raise TypeError(
        f"dtype {name} has no derivatives here: its cotangents would be added up. Convert it "
        "first, or take jax.lax.stop_gradient of it"
    )


def form_of_part(form: int, arrays: list[Any], kept: list[int]) -> int:
    """Derives the form of the arrays numbered `kept` from the form of all `arrays` of a call."""
    if len(kept) == len(arrays):
        return form
    named = _forms.get(form) if form else None
    names = [f"[{index}]" for index in range(len(arrays))] if named is None else named.names
    part = Leaves([arrays[index] for index in kept], tuple(names[index] for index in kept), None)
    return part.form()


def form_with_shapes(form: int, shapes: Sequence[tuple[int, ...]]) -> int:
    """Adds the arrays' shapes to the form of a compiled call, as pccl_py does for its calls."""
    listed = tuple(map(tuple, shapes))
    # First lengths are not in the form. If another length is symbolic (jax.export), one program
    # serves several shapes, so the form leaves out all shapes.
    if not all(isinstance(length, int) for shape in listed for length in shape[1:]):
        return form
    made = form ^ form_of_shapes(listed)
    if made != form:
        _shapes[made] = listed
        if form in _forms:
            _forms[made] = _forms[form]
    return made


def reworded(form: int, sentence: str) -> str:
    """The library's `sentence` with names and shapes of leaves for their numbers and hashes."""
    named, shapes = _forms.get(form), _shapes.get(form)
    if named is not None:
        sentence = named.reworded(sentence)
    return sentence if shapes is None else told_shapes(sentence, shapes)


def parse_kind(name: str) -> DType | None:
    """The library's dtype for dtype `name`; None for elements that the library moves as bytes."""
    return parse_dtype(name) if name in _NUMBERS else None


def kind_of(name: str) -> str:
    """The name of dtype `name` in forms, as in pccl_py.buffers."""
    dtype = parse_kind(name)
    return name if dtype is None else dtype.name.lower()


def is_float(array: Any) -> bool:
    """Whether an array, concrete or abstract, has a dtype with derivatives."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def check_dtype(name: str, op: ReduceOp | None) -> None:
    """Raises TypeError for a dtype that calls do not support, InvalidArgument if `op` does not."""
    moves = name == "bool" or name.startswith("float8") or name in _NARROW
    if name.startswith("complex"):
        raise TypeError(
            f"dtype {name} is not supported: pass the real and imaginary parts, as "
            "jnp.stack([x.real, x.imag]), and make lax.complex of those of the result"
        )
    if name not in _NUMBERS and not moves:
        raise TypeError(
            f"dtype {name} is not supported; supported are float16, bfloat16, float32, float64 and "
            "the integers of 8 to 64 bits; and where nothing is added up, bool, floats of 8 bits, "
            "float4_e2m1fn and integers of 2 and 4 bits"
        )
    if op is None:
        return
    if moves and not (op.is_bitwise and name == "bool"):
        raise not_added_up(name)
    dtype = parse_kind(name)
    if op.is_bitwise and dtype is not None and dtype.is_float:
        raise InvalidArgument(
            f"op {op.name.lower()} is of integers, and dtype is {dtype.name.lower()}: floats have "
            f"no {op.name.lower()}"
        )


def _array(leaf: Any, name: str) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        return jnp.asarray(leaf)
    except TypeError:
        where = f"leaf {name}: " if name else ""
        raise TypeError(
            f"{where}{type(leaf).__name__} is not supported: it is no array, nor like one"
        ) from None


def _nothing(_: Any) -> None:
    return None
