"""How a peer uses the network, as users say it: lanes of a link, bytes per second.

Each is a number or a text, "auto" or "200mbit", of a program, a variable or a command line; the
native library takes numbers. engine/abi/compat/environment.zig reads the same texts. Which
congestion control: words.py.
"""

from __future__ import annotations

import re
from typing import Any

from pccl_py.errors import InvalidArgument
from pccl_py.words import index

# As engine/base/limits.zig has them.
LANES_MAX = 64
SEND_RATE_MIN = 1_000
SEND_RATE_MAX = 1_250_000_000_000

RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([a-zA-Z]*)")
# Bytes. A b alone may be either, so bits are written out.
UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9} | {
    f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMG", start=1)
}
BITS = {f"{letter}bit": 10 ** (3 * power) for power, letter in enumerate(("", *"kmgt"))}


def parse_lanes(value: object, name: str) -> int:
    """Lanes of a link, 0 for None and "auto". Raises InvalidArgument, TypeError."""
    if value is None or value == "auto":
        return 0
    if isinstance(value, str):
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < 9 else 0
    else:
        number = index(value, name)  # type: ignore[arg-type]  # it raises
    if not 1 <= number <= LANES_MAX:
        raise InvalidArgument(f"{name} must be 'auto' or 1 to {LANES_MAX}, not {value!r}")
    return number


def parse_rate(value: object, name: str) -> int:
    """Bytes per second, 0 for None: no limit. Raises InvalidArgument, TypeError."""
    if value is None:
        return 0
    number: Any = value  # `index` raises where it is none
    rate = _rate_of(value) if isinstance(value, str) else index(number, name)
    if not SEND_RATE_MIN <= rate <= SEND_RATE_MAX:
        raise InvalidArgument(
            f"{name} must be from 8kbit to 10tbit per second, such as '200mbit', '25MB', "
            f"'1.5gbit' or a number of bytes, not {value!r}"
        )
    return rate


def _rate_of(text: str) -> int:
    """0 if it is none."""
    read = RATE.fullmatch(text.strip())
    if read is None:
        return 0
    number, unit = read.groups()
    bits = BITS.get(unit.lower(), 0)
    return int(float(number) * (bits / 8 or UNITS.get(unit, 0)))
