"""Batch ids on both branches of a fork: where the job reports them, they say what was fed again, and what was not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b

from stabilitybackend.stateful import Stateful, fresh

__all__ = ["BatchIds", "IdsCompared"]

#: Steps whose batch id is remembered on the effective path, and as many of the branch that was left; 16 bytes each.
MAX_STEPS = 4_096
#: Ids that must be found at one distance before it is named.
LEAST_IDS = 3


@dataclass(frozen=True, slots=True)
class IdsCompared:
    """The new branch's ids against those of the old path.

    Attributes:
        points: steps of the new branch with an id, up to the newest that was left. same: at their own step.
        shift: (distance in steps, how many) of the most frequent other distance of ids that came before; None.
        missing: ids that did not come before, at steps at which the old branch has one.
        elsewhere: ids that came before at another step, whatever the distance.
        first_elsewhere: the first new step of these, and where its batch was before.
        by_step: the first step after the fork -> whether its id is the one that was there.
    """

    points: int
    same: int
    shift: tuple[int, int] | None
    missing: int
    elsewhere: int
    first_elsewhere: tuple[int, int] | None
    first_same: bool
    met: dict[int, int] = field(default_factory=dict)


class BatchIds(Stateful):
    """The ids of one rank's batches: on the effective path, and on the branch that the newest fork left."""

    _rank: int | None = None
    _now: dict[int, int] = fresh(dict)
    _left: dict[int, int] = fresh(dict)

    def take(self, rank: int | None, step: int | None, fingerprint: str) -> None:
        """Take what a rank reports; those of the lowest rank count."""
        if rank is None or step is None or not fingerprint or (self._rank is not None and rank > self._rank):
            return
        if rank != self._rank:
            self._now.clear()
            self._left.clear()
            self._rank = rank
        self._now[step] = int.from_bytes(blake2b(fingerprint.encode(), digest_size=7).digest(), "big")
        while len(self._now) > MAX_STEPS:
            del self._now[next(iter(self._now))]

    def forked(self, fork_step: int) -> None:
        """Put what came after the fork step aside: it is the branch that was left."""
        self._left = {step: mark for step, mark in self._now.items() if step > fork_step}
        self._now = {step: mark for step, mark in self._now.items() if step <= fork_step}

    def compare(self, fork_step: int, last_step: int) -> IdsCompared | None:
        """Return how the ids after the fork step, up to ``last_step``, lie on the old path; None without any."""
        new = {step: mark for step, mark in self._now.items() if fork_step < step <= last_step}
        old = {mark: step for step, mark in self._now.items() if step <= fork_step}
        old |= {mark: step for step, mark in self._left.items()}
        if not new or not old:
            return None
        met = {step: old[mark] for step, mark in new.items() if mark in old}
        same = [step for step, was in met.items() if was == step]
        apart = Counter(was - step for step, was in met.items() if was != step)
        shift = apart.most_common(1)[0] if apart else None
        moved = sorted(step for step, was in met.items() if was != step)
        return IdsCompared(
            points=len(new),
            same=len(same),
            shift=shift if shift is not None and shift[1] >= LEAST_IDS else None,
            missing=sum(step in self._left and step not in met for step in new),
            elsewhere=len(moved),
            first_elsewhere=(moved[0], met[moved[0]]) if moved else None,
            first_same=self._left.get(fork_step + 1) is not None and met.get(fork_step + 1) == fork_step + 1,
            met=met,
        )
