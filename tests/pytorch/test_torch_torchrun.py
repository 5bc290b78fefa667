"""A run under `torchrun` whose workers are ended and started again when one of them dies.

The program of the workers is restart_program.py. How the second life finds a coordinator of its
own: frontends/pccl_torch/start.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from restart_program import DEATH, STEPS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("restart_program.py")
SECONDS_MAX = 180.0


def test_workers_that_torchrun_starts_again_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["3", "--max-restarts", "1", str(PROGRAM), str(tmp_path / "checkpoint.pt")]
    paths = [ROOT, ROOT / "frontends", ROOT / "compat"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    environment.pop("PCCL_TOKEN", None)
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, errors = process.communicate(timeout=SECONDS_MAX)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, said + errors
    told = re.findall(r"^life (\d) rank (\d) (begins|ends) at (\d+), digest (\w+)$", said, re.M)
    by_event: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for life, rank, event, step, digest in told:
        by_event.setdefault((life, event, step), []).append((rank, digest))
    # The second life begins where the checkpoint is, and not anew.
    assert set(by_event) == {
        ("0", "begins", "0"),
        ("1", "begins", str(DEATH)),
        ("1", "ends", str(STEPS)),
    }, said
    for ranks in by_event.values():
        assert sorted(rank for rank, _ in ranks) == ["0", "1", "2"], said
        assert len({digest for _, digest in ranks}) == 1, said
    # Whom torchrun has not ended before has been told of the loss.
    assert set(re.findall(r"lost: (\w+)", said)) <= {"PeerLost"}, said
