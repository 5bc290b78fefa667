"""Processes around a communicator: Ctrl-C, fork, and the end of the interpreter.

Each program runs in a process of its own and says on stdout when it has come to the point; clocks
are CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl

INTERRUPT_SECONDS_MAX = 0.2
# Another process may hold the processors just then, so the best of a few counts.
ATTEMPTS = 5

BLOCKED = '''
import sys, threading, time
import numpy as np
import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"

def say_when(begun):
    def watch():
        while not begun():
            continue
        print("blocked", flush=True)
    threading.Thread(target=watch, daemon=True).start()

def inside(name):
    """True while the main thread is in that function of pccl_py, and lets others run there."""
    code = sys._current_frames()[threading.main_thread().ident].f_code
    return code.co_name == name and "pccl_py" in code.co_filename

def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        print(f"interrupted {time.monotonic()}", flush=True)
    else:
        print("returned", flush=True)
'''

CALLS = {
    "all_reduce": """
array = np.full(100_000, 7.0)
for _ in range(int(sys.argv[1])):
    world = pccl.LocalWorld(2)
    a, b = world.comms
    say_when(lambda: a.info().operations_in_flight == 1)
    interrupted(lambda: a.all_reduce(array))
    assert a.info().operations_in_flight == 0, "it was not withdrawn"
    assert sys.getrefcount(array) == 2, "its buffer was not released"
    assert (array == 7.0).all()
    outcome = b.all_reduce(np.ones(100_000))
    assert outcome.contributors == (b.peer_id,)
    print("went on", flush=True)
    world.close()
""",
    "all_reduce with error feedback": """
array = np.full(100_000, 7.0)
options = {"codec": pccl.Codec("int4", rotate=False), "tag": 1}
for _ in range(int(sys.argv[1])):
    world = pccl.LocalWorld(2)
    a, b = world.comms
    feedback = a.error_feedback(tag=1)
    world.run(lambda comm: comm.all_reduce(np.linspace(0, 1, 100_000), **options))
    residual = feedback.save()
    assert any(residual)
    say_when(lambda: a.info().operations_in_flight == 1)
    interrupted(lambda: a.all_reduce(array, **options))
    assert a.info().operations_in_flight == 0, "it was not withdrawn"
    assert sys.getrefcount(array) == 2, "its buffer was not released"
    assert (array == 7.0).all()
    assert feedback.save() == residual, "nothing was reduced, and the residual has changed"
    b.all_reduce(np.ones(100_000), **options)
    print("went on", flush=True)
    world.close()
""",
    "wait": """
world = pccl.LocalWorld(2)
a, b = world.comms
arrays = [np.ones(10), np.ones(10)]
work = a.all_reduce(arrays[0], async_op=True)
for _ in range(int(sys.argv[1])):
    say_when(lambda: inside("_wait"))
    interrupted(work.wait)
    assert not work.done(), "Ctrl-C in wait must not withdraw"
    print("going on", flush=True)
b.all_reduce(arrays[1])
work.wait()
""",
    "LocalWorld.run": """
for _ in range(int(sys.argv[1])):
    world = pccl.LocalWorld(2)
    busy = lambda: sum(comm.info().operations_in_flight for comm in world.comms) == 2
    say_when(busy)
    interrupted(lambda: world.run(lambda comm: comm.all_reduce(np.ones(9), tag=comm.rank)))
    assert all(comm.closed for comm in world.comms)
    print("closed", flush=True)
    world.close()
""",
    "connect": """
coordinator = pccl.Coordinator()
join = lambda: pccl.connect(coordinator.token, bind=LOOPBACK, initial_world_size=2)
for _ in range(int(sys.argv[1])):
    say_when(lambda: pccl.run_status(coordinator.token)["peers"] == 1)
    interrupted(join)
    while pccl.run_status(coordinator.token)["peers"] != 0:
        continue
    print("gone", flush=True)
""",
    "unreachable": """
import socket
refusing = socket.socket()  # it does not listen
refusing.bind(("127.0.0.1", 0))
token = pccl.token_create(f"127.0.0.1:{refusing.getsockname()[1]}")
for _ in range(int(sys.argv[1])):
    say_when(lambda: inside("connect"))
    interrupted(lambda: pccl.connect(token, bind=LOOPBACK, connect_timeout=30))
    print("gone", flush=True)
