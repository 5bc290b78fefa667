"""`pccl coordinator`, `pccl token`, `pccl status`: what they print, where, and how they end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table

import pccl_py as pccl
from pccl_py.cli import status as status_view
from pccl_py.words import shown

CLI = "pccl_py.cli"


# ---- coordinator -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_coordinator_prints_its_token_and_ends_cleanly(
    start: Any, tmp_path: Path, number: int
) -> None:
    file = tmp_path / "token"
    program = start(
        "coordinator", "--token-file", str(file), "--run-id-file", "-", module=CLI
    )  # fmt: skip
    program.say("ab" * 16)
    token = program.line()
    assert pccl.token_parse(token).run_id == bytes.fromhex("ab" * 16)
    assert file.read_text() == token + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["token"]
    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        comm.barrier()
    program.interrupt(number)
    assert program.end() == 0
    assert program.rest() == ""
    assert program.errors == ""


def test_options_of_the_coordinator_reach_the_run(start: Any) -> None:
    program = start(
        "coordinator", "--bind", "127.0.0.1:0", "--advertise", "localhost", "--min-world-size", "2",
        "--initial-world-size", "2", "--lanes", "3", "--chunk-bytes", "4096", "--heartbeat", "0.1",
        "--silence", "1", module=CLI,
    )  # fmt: skip
    token = program.line()
    assert pccl.token_parse(token).address.startswith("localhost:")
    assert pccl.run_status(token)["min_world_size"] == 2
    with pytest.raises(pccl.DeadlineExceeded):  # it waits for two
        pccl.connect(token, bind="127.0.0.1:0", deadline=0.2)


def test_verbose_shows_events_on_stderr_only(start: Any) -> None:
    program = start("coordinator", "--verbose", module=CLI)
    token = program.line()
    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        name = f"{comm.peer_id.short} ({comm.label(comm.peer_id)})"
    program.interrupt(signal.SIGTERM)
    assert program.end() == 0
    assert program.rest() == ""
    begins = f"epoch 1 begins with world size 1 (joined: {name}; left: nobody) in group default"
    assert begins in program.errors


def test_a_port_in_use_is_one_sentence(pccl_command: Any, coordinator: pccl.Coordinator) -> None:
    answer = pccl_command("coordinator", "--bind", f"127.0.0.1:{coordinator.port}")
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert re.fullmatch(rf"pccl: .*{coordinator.port}.*\n", answer.stderr), answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["coordinator", "--bind", "no host"],
        ["coordinator", "--chunk-bytes", "1000"],
        ["coordinator", "--silence", "0.1", "--heartbeat", "0.1"],
        ["coordinator", "--stall", "5"],  # before anybody is named
        ["coordinator", "--stall-warning", "0.1"],  # less than a heartbeat
        ["run", "-n", "1", "--stall", "5", "--", "touch", "it ran"],
        ["token", "no-port"],
        ["token"],
        ["token", "--show"],
        ["token", "--show", "--run-id-file", "-"],
        ["token", "example.org:4000", "--token-file", "-"],
        ["status"],
    ],
)
def test_bad_usage_is_one_sentence_on_stderr(
    pccl_command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = pccl_command(*arguments, PCCL_TOKEN="pccl1-nonsense")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert os.listdir(tmp_path) == []
    assert re.fullmatch(r"pccl: [^\n]+\n", answer.stderr), answer.stderr


# ---- token -----------------------------------------------------------------------------------


def test_a_token_is_made_and_shown(pccl_command: Any) -> None:
    made = pccl_command(
        "token", "example.org:4000", "--run-id-file", "-", said="0123456789abcdef" * 2
    )
    assert made.returncode == 0
    token = made.stdout.strip()
    assert pccl.token_parse(token).address == "example.org:4000"
    shown = pccl_command("token", "--show", PCCL_TOKEN=token)
    assert shown.stdout == (
        "address  example.org:4000\nrun id   0123456789abcdef0123456789abcdef\n"
    )


def test_the_version_says_what_is_loaded(pccl_command: Any) -> None:
    answer = pccl_command("--version")
    assert answer.returncode == 0
    assert answer.stdout == (
        f"pccl {pccl.__version__} (wire version {pccl.wire_version()}, "
        f"CPU level {pccl.cpu_level()})\n"
    )


def test_the_version_is_shown_without_the_imports_of_other_commands(start: Any) -> None:
    program = start(
        "import sys, pccl_py.cli\n"
        "sys.argv = ['pccl', '--version']\n"
        "pccl_py.cli.main()\n"
        "heavy = {'typer', 'click', 'rich', 'pydantic', 'numpy', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert program.end() == 0, program.errors
    assert program.rest().splitlines()[1:] == ["[]"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("run", "--restarts"),
        ("coordinator", "--stall"),
        ("token", "--run-id-file"),
        ("status", "--interval"),
        ("doctor", "--ports"),
        ("bench kernels", "--rounds"),
        ("bench all_reduce", "--initial-world-size"),
    ],
)
def test_help_leaves_half_of_a_narrow_terminal_to_the_text(
    pccl_command: Any, command: str, option: str
) -> None:
    answer = pccl_command(*command.split(), "--help", COLUMNS="80")
    assert answer.returncode == 0
    lines = answer.stdout.splitlines()
    (row,) = (line for line in lines if f" {option} " in line)
    assert len(re.split(r"  +(?=[A-Z][a-z])", row)[-1]) >= 38, row
    assert max(map(len, lines)) == 80


def test_a_token_file_that_cannot_be_written_is_one_sentence(
    pccl_command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "no such folder" / "token"
    answer = pccl_command("coordinator", "--token-file", str(file))
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr == f"pccl: {file} cannot be written: No such file or directory\n"


def test_help_shows_the_defaults_that_the_library_fills_in(pccl_command: Any) -> None:
    answer = pccl_command("doctor", "--help", COLUMNS="200")
    assert "29400-29500. [default: PCCL_PORTS]" in answer.stdout
    answer = pccl_command("coordinator", "--help", COLUMNS="200")
    for value in ("127.0.0.1", "auto", "262144", "256 MiB", "0.5", "5", "10", "never"):
        assert f"[default: {value}]" in answer.stdout, value


def test_help_names_every_command(pccl_command: Any) -> None:
    answer = pccl_command("--help")
    assert answer.returncode == 0
    for command in ("coordinator", "token", "run", "status", "doctor", "bench", "flags"):
        assert command in answer.stdout
        usage = pccl_command(command, "--help", COLUMNS="200")
        assert usage.returncode == 0
        assert "[]" not in usage.stdout, "an argument without a name"
    assert "run [OPTIONS] -- COMMAND..." in pccl_command("run", "--help", COLUMNS="200").stdout


# ---- status ----------------------------------------------------------------------------------


def documented_keys() -> set[str]:
    """Every key that docs/reference/STATUS.md names in its tables and sentences."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "STATUS.md").read_text()
    return set(re.findall(r"`([a-z_]+)`", page.split("## Example")[0]))


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    return set()


