"""Settings: the numbers of one run of the demo, which the orchestrator and all peers must agree on.

The orchestrator passes the settings to each peer as JSON on its command line; `peer.py` uses them.
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

PROMPT = "def "  # the text that the trained model continues at the end


@dataclass(frozen=True)
class Settings:
    """The settings of one run. Rounds count from 1, peers from 0."""

    framework: str = "numpy"  # the training program to run: "numpy", "torch" or "jax"
    seed: int = 1
    rounds: int = 24
    steps: int = 60  # steps of the inner optimiser per round, H in the paper
    batch: int = 128  # windows per step
    warm_up_steps: int = 20  # inner steps in which the learning rate rises to its full value
    examination: int = 2048  # windows of held-out text
    peers: int = 4  # number of peers at the start; one is lost, and another joins later
    victim: int = 2  # the peer that is killed
    kill_round: int = 9  # the victim is killed in this round
    restart_round: int = 12  # the coordinator is killed in this round, and started again
    join_round: int = 15  # the newcomer joins when this round is over
    chunk_bytes: int = 16 * 1024
    # Allows few chunks in flight. With a larger window, the all_reduce's first phase might be over
    # when half of the chunks are settled at the victim, and nothing would be left to redo.
    window_bytes: int = 64 * 1024
    model: Model = field(default_factory=Model)

    def __post_init__(self) -> None:
        if self.framework not in PROGRAMS:
            raise ValueError(f"framework must be one of {list(PROGRAMS)}, not {self.framework!r}")
        in_order = 1 < self.kill_round < self.restart_round <= self.join_round < self.rounds - 1
        if not in_order:
            raise ValueError(
                f"{self.rounds} rounds leave no room to lose a peer in round {self.kill_round}, "
                f"add one after round {self.join_round} and train on; take 5 rounds at least"
            )

    @classmethod
    def paced(cls, rounds: int, steps: int, seed: int, framework: str = "numpy") -> Settings:
        """Settings in which the victim is killed after a third of the rounds, the newcomer joins
        after another quarter, and the coordinator is killed half way between."""
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
        """The index of the peer that joins later."""
        return self.peers

    @property
    def shards(self) -> int:
        """Number of parts of the training text: one for each peer, the newcomer included."""
        return self.peers + 1

    @property
    def kill_sequence(self) -> int:
        """The sequence number of `kill_round`'s all_reduce on its tag, counted from 0.

        Under torch.distributed each operation has a tag of its own, so peer_torch.py makes a
        barrier first on the all_reduce's tag, and the all_reduce has number 1.
        """
        return 1 if self.framework == "torch" else self.kill_round - 1

    @property
    def fault_point(self) -> str:
        """The fault point (PCCL_FAULT_POINT) at which the victim kills itself: when half of the
        chunks of the all_reduce of `kill_round` are settled.

        "partial" means a partial sum, which only an all_reduce sends: the all_gather by which
        `pccl_train` announces contributions has the same sequence number, on another tag.
        """
        return f"operation.partial:{self.kill_sequence}:0.5"

    def to_json(self) -> str:
        """All settings as JSON, for a command line or a report."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings in a text of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "model": Model(**fields["model"])})
