"""`python -m bench planner`, and the planner's shares beside those of SciPy's linear programs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog  # type: ignore[import-untyped]

from bench import planner
from bench.planner import Rates


def test_a_quick_run_has_every_world_and_no_plan_is_slower_than_another(tmp_path: Path) -> None:
    rows = planner.run(quick=True, as_json=False, out=tmp_path)
    assert (tmp_path / "planner.jsonl").read_text().count("\n") == len(rows)
    for members in planner.MEMBERS:
        own = {(row.metric, row.baseline): row for row in rows if row.case == f"n{members}"}
        assert own["search", None].value < 0.1
        for baseline in ("rank order", "sum of costs"):
            ratio = own["time", baseline].ratio
            assert ratio is not None and ratio <= 1.0
        bound = own["time", "bound"].ratio
        assert bound is not None and bound >= 1.0


def test_the_program_refuses_what_is_no_matrix() -> None:
    for text in ("2 1 1 1 1", "4 1 2 3", "4 x"):
        with pytest.raises(Exception, match="exit status"):
            planner.plans_of([text])


def _seconds(parts: Any, up: Rates, down: Rates, links: Rates) -> float:
    """How long the slowest link or member takes for one byte of data (engine/plan/shares.zig)."""
    count = len(up)
    members = (1 + (count - 2) * parts) / np.minimum(up, down)
    pairs = itertools.combinations(range(count), 2)
    of_links = ((parts[a] + parts[b]) / min(links[a, b], links[b, a]) for a, b in pairs)
    return float(max(*members, *of_links))


def _least_seconds(up: Rates, down: Rates, links: Rates) -> float:
    """The least of any shares, by SciPy."""
    count = len(up)
    rows = [*(1 + (count - 2) * np.eye(count))]
    limits = [*np.minimum(up, down)]
    for a, b in itertools.combinations(range(count), 2):
        rows.append(np.eye(count)[a] + np.eye(count)[b])
        limits.append(min(links[a, b], links[b, a]))
    unit = 1e6
    solved = linprog(-np.ones(count), rows, np.array(limits, float) / unit)
    assert solved.success, solved.message
    return 1 / (-float(solved.fun) * unit)


@pytest.mark.parametrize("members", [4, 7, 16, 32])
def test_the_shares_are_as_fast_as_those_of_another_solver(members: int) -> None:
    """No shares are faster; those of the planner are whole parts of 64 at most."""
    random = np.random.default_rng(members)
    worlds = [planner.world(members, random) for _ in range(40)]
    plans = planner.plans_of([planner.text_of(*world) for world in worlds])
    slower = []
    for (up, down, links, _), plan in zip(worlds, plans, strict=True):
        parts = np.array(plan["shares"], float)
        if plan["plan"] != "direct" or not parts.any():
            continue
        least = _least_seconds(up, down, links)
        found = _seconds(parts / parts.sum(), up, down, links)
        slower.append(found / least)
    assert len(slower) >= 20
    assert min(slower) > 1 - 1e-9
    # A link that takes its part of a full downlink may carry more than its limit, so that a few
    # plans rest on other rates.
    assert np.median(slower) < 1.04 and np.quantile(slower, 0.9) < 1.15