def join(world: pccl.LocalWorld) -> pccl.Communicator:
    return pccl.connect(world.coordinator.token, bind="127.0.0.1:0", deadline=30)


def test_the_status_as_json_has_the_documented_keys(pccl_command: Any) -> None:
    """A run with everything in it: an old epoch with a lost member, a new one, a newcomer.

    An operation of epoch 1 stays in flight, so that two epochs are alive and the newcomer waits.
    """
    with pccl.LocalWorld(3, deadline=30) as world, ThreadPoolExecutor(4) as pool:
        token = world.coordinator.token
        world.run(lambda comm: comm.all_reduce(np.ones(1000)))
        waiting = world.comms[0].all_reduce(np.ones(1000), tag=4, async_op=True)
        leaver = world.comms.pop()
        leaver.close()
        while len(pccl.run_status(token)["groups"][0]["epochs"]) < 2:
            continue
        joining = pool.submit(join, world)
        while not pccl.run_status(token)["groups"][0]["pending"]:
            continue
        answer = pccl_command("status", "--json", PCCL_TOKEN=token)
        page = pccl_command("status", PCCL_TOKEN=token)
        world.comms[1].all_reduce(np.ones(1000), tag=4)
        waiting.wait()
        assert [a.changed for a in pool.map(lambda c: c.admit(), world.comms)] == [True, True]
        world.comms.append(joining.result())

    assert answer.returncode == 0, answer.stderr
    status = json.loads(answer.stdout)
    assert keys_of(status) - documented_keys() == set()
    (group,) = status["groups"]
    old, new = group["epochs"]
    stay = [str(comm.peer_id) for comm in world.comms[:2]]
    assert [member["alive"] for member in old["members"]] == [True, True, False]
    assert [member["peer_id"] for member in old["members"]] == [*stay, str(leaver.peer_id)]
    assert [member["peer_id"] for member in new["members"]] == stay
    assert (old["epoch"], new["epoch"]) == (1, 2)
    assert (old["committed"], new["committed"]) == (1, 0)
    assert [newcomer["peer_id"] for newcomer in group["pending"]] == [str(world.comms[2].peer_id)]

    assert page.returncode == 0, page.stderr
    for word in ("epoch 1", "epoch 2", "lost", "opens its lanes", leaver.peer_id.short):
        assert word in page.stdout, page.stdout


