"""The C names of PCCL 1.0, compat/include/pccl.h, called by cffi: results, attributes, reductions.

Goal: what programs in C for PCCL 1.0 rely on, in tests of our own writing; every bad argument is a
result and no crash. Method: peers in threads of this process, whose master is that of the Python
package, so both agree about runs. Compiled programs: test_compat_c_programs.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pccl
import pytest
from header import COMPAT, functions, load
from pccl import words

import pccl_py
from harness.child import held_port

ffi, lib = load(COMPAT)

SIZE = 500
SECONDS_MAX = 60.0
GLOBAL, LOCAL, GROUPS, LARGEST = (
    lib.PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE,
    lib.PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE,
    lib.PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS,
    lib.PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE,
)
POPULAR, RECEIVE_ONLY, SEND_ONLY = range(3)
DTYPES = {
    **{f"pcclInt{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"pcclUint{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    "pcclFloat16": "f2",
    "pcclFloat": "f4",
    "pcclDouble": "f8",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCCL_BIND", "127.0.0.1:0")
    monkeypatch.setenv("PCCL_DEADLINE", "30")
    monkeypatch.setenv("PCCL_COORDINATOR_HEARTBEAT", "0.1")
    assert lib.pcclInit() == lib.pcclSuccess


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


def check(result: int) -> None:
    assert result == lib.pcclSuccess, (result, said())


def said() -> str:
    """The sentence about the last failure of this thread."""
    sentence: str = ffi.string(lib.pccl_last_error()).decode()
    return sentence


def refused(result: int, expected: int = lib.pcclInvalidArgument) -> str:
    assert result == expected, (result, said())
    assert len(said()) > 10
    return said()


def address_of(port: int) -> Any:
    """127.0.0.1 and that port."""
    made = ffi.new("ccoip_socket_address_t *")
    made.inet.protocol = lib.inetIPv4
    made.inet.ipv4.data = [127, 0, 0, 1]
    made.port = port
    return made[0]


def created(port: int, peer_group: int = 0) -> Any:
    params, made = ffi.new("pcclCommCreateParams_t *"), ffi.new("pcclComm_t **")
    params.master_address = address_of(port)
    params.peer_group = peer_group
    check(lib.pcclCreateCommunicator(params, made))
    return made[0]


def join(master: pccl.MasterNode, peer_group: int = 0) -> Any:
    made = created(master.port, peer_group)
    check(lib.pcclConnect(made))
    return made


def together(pool: ThreadPoolExecutor, *calls: Callable[[], Any]) -> list[Any]:
    running: list[Future[Any]] = [pool.submit(call) for call in calls]
    return [each.result(SECONDS_MAX) for each in running]


def update(peer: Any) -> None:
    check(lib.pcclUpdateTopology(peer))


def joined(master: pccl.MasterNode, pool: ThreadPoolExecutor, peer_groups: list[int]) -> list[Any]:
    """Peers that come one after the other, each at a safe point of those before."""
    peers: list[Any] = []
    for peer_group in peer_groups:
        entering = pool.submit(join, master, peer_group)
        while peers and attributes(peers[0])[0] == len(peers):
            together(pool, *[lambda peer=peer: update(peer) for peer in peers])
        peers.append(entering.result(SECONDS_MAX))
    return peers


def leave(*peers: Any) -> None:
    for peer in peers:
        check(lib.pcclDestroyCommunicator(peer))


def attribute(peer: Any, number: int) -> int:
    value = ffi.new("int *")
    check(lib.pcclGetAttribute(peer, number, value))
    return int(value[0])


def attributes(peer: Any) -> list[int]:
    return [attribute(peer, number) for number in (GLOBAL, LOCAL, GROUPS, LARGEST)]


def pointer(array: np.ndarray) -> Any:
    return ffi.cast("void *", array.ctypes.data)


def describe(count: int = SIZE, datatype: int = lib.pcclDouble, **fields: Any) -> Any:
    """A pcclReduceDescriptor_t with those fields."""
    made = ffi.new("pcclReduceDescriptor_t *")
    made.count, made.src_descriptor.datatype = count, datatype
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def reduce(peer: Any, array: np.ndarray, into: np.ndarray | None = None, **fields: Any) -> Any:
    info = ffi.new("pcclReduceInfo_t *")
    recv = array if into is None else into
    check(lib.pcclAllReduce(pointer(array), pointer(recv), describe(**fields), peer, info))
    return info


# ---- arguments


# Two have no arguments, and a cast makes no struct that is passed by value.
ELSEWHERE = {"pcclInit", "pccl_last_error", "pcclCreateMaster"}


@pytest.mark.parametrize("name", sorted(functions(COMPAT) - ELSEWHERE))
def test_zeros_for_all_arguments_are_an_answer_and_no_crash(name: str) -> None:
    function = getattr(lib, name)
    zeros = [ffi.cast(kind, 0) for kind in ffi.typeof(function).args]
    assert "NULL" in refused(function(*zeros))


# The enumerators of pccl.h and ccoip_inet.h 1.0.0, in the order of their numbers from 0 on.
NUMBERS_1_0_0 = {
    "pcclResult_t": "pcclSuccess pcclNotInitialized pcclInternalError pcclInvalidArgument "
    "pcclInvalidUsage pcclTooFewPeers pcclMasterConnectionFailed pcclRankConnectionFailed "
    "pcclRankConnectionLost pcclNoSharedStateAvailable pcclPendingAsyncOps "
    "pcclUpdateTopologyFailed pcclTopologyOptimizationFailed",
    "pcclDataType_t": "pcclUint8 pcclInt8 pcclInt16 pcclUint16 pcclUint32 pcclInt32 pcclUint64 "
    "pcclInt64 pcclFloat16 pcclBFloat16 pcclFloat pcclDouble",
    "pcclDeviceType_t": "pcclDeviceCpu pcclDeviceCuda",
    "pcclRedOp_t": "pcclSum pcclAvg pcclProd pcclMax pcclMin",
    "pcclAttribute_t": "- PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE "
    "PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE",
    "pcclSharedStateSyncStrategy_t": "PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR "
    "PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY",
    "pcclDistributionHint_t": "PCCL_DISTRIBUTION_HINT_NONE PCCL_NORMAL_DISTRIBUTION_HINT "
    "PCCL_UNIFORM_DISTRIBUTION_HINT",
    "pcclQuantizationAlgorithm_t": "pcclQuantNone pcclQuantMinMax",
    "ccoip_inet_protocol_t": "inetIPv4 inetIPv6",
}
# Names of headers after 1.0.0: they never take a number that 1.0.0 has for something else.
LATER_NUMBERS = {
    "pcclDeviceType_t": {"pcclDeviceHip": 2},
    "pcclDistributionHint_t": {
        "pcclDistributionNone": 0,
        "pcclDistributionNormal": 1,
        "pcclDistributionUniform": 2,
    },
    "pcclQuantizationAlgorithm_t": {"pcclQuantZeroPointScale": 2},
}
# The macros of ccoip.h 1.0.0.
PORTS_1_0_0 = {"MASTER": 48148, "SHARED_STATE": 48149, "P2P": 48150, "BANDWIDTH_BENCHMARK": 48151}


def test_every_enum_has_the_numbers_of_1_0_0() -> None:
    kinds = {kind for kind in ffi.list_types()[0] if ffi.typeof(kind).kind == "enum"}
    assert kinds == set(NUMBERS_1_0_0)
    for kind, names in NUMBERS_1_0_0.items():
        wanted = {name: number for number, name in enumerate(names.split()) if name != "-"}
        found = dict(ffi.typeof(kind).relements)
        assert found == {**wanted, **LATER_NUMBERS.get(kind, {})}, kind


def test_every_macro_has_the_number_of_1_0_0() -> None:
    ports = dict(re.findall(r"#define CCOIP_PROTOCOL_PORT_(\w+) (\d+)", COMPAT.read_text()))
    assert {name: int(port) for name, port in ports.items()} == PORTS_1_0_0
    for name, port in PORTS_1_0_0.items():
        assert getattr(lib, f"CCOIP_PROTOCOL_PORT_{name}") == port


def test_addresses_have_the_fields_of_1_0_0() -> None:
    """Both addresses are there, beside each other."""
    fields = [(name, field.offset) for name, field in ffi.typeof("ccoip_inet_address_t").fields]
    assert fields == [("protocol", 0), ("ipv4", 4), ("ipv6", 8)]
    assert ffi.sizeof("ccoip_socket_address_t") == 28


def test_numbers_are_those_of_the_python_package() -> None:
    for enum, kind, prefix in (
        (words.Result, "pcclResult_t", "pccl"),
        (words.DataType, "pcclDataType_t", "pccl"),
        (words.DeviceType, "pcclDeviceType_t", "pcclDevice"),
        (words.QuantizationAlgorithm, "pcclQuantizationAlgorithm_t", "pcclQuant"),
        (words.ReduceOp, "pcclRedOp_t", "pccl"),
        (words.DistributionHint, "pcclDistributionHint_t", "pcclDistribution"),
        (words.Attribute, "pcclAttribute_t", "PCCL_ATTRIBUTE_"),
        (
            words.SharedStateSyncStrategy,
            "pcclSharedStateSyncStrategy_t",
            "PCCL_SHARED_STATE_SYNC_STRATEGY_",
        ),
    ):
        numbers = {
            name.removeprefix(prefix).lower().replace("_", ""): number
            for name, number in ffi.typeof(kind).relements.items()
            if name.startswith(prefix)
        }
        for word in enum:
            name = word.name.lower().replace("local", "peergroup").replace("_", "")
            assert numbers.pop(name) == word.value
        assert set(numbers) <= {"hip"}


def test_variables_that_make_no_sense_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, master = created(48148), ffi.new("pcclMasterInstance_t **")
    check(lib.pcclCreateMaster(address_of(0), master))
    times = ["soon", "-1", "0", "nan", "inf", "1e300", "5s", " "]
    numbers = ["x", "-1", "0", "1.5", " ", str(2**64)]
    of_peers = {
        "PCCL_DEADLINE": times,
        "PCCL_RECONNECT_TIMEOUT": [each for each in times if each != "0"],
        "PCCL_INITIAL_WORLD_SIZE": [*numbers, str(2**32)],
        "PCCL_SEND_RATE": ["fast", "100mbit,eu-1=fast"],
        "PCCL_CONGESTION": ["reno"],
        "PCCL_PROBE": ["on"],
    }
    of_masters = {
        "RUN_ID": ["0" * 31, "0" * 33, "xy" * 16],
        "LANES_PER_LINK": numbers,
        "WINDOW_BYTES": numbers,
        "SILENCE": times,
        "PROBE": ["on"],
    }
    asked = [(lib.pcclConnect, peer, *each) for each in of_peers.items()]
    for name, values in of_masters.items():
        asked.append((lib.pcclRunMaster, master[0], f"PCCL_COORDINATOR_{name}", values))
    for call, of, variable, values in asked:
        for value in values:
            with monkeypatch.context() as changed:
                changed.setenv(variable, value)
                assert variable in refused(call(of)), value
    check(lib.pcclDestroyMaster(master[0]))
    leave(peer)


def test_variables_of_a_peer_and_of_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master is one in C, whose run only a token names."""
    run_id = bytes(range(0xF0, 0x100))
    for name, value in (
        ("RUN_ID", run_id.hex()),
        ("LANES_PER_LINK", "auto"),
        ("CHUNK_BYTES", "4096"),
        ("SILENCE", "1e1"),
        ("PROBE", "off"),
    ):
        monkeypatch.setenv(f"PCCL_COORDINATOR_{name}", value)
    with held_port("127.0.0.1") as held:
        port = held.getsockname()[1]
        master = ffi.new("pcclMasterInstance_t **")
        check(lib.pcclCreateMaster(address_of(port), master))
        check(lib.pcclRunMaster(master[0]))
    token = pccl_py.token_create(f"127.0.0.1:{port}", run_id)
    monkeypatch.setenv("PCCL_TOKEN", f" {token}\n")
    monkeypatch.setenv("PCCL_LABEL", "50%% %x %p #2%")
    monkeypatch.setenv("PCCL_CONGESTION", "system")
    peer = created(1)
    check(lib.pcclConnect(peer))
    (known,) = pccl_py.run_status(token)["groups"][0]["epochs"][0]["members"]
    assert known["label"] == f"50% %x {os.getpid()} #2%"
    leave(peer)
    check(lib.pcclInterruptMaster(master[0]))
    check(lib.pcclMasterAwaitTermination(master[0]))
    check(lib.pcclDestroyMaster(master[0]))