""",
}


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_interrupts_within_a_fifth_of_a_second(start: Any, call: str) -> None:
    """And what was interrupted is withdrawn, or goes on, as the call promises."""
    program = start(BLOCKED + CALLS[call] + "\nprint('end', flush=True)", str(ATTEMPTS))
    seconds = []
    for _ in range(ATTEMPTS):
        program.expect("blocked")
        sent = time.monotonic()
        program.interrupt()
        word, _, when = program.line().partition(" ")
        assert word == "interrupted"
        seconds.append(float(when) - sent)
        program.line()
    program.expect("end")
    assert program.end() == 0, program.errors
    assert min(seconds) < INTERRUPT_SECONDS_MAX, seconds


def test_a_signal_handler_that_does_not_raise_lets_the_operation_go_on(start: Any) -> None:
    program = start(
        BLOCKED
        + """
import signal
world = pccl.LocalWorld(2)
a, b = world.comms
arrays = [np.ones(10), np.ones(10)]
def handle(number, frame):
    threading.Thread(target=lambda: b.all_reduce(arrays[1])).start()
    print("handled", flush=True)
signal.signal(signal.SIGUSR1, handle)
say_when(lambda: a.info().operations_in_flight == 1)
a.all_reduce(arrays[0])
assert arrays[0][0] == 2
print("end", flush=True)
"""
    )
    program.expect("blocked")
    program.interrupt(signal.SIGUSR1)
    program.expect("handled")
    program.expect("end")
    assert program.end() == 0, program.errors


def test_a_forked_child_is_refused_and_may_connect_itself(start: Any) -> None:
    """The parent's operation goes on undisturbed, and neither process hangs at its end."""
    program = start(
        BLOCKED
        + """
import gc, os, weakref
world = pccl.LocalWorld(2)
a, b = world.comms
arrays = [np.ones(10), np.ones(10)]
work = a.all_reduce(arrays[0], async_op=True)
group = threading.Thread(target=lambda: None)
child = os.fork()
if child == 0:
    for call in (a.admit, a.info, a.barrier, lambda: a.all_reduce(np.ones(1)), lambda: a.members,
                 lambda: a.group("other")):
        try:
            call()
        except pccl.InvalidUsage as error:
            assert "fork" in str(error), error
        else:
            print("a forked handle was used", flush=True)
    for handle in (work.wait, work.cancel, work._native.poll, a._native.info, a._native.members):
        try:
            answer = handle()
        except pccl.InvalidUsage as error:
            assert "fork" in str(error), error
        else:
            assert answer == [], answer
    assert (a.rank, a.world_size, a.epoch) == (0, 2, 1)  # what was known last
    assert "of the parent process, rank 0 of 2 in epoch 1" in repr(a)
    a.close()
    token = world.coordinator.token
    coordinator = weakref.ref(world.coordinator)
    del work, a, b, handle, call
    world.close()
    del world
    gc.collect()
    assert coordinator() is None  # it runs in the parent, whoever holds it there
    with pccl.connect(token, group="child", bind=LOOPBACK, initial_world_size=1) as own:
        own.admit()
        array = np.full(3, 2.0)
        own.all_reduce(array)
        print(f"child {own.world_size} {array[0]}", flush=True)
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)
b.all_reduce(arrays[1])
work.wait()
assert arrays[0][0] == 2
world.run(lambda comm: comm.barrier())
print("end", flush=True)
""",
        # Since 3.12 Python warns of any fork with threads; that this one is safe is what we test.
        PYTHONWARNINGS="ignore::DeprecationWarning",
    )
    program.expect("child 1 2.0")
    program.expect("ended 7")
    program.expect("end")
    assert program.end() == 0, program.errors
    assert program.errors == ""


ENDINGS = {
    "work in flight": """
world = pccl.LocalWorld(2)
work = world.comms[0].all_reduce(np.ones(100_000), async_op=True)
""",
    "work in flight and a cycle": """
world = pccl.LocalWorld(2)
work = world.comms[0].all_reduce(np.ones(100_000), async_op=True)
class Cycle: pass
cycle = Cycle(); cycle.itself = cycle; cycle.work = work; cycle.world = world
del work, world
""",
    "a daemon thread in wait": """
world = pccl.LocalWorld(2)
begun = threading.Event()
def wait():
    work = world.comms[0].all_reduce(np.ones(10), async_op=True)
    begun.set()
    work.wait()
threading.excepthook = lambda arguments: None
threading.Thread(target=wait, daemon=True).start()
begun.wait()
""",
    "a daemon thread in connect": """
coordinator = pccl.Coordinator()
def join():
    pccl.connect(coordinator.token, bind=LOOPBACK, initial_world_size=2)
threading.excepthook = lambda arguments: None
threading.Thread(target=join, daemon=True).start()
while pccl.run_status(coordinator.token)["peers"] != 1:
    continue
""",
    "a peer whose coordinator is gone": """
coordinator = pccl.Coordinator()
comm = pccl.connect(coordinator.token, bind=LOOPBACK)
comm.admit()
coordinator.close()
""",
    "a coordinator that nothing refers to": """
import gc
token = pccl.Coordinator().token
gc.collect()
comm = pccl.connect(token, bind=LOOPBACK, connect_timeout=10)
comm.admit()
comm.all_reduce(np.ones(3))
""",
    "an exception": """
world = pccl.LocalWorld(2)
work = world.comms[0].all_reduce(np.ones(10), async_op=True)
print("last words", flush=True)
sys.exit("failed")
""",
    "closing at exit by the program itself": """
import atexit
world = pccl.LocalWorld(2)
work = world.comms[0].all_reduce(np.ones(10), async_op=True)
atexit.register(world.close)
""",
    "nothing but the import": "",
}

