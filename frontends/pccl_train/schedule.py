"""Schedule: at which inner step of a round each fragment's exchange begins and ends.

A round has `sync_every` positions; position s comes after inner step s. If a fragment's exchange
begins at position s, its result is used `delay` positions later, perhaps in the next round. One
fragment and no delay give DiLoCo (arXiv 2311.08105); a delay of a whole round gives delayed and
eager updates (arXiv 2502.12996); several fragments give Streaming DiLoCo (arXiv 2501.18512).
rounds.py makes the exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass

from pccl_py.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a round: exchanges begin at equal distances, the last at the round's end.

    `sync_every`: inner steps of a round. `fragments`: number of fragments. `delay`: positions from
    the beginning of an exchange to the use of its result. Raises InvalidArgument unless there is an
    inner step for each fragment, and `delay` is at most a round.
    """

    sync_every: int
    fragments: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        for name, value in (
            ("sync_every", self.sync_every),
            ("fragments", self.fragments),
            ("fragment_sync_delay", self.delay),
        ):
            if not isinstance(value, int):
                raise TypeError(f"{name} must be an int, not {value!r}")
        if self.sync_every < 1:
            raise InvalidArgument(
                f"sync_every must be 1 or more inner steps, not {self.sync_every}"
            )
        if not 1 <= self.fragments <= self.sync_every:
            raise InvalidArgument(
                f"there are {self.fragments} fragments and {self.sync_every} inner steps in a "
                "round: there must be at least one fragment, and one inner step for each"
            )
        if not 0 <= self.delay <= self.sync_every:
            raise InvalidArgument(
                f"fragment_sync_delay must lie between 0 and {self.sync_every}, as sync_every is, "
                f"not {self.delay}: a result must be there before the next exchange of its fragment"
            )

    @property
    def starts(self) -> list[int]:
        """The position at which the exchange of each fragment begins, 1 to `sync_every`."""
        return [self.sync_every * (p + 1) // self.fragments for p in range(self.fragments)]

    def starting(self, position: int) -> list[int]:
        """The fragments whose exchange begins at `position`."""
        return [p for p, start in enumerate(self.starts) if start == position]

    def ending(self, position: int) -> list[int]:
        """The fragments that use the result of an earlier exchange at `position`; none if `delay`
        is 0. With a delay of a whole round, the exchange began at `position` a round ago."""
        if self.delay == 0:
            return []
        ends = ((start + self.delay - 1) % self.sync_every + 1 for start in self.starts)
        return [p for p, end in enumerate(ends) if end == position]

    def position(self, steps: int, of: int) -> int:
        """The position after `steps` inner steps of a worker that takes `of` inner steps a round.

        A slower worker takes fewer steps, but passes all positions (dynamic local updates,
        arXiv 2401.09135): its last step of a round ends at the last position.
        """
        return min(steps, of) * self.sync_every // of

    def steps(self, speed: float, fastest: float) -> int:
        """The inner steps of a round for a worker of this `speed`: `sync_every` for the fastest
        worker or if a speed is unknown (0), proportionally fewer for others, but at least one."""
        if not (speed > 0 and fastest > 0):
            return self.sync_every
        # Divides first, so that the fastest worker's quotient is exactly 1 and it takes all steps.
        return min(self.sync_every, max(1, int(self.sync_every * (speed / fastest))))
