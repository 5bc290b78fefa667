"""Programs of PCCL 1.0 as processes: masters that are interrupted, peers that are killed.

A peer's program is the loop of the reference's own ones: update, sync, reduce, all of it retried
after a PCCLError. It says in a line what it has done in each turn, and tests compare those lines.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pccl
import pytest

import pccl_py

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(str(ROOT / part) for part in ("", "frontends", "compat"))
SECONDS_MAX = 60

MASTER = """
import signal, sys
from pccl import MasterNode

def main():
    master = MasterNode(listen_address=sys.argv[1])
    signal.signal(signal.SIGINT, lambda *_: master.interrupt())
    master.run()
    print(f"listens on {master.port}", flush=True)

main()
print("over", flush=True)
"""

GLOBAL_MASTER = MASTER.replace("main()\nprint", "master = None\nmain()\nprint").replace(
    "    master = MasterNode", "    global master\n    master = MasterNode"
)

PEER = """
import os, signal, sys, zlib
import numpy as np
from pccl import Attribute, Communicator, PCCLError, ReduceOp, SharedState, TensorInfo

address, last, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def phase(name, revision):
    if dies == f"{name}@{revision}":
        os.kill(os.getpid(), signal.SIGKILL)

def retry(call):
    while True:
        try:
            return call()
        except PCCLError as error:
            print(f"failed: {error}", flush=True)

peer = Communicator(address)
peer.connect(n_attempts=15)
print("connected", flush=True)
weights = np.zeros(100_000)
for _ in range(int(sys.argv[4])):
    peer.all_reduce(weights, weights, op=ReduceOp.SUM)
state = SharedState([TensorInfo.from_numpy(weights, "weights")])
is_new = True
while True:
    phase("update", state.revision)
    if not is_new:
        retry(peer.update_topology)
    is_new = False
    if peer.get_attribute(Attribute.LOCAL_WORLD_SIZE) < 2:
        break
    phase("sync", state.revision)
    retry(lambda: peer.sync_shared_state(state))
    if state.revision >= last:
        break
    phase("reduce", state.revision)
    delta = np.full(weights.size, 1.0)
    handle = peer.all_reduce_async(delta, delta, op=ReduceOp.AVG)
    phase("wait", state.revision)
    is_success, status, info = handle.wait()
    if not is_success:
        continue
    weights += delta
    state.revision += 1
    print(state.revision, info.local_world_size, zlib.crc32(weights), flush=True)
print("end", state.revision, weights[0], flush=True)
"""

Start = Callable[..., Any]


def environment(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": PATH, "PCCL_BIND": "127.0.0.1:0", "PCCL_DEADLINE": "30", **more}


@pytest.mark.parametrize("source", [MASTER, GLOBAL_MASTER], ids=["local", "global"])
def test_a_master_lives_until_its_signal_handler_interrupts_it(start: Start, source: str) -> None:
    """Its program has come to its end: `__del__` keeps the process, or its exit."""
    program = start(source, "127.0.0.1:0", **environment())
    port = int(program.line().removeprefix("listens on "))
    if source is GLOBAL_MASTER:
        program.expect("over")
    peer = start(PEER, f"127.0.0.1:{port}", "0", "", "0", **environment())
    peer.expect("connected")
    peer.kill()
    program.interrupt()
    assert program.end() == 0
    assert ("over" in program.rest()) == (source is MASTER)


def test_the_program_of_a_master(start: Start) -> None:
    arguments = ("--listen-address", "127.0.0.1:0")
    for number in (signal.SIGINT, signal.SIGTERM):
        program = start(*arguments, module="pccl.master", **environment())
        while "the master listens on port" not in program.errors:
            assert program.process.running
        program.interrupt(number)
        assert program.end() == 0


def test_a_master_that_is_killed_fails_all_calls_of_its_peers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, without a variable that says so, and later calls at once. Each peer waits in another.

    The limit here is far above the 5 s of the default, and far below ten minutes.
    """
    monkeypatch.setenv("PCCL_BIND", "127.0.0.1:0")
    program = start(MASTER, "127.0.0.1:0", PYTHONPATH=PATH)
    port = int(program.line().removeprefix("listens on "))

    def join() -> pccl.Communicator:
        made = pccl.Communicator(f"127.0.0.1:{port}")
        made.connect()
        return made

    def result_of(call: Callable[[], object]) -> pccl.Result:
        with pytest.raises(pccl.PCCLError) as caught:
            call()
        return caught.value.result

    lost = pccl.Result.MASTER_CONNECTION_FAILED
    with ThreadPoolExecutor(3) as pool:
        peers = [join()]
        while len(peers) < 3:
            entering = pool.submit(join)
            while peers[0].get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) == len(peers):
                for updating in [pool.submit(peer.update_topology) for peer in peers]:
                    updating.result(SECONDS_MAX)
            peers.append(entering.result(SECONDS_MAX))
        array = np.ones(3)
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, "x")])
        calls: list[Callable[[], object]] = [
            peers[0].update_topology,
            lambda: peers[1].sync_shared_state(state),
            lambda: peers[2].all_reduce(array, array, op=pccl.ReduceOp.SUM),
        ]
        waiting = [pool.submit(result_of, call) for call in calls]
        program.kill()
        assert [each.result(SECONDS_MAX / 2) for each in waiting] == [lost] * 3
    assert [result_of(call) for call in calls] == [lost] * 3


