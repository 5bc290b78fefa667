"""Settings: the numbers of one run of the demo, which the orchestrator and all peers must agree on.

The orchestrator hands them to each peer as JSON on its command line. `peer.py` says what they mean
for training.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from examples.demo.model import Model

# The training program for each framework.
PROGRAMS = {
    "numpy": "examples.demo.peer",
    "torch": "examples.demo.peer_torch",
    "jax": "examples.demo.peer_jax",
}

PROMPT = "def "  # what the model is asked to go on from at the end


@dataclass(frozen=True)
class Settings:
    """One run. Rounds count from 1, peers from 0."""

    framework: str = "numpy"  # or "torch", or "jax"
    seed: int = 1
    rounds: int = 24
    steps: int = 60  # of the inner optimiser, per round: H in the paper
    batch: int = 128
    warm_up_steps: int = 20
    examination: int = 2048  # held-out windows
    peers: int = 4  # at the start; one of them is lost, and one more comes later
    victim: int = 2
    kill_round: int = 9
    restart_round: int = 12  # the coordinator is killed in this round, and started again
    join_round: int = 15  # the newcomer starts when this round is over
    chunk_bytes: int = 16 * 1024
    # Few chunks in flight: with a window as large as the whole all_reduce, its first phase may be
    # over when half of it is settled at the victim, and then nothing is left to redo.
    window_bytes: int = 64 * 1024
    model: Model = field(default_factory=Model)

    def __post_init__(self) -> None:
        if self.framework not in PROGRAMS:
            raise ValueError(f"framework must be one of {list(PROGRAMS)}, not {self.framework!r}")
        in_order = 1 < self.kill_round < self.restart_round <= self.join_round < self.rounds - 1
        if not in_order:
            raise ValueError(
                f"{self.rounds} rounds leave no room to lose a peer in round {self.kill_round}, "
                f"start one after round {self.join_round} and train on; take 5 rounds at least"
            )

    @classmethod
    def paced(cls, rounds: int, steps: int, seed: int, framework: str = "numpy") -> Settings:
        """Settings with the loss after a third of the rounds and the join after another quarter.

        The coordinator is killed half way between the two.
        """
        kill_round = rounds // 3 + 1
        pause = rounds // 4
        return cls(
            framework=framework,
            seed=seed,
            rounds=rounds,
            steps=steps,
            kill_round=kill_round,
            restart_round=kill_round + (pause + 1) // 2,
            join_round=kill_round + pause,
        )

    @property
    def newcomer(self) -> int:
        """The index of the peer that comes later."""
        return self.peers

    @property
    def shards(self) -> int:
        """One part of the text for each peer that ever takes part."""
        return self.peers + 1

    @property
    def kill_sequence(self) -> int:
        """The operation of that round: numbers count from 0 in the first epoch, for each tag.

        Under torch.distributed each has a tag of its own, so peer_torch.py gives that one number 1.
        """
        return 1 if self.framework == "torch" else self.kill_round - 1

    @property
    def fault_point(self) -> str:
        """Where the victim kills itself: when half of the chunks of that all_reduce are settled.

        It is at a partial sum, which an all_reduce alone sends: the all_gather by which
        `pccl_train` announces the contributions has the same sequence, on another tag.
        """
        return f"operation.partial:{self.kill_sequence}:0.5"

    def to_json(self) -> str:
        """All fields, for a command line or a report."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "model": Model(**fields["model"])})
