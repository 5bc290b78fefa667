"""Reads arguments of `connect` and `Coordinator`, or environment variables in their place.

An argument goes before its variable. docs/reference/ENVIRONMENT.md lists the variables;
_log_output.py reads those of the log.
"""

from __future__ import annotations

import os
from typing import TypeVar

from pccl_py import network, words
from pccl_py.errors import InvalidArgument

Value = TypeVar("Value")


class Arguments:
    """The arguments of one function. An argument's variable is `prefix` and its name in capitals.

    An empty variable counts as unset. Errors name the argument, or the variable that was read.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def given(self, value: Value | None, variable: str) -> tuple[Value | str | None, str]:
        """Returns `value` and the argument's name, or the variable's text and its name."""
        said = os.environ.get(variable)
        name = variable.removeprefix(self._prefix).lower()
        return (value, name) if value is not None or not said else (said, variable)

    def text(self, value: str | None, variable: str) -> str | None:
        """Reads a string for C. Raises as `words.text`."""
        found, called = self.given(value, variable)
        return None if found is None else words.text(found, called)

    def at_least_one(self, value: int | None, variable: str, bits: int = 32) -> int:
        """Reads an integer in [1, 2**bits); None gives 0. Raises InvalidArgument, TypeError."""
        found, called = self.given(value, variable)
        if isinstance(found, str) and called == variable:
            try:
                found = int(found)
            except ValueError:
                raise InvalidArgument(f"{called} must be an integer, not {found!r}") from None
        return words.at_least_one(found, called, bits)  # type: ignore[arg-type]  # checks it

    def nanoseconds(self, value: float | None, variable: str, *, may_be_zero: bool = False) -> int:
        """Reads seconds as nanoseconds; None gives 0. Raises InvalidArgument, TypeError."""
        found, called = self.given(value, variable)
        if isinstance(found, str) and called == variable:
            try:
                found = float(found)
            except ValueError:
                raise InvalidArgument(
                    f"{called} must be a number of seconds, not {found!r}"
                ) from None
        return words.nanoseconds(found, called, may_be_zero)  # type: ignore[arg-type]  # checks it

    def lanes(self, value: str | int | None, variable: str) -> int:
        """Reads a number of lanes for each link. Raises as `network.parse_lanes`."""
        found, called = self.given(value, variable)
        return network.parse_lanes(found, called)

    def rates(self, value: network.Rates | None, variable: str) -> str | None:
        """Reads the rates at which this peer may send. Raises as `network.rates_text`."""
        found, called = self.given(value, variable)
        return network.rates_text(found, called)

    def congestion(self, value: str | int | None, variable: str) -> words.Congestion:
        """Reads a congestion control. Raises as `words.parse_congestion`."""
        found, called = self.given(value, variable)
        return words.parse_congestion(found, called)

    def probe(self, value: str | int | None, variable: str) -> words.Probe:
        """Reads whether links are probed. Raises as `words.parse_probe`."""
        found, called = self.given(value, variable)
        return words.parse_probe(found, called)

    def plans(self, value: str | int | None, variable: str) -> words.Plans:
        """Reads whether paths follow rates. Raises as `words.parse_plans`."""
        found, called = self.given(value, variable)
        return words.parse_plans(found, called)
