"""The store of a process whose ranks come from its run, "pccl://" (start.py): nobody shares it.

PyTorch asks for one. Other backends would wait in it for keys that nobody can set, so a key that
this process has not set is refused at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from pccl_py import InvalidUsage
from pccl_torch.errors import torch_error

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed


class LoneStore(dist.Store):  # type: ignore[misc]  # of type Any
    """A `HashStore` that raises InvalidUsage instead of waiting. Any thread may use it.

    Somebody has to keep it for as long as PyTorch uses it, which keeps its half in C++ alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: Any = dist.HashStore()

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """The value of a key that this process has set."""
        self.wait([key])
        found: bytes = self._store.get(key)
        return found

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, 0 at first; returns the sum."""
        return int(self._store.add(key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Sets a key if it has the expected value; returns what it has then."""
        found: bytes = self._store.compare_set(key, expected, desired)
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all are set."""
        return bool(self._store.check(keys))

    def delete_key(self, key: str) -> bool:
        """Whether it was there."""
        return bool(self._store.delete_key(key))

    def num_keys(self) -> int:
        """How many are set."""
        return int(self._store.num_keys())

    # Names by which C++ calls them.
    deleteKey = delete_key
    getNumKeys = num_keys

    def append(self, key: str, value: str) -> None:
        """Adds to the end of a value."""
        self._store.append(key, value)

    def clone(self) -> LoneStore:
        """The same store."""
        return self

    def has_extended_api(self) -> bool:
        """False: several keys are asked for one after the other."""
        return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Returns if all are set; nobody else could set one."""
        for key in keys:
            if not self._store.check([key]):
                raise torch_error(
                    InvalidUsage(
                        f'the store of init_method="pccl://" has no key {key!r}, and is one of '
                        "this process alone: groups of other backends than pccl, and programs that "
                        'share data through the store, need init_method="env://", or a store of '
                        "their own"
                    ),
                    None,
                )
