"""Runs the fuzz targets guided by coverage, for so many seconds: `make fuzz`.

`zig build fuzz --fuzz=N` ends after N runs of each target, without a web server, and keeps what it
has found interesting in .zig-cache/f, so rounds of it add up. Here is what it lacks: an end by
time, a line of progress for each round, and where the input is that failed. Such an input is kept
by adding it to the file of its target in tests/fuzz/corpus.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CRASH = ROOT / ".zig-cache" / "f" / "crash"
# Runs of each target; a round of all takes some seconds.
RUNS = "20K"
# The longest that a round may take; the first compiles everything twice, once with counters in it.
FIRST_SECONDS_MAX, ROUND_SECONDS_MAX = 3600.0, 900.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    command = [sys.executable, "-m", "ziglang", "build", "fuzz", f"--fuzz={RUNS}"]
    print("guided fuzzing: the first round compiles", flush=True)
    CRASH.unlink(missing_ok=True)
    end, rounds = None, 0
    while end is None or time.monotonic() < end:
        status, said = one_round(command, FIRST_SECONDS_MAX if end is None else ROUND_SECONDS_MAX)
        if status != 0 or CRASH.exists():
            print(said)
            return explain()
        if end is None:  # what was compiled does not count
            end = time.monotonic() + options.seconds
        rounds += 1
        print(f"round {rounds}: {summary(said)}", flush=True)
    return 0


def one_round(command: list[str], seconds_max: float) -> tuple[int, str]:
    """How it ended, and what it said. One that takes too long ends with all that it started."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            return 1, f"{said}\na round took more than {seconds_max:.0f} s"
    return process.returncode, said


def summary(report: str) -> str:
    """Zig's report of how far it has come."""
    found = {
        name: re.findall(rf"^{name}: \S+ -> (.*)$", report, re.MULTILINE)
        for name in ("Runs", "Unique runs", "Coverage")
    }
    return ", ".join(f"{name.lower()} {values[-1]}" for name, values in found.items() if values)


def explain() -> int:
    if CRASH.exists():
        kept = ROOT / "fuzz_crash"
        shutil.copy(CRASH, kept)
        print(f"a target failed, named above; its input is {kept}")
        print("keep it: cat fuzz_crash >> tests/fuzz/corpus/TARGET; then `zig build fuzz` runs it")
        print("every time")
    return 1


if __name__ == "__main__":
    sys.exit(main())
