"""Codecs of all_reduce over real sockets: equal bytes everywhere, close to the sum, what is
refused, and error feedback. The bytes themselves are tested with the kernels.
"""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl
from pccl_py import _pccl
from pccl_py.work import Work

COUNT = 50_003

# Relative L2 error of the sum of three peers, normal data, that nothing of this kind passes.
ERRORS = {
    "bf16": 4e-3,
    "f16": 5e-4,
    "int8": 1.2e-2,
    "int6": 4.5e-2,
    "int5": 9e-2,
    "int4": 2e-1,
    "e3m0": 3.2e-1,
    "fp8_e4m3": 4.5e-2,
    "min_max_u8": 2e-2,
    "zero_point_u8": 2e-2,
}
OPTIONS = [
    pccl.Codec("int8", block=32, rotate=False),
    pccl.Codec("int8", rounding="stochastic"),
    pccl.Codec("int4", block=256),
    pccl.Codec("bf16", rounding="stochastic"),
]


@pytest.fixture(scope="module")
def world() -> Any:
    with pccl.LocalWorld(3, deadline=60) as made:
        yield made


def normal(dtype: Any = np.float32, count: int = COUNT) -> list[np.ndarray]:
    return [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(3)]


def reduce(world: Any, inputs: list[np.ndarray], **options: Any) -> np.ndarray:
    """The result, which all hold bit by bit."""
    results = world.run(lambda comm: pnp.all_reduce(comm, inputs[comm.rank], **options))
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    return np.asarray(results[0])


def error(result: np.ndarray, inputs: list[np.ndarray], divisor: int = 1) -> float:
    exact = sum(array.astype(np.float64) for array in inputs) / divisor
    return float(np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("plan", ["ring", "direct"])
@pytest.mark.parametrize("kind", ERRORS)
def test_all_hold_the_same_bytes_close_to_the_sum(
    world: Any, kind: str, plan: pccl.PlanName
) -> None:
    inputs = normal()
    for op, divisor in (("sum", 1), ("avg", 3)):
        result = reduce(world, inputs, op=op, codec=kind, plan=plan)
        assert error(result, inputs, divisor) < ERRORS[kind]


@pytest.mark.parametrize("codec", OPTIONS, ids=str)
def test_options_change_the_result_and_not_its_quality(world: Any, codec: pccl.Codec) -> None:
    inputs = normal()
    result = reduce(world, inputs, codec=codec)
    assert error(result, inputs) < 2 * ERRORS[codec.name]
    assert not np.array_equal(result, reduce(world, inputs, codec=codec.kind))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_floats_are_encoded_as_well(world: Any, dtype: Any) -> None:
    inputs = normal(dtype)
    result = reduce(world, inputs, codec="int8")
    assert result.dtype == dtype
    assert error(result, inputs) < ERRORS["int8"]


@pytest.mark.parametrize("count", [0, 1, 31, 127, 128, 129, 257])
def test_any_count_is_encoded(world: Any, count: int) -> None:
    inputs = normal(count=count)
    result = reduce(world, inputs, codec="int8")
    assert result.shape == (count,)
    if count:
        assert error(result, inputs) < 5e-2


def test_a_codec_sends_fewer_bytes(world: Any) -> None:
    def sent(codec: pccl.CodecName) -> int:
        arrays = normal()
        outcomes = world.run(lambda comm: comm.all_reduce(arrays[comm.rank], codec=codec))
        return int(outcomes[0].bytes_sent)

    plain = sent("none")
    assert 0.49 < sent("bf16") / plain < 0.51
    assert 0.25 < sent("int8") / plain < 0.27
    assert 0.125 < sent("int4") / plain < 0.14


def test_rotation_helps_where_some_elements_stick_out(world: Any) -> None:
    """Student's t with three degrees of freedom: docs/internals/BENCHMARKS.md has the figures."""
    tails = [np.random.default_rng(rank).standard_t(3, COUNT) for rank in range(3)]
    inputs = [tail.astype(np.float32) for tail in tails]
    turned, plain = (
        error(reduce(world, inputs, codec=pccl.Codec("int8", rotate=rotate)), inputs)
        for rotate in (True, False)
    )
    assert turned < 0.7 * plain


def test_a_nan_reaches_everybody_and_spoils_its_block_only(world: Any) -> None:
    inputs = normal()
    inputs[1][300] = np.nan
    inputs[2][1000] = np.inf
    for plan in ("ring", "direct"):
        result = reduce(world, inputs, codec="int8", plan=plan)
        block = np.zeros(COUNT, bool)
        block[256:384] = block[896:1024] = True
        assert np.isnan(result[300]) and np.isnan(result[1000])
        assert np.isfinite(result[~block]).all()


def test_a_peer_alone_loses_nothing() -> None:
    with pccl.LocalWorld(1) as alone:
        array = normal()[0]
        before = array.copy()
        alone.run(lambda comm: comm.all_reduce(array, codec="int4"))
    assert np.array_equal(array, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "int7"}, "unknown codec 'int7'"),
        ({"codec": pccl.Codec("bf16", block=64)}, "have blocks: leave `block` out"),
        ({"codec": pccl.Codec("none", rotate=True)}, "can be rotated"),
        ({"codec": pccl.Codec("min_max_u8", rounding="stochastic")}, "round to nearest only"),
        ({"codec": "min_max_u16"}, "no codec 'min_max_u16': min_max_u8 .* bf16 and f16"),
        (
            {"codec": "zero_point_u16"},
            "no codec 'zero_point_u16': .* zero_point_u8 .* bf16 and f16",
        ),
        ({"plan": "star"}, "unknown plan 'star'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    world: Any, options: dict[str, Any], message: str
) -> None:
    refuse(world, np.float32, message, **options)


