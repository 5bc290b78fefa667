"""Peers behind NAT, firewalls and hosts files: they meet where one of two can dial the other, and
where neither can, both are told why. The networks are networks.py's; docs/guides/NETWORKING.md is
for users.
"""

from __future__ import annotations

import array
import io
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import namespaces
import networks
import pytest
from linked import await_condition
from networks import Internet, Machine, ends
from rich.console import Console

import pccl_py as pccl
from pccl_py.cli.status import render


@pytest.fixture
def internet() -> Iterator[Internet]:
    networks.require()
    with Internet() as made:
        yield made


def expect_sums(*said: tuple[str, str]) -> None:
    for out, errors in said:
        assert out == "sum 2\n", (out, errors)


@pytest.mark.parametrize("missing", ["ip", "nft"])
def test_a_missing_command_is_a_failure_in_the_gate_and_a_skip_elsewhere(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else name)
    monkeypatch.setattr(namespaces, "missing", lambda: "no ip" if missing == "ip" else "")
    monkeypatch.setenv("PCCL_GATE", "1")
    with pytest.raises(pytest.fail.Exception, match=missing):
        networks.require()
    monkeypatch.delenv("PCCL_GATE")
    with pytest.raises(pytest.skip.Exception, match=missing):
        networks.require()


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
@pytest.mark.parametrize("kind", ["behind_nat", "firewalled"])
def test_a_peer_that_nobody_can_dial_joins_whichever_of_the_two_leads(
    internet: Internet, kind: str, numbers: tuple[int, int]
) -> None:
    walled: Machine = getattr(internet, kind)()
    with internet.coordinator(internet.public()) as coordinator:
        first = walled.peer(coordinator.token, numbers[0])
        second = internet.public().peer(coordinator.token, numbers[1])
        expect_sums(*ends(first, second))


@pytest.mark.parametrize("other", ["in_cloud", "behind_nat", "firewalled"])
def test_a_peer_with_a_public_address_that_it_does_not_know_is_reached_there(
    internet: Internet, other: str
) -> None:
    """Nobody can dial the other one, unless it is in a cloud, too; no setting names an address."""
    machines: list[Machine] = [internet.in_cloud(), getattr(internet, other)()]
    with internet.coordinator(internet.public()) as coordinator:
        peers = [
            machine.peer(coordinator.token, number) for number, machine in enumerate(machines, 1)
        ]
        expect_sums(*ends(*peers))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("behind_nat", "its address is not known"),
        pytest.param("firewalled", "no answer in 5 s", marks=pytest.mark.long),
    ],
)
def test_two_that_cannot_dial_each_other_say_so_and_why(
    internet: Internet, kind: str, why: str
) -> None:
    """The errors of both, their logs, and the status; nobody is blamed for not calling admit."""
    home = internet.public()
    with internet.coordinator(home) as coordinator:
        machines: list[Machine] = [getattr(internet, kind)() for _ in range(2)]
        peers = [
            machine.peer(coordinator.token, number, PCCL_DEADLINE="25")
            for number, machine in enumerate(machines, 1)
        ]

        def status() -> dict[str, Any]:
            told: dict[str, Any] = home.inside(lambda: pccl.run_status(coordinator.token))
            return told

        def unreached() -> list[dict[str, str]]:
            return [pair for group in status()["groups"] for pair in group["unreached"]]

        await_condition(lambda: len(unreached()) == 2, "the coordinator to hear of both dials")
        for pair in unreached():
            dials, dialed = (machines[int(pair[key][:2], 16) - 1] for key in ("peer_id", "other"))
            assert dials is not dialed
            if kind == "firewalled":
                assert pair["address"].startswith(f"{dialed.address}:")
                assert pair["from"] == dials.address
            assert pair["why"].startswith(why)
        page = io.StringIO()  # a process for `pccl status` may begin after the deadline
        Console(file=page, width=300).print(render(status()))
        shown = page.getvalue()
        said = ends(*peers)
    for number, (out, errors) in enumerate(said, 1):
        other = 3 - number
        at, source = (machines[one - 1].address for one in (other, number))
        where = rf" at {re.escape(at)}:\d+ from {re.escape(source)}" if kind == "firewalled" else ""
        wanted = rf"peer {other:02x}{other:02x}\w+ \([^)]*\) could not be dialed{where}: {why}"
        assert out.startswith("DeadlineExceeded"), out
        assert re.search(wanted, out) and re.search(wanted, errors), (out, errors)
        names = [rf"\S+, {one:02x}{one:02x}\w+" for one in (number, other)]
        assert re.search(rf"{names[0]} cannot dial {names[1]}{where}: {why}", shown), shown
        if kind == "behind_nat":
            tried = rf"the coordinator could not dial this peer at {re.escape(source)}:\d+: "
            assert re.search(rf"{tried}no route leads there", out), out
        assert re.search(rf"peer {f'{other:02x}' * 4} \([^)]*\) could not dial this peer", out), out
        assert "PCCL_PORTS" in out and "equally often" not in out


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
def test_a_coordinator_whose_name_is_loopback_at_home_is_joined_from_elsewhere(
    internet: Internet, numbers: tuple[int, int]
) -> None:
    """Debian's hosts file: a peer at home reaches it over the loopback interface."""
    home, away = internet.public(), internet.public()
    home.hosts("127.0.1.1 my.host")
    away.hosts(f"{home.address} my.host")
    with internet.coordinator(home, bind="0.0.0.0:0", advertise="my.host") as coordinator:
        first = home.peer(coordinator.token, numbers[0])
        second = away.peer(coordinator.token, numbers[1])
        expect_sums(*ends(first, second))


