"""Every dtype, op, world size and count, bit by bit, between real processes.

The expected bits come from reference.py, a NumPy program that follows docs/ALGORITHMS.md; what
the peers contribute, from contributions.py.
"""

from __future__ import annotations

import base64
from typing import Any

import contributions
import numpy as np
import pytest
import reference
from oracle import check_agreement, fingerprint
from peers import World, ask_all

OPS = ("sum", "avg", "prod", "min", "max")
MIB = 1024 * 1024


def cases(plan: str) -> list[dict[str, Any]]:
    """Several chunks for each owner with an odd rest, fewer elements than peers, and one."""
    return [
        {"op": op, "plan": plan, "of": "mixed", "dtype": dtype, "count": count, "seed": seed}
        for seed, (dtype, op) in enumerate((d, o) for d in contributions.STORED for o in OPS)
        for count in (3001, 5, 1)
    ]


def disagreement(case: dict[str, Any], got: np.ndarray, inputs: list[np.ndarray]) -> str:
    """Empty if the bits are right, else the first element that is not, with what went in."""
    wanted = reference.all_reduce(case["op"], case["dtype"], inputs, plan=case["plan"])
    bits = np.dtype(f"u{wanted.itemsize}")
    differing = np.flatnonzero(got.view(bits) != wanted.view(bits))
    if len(differing) == 0:
        return ""
    at = differing[0]
    went_in = [f"{array.view(bits)[at]:#x}" for array in inputs]
    return (
        f"{case}: {len(differing)} differ, first [{at}]: {got.view(bits)[at]:#x}, "
        f"not {wanted.view(bits)[at]:#x}, from {went_in}"
    )


@pytest.mark.parametrize("plan", ["ring", "direct"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6])
def test_every_dtype_and_op_has_the_bits_of_the_documented_order(
    world_size: int, plan: str
) -> None:
    """Odd ranks run the scalar-width kernels, even ones the best of this CPU: equal bits too."""
    baseline = {"PCCL_CPU_LEVEL": "baseline"}
    environments = dict.fromkeys(range(1, world_size, 2), baseline)
    with World(world_size, environments=environments) as world:
        wanted = cases(plan)
        answers = world.all("reduce_all", cases=wanted)
    wrong: list[str] = []
    for index, case in enumerate(wanted):
        what = {key: value for key, value in case.items() if key not in ("op", "plan")}
        inputs = [contributions.make(number, what) for number in range(world_size)]
        got = [base64.b64decode(answer[index]) for answer in answers]
        if any(other != got[0] for other in got):
            wrong.append(f"{case}: the peers hold different bytes")
        stored = contributions.STORED[case["dtype"]]
        wrong.append(disagreement(case, np.frombuffer(got[0], stored), inputs))
    wrong = [sentence for sentence in wrong if sentence]
    assert not wrong, f"{len(wrong)} of {len(wanted)}:\n" + "\n".join(wrong[:10])


COUNTS = (
    *(0, 1, 2, 3, 4, 5, 7, 63, 64, 65, 255, 256, 257, 1023, 4097, 10_007),
    *(65_535, 65_536, 65_537, 196_609, 1_000_003, 4 * MIB + 1),
)


@pytest.mark.parametrize("world_size", [2, 3])
def test_any_count_from_0_to_16_mib_is_reduced_in_the_documented_order(world_size: int) -> None:
    with World(world_size) as world:
        for count in COUNTS:
            what = {"of": "mixed", "dtype": "f32", "count": count, "seed": count}
            world.all("make", name="x", **what)
            outcomes = world.all("run", kind="all_reduce", array="x")
            check_agreement(outcomes)
            everybody = list(range(world_size))
            ranges = [{"begin": 0, "end": count, "contributors": everybody}] if count else []
            assert outcomes[0]["ranges"] == ranges
            inputs = [contributions.make(number, what) for number in everybody]
            wanted = fingerprint(reference.all_reduce("sum", "f32", inputs))
            assert world.all("fingerprint", name="x") == [wanted] * world_size, f"count {count}"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"chunk_bytes": 1024}, 9 * MIB + 3),  # over 16,384 pieces, so that a chunk has several
        ({"window_bytes": 64 * 1024}, MIB + 3),
        ({"lanes_per_link": 7}, MIB + 3),
    ],
)
def test_the_settings_of_the_run_change_the_cut_as_documented(
    options: dict[str, Any], count: int
) -> None:
    what = {"of": "mixed", "dtype": "f16", "count": count, "seed": 7}
    with World(3, **options) as world:
        world.all("make", name="x", **what)
        world.all("run", kind="all_reduce", array="x")
        got = world.all("fingerprint", name="x")
    inputs = [contributions.make(number, what) for number in range(3)]
    cut = {key: value for key, value in options.items() if key != "lanes_per_link"}
    wanted = reference.all_reduce("sum", "f16", inputs, **cut)
    assert got == [fingerprint(wanted)] * 3


def test_256_mib_are_reduced_in_place() -> None:
    what = {"of": "ramp", "count": 32 * MIB}
    with World(2) as world:
        world.all("make", name="x", **what)
        outcomes = world.all("run", kind="all_reduce", array="x")
        check_agreement(outcomes)
        got = world.all("fingerprint", name="x")
    inputs = [contributions.make(number, what) for number in range(2)]
    assert got == [fingerprint(inputs[0] + inputs[1])] * 2


def test_sixteen_tags_at_once_in_another_order_on_each_peer() -> None:
    counts = [1, 1000, 70_001, 300_007]
    with World(4) as world:
        for peer in world.peers:
            order = np.random.default_rng(peer.number).permutation(16)
            for tag in (int(tag) for tag in order):
                what = {"of": "digits", "count": counts[tag % 4], "salt": tag}
                peer.send("make", name=f"x{tag}", **what)
                peer.send("begin", work=f"w{tag}", kind="all_reduce", array=f"x{tag}", tag=tag)
            for tag in (int(tag) for tag in reversed(order)):
                peer.send("wait", work=f"w{tag}")
        for peer in world.peers:
            for _ in range(3 * 16):
                peer.answer()
        for tag in range(16):
            parts = [contributions.digits(r, counts[tag % 4], tag) for r in range(4)]
            assert world.all("fingerprint", name=f"x{tag}") == [fingerprint(sum(parts))] * 4, tag


def test_tags_may_be_called_by_one_peer_before_another_has_finished_them() -> None:
    """A calls tag 1 and then tag 5, while B finishes tag 5 before it calls tag 1."""
    with World(3) as world:
        for peer in world.peers:
            for tag in (1, 5):
                peer.ask("make", name=f"x{tag}", of="digits", count=200_003, salt=tag)
        first, *others = world.peers
        first.ask("begin", work="1", kind="all_reduce", array="x1", tag=1)
        first.ask("begin", work="5", kind="all_reduce", array="x5", tag=5)
        ask_all(others, "run", kind="all_reduce", array="x5", tag=5)
        first.ask("wait", work="5")
        ask_all(others, "run", kind="all_reduce", array="x1", tag=1)
        first.ask("wait", work="1")
        for tag in (1, 5):
            wanted = fingerprint(sum(contributions.digits(r, 200_003, tag) for r in range(3)))
            assert world.all("fingerprint", name=f"x{tag}") == [wanted] * 3, tag