@pytest.mark.parametrize("op", ["prod", "min", "max", "bor"])
@pytest.mark.parametrize("codec", ERRORS)
def test_codecs_are_for_sum_and_avg(world: Any, codec: str, op: str) -> None:
    message = f"^codec {codec} is for sum and avg, and op is {op}: use them, or no codec"
    refuse(world, np.float32, message, codec=codec, op=op)


def test_the_kind_of_a_codec_is_refused_by_name_too() -> None:
    with pytest.raises(pccl.InvalidArgument, match="no codec 'min_max_u16'"):
        pccl.Codec("min_max_u16")  # type: ignore[arg-type]


def refuse(world: Any, dtype: Any, message: str, **options: Any) -> None:
    def run(comm: pccl.Communicator) -> None:
        with pytest.raises(pccl.InvalidArgument, match=message):
            comm.all_reduce(np.ones(3, dtype), **options)

    world.run(run)


@pytest.mark.parametrize("block", [0, 1, 100, 512])
def test_a_block_of_another_size_is_refused_by_the_name_of_the_option(block: int) -> None:
    with pytest.raises(pccl.InvalidArgument, match=f"^block is {block}; .*32, 64, 128 or 256"):
        pccl.Codec("int8", block=block)


def test_integers_are_refused(world: Any) -> None:
    refuse(world, np.int32, "for floats, and dtype is i32", codec="int8")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"codec": "int8"}, {"codec": "int4"}),
        ({"codec": "int8"}, {"codec": pccl.Codec("int8", block=64)}),
        ({"plan": "ring"}, {"plan": "direct"}),
    ],
)
def test_peers_that_differ_are_told_both(
    world: Any, one: dict[str, Any], other: dict[str, Any]
) -> None:
    def call(comm: pccl.Communicator) -> str:
        options = one if comm.rank == 0 else other
        with pytest.raises(pccl.Mismatch) as caught:
            comm.all_reduce(np.ones(300, np.float32), **options)
        return str(caught.value)

    for message in world.run(call):
        for options in (one, other):
            (value,) = options.values()
            word = value if isinstance(value, str) else "block 64"
            assert word in message, message


# ---- error feedback


def descend(world: Any, codec: pccl.Codec, feeds_back: bool, steps: int = 300) -> float:
    """How far gradient descent on a badly scaled quadratic gets with encoded gradients."""
    count = 1024
    curvature = np.geomspace(0.1, 1, count).astype(np.float32)
    goals = [np.random.default_rng(rank).standard_normal(count) for rank in range(3)]
    goals = [goal.astype(np.float32) for goal in goals]
    mean = sum(goals) / 3

    def run(comm: pccl.Communicator) -> np.ndarray:
        if feeds_back:
            comm.error_feedback(tag=7)
        x = np.zeros(count, np.float32)
        for _ in range(steps):
            gradient = curvature * (x - goals[comm.rank])
            comm.all_reduce(gradient, op="avg", tag=7, codec=codec)
            x -= np.float32(0.1) * gradient
        if feeds_back:
            comm.error_feedback(tag=7).close()
        return x

    x = world.run(run)[0]
    return float(np.sum(curvature * (x - mean) ** 2))


def test_error_feedback_converges_where_the_codec_alone_does_not(world: Any) -> None:
    codec = pccl.Codec("int4", rotate=False)
    exact = descend(world, pccl.Codec("none"), False)
    alone = descend(world, codec, False)
    with_feedback = descend(world, codec, True)
    assert with_feedback < 2 * exact + 1e-3
    assert alone > 10 * with_feedback


