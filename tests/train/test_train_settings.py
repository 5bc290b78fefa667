"""Settings, schedules and fragments: what is refused by name, and what comes when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from pccl_train import (
    SGD,
    Adam,
    Method,
    Nesterov,
    Privacy,
    Schedule,
    Sparse,
    Tensor,
    fragments,
)

import pccl_py as pccl

OVERLAPS: dict[str, Any] = {"eager": True, "sync_every": 4, "fragment_sync_delay": 4}
PRIVATE: dict[str, Any] = {"privacy": Privacy(1, 1), "weights": "equal"}
ANYTHING: Any = 2.5


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"sync_every": 0}, "sync_every"),
        ({"sync_every": 4, "fragment_sync_delay": 5}, "fragment_sync_delay"),
        ({"fragment_sync_delay": -1}, "fragment_sync_delay"),
        ({"fragment_update_alpha": 1.1}, "fragment_update_alpha"),
        ({"fragment_update_alpha": float("nan")}, "fragment_update_alpha"),
        ({"sync_every": 3, "fragments": 4}, "4 fragments"),
        ({"fragments": 0}, "0 fragments"),
        ({"outer": "sgdm"}, "'sgdm'"),
        ({"codec": "int3"}, "int3"),
        ({"weights": "steps"}, "weights"),
        ({"error_feedback": True}, "error_feedback"),
        ({"codec": "int8", "sparse": Sparse()}, "sparse"),
        ({"eager": True}, "eager"),
        ({"fragment_update_alpha": -0.1}, "fragment_update_alpha"),
        ({**OVERLAPS, "fragment_update_alpha": 0.5}, "SGD or Nesterov"),
        ({**OVERLAPS, "sparse": Sparse()}, "SGD or Nesterov"),
        ({**PRIVATE, "sparse": Sparse()}, "neither sparse"),
        ({**PRIVATE, "clip_to_median": True}, "nor clip_to_median"),
        ({**OVERLAPS, "outer": Adam()}, "SGD or Nesterov"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(pccl.InvalidArgument, match=word):
        Method(**settings)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SGD(-1), "learning_rate"),
        (lambda: SGD(float("inf")), "learning_rate"),
        (lambda: Nesterov(-1), "learning_rate"),
        (lambda: Adam(-1), "learning_rate"),
        (lambda: Adam(beta1=1), "beta1"),
        (lambda: Nesterov(momentum=1), "momentum"),
        (lambda: Adam(beta2=1.5), "beta2"),
        (lambda: Adam(epsilon=-1), "epsilon"),
        (lambda: Sparse(kept=0), "kept"),
        (lambda: Sparse(chunk=5000), "chunk"),
        (lambda: Sparse(kept=0, chunk=0), "chunk"),
        (lambda: Sparse(kept=10, chunk=9), "kept"),
        (lambda: Sparse(decay=2), "decay"),
        (lambda: Sparse(decay=-1), "decay"),
        (lambda: Sparse().encode(np.zeros(9, np.float32), np.zeros(1, np.uint8)), "9 elements"),
        (lambda: Privacy(clip=0, noise=1), "clip"),
        (lambda: Privacy(clip=1, noise=float("nan")), "noise"),
        (lambda: Privacy(clip=float("inf"), noise=1), "clip"),
        (lambda: Method(privacy=Privacy(1, 1)), "weights='equal'"),
        (lambda: Schedule(4, 0), "at least one"),
        (lambda: Method(sync_every=ANYTHING), "sync_every"),
        (lambda: Method(sparse=ANYTHING), "Sparse"),
        (lambda: Method(privacy=ANYTHING), "Privacy"),
        (lambda: pccl_train.numpy.DiLoCo(ANYTHING, {"x": np.zeros(1)}), "comm"),
        (lambda: pccl_train.numpy.DiLoCo(None, ANYTHING), "dict"),
    ],
)
def test_parts_that_cannot_be_are_refused_by_name(make: Any, word: str) -> None:
    with pytest.raises((pccl.InvalidArgument, TypeError), match=word):
        make()


@pytest.mark.parametrize("delay", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_fragment_begins_once_a_round_and_ends_so_many_steps_later(
    count: int, delay: int
) -> None:
    schedule = Schedule(8, count, delay)
    begun = [(p, s) for s in range(1, 9) for p in schedule.starting(s)]
    assert sorted(p for p, _ in begun) == list(range(count)) and begun[-1] == (count - 1, 8)
    ended = {p: s for s in range(1, 9) for p in schedule.ending(s)}
    if delay == 0:
        assert ended == {}
    else:
        assert ended == {p: (s + delay - 1) % 8 + 1 for p, s in begun}


@pytest.mark.parametrize("steps", range(1, 13))
def test_a_worker_of_any_speed_passes_all_positions_in_its_steps(steps: int) -> None:
    schedule = Schedule(12, 3)
    positions = [schedule.position(step, steps) for step in range(1, steps + 1)]
    assert positions[-1] == 12 and positions == sorted(set(positions))
    assert schedule.position(steps + 1, steps) == 12


def test_the_steps_of_a_worker_follow_its_speed() -> None:
    schedule = Schedule(10, 1)
    found = [schedule.steps(speed, 4.0) for speed in (4.0, 2.0, 1.9, 0.1, 8.0, 0.0)]
    assert found == [10, 5, 4, 1, 10, 10] and schedule.steps(4.0, 0.0) == 10
    for speed in np.random.default_rng(3).uniform(0.1, 1000, 1000):
        assert schedule.steps(float(speed), float(speed)) == 10


def tensors(*sizes: int) -> list[Tensor]:
    return [Tensor(f"t{n}", (size,), "f32") for n, size in enumerate(sizes)]


@pytest.mark.parametrize("order", ["balanced", "strided"])
@pytest.mark.parametrize(
    "sizes", [(1,) * 9, (1000, 1, 1, 1), (1, 1, 1, 1000), (5, 4, 3, 2, 1, 100, 1), (7, 0, 7, 0, 7)]
)
def test_a_tensor_that_fits_into_no_fragment_is_in_one_all_the_same(
    sizes: tuple[int, ...], order: Any
) -> None:
    """Others have left a gap where a tensor did not fit into a bucket: it was never exchanged."""
    model = tensors(*sizes)
    for count in range(1, len(sizes) + 1):
        parts = fragments.split(model, count, order)
        assert len(parts) == count and all(parts)
        layouts = fragments.layouts(model, parts)
        places = [place for layout in layouts for place in layout.places()]
        assert sum(tensor.size for tensor, _ in places) == sum(sizes)
        for layout in layouts:
            ends = [part.stop for _, part in layout.places()]
            begins = [part.start for _, part in layout.places()]
            assert begins == [0, *ends[:-1]][: len(begins)]


def test_tensors_are_distributed_in_their_order_or_in_turn() -> None:
    model = tensors(1, 1, 1, 1, 1)
    assert fragments.split(model, 2, "strided") == [["t0", "t2", "t4"], ["t1", "t3"]]
    assert fragments.split(model, 2) == [["t0", "t1", "t2"], ["t3", "t4"]]
    for count, order in ((0, "balanced"), (6, "balanced"), (6, "strided"), (1, "other")):
        with pytest.raises(pccl.InvalidArgument, match="6 fragments|0 fragments|'other'"):
            fragments.split(model, count, order)  # type: ignore[arg-type]
    # In a fragment they are in the order of their names, which all frameworks share.
    (layout,) = fragments.layouts(model[:2], [("t1", "t0")])
    assert [tensor.name for tensor in layout.tensors] == ["t0", "t1"]
    with pytest.raises(TypeError, match="not one str"):
        fragments.layouts(model, ["t0"])
    with pytest.raises(pccl.InvalidArgument, match="'t3' and 1 more"):
        fragments.layouts(model, [])


@pytest.mark.parametrize(
    "setting",
    [
        {"sync_every": 4}, {"fragments": 2}, {"fragment_sync_delay": 1},
        {"fragment_update_alpha": 0.5}, {"outer": "sgd"}, {"outer": Nesterov(0.1)},
        {"codec": "int8"}, {"codec": "int4"}, {"sparse": Sparse()}, {"sparse": Sparse(kept=9)},
        {"clip_to_median": True}, {"weights": "equal"}, PRIVATE, OVERLAPS,
        {"codec": "int8", "error_feedback": True},
    ],
)  # fmt: skip
def test_peers_compare_each_setting(setting: dict[str, Any]) -> None:
    assert Method(**setting).told() != Method().told()
    for other in ({"codec": "int8"}, {**OVERLAPS, "eager": False}, {"weights": "equal"}):
        if setting != other:
            assert Method(**setting).told() != Method(**other).told()


def test_balanced_fragments_have_near_sizes() -> None:
    sizes = np.random.default_rng(1).integers(1, 50, 200)
    parts = fragments.split(tensors(*map(int, sizes)), 7)
    totals = [sum(int(sizes[int(name[1:])]) for name in part) for part in parts]
    assert max(totals) - min(totals) < 2 * 50
    assert [name for part in parts for name in part] == [f"t{n}" for n in range(200)]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ((("t0",), ("t1",)), "no fragment has 't2'"),
        ((("t0", "t1"), ("t1", "t2")), "'t1' is in fragment 0 and in fragment 1"),
        ((("t0", "t1", "t2", "other"),), "'other'"),
        ((("t0", "t1", "t2"), ()), "fragment 1 is empty"),
    ],
)
def test_fragments_that_overlap_or_leave_a_gap_are_refused(parts: Any, word: str) -> None:
    with pytest.raises(pccl.InvalidArgument, match=word):
        fragments.layouts(tensors(1, 2, 3), parts)


def test_arrays_that_cannot_be_trained_are_refused_by_name() -> None:
    good = np.zeros(3, np.float32)
    for parameters, word in (
        ({}, "empty"),
        ({"n": np.zeros(3, np.int32)}, "'n'"),
        ({"s": np.zeros((3, 3), np.float32).T[1:]}, "'s'"),
        ({"c": np.zeros(3, np.complex64)}, "'c'"),
    ):
        with pytest.raises((pccl.InvalidArgument, TypeError), match=word):
            pccl_train.numpy.DiLoCo(None, parameters)
    diloco = pccl_train.numpy.DiLoCo(None, {"x": good}, sync_every=3)
    with pytest.raises(pccl.InvalidUsage, match="attach"):
        diloco.begin()
    with pytest.raises(pccl.InvalidUsage, match="begin"):
        diloco.step()
    for tokens in (-1, float("inf"), float("nan"), 1e-12, 1e13):
        with pytest.raises(pccl.InvalidArgument, match="tokens"):
            diloco.step(tokens)


def test_the_digest_is_of_the_parameters_however_they_are_divided() -> None:
    parameters = {"a": np.arange(3, dtype=np.float32), "b": np.ones(2, np.float32)}
    digests = [
        pccl_train.numpy.DiLoCo(None, parameters, fragments=fragments).digest()
        for fragments in (1, (("b",), ("a",)))
    ]
    assert digests[0] == digests[1]
    diloco = pccl_train.numpy.DiLoCo(None, {"m": np.ones((2, 3), np.float32)})
    assert diloco.outer_parameters["m"].shape == (2, 3)
    assert diloco.world_size == diloco.pending == 0
    parameters["a"][0] = 9
    assert pccl_train.numpy.DiLoCo(None, parameters).digest() != digests[0]


def test_a_parameter_that_comes_later_is_refused() -> None:
    parameters = {"x": np.zeros(3, np.float32)}
    with pccl.LocalWorld(1) as world:
        diloco = pccl_train.numpy.DiLoCo(world.comms[0], parameters, sync_every=1)
        diloco.begin()
        diloco.step()
        parameters["y"] = np.zeros(2, np.float32)
        with pytest.raises(pccl.InvalidArgument, match="'y'"):
            diloco.step()
    layout = fragments.layouts(tensors(3), [["t0"]])
    with pytest.raises(pccl.InvalidArgument, match=r"t0 f32\[3\] when .* t0 f32\[4\] now"):
        fragments.same_model(tensors(4), layout)


def test_the_guarantee_of_noise_lies_at_what_theory_allows() -> None:
    """By Renyi: k exchanges of multiplier s have k a / (2 s^2) at order a."""
    pytest.importorskip("dp_accounting", reason="pip install '.[privacy]'; it wants attrs below 24")
    for noise, exchanges in ((1.0, 1), (4.0, 100), (0.7, 20)):
        found = Privacy(clip=1.0, noise=noise).epsilon(exchanges, delta=1e-5)
        orders = np.linspace(1.01, 200, 20_000)
        plain = exchanges * orders / (2 * noise**2) + np.log(1e5) / (orders - 1)
        assert 0.7 * plain.min() < found <= plain.min() * 1.001
    few, many = (Privacy(1.0, 2.0).epsilon(count) for count in (10, 1000))
    assert few < many
