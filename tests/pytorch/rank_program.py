"""A process of a World (world.py): it carries out the checks that its standard input names.

Each line is a JSON object: `check` ("module:function"), `arguments`, and the number of the `run`
that it is for. The answer is a line with `value`, or with `error`, a traceback. A check that fails
ends the run here at once, so that the other ranks do not wait for this one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from typing import IO, Any

import pccl_torch
import torch
import torch.distributed

# Its types are those of C++.
dist: Any = torch.distributed

GROUP_SECONDS = 30.0
# Gloo's is the control of PyTorch's own tests (test_torch_suite.py).
BACKEND = os.environ.get("BACKEND_OF_WORLD", "pccl")


class Rank:
    """The first argument of each check."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.gloo: Any = None
        """A group of all, of gloo, to compare with."""
        self.begun = ""
        """Another text for each default group."""
        self._run: int | None = None
        self._begun = 0

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Carries out a check."""
        module, _, name = asked["check"].partition(":")
        try:
            self._take_part(asked["run"])
            check = getattr(importlib.import_module(module), name)
            return {"value": check(self, **asked["arguments"])}
        except Exception:  # noqa: BLE001  whatever it is, it is the answer
            answer = {"error": traceback.format_exc(), "at": time.monotonic()}
            self.leave()
            return answer

    def _take_part(self, run: int) -> None:
        if run == self._run and dist.is_initialized():
            return
        self.leave()
        seconds = timedelta(seconds=GROUP_SECONDS)
        # Gloo has addresses of the last run in the store, and checks may end one.
        self._begun = self._begun + 1 if run == self._run else 0
        self.begun = f"{run}/{self._begun}"
        store = dist.PrefixStore(self.begun, self.store)
        dist.init_process_group(
            BACKEND, store=store, rank=self.rank, world_size=self.size, timeout=seconds
        )
        if "BACKEND_OF_WORLD" not in os.environ:
            self.gloo = dist.new_group(backend="gloo", timeout=seconds)
        self._run = run

    @functools.cached_property
    def store(self) -> Any:
        """That of the test. Making one may ask the resolver for names, which takes seconds."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(address, port, timeout=timedelta(seconds=GROUP_SECONDS))

    def leave(self) -> None:
        """Leaves the run, if it is in one."""
        self.gloo = None
        if dist.is_initialized():
            # A check may have left the group behind in any state, and the next run is another.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def main(asked: IO[str], answers: IO[str]) -> None:
    """Answers each line of `asked`, until it ends."""
    rank = Rank()
    answers.write(json.dumps({"value": pccl_torch.__name__}) + "\n")
    for line in asked:
        answers.write(json.dumps(rank.answer(json.loads(line))) + "\n")
    rank.leave()


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    # Lines that checks print must not be taken for an answer.
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    main(sys.stdin, told)
