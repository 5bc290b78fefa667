"""The plan of the benchmark of torch.distributed: its cases, and how often each is called.

It imports no PyTorch, as the command line does not either. It is carried out by torch_steps.py,
torch_kill.py, torch_ft.py and their workers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from bench import common
from bench.common import KIB, MIB

SIZES = [4 * KIB << (2 * step) for step in range(8)]  # 4 KiB to 64 MiB, in steps of four
QUICK_SIZES = [4 * KIB, 1 * MIB]
CASES = ("all_reduce", "ddp", "fsdp", "coded", "kill", "torchft")


@dataclass(frozen=True)
class Case:
    """One thing that is measured: how many calls a sample times, how many samples are taken.

    `kind`: "all_reduce" of `size` bytes, "ddp" or "fsdp" of a model of `size`, "coded" is ddp
    whose gradients go in int8 with error feedback, against gloo's of f32.
    """

    kind: str
    size: str
    iterations: int
    samples: int

    @property
    def name(self) -> str:
        """As in rows."""
        if self.kind == "all_reduce":
            return common.case_name("all_reduce", "f32", "none", 2, common.size_of(self.size))
        codec = "int8" if self.kind == "coded" else "none"
        step = "fsdp_step" if self.kind == "fsdp" else "ddp_step"
        return f"{step}/f32/{codec}/w2/{self.size}"


def to_json(cases: list[Case]) -> str:
    """For the command line."""
    return json.dumps([asdict(case) for case in cases])


@dataclass(frozen=True)
class Plan:
    """One process. The last rank ends itself in step `kill_at`, the first time it runs.

    `backend`: "pccl" or "gloo". Under torchft with "/resume" or "/own_hook" behind it, and `steps`
    are those that the others commit after the kill (torch_ft.py).
    """

    backend: str
    size: str
    kill_at: int
    steps: int

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def plan(kinds: list[str], quick: bool, sizes: list[int] | None = None) -> list[Case]:
    """How often each case is called: many times for small ones, few times for large ones."""
    made = []
    for kind in kinds:
        if kind == "all_reduce":
            for size in sizes or (QUICK_SIZES if quick else SIZES):
                iterations = max(1, min(50, 4 * MIB // size))
                case = Case(kind, common.size_name(size), iterations, 25 if size < 16 * MIB else 11)
                made.append(case)
        elif kind in ("ddp", "fsdp"):
            made += [Case(kind, "1M", 5, 15), Case(kind, "25M", 1, 15)]
        elif kind == "coded":
            made += [Case(kind, "1M", 1, 9), Case(kind, "25M", 1, 3)]
    if quick:
        return [Case(case.kind, case.size, 2, 2) for case in made if case.size != "25M"]
    return made
