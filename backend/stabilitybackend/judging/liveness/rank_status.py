"""State of each rank in one word, for all pages. Pure.

``over`` is past its budget by the check that finds a hang (``hang/overdue.py``); of several such ranks those stay
``over`` that the others wait for: the culprits of an open verdict, else those furthest back. The others are ``waits``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from stabilitybackend.judging.liveness.hang.suspects import furthest_back
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.ranks import RankStatus

__all__ = ["Overdue", "RankStatuses", "judge_ranks"]

#: Stall of a culprit, or of a possibly awaited rank, that counts as trouble, seconds.
STALLED_S = 5.0
#: Time between two samples of ranks, taken once a second, not at one moment, seconds.
SAMPLES_S = 1.5


@dataclass(frozen=True)
class Overdue:
    """The ranks past their budgets at the last tick, by source.

    Attributes:
        sources: overdue ones; excused: they only wait for a rank in a long phase.
        waiting: those that waited so and may not be overdue yet.
    """

    sources: Collection[str] = frozenset()
    excused: bool = False
    waiting: Collection[str] = frozenset()

    @classmethod
    def of(
        cls, overdue: Iterable[RankWatch], at_work: Collection[int], excused: bool, waiting: Collection[str]
    ) -> Overdue:
        """Return it for the ranks past their budgets; those ``at_work`` are awaited by the others."""
        if not at_work:
            return cls({watch.source for watch in overdue}, excused, waiting)
        return cls(frozenset(), excused, {w.source for w in overdue if w.rank not in at_work} | set(waiting))


@dataclass(frozen=True)
class RankStatuses:
    """State of the ranks of one run.

    Attributes:
        of: source of the process -> state; without replaced processes.
        waits_for: culprits of open verdicts; empty for none.
    """

    of: dict[str, RankStatus] = field(default_factory=dict)
    waits_for: list[int] = field(default_factory=list)


def judge_ranks(
    ranks: Iterable[RankWatch],
    unheard: Collection[str],
    overdue: Overdue,
    culprits: Collection[int],
    usual_step_s: float | None,
) -> RankStatuses:
    """Return the state of each rank.

    Args:
        ranks: the process of each rank that counts. unheard: agents that are away or silent.
        culprits: of open verdicts.
        usual_step_s: None for unknown.
    """
    watches = [watch for watch in ranks if watch.agent]
    past, front = overdue.sources, max((watch.step for watch in watches if watch.running), default=-1)
    least = front - 1 - math.ceil(SAMPLES_S / usual_step_s if usual_step_s else 1.0)
    found = {watch.source: _alone(watch, unheard, overdue, least) for watch in watches}
    if not past:
        return RankStatuses(found)
    late = [watch for watch in watches if found[watch.source] == "over"]
    guilty = [
        watch
        for watch in watches
        if watch.rank in culprits and (found[watch.source] != "running" or watch.stalled_s > STALLED_S)
    ]
    if guilty and late:
        blamed = {watch.source for watch in guilty}
        # With invisible culprits, the visible ranks furthest back are in trouble too.
        if all(found[watch.source] == "unheard" for watch in guilty):
            blamed |= {watch.source for watch in furthest_back(late)}
        found.update((watch.source, "over") for watch in guilty if found[watch.source] in ("running", "behind"))
    else:
        guilty = []
        blamed = set() if overdue.excused else _waited_for(watches, found)
        if not (blamed or overdue.excused or not {"dead", "unheard"}.isdisjoint(found.values())):
            return RankStatuses(found)  # all are at one place: no rank differs
    found.update((watch.source, "waits") for watch in late if watch.source not in blamed)
    return RankStatuses(found, sorted(watch.rank for watch in guilty))


def _waited_for(watches: Collection[RankWatch], found: Mapping[str, RankStatus]) -> set[str]:
    standing = [w for w in watches if found[w.source] in ("over", "running", "behind") and w.stalled_s > STALLED_S]
    return {watch.source for watch in furthest_back(standing)}


def _alone(watch: RankWatch, unheard: Collection[str], overdue: Overdue, least: int) -> RankStatus:
    """Return the state of a rank by itself; ``least``: the step below which it is behind."""
    if not watch.running:
        return "finished" if watch.state == "finished" else "dead"
    if watch.agent in unheard:
        return "unheard"
    if watch.trouble:
        return "unread"
    if watch.source in overdue.sources:
        return "over"
    if watch.in_long_phase:
        return "long"
    if watch.source in overdue.waiting:
        return "waits"
    return "behind" if 0 <= watch.step < least and not watch.sparse else "running"