EXIT_SECONDS_MAX = 8.0


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_whatever_is_open(start: Any, ending: str) -> None:
    """In time, silently, and with the status of the program."""
    words = "" if ending == "an exception" else "print('last words', flush=True)\n"
    program = start(BLOCKED + ENDINGS[ending] + words)
    program.expect("last words")
    began = time.monotonic()
    code = program.end()
    assert code == (1 if ending == "an exception" else 0), program.errors
    assert program.errors == ("failed\n" if ending == "an exception" else "")
    assert time.monotonic() - began < EXIT_SECONDS_MAX


def test_threads_that_call_on_and_on_do_not_crash_the_exit(start: Any) -> None:
    """They wait for the interpreter's lock inside the library at any moment of its end.

    Several programs at once, because how they meet that moment is chance, and helped by a machine
    that is busy.
    """
    source = """
world = pccl.LocalWorld(3)
begun = threading.Semaphore(0)
def call(comm, tag):
    array = np.ones(1000, np.float32)
    begun.release()
    while True:
        try:
            comm.all_reduce(array, tag=tag)
        except pccl.PcclError:
            pass
threads = [(comm, tag) for tag in range(8) for comm in world.comms[: 2 + (tag < 4)]]
for arguments in threads:
    threading.Thread(target=call, args=arguments, daemon=True).start()
for _ in threads:
    begun.acquire()
"""
    programs = [start(BLOCKED + source) for _ in range(8)]
    for program in programs:
        assert program.end() == 0, program.errors


def test_an_error_that_is_being_made_goes_back_into_the_library_while_the_interpreter_exits(
    start: Any,
) -> None:
    """As when making it collects garbage, a work among it: the exit must not wait for ever."""
    source = """
from pccl_py import _pccl, errors
making, exiting = threading.Event(), threading.Event()
def make(status, message):
    making.set()
    exiting.wait()
    for _ in range(50):
        _pccl.completions_wait(10_000_000)
    return errors.make(status, message)
_pccl.set_error_factory(make)
threading.Thread(target=lambda: pccl.connect("no token"), daemon=True).start()
making.wait()
exiting.set()
_pccl.exit_finish(0)
"""
    program = start(BLOCKED + source)
    assert program.end() == 0, program.errors


def test_a_peer_that_ends_without_closing_does_not_stop_the_others(
    start: Any, coordinator: pccl.Coordinator
) -> None:
    """Goal: exit leaves gracefully. The other one's operation finishes alone."""
    source = (
        BLOCKED
        + """
comm = pccl.connect(bind=LOOPBACK, initial_world_size=2)
comm.admit()
print(comm.peer_id, flush=True)
"""
    )
    stayer = start(
        source + "array = np.ones(3)\noutcome = comm.all_reduce(array)\n"
        "print(array[0], *outcome.contributors, flush=True)",
        PCCL_TOKEN=coordinator.token,
    )
    leaver = start(source, PCCL_TOKEN=coordinator.token)
    stays, leaves = stayer.line(), leaver.line()
    assert leaver.end() == 0, leaver.errors
    assert stayer.line() == f"1.0 {stays}"
    assert stayer.end() == 0, stayer.errors
    assert stays != leaves


TERMINATED = {
    "all_reduce": ("comm.all_reduce(array)", "in_flight"),
    "wait": ("comm.all_reduce(array, async_op=True).wait()", "in_flight"),
    "sync": ("comm.shared_state({'x': array}).sync()", "in_flight"),
    "elsewhere": ("threading.Event().wait()", "True"),
}


