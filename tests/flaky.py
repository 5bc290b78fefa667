"""Finds Python tests that fail now and then: `make flaky`.

Each round runs the tests, also those marked `long`, in a random order, beside a busy loop on each
core, as a slow or crowded machine would. A test that fails in one round of ten is a defect, of the
test or of the library. The output of each round is in build/flaky. `--seed` repeats the order of a
round; the machine's times do not repeat.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "flaky"
# It ends with the process that started it, also if that is killed.
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="busy loops")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, help="of the first round; each later one adds 1")
    parser.add_argument("only", nargs="*", help="files or tests; default: all, long ones too")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    failed: dict[str, list[int]] = {}
    with busy(options.load):
        for number in range(options.rounds):
            began = time.monotonic()
            passed, names = one_round(seed + number, options.workers, options.only)
            for name in names:
                failed.setdefault(name, []).append(seed + number)
            print(
                f"round {number + 1} of {options.rounds}, seed {seed + number}: {passed} passed, "
                f"{len(names)} failed in {time.monotonic() - began:.0f} s",
                *names,
                sep="\n  ",
                flush=True,
            )
    print(f"\n{len(failed)} tests failed at least once")
    for name, seeds in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"  {len(seeds)} of {options.rounds}: {name} (seeds {', '.join(map(str, seeds))})")
    return 1 if failed else 0


@contextmanager
def busy(loops: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


def one_round(seed: int, workers: int, only: list[str]) -> tuple[int, list[str]]:
    """The number of tests that passed, and the names of those that failed."""
    report = OUTPUT / f"{seed}.xml"
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "loadgroup"),
        *("--shuffle", str(seed), f"--junitxml={report}", *only),
    ]
    with (OUTPUT / f"{seed}.txt").open("w") as log:
        status = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False).returncode
    if status not in (0, 1) or not report.exists():
        sys.exit(f"pytest ended with status {status}: {log.name}")
    cases = list(ElementTree.parse(report).iter("testcase"))
    names = sorted(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - len(names) - skipped, names


if __name__ == "__main__":
    sys.exit(main())
