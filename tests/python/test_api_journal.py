"""`Coordinator(state=...)` and `pccl coordinator --state`: what a restart keeps, and refuses.

How the members of a run fare meanwhile is tests/processes; how the journal is read, byte by byte,
is engine/protocol/journal.zig.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl

CLI = "pccl_py.cli"


def begin(state: Path, **options: Any) -> str:
    """Begins a run and ends its coordinator. Returns the token."""
    with pccl.Coordinator(state=state, **options) as coordinator:
        return coordinator.token


def use(state: Path, **options: Any) -> str:
    """Begins a run, or goes on with it, and has as many peers in it as it needs."""
    with pccl.Coordinator(state=state, **options) as coordinator:
        token = coordinator.token
        peers = max(1, *(options.get(f"{name}_world_size", 1) for name in ("min", "initial")))
        with ThreadPoolExecutor(peers) as threads:
            # All enter before the first leaves: below min_world_size the others would wait on.
            comms = list(threads.map(lambda _: pccl.connect(token, bind="127.0.0.1"), range(peers)))
        for comm in comms:
            comm.close()
        return token


def settings_of(state: Path) -> bytes:
    """The first record of the journal: docs/internals/PROTOCOL.md."""
    journal = (state / "journal").read_bytes()
    return journal[16 : 16 + 11 + int.from_bytes(journal[19:23], "little") + 5]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a run that has had an epoch, and since then a start without peers. Copy it."""
    state = tmp_path_factory.mktemp("used") / "state"
    with (
        pccl.Coordinator(state=state) as coordinator,
        pccl.connect(coordinator.token, initial_world_size=1, bind="127.0.0.1") as comm,
    ):
        comm.admit()
    begin(state)
    return state


# ---- what is kept ----------------------------------------------------------------------------


def test_a_restart_goes_on_with_the_run_and_its_settings(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pccl.Coordinator(
        state=state, min_world_size=2, initial_world_size=2, lanes_per_link=1, heartbeat=0.1,
        silence=1.5,
    ) as first:  # fmt: skip
        token, port = first.token, first.port
        before = pccl.run_status(token)
    assert (before["incarnation"], before["journal"]) == (1, "ok")
    for incarnation in (2, 3):
        with pccl.Coordinator(state=os.fspath(state)) as again:
            assert (again.token, again.port) == (token, port)
            status = pccl.run_status(token)
            assert status["incarnation"] == incarnation
            assert status["journal"] == "ok"
            assert status["min_world_size"] == 2
    # Saying the same again is no difference.
    same: dict[str, Any] = {
        "min_world_size": 2,
        "lanes_per_link": 1,
        "heartbeat": 0.1,
        "silence": 1.5,
    }
    run_id = pccl.token_parse(token).run_id
    with pccl.Coordinator(state=state, bind=f"127.0.0.1:{port}", run_id=run_id, **same) as again:
        assert again.token == token


def test_the_journal_is_for_its_owner_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    begin(state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for file in state.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_without_a_state_nothing_is_kept(coordinator: pccl.Coordinator) -> None:
    status = pccl.run_status(coordinator.token)
    assert (status["incarnation"], status["journal"]) == (1, "off")
    assert "journal_failure" not in status


# ---- what differs ----------------------------------------------------------------------------


DIFFERENT: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"min_world_size": 3}, ("min_world_size is 3", "begun with 1")),
    ({"initial_world_size": 4}, ("initial_world_size is 4", "begun with 1")),
    ({"lanes_per_link": 3}, ("lanes_per_link is 3", "begun with auto")),
    ({"chunk_bytes": 1024}, ("chunk_bytes is 1024", "begun with 262144")),
    ({"window_bytes": 65536}, ("window_bytes is 65536", "begun with 268435456")),
    ({"heartbeat": 0.25}, ("heartbeat is 0.25 s", "begun with 0.5 s")),
    ({"silence": 9}, ("silence is 9 s", "begun with 5 s")),
    ({"prepare": 1}, ("prepare is 1 s", "begun with 10 s")),
    ({"run_id": b"x" * 16}, ("run_id begins with " + "78" * 4 + ",", "holds the run")),
    ({"bind": "127.0.0.1:1"}, ("port of bind is 1", "begun with ")),
    ({"stall_warning": 2}, ("stall_warning is 2 s", "begun with 10 s")),
    ({"stall": 20}, ("stall is 20 s", "begun with 0 s")),
    ({"advertise": "localhost"}, ("reached at localhost:", "look for")),
    ({"bind": "127.0.0.2"}, ("reached at 127.0.0.2:", "look for")),
]


