"""Whether a job is over, and how: the run's status where no rank needs to be looked at any more. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stabilitybackend.detectors.engine.base import Finding
from stabilitybackend.liveness.format import name_ranks
from stabilitybackend.liveness.job_snapshot import of_earlier_start
from stabilitybackend.liveness.rank_watch import RankWatch
from stabilitybackend.schema.runs import RunStatus

__all__ = ["how_it_ended"]


def how_it_ended(
    ranks: Collection[RankWatch], visible: Callable[[], Sequence[RankWatch]], death: Finding | None
) -> tuple[RunStatus, str] | None:
    """Return the status word of a job that is over and a note in plain words; None for one that is not.

    Args:
        ranks: the newest process of each rank. visible: returns those of them that run and are seen.
        death: the open one.
    """
    if death is not None:
        return "crashed", death.text
    if ranks and all(watch.state in ("finished", "left") for watch in ranks):
        left = [watch.rank for watch in ranks if watch.state == "left"]
        return "finished", f"{name_ranks(left)} ended without run.finish()." if left else ""
    dead = {watch.rank for watch in ranks if watch.state == "running" and not watch.alive}
    gone = sorted(dead - of_earlier_start(ranks, visible())) if dead else []
    if gone:
        process, are = ("process", "is") if len(gone) == 1 else ("processes", "are")
        return "crashed", f"The {process} of {name_ranks(gone)} {are} gone."
    return None
