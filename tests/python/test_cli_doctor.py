"""`pccl doctor`: its findings, its advice, and its exit status.

With firewalls and NAT it is looked at in tests/networks.
"""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl
from pccl_py.cli import doctor

CLI = "pccl_py.cli"


def findings(program: Any) -> dict[str, dict[str, Any]]:
    return {each["what"]: each for each in json.loads(program.rest())}


LABELLED = "member abababab (node #0)"


def test_where_all_is_well_everything_is_ok(start: Any) -> None:
    with (
        pccl.Coordinator() as coordinator,
        pccl.connect(coordinator.token, peer_id="ab" * 16, label="node #0") as comm,
    ):
        comm.admit()
        program = start("doctor", "--json", module=CLI, PCCL_TOKEN=coordinator.token)
        assert program.end() == 0, program.errors
        found = findings(program)
        assert {"name", "coordinator", "run", "seen", "clock", LABELLED} <= found.keys()
        assert all(each["ok"] for each in found.values())
        assert found["coordinator"]["seconds"] is None  # on this machine
        assert "this machine itself" in found["home"]["says"]
        assert "127.0.0.1:" in found["seen"]["says"]
        assert "PCCL_PORTS is not set" in found["seen"]["says"]
        both = r"127\.0\.0\.1:\d+ accepts in \d+ ms; it has dialed this machine at 127\.0\.0\.1:\d+"
        assert re.fullmatch(both, found[LABELLED]["says"])
        for name in ("tcp_rmem", "tcp_wmem"):
            assert re.fullmatch(r"at most \d+ bytes: a lane carries .* ms", found[name]["says"])
        assert re.fullmatch(r"\w+", found["congestion control"]["says"])
        assert re.fullmatch(r"0\.\d s from .* goes on as fast", found["clock"]["says"])
        lines = start("doctor", module=CLI, PCCL_TOKEN=coordinator.token)
        assert lines.end() == 0, lines.errors
        assert all(line.startswith("ok  ") for line in lines.rest().splitlines())