def test_a_run_that_cannot_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    params, made = ffi.new("pcclCommCreateParams_t *"), ffi.new("pcclComm_t **")
    params.master_address = address_of(0)
    assert "port" in refused(lib.pcclCreateCommunicator(params, made))
    params.master_address.inet.protocol = 2
    assert "ccoip_inet_protocol_t 2" in refused(lib.pcclCreateCommunicator(params, made))
    master = ffi.new("pcclMasterInstance_t **")
    assert "ccoip_inet" in refused(lib.pcclCreateMaster(params.master_address, master))
    monkeypatch.setenv("PCCL_TOKEN", "nonsense")
    assert "token" in refused(lib.pcclCreateCommunicator(params, made))


def test_before_connect_and_without_a_master() -> None:
    peer = created(1)
    number, flag = ffi.new("int *"), ffi.new("bool *")
    usage = lib.pcclInvalidUsage
    refused(lib.pcclGetAttribute(peer, GLOBAL, number), usage)
    refused(lib.pcclUpdateTopology(peer), usage)
    refused(lib.pcclArePeersPending(peer, flag), usage)
    refused(lib.pcclOptimizeTopology(peer), usage)
    refused(lib.pcclAllReduce(ffi.NULL, ffi.NULL, describe(), peer, ffi.NULL), usage)
    refused(lib.pcclConnect(peer), lib.pcclMasterConnectionFailed)
    leave(peer)


