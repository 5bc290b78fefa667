"""Parses how a peer is to use the network: lanes of a link, and rates of sending.

A value is a number or a text, as "auto" or "200mbit", from a program, a variable or a command line.
The native library reads rates (engine/abi/argument.zig). words.py parses congestion controls.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pccl_py import _pccl, words
from pccl_py.errors import InvalidArgument

# Most lanes of a link, as in engine/base/limits.zig.
LANES_MAX = 64

Rates: TypeAlias = str | int | Mapping[str | None, str | int]


def parse_lanes(value: object, name: str) -> int:
    """Parses a number of lanes; None and "auto" give 0. Raises InvalidArgument, TypeError."""
    if value is None or value == "auto":
        return 0
    if isinstance(value, str):
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < 9 else 0
    else:
        number = words.index(value, name)  # type: ignore[arg-type]  # index checks it
    if not 1 <= number <= LANES_MAX:
        raise InvalidArgument(f"{name} must be 'auto' or 1 to {LANES_MAX}, not {value!r}")
    return number


def rates_text(value: object, name: str) -> str | None:
    """Writes rates for the native library, as "100mbit,eu-1=20mbit"; None is no limit.

    `value`: a text, bytes per second, or a dict of these by the labels of peers, in which the key
    None stands for all peers together. Raises InvalidArgument, TypeError.
    """
    if value is None or (isinstance(value, Mapping) and not value):
        return None
    text = ",".join(_items(value, name))
    _pccl.rate_parse(text, name)
    return text


def _items(value: object, name: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield _rate(value, name)
        return
    for peer, rate in value.items():
        said = _rate(rate, name)
        # A comma would begin the rate of another peer.
        if "," in said:
            raise InvalidArgument(f"{name} has {said!r}, but each rate of a dict must be one")
        if peer is None:
            yield said
        elif "," in words.text(peer, f"{name}: the name of a peer"):
            raise InvalidArgument(f"{name} names a peer by {peer!r}, but no name has a comma here")
        else:
            yield f"{peer}={said}"


def _rate(value: Any, name: str) -> str:
    if isinstance(value, str):
        return words.text(value, name)
    try:
        return str(operator.index(value))
    except TypeError:
        raise TypeError(
            f"{name} must be a text such as '200mbit', a whole number of bytes per second, or a "
            f"dict of these by the names of peers, not {type(value).__name__}"
        ) from None
