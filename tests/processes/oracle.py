"""Judges sums of contributions.digits against what the outcomes say, also after a loss.

It trusts nothing but the arrays: every digit of every element must be that of a contributor which
the outcome lists for that range, once. An outcome here is the dictionary that the peer program
answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from contributions import digits

Outcome = dict[str, Any]


def expected(outcome: Outcome, count: int, salt: int, first: int = 0) -> np.ndarray:
    """The sum that the outcome describes; its ranges must tile the elements.

    `first`: elements before those of the result, in what every peer contributes.
    """
    result = np.zeros(count, np.uint64)
    end = 0
    for part in outcome["ranges"]:
        assert part["begin"] == end < part["end"], f"ranges do not tile: {outcome['ranges']}"
        assert len(set(part["contributors"])) == len(part["contributors"]), part
        end = part["end"]
        for peer in part["contributors"]:
            given = digits(peer, first + count, salt)[first:]
            result[part["begin"] : end] += given[part["begin"] : end]
    assert end == count, f"ranges end at {end} of {count}: {outcome['ranges']}"
    return result


def expected_gathered(
    outcome: Outcome, counts: Sequence[int], salt: int, first_given: int = 0
) -> np.ndarray:
    """The gathered elements, as the outcome says; zeros where nobody contributed.

    Each range names one source, the rank that the elements belong to, or none. `first_given`:
    elements of each source before those that it gave.
    """
    ends = np.cumsum(counts)
    result, end = np.zeros(sum(counts), np.uint64), 0
    for part in outcome["ranges"]:
        assert part["begin"] == end < part["end"], f"ranges do not tile: {outcome['ranges']}"
        end = part["end"]
        for peer in part["contributors"]:
            first = int(ends[peer]) - counts[peer]
            assert first <= part["begin"] and end <= ends[peer], f"not of peer {peer}: {part}"
            given = digits(peer, first_given + counts[peer], salt)[first_given:]
            result[part["begin"] : end] = given[part["begin"] - first : end - first]
        assert len(part["contributors"]) <= 1, part
    assert end == sum(counts), f"ranges end at {end} of {sum(counts)}: {outcome['ranges']}"
    return result


def fingerprint(array: Any) -> str:
    """Instead of an array that is too large to be sent."""
    return hashlib.blake2b(array.view(np.uint8)).hexdigest()


def explain(got: np.ndarray, wanted: np.ndarray) -> str:
    """The first element that differs, digit by digit."""
    differing = np.flatnonzero(got != wanted)
    if len(differing) == 0:
        return "equal"
    at = differing[0]
    return f"{len(differing)} differ, first [{at}]: {got[at]:#018x}, not {wanted[at]:#018x}"


def check(outcome: Outcome, array: np.ndarray, salt: int) -> None:
    """The array is what its outcome says."""
    wanted = expected(outcome, len(array), salt)
    assert np.array_equal(array, wanted), explain(array, wanted)


def check_agreement(outcomes: Sequence[Outcome]) -> None:
    """Checks what must be equal on every peer."""
    for key in ("epoch", "tag", "sequence", "digest", "ranges"):
        values = [outcome[key] for outcome in outcomes]
        assert all(value == values[0] for value in values), f"{key} differs: {values}"


def contributor_sets(outcome: Outcome) -> set[tuple[int, ...]]:
    return {tuple(part["contributors"]) for part in outcome["ranges"]}


def check_contributors(outcome: Outcome, allowed: Iterable[Collection[int]]) -> None:
    """Every range has one of the allowed contributor sets."""
    sets = {tuple(sorted(members)) for members in allowed}
    assert contributor_sets(outcome) <= sets, f"{contributor_sets(outcome)}, allowed {sets}"
