"""The program that holds mutations against the tests (tests/mutants/run.py) notices every failure.

The programs that it drives are played by one small script, in which the name of a mutation says
what it does.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "mutants" / "run.py"

PLAYED = """
import json, os, sys
program, words = os.path.basename(sys.argv[0]), sys.argv[1:]
names = ["fails_a_transcript", "ends_the_process", "fails_a_unit_test", "fails_a_seed", "survives"]
if words == ["mutants"]:
    for name in names:
        row = dict(name=name, rule="a rule", file="f.zig", line=1, transcripts=[], units=[])
        row |= dict(checker=None, restarts=False, panics=False)
        if name == "fails_a_transcript":
            row["transcripts"] = ["second", os.environ.get("ALSO", "second")]
        print(json.dumps(row))
    sys.exit(0)
name = next((word for word in words if word in names), "none")
if "--seeds" in words:
    start = int(words[words.index("--start") + 1])
    if name == "fails_a_seed":
        print(f"\\nseed {start + 6} FAILS: p1_agreement: they differ", file=sys.stderr)
    sys.exit(name == "fails_a_seed")
if "scenario" in words:
    sys.exit(0)
first = int(words[-1])
for index, at in list(enumerate(["first", "second", "third"]))[first:]:
    print(f"at {index} {at}", file=sys.stderr, flush=True)
    if program == "pccl-sim" and name == "ends_the_process" and at == "second":
        os.abort()
    fails = {("fails_a_transcript", "pccl-sim"), ("fails_a_unit_test", "test-session")}
    if at == "second" and (name, program) in fails:
        print("  fails: line 3", file=sys.stderr)
print("end", file=sys.stderr)
"""


def run(folder: Path, *options: str, survivors: str = "", also: str = "second") -> tuple[int, str]:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    layers = ("kernels", "plan", "protocol", "collective", "session", "net", "abi")
    for name in ("pccl-sim", *(f"test-{layer}" for layer in layers)):
        (programs / name).write_text(f"#!{sys.executable}\n{PLAYED}")
        (programs / name).chmod(0o755)
    (folder / "survivors.txt").write_text(survivors)
    command = [sys.executable, RUN, "--bin", programs, "--start", "40", "--workers", "2"]
    command += ["--out", folder / "results.jsonl", "--survivors", folder / "survivors.txt"]
    done = subprocess.run(
        [*map(str, command), *options],
        capture_output=True,
        text=True,
        env={"ALSO": also},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_way_to_fail_is_told_and_a_survivor_with_a_reason_is_none(tmp_path: Path) -> None:
    code, said = run(tmp_path, survivors="survives: it changes nothing\n  that anybody can see\n")
    assert code == 0, said
    assert "fails_a_transcript: transcripts second\n" in said
    assert "ends_the_process: transcripts second\n" in said
    assert "fails_a_unit_test: unit tests (session: second)\n" in said
    assert "fails_a_seed: seeds after 7 (p1_agreement)\n" in said
    assert "any of them: 4 of 5 (80 %)" in said
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {result["name"]: result["seeds"] for result in results}["fails_a_seed"] == 7


def test_what_is_not_as_the_lists_say_is_an_error(tmp_path: Path) -> None:
    survivors = "fails_a_seed: a reason\ngone: a reason\n"
    code, said = run(tmp_path, survivors=survivors, also="third")
    assert code == 1
    assert sorted(re.findall(r"^WRONG: (.*)$", said, re.MULTILINE)) == [
        "fails_a_seed is caught: survivors.txt says that nothing sees it",
        "fails_a_transcript is not seen by its transcript third",
        "survives survives: a rule (f.zig)",
        "survivors.txt: there is no mutation gone",
    ]


def test_a_run_goes_on_where_one_before_it_ended(tmp_path: Path) -> None:
    listed = "survives: a reason\n"
    run(tmp_path, "--only", "fails_a_seed,survives", survivors=listed)
    code, said = run(tmp_path, "--resume", survivors=listed)
    assert code == 0, said
    assert said.startswith("3 mutations, ")
    assert "any of them: 4 of 5 (80 %)" in said


def test_no_mutation_is_listed_twice() -> None:
    """Two entries may say the rule in other words, and break it by the same edits."""
    names: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(RUN.parent.glob("*.txt")):
        for entry in re.split(r"^mutant ", path.read_text("utf-8"), flags=re.MULTILINE)[1:]:
            name, *lines = entry.splitlines()
            edits = [re.sub(r"\s", "", line) for line in lines if re.match("in |after |[-+]", line)]
            names.setdefault(tuple(edits), []).append(name)
    assert len(names) > 400
    assert [same for same in names.values() if len(same) > 1] == []