def test_a_coordinator_that_is_not_there_is_wrong_and_the_rest_is_still_said(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    token = pccl.token_create(f"127.0.0.1:{port}")
    program = start("doctor", "--json", "--timeout", "0.5", module=CLI, PCCL_TOKEN=token)
    assert program.end() == 1
    found = findings(program)
    assert not found["coordinator"]["ok"] and "refuses" in found["coordinator"]["says"]
    assert not found["run"]["ok"] and found["descriptors"]["says"]


def test_a_name_that_nobody_knows_is_wrong(start: Any) -> None:
    token = pccl.token_create("no-such-host.invalid:1")
    program = start("doctor", "--timeout", "0.5", module=CLI, PCCL_TOKEN=token)
    assert program.end() == 1
    assert "wrong  name: no-such-host.invalid" in program.rest()


def test_a_token_is_no_argument(start: Any) -> None:
    program = start("doctor", pccl.token_create("127.0.0.1:1"), module=CLI)
    assert program.end() != 0 and "PCCL_TOKEN" in program.errors


def test_too_few_descriptors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    finding = doctor._descriptors()
    assert not finding.ok and "ulimit -n" in finding.remedy


def test_members_dial_the_port_that_peers_will_have(start: Any) -> None:
    with (
        pccl.Coordinator() as coordinator,
        pccl.connect(coordinator.token, peer_id="ab" * 16, label="node #0") as comm,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        comm.admit()
        port = taken.getsockname()[1]
        options = ("doctor", "--json", "--ports", f"{port}-{port + 20}")
        program = start(*options, module=CLI, PCCL_TOKEN=coordinator.token)
        assert program.end() == 0, program.errors
        (at,) = re.findall(r"this machine at 127\.0\.0\.1:(\d+)", _says(program, LABELLED))
        assert port < int(at) <= port + 20
        only = start("doctor", "--ports", f"{port}", module=CLI, PCCL_TOKEN=coordinator.token)
        assert only.end() == 1
        assert f"wrong  seen: no port of {port}" in only.rest()


def test_a_value_that_no_peer_takes_is_no_fault_of_the_way(start: Any) -> None:
    with pccl.Coordinator() as coordinator:
        rates = {"PCCL_TOKEN": coordinator.token, "PCCL_SEND_RATE": "100mbit,,eu-1=20mbit"}
        program = start("doctor", "--json", module=CLI, **rates)
        assert program.end() == 1
        found = findings(program)
        assert "seen" not in found and not found["settings"]["ok"]
        assert found["settings"]["says"].startswith("PCCL_SEND_RATE has no rate before or after")


def test_members_dial_a_peer_of_a_run_whose_groups_take_two(start: Any) -> None:
    with pccl.LocalWorld(2, min_world_size=2) as world:
        program = start("doctor", "--json", module=CLI, PCCL_TOKEN=world.coordinator.token)
        assert program.end() == 0, program.errors
        members = [each for what, each in findings(program).items() if what.startswith("member")]
        assert len(members) == 2
        assert all("it has dialed this machine at" in each["says"] for each in members)


def test_a_clock_that_is_apart_and_one_that_leaps_are_named() -> None:
    def answer(at: float, ahead: float, uptime: float, error: float = 0.01) -> doctor.Answer:
        status = {"wall_ns": int((1e9 + at + ahead) * 1e9), "uptime_ns": int(uptime * 1e9)}
        return doctor.Answer(status, 1e9 + at, at, error)

    well = doctor._clock(answer(1, -0.2, 5), answer(2, -0.2, 6))
    assert well.ok and well.says.startswith("0.2 s from the coordinator's")
    behind = doctor._clock(answer(1, -90, 5), answer(2, -90, 6))
    assert not behind.ok and "is 90.0 s behind this machine's" in behind.says
    assert "NTP" in behind.remedy
    ahead = doctor._clock(answer(1, 1.5, 5), answer(2, 1.5, 6))
    assert not ahead.ok and "is 1.5 s ahead of this machine's" in ahead.says
    # An answer that took long may have been made at any time of it.
    slow = doctor._clock(answer(1, 1.5, 5, error=0.6), answer(2, 1.5, 6, error=0.7))
    assert slow.ok
    leaps = doctor._clock(answer(1, 0, 5), answer(2, 0, 9))
    assert not leaps.ok and "in 1.0 s here it went on by 4.0 s" in leaps.says
    stands = doctor._clock(answer(1, 0, 5), answer(4, 0, 5))
    assert not stands.ok and "by 0.0 s" in stands.says
    restarted = doctor._clock(answer(1, 0, 500), answer(2, 0, 1))
    assert restarted.ok


def test_the_time_of_day_is_compared_with_that_of_a_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + 3600)
    with pccl.Coordinator() as coordinator:
        found = {each.what: each for each in doctor.examine(coordinator.token, timeout=5)}
    assert not found["clock"].ok and "3600.0 s behind" in found["clock"].says


@pytest.mark.parametrize(
    ("way_ok", "state", "ok", "said"),
    [
        (True, "reached", True, "it has dialed this machine at 192.0.2.1:7"),
        (False, "reached", True, "one direction is enough"),
        (True, "failed", True, "it has not reached this machine at 192.0.2.1:7: refused"),
        (False, "failed", False, "neither reaches the other"),
        (False, "asked", False, "refused"),
    ],
)
def test_one_direction_is_enough(way_ok: bool, state: str, ok: bool, said: str) -> None:
    way = doctor.Finding("member", way_ok, "192.0.2.2:8 says something")
    back = {"state": state, "address": "192.0.2.1:7", "why": "refused"}
    both = doctor._both(way, True, back)
    assert both.ok == ok and said in f"{both.says}; {both.remedy}"
    nowhere = doctor._both(way, False, {**back, "address": ""})
    assert "it has no address of this machine" in nowhere.says or state == "reached"
    assert doctor._both(way, True, None) == way
    assert doctor._both(way, False, None).ok


@pytest.mark.parametrize(
    ("hubs", "order", "reached", "said"),
    [
        ([0, 1, 2], [0, 1, 2], "a", "through member aaaaaaaa, without which"),
        ([0, 1, 2], [0, 1, 2], "ab", "through member aaaaaaaa or member bbbbbbbb, without which"),
        ([2], [0, 1, 2], "ab", "through other members, without which"),  # the ring goes by them
        ([2], [0, 2, 1, 3], "ab", ""),  # they are no neighbours in the ring
        ([2], [0, 1, 2], "a", ""),
        ([2], [], "ab", ""),
        ([0, 1], [0, 1], "", ""),
    ],
)
def test_a_member_that_others_lead_to_is_not_wrong(
    hubs: list[int], order: list[int], reached: str, said: str
) -> None:
    members = [{"rank": rank, "peer_id": digit * 32} for rank, digit in enumerate("abcd")]
    epoch = {"hubs": hubs, "order": order, "has_ring": bool(order), "members": members}
    status: dict[str, Any] = {"groups": [{"epochs": []}, {"epochs": [{"members": []}, epoch]}]}
    wrong = doctor.Finding("member cccccccc", False, "does not answer", "open a port")
    found = doctor._around(wrong, "c" * 32, {digit * 32 for digit in reached}, status)
    assert found.ok == bool(said) and said in found.remedy
    if not said:
        assert found == wrong
    # A member of an epoch that is over alone.
    status["groups"][1]["epochs"].reverse()
    assert doctor._around(wrong, "c" * 32, {"a" * 32}, status) == wrong


def test_members_that_were_not_asked_are_counted() -> None:
    visit = doctor.Visit("", 1, "29500", pccl.PeerId("ab" * 16))
    group = {"name": visit.group, "pending": [{"address": "192.0.2.1:7"}]}
    done: Future[None] = Future()
    status: dict[str, Any] = {"groups": [group], "dial_back": {"left_out": 0, "members": []}}
    assert doctor._seen(visit, status, done).says.endswith("at 192.0.2.1:7")
    status["dial_back"]["left_out"] = 3
    assert "3 members were not asked" in doctor._seen(visit, status, done).says
    del status["dial_back"]
    assert "another doctor was first" in doctor._seen(visit, status, done).says


def kernel(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    seconds: tuple[float | None, ...] = (),
) -> dict[str, doctor.Finding]:
    dials = [
        doctor.Finding(f"member {number}", each is not None, "", seconds=each)
        for number, each in enumerate(seconds)
    ]
    for name, text in settings.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n")
    monkeypatch.setattr(doctor, "KERNEL", folder)
    found = {each.what: each for each in doctor._kernel(doctor.Way.longest(dials))}
    assert all(each.ok for each in found.values())
    return found


def test_what_an_administrator_could_set_is_said_where_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernel(tmp_path, monkeypatch, {}) == {}  # a system that does not say
    poor = {
        "ipv4/tcp_congestion_control": "cubic",
        "ipv4/tcp_allowed_congestion_control": "reno cubic",
        "ipv4/tcp_available_congestion_control": "reno cubic",
        "ipv4/tcp_slow_start_after_idle": "1",
        "ipv4/tcp_rmem": "4096\t131072\t6291456",
        "ipv4/tcp_wmem": "4096\t16384\t1048576",
        "core/wmem_max": "212992",
    }
    found = kernel(tmp_path, monkeypatch, poor)
    assert {what: each.says for what, each in found.items()} == {
        "congestion control": "cubic",
        "bbr": "this system has not loaded it",
        "tcp_slow_start_after_idle": "1",
        "tcp_rmem": "at most 6291456 bytes: a lane carries 21 MB/s over 150 ms",
        "tcp_wmem": "at most 1048576 bytes: a lane carries 7.0 MB/s over 150 ms",
        "wmem_max": "212992 bytes",
    }
    assert found["bbr"].remedy.startswith(
        "where 0.1% of packets are lost, a lane of cubic carries 0.4 MB/s over 150 ms, and one "
        "of bbr what the way does: modprobe tcp_bbr"
    )
    assert found["tcp_slow_start_after_idle"].remedy == (
        "0 is better far away: after a pause cubic begins with 10 packets again, and a lane takes "
        "9 round trips until 25 MB/s: 1.35 s over 150 ms"
    )
    assert found["tcp_wmem"].remedy == "16777216 would allow 112 MB/s"
    assert found["tcp_rmem"].remedy == "33554432 would allow 112 MB/s"
    enough = {"ipv4/tcp_rmem": "4096\t131072\t33554432", "ipv4/tcp_wmem": "4096\t16384\t16777216"}
    for buffer in ("tcp_rmem", "tcp_wmem"):
        one = kernel(tmp_path, monkeypatch, enough)[buffer]
        assert one.says.endswith("a lane carries 112 MB/s over 150 ms") and not one.remedy
    for seconds, way in (
        ((0.001, None), "21 MB/s over 150 ms"),
        ((0.03, None, 0.06), "52 MB/s over the 60 ms to member 2"),
    ):
        rmem = {"ipv4/tcp_rmem": "4096\t131072\t6291456"}
        found = kernel(tmp_path, monkeypatch, rmem, seconds)
        assert found["tcp_rmem"].says == f"at most 6291456 bytes: a lane carries {way}"
        assert found["tcp_slow_start_after_idle"].remedy.endswith(way.partition(" MB/s ")[2])
    loaded = {"ipv4/tcp_available_congestion_control": "reno cubic bbr"}
    found = kernel(tmp_path, monkeypatch, loaded)
    assert "only peers of root" in found["bbr"].says
    assert "tcp_allowed_congestion_control" in found["bbr"].remedy
    allowed = {"ipv4/tcp_allowed_congestion_control": "reno cubic bbr"}
    assert kernel(tmp_path, monkeypatch, allowed)["bbr"].says == "peers may use it"
    found = kernel(tmp_path, monkeypatch, {"ipv4/tcp_congestion_control": "bbr"})
    assert not found["tcp_slow_start_after_idle"].remedy and not found["bbr"].remedy


def _says(program: Any, what: str) -> str:
    return str(findings(program)[what]["says"])


def test_only_ways_to_other_machines_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert doctor._dial("here", "127.0.0.1", port, 5.0).seconds is None
        monkeypatch.setattr(doctor, "_is_loopback", lambda _: False)
        seconds = doctor._dial("there", "127.0.0.1", port, 5.0).seconds
    assert seconds is not None and 0 < seconds < 5
