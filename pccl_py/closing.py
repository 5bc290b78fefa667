"""Objects that their `with` block closes: communicators, coordinators, states, worlds.

It owns the two methods of a context manager, and nothing else; what closing means is each class's
own `close`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A context manager that gives itself and closes itself, whether or not the block failed."""

    def close(self) -> None:
        """Gives back what it holds. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
