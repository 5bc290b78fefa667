"""Shared state through pccl_py over real sockets: who wins, what moves, what is refused.

Losses inside a sync and every order of events are the simulator's (tests/sim) and, with real
processes, tests/processes; here it is what Python adds: arrays, names, errors, threads, lifetimes.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pccl_py as pccl

LEAF = 256 * 1024


@pytest.fixture(scope="module")
def world() -> Any:
    with pccl.LocalWorld(3, deadline=30) as made:
        yield made


def share(
    world: pccl.LocalWorld, arrays: list[dict[str, Any]], **options: Any
) -> list[pccl.SharedState]:
    """A state on each communicator; options are functions of the rank where they are callable."""
    return [
        comm.shared_state(
            arrays[comm.rank],
            **{
                key: value(comm.rank) if callable(value) else value
                for key, value in options.items()
            },
        )
        for comm in world.comms
    ]


def sync(
    world: pccl.LocalWorld, states: list[pccl.SharedState], **options: Any
) -> list[pccl.SyncOutcome]:
    return world.run(lambda comm: states[comm.rank].sync(**options))


def failures(world: pccl.LocalWorld, calls: list[Any]) -> list[pccl.PcclError]:
    """The error that each call raises; all are made at once."""

    def one(comm: pccl.Communicator) -> pccl.PcclError:
        with pytest.raises(pccl.PcclError) as caught:
            calls[comm.rank]()
        return caught.value

    return world.run(one)


def test_all_leave_with_the_bytes_of_the_highest_revision(world: pccl.LocalWorld) -> None:
    """Goal: many leaves of every kind of tensor. Method: rank 1 restored the latest checkpoint."""
    dtypes = [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint64]
    rows = np.random.default_rng(1).integers(0, 100, (3, 2 * LEAF))
    arrays = [
        {
            **{np.dtype(dtype).name: rows[rank].astype(dtype) for dtype in dtypes},
            "scalar": np.array(rank, np.float64),
            "empty": np.zeros((0, 7), np.float32),
            "matrix": np.full((5, 3), rank, np.int32),
            "seed": np.array([rank]),
        }
        for rank in range(3)
    ]
    states = share(
        world, arrays, revision=lambda rank: 40 + (rank == 1), may_differ=["seed"], name="kinds"
    )
    outcomes = sync(world, states)
    for rank, array in enumerate(arrays):
        for name, value in arrays[1].items():
            expected = np.array([rank]) if name == "seed" else value
            assert np.array_equal(array[name], expected), (rank, name)
    for outcome, state in zip(outcomes, states, strict=True):
        assert outcome.revision == state.revision == 42
        assert (outcome.attempts, outcome.sequence) == (1, 0)
    moved = [outcome.leaves_moved for outcome in outcomes]
    assert moved[1] == 0 and moved[0] == moved[2] == outcomes[0].leaves
    # The first of the two to have everything may give to the other one, and twice the same comes.
    assert outcomes[1].sources == 0 and 1 <= outcomes[0].sources <= 2
    members = world.comms[0].members
    for outcome in outcomes:
        assert outcome.elected_revision == 41
        assert outcome.contributors == outcome.roster.members == members
        assert outcome.holders == members[1:2]
        assert outcome.ranks == (0, 1, 2)
        assert outcome.labels == world.comms[0].labels
    assert {outcome.hash_bytes_received for outcome in outcomes} == {0, 32 * outcomes[0].leaves}
    received = sum(outcome.bytes_received for outcome in outcomes)
    sent = sum(outcome.bytes_sent for outcome in outcomes)
    assert sent >= received > 2 * rows[0].size * 16
    assert outcomes[1].bytes_sent > rows[0].size * 16
    # Equal states: nothing moves any more.
    for outcome in sync(world, states):
        assert (outcome.bytes_sent, outcome.bytes_received, outcome.leaves_moved) == (0, 0, 0)
        assert (outcome.hash_bytes_sent, outcome.hash_bytes_received) == (0, 0)
        assert outcome.revision == 43
        assert outcome.holders == members
    for state in states:
        state.close()


def test_only_leaves_that_differ_move_from_all_who_hold_them(world: pccl.LocalWorld) -> None:
    leaves = 200
    arrays = [{"weights": np.zeros(leaves * LEAF, np.uint8)} for _ in range(3)]
    for leaf in range(0, leaves, 2):
        arrays[2]["weights"][leaf * LEAF + leaf] = 1
    states = share(world, arrays, revision=lambda rank: int(rank < 2), name="leaves")
    outcomes = sync(world, states)
    assert not arrays[2]["weights"].any()
    assert outcomes[2].leaves == leaves
    assert outcomes[2].leaves_moved == leaves // 2
    assert outcomes[2].sources == 2
    assert min(outcomes[0].bytes_sent, outcomes[1].bytes_sent) > 10 * LEAF
    for state in states:
        state.close()


def test_strategies(world: pccl.LocalWorld) -> None:
    arrays = [{"x": np.full(10, rank)} for rank in range(3)]
    states = share(world, arrays, revision=lambda rank: 10 * rank, name="strategies")
    chosen: list[pccl.Strategy | pccl.StrategyName] = [
        "send_only",
        pccl.Strategy.RECEIVE_ONLY,
        "popular",
    ]
    world.run(lambda comm: states[comm.rank].sync(chosen[comm.rank]))
    assert all((array["x"] == 0).all() for array in arrays)
    assert {state.revision for state in states} == {1}

    for rank, array in enumerate(arrays):
        array["x"][:] = rank
    errors = failures(world, [lambda s=s: s.sync("receive_only") for s in states])
    assert all(isinstance(error, pccl.StateUnavailable) for error in errors)
    errors = failures(world, [lambda s=s: s.sync("send_only") for s in states])
    peers = [world.comms[rank].peer_id.short for rank in (0, 1)]
    for rank, error in enumerate(errors):
        assert isinstance(error, pccl.Mismatch)
        for number, peer in enumerate(peers):
            assert (
                ("rank 0 (this peer)", "rank 1 (this peer)")[number] in str(error)
                if (rank == number)
                else f", {peer})" in str(error)
            ), error
    assert [array["x"][0] for array in arrays] == [0, 1, 2]  # as they were
    assert {state.revision for state in states} == {1}
    with pytest.raises(pccl.InvalidArgument, match="'popular', 'send_only', 'receive_only'"):
        states[0].sync("best")  # type: ignore[arg-type]
    for state in states:
        state.close()


def test_a_revision_that_is_given_is_that_of_one_call(world: pccl.LocalWorld) -> None:
    arrays = [{"x": np.full(10, rank)} for rank in range(3)]
    states = share(world, arrays, name="given")
    outcomes = world.run(lambda comm: states[comm.rank].sync(revision=[5, 900, 7][comm.rank]))
    assert {(one.elected_revision, one.revision) for one in outcomes} == {(900, 901)}
    assert all((array["x"] == 1).all() for array in arrays)
    assert {state.revision for state in states} == {901}
    assert {one.elected_revision for one in sync(world, states)} == {901}
    for bad in (-1, 2**62):
        with pytest.raises(pccl.InvalidArgument, match="revision"):
            states[0].sync(revision=bad)
    with pytest.raises(TypeError, match="revision"):
        states[0].sync(revision=1.5)  # type: ignore[arg-type]
    for state in states:
        state.close()


def test_successive_revisions_go_up_by_one(world: pccl.LocalWorld) -> None:
    arrays = [{"x": np.full(10, rank)} for rank in range(3)]
    states = share(world, arrays, name="successive", rules="successive", revision=lambda r: 10 * r)
    sync(world, states)  # the first: any
    assert {state.revision for state in states} == {21}
    arrays[1]["x"][:] = 7
    # One that names a later revision receives.
    world.run(lambda comm: states[comm.rank].sync(revision=[21, 1000, None][comm.rank]))
    assert all((array["x"] == 2).all() for array in arrays)
    assert {state.revision for state in states} == {22}
    # Nobody has the right one.
    errors = failures(world, [lambda s=s: s.sync(revision=23) for s in states])
    for error in errors:
        assert isinstance(error, pccl.StateUnavailable)
        assert "this peer brought 23 and expected 22" in str(error), error
    assert {state.revision for state in states} == {22}
    for state in states:
        state.close()


def test_one_sender_alone_gives(world: pccl.LocalWorld) -> None:
    arrays = [{"x": np.full(10, rank)} for rank in range(3)]
    states = share(world, arrays, name="one sender", rules=[pccl.StateRule.ONE_SENDER])
    names: list[pccl.StrategyName] = ["receive_only", "send_only", "popular"]
    errors = failures(
        world, [lambda s=s, n=n: s.sync(n) for s, n in zip(states, names, strict=True)]
    )
    for error in errors:
        assert isinstance(error, pccl.Mismatch)
        for part in ("rank 1 (", "rank 2 (", "rule one_sender"):
            assert part in str(error), error
    assert [array["x"][0] for array in arrays] == [0, 1, 2]
    world.run(
        lambda comm: states[comm.rank].sync("send_only" if comm.rank == 1 else "receive_only")
    )
    assert all((array["x"] == 1).all() for array in arrays)
    for state in states:
        state.close()


def test_rules_are_words_and_the_same_on_all(world: pccl.LocalWorld) -> None:
    array = np.zeros(3)
    with pytest.raises(pccl.InvalidArgument, match="'one_sender', 'highest_revision'"):
        world.comms[0].shared_state({"x": array}, rules=["best"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="rules"):
        world.comms[0].shared_state({"x": array}, rules=None)  # type: ignore[arg-type]
    arrays = [{"x": np.zeros(3)} for _ in range(3)]
    states = share(
        world, arrays, name="rules", rules=lambda rank: () if rank else ("refuse", "successive")
    )
    for error in failures(world, [state.sync for state in states]):
        assert isinstance(error, pccl.Mismatch)
        assert "sync(rules successive and refuse)" in str(error), error
    for state in states:
        state.close()


@pytest.mark.parametrize("what", ["shape", "revision"])
def test_a_member_that_does_not_fit_is_refused_and_the_others_go_on(what: str) -> None:
    """Goal: it fails no sync of the others twice. Method: at the second sync, not as a newcomer."""
    rules: tuple[pccl.StateRuleName, ...] = ("successive", "refuse")
    with pccl.LocalWorld(3, deadline=30) as world:
        arrays = [{"x": np.full(10, 7.0)} for _ in range(3)]
        states = share(world, arrays, rules=rules)
        sync(world, states)
        if what == "shape":
            states[1].close()
            odd = {"x": np.zeros((5, 2))}
            states[1] = world.comms[1].shared_state(odd, rules=rules, revision=1)

        def one(comm: pccl.Communicator) -> pccl.SyncOutcome | pccl.PcclError:
            try:
                is_ahead = what == "revision" and comm.rank == 1
                return states[comm.rank].sync(revision=1000 if is_ahead else None)
            except pccl.PcclError as error:
                return error

        first, refused, third = world.run(one)
        for outcome in (first, third):
            assert isinstance(outcome, pccl.SyncOutcome)
            assert outcome.ranks == (0, 2)
            assert outcome.elected_revision == 1
        assert isinstance(refused, pccl.Mismatch)
        says = "f64[5, 2] on rank 1" if what == "shape" else "is above 1"
        assert says in str(refused) and "the members go on" in str(refused)
        with pytest.raises(pccl.PcclError):
            states[1].sync()
        others = [world.comms[0], world.comms[2]]
        threads = [threading.Thread(target=comm.admit) for comm in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [comm.world_size for comm in others] == [2, 2]


def test_structures_that_differ_are_listed_on_every_peer(world: pccl.LocalWorld) -> None:
    arrays: list[dict[str, Any]] = [
        {"same": np.zeros(3), "shape": np.zeros((3, 4)), "type": np.zeros(3, np.float32)}
        for _ in range(3)
    ]
    arrays[2] = {
        "same": np.zeros(3),
        "shape": np.zeros((4, 3)),
        "type": np.zeros(3, np.float16),
        "more": np.zeros(()),
    }
    states = share(world, arrays, name="structures")
    for error in failures(world, [state.sync for state in states]):
        assert isinstance(error, pccl.Mismatch)
        for part in ("f64[3, 4]", "f64[4, 3]", "f32[3]", "f16[3]", '"more" is only on rank 2'):
            assert part in str(error), error
        names = [
            f"rank {comm.rank} ({comm.labels[comm.rank]}, {comm.peer_id.short})"
            for comm in (world.comms[0], world.comms[2])
        ]
        assert f"{names[0]} against {names[1]}: " in str(error), error
        assert '"same"' not in str(error)
    for state in states:
        state.close()


def test_many_tensors_with_long_names(world: pccl.LocalWorld) -> None:
    """Goal: the limits, and a difference behind many pages of equal tensors."""
    count = 65_536
    one = np.zeros(1, np.uint8)
    memory = [np.full(count, rank, np.uint8) for rank in range(3)]

    def tensors(rank: int) -> dict[str, Any]:
        return {f"{i:06}": memory[rank][i : i + 1] for i in range(count)}

    with pytest.raises(pccl.InvalidArgument, match="65536"):
        world.comms[0].shared_state({**tensors(0), "x": one}, name="many")
    states = share(world, [tensors(rank) for rank in range(3)], name="many")
    outcomes = sync(world, states, deadline=60)
    assert max(outcome.leaves_moved for outcome in outcomes) == count
    assert len({row.tobytes() for row in memory}) == 1
    for state in states:
        state.close()
    long = "n" * 250
    arrays = [{f"{long}{i}": one.copy() for i in range(2000)} for _ in range(3)]
    arrays[1]["zz"] = one.copy()
    states = share(world, arrays, name="long names")
    for error in failures(world, [state.sync for state in states]):
        assert '"zz" is only on rank 1' in str(error)
    for state in states:
        state.close()


def test_tensors_that_cannot_be_shared_are_refused_by_name(world: pccl.LocalWorld) -> None:
    comm = world.comms[0]
    good = np.zeros(4, np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, pccl.InvalidArgument, "tensors is empty"),
        ({"frozen": frozen}, pccl.InvalidArgument, "'frozen'.*read-only"),
        ({"strided": good[::2]}, pccl.InvalidArgument, "'strided'.*contiguous"),
        ({"complex": np.zeros(2, np.complex64)}, TypeError, "'complex'"),
        ({"a": good, "b": good}, pccl.InvalidArgument, "overlaps"),
        ({"": good}, pccl.InvalidArgument, "1 to 256 bytes"),
        ({"x" * 257: good}, pccl.InvalidArgument, "256 bytes"),
        ({"deep": good.reshape((1,) * 33 + (4,))}, pccl.InvalidArgument, "dimensions"),
    ]
    for tensors, kind, message in cases:
        with pytest.raises(kind, match=message):
            comm.shared_state(tensors)
    with pytest.raises(pccl.InvalidArgument, match="'z'"):
        comm.shared_state({"a": good}, may_differ=["z"])
    with pytest.raises(TypeError, match="may_differ"):
        comm.shared_state({"a": good}, may_differ="a")
    with pytest.raises(pccl.InvalidArgument, match="revision"):
        comm.shared_state({"a": good}, revision=-1)
    with pytest.raises(pccl.InvalidArgument, match="revision"):
        comm.shared_state({"a": good}, revision=2**62)
    # Read-only is fine for what is never written; the same name twice is not.
    with (
        comm.shared_state({"a": frozen}, may_differ=["a"]),
        pytest.raises(pccl.InvalidUsage, match='named "state"'),
    ):
        comm.shared_state({"b": good})
    comm.shared_state({"b": good}).close()


def test_a_state_that_is_not_named_alike_waits_for_nobody(world: pccl.LocalWorld) -> None:
    """Goal: two states of a group are independent. Method: they sync in opposite orders."""
    arrays = [{"x": np.full(5, rank)} for rank in range(3)]
    others = [{"y": np.full(5, rank)} for rank in range(3)]
    first = share(world, arrays, name="first")
    second = share(world, others, name="second")

    def both(comm: pccl.Communicator) -> None:
        order = [first[comm.rank], second[comm.rank]]
        threads = [
            threading.Thread(target=state.sync) for state in order[:: 1 - 2 * (comm.rank % 2)]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    world.run(both)
    assert {state.revision for state in [*first, *second]} == {1}
    assert len({array["x"].tobytes() for array in arrays}) == 1
    for state in [*first, *second]:
        state.close()


def test_one_thread_at_a_time_and_a_close_withdraws_it() -> None:
    """Goal: the second thread is refused; close() ends the first. Method: the others never call."""
    with pccl.LocalWorld(2, deadline=30) as world:
        array = np.zeros(10)
        state = world.comms[0].shared_state({"x": array})
        began = threading.Event()
        caught: list[BaseException] = []

        def wait() -> None:
            began.set()
            try:
                state.sync()
            except pccl.PcclError as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        began.wait()
        while world.comms[0].info().operations_in_flight == 0:
            assert thread.is_alive()
        with pytest.raises(pccl.InvalidUsage, match="another thread"):
            state.sync()
        with pytest.raises(pccl.InvalidUsage, match="uses a buffer"):
            world.comms[0].all_reduce(array)
        state.close()
        thread.join()
        assert isinstance(caught[0], (pccl.Cancelled, pccl.InDoubt))
        state.close()
        with pytest.raises(pccl.Cancelled, match="closed"):
            state.sync()
        # Nothing is left of it: the group goes on, and the other peer finds it aborted. It holds
        # something else: an offer of the same content would be a vote, and might come first.
        other = world.comms[1].shared_state({"x": np.ones(10)})
        with pytest.raises(pccl.Aborted):
            other.sync()
        world.run(lambda comm: comm.barrier())


def test_a_deadline_is_no_doubt_while_the_coordinator_answers() -> None:
    with pccl.LocalWorld(2, deadline=30) as world:
        state = world.comms[0].shared_state({"x": np.zeros(10)})
        with pytest.raises(pccl.DeadlineExceeded):
            state.sync(deadline=0.05)
        other = world.comms[1].shared_state({"x": np.ones(10)})
        with pytest.raises(pccl.Aborted):
            other.sync()
        states = [state, other]
        world.run(lambda comm: states[comm.rank].sync())
        assert state.revision == other.revision == 1


def test_arrays_live_as_long_as_the_state_and_no_longer() -> None:
    class Tracked(np.ndarray):
        """A NumPy array that can be referred to weakly."""

    with pccl.LocalWorld(1, deadline=30) as world:
        array = np.zeros(1000).view(Tracked)
        alive = weakref.ref(array)
        state = world.comms[0].shared_state({"x": array})
        del array
        gc.collect()
        assert alive() is not None
        assert state.sync().revision == 1
        state.close()
        gc.collect()
        assert alive() is None


def test_a_state_is_of_no_use_after_its_group_is_closed() -> None:
    with pccl.LocalWorld(1, deadline=30) as world:
        comm = world.comms[0]
        state = comm.shared_state({"x": np.zeros(3)})
        comm.close()
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            state.sync()
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            comm.shared_state({"x": np.zeros(3)}, name="other")
        assert state.revision == 0
        state.close()


def test_three_newcomers_take_over_what_one_incumbent_holds() -> None:
    """Goal: fresh weights never outvote what was synced. Method: three that hold the same."""
    with pccl.LocalWorld(1, deadline=30) as world:
        token = world.coordinator.token

        def run(comm: pccl.Communicator, value: float) -> tuple[int, float]:
            weights = np.full(100_000, value)
            state = comm.shared_state({"weights": weights})
            if comm.epoch == 0:
                comm.admit()
            else:
                state.sync()  # alone: from now on it has seen more than any newcomer
            while comm.world_size < 4:
                comm.admit()
            assert state.sync().revision == 2
            return comm.rank, weights.sum()

        def join() -> None:
            with pccl.connect(token, bind="127.0.0.1:0", deadline=30) as comm:
                answers.append(run(comm, 0.0))

        answers: list[tuple[int, float]] = []
        threads = [threading.Thread(target=join) for _ in range(3)]
        for thread in threads:
            thread.start()
        answers.append(run(world.comms[0], 7.0))
        for thread in threads:
            thread.join()
        assert dict(answers) == dict.fromkeys(range(4), 700_000.0)


def test_a_newcomer_fetches_in_the_background_what_does_not_change() -> None:
    """Goal: at its first sync only what has changed since moves. Method: one leaf of 40 changes."""
    leaves = 40
    with pccl.LocalWorld(2, deadline=30) as world:
        arrays = [np.full(leaves * LEAF, 7, np.uint8) for _ in world.comms]
        states = share(world, [{"w": array} for array in arrays], prefetch=True)
        sync(world, states)

        fetched, changed = threading.Event(), threading.Event()

        def join() -> tuple[int, int, int]:
            with pccl.connect(world.coordinator.token, bind="127.0.0.1:0", deadline=30) as comm:
                mine = np.zeros(leaves * LEAF, np.uint8)
                state = comm.shared_state({"w": mine}, prefetch=True)
                comm.admit()  # waits until everything is there
                fetched.set()
                changed.wait()
                outcome = state.sync()
                assert (mine == arrays[0]).all()
                return outcome.leaves_moved, outcome.leaves_early, outcome.revision

        answers: list[tuple[int, int, int]] = []
        thread = threading.Thread(target=lambda: answers.append(join()))
        thread.start()

        def enter(comm: pccl.Communicator) -> None:
            while comm.world_size < 3:
                comm.admit()

        world.run(enter)
        fetched.wait()
        for array in arrays:
            array[5 * LEAF] = 8
        changed.set()
        sync(world, states)
        thread.join()
        assert answers == [(1, leaves - 1, 2)]
