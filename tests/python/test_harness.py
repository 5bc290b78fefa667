"""The class that starts all other processes: what it hears, and how it freezes, kills and reaps.

Each test waits for what the child says or does.
"""

from __future__ import annotations

import os
import queue
import signal
import sys

import pytest

from harness.child import Child

SECONDS_MAX = 60.0
ECHO = "import sys\nfor line in sys.stdin: print('heard', line, end='', flush=True)\n"


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_it_is_fed_and_heard_until_its_input_ends() -> None:
    lines: queue.Queue[str] = queue.Queue()
    codes: queue.Queue[int] = queue.Queue()
    with Child(python(ECHO), heard=lines.put, ended=codes.put) as child:
        for word in ("one", "two"):
            child.say(word)
            assert lines.get(timeout=SECONDS_MAX) == f"heard {word}\n"
        assert child.running
        child.close_input()
        assert child.wait_until_heard(SECONDS_MAX) == 0 and not child.running
        assert codes.get_nowait() == 0 and lines.empty()
        assert not child.signal(signal.SIGKILL), "the id may be somebody else's"


def test_its_end_is_told_after_all_that_it_said() -> None:
    said: queue.Queue[str | int] = queue.Queue()
    source = "import sys\nsys.stderr.write('why')\nprint('x\\n' * 9999 + 'no end', end='')\nexit(3)"
    with Child(python(source), heard=said.put, ended=said.put) as child:
        assert child.wait_until_heard(SECONDS_MAX) == 3
        assert child.errors == "why"
        child.say("nobody reads this")
    assert [said.get_nowait() for _ in range(10_001)] == ["x\n"] * 9999 + ["no end", 3]


def test_a_frozen_child_is_seen_thaws_and_is_killed() -> None:
    lines: queue.Queue[str] = queue.Queue()
    stops: queue.Queue[bool] = queue.Queue()
    with Child(python(ECHO), heard=lines.put, frozen=lambda: stops.put(True)) as child:
        for _ in range(3):
            assert child.signal(signal.SIGSTOP)
            assert stops.get(timeout=SECONDS_MAX) and child.wait_until_frozen(SECONDS_MAX)
            assert child.running
            child.signal(signal.SIGCONT)
            assert not child.wait_until_frozen(0)
            child.say("again")
            assert lines.get(timeout=SECONDS_MAX) == "heard again\n"
        child.signal(signal.SIGSTOP)
        assert child.wait_until_frozen(SECONDS_MAX)
        child.end()
        assert child.code == -signal.SIGKILL and not child.wait_until_frozen(SECONDS_MAX)


def test_a_wait_has_a_limit_and_an_end_takes_what_was_started_along() -> None:
    lines: queue.Queue[str] = queue.Queue()
    source = "from subprocess import *\nprint(Popen(['cat'], stdin=PIPE).pid, flush=True)\ninput()"
    with Child(python(source), heard=lines.put) as child:
        grandchild = int(lines.get(timeout=SECONDS_MAX))
        with pytest.raises(TimeoutError, match="has not ended within 0"):
            child.wait(0)
        with pytest.raises(TimeoutError):
            child.wait_until_heard(0)
        assert os.getpgid(grandchild) == child.pid
        child.end(group=True)  # returns when nobody has its output any more
