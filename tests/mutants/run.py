"""Holds every mutation of tests/mutants against transcripts, unit tests and fresh seeds.

Each one is switched on in processes of its own, so that a panic, a tripped assertion or a hang is
a way to be caught like any other. The results go to a file of JSON lines, a table to the
output. It fails if a mutation survives that survivors.txt does not list with its reason, if
a listed one is caught, or if the catcher that a list names does not see its mutation. It runs `zig
build mutants`. How to read and write the lists: docs/internals/MUTANTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent
LAYERS = ("plan", "protocol", "session", "collective")
# Folders of the layers that the simulator has not, or has without their mutations: only the unit
# tests of such a layer can see what is wrong in it, so its mutations are held against them alone.
ALONE = {"net": "engine/net/", "abi": "engine/abi/", "kernels": "kernels/"}
# A process that needs more has lost its bounds.
MEMORY_BYTES_MAX = 8 << 30
# After a transcript or test that ends its process, the ones behind it run in another. After so
# many, only those that the list names are looked at.
ENDS_MAX = 4
CONTROL_SEEDS = 200
# A run that takes so many times its time without a mutation hangs.
HANG = 5
# A transcript or test that is begun, and then fails before the next one is.
FAILED = r"^at \d+ (.*)\n(?:(?!at \d|end$).*\n)*?  fails: "


class Mutant(TypedDict):
    """A list's entry for a mutation (mutant.zig)."""

    name: str
    rule: str
    file: str
    line: int
    transcripts: list[str]
    units: list[str]
    checker: str | None
    restarts: bool
    panics: bool


@dataclass
class Result:
    """The fate of one mutation."""

    name: str
    file: str
    rule: str
    start: int
    transcripts: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    # Seeds until one failed; None: none did.
    seeds: int | None = None
    seed_check: str = ""
    # Named catchers that did not see it.
    blind: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        return bool(self.transcripts or self.units or self.seeds is not None)


@dataclass
class Ended:
    """How a process ended, and what it said."""

    code: int | None  # None: it was still running when its time was over, and hangs
    text: str


