"""`--state` on what another user of the machine has prepared: refused, with reason and cure.

How each finding is worded is engine/net/private.zig; what a journal may hold is
tests/python/test_api_journal.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl

CLI = "pccl_py.cli"
STRANGER = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def begin(state: Path) -> str:
    """Begins a run and ends its coordinator. Returns the token."""
    with pccl.Coordinator(state=state) as coordinator:
        return coordinator.token


def refusal(state: Path) -> str:
    with pytest.raises(pccl.SystemRefused) as caught:
        pccl.Coordinator(state=state)
    return str(caught.value)


def victim_of(folder: Path) -> Path:
    """A file that a coordinator could overwrite through a link."""
    victim = folder / "victim"
    victim.write_text("precious")
    return victim


@as_root
def test_a_directory_of_another_user_is_refused_and_what_its_links_lead_to_is_left_alone(
    tmp_path: Path,
) -> None:
    """The attack as it was done: a foreign directory whose files are links to a file of root."""
    victim = victim_of(tmp_path)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for name in ("journal.new", "lock"):
        (state / name).symlink_to(victim)
    os.chown(state, STRANGER, -1)
    said = refusal(state)
    assert f"(owner {STRANGER}, mode 0700)" in said and "chown" not in said and "chmod" not in said
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["journal.new", "lock", "journal"])
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "directory"])
def test_nothing_but_a_file_of_its_own_is_taken_for_one_of_its_files(
    tmp_path: Path, name: str, kind: str
) -> None:
    victim = victim_of(tmp_path)
    victim.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    planted = state / name
    if kind == "link":
        planted.symlink_to(victim)
    elif kind == "dangling":
        planted.symlink_to(tmp_path / "new")
    elif kind == "hard link":
        os.link(victim, planted)
    elif kind == "pipe":
        os.mkfifo(planted, 0o600)
    else:
        planted.mkdir(mode=0o700)
    assert str(state) in refusal(state)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()
    if kind == "link":
        assert f"{planted} is not private: it is a symbolic link" in refusal(state)
    (shutil.rmtree if kind == "directory" else os.unlink)(planted)
    begin(state)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701])
def test_a_directory_that_others_may_use_is_refused_with_its_cure(
    tmp_path: Path, mode: int
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    said = refusal(state)
    assert f"mode {mode:04o})" in said
    assert said.endswith(f": chmod 700 {state}")
    assert os.listdir(state) == []
    state.chmod(0o700)
    begin(state)


def test_a_directory_for_many_users_is_refused_and_left_to_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    said = refusal(shared)
    assert "mode 1777)" in said and "chmod" not in said
    cure = f"mkdir -m 700 {shared}/run"
    assert said.endswith(f": {cure}")
    subprocess.run(cure.split(), check=True)
    begin(shared / "run")


@pytest.mark.parametrize("name", ["journal", "journal.new", "lock"])
@pytest.mark.parametrize("mode", [0o666, 0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused_with_its_cure(
    tmp_path: Path, name: str, mode: int
) -> None:
    state = tmp_path / "state"
    token = begin(state)
    (state / name).touch()
    (state / name).chmod(mode)
    said = refusal(state)
    assert f"{state / name} is not private" in said and f"mode {mode:04o})" in said
    assert said.endswith(f": chmod 600 {state / name}")
    (state / name).chmod(0o600)
    assert begin(state) == token


@as_root
@pytest.mark.parametrize("name", ["journal", "journal.new", "lock"])
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    state = tmp_path / "state"
    begin(state)
    (state / name).touch(mode=0o600)
    os.chown(state / name, STRANGER, -1)
    said = refusal(state)
    assert f"(owner {STRANGER}, mode 0600)" in said and f"chmod 600 {state / name}" in said


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_a_link_to_a_directory_is_refused(tmp_path: Path, end: str) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("real")
    with pytest.raises(pccl.SystemRefused, match="is a symbolic link"):
        pccl.Coordinator(state=f"{link}{end}")
    assert os.listdir(tmp_path / "real") == []


def test_whatever_the_umask_is_the_state_is_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        begin(tmp_path / "state")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for file in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_lock_that_is_removed_is_made_again_and_keeps_a_second_coordinator_out(
    start: Any, tmp_path: Path
) -> None:
    """It looks once a second, when it has something to do: a peer's heartbeat is enough."""
    state = tmp_path / "state"
    program = start("coordinator", "--state", str(state), "--heartbeat", "0.1", module=CLI)
    token = program.line()
    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        (state / "lock").unlink()
        deadline = time.monotonic() + 30
        # It is said when the lock is held. The file is there a moment before that, and a second
        # coordinator that comes in between is the one that has the lock.
        while "is made again" not in program.errors:
            assert time.monotonic() < deadline, "the lock was not made again"
            comm.barrier()
        assert stat.S_IMODE((state / "lock").stat().st_mode) == 0o600
        with pytest.raises(pccl.SystemRefused, match="another coordinator"):
            pccl.Coordinator(state=state)
        assert pccl.run_status(token)["journal"] == "ok"
    program.interrupt()
    assert program.end() == 0
    assert program.errors.count("is made again") == 1


