"""Trees of arrays as one operation: what a model's parameters or gradients usually are.

A tree is a dict, list, tuple or named tuple of trees, None, or an array; dicts go in the order of
their keys. All of its arrays are one operation: one tag, one outcome, and either all of them have
their result or none has. They need not have one dtype, and are not copied where they are contiguous
and in native byte order. Every member passes a tree of the same structure, shapes and dtypes, and
leaves of another name are a Mismatch, so that nobody adds a "bias" to a "weight"; a tree that is a
list of arrays goes with a plain list of them, too.

Ranges of an outcome count the elements of all arrays: for each rank's rows in turn, those of one
array after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pccl_py.errors import InvalidArgument
from pccl_py.kit.frontend import Form


def flatten(tree: object) -> Form:
    """The arrays of a tree, and what makes a tree of the same structure of others."""
    arrays: list[Any] = []
    names: list[str] = []
    build = _plan(tree, "", arrays, names)
    if not arrays:
        raise InvalidArgument("the tree has no arrays: an operation has at least one")
    # A tree that is an array has no parts to be told from each other.
    return Form(arrays, build, names if names != [""] else ())


def _plan(
    tree: object, name: str, arrays: list[Any], names: list[str]
) -> Callable[[Sequence[Any]], Any]:
    """A function that makes such a tree of its arrays, which are added to `arrays`."""
    if tree is None:
        return lambda _: None
    if isinstance(tree, dict):
        try:
            keys = sorted(tree)
        except TypeError:
            raise TypeError(
                "the keys of a dict in a tree must be of one kind, to have an order"
            ) from None
        by_key = {key: _plan(tree[key], f"{name}[{key!r}]", arrays, names) for key in keys}
        order = list(tree)
        return lambda made: {key: by_key[key](made) for key in order}
    if isinstance(tree, list | tuple):
        fields: Sequence[str] | None = getattr(tree, "_fields", None)
        parts = [f"[{index}]" for index in range(len(tree))]
        if fields is not None:
            parts = [f".{field}" for field in fields]
        plans = [
            _plan(child, name + part, arrays, names)
            for child, part in zip(tree, parts, strict=True)
        ]
        if isinstance(tree, list):
            return lambda made: [plan(made) for plan in plans]
        kind: Any = type(tree)
        if fields is not None:
            return lambda made: kind(*[plan(made) for plan in plans])
        return lambda made: kind([plan(made) for plan in plans])
    number = len(arrays)
    arrays.append(tree)
    names.append(name)
    return lambda made: made[number]
