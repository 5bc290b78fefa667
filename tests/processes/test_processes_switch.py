"""The switch of network namespaces is itself measured: what it cuts is cut, and nothing else is.

Plain sockets of this process, each made inside the namespace that it is to be in. Nothing may stay
behind on the machine, however a run ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from namespaces import Place, Refused, Switch, names_there

SECONDS_MAX = 20.0
QUIET_SECONDS = 0.15  # in which nothing may arrive
NAMES = ("a", "b", "c")


@pytest.fixture
def switch() -> Iterator[Switch]:
    namespaces.require()
    with Switch(NAMES) as made:
        yield made


class Ends:
    """One socket in each namespace, for datagrams, and one TCP connection from a to b."""

    def __init__(self, switch: Switch, stack: contextlib.ExitStack) -> None:
        self.switch = switch
        self._stack = stack
        self.datagrams = {name: self.make(name, socket.SOCK_DGRAM) for name in NAMES}
        self.listener = self.make("b", socket.SOCK_STREAM)
        self.listener.listen()
        self.one = self.make("a", socket.SOCK_STREAM)
        self.one.connect(self.listener.getsockname())
        accepted, _ = self.listener.accept()
        self.other = stack.enter_context(accepted)
        self.other.settimeout(SECONDS_MAX)

    def make(self, name: str, kind: socket.SocketKind) -> socket.socket:
        made = self.switch.inside(name, lambda: socket.socket(socket.AF_INET, kind))
        self._stack.enter_context(made)
        made.settimeout(SECONDS_MAX)
        made.bind((self.switch.address(name), 0))
        return made

    def arrives(self, sender: str, receiver: str) -> bool:
        """Whether a packet does, which is nobody's but of this direction."""
        self.datagrams[sender].sendto(b"packet", self.datagrams[receiver].getsockname())
        return not is_quiet(self.datagrams[receiver])

    def check_open(self) -> None:
        """The connection has no error, and says no end."""
        for end in (self.one, self.other):
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            assert is_quiet(end)


@pytest.fixture
def ends(switch: Switch) -> Iterator[Ends]:
    with contextlib.ExitStack() as stack:
        yield Ends(switch, stack)


def is_quiet(end: socket.socket) -> bool:
    """Nothing arrives for a while."""
    end.settimeout(QUIET_SECONDS)
    try:
        return not end.recv(10)  # an end of the stream is news
    except TimeoutError:
        return True
    finally:
        end.settimeout(SECONDS_MAX)


PAIRS = [(one, other) for one in NAMES for other in NAMES if one != other]


def test_all_reach_each_other(ends: Ends) -> None:
    assert all(ends.arrives(*pair) for pair in PAIRS)
    ends.check_open()


def test_a_cut_is_one_of_one_direction_between_two(ends: Ends) -> None:
    ends.switch.cut("a", "b")
    assert {pair for pair in PAIRS if not ends.arrives(*pair)} == {("a", "b")}
    ends.one.sendall(b"late")
    ends.check_open()
    ends.switch.heal()
    assert ends.other.recv(4) == b"late", "the kernel has sent it again"
    assert all(ends.arrives(*pair) for pair in PAIRS)


def test_data_crosses_against_the_direction_of_a_cut(ends: Ends) -> None:
    ends.switch.cut("a", "b")
    ends.other.sendall(b"works")
    assert ends.one.recv(5) == b"works"
    ends.check_open()


def test_cuts_of_both_directions_leave_the_third_alone(ends: Ends) -> None:
    ends.switch.cut_both("a", "b")
    cut = {pair for pair in PAIRS if not ends.arrives(*pair)}
    assert cut == {("a", "b"), ("b", "a")}
    ends.check_open()


def test_faults_end_one_by_one(ends: Ends) -> None:
    ends.switch.cut("a", "b")
    ends.switch.cut("c", "b")
    ends.switch.mend("a", "b")
    assert ends.arrives("a", "b") and not ends.arrives("c", "b")
    ends.switch.isolate("a")
    ends.switch.isolate("b")
    ends.switch.reconnect("b")
    assert ends.arrives("b", "c") and not ends.arrives("a", "c")