@pytest.mark.parametrize(("options", "words"), DIFFERENT)
def test_an_option_that_differs_is_refused_with_both_values(
    tmp_path: Path, used: Path, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    state = tmp_path / "state"
    shutil.copytree(used, state)
    before = (state / "journal").read_bytes()
    with pytest.raises(pccl.InvalidArgument) as caught:
        pccl.Coordinator(state=state, **options)
    for word in (*words, str(state)):
        assert word in str(caught.value)
    assert (state / "journal").read_bytes() == before


@pytest.mark.parametrize("options", [options for options, _ in DIFFERENT])
def test_an_option_may_differ_until_the_first_epoch_begins(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """It is an option of the run from then on."""
    if options.get("bind") == "127.0.0.1:1":  # nobody but root may have that port
        with socket.create_server(("127.0.0.1", 0)) as free:
            options = {"bind": f"127.0.0.1:{free.getsockname()[1]}"}
    first = pccl.token_parse(begin(tmp_path))
    with pccl.Coordinator(state=tmp_path, **options) as mended:
        token, port = mended.token, mended.port
    found = pccl.token_parse(token)
    host, _, at = found.address.rpartition(":")
    same_port = first.address.endswith(f":{port}")
    assert found.run_id == options.get("run_id", first.run_id)
    assert int(at) == port and same_port == ("127.0.0.1:" not in options.get("bind", ""))
    assert host == options.get("advertise", options.get("bind", "127.0.0.1").partition(":")[0])
    mended_settings = settings_of(tmp_path)
    assert use(tmp_path, **options) == token
    assert begin(tmp_path) == token
    assert settings_of(tmp_path) == mended_settings


@pytest.mark.parametrize(
    ("options", "was_told"), [({"chunk_bytes": 2048}, True), ({"initial_world_size": 1}, False)]
)
def test_a_peer_that_waits_for_the_first_epoch_hears_of_other_settings(
    tmp_path: Path, options: dict[str, Any], was_told: bool
) -> None:
    """It waits on if it was never told of what has changed."""
    with ThreadPoolExecutor(1) as threads:
        with pccl.Coordinator(state=tmp_path, initial_world_size=2) as first:
            token = first.token
            waiting = threads.submit(pccl.connect, token, bind="127.0.0.1:0", connect_timeout=20)
            deadline = time.monotonic() + 20
            while not pccl.run_status(token)["groups"]:
                assert time.monotonic() < deadline, "the peer did not ask to join"
        with pccl.Coordinator(state=tmp_path, **options) as mended:
            assert mended.token == token
            if was_told:
                with pytest.raises(pccl.CoordinatorUnreachable):
                    waiting.result(20)
            else:
                waiting.result(20).close()
        # No epoch has begun, so the next start may differ as well.
        with pccl.Coordinator(state=tmp_path, lanes_per_link=3, **options) as again:
            assert again.token == token


EVERY: dict[str, Any] = {
    "bind": "0.0.0.0",
    "advertise": "localhost",
    "min_world_size": 2,
    "initial_world_size": 3,
    "lanes_per_link": 3,
    "chunk_bytes": 2048,
    "window_bytes": 1 << 20,
    "heartbeat": 0.25,
    "silence": 2.0,
    "prepare": 3.0,
    "stall_warning": 4.0,
    "stall": 8.0,
    "run_id": b"0123456789abcdef",
}


@pytest.mark.parametrize("given", [*([name] for name in EVERY), [], list(EVERY)])
def test_every_option_that_is_left_out_comes_from_the_journal(
    tmp_path: Path, every: tuple[Path, str], given: list[str]
) -> None:
    state = tmp_path / "state"
    shutil.copytree(every[0], state)
    with pccl.Coordinator(state=state, **{name: EVERY[name] for name in given}) as again:
        assert again.token == every[1]
        # It listens on every interface again.
        socket.create_connection(("127.0.0.2", again.port)).close()
    assert settings_of(state) == settings_of(every[0])


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The state of a run with these options, and its token. Copy it."""
    state = tmp_path_factory.mktemp("every") / "state"
    return state, use(state, **EVERY)


def test_an_address_without_a_port_takes_a_free_one(tmp_path: Path) -> None:
    with (
        pccl.Coordinator(bind="127.0.0.1", state=tmp_path) as coordinator,
        pccl.connect(coordinator.token, initial_world_size=1, bind="127.0.0.1") as comm,
    ):
        comm.admit()
        port = coordinator.port
    with pccl.Coordinator(bind="127.0.0.1", state=tmp_path) as again:
        assert again.port == port


def test_a_port_that_was_taken_meanwhile_is_named(tmp_path: Path) -> None:
    port = int(pccl.token_parse(begin(tmp_path)).address.rpartition(":")[2])
    with (
        pccl.Coordinator(bind=f"127.0.0.1:{port}"),
        pytest.raises(pccl.SystemRefused, match=rf"the port of \S+:{port} is in use.*peers"),
    ):
        pccl.Coordinator(state=tmp_path)


@pytest.mark.parametrize("state", [3, b"bytes", ""])
def test_a_state_that_is_no_path_is_refused(state: Any) -> None:
    with pytest.raises((TypeError, pccl.InvalidArgument), match=r"state|str"):
        pccl.Coordinator(state=state)


# ---- what a journal may look like ------------------------------------------------------------


def test_two_coordinators_never_share_a_journal(tmp_path: Path) -> None:
    with pccl.Coordinator(state=tmp_path) as first:
        with pytest.raises(pccl.SystemRefused, match=r"another coordinator.*" + str(tmp_path)):
            pccl.Coordinator(state=tmp_path)
        assert pccl.run_status(first.token)["journal"] == "ok"


def test_a_flipped_bit_is_refused_with_its_place(tmp_path: Path) -> None:
    begin(tmp_path)
    journal = tmp_path / "journal"
    whole = journal.read_bytes()
    for bit in range(0, len(whole) * 8, 37):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        journal.write_bytes(damaged)
        with pytest.raises(pccl.PcclError) as caught:
            pccl.Coordinator(state=tmp_path)
        assert str(tmp_path) in str(caught.value)
        if bit >= 12 * 8:  # behind magic and version
            assert isinstance(caught.value, pccl.SystemRefused)
            at = re.search(r"damaged at byte (\d+)", str(caught.value))
            assert at is not None and int(at[1]) <= bit // 8
        assert journal.read_bytes() == damaged
    journal.write_bytes(whole)
    with pccl.Coordinator(state=tmp_path) as again:
        assert pccl.run_status(again.token)["incarnation"] == 2


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    """Its sums are right: a program has written it, and no coordinator."""
    begin(tmp_path)
    journal = tmp_path / "journal"
    whole, settings = journal.read_bytes(), settings_of(tmp_path)
    body = settings[:-5].replace(b"127.0.0.1:", b"127.0.0.1 ", 1)
    assert body != settings[:-5]
    changed = body + zlib.crc32(body).to_bytes(4, "little") + settings[-1:]
    journal.write_bytes(whole.replace(settings, changed))
    with pytest.raises(pccl.SystemRefused, match="contradicts itself"):
        pccl.Coordinator(state=tmp_path)


def test_a_journal_that_ends_in_the_middle_of_a_record_goes_on(tmp_path: Path) -> None:
    """Every length: with settings the run goes on, without it is a new one."""
    token = begin(tmp_path / "whole")
    whole = (tmp_path / "whole" / "journal").read_bytes()
    same = 0
    for size in range(len(whole)):
        state = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", state)
        os.truncate(state / "journal", size)
        same += begin(state) == token
        shutil.rmtree(state)
    assert 0 < same < len(whole)


def test_a_journal_of_another_version_says_so(tmp_path: Path) -> None:
    begin(tmp_path)
    journal = tmp_path / "journal"
    version = int.from_bytes(journal.read_bytes()[8:12], "little")
    header = b"PCCLJRNL" + (version + 1).to_bytes(4, "little")
    rest = journal.read_bytes()[16:]
    journal.write_bytes(header + zlib.crc32(header).to_bytes(4, "little") + rest)
    with pytest.raises(pccl.VersionMismatch, match="another version"):
        pccl.Coordinator(state=tmp_path)
    journal.write_text("a diary")
    with pytest.raises(pccl.SystemRefused, match="PCCL did not write"):
        pccl.Coordinator(state=tmp_path)
    assert journal.read_text() == "a diary"


def test_a_directory_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    with pytest.raises(pccl.SystemRefused, match="parent directory does not exist"):
        pccl.Coordinator(state=tmp_path / "no" / "such" / "parent")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(pccl.SystemRefused, match="not a directory"):
        pccl.Coordinator(state=file)
    with pytest.raises(pccl.InvalidArgument, match="state_dir has more than"):
        pccl.Coordinator(state="x" * 5000)


FORKING = """
import os, sys
import pccl_py as pccl
coordinator = pccl.Coordinator(state=sys.argv[1])
print(coordinator.token)
if os.fork() == 0:
    print("child")
    sys.stdin.readline()
    os._exit(0)
os.wait()
"""


def test_a_child_of_a_dead_coordinator_does_not_keep_its_journal(
    start: Any, tmp_path: Path
) -> None:
    program = start(FORKING, str(tmp_path))
    token = program.line()
    program.expect("child")
    program.interrupt(signal.SIGKILL)
    program.process.wait()
    with pccl.Coordinator(state=tmp_path) as again:
        assert again.token == token
    program.say("the child may go")
    assert program.end() == -signal.SIGKILL


# ---- the command -----------------------------------------------------------------------------


def test_a_killed_coordinator_prints_the_same_token_again(start: Any, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    tokens = []
    for options in [("--bind", "0.0.0.0", "--advertise", "localhost"), (), ("--bind", "0.0.0.0")]:
        program = start("coordinator", *options, "--state", state, module=CLI)
        tokens.append(program.line())
        program.interrupt(signal.SIGKILL)
        assert program.end() == -signal.SIGKILL
        assert program.errors == ""
    assert len(set(tokens)) == 1
    page = start("coordinator", "--state", state, module=CLI)
    assert page.line() == tokens[0]
    status = subprocess.run(
        [sys.executable, "-m", CLI, "status"], env={**os.environ, "PCCL_TOKEN": tokens[0]},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "restarts 3" in status.stdout


def test_a_journal_that_is_cut_off_is_a_warning_on_stderr(start: Any, tmp_path: Path) -> None:
    token = begin(tmp_path)
    with open(tmp_path / "journal", "ab") as journal:
        journal.write(b"\xd7\x02")
    program = start("coordinator", "--state", str(tmp_path), module=CLI)
    assert program.line() == token
    program.interrupt(signal.SIGTERM)
    assert program.end() == 0
    assert re.search(r"WARNING.*unfinished record.* 2 bytes", program.errors)


LIMITED = """
import resource, sys
from pccl_py.cli import main
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""


def test_a_full_disk_ends_no_run_and_is_told(start: Any, tmp_path: Path) -> None:
    """The journal may not grow beyond what it begins with: a group with a long name is too much."""
    state = tmp_path / "state"
    begin(tmp_path / "other")
    limit = (tmp_path / "other" / "journal").stat().st_size + 40
    program = start(LIMITED, str(limit), "coordinator", "--state", str(state))
    token = program.line()
    assert pccl.run_status(token)["journal"] == "ok"
    with pccl.connect(token, group="g" * 200, bind="127.0.0.1:0") as comm:
        comm.admit()
        comm.barrier()
        status = pccl.run_status(token)
    assert status["journal"] == "failed"
    assert "writing the journal failed" in status["journal_failure"]
    page = subprocess.run(
        [sys.executable, "-m", CLI, "status"], env={**os.environ, "PCCL_TOKEN": token},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "the journal has failed" in page.stdout
    program.interrupt(signal.SIGTERM)
    assert program.end() == 0
    assert re.search(r"ERROR.*the journal", program.errors), program.errors
    # With room it can be read again.
    with pccl.Coordinator(state=state) as again:
        assert again.token == token


def test_a_run_that_cannot_be_kept_is_not_begun(start: Any, tmp_path: Path) -> None:
    program = start(LIMITED, "10", "coordinator", "--state", str(tmp_path / "state"))
    assert program.end() == 1
    assert re.search(r"cannot be used: writing the journal failed: .*FBIG", program.errors)
