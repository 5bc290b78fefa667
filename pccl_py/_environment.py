"""Arguments that environment variables stand in for: which of the two holds, and its checks.

`connect` and `Coordinator` read theirs so; docs/reference/ENVIRONMENT.md has the table. The log's
variables are _log_output.py's.
"""

from __future__ import annotations

import os
from typing import TypeVar

from pccl_py import network, words
from pccl_py.errors import InvalidArgument

Value = TypeVar("Value")


class Arguments:
    """The arguments of one function. The variable of each is `prefix` and its name, in capitals.

    An empty variable counts as unset. Errors name what was given: the argument or the variable.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def given(self, value: Value | None, variable: str) -> tuple[Value | str | None, str]:
        """The argument, or else what its variable says, if it says anything; and which of them."""
        said = os.environ.get(variable)
        name = variable.removeprefix(self._prefix).lower()
        return (value, name) if value is not None or not said else (said, variable)

    def text(self, value: str | None, variable: str) -> str | None:
        """A string that C can take. Raises as `words.text`."""
        found, called = self.given(value, variable)
        return None if found is None else words.text(found, called)

    def at_least_one(self, value: int | None, variable: str, bits: int = 32) -> int:
        """An integer in [1, 2**bits), or 0 for None. Raises InvalidArgument, TypeError."""
        found, called = self.given(value, variable)
        if isinstance(found, str) and called == variable:
            try:
                found = int(found)
            except ValueError:
                raise InvalidArgument(f"{called} must be an integer, not {found!r}") from None
        return words.at_least_one(found, called, bits)  # type: ignore[arg-type]  # it raises

    def nanoseconds(self, value: float | None, variable: str, *, may_be_zero: bool = False) -> int:
        """Seconds as nanoseconds, or 0 for None. Raises InvalidArgument, TypeError."""
        found, called = self.given(value, variable)
        if isinstance(found, str) and called == variable:
            try:
                found = float(found)
            except ValueError:
                raise InvalidArgument(
                    f"{called} must be a number of seconds, not {found!r}"
                ) from None
        return words.nanoseconds(found, called, may_be_zero)  # type: ignore[arg-type]  # it raises

    def lanes(self, value: str | int | None, variable: str) -> int:
        """Lanes of a link. Raises as `network.parse_lanes`."""
        found, called = self.given(value, variable)
        return network.parse_lanes(found, called)

    def rates(self, value: network.Rates | None, variable: str) -> str | None:
        """How fast it may send. Raises as `network.rates_text`."""
        found, called = self.given(value, variable)
        return network.rates_text(found, called)

    def congestion(self, value: str | int | None, variable: str) -> words.Congestion:
        """A congestion control. Raises as `words.parse_congestion`."""
        found, called = self.given(value, variable)
        return words.parse_congestion(found, called)

    def probe(self, value: str | int | None, variable: str) -> words.Probe:
        """Whether links are probed. Raises as `words.parse_probe`."""
        found, called = self.given(value, variable)
        return words.parse_probe(found, called)
