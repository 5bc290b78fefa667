"""Closing: the base of objects that a `with` block closes, as communicators and coordinators.

Closing has only the two methods of a context manager; each class has a `close` of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A context manager that closes itself when the `with` block ends, by an error or not."""

    def close(self) -> None:
        """Releases everything that the object holds. Idempotent."""
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