def test_ctrl_c_in_an_all_reduce_ends_one_peer_and_the_others_go_on(
    start: Any, coordinator: pccl.Coordinator
) -> None:
    """The loop of the README: its `with` block unwinds by itself."""
    source = """
with pccl.connect(bind=LOOPBACK, initial_world_size=3) as comm:
    comm.admit()
    say_when(lambda: comm.info().operations_in_flight == 1)
    outcome = comm.all_reduce(np.ones(100_000))
    print(len(outcome.contributors), len(comm.admit().left), flush=True)
"""
    leaver, stayer = (start(BLOCKED + source, PCCL_TOKEN=coordinator.token) for _ in range(2))
    with pccl.connect(coordinator.token, bind="127.0.0.1:0", initial_world_size=3) as comm:
        comm.admit()
        for program in (leaver, stayer):
            program.expect("blocked")
        leaver.interrupt()
        assert leaver.end() == -signal.SIGINT
        assert "KeyboardInterrupt" in leaver.errors
        array = np.ones(100_000)
        outcome = comm.all_reduce(array)
        assert (array == 2.0).all() and len(outcome.contributors) == 2
        assert len(comm.admit().left) == 1
        stayer.expect("2 1")
        assert stayer.end() == 0, stayer.errors


@pytest.mark.parametrize("call", TERMINATED)
def test_sigterm_leaves_and_the_others_finish_what_is_in_flight(
    start: Any, coordinator: pccl.Coordinator, call: str
) -> None:
    what, begun = TERMINATED[call]
    other = TERMINATED["all_reduce"][0] if call == "elsewhere" else what
    begin = """
comm = pccl.connect(bind=LOOPBACK, initial_world_size=3)
comm.admit()
array = np.ones(100_000)
"""
    source = begin + "say_when(lambda: {})\n"
    in_flight = "comm.info().operations_in_flight == 1"
    begun = in_flight if begun == "in_flight" else begun
    leaver = start(
        BLOCKED + "pccl.exit_on_sigterm()" + source.format(begun) + what,
        PCCL_TOKEN=coordinator.token,
    )
    stayer = start(
        BLOCKED + source.format(in_flight) + other + "; print(len(comm.admit().left))",
        PCCL_TOKEN=coordinator.token,
    )
    loopback = "127.0.0.1:0"
    with pccl.connect(coordinator.token, bind=loopback, initial_world_size=3) as comm:
        comm.admit()
        leaver.expect("blocked")
        stayer.expect("blocked")
        leaver.interrupt(signal.SIGTERM)
        assert leaver.end() == 128 + signal.SIGTERM, leaver.errors
        assert leaver.errors == ""
        array = np.ones(100_000)
        if call == "sync":
            with comm.shared_state({"x": array}) as state:
                assert state.sync().revision == 1
        else:
            outcome = comm.all_reduce(array)
            assert (array == 2.0).all() and len(outcome.contributors) == 2
        assert len(comm.admit().left) == 1
        stayer.expect("1")
        assert stayer.end() == 0, stayer.errors


NEXT_CALLS = {
    "a call": "comm.barrier()",
    "a work": "work.wait()",
    "connect": "pccl.connect(bind=LOOPBACK)",
}


@pytest.mark.parametrize("call", NEXT_CALLS)
def test_a_sigterm_that_python_has_dropped_ends_the_next_call(
    start: Any, coordinator: pccl.Coordinator, call: str
) -> None:
    program = start(
        BLOCKED
        + f"""
import signal

class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

pccl.exit_on_sigterm()
comm = pccl.connect(bind=LOOPBACK, initial_world_size=2)
comm.admit()
work = comm.barrier(async_op=True)
Dropped()
print("dropped", comm.closed, flush=True)
try:
    {NEXT_CALLS[call]}
except pccl.PcclError as error:
    print(repr(error), flush=True)
""",
        PCCL_TOKEN=coordinator.token,
    )
    with pccl.connect(coordinator.token, bind="127.0.0.1:0", initial_world_size=2) as other:
        other.admit()
        program.expect("dropped True")
    assert program.end() == 128 + signal.SIGTERM, program.errors
    assert "Exception ignored in" in program.errors


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_closed_world_leaves_no_threads_and_no_descriptors() -> None:
    def open_now() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    with pccl.LocalWorld(3) as world:  # the watcher starts here, once
        world.run(lambda comm: comm.barrier())
    before = open_now()
    for _ in range(3):
        with pccl.LocalWorld(3) as world:
            world.run(lambda comm: comm.barrier())
        del world
    # The kernel may list a thread for a moment after it was joined.
    until = time.monotonic() + 20
    while any(now > then for now, then in zip(open_now(), before, strict=True)):
        assert time.monotonic() < until, f"{open_now()} after {before}"
