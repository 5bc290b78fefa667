"""All 285 tests of `DistributedTest._DistTestBase` of the wheel, on four ranks, beside gloo.

`make test-torch` runs them, PCCL_TORCH_ALL=1, in two to five minutes. Each test runs with gloo and
then with pccl, whose name is counted as gloo's wherever a test asks for it: own_checks.py.
suite.txt has those that do not end alike, each under its reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from world import CheckFailed, World

pytestmark = [
    pytest.mark.xdist_group("torch"),
    pytest.mark.skipif(not os.environ.get("PCCL_TORCH_ALL"), reason="make test-torch runs it"),
]

LISTED = Path(__file__).with_name("suite.txt")
RANKS = 4
# The longest of them takes 5 s, to wait for a deadline.
TEST_SECONDS_MAX = 40.0


def listed() -> dict[str, str]:
    """The names in the list, and the reason of each, which is the line without indent before it."""
    reasons: dict[str, str] = {}
    reason = ""
    for line in LISTED.read_text("utf-8").splitlines():
        if line.startswith("    "):
            assert reason and line.strip() not in reasons, line
            reasons[line.strip()] = reason
        elif line and not line.startswith("#"):
            reason = line
    return reasons


def ends(backend: str, folder: Path) -> dict[str, tuple[str, str]]:
    """How each test has ended with a backend, and what was said."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / backend / name).mkdir(parents=True)
    place = str(folder / backend)
    told: dict[str, tuple[str, str]] = {}
    # Gloo looks for the name of this machine, which may take the resolver 5 s for each group.
    soon = {"RES_OPTIONS": "timeout:1 attempts:1"}
    with World(RANKS, BACKEND_OF_WORLD=backend, **soon) as world:
        for name in world.run("own_checks:names", folder=place)[0]:
            try:
                answers = world.run(
                    "own_checks:run", name=name, folder=place, seconds=TEST_SECONDS_MAX
                )
            except CheckFailed as failed:
                told[name] = "fails", str(failed)
            else:
                told[name] = ("is skipped", answers[0]) if all(answers) else ("passes", "")
    return told


@pytest.mark.timeout(900)
def test_each_test_of_pytorch_ends_as_with_gloo_unless_the_list_has_it(tmp_path: Path) -> None:
    with_gloo, with_pccl = ends("gloo", tmp_path), ends("pccl", tmp_path)
    assert len(with_pccl) == 285
    reasons = listed()
    wrong = [name for name in reasons if name not in with_pccl]
    for name, (how, why) in with_pccl.items():
        control = with_gloo[name][0]
        if (how != control) != (name in reasons):
            told = f"list it in {LISTED.name}" if how != control else "take it off the list"
            wrong.append(f"{name} {control} with gloo and {how} with pccl: {told}. {why}")
    assert not wrong, "\n\n".join(wrong)
