"""Attackers in processes of their own, against peers that work: nothing crashes, memory and
descriptors stay within a budget and come back, nobody honest is lost, and newcomers get in.

The attacks are in harness/attacker.py; honest.py judges the run. `python -m bench hostile` measures
what an attack costs the run in throughput. Here are the attacks of strangers, and those of somebody
who has the token that cost no member its place; the others are in files of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from honest import MIB, Run

from harness.attacker import Attackers, Job

FOUNDERS = 3
# engine/base/limits.zig
STRANGERS_MAX = 64
PEERS_MAX = 512
NETWORK_JOINS_BURST = 2_048

STRANGERS = ("garbage", "resets", "slow", "silent", "holds")
INSIDERS = ("questions", "joins_nothing", "half_open", "groups")
# Other tests of these are in files of their own.
HOLDERS = (
    *("statuses", "zero_windows", "unread_decisions", "untold_decisions"),
    *("lanes", "newcomers", "names", "never_ready"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with Run(FOUNDERS, tmp_path_factory.mktemp("run")) as running:
        running.go_on(50)  # buffers have grown to their size
        yield running


def jobs_of(run: Run, attack: str, *, processes: int = 1, connections: int = 0) -> list[Job]:
    """Strangers go to the coordinator and to all peers; `connections` are those of all."""
    each = connections // processes
    if attack == "lanes":
        return [run.lanes(connections=each, seed=seed) for seed in range(processes)]
    if attack in (*INSIDERS, *HOLDERS):
        make, ports = run.insider, [run.port]
    else:
        make, ports = run.job, [run.port, *run.peer_ports()]
    job = make(attack, connections=each)
    return [replace(job, ports=ports, seed=seed) for seed in range(processes)]


@pytest.mark.parametrize("attack", ["resets", "slow"])
def test_two_strangers_stop_nobody(run: Run, attack: str) -> None:
    """They connect and reset, connect and hold, say a byte now and then …"""
    run.strike(jobs_of(run, attack, processes=2), descriptors=STRANGERS_MAX)


@pytest.mark.parametrize("attack", ["questions", "joins_nothing", "groups"])
def test_somebody_with_the_token_who_joins_no_group_of_the_run_stops_nobody(
    run: Run, attack: str
) -> None:
    """Asks for the status without end; beats and joins nothing; joins a thousand other groups."""
    jobs = jobs_of(run, attack, connections=1_000 if attack == "groups" else 0)
    run.strike(jobs, descriptors=PEERS_MAX)


def test_those_who_say_no_more_are_hung_up_on(run: Run) -> None:
    """More strangers than there are places, and peers whose machine has lost its power. Each of
    them ends when the other side hangs up, so all attacks end by themselves."""
    jobs = [
        *jobs_of(run, "silent", connections=80),
        *jobs_of(run, "half_open", connections=100),
    ]
    budget = STRANGERS_MAX + PEERS_MAX
    with run.bounded(descriptors=budget, peak_bytes=64 * MIB) as count:
        with Attackers(jobs) as attackers:
            while attackers.at_work:
                run.go_on(1)
                count()
        assert [told["answered"] for told in attackers.told] == [80, 100]
    run.until_whole()


# ---- all of it


@pytest.mark.long
@pytest.mark.parametrize("attack", [*STRANGERS, *INSIDERS])
def test_ten_thousand_of_them_and_newcomers_are_in_within_five_seconds(
    run: Run, attack: str
) -> None:
    counted = attack in ("garbage", "resets", "slow", "questions")
    jobs = jobs_of(run, attack, processes=2, connections=10_000 if counted else 0)
    descriptors = PEERS_MAX if attack in INSIDERS else STRANGERS_MAX
    run.strike(jobs, descriptors=descriptors)


@pytest.mark.long
def test_groups_beyond_what_one_network_may_make_come_slowly_and_newcomers_do_not(
    tmp_path: Path,
) -> None:
    """As many at once as the coordinator takes, and then some, which wait for their time."""
    with Run(FOUNDERS, tmp_path) as run:
        jobs = jobs_of(run, "groups", connections=NETWORK_JOINS_BURST + 40)
        run.strike(jobs, descriptors=PEERS_MAX)


@pytest.mark.long
@pytest.mark.parametrize(
    ("attack", "connections", "processes"), [("names", 4_000, 2), ("groups", 800, 4)]
)
def test_thousands_of_newcomers_from_many_networks_cost_little(
    tmp_path: Path, attack: str, connections: int, processes: int
) -> None:
    """Newcomers at names that lead nowhere, or that open no lane; groups that nobody has heard of.

    From one network the coordinator takes 2,048 joins at once, and then 4 a second, for which 4,000
    would take eight minutes. So they come from eight hosts, each of which counts as one.
    The honest newcomer comes from a ninth, and waits for none of them. A new group begins after
    100 ms and two records on the disk, so there are fewer of these.
    """
    with Run(FOUNDERS, tmp_path) as run:
        run.go_on(50)
        each = connections // processes
        job = run.insider(attack, connections=each, sources=8, rate=75, nice=19)
        jobs = [replace(job, seed=seed) for seed in range(processes)]
        run.strike(jobs, descriptors=PEERS_MAX)


@pytest.mark.long
@pytest.mark.parametrize("attack", [*STRANGERS, *INSIDERS, *HOLDERS])
def test_whatever_the_attack_a_coordinator_may_be_killed_in_it(run: Run, attack: str) -> None:
    """Its members connect again among the attackers, and one more gets in."""
    with Attackers(jobs_of(run, attack, processes=2)):
        for _ in range(3):
            run.go_on()
            run.restart_coordinator()
        run.go_on()
        run.newcomer()
    run.go_on()
    run.until_whole()