def test_a_coordinator_whose_lock_another_one_has_writes_nothing_more(tmp_path: Path) -> None:
    """Both would append to one file. The first goes on without a journal, and says so."""
    state, other = tmp_path / "state", tmp_path / "other"
    other.touch(mode=0o600)
    with pccl.Coordinator(state=state) as first, other.open() as held:
        # A lock that somebody else holds, in the place of its own.
        fcntl.flock(held, fcntl.LOCK_EX)
        os.rename(other, state / "lock")
        before = (state / "journal").read_bytes()
        with pccl.connect(first.token, group="new", bind="127.0.0.1:0") as comm:
            comm.admit()
        status = pccl.run_status(first.token)
        assert status["journal"] == "failed"
        assert "another coordinator" in status["journal_failure"]
        assert (state / "journal").read_bytes() == before


# The program of a system whose kernel, or whose filter of system calls, is older than statx.
WITHOUT_STATX = """
import ctypes, errno, platform, struct, sys
import pccl_py as pccl

RETURN_ERRNO, ALLOW, LOAD, JUMP_IF_EQUAL, RETURN = 0x00050000, 0x7FFF0000, 0x20, 0x15, 0x06
SECCOMP, FILTER, NO_NEW_PRIVILEGES = 22, 2, 38
statx = {"x86_64": 332, "aarch64": 291}[platform.machine()]
program = b"".join(
    struct.pack("HBBI", *line)
    for line in (
        (LOAD, 0, 0, 0),  # the number of the system call
        (JUMP_IF_EQUAL, 0, 1, statx),
        (RETURN, 0, 0, RETURN_ERRNO | getattr(errno, sys.argv[2])),
        (RETURN, 0, 0, ALLOW),
    )
)
code = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
system = ctypes.CDLL(None, use_errno=True)
assert system.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
assert system.prctl(SECCOMP, FILTER, filter, 0, 0) == 0, ctypes.get_errno()
assert system.syscall(statx, -1, b"", 0, 0, code) == -1
assert ctypes.get_errno() == getattr(errno, sys.argv[2])
for incarnation in (1, 2):
    with pccl.Coordinator(state=sys.argv[1]) as coordinator:
        assert pccl.run_status(coordinator.token)["incarnation"] == incarnation
"""


@pytest.mark.skipif(sys.platform != "linux", reason="filters system calls the way of Linux")
@pytest.mark.parametrize("answer", ["ENOSYS", "EPERM"])
def test_a_system_without_statx_looks_the_old_way(tmp_path: Path, answer: str) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", WITHOUT_STATX, str(state), answer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    state.chmod(0o755)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "mode 0755" in refused.stderr
