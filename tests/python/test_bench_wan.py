"""The benchmark of long links: its bounds, its cases, its arithmetic, and that it runs.

No test here looks at how fast anything is: that is what the benchmark itself is for. The emulator
has unit tests of its own (`zig build test-wan`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench import wan_cases, wan_lanes, wan_measure, wan_network, wan_plot, wan_topology
from bench.__main__ import app
from bench.common import KIB, MIB, Row
from bench.wan_cases import Call, Case
from bench.wan_measure import Measured
from bench.wan_peers import Mood, Operation
from bench.wan_topology import Path as Way
from bench.wan_topology import Topology
from bench.wan_worker import Sample

ROOT = Path(__file__).resolve().parents[2]
KEYS = ["bench", "case", "metric", "value", "unit", "baseline", "baseline_value", "ratio"]
SIZE = 64 * MIB


def required() -> None:
    """Skips the test where there can be no emulated network; the gate installs what it needs."""
    lacking = wan_network.missing()
    if lacking and os.environ.get("PCCL_GATE") and "install" in lacking:
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)


def bench(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "wan", *arguments, "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.long
@pytest.mark.alone
def test_a_quick_run_ends_with_right_results_and_leaves_nothing(tmp_path: Path) -> None:
    required()
    done = bench(tmp_path, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(list(row) == KEYS for row in rows)
    assert (tmp_path / "wan.jsonl").read_text() == done.stdout
    assert (tmp_path / "wan.png").read_bytes().startswith(b"\x89PNG")
    found = {(row["case"], row["metric"]): row for row in rows}
    cases = {case for case, _ in found}
    large = "all_reduce/f32/none/w4/8MiB/even-cubic"
    if "cubic" in wan_network.algorithms_here():
        assert 1 <= found[large, "lanes_min"]["value"] <= found[large, "lanes_max"]["value"] <= 64
    if "bbr" in wan_network.algorithms_here():
        assert "broadcast/f32/none/w4/4KiB/calls-broadcast" in cases
    for case in cases:
        assert found[case, "seconds"]["value"] > 0
        assert found[case, "seconds"]["baseline"] == "bound"
        assert 0 < found[case, "share"]["value"] < 1
        assert found[case, "attempts"]["value"] >= 1
        assert found[case, "cpu_seconds_per_peer"]["value"] > 0
    for case in wan_cases.table():
        ran = any(name.endswith(f"/{case.name}") for name in cases)
        assert ran or not case.quick or f"{case.name}: not run: " in done.stderr
    assert "10.88.0." not in subprocess.run(["ip", "route"], capture_output=True, text=True).stdout


@pytest.mark.long
def test_a_network_ends_with_the_socket_of_its_emulator(tmp_path: Path) -> None:
    required()
    network = wan_network.Network(wan_network.build(), wan_topology.pair(10.0, 2.0, "reno"))
    assert network.statistics()["paths"] == []
    with pytest.raises(ValueError, match="NoSuchNode"):
        network.command("cut 0 7")
    command = [*network.prefix(0), "cat", "/proc/self/net/dev"]
    devices = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert sorted(line.split(":")[0].strip() for line in devices.splitlines()[2:]) == ["lo", "wan"]
    network.close()
    entered = subprocess.run(command, capture_output=True, text=True, check=False)
    assert entered.returncode != 0


@pytest.mark.parametrize("why", ["which need root", "needs /dev/net/tun"])
def test_without_what_it_needs_it_is_one_sentence(
    why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if "root" in why else 0)
    monkeypatch.setattr(os, "access", lambda *_: False)
    # Not the default folder, which may be there, and is not to be written here either.
    done = CliRunner().invoke(app, ["wan", "--quick", "--out", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1 and why in done.stderr


def test_an_unknown_case_and_an_unknown_baseline_are_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["wan", "--case", "nonsense"])
    assert done.exit_code == 2 and "nonsense" in done.output and "even-bbr" in done.output
    done = CliRunner().invoke(app, ["wan", "--baseline", "nccl"])
    assert done.exit_code == 2 and "'nccl' is not gloo" in done.output


# ---- bounds


def seconds_at(mbit: float) -> float:
    """The time of 64 MiB, by hand: bits, more by the headers, at the rate."""
    return SIZE * 8 * 1500 / 1448 / (mbit * 1e6)


def case_named(name: str) -> Case:
    return next(case for case in wan_cases.table() if case.name == name)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("even-bbr", 4.17),
        ("large-bbr", 4 * 4.17),
        ("pair-64", 1.11),
        ("thin-node", 11.1),
        ("bad-pair", 4.17),
        ("clusters", 0.695),
        ("regions-8", 4.87),
        ("int8", 1.06),
        ("sync-3", 2.78),
        ("kill", 3.71 / 2),
        ("fat", 4 * 1.11 / 2),
        # us-west and eu-central have each other's data after 75 ms. The vote of eu-central takes
        # 45 more, and the decision 45 to get there.
        ("calls-4B", 0.165),
        ("calls-1MiB", 0.165),
        ("calls-4KiB-eu-west", 0.075 + 0.065 + 0.065),
        ("calls-broadcast", 3 * 0.045),
        ("calls-barrier", 2 * 0.045),
    ],
)
def test_the_bound_of_a_case(name: str, seconds: float) -> None:
    assert case_named(name).bound() == pytest.approx(seconds, rel=0.005)


def test_a_kill_may_cost_half_a_second_and_an_operation_of_those_that_are_left() -> None:
    assert case_named("kill").seconds == pytest.approx(0.5 + 3.71, rel=0.005)


def test_a_node_bounds_by_what_it_must_send_and_get() -> None:
    network = wan_topology.regions(wan_topology.FOUR_REGIONS, "bbr")
    thin = network.with_node(3, 10.0)
    # Whoever adds: the contribution of a node leaves it, and the result reaches it.
    assert wan_topology.all_reduce_bound(thin, SIZE) == pytest.approx(seconds_at(10.0))
    assert wan_topology.cut_mbit(thin, [3]) == 10.0
    assert wan_topology.cut_mbit(thin, [0, 1, 2]) == 10.0
    assert wan_topology.cut_mbit(thin, [0, 3]) == 210.0


def test_a_cut_is_as_wide_as_its_paths_where_they_are_narrow() -> None:
    network = wan_topology.regions(wan_topology.FOUR_REGIONS, "bbr")
    for one, other in ((0, 2), (0, 3), (1, 2), (1, 3)):
        network = network.with_pair(one, other, 15.0)
    assert wan_topology.cut_mbit(network, [0, 1]) == 60.0
    assert wan_topology.cut_mbit(network, [0]) == 200.0  # its uplink: the paths carry 230
    assert wan_topology.all_reduce_bound(network, SIZE) == pytest.approx(seconds_at(60.0))


def test_rates_that_are_not_limited_bound_nothing() -> None:
    paths = {(0, 1): Way(), (1, 0): Way(rate_mbit=100.0)}
    network = Topology((0.0, 0.0), (0.0, 0.0), paths)
    assert wan_topology.cut_mbit(network, [0]) == 0.0
    assert wan_topology.all_reduce_bound(network, SIZE) == pytest.approx(seconds_at(100.0))
    paths[1, 0] = Way()
    assert wan_topology.all_reduce_bound(network, SIZE) == 0.0


def test_a_newcomer_is_bound_by_its_downlink_or_by_its_sources() -> None:
    network = wan_topology.regions(wan_topology.FOUR_REGIONS, "bbr").with_node(0, 30.0)
    bound = wan_topology.newcomer_bound
    assert bound(network, SIZE, 3, [0]) == pytest.approx(seconds_at(30.0))
    assert bound(network, SIZE, 3, [0, 1]) == pytest.approx(seconds_at(200.0))


def test_without_a_node_the_others_keep_their_paths() -> None:
    left = wan_topology.without(wan_topology.regions(wan_topology.FOUR_REGIONS, "bbr"), 1)
    assert left.count == 3
    assert left.paths[0, 1].delay_ms == 35.0  # us-east, eu-west
    assert left.paths[1, 2].delay_ms == 11.0  # eu-west, eu-central


def test_a_network_is_told_to_the_emulator_in_whole_numbers() -> None:
    network = wan_topology.pair(0.5, 25.0, "cubic")
    assert network.commands() == [
        "node 0 up_kbit=500 down_kbit=500",
        "node 1 up_kbit=500 down_kbit=500",
        *(
            f"path {pair} delay_us=12500 jitter_us=0 rate_kbit=500 queue_bytes=0 loss_ppm=0 "
            "flow_kbit=0 flow_queue_bytes=0"
            for pair in ("0 1", "1 0")
        ),
    ]
    assert "loss_ppm=100 " in Way(loss=1e-4).settings()


# ---- cases


def test_cases_are_chosen_by_name_or_by_the_beginning_of_it() -> None:
    names = [case.name for case in wan_cases.table()]
    assert len(set(names)) == len(names)
    even = wan_cases.chosen(["even"], quick=False)
    assert [case.name for case in even] == ["even-bbr", "even-cubic", "even-cubic-pause12"]
    assert [case.name for case in wan_cases.chosen(["int8"], quick=False)] == ["int8"]
    with pytest.raises(ValueError, match="eve: there are even-bbr"):
        wan_cases.chosen(["eve"], quick=False)


def test_a_quick_run_has_two_cases_of_8_mib_and_a_small_call() -> None:
    cases = wan_cases.chosen(None, quick=True)
    assert [(case.name, case.size) for case in cases] == [
        ("even-cubic", 8 * MIB),
        ("sync-3", 8 * MIB),
        ("calls-broadcast", 4 * KIB),
    ]
    assert all(case.blocks == (1,) for case in cases)
    small = {case.name: case.size for case in wan_cases.chosen(["calls"], quick=True)}
    assert small["calls-4B"] == 4 and small["calls-barrier"] == 0
    assert small["calls-1MiB"] == 128 * KIB


def test_the_baseline_is_beside_calls_that_others_have() -> None:
    have = {case.name for case in wan_cases.chosen(["calls", "even", "direct"], quick=False)}
    ours = {case.name for case in wan_cases.table() if not case.is_of_others}
    assert have & ours == {
        *("calls-4KiB-direct", "calls-4KiB-eu-west", "calls-64KiB-direct"),
        *("direct-bbr", "direct-cubic"),
    }
    assert {"int8", "kill", "sync-1", "small-beside", "lane-lossy"} <= ours


def test_a_case_that_cannot_run_says_why() -> None:
    case = case_named("even-bbr")
    assert wan_cases.not_run(case, ["reno", "bbr"], ["reno", "bbr"]) == ""
    assert "no bbr" in wan_cases.not_run(case, ["reno"], ["reno"])
    assert '="reno bbr"' in wan_cases.not_run(case, ["reno", "bbr"], ["reno"])


def test_every_network_has_a_path_between_all_nodes() -> None:
    for case in wan_cases.table():
        pairs = case.world * (case.world - 1)
        assert len(case.topology.paths) == pairs, case.name
        assert case.bound() > 0, case.name


# ---- lanes


def connection(here: str, there: str, acknowledged: str) -> str:
    return f"0      0      {here}   {there}    bbr wscale:9,9 rto:211 {acknowledged} segs_out:3 \n"


def test_lanes_are_the_connections_that_have_their_port() -> None:
    told = (
        connection("10.88.0.1:4000", "10.88.0.2:41000", "bytes_sent:80 bytes_acked:70")
        + connection("10.88.0.1:41001", "10.88.0.3:4000", "")
        + connection("10.88.0.1:41002", "10.88.0.3:40001", "bytes_acked:5")
    )
    assert wan_lanes.told_by(told) == {
        ("10.88.0.1:4000", "10.88.0.2:41000"): 70,
        ("10.88.0.1:41001", "10.88.0.3:4000"): 0,
    }
    assert wan_lanes.told_by("") == {}


def test_a_lane_counts_if_it_carried_data_of_a_link_that_was_used() -> None:
    def lanes(link: str, counts: list[int]) -> wan_lanes.Acknowledged:
        here, there = link.split()
        return {(f"{here}:4000", f"{there}:{50 + i}"): count for i, count in enumerate(counts)}

    before = lanes("a b", [0, 0, 9 * MIB, 0]) | lanes("b a", [0, 0])
    after = (
        lanes("a b", [8 * MIB, 8 * MIB, 9 * MIB + 500, 1 * MIB])  # the third one is given up
        | lanes("b a", [6000, 9000])  # acknowledgements alone
        | lanes("b c", [16 * MIB, 1000])
    )
    assert wan_lanes.of_links(before, after) == [3, 1]
    assert wan_lanes.of_links(after, after) == []
    assert wan_lanes.of_links({}, {}) == []


def test_lanes_are_told_where_a_call_has_a_use_for_several() -> None:
    for name, told in (("even-bbr", ["lanes_min", "lanes_max"]), ("calls-1MiB", [])):
        ours = Measured(case_named(name))
        for lanes in ([8, 8], [4, 8, 16]):
            one = operation(100.0, [[105.0], [104.0]])
            ours.add(dataclasses.replace(one, lanes=lanes))
        rows = wan_measure.rows_of(ours.case, {"pccl": ours})
        of_lanes = {row.metric: row.value for row in rows if row.unit == "lanes"}
        assert list(of_lanes) == told
        assert not told or of_lanes == {"lanes_min": 4, "lanes_max": 16}
    least, most = (Row("wan", "x", "lanes", count, "lanes") for count in (4, 16))
    assert wan_measure.lanes_text(least, most) == "4-16"
    assert wan_measure.lanes_text(most, most) == "16"
    assert wan_measure.lanes_text(None, None) == ""


# ---- operations


def mood(**different: float) -> Mood:
    calm = {"late_seconds": 0.001, "stolen_share": 0.0, "busy_cores": 1.5, "overflows": 0}
    numbers = {**calm, **different}
    return Mood(cores=2, **numbers)  # type: ignore[arg-type]


def test_an_operation_counts_on_a_machine_that_is_calm() -> None:
    assert mood().complaint() == ""
    assert "2.1 ms late" in mood(late_seconds=0.0021).complaint()
    assert "1.0% of the CPU was stolen" in mood(stolen_share=0.01).complaint()
    assert "1.61 of 2 cores" in mood(busy_cores=1.61).complaint()
    assert "3 packets" in mood(overflows=3).complaint()


def operation(begin: float, ends: list[list[float]], **different: float) -> Operation:
    samples = {
        rank: Sample(begin, of_rank, cpu=0.1 * (rank + 1), peak=1000, attempts=1, contributors=2)
        for rank, of_rank in enumerate(ends)
    }
    return Operation(begin, samples, 3000, 100_000, {}, mood(**different))


def test_the_time_is_that_of_the_slowest_rank_and_the_value_the_median() -> None:
    case = case_named("even-bbr")
    ours, gloo = Measured(case), Measured(case)
    for seconds in (6.0, 5.0, 9.0):
        ours.add(operation(100.0, [[102.0], [100.0 + seconds]]))
        gloo.add(operation(100.0, [[120.0], [110.0]]))
    ours.add(operation(100.0, [[108.0], [101.0]], late_seconds=0.1))
    rows = wan_measure.rows_of(case, {"pccl": ours, "gloo": gloo})
    found = {(row.metric, row.baseline): row for row in rows}
    assert all(row.case == "all_reduce/f32/none/w4/64MiB/even-bbr" for row in rows)
    assert found["seconds", "bound"].value == 7.0
    assert found["seconds", "gloo"].ratio == pytest.approx(7 / 20)
    share = found["share", "aim"]
    assert share.value == pytest.approx(4.17 / 7, rel=0.01) and share.baseline_value == 0.9
    assert found["retransmitted_share", "gloo"].value == 0.03
    assert found["cpu_seconds_per_peer", "gloo"].value == pytest.approx(0.15)
    assert found["counted_share", None].value == 0.75
    assert found["attempts", "aim"].baseline_value == 1
    alone = {row.metric: row for row in wan_measure.rows_of(case, {"pccl": ours})}
    assert alone["retransmitted_share"].baseline_value == 0.005
    assert alone["cpu_seconds_per_peer"].baseline_value == 0.35
    lossy = dataclasses.replace(case, name="loss-0.1-bbr", work="kill")
    others = {row.metric: row for row in wan_measure.rows_of(lossy, {"pccl": ours})}
    for metric in ("retransmitted_share", "cpu_seconds_per_peer", "attempts"):
        assert others[metric].baseline is None
    times, costs = wan_measure.tables(rows)
    assert times.row_count == costs.row_count == 1
    assert wan_plot.gloo_shares(rows) == {rows[0].case: pytest.approx(4.17 / 20, rel=0.01)}


def test_the_figures_of_the_last_outcome_are_beside_the_bound() -> None:
    case = case_named("even-cubic")
    ours = Measured(case)
    for seconds in (7.0, 5.0):
        ours.add(operation(100.0, [[100.0 + seconds]] * 3))
    assert "bound_seconds" not in [row.metric for row in wan_measure.rows_of(case, {"pccl": ours})]
    samples = ours.operations[-1].samples
    for rank, bound in ((0, None), (1, 4.0), (2, 4.4)):
        samples[rank] = dataclasses.replace(samples[rank], bound=bound, predicted=5.1)
    rows = {row.metric: row for row in wan_measure.rows_of(case, {"pccl": ours})}
    assert rows["bound_seconds"].value == pytest.approx(4.2)
    assert rows["bound_seconds"].ratio == pytest.approx(4.2 / 4.17, rel=0.01)
    assert rows["predicted_seconds"].value == 5.1


def test_the_small_operation_beside_a_large_one_has_a_time_of_its_own() -> None:
    case = Case("x", wan_topology.pair(100, 10, "bbr"), calls=(Call(SIZE), Call(4096, 1.0)))
    ours = Measured(case)
    ours.add(operation(100.0, [[105.0, 101.5], [104.0, 101.7]]))
    assert ours.small_seconds() == pytest.approx(0.7)
    rows = {row.metric: row for row in wan_measure.rows_of(case, {"pccl": ours})}
    assert rows["small_seconds"].value == pytest.approx(0.7)
    assert rows["seconds"].value == 5.0


def test_a_kill_is_timed_from_the_kill_on() -> None:
    ours = Measured(case_named("kill"))
    ours.add(operation(100.0, [[107.0], [106.0]]), since=102.5)
    assert ours.seconds() == 4.5


def test_another_try_takes_the_place_of_one_that_does_not_count() -> None:
    case = case_named("even-bbr")
    lates = iter([0.1, 0.1, 0.001, 0.1, 0.1, 0.1])
    said: list[str] = []

    def once() -> tuple[Operation, None]:
        return operation(0.0, [[6.0]], late_seconds=next(lates)), None

    class Say(wan_measure.Progress):
        def __call__(self, *arguments: object) -> None:
            said.append(str(arguments[3]))

    ours, say = Measured(case), Say(case, Console(stderr=True))
    wan_measure.until_it_counts(once, ours, 3, say)
    assert len(ours.operations) == ours.counted() == 1 and len(said) == 3
    wan_measure.until_it_counts(once, ours, 3, say)
    assert len(ours.operations) == 2 and ours.counted() == 1
    assert said[-1].startswith("does not count: packets were 100.0 ms late")