@pytest.mark.parametrize(
    ("point", "before"),
    [
        *[(f"{phase}@3", 0) for phase in ("update", "sync", "reduce", "wait")],
        # A fault is in the first operation with this number: of those in which all tell their peer
        # groups, or, where ten reductions came before, of these.
        *[("operation.settled:3:0", 0), ("operation.voted:3", 0), ("sync.offered:3", 0)],
        *[("operation.settled:13:0.5", 10), ("operation.voted:13", 10)],
    ],
)
def test_a_peer_killed_in_each_phase(start: Start, point: str, before: int) -> None:
    """The others go on with equal weights, and never wait for ever."""
    last = 8
    is_fault = "." in point
    with pccl_py.Coordinator(run_id=b"pccl 1.0 has one", heartbeat=0.1, silence=3) as coordinator:
        here = environment(PCCL_INITIAL_WORLD_SIZE="3")
        arguments = [PEER, f"127.0.0.1:{coordinator.port}", str(last)]
        peers = [start(*arguments, "", str(before), **here) for _ in range(2)]
        dies = "" if is_fault else point
        faulty = {"PCCL_FAULT_POINT": point} if is_fault else {}
        victim = start(*arguments, dies, str(before), **here, **faulty)
        assert victim.end() == -signal.SIGKILL
        told = []
        for peer in peers:
            peer.expect("connected")
            assert peer.end() == 0, peer.errors
            told.append(peer.rest().splitlines())
    for lines in told:
        assert lines[-1] == f"end {last} {float(last)}"
    steps = [[line for line in lines if re.match(r"\d", line)] for lines in told]
    assert len(steps[0]) == last and steps[0] == steps[1]
    sizes = [int(line.split()[1]) for line in steps[0]]
    assert sizes == sorted(sizes, reverse=True) and {sizes[0], sizes[-1]} == {3, 2}


def test_the_example_goes_on_after_a_kill_and_lets_the_peer_in_again() -> None:
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", "3", "--restarts", "1", "--"]
    command += [sys.executable, "examples/compat/mnist_like.py"]
    # They go on until three are there, however long the process takes to come again.
    done = subprocess.run(
        [*command, "--peers", "3", "--kill", "1@100"],
        cwd=ROOT,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    results = set(re.findall(r"\d+% right, weights [\d.]+", done.stdout))
    assert len(results) == 1 and done.stdout.count("right, weights") == 3, done.stdout
    (result,) = results
    assert int(result.partition("%")[0]) >= 90
    assert re.search(r"\[1\] 3 peers at revision 0\b.*\[1\] 3 peers at", done.stdout, re.DOTALL)