def test_the_status_shows_people_the_same(start: Any) -> None:
    with pccl.LocalWorld(2, group="training") as world:
        world.run(lambda comm: comm.all_reduce(np.ones(100_000)))
        program = start("status", module=CLI, PCCL_TOKEN=world.coordinator.token)
        assert program.end() == 0, program.errors
        said = program.rest()
        for word in ("training", "epoch 1", "committed 1", "running", "127.0.0.1"):
            assert word in said, said
        for comm in world.comms:
            assert comm.peer_id.short in said


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_person_who_waits_for_an_answer_is_told_of_whom(
    pccl_command: Any, form: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        token = pccl.token_create(address)
        answer = pccl_command("status", *form, "--timeout", "1.5", PCCL_TOKEN=token)
    assert answer.returncode == 1 and answer.stdout == ""
    told, error = answer.stderr.split("\n", 1)
    assert told == f"{address} does not answer yet: waiting for 1.5 s in all"
    assert "CoordinatorUnreachable" in error or address in error


def test_a_sync_has_no_tag_dtype_or_op_for_people() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "STATUS.md").read_text()
    example = json.loads(page.split("```json")[1].split("```")[0])
    (epoch,) = example["groups"][0]["epochs"]
    (operation,) = epoch["operations"]
    blind = {"tag": 18413411717256766248, "count": 0, "dtype": "u8", "op": "sum"}
    sync = {**operation, **blind, "kind": "sync", "waits_for": [1], "stalled_ns": 65 * 10**9}
    sync["state"] = "weights"
    gather = {**operation, **blind, "kind": "all_gather", "tag": 3, "count": 88, "op": "avg"}
    epoch["operations"] = [operation, sync, gather]
    from rich.console import Console

    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(status_view.render(example))
    text = console.export_text()
    assert (
        str(blind["tag"]) not in text
        and 'it has not called sync of "weights" (sequence 12)' in text
    )
    (line,) = (line for line in text.splitlines() if " sync " in line and "called" not in line)
    assert re.fullmatch(r'\s*12\s+sync of "weights"\s+\d+ of \d+\s+\d+ of \d+\s*', line), line
    (line,) = (line for line in text.splitlines() if " all_gather " in line)
    assert re.fullmatch(r"\s*3\s+12\s+all_gather\s+88\s+u8\s+\d+ of .*", line), line