@pytest.mark.parametrize("plan", ["ring", "direct"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_the_residuals_are_all_that_was_lost(
    world: Any, op: pccl.OpName, plan: pccl.PlanName
) -> None:
    """All members together: the sum is the result and what all have lost of it."""
    inputs = normal()
    codec = pccl.Codec("int4")

    def run(comm: pccl.Communicator) -> tuple[np.ndarray, np.ndarray]:
        feedback = comm.error_feedback(tag=9)
        result = pnp.all_reduce(comm, inputs[comm.rank], op=op, tag=9, codec=codec, plan=plan)
        residual = np.frombuffer(feedback.save(), np.float32)
        feedback.close()
        return result, residual

    answers = world.run(run)
    lost = sum(residual.astype(np.float64) for _, residual in answers)
    exact = sum(array.astype(np.float64) for array in inputs)
    result = answers[0][0].astype(np.float64) * (3 if op == "avg" else 1)
    assert np.linalg.norm(lost) > 0.1 * np.linalg.norm(exact)
    assert np.allclose(result + lost, exact, atol=1e-4)


def test_a_residual_is_saved_and_loaded_and_survives_a_failure(world: Any) -> None:
    inputs = normal()

    def run(comm: pccl.Communicator) -> None:
        feedback = comm.error_feedback(tag=11)
        assert feedback.count == 0 and feedback.save() == b""
        with pytest.raises(pccl.InvalidArgument):
            comm.all_reduce(np.ones(5, np.int32), tag=11, codec="int4")
        assert feedback.count == 0, "a refused call counts"
        comm.all_reduce(inputs[comm.rank].copy(), tag=11, codec="int4")
        saved = feedback.save()
        assert feedback.count == COUNT and any(saved)
        with pytest.raises(pccl.Mismatch):
            comm.all_reduce(np.ones(COUNT, np.float32), tag=11, codec="int4", op=OPS[comm.rank])
        assert feedback.save() == saved, "a failed operation has changed it"
        with pytest.raises(pccl.InvalidArgument, match=f"has {COUNT} elements, this call 3"):
            comm.all_reduce(np.ones(3, np.float32), tag=11, codec="int4")
        feedback.reset()
        assert feedback.count == 0
        feedback.load(saved)
        assert feedback.save() == saved
        with pytest.raises(pccl.InvalidArgument, match="residual has 2 elements"):
            feedback.load(np.ones(2, np.float32))
        with pytest.raises(TypeError, match="f32, or its bytes, not f64"):
            feedback.load(np.ones(COUNT // 2))
        with pytest.raises(pccl.InvalidArgument, match="not C-contiguous"):
            feedback.load(np.ones(2 * COUNT, np.float32)[::2])
        # Without a codec nothing is lost, and nothing is added.
        comm.all_reduce(inputs[comm.rank].copy(), tag=11)
        assert feedback.save() == saved
        feedback.close()
        assert comm.error_feedback(tag=11).save() == b"", "a closed one is forgotten"

    world.run(run)


def test_a_residual_changes_though_ctrl_c_ends_the_call_as_it_commits(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have the sum: to add the former residual once more would count it twice."""
    inputs = normal()
    codec = pccl.Codec("int4", rotate=False)
    wait, native = Work.wait, _pccl.call
    raised = []

    def run(comm: pccl.Communicator, tag: int) -> bytes:
        feedback = comm.error_feedback(tag)
        try:
            comm.all_reduce(inputs[comm.rank].copy(), tag=tag, codec=codec)
        except KeyboardInterrupt:
            raised.append(comm.rank)
        residual = feedback.save()
        feedback.close()
        return residual

    undisturbed = world.run(lambda comm: run(comm, 15))

    def wait_and_be_interrupted(work: Work, timeout: float | None = None) -> pccl.Outcome:
        outcome = wait(work, timeout)
        if not raised:
            raise KeyboardInterrupt
        return outcome

    def reduce_and_be_interrupted(*arguments: Any) -> Any:
        work = native(*arguments)
        if arguments[-1] and not raised:  # it has waited
            raise KeyboardInterrupt
        return work

    monkeypatch.setattr(Work, "wait", wait_and_be_interrupted)
    monkeypatch.setattr(_pccl, "call", reduce_and_be_interrupted)
    assert world.run(lambda comm: run(comm, 16)) == undisturbed
    assert raised


OPS: tuple[pccl.OpName, ...] = ("sum", "avg", "avg")


def test_a_residual_in_use_is_not_touched(world: Any) -> None:
    ready = threading.Barrier(3)

    def run(comm: pccl.Communicator) -> None:
        feedback = comm.error_feedback(tag=13)
        array = np.ones(COUNT, np.float32)
        if comm.rank == 0:
            work = comm.all_reduce(array, tag=13, codec="int8", async_op=True)
            with pytest.raises(pccl.InvalidUsage, match="is in flight"):
                feedback.save()
            ready.wait()
            work.wait()
        else:
            ready.wait()
            comm.all_reduce(array, tag=13, codec="int8")
        assert len(feedback.save()) == 4 * COUNT

    world.run(run)
