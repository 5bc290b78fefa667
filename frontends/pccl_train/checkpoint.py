"""Checkpoint: nested dicts and lists of arrays and numbers in a file that is replaced atomically.

The file is an .npz archive: one member for each array, and the member `tree` with everything else
as JSON. The file has no pickles, so loading it runs no code.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pccl_py.errors import InvalidArgument


def write(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object]) -> None:
    """Replaces the file by the bytes that `fill` writes, and syncs them to the disk. After a crash
    the file has either the old or the new content. Raises OSError."""
    path = Path(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as made:
            fill(made)
            made.flush()
            os.fsync(made.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Writes a state of dicts with str keys, lists, arrays, numbers, strings and None."""
    arrays: dict[str, NDArray[Any]] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays[f"array{len(arrays)}"] = value
            return {"array": len(arrays) - 1}
        if isinstance(value, dict):
            return {"dict": {key: plain(each) for key, each in value.items()}}
        if isinstance(value, (list, tuple)):
            return {"list": [plain(each) for each in value]}
        return value

    tree = np.frombuffer(json.dumps(plain(state)).encode(), np.uint8)
    arrays["tree"] = tree
    savez: Any = np.savez  # untyped: by NumPy's types, `arrays` could be an option of savez
    write(path, lambda file: savez(file, **arrays))


def load(path: str | os.PathLike[str]) -> Any:
    """The state in a file of `save`. Raises OSError, or InvalidArgument for any other file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            tree = json.loads(archive["tree"].tobytes())

            def whole(value: Any) -> Any:
                if not isinstance(value, dict):
                    return value
                ((kind, inner),) = value.items()
                if kind == "array":
                    return archive[f"array{inner}"]
                if kind == "dict":
                    return {key: whole(each) for key, each in inner.items()}
                return [whole(each) for each in inner]

            return whole(tree)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as refusal:
        raise InvalidArgument(f"{os.fspath(path)!r} is no checkpoint: {refusal}") from refusal