class Bench:
    """The programs, and how long they may take."""

    def __init__(self, folder: Path, seeds: int, start: int, quick: bool) -> None:
        self.folder = folder.resolve()
        self.seeds = seeds
        self.start = start
        self.quick = quick
        # Found by the control run: a hang is what takes far more. Nothing here ever waits, so
        # these are seconds of CPU, which other work on the machine does not use up.
        self.seconds_max = 300
        self.seconds_per_seed = 1.0
        # Tests of these layers wait for sockets and threads: one that hangs uses no CPU.
        self.alone_seconds_max = dict.fromkeys(ALONE, 300)

    def run(self, program: str, *arguments: str, seconds_max: int | None = None) -> Ended:
        limit = seconds_max or self.seconds_max
        with subprocess.Popen(
            [str(self.folder / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=lambda: limit_process(limit),
        ) as process:
            try:
                # Elsewhere one that uses no CPU would never end; none has been seen that does.
                wait_s = self.alone_seconds_max.get(program.removeprefix("test-"), 600 + 50 * limit)
                text, _ = process.communicate(timeout=wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                text, _ = process.communicate()
                return Ended(None, text)
        return Ended(None if process.returncode == -signal.SIGXCPU else process.returncode, text)

    def walk(self, program: str, arguments: list[str], first: str) -> list[str]:
        """Names of all transcripts or tests that fail, end the process, or hang."""
        caught: list[str] = []
        index, ends = 0, 0
        while True:
            ended = self.run(program, *arguments, first, str(index))
            names = re.findall(r"^at (\d+) (.*)$", ended.text, re.MULTILINE)
            caught += re.findall(FAILED, ended.text, re.MULTILINE)
            if re.search(r"^end$", ended.text, re.MULTILINE):
                return caught
            if not names:
                return [*caught, "the start of the process"]
            last, name = names[-1]
            caught.append(name)
            index, ends = int(last) + 1, ends + 1
            if ends == ENDS_MAX or (self.quick and caught):
                return caught

    def transcripts(self, mutant: Mutant | None) -> list[str]:
        return self.walk("pccl-sim", named(mutant, "--mutant"), "transcripts")

    def units(self, mutant: Mutant | None, layer: str) -> list[str]:
        found = self.walk(f"test-{layer}", named(mutant), "--from")
        return [f"{layer}: {name.split('.test.', 1)[-1]}" for name in found]

    def has_seen(self, mutant: Mutant, transcript: str) -> bool:
        ended = self.run("pccl-sim", "--mutant", mutant["name"], "scenario", transcript)
        if ended.code == 2:
            sys.exit(f"{mutant['name']}: {ended.text}")  # there is no such transcript
        return ended.code != 0

    def run_seeds(self, mutant: Mutant | None, count: int) -> tuple[int | None, str]:
        """After how many seeds one failed, and what saw it."""
        arguments = [*named(mutant, "--mutant"), "--workers", "1", "--failures", "1"]
        # Few seeds lose the coordinator; the others are drawn and left out.
        if mutant and mutant["restarts"]:
            arguments.append("--restarts")
            count *= 10
        arguments += ["--start", str(self.start), "--seeds", str(count)]
        seconds_max = int(20 + HANG * count * self.seconds_per_seed)
        ended = self.run("pccl-sim", *arguments, seconds_max=seconds_max)
        if ended.code == 0:
            return None, ""
        failed = re.search(r"^seed (\d+) FAILS: (\w+)", ended.text, re.MULTILINE)
        if failed:
            return int(failed[1]) - self.start + 1, failed[2]
        return count, "hang" if ended.code is None else "panic"

    def control(self) -> list[str]:
        """The failures without any mutation; sets the bounds of time."""
        began = cpu_of_children()
        failed = self.transcripts(None)
        for layer in LAYERS:
            failed += self.units(None, layer)
        self.seconds_max = int(10 + HANG * (cpu_of_children() - began))
        for layer in ALONE:
            began = time.monotonic()
            failed += self.units(None, layer)
            self.alone_seconds_max[layer] = int(30 + HANG * (time.monotonic() - began))
        began = cpu_of_children()
        seeds, check = self.run_seeds(None, CONTROL_SEEDS)
        self.seconds_per_seed = (cpu_of_children() - began) / CONTROL_SEEDS
        if seeds is not None:
            failed.append(f"seed {self.start + seeds - 1}: {check}")
        return failed

    def examine(self, mutant: Mutant) -> Result:
        began = time.monotonic()
        result = Result(mutant["name"], mutant["file"], mutant["rule"], self.start)
        alone = [layer for layer, folder in ALONE.items() if mutant["file"].startswith(folder)]
        if not alone:
            result.transcripts = self.transcripts(mutant)
        for name in mutant["transcripts"]:
            if name in result.transcripts:
                continue
            if self.has_seen(mutant, name):
                result.transcripts.append(name)
            else:
                result.blind.append(f"transcript {name}")
        if not (self.quick and result.caught and not mutant["units"]):
            for layer in alone or LAYERS:
                result.units += self.units(mutant, layer)
            seen = {unit.split(": ", 1)[-1] for unit in result.units}
            result.blind += [f"unit {name}" for name in mutant["units"] if name not in seen]
        if not alone and not (self.quick and result.caught):
            result.seeds, result.seed_check = self.run_seeds(mutant, self.seeds)
        result.seconds = round(time.monotonic() - began, 1)
        return result


def named(mutant: Mutant | None, *before: str) -> list[str]:
    return [*before, mutant["name"]] if mutant else []


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def limit_process(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read_survivors(path: Path) -> dict[str, str]:
    """Names with their reasons: `name: reason`, which may go on in lines that are indented."""
    reasons: dict[str, str] = {}
    name = ""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" ") and name:
            reasons[name] += " " + line.strip()
            continue
        name, colon, reason = line.partition(":")
        if not colon or not reason.strip():
            sys.exit(f"{path}:{number}: a survivor needs a name and a reason")
        reasons[name] = reason.strip()
    return reasons


def line_of(result: Result) -> str:
    """One mutation in the table."""
    by: list[str] = []
    if result.transcripts:
        more = f" and {len(result.transcripts) - 2} more" if len(result.transcripts) > 2 else ""
        by.append(f"transcripts {', '.join(result.transcripts[:2])}{more}")
    if result.units:
        more = f" and {len(result.units) - 1} more" if len(result.units) > 1 else ""
        by.append(f"unit tests ({result.units[0]}{more})")
    if result.seeds is not None:
        by.append(f"seeds after {result.seeds} ({result.seed_check})")
    return f"{result.name}: {'; '.join(by) or 'SURVIVES'}"


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / max(1, whole):.0f} %)"


def judge(results: list[Result], survivors: dict[str, str], known: set[str]) -> bool:
    """Prints the summary. True if everything is as the lists say."""
    whole = len(results)
    caught = {
        "transcripts": sum(bool(r.transcripts) for r in results),
        "unit tests": sum(bool(r.units) for r in results),
        "seeds": sum(r.seeds is not None for r in results),
        "any of them": sum(r.caught for r in results),
    }
    print("\ncaught by")
    for what, count in caught.items():
        print(f"  {what}: {share(count, whole)}")
    wrong: list[str] = []
    for result in results:
        if not result.caught and result.name not in survivors:
            wrong.append(f"{result.name} survives: {result.rule} ({result.file})")
        if result.caught and result.name in survivors:
            wrong.append(f"{result.name} is caught: survivors.txt says that nothing sees it")
        wrong += [f"{result.name} is not seen by its {blind}" for blind in result.blind]
    wrong += [f"survivors.txt: there is no mutation {n}" for n in survivors if n not in known]
    listed = [r.name for r in results if not r.caught and r.name in survivors]
    if listed:
        print(f"survivors with a reason: {', '.join(listed)}")
    for line in wrong:
        print(f"WRONG: {line}")
    return not wrong


def read_results(path: Path) -> list[Result]:
    if not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=Path("zig-out/mutants"), help="the programs")
    parser.add_argument("--seeds", type=int, default=2000, help="until caught, so many at most")
    parser.add_argument("--start", type=int, help="the first seed (default: drawn, and printed)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="names, with commas between them")
    parser.add_argument("--quick", action="store_true", help="stop at what catches it first")
    parser.add_argument("--out", type=Path, default=Path("mutants_out/results.jsonl"))
    parser.add_argument("--resume", action="store_true", help="leave out what --out has already")
    parser.add_argument("--survivors", type=Path, default=HERE / "survivors.txt")
    return parser.parse_args()


def main() -> int:
    args = arguments_of()
    start = args.start if args.start is not None else random.SystemRandom().randrange(1 << 40)
    bench = Bench(args.bin, args.seeds, start, args.quick)
    listed = bench.run("pccl-sim", "mutants")
    if listed.code != 0:
        sys.exit(f"{args.bin}/pccl-sim: {listed.text}")
    mutants: list[Mutant] = [json.loads(line) for line in listed.text.splitlines()]
    known = {mutant["name"] for mutant in mutants}
    results = read_results(args.out) if args.resume else []
    done = {result.name for result in results}
    wanted = [m for m in mutants if m["name"] not in done]
    if args.only:
        names = args.only.split(",")
        if unknown := set(names) - known:
            sys.exit(f"there is no mutation {', '.join(sorted(unknown))}")
        wanted = [mutant for mutant in mutants if mutant["name"] in names]
        results = [result for result in results if result.name not in names]
    print(f"{len(wanted)} mutations, {args.seeds} seeds from {start} on (--start {start})")
    if failed := bench.control():
        sys.exit("fails without any mutation: " + ", ".join(failed))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        args.out.open("a" if args.resume else "w", encoding="utf-8") as out,
        ThreadPoolExecutor(args.workers) as pool,
    ):
        for future in as_completed([pool.submit(bench.examine, mutant) for mutant in wanted]):
            result = future.result()
            results.append(result)
            out.write(json.dumps(asdict(result)) + "\n")
            out.flush()
            print(line_of(result), flush=True)
    order = {mutant["name"]: index for index, mutant in enumerate(mutants)}
    results = sorted((r for r in results if r.name in known), key=lambda r: order[r.name])
    return 0 if judge(results, read_survivors(args.survivors), known) else 1


if __name__ == "__main__":
    sys.exit(main())
