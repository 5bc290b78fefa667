"""Secrets of the command line: reading a token or a run id, and writing a token down.

Every process of a machine sees the arguments of all others, so a secret never comes from an
argument, but from the environment, from a file that only its owner can read, or from standard
input. No error quotes a text that it refuses. pccl_py/coordinator.py says what is in a token.
"""

from __future__ import annotations

import ipaddress
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pccl_py

STANDARD_INPUT = Path("-")
TOKEN_PREFIX = "pccl1-"
# Most bytes that are read of a file. A token has at most 511 characters, and may have white space
# around it.
SECRET_BYTES_MAX = 4096

HOW_TO_GIVE_A_TOKEN = "set PCCL_TOKEN, or pass --token-file FILE (- is standard input)"


def refuse_token_argument() -> NoReturn:
    """Raises InvalidArgument for a token that was typed as an argument."""
    raise pccl_py.InvalidArgument(
        "a token on the command line can be read by every user of this machine: "
        + HOW_TO_GIVE_A_TOKEN
    )


def refuse_run_id_argument() -> NoReturn:
    """Raises InvalidArgument for a run id that was typed as an argument."""
    raise pccl_py.InvalidArgument(
        "a run id on the command line can be read by every user of this machine: "
        "pass --run-id-file FILE (- is standard input)"
    )


def token(file: Path | None) -> str:
    """The token of --token-file, or else of PCCL_TOKEN."""
    if file is not None:
        return read(file)
    value = os.environ.get("PCCL_TOKEN", "").strip()
    if not value:
        raise pccl_py.InvalidArgument(f"no token: {HOW_TO_GIVE_A_TOKEN}")
    return value


def parts(token: str, *, whole: bool) -> str:
    """Describes the content of a token for people; the run id is complete only with `whole`."""
    parsed = pccl_py.token_parse(token)
    said = f"address  {parsed.address}\n"
    run_id = parsed.run_id.hex()
    said += f"run id   {run_id}" if whole else f"run      {run_id[:8]}, as in `pccl status`"
    host = parsed.address.rpartition(":")[0].strip("[]")
    if _is_loopback(host):
        said += (
            f"\nnote     {host} is this machine itself: other machines cannot join with this token"
        )
    return said


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run_id(file: Path | None) -> bytes | None:
    """The run id of --run-id-file: 32 hexadecimal digits."""
    if file is None:
        return None
    text = read(file)
    try:
        return bytes.fromhex(text)
    except ValueError:
        # No cause: it may quote the secret.
        raise pccl_py.InvalidArgument(
            f"{_named(file)} holds no run id, which is 32 hexadecimal digits"
        ) from None


def read(path: Path) -> str:
    """Reads the first line of a file that no other user can read, or of standard input."""
    if path == STANDARD_INPUT:
        return _first_line(sys.stdin.buffer.readline(SECRET_BYTES_MAX), path)
    if path.name.startswith(TOKEN_PREFIX):
        refuse_token_argument()
    try:
        # Non-blocking, because opening a named pipe without a writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise pccl_py.SystemRefused(f"{path} cannot be read: {error.strerror}") from error
    try:
        _check(path, os.fstat(descriptor))
        line = os.read(descriptor, SECRET_BYTES_MAX)
    finally:
        os.close(descriptor)
    return _first_line(line.partition(b"\n")[0], path)


def _check(path: Path, status: os.stat_result) -> None:
    """Raises InvalidArgument for a file that another user could have written, or can read.

    A file of root may be readable by its group, which root has chosen: in this way systemd and
    Kubernetes hand secrets to a service that is not root.
    """
    mode = stat.S_IMODE(status.st_mode)
    for_others = mode & 0o077
    if status.st_uid == 0:
        for_others &= ~0o040
    if not stat.S_ISREG(status.st_mode):
        raise pccl_py.InvalidArgument(f"{path} is not a regular file; - is standard input")
    if status.st_uid not in (0, os.geteuid()):
        raise pccl_py.InvalidArgument(
            f"{path} belongs to the user {status.st_uid}, who can change it: copy it to a file of "
            f"your own (you are the user {os.geteuid()})"
        )
    if for_others:
        raise pccl_py.InvalidArgument(
            f"{path} has the mode {mode:04o}, so other users can use it: chmod 600 {path}"
        )


def _first_line(line: bytes, path: Path) -> str:
    text = line.decode("ascii", errors="replace").strip()
    if not text:
        raise pccl_py.InvalidArgument(f"{_named(path)} is empty")
    return text


def _named(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def write(path: Path, text: str) -> None:
    """Puts a file in place at once, so that a reader never sees half of it.

    A new file replaces a file or link at `path`, which is neither followed nor written to.
    """
    try:
        descriptor, part = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
    except OSError as error:  # which would name the temporary file
        raise pccl_py.SystemRefused(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        os.replace(part, path)
    except BaseException as error:
        os.unlink(part)
        if not isinstance(error, OSError):
            raise
        raise pccl_py.SystemRefused(f"{path} cannot be written: {error.strerror}") from error