@pytest.mark.parametrize("member", ["public", "firewalled"])
@pytest.mark.parametrize("patient", ["public", "firewalled", "behind_nat"])
def test_the_doctor_dials_a_member_and_is_dialed_by_it(
    internet: Internet, patient: str, member: str
) -> None:
    """One direction is enough. The member is a machine of its own, and so is the doctor's."""
    theirs: Machine = getattr(internet, member)()
    here: Machine = getattr(internet, patient)()
    with (
        internet.coordinator(internet.public()) as coordinator,
        theirs.inside(lambda: pccl.connect(coordinator.token, peer_id="11" * 16)) as comm,
    ):
        comm.admit()
        options = ("-m", "pccl_py.cli", "doctor", "--timeout", "1", "--ports", "29500-29509")
        program = here.start(*options, PCCL_TOKEN=coordinator.token)
        ((out, errors),) = ends(program)
    # Lines on memory name the member, too, where it is some milliseconds away.
    (line,) = [line for line in out.splitlines() if re.match(r"\w+ +member 11111111 \(", line)]
    reaches, is_reached = member == "public", patient == "public"
    assert program.returncode == (0 if reaches or is_reached else 1), (out, errors)
    assert line.startswith("ok  " if reaches or is_reached else "wrong  ")
    said = "accepts in" if reaches else "does not answer in 1 s"
    assert f"): {theirs.address}:" in line and said in line
    at = re.escape(here.address)
    back = {
        "public": rf"it has dialed this machine at {at}:295\d\d",
        "firewalled": rf"it has not reached this machine at {at}:295\d\d: "
        r"no answer in 5 s \(a firewall",
        "behind_nat": "it has no address of this machine to dial",
    }[patient]
    assert re.search(back, line), out
    seen = "others dial a peer" if patient != "behind_nat" else "nobody can dial a peer"
    assert f"ok     seen: {seen} of this machine" in out
    assert ("one direction is enough" in line) == (reaches != is_reached)
    assert ("neither reaches the other: open PCCL_PORTS" in line) == (
        not reaches and not is_reached
    )


def test_two_homes_behind_nat_and_a_machine_that_both_reach_work_together_through_it(
    internet: Internet,
) -> None:
    """The doctor of the second home says so. The end of that machine costs a home its place."""
    vm, homes = internet.public(), [internet.behind_nat() for _ in range(2)]

    def join(machine: Machine, digit: str) -> pccl.Communicator:
        def connect() -> pccl.Communicator:
            return pccl.connect(coordinator.token, peer_id=digit * 32, deadline=60)

        comm = stack.enter_context(machine.inside(connect))
        comm.admit()
        return comm

    def admit_another(comm: pccl.Communicator) -> None:
        while comm.world_size < 3:
            comm.admit()

    with (
        internet.coordinator(vm, initial_world_size=2) as coordinator,
        ThreadPoolExecutor(3) as threads,
        ExitStack() as stack,
    ):
        there = list(threads.map(join, (vm, homes[0]), "a1"))
        options = ("-m", "pccl_py.cli", "doctor", "--timeout", "1")
        doctor = homes[1].start(*options, PCCL_TOKEN=coordinator.token)
        ((out, errors),) = ends(doctor)
        assert doctor.returncode == 0, (out, errors)
        (line,) = [line for line in out.splitlines() if "member 11111111" in line]
        assert line.startswith("ok  ") and "neither reaches the other" in line
        assert re.search(r"through member aaaaaaaa \(.*\), without which one of the two", line)

        joining = threads.submit(join, homes[1], "2")
        list(threads.map(admit_another, there))
        there.append(joining.result())
        arrays = [array.array("f", [1.0]) for _ in there]
        list(threads.map(lambda comm, values: comm.all_reduce(values), there, arrays))
        assert [values[0] for values in arrays] == [3.0] * 3
        there[0].close()
        ended = list(threads.map(outcome_of_a_call, there[1:]))
        assert sorted(ended) == ["Expelled", "alone"], ended


def outcome_of_a_call(comm: pccl.Communicator) -> str:
    """The call waits until the coordinator has decided who stays."""
    try:
        comm.all_reduce(array.array("f", [1.0]))
    except pccl.Expelled:
        return "Expelled"
    return "alone" if comm.info().alive == 1 else "with the other home"


@pytest.mark.parametrize("bind", ["[::]", "[::]:0", ":0"])
def test_a_coordinator_on_a_host_without_ipv4_is_found_by_its_token(
    internet: Internet, bind: str
) -> None:
    home = internet.public_v6()
    with internet.coordinator(home, bind=bind) as coordinator:
        address = pccl.token_parse(coordinator.token).address
        assert address == f"[{home.address}]:{coordinator.port}"
        peers = [internet.public_v6().peer(coordinator.token, number) for number in (1, 2)]
        expect_sums(*ends(*peers))


def test_a_coordinator_without_a_route_warns_that_its_token_leads_nowhere(
    internet: Internet,
) -> None:
    alone = internet.apart()
    program = alone.start("-u", "-m", "pccl_py.cli", "coordinator", "--bind", "0.0.0.0:0")
    assert program.stdout is not None
    token = program.stdout.readline().strip()
    program.terminate()
    ((_, errors),) = ends(program)
    assert "the token says 127.0.0.1" in errors and "advertise" in errors
    assert pccl.token_parse(token).address.startswith("127.0.0.1:")
    stranger = internet.public().peer(token, 1, PCCL_CONNECT_TIMEOUT="0.1")
    ((out, _),) = ends(stranger)
    assert out.startswith("CoordinatorUnreachable") and "leads every machine to itself" in out