def test_a_page_renders_every_part_of_the_documented_example() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "STATUS.md").read_text()
    example = json.loads(page.split("```json")[1].split("```")[0])
    assert keys_of(example) <= documented_keys()
    example["groups"][0]["pending"] = [
        {"peer_id": "77" * 16, "label": "new:1", "address": "10.0.0.7:1", "prepared": True}
    ]
    dialed = {"peer_id": "77" * 16, "other": "0b" * 16, "address": "10.0.0.8:1", "why": "refused"}
    dialed["from"] = "10.0.0.7"
    lost = {"peer_id": "77" * 16, "other": "0c" * 16, "address": "", "why": "nowhere"}
    example["groups"][0]["unreached"] = [dialed, lost]
    assert keys_of(example) <= documented_keys()
    (operation,) = example["groups"][0]["epochs"][0]["operations"]
    operation |= {"waits_for": [1], "stalled_ns": 65 * 10**9}
    example["groups"][0]["epochs"][0]["members"][0]["waited_for"] = True
    from rich.console import Console

    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(status_view.render(example))
    text = console.export_text()
    for word in (
        "2c5d9f0a", "0b0f5e0e", "48.0 MiB", "120 ms", "lost", "all_reduce", "1048576", "1 of 1",
        "cannot dial 0b0b0b0b at 10.0.0.8:1 from 10.0.0.7: refused",
        "cannot dial 0c0c0c0c: nowhere",
        "new:1, 77777777", "waits for the next safe point", "waiting for rank 1 (node8:77 #1, "
        "9d3c2b1a): it has not called all_reduce (tag 0, sequence 12) for 1 min 05 s",
        "waiting for rank 0 (node7:4242 #0, 0b0f5e0e): it owes the others a vote or a report",
    ):  # fmt: skip
        assert word in text, text
    assert "longer than a message" not in text
    console.print(status_view.render({**example, "cut": True}))
    assert "longer than a message" in console.export_text()
    with pytest.raises(pccl.PcclError, match="schema 2"):
        status_view.render({**example, "schema": 2})


def test_a_page_says_who_is_awaited_who_is_late_and_what_moves() -> None:
    """The example has most of it; a group that begins, and a call of a few, are added."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "STATUS.md").read_text()
    example = json.loads(page.split("```json")[1].split("```")[0])
    (group,) = example["groups"]
    group |= {"here": 2, "needed": 3, "emptied": True, "awaited": ["77" * 16]}
    (operation,) = group["epochs"][0]["operations"]
    operation |= {"not_called": [0, 1], "waited_ns": 6 * 10**9}
    there = {"rank": 1, "kind": "barrier", "tag": 5, "sequence": 0, "waits_for": [0]}
    operation |= {"elsewhere": [there], "stuck_links": [{"rank": 0, "other": 1}]}
    group["epochs"][0]["members"][0]["entered"] = False
    assert keys_of(example) <= documented_keys()
    from rich.console import Console

    console = Console(width=240, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(status_view.render(example))
    group["awaits"] = "away"
    console.print(status_view.render(example))
    text = console.export_text()
    for word in (
        "newcomers wait for 77777777 to call admit",
        "newcomers wait for 77777777 to come back, or to be lost",
        "all earlier members are gone; 2 of 3 peers are here; the group begins when all are",
        "all_reduce tag 0 sequence 12 has been waiting 6.0 s for rank 0 (node7:4242 #0, 0b0f5e0e) "
        "and rank 1 (node8:77 #1, 9d3c2b1a)", "rank 1 (node8:77 #1, 9d3c2b1a) waits in "
        "barrier tag 5 sequence 0 for rank 0 (node7:4242 #0, 0b0f5e0e)",
        "nothing of all_reduce tag 0 sequence 12 moves between rank 0 (node7:4242 #0, 0b0f5e0e) "
        "and rank 1 (node8:77 #1, 9d3c2b1a), though all have called it",
        "rank 0 (node7:4242 #0, 0b0f5e0e) has not entered the epoch, as a member from before does "
        "when its program calls admit",
        "3.0 MiB", "9 of 12", "2.4 s", "1.5 MiB", "2.1 s",
    ):  # fmt: skip
        assert word in text, text


def test_watching_as_json_is_a_line_for_each_interval(coordinator: pccl.Coordinator) -> None:
    """Then the coordinator goes, which is a line too, and Ctrl-C ends it with 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", CLI, "status", "--watch", "--json", "--interval", "0.1",
         "--timeout", "0.3"],
        stdout=subprocess.PIPE, text=True, process_group=0,
        env={**os.environ, "PCCL_TOKEN": coordinator.token},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for _ in range(3):
            assert json.loads(process.stdout.readline())["schema"] == 1
        coordinator.close()
        while "unreachable" not in json.loads(process.stdout.readline()):
            continue
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_peers_are_called_by_their_labels() -> None:
    with pccl.Coordinator(initial_world_size=2) as coordinator, ThreadPoolExecutor(2) as pool:
        token = coordinator.token
        comms = list(
            pool.map(lambda label: pccl.connect(token, label=label), ["left one", "right"])
        )
        list(pool.map(lambda comm: comm.admit(), comms))
        for comm in comms:
            assert sorted(comm.labels) == ["left one", "right"]
            assert comm.label(comm.peer_id) == comm.labels[comm.rank]
            assert comm.label(pccl.PeerId("ab" * 16)) == "abababab"
        members = pccl.run_status(token)["groups"][0]["epochs"][0]["members"]
        assert [member["label"] for member in members] == list(comms[0].labels)
        with pytest.raises(pccl.InvalidArgument, match="more than 80 bytes"):
            pccl.connect(token, label="x" * 81)
        with pytest.raises(pccl.InvalidArgument, match="cannot be shown"):
            pccl.connect(token, label="a\nb")
        for comm in comms:
            comm.close()


