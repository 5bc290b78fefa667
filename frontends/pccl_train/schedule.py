"""Schedule: at which inner step of a round each fragment's exchange begins and ends.

A round has `sync_every` positions; position s comes after inner step s. A fragment whose exchange
begins at position s takes its result `delay` positions later, perhaps in the next round. With one
fragment and no delay this is DiLoCo (arXiv 2311.08105); with a delay of a whole round the delayed
form and eager updates (arXiv 2502.12996); with several fragments Streaming DiLoCo
(arXiv 2501.18512). It knows numbers alone: rounds.py does what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

from pccl_py.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Schedule:
    """The exchanges of a round begin at equal distances, the last at its end.

    Raises InvalidArgument for numbers that cannot be.
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
        """The fragments whose exchange begins at this position."""
        return [p for p, start in enumerate(self.starts) if start == position]

    def ending(self, position: int) -> list[int]:
        """The fragments that take the result of an exchange here that began at another position,
        or, with a delay of a whole round, at this one, a round ago."""
        if self.delay == 0:
            return []
        ends = ((start + self.delay - 1) % self.sync_every + 1 for start in self.starts)
        return [p for p, end in enumerate(ends) if end == position]

    def position(self, steps: int, of: int) -> int:
        """The position after `steps` inner steps of a worker that takes `of` of them a round.

        A slower worker takes fewer steps and passes all positions (dynamic local updates,
        arXiv 2401.09135): with the last step it is at the last one.
        """
        return min(steps, of) * self.sync_every // of

    def steps(self, speed: float, fastest: float) -> int:
        """The inner steps of a round for a worker of this speed: at least one, and all of them for
        the fastest, or where no speed is known."""
        if not (speed > 0 and fastest > 0):
            return self.sync_every
        # In this order, as a number over itself is 1, and the fastest takes all steps.
        return min(self.sync_every, max(1, int(self.sync_every * (speed / fastest))))
