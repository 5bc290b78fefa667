"""Method: the settings of a training with rare exchanges, the same for all frontends.

DiLoCo (arXiv 2311.08105) is the default; other settings give related methods:

    Method()                                                          DiLoCo
    Method(fragment_sync_delay=H, sync_every=H)                       one round delayed
    Method(fragment_sync_delay=H, sync_every=H, eager=True)           eager updates, 2502.12996
    Method(sync_every=100, fragments=3, fragment_sync_delay=5,
           fragment_update_alpha=0.5, codec="e3m0")                   Streaming DiLoCo, 2501.18512
    Method(sync_every=30, outer=SGD(1.0), sparse=Sparse(kept=64))     SparseLoCo, 2508.15706

MuLoCo (2505.23725) is DiLoCo with Muon as the inner optimizer. docs/guides/DILOCO.md compares the
methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Literal

from pccl_py.codec import Codec, CodecKind, CodecName, parse_codec
from pccl_py.errors import InvalidArgument
from pccl_train.fragments import Layout, Order, Tensor, layouts, split
from pccl_train.outer import Adam, OuterOptimizer, parse_outer
from pccl_train.privacy import Privacy
from pccl_train.schedule import Schedule
from pccl_train.sparse import Sparse

WEIGHTS = ("tokens", "equal")


@dataclass(frozen=True, slots=True)
class Method:
    """The settings of a training, the same on all peers: the first sync of a run compares them.

    `sync_every`: inner steps of a round, H. `fragments`: number of parts of the model that are
    exchanged at equal distances within a round, or the names of the tensors of each part. `order`:
    how tensors are distributed over fragments ("balanced" or "strided"). `fragment_sync_delay`:
    inner steps from the beginning of an exchange to the use of its result, at most `sync_every`.
    `fragment_update_alpha`: weight of a worker's own parameters, 0 to 1, when the result of an
    exchange is mixed into them. `outer`: the outer optimizer, or its name. `codec`: encoding of
    pseudo-gradients on the network. `error_feedback`: adds what the codec lost to the next
    exchange. `sparse`: exchanges only the greatest elements. `eager`: a worker applies its own
    pseudo-gradient at once, and the other workers' a round later. `weights`: "tokens" weights a
    contribution by the tokens trained since the last exchange, "equal" weights all equally.
    `adaptive_steps`: a slower worker takes fewer inner steps a round (arXiv 2401.09135); the
    program must count an inner step only when it has ended on the device. `clip_to_median`: limits
    the norm of each contribution to the median norm. `privacy`: clips contributions and adds noise.

    Raises InvalidArgument for settings that exclude each other.
    """

    sync_every: int = 500
    fragments: int | tuple[tuple[str, ...], ...] = 1
    order: Order = "balanced"
    fragment_sync_delay: int = 0
    fragment_update_alpha: float = 0.0
    outer: OuterOptimizer | str = "nesterov"
    codec: Codec | CodecKind | CodecName = "none"
    error_feedback: bool = False
    sparse: Sparse | None = None
    eager: bool = False
    weights: Literal["tokens", "equal"] = "tokens"
    adaptive_steps: bool = False
    clip_to_median: bool = False
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "outer", parse_outer(self.outer))
        object.__setattr__(self, "codec", parse_codec(self.codec))
        for name, value, kind in (
            ("sparse", self.sparse, Sparse),
            ("privacy", self.privacy, Privacy),
        ):
            if not (value is None or isinstance(value, kind)):
                raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
        # Checks sync_every, fragments and delay; `layout` checks the names of fragments' tensors.
        Schedule(self.sync_every, self._count(), self.fragment_sync_delay)
        if not 0 <= self.fragment_update_alpha <= 1:
            raise InvalidArgument(
                "fragment_update_alpha must lie between 0, which takes the outer parameters, and "
                f"1, not {self.fragment_update_alpha}"
            )
        if self.weights not in WEIGHTS:
            raise InvalidArgument(f"weights must be 'tokens' or 'equal', not {self.weights!r}")
        if self.sparse is not None and self._encodes():
            raise InvalidArgument("sparse pieces have their own codes: sparse excludes a codec")
        if self.error_feedback and not self._encodes():
            raise InvalidArgument("error_feedback must have a codec whose losses it keeps")
        if self.privacy is not None and (
            self.sparse or self.clip_to_median or self.weights != "equal"
        ):
            raise InvalidArgument(
                "privacy must have weights='equal', and neither sparse nor clip_to_median: its "
                "noise is made for a plain average"
            )
        if self.eager:
            self._check_eager()

    def _check_eager(self) -> None:
        if self.fragment_sync_delay != self.sync_every:
            raise InvalidArgument(
                "eager updates overlap a whole round: fragment_sync_delay must be "
                f"{self.sync_every}, as sync_every is, not {self.fragment_sync_delay}"
            )
        if self.fragment_update_alpha != 0 or isinstance(self.outer, Adam) or self.sparse:
            raise InvalidArgument(
                "eager updates must have SGD or Nesterov as outer optimizer, a "
                "fragment_update_alpha of 0, and no sparse pieces"
            )

    def _count(self) -> int:
        return self.fragments if isinstance(self.fragments, int) else len(self.fragments)

    def _encodes(self) -> bool:
        return parse_codec(self.codec).encodes

    @property
    def optimizer(self) -> OuterOptimizer:
        """The outer optimizer, parsed."""
        return parse_outer(self.outer)

    @property
    def schedule(self) -> Schedule:
        """The positions of a round at which each fragment's exchange begins and ends."""
        return Schedule(self.sync_every, self._count(), self.fragment_sync_delay)

    def layout(self, tensors: Sequence[Tensor]) -> list[Layout]:
        """The fragments of a model with `tensors`. Raises the errors of `layouts` and `split`."""
        if isinstance(self.fragments, int):
            return layouts(tensors, split(tensors, self.fragments, self.order))
        return layouts(tensors, self.fragments)

    def told(self) -> list[str]:
        """A "name=value" for each setting, by which peers compare settings and name differences."""
        found = []
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name == "fragments":
                value = self._count()  # the states of the fragments compare the tensors' names
            if setting.name == "codec":
                value = parse_codec(value).name
            if not is_dataclass(value):
                found.append(f"{setting.name}={value}")
                continue
            found.append(f"{setting.name}={type(value).__name__}")
            found += [f"{setting.name}.{f.name}={getattr(value, f.name)}" for f in fields(value)]
        return found