def test_build_info() -> None:
    info = ffi.new("pcclBuildInfo_t *", {"has_cuda_support": True, "has_hip_support": True})
    check(lib.pcclGetBuildInfo(info))
    assert not info.has_cuda_support and not info.has_hip_support


def test_bad_arguments_of_a_peer_that_is_connected(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """Nothing is sent, and the peer works on."""
    one, other = joined(master, pool, [0, 0])
    array, handle = np.ones(SIZE), ffi.new("pcclAsyncReduceOp_t *")
    recv = pointer(array)
    many, result = 2**32 - 1, lib.pcclAllReduce
    for bad in (
        describe(count=0),
        describe(op=5),
        describe(op=many),
        describe(datatype=12),
        describe(quantization_options={"algorithm": 3}),
        describe(quantization_options={"algorithm": 1, "quantized_datatype": lib.pcclInt8}),
        describe(tag=2**64 - 1),
    ):
        refused(result(recv, recv, bad, one, ffi.NULL))
        refused(lib.pcclAllReduceAsync(recv, recv, bad, one, handle))
    refused(result(ffi.NULL, recv, describe(), one, ffi.NULL))
    refused(result(recv, ffi.NULL, describe(), one, ffi.NULL))
    refused(result(recv, recv, ffi.NULL, one, ffi.NULL))
    refused(lib.pcclAllReduceAsync(recv, recv, describe(), one, ffi.NULL))
    operations = ffi.new("pcclReduceOpDescriptor_t [1]")
    refused(lib.pcclAllReduceMultipleWithRetry(operations, 1, one, ffi.NULL, 0))
    refused(lib.pcclAllReduceMultipleWithRetry(operations, 0, one, ffi.NULL, 1))
    refused(lib.pcclAllReduceMultipleWithRetry(operations, 1, one, ffi.NULL, 1))
    refused(lib.pcclGetAttribute(one, 0, ffi.new("int *")))
    refused(lib.pcclGetAttribute(one, 5, ffi.new("int *")))
    refused(lib.pcclGetAttribute(one, GLOBAL, ffi.NULL))
    refused(lib.pcclArePeersPending(one, ffi.NULL))
    refused(lib.pcclConnect(one), lib.pcclInvalidUsage)
    handle.comm, handle.tag = one, 9
    refused(lib.pcclAwaitAsyncReduce(handle, ffi.NULL), lib.pcclInvalidUsage)
    for fields in ({"device_type": 1}, {"datatype": 12}, {"name": ffi.NULL}, {"data": ffi.NULL}):
        state, kept = shared(array, **fields)
        refused(lib.pcclSynchronizeSharedState(one, state, POPULAR, ffi.NULL))
    state, kept = shared(array)
    refused(lib.pcclSynchronizeSharedState(one, state, 3, ffi.NULL))
    refused(lib.pcclSynchronizeSharedState(one, ffi.NULL, POPULAR, ffi.NULL))
    state.infos = ffi.NULL
    refused(lib.pcclSynchronizeSharedState(one, state, POPULAR, ffi.NULL))
    arrays = np.ones(SIZE), np.ones(SIZE)
    together(pool, lambda: reduce(one, arrays[0]), lambda: reduce(other, arrays[1]))
    assert (arrays[0] == 2).all() and kept
    leave(one, other)


# ---- reductions


def test_a_peer_alone_is_told_that_it_is(master: pccl.MasterNode) -> None:
    peer = join(master)
    array, flag = np.ones(SIZE), ffi.new("bool *", True)
    recv, alone = pointer(array), lib.pcclTooFewPeers
    handle = ffi.new("pcclAsyncReduceOp_t *")
    refused(lib.pcclAllReduce(recv, recv, describe(), peer, ffi.NULL), alone)
    refused(lib.pcclAllReduceAsync(recv, recv, describe(), peer, handle), alone)
    operations = ffi.new("pcclReduceOpDescriptor_t [1]")
    refused(lib.pcclAllReduceMultipleWithRetry(operations, 1, peer, ffi.NULL, 1), alone)
    refused(lib.pcclOptimizeTopology(peer), lib.pcclInvalidUsage)
    assert attributes(peer) == [1, 1, 1, 1]
    state, _ = shared(array, revision=7)
    check(lib.pcclSynchronizeSharedState(peer, state, POPULAR, ffi.NULL))
    assert state.revision == 7
    update(peer)
    check(lib.pcclArePeersPending(peer, flag))
    assert not flag[0]
    leave(peer)


def test_reductions_of_two(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0])
    wanted = {"Sum": 3.0, "Avg": 1.5, "Prod": 2.0, "Max": 2.0, "Min": 1.0}

    def program(number: int) -> None:
        peer = peers[number]
        for op, value in wanted.items():
            send, recv = np.full(SIZE, number + 1.0), np.zeros(SIZE)
            info = reduce(peer, send, recv, op=getattr(lib, f"pccl{op}"), tag=3)
            assert info.local_world_size == 2 and info.tx_bytes > 0 and info.rx_bytes > 0
            assert (recv == value).all() and (send == number + 1).all()
        for name, dtype in DTYPES.items():
            array = np.full(SIZE, number + 1, dtype)
            reduce(peer, array, datatype=getattr(lib, name))
            assert (array == 3).all(), name
        check(lib.pcclOptimizeTopology(peer))

    together(pool, lambda: program(0), lambda: program(1))
    leave(*peers)


