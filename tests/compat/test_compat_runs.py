"""Runs of programs of PCCL 1.0 over sockets: what peers, peer groups and masters do.

Goal: its public behaviour, in tests of our own writing: joins at agreed points, equal world sizes,
revisions, strategies, peer groups. Method: peers in threads, each with a Communicator of its own.
Peers that are killed: test_compat_processes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pccl
import pytest
from pccl import Attribute, Communicator, DataType, PCCLError, ReduceOp, Result
from pccl.words import QuantizationAlgorithm

import pccl_py

STRATEGY = pccl.SharedStateSyncStrategy
SIZE = 500
SECONDS_MAX = 60.0


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCCL_BIND", "127.0.0.1:0")
    monkeypatch.setenv("PCCL_DEADLINE", "30")
    monkeypatch.setenv("PCCL_COORDINATOR_HEARTBEAT", "0.1")


@pytest.fixture
def master() -> Iterator[pccl.MasterNode]:
    running = pccl.MasterNode(listen_address="127.0.0.1:0")
    running.run()
    yield running
    running.interrupt()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def join(master: pccl.MasterNode, peer_group: int = 0) -> Communicator:
    made = Communicator(f"127.0.0.1:{master.port}", peer_group)
    made.connect()
    return made


def attributes(peer: Communicator) -> list[int]:
    """Global, local, number of groups, largest group."""
    return [peer.get_attribute(attribute) for attribute in Attribute]


def together(pool: ThreadPoolExecutor, *calls: Callable[[], Any]) -> list[Any]:
    running: list[Future[Any]] = [pool.submit(call) for call in calls]
    return [each.result(SECONDS_MAX) for each in running]


def joined(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, peer_groups: list[int]
) -> list[Communicator]:
    """Peers that come one after the other, each at a safe point of those before."""
    peers: list[Communicator] = []
    for peer_group in peer_groups:
        let_in(pool, peers, pool.submit(join, master, peer_group))
    return peers


def let_in(
    pool: ThreadPoolExecutor, peers: list[Communicator], entering: Future[Communicator]
) -> None:
    """Passes safe points until the newcomer is there, which then is one of the peers."""
    size = len(peers) + 1
    while peers and attributes(peers[0])[0] < size:
        together(pool, *[peer.update_topology for peer in peers])
    peers.append(entering.result(SECONDS_MAX))


def refused(call: Callable[[], Any]) -> Result:
    with pytest.raises(PCCLError) as caught:
        call()
    return caught.value.result


# ---- alone


def test_a_peer_alone_is_told_that_it_is(master: pccl.MasterNode) -> None:
    peer = join(master)
    array = np.ones(SIZE)
    alone = Result.TOO_FEW_PEERS
    assert refused(lambda: peer.all_reduce(array, array, op=ReduceOp.SUM)) is alone
    assert refused(lambda: peer.all_reduce_async(array, array, op=ReduceOp.SUM)) is alone
    assert refused(peer.optimize_topology) is Result.INVALID_USAGE
    assert attributes(peer) == [1, 1, 1, 1]
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")])
    state.revision = 7
    peer.sync_shared_state(state)
    assert state.revision == 7
    peer.update_topology()
    assert not peer.are_peers_pending()


def test_before_connect_and_without_a_master() -> None:
    peer = Communicator("127.0.0.1:1")
    assert refused(peer.update_topology) is Result.INVALID_USAGE
    assert refused(lambda: peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE)) is Result.INVALID_USAGE
    with pytest.raises(
        Exception, match=r"Failed to connect to the master node: .*127\.0\.0\.1:1"
    ) as caught:
        peer.connect(n_attempts=2)
    why = caught.value.__cause__
    assert isinstance(why, PCCLError) and why.result is Result.MASTER_CONNECTION_FAILED
    assert isinstance(why.__cause__, pccl_py.CoordinatorUnreachable)
    said = str(caught.value)
    assert "Start a master at 127.0.0.1:1 (pccl_master, or MasterNode)" in said
    assert "token" not in said and "advertise" not in said
    with pytest.raises(AssertionError, match="expected format: ip:port"):
        Communicator("127.0.0.1")


def test_a_master_that_is_there_twice(master: pccl.MasterNode) -> None:
    assert refused(master.run) is Result.INVALID_USAGE
    other = pccl.MasterNode(listen_address=f"127.0.0.1:{master.port}")
    assert refused(other.run) is Result.INTERNAL_ERROR
    assert refused(other.interrupt) is Result.INVALID_USAGE


# ---- reductions


def test_reductions_of_two(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0])
    wanted = {"SUM": 3.0, "AVG": 1.5, "PROD": 2.0, "MAX": 2.0, "MIN": 1.0}

    def program(number: int) -> None:
        peer = peers[number]
        for op, value in wanted.items():
            send, recv = np.full(SIZE, number + 1.0), np.zeros(SIZE)
            info = peer.all_reduce(send, recv, op=ReduceOp[op], tag=3)
            assert info.local_world_size == info.world_size == 2
            assert info.tx_bytes > 0 and info.rx_bytes > 0
            assert (recv == value).all() and (send == number + 1).all()
        # A matrix of one peer meets the elements of the other: PCCL 1.0 compares counts alone.
        shape = (4, SIZE // 4) if number else (SIZE,)
        arrays = [np.full(shape, number + 1, np.float32) for _ in range(4)]
        handles = [
            peer.all_reduce_async(array, array, op=ReduceOp.SUM, tag=tag)
            for tag, array in enumerate(arrays)
        ]
        for handle in handles:
            is_success, status, info = handle.wait()
            assert (is_success, status, info.local_world_size) == (True, 0, 2)
            assert handle.wait()[2] is info
        assert all((array == 3).all() for array in arrays)
        peer.optimize_topology()

    together(pool, lambda: program(0), lambda: program(1))


def test_quantized_reductions(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0])

    def program(peer: Communicator) -> None:
        for algorithm in (QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE):
            array = np.linspace(-1, 1, 1000, dtype=np.float32)
            options = pccl.QuantizationOptions(DataType.UINT8, algorithm)
            peer.all_reduce(array, array, op=ReduceOp.AVG, quantization_options=options)
            assert 0 < np.abs(array - np.linspace(-1, 1, 1000)).max() < 0.02
            wide = pccl.QuantizationOptions(DataType.UINT16, algorithm)
            with pytest.raises(PCCLError, match="not DataType.UINT16") as caught:
                peer.all_reduce(array, array, op=ReduceOp.SUM, quantization_options=wide)
            assert caught.value.result is Result.INVALID_ARGUMENT

    together(pool, *[lambda peer=peer: program(peer) for peer in peers])


def test_several_reductions_with_operations_and_tags_of_their_own(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    peers = joined(master, pool, [0, 0])

    def describe(array: np.ndarray, op: ReduceOp, tag: int) -> pccl.ReduceOpDescriptor:
        what = pccl.ReduceDescriptor(
            array.size,
            op,
            tag,
            pccl.ReduceOperandDescriptor(DataType.from_numpy_dtype(array.dtype)),
            pccl.QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE),
        )
        return pccl.ReduceOpDescriptor.from_numpy(array, array, what)

    def program(number: int) -> None:
        arrays = [np.full(SIZE, number + 1, dtype) for dtype in ("f4", "f8", "i4", "u8")]
        ops = [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PROD]
        given = [
            describe(a, op, 9 - tag) for tag, (a, op) in enumerate(zip(arrays, ops, strict=True))
        ]
        for in_flight in (128, 2):
            for array in arrays:
                array[:] = number + 1
            info = peers[number].all_reduce_multiple_with_retry(given, max_in_flight=in_flight)
            assert (info.local_world_size, info.tx_bytes > 0) == (2, True)
            assert [float(array[0]) for array in arrays] == [3, 1.5, 2, 2]

    together(pool, lambda: program(0), lambda: program(1))


def test_peers_ask_for_newcomers_while_reductions_are_under_way(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """As programs do that reduce in a thread, behind the steps of training."""
    peers = joined(master, pool, [0, 0])

    def program(peer: Communicator) -> int:
        arrays = [np.ones(100_000) for _ in range(10)]

        def reduce() -> None:
            handles = [
                peer.all_reduce_async(array, array, op=ReduceOp.AVG, tag=tag)
                for tag, array in enumerate(arrays)
            ]
            assert all(handle.wait()[0] for handle in handles)

        with ThreadPoolExecutor(1) as behind:
            reducing = [behind.submit(reduce) for _ in range(10)]
            asked = sum(peer.are_peers_pending() for _ in range(50))
            for each in reducing:
                each.result(SECONDS_MAX)
        return asked

    assert together(pool, *[lambda peer=peer: program(peer) for peer in peers]) == [0, 0]


def test_a_safe_point_waits_for_no_reduction(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    one, other = joined(master, pool, [0, 0])
    mine, theirs = np.ones(SIZE), np.ones(SIZE)
    handle = one.all_reduce_async(mine, mine, op=ReduceOp.SUM)
    assert refused(one.update_topology) is Result.PENDING_ASYNC_OPS
    other.all_reduce(theirs, theirs, op=ReduceOp.SUM)
    assert handle.wait()[0] and (mine == 2).all()
    together(pool, one.update_topology, other.update_topology)


# ---- joining and leaving


def test_a_late_joiner_enters_at_an_agreed_point_and_gets_the_state(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """The loop of the reference's programs; all members count the same sizes in the same turns."""
    last = 60

    def program(peer: Communicator) -> tuple[list[int], float]:
        weights = np.zeros(SIZE)
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(weights, "weights")])
        sizes: list[int] = []
        is_new = True
        while True:
            if not is_new and peer.are_peers_pending():
                peer.update_topology()
            is_new = False
            sizes.append(peer.get_attribute(Attribute.LOCAL_WORLD_SIZE))
            peer.sync_shared_state(state)
            if state.revision >= last and sizes[-1] == 3:
                return sizes, float(weights[0])
            delta = np.ones(SIZE)
            info = peer.all_reduce(delta, delta, op=ReduceOp.SUM)
            assert info.local_world_size == sizes[-1]
            weights += delta
            state.push_revision()

    peers = joined(master, pool, [0, 0])
    working = [pool.submit(program, peer) for peer in peers]
    late = pool.submit(lambda: program(join(master)))
    (one, first), (other, second), (newest, third) = (
        each.result(SECONDS_MAX) for each in (*working, late)
    )
    assert one == other and one[-len(newest) :] == newest == [3] * len(newest)
    assert one[0] == 2 and first == second == third


