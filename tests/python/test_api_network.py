"""How peers use the network: lanes of a link, the rate of a peer, its congestion control.

The values that are taken, and their effect. Links that choose by themselves: engine/session; the
congestion control of a socket: engine/net/tcp.zig.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py import _pccl
from pccl_py.network import parse_lanes, rates_text

LOOPBACK = "127.0.0.1:0"


@pytest.fixture
def coordinator() -> Iterator[pccl.Coordinator]:
    with pccl.Coordinator(bind=LOOPBACK) as running:
        yield running


@pytest.mark.parametrize(
    ("given", "text", "rate"),
    [
        ("1.5gbit", "1.5gbit", 187_500_000),
        ("200 Mbit, eu-1=20mbit", "200 Mbit, eu-1=20mbit", 25_000_000),
        (1000, "1000", 1000),
        (np.int64(25_000_000), "25000000", 25_000_000),
        ({"eu-1": "20mbit", "eu-*": 5000}, "eu-1=20mbit,eu-*=5000", 0),
        ({"eu-1": "20mbit", None: "1MB"}, "eu-1=20mbit,1MB", 1_000_000),
    ],
)
def test_rates_are_those_of_a_text_or_a_dict(given: Any, text: str, rate: int) -> None:
    assert rates_text(given, "send_rate") == text
    assert _pccl.rate_parse(text, "send_rate") == rate


def test_no_rate_is_no_limit() -> None:
    assert rates_text(None, "x") is None
    assert rates_text({}, "x") is None


@pytest.mark.parametrize(
    "wrong", ["0", 0, 999, -1, "fast", "", "9" * 400, 10**30, {"eu-1": 0}, {None: "fast"}]
)
def test_what_is_no_rate_is_named_with_the_range_and_examples(
    coordinator: pccl.Coordinator, wrong: Any
) -> None:
    words = 'send_rate must be from 8kbit to 10tbit per second, such as "200mbit", "25MB", '
    item = wrong if not isinstance(wrong, dict) else "eu-1=0" if "eu-1" in wrong else "fast"
    end = f'not "{item}"; leave it out for no limit'
    with pytest.raises(pccl.InvalidArgument, match=f"^{words}.* {end}$"):
        pccl.connect(coordinator.token, bind=LOOPBACK, send_rate=wrong)


@pytest.mark.parametrize("rate", [2.5e7, {"eu-1": 2.5e7}, {7: 1000}])
def test_a_rate_or_a_name_of_another_type_is_a_type_error(rate: Any) -> None:
    with pytest.raises(TypeError, match="^send_rate.* must be a.*, not (float|int)$"):
        rates_text(rate, "send_rate")


@pytest.mark.parametrize("peer", [None, "eu-1"])
def test_a_rate_with_a_comma_would_be_two(peer: str | None) -> None:
    with pytest.raises(pccl.InvalidArgument, match="^x has '1mbit,4mbit', but each rate of a"):
        rates_text({peer: "1mbit,4mbit"}, "x")


def test_a_name_with_a_comma_would_be_two() -> None:
    with pytest.raises(pccl.InvalidArgument, match="^x names a peer by 'a,b', but no name has a"):
        rates_text({"a,b": 1000}, "x")


def test_lanes_are_a_number_or_auto() -> None:
    assert [parse_lanes(value, "x") for value in (None, "auto", 1, "64")] == [0, 0, 1, 64]
    for wrong in (0, 65, "0", "65", "abc", "", "-1", "\u0664", "9" * 5000):
        with pytest.raises(pccl.InvalidArgument, match="^x must be 'auto' or 1 to 64, not "):
            parse_lanes(wrong, "x")


@pytest.mark.parametrize("lanes", ["auto", None, 1, 3])
def test_a_run_of_so_many_lanes_sums(lanes: Any) -> None:
    with pccl.LocalWorld(2, lanes_per_link=lanes) as world:
        for outcome in world.run(lambda comm: comm.all_reduce(np.ones(100_000))):
            assert len(outcome.contributors) == 2


@pytest.mark.parametrize("congestion", ["auto", "system", "cubic", "bbr"])
def test_peers_sum_with_each_congestion_control(
    monkeypatch: pytest.MonkeyPatch, congestion: str
) -> None:
    monkeypatch.setenv("PCCL_CONGESTION", congestion)
    with pccl.LocalWorld(2) as world:
        for outcome in world.run(lambda comm: comm.all_reduce(np.ones(100_000))):
            assert len(outcome.contributors) == 2


@pytest.mark.parametrize("congestion", ["system", pccl.Congestion.BBR])
def test_a_program_may_choose_its_congestion_control(
    coordinator: pccl.Coordinator, congestion: Any
) -> None:
    with pccl.connect(coordinator.token, bind=LOOPBACK, congestion=congestion) as comm:
        comm.admit()
        assert comm.world_size == 1


@pytest.mark.parametrize(
    ("variable", "said", "words"),
    [
        ("PCCL_SEND_RATE", "fast", "PCCL_SEND_RATE must be from 8kbit to 10tbit.*not .fast"),
        ("PCCL_FAULT_TCP", "wet", "PCCL_FAULT_TCP is .wet.; it must be bare, or not set"),
        ("PCCL_CONGESTION", "reno", "unknown PCCL_CONGESTION 'reno'.*'auto', 'system', 'bbr'"),
        ("PCCL_PROBE", "on", "unknown PCCL_PROBE 'on'.*'auto', 'off'"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(
    coordinator: pccl.Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    said: str,
    words: str,
) -> None:
    monkeypatch.setenv(variable, said)
    with pytest.raises(pccl.InvalidArgument, match=words):
        pccl.connect(coordinator.token, bind=LOOPBACK)


@pytest.mark.parametrize(
    ("n", "lanes", "plan", "rate"),
    [
        (2, "auto", "ring", "8MB"),
        (4, 3, "direct", "8MB"),
        (2, "auto", "ring", "nobody=1MB,*=8MB,100MB"),
    ],
)
@pytest.mark.parametrize("system", ["", "bare"])
def test_a_peer_keeps_to_its_rate_on_all_links_together(
    monkeypatch: pytest.MonkeyPatch, system: str, n: int, lanes: Any, plan: Any, rate: str
) -> None:
    """Goal: the rate of a peer is that of all its links together, from the first byte on, or that
    of the only other peer; on a system that paces connections, and on one that is taken for one
    that does not. Method: two operations of some MB at 8 MB a second; without a limit they
    take a hundredth of the time, with one for each link a third. The buffers of the system take the
    last bytes at once."""
    monkeypatch.setenv("PCCL_FAULT_TCP", system)
    monkeypatch.setenv("PCCL_SEND_RATE", rate)
    with pccl.LocalWorld(n, lanes_per_link=lanes, deadline=60) as world:
        for _ in range(2):
            begun = time.monotonic()
            outcomes = world.run(
                lambda comm: comm.all_reduce(np.ones(1_500_000, np.float32), plan=plan)
            )
            took = time.monotonic() - begun
            expected = max(outcome.bytes_sent for outcome in outcomes) / 8e6
            assert took > 0.5 * expected, (took, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts per connection")
def test_an_outcome_has_the_least_time_at_the_rates_that_were_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: figures come from real links, and no operation is much faster than its bound. Method:
    peers that may send 8 MB a second sum until they know what they carry. A busy machine may
    make it as slow as it likes."""
    monkeypatch.setenv("PCCL_SEND_RATE", "8MB")
    end = time.monotonic() + 60
    with pccl.LocalWorld(2, deadline=60) as world:
        while True:
            assert time.monotonic() < end, "no operation has had figures"
            outcomes = world.run(lambda comm: comm.all_reduce(np.ones(1_500_000, np.float32)))
            if all(outcome.predicted for outcome in outcomes):
                break
        for outcome in outcomes:
            assert outcome.plan == "ring"
            assert outcome.bound is not None and outcome.predicted is not None
            # 6 MB each way; the buffers of the system take some at once.
            assert 0.3 < outcome.bound < 2 * outcome.duration, outcome
            assert outcome.predicted > 0.8 * outcome.bound, outcome