def test_who_is_isolated_keeps_its_sockets_and_its_cable(ends: Ends) -> None:
    ends.switch.isolate("b")
    assert {pair for pair in PAIRS if not ends.arrives(*pair)} == {p for p in PAIRS if "b" in p}
    ends.one.sendall(b"there")
    ends.other.sendall(b"back")
    ends.check_open()
    assert links(ends.switch.prefix("b"))["eth0"] == "UP"
    with ends.make("a", socket.SOCK_STREAM) as dialing:
        dialing.settimeout(QUIET_SECONDS)
        with pytest.raises(TimeoutError):  # no answer, not even that there is nobody
            dialing.connect(ends.listener.getsockname())
    ends.switch.heal()
    assert ends.other.recv(5) == b"there"
    assert ends.one.recv(4) == b"back"
    assert all(ends.arrives(*pair) for pair in PAIRS)


def test_what_one_hears_is_counted(ends: Ends) -> None:
    before = {name: ends.switch.heard(name) for name in NAMES}
    ends.one.sendall(b"x" * 100_000)  # the kernels' buffers take it
    left = 100_000
    while left:
        left -= len(ends.other.recv(left))
    heard = {name: ends.switch.heard(name) - before[name] for name in NAMES}
    assert 100_000 < heard["b"] < 120_000, heard
    assert heard["c"] < 10_000, heard


def test_a_program_that_is_started_there_is_there_and_keeps_its_pid(switch: Switch) -> None:
    told = "import os, socket; socket.create_server(({!r}, 0)); print(os.getpid())"
    command = [sys.executable, "-c", told.format(switch.address("c"))]
    with subprocess.Popen(
        [*switch.prefix("c"), *command], stdout=subprocess.PIPE, text=True
    ) as process:
        output, _ = process.communicate(timeout=SECONDS_MAX)
    assert int(output) == process.pid


def links(prefix: list[str]) -> dict[str, str]:
    """The interfaces of a namespace, and their states."""
    output = subprocess.check_output([*prefix, "ip", "-json", "link", "show"], text=True)
    return {link["ifname"]: link["operstate"] for link in json.loads(output)}


def mine() -> set[str]:
    return {name for name in names_there() if f"-{os.getpid()}-" in name}


def test_the_machine_stays_as_it_is_and_nothing_stays_behind() -> None:
    namespaces.require()
    before, interfaces = mine(), links([])

    def fail() -> None:
        with Switch(NAMES):
            assert len(mine() - before) == len(NAMES) + 1
            assert links([]) == interfaces
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert mine() == before and links([]) == interfaces


def test_nothing_stays_behind_of_a_switch_that_could_not_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespaces.require()
    before = mine()
    monkeypatch.setattr(Place, "towards", lambda *_: "nonsense")
    with pytest.raises(Refused, match="nonsense"):
        Switch(NAMES)
    assert mine() == before


KILLED = """
import os, signal, namespaces
namespaces.Switch(["a", "b"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed_by_the_next_one(switch: Switch) -> None:
    living = mine()
    assert len(living) == len(NAMES) + 1
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(namespaces.__file__).parent)}
    process = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert process.returncode == -signal.SIGKILL
    there = names_there()
    left = {name for name, lives in there.items() if not lives}
    assert len(left) == 3 and living <= set(there) - left
    with Switch(NAMES):
        assert not left.intersection(names_there())
        assert living < mine(), "those of the living stay"


@pytest.mark.parametrize(
    ("lacking", "what", "advice"),
    [
        ((shutil, "which", lambda name: None), "`ip`", "install iproute2"),
        ((os, "geteuid", lambda: 1000), "root", "run pytest as root"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, lacking: tuple[object, str, object], what: str, advice: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(*lacking)
    said = namespaces.missing.__wrapped__()
    assert what in said and advice in said, said
