"""Every dtype, op, world size and count, bit by bit, between real processes.

The expected bits come from reference.py, a NumPy program that follows docs/internals/ALGORITHMS.md;
what the peers contribute, from contributions.py.
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
BITWISE = ("band", "bor", "bxor")
PAIRS = [(dtype, op) for dtype in contributions.STORED for op in OPS]
PAIRS += [(dtype, op) for dtype in contributions.STORED if dtype[0] in "iu" for op in BITWISE]
PLANS = ("ring", "direct")
MIB = 1024 * 1024


def worlds(*sizes: int) -> list[tuple[int, str]]:
    """World sizes with their plans: one member alone has no plan to follow."""
    return [(1, "ring"), *((size, plan) for size in sizes for plan in PLANS)]


def cases(plan: str) -> list[dict[str, Any]]:
    """Several chunks for each owner with an odd rest, fewer elements than peers, and one."""
    return [
        {"op": op, "plan": plan, "of": "mixed", "dtype": dtype, "count": count, "seed": seed}
        for seed, (dtype, op) in enumerate(PAIRS)
        for count in (3001, 5, 1)
    ]


def disagreement(
    case: dict[str, Any], got: np.ndarray, wanted: np.ndarray, inputs: list[np.ndarray]
) -> str:
    """Empty if the bits are right, else the first element that is not, with what went in."""
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


def inputs_of(case: dict[str, Any], world_size: int) -> list[np.ndarray]:
    what = {key: case[key] for key in ("of", "dtype", "count", "seed")}
    return [contributions.make(number, what) for number in range(world_size)]


def mixed_world(world_size: int) -> World:
    """Odd ranks run the scalar-width kernels, even ones the best of this CPU: equal bits too."""
    baseline = {"PCCL_CPU_LEVEL": "baseline"}
    return World(world_size, environments=dict.fromkeys(range(1, world_size, 2), baseline))


def check_none_wrong(sentences: list[str]) -> None:
    wrong = [sentence for sentence in sentences if sentence]
    assert not wrong, f"{len(wrong)} of {len(sentences)}:\n" + "\n".join(wrong[:10])


@pytest.mark.parametrize(("world_size", "plan"), worlds(2, 3, 5, 6))
def test_every_dtype_and_op_has_the_bits_of_the_documented_order(
    world_size: int, plan: str
) -> None:
    with mixed_world(world_size) as world:
        wanted = cases(plan)
        answers = world.all("reduce_all", cases=wanted)
    wrong: list[str] = []
    for index, case in enumerate(wanted):
        inputs = inputs_of(case, world_size)
        got = [base64.b64decode(answer[index]) for answer in answers]
        if any(other != got[0] for other in got):
            wrong.append(f"{case}: the peers hold different bytes")
        made = np.frombuffer(got[0], contributions.STORED[case["dtype"]])
        right = reference.all_reduce(case["op"], case["dtype"], inputs, plan=plan)
        wrong.append(disagreement(case, made, right, inputs))
    check_none_wrong(wrong)


def uneven(world_size: int, count: int) -> list[int]:
    """Shards of all sizes: none, one element, and many with an odd rest."""
    counts = [0, 1, 700, 500][: world_size - 1]
    return [*counts, count - sum(counts)]


def cases_of_one(plan: str, world_size: int) -> list[dict[str, Any]]:
    """Cases with a result at one rank: all, or a shard at each. In place and apart for each op."""
    kinds: list[dict[str, Any]] = [
        {"kind": "reduce", "root": world_size - 1},
        {"kind": "reduce", "root": 0},
        {"kind": "reduce_scatter", "counts": uneven(world_size, 3001)},
        {"kind": "reduce_scatter", "counts": uneven(world_size, 3001)[::-1]},
        {"kind": "reduce_scatter", "counts": [600] * world_size},
    ]
    return [
        {**kind, "op": op, "plan": plan, "of": "mixed", "dtype": dtype, "seed": seed}
        | {"count": sum(kind.get("counts", [3001]))}
        for seed, (dtype, op) in enumerate(PAIRS)
        for kind in kinds
    ]


def of_one(case: dict[str, Any], index: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The `out` of each peer afterwards."""
    if "counts" in case:
        return reference.reduce_scatter(
            case["op"], case["dtype"], inputs, case["counts"], plan=case["plan"]
        )
    held = [array if index % 2 else np.zeros_like(array) for array in inputs]
    root = case["root"]
    held[root] = reference.reduce(case["op"], case["dtype"], inputs, root, plan=case["plan"])
    return held


@pytest.mark.parametrize(("world_size", "plan"), worlds(2, 3, 5))
def test_what_arrives_at_one_rank_has_the_bits_of_the_documented_order(
    world_size: int, plan: str
) -> None:
    """reduce and reduce_scatter; elsewhere than at the root of a reduce nothing is written."""
    with mixed_world(world_size) as world:
        wanted = cases_of_one(plan, world_size)
        answers = world.all("reduce_all", cases=wanted)
    wrong: list[str] = []
    for index, case in enumerate(wanted):
        inputs = inputs_of(case, world_size)
        ends = np.cumsum(case.get("counts", []))[:-1]
        parts = [np.split(array, ends) for array in inputs] if "counts" in case else None
        for number, right in enumerate(of_one(case, index, inputs)):
            got = np.frombuffer(base64.b64decode(answers[number][index]), right.dtype)
            went_in = [split[number] for split in parts] if parts else inputs
            sentence = disagreement(case, got, right, went_in)
            wrong.append(f"peer {number}: {sentence}" if sentence else "")
    check_none_wrong(wrong)


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
