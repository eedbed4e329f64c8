"""Batch ids on both branches of a fork: where the job reports them, they say what was fed again, and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from stabilitybackend.judging.resumes.branches import Branches
from stabilityclient.wire import MAX_STEP

__all__ = ["IdsCompared", "compare_ids"]

#: Steps since the fork whose ids are compared: what a resume did to the data shows in the first of them.
MAX_STEPS = 128
#: Ids that must be found at one distance before it is named.
LEAST_IDS = 3


@dataclass(frozen=True, slots=True)
class IdsCompared:
    """The new branch's ids against those of the old path.

    Attributes:
        points: steps of the new branch with an id, as far as the old one has ids. same: at their own step.
        shift: (distance in steps, how many) of the most frequent other distance of ids that came before; None.
        missing: ids that did not come before, at steps at which the old branch has one.
        elsewhere: ids that came before at another step, whatever the distance.
        first_elsewhere: the first new step of these, and where its batch was before.
        met: new step -> the step at which its batch was before.
    """

    points: int
    same: int
    shift: tuple[int, int] | None
    missing: int
    elsewhere: int
    first_elsewhere: tuple[int, int] | None
    met: Mapping[int, int]


def compare_ids(branches: Branches) -> IdsCompared | None:
    """Return how the ids after the fork step lie on the old path, None where it has none.

    Only steps that both branches have count: what comes later may be a new epoch.
    """
    if branches.old is None or branches.run.ids is None:
        return None
    ids, old, new = branches.run.ids, branches.path(branches.old), branches.path(branches.new)
    first = branches.fork_step + 1
    met: dict[int, int] = {}
    points = missing = 0
    for step in range(first, min(branches.last_step + 1, first + MAX_STEPS)):
        batch, was = ids.on(new, step), ids.on(old, step)
        if batch is None or was is None:
            continue
        points += 1
        found = step if batch == was else ids.newest(old, batch, MAX_STEP)
        if found is None:
            missing += 1
        else:
            met[step] = found
    if not points:
        return None
    moved = [step for step, at in met.items() if at != step]
    shift = Counter(met[step] - step for step in moved).most_common(1)
    return IdsCompared(
        points=points,
        same=len(met) - len(moved),
        shift=shift[0] if shift and shift[0][1] >= LEAST_IDS else None,
        missing=missing,
        elsewhere=len(moved),
        first_elsewhere=(moved[0], met[moved[0]]) if moved else None,
        met=met,
    )