def test_the_status_says_who_is_slow_and_what_moves() -> None:
    """Rank 1 works for 15 ms before each call: it is the last to call, and the speeds are there."""
    over = threading.Event()

    def work(rank: int) -> None:
        if rank == 1:
            over.wait(0.015)

    def program(comm: pccl.Communicator) -> None:
        array, go_on = np.ones(100_000), np.ones(1)
        while go_on[0]:
            work(comm.rank)
            comm.all_reduce(array, op="avg")
            go_on[0] = comm.rank != 0 or not over.is_set()
            work(comm.rank)
            comm.broadcast(go_on, 0)

    def members() -> list[dict[str, Any]]:
        (epoch,) = pccl.run_status(world.coordinator.token)["groups"][0]["epochs"]
        return list(epoch["members"])

    with pccl.LocalWorld(2, heartbeat=0.1) as world, ThreadPoolExecutor(1) as pool:
        running = pool.submit(world.run, program)
        try:
            while not all(member["links"] and member["sent_per_s"] for member in members()):
                assert not running.done(), running.result()
            quick, slow = members()
        finally:
            over.set()
            running.result()
    assert [link["rank"] for link in quick["links"]] == [1]
    assert quick["links"][0]["sent_per_s"] > 100_000
    for member in (quick, slow):  # one link moves all, and the speeds are of one span
        (link,) = member["links"]
        assert member["span_ns"] >= 2e9
        for speed in ("sent_per_s", "received_per_s"):
            assert member[speed] == pytest.approx(link[speed], rel=0.01), member
        assert 1 <= link["lanes"] <= 64 and 0 < link["rtt_ns"] < 1e9, link
        assert link["rate"] >= 0 and 0 <= link["retransmitted_ppm"] <= 1_000_000, link
    assert slow["calls"] > 20 and slow["last_to_call"] > slow["calls"] / 2
    assert slow["last_to_call"] > 3 * quick["last_to_call"]
    assert slow["late_ns"] / slow["last_to_call"] > 10e6


def test_a_coordinator_says_what_its_queues_may_hold() -> None:
    with pccl.Coordinator(memory=64 << 20) as coordinator:
        status = pccl.run_status(coordinator.token)
        assert status["memory"] == 64 << 20
        assert 0 < status["queue_bytes"] < 1 << 20
    with pytest.raises(pccl.InvalidArgument, match="memory_bytes is 1024; it must be at least 16"):
        pccl.Coordinator(memory=1024)