def test_reductions_in_flight_are_known_by_their_tags(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """Each is awaited once, in any order. One that nobody awaits gives its tag to the next one."""
    peers = joined(master, pool, [0, 0])

    def program(peer: Any) -> None:
        arrays = [np.ones(SIZE) for _ in range(4)]
        handles = ffi.new("pcclAsyncReduceOp_t [4]")
        info = ffi.new("pcclReduceInfo_t *")
        for tag, array in enumerate(arrays):
            at = pointer(array)
            check(lib.pcclAllReduceAsync(at, at, describe(tag=tag), peer, handles + tag))
            assert (handles[tag].comm, handles[tag].tag) == (peer, tag)
        for tag in (3, 1, 0):
            check(lib.pcclAwaitAsyncReduce(handles + tag, info))
            assert info.local_world_size == 2 and (arrays[tag] == 2).all()
        refused(lib.pcclAwaitAsyncReduce(handles + 3, info), lib.pcclInvalidUsage)
        reduce(peer, arrays[0])  # so the one with tag 2, which was earlier, is over
        update(peer)
        check(lib.pcclAwaitAsyncReduce(handles + 2, ffi.NULL))
        for _ in range(3):
            check(lib.pcclAllReduceAsync(at, at, describe(tag=2), peer, handles))
            reduce(peer, arrays[0])
        check(lib.pcclAwaitAsyncReduce(handles, ffi.NULL))
        refused(lib.pcclAwaitAsyncReduce(handles, ffi.NULL), lib.pcclInvalidUsage)

    together(pool, *[lambda peer=peer: program(peer) for peer in peers])
    leave(*peers)


def test_a_safe_point_and_a_sync_wait_for_no_reduction(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    one, other = joined(master, pool, [0, 0])
    mine, theirs = np.ones(SIZE), np.ones(SIZE)
    handle, at = ffi.new("pcclAsyncReduceOp_t *"), pointer(mine)
    check(lib.pcclAllReduceAsync(at, at, describe(), one, handle))
    pending = lib.pcclPendingAsyncOps
    refused(lib.pcclUpdateTopology(one), pending)
    state, _ = shared(np.zeros(SIZE))
    refused(lib.pcclSynchronizeSharedState(one, state, POPULAR, ffi.NULL), pending)
    refused(lib.pcclAllReduceAsync(at, at, describe(), one, handle), lib.pcclInvalidUsage)
    reduce(other, theirs)
    check(lib.pcclAwaitAsyncReduce(handle, ffi.NULL))
    assert (mine == 2).all()
    together(pool, lambda: update(one), lambda: update(other))
    leave(one, other)


def test_quantized_reductions(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0])

    def program(peer: Any) -> None:
        for algorithm in (lib.pcclQuantMinMax, lib.pcclQuantZeroPointScale):
            array = np.linspace(-1, 1, 1000, dtype=np.float32)
            how = {"algorithm": algorithm, "quantized_datatype": lib.pcclUint8}
            fields: Any = {"count": 1000, "datatype": lib.pcclFloat, "quantization_options": how}
            reduce(peer, array, op=lib.pcclAvg, **fields)
            assert 0 < np.abs(array - np.linspace(-1, 1, 1000)).max() < 0.02
            bad = describe(op=lib.pcclMax, **fields)
            refused(lib.pcclAllReduce(pointer(array), pointer(array), bad, peer, ffi.NULL))

    together(pool, *[lambda peer=peer: program(peer) for peer in peers])
    leave(*peers)


def test_several_reductions_with_operations_and_tags_of_their_own(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    peers = joined(master, pool, [0, 0])

    def program(number: int) -> None:
        arrays = [np.full(SIZE, number + 1.0) for _ in range(100)]
        operations = ffi.new("pcclReduceOpDescriptor_t []", len(arrays))
        info = ffi.new("pcclReduceInfo_t *")
        for tag, array in enumerate(arrays):
            made = operations[tag]
            made.sendbuf = made.recvbuf = pointer(array)
            made.descriptor = describe(tag=1000 - tag, op=tag % 5)[0]
        for in_flight in (1000, 3):
            check(
                lib.pcclAllReduceMultipleWithRetry(
                    operations, len(arrays), peers[number], info, in_flight
                )
            )
            assert (info.local_world_size, info.tx_bytes > 0) == (2, True)
            if in_flight == 1000:
                assert [float(each[0]) for each in arrays[:5]] == [3, 1.5, 2, 2, 1]

    together(pool, lambda: program(0), lambda: program(1))
    leave(*peers)


def test_a_reduction_goes_on_among_the_survivors(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """One leaves in the midst of it; the others count themselves at once, and alike."""
    peers = joined(master, pool, [0, 0, 0])
    handle, arrays = ffi.new("pcclAsyncReduceOp_t [3]"), [np.ones(SIZE) for _ in peers]
    for number in (0, 1):
        at = pointer(arrays[number])
        check(
            lib.pcclAllReduceAsync(at, at, describe(op=lib.pcclAvg), peers[number], handle + number)
        )
    leave(peers.pop(0))
    waiting = pool.submit(reduce, peers[1], arrays[2], op=lib.pcclAvg)
    info = ffi.new("pcclReduceInfo_t *")
    check(lib.pcclAwaitAsyncReduce(handle + 1, info))
    assert info.local_world_size == waiting.result(SECONDS_MAX).local_world_size == 2
    assert all((array == 1).all() for array in arrays)
    assert [attributes(peer) for peer in peers] == [[2, 2, 1, 2]] * 2
    leave(*peers)


def test_the_last_one_is_told_that_all_others_are_lost(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    one, other = joined(master, pool, [0, 0])
    array, handle = np.full(SIZE, 3.0), ffi.new("pcclAsyncReduceOp_t *")
    at = pointer(array)
    check(lib.pcclAllReduceAsync(at, at, describe(), one, handle))
    waiting = pool.submit(lib.pcclAwaitAsyncReduce, handle, ffi.NULL)
    leave(other)
    assert waiting.result(SECONDS_MAX) == lib.pcclRankConnectionLost
    assert (array == 3).all()
    assert attribute(one, LOCAL) == 1
    refused(lib.pcclAllReduce(at, at, describe(), one, ffi.NULL), lib.pcclTooFewPeers)
    leave(one)


def test_who_leaves_withdraws_and_lets_go_of_what_is_in_flight(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    one, other = joined(master, pool, [0, 0])
    array, handle = np.ones(SIZE), ffi.new("pcclAsyncReduceOp_t *")
    check(lib.pcclAllReduceAsync(pointer(array), pointer(array), describe(), one, handle))
    leave(one)
    assert (array == 1).all()
    update(other)
    assert attributes(other) == [1, 1, 1, 1]
    leave(other)


@pytest.mark.parametrize("seconds", ["0", ""], ids=["at once", "after 5 s"])
def test_a_master_that_ends_ends_the_calls_of_its_peers(
    master: pccl.MasterNode,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    seconds: str,
) -> None:
    monkeypatch.setenv("PCCL_RECONNECT_TIMEOUT", seconds)
    one, other = joined(master, pool, [0, 0])
    array, handle = np.full(SIZE, 3.0), ffi.new("pcclAsyncReduceOp_t *")
    at, lost = pointer(array), lib.pcclMasterConnectionFailed
    check(lib.pcclAllReduceAsync(at, at, describe(), one, handle))
    waiting = pool.submit(lib.pcclAwaitAsyncReduce, handle, ffi.NULL)
    master.interrupt()
    assert waiting.result(SECONDS_MAX) == lost
    assert (array == 3).all()
    for peer in (one, other):
        refused(lib.pcclUpdateTopology(peer), lost)
        refused(lib.pcclAllReduce(at, at, describe(), peer, ffi.NULL), lost)
    leave(one, other)


# ---- joining, peer groups


def test_peers_agree_about_who_waits_and_who_is_lost(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    peers = joined(master, pool, [0, 0, 0])

    def pending(peer: Any) -> bool:
        flag = ffi.new("bool *")
        check(lib.pcclArePeersPending(peer, flag))
        return bool(flag[0])

    def ask() -> bool:
        answers = together(pool, *[lambda peer=peer: pending(peer) for peer in peers])
        assert len(set(answers)) == 1
        return bool(answers[0])

    assert not ask()
    leave(peers.pop())
    while not ask():
        continue
    together(pool, *[lambda peer=peer: update(peer) for peer in peers])
    assert [attributes(peer) for peer in peers] == [[2, 2, 1, 2]] * 2
    late = pool.submit(join, master)
    while not ask():
        continue
    while attribute(peers[0], GLOBAL) == 2:
        together(pool, *[lambda peer=peer: update(peer) for peer in peers])
    peers.append(late.result(SECONDS_MAX))
    assert [attributes(peer) for peer in peers] == [[3, 3, 1, 3]] * 3
    leave(*peers)


def test_peer_groups_of_two_and_one(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    """Reductions and syncs are those of the peer group, and joins those of all."""
    top = 2**32 - 1
    peers = joined(master, pool, [7, top, 7])
    assert [attributes(peer) for peer in peers] == [[3, 2, 2, 2], [3, 1, 2, 2], [3, 2, 2, 2]]
    peers += joined_to(master, pool, peers, top)
    assert [attributes(peer) for peer in peers] == [[4, 2, 2, 2]] * 4

    def program(number: int) -> None:
        array = np.full(SIZE, 10.0**number)
        assert reduce(peers[number], array).local_world_size == 2
        assert (array == (101 if number % 2 == 0 else 1010)).all()
        content = np.full(SIZE, float(number))
        state, _ = shared(content, revision=number)
        check(lib.pcclSynchronizeSharedState(peers[number], state, POPULAR, ffi.NULL))
        # In the second peer group, the peer that came last is a newcomer.
        assert state.revision == content[0] == 2 - number % 2

    together(pool, *[lambda number=number: program(number) for number in range(4)])
    leave(peers.pop())
    while attribute(peers[0], GLOBAL) == 4:
        together(pool, *[lambda peer=peer: update(peer) for peer in peers])
    assert [attributes(peer) for peer in peers] == [[3, 2, 2, 2], [3, 1, 2, 2], [3, 2, 2, 2]]
    leave(*peers)


def test_a_reduction_that_ended_before_its_peer_group_was_made_anew_can_be_awaited(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """A third peer group is the reason; world sizes count the members of all."""
    peers = joined(master, pool, [1, 7, 1])
    handles, arrays = ffi.new("pcclAsyncReduceOp_t [2]"), [np.ones(SIZE), np.ones(SIZE)]

    for number, peer in enumerate(peers[::2]):
        at = pointer(arrays[number])
        check(lib.pcclAllReduceAsync(at, at, describe(tag=4), peer, handles + number))
        if number == 0:
            refused(lib.pcclUpdateTopology(peer), lib.pcclPendingAsyncOps)
    # So those with tag 4, which were earlier, are over.
    together(pool, *[lambda peer=peer: reduce(peer, np.ones(SIZE)) for peer in peers[::2]])
    peers += joined_to(master, pool, peers, 3)
    assert [attributes(peer) for peer in peers] == [[4, n, 3, 2] for n in (2, 1, 2, 1)]
    info = ffi.new("pcclReduceInfo_t *")
    for number in (0, 1):
        check(lib.pcclAwaitAsyncReduce(handles + number, info))
        assert info.local_world_size == 2 and (arrays[number] == 2).all()
    leave(*peers)


def joined_to(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, peers: list[Any], peer_group: int
) -> list[Any]:
    entering = pool.submit(join, master, peer_group)
    while attribute(peers[0], GLOBAL) == len(peers):
        together(pool, *[lambda peer=peer: update(peer) for peer in peers])
    return [entering.result(SECONDS_MAX)]


def test_peers_in_c_and_in_python_are_in_one_run_and_in_its_peer_groups(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    peers = joined(master, pool, [0, 1])
    late = pccl.Communicator(f"127.0.0.1:{master.port}", 1)
    entering = pool.submit(late.connect)
    while attribute(peers[0], GLOBAL) == 2:
        together(pool, *[lambda peer=peer: update(peer) for peer in peers])
    entering.result(SECONDS_MAX)
    assert [late.get_attribute(each) for each in pccl.Attribute] == [3, 2, 2, 2]
    assert attributes(peers[1]) == [3, 2, 2, 2]
    mine, theirs = np.full(SIZE, 1.0), np.full(SIZE, 2.0)
    together(
        pool,
        lambda: reduce(peers[1], mine),
        lambda: late.all_reduce(theirs, theirs, op=pccl.ReduceOp.SUM),
    )
    assert (mine == 3).all() and (theirs == 3).all()
    leave(*peers)


# ---- shared state


def shared(array: np.ndarray, revision: int = 0, **fields: Any) -> tuple[Any, Any]:
    """A state of one tensor, and what must be kept beside it."""
    name, infos = ffi.new("char []", b"x"), ffi.new("pcclTensorInfo_t [1]")
    infos[0].name, infos[0].data, infos[0].count = name, pointer(array), array.size
    infos[0].datatype = lib.pcclDouble
    for field, value in fields.items():
        setattr(infos[0], field, value)
    made = ffi.new("pcclSharedState_t *", {"revision": revision, "count": 1, "infos": infos})
    return made, (name, infos)


@pytest.mark.parametrize(
    ("strategies", "revisions", "wanted"),
    [
        ([POPULAR, POPULAR], [5, 3], 0),
        ([POPULAR, POPULAR], [3, 5], 0),  # 1 is a newcomer
        ([RECEIVE_ONLY, POPULAR], [5, 3], 1),
        ([SEND_ONLY, RECEIVE_ONLY], [3, 5], 0),
    ],
)
def test_strategies_and_revisions(
    master: pccl.MasterNode,
    pool: ThreadPoolExecutor,
    strategies: list[int],
    revisions: list[int],
    wanted: int,
) -> None:
    peers = joined(master, pool, [0, 0])
    arrays = [np.full(SIZE, 10.0 + number) for number in range(2)]

    def program(number: int) -> None:
        state, _ = shared(arrays[number], revisions[number])
        info = ffi.new("pcclSharedStateSyncInfo_t *")
        check(lib.pcclSynchronizeSharedState(peers[number], state, strategies[number], info))
        assert state.revision == revisions[wanted]
        moved = SIZE * 8
        assert (info.tx_bytes, info.rx_bytes) == ((moved, 0) if number == wanted else (0, moved))

    together(pool, lambda: program(0), lambda: program(1))
    assert all((array == 10 + wanted).all() for array in arrays)
    leave(*peers)


@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("have_synced", [False, True])
def test_a_sender_beside_one_that_does_not_only_receive_is_refused(
    master: pccl.MasterNode, pool: ThreadPoolExecutor, sender: int, have_synced: bool
) -> None:
    """For both, whichever of them is a newcomer, and both work on."""
    peers = joined(master, pool, [0, 0])
    arrays = [np.full(SIZE, float(number)) for number in range(2)]

    def sync(number: int, strategy: int) -> int:
        state, _ = shared(arrays[number])
        return int(lib.pcclSynchronizeSharedState(peers[number], state, strategy, ffi.NULL))

    if have_synced:
        assert together(pool, lambda: sync(0, POPULAR), lambda: sync(1, POPULAR)) == [0, 0]
        arrays[0] += 5
    before = [array.copy() for array in arrays]
    strategies = [SEND_ONLY if number == sender else POPULAR for number in range(2)]
    results = together(pool, lambda: sync(0, strategies[0]), lambda: sync(1, strategies[1]))
    assert results == [lib.pcclInvalidArgument] * 2
    assert all((array == old).all() for array, old in zip(arrays, before, strict=True))
    assert together(pool, lambda: sync(0, POPULAR), lambda: sync(1, POPULAR)) == [0, 0]
    leave(*peers)


def test_a_newcomer_with_another_state_is_out_and_told_so(
    master: pccl.MasterNode, pool: ThreadPoolExecutor
) -> None:
    """After any other result than this one a communicator works on."""
    one, other = joined(master, pool, [0, 0])
    arrays = np.zeros(SIZE), np.zeros(SIZE + 1)

    def sync(peer: Any, array: np.ndarray, wanted: int) -> str:
        state, _ = shared(array)
        result = lib.pcclSynchronizeSharedState(peer, state, POPULAR, ffi.NULL)
        assert result == wanted, said()
        return said()

    lost = lib.pcclMasterConnectionFailed
    _, why = together(
        pool,
        lambda: sync(one, arrays[0], lib.pcclSuccess),
        lambda: sync(other, arrays[1], lost),
    )
    assert "is not that of the members" in why
    refused(lib.pcclUpdateTopology(other), lost)
    update(one)
    leave(one, other)


def test_a_tensor_may_differ(master: pccl.MasterNode, pool: ThreadPoolExecutor) -> None:
    peers = joined(master, pool, [0, 0])
    arrays = [np.full(SIZE, float(number)) for number in range(2)]

    def program(number: int) -> None:
        state, _ = shared(arrays[number], allow_content_inequality=True)
        check(lib.pcclSynchronizeSharedState(peers[number], state, POPULAR, ffi.NULL))

    together(pool, lambda: program(0), lambda: program(1))
    assert [float(array[0]) for array in arrays] == [0, 1]
    leave(*peers)