def test_newcomers_that_come_together_wait_for_each_other(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """Whether they enter at one point or at several: all see the same sizes in the same turns."""

    def program(peer: Communicator) -> list[int]:
        sizes = [peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE)]
        while sizes[-1] < 4:
            peer.update_topology()
            sizes.append(peer.get_attribute(Attribute.GLOBAL_WORLD_SIZE))
        return sizes

    first = join(master)
    seen = together(pool, lambda: program(first), *[lambda: program(join(master))] * 3)
    for sizes in seen:
        assert sizes == seen[0][-len(sizes) :]


def test_who_leaves_is_missed_at_the_next_point_and_then_newcomers_enter(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """`are_peers_pending` says so, for nobody enters before the gap is closed."""
    one, other, leaver = joined(master, pool, [0, 0, 0])
    leaver.__del__()
    while not together(pool, one.are_peers_pending, other.are_peers_pending)[0]:
        continue
    together(pool, one.update_topology, other.update_topology)
    assert attributes(one) == attributes(other) == [2, 2, 1, 2]
    late = pool.submit(join, master)
    while attributes(one)[0] < 3:
        if together(pool, one.are_peers_pending, other.are_peers_pending)[0]:
            together(pool, one.update_topology, other.update_topology)
    assert attributes(one) == attributes(late.result()) == [3, 3, 1, 3]


def test_the_last_one_is_told_that_all_others_are_lost(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    one, other = joined(master, pool, [0, 0])
    array = np.full(SIZE, 3.0)
    waiting = pool.submit(one.all_reduce_async(array, array, op=ReduceOp.SUM).wait)
    other.__del__()
    is_success, status, _ = waiting.result(SECONDS_MAX)
    assert (is_success, status) == (False, Result.RANK_CONNECTION_LOST.value)
    assert (array == 3).all()
    assert attributes(one)[1] == 1
    again = refused(lambda: one.all_reduce_async(array, array, op=ReduceOp.SUM))
    assert again is Result.TOO_FEW_PEERS


# ---- peer groups


def test_peer_groups_two_by_two(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    """Reductions and syncs are those of the peer group, and joins those of all. In the second peer
    group, the peer that came last is a newcomer, whose revision does not count."""
    peers = joined(master, pool, [0, 1, 0, 1])
    assert {tuple(attributes(peer)) for peer in peers} == {(4, 2, 2, 2)}

    def program(number: int) -> None:
        peer = peers[number]
        array = np.full(SIZE, 10.0**number)
        info = peer.all_reduce(array, array, op=ReduceOp.SUM)
        assert info.local_world_size == 2
        assert (array == (101 if number % 2 == 0 else 1010)).all()
        content = np.full(SIZE, 100.0 * (number % 2) + number)
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(content, "x")])
        state.revision = number
        peer.sync_shared_state(state)
        elected = 2 - number % 2
        assert state.revision == elected and (content == 100 * (number % 2) + elected).all()

    together(pool, *[lambda number=number: program(number) for number in range(4)])
    leaver = peers.pop()
    leaver.__del__()
    while attributes(peers[0])[0] == 4:
        together(pool, *[peer.update_topology for peer in peers])
    assert [tuple(attributes(peer)) for peer in peers] == [(3, 2, 2, 2), (3, 1, 2, 2), (3, 2, 2, 2)]
    let_in(pool, peers, pool.submit(join, master, 1))
    assert {tuple(attributes(peer)) for peer in peers} == {(4, 2, 2, 2)}
    together(pool, *[lambda number=number: program(number) for number in range(4)])


# ---- shared state


def synced(
    pool: ThreadPoolExecutor,
    peers: list[Communicator],
    contents: list[float],
    revisions: list[int],
    strategies: list[pccl.SharedStateSyncStrategy],
) -> tuple[list[float], list[int], list[pccl.SharedStateSyncInfo]]:
    arrays = [np.full(SIZE, content) for content in contents]
    states = [pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")]) for array in arrays]
    for state, revision in zip(states, revisions, strict=True):
        state.revision = revision
    infos = together(
        pool,
        *[
            lambda each=each: each[0].sync_shared_state(each[1], each[2])
            for each in zip(peers, states, strategies, strict=True)
        ],
    )
    return [float(array[0]) for array in arrays], [state.revision for state in states], infos


def test_strategies(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0, 0])
    popular, receive, send = (
        STRATEGY.ENFORCE_POPULAR,
        STRATEGY.RECEIVE_ONLY,
        STRATEGY.SEND_ONLY,
    )
    for contents, revisions, strategies, wanted in [
        ([1.0, 2.0, 1.0], [4, 4, 4], [popular] * 3, (1.0, 4)),
        ([2.0, 1.0, 1.0], [5, 4, 4], [popular] * 3, (2.0, 5)),
        ([2.0, 2.0, 1.0], [4, 4, 5], [popular] * 3, (2.0, 4)),  # the last is a newcomer
        ([1.0, 2.0, 3.0], [4, 4, 4], [receive, send, receive], (2.0, 4)),
    ]:
        values, after, infos = synced(pool, peers, contents, revisions, strategies)
        assert (values, after) == ([wanted[0]] * 3, [wanted[1]] * 3)
        received = [info.rx_bytes > 0 for info in infos]
        assert [content != wanted[0] for content in contents] == received
    *_, infos = synced(pool, peers, [5.0] * 3, [6] * 3, [popular] * 3)
    assert [(info.tx_bytes, info.rx_bytes) for info in infos] == [(0, 0)] * 3


@pytest.mark.parametrize("groups", [1, 2])
def test_one_that_comes_late_outvotes_no_member(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, groups: int
) -> None:
    """Goal: content of a latecomer never replaces that of members, whatever revision it claims, and
    however long it is there before its first sync. Method: states are made anew in each sync, as
    the package does; with two peer groups, the groups are made anew as well when a peer enters.
    """
    popular = STRATEGY.ENFORCE_POPULAR
    others = joined(master, pool, [1] * (groups - 1))

    def enter() -> None:
        entering = pool.submit(join, master, 0)
        everybody = [*others, *peers]
        let_in(pool, everybody, entering)
        peers.append(everybody[-1])

    peers: list[Communicator] = []
    enter()
    enter()
    values, after, _ = synced(pool, peers, [1.0, 1.0], [5, 5], [popular] * 2)
    assert (values, after) == ([1.0] * 2, [5] * 2)
    enter()
    values, after, _ = synced(pool, peers, [1.0, 1.0, 3.0], [6, 6, 5000], [popular] * 3)
    assert (values, after) == ([1.0] * 3, [6] * 3)
    enter()
    enter()  # the fourth has called no sync, and is no newcomer any more
    contents, revisions = [1.0, 1.0, 1.0, 4.0, 5.0], [7, 7, 7, 5000, 6000]
    values, after, _ = synced(pool, peers, contents, revisions, [popular] * 5)
    assert (values, after) == ([1.0] * 5, [7] * 5)


@pytest.mark.parametrize("sender", range(3))
def test_one_that_sends_beside_one_that_does_not_only_receive(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, sender: int
) -> None:
    """All hear of it, whichever of them entered last, and all work on."""
    peers = joined(master, pool, [0, 0, 0])
    arrays = [np.full(3, float(number)) for number in range(3)]
    states = [pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")]) for array in arrays]
    strategies = [STRATEGY.ENFORCE_POPULAR] * 3
    strategies[sender] = STRATEGY.SEND_ONLY
    results = together(
        pool,
        *[
            lambda each=each: refused(lambda: each[0].sync_shared_state(each[1], each[2]))
            for each in zip(peers, states, strategies, strict=True)
        ],
    )
    assert results == [Result.INVALID_ARGUMENT] * 3
    assert [state.revision for state in states] == [0] * 3
    assert [float(array[0]) for array in arrays] == [0, 1, 2]
    together(pool, *[peer.update_topology for peer in peers])
    assert {tuple(attributes(peer)) for peer in peers} == {(3, 3, 1, 3)}


@pytest.mark.parametrize("name", ["sync_shared_state", "all_reduce"])
def test_a_newcomer_whose_first_call_differs_is_out_and_told_so(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, name: str
) -> None:
    """After any other result than this one a communicator works on."""
    peers = joined(master, pool, [0, 0, 0])

    def call(peer: Communicator, count: int) -> None:
        array = np.zeros(count)
        if name == "all_reduce":
            peer.all_reduce(array, array, op=ReduceOp.SUM)
        else:
            peer.sync_shared_state(pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")]))

    answer = pool.submit(refused, lambda: call(peers[2], SIZE + 1))
    together(pool, lambda: call(peers[0], SIZE), lambda: call(peers[1], SIZE))
    assert answer.result(SECONDS_MAX) is Result.MASTER_CONNECTION_FAILED
    assert refused(peers[2].update_topology) is Result.MASTER_CONNECTION_FAILED
    together(pool, peers[0].update_topology, peers[1].update_topology)
    assert attributes(peers[0]) == attributes(peers[1]) == [2, 2, 1, 2]


@pytest.mark.parametrize("name", ["update_topology", "sync_shared_state", "all_reduce"])
def test_a_peer_may_be_late_by_any_time(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The default deadline of pccl_py, here a tenth of a second, is not the one of this package."""
    monkeypatch.delenv("PCCL_DEADLINE")
    monkeypatch.setattr("pccl_py.communicator.DEADLINE_NS_DEFAULT", 10**8)
    peers = joined(master, pool, [0, 0])
    arrays = [np.ones(SIZE), np.ones(SIZE)]

    def call(number: int) -> None:
        array, peer = arrays[number], peers[number]
        if name == "update_topology":
            peer.update_topology()
        elif name == "all_reduce":
            peer.all_reduce(array, array, op=ReduceOp.SUM)
        else:
            peer.sync_shared_state(pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")]))

    early = pool.submit(call, 0)
    with pytest.raises(TimeoutError):
        early.result(0.5)
    call(1)
    early.result(SECONDS_MAX)


def test_a_sync_in_which_nobody_gives(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0])

    def program(peer: Communicator) -> Result:
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(np.zeros(3), "x")])
        return refused(lambda: peer.sync_shared_state(state, STRATEGY.RECEIVE_ONLY))

    results = together(pool, *[lambda peer=peer: program(peer) for peer in peers])
    assert results == [Result.NO_SHARED_STATE_AVAILABLE] * 2


class Tensor:
    """A tensor of torch, as far as it is asked: its gradient keeps its data from being handed out.

    `detach` gives what has none.
    """

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def detach(self) -> np.ndarray:
        return self._data


def test_tensors_of_torch_are_taken_without_their_gradients(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    peers = joined(master, pool, [0, 0])

    def program(number: int) -> None:
        data = np.full(SIZE, number + 1, np.float32)
        tensor: Any = Tensor(data)
        peers[number].all_reduce(tensor, tensor, op=ReduceOp.SUM)
        assert (data == 3).all()
        what = pccl.ReduceDescriptor(
            SIZE,
            ReduceOp.AVG,
            0,
            pccl.ReduceOperandDescriptor(DataType.FLOAT),
            pccl.QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE),
        )
        data[:] = number
        given = pccl.ReduceOpDescriptor.from_torch(send=tensor, recv=tensor, reduce_descriptor=what)
        peers[number].all_reduce_multiple_with_retry([given])
        assert (data == 0.5).all()
        data[:] = number
        state = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, "x")])
        peers[number].sync_shared_state(state)
        assert (data == 0).all()  # those of the member from before

    together(pool, lambda: program(0), lambda: program(1))
    named: Any = "torch.bfloat16"  # as torch writes it
    assert DataType.from_torch_dtype(named) is DataType.BFLOAT16


def test_a_tensor_whose_content_may_differ(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    peers = joined(master, pool, [0, 0])

    def program(number: int) -> None:
        own, shared = np.full(3, number), np.full(3, 7)
        state = pccl.SharedState(
            [
                pccl.TensorInfo.from_numpy(own, "own", allow_content_inequality=True),
                pccl.TensorInfo.from_numpy(shared, "shared"),
            ]
        )
        peers[number].sync_shared_state(state)
        assert (own == number).all()

    together(pool, lambda: program(0), lambda: program(1))


def test_an_error_in_a_group_that_was_closed_meanwhile_is_told_as_it_was() -> None:
    """A closed group answers no question, and that must not take the place of the error."""
    comm = Communicator("127.0.0.1:1")
    with pccl_py.LocalWorld(1) as world:
        (group,) = world.comms
    with (
        pytest.raises(PCCLError, match="the first error") as caught,
        comm._told("pcclAllReduce", group),
    ):
        raise pccl_py.Aborted("the first error")
    assert caught.value.result is Result.RANK_CONNECTION_LOST