def test_room_for_sums_that_is_out_of_range_is_refused_with_the_range(pccl_command: Any) -> None:
    with pytest.raises(
        pccl.InvalidArgument, match="window_bytes is 1073741825; it must be 1 to 1073741824"
    ):
        pccl.Coordinator(window_bytes=(1 << 30) + 1)
    answer = pccl_command("coordinator", "--window-bytes", str((1 << 30) + 1))
    assert answer.returncode == 2
    assert "1073741824" in answer.stderr


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (340_000_000, "340 ms"),
        (4_200_000_000, "4.2 s"),
        (65 * 10**9, "1 min 05 s"),
        (7_500 * 10**9, "2 h 05 min"),
    ],
)
def test_durations_are_for_people(ns: int, text: str) -> None:
    assert status_view.duration(ns) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert status_view.size(count) == text


@pytest.mark.parametrize(
    ("rate", "rtt_ns", "retransmitted_ppm", "lanes", "text"),
    [
        (23_900_000, 90_000_000, 1_000, 4, "22.8 MiB/s, 90 ms, 0.1 % again, 4 lanes"),
        (0, 53_000, 499, 1, "0.053 ms, 1 lane"),
        (1_000, 0, 1_000_000, 0, "1000 B/s, 100.0 % again"),
        (0, 0, 0, 0, ""),
    ],
)
def test_how_a_link_carries_is_for_people(
    rate: int, rtt_ns: int, retransmitted_ppm: int, lanes: int, text: str
) -> None:
    link = {"rate": rate, "rtt_ns": rtt_ns, "retransmitted_ppm": retransmitted_ppm, "lanes": lanes}
    assert status_view.carries(link) == text


def test_the_page_has_what_all_links_of_a_member_carry_at_once() -> None:
    moves: dict[str, Any] = {"sent_per_s": 1, "received_per_s": 2, "span_ns": 10**9, "links": []}
    earlier = {"rank": 1, "calls": 3, "last_to_call": 1, "late_ns": 0, **moves}
    member = {**earlier, "rank": 0, "up": 23_900_000, "down": 9_500_000}
    (table,) = status_view._measured({"members": [member, earlier]})
    assert isinstance(table, Table)
    says = [str(cell) for cell in table.columns[-1].cells]
    assert says == ["up 22.8 MiB/s, down 9.1 MiB/s", ""]


def test_a_link_of_an_earlier_release_carries_nothing_that_is_known() -> None:
    assert status_view.carries({"rank": 1, "sent_per_s": 1, "received_per_s": 2}) == ""


def test_a_run_that_cannot_be_reached_is_one_sentence(start: Any) -> None:
    token = pccl.token_create("127.0.0.1:1")
    program = start("status", "--timeout", "0.3", module=CLI, PCCL_TOKEN=token)
    assert program.end() == 1
    assert re.fullmatch(r"pccl: .*127\.0\.0\.1:1.*\n", program.errors), program.errors


def test_watching_ends_with_ctrl_c_and_survives_the_coordinator(
    coordinator: pccl.Coordinator,
) -> None:
    """On a terminal: the page is there, then the coordinator goes, then Ctrl-C ends it with 0."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", CLI, "status", "--watch", "--interval", "0.1", "--timeout", "0.3"],
        stdin=theirs, stdout=theirs, stderr=theirs, process_group=0,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "PCCL_TOKEN": coordinator.token},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while b"no group yet" not in seen:
            seen += os.read(ours, 4096)
        coordinator.close()
        while b"unreachable" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert b"Traceback" not in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("größe 日本", "größe 日本"),
        ("a\nb\x1b[2J", r"a\x0ab\x1b[2J"),
        ("a\u202eb\u2028", r"a\u{202e}b\u{2028}"),
    ],
)
def test_text_of_others_is_escaped_as_the_engine_escapes_it(text: str, wanted: str) -> None:
    """The cases are those of engine/base/text.zig."""
    assert shown(text) == wanted
